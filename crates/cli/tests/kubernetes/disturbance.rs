//! What each event in the life of a cluster costs its users, under the everyday load: label
//! changes, and upgrades, deaths and absences of every part.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, MESH, Namespace, until};
use crate::load::{Everyday, KEPT, LONG, Outcome};

/// How long the load runs around one event that is over soon.
const SHORT_S: u32 = 8;
/// How long it runs around a rollout.
pub(crate) const ROLLOUT_S: u32 = 30;
/// How soon new connections must work again after a worker's death.
const BACK_WITHIN: Duration = Duration::from_millis(500);
/// The command line of a proxy's worker.
const WORKER: &str = "proxy.* --worker";
/// Deaths in a row, one a second.
const KILLS: u32 = 10;
/// How long the API server is away.
const API_AWAY_S: u32 = 60;

/// Runs the everyday load around an event and reports what it cost.
pub(crate) fn under_load(
    cluster: &Cluster,
    namespace: &Namespace,
    seconds: u32,
    what: &str,
    event: impl FnOnce(),
) -> Outcome {
    let load = Everyday::start(cluster, namespace, seconds);
    event();
    let outcome = load.end();
    eprintln!("event | {what} | {}", outcome.summary());
    outcome
}

/// Bytes that the kernel moved past the proxy of the servers' node, of connections that have ended.
/// `None` where it can move none.
fn went_past_the_proxy(cluster: &Cluster) -> Option<u64> {
    let pods = cluster.pods(MESH, "app=ztunnel");
    let is_meant = |pod: &&Value| {
        pod["spec"]["nodeName"] == "n2"
            && pod["status"]["phase"] == "Running"
            && pod.pointer("/metadata/deletionTimestamp").is_none()
    };
    let ip = &pods.iter().find(is_meant).expect("a proxy")["status"]["podIP"];
    let page = format!("http://{}:15020/metrics", ip.as_str().expect("an address"));
    let said = cluster.on_node("n2", &["curl", "-s", &page]);
    let value = |name: &str| -> u64 {
        let count = said.out.lines().find_map(|line| line.strip_prefix(name));
        count.and_then(|it| it.trim().parse().ok()).unwrap_or_else(|| panic!("{}", said.out))
    };
    (value("ambit_kernel_path ") == 1).then(|| value("ambit_kernel_path_bytes_total "))
}

#[test]
fn labels_are_set_and_taken_away_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-label");
    Everyday::deploy(&namespace);
    let outcome = under_load(&cluster, &namespace, SHORT_S, "label a live namespace", || {
        namespace.enrol();
    });
    outcome.assert_whole("label");
    let outcome = under_load(&cluster, &namespace, SHORT_S, "un-label it", || {
        namespace.release();
    });
    outcome.assert_whole("un-label");
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn every_part_is_rolled_out_anew_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-rollout");
    Everyday::deploy(&namespace);
    namespace.enrol();
    for part in ["daemonset/ztunnel", "deployment/istiod", "daemonset/istio-cni-node"] {
        let what = format!("rollout restart of {part}");
        let outcome = under_load(&cluster, &namespace, ROLLOUT_S, &what, || {
            cluster.ask(&["-n", MESH, "rollout", "restart", part]);
            cluster.await_rollout(MESH, part);
        });
        outcome.assert_whole(&what);
    }
}

#[test]
fn control_and_agents_are_killed_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-kill-away");
    Everyday::deploy(&namespace);
    namespace.enrol();
    for program in ["^/ambit control", "^/ambit node"] {
        let what = format!("kill -9 of every {program}");
        let before = went_past_the_proxy(&cluster);
        let outcome = under_load(&cluster, &namespace, SHORT_S, &what, || {
            let killed: usize = ["n1", "n2"].iter().map(|node| cluster.kill(node, program)).sum();
            assert!(killed > 0, "there is a {program}");
        });
        outcome.assert_whole(&what);
        match before {
            Some(before) => until("the connections of one node were joined", || {
                went_past_the_proxy(&cluster) > Some(before)
            }),
            None => eprintln!("the kernel joins no sockets here: the proxy moved all bytes"),
        }
        for part in ["deployment/istiod", "daemonset/istio-cni-node"] {
            cluster.await_rollout(MESH, part);
        }
    }
}

