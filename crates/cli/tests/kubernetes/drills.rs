//! What each event in the life of a waypoint costs those who talk through it, in the cluster:
//! client and servers are on different nodes, and the waypoint on either.

use std::time::Duration;

use crate::cluster::{Cluster, MESH, Namespace, until};
use crate::drill::{CONNECTIONS, DRAIN_S, LOADS, Outcome, SHORT_S, loads};
use crate::load::Running;

/// How long the load runs around a rollout of two pods, whose drains overlap.
const ROLLOUT_S: u32 = 70;

/// Servers, a client, and a waypoint of so many pods.
pub(crate) fn deploy(cluster: &Cluster, namespace: &Namespace<'_>, pods: usize) {
    namespace.run("web", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    cluster.must_apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: grpc, namespace: {}}}\nspec:\n  \
         selector: {{app: web}}\n  ports: [{{name: grpc, port: 8080}}]\n",
        namespace.name
    ));
    namespace.run("load", "n1", &["sample", "sleep"]);
    namespace.enrol();
    namespace.await_served("load", "http://web:8080/");
    let name = namespace.name;
    let said = cluster.ambit(&["waypoint", "apply", "-n", name, "--wait"]);
    assert!(said.is_success, "{}{}", said.out, said.err);
    scale(cluster, namespace, pods);
}

pub(crate) fn attach(cluster: &Cluster, namespace: &Namespace<'_>) {
    let label = "istio.io/use-waypoint=waypoint";
    cluster.ask(&["label", "--overwrite", "namespace", namespace.name, label]);
    await_bound(cluster, namespace, "True");
}

fn detach(cluster: &Cluster, namespace: &Namespace<'_>) {
    cluster.ask(&["label", "namespace", namespace.name, "istio.io/use-waypoint-"]);
    await_bound(cluster, namespace, "");
}

/// Waits until the Service says so of its waypoint.
fn await_bound(cluster: &Cluster, namespace: &Namespace<'_>, status: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"istio.io/WaypointBound\")].status}";
    until("the Service says whether it has a waypoint", || {
        let words = ["-n", namespace.name, "get", "service/web", "-o", path];
        cluster.ask(&words).trim() == status
    });
}

/// Sets how many pods the waypoint has, and waits until these and no others are there.
pub(crate) fn scale(cluster: &Cluster, namespace: &Namespace<'_>, pods: usize) {
    let count = format!("--replicas={pods}");
    cluster.ask(&["-n", namespace.name, "scale", "deployment/waypoint", &count]);
    await_pods(cluster, namespace, pods);
}

fn await_pods(cluster: &Cluster, namespace: &Namespace<'_>, pods: usize) {
    cluster.await_rollout(namespace.name, "deployment/waypoint");
    until("the waypoint has its pods", || waypoints(cluster, namespace).len() == pods);
}

/// The waypoint's pods.
fn waypoints(cluster: &Cluster, namespace: &Namespace<'_>) -> Vec<serde_json::Value> {
    cluster.pods(namespace.name, "gateway.networking.k8s.io/gateway-name=waypoint")
}

/// The load of the drills.
pub(crate) struct Load([Running; LOADS]);

/// Starts the load, and returns when all of its connections are open.
pub(crate) fn start_load(cluster: &Cluster, namespace: &Namespace<'_>, seconds: u32) -> Load {
    let start = |words: String| {
        Running::start(cluster, namespace, &format!("{words} --keep-going --output json"))
    };
    let running = loads("web:8080", "grpc:8080", seconds).map(start);
    until("the load's connections stand", || namespace.established("load", 8080) >= CONNECTIONS);
    Load(running)
}

impl Load {
    /// Waits for its end.
    pub(crate) fn end(self) -> Outcome {
        Outcome::new(self.0.map(Running::end))
    }
}

/// Runs the load around an event and says what it cost.
fn under_load(
    cluster: &Cluster,
    namespace: &Namespace<'_>,
    seconds: u32,
    what: &str,
    event: impl FnOnce(),
) -> Outcome {
    let load = start_load(cluster, namespace, seconds);
    event();
    let outcome = load.end();
    eprintln!("{}", outcome.row(what));
    outcome
}

#[test]
fn a_waypoint_is_attached_and_detached_and_nothing_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-attach");
    deploy(&cluster, &namespace, 1);
    let outcome = under_load(&cluster, &namespace, SHORT_S, "attach", || {
        attach(&cluster, &namespace);
    });
    outcome.assert_whole("attach");
    let outcome = under_load(&cluster, &namespace, 2 * SHORT_S, "detach", || {
        detach(&cluster, &namespace);
    });
    outcome.assert_whole("detach");
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_waypoint_is_scaled_up_and_down_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-scale");
    deploy(&cluster, &namespace, 1);
    attach(&cluster, &namespace);
    let what = "scale from 1 to 3";
    let outcome = under_load(&cluster, &namespace, 2 * SHORT_S, what, || {
        scale(&cluster, &namespace, 3);
    });
    outcome.assert_whole(what);
    let what = "scale from 3 to 1";
    let outcome = under_load(&cluster, &namespace, DRAIN_S, what, || {
        let name = namespace.name;
        cluster.ask(&["-n", name, "scale", "deployment/waypoint", "--replicas=1"]);
    });
    outcome.assert_drained(1, what);
    await_pods(&cluster, &namespace, 1);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_waypoint_is_rolled_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-roll");
    deploy(&cluster, &namespace, 2);
    attach(&cluster, &namespace);
    let what = "rolling upgrade of 2";
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, what, || {
        cluster.ask(&["-n", namespace.name, "rollout", "restart", "deployment/waypoint"]);
        await_pods(&cluster, &namespace, 2);
    });
    outcome.assert_drained(2, what);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn one_of_two_waypoints_is_killed_and_only_its_own_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-kill");
    deploy(&cluster, &namespace, 2);
    attach(&cluster, &namespace);
    let what = "kill -9 of one of 2";
    let outcome = under_load(&cluster, &namespace, 2 * SHORT_S, what, || {
        let pods = waypoints(&cluster, &namespace);
        let node = pods[0].pointer("/spec/nodeName").unwrap().as_str().unwrap();
        let pod = pods[0].pointer("/metadata/name").unwrap().as_str().unwrap();
        // That of this pod: those of a drill before may still be ending on this node.
        let kill = format!(
            "for each in $(pgrep -f '^/ambit waypoint'); do grep -qz '^POD_NAME={pod}$' \
             /proc/$each/environ && exec kill -9 $each; done; echo none of {pod}; exit 1"
        );
        let said = cluster.on_node(node, &["sh", "-c", &kill]);
        assert!(said.is_success, "{}{}", said.out, said.err);
    });
    outcome.assert_lost_with_one(what);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn control_is_away_and_requests_go_on() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("drill-away");
    deploy(&cluster, &namespace, 2);
    attach(&cluster, &namespace);
    cluster.scale(MESH, "istiod", 0);
    let what = "control away";
    let outcome = under_load(&cluster, &namespace, SHORT_S, what, || {
        std::thread::sleep(Duration::from_secs(1));
    });
    cluster.scale(MESH, "istiod", 2);
    outcome.assert_whole(what);
}
