//! Rules for PodDisruptionBudget. They are Kubernetes'.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::core::one_of;
use crate::finding::{Issues, Path};

/// Checks a PodDisruptionBudget.
pub(crate) fn budget(budget: &PodDisruptionBudget, issues: &mut Issues) {
    let Some(spec) = &budget.spec else { return };
    let at = Path::at("spec");
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        issues.error(
            &at.field("maxUnavailable"),
            "minAvailable and maxUnavailable cannot be both set",
            "keep one of the two",
        );
    }
    for (field, amount) in
        [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)]
    {
        if amount.as_ref().is_some_and(|amount| !is_amount(amount)) {
            issues.error(
                &at.field(field),
                "it is neither a number of pods nor a percentage",
                "write a number such as 1, or a percentage such as 50%",
            );
        }
    }
    let selector = spec.selector.as_ref().and_then(|it| it.match_expressions.as_deref());
    for (index, expression) in selector.unwrap_or_default().iter().enumerate() {
        let at = at.field("selector").field("matchExpressions").index(index);
        let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
        one_of(Some(&expression.operator), &operators, &at.field("operator"), issues);
        let has_values = expression.values.as_ref().is_some_and(|values| !values.is_empty());
        let wants_values = match &*expression.operator {
            "In" | "NotIn" => true,
            "Exists" | "DoesNotExist" => false,
            _ => continue,
        };
        if wants_values != has_values {
            issues.error(
                &at.field("values"),
                "In and NotIn need values, and Exists and DoesNotExist have none",
                "list the values of the label, or use another operator",
            );
        }
    }
    let policies = ["IfHealthyBudget", "AlwaysAllow"];
    let policy = spec.unhealthy_pod_eviction_policy.as_deref();
    one_of(policy, &policies, &at.field("unhealthyPodEvictionPolicy"), issues);
}

fn is_amount(amount: &IntOrString) -> bool {
    match amount {
        IntOrString::Int(count) => *count >= 0,
        IntOrString::String(text) => {
            let digits = text.strip_suffix('%').unwrap_or_default();
            digits.bytes().all(|it| it.is_ascii_digit())
                && digits.parse::<u32>().is_ok_and(|percent| percent <= 100)
        }
    }
}
