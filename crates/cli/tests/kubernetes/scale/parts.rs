//! The processes that are measured, and those that simulate the cluster.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ambit_load::Report;
use serde::Serialize;
use serde_json::{Value, json};

use super::{NAMESPACES, NODES, Size};
use crate::cluster::{Cluster, MESH, Namespace, until, until_within};

/// How long kwok may take until it has reported all of 50,000 pods as running.
const RUNNING: Duration = Duration::from_secs(1800);
/// How often the kernel counts a process's time.
const TICKS: f64 = 100.0;
/// How long the load around rollouts lasts: as long as the changes, and a bit.
const LOAD_S: u32 = 75;
/// Rollouts of one Deployment meanwhile.
const ROLLOUTS: u32 = 3;

/// The processes of one part of the mesh.
pub(super) struct Part<'a> {
    cluster: &'a Cluster,
    node: String,
    pub(super) pids: Vec<String>,
    address: Option<Ipv4Addr>,
}

/// What processes use.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Usage {
    rss_kb: u64,
    /// The most it ever was.
    peak_kb: u64,
    cpu_s: f64,
}

impl Usage {
    /// The memory now, and the processor time since then.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self { cpu_s: ((self.cpu_s - before.cpu_s) * 100.0).round() / 100.0, ..*self }
    }
}

impl<'a> Part<'a> {
    /// The one control plane.
    pub(super) fn control(cluster: &'a Cluster) -> Self {
        until("control runs", || Self::find_control(cluster).is_some());
        Self::find_control(cluster).unwrap()
    }

    pub(super) fn find_control(cluster: &'a Cluster) -> Option<Self> {
        let pods = cluster.pods(MESH, "app=istiod");
        let pod = pods.iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_null())?;
        let node = pod["spec"]["nodeName"].as_str()?;
        let address = pod["status"]["podIP"].as_str()?.parse().ok()?;
        Self::find(cluster, node, "^/ambit control", Some(address))
    }

    /// Supervisor and worker of a node.
    pub(super) fn proxy(cluster: &'a Cluster, node: &str) -> Self {
        Self::find(cluster, node, "^/ambit proxy|proxy.* --worker", None).unwrap()
    }

    /// The agent of a node.
    pub(super) fn agent(cluster: &'a Cluster, node: &str) -> Self {
        Self::find(cluster, node, "^/ambit node", None).unwrap()
    }

    fn find(
        cluster: &'a Cluster,
        node: &str,
        pattern: &str,
        address: Option<Ipv4Addr>,
    ) -> Option<Self> {
        let said = cluster.on_node(node, &["pgrep", "-f", pattern]);
        let pids: Vec<String> = said.out.split_whitespace().map(str::to_owned).collect();
        let node = node.to_owned();
        (!pids.is_empty()).then_some(Self { cluster, node, pids, address })
    }

    /// Memory and processor time, of all processes together.
    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for pid in &self.pids {
            let files = [format!("/proc/{pid}/status"), format!("/proc/{pid}/stat")];
            let said = self.cluster.on_node(&self.node, &["cat", &files[0], &files[1]]);
            assert!(said.is_success, "process {pid} on {}: {}", self.node, said.err);
            let kb = |name: &str| -> u64 {
                let line = said.out.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
            };
            let after_name = said.out.rsplit_once(") ").unwrap().1;
            let fields: Vec<&str> = after_name.split_whitespace().collect();
            let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
            usage.rss_kb += kb("VmRSS:");
            usage.peak_kb += kb("VmHWM:");
            usage.cpu_s += (ticks(11) + ticks(12)) / TICKS;
        }
        usage
    }

    /// The directory of its first process, as this process sees it.
    fn process(&self) -> String {
        let init = self.cluster.state().join(format!("{}.init", self.node));
        let init = std::fs::read_to_string(init).unwrap();
        format!("/proc/{}/root/proc/{}", init.trim(), self.pids[0])
    }

    /// Ends it at once.
    pub(super) fn kill(&self) {
        let said = self.cluster.on_node(&self.node, &["kill", "-KILL", &self.pids.join(" ")]);
        assert!(said.is_success, "{}", said.err);
    }

    /// Whether its discovery port takes connections.
    pub(super) fn is_ready(&self) -> bool {
        let address = self.address.expect("it has an address");
        let test = format!("exec 3<>/dev/tcp/{address}/15012");
        self.cluster.on_node(&self.node, &["bash", "-c", &test]).is_success
    }
}

