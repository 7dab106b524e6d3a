//! One machine, driven by the user's commands; it must leave nothing behind but logs.
//!
//! The binary is run as a user runs it. Only where a user has no command (a signal to a program, a
//! proxy's admin socket) does the harness use the same sockets that the commands use. Every wait is
//! bounded and polls its condition; a wait that fails names the condition.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ambit_machine::layout::Layout;
use ambit_machine::objects::{Kind, ObjectRef};
use ambit_machine::{Client, ClientError, PodInfo, ProcessInfo, Record, processes};
use ambit_net::local_http;
use serde_json::Value;

use crate::load::Load;
use crate::remains::Footprint;

/// The application that every test drives, without its namespaces.
const APP: &str = include_str!("manifests/app.yaml");
/// Its namespaces, labelled.
pub(crate) const MESH_ON: &str = include_str!("manifests/mesh-on.yaml");
/// Its namespaces, without labels.
pub(crate) const MESH_OFF: &str = include_str!("manifests/mesh-off.yaml");

/// How long a change may take to be in force everywhere.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Puts the namespace of the servers behind a waypoint whose Deployment is patched.
const PATCHED_WAYPOINT: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: parameters, namespace: app}
data: {deployment: \"PATCH\"}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: app}
spec:
  gatewayClassName: ambit-waypoint
  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: parameters}}
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Namespace
metadata:
  name: app
  labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: waypoint}
";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a program's administration may take to answer.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// As much of each log is shown when a test fails.
const LOG_SHOWN_BYTES: usize = 12 << 10;

/// A program that is not the project's, for a test that is left out where there is none.
pub(crate) fn other_program(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable);
    path.unwrap_or_else(|| panic!("set {variable} to the path of the program")).into()
}

