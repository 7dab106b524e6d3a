//! Connections through a waypoint on one machine: routed by weight and by the name in a TLS
//! handshake, judged by that name, and refused where no route takes them.

use std::fmt::Write as _;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, sum};

/// Two versions of a server that speaks first, each with a Service, and Services before both.
const SERVERS: &str = "\
apiVersion: v1
kind: Service
metadata: {name: split, namespace: app}
spec: {selector: {tier: both}, ports: [{name: tcp, port: 7000, targetPort: 9001}]}
---
apiVersion: v1
kind: Service
metadata: {name: named, namespace: app}
spec: {selector: {tier: both}, ports: [{name: tls, port: 7443, targetPort: 9001}]}
---
apiVersion: v1
kind: Service
metadata: {name: v1, namespace: app}
spec: {selector: {version: v1}, ports: [{name: tcp, port: 7000, targetPort: 9001}]}
---
apiVersion: v1
kind: Service
metadata: {name: v2, namespace: app}
spec: {selector: {version: v2}, ports: [{name: tcp, port: 7000, targetPort: 9001}]}
---
apiVersion: v1
kind: Pod
metadata: {name: v1, namespace: app, labels: {tier: both, version: v1}}
spec:
  serviceAccountName: server
  nodeName: node-2
  containers:
  - name: banner
    image: ambit/sample:1
    args: [banner, --listen, '[::]:9001', --line, version-1]
    readinessProbe: {tcpSocket: {port: 9001}}
---
apiVersion: v1
kind: Pod
metadata: {name: v2, namespace: app, labels: {tier: both, version: v2}}
spec:
  serviceAccountName: server
  nodeName: node-2
  containers:
  - name: banner
    image: ambit/sample:1
    args: [banner, --listen, '[::]:9001', --line, version-2]
    readinessProbe: {tcpSocket: {port: 9001}}
";

const SPLIT: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: split, namespace: app}
spec:
  parentRefs: [{group: '', kind: Service, name: split}]
  rules:
  - backendRefs:
    - {name: v1, port: 7000, weight: 80}
    - {name: v2, port: 7000, weight: 20}
";

const NAMED: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: one, namespace: app}
spec:
  parentRefs: [{group: '', kind: Service, name: named}]
  hostnames: [one.example]
  rules: [{backendRefs: [{name: v1, port: 7000}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: wild, namespace: app}
spec:
  parentRefs: [{group: '', kind: Service, name: named}]
  hostnames: ['*.example']
  rules: [{backendRefs: [{name: v2, port: 7000}]}]
";

const BY_VIRTUAL_SERVICE: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: split, namespace: app}
spec:
  host: split
  subsets: [{name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: split, namespace: app}
spec:
  hosts: [split]
  tcp: [{route: [{destination: {host: split, subset: v2}}]}]
";

const NOT_OTHERS: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: by-name, namespace: app}
spec:
  targetRefs: [{kind: Service, group: '', name: named}]
  action: DENY
  rules: [{when: [{key: connection.sni, values: [denied.example]}]}]
";

#[test]
fn connections_are_routed_and_judged() {
    let machine = Machine::up("bytes", Mesh::On, &[]);
    machine.apply(SERVERS);
    machine.put_behind_waypoint(|| said(&machine, "split.app", 7000, &[]).contains("version-"));
    by_weight(&machine);
    by_name(&machine);
    by_virtual_service(&machine);
    explained(&machine);
    counted(&machine);
    machine.down();
}

/// What a server says to a client in the mesh that sends these bytes.
fn said(machine: &Machine, host: &str, port: u16, bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("a text takes everything");
    }
    let script =
        format!("exec 3<>/dev/tcp/{host}/{port} && printf '{text}' >&3 && timeout 8 head -1 <&3");
    machine.bash("client/load", &script)
}

/// Four of five connections go to one version.
fn by_weight(machine: &Machine) {
    machine.apply(SPLIT);
    let table = machine.run(&["routes", "app/split"]);
    assert!(table.contains("every connection") && table.contains("80/100"), "{table}");
    let script = "for i in $(seq 100); do \
                    (exec 3<>/dev/tcp/split.app/7000 && timeout 8 head -1 <&3); \
                  done | sort | uniq -c";
    let counted = machine.bash("client/load", script);
    let of = |version: &str| {
        let line = counted.lines().find(|line| line.ends_with(version)).unwrap_or_default();
        line.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or(0u32)
    };
    let (one, two) = (of("version-1"), of("version-2"));
    println!("of 100 connections {one} went to v1 and {two} to v2");
    // Beyond four standard deviations once in 16,000 runs.
    assert!(one + two == 100 && (64..=96).contains(&one), "{counted}");
}

