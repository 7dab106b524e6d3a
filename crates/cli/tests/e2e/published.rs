//! Ports of the host that lead to services: those of `--publish`, and those that the types of
//! services ask for.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::RangeInclusive;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

/// Those that services may have on nodes.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// Its pods have the addresses, and it has none.
const HEADLESS: &str = "\
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: app}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: tcp, port: 9001}]}
";

#[test]
fn services_are_reached_from_the_host() {
    let [flag, headless, balanced, other] = free([0; 4]);
    let [node, moved, taken] = in_range();
    let flags = [
        format!("--publish={flag}=app/banner:9001"),
        format!("--publish={headless}=app/headless:9001"),
    ];
    let of_nodes = typed("of-nodes", "NodePort", 9001, node);
    let both = format!("{HEADLESS}---\n{of_nodes}");
    let machine = Machine::up_with("published", Mesh::On, &[&flags[0], &flags[1]], &both);
    [flag, headless, node].into_iter().for_each(|port| greets(&machine, port));
    // What is applied later, and its own port beside the node port.
    let said = machine.apply(&typed("balanced", "LoadBalancer", balanced, moved));
    for port in [balanced, moved] {
        let told = format!("127.0.0.1:{port} leads to Service app/balanced port {balanced}");
        assert!(said.contains(&told), "{said}");
        greets(&machine, port);
    }
    // Applied again it is open already, and a port follows who asks for it.
    let said = machine.apply(&typed("balanced", "LoadBalancer", other, moved));
    assert!(!said.contains(&format!("127.0.0.1:{moved} ")), "{said}");
    [other, moved].into_iter().for_each(|port| greets(&machine, port));
    let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).expect("it was free");
    let said = machine.apply(&typed("late", "NodePort", 9001, taken));
    let told = format!("127.0.0.1:{taken} does not lead to Service app/late: Address already in");
    assert!(said.contains(&told) && said.contains("port-forward"), "{said}");
    machine.run(&["delete", "service/of-nodes", "-n", "app"]);
    machine.wait("who is gone does not answer", SETTLE_TIMEOUT, || greeting(node).is_empty());
    machine.down();
    for port in [flag, headless, node, balanced, moved] {
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "{port} is free again");
    }
}

#[test]
fn a_flag_that_leads_to_no_service_is_refused_before_anything_starts() {
    let machine = Machine::none("published-nowhere");
    for (publish, part) in [
        ("1024=app/nobody:80", "there is no Service app/nobody among the manifests"),
        ("1024=app/headless:80", "Service app/headless has no TCP port 80"),
        ("1024=app/headless/80", "there is no Gateway app/headless"),
    ] {
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: app}\n---\n";
        let flag = format!("--publish={publish}");
        let input = format!("{namespace}{HEADLESS}");
        let said = machine.ambit_with(&["up", "-", "--detach", &flag], &input);
        assert!(!said.status.success() && said.err.contains(part), "{publish}: {}", said.err);
        assert!(!machine.layout.lock().exists(), "nothing was started");
    }
}

/// A service of the pods that speak first.
fn typed(name: &str, of_type: &str, port: u16, node_port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: app}}\n\
         spec:\n  type: {of_type}\n  selector: {{app: server}}\n  ports: [{{name: tcp, \
         port: {port}, targetPort: 9001, nodePort: {node_port}}}]\n"
    )
}

fn greets(machine: &Machine, port: u16) {
    let what = format!("port {port} leads to a pod");
    machine.wait(&what, SETTLE_TIMEOUT, || greeting(port).trim() == "220 speaks first");
}

/// The first line of who answers at a port of the host.
fn greeting(port: u16) -> String {
    let mut line = String::new();
    if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        stream.set_read_timeout(Some(SETTLE_TIMEOUT)).expect("set");
        // Who is cut has said nothing.
        let _cut = BufReader::new(stream).read_line(&mut line);
    }
    line
}

/// Ports of the host that nobody uses now.
fn free<const N: usize>(ports: [u16; N]) -> [u16; N] {
    let open = ports.map(|it| TcpListener::bind((Ipv4Addr::LOCALHOST, it)).expect("a free port"));
    open.map(|it| it.local_addr().expect("it has an address").port())
}

/// Node ports that nobody of the host uses now.
fn in_range() -> [u16; 3] {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let found: Vec<u16> = NODE_PORTS.rev().filter(is_free).take(3).collect();
    found.try_into().expect("three are free")
}
