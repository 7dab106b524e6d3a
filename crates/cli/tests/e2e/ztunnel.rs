//! A real ztunnel instead of a proxy of ours: under Ambit's control plane and agent, with Ambit's
//! proxy as its peer.
//!
//! `AMBIT_ZTUNNEL` names its program.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, other_program, sum};
use crate::policy::{connects, from, logged, policy};

const NORTH: &str = include_str!("manifests/north.yaml");
/// Bytes each way of each transfer.
const BULK_BYTES: u64 = 32 << 20;

#[test]
#[ignore = "needs a program that AMBIT_ZTUNNEL names"]
fn ztunnel_and_ambit_proxy_stand_in_for_one_another() {
    let ztunnel = other_program("AMBIT_ZTUNNEL");
    let flag = format!("--proxy=node-2={}", ztunnel.to_string_lossy());
    let machine = Machine::up("ztunnel", Mesh::On, &[&flag]);
    assert!(machine.log("proxy", Some("node-2")).contains("ztunnel"), "it is ztunnel that runs");
    machine.apply(NORTH);
    machine.wait("the server on node-1 is in the mesh", SETTLE_TIMEOUT, || {
        machine.list("workloads").iter().any(|it| it["name"] == "north" && it["healthy"] == true)
            && machine.has_protocol("HBONE")
    });
    for (client, service) in [("client/load", "echo"), ("client/near", "north")] {
        let words = format!("bulk {service}.app:9000 --bytes {BULK_BYTES}");
        let result = machine.load(client, &words).bulk();
        assert!(result.matching && result.bytes_each_way == BULK_BYTES, "{client}: {result:?}");
        let words = format!("long {service}.app:9000 --connections 50 --seconds 2");
        let result = machine.load(client, &words).long();
        assert_eq!((result.opened, result.cut), (50, 0), "{client}: {result:?}");
        eprintln!("{client} to {service}: slowest ping {} ms", result.slowest_ping_us / 1000);
    }
    counted_on_both_sides(&machine);
    enforced_by_ztunnel(&machine);
    enforced_by_ambit(&machine);
    machine.down();
}

/// Both ends of each direction count the same bytes, under mutual TLS.
fn counted_on_both_sides(machine: &Machine) {
    for (service, client_node, server_node) in [("echo", 1, 2), ("north", 2, 1)] {
        for (node, reporter) in [(client_node, "source"), (server_node, "destination")] {
            let reporter = format!("reporter=\"{reporter}\"");
            let service = format!("destination_service_name=\"{service}\"");
            let labels = [&*reporter, &*service, "connection_security_policy=\"mutual_tls\""];
            let what = format!("node-{node} has counted {labels:?}");
            machine.wait(&what, SETTLE_TIMEOUT, || {
                let metrics = scrape(machine, node);
                let sum = |metric| sum(&metrics, metric, &labels);
                sum("istio_tcp_connections_opened_total") == 51
                    && sum("istio_tcp_sent_bytes_total") >= BULK_BYTES
                    && sum("istio_tcp_received_bytes_total") >= BULK_BYTES
            });
        }
    }
}

/// A node's metrics over the network, as Prometheus gets them.
fn scrape(machine: &Machine, node: u8) -> String {
    let request = "GET /metrics HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n";
    let address = format!("/dev/tcp/172.18.0.{}/15020", 10 + node);
    let script = format!("exec 3<>{address} && printf '{request}' >&3 && timeout 10 cat <&3");
    machine.bash("outside/stranger", &script)
}

fn enforced_by_ztunnel(machine: &Machine) {
    let selected = "selector: {matchLabels: {app: server}}";
    let text = policy("only-load", &format!("{selected}, rules: [{{{}}}]", from("load")));
    machine.apply(&text);
    machine
        .wait("ztunnel refuses", SETTLE_TIMEOUT, || !connects(machine, "client/other", "web.app"));
    assert!(connects(machine, "client/load", "web.app"));
    logged(machine, "node-2", &["sa/other", "policy rejection", "direction=\"inbound\""]);
    machine.delete(&text);
    machine
        .wait("ztunnel lets in", SETTLE_TIMEOUT, || connects(machine, "client/other", "web.app"));
}

fn enforced_by_ambit(machine: &Machine) {
    let text = policy("no-other", &format!("action: DENY, rules: [{{{}}}]", from("other")));
    machine.apply(&text);
    machine.wait("the proxy refuses", SETTLE_TIMEOUT, || {
        !connects(machine, "client/near", "north.app")
    });
    assert!(connects(machine, "client/load", "north.app"));
    logged(machine, "node-1", &["connection failed", "sa/other", "app/no-other"]);
}
