//! `ambit apply` and `ambit delete`: change the objects of a running machine, all of them or none.

use std::collections::BTreeSet;
use std::process::ExitCode;

use ambit_machine::image::ImageMap;
use ambit_machine::objects::{Changes, Kind, ObjectRef, Outcome};
use ambit_machine::{Client, ImageArguments, PodInfo, Record, judge};
use ambit_manifest::{Errors, Finding, Input, Manifests, Typed, Unenforced};
use ambit_model::printable::printable;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use super::{findings, publish, settle};
use crate::args::{ApplyArgs, DeleteArgs, ManifestArgs, Target};
use crate::progress;

/// Reads manifests, prints the warnings, and fails with everything that is wrong.
pub(super) fn load(
    inputs: &[Input],
    namespace: Option<&str>,
    unenforced: Unenforced,
) -> Result<Manifests> {
    // Who types the manifests has the line to himself.
    let is_typed = inputs.iter().any(|it| matches!(it, Input::Stdin));
    let shown = (!is_typed).then(|| progress::shown("reading the manifests"));
    let manifests = ambit_manifest::load_in(inputs, namespace, unenforced);
    drop(shown);
    let manifests = manifests.or_else(|errors| refused(&errors, "applied"))?;
    warn(&manifests.warnings);
    if manifests.objects.is_empty() {
        bail!("the input holds no objects that Ambit reads; nothing was applied");
    }
    Ok(manifests)
}

pub(super) fn warn(findings: &[Finding]) {
    for finding in findings {
        eprintln!("warning: {finding}");
    }
}

/// Prints what manifests mean beside the objects that are there, and fails with every reference to
/// nothing, every field that a machine refuses and every image that means nothing.
pub(super) fn check(
    manifests: &Manifests,
    existing: &[Typed],
    images: &ImageArguments,
) -> Result<()> {
    let (surprises, errors) = judge(manifests, existing, images);
    warn(&surprises);
    if errors.is_empty() { Ok(()) } else { refused(&Errors(errors), "applied") }
}

pub(super) fn refused<T>(errors: &Errors, done: &str) -> Result<T> {
    for error in &errors.0 {
        eprintln!("error: {error}");
    }
    let count = errors.0.len();
    let noun = if count == 1 { "error" } else { "errors" };
    bail!("{count} {noun} in the manifests; nothing was {done}")
}

/// The objects of a running machine that manifests can refer to.
pub(super) async fn existing(client: &Client) -> Result<Vec<Typed>> {
    let _shown = progress::shown("reading the objects of the machine");
    let mut existing = Vec::new();
    let running = client.pods().await?;
    for kind in ambit_manifest::Kind::all() {
        for mut object in client.objects(kind.plural()).await? {
            if kind == ambit_manifest::Kind::Pod {
                add_addresses(&mut object, &running);
            }
            let typed = ambit_manifest::stored(kind, object.to_string().as_bytes());
            existing.push(typed.with_context(|| format!("read a stored {kind}"))?);
        }
    }
    Ok(existing)
}

/// Writes a pod's addresses where Kubernetes has them; the machine keeps them apart.
fn add_addresses(object: &mut Value, running: &[PodInfo]) {
    let is_it = |pod: &&PodInfo| object["metadata"]["uid"] == pod.uid.as_str();
    if let Some(pod) = running.iter().find(is_it) {
        let ips: Vec<Value> = pod.pod_ips.iter().map(|ip| json!({ "ip": ip })).collect();
        object["status"]["podIPs"] = json!(ips);
    }
}

