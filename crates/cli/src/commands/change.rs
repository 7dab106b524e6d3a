//! `ambit apply` and `ambit delete`: manifests into a running machine, all of them or none.

use std::path::PathBuf;
use std::process::ExitCode;

use ambit_control::manifest::{self, Input, Manifests};
use ambit_lab::machine::Client;
use ambit_lab::objects::{Changes, ObjectRef};
use anyhow::{Result, bail};

use crate::args::ManifestArgs;

/// Reads manifests, prints the warnings, and fails with everything that is wrong.
pub(super) fn load(paths: &[PathBuf]) -> Result<Manifests> {
    let input = |path: &PathBuf| match path.to_str() {
        Some("-") => Input::Stdin,
        _ => Input::Path(path.clone()),
    };
    let inputs: Vec<Input> = paths.iter().map(input).collect();
    match manifest::load(&inputs) {
        Ok(manifests) => {
            for warning in &manifests.warnings {
                eprintln!("warning: {warning}");
            }
            Ok(manifests)
        }
        Err(errors) => {
            for error in &errors.0 {
                eprintln!("error: {error}");
            }
            bail!("{} errors in the manifests; nothing was applied", errors.0.len())
        }
    }
}

/// Applies manifests.
pub(super) async fn apply(args: ManifestArgs) -> Result<ExitCode> {
    let manifests = load(&args.paths)?;
    let client = Client::new(super::layout(&args.state));
    let objects = manifests.objects.into_iter().map(|object| object.json).collect();
    print(&client.apply(objects, args.dry_run).await?)
}

/// Deletes what manifests name.
pub(super) async fn delete(args: ManifestArgs) -> Result<ExitCode> {
    let manifests = load(&args.paths)?;
    let client = Client::new(super::layout(&args.state));
    let named = manifests.objects.iter().map(|object| ObjectRef {
        plural: object.key.kind.plural().to_owned(),
        namespace: (!object.key.namespace.is_empty()).then(|| object.key.namespace.to_string()),
        name: object.key.name.to_string(),
    });
    let named: Vec<ObjectRef> = named.collect();
    print(&client.delete(&named, false, args.dry_run).await?)
}

fn print(changes: &Changes) -> Result<ExitCode> {
    for warning in &changes.warnings {
        eprintln!("warning: {warning}");
    }
    let lines: String = changes.changes.iter().map(|change| format!("{change}\n")).collect();
    super::print(&lines)?;
    Ok(ExitCode::SUCCESS)
}
