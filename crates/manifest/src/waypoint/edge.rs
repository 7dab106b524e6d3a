//! What is different of a gateway at the edge: its ports, and its status.
//!
//! A waypoint has one listener, and who names it is refused without it. A gateway at the edge has
//! many, each with a fate of its own, and clients that know nothing of the mesh.

use std::collections::BTreeMap;

use super::conditions::Condition;
use super::made::{ListenerMade, Made};
use crate::gateway::listeners::{
    Fault, INVALID_CLIENT_CERTIFICATE, Judged, Protocol, judge, judge_all,
};
use crate::gateway::sets::ListenerSet;
use crate::gateway::{Gateway, GatewaySpec};

/// Says that clients may come without proof of who they are.
const INSECURE: &str = "InsecureFrontendValidationMode";
/// Says whether what is named was found.
const RESOLVED: &str = "ResolvedRefs";
/// Conditions of a Gateway that are there only while it asks for something.
pub(super) const OPTIONAL: [&str; 2] = [INSECURE, RESOLVED];

/// A port at which its pods listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    /// Its name, as in `http-80`.
    pub(super) name: String,
    /// The port.
    pub(super) number: u16,
    /// What it takes, as a Service says it: `TCP` or `UDP`.
    pub(super) protocol: &'static str,
    /// What is spoken there, as a Service says it.
    pub(super) app_protocol: String,
}

/// The status of a listener, before it is written down.
pub(super) struct ListenerStatus<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// How many routes are attached, if somebody counts.
    pub(super) attached: Option<usize>,
    /// The kinds of routes that may attach.
    pub(super) kinds: Vec<&'static str>,
    /// Its conditions.
    pub(super) own: Vec<Condition>,
}

/// The ports of its listeners and of those of the sets that it takes, each once; one of connections
/// and one of datagrams may be the same.
pub(super) fn ports(spec: &GatewaySpec, sets: &[&ListenerSet]) -> Vec<Port> {
    let judged = judge_all(spec, sets);
    let mut ports: BTreeMap<(&str, u16), Port> = BTreeMap::new();
    for judged in judged.iter().filter(|it| it.is_served()) {
        let Some(number) = judged.port() else { continue };
        let app_protocol = judged.listener.protocol.to_ascii_lowercase();
        let name = format!("{app_protocol}-{number}");
        let is_udp = judged.protocol() == Some(Protocol::Udp);
        let protocol = if is_udp { "UDP" } else { "TCP" };
        let port = Port { name, number, protocol, app_protocol };
        ports.entry((protocol, number)).or_insert(port);
    }
    ports.into_values().collect()
}

/// The address that a cluster's load balancer is asked for.
pub(super) fn asked_address(spec: &GatewaySpec) -> Option<&str> {
    let is_address = |kind: Option<&str>| kind.is_none_or(|it| it == "IPAddress");
    let mut all = spec.addresses.iter().flatten();
    let asked = all.find(|it| is_address(it.address_type.as_deref()) && it.value.is_some())?;
    asked.value.as_deref()
}

/// The conditions of a Gateway, and the status of each of its listeners.
pub(super) fn conditions<'a>(
    gateway: &'a Gateway,
    made: &Made,
) -> (Vec<Condition>, Vec<ListenerStatus<'a>>) {
    let spec = &gateway.spec;
    let judged = judge(spec);
    let wrong: Vec<&Fault> = judged.iter().filter_map(|it| not_accepted(it, made)).collect();
    let runs = wrong.len() < judged.len() && spec.unknown_address_type().is_none();
    let programmed = programmed(spec, runs, made);
    let is_programmed = programmed.status;
    let mut own = vec![accepted(spec, &wrong, runs, made), programmed];
    own.extend(client_certificate(spec, made));
    own.extend(insecure(spec));
    let listeners = judged.iter().map(|it| listener(it, made, is_programmed));
    (own, listeners.collect())
}

/// What is known of a listener besides what it says.
fn known<'a>(judged: &Judged<'_>, made: &'a Made) -> Option<&'a ListenerMade> {
    made.listeners.get(&*judged.full_name())
}

/// Why a listener is not served.
pub(super) fn not_accepted<'a>(judged: &'a Judged<'_>, made: &'a Made) -> Option<&'a Fault> {
    judged.not_accepted().or_else(|| known(judged, made)?.refused.as_ref())
}

/// Why none of its connections can be taken, or no request of them read, though it is accepted.
pub(super) fn useless<'a>(judged: &'a Judged<'_>, made: &'a Made) -> Option<&'a Fault> {
    // Where only kinds of routes are wrong, the others are served.
    unresolved(judged, made).filter(|it| it.reason != "InvalidRouteKinds")
}

