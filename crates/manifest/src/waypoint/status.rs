//! The status that says how a Gateway is.
//!
//! What others wrote there stays. A condition that does not change keeps its time.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::conditions::{Condition, Told};
use super::edge::{self, ListenerStatus};
use super::made::Made;
use crate::gateway::listeners::ROUTES_GROUP;
use crate::gateway::{Gateway, Position, UNSUPPORTED_PROTOCOL, UNSUPPORTED_REMEDY};

/// The field that counts the ListenerSets that a Gateway takes.
const ATTACHED_SETS: &str = "attachedListenerSets";

/// The status of a Gateway at this position; what it says otherwise is kept.
pub fn status(gateway: &Gateway, position: Position, made: &Made, now: &str) -> Value {
    let generation = gateway.metadata.generation.unwrap_or_default();
    let mut status = gateway.status.clone().unwrap_or_default();
    let told = Told { generation, now };
    let (own, listeners) = match position {
        Position::Waypoint => (conditions(gateway, made), listeners(gateway)),
        Position::Edge => edge::conditions(gateway, made),
    };
    let mut before = list(status.get("conditions"));
    if position == Position::Edge {
        let is_stale = |it: &Value| {
            let is_own = own.iter().any(|own| it["type"] == own.kind);
            !is_own && edge::OPTIONAL.iter().any(|kind| it["type"] == *kind)
        };
        before.retain(|it| !is_stale(it));
    }
    let is_accepted = own.iter().any(|it| it.kind == "Accepted" && it.status);
    status["conditions"] = told.conditions(before, own);
    status["addresses"] = made.addresses.iter().map(|it| address(it)).collect();
    status["listeners"] = written(&told, list(status.get("listeners")), listeners);
    // An API before version 1.5 does not know the field.
    let attached = if is_accepted { made.sets } else { 0 };
    if attached > 0 || status.get(ATTACHED_SETS).is_some() {
        status[ATTACHED_SETS] = json!(attached);
    }
    status
}

/// What a status lists.
pub(super) fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// What is written of listeners; `before` is what was.
pub(super) fn written(
    told: &Told<'_>,
    before: Vec<Value>,
    listeners: Vec<ListenerStatus<'_>>,
) -> Value {
    let listeners = listeners.into_iter().map(|it| {
        let old = before.iter().find(|old| old["name"] == *it.name);
        let attached = it.attached.map(|count| json!(count));
        let attached = attached.or_else(|| old?.get("attachedRoutes").cloned());
        let group = ROUTES_GROUP;
        let kinds = it.kinds.iter().map(|kind| json!({"group": group, "kind": kind}));
        json!({
            "name": it.name,
            "attachedRoutes": attached.unwrap_or(json!(0)),
            "supportedKinds": kinds.collect::<Value>(),
            "conditions": told.conditions(list(old.and_then(|it| it.get("conditions"))), it.own),
        })
    });
    listeners.collect()
}

/// An address, which may be the name of a host.
fn address(value: &str) -> Value {
    let is_address = value.parse::<IpAddr>().is_ok();
    json!({"type": if is_address { "IPAddress" } else { "Hostname" }, "value": value})
}

/// The listeners of a waypoint.
fn listeners(gateway: &Gateway) -> Vec<ListenerStatus<'_>> {
    let told = gateway.spec.listeners.iter().map(|listener| {
        let (accepted, kinds) = match listener.judge() {
            Ok(()) => (Condition::holds("Accepted"), vec!["HTTPRoute", "GRPCRoute"]),
            Err(what) => (unsupported(what), Vec::new()),
        };
        let programmed = match accepted.status {
            true => Condition::holds("Programmed"),
            false => Condition::fails("Programmed", "Invalid", "the listener is not accepted"),
        };
        let own = vec![accepted, programmed, Condition::holds("ResolvedRefs")];
        ListenerStatus { name: &listener.name, attached: None, kinds, own }
    });
    told.collect()
}

fn unsupported(what: String) -> Condition {
    let message = format!("{what}; {UNSUPPORTED_REMEDY}");
    Condition { message, ..Condition::fails("Accepted", UNSUPPORTED_PROTOCOL, "") }
}

