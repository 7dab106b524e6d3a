//! Cells of HorizontalPodAutoscalers.

use serde_json::{Value, json};

use super::cells::{list, number, text};

/// Metrics that are listed before the rest is counted.
const METRICS_MAX: usize = 2;
const UNKNOWN: &str = "<unknown>";

pub(super) fn reference(autoscaler: &Value) -> Value {
    let [kind, name] =
        ["kind", "name"].map(|it| text(&autoscaler["spec"]["scaleTargetRef"], &format!("/{it}")));
    json!(format!("{kind}/{name}"))
}

pub(super) fn targets(autoscaler: &Value) -> Value {
    json!(autoscaler_targets(autoscaler))
}

pub(super) fn least(autoscaler: &Value) -> Value {
    let least = autoscaler.pointer("/spec/minReplicas").and_then(Value::as_u64);
    json!(least.unwrap_or(1).to_string())
}

pub(super) fn replicas(autoscaler: &Value) -> Value {
    json!(number(autoscaler, "/status/currentReplicas").to_string())
}

/// What an autoscaler measures, and what it aims at: `cpu: 10%/50%`.
pub fn autoscaler_targets(autoscaler: &Value) -> String {
    let metrics = list(autoscaler, "/spec/metrics");
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let current = list(autoscaler, "/status/currentMetrics");
    let shown = metrics.iter().take(METRICS_MAX).map(|metric| one(metric, current));
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if let more @ 1.. = metrics.len().saturating_sub(METRICS_MAX) {
        shown += &format!(" + {more} more...");
    }
    shown
}

fn one(metric: &Value, current: &[Value]) -> String {
    let name = text(metric, "/resource/name");
    let mut reported = current.iter().filter(|it| text(it, "/resource/name") == name);
    let reported = reported.next().filter(|_| !name.is_empty());
    let amount = |of: &Value, field: &str| match of.get(field) {
        Some(Value::Number(percent)) => format!("{percent}%"),
        Some(Value::String(amount)) => amount.clone(),
        _ => UNKNOWN.to_owned(),
    };
    let target = &metric["resource"]["target"];
    let field = match target.get("averageUtilization") {
        Some(_) => "averageUtilization",
        None => "averageValue",
    };
    let now = reported.map_or(UNKNOWN.to_owned(), |it| amount(&it["resource"]["current"], field));
    let name = if name.is_empty() { text(metric, "/type") } else { name };
    format!("{name}: {now}/{}", amount(target, field))
}
