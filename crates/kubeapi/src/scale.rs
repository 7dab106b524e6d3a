//! The `Scale` of an object: its number of replicas, as a kind of its own.

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::status::{Cause, Status};

/// Its apiVersion.
const API_VERSION: &str = "autoscaling/v1";

/// The scale of an object.
pub(crate) fn of(object: &Value) -> Value {
    let at = |pointer: &str| object.pointer(pointer).cloned();
    let labels = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let one = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or(""));
    let selector: Vec<String> = labels.into_iter().flatten().map(one).collect();
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = at(&format!("/metadata/{field}")) {
            metadata[field] = value;
        }
    }
    json!({
        "kind": "Scale",
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {"replicas": at("/spec/replicas").unwrap_or_else(|| json!(1))},
        "status": {
            "replicas": at("/status/replicas").unwrap_or_else(|| json!(0)),
            "selector": selector.join(","),
        },
    })
}

/// The replicas that a scale asks for.
pub(crate) fn replicas(resource: &Resource, name: &str, scale: &Value) -> Result<u32, Status> {
    if scale["kind"] != "Scale" || scale["apiVersion"] != API_VERSION {
        return Err(Status::bad_request(format!(
            "the body of the request is no {API_VERSION} Scale"
        )));
    }
    let written = scale.pointer("/spec/replicas").unwrap_or(&Value::Null);
    let number = match written {
        // As in Kubernetes, where a number that is left out is 0.
        Value::Null => Some(0),
        other => other.as_u64().and_then(|it| u32::try_from(it).ok()),
    };
    number.ok_or_else(|| {
        let message = format!("{written} is no number of replicas; write 0 or more");
        Status::invalid(resource, name, &[Cause { field: "spec.replicas".to_owned(), message }])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPLOYMENTS: Resource = Resource {
        kind: "Deployment",
        plural: "deployments",
        namespaced: true,
        api_versions: &["apps/v1"],
        only_read: None,
    };

    #[test]
    fn a_scale_says_how_many_pods_there_are_and_which() {
        let object = json!({
            "metadata": {"name": "web", "namespace": "a", "resourceVersion": "7", "labels": {}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web", "tier": "1"}}},
            "status": {"replicas": 2},
        });
        let expected = json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": "web", "namespace": "a", "resourceVersion": "7"},
            "spec": {"replicas": 3},
            "status": {"replicas": 2, "selector": "app=web,tier=1"},
        });
        assert_eq!(of(&object), expected);
    }

    #[test]
    fn replicas_are_a_number() {
        let check = |replicas: Value, expected: Result<u32, u16>| {
            let mut scale = of(&json!({}));
            scale["spec"]["replicas"] = replicas;
            let found = self::replicas(&DEPLOYMENTS, "web", &scale);
            assert_eq!(found.map_err(|it| it.code().as_u16()), expected);
        };
        check(json!(3), Ok(3));
        check(Value::Null, Ok(0));
        check(json!(-1), Err(422));
        check(json!("3"), Err(422));
        let other = json!({"kind": "Deployment", "apiVersion": "apps/v1"});
        let refused = replicas(&DEPLOYMENTS, "web", &other).expect_err("no Scale");
        assert_eq!(refused.code().as_u16(), 400);
    }
}
