//! A machine for a test: the test starts it, queries it, waits for it and always takes it down.

pub(crate) mod owners;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use ambit_machine::image::ImageMap;
use ambit_machine::layout::Layout;
use ambit_machine::objects::{Kind, ObjectRef};
use ambit_machine::{Client, ExecRequest, Keys, NodeLabels, Record, UpConfig};
use ambit_net::seqpacket::Listener;
use ambit_net::sys::process::{self, Signal};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// How long anything may take to come about.
const PATIENCE: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(20);
/// A user without privileges.
const NOBODY: u32 = 65534;
/// The exit of a command that was not run at all.
const NOT_RUN: u8 = 99;

/// Runs the hidden subcommands, those of the crate and those of these tests.
pub(crate) fn hidden(words: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    match words.get(1).and_then(|word| word.to_str()) {
        Some("exec-helper") => Some(exec_helper(&words[2..])),
        Some("rootless-helper") => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(super::rootless());
            Some(ExitCode::SUCCESS)
        }
        Some("impostor-helper") => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(impostor(&words[2]));
            Some(ExitCode::SUCCESS)
        }
        _ => {
            let (word, rest) = words.get(1..)?.split_first()?;
            let outcome = ambit_machine::hidden_command(word, rest)
                .or_else(|| ambit_load::hidden_command(word, rest))?;
            Some(outcome.unwrap_or_else(|error| {
                eprintln!("ambit {}: {error:#}", word.display());
                ExitCode::FAILURE
            }))
        }
    }
}

/// The Deployment `web` in the namespace `default`.
pub(crate) fn web() -> ObjectRef {
    ObjectRef::new(Kind::Deployment, Some("default"), "web")
}

