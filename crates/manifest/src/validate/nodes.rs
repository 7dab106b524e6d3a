//! Rules for Node, and for what pods tolerate of nodes.
//!
//! They are Kubernetes'. Which nodes there are, and whether a pod is on one, is not decided here.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Toleration};

use super::core::one_of;
use super::names::{self, require};
use crate::finding::{Issues, Path};

/// What a taint does to pods that do not tolerate it.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Checks a Node.
pub(crate) fn node(node: &Node, issues: &mut Issues) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let at = Path::at("spec").field("taints").index(index);
        require(issues, &at.field("key"), names::qualified_name, &taint.key);
        if let Some(value) = &taint.value {
            require(issues, &at.field("value"), names::label_value, value);
        }
        one_of(Some(&taint.effect), &EFFECTS, &at.field("effect"), issues);
        if !seen.insert((&taint.key, &taint.effect)) {
            issues.error(
                &at,
                format!("the taint `{}:{}` is there twice", taint.key, taint.effect),
                "taints must be unique by key and effect: keep one",
            );
        }
    }
}

/// Checks what a pod tolerates.
pub(crate) fn tolerations(tolerations: &[Toleration], spec: &Path, issues: &mut Issues) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let at = spec.field("tolerations").index(index);
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let [key, operator, value, effect] = [
            text(&toleration.key),
            text(&toleration.operator),
            text(&toleration.value),
            text(&toleration.effect),
        ];
        if !key.is_empty() {
            require(issues, &at.field("key"), names::qualified_name, &key);
        } else if operator != "Exists" {
            issues.error(
                &at.field("operator"),
                "without a key it means every key and every value",
                "write `operator: Exists`, or a key",
            );
        }
        match operator.as_str() {
            "" | "Equal" => require(issues, &at.field("value"), names::label_value, &value),
            "Exists" if !value.is_empty() => issues.error(
                &at.field("value"),
                "the operator Exists means every value",
                "remove the value, or write `operator: Equal`",
            ),
            other => one_of(Some(other), &["Equal", "Exists"], &at.field("operator"), issues),
        }
        if !effect.is_empty() {
            one_of(Some(&effect), &EFFECTS, &at.field("effect"), issues);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            issues.error(
                &at.field("effect"),
                "tolerationSeconds is of taints with the effect NoExecute alone",
                "write `effect: NoExecute`, or remove tolerationSeconds",
            );
        }
    }
}
