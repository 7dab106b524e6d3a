//! A machine that joins another: its pods in the same mesh, over one connection that may break.
//!
//! Both machines are on this host, and meet at its loopback. A relay between them is the network
//! that can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambit_net::namespace::NetNs;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, Said};
use crate::policy::{connects, from, logged, policy};

/// How long a link may take to be there again, with everything that depends on it.
const BACK_WITHIN: Duration = Duration::from_secs(40);
/// What is dropped does not arrive in this time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Connections that say nothing: more than are kept of one source.
const STRANGERS: usize = 200;
const SIGKILL: i32 = 9;
/// A port that nobody has.
const SPOOFED_PORT: u16 = 7777;

/// Pods of the joined node: a server and a client; and secrets, of which they name one.
const FAR: &str = "
apiVersion: v1
kind: Secret
metadata: {name: named, namespace: app}
stringData: {word: shared}
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: app}
stringData: {word: hidden}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: app}
spec:
  selector: {app: far}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: app, labels: {app: far}}
spec:
  nodeName: node-3
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: ambit/sample:1
    args: [echo, --listen, '[::]:8080']
    env: [{name: WORD, valueFrom: {secretKeyRef: {name: named, key: word}}}]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: remote, namespace: client}
---
apiVersion: v1
kind: Pod
metadata: {name: remote, namespace: client}
spec:
  serviceAccountName: remote
  nodeSelector: {kubernetes.io/hostname: node-3}
  tolerations: [{key: ambit.io/joined, operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers: [{name: load, image: 'ambit/sample:1', args: [sleep]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere, namespace: app}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: 'ambit/sample:1', args: [sleep]}]
";

/// Pods that would have what is not home's.
const FOREIGN: &str = "
apiVersion: v1
kind: Pod
metadata: {name: program, namespace: app}
spec:
  nodeName: node-3
  containers: [{name: main, image: busybox, command: [cat, /etc/hostname]}]
---
apiVersion: v1
kind: Pod
metadata: {name: files, namespace: app}
spec:
  nodeName: node-3
  volumes: [{name: etc, hostPath: {path: /etc}}]
  containers:
  - name: main
    image: ambit/sample:1
    args: [sleep]
    volumeMounts: [{name: etc, mountPath: /host, readOnly: true}]
";

#[test]
fn a_machine_joins_another() {
    let home = Machine::up("home", Mesh::On, &["--join-address", "127.0.0.1:0"]);
    let joined = home.beside("joined");
    let relay = Relay::start();
    let token = create(&home, &["--address", &relay.address.to_string()]);
    let address = field(&create(&home, &["--node", "node-9"]), "address");
    relay.lead_to(&address);
    let _strangers: Vec<TcpStream> = (0..STRANGERS).map(|_| connected(&address)).collect();
    what_is_no_token_is_refused(&home, &joined, &token);
    let said = join(&joined, &token);
    assert!(said.status.success(), "ambit join: {}", said.err);
    assert!(said.err.contains("as node-3"), "{}", said.err);
    a_token_is_used_once(&home, &token);
    home.apply(FAR);
    are_ready(&home);
    home_chooses_no_program(&home);
    pods_meet_by_identity(&home, &joined);
    a_policy_holds(&home, &joined);
    secrets_stay_where_they_belong(&home, &joined);
    commands_are_for_the_machine_of_the_pod(&home, &joined);
    nobody_elses_address_passes(&home, &joined);
    a_cut_link_comes_back(&home, &joined, &relay);
    a_link_that_dies_comes_back(&home, &joined);
    a_deleted_node_is_gone(&home, &joined);
    joined.down();
    home.down();
}

fn connected(address: &str) -> TcpStream {
    TcpStream::connect(address).expect("home listens")
}

/// Users of home are not those of the joined computer: its programs and files are not theirs.
fn home_chooses_no_program(home: &Machine) {
    home.apply(FOREIGN);
    let said = |pod: &str| home.run(&["get", "pod", pod, "-n", "app", "-o", "json"]);
    home.wait("both are refused", SETTLE_TIMEOUT, || {
        said("program").contains("would run a program of the computer that joined")
            && said("files").contains("pods see nothing of /etc")
    });
    home.run(&["delete", "pod/program", "pod/files", "-n", "app"]);
}

/// Makes a token, which nobody but the command's user reads.
fn create(home: &Machine, flags: &[&str]) -> String {
    let words = [&["token", "create"], flags].concat();
    home.run(&words).trim().to_owned()
}

fn join(joined: &Machine, token: &str) -> Said {
    joined.ambit_with(&["join", "-", "--detach"], token)
}

fn content(token: &str) -> Value {
    let bytes = URL_SAFE_NO_PAD.decode(token).expect("a token is base64url");
    serde_json::from_slice(&bytes).expect("a token is JSON")
}

fn field(token: &str, name: &str) -> String {
    content(token)[name].as_str().expect("the token has it").to_owned()
}

/// The same token with another value of a field.
fn changed(token: &str, name: &str, value: &str) -> String {
    let mut content = content(token);
    content[name] = json!(value);
    URL_SAFE_NO_PAD.encode(content.to_string())
}

fn what_is_no_token_is_refused(home: &Machine, joined: &Machine, token: &str) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::default();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = parameters.self_signed(&key).expect("a root").pem();
    let nowhere = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let nowhere = nowhere.expect("a port").to_string();
    for (token, part) in [
        ("a word", "is not base64url"),
        (
            &*changed(token, "root", &root),
            "the other end does not prove that it is the machine of the token",
        ),
        (&*changed(token, "address", &nowhere), "Connection refused"),
        (&*changed(token, "secret", "guessed"), "the token is not known here"),
    ] {
        let said = join(joined, token);
        assert!(!said.status.success() && said.err.contains(part), "{part}: {}", said.err);
    }
    let said = home.ambit(&["token", "create", "--node", "node-2"]);
    assert!(said.err.contains("node-2 is there"), "{}", said.err);
    let said = home.ambit(&["token", "create", "--address", "0.0.0.0:1"]);
    assert!(said.err.contains("nobody can connect"), "{}", said.err);
    // Who tried has learnt nothing that home keeps, and no node is there.
    assert_eq!(home.list("nodes").len(), 2);
}

