//! What a machine says about its objects when kubectl's users ask: templates, `describe`, `events`,
//! `top`, `diff`, `analyze` and `version`.

use std::process::Command;
use std::time::Duration;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, binary};

/// How long a container may take to crash twice.
const CRASHES: Duration = Duration::from_secs(20);

const SHOP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: app}
spec:
  replicas: 1
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: main
        image: ambit/sample:1
        args: [echo, --listen, '[::]:8080']
        env: [{name: COLOUR, value: blue}]
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: app}
spec: {selector: {app: shop}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: app}
stringData: {password: mellon}
";
const CRASHING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: crashing, namespace: client}
spec:
  containers:
  - {name: main, image: ambit/sample:1, command: [sh, -c, exit 3]}
";
/// Computes for as long as it lives, in one of its containers, which shows in another session too.
const BUSY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: client}
spec:
  containers:
  - name: main
    image: ambit/sample:1
    command: [bash, -c, '(setsid bash -c \"while :; do :; done\") & while :; do :; done']
  - {name: idle, image: ambit/sample:1, command: [sleep, infinity]}
";

#[test]
fn a_machine_says_what_it_has_and_what_happened_to_it() {
    let machine = Machine::up("inspect", Mesh::On, &[]);
    machine.apply(SHOP);
    machine.run(&["rollout", "status", "deploy/shop", "-n", "app"]);
    templates(&machine);
    completes(&machine);
    describes(&machine);
    tells_what_happened(&machine);
    measures(&machine);
    differs(&machine);
    analyses(&machine);
    says_its_versions(&machine);
    machine.down();
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

fn templates(machine: &Machine) {
    let template = |what: &[&str], template: &str| {
        let output = format!("jsonpath={template}");
        machine.run(&[&["get", "-n", "app", "-o", &output], what].concat())
    };
    let replicas = template(&["deploy/shop"], "{.spec.replicas} of {.metadata.name}{\"\\n\"}");
    assert_eq!(replicas, "1 of shop\n");
    let all = template(&["pods"], "{range .items[*]}{.metadata.name} {.status.phase};{end}");
    says(&all, &["server Running;", "shop-"]);
    let ip = template(&["pod/server"], "{.status.podIP}");
    assert_eq!(ip, machine.pod_ip("app", "server", false));
    let ready = template(&["pod/server"], "{.status.conditions[?(@.type==\"Ready\")].status}");
    assert_eq!(ready, "True");
    let columns = "custom-columns=NAME:.metadata.name,PORT:.spec.ports[*].port,NO:.spec.no";
    let columns = machine.run(&["get", "svc/shop", "-n", "app", "-o", columns]);
    assert_eq!(columns, "NAME  PORT  NO\nshop  80    <none>\n");
    let wrong = machine.ambit(&["get", "pods", "-o", "jsonpath={.items"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", wrong.err);
    says(&wrong.err, &["a } is missing"]);
    let yaml = machine.run(&["get", "deploy/shop", "-n", "app", "-o", "yaml"]);
    says(&yaml, &["kind: Deployment", "replicas: 1"]);
}

/// In bash itself, as a user who presses Tab.
fn completes(machine: &Machine) {
    let check = |line: &str, expected: &[&str], absent: &str| {
        let script = format!(
            "source <(\"$0\" completions bash); COMP_WORDS=(\"$0\" {line}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); cur=${{COMP_WORDS[COMP_CWORD]}}; \
             _ambit_with_names \"$0\" \"$cur\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).arg(binary()).env("AMBIT_STATE", machine.layout.root());
        let output = bash.output().expect("bash starts");
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<&str> = words.lines().collect();
        let has = |word: &&str| words.contains(word);
        assert!(expected.iter().all(&has) && !has(&absent), "{line}: {words:?}");
    };
    check("get -n ''", &["app", "client", "outside"], "shop");
    check("get dep", &["deployments"], "pods");
    check("get pods -n app s", &["server"], "stranger");
    check("describe -n app svc/sh", &["svc/shop"], "svc/web");
    check("exec cli", &["client/load", "client/other"], "app/server");
    check("stat", &["status"], "get");
}

fn describes(machine: &Machine) {
    let describe = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        machine.run(&[&["describe"], &words[..]].concat())
    };
    let server = describe("pod/server -n app");
    let ip = machine.pod_ip("app", "server", false);
    says(&server, &["Name:", "Node:", "node-2", "app=server", &ip, "In The Mesh:      yes"]);
    says(&server, &["Containers:", "banner:", "Running", "Scheduled", "Started container web"]);
    let shop = describe("pods -n app");
    says(&shop, &["Deployment/shop", "COLOUR:  blue", "Name:             server"]);
    let pods = machine.pods();
    let pod = pods.iter().find(|it| it.owner == "shop").expect("the Deployment has a pod");
    let service = describe("service shop -n app");
    says(&service, &["app=shop", "http 80/TCP", &format!("{}:8080", pod.pod_ips[0])]);
    let deployment = describe("deploy/shop -n app");
    says(&deployment, &["Replicas:", "SuccessfulCreate", &format!("Created pod: {}", pod.name)]);
    let secret = describe("secret hidden -n app");
    assert!(secret.contains("6 bytes") && !secret.contains("mellon"), "{secret}");
    says(&describe("node/node-1"), &["Name:", "node-1"]);
    let none = machine.ambit(&["describe", "pod/nobody", "-n", "app"]);
    assert!(!none.status.success(), "{}", none.out);
    says(&none.err, &["Pod app/nobody does not exist"]);
}

fn tells_what_happened(machine: &Machine) {
    machine.apply(CRASHING);
    let events = |more: &[&str]| machine.run(&[&["events", "-n", "client"], more].concat());
    machine.wait("the crashes are told", CRASHES, || {
        events(&["--for", "pod/crashing"]).contains("BackOff")
    });
    let all = events(&["--for", "pod/crashing"]);
    says(&all, &["Scheduled", "Started", "Exited", "Container main exited with 3"]);
    let warnings = events(&["--types", "Warning", "--for", "pod/crashing"]);
    assert!(warnings.contains("BackOff") && !warnings.contains("Scheduled"), "{warnings}");
    machine.delete(CRASHING);
    machine.wait("a pod's end is told", SETTLE_TIMEOUT, || {
        machine.pods().iter().all(|it| it.name != "crashing")
    });
    machine.run(&["scale", "deploy/shop", "--replicas", "0", "-n", "app"]);
    machine.wait("the Deployment says so", SETTLE_TIMEOUT, || {
        machine.run(&["events", "-n", "app", "--for", "deploy/shop"]).contains("SuccessfulDelete")
    });
    let got = machine.run(&["get", "events", "-n", "app", "-o", "name"]);
    assert!(got.lines().all(|line| line.starts_with("events/")) && !got.is_empty(), "{got}");
    let json = machine.run(&["events", "-o", "jsonpath={.items[*].reason}"]);
    says(&json, &["Scheduled", "Killing", "Exited"]);
}

fn measures(machine: &Machine) {
    machine.apply(BUSY);
    machine.wait("the pod computes", SETTLE_TIMEOUT, || {
        machine.pods().iter().any(|it| it.name == "busy" && it.ready)
    });
    let top = machine.run(&["top", "pods", "-n", "client", "--sort-by", "cpu"]);
    let first = top.lines().nth(1).expect("a pod");
    let cells: Vec<&str> = first.split_whitespace().collect();
    assert_eq!(cells[..2], ["client", "busy"], "{top}");
    let number = |cell: &str, unit: &str| -> u64 {
        cell.strip_suffix(unit).and_then(|it| it.parse().ok()).expect("a number with its unit")
    };
    // However busy the processors are with others, it gets some of them.
    assert!(number(cells[2], "m") >= 1 && number(cells[3], "Mi") >= 1, "{top}");
    let containers = machine.run(&["top", "pods", "busy", "-n", "client", "--containers"]);
    let lines: Vec<Vec<&str>> =
        containers.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["NAMESPACE", "POD", "NAME"], "{containers}");
    let [main, idle] = &lines[1..] else { panic!("a line for each: {containers}") };
    assert_eq!((&main[..3], idle[2]), (&["client", "busy", "main"][..], "idle"), "{containers}");
    assert!(number(main[3], "m") > number(idle[3], "m"), "{containers}");
    let said = machine.ambit(&["top", "nodes", "--containers"]);
    assert!(!said.status.success() && said.err.contains("is of pods"), "{}", said.err);
    let nodes = machine.run(&["top", "nodes"]);
    says(&nodes, &["node-1", "node-2", "control", "MESH MEMORY"]);
    for line in nodes.lines().skip(1) {
        let mesh = line.split_whitespace().last().expect("memory");
        assert!(number(mesh, "Mi") >= 1, "each node has a proxy: {nodes}");
    }
    machine.delete(BUSY);
}

fn says_its_versions(machine: &Machine) {
    machine.run(&["waypoint", "apply", "-n", "app", "--wait"]);
    let version = env!("CARGO_PKG_VERSION");
    let expected = |agents: u32| {
        format!(
            "client {version}\ncontrol {version}\nmachine {version}\nnode {version} ({agents})\n\
             proxy {version} (2)\nwaypoint {version} (1)\n"
        )
    };
    assert_eq!(machine.run(&["version"]), expected(2));
    assert_eq!(machine.run(&["version", "--client"]), format!("client {version}\n"));
    let read: serde_json::Value =
        serde_json::from_str(&machine.run(&["version", "-o", "json"])).expect("it is JSON");
    assert_eq!(read["parts"].as_array().map(Vec::len), Some(7), "{read}");
    assert!(machine.run(&["version", "-o", "yaml"]).contains("name: node-1"));
    // An agent that nobody reaches.
    let socket = machine.layout.cni_socket("node-2");
    let aside = socket.with_extension("aside");
    std::fs::rename(&socket, &aside).expect("it is there");
    let said = machine.ambit(&["version"]);
    std::fs::rename(&aside, &socket).expect("it was there");
    assert_eq!((said.status.code(), said.out), (Some(1), expected(1)));
    assert!(said.err.contains("node/node-2 does not run"), "{}", said.err);
    machine.run(&["waypoint", "delete", "-n", "app", "--all"]);
}

fn differs(machine: &Machine) {
    let same = SHOP.replace("replicas: 1", "replicas: 0");
    let said = machine.ambit_with(&["diff", "-"], &same);
    assert_eq!((said.status.code(), said.out.as_str()), (Some(0), ""), "{}", said.err);
    let other = same.replace("blue", "red").replace("mellon", "friend");
    let said = machine.ambit_with(&["diff", "-f", "-"], &other);
    assert_eq!(said.status.code(), Some(1), "{}", said.err);
    says(&said.out, &["+++ applied Deployment app/shop", "value: blue", "value: red", "***"]);
    assert!(!said.out.contains("friend") && !said.out.contains("mellon"), "{}", said.out);
    let said = machine.ambit_with(&["diff", "-"], &same);
    assert_eq!(said.status.code(), Some(0), "a difference changes nothing: {}", said.out);
    let said = machine.ambit_with(&["diff", "-"], "kind: Nonsense\n");
    assert_eq!(said.status.code(), Some(2), "{}{}", said.out, said.err);
}

fn analyses(machine: &Machine) {
    let said = machine.ambit(&["analyze"]);
    assert!(said.status.success(), "{}{}", said.out, said.err);
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
                  metadata: {name: slip, namespace: app}\n\
                  spec: {selector: {matchLabels: {app: sever}}, rules: [{}]}\n";
    let said = machine.ambit_with(&["analyze", "-f", "-"], policy);
    assert!(said.status.success(), "warnings alone: {}{}", said.out, said.err);
    says(&said.out, &["warning: <stdin>:", "no workload of namespace `app`", "1 warning"]);
    let said = machine.ambit_with(&["analyze", "-"], &policy.replace("rules", "ruels"));
    assert_eq!(said.status.code(), Some(1), "{}{}", said.out, said.err);
    says(&said.out, &["error: <stdin>:", "ruels"]);
    let policies = machine.list("authorizationpolicies");
    assert!(policies.is_empty(), "nothing is applied: {policies:?}");
    machine.apply(policy);
    let said = machine.ambit(&["analyze"]);
    says(&said.out, &["warning: AuthorizationPolicy app/slip: no workload", "the running mesh: 0"]);
}
