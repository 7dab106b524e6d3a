//! The JSON of the administration, each form against a file that is its contract.
//!
//! A file holds what is served today, field by field. It changes only by added fields, with a line
//! in the changelog; any other change needs a new version.

use ambit_wire::admin::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reads the contract of `T` and writes it again. `optional` are the fields that a reader may miss.
fn check<T: Serialize + DeserializeOwned>(file: &str, text: &str, optional: &[&str]) {
    let contract: Value = serde_json::from_str(text).expect("the file is JSON");
    let read: T =
        serde_json::from_value(contract.clone()).unwrap_or_else(|it| panic!("{file}: {it}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), contract, "{file}: what is read is written");
    let mut newer = contract.clone();
    add_everywhere(&mut newer);
    let read: T = serde_json::from_value(newer).unwrap_or_else(|it| panic!("{file}: {it}"));
    assert_eq!(serde_json::to_value(&read).unwrap(), contract, "{file}: a newer writer is read");
    let mut missed = Vec::new();
    for pointer in fields(&contract, "") {
        let mut older = contract.clone();
        remove(&mut older, &pointer);
        if serde_json::from_value::<T>(older).is_ok() {
            missed.push(pointer);
        }
    }
    assert_eq!(missed, optional, "{file}: these fields alone may be missing");
    let mut other = contract;
    other["apiVersion"] = json!("admin.ambit.io/v2");
    let refused = serde_json::from_value::<T>(other).err().expect("another version is refused");
    assert!(refused.to_string().contains("admin.ambit.io/v2"), "{refused}");
}

/// Adds a field to every object that is of a form of ours.
fn add_everywhere(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if !AS_WRITTEN.contains(&&**name) {
                    add_everywhere(field);
                }
            }
            fields.insert("addedLater".to_owned(), json!([{ "a": 1 }]));
        }
        Value::Array(items) => items.iter_mut().for_each(add_everywhere),
        _ => {}
    }
}

/// Fields that hold what a user wrote, whatever that is.
const AS_WRITTEN: [&str; 4] = ["labels", "portLevelMtls", "selector", "written"];

/// Pointers to the fields of all objects, those of the first item for a list.
fn fields(value: &Value, at: &str) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let of = |(name, field): (&String, &Value)| {
                let pointer = format!("{at}/{name}");
                let below = match AS_WRITTEN.contains(&&**name) {
                    true => Vec::new(),
                    false => self::fields(field, &pointer),
                };
                [vec![pointer], below].concat()
            };
            fields.iter().flat_map(of).collect()
        }
        Value::Array(items) => {
            let of = |(index, item)| self::fields(item, &format!("{at}/{index}"));
            items.iter().enumerate().flat_map(of).collect()
        }
        _ => Vec::new(),
    }
}

fn remove(value: &mut Value, pointer: &str) {
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer has a slash");
    let parent = value.pointer_mut(parent).expect("the parent is there");
    parent.as_object_mut().expect("the parent is an object").remove(name);
}

macro_rules! check {
    ($type:ty, $file:literal, $optional:expr) => {
        check::<$type>($file, include_str!(concat!("admin/", $file)), &$optional)
    };
}

#[test]
fn status() {
    check!(
        Status,
        "status.json",
        [
            "/mesh/clusterDomain",
            "/pods/notCaptured/0/port",
            "/pods/notCaptured/0/process",
            "/replicas",
        ]
    );
    check!(SyncStatus, "syncz.json", ["/clients/0/remote"]);
    check!(Mark, "mark.json", []);
}

#[test]
fn lists() {
    check!(List<Pod>, "pods.json", ["/items/0/reason"]);
    let optional = ["/items/0/loadBalancing/clientAffinitySeconds", "/items/0/waypoint"];
    check!(List<Service>, "services.json", optional);
    check!(List<Workload>, "workloads.json", ["/items/0/waypoint"]);
    let optional =
        ["/items/0/enforcedAs", "/items/0/scope", "/items/0/targets", "/items/1/selector"];
    check!(List<Policy>, "policies.json", optional);
    check!(List<Node>, "nodes.json", []);
    check!(List<Namespace>, "namespaces.json", []);
    check!(List<Route>, "routes.json", []);
    let optional = [
        "/items/0/clientNamespace",
        "/items/0/cors",
        "/items/0/faults",
        "/items/0/headers",
        "/items/0/mirrors",
        "/items/0/rewrite",
        "/items/0/ruleName",
    ];
    check!(List<RouteLine>, "route-table.json", optional);
    check!(List<Telemetry>, "telemetries.json", ["/items/0/scope"]);
    check!(List<TrafficPolicy>, "trafficpolicies.json", []);
    let optional = [
        "/items/0/listeners/0/host",
        "/items/0/listeners/0/problem",
        "/items/0/revision",
        "/items/0/traffic",
    ];
    check!(List<Gateway>, "gateways.json", optional);
}

