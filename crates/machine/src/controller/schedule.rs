//! Which node a pod goes to: a pure function of the pod, the nodes and the pods that are placed.
//!
//! Nodes that the pod's rules exclude are ruled out, each with a reason. Among the others the one
//! that the pod prefers most wins, then the one with the fewest pods of the same owner, then the
//! one with the fewest pods, then the first. A rule that cannot be judged excludes every node.

mod nodes;
mod topology;
mod views;

use std::fmt;

use k8s_openapi::api::core::v1::Pod;

use self::topology::Around;
use self::views::owner;
pub(crate) use self::views::{NodeView, Placed};
use crate::addresses::{POD_FIRST, POD_LAST};

/// Most pods on one node: its pod network has no more addresses.
const PODS_MAX: usize = (POD_LAST - POD_FIRST) as usize + 1;

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
    let around = Around { nodes, placed };
    let mut reasons = Vec::new();
    let mut best: Option<((i64, usize, usize), &NodeView)> = None;
    for node in nodes {
        if let Err(reason) = admits(pod, node, around) {
            reasons.push((node.name.clone(), reason));
            continue;
        }
        let here = || placed.iter().filter(|other| other.node == node.name);
        let owner = owner(pod);
        let siblings = here().filter(|other| !owner.is_empty() && other.owner == owner).count();
        let rank = (-preference(pod, node, around), siblings, here().count());
        if best.is_none_or(|(least, _)| rank < least) {
            best = Some((rank, node));
        }
    }
    best.map(|(_, node)| node.name.clone()).ok_or_else(|| named_node_missing(pod, nodes, reasons))
}

fn preference(pod: &Pod, node: &NodeView, around: Around<'_>) -> i64 {
    let of_node = pod.spec.as_ref().map_or(0, |spec| nodes::preference(spec, node));
    of_node + topology::preference(pod, node, around)
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
    nodes::admits(spec, node)
}

fn admits(pod: &Pod, node: &NodeView, around: Around<'_>) -> Result<(), String> {
    admits_node(pod, node)?;
    if around.placed.iter().filter(|other| other.node == node.name).count() >= PODS_MAX {
        return Err(format!("has {PODS_MAX} pods already"));
    }
    topology::admits(pod, node, around)
}

#[cfg(test)]
mod tests {
    use ambit_words::labels::{HOSTNAME, ZONE};
    use serde_json::{Value, json};

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
    }

    fn affinity(kind: &str, rule: &str, said: Value) -> Value {
        let rule = format!("{rule}DuringSchedulingIgnoredDuringExecution");
        json!({"containers": [], "affinity": {kind: {rule: said}}})
    }

    fn needs(requirements: Value) -> Value {
        let terms = json!({"nodeSelectorTerms": [requirements]});
        affinity("nodeAffinity", "required", terms)
    }

    #[test]
    fn a_node_has_what_node_affinity_requires() {
        let label = |operator: &str, values: &[&str]| {
            needs(json!({"matchExpressions": [
                {"key": HOSTNAME, "operator": operator, "values": values}]}))
        };
        check(label("In", &["node-2", "node-3"]), &nodes(3), &[Ok("node-2"), Ok("node-3")]);
        check(label("NotIn", &["node-1"]), &nodes(2), &[Ok("node-2"), Ok("node-2")]);
        check(label("Exists", &[]), &nodes(2), &[Ok("node-1")]);
        let none = Err("node-1 is not what its nodeAffinity requires");
        check(label("DoesNotExist", &[]), &nodes(2), &[none]);
        check(label("Near", &["node-1"]), &nodes(2), &[none]);
        let field = needs(json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}));
        check(field, &nodes(2), &[Ok("node-2")]);
        check(needs(json!({})), &nodes(1), &[none]);
        let mut sized = nodes(3);
        for (node, size) in sized.iter_mut().zip(["1", "5", "x"]) {
            node.labels.insert("size".to_owned(), size.to_owned());
        }
        let than = |operator: &str| {
            needs(json!({"matchExpressions": [
                {"key": "size", "operator": operator, "values": ["3"]}]}))
        };
        check(than("Gt"), &sized, &[Ok("node-2"), Ok("node-2")]);
        check(than("Lt"), &sized, &[Ok("node-1"), Ok("node-1")]);
    }

    #[test]
    fn a_preferred_node_comes_first() {
        let prefers = json!([{"weight": 5, "preference": {"matchExpressions": [
            {"key": HOSTNAME, "operator": "In", "values": ["node-2"]}]}}]);
        let spec = affinity("nodeAffinity", "preferred", prefers);
        check(spec, &nodes(2), &[Ok("node-2"), Ok("node-2")]);
    }

    #[test]
    fn pods_stay_near_one_another() {
        let near = |app: &str| {
            let term = json!([{"topologyKey": HOSTNAME,
                "labelSelector": {"matchLabels": {"app": app}}}]);
            affinity("podAffinity", "required", term)
        };
        // The first one is near itself.
        check(near("a"), &nodes(2), &[Ok("node-1"), Ok("node-1")]);
        check(near("b"), &nodes(2), &[Err("node-1 runs no pod that its affinity names")]);
        let selector = json!([{"topologyKey": HOSTNAME, "labelSelector": {},
            "namespaceSelector": {"matchLabels": {"a": "b"}}}]);
        let spec = affinity("podAffinity", "required", selector);
        check(spec, &nodes(1), &[Err("cannot be judged by a namespaceSelector")]);
    }

    #[test]
    fn who_keeps_others_away_is_left_alone() {
        let away = affinity(
            "podAntiAffinity",
            "required",
            json!([{"topologyKey": HOSTNAME,
            "labelSelector": {"matchLabels": {"app": "a"}}}]),
        );
        let placed = [Placed::on(&pod(away), "node-1".to_owned()).expect("it stays")];
        let plain = pod(json!({"containers": []}));
        assert_eq!(place(&plain, &nodes(2), &placed), Ok("node-2".to_owned()));
        let why = place(&plain, &nodes(1), &placed).expect_err("there is no other node");
        assert!(why.to_string().contains("a pod whose anti-affinity names it"), "{why}");
    }

    #[test]
    fn pods_spread_as_evenly_as_they_say() {
        let spread = |key: &str, when: &str, node: &str| {
            json!({"containers": [], "nodeSelector": {HOSTNAME: node},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key,
                "whenUnsatisfiable": when, "nodeAffinityPolicy": "Ignore",
                "labelSelector": {"matchLabels": {"app": "a"}}}]})
        };
        let full = Err("has too many pods already for its topologySpreadConstraints");
        check(spread(HOSTNAME, "DoNotSchedule", "node-1"), &nodes(2), &[Ok("node-1"), full]);
        let anyway = [Ok("node-1"), Ok("node-1")];
        check(spread(HOSTNAME, "ScheduleAnyway", "node-1"), &nodes(2), &anyway);
        let none = Err("has no label topology.kubernetes.io/zone to spread by");
        check(spread(ZONE, "DoNotSchedule", "node-1"), &nodes(2), &[none]);
        let mut free = spread(HOSTNAME, "DoNotSchedule", "node-1");
        free["nodeSelector"] = json!({});
        check(free, &nodes(2), &[Ok("node-1"), Ok("node-2"), Ok("node-1"), Ok("node-2")]);
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
