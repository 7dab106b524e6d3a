//! What home lets a joined node know: a pure function of the registry.
//!
//! As Kubernetes' node authoriser has it, a node sees the ConfigMaps and Secrets that its own pods
//! refer to, and no others. Of pods of other nodes it sees what services and names are made of, and
//! no command, variable or volume.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::entry::Place;
use crate::controller::{decode, text};
use crate::node::references;
use crate::objects::ObjectRef;
use crate::registry::{Mirror, PodStatus};

/// Kinds of which a node sees every object.
const PLAIN: [&str; 2] = ["namespaces", "services"];
/// Fields of the metadata of another node's pod.
const METADATA: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "resourceVersion",
];
/// Fields of the spec of another node's pod, beside its containers' ports.
const SPEC: [&str; 4] = ["nodeName", "hostname", "subdomain", "hostNetwork"];

/// The files that a node is sent, with their contents.
pub(super) fn of_node(mirror: &Mirror, node: &str) -> BTreeMap<Place, String> {
    let mut shared = BTreeMap::new();
    let mut named = BTreeSet::new();
    let mut put = |object: &ObjectRef, value: &Value| {
        shared.insert(place(object), value.to_string());
    };
    for plural in PLAIN {
        mirror.of_plural(plural).for_each(|(object, value)| put(object, value));
    }
    for (object, value) in mirror.of_plural("nodes").filter(|(object, _)| object.name == node) {
        put(object, value);
    }
    for (object, value) in mirror.of_plural("pods") {
        if text(value, "/spec/nodeName") != node {
            put(object, &reduced(value));
            continue;
        }
        put(object, value);
        let namespace = object.namespace.clone().unwrap_or_default();
        let pod: Pod = decode(value);
        let names = references(&pod).into_iter();
        named.extend(names.map(|(plural, name)| (plural, namespace.clone(), name.to_owned())));
    }
    for (plural, namespace, name) in named {
        if let Some(value) = mirror.object(plural, &namespace, &name) {
            let plural = plural.to_owned();
            put(&ObjectRef { plural, namespace: Some(namespace), name }, value);
        }
    }
    for ((namespace, name), status) in mirror.statuses().filter(|(_, it)| it.node != node) {
        let place = Place::Status { namespace: namespace.clone(), name: name.clone() };
        let status = serde_json::to_string(&of_others(status)).expect("a status is JSON");
        shared.insert(place, status);
    }
    shared
}

fn place(object: &ObjectRef) -> Place {
    let ObjectRef { plural, namespace, name } = object.clone();
    Place::Object { plural, namespace, name }
}

/// A pod of another node.
fn reduced(pod: &Value) -> Value {
    let some = |of: &Value, fields: &[&str]| -> Map<String, Value> {
        let there = fields.iter().filter_map(|it| Some(((*it).to_owned(), of.get(it)?.clone())));
        there.collect()
    };
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let containers = containers.into_iter().flatten().map(|it| some(it, &["name", "ports"]));
    let mut spec = some(&pod["spec"], &SPEC);
    spec.insert("containers".to_owned(), containers.map(Value::Object).collect());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": some(&pod["metadata"], &METADATA),
        "spec": spec,
    })
}

