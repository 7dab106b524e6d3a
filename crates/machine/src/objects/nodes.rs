//! The machine's nodes: their objects, and what of them a user decides.
//!
//! How many nodes there are, their addresses and their state is the machine's. Labels, annotations,
//! taints, and whether a node takes pods is the user's: by a Node manifest, or by kubectl's label,
//! taint and cordon.

use ambit_words::host_architecture;
use ambit_words::labels::{
    ARCHITECTURE, BETA_ARCHITECTURE, BETA_OS, HOSTNAME, JOINED, OS, REGION, UNSCHEDULABLE, ZONE,
};
use serde_json::{Map, Value, json};

use super::admit::{Admission, ApplyError};
use super::store::Draft;
use super::{Kind, ObjectRef};
use crate::addresses::NodeNetwork;
use crate::node_labels::{FIXED, NodeLabels};

/// Fields of a Node's spec that a user decides.
const OWN: [&str; 2] = ["taints", "unschedulable"];

/// The Node object of one of the machine's nodes.
pub(crate) fn node_object(network: NodeNetwork, given: &NodeLabels) -> (ObjectRef, Value) {
    let name = network.name();
    let [v4, v6] = network.fabric().both();
    let value = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels(&name, given)},
        "spec": {"podCIDR": network.pod_cidrs()[0], "podCIDRs": network.pod_cidrs()},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": v4},
                {"type": "InternalIP", "address": v6},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    (ObjectRef::new(Kind::Node, None, &name), value)
}

/// The Node object of another machine that joined. The taint keeps pods away that do not ask for
/// it: its images are its own.
pub(crate) fn joined_node_object(network: NodeNetwork) -> (ObjectRef, Value) {
    let given = NodeLabels::default();
    let (object, mut value) = node_object(network, &given);
    value["metadata"]["labels"] = Value::Object(joined_labels(labels(&network.name(), &given)));
    value["spec"]["taints"] = json!([{"key": JOINED, "effect": "NoSchedule"}]);
    value["status"]["conditions"] = json!([ready(Some("it has not connected yet"))]);
    (object, value)
}

/// Whether a Node is another machine's.
pub(super) fn is_joined(node: &Value) -> bool {
    node["metadata"]["labels"].get(JOINED).is_some()
}

/// The condition of a joined node whose link works, or does not for this reason.
pub(crate) fn ready(why_not: Option<&str>) -> Value {
    match why_not {
        None => json!({"type": "Ready", "status": "True"}),
        Some(message) => json!({
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": message,
        }),
    }
}

/// The labels that a node has whatever a manifest says.
fn labels(name: &str, given: &NodeLabels) -> Map<String, Value> {
    let own = [
        (HOSTNAME, name.to_owned()),
        (OS, "linux".to_owned()),
        (BETA_OS, "linux".to_owned()),
        (ARCHITECTURE, host_architecture().to_owned()),
        (BETA_ARCHITECTURE, host_architecture().to_owned()),
        (REGION, "local".to_owned()),
        (ZONE, name.replace("node", "zone")),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), json!(value)));
    own.chain(given.of(name).map(|(key, value)| (key.clone(), json!(value)))).collect()
}

/// Those of another computer, whose processor may be another.
fn joined_labels(mut labels: Map<String, Value>) -> Map<String, Value> {
    labels.insert(JOINED.to_owned(), json!(""));
    labels.retain(|key, _| ![ARCHITECTURE, BETA_ARCHITECTURE].contains(&key.as_str()));
    labels
}

impl Draft<'_> {
    /// Takes a user's part of a Node over, and keeps the machine's.
    pub(super) fn admit_node(
        &self,
        object: &ObjectRef,
        value: &mut Value,
        admission: &Admission,
        now: &str,
    ) -> Result<(), ApplyError> {
        complete(object, value, self.object(object), admission, now)
    }
}

