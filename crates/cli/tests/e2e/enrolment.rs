//! Into the mesh and out of it while the applications run: open connections stay, new ones switch.

use std::time::Duration;

use crate::load::{Everyday, LONG, Load};
use crate::machine::{MESH_OFF, MESH_ON, Machine, Mesh, SETTLE_TIMEOUT};
use crate::policy::{assert_why, connects, logged};

/// How long the load runs that was there before.
const SECONDS: f64 = 12.0;
/// How long connections are held while one end after the other joins and leaves.
const HELD_SECONDS: f64 = 14.0;
/// How long new connections may take to show up.
const SOON: Duration = Duration::from_secs(3);
/// How long new connections may fail while their server joins under STRICT: from its capture until
/// the clients' proxies know that they must tunnel.
const JOINS_WITHIN_MS: u64 = 1000;
/// No plain text to the servers.
const STRICT: &str = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                      metadata: {name: default, namespace: app}\nspec: {mtls: {mode: STRICT}}\n";
/// What a refusal of plain text names.
const STRICT_POLICY: &str = "istio-system/istio_converted_static_strict";

#[test]
fn a_running_pair_joins_and_leaves_without_losing_a_byte() {
    let machine = Machine::up("enrol", Mesh::Off, &[]);
    let before = Everyday::start(&machine, SECONDS);
    assert_eq!(machine.connections(9000).len(), 0, "nothing is captured yet");

    machine.apply(MESH_ON);
    machine.wait_until_meshed();
    // Open connections continue past the proxies, new ones go through them.
    let captured = || machine.pods().iter().all(|it| it.captured == (it.namespace != "outside"));
    assert!(captured(), "also by the machine's own list, which is the demonstration's");
    let older = machine.run(&["status"]);
    assert!(older.contains("older than"), "status counts what was open: {older}");
    let listed = machine.ambit(&["get", "connections"]).err;
    let note = "more open connections, older than its capture: in plain text";
    assert!(listed.contains(note), "so does the list of connections, which lacks them: {listed}");
    machine.wait("what was open stands", SOON, || machine.established("client/load", 9000) == LONG);
    let during = machine.load("client/load", "long echo.app:9000 --connections 5 --seconds 8");
    machine.wait("new connections are tunnelled", SOON, || machine.connections(9000).len() == 5);
    for connection in machine.connections(9000) {
        assert_eq!(connection["plan"], "tunnel", "{connection}");
        assert_eq!(connection["sourceIdentity"], "spiffe://cluster.local/ns/client/sa/load");
        assert_eq!(connection["destinationIdentity"], "spiffe://cluster.local/ns/app/sa/server");
    }
    for (node, reporter) in [("node-1", "source"), ("node-2", "destination")] {
        assert!(opened(&machine, node, reporter) >= 5, "{node} counts them");
    }

    machine.apply(MESH_OFF);
    machine.wait("no pod is captured", SETTLE_TIMEOUT, || machine.has_protocol("TCP"));
    let counted = opened(&machine, "node-1", "source");
    let after = machine.load("client/load", "long echo.app:9000 --connections 7 --seconds 2");
    machine.wait("newer connections stand", SOON, || {
        machine.established("client/load", 9000) >= LONG + 5 + 7
    });
    assert_eq!(machine.connections(9000).len(), 5, "the newer ones pass no proxy");
    assert_eq!(opened(&machine, "node-1", "source"), counted, "nor are they counted");

    let after = after.long();
    assert_eq!((after.opened, after.cut), (7, 0), "{after:?}");
    let during = during.long();
    assert_eq!((during.opened, during.cut), (5, 0), "{during:?}");
    let outcome = before.end();
    eprintln!("{}", outcome.summary());
    outcome.assert_whole("enrolment and its end");
    machine.down();
}

fn opened(machine: &Machine, node: &str, reporter: &str) -> u64 {
    let labels = [format!("reporter=\"{reporter}\""), "_service_name=\"echo\"".to_owned()];
    let labels: Vec<&str> = match reporter {
        "source" => labels.iter().map(String::as_str).collect(),
        _ => vec![&labels[0]],
    };
    machine.counted(node, "istio_tcp_connections_opened_total", &labels)
}

/// Under STRICT, one end at a time: what is open never notices, what is new is refused as long as
/// the server demands an identity that its client cannot prove.
#[test]
fn under_strict_the_ends_join_and_leave_one_by_one() {
    let machine = Machine::up("enrol-strict", Mesh::Off, &[]);
    machine.apply(STRICT);
    let plain = Held::open(&machine, "client/load", 20);
    let near = Held::open(&machine, "client/near", 20);
    answered(&machine, true, "who is not in the mesh enforces nothing");

    server_alone(&machine);
    let direct = client_alone(&machine);
    let tunnelled = both(&machine, &direct);
    client_left(&machine);
    enrol(&machine, "app", Mesh::Off);
    answered(&machine, true, "nobody is in the mesh any more");
    let after = Held::open(&machine, "client/load", 3);
    for held in [plain, near, direct, tunnelled, after] {
        held.assert_never_cut();
    }
    machine.down();
}

