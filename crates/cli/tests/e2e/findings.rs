//! Mistakes of new users, and what the commands report: pods that no node takes, pods that crash, a
//! waypoint that does not exist, policies and labels without effect.
//!
//! Each was once silent, or `status` reported it as healthy.

use std::time::{Duration, Instant};

use crate::machine::{MESH_ON, Machine, Mesh, SETTLE_TIMEOUT, Said, app};

/// As long as `up` waited for pods that no node takes, before it took the mesh down.
const WAITED: Duration = Duration::from_secs(60);
/// How long a container may take to crash twice.
const CRASHES: Duration = Duration::from_secs(20);

/// A generator for a node that a cloud has, as published experiments write it.
const NOWHERE: &str = "
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: generator, namespace: client}
spec:
  replicas: 2
  selector: {matchLabels: {app: generator}}
  template:
    metadata: {labels: {app: generator}}
    spec:
      nodeSelector: {node: loadgen}
      containers:
      - {name: c, image: ambit/sample:1, command: [sleep, infinity]}
";
/// A pod that ends as soon as it starts.
const CRASHING: &str = "
apiVersion: v1
kind: Pod
metadata: {name: crashing, namespace: client}
spec:
  containers:
  - {name: web, image: ambit/sample:1, command: [sh, -c, exit 3]}
";
const WAYPOINT: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: app
  labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: waypoint}
";
/// A selector, a client's namespace and a label, each with a slip.
const SLIPS: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: slip, namespace: app}
spec:
  selector: {matchLabels: {app: sever}}
  rules: [{from: [{source: {principals: [cluster.local/ns/cleint/sa/load]}}]}]
---
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {istio.io/dataplane-mod: ambient}}
";

#[test]
fn pods_that_no_node_takes_are_named_and_the_rest_runs() {
    let machine = Machine::none("nowhere");
    let start = Instant::now();
    let said = machine.ambit_with(&["up", "-", "--detach"], &format!("{}{NOWHERE}", app(Mesh::On)));
    assert!(start.elapsed() < WAITED, "it does not wait for them: {:?}", start.elapsed());
    assert!(!said.status.success(), "not everything is ready: {}", said.err);
    let why = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector (no \
               label node=loadgen)";
    says(&said.err, &["Deployment client/generator: spec.template.spec.nodeSelector: no node has"]);
    says(&said.err, &["Pod client/generator-", "will not run", why, "up, but not all of it"]);
    let pods = machine.run(&["get", "pods"]);
    let pending = pods.lines().find(|line| line.contains("generator")).expect("it is listed");
    says(pending, &["Pending", "Unschedulable", why]);
    let status = machine.ambit(&["status"]);
    assert!(!status.status.success(), "{}", status.out);
    says(&status.out, &["pod not ready: client/generator-", why, "not all is well"]);
    machine.wait_until_meshed();

    machine.delete(NOWHERE);
    assert!(machine.ambit(&["status"]).status.success(), "the rest is well");
    machine.down();
}

#[test]
fn what_is_not_as_it_was_meant_is_said() {
    let machine = Machine::up("findings", Mesh::On, &[]);
    let status = |machine: &Machine| machine.ambit(&["status"]);
    let is_well = |said: &Said| said.status.success();
    assert!(is_well(&status(&machine)), "{}", status(&machine).out);

    machine.apply(CRASHING);
    machine.wait("the pod crashes again and again", CRASHES, || {
        !is_well(&status(&machine)) && {
            machine.run(&["get", "pods"]).contains("CrashLoopBackOff")
        }
    });
    let said = status(&machine);
    assert!(!is_well(&said), "{}", said.out);
    says(&said.out, &["client/crashing: Running", "restarts: CrashLoopBackOff: container web"]);
    machine.delete(CRASHING);
    machine.wait("all is well", SETTLE_TIMEOUT, || is_well(&status(&machine)));

    let warned = machine.apply(WAYPOINT);
    let object = "WARNING: Namespace app: its label istio.io/use-waypoint names the waypoint";
    says(&warned, &[object, "the Services of app (", "is refused", "remove the label"]);
    let said = status(&machine);
    assert!(!is_well(&said), "new connections are refused: {}", said.out);
    says(&said.out, &["error: Namespace app: its label istio.io/use-waypoint", "remove the label"]);
    machine.apply(MESH_ON);
    assert!(is_well(&status(&machine)), "{}", status(&machine).out);

    let warned = machine.apply(SLIPS);
    says(&warned, &["no workload of namespace `app` has these labels", "namespace `cleint`"]);
    says(&warned, &["istio.io/dataplane-mod", "write istio.io/dataplane-mode"]);
    let said = status(&machine);
    assert!(is_well(&said), "warnings alone: {}", said.out);
    says(&said.out, &["warning: AuthorizationPolicy app/slip: no workload of namespace app has"]);
    says(
        &said.out,
        &["the namespace `cleint` of `cluster.local/ns/cleint/sa/load` does not exist"],
    );
    says(&said.out, &["warning: Namespace other: its label istio.io/dataplane-mod", "but for"]);
    machine.down();
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}