/// What is wrong with what a listener names.
fn unresolved<'a>(judged: &'a Judged<'_>, made: &'a Made) -> Option<&'a Fault> {
    judged.unresolved().or_else(|| known(judged, made)?.unresolved.as_ref())
}

fn accepted(spec: &GatewaySpec, wrong: &[&Fault], runs: bool, made: &Made) -> Condition {
    let fails = |reason, message: &str| Condition::fails("Accepted", reason, message);
    if let Some(kind) = spec.unknown_address_type() {
        let message = format!("addresses of type {kind} are not known; use IPAddress or Hostname");
        return fails("UnsupportedAddress", &message);
    }
    let why = wrong.iter().map(|it| it.what.as_str()).collect::<Vec<_>>().join("; ");
    match &made.wrong_parameters {
        _ if spec.listeners.is_empty() => fails("ListenersNotValid", "the Gateway has no listener"),
        _ if !runs => fails("ListenersNotValid", &format!("no listener is served: {why}")),
        Some(what) => fails("InvalidParameters", what),
        None if wrong.is_empty() => Condition::holds("Accepted"),
        // One that is served is enough.
        None => Condition {
            reason: "ListenersNotValid",
            message: format!(
                "{} of {} listeners are not served: {why}",
                wrong.len(),
                spec.listeners.len()
            ),
            ..Condition::holds("Accepted")
        },
    }
}

fn programmed(spec: &GatewaySpec, runs: bool, made: &Made) -> Condition {
    let fails = |reason, message: &str| Condition::fails("Programmed", reason, message);
    let asked = spec.addresses.iter().flatten().filter_map(|it| it.value.as_ref());
    let mut missing = asked.filter(|it| !it.is_empty() && !made.addresses.contains(it));
    match (&made.problem, missing.next()) {
        _ if !runs => fails("Invalid", "the Gateway is not accepted: nothing runs for it"),
        (Some(problem), _) => fails("Invalid", problem),
        (None, Some(asked)) => {
            let has = match made.addresses.as_slice() {
                [] => "none yet".to_owned(),
                some => some.join(", "),
            };
            fails("AddressNotUsable", &format!("it asks for {asked}, and its Service has {has}"))
        }
        (None, None) if made.addresses.is_empty() => {
            fails("AddressNotAssigned", "its Service has no address yet")
        }
        (None, None) if made.ready == 0 => {
            fails("Pending", &format!("none of its pods is ready (0 of {})", made.wanted))
        }
        (None, None) => Condition {
            // While pods are replaced, there are more.
            message: format!("{} of {} pods are ready", made.ready.min(made.wanted), made.wanted),
            ..Condition::holds("Programmed")
        },
    }
}

/// Whether the certificate towards backends was found, if one is named.
fn client_certificate(spec: &GatewaySpec, made: &Made) -> Option<Condition> {
    let named = spec.client_certificate()?;
    Some(match &made.unresolved {
        Some(fault) => Condition::fails(RESOLVED, fault.reason, &fault.what),
        None if !named.is_secret() => {
            let message = "tls.backend.clientCertificateRef names no Secret";
            Condition::fails(RESOLVED, INVALID_CLIENT_CERTIFICATE, message)
        }
        None => Condition::holds(RESOLVED),
    })
}

/// A warning where clients need not prove themselves though it is asked of them.
fn insecure(spec: &GatewaySpec) -> Option<Condition> {
    let frontend = spec.tls.as_ref()?.frontend.as_ref()?;
    let ports = frontend.per_port.iter().map(|it| &it.tls);
    let mut all = ports.chain([&frontend.of_all]).filter_map(|it| it.validation.as_ref());
    all.any(|it| it.mode.as_deref() == Some("AllowInsecureFallback")).then(|| Condition {
        reason: "ConfigurationChanged",
        message: "clients are taken without a certificate, or with one of other roots".to_owned(),
        ..Condition::holds(INSECURE)
    })
}

