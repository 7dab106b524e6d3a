//! The pods of an object that has a template of pods, and new ones of it: what the controllers of
//! all these kinds share.
//!
//! Nothing here decides how many pods there are, or which.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::{decode, text};
use crate::objects::{Kind, ObjectRef, Store, is_owned_by, random_bytes};
use crate::registry::{Mirror, Phase};

/// Letters of the random end of a pod's name: without vowels it is no word.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The label of a pod of an indexed Job, and the annotation, that say which index it has.
pub(crate) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// What a controller does now for one object.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Action {
    /// Claims that those pods have.
    pub(crate) claims: Vec<(ObjectRef, Value)>,
    /// With whom claims go that are there.
    pub(crate) kept_by: Vec<KeptBy>,
    /// Pods to create.
    pub(crate) create: Vec<(ObjectRef, Value)>,
    /// Pods to retire.
    pub(crate) retire: Vec<ObjectRef>,
    /// What the object's status is, before these changes.
    pub(crate) status: Value,
}

/// With whom a claim of a StatefulSet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptBy {
    /// Which claim.
    pub(crate) claim: ObjectRef,
    /// Its owner's reference; none if it goes with nobody.
    pub(crate) owner: Option<Value>,
    /// The uids of those who could be it.
    pub(crate) candidates: [String; 2],
}

/// One pod of an object, as far as its controller cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedPod {
    /// Which.
    pub(crate) object: ObjectRef,
    /// Its uid.
    pub(crate) uid: String,
    /// Of which template it is; empty for kinds whose template never changes.
    pub(crate) revision: String,
    /// It was made from the present template.
    pub(crate) current: bool,
    /// It takes traffic.
    pub(crate) ready: bool,
    /// It is going away.
    pub(crate) terminating: bool,
    /// How far it is.
    pub(crate) phase: Phase,
    /// How often its containers were started again.
    pub(crate) restarts: u32,
    /// Its node; empty while it has none.
    pub(crate) node: String,
    /// The completion index of an indexed Job.
    pub(crate) index: Option<u32>,
    /// When it was created, comparable as text.
    pub(crate) created: String,
}

impl OwnedPod {
    /// Its containers have ended and stay so.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
}

/// An object that owns pods.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) object: &'a ObjectRef,
    kind: Kind,
    pub(crate) uid: &'a str,
    template: PodTemplateSpec,
    /// The label that says of which template a pod is, for kinds whose template may change.
    revision_label: Option<&'static str>,
    /// Of which template new pods are.
    pub(crate) revision: String,
}

impl<'a> Owner<'a> {
    /// The owner that an object is.
    pub(crate) fn new(
        object: &'a ObjectRef,
        value: &'a Value,
        revision_label: Option<&'static str>,
    ) -> Self {
        let template = decode(&value["spec"]["template"]);
        let kind = Kind::from_plural(&object.plural).expect("plurals come from the table");
        let revision = revision_label.map(|_| hash(&template)).unwrap_or_default();
        let uid = text(value, "/metadata/uid");
        Self { object, kind, uid, template, revision_label, revision }
    }

    /// The same owner with another template.
    pub(crate) fn with_template(&self, template: &Value) -> Self {
        let template = decode(template);
        let revision = self.revision_label.map(|_| hash(&template)).unwrap_or_default();
        Self { template, revision, ..*self }
    }

    /// Its template, as it is compared.
    pub(crate) fn template(&self) -> Value {
        serde_json::to_value(&self.template).expect("a decoded template can be written")
    }

    /// Its pods.
    pub(crate) fn pods(&self, store: &Store, reported: &Mirror) -> Vec<OwnedPod> {
        let all = store.of_plural("pods").filter(|(_, value)| is_owned_by(value, self.uid));
        all.map(|(object, value)| self.view(object, value, reported)).collect()
    }

