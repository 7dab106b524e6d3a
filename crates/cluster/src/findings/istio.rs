//! What of Istio's is there already, under the names that Ambit uses too.

use serde_json::Value;

use super::{Report, labelled_namespaces, listed, object};
use crate::Facts;
use crate::facts::{List, Stage};
use crate::json::{annotation, label, name, namespace};
use crate::parts::{ROLES, is_ours};

/// Groups of the resources whose definitions the chart brings.
const GROUPS: [&str; 4] =
    [".security.istio.io", ".networking.istio.io", ".extensions.istio.io", ".telemetry.istio.io"];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    running(facts, report);
    injection(facts, report);
    if facts.stage == Stage::Before {
        definitions(facts, report);
    }
}

fn running(facts: &Facts, report: &mut Report) {
    let deployments = facts.known(List::Deployments).iter().map(|it| ("Deployment", it));
    let sets = facts.known(List::DaemonSets).iter().map(|it| ("DaemonSet", it));
    for (kind, part) in deployments.chain(sets) {
        let is_named = ROLES.iter().any(|(of, _)| *of == name(part));
        if is_ours(part) || !(is_named || kind == "Deployment") {
            continue;
        }
        let place = object(kind, part);
        if facts.stage == Stage::Before && namespace(part) == facts.mesh_namespace {
            report.error("istio-running", place).says(
                "Istio runs under the names that the chart uses",
                "follow the migration guide (docs/), which replaces one part after the other, or \
                 remove Istio first",
            );
        } else {
            report.warning("istio-running", place).says(
                "runs beside Ambit and is not Ambit's",
                "fine during a migration; the two must not write to the same namespaces",
            );
        }
    }
}

fn injection(facts: &Facts, report: &mut Report) {
    let labelled = labelled_namespaces(facts);
    for found in facts.known(List::Namespaces) {
        let injects = label(found, "istio-injection") == Some("enabled");
        if injects && labelled.contains(&name(found)) {
            report.warning("injection-label", object("Namespace", found)).says(
                "asks for sidecars (istio-injection=enabled) and for the mesh without them \
                 (istio.io/dataplane-mode=ambient); a pod with a sidecar is not captured",
                format!("kubectl label namespace {} istio-injection-", name(found)),
            );
        }
    }
}

fn definitions(facts: &Facts, report: &mut Report) {
    let is_of_group = |it: &&Value| GROUPS.iter().any(|group| name(it).ends_with(group));
    let present: Vec<&Value> =
        facts.known(List::CustomResourceDefinitions).iter().filter(is_of_group).collect();
    let owner = |it: &&&Value| annotation(it, "meta.helm.sh/release-name").is_some();
    let owned: Vec<&str> = present.iter().filter(owner).map(|it| name(it)).collect();
    if let Some(first) = present.iter().find(|it| owner(it)) {
        let of = |field: &str| {
            annotation(first, &format!("meta.helm.sh/release-{field}")).unwrap_or_default()
        };
        let (namespace, release) = (of("namespace"), of("name"));
        let place = format!("CustomResourceDefinition {}", listed(&owned));
        report.warning("crds-of-another", place).says(
            format!(
                "they belong to the Helm release {namespace}/{release}: the chart leaves them as \
                 they are, and they are removed, with every policy, when that release is \
                 uninstalled"
            ),
            "annotate them with helm.sh/resource-policy=keep before that release is uninstalled",
        );
    }
}
