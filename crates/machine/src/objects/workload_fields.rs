//! Which fields of objects with a template of pods, or that scale such, a machine refuses, and
//! which have no effect.
//!
//! What would change which pods run, or what they keep, is refused; what only times things
//! otherwise is named in a warning. Fields of the pods themselves are in `pod_fields`.

use ambit_manifest::{Finding, Manifests};
use serde_json::Value;

use super::Kind;

/// A field that is refused unless it is absent, 0 or empty.
struct Refused {
    kind: Kind,
    field: &'static str,
    what: &'static str,
    remedy: &'static str,
}

const REFUSED: [Refused; 5] = [
    Refused {
        kind: Kind::DaemonSet,
        field: "spec.updateStrategy.rollingUpdate.maxSurge",
        what: "a node has one pod of a DaemonSet at a time",
        remedy: "use maxUnavailable",
    },
    Refused {
        kind: Kind::Job,
        field: "spec.podFailurePolicy",
        what: "all failed pods of a Job count alike",
        remedy: "remove it and use backoffLimit",
    },
    Refused {
        kind: Kind::Job,
        field: "spec.successPolicy",
        what: "a Job is complete when all its completions are",
        remedy: "remove it and use completions",
    },
    Refused {
        kind: Kind::Job,
        field: "spec.backoffLimitPerIndex",
        what: "failed pods are counted for the whole Job",
        remedy: "remove it and use backoffLimit",
    },
    Refused {
        kind: Kind::Job,
        field: "spec.managedBy",
        what: "there is no other controller of Jobs",
        remedy: "remove it",
    },
];

/// Fields without effect, by kind.
const WITHOUT_EFFECT: [(Kind, &str); 10] = [
    (Kind::PersistentVolumeClaim, "spec.dataSource"),
    (Kind::PersistentVolumeClaim, "spec.dataSourceRef"),
    (Kind::PersistentVolumeClaim, "spec.selector"),
    (Kind::PersistentVolumeClaim, "spec.volumeAttributesClassName"),
    (Kind::Deployment, "spec.minReadySeconds"),
    (Kind::Deployment, "spec.paused"),
    (Kind::StatefulSet, "spec.minReadySeconds"),
    (Kind::StatefulSet, "spec.updateStrategy.rollingUpdate.maxUnavailable"),
    (Kind::DaemonSet, "spec.minReadySeconds"),
    (Kind::Job, "spec.podReplacementPolicy"),
];

/// Most pods of one object at a time: more than a machine has addresses for.
const PODS_MAX: u64 = 10_000;
/// Where an object says how many pods it has, or may be given, at a time.
const REPLICAS: &str = "spec.replicas";
const PARALLELISM: &str = "spec.parallelism";
const COUNTS: [&str; 4] = [REPLICAS, PARALLELISM, "spec.minReplicas", "spec.maxReplicas"];

/// Most taints of a node, and tolerations of a pod: each of the ones is compared with each of the
/// others, for every pod and every node.
const TAINTS_MAX: usize = 64;
/// Lists of that length at most, what is wrong with longer ones, and what to do.
const LISTS: [(&str, &str, &str); 3] = [
    ("spec.taints", "a node has at most 64 taints", "leave some out"),
    ("spec.tolerations", TOO_TOLERANT, TOLERATE_ALL),
    ("spec.template.spec.tolerations", TOO_TOLERANT, TOLERATE_ALL),
];
const TOO_TOLERANT: &str = "a pod has at most 64 tolerations";
const TOLERATE_ALL: &str = "leave some out; `operator: Exists` without a key tolerates every taint";

/// A field, what is wrong with it, and what to do instead.
pub(crate) type Refusal = (String, &'static str, &'static str);