    fn view(&self, object: &ObjectRef, value: &Value, reported: &Mirror) -> OwnedPod {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let status = reported.status(namespace, &object.name, text(value, "/metadata/uid"));
        let label = |label: &str| value["metadata"]["labels"][label].as_str().unwrap_or_default();
        let revision = self.revision_label.map(label).unwrap_or_default().to_owned();
        OwnedPod {
            object: object.clone(),
            uid: text(value, "/metadata/uid").to_owned(),
            current: revision == self.revision,
            revision,
            ready: status.is_some_and(|status| status.ready),
            terminating: value.pointer("/metadata/deletionTimestamp").is_some(),
            phase: status.map(|status| status.phase).unwrap_or_default(),
            restarts: status.map(|status| status.restarts).unwrap_or_default(),
            node: text(value, "/spec/nodeName").to_owned(),
            index: label(INDEX).parse().ok(),
            created: text(value, "/metadata/creationTimestamp").to_owned(),
        }
    }

    /// A new pod of the template.
    pub(crate) fn pod(&self, name: &str) -> (ObjectRef, Value) {
        let template = self.template();
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template.get("metadata").cloned().unwrap_or_else(|| json!({})),
            "spec": template.get("spec"),
            "status": {"phase": "Pending"},
        });
        let metadata = &mut pod["metadata"];
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(self.object.namespace);
        if let Some(label) = self.revision_label {
            metadata["labels"][label] = json!(self.revision);
        }
        metadata["ownerReferences"] = json!([controller(self.kind, &self.object.name, self.uid)]);
        (ObjectRef::new(Kind::Pod, self.object.namespace.as_deref(), name), pod)
    }
}

/// How an object names the one that its controller made it for.
pub(crate) fn controller(kind: Kind, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": kind.api_versions()[0], "kind": kind.name(), "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A name that nobody has.
pub(crate) fn random_name(prefix: &str) -> String {
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    let suffix: String = random_bytes::<5>().into_iter().map(letter).collect();
    format!("{prefix}-{suffix}")
}

/// A short text that differs between templates. It is compared within one machine's life only.
fn hash(template: &PodTemplateSpec) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let text = serde_json::to_string(template).expect("a decoded template can be written");
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:010x}", hasher.finish() >> 24)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pod of which nothing is special.
    pub(crate) fn owned(name: &str) -> OwnedPod {
        OwnedPod {
            object: ObjectRef::new(Kind::Pod, Some("app"), name),
            uid: format!("uid-{name}"),
            revision: String::new(),
            current: true,
            ready: true,
            terminating: false,
            phase: Phase::Running,
            restarts: 0,
            node: "node-1".to_owned(),
            index: None,
            created: name.to_owned(),
        }
    }

    #[test]
    fn new_pods_name_their_owner_and_their_template() {
        let object = ObjectRef::new(Kind::StatefulSet, Some("app"), "web");
        let value = |image: &str| {
            json!({
                "metadata": {"uid": "u"},
                "spec": {"template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": image}]},
                }},
            })
        };
        let (one, two) = (value("one"), value("two"));
        let owner = Owner::new(&object, &one, Some("revision"));
        let (reference, pod) = owner.pod("web-0");
        assert_eq!(reference, ObjectRef::new(Kind::Pod, Some("app"), "web-0"));
        assert_eq!(pod["metadata"]["labels"], json!({"app": "web", "revision": owner.revision}));
        let of = &pod["metadata"]["ownerReferences"][0];
        assert_eq!([&of["kind"], &of["apiVersion"], &of["uid"]], ["StatefulSet", "apps/v1", "u"]);
        assert_eq!(pod["spec"]["containers"][0]["image"], "one");
        let other = Owner::new(&object, &two, Some("revision"));
        assert_ne!(owner.revision, other.revision, "another template is another revision");
        assert_eq!(other.with_template(&owner.template()).revision, owner.revision);
        assert_eq!(Owner::new(&object, &one, None).revision, "");
        assert_ne!(random_name("a"), random_name("a"));
    }
}
