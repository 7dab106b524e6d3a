//! The status of a ListenerSet: whether its Gateway takes it, and how its listeners are.
//!
//! One is accepted while one of its listeners is served. What its Gateway does not take has no
//! listeners to speak of.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conditions::{Condition, Told};
use super::edge::{self, ListenerStatus};
use super::made::Made;
use super::status::{list, written};
use crate::gateway::listeners::{Fault, Judged};
use crate::gateway::sets::ListenerSet;
use crate::gateway::{Gateway, Position};

/// What the status of a ListenerSet depends on besides itself.
#[derive(Debug, Clone, Copy)]
pub struct SetOf<'a> {
    /// The Gateway that it names.
    pub gateway: &'a Gateway,
    /// Where the pods of that are.
    pub position: Position,
    /// The listeners of the Gateway and of all sets that it takes.
    pub listeners: &'a [Judged<'a>],
    /// What became of the Gateway's objects.
    pub made: &'a Made,
}

/// Accepted and Programmed, and the status of each listener.
type Fate<'a> = ([Condition; 2], Vec<ListenerStatus<'a>>);

/// How many sets of these listeners are attached, if their Gateway is accepted.
pub fn attached_sets(listeners: &[Judged<'_>], made: &Made) -> usize {
    let served = listeners.iter().filter(|it| fault(it, made).is_none());
    let sets = served.filter_map(|it| it.set.map(ListenerSet::namespaced_name));
    sets.collect::<BTreeSet<_>>().len()
}

/// The status of a ListenerSet; what it says otherwise is kept.
pub fn set_status(set: &ListenerSet, of: &SetOf<'_>, now: &str) -> Value {
    write(set, fate(set, of), now)
}

/// The status of a ListenerSet whose Gateway does not exist.
pub fn set_without_gateway(set: &ListenerSet, now: &str) -> Value {
    let message = format!("the Gateway `{}` does not exist", set.spec.parent_ref.name);
    write(set, (neither("ParentNotAccepted", &message), Vec::new()), now)
}

fn write(set: &ListenerSet, (own, listeners): Fate<'_>, now: &str) -> Value {
    let told = Told { generation: set.metadata.generation.unwrap_or_default(), now };
    let mut status = set.status.clone().unwrap_or_else(|| json!({}));
    status["conditions"] = told.conditions(list(status.get("conditions")), own);
    status["listeners"] = written(&told, list(status.get("listeners")), listeners);
    status
}

/// Why a listener of a set is of no use.
fn fault<'a>(judged: &'a Judged<'_>, made: &'a Made) -> Option<&'a Fault> {
    edge::not_accepted(judged, made).or_else(|| edge::useless(judged, made))
}

/// Neither accepted nor programmed.
fn neither(reason: &'static str, message: &str) -> [Condition; 2] {
    ["Accepted", "Programmed"].map(|kind| Condition::fails(kind, reason, message))
}

fn fate<'a>(set: &ListenerSet, of: &SetOf<'a>) -> Fate<'a> {
    let SetOf { gateway, position, listeners, made } = *of;
    if position == Position::Waypoint {
        let message = "the Gateway is a waypoint, which takes no ListenerSet";
        return (neither("NotAllowed", message), Vec::new());
    }
    let is_its = |it: &&Judged<'_>| {
        it.set.is_some_and(|other| other.namespaced_name() == set.namespaced_name())
    };
    let own: Vec<&Judged<'_>> = listeners.iter().filter(is_its).collect();
    match own.as_slice() {
        [] if set.spec.listeners.is_empty() => {
            let message = "the ListenerSet has no listener";
            return (neither("ListenersNotValid", message), Vec::new());
        }
        [] => {
            let message = format!(
                "the Gateway does not take ListenerSets of the namespace `{}`; see its \
                 `allowedListeners`",
                set.namespaced_name().0
            );
            return (neither("NotAllowed", &message), Vec::new());
        }
        [_, ..] => {}
    }
    let (of_gateway, _) = edge::conditions(gateway, made);
    let holds = |kind| of_gateway.iter().any(|it| it.kind == kind && it.status);
    let (is_accepted, is_programmed) = (holds("Accepted"), holds("Programmed"));
    let wrong: Vec<&Fault> = own.iter().filter_map(|it| fault(it, made)).collect();
    let why = wrong.iter().map(|it| it.what.as_str()).collect::<Vec<_>>().join("; ");
    let conditions = if !is_accepted {
        neither("ParentNotAccepted", "the Gateway is not accepted")
    } else if wrong.len() == own.len() {
        neither("ListenersNotValid", &format!("no listener is served: {why}"))
    } else {
        [accepted(&wrong, own.len(), &why), programmed(is_programmed)]
    };
    let listeners = own.iter().map(|it| edge::listener(it, made, is_programmed));
    (conditions, listeners.collect())
}

