//! What a pod says of nodes: labels that a node must have, or should.

use std::collections::BTreeMap;

use ambit_words::names::NAME_FIELD;
use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

use super::views::NodeView;

/// Whether a node has what a pod requires of it; if not, what it lacks.
pub(super) fn admits(spec: &PodSpec, node: &NodeView) -> Result<(), String> {
    for (label, value) in spec.node_selector.iter().flatten() {
        if node.labels.get(label) != Some(value) {
            return Err(format!(
                "node(s) didn't match Pod's node affinity/selector (no label {label}={value})"
            ));
        }
    }
    let required = affinity(spec)
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    match required {
        Some(required) if !required.node_selector_terms.iter().any(|it| selects(it, node)) => {
            Err("node(s) didn't match Pod's node affinity/selector".to_owned())
        }
        _ => Ok(()),
    }
}

/// How much a pod prefers a node.
pub(super) fn preference(spec: &PodSpec, node: &NodeView) -> i64 {
    let preferred = affinity(spec).and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_ref()
    });
    let preferred = preferred.into_iter().flatten().filter(|it| selects(&it.preference, node));
    preferred.map(|it| i64::from(it.weight)).sum()
}

fn affinity(spec: &PodSpec) -> Option<&NodeAffinity> {
    spec.affinity.as_ref()?.node_affinity.as_ref()
}

/// A term without a requirement selects nothing, as in Kubernetes.
fn selects(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let own = BTreeMap::from([(NAME_FIELD.to_owned(), node.name.clone())]);
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|it| is_met(it, &node.labels))
        && fields.iter().all(|it| it.key == NAME_FIELD && is_met(it, &own))
}

fn is_met(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.contains(value));
    let numbers = || {
        let than: i64 = values.first()?.parse().ok()?;
        Some((value?.parse::<i64>().ok()?, than))
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, than)| value > than),
        "Lt" => numbers().is_some_and(|(value, than)| value < than),
        _ => false,
    }
}
