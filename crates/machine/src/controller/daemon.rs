//! The pods of a DaemonSet: one on each node that takes it, replaced a few at a time.
//!
//! Each pod names its node, so that no scheduler chooses one. A node gets its next pod when the
//! last one is gone from it. One that has been closed to new pods keeps the pod that it has.

use k8s_openapi::api::apps::v1::DaemonSet;
use serde_json::{Value, json};

use super::decode;
use super::owned::{Action, OwnedPod, Owner, random_name};
use super::rollout::share;
use super::schedule::{DaemonNodes, NodeView, of_every_daemon};
use crate::objects::ObjectRef;

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    /// The nodes that get a pod.
    create: Vec<String>,
    retire: Vec<ObjectRef>,
}

/// What to do now for a DaemonSet with pods on these of `all` nodes that its pods may be on.
pub(super) fn act(value: &Value, owner: &Owner<'_>, pods: &[OwnedPod], all: &[NodeView]) -> Action {
    let (_, any) = pod(owner);
    let nodes = DaemonNodes::of(&decode(&any), all);
    let step = step(&decode(value), pods, &nodes);
    let create = step.create.iter().map(|node| {
        let (object, mut pod) = pod(owner);
        pod["spec"]["nodeName"] = json!(node);
        (object, pod)
    });
    let create = create.collect();
    let status = status(value, pods, &nodes.wanted);
    Action { create, retire: step.retire, status, ..Action::default() }
}

