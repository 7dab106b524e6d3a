//! Taints of nodes, and which pods tolerate them: Kubernetes' rules.

use ambit_words::labels::UNSCHEDULABLE;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodSpec, Taint, Toleration};
use serde_json::{Value, json};

use super::views::NodeView;

/// The effect of a taint that drives pods out, too.
pub(super) const NO_EXECUTE: &str = "NoExecute";
const NO_SCHEDULE: &str = "NoSchedule";
const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
/// The effects that keep pods away.
pub(super) const BARRING: [&str; 2] = [NO_SCHEDULE, NO_EXECUTE];

/// The taints that each pod of a DaemonSet tolerates.
const OF_DAEMONS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (UNSCHEDULABLE, NO_SCHEDULE),
];
/// And those in the network of their node.
const OF_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE);

/// What the pods of a DaemonSet tolerate beside what their template says.
pub(crate) fn of_every_daemon(in_host_network: bool) -> Vec<Value> {
    let all = OF_DAEMONS.into_iter().chain(in_host_network.then_some(OF_HOST_NETWORK));
    let toleration = |(key, effect)| json!({"key": key, "operator": "Exists", "effect": effect});
    all.map(toleration).collect()
}

/// The first taint with one of these effects that a pod does not tolerate.
pub(super) fn untolerated<'n>(
    spec: &PodSpec,
    node: &'n NodeView,
    effects: &[&str],
) -> Option<&'n Taint> {
    let mut taints = node.taints.iter().filter(|it| effects.contains(&it.effect.as_str()));
    taints.find(|taint| tolerating(spec, taint).is_none())
}

/// How many taints of a node ask a pod to go elsewhere if it can.
pub(super) fn avoided(spec: &PodSpec, node: &NodeView) -> usize {
    let taints = node.taints.iter().filter(|it| it.effect == PREFER_NO_SCHEDULE);
    taints.filter(|taint| tolerating(spec, taint).is_none()).count()
}

/// Why a node with this taint does not take a pod.
pub(super) fn reason(taint: &Taint) -> String {
    if taint.key == UNSCHEDULABLE {
        return "node(s) were unschedulable".to_owned();
    }
    let value = taint.value.as_deref().unwrap_or_default();
    format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)
}

/// Whether a node has a taint that drives pods out.
pub(crate) fn drives_out(node: &NodeView) -> bool {
    node.taints.iter().any(|it| it.effect == NO_EXECUTE)
}

/// When a pod has to leave a node that it has been on since `since`; `None` if never.
pub(crate) fn leaves_at(pod: &Pod, node: &NodeView, since: Timestamp) -> Option<Timestamp> {
    let spec = pod.spec.as_ref()?;
    let taints = node.taints.iter().filter(|it| it.effect == NO_EXECUTE);
    let end = |taint: &Taint| {
        let Some(toleration) = tolerating(spec, taint) else { return Some(Timestamp::MIN) };
        let seconds = SignedDuration::from_secs(toleration.toleration_seconds?.max(0));
        let added = taint.time_added.as_ref().map_or(since, |it| it.0);
        Some(since.max(added).checked_add(seconds).unwrap_or(Timestamp::MAX))
    };
    taints.filter_map(end).min()
}

/// The first toleration of a pod that is for a taint.
fn tolerating<'p>(spec: &'p PodSpec, taint: &Taint) -> Option<&'p Toleration> {
    spec.tolerations.iter().flatten().find(|it| tolerates(it, taint))
}

/// An empty effect means every effect, and an empty key with `Exists` every key.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &'_ Option<String>| field.clone().unwrap_or_default();
    let is = |own: &str, other: &str| own.is_empty() || own == other;
    is(&text(&toleration.effect), &taint.effect)
        && is(&text(&toleration.key), &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => text(&toleration.value) == text(&taint.value),
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::super::super::decode;
    use super::*;

    fn spec(tolerations: Value) -> PodSpec {
        decode(&json!({"containers": [], "tolerations": tolerations}))
    }

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        decode(&json!({"key": key, "value": value, "effect": effect,
            "timeAdded": "2026-01-31T12:00:00Z"}))
    }

    #[test]
    fn tolerations_are_those_of_kubernetes() {
        let check = |toleration: Value, expected: [bool; 4]| {
            let spec = spec(json!([toleration]));
            let found = [("a", "b"), ("a", ""), ("c", "b"), ("a", "d")]
                .map(|(key, value)| tolerating(&spec, &taint(key, value, NO_SCHEDULE)).is_some());
            assert_eq!(found, expected, "{spec:?}");
        };
        check(json!({"key": "a", "value": "b"}), [true, false, false, false]);
        check(json!({"key": "a", "operator": "Equal"}), [false, true, false, false]);
        check(json!({"key": "a", "operator": "Exists"}), [true, true, false, true]);
        check(json!({"operator": "Exists"}), [true; 4]);
        check(json!({"operator": "Exists", "effect": NO_SCHEDULE}), [true; 4]);
        check(json!({"operator": "Exists", "effect": NO_EXECUTE}), [false; 4]);
        check(json!({"key": "a", "operator": "Near", "value": "b"}), [false; 4]);
    }

    #[test]
    fn a_pod_leaves_when_its_time_is_over() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let node = |taints: Vec<Taint>| NodeView {
            name: "node-1".to_owned(),
            labels: Default::default(),
            taints,
        };
        let check = |tolerations: Value, taints: Vec<Taint>, expected: Option<Timestamp>| {
            let pod = Pod { spec: Some(spec(tolerations)), ..Pod::default() };
            let since = at("2026-01-31T11:00:00Z");
            assert_eq!(leaves_at(&pod, &node(taints), since), expected);
        };
        let one = || vec![taint("a", "b", NO_EXECUTE)];
        check(json!([]), vec![taint("a", "b", NO_SCHEDULE)], None);
        check(json!([]), one(), Some(Timestamp::MIN));
        check(json!([{"key": "a", "operator": "Exists"}]), one(), None);
        let for_a_while = |seconds: i64| {
            json!({"key": "a", "operator": "Exists", "effect": NO_EXECUTE,
                "tolerationSeconds": seconds})
        };
        check(json!([for_a_while(60)]), one(), Some(at("2026-01-31T12:01:00Z")));
        check(json!([for_a_while(-5)]), one(), Some(at("2026-01-31T12:00:00Z")));
        check(json!([for_a_while(i64::MAX)]), one(), Some(Timestamp::MAX));
        let two = vec![taint("a", "b", NO_EXECUTE), taint("c", "", NO_EXECUTE)];
        check(json!([for_a_while(60)]), two, Some(Timestamp::MIN));
    }

    #[test]
    fn daemons_tolerate_what_befalls_nodes() {
        let spec = spec(json!(of_every_daemon(false)));
        assert!(tolerating(&spec, &taint(UNSCHEDULABLE, "", NO_SCHEDULE)).is_some());
        assert!(tolerating(&spec, &taint("a", "", NO_SCHEDULE)).is_none());
        assert_eq!(of_every_daemon(true).len(), of_every_daemon(false).len() + 1);
    }
}
