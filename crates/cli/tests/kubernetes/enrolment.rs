//! Into the mesh and out of it, by a label and without a restart.

use serde_json::Value;

use crate::cluster::{Cluster, MESH, until};

const REQUESTS: u32 = 50;
/// The API server's Service, which selects no pods.
const API_SERVER: &str = "kubernetes.default";

#[test]
fn two_pods_talk_before_and_after_their_namespace_is_labelled() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("enrolled");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    let check = |when: &str| {
        let report = namespace.load("client", "http://server:8080/", REQUESTS);
        assert_eq!((report.requests, report.failed), (REQUESTS.into(), 0), "{when}: {report:?}");
    };
    let hbone_lines = || {
        let logs = cluster.logs(MESH, "app=ztunnel");
        let client = "spiffe://cluster.local/ns/enrolled/sa/client";
        let is_hbone = |line: &&str| {
            line.contains(client) && line.contains("inbound") && line.contains("dst.hbone_addr")
        };
        logs.lines().filter(is_hbone).count()
    };
    namespace.await_served("client", "http://server:8080/");
    check("before");
    assert_eq!(hbone_lines(), 0, "nothing is in the mesh yet");
    namespace.enrol();
    check("in the mesh");
    for app in ["server", "client"] {
        let parameter = migrates(&cluster, &cluster.pods("enrolled", &format!("app={app}"))[0]);
        assert_eq!(parameter, "1", "{app}: a proxy that restarts leaves its queue to the next");
    }
    until("the server's proxy logs every connection as HBONE", || {
        hbone_lines() >= REQUESTS as usize
    });
    let before = hbone_lines();
    namespace.release();
    check("out of the mesh again");
    assert_eq!(hbone_lines(), before, "nothing passes the mesh any more");
}

#[test]
fn a_captured_pod_reaches_the_api_server() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("api-client");
    namespace.run("client", "n1", &["sample", "sleep"]);
    // Spoken to without TLS, the server says in plain words that it wants TLS: bytes that only it
    // can have written.
    let url = format!("http://{API_SERVER}:443/");
    let answered = || {
        let report = namespace.load("client", &url, REQUESTS);
        (report.status_codes.get(&400).copied().unwrap_or(0), report.errors)
    };
    let (before, errors) = answered();
    assert_eq!(before, u64::from(REQUESTS), "outside of the mesh: {errors:?}");
    namespace.enrol();
    let (meshed, errors) = answered();
    assert_eq!(meshed, u64::from(REQUESTS), "in the mesh: {errors:?}");
    until("the proxy says that it carried these connections", || {
        let logs = cluster.logs(MESH, "app=ztunnel");
        let is_ours = |line: &&str| line.contains("api-client") && line.contains(API_SERVER);
        logs.lines().filter(is_ours).count() >= REQUESTS as usize
    });
}

/// `net.ipv4.tcp_migrate_req` of a pod's network: its container's /proc/sys is read-only.
fn migrates(cluster: &Cluster, pod: &Value) -> String {
    let (node, uid) = (pod["spec"]["nodeName"].as_str(), pod["metadata"]["uid"].as_str());
    let script = format!(
        "of=$(grep -l {} /proc/[0-9]*/cgroup | head -1) && nsenter --net=${{of%/cgroup}}/ns/net \
         cat /proc/sys/net/ipv4/tcp_migrate_req",
        uid.unwrap()
    );
    let said = cluster.on_node(node.unwrap(), &["bash", "-c", &script]);
    assert!(said.is_success, "{}", said.err);
    said.out.trim().to_owned()
}
