//! The habits of kubectl's users: what `get`, `label`, `annotate`, `scale`, `rollout`, `exec`,
//! `logs` and `delete` say, and what then is so on the machine.

use std::io::{BufRead, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, binary};

/// Two pods that say three lines each, and one that stays when they go.
const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: app, labels: {tier: front}}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: main
        image: ambit/sample:1
        command: [sh, -c, 'for each in one two three; do echo line $each; done; sleep infinity']
---
apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: app}
spec:
  containers:
  - {name: main, image: ambit/sample:1, command: [sh, -c, 'echo begin; echo end; sleep infinity']}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: app}
data: {colour: blue}
";
/// How long the pods of a Deployment may take to be others.
const ROLLED_OUT: Duration = Duration::from_secs(60);

#[test]
fn what_kubectls_users_type_does_what_they_expect() {
    let machine = Machine::up("habits", Mesh::On, &[]);
    machine.apply(SHOP);
    gets(&machine);
    labels_are_set_and_have_their_effect(&machine);
    annotations_are_set(&machine);
    scales_and_is_watched(&machine);
    rolls_out(&machine);
    execs(&machine);
    forwards_ports(&machine);
    logs(&machine);
    namespaces(&machine);
    deletes(&machine);
    let footprint = machine.footprint();
    machine.run(&["down"]);
    let said = machine.ambit(&["logs", "-n", "app", "talker", "--tail", "1"]);
    assert_eq!(said.out, "end\n", "the logs of the last machine stay: {}", said.err);
    assert!(said.err.contains("no machine is running here"), "{}", said.err);
    machine.was_taken_down(&footprint);
}

/// Runs a command that is written as in a shell, without quotes.
fn run(machine: &Machine, words: &str) -> String {
    machine.run(&words.split(' ').collect::<Vec<_>>())
}

/// The error of a command that must fail.
fn refused(machine: &Machine, words: &str) -> String {
    let said = machine.ambit(&words.split(' ').collect::<Vec<_>>());
    assert!(!said.status.success(), "ambit {words}: {}", said.out);
    said.err
}

fn object(machine: &Machine, words: &str) -> Value {
    let text = run(machine, &format!("get {words} -o json"));
    serde_json::from_str(&text).expect("it prints JSON")
}

/// The names of the Deployment's pods that serve.
fn serving(machine: &Machine) -> Vec<String> {
    let pods = machine.pods().into_iter();
    pods.filter(|it| it.owner == "shop" && it.ready && !it.terminating).map(|it| it.name).collect()
}

fn gets(machine: &Machine) {
    assert_eq!(run(machine, "get deploy -n app -o name"), "deployments/shop\n");
    assert_eq!(run(machine, "get cm settings -n app -o name"), "configmaps/settings\n");
    assert_eq!(object(machine, "Deployment/shop -n app")["spec"]["replicas"], 2);
    assert_eq!(object(machine, "cm/settings")["data"]["colour"], "blue");
    let yaml = run(machine, "get configmap settings -o yaml");
    assert!(yaml.contains("colour: blue"), "{yaml}");
    let all = run(machine, "get po -A");
    assert!(all.contains("talker") && all.contains("stranger"), "{all}");
    let wide = run(machine, "get deployments -o wide");
    assert!(wide.contains("LABELS") && wide.contains("tier=front"), "{wide}");
    let none = refused(machine, "get cm/other -n app");
    assert!(none.contains("no configmaps named other in namespace app"), "{none}");
    let unknown = refused(machine, "get gizmos");
    assert!(unknown.contains("no such kind") && unknown.contains("deployments"), "{unknown}");
}

fn labels_are_set_and_have_their_effect(machine: &Machine) {
    let label = || object(machine, "ns/app")["metadata"]["labels"]["tier"].clone();
    run(machine, "label ns/app tier=one");
    assert_eq!(label(), "one");
    let said = refused(machine, "label ns app tier=two");
    assert!(said.contains("--overwrite"), "{said}");
    assert_eq!(label(), "one");
    run(machine, "label ns app tier=two --overwrite");
    assert_eq!(label(), "two");
    run(machine, "label ns/app tier-");
    assert_eq!(label(), Value::Null);
    let said = refused(machine, "label ns/nope tier=one");
    assert!(said.contains("Namespace nope does not exist"), "{said}");

    let is_captured = || machine.pods().iter().any(|it| it.name == "stranger" && it.captured);
    assert!(!is_captured());
    run(machine, "label namespace/outside istio.io/dataplane-mode=ambient");
    machine.wait("the namespace's pod is in the mesh", SETTLE_TIMEOUT, is_captured);
    run(machine, "label namespace/outside istio.io/dataplane-mode-");
    machine.wait("it is out of the mesh", SETTLE_TIMEOUT, || !is_captured());
}