#[test]
fn why() {
    let optional = [
        "/certificate",
        "/connection",
        "/connection/bounds",
        "/connection/bounds/0/service",
        "/connection/healthChecks",
        "/connection/matches",
        "/connection/rule",
        "/connection/rule/ruleName",
        "/connection/serverName",
        "/decidedBy",
        "/path",
        "/policy",
        "/policy/object",
        "/policy/object/kind",
        "/policy/object/name",
        "/policy/written",
        "/remedy",
        "/request",
        "/request/bounds",
        "/request/bounds/0/service",
        "/request/cors",
        "/request/faults",
        "/request/headers",
        "/request/healthChecks",
        "/request/limits",
        "/request/matches",
        "/request/mirrors",
        "/request/rewrite",
        "/request/rule",
        "/request/rule/ruleName",
        "/request/status",
        "/server",
        "/server/identities",
    ];
    check!(Explanation, "why.json", optional);
}

#[test]
fn authority() {
    let optional = ["/revoked/0/identity", "/revoked/0/node", "/revoked/0/notAfter"];
    check!(Certificates, "ca-certificates.json", optional);
    check!(RevokedNow, "ca-revoke.json", optional);
    check!(RotationStatus, "ca-rotation.json", []);
}

#[test]
fn proxy() {
    let optional = [
        "/items/0/destinationIdentity",
        "/items/0/destinationWorkload",
        "/items/0/hbonePeer",
        "/items/0/policy",
        "/items/0/service",
        "/items/0/sourceIdentity",
        "/items/0/sourceWorkload",
        "/items/0/tlsGroup",
    ];
    check!(Connections, "connections.json", optional);
    check!(Shares, "shares.json", ["/items/0/sources/0/identity"]);
    let optional =
        ["/items/0/certChain/0/serial", "/items/0/lastFailure", "/items/0/rootCerts/0/serial"];
    check!(List<HeldCertificate>, "certificates.json", optional);
    check!(Process, "process.json", []);
}

#[test]
fn no_news_is_not_taken_for_good_news() {
    let text = include_str!("admin/status.json");
    for pointer in [
        "/discovery/nodesWithoutProxy",
        "/discovery/behind",
        "/pods/waitingForCapture",
        "/pods/failing",
        "/policiesNotAccepted",
        "/findings",
        "/authority/problem",
    ] {
        let mut status: Value = serde_json::from_str(text).unwrap();
        remove(&mut status, pointer);
        assert!(serde_json::from_value::<Status>(status).is_err(), "{pointer}");
    }
    let left_out = json!({ "apiVersion": API_VERSION, "items": [] });
    assert!(serde_json::from_value::<Connections>(left_out).is_err());
    assert!(serde_json::from_value::<List<Pod>>(json!({ "items": [] })).is_err(), "no version");
}

#[test]
fn words_of_a_newer_writer_are_shown_and_are_no_good_news() {
    let read = |text: &str| serde_json::from_value::<CertificateState>(json!(text)).unwrap();
    assert_eq!(read("Unavailable: no"), CertificateState::Unavailable("no".to_owned()));
    assert_eq!(read("Suspended"), CertificateState::Other("Suspended".to_owned()));
    assert_eq!(read("Suspended").to_string(), "Suspended");
    let decision: Decision = serde_json::from_value(json!("postpone")).unwrap();
    assert_eq!(decision, Decision::Unknown);
    let policy: Policy = serde_json::from_value(json!({"kind": "New", "name": "a"})).unwrap();
    assert_eq!(policy, Policy::Unknown);
}

#[test]
fn a_revocation_with_an_unknown_field_is_refused() {
    let asked = json!({ "serial": "01ab", "reason": "lost" });
    assert!(serde_json::from_value::<Revocation>(asked).is_err());
    let asked = Revocation { pod: Some("app/web".to_owned()), ..Revocation::default() };
    assert_eq!(serde_json::to_value(asked).unwrap(), json!({ "pod": "app/web" }));
}
