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