/// The first field of an object that a machine refuses.
pub(crate) fn refused(kind: Kind, value: &Value) -> Option<Refusal> {
    if kind == Kind::CronJob {
        let (field, what, remedy) = refused(Kind::Job, value.pointer("/spec/jobTemplate")?)?;
        return Some((format!("spec.jobTemplate.{field}"), what, remedy));
    }
    if kind == Kind::PersistentVolumeClaim && value["spec"]["volumeMode"] == "Block" {
        let (what, remedy) = ("a machine has no block devices", "write Filesystem, or remove it");
        return Some(("spec.volumeMode".to_owned(), what, remedy));
    }
    if kind == Kind::StatefulSet
        && let Some((index, (field, what, remedy))) = claims(value)
            .find_map(|(index, claim)| Some((index, refused(Kind::PersistentVolumeClaim, claim)?)))
    {
        return Some((format!("spec.volumeClaimTemplates[{index}].{field}"), what, remedy));
    }
    let spec = if kind == Kind::Pod { "/spec" } else { "/spec/template/spec" };
    if let Some((index, (field, what, remedy))) = ephemeral(value, spec)
        .find_map(|(index, claim)| Some((index, refused(Kind::PersistentVolumeClaim, claim)?)))
    {
        let spec = spec[1..].replace('/', ".");
        let claim = format!("{spec}.volumes[{index}].ephemeral.volumeClaimTemplate");
        return Some((format!("{claim}.{field}"), what, remedy));
    }
    let mut of_kind = REFUSED.iter().filter(|it| it.kind == kind);
    let found = of_kind.find(|it| says_something(value, it.field));
    let found = found.map(|it| (it.field.to_owned(), it.what, it.remedy));
    found
        .or_else(|| COUNTS.into_iter().find_map(|it| too_many(value, it)))
        .or_else(|| LISTS.into_iter().find_map(|it| too_long(value, it)))
}

fn too_long(
    value: &Value,
    (field, what, remedy): (&str, &'static str, &'static str),
) -> Option<Refusal> {
    let list = value.pointer(&format!("/{}", field.replace('.', "/")))?.as_array()?;
    (list.len() > TAINTS_MAX).then(|| (field.to_owned(), what, remedy))
}

fn too_many(value: &Value, field: &'static str) -> Option<Refusal> {
    let number = value.pointer(&format!("/{}", field.replace('.', "/")))?.as_u64()?;
    let what = "one object has at most 10000 pods at a time";
    (number > PODS_MAX).then(|| (field.to_owned(), what, "write a lower number"))
}

/// Fields that have no effect.
pub(crate) fn without_effect(kind: Kind, value: &Value) -> Vec<String> {
    let of_kind = WITHOUT_EFFECT.iter().filter(|(of, _)| *of == kind);
    let own = of_kind.filter(|(_, field)| says_something(value, field));
    let mut found: Vec<String> = own.map(|(_, field)| (*field).to_owned()).collect();
    if kind == Kind::StatefulSet {
        for (index, claim) in claims(value) {
            let fields = without_effect(Kind::PersistentVolumeClaim, claim).into_iter();
            found.extend(fields.map(|field| format!("spec.volumeClaimTemplates[{index}].{field}")));
        }
    }
    found
}

/// The claims of which each pod of a StatefulSet has its own.
fn claims(value: &Value) -> impl Iterator<Item = (usize, &Value)> {
    let templates = value.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    templates.into_iter().flatten().enumerate()
}

/// The claims that pods bring along, by their volumes. `spec` is where the pods' spec is.
fn ephemeral<'a>(value: &'a Value, spec: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    let volumes = value.pointer(&format!("{spec}/volumes")).and_then(Value::as_array);
    let claim = |(index, it): (usize, &'a Value)| {
        Some((index, it.pointer("/ephemeral/volumeClaimTemplate")?))
    };
    volumes.into_iter().flatten().enumerate().filter_map(claim)
}

/// Every field of manifests that a machine refuses, each with its place.
pub fn refused_fields(manifests: &Manifests) -> Vec<Finding> {
    let finding = |object: &ambit_manifest::Object| {
        let (field, what, remedy) = refused(object.key.kind, &object.json)?;
        Some(object.finding(&*field, what, remedy))
    };
    manifests.objects.iter().filter_map(finding).collect()
}