/// It is accepted, though some of its listeners may be wrong.
fn accepted(wrong: &[&Fault], count: usize, why: &str) -> Condition {
    let holds = Condition::holds("Accepted");
    if wrong.is_empty() {
        return holds;
    }
    let message = format!("{} of {count} listeners are not served: {why}", wrong.len());
    Condition { reason: "ListenersNotValid", message, ..holds }
}

fn programmed(is_programmed: bool) -> Condition {
    let kind = "Programmed";
    match is_programmed {
        true => Condition::holds(kind),
        false => Condition::fails(kind, "ParentNotProgrammed", "the Gateway is not programmed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::listeners::judge_all;
    use crate::waypoint::{ListenerMade, status};

    /// A listener as `NAME PROTOCOL PORT HOST`.
    fn listener(written: &str) -> Value {
        let words: Vec<&str> = written.split(' ').collect();
        let port: i32 = words[2].parse().expect("a port");
        let mut listener = json!({"name": words[0], "protocol": words[1], "port": port});
        if let Some(host) = words.get(3) {
            listener["hostname"] = json!(host);
        }
        if words[1] == "HTTPS" {
            listener["tls"] = json!({"certificateRefs": [{"name": "pair"}]});
        }
        listener
    }

    fn gateway(listeners: &[&str]) -> Gateway {
        let listeners: Vec<Value> = listeners.iter().map(|it| listener(it)).collect();
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "in", "namespace": "infra", "generation": 3},
            "spec": {"gatewayClassName": "ambit", "listeners": listeners},
        });
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn set(name: &str, listeners: &[&str]) -> ListenerSet {
        let listeners: Vec<Value> = listeners.iter().map(|it| listener(it)).collect();
        let set = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": name, "namespace": "shop", "generation": 7},
            "spec": {"parentRef": {"name": "in", "namespace": "infra"}, "listeners": listeners},
        });
        serde_json::from_value(set).expect("a ListenerSet")
    }

    fn ready() -> Made {
        Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 1, ..Made::default() }
    }

    /// A condition as `STATUS REASON`.
    fn told(of: &Value, kind: &str) -> String {
        let all = of["conditions"].as_array().expect("conditions");
        let it = all.iter().find(|it| it["type"] == kind).expect("the condition");
        assert_eq!(it["observedGeneration"], 7);
        let text = |key: &str| it[key].as_str().unwrap_or_default();
        format!("{} {}", text("status"), text("reason"))
    }

    /// The two conditions of a set alone at a Gateway that takes it, or does not.
    fn check(gateway: &Gateway, set: &ListenerSet, takes: bool, made: Made, expected: [&str; 2]) {
        let sets = if takes { vec![set] } else { Vec::new() };
        let listeners = judge_all(&gateway.spec, &sets);
        let of = SetOf { gateway, position: Position::Edge, listeners: &listeners, made: &made };
        let status = set_status(set, &of, "now");
        assert_eq!(["Accepted", "Programmed"].map(|kind| told(&status, kind)), expected);
        let attached = attached_sets(&listeners, &made);
        let is_accepted = expected[0].starts_with("True");
        let made = Made { sets: attached, ..made };
        let counted = status_of(gateway, &made)["attachedListenerSets"].as_u64();
        assert_eq!(counted.unwrap_or_default(), u64::from(is_accepted), "{expected:?}");
    }

    fn status_of(gateway: &Gateway, made: &Made) -> Value {
        status(gateway, Position::Edge, made, "now")
    }

    #[test]
    fn a_set_is_accepted_while_one_listener_is_served() {
        let edge = gateway(&["web HTTP 80 a.com"]);
        let one = set("one", &["own HTTP 80 b.com"]);
        let (yes, runs) = ("True Accepted", "True Programmed");
        check(&edge, &one, true, ready(), [yes, runs]);
        let not_allowed = "False NotAllowed";
        check(&edge, &one, false, ready(), [not_allowed, not_allowed]);
        let some = set("some", &["own HTTP 80 b.com", "taken HTTP 80 a.com"]);
        check(&edge, &some, true, ready(), ["True ListenersNotValid", runs]);
        let invalid = ["False ListenersNotValid", "False ListenersNotValid"];
        check(&edge, &set("none", &["taken HTTP 80 a.com"]), true, ready(), invalid);
        check(&edge, &set("none", &["tcp TCP 80"]), true, ready(), invalid);
        check(&edge, &set("none", &[]), true, ready(), invalid);
        check(&edge, &one, true, Made { ready: 0, ..ready() }, [yes, "False ParentNotProgrammed"]);
        let parent = ["False ParentNotAccepted", "False ParentNotAccepted"];
        check(&gateway(&["web HTTP 15008"]), &one, true, ready(), parent);
        let wrong_parameters = Some("ConfigMap infra/p does not exist".to_owned());
        check(&edge, &one, true, Made { wrong_parameters, ..ready() }, parent);
        let fault = Fault { reason: "RefNotPermitted", what: "no grant".to_owned() };
        let known = ListenerMade { unresolved: Some(fault), ..ListenerMade::default() };
        let listeners = [("shop/tls/own".to_owned(), known)].into();
        let tls = set("tls", &["own HTTPS 443 b.com"]);
        check(&edge, &tls, true, Made { listeners, ..ready() }, invalid);
        check(&edge, &tls, true, ready(), [yes, runs]);
    }

    #[test]
    fn its_listeners_have_fates_of_their_own() {
        let edge = gateway(&["web HTTP 80 a.com"]);
        let one = set("one", &["web HTTP 80 b.com", "host HTTP 80 a.com", "tcp TCP 80"]);
        let listeners = judge_all(&edge.spec, &[&one]);
        let known = |count| ListenerMade { attached_routes: Some(count), ..Default::default() };
        let known = [("web".to_owned(), known(9)), ("shop/one/web".to_owned(), known(2))];
        let made = Made { listeners: known.into(), ..ready() };
        let of =
            SetOf { gateway: &edge, position: Position::Edge, listeners: &listeners, made: &made };
        let status = set_status(&one, &of, "now");
        let kinds = ["Accepted", "Conflicted", "ResolvedRefs", "Programmed"];
        let check = |index: usize, name: &str, count: u32, expected: [&str; 4]| {
            let listener = &status["listeners"][index];
            assert_eq!(
                (&listener["name"], &listener["attachedRoutes"]),
                (&json!(name), &json!(count))
            );
            assert_eq!(kinds.map(|kind| told(listener, kind)), expected, "{name}");
        };
        let found = "True ResolvedRefs";
        check(0, "web", 2, ["True Accepted", "False NoConflicts", found, "True Programmed"]);
        let (host, protocol) = ("HostnameConflict", "ProtocolConflict");
        let conflict = |reason: &str| [format!("False {reason}"), format!("True {reason}")];
        let [no, is] = conflict(host);
        check(1, "host", 0, [&no, &is, found, &no]);
        let [no, is] = conflict(protocol);
        check(2, "tcp", 0, [&no, &is, found, &no]);
        // Those of the Gateway do not change.
        let of_gateway = status_of(&edge, &made);
        assert_eq!(of_gateway["listeners"].as_array().map(Vec::len), Some(1));
        assert_eq!(of_gateway["listeners"][0]["attachedRoutes"], 9);
        let gone = set_without_gateway(&ListenerSet { status: Some(status), ..one.clone() }, "now");
        assert_eq!(told(&gone, "Accepted"), "False ParentNotAccepted");
        assert_eq!(gone["listeners"], json!([]));
        let way = SetOf { position: Position::Waypoint, ..of };
        assert_eq!(told(&set_status(&one, &way, "now"), "Accepted"), "False NotAllowed");
    }
}