fn annotations_are_set(machine: &Machine) {
    let note = || object(machine, "deploy/shop")["metadata"]["annotations"]["note"].clone();
    run(machine, "annotate -n app deploy/shop note=here");
    assert_eq!(note(), "here");
    run(machine, "annotate -n app deploy shop note-");
    assert_eq!(note(), Value::Null);
}

fn scales_and_is_watched(machine: &Machine) {
    let watched = Watched::start(machine, "get pods -n app -o name -w");
    machine.wait("the list is printed", SETTLE_TIMEOUT, || watched.lines().len() >= 3);
    let before = watched.lines();
    run(machine, "scale deploy/shop --replicas 3 -n app");
    run(machine, "rollout status deploy/shop -n app");
    assert_eq!(serving(machine).len(), 3);
    machine.wait("the new pod alone is printed", SETTLE_TIMEOUT, || {
        watched.lines().len() == before.len() + 1
    });
    let lines = watched.lines();
    let new = lines[before.len()].strip_prefix("pods/").expect("a pod");
    assert!(serving(machine).iter().any(|it| it == new), "{lines:?}");
    run(machine, "scale deployment shop --replicas 2 -n app");
    machine.wait("two pods are left", SETTLE_TIMEOUT, || serving(machine).len() == 2);
}

fn rolls_out(machine: &Machine) {
    let before = serving(machine);
    run(machine, "rollout restart deploy/shop -n app");
    let said = run(machine, "rollout status deployment/shop -n app --timeout 1m");
    assert_eq!(said, "Deployment app/shop is rolled out\n");
    let is_replaced = |it: &String| !before.contains(it);
    machine.wait("all pods are others", ROLLED_OUT, || {
        let serving = serving(machine);
        serving.len() == 2 && serving.iter().all(is_replaced)
    });
}

fn execs(machine: &Machine) {
    let words = ["exec", "-i", "-n", "app", "deploy/shop", "--", "sh", "-c", "cat; hostname"];
    let said = machine.ambit_with(&words, "said\n");
    let (echoed, host) = said.out.split_once('\n').expect("two lines");
    assert_eq!(echoed, "said");
    assert!(serving(machine).iter().any(|it| it == host.trim()), "{host}");
    let words = ["exec", "-n", "app", "pod/talker", "-c", "main", "--", "sh", "-c", "exit 7"];
    assert_eq!(machine.ambit(&words).status.code(), Some(7));
    let said = refused(machine, "exec -n app pod/nobody -- true");
    assert!(said.contains("nobody"), "{said}");
    let said = refused(machine, "exec deploy/shop -- true");
    assert!(said.contains("no running pod of Deployment default/shop"), "{said}");
    execs_with_files(machine);
}

fn forwards_ports(machine: &Machine) {
    let words = "port-forward -n app svc/banner :9001 --address 127.0.0.1 --address ::1";
    let forwarding = Watched::start(machine, words);
    machine.wait("both addresses are told", SETTLE_TIMEOUT, || forwarding.lines().len() == 2);
    for line in forwarding.lines() {
        assert!(line.ends_with(" -> 9001"), "{line}");
        let mut banner = String::new();
        BufReader::new(dial(&line)).read_line(&mut banner).expect("a line");
        assert_eq!(banner.trim(), "220 speaks first");
    }
    // A port at which nobody listens: its connections are closed, and others go on.
    let forwarding = Watched::start(machine, "port-forward -n app pod/talker :1 :2");
    machine.wait("both ports are told", SETTLE_TIMEOUT, || forwarding.lines().len() == 2);
    for line in forwarding.lines() {
        assert_eq!(dial(&line).read(&mut [0; 1]).expect("its end"), 0, "{line}");
    }
    // A pod that is named ends what leads to it, also if nothing is connected.
    let leaving = "apiVersion: v1\nkind: Pod\nmetadata: {name: leaving, namespace: app}\nspec: \
                   {containers: [{name: c, image: \"ambit/sample:1\", args: [sleep]}]}\n";
    machine.apply(leaving);
    machine.wait("it runs", SETTLE_TIMEOUT, || {
        machine.pods().iter().any(|it| it.name == "leaving" && it.ready)
    });
    let mut forwarding = Watched::start(machine, "port-forward -n app leaving :1");
    machine.wait("the port is told", SETTLE_TIMEOUT, || forwarding.lines().len() == 1);
    machine.delete(leaving);
    let mut ended = None;
    machine.wait("it ends with the pod", SETTLE_TIMEOUT, || {
        ended = forwarding.child.try_wait().expect("it is a child");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|it| it.code()), Some(1));
    let mut said = String::new();
    let error = forwarding.child.stderr.as_mut().expect("its output is a pipe");
    error.read_to_string(&mut said).expect("it is text");
    assert!(said.contains("pod app/leaving has ended"), "{said}");
    for (words, expected) in [
        ("svc/banner 0:81", "service app/banner has no TCP port 81; it has 9001"),
        ("svc/nobody 0:80", "there is no service app/nobody"),
        ("pod/nobody 0:80", "there is no pod app/nobody"),
        ("cm/settings 0:80", "write POD, pod/POD"),
        ("svc/banner 80:http", "[LOCAL:]PORT"),
    ] {
        let said = refused(machine, &format!("port-forward -n app {words}"));
        assert!(said.contains(expected), "{words}: {said}");
    }
}

