//! The life of the chart: an upgrade under load, and its uninstallation.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, MESH, NODES, Said, chart, must, until};
use crate::disturbance::{ROLLOUT_S, under_load};
use crate::load::{Everyday, KEPT, LONG};

/// Where the nodes keep their CNI configuration.
const CNI: &str = "/etc/cni/net.d";

#[test]
fn another_version_is_rolled_out_under_load_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("version");
    Everyday::deploy(&namespace);
    namespace.enrol();
    for node in NODES {
        let ctr = ["ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "images"];
        let tag = ["tag", "--force", "registry.local/ambit:test", "registry.local/ambit:next"];
        must(&cluster.on_node(node, &[&ctr[..], &tag[..]].concat()));
    }
    let chart = chart();
    // Helm refuses to change what another client has set, as the test of `ambit check` does.
    let force = "--force-conflicts";
    let upgrade = ["upgrade", "ambit", &chart, "--reuse-values", "--set", "image.tag=next", force];
    let rollback = ["rollback", "ambit"];
    for (what, words) in
        [("helm upgrade to another image", &upgrade[..]), ("helm rollback", &rollback[..])]
    {
        let outcome = under_load(&cluster, &namespace, ROLLOUT_S, what, || {
            let wait = ["--namespace", MESH, "--wait", "--timeout", "180s"];
            must(&cluster.helm(&[words, &wait[..]].concat()));
        });
        outcome.assert_whole(what);
    }
}

/// Long enough for every part that may miss a pod to have lost one.
const BROKEN: Duration = Duration::from_secs(20);
/// Longer than that and a rollback take.
const BROKEN_LOAD_S: u32 = 60;

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_version_that_cannot_start_is_rolled_back_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("broken-version");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let chart = chart();
    let what = "helm upgrade to an image that does not exist, helm rollback";
    let outcome = under_load(&cluster, &namespace, BROKEN_LOAD_S, what, || {
        let set = ["--reuse-values", "--set", "image.tag=missing", "--force-conflicts"];
        let upgrade = ["upgrade", "ambit", &chart, "--namespace", MESH];
        must(&cluster.helm(&[&upgrade[..], &set].concat()));
        std::thread::sleep(BROKEN);
        let rollback = ["rollback", "ambit", "--namespace", MESH, "--wait", "--timeout", "120s"];
        must(&cluster.helm(&rollback));
    });
    outcome.assert_whole(what);
}

/// The chart as it is installed, so that it can be installed again.
struct Installed {
    values: PathBuf,
}

impl Installed {
    fn look(cluster: &Cluster) -> Self {
        let values = cluster.helm(&["get", "values", "ambit", "-n", MESH, "-o", "yaml"]);
        must(&values);
        let file = std::env::temp_dir().join(format!("ambit-values-{}", std::process::id()));
        std::fs::write(&file, &values.out).unwrap();
        Self { values: file }
    }

    fn again(self, cluster: &Cluster) {
        let file = self.values.display().to_string();
        let install = ["install", "ambit", &chart(), "--namespace", MESH, "--values", &file];
        must(&cluster.helm(&[&install[..], &["--wait", "--timeout", "180s"]].concat()));
        std::fs::remove_file(&self.values).unwrap();
    }
}

fn uninstall(cluster: &Cluster) -> Said {
    cluster.helm(&["uninstall", "ambit", "--namespace", MESH, "--timeout", "300s"])
}

/// The CNI configuration of a node before it was installed there.
fn original(cluster: &Cluster, node: &str) -> String {
    let saved = format!("cat {CNI}/.ambit-original-*.saved");
    let original = cluster.on_node(node, &["sh", "-c", &saved]).out;
    assert!(original.contains("bridge"), "{original}");
    original
}