/// Accepted and Programmed, of a waypoint's whole Gateway.
fn conditions(gateway: &Gateway, made: &Made) -> Vec<Condition> {
    let judged = gateway.spec.listeners.iter().map(|listener| listener.judge());
    let wrong: Vec<String> = judged.filter_map(Result::err).collect();
    let is_served = gateway.spec.waypoint_listener().is_some();
    let accepted = match (is_served, wrong.first(), &made.wrong_parameters) {
        (true, _, Some(what)) => Condition::fails("Accepted", "InvalidParameters", what),
        (true, None, None) => Condition::holds("Accepted"),
        (false, None, _) => {
            Condition::fails("Accepted", UNSUPPORTED_PROTOCOL, "the Gateway has no listener")
        }
        // One that is served is enough.
        (true, Some(what), None) => Condition {
            reason: "ListenersNotValid",
            message: format!("{what}; {UNSUPPORTED_REMEDY}"),
            ..Condition::holds("Accepted")
        },
        (false, Some(what), _) => unsupported(what.clone()),
    };
    let fails = |reason, message: &str| Condition::fails("Programmed", reason, message);
    let programmed = match &made.problem {
        _ if !is_served => fails("Invalid", "the Gateway is not accepted: nothing runs for it"),
        Some(problem) => fails("Invalid", problem),
        None if made.addresses.is_empty() => {
            fails("AddressNotAssigned", "its Service has no address yet")
        }
        None if made.ready == 0 => {
            let message = format!("none of its pods is ready (0 of {})", made.wanted);
            fails("AddressNotUsable", &message)
        }
        None => Condition {
            // While pods are replaced, there are more.
            message: format!("{} of {} pods are ready", made.ready.min(made.wanted), made.wanted),
            ..Condition::holds("Programmed")
        },
    };
    vec![accepted, programmed]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(more: &Value) -> Gateway {
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "way", "namespace": "shop", "uid": "u1", "generation": 3},
            "spec": {"gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]},
        });
        for (key, value) in more.as_object().expect("fields") {
            gateway["spec"][key] = value.clone();
        }
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn status(gateway: &Gateway, made: &Made, now: &str) -> Value {
        super::status(gateway, Position::Waypoint, made, now)
    }

    fn told(status: &Value, kind: &str) -> [String; 3] {
        let all = status["conditions"].as_array().expect("conditions");
        let of = all.iter().find(|it| it["type"] == kind).expect("the condition");
        ["status", "reason", "message"].map(|key| of[key].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn its_status_says_what_became_of_it() {
        let check = |more: Value, made: Made, accepted: [&str; 2], programmed: [&str; 2]| {
            let status = status(&gateway(&more), &made, "now");
            for (kind, expected) in [("Accepted", accepted), ("Programmed", programmed)] {
                let [status, reason, message] = told(&status, kind);
                assert_eq!([&*status, &*reason], expected, "{kind}: {message}");
                assert!(status == "True" || !message.is_empty(), "{kind} says why");
            }
        };
        let yes = |reason| ["True", reason];
        let no = |reason| ["False", reason];
        let ready =
            Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 2, ..Made::default() };
        let waiting = Made { ready: 0, ..ready.clone() };
        let without = Made { addresses: Vec::new(), ..ready.clone() };
        let taken = Made { problem: Some("Service way is another's".into()), ..ready.clone() };
        check(json!({}), ready.clone(), yes("Accepted"), yes("Programmed"));
        check(json!({}), waiting, yes("Accepted"), no("AddressNotUsable"));
        check(json!({}), without, yes("Accepted"), no("AddressNotAssigned"));
        check(json!({}), taken, yes("Accepted"), no("Invalid"));
        let web = json!({"name": "web", "protocol": "HTTP", "port": 80});
        let mesh = json!({"name": "mesh", "protocol": "HBONE", "port": 15008});
        let only = json!({"listeners": [web]});
        check(only, ready.clone(), no("UnsupportedProtocol"), no("Invalid"));
        let wrong_parameters = Some("ConfigMap shop/p does not exist".to_owned());
        let patched = Made { wrong_parameters, ..ready.clone() };
        check(json!({}), patched, no("InvalidParameters"), yes("Programmed"));
        let both = json!({"listeners": [mesh, web]});
        check(both.clone(), ready.clone(), yes("ListenersNotValid"), yes("Programmed"));
        let status = status(&gateway(&both), &ready, "now");
        let [good, bad] = [&status["listeners"][0], &status["listeners"][1]];
        assert_eq!(told(good, "Accepted")[0], "True");
        assert_eq!(good["supportedKinds"].as_array().map(Vec::len), Some(2));
        let [is, reason, message] = told(bad, "Accepted");
        assert_eq!([&*is, &*reason], ["False", "UnsupportedProtocol"]);
        assert!(message.contains("`web` is HTTP on port 80"), "{message}");
        assert_eq!(status["addresses"], json!([{"type": "IPAddress", "value": "10.0.0.1"}]));
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time_and_those_of_others_stay() {
        let ready =
            Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 1, ..Made::default() };
        let mut gateway = gateway(&json!({}));
        gateway.status = Some(json!({"conditions": [{"type": "Other", "status": "True"}]}));
        let first = status(&gateway, &ready, "first");
        gateway.status = Some(first.clone());
        let second = status(&gateway, &ready, "second");
        assert_eq!(first, second);
        gateway.status = Some(second);
        let third = status(&gateway, &Made { ready: 0, ..ready }, "third");
        let at = |kind: &str| {
            let all = third["conditions"].as_array().unwrap().clone();
            all.into_iter().find(|it| it["type"] == kind).unwrap()
        };
        assert_eq!(at("Accepted")["lastTransitionTime"], "first");
        assert_eq!(at("Programmed")["lastTransitionTime"], "third");
        assert_eq!(at("Other")["status"], "True");
    }
}