fn complete(
    object: &ObjectRef,
    value: &mut Value,
    old: Option<&Value>,
    admission: &Admission,
    now: &str,
) -> Result<(), ApplyError> {
    let Some(old) = old else { return Err(ApplyError::NoNode { object: object.clone() }) };
    let mut merged = labels(&object.name, &admission.node_labels);
    if is_joined(old) {
        merged = joined_labels(merged);
    }
    let asked = value.pointer("/metadata/labels").and_then(Value::as_object);
    for (key, asked) in asked.into_iter().flatten() {
        if FIXED.contains(&key.as_str()) && merged.get(key) != Some(asked) {
            return Err(ApplyError::Refused {
                object: Box::new(object.clone()),
                field: format!("metadata.labels.{key}"),
                what: "it says what the node is, and cannot be another",
                remedy: "leave the label out",
            });
        }
        merged.insert(key.clone(), asked.clone());
    }
    value["metadata"]["labels"] = Value::Object(merged);
    value["spec"] = spec(object, value.get("spec"), old, now)?;
    value["status"] = old["status"].clone();
    Ok(())
}

fn spec(
    object: &ObjectRef,
    asked: Option<&Value>,
    old: &Value,
    now: &str,
) -> Result<Value, ApplyError> {
    let old = &old["spec"];
    let mut spec = old.clone();
    if let Some(spec) = spec.as_object_mut() {
        OWN.iter().for_each(|field| drop(spec.remove(*field)));
    }
    let is_other = |(field, value): &(&String, &Value)| {
        !OWN.contains(&field.as_str()) && spec.get(field.as_str()) != Some(value)
    };
    if asked.and_then(Value::as_object).is_some_and(|asked| asked.iter().any(|it| is_other(&it))) {
        let field = "spec of a Node, but for taints and unschedulable,";
        return Err(ApplyError::Immutable { object: object.clone(), field });
    }
    let list = |spec: Option<&Value>| -> Vec<Value> {
        let taints = spec.and_then(|spec| spec["taints"].as_array());
        taints.into_iter().flatten().cloned().collect()
    };
    let is_closed = asked.is_some_and(|asked| asked["unschedulable"] == true);
    let mut taints = list(asked);
    // As in Kubernetes it follows the field.
    taints.retain(|taint| taint["key"] != UNSCHEDULABLE || taint["effect"] != "NoSchedule");
    if is_closed {
        spec["unschedulable"] = json!(true);
        taints.push(json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"}));
    }
    let before = list(Some(old));
    taints.iter_mut().for_each(|taint| note_time(taint, &before, now));
    if !taints.is_empty() {
        spec["taints"] = json!(taints);
    }
    Ok(spec)
}

/// Notes since when a taint is there that drives pods out: from then on their time runs.
fn note_time(taint: &mut Value, before: &[Value], now: &str) {
    if taint["effect"] != "NoExecute" || !taint["timeAdded"].is_null() {
        return;
    }
    let same = |it: &&Value| ["key", "value", "effect"].iter().all(|at| it[at] == taint[at]);
    let since = before.iter().find(same).map(|it| it["timeAdded"].clone());
    taint["timeAdded"] = since.unwrap_or_else(|| json!(now));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageMap;
    use crate::objects::Limited;

    const BEFORE: &str = "2026-01-31T12:00:00Z";
    const NOW: &str = "2026-01-31T12:00:05Z";

    fn admission() -> Admission {
        let node_labels = NodeLabels::all(&["disk=ssd".to_owned()], 2).expect("a label");
        let limited = Limited::default();
        Admission { images: ImageMap::default(), rootless: false, node_labels, limited }
    }

    fn admitted(mut value: Value, old: &Value) -> Result<Value, ApplyError> {
        let object = ObjectRef::new(Kind::Node, None, "node-1");
        complete(&object, &mut value, Some(old), &admission(), NOW)?;
        Ok(value)
    }

    fn node() -> Value {
        node_object(NodeNetwork::new(1), &admission().node_labels).1
    }

    #[test]
    fn labels_are_added_to_those_of_the_machine() {
        let asked = json!({"metadata": {"labels": {"disk": "tape", "a": "b", ZONE: "here"}}});
        let labels = admitted(asked, &node()).expect("it is taken")["metadata"]["labels"].clone();
        let expected = json!({
            "disk": "tape", "a": "b", ZONE: "here", HOSTNAME: "node-1", OS: "linux",
            REGION: "local", BETA_OS: "linux", ARCHITECTURE: host_architecture(),
            BETA_ARCHITECTURE: host_architecture(),
        });
        assert_eq!(labels, expected);
        let back = admitted(json!({"metadata": {}}), &node()).expect("it is taken");
        assert_eq!(back["metadata"]["labels"]["disk"], "ssd", "the command's comes back");
        for label in FIXED {
            let other = admitted(json!({"metadata": {"labels": {label: "x"}}}), &node());
            let refused = other.expect_err("it is another node").to_string();
            assert!(refused.contains(&format!("metadata.labels.{label}")), "{refused}");
        }
    }

    #[test]
    fn a_node_that_joined_says_so_and_its_taint_is_the_users() {
        let joined = joined_node_object(NodeNetwork::new(3)).1;
        assert_eq!(joined["spec"]["taints"][0]["key"], JOINED);
        assert!(joined["metadata"]["labels"].get(ARCHITECTURE).is_none(), "nobody knows it here");
        assert_eq!(joined["status"]["conditions"][0]["status"], "Unknown");
        assert!(is_joined(&joined) && !is_joined(&node()));
        let object = ObjectRef::new(Kind::Node, None, "node-3");
        let mut open = json!({"metadata": {}, "spec": {"taints": []}});
        complete(&object, &mut open, Some(&joined), &admission(), NOW).expect("it is taken");
        assert!(open["spec"].get("taints").is_none() && is_joined(&open), "{open}");
        let mut own = json!({"metadata": {"labels": {JOINED: ""}}});
        let object = ObjectRef::new(Kind::Node, None, "node-1");
        let refused = complete(&object, &mut own, Some(&node()), &admission(), NOW);
        assert!(refused.is_err(), "no own node can be deleted by a label");
        assert_eq!(ready(None)["status"], "True");
    }

    #[test]
    fn what_is_the_machines_stays() {
        let node = node();
        let kept = admitted(json!({"metadata": {}, "status": {"x": 1}}), &node).expect("taken");
        assert_eq!((&kept["spec"], &kept["status"]), (&node["spec"], &node["status"]));
        assert!(admitted(node.clone(), &node).is_ok(), "what is read can be written");
        let other = json!({"metadata": {}, "spec": {"podCIDR": "10.0.0.0/8"}});
        assert!(matches!(admitted(other, &node), Err(ApplyError::Immutable { .. })));
        let object = ObjectRef::new(Kind::Node, None, "other");
        let refused = complete(&object, &mut json!({}), None, &admission(), NOW);
        assert!(refused.expect_err("there is none").to_string().contains("ambit up --nodes"));
    }

    #[test]
    fn a_closed_node_has_the_taint_of_it() {
        let mine = json!({"key": "a", "value": "b", "effect": "NoSchedule"});
        let closed = json!({"metadata": {}, "spec": {"unschedulable": true, "taints": [mine]}});
        let closed = admitted(closed, &node()).expect("it is taken");
        let taint = json!({"key": UNSCHEDULABLE, "effect": "NoSchedule"});
        assert_eq!(closed["spec"]["taints"], json!([mine, taint]));
        let mut open = closed.clone();
        open["spec"]["unschedulable"] = json!(false);
        let open = admitted(open, &closed).expect("it is taken");
        assert_eq!(open["spec"]["taints"], json!([mine]));
        assert!(open["spec"].get("unschedulable").is_none());
    }

    #[test]
    fn it_is_known_since_when_a_taint_drives_pods_out() {
        let taint = json!({"key": "a", "effect": "NoExecute"});
        let asked = json!({"metadata": {}, "spec": {"taints": [taint]}});
        let mut old = admitted(asked.clone(), &node()).expect("it is taken");
        assert_eq!(old["spec"]["taints"][0]["timeAdded"], NOW);
        old["spec"]["taints"][0]["timeAdded"] = json!(BEFORE);
        let again = admitted(asked, &old).expect("it is taken");
        assert_eq!(again["spec"]["taints"][0]["timeAdded"], BEFORE, "it was there before");
    }
}