fn assert_nothing_is_left(cluster: &Cluster, originals: &[String]) {
    for (node, original) in NODES.iter().zip(originals) {
        until(&format!("the CNI configuration of {node} is what it was"), || {
            cluster.on_node(node, &["sh", "-c", &format!("cat {CNI}/*")]).out == *original
        });
        let left = format!(
            "ls -A {CNI} /opt/cni/bin /var/run/istio-cni; ls -d /var/run/ambit/*; nft list tables; \
             for ns in /run/netns/*; do nsenter --net=$ns nft list tables; done"
        );
        until(&format!("nothing is left on {node}"), || {
            let left = cluster.on_node(node, &["sh", "-c", &left]).out;
            !left.contains("ambit") && !left.contains(".sock")
        });
    }
    let pods = cluster.ask(&["get", "pods", "-A", "-o", "json"]);
    assert!(!pods.contains("ambient.istio.io/redirection"), "no pod says that it is captured");
    let jobs = cluster.ask(&["-n", MESH, "get", "jobs,serviceaccounts", "-o", "name"]);
    assert!(!jobs.contains("ambit-uninstall"), "{jobs}");
}

#[test]
fn the_chart_is_uninstalled_under_load_and_nobody_notices() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("without");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let installed = Installed::look(&cluster);
    let originals = NODES.map(|node| original(&cluster, node));

    // A user with STRICT policies is warned first, and nothing is touched.
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: \
                  default, namespace: without}\nspec: {mtls: {mode: STRICT}}\n";
    cluster.must_apply(strict);
    let preview = cluster.ambit(&["check", "--uninstall"]);
    let refused = uninstall(&cluster);
    for said in [&preview, &refused] {
        assert!(!said.is_success, "STRICT forbids it");
        let told = format!("{}{}", said.out, said.err);
        assert!(told.contains("PeerAuthentication without/default"), "{told}");
    }
    assert!(namespace.is_captured("web"), "nothing was changed");
    cluster.remove(strict);

    // One that decides by identity: pods that leave first must still reach those that leave last.
    cluster.must_apply(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: own, \
         namespace: without}\nspec: {rules: [{from: [{source: {principals: \
         [cluster.local/ns/without/sa/load, cluster.local/ns/without/sa/near]}}]}]}\n",
    );
    let preview = cluster.ambit(&["check", "--uninstall"]);
    assert!(preview.is_success && preview.out.contains("without/own"), "{}", preview.out);
    let start = Instant::now();
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, "helm uninstall", || {
        must(&uninstall(&cluster));
    });
    eprintln!("helm uninstall took {} s", start.elapsed().as_secs());
    assert_nothing_is_left(&cluster, &originals);
    let report = namespace.load("load", "http://web:8080/", 20);
    assert_eq!(report.failed, 0, "traffic goes on: {report:?}");
    installed.again(&cluster);
    outcome.assert_whole("helm uninstall");
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn what_outlives_the_grace_of_an_uninstall_is_cut_and_counted() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("without-long");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let installed = Installed::look(&cluster);
    let originals = NODES.map(|node| original(&cluster, node));
    let shorter = ["--reuse-values", "--set", "uninstall.gracePeriodSeconds=8", "--wait"];
    let upgrade = ["upgrade", "ambit", &chart(), "--namespace", MESH, "--timeout", "180s"];
    must(&cluster.helm(&[&upgrade[..], &shorter].concat()));
    let mut told = String::new();
    let what = "helm uninstall, connections that outlive its grace of 8 s";
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, what, || {
        let said = uninstall(&cluster);
        must(&said);
        told = format!("{}{}", said.out, said.err);
    });
    assert_nothing_is_left(&cluster, &originals);
    installed.again(&cluster);
    assert!(told.contains("ends of connections were open after 8s"), "{told}");
    assert_eq!(outcome.fresh.failed, 0, "{outcome:#?}");
    let requests = outcome.kept.failed.max(outcome.near.failed);
    assert!(requests <= KEPT as u64 && outcome.long.cut <= LONG as u64, "{outcome:#?}");
}
