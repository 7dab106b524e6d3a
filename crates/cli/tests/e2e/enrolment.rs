//! Into the mesh and out of it while the applications run: what is open stays, what is new
//! switches.

use std::time::Duration;

use crate::load::{Everyday, LONG};
use crate::machine::{MESH_OFF, MESH_ON, Machine, Mesh, SETTLE_TIMEOUT};

/// How long the load runs that was there before.
const SECONDS: f64 = 12.0;
/// How long new connections may take to show up.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn a_running_pair_joins_and_leaves_without_losing_a_byte() {
    let machine = Machine::up("enrol", Mesh::Off, &[]);
    let before = Everyday::start(&machine, SECONDS);
    assert_eq!(machine.connections(9000).len(), 0, "nothing is captured yet");

    machine.apply(MESH_ON);
    machine.wait_until_meshed();
    // What was open goes on past the proxies, what is new goes through them.
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
