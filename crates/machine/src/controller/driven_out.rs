//! Pods that have to leave their node: it has a taint `NoExecute` that they do not tolerate, or do
//! not tolerate any longer.
//!
//! As in Kubernetes no budget for disruptions is asked. A pod that has ended stays: its log is of
//! use, and it uses nothing of its node.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::schedule::{NodeView, drives_out, leaves_at};
use super::{decode, text};
use crate::objects::{ObjectRef, Store};
use crate::registry::{Mirror, Phase};

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
        Some((object, value, at))
    })
}

/// Since when a pod is on its node, or is there at all.
fn since(pod: &Value) -> Option<Timestamp> {
    let time = |pointer| text(pod, pointer).parse().ok();
    let scheduled = text(pod, "/status/conditions/0/status") == "True";
    let placed = time("/status/conditions/0/lastTransitionTime").filter(|_| scheduled);
    placed.or_else(|| time("/metadata/creationTimestamp"))
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
        let mut pod = |name: &str, tolerations: Value| {
            let object = ObjectRef::new(Kind::Pod, Some("a"), name);
            let placed =
                json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(5)});
            let value = json!({
                "metadata": {"name": name, "namespace": "a"},
                "spec": {"nodeName": "node-1", "containers": [], "tolerations": tolerations},
                "status": {"conditions": [placed]},
            });
            store.write(object, value, &at(0)).expect("it is stored");
        };
        pod("plain", json!([]));
        pod("stays", json!([{"operator": "Exists"}]));
        pod(
            "waits",
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 10}]),
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
        assert_eq!(names(&tainted, 6), ("plain".to_owned(), Some(at(15))));
        assert_eq!(names(&tainted, 15), ("plain waits".to_owned(), None));
        let barred = node(json!([{"key": "k", "effect": "NoSchedule"}]));
        assert_eq!(names(&barred, 6), (String::new(), None));
        assert_eq!(names(&node(json!([])), 6), (String::new(), None));
    }
}
