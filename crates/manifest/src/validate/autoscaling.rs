//! Rules for HorizontalPodAutoscaler. They are Kubernetes'. Which metrics there are is not decided
//! here.

use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscaler, MetricTarget};

use super::core::one_of;
use crate::finding::{Issues, Path};
use crate::quantity::quantity;

/// Longest window in which recommendations are remembered.
const WINDOW_MAX_S: i32 = 3600;

/// Checks a HorizontalPodAutoscaler.
pub(crate) fn autoscaler(autoscaler: &HorizontalPodAutoscaler, issues: &mut Issues) {
    let at = Path::at("spec");
    let spec = &autoscaler.spec;
    let least = spec.min_replicas.unwrap_or(1);
    if least < 1 {
        issues.error(&at.field("minReplicas"), "it must be at least 1", "write 1 or more");
    }
    if spec.max_replicas < least.max(1) {
        let what = "it must be at least 1, and at least minReplicas";
        issues.error(&at.field("maxReplicas"), what, "write a higher number");
    }
    let target = &spec.scale_target_ref;
    for (field, text) in [("kind", &target.kind), ("name", &target.name)] {
        if text.is_empty() {
            let at = at.field("scaleTargetRef").field(field);
            issues.error(&at, "it is empty", "name what is scaled");
        }
    }
    for (index, metric) in spec.metrics.iter().flatten().enumerate() {
        let at = at.field("metrics").index(index);
        let types = ["Resource", "ContainerResource", "Pods", "Object", "External"];
        one_of(Some(&metric.type_), &types, &at.field("type"), issues);
        match (metric.type_.as_str(), &metric.resource) {
            ("Resource", None) => issues.error(
                &at.field("resource"),
                "a metric of type Resource needs it",
                "write the name of the resource and its target",
            ),
            ("Resource", Some(of)) => {
                self::target(&of.target, &at.field("resource").field("target"), issues);
            }
            _ => {}
        }
    }
    if let Some(behavior) = &spec.behavior {
        let at = at.field("behavior");
        rules(behavior.scale_up.as_ref(), &at.field("scaleUp"), issues);
        rules(behavior.scale_down.as_ref(), &at.field("scaleDown"), issues);
    }
}

/// Its type names the one field that it has.
fn target(target: &MetricTarget, at: &Path, issues: &mut Issues) {
    let (percent, amount) = (target.average_utilization, &target.average_value);
    let is_amount = amount.as_ref().is_some_and(|it| quantity(&it.0, 0).is_some_and(|it| it > 0));
    let (percent_field, amount_field) = ("averageUtilization", "averageValue");
    let (own, is_good, form, other, has_other) = match target.type_.as_str() {
        "Utilization" => (
            percent_field,
            percent.is_some_and(|percent| percent > 0),
            "a percentage of what the pods request",
            amount_field,
            amount.is_some(),
        ),
        "AverageValue" => {
            (amount_field, is_amount, "an amount, such as 500m", percent_field, percent.is_some())
        }
        other => {
            let types = ["Utilization", "AverageValue"];
            return one_of(Some(other), &types, &at.field("type"), issues);
        }
    };
    if !is_good {
        let what = format!("a target of type {} needs it, greater than 0", target.type_);
        issues.error(&at.field(own), what, format!("write {form}"));
    }
    if has_other {
        let what = format!("a target of type {} has no such field", target.type_);
        issues.error(&at.field(other), what, "remove it, or change the type");
    }
}

fn rules(rules: Option<&HPAScalingRules>, at: &Path, issues: &mut Issues) {
    let Some(rules) = rules else { return };
    let window = rules.stabilization_window_seconds.unwrap_or(0);
    if !(0..=WINDOW_MAX_S).contains(&window) {
        let what = format!("it must be 0 to {WINDOW_MAX_S}");
        issues.error(&at.field("stabilizationWindowSeconds"), what, "write seconds in that range");
    }
    let policies = ["Max", "Min", "Disabled"];
    one_of(rules.select_policy.as_deref(), &policies, &at.field("selectPolicy"), issues);
}
