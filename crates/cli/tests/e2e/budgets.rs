//! PodDisruptionBudgets of a machine: who evicts a pod through the Kubernetes API is refused while
//! a budget would be broken.

use serde_json::{Value, json};

use crate::kubectl_writes::{Answer, Writer};
use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: budgeted}}
  template:
    metadata: {labels: {app: budgeted}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: ambit/sample:1, command: [sleep, infinity]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: app}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: budgeted}}
";
const BUDGET: &str = "/apis/policy/v1/namespaces/app/poddisruptionbudgets/web";
const MERGE: &str = "application/merge-patch+json";

#[test]
fn a_budget_keeps_pods_from_eviction() {
    let machine = Machine::up_with("budgets", Mesh::Off, &["--kubernetes-api"], WEB);
    let client = Writer::of(&machine);
    let allowed = |count: &str| {
        let listed = machine.run(&["get", "pdb", "-n", "app"]);
        let title = listed.lines().next().is_some_and(|it| it.contains("ALLOWED DISRUPTIONS"));
        let row: Vec<&str> = listed.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        title && row.get(..5) == Some(&["app", "web", "2", "N/A", count])
    };
    machine.wait("all its pods are ready", SETTLE_TIMEOUT, || allowed("0"));
    let pods = || -> Vec<String> {
        let pods = machine.pods().into_iter().filter(|it| it.owner == "web" && !it.terminating);
        pods.filter(|it| it.ready).map(|it| it.name).collect()
    };
    machine.wait("both pods are ready", SETTLE_TIMEOUT, || pods().len() == 2);
    let Answer(status, head, body) = evict(&client, &pods()[0]);
    assert_eq!((status, &body["reason"]), (429, &json!("TooManyRequests")), "{body}");
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    assert_eq!(body["message"], message);
    let cause = "The disruption budget web needs 2 healthy pods and has 2 currently";
    assert_eq!(body["details"]["causes"][0]["message"], cause);
    assert!(
        !head.to_ascii_lowercase().contains("retry-after"),
        "kubectl asks again itself: {head}"
    );
    assert_eq!(pods().len(), 2);
    let fewer = json!({"spec": {"minAvailable": 1}}).to_string();
    let Answer(status, _, body) = client.send("PATCH", BUDGET, MERGE, &fewer);
    assert_eq!((status, &body["status"]["disruptionsAllowed"]), (200, &json!(1)), "{body}");
    let Answer(status, _, body) = evict(&client, &pods()[0]);
    assert_eq!((status, &body["status"]), (201, &json!("Success")), "{body}");
    machine.wait("another is ready", SETTLE_TIMEOUT, || pods().len() == 2);
    machine.run(&["delete", "-n", "app", "pdb/web"]);
    machine.down();
}

fn evict(client: &Writer, pod: &str) -> Answer {
    let eviction: Value = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "app"}});
    let path = format!("/api/v1/namespaces/app/pods/{pod}/eviction");
    client.send("POST", &path, "application/json", &eviction.to_string())
}
