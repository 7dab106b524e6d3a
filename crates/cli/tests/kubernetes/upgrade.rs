//! The chart's own life: another version under load, and away with it.

use crate::cluster::{Cluster, MESH, NODES, chart, must, until};
use crate::disturbance::{ROLLOUT_S, under_load};
use crate::load::{Everyday, KEPT, LONG};

/// Where the nodes keep their CNI configuration.
const CNI: &str = "/etc/cni/net.d";

#[test]
fn another_version_is_rolled_out_under_load_and_nobody_notices() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("version");
    Everyday::deploy(&namespace);
    namespace.enrol();
    for node in NODES {
        let ctr = ["ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "images"];
        let tag = ["tag", "--force", "registry.local/ambit:test", "registry.local/ambit:next"];
        must(&cluster.on_node(node, &[&ctr[..], &tag[..]].concat()));
    }
    let chart = chart();
    let upgrade = ["upgrade", "ambit", &chart, "--reuse-values", "--set", "image.tag=next"];
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

#[test]
fn the_chart_is_uninstalled_and_nothing_is_left_on_the_nodes() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("without");
    Everyday::deploy(&namespace);
    namespace.enrol();
    let values = cluster.helm(&["get", "values", "ambit", "--namespace", MESH, "--output", "yaml"]);
    let values_file = std::env::temp_dir().join(format!("ambit-values-{}", std::process::id()));
    std::fs::write(&values_file, &values.out).unwrap();
    let original = |node: &str| {
        let saved = format!("cat {CNI}/.ambit-original-*.saved");
        cluster.on_node(node, &["sh", "-c", &saved]).out
    };
    let originals = NODES.map(original);
    assert!(originals.iter().all(|it| it.contains("bridge")), "{originals:?}");
    let outcome = under_load(&cluster, &namespace, ROLLOUT_S, "helm uninstall", || {
        must(&cluster.helm(&["uninstall", "ambit", "--namespace", MESH, "--timeout", "180s"]));
    });
    for (node, original) in NODES.iter().zip(&originals) {
        until(&format!("the CNI configuration of {node} is what it was"), || {
            cluster.on_node(node, &["sh", "-c", &format!("cat {CNI}/*")]).out == *original
        });
        let left = format!("ls -A {CNI} /opt/cni/bin /var/run/istio-cni");
        let left = cluster.on_node(node, &["sh", "-c", &left]).out;
        assert!(!left.contains("ambit") && !left.contains(".sock"), "{node}: {left}");
    }
    let report = namespace.load("load", "http://web:8080/", 20);
    assert_eq!(report.failed, 0, "traffic goes on: {report:?}");
    let file = values_file.display().to_string();
    let install = ["install", "ambit", &chart(), "--namespace", MESH, "--values", &file];
    must(&cluster.helm(&[&install[..], &["--wait", "--timeout", "180s"]].concat()));
    std::fs::remove_file(&values_file).unwrap();
    // What was open through the mesh is cut when the agents' grace is over, each connection once.
    assert_eq!(outcome.fresh.failed, 0, "{outcome:#?}");
    assert!(outcome.kept.failed <= KEPT as u64 && outcome.long.cut <= LONG as u64, "{outcome:#?}");
}
