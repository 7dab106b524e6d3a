//! Probes and hooks of pods in the mesh: the node asks them past no policy that concerns others.

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
    let said = machine.ambit_with(&["up", "-", "--detach"], PODS);
    assert!(said.status.success(), "ambit up: {}", said.err);
    assert!(!said.err.contains("Probe"), "probes have an effect: {}", said.err);
    let restarts = |name: &str| {
        let pods = machine.pods();
        pods.iter().find(|pod| pod.name == name).map_or(0, |pod| pod.restarts)
    };
    machine.bash("shut/unwell", "touch /tmp/bad");
    machine
        .wait("the unwell container is started again", SETTLE_TIMEOUT, || restarts("unwell") > 0);
    assert_eq!(restarts("well"), 0, "STRICT does not keep the node's probes out");
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
