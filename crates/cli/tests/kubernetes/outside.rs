//! A computer outside of the cluster joins its mesh as a WorkloadEntry.
//!
//! The computer is a network namespace on the same wire as the nodes. It has an address of its own,
//! and the ways to the nodes' pods that a computer of that network has.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, NODES, Namespace, Said, must, until};

/// Where the computer is on the nodes' network.
const ADDRESS: &str = "10.66.0.77";
/// What the entry's service account is in policies.
const ACCOUNT: &str = "cluster.local/ns/outside/sa/legacy";
/// How the mesh reaches it, and whom it reaches.
const TO_IT: &str = "http://legacy.example.com:8080/";
const SERVER: &str = "http://server.outside.svc.cluster.local:8080/";
/// A user without rights.
const NOBODY: u32 = 65_534;
const REQUESTS: u32 = 10;

/// The computer, for as long as the value lives.
struct Computer<'a> {
    cluster: &'a Cluster,
    name: String,
    state: PathBuf,
    /// As an unprivileged user.
    user: Option<u32>,
}

impl<'a> Computer<'a> {
    fn new(cluster: &'a Cluster, user: Option<u32>) -> Self {
        let name = format!("outside-{}", std::process::id());
        let state = std::env::temp_dir().join(format!("ambit-{name}"));
        let computer = Self { cluster, name, state, user };
        let name = &computer.name;
        let routes: String = NODES
            .iter()
            .enumerate()
            .map(|(index, _)| (index + 1, format!("10.66.0.1{}", index + 1)))
            .map(|(node, via)| format!("ip -n {name} route add 10.244.{node}.0/24 via {via}\n"))
            .collect();
        // The cable is the machine's: it goes with either end.
        must(&computer.in_machine(&format!(
            "set -e\nip netns add {name}\nip -n {name} link set lo up\n\
             ip link add outside type veth peer name eth0 netns {name}\n\
             ip link set outside master br0 up\n\
             ip -n {name} addr add {ADDRESS}/24 dev eth0\nip -n {name} link set eth0 up\n{routes}"
        )));
        computer
    }

    /// Runs a script in the network of the nodes.
    fn in_machine(&self, script: &str) -> Said {
        let machine = self.cluster.machine();
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &machine, "--net", "--mount", "--pid", "sh", "-c", script]);
        nsenter.output().unwrap().into()
    }

    /// The ambit under test on the computer, which has this machine's files and no other network.
    fn ambit(&self, words: &[&str]) -> Said {
        let netns = format!("/proc/{}/root/run/netns/{}", self.cluster.machine(), self.name);
        let mut ambit = Command::new("nsenter");
        ambit.arg(format!("--net={netns}"));
        if let Some(user) = self.user {
            let user = user.to_string();
            ambit.args(["setpriv", "--clear-groups", "--reuid", &user, "--regid", &user]);
        }
        ambit.arg(std::env::var_os("AMBIT_BINARY").expect("AMBIT_BINARY is set"));
        // Behind the command, as flags go, and before what the command hands on.
        let (verb, rest) = words.split_first().unwrap();
        ambit.arg(verb).arg("--state").arg(&self.state).args(rest);
        ambit.current_dir("/").stdin(Stdio::null());
        ambit.output().unwrap().into()
    }

    fn join(&self, token: &str, command: &[&str]) -> Said {
        self.ambit(&[&["join", token, "--detach", "--"], command].concat())
    }

    /// How many of some requests of the joined command's pod fail.
    fn failed(&self, url: &str) -> u64 {
        let requests = REQUESTS.to_string();
        let said = self.ambit(&[
            "exec",
            "-n",
            "outside",
            "legacy",
            "--",
            "ambit",
            "load",
            url,
            "--rate",
            "50/s",
            "--requests",
            &requests,
            "--close",
            "--keep-going",
            "--output",
            "json",
        ]);
        let report: Result<ambit_load::Report, _> = serde_json::from_str(&said.out);
        report.unwrap_or_else(|error| panic!("{error}: {}{}", said.out, said.err)).failed
    }
}

impl Drop for Computer<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["lab.log", "proxy-node-200.log", "node-node-200.log"] {
                let text = std::fs::read_to_string(self.state.join("logs").join(log));
                eprintln!("{log}:\n{}", text.unwrap_or_default());
            }
        }
        let down = self.ambit(&["down"]);
        self.in_machine(&format!("ip link del outside; ip netns del {}", self.name));
        let removed = std::fs::remove_dir_all(&self.state);
        if !std::thread::panicking() {
            must(&down);
            drop(removed);
        }
    }
}

