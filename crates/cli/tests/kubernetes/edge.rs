//! What each event in the life of a gateway at the edge costs those who come in through it, in the
//! cluster: the client is outside the mesh, the servers are in it.

use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, DnType, KeyPair};

use crate::cluster::{Cluster, Namespace, must, until};
use crate::drill::{CONNECTIONS, LOADS, Outcome, SHORT_S, loads};
use crate::drills::scale;
use crate::load::Running;

/// How long the load runs around a rollout of two pods, whose drains overlap.
const ROLLOUT_S: u32 = 70;
/// Requests by HTTPS around a rotation, each on a connection of its own.
const SECURE_REQUESTS: usize = 150;
/// Requests that must all be answered alike.
const REQUESTS: u32 = 10;
/// The name of all hosts here.
const HOST: &str = "www.example.com";

/// Servers in the mesh, a client outside, and a gateway of two pods between them.
fn deploy(cluster: &Cluster, namespace: &Namespace<'_>) {
    let name = namespace.name;
    namespace.run("web", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("load", "n1", &["sample", "sleep"]);
    cluster.must_apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: grpc, namespace: {name}}}\nspec:\n  \
         selector: {{app: web}}\n  ports: [{{name: grpc, port: 8080}}]\n"
    ));
    cluster.ask(&["-n", name, "label", "pods", "-l", "app=web", "istio.io/dataplane-mode=ambient"]);
    until("the servers are in the mesh", || namespace.is_captured("web"));
    cluster.must_apply(&secret(name, "one"));
    cluster.must_apply(&gateway(name, ""));
    cluster.must_apply(&route(name, "all", "edge"));
    await_programmed(cluster, name, "gateway/edge");
    cluster.ask(&["-n", name, "scale", "deployment/edge-ambit", "--replicas=2"]);
    await_pods(cluster, namespace);
    namespace.await_served("load", "http://edge-ambit:8080/");
}

/// A Gateway with this listener more.
fn gateway(namespace: &str, more: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: {namespace}}}
spec:
  gatewayClassName: ambit
  listeners:
  - {{name: http, port: 8080, protocol: HTTP}}
  - name: https
    port: 8443
    protocol: HTTPS
    tls: {{certificateRefs: [{{name: edge}}]}}
{more}"
    )
}

/// A route of everything to the servers, gRPC by its own Service.
fn route(namespace: &str, name: &str, gateway: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parentRefs: [{{name: {gateway}}}]
  rules:
  - matches: [{{path: {{value: /drill.Echo}}}}]
    backendRefs: [{{name: grpc, port: 8080}}]
  - backendRefs: [{{name: web, port: 8080}}]
"
    )
}

/// The gateway's certificate, of a subject with this name.
fn secret(namespace: &str, subject: &str) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([HOST.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, subject);
    let chain = params.self_signed(&key).unwrap().pem();
    let indented = |pem: &str| pem.trim().replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{name: edge, namespace: \
         {namespace}}}\nstringData:\n  tls.crt: |\n    {}\n  tls.key: |\n    {}\n",
        indented(&chain),
        indented(&key.serialize_pem())
    )
}

fn await_programmed(cluster: &Cluster, namespace: &str, gateway: &str) {
    let programmed = ["wait", "--for=condition=Programmed", gateway, "--timeout=60s"];
    cluster.ask(&[&["-n", namespace][..], &programmed].concat());
}

fn await_pods(cluster: &Cluster, namespace: &Namespace<'_>) {
    cluster.await_rollout(namespace.name, "deployment/edge-ambit");
    let label = "gateway.networking.k8s.io/gateway-name=edge";
    until("the gateway has its pods", || cluster.pods(namespace.name, label).len() == 2);
}

