//! What leaves the mesh: hosts that are looked up, a fence around everything else, and a waypoint
//! that hears which host is meant.
//!
//! This machine has no way out. Its outside is a node's own address, where a pod on the node's
//! network serves, and the names of headless Services, which lead to that address.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::policy::logged;

/// Serves on a node's network.
const OUTSIDE: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: outside, labels: {app: far}}
spec:
  hostNetwork: true
  nodeName: node-2
  containers:
  - {name: tls, image: \"ambit/sample:1\", args: [tcp-echo, --listen, \"[::]:18443\"]}
  - {name: web, image: \"ambit/sample:1\", args: [echo, --listen, \"[::]:18080\"]}
---
apiVersion: v1
kind: Service
metadata: {name: inside, namespace: app}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: tcp, port: 9000}]}
";

/// Names that lead there; no port of a test is theirs.
const NAME: &str = "\
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: outside}
spec: {clusterIP: None, selector: {app: far}, ports: [{name: none, port: 1}]}
";

const ENTRIES: &str = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: client}
spec:
  hosts: [far.example]
  resolution: DNS
  endpoints: [{address: allowed.outside.svc.cluster.local}]
  ports: [{number: 18443, name: tcp, protocol: TCP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: rebound, namespace: client}
spec:
  hosts: [rebound.example]
  resolution: DNS
  endpoints: [{address: inside.app.svc.cluster.local}]
  ports: [{number: 9000, name: tcp, protocol: TCP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: allowed, namespace: client}
spec:
  hosts: [allowed.outside.svc.cluster.local]
  resolution: NONE
  ports: [{number: 18443, name: tls, protocol: TLS}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: secret, namespace: app}
spec:
  hosts: [secret.outside.svc.cluster.local]
  exportTo: [\".\"]
  resolution: NONE
  ports: [{number: 18443, name: tls, protocol: TLS}]
";

const FENCE: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: \"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\"}
";

/// Hosts below a name, behind a waypoint that hears which is meant.
const WILDCARD: &str = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: wild
  namespace: client
  labels: {istio.io/use-waypoint: egress}
spec:
  hosts: [\"*.outside.svc.cluster.local\"]
  exportTo: [\".\"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 18080}]
";

const HOST: &str = "*.outside.svc.cluster.local";
const CLIENT: &str = "client/load";

#[test]
fn pods_reach_what_is_named_and_nothing_else() {
    let machine = Machine::up_with("egress", Mesh::On, &[], OUTSIDE);
    let pods = || machine.pods().into_iter().find(|pod| pod.name == "far" && pod.ready);
    machine.wait("the outside serves", SETTLE_TIMEOUT, || pods().is_some());
    let far = machine.pod_ip("outside", "far", false);
    let names = ["allowed", "evil", "secret"];
    let names = names.map(|name| NAME.replace("NAME", name));
    machine.apply(&format!("{ENTRIES}{}", names.concat()));
    looked_up(&machine);
    fenced(&machine, &far);
    behind_a_waypoint(&machine);
    machine.down();
}

/// The first message of a TLS client that names a host, as `printf` of bash writes it.
fn hello(host: &str) -> String {
    let number = |length: usize| u16::try_from(length).expect("short").to_be_bytes();
    let name = [&[0][..], &number(host.len()), host.as_bytes()].concat();
    let list = [&number(name.len())[..], &name].concat();
    let extension = [&[0, 0][..], &number(list.len()), &list].concat();
    let mut body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    body.extend([&number(extension.len())[..], &extension].concat());
    let message = [&[1, 0][..], &number(body.len()), &body].concat();
    let record = [&[22, 3, 1][..], &number(message.len()), &message].concat();
    record.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Whether the first five bytes of what a pod says there come back.
fn talks(machine: &Machine, pod: &str, to: &str, said: &str) -> bool {
    let script = format!(
        "exec 3<>/dev/tcp/{to} && printf '{said}' >&3 && \
         echo heard $(timeout 5 head -c 5 <&3 | wc -c)"
    );
    machine.bash(pod, &script).contains("heard 5")
}

fn looked_up(machine: &Machine) {
    machine.wait("a host is looked up", SETTLE_TIMEOUT, || {
        talks(machine, CLIENT, "far.example/18443", "hello")
    });
    assert!(!talks(machine, CLIENT, "rebound.example/9000", "hello"), "it leads to a pod");
    logged(machine, "node-1", &["inside.app.svc.cluster.local leads to", "is a workload's"]);
    let why = machine.why(CLIENT, "far.example:18443");
    assert_eq!((&why["plan"], &why["decision"]), (&"lookup".into(), &"allow".into()), "{why:#}");
}

fn fenced(machine: &Machine, far: &str) {
    let at = format!("{far}/18443");
    assert!(talks(machine, CLIENT, &at, "hello"), "everything is open");
    machine.apply(FENCE);
    machine.wait("the fence stands", SETTLE_TIMEOUT, || {
        machine.why(CLIENT, &format!("{far}:18080"))["plan"] == "refuse"
    });
    let refused = |pod: &str, to: &str, said: &str, parts: &[&str]| {
        machine
            .wait(&format!("{to} is refused"), SETTLE_TIMEOUT, || !talks(machine, pod, to, said));
        logged(machine, "node-1", parts);
    };
    refused(CLIENT, &format!("{far}/18080"), "hello", &["REGISTRY_ONLY", "is of no Service"]);
    let hello = |name: &str| hello(&format!("{name}.outside.svc.cluster.local"));
    assert!(talks(machine, CLIENT, &at, &hello("allowed")), "its name is declared");
    refused(CLIENT, &at, &hello("evil"), &["evil.outside.svc.cluster.local at port 18443"]);
    refused(CLIENT, &at, &hello("secret"), &["secret.outside.svc.cluster.local at port 18443"]);
    assert!(talks(machine, "app/server", &at, &hello("secret")), "it is its namespace's");
    let elsewhere = ["which the client names, does not lead to 192.0.2.9"];
    refused(CLIENT, "192.0.2.9/18443", &hello("allowed"), &elsewhere);
    assert!(talks(machine, CLIENT, "far.example/18443", "hello"), "what is named is open");
    let sni = |name: &str| {
        let name = format!("{name}.outside.svc.cluster.local");
        machine.run(&["why", CLIENT, &format!("{far}:18443"), "--sni", &name])
    };
    assert!(sni("allowed").contains("client/allowed.outside"), "{}", sni("allowed"));
    assert!(sni("evil").contains("REGISTRY_ONLY"), "{}", sni("evil"));
}

/// The status of a request for a host at the wildcard's address.
fn status(machine: &Machine, pod: &str, address: &str, host: &str) -> String {
    let request = format!("GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n");
    let script =
        format!("exec 3<>/dev/tcp/{address}/80 && printf '{request}' >&3 && timeout 5 head -1 <&3");
    machine.bash(pod, &script)
}

fn behind_a_waypoint(machine: &Machine) {
    machine.run(&["waypoint", "apply", "-n", "client", "--name", "egress", "--wait"]);
    machine.apply(WILDCARD);
    let address = || {
        let services = machine.list("services");
        let wild = services.iter().find(|it| it["name"] == "wild" || it["hostname"] == HOST)?;
        Some(wild["addresses"][0].as_str()?.to_owned())
    };
    machine.wait("the wildcard has an address", SETTLE_TIMEOUT, || address().is_some());
    let address = address().expect("it was there");
    let ask = |pod: &str, host: &str| status(machine, pod, &address, host);
    machine.wait("a host below it answers", SETTLE_TIMEOUT, || {
        ask(CLIENT, "allowed.outside.svc.cluster.local").contains(" 200")
    });
    for host in ["inside.app.svc.cluster.local", "10.96.0.1", "evil.example"] {
        assert!(ask(CLIENT, host).contains(" 503"), "{host}: {}", ask(CLIENT, host));
    }
    // The entry is another namespace's.
    let other = ask("app/server", "allowed.outside.svc.cluster.local");
    assert!(!other.contains(" 200"), "{other}");
    let refused = format!("{address}:80 is of no Service, ServiceEntry or workload");
    logged(machine, "node-2", &[&refused]);
}
