//! Puts all resources into one namespace.
//!
//! Kinds without a namespace are left alone; a binding's subjects move only if they name the
//! account `default`. Two resources that become the same are an error.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field};
use crate::identity::{Gvk, Identity, scalar_text, text_at};
use crate::resource::{Resource, Resources, child_map};

/// Which subjects of bindings move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Subjects {
    /// Those that name the account `default`.
    #[default]
    #[serde(rename = "defaultOnly", alias = "")]
    Default,
    /// All service accounts.
    #[serde(rename = "allServiceAccounts")]
    Accounts,
    /// None.
    #[serde(rename = "none")]
    None,
}

/// How a namespace is set.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NamespaceOptions {
    /// Whether a namespace that is already there stays.
    pub(crate) unset_only: bool,
    /// Which subjects of bindings move.
    pub(crate) subjects: Subjects,
}

/// Puts the resources into a namespace.
pub(crate) fn set_namespace(
    resources: &mut Resources,
    namespace: &str,
    fields: &[FieldSpec],
    options: NamespaceOptions,
) -> Result<(), Fault> {
    if namespace.is_empty() {
        return Ok(());
    }
    let mut count: HashMap<_, usize> = HashMap::new();
    for resource in &resources.0 {
        *count.entry(resource.identity().key()).or_default() += 1;
    }
    for resource in &mut resources.0 {
        let before = resource.identity();
        resource.remember_identity();
        set_one(resource, namespace, fields, options)
            .map_err(|fault| Fault { what: format!("{before}: {}", fault.what), ..fault })?;
        let after: Identity = resource.identity();
        if let Some(count) = count.get_mut(&before.key()) {
            *count -= 1;
        }
        let known = count.entry(after.key()).or_default();
        *known += 1;
        if *known > 1 {
            let what = format!("two resources become {after}");
            return Err(Fault::new(what, "give one of them another name"));
        }
    }
    Ok(())
}

fn set_one(
    resource: &mut Resource,
    namespace: &str,
    fields: &[FieldSpec],
    options: NamespaceOptions,
) -> Result<(), Fault> {
    let gvk = Gvk::of(&resource.value);
    let put = |value: &mut Value| match value {
        Value::Array(_) | Value::Object(_) => {
            Err(Fault::new("a namespace must be a text", "correct the resource or the field"))
        }
        value => {
            let is_set = scalar_text(value).is_some_and(|it| !it.is_empty());
            if !(options.unset_only && is_set) {
                *value = Value::String(namespace.to_owned());
            }
            Ok(())
        }
    };
    if !gvk.is_cluster_scoped() {
        let entry =
            child_map(&mut resource.value, "metadata").entry("namespace").or_insert(Value::Null);
        put(entry)?;
    }
    let is_binding = ["RoleBinding", "ClusterRoleBinding"].contains(&gvk.kind.as_str());
    if is_binding && let Some(Value::Array(subjects)) = resource.value.get_mut("subjects") {
        for subject in subjects.iter_mut().filter_map(Value::as_object_mut) {
            if moves(subject, options.subjects) {
                put(subject.entry("namespace").or_insert(Value::Null))?;
            }
        }
    }
    let is_core = text_at(&resource.value, &["apiVersion"]).as_deref() == Some("v1");
    for field in fields {
        let is_done = match field.path.as_str() {
            "metadata/namespace" => true,
            "metadata/name" => !is_core,
            "subjects/namespace" => is_binding,
            _ => false,
        };
        if !is_done {
            change_field(&mut resource.value, field, Missing::Text, &mut |value| put(value))?;
        }
    }
    Ok(())
}

fn moves(subject: &Map<String, Value>, subjects: Subjects) -> bool {
    let is = |field: &str, text: &str| subject.get(field).and_then(Value::as_str) == Some(text);
    match subjects {
        Subjects::Default => is("name", "default"),
        Subjects::Accounts => is("kind", "ServiceAccount"),
        Subjects::None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::defaults;
    use serde_json::json;
    use std::path::Path;

    fn check(values: &[Value], expected: Result<&[Value], &str>) {
        let new = |value: &Value| Resource::new(value.clone(), Path::new("x.yaml"));
        let mut resources = Resources(values.iter().map(new).collect());
        let options = NamespaceOptions::default();
        let done = set_namespace(&mut resources, "n", &defaults().namespace, options);
        match expected {
            Ok(expected) => {
                done.expect("no conflict");
                let values: Vec<Value> = resources.0.into_iter().map(|it| it.value).collect();
                assert_eq!(values, expected);
            }
            Err(what) => assert_eq!(done.expect_err("a conflict").what, what),
        }
    }

    #[test]
    fn only_what_can_have_a_namespace_gets_one() {
        let pod =
            |metadata: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "a"},
        });
        let namespace = |name: &str| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        };
        check(
            &[pod(json!({"name": "a", "namespace": "o"})), role.clone(), namespace("x")],
            Ok(&[pod(json!({"name": "a", "namespace": "n"})), role, namespace("n")]),
        );
        check(
            &[pod(json!({"name": "a", "namespace": "o"})), pod(json!({"name": "a"}))],
            Err("two resources become v1 Pod a of n"),
        );
    }

    #[test]
    fn subjects_called_default_move() {
        let binding = |metadata: Value, subjects: Value| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": metadata, "subjects": subjects,
            })
        };
        check(
            &[binding(
                json!({"name": "a"}),
                json!([{"name": "default"}, {"name": "b", "namespace": "o"}]),
            )],
            Ok(&[binding(
                json!({"name": "a"}),
                json!([{"name": "default", "namespace": "n"}, {"name": "b", "namespace": "o"}]),
            )]),
        );
    }
}