/// A new pod, which tolerates what befalls nodes.
fn pod(owner: &Owner<'_>) -> (ObjectRef, Value) {
    let (object, mut pod) = owner.pod(&random_name(&owner.object.name));
    let spec = &mut pod["spec"];
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for toleration in of_every_daemon(spec["hostNetwork"] == true) {
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    spec["tolerations"] = json!(tolerations);
    (object, pod)
}

fn step(set: &DaemonSet, pods: &[OwnedPod], nodes: &DaemonNodes) -> Step {
    let mut step = Step::default();
    let live = || pods.iter().filter(|pod| !pod.terminating);
    let astray = live().filter(|pod| !nodes.keeping.contains(&pod.node) || pod.has_ended());
    let DaemonNodes { wanted, keeping } = nodes;
    step.retire.extend(astray.map(|pod| pod.object.clone()));
    let (mut unavailable, mut old) = (0, Vec::new());
    let has_pod = |node: &String| pods.iter().any(|pod| pod.node == *node);
    // As in Kubernetes, the pod of a node that was closed since changes too: it ends, and the node
    // gets its next one when it is open again.
    let closed = keeping.iter().filter(|node| !wanted.contains(node) && has_pod(node));
    for node in wanted.iter().chain(closed) {
        if !has_pod(node) {
            step.create.push(node.clone());
        }
        let mut here: Vec<&OwnedPod> =
            live().filter(|pod| pod.node == *node && !pod.has_ended()).collect();
        // One stays: the present template before an earlier one, ready before not.
        here.sort_by_key(|pod| (!pod.current, !pod.ready, pod.created.clone()));
        let Some((kept, surplus)) = here.split_first() else {
            unavailable += 1;
            continue;
        };
        step.retire.extend(surplus.iter().map(|pod| pod.object.clone()));
        unavailable += u32::from(!kept.ready);
        if !kept.current {
            old.push(*kept);
        }
    }
    if let Some(most) = unavailable_max(set, wanted.len()) {
        let idle = old.iter().filter(|pod| !pod.ready);
        let spare = most.saturating_sub(unavailable) as usize;
        let ready = old.iter().filter(|pod| pod.ready).take(spare);
        step.retire.extend(idle.chain(ready).map(|pod| pod.object.clone()));
    }
    step
}

/// How many nodes may be without a ready pod while pods change; none if they change when they are
/// deleted.
fn unavailable_max(set: &DaemonSet, nodes: usize) -> Option<u32> {
    let update = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if update.is_some_and(|update| update.type_.as_deref() == Some("OnDelete")) {
        return None;
    }
    let rolling = update.and_then(|update| update.rolling_update.as_ref());
    let asked = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    // With none nothing could ever move.
    Some(asked.map_or(1, |asked| share(Some(asked), nodes, true).max(1)))
}

fn status(value: &Value, pods: &[OwnedPod], nodes: &[String]) -> Value {
    let live = || pods.iter().filter(|pod| !pod.terminating);
    let here = || live().filter(|pod| nodes.contains(&pod.node));
    let ready = here().filter(|pod| pod.ready).count();
    json!({
        "observedGeneration": value.pointer("/metadata/generation"),
        "desiredNumberScheduled": nodes.len(),
        "currentNumberScheduled": here().count(),
        "updatedNumberScheduled": here().filter(|pod| pod.current).count(),
        "numberMisscheduled": live().count() - here().count(),
        "numberReady": ready,
        "numberAvailable": ready,
        "numberUnavailable": nodes.len().saturating_sub(ready),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::owned::tests::owned;
    use crate::registry::Phase;

    /// Pods on nodes 1, 2, ..., written as letters: `c` of the present template, `o` of an earlier
    /// one, capital when ready, `x` terminating, `f` failed, `-` not there.
    fn pods(letters: &str) -> Vec<OwnedPod> {
        let pod = |(index, letter): (usize, char)| OwnedPod {
            current: letter != 'o' && letter != 'O',
            ready: letter.is_uppercase(),
            terminating: letter == 'x',
            phase: if letter == 'f' { Phase::Failed } else { Phase::Running },
            node: format!("node-{}", index + 1),
            ..owned(&format!("{letter}{}", index + 1))
        };
        letters.chars().enumerate().filter(|(_, letter)| *letter != '-').map(pod).collect()
    }

    fn check(update: Value, have: &[OwnedPod], create: &[&str], retire: &[&str]) {
        check_on(&["node-1", "node-2", "node-3"], update, have, create, retire);
    }

    /// With pods on these nodes, and kept on node-1 to node-3.
    fn check_on(
        wanted: &[&str],
        update: Value,
        have: &[OwnedPod],
        create: &[&str],
        retire: &[&str],
    ) {
        let set = json!({"spec": {"selector": {}, "template": {}, "updateStrategy": update}});
        let keeping = ["node-1", "node-2", "node-3"].map(str::to_owned).to_vec();
        let wanted = wanted.iter().map(|it| (*it).to_owned()).collect();
        let nodes = DaemonNodes { wanted, keeping };
        let step = step(&decode(&set), have, &nodes);
        let retired: Vec<&str> = step.retire.iter().map(|it| it.name.as_str()).collect();
        let created: Vec<&str> = step.create.iter().map(String::as_str).collect();
        assert_eq!((created.as_slice(), retired.as_slice()), (create, retire));
    }

    #[test]
    fn each_node_has_one_pod() {
        let all = ["node-1", "node-2", "node-3"];
        check(json!({}), &[], &all, &[]);
        check(json!({}), &pods("C-C"), &["node-2"], &[]);
        check(json!({}), &pods("CxC"), &[], &[]);
        check(json!({}), &pods("CfC"), &[], &["f2"]);
        check(json!({}), &pods("CCCC"), &[], &["C4"]);
        let twice: Vec<OwnedPod> = pods("CCC").into_iter().chain(pods("c")).collect();
        check(json!({}), &twice, &[], &["c1"]);
    }

    #[test]
    fn a_node_that_is_closed_keeps_its_pod() {
        check_on(&["node-2", "node-3"], json!({}), &pods("CCC"), &[], &[]);
        check_on(&["node-2", "node-3"], json!({}), &pods("-CC"), &[], &[]);
        check_on(&["node-2", "node-3"], json!({}), &pods("fCC"), &[], &["f1"]);
    }

    #[test]
    fn the_earlier_pod_of_a_node_that_is_closed_ends_in_its_turn() {
        let open = ["node-2", "node-3"];
        check_on(&open, json!({}), &pods("OCC"), &[], &["O1"]);
        check_on(&open, json!({}), &pods("OOO"), &[], &["O2"]);
        check_on(&open, json!({}), &pods("OcC"), &[], &[]);
        check_on(&open, json!({}), &pods("xOC"), &[], &[]);
        check_on(&open, json!({"type": "OnDelete"}), &pods("OCC"), &[], &[]);
    }

    #[test]
    fn pods_change_a_few_at_a_time() {
        check(json!({}), &pods("OOO"), &[], &["O1"]);
        check(json!({}), &pods("cOO"), &[], &[]);
        check(json!({}), &pods("-OO"), &["node-1"], &[]);
        check(json!({}), &pods("oOO"), &[], &["o1"]);
        check(
            json!({"rollingUpdate": {"maxUnavailable": "60%"}}),
            &pods("OOO"),
            &[],
            &["O1", "O2"],
        );
        check(json!({"rollingUpdate": {"maxUnavailable": 0}}), &pods("OOO"), &[], &["O1"]);
        check(json!({"type": "OnDelete"}), &pods("OOO"), &[], &[]);
    }

    #[test]
    fn the_status_counts_nodes() {
        let value = json!({"metadata": {"generation": 2}});
        let nodes = ["node-1", "node-2"].map(str::to_owned);
        assert_eq!(
            status(&value, &pods("COC"), &nodes),
            json!({
                "observedGeneration": 2, "desiredNumberScheduled": 2, "currentNumberScheduled": 2,
                "updatedNumberScheduled": 1, "numberMisscheduled": 1, "numberReady": 2,
                "numberAvailable": 2, "numberUnavailable": 0,
            })
        );
    }
}
