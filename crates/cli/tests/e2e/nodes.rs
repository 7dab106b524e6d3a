//! Nodes of a machine: labels and taints by a flag, by manifests and by kubectl's requests, and
//! the pods that go where they say.

use std::time::Duration;

use serde_json::json;

use crate::kubectl_writes::{Answer, MERGE, STRATEGIC, Writer};
use crate::machine::{Machine, Mesh, Said};

/// How long pods may take to be where a change sends them.
const MOVED: Duration = Duration::from_secs(60);

/// One node is for batches alone.
const TAINTED: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-2, labels: {tier: batch}}
spec:
  taints: [{key: dedicated, value: batch, effect: NoSchedule}]
";
/// Pods of all sorts: two that stay away from it, a batch that wants it, agents, and one for which
/// there is no node.
const PODS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: plain, namespace: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: plain}}
  template:
    metadata: {labels: {app: plain}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: batch, namespace: app}
spec:
  selector: {matchLabels: {app: batch}}
  template:
    metadata: {labels: {app: batch}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {tier: batch, kubernetes.io/os: linux, beta.kubernetes.io/os: linux}
      tolerations: [{key: dedicated, operator: Equal, value: batch, effect: NoSchedule}]
      containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: app}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
";
const NOWHERE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: nowhere, namespace: app}
spec:
  nodeSelector: {tier: batch}
  containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
";
const NODE: &str = "/api/v1/nodes/node-1";

#[test]
fn pods_go_where_labels_and_taints_send_them() {
    let flags = ["--kubernetes-api", "--node-labels", "node-1:disk=ssd"];
    let machine = Machine::up_with("nodes", Mesh::Off, &flags, &format!("{TAINTED}---{PODS}"));
    let client = Writer::of(&machine);
    pods_are_where_they_tolerate_it(&machine);
    what_a_node_is_can_be_read(&machine);
    a_node_is_closed_and_opened(&machine, &client);
    pods_are_driven_out(&machine, &client);
    what_is_the_machines_own_is_refused(&machine, &client);
    machine.down();
}

/// The nodes of the pods that a controller made.
fn nodes_of(machine: &Machine, owner: &str) -> Vec<String> {
    let pods = machine.pods().into_iter().filter(|it| it.owner == owner && !it.terminating);
    let mut nodes: Vec<String> = pods.map(|it| it.node).collect();
    nodes.sort();
    nodes
}

fn pods_are_where_they_tolerate_it(machine: &Machine) {
    assert_eq!(nodes_of(machine, "plain"), ["node-1", "node-1"]);
    assert_eq!(nodes_of(machine, "batch"), ["node-2"]);
    assert_eq!(nodes_of(machine, "agent"), ["node-1"]);
    let warned = machine.apply(NOWHERE);
    let why = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector (no \
               label tier=batch), 1 node(s) had untolerated taint {dedicated: batch}";
    assert!(warned.contains(&format!("Pod app/nowhere will not run: {why}")), "{warned}");
    let pods = machine.run(&["get", "pods"]);
    assert!(pods.contains("Unschedulable: 0/2 nodes are available"), "{pods}");
    machine.run(&["delete", "-n", "app", "pod/nowhere"]);
}

fn what_a_node_is_can_be_read(machine: &Machine) {
    let described = machine.run(&["describe", "node", "node-2"]);
    for part in ["tier=batch", "dedicated=batch:NoSchedule", "Unschedulable:  false"] {
        assert!(described.contains(part), "{part} is missing in: {described}");
    }
    let described = machine.run(&["describe", "node", "node-1"]);
    assert!(described.contains("disk=ssd") && described.contains("<none>"), "{described}");
    machine.run(&["label", "node", "node-1", "tier=web", "disk-"]);
    let described = machine.run(&["describe", "node", "node-1"]);
    assert!(described.contains("tier=web") && described.contains("disk=ssd"), "{described}");
}