#[test]
fn a_worker_dies_and_only_its_own_connections_with_it() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-kill-worker");
    Everyday::deploy(&namespace);
    namespace.enrol();
    for node in ["n1", "n2"] {
        let what = format!("kill -9 of the worker of {node}");
        let outcome = under_load(&cluster, &namespace, SHORT_S, &what, || {
            assert_eq!(cluster.kill(node, WORKER), 1, "one worker on {node}");
        });
        assert_own_connections_only(&outcome, &what);
    }
    cluster.scale(MESH, "istiod", 0);
    let what = "kill -9 of a worker while control is away";
    let outcome = under_load(&cluster, &namespace, SHORT_S, what, || {
        assert_eq!(cluster.kill("n2", WORKER), 1);
    });
    cluster.scale(MESH, "istiod", 2);
    assert_own_connections_only(&outcome, what);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_worker_dies_ten_times_in_a_row() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-ten-times");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let what = "kill -9 of a worker, ten times in a row";
    let outcome = under_load(&cluster, &namespace, KILLS + 4, what, || {
        let start = Instant::now();
        for kill in 1..=KILLS {
            until("a worker runs", || cluster.kill("n2", WORKER) == 1);
            let next = start + Duration::from_secs(1) * kill;
            sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    assert!(outcome.fresh.failed <= u64::from(KILLS), "{what}: {outcome:#?}");
    let requests = outcome.kept.failed.max(outcome.near.failed);
    assert!(requests <= u64::from(KILLS) * KEPT as u64, "{what}: {outcome:#?}");
    assert!(outcome.dark() <= BACK_WITHIN, "{what}: {outcome:#?}");
}

/// A worker's death costs its own connections, each once, and nothing for longer than half a
/// second.
fn assert_own_connections_only(outcome: &Outcome, what: &str) {
    assert!(outcome.long.cut <= LONG as u64, "{what}: {outcome:#?}");
    let requests = outcome.kept.failed.max(outcome.near.failed);
    assert!(requests <= KEPT as u64, "{what}: {outcome:#?}");
    assert!(outcome.dark() <= BACK_WITHIN, "{what}: {outcome:#?}");
}

/// The pod is gone with its supervisor: what that costs is reported, and it must come back.
#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_proxys_pod_is_killed_and_comes_back() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-kill-pod");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, "kill -9 of a supervisor", || {
        assert!(cluster.kill("n2", "^/ambit proxy") > 0);
    });
    assert!(outcome.fresh.requests > outcome.fresh.failed, "{outcome:#?}");
    cluster.await_rollout(MESH, "daemonset/ztunnel");
    let outcome = under_load(&cluster, &namespace, SHORT_S, "afterwards", || {});
    outcome.assert_whole("afterwards");
}

#[test]
fn new_pods_are_served_while_one_of_two_replicas_of_control_is_away() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-one-control");
    Everyday::deploy(&namespace);
    namespace.enrol();
    cluster.scale(MESH, "istiod", 1);
    namespace.run("late", "n1", &["sample", "sleep"]);
    let report = namespace.load("late", "http://web:8080/", 20);
    assert_eq!(report.failed, 0, "{report:?}");
    cluster.scale(MESH, "istiod", 2);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn the_api_server_is_away_for_a_minute_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-no-api");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let what = "the API server is away for a minute";
    let outcome = under_load(&cluster, &namespace, API_AWAY_S + 15, what, || {
        cluster.stop_api_server(Duration::from_secs(u64::from(API_AWAY_S)));
    });
    outcome.assert_whole(what);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_kubelet_stops_and_starts_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("event-kubelet");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let what = "a node's kubelet is away for five seconds";
    let outcome = under_load(&cluster, &namespace, SHORT_S + 8, what, || {
        cluster.stop_kubelet("n2", Duration::from_secs(5));
    });
    outcome.assert_whole(what);
}
