//! What a cluster of a thousand nodes costs, and how soon its proxies know a change.
//!
//! API server, store and controllers are real, and so are control, the two nodes and their proxies;
//! kwok simulates the kubelets of the other nodes, `ambit lab-scale fleet` their proxies. It
//! measures and reports: nothing fails for being slow, only for being wrong. `AMBIT_SCALE` lists
//! the numbers of pods to try, `AMBIT_SCALE_REPORT` names the directory of the report.

mod growth;
mod parts;
mod report;

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, MESH, Namespace, until};
use parts::{Fleet, Kwok, Part, Rollouts, populate, prefer_nodes, stolen_seconds, weights};

const NODES: u32 = 1000;
/// Proxies of a smaller fleet, for what a change costs grows with them; and their changes, each pod
/// twice.
const FEWER: u32 = 250;
const FEWER_CHURN: (f64, u32) = (40.0, 2000);
const NAMESPACES: u32 = 100;
/// Services of the largest cluster; a smaller one has a tenth of its pods.
const SERVICES_MAX: u32 = 5000;
/// Changes a second: as good as none, and as many as busy clusters have. Together they change each
/// of a thousand pods twice, so that all are ready again for the next size: a change to what is
/// already so would reach nobody.
const QUIET: (f64, u32) = (2.0, 100);
const CHURN: (f64, u32) = (40.0, 1900);
/// How often one proxy begins from nothing.
const VIEWS: usize = 10;
/// Until memory and processors are at rest.
const SETTLE: Duration = Duration::from_secs(15);
/// How long a cluster at rest is observed.
const REST: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes an hour; cargo xtask e2e kubernetes --scale runs it"]
fn a_thousand_nodes_are_told_what_changed() {
    let sizes = std::env::var("AMBIT_SCALE").expect("AMBIT_SCALE names numbers of pods");
    let sizes: Vec<u32> = sizes.split(',').map(|it| it.trim().parse().unwrap()).collect();
    let report = std::env::var_os("AMBIT_SCALE_REPORT").expect("AMBIT_SCALE_REPORT is set");
    let report = PathBuf::from(report);
    let cluster = Cluster::alone();
    cluster.scale(MESH, "istiod", 1);
    let namespace = cluster.namespace("scale-rollout");
    Rollouts::deploy(&cluster, &namespace);
    namespace.enrol();
    sleep(SETTLE);
    prefer_nodes(&cluster);
    let mut rows = vec![json!({ "pods": 0, "rest": rest(&cluster) })];
    let _kwok = Kwok::start(&cluster);
    let mut before = (0, 0);
    for pods in sizes {
        let size = Size { pods, services: (pods / 10).min(SERVICES_MAX) };
        let populated = populate(&cluster, size, before);
        before = (pods, size.services);
        sleep(SETTLE);
        let row = one_size(&cluster, &namespace, size, populated);
        rows.push(row);
        report::write(&report, &rows);
    }
}

/// How large a cluster is.
#[derive(Clone, Copy, Debug)]
struct Size {
    pods: u32,
    services: u32,
}

fn one_size(cluster: &Cluster, namespace: &Namespace, size: Size, populated: Value) -> Value {
    let grown = rest(cluster);
    // What it needs, without what its growth left behind.
    cluster.ask(&["-n", MESH, "rollout", "restart", "deployment/istiod"]);
    cluster.await_rollout(MESH, "deployment/istiod");
    until("one control is left", || cluster.pods(MESH, "app=istiod").len() == 1);
    sleep(SETTLE);
    let rest = rest(cluster);
    let control = Part::control(cluster);
    let mut fleet = Fleet::start(cluster, size, FEWER);
    let synced = fleet.ask("sync");
    let churn = changes(&mut fleet, &control, FEWER_CHURN);
    let fewer = json!({ "proxies": FEWER, "sync": synced, "churn": churn });
    drop(fleet);
    sleep(SETTLE);
    let mut fleet = Fleet::start(cluster, size, NODES);
    let before = control.usage();
    let synced = fleet.ask("sync");
    let with_fleet = control.usage().since(&before);
    let weights = weights(cluster, &control, &fleet);
    sleep(SETTLE);
    let views: Vec<Value> = (0..VIEWS).map(|_| fleet.ask("view")).collect();
    let quiet = changes(&mut fleet, &control, QUIET);
    let rollouts = Rollouts::start(cluster, namespace);
    let churn = changes(&mut fleet, &control, CHURN);
    let rollouts = rollouts.end();
    let at_end = control.usage();
    fleet.tell("return");
    let killed = restart(cluster, &control);
    let returned = fleet.answer();
    let after = Part::control(cluster).usage();
    json!({
        "pods": size.pods, "services": size.services, "nodes": NODES, "namespaces": NAMESPACES,
        "weights": weights, "populated": populated, "grown": grown, "rest": rest, "fewer": fewer,
        "sync": {"fleet": synced, "control": with_fleet}, "views": views,
        "quiet": quiet, "churn": churn, "rollouts": rollouts, "atEnd": at_end,
        "restart": {"servesAgainMs": killed, "fleet": returned, "control": after},
    })
}

/// Memory of all parts at rest, and what they use of a processor meanwhile.
fn rest(cluster: &Cluster) -> Value {
    let parts = || [Part::control(cluster), Part::proxy(cluster, "n1"), Part::agent(cluster, "n1")];
    let before = parts().map(|it| it.usage());
    sleep(REST);
    let after = parts().map(|it| it.usage());
    let [control, proxy, agent] = [0, 1, 2].map(|at| json!(after[at].since(&before[at])));
    json!({ "control": control, "proxy": proxy, "agent": agent, "seconds": REST.as_secs() })
}

fn changes(fleet: &mut Fleet, control: &Part, (rate, count): (f64, u32)) -> Value {
    let (before, stolen) = (control.usage(), stolen_seconds());
    let came = fleet.ask(&format!("changes {rate} {count}"));
    let stolen = stolen_seconds() - stolen;
    json!({ "fleet": came, "control": control.usage().since(&before), "stolenSeconds": stolen })
}

/// Kills control; answers how long it took until another one was ready.
fn restart(cluster: &Cluster, control: &Part) -> u64 {
    let start = std::time::Instant::now();
    control.kill();
    until("control serves again", || {
        Part::find_control(cluster).is_some_and(|it| it.pids != control.pids && it.is_ready())
    });
    start.elapsed().as_millis() as u64
}
