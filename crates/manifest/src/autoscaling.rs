//! What a HorizontalPodAutoscaler means that leaves its metrics out, and its older form:
//! `autoscaling/v1` has one field for the processor.

use ambit_words::kinds::TARGET_CPU_PERCENTAGE as TARGET;
use serde_json::{Map, Value, json};

use super::object::Kind;

/// What is aimed at where nothing is, as in Kubernetes.
const DEFAULT_PERCENT: u64 = 80;

/// Writes an autoscaler in the form of the newer version; others stay as they are.
pub(crate) fn renew(kind: Kind, value: &mut Value) {
    let is_older = value["apiVersion"] != kind.api_versions()[0];
    let Some(spec) = specification(kind, value).filter(|_| is_older) else { return };
    if has_metrics(spec) {
        return;
    }
    if let Some(percent) = spec.remove(TARGET).filter(|it| !it.is_null()) {
        spec.insert("metrics".to_owned(), processor(&percent));
    }
}

/// Gives an autoscaler metrics that has none; others stay as they are.
pub(crate) fn complete(kind: Kind, value: &mut Value) {
    let Some(spec) = specification(kind, value).filter(|spec| !has_metrics(spec)) else { return };
    spec.insert("metrics".to_owned(), processor(&json!(DEFAULT_PERCENT)));
}

fn specification(kind: Kind, value: &mut Value) -> Option<&mut Map<String, Value>> {
    let is_one = kind == Kind::HorizontalPodAutoscaler;
    value.get_mut("spec").and_then(Value::as_object_mut).filter(|_| is_one)
}

fn has_metrics(spec: &Map<String, Value>) -> bool {
    spec.get("metrics").is_some_and(|it| !it.is_null() && *it != json!([]))
}

/// Metrics that aim at a percentage of the processor.
fn processor(percent: &Value) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_without_metrics_aims_at_four_fifths_of_the_processor() {
        let check = |version: &str, more: Value, expected: Value| {
            let mut value = json!({"apiVersion": version, "spec": more});
            renew(Kind::HorizontalPodAutoscaler, &mut value);
            complete(Kind::HorizontalPodAutoscaler, &mut value);
            assert_eq!(value["spec"], expected, "{version} {more}");
        };
        let cpu = |percent: u64| {
            let target = json!({"type": "Utilization", "averageUtilization": percent});
            let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
            json!({"metrics": [metric]})
        };
        let (newer, older) = ("autoscaling/v2", "autoscaling/v1");
        for version in [newer, older] {
            check(version, json!({}), cpu(80));
            check(version, json!({"metrics": []}), cpu(80));
            check(version, json!({"metrics": null}), cpu(80));
            check(version, cpu(50), cpu(50));
        }
        check(older, json!({TARGET: 40}), cpu(40));
        check(older, json!({TARGET: null}), cpu(80));
        let mut misplaced = cpu(80);
        misplaced[TARGET] = json!(40);
        check(newer, json!({TARGET: 40}), misplaced);
    }
}
