//! What a HorizontalPodAutoscaler scales, and which of its fields take effect on a machine: it
//! measures processors alone, and knows no rates.

use serde_json::Value;

use super::{Kind, ObjectRef};

/// Kinds that have a number of replicas.
pub(super) const SCALABLE: [Kind; 2] = [Kind::Deployment, Kind::StatefulSet];
/// The group of these.
const GROUP: &str = "apps/";
/// Fields of a behaviour that have no effect.
const RULES: [&str; 2] = ["policies", "tolerance"];
/// Only with this value there is a difference between policies, which a machine does not have.
const SELECT_POLICY: (&str, &str) = ("selectPolicy", "Min");

/// What an autoscaler scales, or why nothing can be scaled so.
pub(crate) fn scaled_by(autoscaler: &ObjectRef, value: &Value) -> Result<ObjectRef, String> {
    let named = |field| value["spec"]["scaleTargetRef"][field].as_str().unwrap_or_default();
    let (version, kind) = (named("apiVersion"), named("kind"));
    let is_group = version.is_empty() || version.starts_with(GROUP);
    let kind = SCALABLE.into_iter().find(|it| is_group && it.name() == kind).ok_or_else(|| {
        format!("{kind} {version:?} cannot be scaled; name a Deployment or StatefulSet of apps/v1")
    })?;
    Ok(ObjectRef::new(kind, autoscaler.namespace.as_deref(), named("name")))
}

/// The paths of everything in its spec that has no effect.
pub(super) fn without_effect(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let metrics = spec["metrics"].as_array().into_iter().flatten().enumerate();
    for (index, metric) in metrics {
        let resource = metric["resource"]["name"].as_str().unwrap_or_default();
        let kind = metric["type"].as_str().unwrap_or_default();
        if (kind, resource) != ("Resource", "cpu") {
            let name = if resource.is_empty() { kind } else { resource };
            found.push(format!("spec.metrics[{index}] ({name})"));
        }
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = &spec["behavior"][direction];
        let (select, least) = SELECT_POLICY;
        let said = RULES.into_iter().filter(|field| !rules[*field].is_null());
        let said = said.chain((rules[select] == least).then_some(select));
        found.extend(said.map(|field| format!("spec.behavior.{direction}.{field}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_that_are_not_measured_are_named() {
        let spec = json!({
            "metrics": [
                {"type": "Resource", "resource": {"name": "cpu"}},
                {"type": "Resource", "resource": {"name": "memory"}},
                {"type": "External", "external": {"metric": {"name": "queue"}}},
            ],
            "behavior": {
                "scaleUp": {"policies": [], "stabilizationWindowSeconds": 5},
                "scaleDown": {"selectPolicy": "Disabled"},
            },
        });
        let expected = [
            "spec.metrics[1] (memory)",
            "spec.metrics[2] (External)",
            "spec.behavior.scaleUp.policies",
        ];
        assert_eq!(without_effect(&spec), expected);
    }

    #[test]
    fn deployments_and_stateful_sets_are_scaled() {
        let check = |version: &str, kind: &str, expected: Option<Kind>| {
            let autoscaler = ObjectRef::new(Kind::HorizontalPodAutoscaler, Some("a"), "one");
            let named = json!({"apiVersion": version, "kind": kind, "name": "web"});
            let found = scaled_by(&autoscaler, &json!({"spec": {"scaleTargetRef": named}}));
            let expected = expected.map(|kind| ObjectRef::new(kind, Some("a"), "web"));
            assert_eq!(found.ok(), expected, "{version} {kind}");
        };
        check("apps/v1", "Deployment", Some(Kind::Deployment));
        check("", "StatefulSet", Some(Kind::StatefulSet));
        check("apps/v1", "DaemonSet", None);
        check("example.org/v1", "Deployment", None);
    }
}
