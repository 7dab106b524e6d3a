//! What runs in a cluster, as the manifests that a planner reads.

use std::collections::BTreeMap;

use ambit_words::labels::INSTANCE_TYPE;
use ambit_words::names;
use serde_json::{Value, json};

use crate::api::{ClusterError, Form};
use crate::json::{items, label, name, namespace, text};

/// Where lists of what runs pods are, with the kind of their items, which a list leaves away.
const LISTS: [(&str, &str, &str); 6] = [
    ("/apis/apps/v1/deployments", "apps/v1", "Deployment"),
    ("/apis/apps/v1/statefulsets", "apps/v1", "StatefulSet"),
    ("/apis/apps/v1/daemonsets", "apps/v1", "DaemonSet"),
    ("/apis/apps/v1/replicasets", "apps/v1", "ReplicaSet"),
    ("/api/v1/pods", "v1", "Pod"),
    ("/api/v1/services", "v1", "Service"),
];

/// The workloads of a cluster, and what its nodes are.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveWorkloads {
    /// One document of the kind List, as JSON.
    pub manifests: String,
    /// How many nodes there are.
    pub nodes: usize,
    /// The most frequent sort of node that takes pods.
    pub node: Option<LiveNode>,
}

/// What most nodes of a cluster are. Amounts are as Kubernetes writes them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveNode {
    /// The provider's name for it; empty if there is none.
    pub instance_type: String,
    /// All of its CPU.
    pub cpu: String,
    /// All of its memory.
    pub memory: String,
    /// What of its CPU pods may request.
    pub allocatable_cpu: String,
    /// What of its memory pods may request.
    pub allocatable_memory: String,
    /// Most pods on it.
    pub pods: String,
}

impl crate::Cluster {
    /// Reads what runs pods, except for the mesh itself, which a planner adds.
    pub async fn workloads(&self) -> Result<LiveWorkloads, ClusterError> {
        let mut objects = Vec::new();
        for (path, api_version, kind) in LISTS {
            let listed = self.list(path, Form::Whole, |object| {
                *object = trimmed(object);
                object["apiVersion"] = json!(api_version);
                object["kind"] = json!(kind);
            });
            objects.extend(listed.await?);
        }
        let nodes = self.list("/api/v1/nodes", Form::Whole, |_| {}).await?;
        Ok(planned(objects, &nodes, self.mesh_namespace()))
    }
}

/// An object without what is no planner's business.
fn trimmed(object: &Value) -> Value {
    json!({
        "metadata": {
            "name": object.pointer("/metadata/name"),
            "namespace": object.pointer("/metadata/namespace"),
            "labels": object.pointer("/metadata/labels").unwrap_or(&json!({})),
            "ownerReferences": object.pointer("/metadata/ownerReferences").unwrap_or(&json!([])),
        },
        "spec": object["spec"],
        "phase": object.pointer("/status/phase"),
    })
}

fn planned(objects: Vec<Value>, nodes: &[Value], mesh_namespace: &str) -> LiveWorkloads {
    let counted = |object: &Value| {
        let is_owned =
            items(object, "/metadata/ownerReferences").any(|it| it["controller"] == true);
        let has_ended = ["Succeeded", "Failed"].contains(&text(object, "/phase"));
        let is_mesh = namespace(object) == mesh_namespace && is_part(object);
        !is_owned && !has_ended && !is_mesh
    };
    let kept = objects.into_iter().filter(counted).map(|mut object| {
        if let Some(object) = object.as_object_mut() {
            object.remove("phase");
        }
        if object["kind"] == "Pod" {
            // Where a pod without an owner was put is no wish of its manifest's.
            object["spec"].as_object_mut().map(|spec| spec.remove("nodeName"));
        }
        object
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": kept.collect::<Vec<_>>()});
    let mut sorts: BTreeMap<LiveNode, usize> = BTreeMap::new();
    for node in nodes.iter().filter(|node| takes_pods(node)) {
        *sorts.entry(sort(node)).or_default() += 1;
    }
    let node = sorts.into_iter().max_by_key(|(_, count)| *count).map(|(sort, _)| sort);
    LiveWorkloads { manifests: list.to_string(), nodes: nodes.len(), node }
}

fn is_part(object: &Value) -> bool {
    [names::CONTROL, names::PROXY, crate::parts::AGENT].contains(&name(object))
}

fn takes_pods(node: &Value) -> bool {
    let is_kept_free = |taint: &Value| {
        taint["key"] == "node-role.kubernetes.io/control-plane" && taint["effect"] == "NoSchedule"
    };
    !items(node, "/spec/taints").any(is_kept_free)
}

/// What a node is.
pub(crate) fn sort(node: &Value) -> LiveNode {
    let of = |pointer: &str| text(node, pointer).to_owned();
    LiveNode {
        instance_type: label(node, INSTANCE_TYPE).unwrap_or_default().to_owned(),
        cpu: of("/status/capacity/cpu"),
        memory: of("/status/capacity/memory"),
        allocatable_cpu: of("/status/allocatable/cpu"),
        allocatable_memory: of("/status/allocatable/memory"),
        pods: of("/status/allocatable/pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_counted_once_and_without_the_mesh() {
        let object = |kind: &str, namespace: &str, name: &str, more: Value| {
            let owner = json!([{"kind": "ReplicaSet", "controller": more["owned"] == true}]);
            json!({"kind": kind, "phase": more["phase"], "spec": {"nodeName": "n1"}, "metadata":
                {"namespace": namespace, "name": name, "ownerReferences": owner}})
        };
        let objects = vec![
            object("Deployment", "app", "web", json!({})),
            object("Pod", "app", "web-1", json!({"owned": true})),
            object("Pod", "app", "lone", json!({"phase": "Running"})),
            object("Pod", "app", "done", json!({"phase": "Succeeded"})),
            object("DaemonSet", "istio-system", "ztunnel", json!({})),
            object("DaemonSet", "kube-system", "ztunnel", json!({})),
        ];
        let live = planned(objects, &[], "istio-system");
        let list: Value = serde_json::from_str(&live.manifests).expect("it is JSON");
        let kept: Vec<_> = items(&list, "/items").map(|it| (namespace(it), name(it))).collect();
        assert_eq!(kept, [("app", "web"), ("app", "lone"), ("kube-system", "ztunnel")]);
        assert_eq!(list["items"][1]["spec"], json!({}));
    }

    #[test]
    fn the_most_frequent_sort_of_node_counts() {
        let node = |kind: &str, cpu: &str, taints: Value| {
            json!({"metadata": {"labels": {"node.kubernetes.io/instance-type": kind}},
                "spec": {"taints": taints}, "status": {"capacity": {"cpu": cpu}}})
        };
        let master = json!([{"key": "node-role.kubernetes.io/control-plane",
            "effect": "NoSchedule"}]);
        let nodes = [
            node("small", "2", master.clone()),
            node("small", "2", master),
            node("large", "8", json!([])),
        ];
        let live = planned(vec![], &nodes, "istio-system");
        let found = live.node.map(|node| (node.instance_type, node.cpu));
        assert_eq!((live.nodes, found), (3, Some(("large".to_owned(), "8".to_owned()))));
    }
}