fn says_something(value: &Value, field: &str) -> bool {
    match value.pointer(&format!("/{}", field.replace('.', "/"))) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        Some(Value::String(text)) => !matches!(text.as_str(), "" | "0" | "0%"),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Bool(true)) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_refused_if_they_say_something() {
        let check = |kind, spec: Value, expected: Option<&str>| {
            let field = refused(kind, &json!({ "spec": spec })).map(|(field, ..)| field);
            assert_eq!(field.as_deref(), expected, "{kind}");
        };
        let surge = |most: Value| json!({"updateStrategy": {"rollingUpdate": {"maxSurge": most}}});
        let at_surge = Some("spec.updateStrategy.rollingUpdate.maxSurge");
        check(Kind::DaemonSet, surge(json!(0)), None);
        check(Kind::DaemonSet, surge(json!("0%")), None);
        check(Kind::DaemonSet, surge(json!(1)), at_surge);
        let claim = |mode: &str| json!({ "volumeMode": mode });
        check(Kind::PersistentVolumeClaim, claim("Filesystem"), None);
        check(Kind::PersistentVolumeClaim, claim("Block"), Some("spec.volumeMode"));
        let set = |mode| json!({"volumeClaimTemplates": [{}, {"spec": claim(mode)}]});
        check(Kind::StatefulSet, set("Filesystem"), None);
        check(
            Kind::StatefulSet,
            set("Block"),
            Some("spec.volumeClaimTemplates[1].spec.volumeMode"),
        );
        let volume = json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim("Block")}}});
        let pod = json!({"volumes": [{}, volume]});
        let at = "volumes[1].ephemeral.volumeClaimTemplate.spec.volumeMode";
        check(Kind::Pod, pod.clone(), Some(&format!("spec.{at}")));
        let template = json!({"template": {"spec": pod}});
        check(Kind::Deployment, template, Some(&format!("spec.template.spec.{at}")));
        check(Kind::Job, json!({"successPolicy": {"rules": [1]}}), Some("spec.successPolicy"));
        check(Kind::Deployment, json!({"replicas": PODS_MAX}), None);
        check(Kind::Deployment, json!({"replicas": PODS_MAX + 1}), Some(REPLICAS));
        check(Kind::Job, json!({"parallelism": i32::MAX}), Some(PARALLELISM));
        let autoscaler = |least: u64, most: u64, expected: Option<&str>| {
            let spec = json!({"minReplicas": least, "maxReplicas": most});
            check(Kind::HorizontalPodAutoscaler, spec, expected);
        };
        autoscaler(1, PODS_MAX, None);
        autoscaler(1, PODS_MAX + 1, Some("spec.maxReplicas"));
        autoscaler(PODS_MAX + 1, PODS_MAX + 1, Some("spec.minReplicas"));
    }

    #[test]
    fn taints_and_tolerations_are_bounded() {
        let check = |kind, spec: &dyn Fn(Vec<Value>) -> Value, field: &str| {
            let refused = |length| {
                let list = vec![json!({"key": "a", "operator": "Exists"}); length];
                refused(kind, &json!({ "spec": spec(list) })).map(|(field, ..)| field)
            };
            assert_eq!(refused(TAINTS_MAX), None, "{kind}");
            assert_eq!(refused(TAINTS_MAX + 1).as_deref(), Some(field), "{kind}");
        };
        let tolerations = |list: Vec<Value>| json!({ "tolerations": list });
        check(Kind::Node, &|list| json!({ "taints": list }), "spec.taints");
        check(Kind::Pod, &tolerations, "spec.tolerations");
        let template = |list| json!({"template": {"spec": tolerations(list)}});
        check(Kind::Deployment, &template, "spec.template.spec.tolerations");
        check(
            Kind::CronJob,
            &|list| json!({"jobTemplate": {"spec": template(list)}}),
            "spec.jobTemplate.spec.template.spec.tolerations",
        );
    }

    #[test]
    fn fields_without_effect_are_named() {
        let found = |kind| {
            let value = json!({"spec": {"minReadySeconds": 3, "paused": false}});
            without_effect(kind, &value)
        };
        assert_eq!(found(Kind::DaemonSet), ["spec.minReadySeconds"]);
        assert_eq!(found(Kind::Deployment), ["spec.minReadySeconds"]);
        assert!(found(Kind::Job).is_empty());
    }
}
