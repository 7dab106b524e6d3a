//! Two waypoints before one service, patches of a waypoint's pods, and policies for a namespace.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, deployment, sum};
use crate::requests::{get, nothing_goes_around};

/// The namespace with a canary beside its waypoint.
const SPLIT: &str = "\
apiVersion: v1
kind: Namespace
metadata:
  name: app
  labels:
    istio.io/dataplane-mode: ambient
    istio.io/use-waypoint: one
    istio.io/use-waypoint-canary: two
  annotations: {istio.io/use-waypoint-canary-weight: \"SHARE\"}
";
/// A policy that only requests can be judged by, for the whole namespace; it names no waypoint.
const READ_ONLY: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: read-only, namespace: app}
spec:
  action: ALLOW
  rules:
  - from: [{source: {principals: ['cluster.local/ns/client/sa/load']}}]
    to: [{operation: {methods: [GET]}}]
";
const PATCHED: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: parameters, namespace: app}
data: {deployment: 'spec: {replicas: 2}'}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: two, namespace: app}
spec:
  gatewayClassName: ambit-waypoint
  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: parameters}}
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";

#[test]
fn two_waypoints_share_connections_and_judge_for_the_namespace() {
    let machine = Machine::up("waypoints", Mesh::On, &[]);
    machine.run(&["waypoint", "apply", "-n", "app", "--name", "one", "--wait"]);
    machine.apply(PATCHED);
    machine.wait("the patch holds", SETTLE_TIMEOUT, || {
        let status = machine.run(&["waypoint", "status", "two", "-n", "app"]);
        status.contains("2 of 2 pods are ready")
    });
    shared(&machine);
    judged_once(&machine);
    one_takes_over(&machine);
    machine.down();
}

/// The share of the canary as the client's proxy knows it.
fn split(machine: &Machine, share: u32) {
    machine.apply(&SPLIT.replace("SHARE", &share.to_string()));
    let said = format!("{share} to the waypoint app/two");
    machine.wait(&said, SETTLE_TIMEOUT, || {
        machine.why("client/load", "app/web:80")["notes"].to_string().contains(&said)
    });
}

/// Who answered: the node proxy's connections to each waypoint, by the peer's name in its records.
fn drawn(machine: &Machine, requests: u32) -> [u64; 2] {
    let count = || {
        let pods = machine.pods();
        ["one", "two"].map(|owner| {
            let own = pods.iter().filter(|pod| pod.owner == owner);
            let labels = ["response_code=\"200\""];
            let page = |pod: &str| machine.page(pod, "127.0.0.1/15020", "/metrics");
            let metrics = own.map(|pod| page(&format!("app/{}", pod.name)));
            metrics.map(|it| sum(&it, "istio_requests_total", &labels)).sum::<u64>()
        })
    };
    let before = count();
    for _ in 0..requests {
        assert!(get(machine, "GET", "/").starts_with("HTTP/1.1 200"));
    }
    let after = count();
    [after[0] - before[0], after[1] - before[1]]
}

fn shared(machine: &Machine) {
    split(machine, 0);
    machine.wait("requests pass", SETTLE_TIMEOUT, || {
        get(machine, "GET", "/").starts_with("HTTP/1.1 200")
    });
    assert_eq!(drawn(machine, 5), [5, 0]);
    split(machine, 100);
    machine.wait("the client's proxy draws the canary", SETTLE_TIMEOUT, || {
        drawn(machine, 1) == [0, 1]
    });
    assert_eq!(drawn(machine, 5), [0, 5]);
    split(machine, 50);
    machine.wait("the client's proxy draws both", SETTLE_TIMEOUT, || {
        let [one, two] = drawn(machine, 10);
        one > 0 && two > 0
    });
    let services = machine.list("services");
    let web = services.iter().find(|it| it["name"] == "web").expect("the service");
    assert_eq!(web["canary"]["weight"], 50, "{web}");
}

/// The waypoints judge requests by the namespace's policy, and the pods do not judge them again.
fn judged_once(machine: &Machine) {
    machine.apply(READ_ONLY);
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        get(machine, "POST", "/").starts_with("HTTP/1.1 403")
    });
    for _ in 0..5 {
        assert!(get(machine, "GET", "/").starts_with("HTTP/1.1 200"));
    }
    nothing_goes_around(machine);
}

/// Without a pod that is ready a waypoint's share goes to the other one.
fn one_takes_over(machine: &Machine) {
    machine.ask(async |client| client.scale(&deployment("one"), 0).await);
    // It serves the tunnels that it has for up to 25 s.
    machine.wait("the first waypoint has no pod", SETTLE_TIMEOUT * 3, || {
        machine.pods().iter().all(|pod| pod.owner != "one")
    });
    machine.wait("the other one takes all", SETTLE_TIMEOUT, || {
        (0..10).all(|_| get(machine, "GET", "/").starts_with("HTTP/1.1 200"))
    });
}