fn a_node_is_closed_and_opened(machine: &Machine, client: &Writer) {
    // What kubectl's cordon and uncordon send.
    let closed = json!({"spec": {"unschedulable": true}});
    let Answer(status, _, node) = client.patch(NODE, STRATEGIC, &closed);
    let taint = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    assert_eq!((status, &node["spec"]["taints"][0]), (200, &taint), "{node}");
    assert_eq!(nodes_of(machine, "plain"), ["node-1", "node-1"], "those that run stay");
    assert_eq!(nodes_of(machine, "agent"), ["node-1"]);
    machine.run(&["scale", "deploy/plain", "-n", "app", "--replicas", "3"]);
    let open = |node: &str| machine.pods().iter().any(|it| it.owner == "plain" && it.node == node);
    assert!(open(""), "the third has no node");
    let why = machine.run(&["events", "-n", "app", "--types", "warning"]);
    assert!(why.contains("1 node(s) were unschedulable"), "{why}");
    let opened = json!({"spec": {"unschedulable": null}});
    let Answer(_, _, node) = client.patch(NODE, STRATEGIC, &opened);
    assert!(node["spec"].get("taints").is_none(), "{node}");
    machine.wait("the third has a node", MOVED, || !open(""));
}

fn pods_are_driven_out(machine: &Machine, client: &Writer) {
    // What `kubectl taint nodes node-1 off=yes:NoExecute` sends.
    let taint = json!({"key": "off", "value": "yes", "effect": "NoExecute"});
    client.patch(NODE, STRATEGIC, &json!({"spec": {"taints": [taint]}}));
    machine.wait("all pods of the node have gone", MOVED, || {
        let pods = machine.pods();
        pods.iter().all(|it| it.node != "node-1")
    });
    assert_eq!(nodes_of(machine, "plain"), ["", "", ""], "they wait for a node");
    assert_eq!(nodes_of(machine, "batch"), ["node-2"]);
    assert!(nodes_of(machine, "agent").is_empty());
    client.patch(NODE, MERGE, &json!({"spec": {"taints": null}}));
    machine.wait("they are back", MOVED, || {
        let pods = machine.pods();
        pods.iter().filter(|it| it.owner == "plain").all(|it| it.ready && it.node == "node-1")
            && nodes_of(machine, "agent") == ["node-1"]
    });
}

fn what_is_the_machines_own_is_refused(machine: &Machine, client: &Writer) {
    let refused = |said: &Said, parts: &[&str]| {
        assert!(!said.status.success(), "{}", said.out);
        parts.iter().for_each(|it| assert!(said.err.contains(it), "{it}: {}", said.err));
    };
    let other = TAINTED.replace("node-2", "worker-a");
    let parts = ["Node worker-a: metadata.name", "name one of node-1 to node-2", "--nodes"];
    refused(&machine.ambit_with(&["apply", "-"], &other), &parts);
    let effect = TAINTED.replace("NoSchedule", "Never");
    refused(&machine.ambit_with(&["apply", "-"], &effect), &["spec.taints[0].effect", "NoExecute"]);
    let toleration = NOWHERE.replace(
        "nodeSelector",
        "tolerations: [{key: a, value: b, \
        operator: Exists}]\n  nodeSelector",
    );
    refused(&machine.ambit_with(&["apply", "-"], &toleration), &["spec.tolerations[0].value"]);
    refused(&machine.ambit(&["delete", "node/node-2"]), &["Node node-2", "own and stays"]);
    let both = format!("{TAINTED}---{}", PODS.split("---").nth(1).expect("the batch"));
    let said = machine.ambit_with(&["delete", "-"], &both);
    assert!(
        said.status.success() && said.err.contains("nodes are the machine's own"),
        "{}",
        said.err
    );
    assert!(machine.run(&["describe", "node", "node-2"]).contains("dedicated=batch"));
    client.refused(client.send("DELETE", NODE, "application/json", ""), 405, "kubectl cordon");
    for label in ["kubernetes.io/hostname", "kubernetes.io/arch"] {
        let other = json!({"metadata": {"labels": {label: "x"}}});
        client.refused(client.patch(NODE, MERGE, &other), 422, label);
    }
}
