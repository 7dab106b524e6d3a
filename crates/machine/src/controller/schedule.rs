//! Which node a pod goes to: a pure function of the pod, the nodes and the pods that are placed.
//!
//! Nodes that the pod's rules exclude are ruled out, each with a reason in the words of Kubernetes'
//! scheduler. Among the others the one with the fewest taints that say `PreferNoSchedule` to the
//! pod wins, then the one that the pod prefers most, then the one with the fewest pods of the same
//! owner, then the one with the fewest pods, then the first. A rule that cannot be judged excludes
//! every node.

mod nodes;
mod taints;
mod topology;
mod views;

use std::collections::BTreeMap;
use std::fmt;

use ambit_words::labels::JOINED;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use self::taints::{BARRING, NO_EXECUTE};
pub(crate) use self::taints::{drives_out, leaves_at, of_every_daemon};
use self::topology::Around;
use self::views::owner;
pub(crate) use self::views::{NodeView, Placed};
use crate::addresses::{POD_FIRST, POD_LAST};

/// Most pods on one node: its pod network has no more addresses.
const PODS_MAX: usize = (POD_LAST - POD_FIRST) as usize + 1;

/// How good a node is for a pod, the least best: taints that ask it to go elsewhere, how little it
/// is preferred, pods of the same owner there, and all pods there.
type Rank = (usize, i64, usize, usize);

