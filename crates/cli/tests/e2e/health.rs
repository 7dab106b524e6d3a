//! Probes and hooks of pods in the mesh: the node asks them past no policy that concerns others.

use crate::gateway::Certificate;
use crate::machine::{Machine, SETTLE_TIMEOUT};
use crate::policy::connects;

/// Nobody may connect to the pods, in plain text or otherwise. The node's probes come in, as the
/// kubelet's do.
const PODS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: shut, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shut}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shut}
spec: {}
---
apiVersion: v1
kind: Pod
metadata: {name: well, namespace: shut}
spec:
  containers:
  - name: web
    image: ambit/sample:1
    args: [echo, --listen, '[::]:8080']
    ports: [{name: http, containerPort: 8080}]
    startupProbe: {tcpSocket: {port: http}, periodSeconds: 1}
    livenessProbe: {httpGet: {port: http}, periodSeconds: 1, failureThreshold: 3}
    readinessProbe: {httpGet: {port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: sealed, namespace: shut}
spec:
  volumes: [{name: tls, secret: {secretName: sealed}}]
  containers:
  - name: web
    image: python
    command:
    - python3
    - -uc
    - |
      import http.server, ssl
      server = http.server.HTTPServer((\"\", 8443), http.server.SimpleHTTPRequestHandler)
      context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
      context.load_cert_chain(\"/tls/tls.crt\", \"/tls/tls.key\")
      server.socket = context.wrap_socket(server.socket, server_side=True)
      server.serve_forever()
    ports: [{name: https, containerPort: 8443}]
    volumeMounts: [{name: tls, mountPath: /tls}]
    startupProbe: {httpGet: {port: https, scheme: HTTPS}, periodSeconds: 1, failureThreshold: 60}
    livenessProbe: {httpGet: {port: https, scheme: HTTPS}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: unwell, namespace: shut}
spec:
  containers:
  - name: web
    image: busybox
    command: [bash, -c, 'trap \"exit 0\" TERM; while :; do sleep 0.1; done']
    lifecycle: {postStart: {exec: {command: [touch, /tmp/started]}}}
    livenessProbe:
      exec: {command: [bash, -c, '[[ -e /tmp/started && ! -e /tmp/bad ]]']}
      periodSeconds: 1
      failureThreshold: 2
";

#[test]
fn probes_keep_pods_well_and_pass_no_policy() {
    let machine = Machine::none("health");
    let secret = Certificate::new("another.example").secret("shut/sealed");
    let manifests = format!("{PODS}---\n{secret}");
    let said = machine.ambit_with(&["up", "-", "--detach"], &manifests);
    assert!(said.status.success(), "ambit up: {}", said.err);
    assert!(!said.err.contains("Probe"), "probes have an effect: {}", said.err);
    let restarts = |name: &str| {
        let pods = machine.pods();
        pods.iter().find(|pod| pod.name == name).map_or(0, |pod| pod.restarts)
    };
    machine.bash("shut/unwell", "touch /tmp/bad");
    machine
        .wait("the unwell container is started again", SETTLE_TIMEOUT, || restarts("unwell") > 0);
    for name in ["well", "sealed"] {
        assert_eq!(restarts(name), 0, "STRICT does not keep the node's probes out: {name}");
    }
    let asked = machine.run(&["logs", "sealed", "-n", "shut"]);
    assert!(asked.contains("\"GET / HTTP/1.1\" 200"), "by TLS, whose certificate is not checked");
    let described = machine.run(&["describe", "pod", "unwell", "-n", "shut"]);
    for expected in [
        "Liveness probe failed: command \"bash\" exited with 1",
        "Container web failed liveness probe, will be restarted",
        "Restart Count",
    ] {
        assert!(described.contains(expected), "{described}");
    }
    let ip = machine.pod_ip("shut", "well", false);
    let is_let_in = connects(&machine, "shut/unwell", &format!("{ip}:8080"));
    assert!(!is_let_in, "the policy still refuses others");
    machine.down();
}