/// Runs the load around an event and says what it cost.
fn under_load(
    cluster: &Cluster,
    namespace: &Namespace<'_>,
    seconds: u32,
    what: &str,
    event: impl FnOnce(),
) -> Outcome {
    let start = |words: String| {
        Running::start(cluster, namespace, &format!("{words} --keep-going --output json"))
    };
    let running: [Running; LOADS] = loads("edge-ambit:8080", "edge-ambit:8080", seconds).map(start);
    until("the load's connections stand", || namespace.established("load", 8080) >= CONNECTIONS);
    event();
    let outcome = Outcome::new(running.map(Running::end));
    eprintln!("{}", outcome.row(what));
    outcome
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_gateway_is_rolled_and_changed_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-edge");
    let name = namespace.name;
    deploy(&cluster, &namespace);
    let what = "a listener and a route of a gateway come and go";
    let outcome = under_load(&cluster, &namespace, 3 * SHORT_S, what, || {
        let more = "  - {name: more, port: 8081, protocol: HTTP}\n";
        for listener in [more, "", more, ""] {
            cluster.must_apply(&gateway(name, listener));
            cluster.must_apply(&route(name, "more", "edge"));
            thread::sleep(Duration::from_secs(2));
            cluster.remove(&route(name, "more", "edge"));
        }
    });
    outcome.assert_whole(what);
    let what = "rolling upgrade of 2 pods of a gateway";
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, what, || {
        cluster.ask(&["-n", name, "rollout", "restart", "deployment/edge-ambit"]);
        await_pods(&cluster, &namespace);
    });
    outcome.assert_drained(2, what);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_gateways_certificate_is_rotated_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-rotate");
    let name = namespace.name;
    deploy(&cluster, &namespace);
    let path = "jsonpath={.status.addresses[0].value}";
    let address = cluster.ask(&["-n", name, "get", "gateway/edge", "-o", path]);
    // What the certificate says of its subject, and what is answered.
    let script = format!(
        "for each in $(seq {SECURE_REQUESTS}); do curl -skv --max-time 5 --connect-to \
         ::{address}:8443 https://{HOST}:8443/ -o /dev/null -w '%{{http_code}}\\n' 2>&1 | grep -oE \
         '^[0-9]{{3}}$|subject: CN=[a-z]+'; done"
    );
    let said = thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.on_node("n1", &["sh", "-c", &script]));
        thread::sleep(Duration::from_millis(500));
        cluster.must_apply(&secret(name, "two"));
        asking.join().unwrap()
    });
    must(&said);
    let count = |line: &str| said.out.lines().filter(|it| *it == line).count();
    assert_eq!(count("200"), SECURE_REQUESTS, "{}", said.out);
    let (one, two) = (count("subject: CN=one"), count("subject: CN=two"));
    assert!(one > 0 && two > 0 && one + two == SECURE_REQUESTS, "{one} and {two}: {}", said.out);
}

/// A waypoint, and what the Service `web` denies.
fn waypoint(namespace: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: waypoint, namespace: {namespace}}}
spec:
  gatewayClassName: ambit-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: closed, namespace: {namespace}}}
spec:
  targetRefs: [{{group: '', kind: Service, name: web}}]
  action: DENY
  rules: [{{to: [{{operation: {{paths: [/closed]}}}}]}}]
"
    )
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_gateway_does_what_the_waypoint_of_a_service_does_where_that_asks_for_it() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("entered");
    let name = namespace.name;
    deploy(&cluster, &namespace);
    let answered = |path: &str, status: u16| {
        let url = format!("http://edge-ambit:8080{path}");
        until(&format!("{path} is answered with {status}"), || {
            let report = namespace.load("load", &url, REQUESTS);
            report.status_codes.get(&status) == Some(&u64::from(REQUESTS))
        });
    };
    let label = |label: &str| {
        cluster.ask(&["-n", name, "label", "service/web", "--overwrite", label]);
    };
    answered("/closed", 200);
    cluster.must_apply(&waypoint(name));
    await_programmed(&cluster, name, "gateway/waypoint");
    label("istio.io/use-waypoint=waypoint");
    answered("/closed", 403);
    answered("/", 200);
    scale(&cluster, &namespace, 0);
    answered("/", 503);
    label("istio.io/ingress-use-waypoint=false");
    answered("/", 200);
    answered("/closed", 403);
    label("istio.io/ingress-use-waypoint-");
    answered("/", 503);
    scale(&cluster, &namespace, 1);
    answered("/", 200);
    answered("/closed", 403);
}
