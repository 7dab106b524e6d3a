//! The older form of a HorizontalPodAutoscaler: `autoscaling/v1` has one field for the processor.

use serde_json::{Value, json};

use super::object::Kind;

/// Its field.
const TARGET: &str = "targetCPUUtilizationPercentage";
/// What is aimed at where it is left out.
const DEFAULT_PERCENT: u64 = 80;

/// Writes an object of the older version in the form of the newer one; others stay as they are.
pub(crate) fn translate(kind: Kind, value: &mut Value) {
    if kind != Kind::HorizontalPodAutoscaler || value["apiVersion"] == kind.api_versions()[0] {
        return;
    }
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let percent = spec.remove(TARGET).filter(|percent| !percent.is_null());
    let target = json!({
        "type": "Utilization",
        "averageUtilization": percent.unwrap_or_else(|| json!(DEFAULT_PERCENT)),
    });
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
    spec.entry("metrics").or_insert_with(|| json!([metric]));
}