/// Applies manifests.
pub(super) async fn apply(args: ApplyArgs) -> Result<ExitCode> {
    let images = args.images.read()?;
    let args = args.manifests;
    if args.kube.is_meant() && !args.dry_run {
        bail!(
            "in a cluster this is kubectl's job: {}; with --dry-run Ambit looks whether it \
             understands the manifests",
            args.inputs.kubectl(&args.namespace.kubectl("apply"))
        );
    }
    let manifests = load(&args.inputs.inputs(), args.namespace.asked(), args.ignored.unenforced())?;
    if args.kube.is_meant() {
        let count = manifests.objects.len();
        super::print_text(&format!(
            "{count} objects are understood; the cluster is asked by {}\n",
            args.inputs.kubectl(&args.namespace.kubectl("apply --dry-run=server"))
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = Client::new(super::layout(&args.state));
    let existing = existing(&client).await?;
    check(&manifests, &existing, &known(&client, &images)?)?;
    let objects = manifests.objects.into_iter().map(|object| object.named).collect();
    let images = import(&client, images, args.dry_run).await?;
    let shown = progress::shown("applying");
    let changes = client.apply_with_images(objects, images, args.dry_run).await?;
    drop(shown);
    print(&changes, args.dry_run)?;
    let code = take_effect(&args, &client, &changes).await?;
    let objects = changes.changes.into_iter().map(|it| it.object);
    let services: BTreeSet<ObjectRef> = objects.filter(|it| it.plural == "services").collect();
    if !args.dry_run && !services.is_empty() {
        let is_meant = |namespace: &str, name: &str| {
            services.contains(&ObjectRef::new(Kind::Service, Some(namespace), name))
        };
        publish::open_asked(&client, is_meant).await?;
    }
    Ok(code)
}

/// What these arguments mean, and what the machine knows besides.
pub(super) fn known(client: &Client, images: &ImageArguments) -> Result<ImageArguments> {
    let commands = Record::read(client.layout())?.images.extended(images.commands.clone());
    Ok(ImageArguments { commands, sources: images.sources.clone() })
}

/// Imports images into the machine's store, or sees whether they can be. One that the machine does
/// not need after all stays there.
pub(super) async fn import(
    client: &Client,
    images: ImageArguments,
    dry_run: bool,
) -> Result<ImageMap> {
    let ImageArguments { commands, sources } = images;
    let mut waiting = |name: &str| eprintln!("importing {name}");
    let (layout, registries) = (client.layout(), super::registries::of_user(&sources)?);
    let imported = match dry_run {
        true => sources.try_import(layout, &registries, &mut waiting).await?,
        false => sources.import_running(layout, &registries, &mut waiting).await?,
    };
    Ok(commands.extended(imported))
}

/// Deletes what manifests name, or words.
pub(super) async fn delete(args: DeleteArgs) -> Result<ExitCode> {
    let DeleteArgs { ignore_not_found, manifests: args } = args;
    if args.kube.is_meant() {
        let verb = args.namespace.kubectl("delete");
        bail!("in a cluster this is kubectl's job: {}", args.inputs.kubectl(&verb));
    }
    let named = match args.inputs.targets() {
        Some(targets) => {
            let namespace = args.namespace.asked().unwrap_or("default");
            let targets = targets.map_err(|error| anyhow!(error))?;
            let object = |it: Target| {
                let namespace = it.kind.is_namespaced().then_some(namespace);
                ObjectRef::new(it.kind, namespace, &it.name)
            };
            targets.into_iter().map(object).collect()
        }
        None => in_manifests(&args)?,
    };
    let client = Client::new(super::layout(&args.state));
    let shown = progress::shown("deleting");
    let changes = client.delete(&named, ignore_not_found, args.dry_run).await?;
    drop(shown);
    print(&changes, args.dry_run)?;
    take_effect(&args, &client, &changes).await
}

fn in_manifests(args: &ManifestArgs) -> Result<Vec<ObjectRef>> {
    let names = ambit_manifest::load_names(&args.inputs.inputs(), args.namespace.asked());
    let names = names.or_else(|errors| refused(&errors, "deleted"))?;
    warn(&names.warnings);
    if names.keys.is_empty() {
        bail!("the input names no objects that Ambit reads; nothing was deleted");
    }
    let named = names.keys.iter().map(|key| ObjectRef {
        plural: key.kind.plural().to_owned(),
        namespace: (!key.namespace.is_empty()).then(|| key.namespace.to_string()),
        name: key.name.to_string(),
    });
    Ok(named.collect())
}

/// Waits until the mesh has taken a stored change up, so that what is asked next sees it.
async fn take_effect(args: &ManifestArgs, client: &Client, changes: &Changes) -> Result<ExitCode> {
    let is_changed = changes.changes.iter().any(|it| it.outcome != Outcome::Unchanged);
    if is_changed && !Record::read(client.layout())?.mesh {
        eprintln!("note: this machine was started without the mesh; nothing is enforced on it");
    }
    if !args.dry_run && !args.no_wait {
        settle(client, changes).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the mesh, if there is one, has taken changes up, and prints what it makes of them.
pub(super) async fn settle(client: &Client, changes: &Changes) -> Result<()> {
    let is_changed = changes.changes.iter().any(|it| it.outcome != Outcome::Unchanged);
    if is_changed && Record::read(client.layout())?.mesh {
        let told = |what: &str| eprintln!("waiting: {what}");
        let control = client.layout().control_socket();
        settle::wait(&control, told).await;
        eprint!("{}", findings::loud(&control).await);
    }
    Ok(())
}

pub(super) fn print(changes: &Changes, dry_run: bool) -> Result<()> {
    tell_warnings(&changes.warnings);
    super::print_text(&lines(changes, dry_run))
}

/// Prints what the machine says of a change.
pub(super) fn tell_warnings(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", printable(warning));
    }
}

/// One line for each change; those of a dry run say so, as kubectl's do.
fn lines(changes: &Changes, dry_run: bool) -> String {
    let suffix = if dry_run { " (dry run)" } else { "" };
    changes.changes.iter().map(|change| format!("{change}{suffix}\n")).collect()
}

#[cfg(test)]
mod tests {
    use ambit_machine::objects::Change;

    use super::*;

    #[test]
    fn an_unknown_image_hides_no_warning() {
        let text = r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
             "spec": {"selector": {"app": "nosuch"}, "ports": [{"port": 80}]}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
             "spec": {"containers": [{"name": "web", "image": "nosuch:1"}]}}
        ]}"#;
        let input = Input::Text { name: "input".to_owned(), text: text.to_owned() };
        let manifests = ambit_manifest::load_as(&[input], Unenforced::Refused).expect("read");
        let (surprises, errors) = judge(&manifests, &[], &ImageArguments::default());
        let words = |findings: &[Finding]| findings.iter().map(Finding::to_string).collect();
        let (surprises, errors): (Vec<String>, Vec<String>) = (words(&surprises), words(&errors));
        assert!(surprises.iter().any(|it| it.contains("selector")), "{surprises:?}");
        assert!(errors.iter().any(|it| it.contains("nosuch:1")), "{errors:?}");
    }

    #[test]
    fn a_dry_run_does_not_read_like_a_real_one() {
        let check = |dry_run, expected: &str| {
            let object = ObjectRef {
                plural: "services".into(),
                namespace: Some("app".into()),
                name: "good".into(),
            };
            let changes = vec![Change { object, outcome: Outcome::Deleted }];
            assert_eq!(lines(&Changes { changes, warnings: Vec::new() }, dry_run), expected);
        };
        check(false, "Service app/good deleted\n");
        check(true, "Service app/good deleted (dry run)\n");
    }
}