fn a_token_is_used_once(home: &Machine, token: &str) {
    let third = home.beside("third");
    let said = join(&third, token);
    let is_refused = said.err.contains("the token is not known here: it was used");
    assert!(!said.status.success() && is_refused, "{}", said.err);
}

fn are_ready(home: &Machine) {
    home.wait("the pods of the joined node are ready", BACK_WITHIN, || {
        let pods = home.pods();
        let far = pods.iter().filter(|pod| pod.node == "node-3" && pod.ready && pod.captured);
        far.count() == 2
    });
    assert!(!home.pods().iter().any(|it| it.owner == "everywhere" && it.node == "node-3"));
}

/// Whether a pod of the joined machine gets an answer.
fn reaches(joined: &Machine, host: &str) -> bool {
    connects(joined, "client/remote", host)
}

fn pods_meet_by_identity(home: &Machine, joined: &Machine) {
    home.wait("home's pods reach the joined machine's", SETTLE_TIMEOUT, || {
        connects(home, "client/load", "far.app")
    });
    home.wait("the joined machine's pods reach home's", SETTLE_TIMEOUT, || {
        reaches(joined, "web.app")
    });
    assert!(reaches(joined, "far.app"), "its own, too");
    let inbound = "direction=inbound";
    logged(joined, "node-3", &["connection complete", inbound, "sa/load", "far"]);
    logged(home, "node-2", &["connection complete", inbound, "sa/remote", "server"]);
}