/// The status of a listener; `is_programmed` says whether the Gateway is.
pub(super) fn listener<'a>(
    judged: &Judged<'a>,
    made: &Made,
    is_programmed: bool,
) -> ListenerStatus<'a> {
    let of = |kind, fault: Option<&Fault>| match fault {
        Some(fault) => Condition::fails(kind, fault.reason, &fault.what),
        None => Condition::holds(kind),
    };
    let refused = not_accepted(judged, made);
    let conflicted = match judged.conflict() {
        Some(fault) => Condition {
            reason: fault.reason,
            message: fault.what.clone(),
            ..Condition::holds("Conflicted")
        },
        None => Condition::fails("Conflicted", "NoConflicts", ""),
    };
    let fails = |reason, message: &str| Condition::fails("Programmed", reason, message);
    let programmed = match (refused, useless(judged, made)) {
        (Some(_), _) => {
            // Of a ListenerSet's the conflict is the reason here too.
            let conflict = judged.conflict().filter(|_| judged.set.is_some());
            fails(conflict.map_or("Invalid", |it| it.reason), "the listener is not accepted")
        }
        (None, Some(fault)) => fails("Invalid", &fault.what),
        (None, None) if !is_programmed => fails("Pending", "the Gateway is not programmed"),
        (None, None) => Condition::holds("Programmed"),
    };
    ListenerStatus {
        name: &judged.listener.name,
        attached: known(judged, made).and_then(|it| it.attached_routes),
        kinds: judged.kind_names().collect(),
        own: vec![
            of("Accepted", refused),
            conflicted,
            of(RESOLVED, unresolved(judged, made)),
            programmed,
        ],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::status::status;
    use super::*;
    use crate::gateway::Position;

    fn gateway(spec: &Value, status: Value) -> Gateway {
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "in", "namespace": "shop", "generation": 3},
            "spec": {"gatewayClassName": "ambit",
                "listeners": [{"name": "web", "protocol": "HTTP", "port": 80}]},
            "status": status,
        });
        for (key, value) in spec.as_object().expect("fields") {
            gateway["spec"][key] = value.clone();
        }
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn ready() -> Made {
        Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 2, ..Made::default() }
    }

    /// A condition as `STATUS REASON`.
    fn told(of: &Value, kind: &str) -> String {
        let all = of["conditions"].as_array().expect("conditions");
        let Some(it) = all.iter().find(|it| it["type"] == kind) else { return String::new() };
        assert_eq!(it["observedGeneration"], 3);
        let text = |key: &str| it[key].as_str().unwrap_or_default();
        format!("{} {}", text("status"), text("reason"))
    }

    fn web(port: i32) -> Value {
        json!({"name": format!("web-{port}"), "protocol": "HTTP", "port": port})
    }

    #[test]
    fn a_gateway_is_accepted_and_programmed() {
        let check = |spec: Value, made: Made, expected: [&str; 2]| {
            let status = status(&gateway(&spec, json!({})), Position::Edge, &made, "now");
            let found = ["Accepted", "Programmed"].map(|kind| told(&status, kind));
            assert_eq!(found, expected, "{spec} {made:?}");
        };
        let (yes, runs) = ("True Accepted", "True Programmed");
        check(json!({}), ready(), [yes, runs]);
        check(json!({}), Made { ready: 0, ..ready() }, [yes, "False Pending"]);
        let without = Made { addresses: Vec::new(), ..ready() };
        check(json!({}), without, [yes, "False AddressNotAssigned"]);
        let problem = Some("no mesh".to_owned());
        check(json!({}), Made { problem, ..ready() }, [yes, "False Invalid"]);
        let wrong_parameters = Some("ConfigMap shop/p does not exist".to_owned());
        let patched = Made { wrong_parameters, ..ready() };
        check(json!({}), patched, ["False InvalidParameters", runs]);
        let some = json!({"listeners": [web(80), web(15_008)]});
        check(some, ready(), ["True ListenersNotValid", runs]);
        let none = ["False ListenersNotValid", "False Invalid"];
        check(json!({"listeners": [web(15_008)]}), ready(), none);
        check(json!({"listeners": []}), ready(), none);
        let asked =
            |kind: &str, value: &str| json!({"addresses": [{"type": kind, "value": value}]});
        check(asked("IPAddress", "10.0.0.1"), ready(), [yes, runs]);
        check(asked("IPAddress", "10.0.0.2"), ready(), [yes, "False AddressNotUsable"]);
        let without = Made { addresses: Vec::new(), ..ready() };
        check(asked("IPAddress", "10.0.0.2"), without, [yes, "False AddressNotUsable"]);
        check(asked("other.com/a", "x"), ready(), ["False UnsupportedAddress", "False Invalid"]);
        let refused = Some(Fault { reason: "NoValidCACertificate", what: "gone".to_owned() });
        let listeners = [("web".to_owned(), ListenerMade { refused, ..ListenerMade::default() })];
        check(json!({}), Made { listeners: listeners.into(), ..ready() }, none);
    }

    #[test]
    fn each_listener_has_a_fate_of_its_own() {
        let kinds = ["Accepted", "Conflicted", "ResolvedRefs", "Programmed"];
        let check = |listener: Value, known: ListenerMade, expected: [&str; 4]| {
            let spec = json!({"listeners": [web(81), listener]});
            let name = listener["name"].as_str().expect("a name").to_owned();
            let made = Made { listeners: [(name, known)].into(), ..ready() };
            let status = status(&gateway(&spec, json!({})), Position::Edge, &made, "now");
            let found = kinds.map(|kind| told(&status["listeners"][1], kind));
            assert_eq!(found, expected, "{listener}");
        };
        let none = ListenerMade::default;
        let (yes, alone) = ("True Accepted", "False NoConflicts");
        let (found, runs, no) = ("True ResolvedRefs", "True Programmed", "False Invalid");
        check(web(80), none(), [yes, alone, found, runs]);
        check(web(15_008), none(), ["False PortUnavailable", alone, found, no]);
        let same = json!({"name": "same", "protocol": "HTTP", "port": 81});
        let conflict = ["False HostnameConflict", "True HostnameConflict", found, no];
        check(same, none(), conflict);
        let tls = |name: &str| {
            json!({"name": "tls", "protocol": "HTTPS", "port": 443,
                "tls": {"certificateRefs": [{"name": name, "kind": "Secret"}]}})
        };
        check(tls("a"), none(), [yes, alone, found, runs]);
        let fault = |reason| Some(Fault { reason, what: "it is not there".to_owned() });
        let unresolved = fault("InvalidCertificateRef");
        let missing = ListenerMade { unresolved, ..none() };
        check(tls("a"), missing, [yes, alone, "False InvalidCertificateRef", no]);
        let refused = ListenerMade { refused: fault("NoValidCACertificate"), ..none() };
        check(tls("a"), refused, ["False NoValidCACertificate", alone, found, no]);
        let mut wrong_kind = web(80);
        wrong_kind["allowedRoutes"] = json!({"kinds": [{"kind": "TCPRoute"}]});
        check(wrong_kind, none(), [yes, alone, "False InvalidRouteKinds", runs]);
    }

    #[test]
    fn routes_are_counted_and_addresses_may_be_names() {
        let count = |count: Option<usize>, before: Value| {
            let known = ListenerMade { attached_routes: count, ..ListenerMade::default() };
            let addresses = vec!["10.0.0.1".into(), "lb.example.com".into()];
            let made = Made { addresses, listeners: [("web".to_owned(), known)].into(), ..ready() };
            status(&gateway(&json!({}), before), Position::Edge, &made, "now")
        };
        let first = count(Some(2), json!({}));
        assert_eq!(first["listeners"][0]["attachedRoutes"], 2);
        let kinds = first["listeners"][0]["supportedKinds"].as_array().expect("kinds");
        assert!(kinds.iter().map(|it| &it["kind"]).eq(["HTTPRoute", "GRPCRoute"]));
        assert_eq!(first["addresses"][1], json!({"type": "Hostname", "value": "lb.example.com"}));
        assert_eq!(count(None, first)["listeners"][0]["attachedRoutes"], 2, "nobody counts");
        assert_eq!(count(None, json!({}))["listeners"][0]["attachedRoutes"], 0);
    }

    #[test]
    fn what_is_asked_for_has_a_condition_while_it_is() {
        let tls = |mode: &str| {
            let roots = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
            json!({"tls": {
                "backend": {"clientCertificateRef": {"name": "own"}},
                "frontend": {"default": {"validation": {"mode": mode, "caCertificateRefs": roots}}},
            }})
        };
        let kinds = [INSECURE, RESOLVED];
        let of = |spec: &Value, before: Value, made: &Made, now: &str| {
            status(&gateway(spec, before), Position::Edge, made, now)
        };
        let first = of(&tls("AllowInsecureFallback"), json!({}), &ready(), "first");
        let found = kinds.map(|kind| told(&first, kind));
        assert_eq!(found, ["True ConfigurationChanged", "True ResolvedRefs"]);
        let again = of(&tls("AllowInsecureFallback"), first.clone(), &ready(), "again");
        assert_eq!(again, first, "their times stay");
        let unresolved = Fault { reason: "RefNotPermitted", what: "no grant".to_owned() };
        let made = Made { unresolved: Some(unresolved), ..ready() };
        let second = of(&tls("AllowValidOnly"), first.clone(), &made, "second");
        assert_eq!(kinds.map(|kind| told(&second, kind)), ["", "False RefNotPermitted"]);
        let third = of(&json!({}), first, &ready(), "third");
        assert_eq!(kinds.map(|kind| told(&third, kind)), ["", ""]);
    }
}
