//! The cluster under test: kubectl, commands in pods, logs, and waits that end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use ambit_load::Report;
use serde_json::Value;

/// Where the mesh is installed.
pub(crate) const MESH: &str = "istio-system";
/// Its nodes.
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
/// How long anything may take to happen in the cluster.
const PATIENCE: Duration = Duration::from_secs(90);
const STEP: Duration = Duration::from_millis(200);

/// Who uses the cluster: many side by side, each in its own namespaces, or one that disturbs what
/// all of them rely on.
static TURN: RwLock<()> = RwLock::new(());

/// The cluster that `cargo xtask e2e kubernetes` started.
pub(crate) struct Cluster {
    state: PathBuf,
    _turn: Turn,
}

/// Held as long as the cluster is used.
enum Turn {
    Shared {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Alone {
        _guard: RwLockWriteGuard<'static, ()>,
    },
    /// Of a part of a test that has its turn.
    Inherited,
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) is_success: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Cluster {
    /// The cluster that the environment names, for a test that stays in its namespaces.
    pub(crate) fn open() -> Self {
        let guard = TURN.read().unwrap_or_else(PoisonError::into_inner);
        Self { state: named_state(), _turn: Turn::Shared { _guard: guard } }
    }

    /// The same for a test that stops, changes or looks at what others rely on.
    pub(crate) fn alone() -> Self {
        let guard = TURN.write().unwrap_or_else(PoisonError::into_inner);
        Self { state: named_state(), _turn: Turn::Alone { _guard: guard } }
    }

    /// The cluster whose state is in a directory, for a part of a test that has opened it.
    pub(crate) fn at(state: PathBuf) -> Self {
        Self { state, _turn: Turn::Inherited }
    }

    /// Where its state is.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// kubectl, still without words.
    pub(crate) fn command(&self) -> Command {
        Command::new(self.state.join("k"))
    }

    /// Runs kubectl.
    pub(crate) fn kubectl(&self, words: &[&str]) -> Said {
        self.command().args(words).output().unwrap().into()
    }

    /// Runs a command in all namespaces of a node.
    pub(crate) fn on_node(&self, node: &str, words: &[&str]) -> Said {
        Command::new(self.state.join("node")).arg(node).args(words).output().unwrap().into()
    }

    /// `kill -9` of every process of a node whose command line matches; answers how many.
    pub(crate) fn kill(&self, node: &str, pattern: &str) -> usize {
        let said = self.on_node(node, &["pkill", "-KILL", "--count", "-f", pattern]);
        said.out.trim().parse().unwrap_or(0)
    }

    /// Sets the replicas of a Deployment and waits until it has them.
    pub(crate) fn scale(&self, namespace: &str, deployment: &str, replicas: usize) {
        let (count, selector) = (format!("--replicas={replicas}"), format!("app={deployment}"));
        self.ask(&["-n", namespace, "scale", &format!("deployment/{deployment}"), &count]);
        until("the Deployment has its replicas", || {
            self.pods(namespace, &selector).len() == replicas
        });
        self.await_rollout(namespace, &format!("deployment/{deployment}"));
    }

    /// Deletes what manifests name.
    pub(crate) fn remove(&self, manifests: &str) {
        let said = self.feed(&["delete", "-f", "-"], manifests);
        assert!(said.is_success, "{}{}", said.out, said.err);
    }

    /// A kubeconfig for the owner of this token.
    pub(crate) fn kubeconfig_of(&self, token: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ambit-kubeconfig-{}", std::process::id()));
        std::fs::copy(self.state.join("cfg/admin.kubeconfig"), &path).unwrap();
        let file = path.display().to_string();
        let config = |words: &[&str]| {
            let said = self.kubectl(&[&["--kubeconfig", &file, "config"], words].concat());
            assert!(said.is_success, "{}", said.err);
        };
        config(&["set-credentials", "bearer", &format!("--token={token}")]);
        config(&["set-context", "--current", "--user=bearer"]);
        path
    }

    /// Runs the ambit under test against the cluster.
    pub(crate) fn ambit(&self, words: &[&str]) -> Said {
        self.ambit_as(&self.admin(), words)
    }

    /// Runs the ambit under test with another kubeconfig.
    pub(crate) fn ambit_as(&self, kubeconfig: &Path, words: &[&str]) -> Said {
        self.ambit_command(kubeconfig, words).output().unwrap().into()
    }

    /// The ambit under test, not started yet. Its process is the child itself.
    pub(crate) fn ambit_command(&self, kubeconfig: &Path, words: &[&str]) -> Command {
        let mut ambit = Command::new("nsenter");
        ambit.arg(format!("--net=/proc/{}/ns/net", self.machine()));
        ambit.arg(std::env::var_os("AMBIT_BINARY").expect("AMBIT_BINARY is set"));
        ambit.args(words).arg("--kubeconfig").arg(kubeconfig);
        ambit
    }

    /// The kubeconfig of the cluster's administrator.
    pub(crate) fn admin(&self) -> PathBuf {
        self.state.join("cfg/admin.kubeconfig")
    }

    /// Process 1 of the machine that the cluster is on.
    pub(crate) fn machine(&self) -> String {
        let init = std::fs::read_to_string(self.state.join("machine.init")).unwrap();
        init.trim().to_owned()
    }

    /// Holds the API server still.
    pub(crate) fn stop_api_server(&self, duration: Duration) {
        let machine = self.machine();
        let signal = |signal: &str| {
            let mut nsenter = Command::new("nsenter");
            nsenter.args(["--target", &machine, "--pid", "--mount", "pkill", signal, "-f"]);
            assert!(nsenter.arg("^kube-apiserver").status().unwrap().success());
        };
        signal("-STOP");
        std::thread::sleep(duration);
        signal("-CONT");
    }

    /// Holds the kubelet of a node still.
    pub(crate) fn stop_kubelet(&self, node: &str, duration: Duration) {
        let signal = |signal: &str| {
            let said = self.on_node(node, &["pkill", signal, "-f", "^kubelet"]);
            assert!(said.is_success, "{}{}", said.out, said.err);
        };
        signal("-STOP");
        std::thread::sleep(duration);
        signal("-CONT");
    }

    /// Runs helm.
    pub(crate) fn helm(&self, words: &[&str]) -> Said {
        Command::new(self.state.join("helm")).args(words).output().unwrap().into()
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let said = self.kubectl(words);
        assert!(said.is_success, "kubectl {}: {}{}", words.join(" "), said.out, said.err);
        said.out
    }

    /// Applies manifests; says what the API server answered, which may be no.
    pub(crate) fn apply(&self, manifests: &str) -> Said {
        self.feed(&["apply", "-f", "-"], manifests)
    }

    /// Creates many objects at once, as fast as the API server takes them.
    pub(crate) fn create(&self, manifests: &str) -> Said {
        self.feed(&["create", "-f", "-"], manifests)
    }

    fn feed(&self, words: &[&str], manifests: &str) -> Said {
        let mut kubectl = self.command();
        kubectl.args(words).stdin(Stdio::piped());
        let mut child = kubectl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    }

    /// Applies manifests that must be taken.
    pub(crate) fn must_apply(&self, manifests: &str) {
        let said = self.apply(manifests);
        assert!(said.is_success, "{}{}", said.out, said.err);
    }

    /// A namespace that lives as long as the value.
    pub(crate) fn namespace(&self, name: &'static str) -> Namespace<'_> {
        self.ask(&["create", "namespace", name]);
        Namespace { cluster: self, name }
    }

    /// Waits until the rollout of a Deployment or DaemonSet is complete.
    pub(crate) fn await_rollout(&self, namespace: &str, object: &str) {
        let limit = format!("--timeout={}s", PATIENCE.as_secs());
        self.ask(&["-n", namespace, "rollout", "status", object, &limit]);
    }

    /// Pods of a namespace that carry a label.
    pub(crate) fn pods(&self, namespace: &str, selector: &str) -> Vec<Value> {
        let text = self.ask(&["-n", namespace, "get", "pods", "-l", selector, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Logs of all pods of a namespace that carry a label.
    pub(crate) fn logs(&self, namespace: &str, selector: &str) -> String {
        self.ask(&["-n", namespace, "logs", "-l", selector, "--tail=-1", "--prefix"])
    }
}

/// A namespace of one test.
pub(crate) struct Namespace<'a> {
    cluster: &'a Cluster,
    pub(crate) name: &'static str,
}

impl Namespace<'_> {
    /// Puts it into the mesh and waits until its pods are captured.
    pub(crate) fn enrol(&self) {
        let label = "istio.io/dataplane-mode=ambient";
        self.cluster.ask(&["label", "namespace", self.name, label]);
        self.await_captured();
    }

    /// Waits until all of its pods are captured.
    pub(crate) fn await_captured(&self) {
        until("every pod is captured", || self.captured().into_iter().all(|captured| captured));
    }

    /// Takes it out and waits until no pod is captured.
    pub(crate) fn release(&self) {
        self.cluster.ask(&["label", "namespace", self.name, "istio.io/dataplane-mode-"]);
        until("no pod is captured", || !self.captured().into_iter().any(|captured| captured));
    }

    /// How many connections of a Deployment's one pod to this port are open.
    pub(crate) fn established(&self, app: &str, port: u16) -> usize {
        let pods = self.cluster.pods(self.name, &format!("app={app}"));
        let text = |pointer: &str| pods[0].pointer(pointer).unwrap().as_str().unwrap();
        let count = format!(
            "for ns in /run/netns/*; do nsenter --net=$ns ss -Htn state established \
             src {} dport = :{port}; done | wc -l",
            text("/status/podIP")
        );
        let said = self.cluster.on_node(text("/spec/nodeName"), &["sh", "-c", &count]);
        said.out.trim().parse().unwrap_or(0)
    }

    /// Whether each of its pods is captured.
    fn captured(&self) -> Vec<bool> {
        let pods = self.cluster.pods(self.name, "app");
        assert!(!pods.is_empty(), "there are pods in {}", self.name);
        pods.iter().map(is_captured).collect()
    }

    /// An application of the samples on a node, with a service of the same name at port 8080.
    pub(crate) fn run(&self, name: &str, node: &str, words: &[&str]) {
        let manifests = application(self.name, name, node, words);
        self.cluster.must_apply(&manifests);
        self.cluster.await_rollout(self.name, &format!("deployment/{name}"));
    }

    /// An application as [`Namespace::run`]'s, ready only when the kubelet's probe passes.
    pub(crate) fn run_probed(&self, name: &str, node: &str) {
        let words = ["sample", "echo", "--listen", "[::]:8080"];
        let manifests = application(self.name, name, node, &words);
        let probe = "        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}\n";
        self.cluster.must_apply(&format!("{manifests}{probe}"));
        self.cluster.await_rollout(self.name, &format!("deployment/{name}"));
    }

    /// Waits until the client's node forwards the Service: kube-proxy learns of a pod only after
    /// the API server has called it ready.
    pub(crate) fn await_served(&self, client: &str, url: &str) {
        until("the client's node forwards the Service", || self.load(client, url, 1).failed == 0);
    }

    /// Whether the pods of one application are captured.
    pub(crate) fn is_captured(&self, app: &str) -> bool {
        let pods = self.cluster.pods(self.name, &format!("app={app}"));
        pods.iter().all(is_captured)
    }

    /// Load from a client's pod: so many requests, each on a connection of its own.
    pub(crate) fn load(&self, client: &str, url: &str, requests: u32) -> Report {
        let (client, requests) = (format!("deployment/{client}"), requests.to_string());
        let text = self.cluster.ask(&[
            "-n",
            self.name,
            "exec",
            &client,
            "--",
            "/ambit",
            "load",
            url,
            "--rate",
            "50/s",
            "--requests",
            &requests,
            "--connections",
            "2",
            "--close",
            "--keep-going",
            "--output",
            "json",
        ]);
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for words in [&["get", "pods", "-o", "wide"][..], &["get", "events"]] {
                let said = self.cluster.kubectl(&[&["-n", self.name], words].concat());
                eprintln!("{}{}", said.out, said.err);
            }
        }
        // A test that fails already has its reason; a second panic would only hide it.
        self.cluster.kubectl(&["delete", "namespace", self.name, "--wait=false"]);
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let is_success = output.status.success();
        Self { is_success, out: text(output.stdout), err: text(output.stderr) }
    }
}

fn named_state() -> PathBuf {
    let state = std::env::var_os("AMBIT_KUBERNETES");
    state.expect("AMBIT_KUBERNETES is not set; run cargo xtask e2e kubernetes").into()
}

/// Where our chart is.
pub(crate) fn chart() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../deploy/chart").display().to_string()
}

/// Asserts that a command succeeded.
pub(crate) fn must(said: &Said) {
    assert!(said.is_success, "{}{}", said.out, said.err);
}

fn is_captured(pod: &Value) -> bool {
    pod["metadata"]["annotations"]["ambient.istio.io/redirection"] == "enabled"
}

/// Asks again and again until it is so.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, is_so);
}

/// As [`until`], for what takes longer than anything else.
pub(crate) fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < patience, "after {patience:?} it is not so that {what}");
        std::thread::sleep(STEP);
    }
}

fn application(namespace: &str, name: &str, node: &str, words: &[&str]) -> String {
    let words = serde_json::to_string(words).unwrap();
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: {namespace}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 8080}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      serviceAccountName: {name}
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: sample
        image: registry.local/ambit:test
        imagePullPolicy: Never
        args: {words}
"
    )
}
