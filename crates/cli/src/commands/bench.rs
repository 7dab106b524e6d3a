//! `ambit bench`.

use std::process::ExitCode;

use ambit_lab::bench::{self, BenchArgs, OwnManifests};
use anyhow::{Context, Result};

/// Runs an experiment, on the user's own manifests if they are named.
pub(super) async fn bench(args: BenchArgs) -> Result<ExitCode> {
    let own = match args.own_manifests() {
        None => None,
        Some(path) => {
            let manifests = super::change::load(&[path.to_owned()])?;
            let objects = manifests.objects.into_iter().map(|object| object.json).collect();
            Some(OwnManifests { path: path.display().to_string(), objects })
        }
    };
    let binary = std::env::current_exe().context("find this program")?;
    bench::run_bench(args, binary, own).await
}
