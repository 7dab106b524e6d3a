//! Pods that have to leave their node: it has a taint `NoExecute` that they do not tolerate, or do
//! not tolerate any longer.
//!
//! As in Kubernetes no budget for disruptions is asked. A pod that has ended stays: its log is of
//! use, and it uses nothing of its node.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::schedule::{NodeView, drives_out, leaves_at};
use super::{decode, text};
use crate::objects::{ObjectRef, Store};
use crate::registry::{Mirror, Phase};

/// How long a pod stays at least.
const STAY_MIN: SignedDuration = SignedDuration::from_secs(1);

/// The pods that have to go now.
pub(super) fn pods(
    store: &Store,
    reported: &Mirror,
    nodes: &[NodeView],
    now: Timestamp,
) -> Vec<ObjectRef> {
    let has_ended = |object: &ObjectRef, pod: &Value| {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let status = reported.status(namespace, &object.name, text(pod, "/metadata/uid"));
        status.is_some_and(|it| matches!(it.phase, Phase::Succeeded | Phase::Failed))
    };
    let leaving = leaving(store, nodes);
    let leaving = leaving.filter(|(object, pod, at)| *at <= now && !has_ended(object, pod));
    leaving.map(|(object, ..)| object.clone()).collect()
}

/// When the next one has to go after now.
pub(super) fn next_time(store: &Store, nodes: &[NodeView], now: Timestamp) -> Option<Timestamp> {
    leaving(store, nodes).map(|(.., at)| at).filter(|at| *at > now).min()
}

/// Pods that have to go, each with its time.
fn leaving<'a>(
    store: &'a Store,
    nodes: &'a [NodeView],
) -> impl Iterator<Item = (&'a ObjectRef, &'a Value, Timestamp)> {
    let is_any = nodes.iter().any(drives_out);
    let pods = store.of_plural("pods").filter(move |_| is_any);
    pods.filter_map(|(object, value)| {
        let node = nodes.iter().find(|it| it.is_called(text(value, "/spec/nodeName")))?;
        let is_there = value.pointer("/metadata/deletionTimestamp").is_none();
        let since = since(value)?;
        let at = leaves_at(&decode::<Pod>(value), node, since).filter(|_| is_there)?;
        // Whoever makes it again would do so without end in one and the same moment.
        Some((object, value, at.max(since.saturating_add(STAY_MIN).ok()?)))
    })
}

/// Since when a pod is on its node, if it is: one that only names a node may have to wait.
fn since(pod: &Value) -> Option<Timestamp> {
    let is_placed = text(pod, "/status/conditions/0/status") == "True";
    text(pod, "/status/conditions/0/lastTransitionTime").parse().ok().filter(|_| is_placed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::layout::Layout;
    use crate::objects::Kind;

    #[test]
    fn pods_go_when_a_taint_drives_them_out() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(root.path());
        let mut store = Store::create(layout.clone()).expect("a store");
        let at = |seconds: u8| format!("2026-01-31T12:00:{seconds:02}Z");
        let mut pod = |name: &str, tolerations: Value, is_placed: &str| {
            let object = ObjectRef::new(Kind::Pod, Some("a"), name);
            let placed =
                json!({"type": "PodScheduled", "status": is_placed, "lastTransitionTime": at(5)});
            let value = json!({
                "metadata": {"name": name, "namespace": "a"},
                "spec": {"nodeName": "node-1", "containers": [], "tolerations": tolerations},
                "status": {"conditions": [placed]},
            });
            store.write(object, value, &at(0)).expect("it is stored");
        };
        pod("plain", json!([]), "True");
        pod("waits-for-its-node", json!([]), "False");
        pod("stays", json!([{"operator": "Exists"}]), "True");
        pod(
            "waits",
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 10}]),
            "True",
        );
        let reported = Mirror::new(&layout);
        let node = |taints: Value| {
            [NodeView::of(&json!({"metadata": {"name": "node-1"}, "spec": {"taints": taints}}))]
        };
        let names = |nodes: &[NodeView], seconds: u8| {
            let now = at(seconds).parse().expect("a time");
            let going = pods(&store, &reported, nodes, now);
            let going: Vec<String> = going.into_iter().map(|it| it.name).collect();
            (going.join(" "), next_time(&store, nodes, now).map(|it| it.to_string()))
        };
        let tainted = node(json!([{"key": "k", "effect": "NoExecute", "timeAdded": at(3)}]));
        assert_eq!(names(&tainted, 5), (String::new(), Some(at(6))));
        assert_eq!(names(&tainted, 6), ("plain".to_owned(), Some(at(15))));
        assert_eq!(names(&tainted, 15), ("plain waits".to_owned(), None));
        let barred = node(json!([{"key": "k", "effect": "NoSchedule"}]));
        assert_eq!(names(&barred, 6), (String::new(), None));
        assert_eq!(names(&node(json!([])), 6), (String::new(), None));
    }
}