/// What a node says of its pod, as far as other computers can use it.
fn of_others(status: &PodStatus) -> PodStatus {
    PodStatus {
        uid: status.uid.clone(),
        node: status.node.clone(),
        phase: status.phase,
        pod_ips: status.pod_ips.clone(),
        ready: status.ready,
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::link::entry;

    fn pod(name: &str, node: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": name},
                "annotations": {"note": "private"}},
            "spec": {"nodeName": node, "subdomain": "web", "volumes": [
                {"name": "v", "secret": {"secretName": format!("{name}-files")}},
                {"name": "w", "projected": {"sources": [
                    {"configMap": {"name": format!("{name}-map")}}]}}],
                "containers": [{"name": "c", "command": ["private"], "ports": [
                    {"containerPort": 80, "name": "http"}], "env": [
                    {"name": "A", "value": "private"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {
                        "name": format!("{name}-key"), "key": "k"}}}],
                    "envFrom": [{"configMapRef": {"name": format!("{name}-all")}}]}]},
        })
    }

    /// A registry with a pod on each of two nodes, and everything that these name.
    fn registry() -> (tempfile::TempDir, Mirror) {
        let state = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(state.path());
        let mut mirror = Mirror::new(&layout);
        let mut put = |plural: &str, namespace: Option<&str>, name: &str, value: &Value| {
            let path = layout.object(plural, namespace, name);
            entry::write(&path, value.to_string().as_bytes()).expect("written");
            mirror.read(&[path]);
        };
        for (name, node) in [("mine", "node-3"), ("other", "node-1")] {
            put("pods", Some("shop"), name, &pod(name, node));
            put("nodes", None, node, &json!({"metadata": {"name": node}}));
            for secret in ["files", "key"] {
                put("secrets", Some("shop"), &format!("{name}-{secret}"), &json!({"data": {}}));
            }
            for map in ["map", "all"] {
                put("configmaps", Some("shop"), &format!("{name}-{map}"), &json!({"data": {}}));
            }
            put("secrets", Some("else"), &format!("{name}-key"), &json!({"data": {}}));
        }
        put("services", Some("shop"), "web", &json!({"spec": {}}));
        put("namespaces", None, "shop", &json!({"metadata": {"name": "shop"}}));
        put("deployments", Some("shop"), "web", &json!({"spec": {}}));
        let status = |node: &str| {
            let status = PodStatus {
                node: node.to_owned(),
                uid: "u".to_owned(),
                pid: 7,
                netns: "/n".into(),
                pod_ips: vec!["10.244.1.2".parse().expect("an address")],
                ..PodStatus::default()
            };
            serde_json::to_vec(&status).expect("JSON")
        };
        for (name, node) in [("mine", "node-3"), ("other", "node-1")] {
            let path = layout.pod_status("shop", name);
            entry::write(&path, &status(node)).expect("written");
            mirror.read(&[path]);
        }
        (state, mirror)
    }

    #[test]
    fn a_node_sees_what_its_own_pods_name_and_no_more() {
        let (_state, mirror) = registry();
        let shared = of_node(&mirror, "node-3");
        let names = shared.keys().map(|place| match place {
            Place::Object { plural, namespace, name } => {
                format!("{plural} {}/{name}", namespace.as_deref().unwrap_or_default())
            }
            Place::Status { namespace, name } => format!("status {namespace}/{name}"),
            other => format!("{other:?}"),
        });
        let expected = [
            "configmaps shop/mine-all",
            "configmaps shop/mine-map",
            "namespaces /shop",
            "nodes /node-3",
            "pods shop/mine",
            "pods shop/other",
            "secrets shop/mine-files",
            "secrets shop/mine-key",
            "services shop/web",
            "status shop/other",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn pods_of_other_nodes_are_names_labels_and_ports() {
        let (_state, mirror) = registry();
        let shared = of_node(&mirror, "node-3");
        let pod = |name: &str| {
            let (plural, namespace) = ("pods".to_owned(), Some("shop".to_owned()));
            let text = &shared[&Place::Object { plural, namespace, name: name.to_owned() }];
            serde_json::from_str::<Value>(text).expect("JSON")
        };
        assert_eq!(pod("mine"), super::tests::pod("mine", "node-3"), "its own are whole");
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "other", "namespace": "shop", "uid": "other",
                "labels": {"app": "other"}},
            "spec": {"nodeName": "node-1", "subdomain": "web", "containers": [
                {"name": "c", "ports": [{"containerPort": 80, "name": "http"}]}]},
        });
        assert_eq!(pod("other"), expected);
        let (namespace, name) = ("shop".to_owned(), "other".to_owned());
        let status: PodStatus =
            serde_json::from_str(&shared[&Place::Status { namespace, name }]).expect("JSON");
        let seen = (status.pid, status.netns.to_str(), status.pod_ips.len());
        assert_eq!(seen, (0, Some(""), 1));
    }
}
