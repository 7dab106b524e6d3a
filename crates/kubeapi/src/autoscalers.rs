//! HorizontalPodAutoscalers in the older version `autoscaling/v1`, which has one field for the
//! processor where the newer one has a list of metrics.
//!
//! They are kept in the newer version. What the older one has no word for, other metrics and a
//! behaviour, is not shown in it, and stays as it is when such a client writes.

use ambit_words::kinds::{HORIZONTAL_POD_AUTOSCALER as KIND, TARGET_CPU_PERCENTAGE as TARGET};
use serde_json::{Map, Value, json};

const OLDER: &str = "autoscaling/v1";
const NEWER: &str = "autoscaling/v2";
/// What there is, in the older version.
const CURRENT: &str = "currentCPUUtilizationPercentage";
/// Where both are in a metric of the newer version.
const TARGET_OF_METRIC: &str = "/resource/target/averageUtilization";
const CURRENT_OF_METRIC: &str = "/resource/current/averageUtilization";
/// Fields that the older version does not have.
const BEHAVIOR: &str = "behavior";
const METRICS: &str = "metrics";
const NEWER_STATUS: [&str; 2] = ["conditions", "currentMetrics"];

/// Writes an autoscaler of the newer form in the older one, if that is its `apiVersion`.
pub(crate) fn age(object: &mut Value) {
    if !is_older(object) {
        return;
    }
    if let Some(spec) = fields(object, "spec") {
        let metrics = spec.remove(METRICS).unwrap_or_default();
        spec.remove(BEHAVIOR);
        insert_percentage(spec, TARGET, percentage(&metrics, TARGET_OF_METRIC));
    }
    if let Some(status) = fields(object, "status") {
        let metrics = status.get("currentMetrics").cloned().unwrap_or_default();
        NEWER_STATUS.iter().for_each(|field| drop(status.remove(*field)));
        insert_percentage(status, CURRENT, percentage(&metrics, CURRENT_OF_METRIC));
    }
}

/// Writes an autoscaler of the older version in the newer one, with what the one that is there
/// says beside it; others stay as they are.
pub(crate) fn renew(object: &mut Value, current: Option<&Value>) {
    if !is_older(object) {
        return;
    }
    object["apiVersion"] = json!(NEWER);
    let Some(spec) = fields(object, "spec") else { return };
    // A client that sends metrics has written the newer form.
    if spec.get(METRICS).is_some_and(|it| !it.is_null()) {
        return;
    }
    let there = current.and_then(|it| it.get("spec"));
    let kept = there.and_then(|it| it[METRICS].as_array()).into_iter().flatten();
    let kept = kept.filter(|it| !is_of_processor(it)).cloned();
    let metrics: Vec<Value> =
        spec.remove(TARGET).and_then(metric).into_iter().chain(kept).collect();
    if !metrics.is_empty() {
        spec.insert(METRICS.to_owned(), Value::Array(metrics));
    }
    if let Some(behavior) = there.and_then(|it| it.get(BEHAVIOR)) {
        spec.entry(BEHAVIOR).or_insert_with(|| behavior.clone());
    }
}

fn is_older(object: &Value) -> bool {
    object["kind"] == KIND && object["apiVersion"] == OLDER
}

fn fields<'a>(object: &'a mut Value, part: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(part).and_then(Value::as_object_mut)
}

/// Whether a metric is what the older version has a field for.
fn is_of_processor(metric: &Value) -> bool {
    metric["resource"]["name"] == "cpu" && metric.pointer(TARGET_OF_METRIC).is_some()
}

fn percentage(metrics: &Value, pointer: &str) -> Option<Value> {
    let mut of_processor = metrics.as_array().into_iter().flatten();
    let of_processor = of_processor.find(|it| it["resource"]["name"] == "cpu");
    of_processor.and_then(|it| it.pointer(pointer)).cloned()
}

fn insert_percentage(fields: &mut Map<String, Value>, field: &str, percentage: Option<Value>) {
    if let Some(percentage) = percentage {
        fields.insert(field.to_owned(), percentage);
    }
}

fn metric(percentage: Value) -> Option<Value> {
    let target = json!({"type": "Utilization", "averageUtilization": percentage});
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
    (!percentage.is_null()).then_some(metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(percentage: u64) -> Value {
        metric(json!(percentage)).expect("a number")
    }

    fn autoscaler(version: &str, spec: Value) -> Value {
        json!({"kind": KIND, "apiVersion": version, "spec": spec})
    }

    #[test]
    fn the_older_version_shows_the_processor_alone() {
        let queue = json!({"type": "External", "external": {"metric": {"name": "queue"}}});
        let mut object = autoscaler(
            OLDER,
            json!({"maxReplicas": 5, "metrics": [queue, cpu(50)], "behavior": {"scaleUp": {}}}),
        );
        let now = json!({"resource": {"name": "cpu", "current": {"averageUtilization": 7}}});
        object["status"] = json!({"currentReplicas": 1, "currentMetrics": [now], "conditions": []});
        age(&mut object);
        assert_eq!(object["spec"], json!({"maxReplicas": 5, TARGET: 50}));
        assert_eq!(object["status"], json!({"currentReplicas": 1, CURRENT: 7}));
        let shown = object.clone();
        age(&mut object);
        assert_eq!(object, shown, "once is enough");
        let newer = autoscaler(NEWER, json!({"metrics": [cpu(50)]}));
        let mut same = newer.clone();
        age(&mut same);
        assert_eq!(same, newer);
    }

    #[test]
    fn what_the_older_version_has_no_word_for_stays() {
        let memory = json!({"type": "Resource", "resource": {"name": "memory",
            "target": {"type": "Utilization", "averageUtilization": 60}}});
        let there =
            autoscaler(NEWER, json!({"metrics": [memory, cpu(50)], "behavior": {"scaleUp": {}}}));
        let check = |written: Value, current: Option<&Value>, expected: Value| {
            let mut object = autoscaler(OLDER, written);
            renew(&mut object, current);
            assert_eq!(object, autoscaler(NEWER, expected));
        };
        check(json!({TARGET: 40}), None, json!({"metrics": [cpu(40)]}));
        check(json!({"maxReplicas": 3}), None, json!({"maxReplicas": 3}));
        let both = json!({"metrics": [cpu(40), memory], "behavior": {"scaleUp": {}}});
        check(json!({TARGET: 40}), Some(&there), both);
        let one = json!({"metrics": [memory], "behavior": {"scaleUp": {}}});
        check(json!({TARGET: null}), Some(&there), one);
        check(json!({"metrics": [cpu(9)]}), Some(&there), json!({"metrics": [cpu(9)]}));
        let mut other = json!({"kind": "Scale", "apiVersion": OLDER, "spec": {}});
        renew(&mut other, None);
        assert_eq!(other["apiVersion"], OLDER);
    }
}
