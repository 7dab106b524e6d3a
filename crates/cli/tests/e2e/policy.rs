//! Who may connect: policies of layer 4, mutual TLS, and everything that must not fail open.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ambit_net::namespace::NetNs;
use serde_json::Value;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::stray;

/// How long a change of policy may take to end what it denies.
pub(crate) const CUT_WITHIN: Duration = Duration::from_secs(1);

/// An AuthorizationPolicy of the namespace `app` in one line per field.
pub(crate) fn policy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: app}}\nspec: {{{spec}}}\n"
    )
}

/// The part of a rule that names a client by its account.
pub(crate) fn from(account: &str) -> String {
    format!("from: [{{source: {{principals: [cluster.local/ns/client/sa/{account}]}}}}]")
}

/// Whether a pod's request to the web server is answered.
pub(crate) fn connects(machine: &Machine, pod: &str, host: &str) -> bool {
    let words = format!("load http://{host}/ --rate 2.5 --connections 1 --duration 400ms");
    let result = machine.load(pod, &words).http();
    assert!(result.failed == 0 || result.failed == result.requests, "{result:?}");
    result.failed == 0
}

fn settles(machine: &Machine, pod: &str, answered: bool) {
    let what = format!("{pod} is {}", if answered { "let in" } else { "refused" });
    machine.wait(&what, SETTLE_TIMEOUT, || connects(machine, pod, "web.app") == answered);
}

/// Waits for a line of a proxy's access log that holds all of these.
pub(crate) fn logged(machine: &Machine, node: &str, parts: &[&str]) {
    machine.wait(&format!("{node} logs {parts:?}"), SETTLE_TIMEOUT, || {
        let log = machine.log("proxy", Some(node));
        log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    });
}