/// A ClientHello that names this host.
fn hello(host: &str) -> Vec<u8> {
    let sized = |width: usize, content: &[u8]| {
        let length = content.len().to_be_bytes();
        [&length[length.len() - width..], content].concat()
    };
    let name = sized(2, &[&[0][..], &sized(2, host.as_bytes())].concat());
    let extension = [&[0, 0][..], &sized(2, &name)].concat();
    let random = [7; 32];
    let suites = sized(2, &[0x13, 0x01]);
    let body = [&[3, 3][..], &random, &[0], &suites, &[1, 0], &sized(2, &extension)].concat();
    let message = [&[1][..], &sized(3, &body)].concat();
    [&[22, 3, 1][..], &sized(2, &message)].concat()
}

fn by_name(machine: &Machine) {
    machine.apply(NAMED);
    machine.wait("the routes hold", SETTLE_TIMEOUT, || {
        !said(machine, "named.app", 7443, &hello("other.org")).contains("version-")
    });
    for (host, expected) in [
        ("one.example", "version-1"),
        ("ONE.example", "version-1"),
        ("two.example", "version-2"),
        ("a.b.example", "version-2"),
    ] {
        let said = said(machine, "named.app", 7443, &hello(host));
        assert_eq!(said.trim(), expected, "{host}");
    }
    for bytes in [hello("example"), b"no TLS at all\\n".to_vec()] {
        let said = said(machine, "named.app", 7443, &bytes);
        assert!(!said.contains("version-"), "no route takes it: {said}");
    }
    let log = machine.run(&["logs", "app/waypoint"]);
    assert!(log.contains("no route takes TLS connections to other.org"), "{log}");
    machine.apply(NOT_OTHERS);
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        !said(machine, "named.app", 7443, &hello("denied.example")).contains("version-")
    });
    assert_eq!(said(machine, "named.app", 7443, &hello("two.example")).trim(), "version-2");
}

/// What the waypoint would do is what it has done.
fn explained(machine: &Machine) {
    let why = |further: &[&str]| -> serde_json::Value {
        let asked = ["why", "client/load", "app/named:7443", "-o", "json"];
        let text = machine.run(&[&asked[..], further].concat());
        serde_json::from_str(&text).expect("it prints JSON")
    };
    let two = why(&["--sni", "two.example"]);
    assert_eq!(
        (&two["decision"], &two["connection"]["protocol"]),
        (&"allow".into(), &"TLS".into())
    );
    assert_eq!(two["connection"]["rule"]["route"], "app/wild", "{two}");
    let denied = why(&["--sni", "denied.example"]);
    assert_eq!(
        (&denied["decision"], &denied["policy"]["name"]),
        (&"deny".into(), &"app/by-name".into())
    );
    let nameless = why(&[]);
    assert_eq!(nameless["decision"], "deny", "{nameless}");
    assert!(nameless["reason"].as_str().is_some_and(|it| it.starts_with("no route takes")));
}

/// Connections that are no HTTP have Istio's metrics of TCP.
fn counted(machine: &Machine) {
    let client = "source_principal=\"spiffe://cluster.local/ns/client/sa/load\"";
    let server = "destination_principal=\"spiffe://cluster.local/ns/app/sa/server\"";
    let read = || machine.page("app/waypoint", "127.0.0.1/15020", "/metrics");
    let sum_of = |metrics: &str, metric: &str, service: &str| {
        let service = format!("destination_service=\"{service}.app.svc.cluster.local\"");
        sum(metrics, metric, &["reporter=\"waypoint\"", client, server, &service])
    };
    machine.wait("all connections have ended", SETTLE_TIMEOUT, || {
        let metrics = read();
        let opened = sum_of(&metrics, "istio_tcp_connections_opened_total", "v1");
        opened >= 64 && opened == sum_of(&metrics, "istio_tcp_connections_closed_total", "v1")
    });
    let metrics = read();
    let of = |metric: &str, service: &str| sum_of(&metrics, metric, service);
    assert!(of("istio_tcp_sent_bytes_total", "v1") >= 10 * 64, "each has sent a line: {metrics}");
    assert!(of("istio_tcp_received_bytes_total", "v1") > 0, "a hello was sent: {metrics}");
    assert!(of("istio_tcp_connections_opened_total", "v2") > 0, "{metrics}");
    let refused = ["reporter=\"waypoint\"", client, "response_flags=\"DENY\""];
    assert!(sum(&metrics, "istio_tcp_connections_failed_total", &refused) > 0, "{metrics}");
}

fn by_virtual_service(machine: &Machine) {
    machine.delete(SPLIT);
    machine.apply(BY_VIRTUAL_SERVICE);
    machine.wait("the subset takes all", SETTLE_TIMEOUT, || {
        (0..10).all(|_| said(machine, "split.app", 7000, &[]).trim() == "version-2")
    });
}