/// Lets both nodes, where control and the load are, come before all else on the processors.
/// Elsewhere they have machines of their own, and so has the API server.
pub(super) fn prefer_nodes(cluster: &Cluster) {
    for node in ["n1", "n2"] {
        let (file, weight) = weight_of(cluster, node);
        std::fs::write(file, weight).unwrap();
    }
}

/// Where the kernel has the weight of a node's pods, and what comes first there.
fn weight_of(cluster: &Cluster, node: &str) -> (PathBuf, &'static str) {
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", cluster.machine())).unwrap();
    let mut words = command.trim_end_matches('\0').rsplit('\0');
    let is_large = words.next() == Some("large");
    assert!(is_large, "not started for a thousand nodes: cargo xtask e2e kubernetes --down first");
    let groups = words.next().unwrap();
    let version_1 = PathBuf::from(format!("/sys/fs/cgroup/cpu/{groups}-{node}/cpu.shares"));
    match version_1.exists() {
        true => (version_1, "10240"),
        false => (format!("/sys/fs/cgroup/{groups}-{node}/cpu.weight").into(), "1000"),
    }
}

/// The CPU weights of control and the fleet while one size is measured.
pub(super) fn weights(cluster: &Cluster, control: &Part, fleet: &Fleet) -> Value {
    let weight = std::fs::read_to_string(weight_of(cluster, &control.node).0).unwrap();
    let fleet = std::fs::read_to_string(fleet.autogroup()).unwrap();
    json!({"control": weight.trim(), "fleet": fleet.trim()})
}

/// Seconds of processor time that the host has kept from this machine.
pub(super) fn stolen_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let all = text.lines().next().unwrap();
    let ticks: f64 = all.split_whitespace().nth(8).unwrap().parse().unwrap();
    ticks / TICKS
}

/// Plays the kubelets of nodes that do not exist.
pub(super) struct Kwok(Child);

impl Kwok {
    pub(super) fn start(cluster: &Cluster) -> Self {
        let mut kwok = Command::new("nsenter");
        kwok.args(["--target", &cluster.machine(), "--net", "--mount"]);
        kwok.args(["/mnt/bin/kwok", "--kubeconfig", "/mnt/cfg/admin.kubeconfig"]);
        // Each renews its lease every minute, a thousand of them in the same API server.
        kwok.args(["--config", "/run/scripts/kwok.yaml", "--node-lease-duration-seconds", "240"]);
        kwok.args(["--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake"]);
        let log = std::fs::File::create(cluster.state().join("log/kwok.log")).unwrap();
        kwok.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self(kwok.spawn().unwrap())
    }
}

