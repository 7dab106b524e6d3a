//! Certificates that are valid for seconds, and a revoked one, under load.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::size::sized;

/// How long a certificate lives, and how long the load runs: more than twice as long.
const USUAL: Size = Size { life_seconds: 20, load_seconds: 45.0 };
/// The same at full size.
const FULL: Size = Size { life_seconds: 60, load_seconds: 300.0 };
/// How soon a revocation must cut: the list is looked at twice a second, the cut takes a second,
/// and the client must see it and end.
const CUT_WITHIN: Duration = Duration::from_secs(3);
/// How soon its pod has another certificate.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

struct Size {
    life_seconds: u32,
    load_seconds: f64,
}

#[test]
fn certificates_change_under_load_and_revocation_cuts() {
    let size = sized(FULL, USUAL);
    let life = format!("--control-flag=--workload-cert-ttl={}s", size.life_seconds);
    let machine = Machine::up("certs", Mesh::On, &[&life]);
    rotation(&machine, size.load_seconds);
    let identity = |account: &str, node: u8| {
        format!("spiffe://cluster.local/ns/client/sa/{account} on node-{node}")
    };
    revocation(&machine, "client/load", &identity("load", 1), "client/other");
    // Its connections stay on the node of the server.
    revocation(&machine, "client/near", &identity("other", 2), "client/load");
    machine.down();
}

fn rotation(machine: &Machine, seconds: f64) {
    let before = serials(machine);
    assert!(before.len() >= 3, "{before:?}");
    let load = |words: &str| machine.load("client/load", words);
    let long = load(&format!("long echo.app:9000 --connections 20 --seconds {seconds}"));
    let kept =
        load(&format!("load http://web.app/ --rate 50 --connections 5 --duration {seconds}s"));
    let close = "--rate 10 --connections 2 --close";
    let fresh = load(&format!("load http://web.app/ {close} --duration {seconds}s"));
    let (kept, fresh, long) = (kept.http(), fresh.http(), long.long());
    assert_eq!((kept.failed, fresh.failed), (0, 0), "{kept:?} {fresh:?}");
    assert_eq!((long.opened, long.cut), (20, 0), "{long:?}");
    let after = serials(machine);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (identity, serial) in &before {
        assert_ne!(after[identity], *serial, "{identity} has a new certificate");
    }
    let (kept, fresh, changed) = (kept.requests, fresh.requests, after.len());
    eprintln!("{seconds} s: none of {kept} + {fresh} requests failed, {changed} serials changed");
}

fn revocation(machine: &Machine, revoked: &str, identity: &str, other: &str) {
    let long = |pod| machine.load(pod, "long echo.app:9000 --connections 5 --seconds 8");
    let (mut cut, other) = (long(revoked), long(other));
    machine.wait("the connections stand", SETTLE_TIMEOUT, || machine.connections(9000).len() == 10);
    let socket = machine.layout.control_socket();
    let before = serials(machine);
    let cuts = || machine.log("proxy", Some("node-2")).matches("certificate was revoked").count();
    let cuts_before = cuts();
    let body = format!("{{\"pod\": \"{revoked}\"}}");
    let (status, answer) = machine.post(&socket, http::Method::POST, "/ca/revoke", &body);
    assert_eq!(status, 200, "{answer}");
    let revoked_at = std::time::Instant::now();
    machine.wait("its connections are cut", CUT_WITHIN, || cut.has_ended());
    let cut_after = revoked_at.elapsed();
    // What is revoked is a certificate, not the identity: the pod gets another and continues.
    let left = || REPLACED_WITHIN.saturating_sub(revoked_at.elapsed());
    machine.wait("it has another certificate", left(), || {
        let now = serials(machine);
        now.contains_key(identity) && now.get(identity) != before.get(identity)
    });
    machine.wait("it reaches the server again", left(), || {
        let again = machine.load(revoked, "long echo.app:9000 --connections 1 --seconds 0.2");
        let again = again.long();
        (again.opened, again.cut) == (1, 0)
    });
    let seconds = revoked_at.elapsed().as_secs_f64();
    eprintln!(
        "{revoked} is cut {cut_after:?} after its certificate was revoked, and connected again \
         after {seconds:.1} s"
    );
    let (cut, other) = (cut.long(), other.long());
    assert_eq!((cut.opened, cut.cut), (5, 5), "{cut:?}");
    assert_eq!((other.opened, other.cut), (5, 0), "{other:?}");
    machine.wait("the cuts are logged", SETTLE_TIMEOUT, || cuts() > cuts_before);
}

/// The serial number of each identity's certificate.
fn serials(machine: &Machine) -> BTreeMap<String, String> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |item: &serde_json::Value| {
        let key = format!("{} on {}", text(&item["identity"]), text(&item["node"]));
        (key, text(&item["certChain"][0]["serialNumber"]))
    };
    machine.list("certificates").iter().map(entry).collect()
}
