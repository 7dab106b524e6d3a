//! Which node a pod goes to: a pure function of the pod, the nodes and the pods that are placed.
//!
//! Nodes that the pod's rules exclude are ruled out, each with a reason. Among the others the one
//! with the fewest pods of the same owner wins, then the one with the fewest pods, then the first.
//! An unknown rule excludes every node.

use std::collections::BTreeMap;
use std::fmt;

use ambit_manifest::selector::matches;
use ambit_words::labels::HOSTNAME;
use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm};
use serde_json::Value;

use crate::addresses::{POD_FIRST, POD_LAST};

/// Most pods on one node: its pod network has no more addresses.
const PODS_MAX: usize = (POD_LAST - POD_FIRST) as usize + 1;

/// A node, as far as placing cares.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    name: String,
    labels: BTreeMap<String, String>,
}

/// A pod that is on a node.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    node: String,
    namespace: String,
    owner: String,
    labels: BTreeMap<String, String>,
}

/// Why a pod is on no node: one reason per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unschedulable(Vec<(String, String)>);

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no node takes it")?;
        for (index, (node, reason)) in self.0.iter().enumerate() {
            write!(f, "{} {node} {reason}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl NodeView {
    /// A Node object.
    pub(crate) fn of(node: &Value) -> Self {
        let node: k8s_openapi::api::core::v1::Node = super::decode(node);
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
        }
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
        pod.metadata.deletion_timestamp.is_none().then(|| Self {
            node,
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            owner: owner(pod),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
        })
    }
}

fn owner(pod: &Pod) -> String {
    let owner = pod.metadata.owner_references.iter().flatten().next();
    owner.map(|owner| owner.uid.clone()).unwrap_or_default()
}

/// The nodes that a pod of a DaemonSet may be on, as far as its rules for nodes go.
pub(crate) fn admitting(pod: &Pod, nodes: &[NodeView]) -> Vec<String> {
    let admitting = nodes.iter().filter(|node| admits_node(pod, node).is_ok());
    admitting.map(|node| node.name.clone()).collect()
}

/// Chooses a node.
pub(crate) fn place(
    pod: &Pod,
    nodes: &[NodeView],
    placed: &[Placed],
) -> Result<String, Unschedulable> {
    let mut reasons = Vec::new();
    let mut best: Option<(usize, usize, usize, &NodeView)> = None;
    for node in nodes {
        if let Err(reason) = admits(pod, node, placed) {
            reasons.push((node.name.clone(), reason));
            continue;
        }
        let here = || placed.iter().filter(|other| other.node == node.name);
        let owner = owner(pod);
        let siblings = here().filter(|other| !owner.is_empty() && other.owner == owner).count();
        let unwanted = here().filter(|other| prefers_away(pod, other)).count();
        let rank = (unwanted, siblings, here().count(), node);
        if best.is_none_or(|best| (rank.0, rank.1, rank.2) < (best.0, best.1, best.2)) {
            best = Some(rank);
        }
    }
    best.map(|(.., node)| node.name.clone()).ok_or_else(|| named_node_missing(pod, nodes, reasons))
}

fn named_node_missing(
    pod: &Pod,
    nodes: &[NodeView],
    reasons: Vec<(String, String)>,
) -> Unschedulable {
    let named = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    match named {
        Some(name) if nodes.iter().all(|node| node.name != *name) => {
            Unschedulable(vec![(name.clone(), "does not exist".to_owned())])
        }
        _ => Unschedulable(reasons),
    }
}

/// Whether a pod may be on a node, whatever runs there.
fn admits_node(pod: &Pod, node: &NodeView) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Err("cannot run a pod without spec".to_owned()) };
    if let Some(named) = &spec.node_name
        && *named != node.name
    {
        return Err("is not spec.nodeName".to_owned());
    }
    for (label, value) in spec.node_selector.iter().flatten() {
        if node.labels.get(label) != Some(value) {
            return Err(format!("has no label {label}={value}"));
        }
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    if affinity
        .is_some_and(|node| node.required_during_scheduling_ignored_during_execution.is_some())
    {
        return Err("cannot judge required nodeAffinity".to_owned());
    }
    Ok(())
}