/// `STATE NAMESPACE POD COMMAND...`: what `ambit exec` does, in a process whose streams a test can
/// see.
fn exec_helper(words: &[OsString]) -> ExitCode {
    let words: Vec<String> = words.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
    let [state, namespace, pod, command @ ..] = words.as_slice() else { panic!("{words:?}") };
    let request = ExecRequest {
        namespace: namespace.clone(),
        pod: pod.clone(),
        command: command.to_vec(),
        ..ExecRequest::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match runtime.block_on(ambit_machine::exec(&Layout::new(state), &request, Keys::Command)) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap()),
        Err(error) => {
            println!("{:#}", anyhow::Error::new(error));
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Listens at `path`, takes one connection and prints what it receives.
async fn impostor(path: &OsString) {
    let listener = Listener::bind(path.as_ref()).unwrap();
    println!("ready");
    let caller = listener.accept().await.unwrap();
    let mut buffer = [0; 1024];
    match caller.receive(&mut buffer).await {
        Ok(packet) => println!("{} bytes, {} descriptors", packet.length, packet.fds.len()),
        Err(_closed) => println!("nothing"),
    }
}

/// A process of another user that listens where a machine did.
pub(crate) struct Impostor {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Impostor {
    /// Puts another user's socket in the place of one of ours.
    pub(crate) fn take_the_place_of(socket: &Path) -> Self {
        let own = PathBuf::from(format!("/tmp/ambit-impostor-{}.sock", std::process::id()));
        let binary = own.with_extension("binary");
        fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
        let mut command = Command::new(&binary);
        command.arg("impostor-helper").arg(&own).uid(NOBODY).gid(NOBODY).current_dir("/tmp");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        output.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        fs::remove_file(&binary).unwrap();
        fs::rename(own, socket).unwrap();
        Self { child, output }
    }

    /// What its one caller sent.
    pub(crate) fn heard(mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(self.child.wait().unwrap().success());
        line
    }
}

pub(crate) struct Lab {
    pub(crate) config: UpConfig,
    pub(crate) client: Client,
    pub(crate) record_before: Record,
}

impl Lab {
    /// Starts a machine without the mesh.
    pub(crate) async fn up(name: &str, nodes: u8) -> Self {
        let config = config(name, nodes);
        let born = ambit_machine::up(&config, |_| {}).await.unwrap_or_else(|error| {
            panic!("{:#}", anyhow::Error::new(error));
        });
        Self::of(config, born.record)
    }

    /// A machine that runs.
    pub(crate) fn of(config: UpConfig, record: Record) -> Self {
        Self { client: Client::new(Layout::new(&config.state)), config, record_before: record }
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.client.layout()
    }

    pub(crate) fn record(&self) -> Record {
        Record::read(self.layout()).unwrap()
    }

    /// Takes the machine down and its logs away.
    pub(crate) async fn down(self) {
        let layout = self.layout().clone();
        ambit_machine::down(&layout).await.unwrap();
        if self.config.state.ends_with(format!("ambit-trace-{}", std::process::id())) {
            return;
        }
        fs::remove_dir_all(layout.root()).unwrap();
    }

    /// Applies objects; the outcome of each.
    pub(crate) async fn apply(&self, objects: Vec<Value>) -> Vec<String> {
        let changes = self.client.apply(objects, false).await.unwrap();
        let outcome = |change: &ambit_machine::objects::Change| {
            format!("{:?}", change.outcome).to_lowercase()
        };
        changes.changes.iter().map(outcome).collect()
    }

    pub(crate) async fn apply_ready(&self, objects: Vec<Value>) {
        self.apply(objects).await;
        self.ready().await;
    }

    pub(crate) async fn ready(&self) {
        self.client.wait_until_ready(PATIENCE, |_| {}).await.unwrap();
    }

    pub(crate) async fn delete(&self, plural: &str, names: &[&str]) {
        let object = |name: &&str| ObjectRef {
            plural: plural.to_owned(),
            namespace: (plural != "namespaces").then(|| "default".to_owned()),
            name: (*name).to_owned(),
        };
        let objects: Vec<ObjectRef> = names.iter().map(object).collect();
        self.client.delete(&objects, false, false).await.unwrap();
    }

    pub(crate) async fn until_gone(&self, names: &[&str]) {
        self.until("the pods are gone", async || {
            let pods = self.client.pods().await.unwrap();
            !pods.iter().any(|pod| names.contains(&pod.name.as_str()))
        })
        .await;
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let latest = Instant::now() + PATIENCE;
        while !is_so().await {
            if Instant::now() > latest {
                let pods = self.client.pods().await;
                panic!("waited {PATIENCE:?} in vain until {what}; pods: {pods:#?}");
            }
            sleep(INTERVAL).await;
        }
    }

    /// Waits until a container's log holds a text, and returns the log.
    pub(crate) async fn log(&self, pod: &str, container: &str, text: &str) -> String {
        let path = self.layout().pod_log("default", pod, container);
        let read = || fs::read_to_string(&path).unwrap_or_default();
        self.until(&format!("{} holds {text:?}", path.display()), async || read().contains(text))
            .await;
        read()
    }

    fn exec_command(&self, pod: &str, command: &[&str]) -> Command {
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper.arg("exec-helper").arg(self.layout().root()).args(["default", pod]).args(command);
        helper
    }

    /// Runs a command in a pod; returns its output and its exit.
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) -> (String, i32) {
        self.exec_with_input(pod, command, "")
    }

    pub(crate) fn exec_with_input(
        &self,
        pod: &str,
        command: &[&str],
        input: &str,
    ) -> (String, i32) {
        let mut child = self
            .exec_command(pod, command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }

    pub(crate) fn sh(&self, pod: &str, command: &str) -> (String, i32) {
        self.exec(pod, &["sh", "-c", command])
    }

    /// Starts a command in a pod and presses Ctrl-C when it runs.
    pub(crate) fn interrupt_exec(&self, pod: &str, command: &[&str]) -> i32 {
        let script = format!("echo begun; exec {}", command.join(" "));
        let mut child =
            self.exec_command(pod, &["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut begun = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut begun).unwrap();
        process::kill(i32::try_from(child.id()).unwrap(), Signal::Interrupt).unwrap();
        child.wait().unwrap().code().unwrap()
    }
}

/// A machine without the mesh.
pub(crate) fn config(name: &str, nodes: u8) -> UpConfig {
    UpConfig {
        state: PathBuf::from(format!("/tmp/ambit-{name}-{}", std::process::id())),
        nodes,
        binary: std::env::current_exe().unwrap(),
        mesh: false,
        images: ImageMap::default(),
        node_labels: NodeLabels::default(),
        host_paths: Vec::new(),
        confined: false,
        limits: true,
        egress: None,
        proxies: BTreeMap::new(),
        arguments: BTreeMap::new(),
        environment: BTreeMap::new(),
        link: Default::default(),
    }
}

/// Prints the number of the session keyring, which `keyctl` would show.
pub(crate) const SESSION_KEYRING: [&str; 3] = [
    "perl",
    "-e",
    if cfg!(target_arch = "x86_64") {
        "print syscall(250, 0, -3, 0)"
    } else {
        "print syscall(219, 0, -3, 0)"
    },
];

/// The number of this process' session keyring.
pub(crate) fn session_keyring() -> String {
    let said = Command::new(SESSION_KEYRING[0]).args(&SESSION_KEYRING[1..]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap()
}

/// Kills a process of the host.
pub(crate) fn kill(pid: i32) {
    process::kill(pid, Signal::Kill).unwrap();
}

/// Whether a process of the host lives; one that only waits to be reaped does not.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Runs this binary as a user without privileges.
pub(crate) fn as_user_nobody(word: &str) -> (String, i32) {
    let binary = PathBuf::from(format!("/tmp/ambit-machine-test-{}", std::process::id()));
    fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let output =
        Command::new(&binary).arg(word).uid(NOBODY).gid(NOBODY).current_dir("/tmp").output();
    fs::remove_file(&binary).unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (said.into_owned(), output.status.code().unwrap_or(-1))
}

/// A pod of one container.
pub(crate) fn pod(name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container(command)]},
    })
}

pub(crate) fn container(command: &[&str]) -> Value {
    json!({"name": "c", "image": "busybox", "command": command})
}

pub(crate) fn deployment(name: &str, replicas: u32, container: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container],
            }},
        },
    })
}

pub(crate) fn service(name: &str, selector: Value, ports: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports},
    })
}
