//! Identity on a real cluster: what is seen on the wire, who may connect, and what is reported.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ambit_net::capture::{Capture, Trace};
use ambit_net::namespace::NetNs;

use crate::cluster::{Cluster, MESH, Namespace, until};
use crate::stray;

/// What the client sends with every request and a listener must not read.
pub(crate) const MARKER: &str = "marker-41d07c9be2";
/// The largest capture.
const CAPTURE_LIMIT_BYTES: u64 = 64 << 20;
/// The port of tunnels.
pub(crate) const HBONE_PORT: u16 = 15008;
const REQUESTS: u32 = 40;

/// A packet capture of everything between the nodes.
pub(crate) struct Wire {
    capture: Capture,
    file: PathBuf,
}

impl Wire {
    pub(crate) fn tap(cluster: &Cluster, name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("ambit-{name}-{}.pcap", std::process::id()));
        let machine = NetNs::open(format!("/proc/{}/ns/net", cluster.machine())).unwrap();
        let capture = Capture::start(&machine, "br0", &file, CAPTURE_LIMIT_BYTES).unwrap();
        Self { capture, file }
    }

    pub(crate) fn end(self) -> Trace {
        let summary = self.capture.stop().unwrap();
        assert_eq!((summary.dropped, summary.over_limit), (0, 0), "no frame is missing");
        let trace = Trace::read(&self.file).unwrap();
        std::fs::remove_file(&self.file).unwrap();
        trace
    }
}

fn deploy(namespace: &Namespace) {
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    namespace.await_served("client", "http://server:8080/");
}

#[test]
fn the_wire_is_plain_before_and_encrypted_after() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("wire");
    deploy(&namespace);
    let url = format!("http://server:8080/?what={MARKER}");
    let seen = |name: &str| {
        let wire = Wire::tap(&cluster, name);
        let report = namespace.load("client", &url, REQUESTS);
        assert_eq!(report.failed, 0, "{report:?}");
        wire.end()
    };
    let plain = seen("plain");
    assert!(plain.count_marker(MARKER.as_bytes()) >= REQUESTS as usize, "it is readable");
    namespace.enrol();
    let meshed = seen("meshed");
    assert_eq!(meshed.count_marker(MARKER.as_bytes()), 0, "nothing of it can be read");
    let tls = meshed.tls_summary(HBONE_PORT);
    assert!(tls.tls_bytes > 0 && tls.other_bytes == 0, "{tls:?}");
}

#[test]
fn stray_packets_of_another_node_open_no_way_past_strict() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("stray");
    deploy(&namespace);
    namespace.enrol();
    cluster.must_apply(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {name: strict, namespace: stray}\nspec: {mtls: {mode: STRICT}}\n",
    );
    let server = &cluster.pods(namespace.name, "app=server")[0];
    let addresses = server["status"]["podIPs"].as_array().unwrap();
    let attacker = format!("/proc/{}/root/run/netns/n1", cluster.machine());
    let attacker = NetNs::open(attacker).unwrap();
    for (index, address) in (0_u16..).zip(addresses) {
        let ip: IpAddr = address["ip"].as_str().unwrap().parse().unwrap();
        let to = SocketAddr::new(ip, 8080);
        let plain = |port| {
            let answers = stray::try_all(&attacker, to, port);
            answers.into_iter().filter(|(_, answer)| answer.starts_with("HTTP/")).count()
        };
        let mut port = 21_000 + 1_000 * index;
        until("STRICT is in force", || {
            port += 10;
            plain(port) == 0
        });
        for (way, answer) in stray::try_all(&attacker, to, port + 10) {
            println!("{way}: {answer}");
            assert!(!answer.starts_with("HTTP/"), "{way} to {ip}: {answer}");
        }
    }
}

#[test]
fn policies_decide_by_identity_and_say_so() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("policy");
    deploy(&namespace);
    namespace.run("other", "n1", &["sample", "sleep"]);
    namespace.enrol();
    let failed = |client: &str| namespace.load(client, "http://server:8080/", 10).failed;
    let all = |client: &str, are: u64| {
        until(&format!("{are} of 10 requests of {client} fail"), || failed(client) == are);
    };
    all("client", 0);
    let policy = |name: &str, spec: &str| {
        cluster.must_apply(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {name}, namespace: {}}}\nspec: {{selector: {{matchLabels: {{app: \
             server}}}}, {spec}}}\n",
            namespace.name
        ));
    };
    let from = |account: &str| {
        format!(
            "rules: [{{from: [{{source: {{principals: [cluster.local/ns/{}/sa/{account}]}}}}]}}]",
            namespace.name
        )
    };
    policy("only-client", &format!("action: ALLOW, {}", from("client")));
    all("other", 10);
    all("client", 0);
    policy("never-client", &format!("action: DENY, {}", from("client")));
    all("client", 10);
    let logs = cluster.logs(MESH, "app=ztunnel");
    let reason = "denied by policy policy/never-client rule 0";
    assert!(logs.contains(reason), "the access log names policy and rule");
    let status = |name: &str| {
        let words = ["-n", namespace.name, "get", "authorizationpolicy", name, "-o", "json"];
        cluster.ask(&words)
    };
    until("the policy's status says that it is enforced", || {
        status("never-client").contains("ZtunnelAccepted")
    });
}

#[test]
fn under_strict_strangers_are_refused_and_probes_pass() {
    let cluster = Cluster::open();
    let (namespace, outside) = (cluster.namespace("strict"), cluster.namespace("strict-outside"));
    deploy(&namespace);
    outside.run("stranger", "n1", &["sample", "sleep"]);
    let host = format!("http://server.{}:8080/", namespace.name);
    outside.await_served("stranger", &host);
    assert_eq!(outside.load("stranger", &host, 10).failed, 0);
    namespace.enrol();
    cluster.must_apply(&format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
         metadata: {{name: default, namespace: {}}}\nspec: {{mtls: {{mode: STRICT}}}}\n",
        namespace.name
    ));
    until("the stranger is refused", || outside.load("stranger", &host, 10).failed == 10);
    assert_eq!(namespace.load("client", &host, 10).failed, 0, "members are not");
    // A pod that is born under STRICT becomes ready only if the kubelet's probe passes.
    namespace.run_probed("probed", "n2");
    until("the probed pod is captured", || namespace.is_captured("probed"));
    namespace.await_served("client", "http://probed:8080/");
    assert_eq!(namespace.load("client", "http://probed:8080/", 10).failed, 0);
}