fn admits(pod: &Pod, node: &NodeView, placed: &[Placed]) -> Result<(), String> {
    admits_node(pod, node)?;
    let here = || placed.iter().filter(|other| other.node == node.name);
    if here().count() >= PODS_MAX {
        return Err(format!("has {PODS_MAX} pods already"));
    }
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let Some(affinity) = affinity else { return Ok(()) };
    if affinity.pod_affinity.as_ref().is_some_and(|pods| {
        pods.required_during_scheduling_ignored_during_execution
            .as_ref()
            .is_some_and(|t| !t.is_empty())
    }) {
        return Err("cannot judge required podAffinity".to_owned());
    }
    let away = affinity.pod_anti_affinity.as_ref();
    let terms =
        away.and_then(|away| away.required_during_scheduling_ignored_during_execution.as_ref());
    for term in terms.into_iter().flatten() {
        if term.topology_key != HOSTNAME {
            return Err(format!("cannot judge anti-affinity by {}", term.topology_key));
        }
        if here().any(|other| selects(term, pod, other)) {
            return Err("runs a pod that its anti-affinity names".to_owned());
        }
    }
    Ok(())
}

fn prefers_away(pod: &Pod, other: &Placed) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let away = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let terms =
        away.and_then(|away| away.preferred_during_scheduling_ignored_during_execution.as_ref());
    terms.into_iter().flatten().any(|weighted| {
        let term = &weighted.pod_affinity_term;
        term.topology_key == HOSTNAME && selects(term, pod, other)
    })
}

fn selects(term: &PodAffinityTerm, pod: &Pod, other: &Placed) -> bool {
    let namespaces = term.namespaces.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let in_reach = if namespaces.is_empty() {
        other.namespace == namespace
    } else {
        namespaces.contains(&other.namespace)
    };
    in_reach
        && term.label_selector.as_ref().is_some_and(|selector| matches(selector, &other.labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes(count: usize) -> Vec<NodeView> {
        let node = |number| {
            let name = format!("node-{number}");
            NodeView { labels: [(HOSTNAME.to_owned(), name.clone())].into(), name }
        };
        (1..=count).map(node).collect()
    }

    fn pod(spec: Value) -> Pod {
        super::super::decode(&json!({
            "metadata": {
                "namespace": "n", "name": "p", "labels": {"app": "a"},
                "ownerReferences": [{"uid": "o", "apiVersion": "", "kind": "", "name": ""}],
            },
            "spec": spec,
        }))
    }

    /// Places pods of the same spec one after the other.
    fn place_all(spec: &Value, count: usize, nodes: &[NodeView]) -> Vec<Result<String, String>> {
        let mut placed = Vec::new();
        let mut verdicts = Vec::new();
        for _ in 0..count {
            let pod = pod(spec.clone());
            let verdict = place(&pod, nodes, &placed);
            placed.extend(verdict.clone().ok().and_then(|node| Placed::on(&pod, node)));
            verdicts.push(verdict.map_err(|why| why.to_string()));
        }
        verdicts
    }

    fn check(spec: Value, nodes: &[NodeView], expected: &[Result<&str, &str>]) {
        let verdicts = place_all(&spec, expected.len(), nodes);
        for (verdict, expected) in verdicts.iter().zip(expected) {
            match (verdict, expected) {
                (Ok(node), Ok(expected)) => assert_eq!(node, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                _ => panic!("{verdict:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn pods_spread_over_nodes() {
        let expected = [Ok("node-1"), Ok("node-2"), Ok("node-3"), Ok("node-1")];
        check(json!({"containers": []}), &nodes(3), &expected);
    }

    #[test]
    fn wishes_are_honoured_or_explained() {
        check(
            json!({"nodeName": "node-2", "containers": []}),
            &nodes(3),
            &[Ok("node-2"), Ok("node-2")],
        );
        check(
            json!({"nodeName": "node-9", "containers": []}),
            &nodes(2),
            &[Err("node-9 does not exist")],
        );
        let selector = json!({"nodeSelector": {HOSTNAME: "node-3"}, "containers": []});
        check(selector.clone(), &nodes(3), &[Ok("node-3")]);
        check(selector, &nodes(2), &[Err("node-2 has no label kubernetes.io/hostname=node-3")]);
        let affinity = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
            "containers": []});
        check(affinity, &nodes(1), &[Err("cannot judge required nodeAffinity")]);
    }

    #[test]
    fn anti_affinity_keeps_pods_apart() {
        let apart = |kind: &str, term: Value| {
            let affinity = json!({"podAntiAffinity": {kind: [term]}});
            json!({"affinity": affinity, "containers": []})
        };
        let term = json!({"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "a"}}});
        check(
            apart("requiredDuringSchedulingIgnoredDuringExecution", term.clone()),
            &nodes(2),
            &[Ok("node-1"), Ok("node-2"), Err("node-1 runs a pod that its anti-affinity names")],
        );
        check(
            apart(
                "preferredDuringSchedulingIgnoredDuringExecution",
                json!({"weight": 1, "podAffinityTerm": term}),
            ),
            &nodes(2),
            &[Ok("node-1"), Ok("node-2"), Ok("node-1")],
        );
    }
}