/// Connects to where a line of `port-forward` says that it listens.
fn dial(line: &str) -> TcpStream {
    let from = line.strip_prefix("Forwarding from ").and_then(|it| it.split_once(" -> "));
    let stream = TcpStream::connect(from.expect("an address and a port").0).expect("it listens");
    stream.set_read_timeout(Some(SETTLE_TIMEOUT)).expect("set");
    stream
}

/// Commands of one script take of its file what they read, and no more.
fn execs_with_files(machine: &Machine) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let script = "in_pod true
in_pod sh -c 'read line; echo \"got $line\"; echo also >&2'
a line
in_pod sh -c 'sleep infinity </dev/null >/dev/null 2>&1 &'
in_pod sh -c 'test -c /proc/self/fd/0' </dev/null && echo null
in_pod echo much >/dev/full 2>told || echo $? full
echo end
";
    let prelude = format!(
        "cd {}; in_pod() {{ {} exec -n app pod/talker -- \"$@\"; }}\n",
        directory.path().display(),
        binary().display()
    );
    std::fs::write(file("script"), prelude + script).expect("a file");
    let open = |name: &str| std::fs::File::create(file(name)).expect("a file");
    let (output, input) = (open("out"), std::fs::File::open(file("script")).expect("a file"));
    let mut bash = Command::new("timeout");
    bash.args(["60", "bash"]).env("AMBIT_STATE", machine.layout.root());
    bash.stdin(input);
    bash.stderr(output.try_clone().expect("a descriptor")).stdout(output);
    let status = bash.status().expect("bash starts");
    let said = std::fs::read_to_string(file("out")).expect("a file");
    assert_eq!(said, "got a line\nalso\nnull\n1 full\nend\n", "{status}");
    let told = std::fs::read_to_string(file("told")).expect("a file");
    assert!(told.contains("No space left on device"), "{told}");
}

fn logs(machine: &Machine) {
    assert_eq!(run(machine, "logs -n app deploy/shop"), "line one\nline two\nline three\n");
    assert_eq!(run(machine, "logs -n app pod/talker --tail 1"), "end\n");
    assert_eq!(run(machine, "logs app/talker"), "begin\nend\n");
    let said = refused(machine, "logs -n app nobody");
    assert!(said.contains("no pod app/nobody"), "{said}");
}

fn deletes(machine: &Machine) {
    let said = run(machine, "delete -n app deploy/shop cm/settings");
    for line in ["Deployment app/shop deleted", "ConfigMap app/settings deleted"] {
        assert!(said.lines().any(|it| it == line), "{line:?} is missing in: {said}");
    }
    machine.wait("its pods are gone", ROLLED_OUT, || {
        machine.pods().iter().all(|it| it.owner != "shop")
    });
    let said = refused(machine, "delete -n app deploy shop");
    assert!(said.contains("Deployment app/shop does not exist"), "{said}");
    run(machine, "delete -n app deploy shop --ignore-not-found");
}

/// Manifests that name no namespace, as those of charts.
fn namespaces(machine: &Machine) {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: placed}\ndata: {a: b}\n";
    let said = machine.ambit_with(&["apply", "-n", "app", "-f", "-"], text);
    assert_eq!(said.out, "ConfigMap app/placed created\n", "{}", said.err);
    let said = machine.ambit_with(&["diff", "-n", "app", "-f", "-"], text);
    assert!(said.status.success() && said.out.is_empty(), "{}{}", said.out, said.err);
    let other = text.replace("{name: placed}", "{name: placed, namespace: app}");
    let said = machine.ambit_with(&["apply", "-n", "default", "-f", "-"], &other);
    let error = "the object is of namespace `app`, and -n says `default`; leave -n out";
    assert!(!said.status.success() && said.err.contains(error), "{}", said.err);
    let said = machine.ambit_with(&["delete", "-n", "app", "-f", "-"], text);
    assert_eq!(said.out, "ConfigMap app/placed deleted\n", "{}", said.err);
}

/// A command that goes on, and what it has printed so far.
struct Watched {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watched {
    fn start(machine: &Machine, words: &str) -> Self {
        let mut child = machine.spawn(&words.split(' ').collect::<Vec<_>>());
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                read.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}
