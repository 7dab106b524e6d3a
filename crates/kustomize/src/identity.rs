//! What a resource is called: group, version, kind, name and namespace.
//!
//! Whether a kind has a namespace is asked of one fixed list, as in kustomize: a kind that is not
//! on it, such as that of a custom resource, counts as one with a namespace.

use serde_json::Value;

/// What stands for the namespace of a resource that can have none.
const NO_NAMESPACE: &str = "_non_namespaceable_";

/// The built-in kinds without a namespace, with their `apiVersion`.
const CLUSTER_SCOPED: &[(&str, &[&str])] = &[
    (
        "admissionregistration.k8s.io/v1",
        &[
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    (
        "admissionregistration.k8s.io/v1beta1",
        &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
    ),
    ("apiextensions.k8s.io/v1", &["CustomResourceDefinition"]),
    ("apiextensions.k8s.io/v1beta1", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io/v1", &["APIService"]),
    ("apiregistration.k8s.io/v1beta1", &["APIService"]),
    ("certificates.k8s.io/v1", &["CertificateSigningRequest"]),
    ("certificates.k8s.io/v1beta1", &["CertificateSigningRequest"]),
    ("flowcontrol.apiserver.k8s.io/v1beta1", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io/v1", &["IngressClass"]),
    ("networking.k8s.io/v1beta1", &["IngressClass"]),
    ("node.k8s.io/v1", &["RuntimeClass"]),
    ("node.k8s.io/v1beta1", &["RuntimeClass"]),
    ("policy/v1beta1", &["PodSecurityPolicy"]),
    ("rbac.authorization.k8s.io/v1", &["ClusterRole", "ClusterRoleBinding"]),
    ("rbac.authorization.k8s.io/v1beta1", &["ClusterRole", "ClusterRoleBinding"]),
    ("scheduling.k8s.io/v1", &["PriorityClass"]),
    ("scheduling.k8s.io/v1beta1", &["PriorityClass"]),
    ("storage.k8s.io/v1", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
    ("storage.k8s.io/v1beta1", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
    ("v1", &["ComponentStatus", "Namespace", "Node", "NodeProxyOptions", "PersistentVolume"]),
];

/// Group, version and kind. An empty part of a selector selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Gvk {
    /// The API group; empty for the core.
    pub(crate) group: String,
    /// The version.
    pub(crate) version: String,
    /// The kind.
    pub(crate) kind: String,
}

impl Gvk {
    /// Those of a resource.
    pub(crate) fn of(value: &Value) -> Self {
        let api_version = text_at(value, &["apiVersion"]).unwrap_or_default();
        let kind = text_at(value, &["kind"]).unwrap_or_default();
        Self::new(&api_version, &kind)
    }

    /// Those of an `apiVersion` and a kind.
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// Group and version as a resource writes them.
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Whether `selector` selects it.
    pub(crate) fn is_selected(&self, selector: &Self) -> bool {
        let fits = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
        fits(&selector.group, &self.group)
            && fits(&selector.version, &self.version)
            && fits(&selector.kind, &self.kind)
    }

    /// Whether it is a built-in kind without a namespace.
    pub(crate) fn is_cluster_scoped(&self) -> bool {
        let api_version = self.api_version();
        let listed = CLUSTER_SCOPED.iter().find(|(version, _)| *version == api_version);
        listed.is_some_and(|(_, kinds)| kinds.contains(&self.kind.as_str()))
    }
}

/// What a resource is, or once was, called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Group, version and kind.
    pub(crate) gvk: Gvk,
    /// The name.
    pub(crate) name: String,
    /// The namespace as it is written; empty if it is not.
    pub(crate) namespace: String,
    /// Whether it can have no namespace.
    pub(crate) is_cluster_scoped: bool,
}

impl Identity {
    /// What the resource is called now.
    pub(crate) fn of(value: &Value) -> Self {
        let gvk = Gvk::of(value);
        Self {
            name: text_at(value, &["metadata", "name"]).unwrap_or_default(),
            namespace: text_at(value, &["metadata", "namespace"]).unwrap_or_default(),
            is_cluster_scoped: gvk.is_cluster_scoped(),
            gvk,
        }
    }

    /// The namespace, where none means `default`.
    pub(crate) fn effective_namespace(&self) -> &str {
        match self.namespace.as_str() {
            _ if self.is_cluster_scoped => NO_NAMESPACE,
            "" => "default",
            namespace => namespace,
        }
    }

    /// Whether no namespace can be meant.
    pub(crate) fn has_no_namespace(&self) -> bool {
        self.effective_namespace() == NO_NAMESPACE
    }

    /// What two resources of a build must not share.
    pub(crate) fn key(&self) -> (Gvk, String, String) {
        (self.gvk.clone(), self.name.clone(), self.effective_namespace().to_owned())
    }

    /// Whether both mean the same resource.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.gvk == other.gvk
            && self.name == other.name
            && self.effective_namespace() == other.effective_namespace()
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (api_version, kind) = (self.gvk.api_version(), &self.gvk.kind);
        write!(f, "{api_version} {kind} {}", self.name)?;
        if self.namespace.is_empty() { Ok(()) } else { write!(f, " of {}", self.namespace) }
    }
}

/// The text of a scalar as YAML writes it; nothing for null, lists and maps.
pub(crate) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The text of the scalar at a path of fields.
pub(crate) fn text_at(value: &Value, path: &[&str]) -> Option<String> {
    let found = path.iter().try_fold(value, |value, field| value.get(field))?;
    scalar_text(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn identity(api_version: &str, kind: &str, namespace: &str) -> Identity {
        Identity::of(&json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": "x", "namespace": namespace},
        }))
    }

    #[test]
    fn no_namespace_means_default_except_where_there_can_be_none() {
        for (api_version, kind, namespace, expected) in [
            ("v1", "Pod", "", "default"),
            ("v1", "Pod", "a", "a"),
            ("v1", "Namespace", "a", NO_NAMESPACE),
            ("example.org/v1", "Namespace", "", "default"),
        ] {
            let identity = identity(api_version, kind, namespace);
            assert_eq!(identity.effective_namespace(), expected, "{identity}");
        }
    }

    #[test]
    fn an_empty_part_of_a_selector_selects_everything() {
        let gvk = Gvk::new("apps/v1", "Deployment");
        for (api_version, kind, expected) in
            [("", "Deployment", true), ("apps/", "", true), ("v2", "", false), ("", "Pod", false)]
        {
            assert_eq!(gvk.is_selected(&Gvk::new(api_version, kind)), expected);
        }
    }
}