fn a_policy_holds(home: &Machine, joined: &Machine) {
    // At home by the joined machine's identity, there by home's.
    let text = policy("only-remote", &format!("rules: [{{{}}}]", from("remote")));
    home.apply(&text);
    home.wait("home's proxy refuses others", SETTLE_TIMEOUT, || {
        !connects(home, "client/load", "web.app")
    });
    home.wait("the joined machine's proxy refuses others", SETTLE_TIMEOUT, || {
        !connects(home, "client/load", "far.app")
    });
    assert!(reaches(joined, "web.app") && reaches(joined, "far.app"));
    logged(joined, "node-3", &["connection failed", "sa/load", "only-remote"]);
    home.delete(&text);
    home.wait("all are let in", SETTLE_TIMEOUT, || connects(home, "client/load", "far.app"));
}

fn secrets_stay_where_they_belong(home: &Machine, joined: &Machine) {
    let word = joined.run(&["exec", "app/far", "--", "printenv", "WORD"]);
    assert_eq!(word.trim(), "shared");
    let secret = |name: &str| joined.layout.object("secrets", Some("app"), name);
    let mode = std::fs::metadata(secret("named")).expect("it is named").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!secret("other").exists(), "no pod of the node names it");
    let pod = std::fs::read_to_string(joined.layout.object("pods", Some("app"), "server"));
    let pod: Value = serde_json::from_str(&pod.expect("a pod of home")).expect("JSON");
    assert_eq!(pod["spec"]["containers"][0].get("args"), None, "{pod}");
    // Neither the token nor the key of a machine is in a log.
    let access = std::fs::read_to_string(joined.layout.root().join("join/home.json"));
    let access: Value = serde_json::from_str(&access.expect("kept")).expect("JSON");
    for machine in [home, joined] {
        for log in ["lab", "lab-link"] {
            let text = machine.log(log, None);
            for secret in ["secret", "key"] {
                assert!(!text.contains(access[secret].as_str().expect("a text")), "{log}");
            }
        }
    }
}

fn commands_are_for_the_machine_of_the_pod(home: &Machine, joined: &Machine) {
    for words in [&["exec", "app/far", "--", "true"][..], &["logs", "app/far"]] {
        let said = home.ambit(words);
        let part = "app/far runs on the computer that joined as node-3; run the command there";
        assert!(!said.status.success() && said.err.contains(part), "{words:?}: {}", said.err);
        joined.run(words);
    }
    let said = joined.ambit_with(&["apply", "-"], FAR);
    let is_told = said.err.contains("is a node of the one at") && !said.status.success();
    assert!(is_told, "{}", said.err);
    assert!(home.run(&["status"]).contains("node-3 is another computer, connected from"));
    let status = joined.run(&["status"]);
    assert!(status.contains("node-3 is connected to home") && status.contains("all is well"));
}

/// A packet with control's address, or a pod's of home, does not leave the joined machine; one with
/// its own does.
fn nobody_elses_address_passes(home: &Machine, joined: &Machine) {
    let network = |machine: &Machine, name: &str| {
        let all = machine.processes().into_iter();
        let pid = all.filter(|it| it.name == name).map(|it| it.host_pid).next();
        NetNs::of_pid(pid.expect("the program runs")).expect("its network")
    };
    let listen = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SPOOFED_PORT)).expect("a socket");
    let heard = network(home, "lab-node/node-2").run(listen).expect("entered");
    heard.set_read_timeout(Some(PATIENCE)).expect("bounded");
    let netns = network(joined, "lab-node/node-3");
    for (source, arrives) in [
        ("172.18.0.13", true),
        ("172.18.0.2", false),
        ("172.18.0.11", false),
        ("10.244.1.2", false),
        ("192.0.2.1", false),
        ("10.244.3.200", true),
    ] {
        let send = || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
            socket.set_ip_transparent_v4(true).expect("any address");
            let source = SocketAddr::new(source.parse().expect("an address"), 0);
            socket.bind(&source.into()).expect("bound");
            let to = SocketAddr::new(Ipv4Addr::new(172, 18, 0, 12).into(), SPOOFED_PORT);
            socket.send_to(source.to_string().as_bytes(), &to.into()).expect("sent");
        };
        netns.run(send).expect("entered");
        let received = heard.recv_from(&mut [0; 64]);
        assert_eq!(received.is_ok(), arrives, "{source}: {received:?}");
    }
}