impl Drop for Kwok {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// `ambit lab-scale` in the network namespace of a process.
fn lab_scale(cluster: &Cluster, process: &str, part: &str, size: Size, nodes: u32) -> Command {
    let mut ambit = Command::new("nsenter");
    ambit.arg(format!("--net={process}/ns/net"));
    ambit.arg(std::env::var_os("AMBIT_BINARY").expect("AMBIT_BINARY is set"));
    ambit.args(["lab-scale", part, "--kubeconfig"]);
    ambit.arg(cluster.state().join("cfg/admin.kubeconfig"));
    let Size { pods, services } = size;
    for (flag, value) in
        [("nodes", nodes), ("namespaces", NAMESPACES), ("services", services), ("pods", pods)]
    {
        ambit.arg(format!("--{flag}={value}"));
    }
    ambit
}

/// Makes the cluster so large, and waits until every pod runs.
pub(super) fn populate(cluster: &Cluster, size: Size, (pods, services): (u32, u32)) -> Value {
    let start = std::time::Instant::now();
    let api_server = format!("/proc/{}", cluster.machine());
    let mut populate = lab_scale(cluster, &api_server, "populate", size, NODES);
    populate.arg(format!("--pods-before={pods}")).arg(format!("--services-before={services}"));
    let output = populate.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the cluster could not be populated");
    let written = start.elapsed();
    until_within(RUNNING, "every pod runs", || {
        let waits = "--field-selector=status.phase!=Running";
        cluster.ask(&["get", "pods", "-A", waits, "-o", "name"]).trim().is_empty()
    });
    json!({"writtenSeconds": written.as_secs(), "runSeconds": start.elapsed().as_secs()})
}

/// The proxies of so many nodes.
pub(super) struct Fleet {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Fleet {
    pub(super) fn start(cluster: &Cluster, size: Size, proxies: u32) -> Self {
        let words = ["-n", MESH, "get", "configmap", "istio-ca-root-cert", "-o"];
        let roots = cluster.ask(&[&words[..], &[r"jsonpath={.data.root-cert\.pem}"]].concat());
        let path = cluster.state().join("log/scale-roots.pem");
        std::fs::write(&path, roots).unwrap();
        let control = Part::control(cluster);
        let address = control.address.unwrap();
        // Beside control, in its pod's network: the links and rules of two nodes between them would
        // cost the one machine twice what they cost in the middle of two.
        let in_pod = lab_scale(cluster, &control.process(), "fleet", size, proxies);
        // A session of its own has a share of the processors of its own.
        let mut fleet = Command::new("setsid");
        fleet.arg(in_pod.get_program()).args(in_pod.get_args());
        fleet.arg("--server").arg(format!("https://{address}:15012")).arg("--roots").arg(path);
        fleet.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = fleet.spawn().unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let fleet = Self { child, commands, answers: BufReader::new(answers) };
        let ours =
            std::fs::read("/proc/self/autogroup").expect("a kernel with CONFIG_SCHED_AUTOGROUP");
        until("the fleet has a session", || std::fs::read(fleet.autogroup()).unwrap() != ours);
        std::fs::write(fleet.autogroup(), "-10").unwrap();
        fleet
    }

    /// Where the kernel has its share of the processors.
    fn autogroup(&self) -> String {
        format!("/proc/{}/autogroup", self.child.id())
    }

    /// Gives a command.
    pub(super) fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// The answer to the last command.
    pub(super) fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the fleet ended: {error}"))
    }

    /// Gives a command and waits for its answer.
    pub(super) fn ask(&mut self, command: &str) -> Value {
        self.tell(command);
        let answer = self.answer();
        eprintln!("scale | {command} | {answer}");
        answer
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// New connections to a real Deployment while it is rolled out again and again.
pub(super) struct Rollouts {
    load: Child,
    rollouts: std::thread::JoinHandle<()>,
}

impl Rollouts {
    /// Two servers that keep serving for five seconds after they are asked to end, and a client.
    pub(super) fn deploy(cluster: &Cluster, namespace: &Namespace) {
        namespace.run("web", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
        namespace.run("load", "n1", &["sample", "sleep"]);
        let patch = json!({"spec": {"replicas": 2, "template": {"spec": {
            "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "sample", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}],
        }}}});
        cluster.ask(&["-n", namespace.name, "patch", "deployment/web", "-p", &patch.to_string()]);
        cluster.await_rollout(namespace.name, "deployment/web");
    }

    pub(super) fn start(cluster: &Cluster, namespace: &Namespace) -> Self {
        let mut load = cluster.command();
        load.args(["-n", namespace.name, "exec", "deployment/load", "--", "/ambit", "load"]);
        load.args(["http://web:8080/?size=200", "--rate", "10", "--connections", "2", "--close"]);
        load.args(["--keep-going", "--output", "json", "--duration", &format!("{LOAD_S}s")]);
        let load = load.stdout(Stdio::piped()).spawn().unwrap();
        let (state, name) = (cluster.state().to_owned(), namespace.name);
        let rollouts = std::thread::spawn(move || {
            let cluster = Cluster::at(state);
            for _ in 0..ROLLOUTS {
                cluster.ask(&["-n", name, "rollout", "restart", "deployment/web"]);
                cluster.await_rollout(name, "deployment/web");
            }
        });
        Self { load, rollouts }
    }

    pub(super) fn end(self) -> Value {
        self.rollouts.join().unwrap();
        let output = self.load.wait_with_output().unwrap();
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        json!({"rollouts": ROLLOUTS, "connections": report.requests, "failed": report.failed})
    }
}
