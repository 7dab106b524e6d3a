//! Nodes, and the pods that are on them, as far as placing cares.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Node, Pod, PodAffinityTerm, Taint};
use serde_json::Value;

use crate::controller::decode;

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
}

/// A pod that is on a node.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(super) node: String,
    pub(super) namespace: String,
    pub(super) owner: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The pods that it does not want near.
    pub(super) keeps_away: Vec<PodAffinityTerm>,
}

impl NodeView {
    /// A Node object.
    pub(crate) fn of(node: &Value) -> Self {
        let node: Node = decode(node);
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: node.spec.and_then(|spec| spec.taints).unwrap_or_default(),
        }
    }

    /// Whether this is its name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name
    }
}

impl Placed {
    /// A pod object, if it is on a node.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        Self::on(pod, node)
    }

    /// A pod object as if it were on this node; nothing for one that is going away.
    pub(crate) fn on(pod: &Pod, node: String) -> Option<Self> {
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        pod.metadata.deletion_timestamp.is_none().then(|| Self {
            node,
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            owner: owner(pod),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            keeps_away: required_away(affinity).to_vec(),
        })
    }
}

/// What made a pod, by its uid; empty for a pod of its own.
pub(super) fn owner(pod: &Pod) -> String {
    let owner = pod.metadata.owner_references.iter().flatten().next();
    owner.map(|owner| owner.uid.clone()).unwrap_or_default()
}

/// The terms of pods far from which a pod must be.
pub(super) fn required_away(affinity: Option<&Affinity>) -> &[PodAffinityTerm] {
    let away = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    away.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}