fn entry(namespace: &Namespace<'_>) -> String {
    let namespace = namespace.name;
    format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: legacy, namespace: {namespace}}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n\
         metadata: {{name: legacy, namespace: {namespace}, labels: {{app: legacy, \
         networking.istio.io/tunnel: http}}}}\n\
         spec: {{address: {ADDRESS}, serviceAccount: legacy, labels: {{app: legacy}}}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
         metadata: {{name: legacy, namespace: {namespace}}}\n\
         spec: {{hosts: [legacy.example.com], ports: [{{number: 8080, name: http, protocol: \
         HTTP}}], resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {{labels: {{app: \
         legacy}}}}}}\n"
    )
}

/// A token for the entry, by way of a node's port of control's Service.
fn token(cluster: &Cluster, control: SocketAddr) -> String {
    let said = cluster.ambit(&[
        "token",
        "create",
        "--kube",
        "-n",
        "outside",
        "--address",
        &control.to_string(),
        "legacy",
    ]);
    must(&said);
    said.out.trim().to_owned()
}

/// Where control is reached from outside of the cluster: at its pod, which the computer has a way
/// to, as it has to all pods.
fn control(cluster: &Cluster) -> SocketAddr {
    let pods = cluster.pods(crate::cluster::MESH, "app=istiod");
    let ip = pods[0]["status"]["podIP"].as_str().unwrap();
    format!("{ip}:15012").parse().unwrap()
}

#[test]
fn a_computer_outside_joins_the_mesh_with_and_without_root() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("outside");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    namespace.run("other", "n1", &["sample", "sleep"]);
    namespace.enrol();
    cluster.must_apply(&entry(&namespace));
    let control = control(&cluster);
    until("control has written its root to the namespace", || {
        cluster.kubectl(&["-n", "outside", "get", "configmap", "istio-ca-root-cert"]).is_success
    });
    drop(joined(&cluster, &namespace, control, Some(NOBODY)));
    let computer = joined(&cluster, &namespace, control, None);
    policies_hold(&cluster, &namespace, &computer);
    // Another token takes the place of the first.
    must(&computer.ambit(&["join", "--renew", &token(&cluster, control)]));
    assert_eq!(computer.failed(SERVER), 0);
    // Without its WorkloadEntry the computer is out of the mesh.
    cluster.ask(&["-n", "outside", "delete", "workloadentry", "legacy"]);
    until("the mesh takes nothing of the computer", || {
        computer.failed(SERVER) == u64::from(REQUESTS)
    });
    until("the computer says so", || {
        let said = computer.ambit(&["status"]);
        !said.is_success && said.out.contains("is not connected to control")
    });
}

/// A computer that has joined, after each has reached the other.
fn joined<'a>(
    cluster: &'a Cluster,
    namespace: &Namespace<'_>,
    control: SocketAddr,
    user: Option<u32>,
) -> Computer<'a> {
    let token = token(cluster, control);
    let computer = Computer::new(cluster, user);
    must(&computer.join(&token, &["ambit", "sample", "echo", "--listen", "[::]:8080"]));
    until("the mesh reaches the computer", || {
        namespace.load("client", TO_IT, REQUESTS).failed == 0
    });
    until("the computer reaches the mesh", || computer.failed(SERVER) == 0);
    computer
}

/// Policies by principal hold in both directions.
fn policies_hold(cluster: &Cluster, namespace: &Namespace<'_>, computer: &Computer<'_>) {
    let policy = |app: &str, principal: &str| {
        cluster.must_apply(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {app}, namespace: outside}}\n\
             spec: {{selector: {{matchLabels: {{app: {app}}}}}, rules: [{{from: [{{source: \
             {{principals: [{principal}]}}}}]}}]}}\n"
        ));
    };
    let all = u64::from(REQUESTS);
    policy("legacy", "cluster.local/ns/outside/sa/client");
    until("only one client is let in", || namespace.load("other", TO_IT, REQUESTS).failed == all);
    assert_eq!(namespace.load("client", TO_IT, REQUESTS).failed, 0);
    policy("server", ACCOUNT);
    until("only the computer is let in", || {
        namespace.load("other", SERVER, REQUESTS).failed == all
    });
    assert_eq!(computer.failed(SERVER), 0);
}
