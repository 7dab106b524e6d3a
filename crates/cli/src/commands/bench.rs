//! `ambit bench`.

use std::process::ExitCode;

use ambit_bench::{OwnManifests, Site};
use ambit_cluster::Cluster;
use ambit_machine::objects::refused_fields;
use ambit_machine::{ImageSources, unknown_images};
use ambit_manifest::{Errors, Unenforced};
use anyhow::{Context, Result};

use crate::args::{BenchArgs, input};

/// Runs an experiment: on a cluster, or here, on the user's own manifests if they are named.
pub(super) async fn bench(args: BenchArgs) -> Result<ExitCode> {
    let BenchArgs { bench: args, kube } = args;
    if kube.is_meant() {
        let cluster = Cluster::connect(&kube.choice()).await?;
        return ambit_bench::run_bench(args, Site::Cluster(Box::new(cluster))).await;
    }
    let own = match args.own_manifests() {
        None => None,
        Some(path) => {
            let manifests = super::change::load(&[input(path)], None, Unenforced::LeftOut)?;
            let mut wrong = refused_fields(&manifests);
            wrong.extend(unknown_images(&manifests, None, &ImageSources::default()));
            if !wrong.is_empty() {
                return super::change::refused(&Errors(wrong), "run");
            }
            let objects = manifests.objects.into_iter().map(|object| object.json).collect();
            Some(OwnManifests { path: path.display().to_string(), objects })
        }
    };
    let binary = std::env::current_exe().context("find this program")?;
    ambit_bench::run_bench(args, Site::Here { binary, own }).await
}
