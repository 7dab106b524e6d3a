//! The order of kinds: those that others depend on come first.

use std::cmp::Ordering;

use crate::identity::Gvk;

/// Kinds that come first.
pub(crate) const FIRST: &[&str] = &[
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
/// Kinds that come last.
pub(crate) const LAST: &[&str] =
    &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The order in which kustomize sorts fields of kinds.
pub(crate) fn is_before(one: &Gvk, other: &Gvk) -> Ordering {
    let key = |gvk: &Gvk| (place(&gvk.kind, FIRST, LAST), gvk_text(gvk));
    key(one).cmp(&key(other))
}

/// The place of a kind: below zero for the first ones, above it for the last.
pub(crate) fn place(kind: &str, first: &[&str], last: &[&str]) -> isize {
    let at = |kinds: &[&str]| kinds.iter().rposition(|it| *it == kind).map(isize::try_from);
    match (at(last), at(first)) {
        (Some(Ok(index)), _) => 1 + index,
        (None, Some(Ok(index))) => index - isize::try_from(first.len()).unwrap_or(isize::MAX),
        _ => 0,
    }
}

/// Group, version and kind as one text, as kustomize sorts them.
pub(crate) fn gvk_text(gvk: &Gvk) -> String {
    let text = |text: &str, none: &str| if text.is_empty() { none } else { text }.to_owned();
    format!("{}_{}_{}", text(&gvk.group, "~G"), text(&gvk.version, "~V"), text(&gvk.kind, "~K"))
}
