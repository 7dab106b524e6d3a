//! Ports of the host that lead to services: those of `--publish`, and those that the types of
//! services ask for.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use ambit_machine::Record;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

/// Those that services may have on nodes.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// Files that a process of a machine may open, as in a shell that nobody has configured. An eighth
/// is for sessions of UDP.
const FILES: usize = 1024;
/// After so long a datagram counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Its pods have the addresses, and it has none.
const HEADLESS: &str = "\
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: app}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: tcp, port: 9001}]}
";

/// It answers each datagram with it and the address from which it came.
const DATAGRAMS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: datagrams, namespace: app, labels: {app: datagrams}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - name: server
    image: python
    command:
    - python3
    - -uc
    - |
      import socket
      server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
      server.bind((\"0.0.0.0\", 5353))
      while True:
          said, client = server.recvfrom(65535)
          server.sendto(said + b\" from %d\" % client[1], client)
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
    let told =
        format!("127.0.0.1:{taken} (TCP) does not lead to Service app/late: Address already in");
    assert!(said.contains(&told) && said.contains("port-forward"), "{said}");
    machine.run(&["delete", "service/of-nodes", "-n", "app"]);
    machine.wait("who is gone does not answer", SETTLE_TIMEOUT, || greeting(node).is_empty());
    machine.down();
    for port in [flag, headless, node, balanced, moved] {
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "{port} is free again");
    }
}

#[test]
fn services_of_udp_are_reached_from_the_host() {
    let [flag] = free([0; 1]);
    let [node, ..] = in_range();
    let flag_words = format!("--publish={flag}/udp=app/datagrams:9053");
    let both = format!("{DATAGRAMS}---\n{}", of_datagrams(node));
    let machine = Machine::up_with_open_files_and("published-udp", FILES, &[&flag_words], &both);
    // By the service's own address first, from a pod of the mesh.
    let asked = "exec 3<>/dev/udp/datagrams.app.svc/9053; printf hello >&3; \
        timeout 5 dd bs=512 count=1 <&3 2> /dev/null";
    machine.wait("the service answers a pod", SETTLE_TIMEOUT, || {
        machine.bash("client/other", asked).starts_with("hello from ")
    });
    let clients = [flag, flag, node].map(Client::of);
    let sources = clients.each_ref().map(|it| it.wait(&machine, "the service answers"));
    assert_ne!(sources[0], sources[1], "each client of a port has its own session");
    assert_eq!(clients[0].ask().as_ref(), Some(&sources[0]), "and keeps it");
    many_clients_leave_files_for_others(&machine, flag);
    // Another pod takes its place, at another address, while the client goes on.
    machine.delete(DATAGRAMS);
    machine.wait("who is gone does not answer", SETTLE_TIMEOUT, || clients[0].ask().is_none());
    let said = machine.apply(DATAGRAMS);
    let warned = "warning: image \"python\" is not on this machine: container server of Pod \
                  app/datagrams runs \"python3\" of this computer";
    assert_eq!(said.matches(warned).count(), 1, "{said}");
    clients[0].wait(&machine, "the new pod answers");
    // Its pod stays, and nothing leads there any more.
    machine.run(&["delete", "service/datagrams", "-n", "app"]);
    machine.wait("its sessions end", SETTLE_TIMEOUT, || clients[0].ask().is_none());
    machine.apply(&of_datagrams(node));
    clients[0].wait(&machine, "the service is there again");
    machine.down();
    let _free = UdpSocket::bind((Ipv4Addr::LOCALHOST, node)).expect("it is free again");
}

/// More clients than there may be sessions.
fn many_clients_leave_files_for_others(machine: &Machine, port: u16) {
    let before = open_files(machine);
    let clients: Vec<Client> = (0..FILES).map(|_| Client::of(port)).collect();
    for (index, client) in clients.iter().enumerate() {
        assert!(client.ask().is_some(), "client {index} is answered");
    }
    let opened = open_files(machine).saturating_sub(before);
    assert!((FILES / 16..=FILES / 8).contains(&opened), "{opened} more files are open");
    assert!(machine.ambit(&["get", "pods"]).status.success());
    assert_eq!(machine.bash("client/other", "echo well").trim(), "well");
}

/// How many files process 1 of the machine has open.
fn open_files(machine: &Machine) -> usize {
    let record = Record::read(&machine.layout).expect("the machine is recorded");
    let files = format!("/proc/{}/fd", record.pid);
    std::fs::read_dir(files).expect("it runs").count()
}

/// A service of type NodePort of the pod that answers datagrams.
fn of_datagrams(node: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: datagrams, namespace: app}}\nspec:\n  \
         type: NodePort\n  selector: {{app: datagrams}}\n  ports: [{{port: 9053, protocol: UDP, \
         targetPort: 5353, nodePort: {node}}}]\n"
    )
}

/// Who sends datagrams to a port of the host, always from the same one.
struct Client {
    socket: UdpSocket,
    asked: Cell<u32>,
}

impl Client {
    fn of(port: u16) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        socket.connect((Ipv4Addr::LOCALHOST, port)).expect("an address");
        Self { socket, asked: Cell::new(0) }
    }

    /// From where the service saw this question, if it answers it in time. Answers to others may
    /// come late.
    fn ask(&self) -> Option<String> {
        self.asked.set(self.asked.get() + 1);
        let question = self.asked.get().to_string();
        self.socket.send(question.as_bytes()).ok()?;
        let latest = Instant::now() + ANSWER_TIMEOUT;
        let mut buffer = [0; 64];
        loop {
            let left = latest.checked_duration_since(Instant::now()).filter(|it| !it.is_zero())?;
            self.socket.set_read_timeout(Some(left)).expect("set");
            let length = self.socket.recv(&mut buffer).ok()?;
            let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if let Some(source) = answer.strip_prefix(&format!("{question} from ")) {
                return Some(source.to_owned());
            }
        }
    }

    /// The same as soon as there is an answer.
    fn wait(&self, machine: &Machine, what: &str) -> String {
        let mut source = None;
        machine.wait(what, 2 * SETTLE_TIMEOUT, || {
            source = self.ask();
            source.is_some()
        });
        source.expect("it has answered")
    }
}

#[test]
fn a_flag_that_leads_to_no_service_is_refused_before_anything_starts() {
    let machine = Machine::none("published-nowhere");
    for (publish, part) in [
        ("1024=app/nobody:80", "there is no Service app/nobody among the manifests"),
        ("1024=app/headless:80", "Service app/headless has no TCP port 80"),
        ("1024/udp=app/headless:9001", "Service app/headless has no UDP port 9001"),
        ("0.0.0.0:1024/udp=app/headless:9001", "UDP needs one address"),
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
