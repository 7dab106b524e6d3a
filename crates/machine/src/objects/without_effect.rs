//! Fields of manifests that a machine passes over, and how the user is told.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pod_fields::Limited;
use super::{Kind, ObjectRef, autoscaler_fields, pod_fields, workload_fields};

/// The fields of an object that a machine does not act on.
pub(super) fn fields_without_effect(kind: Kind, value: &Value, limited: Limited) -> Vec<String> {
    match (kind.name(), value.get("spec"), value.pointer("/spec/template/spec")) {
        ("HorizontalPodAutoscaler", Some(spec), _) => autoscaler_fields::without_effect(spec),
        ("Pod", Some(spec), _) => pod_fields::without_effect(spec, "spec", false, limited),
        (_, _, Some(spec)) if kind.has_pod_template() => {
            let own = workload_fields::without_effect(kind, value);
            let is_scalable = autoscaler_fields::SCALABLE.contains(&kind);
            let path = "spec.template.spec";
            let of_pods = pod_fields::without_effect(spec, path, is_scalable, limited);
            own.into_iter().chain(of_pods).collect()
        }
        ("PersistentVolumeClaim", ..) => workload_fields::without_effect(kind, value),
        ("CronJob", Some(spec), _) => {
            let of_job = fields_without_effect(Kind::Job, &spec["jobTemplate"], limited);
            of_job.into_iter().map(|field| format!("spec.jobTemplate.{field}")).collect()
        }
        _ => Vec::new(),
    }
}

/// One warning per field, however many objects have it.
pub(super) fn warnings(
    ineffective: BTreeMap<String, Vec<ObjectRef>>,
) -> impl Iterator<Item = String> {
    let sentence = |(field, objects): (String, Vec<ObjectRef>)| {
        Some(format!("{field} has no effect on a machine ({})", some(&objects)?))
    };
    ineffective.into_iter().filter_map(sentence)
}

/// Names some objects, however many they are.
pub(super) fn some(objects: &[ObjectRef]) -> Option<String> {
    let (first, others) = objects.split_first()?;
    Some(match others.len() {
        0 => first.to_string(),
        more => format!("{first} and {more} more"),
    })
}