/// Whether home says that the node's link works.
fn is_connected(home: &Machine) -> bool {
    let status = home.ask(async |client| client.status().await);
    let node = status.nodes.into_iter().find(|node| node.name == "node-3");
    node.and_then(|node| node.link).expect("it joined").connected
}

fn a_cut_link_comes_back(home: &Machine, joined: &Machine, relay: &Relay) {
    relay.set(false);
    home.wait("home notices", BACK_WITHIN, || !is_connected(home));
    let lost = |home: &Machine| {
        let pods = home.pods();
        let far = pods.iter().find(|pod| pod.name == "far").expect("it stays");
        !far.ready && far.reason.contains("NodeLost: node-3 is not connected")
    };
    home.wait("its pods are not ready", SETTLE_TIMEOUT, || lost(home));
    assert!(!connects(home, "client/load", "far.app"));
    let said = home.ambit(&["status"]);
    let is_said = said.out.contains("node-3 is another computer, and not connected");
    assert!(!said.status.success() && is_said, "{}", said.out);
    let said = joined.ambit(&["status"]);
    assert!(said.out.contains("node-3 is not connected to home"), "{}", said.out);
    assert!(reaches(joined, "far.app"), "the joined machine goes on by itself");
    relay.set(true);
    is_back(home, joined);
}

fn a_link_that_dies_comes_back(home: &Machine, joined: &Machine) {
    for machine in [home, joined] {
        machine.signal("lab-link", SIGKILL);
        is_back(home, joined);
    }
}

fn is_back(home: &Machine, joined: &Machine) {
    home.wait("the link is back", BACK_WITHIN, || {
        is_connected(home) && connects(home, "client/load", "far.app") && reaches(joined, "web.app")
    });
    are_ready(home);
}

fn a_deleted_node_is_gone(home: &Machine, joined: &Machine) {
    let said = home.ambit(&["delete", "node", "node-1"]);
    assert!(said.err.contains("is the machine's own and stays"), "{}", said.err);
    home.run(&["delete", "node", "node-3"]);
    assert_eq!(home.list("nodes").len(), 2);
    assert!(!home.pods().iter().any(|pod| pod.node == "node-3"));
    home.wait("the joined machine is told", BACK_WITHIN, || {
        let said = joined.ambit(&["status"]);
        let status = ["node-3 was deleted at home", "the token is not known here"];
        status.iter().any(|part| said.out.contains(part))
    });
    assert!(!connects(home, "client/load", "far.app"));
}

/// Connects both machines, until it is told not to.
struct Relay {
    address: SocketAddr,
    to: Arc<Mutex<Option<SocketAddr>>>,
    is_open: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = Self {
            address: listener.local_addr().expect("bound"),
            to: Arc::default(),
            is_open: Arc::new(AtomicBool::new(true)),
            open: Arc::default(),
        };
        let (to, is_open, open) = (relay.to.clone(), relay.is_open.clone(), relay.open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let to = *to.lock().expect("nobody panics");
                let (true, Some(to)) = (is_open.load(Ordering::SeqCst), to) else { continue };
                let Ok(far) = TcpStream::connect(to) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a copy");
                open.lock().expect("nobody panics").extend([copy(&near), copy(&far)]);
                for (from, to) in [(copy(&near), copy(&far)), (far, near)] {
                    std::thread::spawn(move || pass(from, to));
                }
            }
        });
        relay
    }

    fn lead_to(&self, address: &str) {
        *self.to.lock().expect("nobody panics") = Some(address.parse().expect("an address"));
    }

    /// Cuts what is open and refuses what comes, or lets it through again.
    fn set(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
        for stream in self.open.lock().expect("nobody panics").drain(..) {
            let _gone = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Passes on until either end is gone, and ends the other.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _gone = stream.shutdown(std::net::Shutdown::Both);
    }
}
