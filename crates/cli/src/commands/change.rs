//! `ambit apply` and `ambit delete`: manifests into a running machine, all of them or none.

use std::path::PathBuf;
use std::process::ExitCode;

use ambit_control::manifest::{self, Errors, Input, Manifests, Typed};
use ambit_lab::machine::Client;
use ambit_lab::objects::{Changes, ObjectRef, Outcome};
use anyhow::{Context, Result, bail};

use super::settle;
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
            if manifests.objects.is_empty() {
                bail!("the input holds no objects that Ambit reads; nothing was applied");
            }
            Ok(manifests)
        }
        Err(errors) => refused(&errors),
    }
}

/// Prints what manifests mean beside the objects that are there, and fails with every reference to
/// nothing.
pub(super) fn check(manifests: &Manifests, existing: &[Typed]) -> Result<()> {
    match manifests.check(existing) {
        Ok(surprises) => {
            for surprise in &surprises {
                eprintln!("warning: {surprise}");
            }
            Ok(())
        }
        Err(errors) => refused(&errors),
    }
}

fn refused<T>(errors: &Errors) -> Result<T> {
    for error in &errors.0 {
        eprintln!("error: {error}");
    }
    bail!("{} errors in the manifests; nothing was applied", errors.0.len())
}

/// The objects of a running machine that manifests can refer to.
async fn existing(client: &Client) -> Result<Vec<Typed>> {
    let mut existing = Vec::new();
    for kind in manifest::Kind::all() {
        for object in client.objects(kind.plural()).await? {
            let typed = manifest::stored(kind, object.to_string().as_bytes());
            existing.push(typed.with_context(|| format!("read a stored {kind}"))?);
        }
    }
    Ok(existing)
}

/// Applies manifests.
pub(super) async fn apply(args: ManifestArgs) -> Result<ExitCode> {
    let manifests = load(&args.paths)?;
    let client = Client::new(super::layout(&args.state));
    check(&manifests, &existing(&client).await?)?;
    let objects = manifests.objects.into_iter().map(|object| object.json).collect();
    let changes = client.apply(objects, args.dry_run).await?;
    print(&changes)?;
    take_effect(&args, &client, &changes).await
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
    let changes = client.delete(&named, false, args.dry_run).await?;
    print(&changes)?;
    take_effect(&args, &client, &changes).await
}

/// Waits until the mesh has taken a stored change up, so that what is asked next sees it.
async fn take_effect(args: &ManifestArgs, client: &Client, changes: &Changes) -> Result<ExitCode> {
    let is_changed = changes.changes.iter().any(|it| it.outcome != Outcome::Unchanged);
    if is_changed && !args.dry_run && !args.no_wait {
        let told = |what: &str| eprintln!("waiting: {what}");
        settle::wait(&client.layout().control_socket(), told).await;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(changes: &Changes) -> Result<()> {
    for warning in &changes.warnings {
        eprintln!("warning: {warning}");
    }
    let lines: String = changes.changes.iter().map(|change| format!("{change}\n")).collect();
    super::print(&lines)
}