/// Why a pod is on no node: each reason, and of how many nodes it is true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unschedulable(BTreeMap<String, usize>);

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes are available", self.0.values().sum::<usize>())?;
        for (index, (reason, nodes)) in self.0.iter().enumerate() {
            write!(f, "{} {nodes} {reason}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// The nodes of a DaemonSet, as far as its pods' rules for nodes go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DaemonNodes {
    /// Those that have a pod.
    pub(crate) wanted: Vec<String>,
    /// Those that keep a pod that they have: the wanted ones, and those that have been closed to
    /// new pods since.
    pub(crate) keeping: Vec<String>,
}

impl DaemonNodes {
    /// The nodes for such a pod.
    pub(crate) fn of(pod: &Pod, nodes: &[NodeView]) -> Self {
        let names = |effects: &[&str]| -> Vec<String> {
            let takes = |node: &&NodeView| admits_node(pod, node, effects).is_ok();
            nodes.iter().filter(takes).map(|node| node.name.clone()).collect()
        };
        Self { wanted: names(&BARRING), keeping: names(&[NO_EXECUTE]) }
    }
}

/// Chooses a node.
pub(crate) fn place(
    pod: &Pod,
    nodes: &[NodeView],
    placed: &[Placed],
) -> Result<String, Unschedulable> {
    let around = Around { nodes, placed };
    let mut unschedulable = Unschedulable::default();
    let mut best: Option<(Rank, &NodeView)> = None;
    for node in nodes {
        if let Err(reason) = admits(pod, node, around) {
            *unschedulable.0.entry(reason).or_default() += 1;
            continue;
        }
        let here = || placed.iter().filter(|other| other.node == node.name);
        let owner = owner(pod);
        let siblings = here().filter(|other| !owner.is_empty() && other.owner == owner).count();
        let avoided = pod.spec.as_ref().map_or(0, |spec| taints::avoided(spec, node));
        let rank = (avoided, -preference(pod, node, around), siblings, here().count());
        if best.is_none_or(|(least, _)| rank < least) {
            best = Some((rank, node));
        }
    }
    best.map(|(_, node)| node.name.clone()).ok_or(unschedulable)
}

fn preference(pod: &Pod, node: &NodeView, around: Around<'_>) -> i64 {
    let of_node = pod.spec.as_ref().map_or(0, |spec| nodes::preference(spec, node));
    of_node + topology::preference(pod, node, around)
}

/// Whether a pod may be on a node, whatever runs there, if taints with these effects count.
fn admits_node(pod: &Pod, node: &NodeView, effects: &[&str]) -> Result<(), String> {
    let Some(spec) = &pod.spec else {
        return Err("node(s) cannot run a pod without spec".to_owned());
    };
    if let Some(named) = &spec.node_name
        && *named != node.name
    {
        return Err(format!("node(s) didn't match the requested node name {named}"));
    }
    if let Some(taint) = taints::untolerated(spec, node, effects) {
        return Err(taints::reason(taint));
    }
    if node.labels.contains_key(JOINED) && has_claims(spec) {
        return Err("node(s) are another computer, without the volumes of claims".to_owned());
    }
    nodes::admits(spec, node)
}

fn has_claims(spec: &PodSpec) -> bool {
    let mut volumes = spec.volumes.iter().flatten();
    volumes.any(|it| it.persistent_volume_claim.is_some() || it.ephemeral.is_some())
}

fn admits(pod: &Pod, node: &NodeView, around: Around<'_>) -> Result<(), String> {
    // As in Kubernetes, who names a node passes by what keeps the scheduler away from it.
    let is_named = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    admits_node(pod, node, if is_named { &[NO_EXECUTE] } else { &BARRING })?;
    if around.placed.iter().filter(|other| other.node == node.name).count() >= PODS_MAX {
        return Err(format!("node(s) have too many pods, {PODS_MAX} each"));
    }
    topology::admits(pod, node, around)
}

#[cfg(test)]
mod tests {
    use ambit_words::labels::{HOSTNAME, UNSCHEDULABLE, ZONE};
    use k8s_openapi::api::core::v1::Taint;
    use serde_json::{Value, json};

    use super::*;

    fn nodes(count: usize) -> Vec<NodeView> {
        let node = |number| {
            let name = format!("node-{number}");
            NodeView {
                labels: [(HOSTNAME.to_owned(), name.clone())].into(),
                taints: Vec::new(),
                name,
            }
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
    fn claims_have_no_volumes_on_another_computer() {
        let mut nodes = nodes(2);
        nodes[1].labels.insert(JOINED.to_owned(), String::new());
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let on = |node: &str| json!({"nodeName": node, "volumes": volumes, "containers": []});
        check(on("node-1"), &nodes, &[Ok("node-1")]);
        check(on("node-2"), &nodes, &[Err("1 node(s) are another computer, without the volumes")]);
        check(json!({"nodeName": "node-2", "containers": []}), &nodes, &[Ok("node-2")]);
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
            &[Err(
                "0/2 nodes are available: 2 node(s) didn't match the requested node name node-9",
            )],
        );
        let selector = json!({"nodeSelector": {HOSTNAME: "node-3"}, "containers": []});
        check(selector.clone(), &nodes(3), &[Ok("node-3")]);
        let why = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector \
                   (no label kubernetes.io/hostname=node-3)";
        check(selector, &nodes(2), &[Err(why)]);
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
        let none = Err("node(s) didn't match Pod's node affinity");
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
        check(near("b"), &nodes(2), &[Err("2 node(s) didn't match pod affinity rules")]);
        let selector = json!([{"topologyKey": HOSTNAME, "labelSelector": {},
            "namespaceSelector": {"matchLabels": {"a": "b"}}}]);
        let spec = affinity("podAffinity", "required", selector);
        check(spec, &nodes(1), &[Err("a machine reads no namespaceSelector")]);
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
        assert!(why.to_string().contains("existing pods anti-affinity rules"), "{why}");
    }

    #[test]
    fn pods_spread_as_evenly_as_they_say() {
        let spread = |key: &str, when: &str, node: &str| {
            json!({"containers": [], "nodeSelector": {HOSTNAME: node},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key,
                "whenUnsatisfiable": when, "nodeAffinityPolicy": "Ignore",
                "labelSelector": {"matchLabels": {"app": "a"}}}]})
        };
        let full = Err("1 node(s) didn't match pod topology spread constraints");
        check(spread(HOSTNAME, "DoNotSchedule", "node-1"), &nodes(2), &[Ok("node-1"), full]);
        let anyway = [Ok("node-1"), Ok("node-1")];
        check(spread(HOSTNAME, "ScheduleAnyway", "node-1"), &nodes(2), &anyway);
        let none = Err("(missing required label topology.kubernetes.io/zone)");
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
            &[Ok("node-1"), Ok("node-2"), Err("2 node(s) didn't match pod anti-affinity rules")],
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

    fn taint(effect: &str) -> Taint {
        Taint {
            key: "key".to_owned(),
            value: Some("value".to_owned()),
            effect: effect.to_owned(),
            time_added: None,
        }
    }

    /// Nodes of which the first has a taint.
    fn tainted(effect: &str, count: usize) -> Vec<NodeView> {
        let mut nodes = nodes(count);
        nodes[0].taints.push(taint(effect));
        nodes
    }

    #[test]
    fn a_tainted_node_takes_who_tolerates_it() {
        let plain = || json!({"containers": []});
        let tolerant = json!({"containers": [], "tolerations": [{"key": "key",
            "operator": "Exists"}]});
        let why = "0/1 nodes are available: 1 node(s) had untolerated taint {key: value}";
        for effect in ["NoSchedule", "NoExecute"] {
            check(plain(), &tainted(effect, 2), &[Ok("node-2"), Ok("node-2")]);
            check(plain(), &tainted(effect, 1), &[Err(why)]);
            check(tolerant.clone(), &tainted(effect, 2), &[Ok("node-1"), Ok("node-2")]);
        }
        let avoided = tainted("PreferNoSchedule", 2);
        check(plain(), &avoided, &[Ok("node-2"), Ok("node-2")]);
        check(plain(), &tainted("PreferNoSchedule", 1), &[Ok("node-1")]);
        check(tolerant, &avoided, &[Ok("node-1"), Ok("node-2")]);
    }

    #[test]
    fn who_names_a_node_is_kept_away_by_no_execute_alone() {
        let named = json!({"nodeName": "node-1", "containers": []});
        check(named.clone(), &tainted("NoSchedule", 2), &[Ok("node-1")]);
        let why = "1 node(s) didn't match the requested node name node-1";
        check(named, &tainted("NoExecute", 2), &[Err(why)]);
    }

    #[test]
    fn a_closed_node_says_so() {
        let mut nodes = nodes(1);
        nodes[0].taints.push(Taint { key: UNSCHEDULABLE.to_owned(), ..taint("NoSchedule") });
        let why = "0/1 nodes are available: 1 node(s) were unschedulable";
        check(json!({"containers": []}), &nodes, &[Err(why)]);
    }

    #[test]
    fn spreading_counts_tainted_nodes_unless_it_honours_taints() {
        let spread = |policy: &str| {
            json!({"containers": [], "topologySpreadConstraints": [{"maxSkew": 1,
                "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule",
                "nodeTaintsPolicy": policy, "labelSelector": {"matchLabels": {"app": "a"}}}]})
        };
        let nodes = tainted("NoSchedule", 2);
        let full = "1 node(s) didn't match pod topology spread constraints";
        check(spread("Ignore"), &nodes, &[Ok("node-2"), Err(full)]);
        check(spread("Honor"), &nodes, &[Ok("node-2"), Ok("node-2")]);
    }

    #[test]
    fn a_daemon_stays_where_no_new_one_comes() {
        let of = |effect: &str, spec: Value| {
            let DaemonNodes { wanted, keeping } = DaemonNodes::of(&pod(spec), &tainted(effect, 2));
            (wanted.join(" "), keeping.join(" "))
        };
        let plain = || json!({"containers": []});
        let both = || "node-1 node-2".to_owned();
        assert_eq!(of("NoSchedule", plain()), ("node-2".to_owned(), both()));
        assert_eq!(of("NoExecute", plain()), ("node-2".to_owned(), "node-2".to_owned()));
        assert_eq!(of("PreferNoSchedule", plain()), (both(), both()));
        let everywhere = json!({"containers": [], "tolerations": [{"operator": "Exists"}]});
        assert_eq!(of("NoExecute", everywhere), (both(), both()));
    }
}