/// A server that demands an identity, and clients that have none.
fn server_alone(machine: &Machine) {
    enrol(machine, "app", Mesh::On);
    answered(machine, false, "its clients are not in the mesh");
    for (pod, logged_as) in [("client/load", "workload=load"), ("client/near", "workload=near")] {
        assert_why(machine, pod, "app/web:80", "deny", &[STRICT_POLICY, "enrol the client"]);
        let parts = ["connection failed", "direction=inbound", logged_as, STRICT_POLICY];
        logged(machine, "node-2", &parts);
    }
    enrol(machine, "app", Mesh::Off);
    answered(machine, true, "the server has left the mesh");
}

/// A client that would prove its identity, and a server that nobody could prove it to.
fn client_alone(machine: &Machine) -> Held {
    enrol(machine, "client", Mesh::On);
    answered(machine, true, "the server is not in the mesh");
    let why = machine.why("client/load", "app/web:80");
    assert_eq!((&why["decision"], &why["plan"]), (&"allow".into(), &"direct".into()), "{why:#}");
    let direct = Held::open(machine, "client/load", 5);
    machine.wait("they go in plain text", SOON, || plans(machine, "direct") == 5);
    direct
}

/// The second end joins; plain-text connections that are open continue.
fn both(machine: &Machine, direct: &Held) -> Held {
    let fresh = "load http://web.app/ --rate 50 --connections 2 --close --duration 2s";
    let before = machine.connects_begun("client/load");
    let fresh = machine.load("client/load", fresh);
    // Too short to be seen as connections.
    machine.wait("requests are made", SOON, || machine.connects_begun("client/load") > before);
    enrol(machine, "app", Mesh::On);
    let fresh = fresh.http();
    let failed = &fresh.failed_at_ms;
    let (first_ms, last_ms) = (failed.iter().min(), failed.iter().max());
    let down_ms = last_ms.unwrap_or(&0) - first_ms.unwrap_or(&0);
    let (failed, requests) = (failed.len(), fresh.requests);
    eprintln!("the server joined: {failed} of {requests} requests failed, for {down_ms} ms");
    assert!(down_ms <= JOINS_WITHIN_MS, "{fresh:?}");
    answered(machine, true, "both ends are in the mesh");
    assert!(!connects(machine, "outside/stranger", "web.app"), "it proves no identity");
    let tunnelled = Held::open(machine, "client/load", 7);
    machine.wait("new ones are tunnelled", SOON, || plans(machine, "tunnel") == 7);
    assert_eq!(plans(machine, "direct"), direct.count, "what was open stands");
    tunnelled
}

/// The client leaves first: its open connections continue, its new ones prove nothing.
fn client_left(machine: &Machine) {
    enrol(machine, "client", Mesh::Off);
    answered(machine, false, "its clients have left the mesh");
    assert_eq!((plans(machine, "direct"), plans(machine, "tunnel")), (5, 7), "they stand");
}

/// Connections that are held while ends join and leave.
struct Held {
    load: Load,
    count: usize,
}

impl Held {
    fn open(machine: &Machine, pod: &str, count: usize) -> Self {
        let before = machine.established(pod, 9000);
        let words = format!("long echo.app:9000 --connections {count} --seconds {HELD_SECONDS}");
        let load = machine.load(pod, &words);
        machine.wait("the connections stand", SOON, || {
            machine.established(pod, 9000) >= before + count
        });
        Self { load, count }
    }

    fn assert_never_cut(self) {
        let long = self.load.long();
        assert_eq!((long.opened, long.cut), (self.count as u64, 0), "{long:?}");
    }
}

/// Takes a namespace into the mesh or out of it, and waits until that is so.
fn enrol(machine: &Machine, namespace: &str, mesh: Mesh) {
    let (labels, protocol) = match mesh {
        Mesh::On => (", labels: {istio.io/dataplane-mode: ambient}", "HBONE"),
        Mesh::Off => ("", "TCP"),
    };
    machine.apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}{labels}}}\n"
    ));
    machine.wait(&format!("{namespace} speaks {protocol}"), SETTLE_TIMEOUT, || {
        let workloads = machine.list("workloads");
        let mut own = workloads.iter().filter(|item| item["namespace"] == namespace);
        own.all(|item| item["protocol"] == protocol)
    });
}

/// New connections from the other node and from the server's own are answered, or none is.
fn answered(machine: &Machine, expected: bool, why: &str) {
    for pod in ["client/load", "client/near"] {
        assert_eq!(connects(machine, pod, "web.app"), expected, "{pod}: {why}");
    }
}

/// Live connections to the echo server with this plan.
fn plans(machine: &Machine, plan: &str) -> usize {
    machine.connections(9000).iter().filter(|item| item["plan"] == plan).count()
}
