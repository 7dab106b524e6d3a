//! Which fields of a HorizontalPodAutoscaler take effect on a machine: it measures processors
//! alone, and knows no rates.

use serde_json::Value;

/// Fields of a behaviour that have no effect.
const RULES: [&str; 2] = ["policies", "tolerance"];
/// Only with this value there is a difference between policies, which a machine does not have.
const SELECT_POLICY: (&str, &str) = ("selectPolicy", "Min");

/// The paths of everything in its spec that has no effect.
pub(crate) fn without_effect(spec: &Value) -> Vec<String> {
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
}