/// What `ambit why` says about a connection.
pub(crate) fn assert_why(machine: &Machine, pod: &str, to: &str, decision: &str, parts: &[&str]) {
    let why = machine.why(pod, to);
    assert_eq!(why["decision"], decision, "{why:#}");
    let text = why.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {why:#}");
}

#[test]
fn policies_decide_by_identity_and_never_fail_open() {
    let machine = Machine::up("policy", Mesh::On, &[]);
    allow(&machine);
    a_new_policy_ends_what_it_denies(&machine);
    deny(&machine);
    dry_run(&machine);
    layer_7_is_held_strictest(&machine);
    machine.down();
}

fn allow(machine: &Machine) {
    let text = policy("only-load", &format!("rules: [{{{}}}]", from("load")));
    machine.apply(&text);
    settles(machine, "client/other", false);
    settles(machine, "client/near", false);
    assert!(connects(machine, "client/load", "web.app"));
    assert!(!connects(machine, "outside/stranger", "web.app"), "it proves no identity");
    assert_why(machine, "client/load", "app/web:80", "allow", &["app/only-load"]);
    assert_why(machine, "client/other", "app/web:80", "deny", &["only-load", "sa/other"]);
    for (pod, exit_code) in [("client/load", 0), ("client/other", 3)] {
        let asked = machine.ambit(&["why", pod, "app/web:80", "--exit-code"]);
        assert_eq!(asked.status.code(), Some(exit_code), "{pod}: {}", asked.out);
    }
    let denied = ["connection failed", "direction=inbound", "sa/other", "only-load", "error="];
    logged(machine, "node-2", &denied);
    let labels = ["reporter=\"destination\"", "response_flags=\"DENY\"", "sa/other"];
    assert!(machine.counted("node-2", "istio_tcp_connections_failed_total", &labels) > 0);
    machine.delete(&text);
    settles(machine, "client/other", true);
}

/// A connection that a new policy denies ends within a second; one that it allows continues.
fn a_new_policy_ends_what_it_denies(machine: &Machine) {
    let long = |pod| machine.load(pod, "long echo.app:9000 --connections 20 --seconds 6");
    let (mut load, other, near) = (long("client/load"), long("client/other"), long("client/near"));
    machine.wait("the connections stand", SETTLE_TIMEOUT, || machine.connections(9000).len() == 60);
    let text = policy("only-other", &format!("rules: [{{{}}}]", from("other")));
    machine.apply(&text);
    let applied = Instant::now();
    machine.wait("what is denied is cut", CUT_WITHIN, || load.has_ended());
    eprintln!("cut {} ms after the policy was applied", applied.elapsed().as_millis());
    let (load, other, near) = (load.long(), other.long(), near.long());
    assert_eq!((load.opened, load.cut), (20, 20), "{load:?}");
    assert_eq!((other.opened, other.cut), (20, 0), "{other:?}");
    assert_eq!((near.opened, near.cut), (20, 0), "{near:?}");
    logged(machine, "node-2", &["the policies changed", "only-other", "sa/load"]);
    machine.delete(&text);
    settles(machine, "client/load", true);
}

/// DENY wins over ALLOW, and on a port it is for that port only.
fn deny(machine: &Machine) {
    let all = policy("all", "rules: [{}]");
    let deny = format!(
        "action: DENY, rules: [{{{}, to: [{{operation: {{ports: [\"8080\"]}}}}]}}]",
        from("load")
    );
    let deny = policy("no-load", &deny);
    machine.apply(&format!("{all}---\n{deny}"));
    settles(machine, "client/load", false);
    assert!(connects(machine, "client/other", "web.app"));
    let echo =
        machine.load("client/load", "long echo.app:9000 --connections 1 --seconds 0.3").long();
    assert_eq!((echo.opened, echo.cut), (1, 0), "{echo:?}");
    assert_why(machine, "client/load", "app/web:80", "deny", &["app/no-load"]);
    assert_why(machine, "client/load", "app/echo:9000", "allow", &["app/all"]);
    logged(machine, "node-2", &["connection failed", "sa/load", "app/no-load"]);
    machine.delete(&format!("{all}---\n{deny}"));
    settles(machine, "client/load", true);
}

/// A policy on trial is logged and counted, and changes nothing.
fn dry_run(machine: &Machine) {
    let text = policy("trial", &format!("action: DENY, rules: [{{{}}}]", from("load")));
    let text =
        text.replace("{name: trial,", "{name: trial, annotations: {istio.io/dry-run: \"true\"},");
    machine.apply(&text);
    machine.wait("the policy is on trial", SETTLE_TIMEOUT, || {
        assert!(connects(machine, "client/load", "web.app"), "it is not enforced");
        machine.counted("node-2", "ambit_dry_run_denials_total", &[]) > 0
    });
    logged(machine, "node-2", &["dry run", "app/trial", "sa/load"]);
    assert_why(machine, "client/load", "app/web:80", "allow", &["on trial", "app/trial"]);
    machine.delete(&text);
}

/// Layer 7 cannot be enforced here: ALLOW then lets nobody in, DENY lets nobody in either, and both
/// say so.
fn layer_7_is_held_strictest(machine: &Machine) {
    for action in ["ALLOW", "DENY"] {
        let spec =
            format!("action: {action}, rules: [{{to: [{{operation: {{methods: [DELETE]}}}}]}}]");
        let text = policy("layer-7", &spec);
        let warnings = machine.apply(&text);
        assert!(warnings.contains("layer-7"), "apply warns: {warnings:?}");
        settles(machine, "client/load", false);
        settles(machine, "client/near", false);
        let policies = machine.list("policies");
        let item: &Value = policies.iter().find(|item| item["name"] == "layer-7").expect("listed");
        assert_eq!(item["conditions"][0]["type"], "Accepted", "{item:#}");
        assert_eq!(item["conditions"][0]["status"], "False", "{item:#}");
        let message = item["conditions"][0]["message"].as_str().unwrap_or_default();
        assert!(message.contains("methods"), "{item:#}");
        assert_why(machine, "client/load", "app/web:80", "deny", &["layer-7"]);
        let status = machine.ambit(&["status"]);
        assert!(status.out.contains("app/layer-7") && !status.status.success(), "{}", status.out);
        machine.delete(&text);
        settles(machine, "client/load", true);
    }
}

#[test]
fn who_cannot_be_reached_safely_is_not_reached() {
    let machine = Machine::up("refuse", Mesh::On, &[]);
    strict(&machine);
    waypoint(&machine);
    no_endpoints(&machine);
    machine.down();
}

/// STRICT refuses plain text, from outside of the mesh and from a pod that left it.
fn strict(machine: &Machine) {
    assert!(connects(machine, "outside/stranger", "web.app"), "PERMISSIVE is the default");
    let long = |pod| machine.load(pod, "long echo.app:9000 --connections 5 --seconds 6");
    let (mut stranger, load) = (long("outside/stranger"), long("client/load"));
    for pod in ["outside/stranger", "client/load"] {
        machine.wait("they stand", SETTLE_TIMEOUT, || machine.established(pod, 9000) == 5);
    }
    let text = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                metadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n";
    machine.apply(text);
    machine.wait("running plain text is cut", CUT_WITHIN, || stranger.has_ended());
    let (stranger, load) = (stranger.long(), load.long());
    assert_eq!((stranger.opened, stranger.cut), (5, 5), "{stranger:?}");
    assert_eq!((load.opened, load.cut), (5, 0), "{load:?}");
    settles(machine, "outside/stranger", false);
    assert!(connects(machine, "client/load", "web.app"));
    assert!(connects(machine, "client/near", "web.app"));
    assert_why(machine, "outside/stranger", "app/web:80", "deny", &["strict"]);
    logged(machine, "node-2", &["connection failed", "direction=inbound", "error="]);
    stray_packets(machine);
    machine.delete(text);
    settles(machine, "outside/stranger", true);
}

/// A host of the network, with rights on its own packets, gets no further than another.
fn stray_packets(machine: &Machine) {
    let attacker = NetNs::of_pid(machine.pid("outside/stranger")).expect("its namespace");
    let pods = machine.pods();
    let named = |name: &str| pods.iter().find(|pod| pod.name == name).expect("it runs");
    let server = named("server");
    assert_ne!(named("stranger").node, server.node, "across nodes");
    assert_eq!(server.pod_ips.len(), 2, "IPv4 and IPv6");
    for (ip, port) in server.pod_ips.iter().zip([21_000, 21_100]) {
        let answers = stray::try_all(&attacker, SocketAddr::new(*ip, 8080), port);
        for (way, answer) in answers {
            println!("{way}: {answer}");
            assert!(!answer.starts_with("HTTP/"), "{way} to {ip}: {answer}");
        }
    }
}

fn service(name: &str, more: &str, selects: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: app{more}}}\n\
         spec: {{selector: {{app: {selects}}}, \
         ports: [{{name: http, port: 80, targetPort: 8080}}]}}\n"
    )
}

/// A service that wants a waypoint which is not there is not reached around it.
fn waypoint(machine: &Machine) {
    let text = service("guarded", ", labels: {istio.io/use-waypoint: guard}", "server");
    machine.apply(&text);
    machine.wait("the service is there", SETTLE_TIMEOUT, || {
        machine.list("services").iter().any(|item| item["name"] == "guarded")
    });
    assert!(!connects(machine, "client/load", "guarded.app"));
    assert_why(machine, "client/load", "app/guarded:80", "deny", &["waypoint", "use-waypoint"]);
    logged(machine, "node-1", &["connection failed", "guarded.app", "waypoint", "error="]);
    machine.delete(&text);
}

fn no_endpoints(machine: &Machine) {
    let text = service("empty", "", "nobody");
    machine.apply(&text);
    machine.wait("the service is there", SETTLE_TIMEOUT, || {
        machine.list("services").iter().any(|item| item["name"] == "empty")
    });
    assert!(!connects(machine, "client/load", "empty.app"));
    assert_why(machine, "client/load", "app/empty:80", "deny", &["endpoint"]);
    logged(machine, "node-1", &["connection failed", "empty.app", "endpoint", "error="]);
}