/// Only one machine lives at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Whether the namespaces `app` and `client` are in the mesh from the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mesh {
    On,
    Off,
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A running machine; dropping it takes it down.
pub(crate) struct Machine {
    pub(crate) layout: Layout,
    name: &'static str,
    is_down: bool,
    /// None for one beside another, whose turn it is.
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Machine {
    /// Brings the application up.
    pub(crate) fn up(name: &'static str, mesh: Mesh, flags: &[&str]) -> Self {
        Self::up_with(name, mesh, flags, "")
    }

    /// Brings the application up, and more beside it.
    pub(crate) fn up_with(name: &'static str, mesh: Mesh, flags: &[&str], more: &str) -> Self {
        let machine = Self::none(name);
        let mut words = vec!["up", "-", "--detach"];
        words.extend(flags);
        let said = machine.ambit_with(&words, &format!("{}\n---\n{more}", app(mesh)));
        assert!(said.status.success(), "ambit up: {}", said.err);
        if mesh == Mesh::On {
            machine.wait_until_meshed();
        }
        machine
    }

    /// Brings the application up in the mesh; no process of it may open more files than this.
    pub(crate) fn up_with_open_files(name: &'static str, limit: usize) -> Self {
        Self::up_with_open_files_and(name, limit, &[], "")
    }

    /// The same with flags, and more beside it.
    pub(crate) fn up_with_open_files_and(
        name: &'static str,
        limit: usize,
        flags: &[&str],
        more: &str,
    ) -> Self {
        let machine = Self::none(name);
        let limited = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &limited]).arg(binary());
        let child = machine.start(command, &[&["up", "-", "--detach"], flags].concat());
        let said = feed(child, &format!("{}\n---\n{more}", app(Mesh::On)));
        assert!(said.status.success(), "ambit up: {}", said.err);
        machine.wait_until_meshed();
        machine
    }

    /// A state directory where no machine runs yet.
    pub(crate) fn none(name: &'static str) -> Self {
        Self::none_in("/tmp", name)
    }

    /// The same where pods see what is beside it: `/tmp` is their own.
    pub(crate) fn none_in(directory: &str, name: &'static str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let state = PathBuf::from(format!("{directory}/ambit-e2e-{}-{name}", std::process::id()));
        let layout = Layout::new(state);
        Self { layout, name, is_down: false, _turn: Some(turn) }
    }

    /// A state directory beside a machine, where none runs yet.
    pub(crate) fn beside(&self, name: &'static str) -> Self {
        let state = PathBuf::from(format!("/tmp/ambit-e2e-{}-{name}", std::process::id()));
        Self { layout: Layout::new(state), name, is_down: false, _turn: None }
    }

    /// Runs a command of the user.
    pub(crate) fn ambit(&self, words: &[&str]) -> Said {
        self.ambit_with(words, "")
    }

    /// Runs a command of the user with text on its standard input.
    pub(crate) fn ambit_with(&self, words: &[&str], input: &str) -> Said {
        feed(self.spawn(words), input)
    }

    /// Runs a command of the user by way of a program that starts it elsewhere.
    pub(crate) fn ambit_by(&self, program: Command, words: &[&str], input: &str) -> Said {
        feed(self.start(program, words), input)
    }

    /// Runs a command of a user whose environment has this variable.
    pub(crate) fn ambit_with_variable(
        &self,
        (name, value): (&str, &Path),
        words: &[&str],
        input: &str,
    ) -> Said {
        let mut command = Command::new(binary());
        command.env(name, value);
        feed(self.start(command, words), input)
    }

    /// Starts a command of the user.
    pub(crate) fn spawn(&self, words: &[&str]) -> Child {
        self.start(Command::new(binary()), words)
    }

    fn start(&self, mut command: Command, words: &[&str]) -> Child {
        command
            .args(words)
            .env("AMBIT_STATE", self.layout.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts")
    }

    /// Runs a command that must succeed and returns what it printed.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let said = self.ambit(words);
        assert!(said.status.success(), "ambit {}: {}{}", words.join(" "), said.out, said.err);
        said.out
    }

    /// Applies manifests; returns the warnings.
    pub(crate) fn apply(&self, manifests: &str) -> String {
        let said = self.ambit_with(&["apply", "-"], manifests);
        assert!(said.status.success(), "ambit apply: {}", said.err);
        said.err
    }

    /// Deletes what manifests name.
    pub(crate) fn delete(&self, manifests: &str) {
        let said = self.ambit_with(&["delete", "-"], manifests);
        assert!(said.status.success(), "ambit delete: {}", said.err);
    }

    /// The items of `ambit get KIND -o json`.
    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let text = self.run(&["get", kind, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).expect("it prints JSON");
        list["items"].as_array().expect("a list has items").clone()
    }

    /// What `ambit why` says.
    pub(crate) fn why(&self, source: &str, destination: &str) -> Value {
        let text = self.run(&["why", source, destination, "-o", "json"]);
        serde_json::from_str(&text).expect("it prints JSON")
    }

    /// Runs a bash script in a pod; returns its output and ignores its exit code.
    pub(crate) fn bash(&self, pod: &str, script: &str) -> String {
        let said = self.ambit(&["exec", pod, "--", "bash", "-c", script]);
        format!("{}{}", said.out, said.err)
    }

    /// Starts load in a pod: the words of `ambit lab-load`, or those of `ambit load` with `load`.
    pub(crate) fn load(&self, pod: &str, words: &str) -> Load {
        let mut all = vec!["exec", pod, "--", "ambit"];
        if !words.starts_with("load ") {
            all.push("lab-load");
        }
        all.extend(words.split_whitespace());
        if words.starts_with("load ") {
            all.extend(["--keep-going", "--output", "json"]);
        }
        Load::new(self.spawn(&all), format!("{pod}: {words}"))
    }

    /// Looks again until it is so; fails when it takes too long.
    pub(crate) fn wait(&self, what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < limit, "waited {limit:?} in vain until {what}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The namespace of the servers uses a waypoint from now on, which what `is_there` asks passes.
    pub(crate) fn put_behind_waypoint(&self, is_there: impl FnMut() -> bool) {
        let words = "waypoint apply -n app --enroll-namespace --wait";
        self.run(&words.split(' ').collect::<Vec<_>>());
        self.wait("what is asked passes the waypoint", SETTLE_TIMEOUT, is_there);
    }

    /// The same, with this patch of the waypoint's Deployment; with another one, its pods change.
    pub(crate) fn put_behind_patched_waypoint(
        &self,
        deployment: &str,
        is_there: impl FnMut() -> bool,
    ) {
        self.apply(&PATCHED_WAYPOINT.replace("PATCH", deployment));
        self.wait("what is asked passes the waypoint", SETTLE_TIMEOUT, is_there);
    }

    /// What a pod is answered that asks for a page, such as `127.0.0.1/15020` for `/metrics`.
    pub(crate) fn page(&self, pod: &str, address: &str, path: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n");
        let script =
            format!("exec 3<>/dev/tcp/{address} && printf '{request}' >&3 && timeout 5 cat <&3");
        self.bash(pod, &script)
    }

    /// Waits until the labelled pods are captured and every proxy may offer them HBONE.
    pub(crate) fn wait_until_meshed(&self) {
        self.wait("all pods are captured", SETTLE_TIMEOUT, || self.has_protocol("HBONE"));
    }

    /// Whether all labelled pods are reached like this.
    pub(crate) fn has_protocol(&self, protocol: &str) -> bool {
        let workloads = self.list("workloads");
        let mut meshed = workloads.iter().filter(|item| item["namespace"] != "outside");
        meshed.all(|item| item["protocol"] == protocol)
    }

    /// Live connections to this port that the proxies know of, outbound.
    pub(crate) fn connections(&self, port: u16) -> Vec<Value> {
        let mut all = self.list("connections");
        let suffix = format!(":{port}");
        all.retain(|item| {
            let to = item["destinationAddress"].as_str().unwrap_or_default();
            item["direction"] == "outbound" && to.ends_with(&suffix)
        });
        all
    }

    /// The command line's client, for what has no command.
    pub(crate) fn ask<T>(&self, ask: impl AsyncFnOnce(Client) -> Result<T, ClientError>) -> T {
        block_on(ask(Client::new(self.layout.clone()))).expect("the machine answers")
    }

    /// The pods.
    pub(crate) fn pods(&self) -> Vec<PodInfo> {
        self.ask(async |client| client.pods().await)
    }

    /// The names of the pods of the waypoint `app/waypoint` that serve.
    pub(crate) fn waypoint_pods(&self) -> Vec<String> {
        let serves = |it: &PodInfo| {
            it.namespace == "app" && it.owner == "waypoint" && it.ready && !it.terminating
        };
        self.pods().into_iter().filter(serves).map(|it| it.name).collect()
    }

    /// One pod's address of a family.
    pub(crate) fn pod_ip(&self, namespace: &str, name: &str, v6: bool) -> String {
        let pods = self.pods();
        let pod = pods.iter().find(|pod| pod.namespace == namespace && pod.name == name);
        let pod = pod.expect("the pod exists");
        let ip = pod.pod_ips.iter().find(|ip| ip.is_ipv6() == v6);
        ip.expect("the pod has an address of each family").to_string()
    }

    /// Sends a signal to one of the mesh's programs, such as `proxy/node-1`.
    pub(crate) fn signal(&self, role: &str, signal: i32) {
        self.ask(async |client| client.kill(role, signal).await);
    }

    /// How often one of the mesh's programs was started again.
    pub(crate) fn restarts(&self, role: &str) -> u32 {
        let status = self.ask(async |client| client.status().await);
        let role = status.roles.iter().find(|it| it.name == role);
        role.expect("the machine has this program").restarts
    }

    /// All processes of the machine, as the host sees them.
    pub(crate) fn processes(&self) -> Vec<ProcessInfo> {
        let record = Record::read(&self.layout).expect("the machine is recorded");
        processes(&record, &self.pods()).expect("/proc can be read")
    }

    /// The host's numbers of a node's workers; one, except while one hands over to another.
    pub(crate) fn workers(&self, node: &str) -> Vec<i32> {
        let name = format!("worker/{node}");
        let all = self.processes().into_iter();
        all.filter(|process| process.name == name).map(|process| process.host_pid).collect()
    }

    /// Asks a proxy's admin interface.
    pub(crate) fn admin(&self, node: &str, method: http::Method, target: &str) -> String {
        self.post(&self.layout.proxy_admin_socket(node), method, target, "").1
    }

    /// Sends a request to a socket: the status and the body.
    pub(crate) fn post(
        &self,
        socket: &Path,
        method: http::Method,
        target: &str,
        body: &str,
    ) -> (u16, String) {
        let body = bytes::Bytes::from(body.to_owned());
        let answer = local_http::request(socket, method, target, body, ADMIN_TIMEOUT);
        let (status, body) = block_on(answer).expect("the program answers");
        (status.as_u16(), String::from_utf8_lossy(&body).into_owned())
    }

    /// Whether a node's proxy answers, and that it is ready.
    pub(crate) fn is_ready(&self, node: &str) -> bool {
        let socket = self.layout.proxy_admin_socket(node);
        let (method, body) = (http::Method::GET, bytes::Bytes::new());
        let answer = local_http::request(&socket, method, "/healthz/ready", body, ADMIN_TIMEOUT);
        block_on(answer).is_ok_and(|(status, _)| status.is_success())
    }

    /// The sum of a counter's samples on a node whose labels include all of these.
    pub(crate) fn counted(&self, node: &str, metric: &str, labels: &[&str]) -> u64 {
        sum(&self.admin(node, http::Method::GET, "/metrics"), metric, labels)
    }

    /// The log of a program of the mesh.
    pub(crate) fn log(&self, role: &str, node: Option<&str>) -> String {
        std::fs::read_to_string(self.layout.role_log(role, node)).unwrap_or_default()
    }

    /// How many TCP connections were begun in a pod's namespace, ever.
    pub(crate) fn connects_begun(&self, pod: &str) -> u64 {
        let snmp = std::fs::read_to_string(format!("/proc/{}/net/snmp", self.pid(pod)));
        let snmp = snmp.expect("the pod has a network");
        let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (tcp.next().expect("names"), tcp.next().expect("values"));
        let mut pairs = names.split(' ').zip(values.split(' '));
        let begun = pairs.find(|(name, _)| *name == "ActiveOpens").expect("the kernel counts");
        begun.1.parse().expect("a number")
    }

    /// Process 1 of a pod.
    pub(crate) fn pid(&self, pod: &str) -> i32 {
        let name = format!("pod {pod}");
        let all = self.processes();
        let pid = all.iter().find(|process| process.name == name).map(|process| process.host_pid);
        pid.expect("the pod runs")
    }

    /// Open connections of a pod to a port, by its own kernel table.
    ///
    /// The kernel does not stop while it writes the table, so that a look may miss some: wait for a
    /// number, do not assert it.
    pub(crate) fn established(&self, pod: &str, port: u16) -> usize {
        let pid = self.pid(pod);
        let mut count = 0;
        for table in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"));
            let text = text.unwrap_or_default();
            let suffix = format!(":{port:04X}");
            count += text
                .lines()
                .filter_map(|line| {
                    let mut fields = line.split_whitespace().skip(2);
                    Some((fields.next()?, fields.next()?))
                })
                .filter(|(remote, state)| remote.ends_with(&suffix) && *state == "01")
                .count();
        }
        count
    }

    /// Everything by which the machine could be recognised after its end.
    pub(crate) fn footprint(&self) -> Footprint {
        let record = Record::read(&self.layout).expect("the machine is recorded");
        Footprint::of(&self.layout, &record, &self.processes())
    }

    /// Takes it down and looks for what is left.
    pub(crate) fn down(mut self) {
        let footprint = self.footprint();
        self.is_down = true;
        self.run(&["down"]);
        footprint.assert_gone();
        self.remove_logs();
    }

    /// After a `down` that the test ran itself.
    pub(crate) fn was_taken_down(mut self, footprint: &Footprint) {
        self.is_down = true;
        footprint.assert_gone();
        self.remove_logs();
    }

    fn remove_logs(&self) {
        if self.layout.root().exists() {
            std::fs::remove_dir_all(self.layout.root()).expect("the logs can be removed");
        }
    }

    fn show_logs(&self) {
        let logs = self.layout.logs();
        let Ok(entries) = std::fs::read_dir(&logs) else { return };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.is_file()) {
            let text = std::fs::read(path).unwrap_or_default();
            let tail = &text[text.len().saturating_sub(LOG_SHOWN_BYTES)..];
            eprintln!("--- {}\n{}", path.display(), String::from_utf8_lossy(tail));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== the logs of machine {}", self.name);
            self.show_logs();
        }
        if self.is_down {
            return;
        }
        let exists = self.layout.record().exists();
        let footprint = (exists && !std::thread::panicking()).then(|| self.footprint());
        if exists {
            let said = self.ambit(&["down"]);
            if !said.status.success() {
                eprintln!("ambit down: {}", said.err);
            }
        }
        self.remove_logs();
        // A test that fails already has its reason; a second panic would only hide it.
        if let Some(footprint) = footprint {
            footprint.assert_gone();
        }
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { status: output.status, out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Gives a command its standard input and waits for its end.
fn feed(mut child: Child, input: &str) -> Said {
    let mut stdin = child.stdin.take().expect("its input is a pipe");
    // A command that refuses its arguments never reads its input.
    let _unread = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the command ends").into()
}

/// The application with its namespaces.
pub(crate) fn app(mesh: Mesh) -> String {
    let namespaces = if mesh == Mesh::On { MESH_ON } else { MESH_OFF };
    format!("{namespaces}---\n{APP}")
}

/// A Deployment of the application's namespace.
pub(crate) fn deployment(name: &str) -> ObjectRef {
    ObjectRef::new(Kind::Deployment, Some("app"), name)
}

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    let named = std::env::var_os("AMBIT_BINARY").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_ambit")))
}

/// Runs a question to its answer.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(future)
}

/// The sum of a metric's samples whose labels include all of these.
pub(crate) fn sum(text: &str, metric: &str, labels: &[&str]) -> u64 {
    let samples = text.lines().filter(|line| {
        let rest = line.strip_prefix(metric);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    samples.filter_map(value).sum::<f64>() as u64
}
