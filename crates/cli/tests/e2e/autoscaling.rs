//! HorizontalPodAutoscalers of a machine: busy pods become more, and fewer again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::{Machine, Mesh};

/// Two looks of the autoscaler, and what a pod takes to start.
const SCALED: Duration = Duration::from_secs(90);

/// A pod that is busy with next to nothing, of which it requests less.
const BUSY: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy, namespace: app}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: ambit/sample:1
        command:
        - sh
        - -c
        - 'while :; do (i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done); sleep .2; done'
        resources: {requests: {cpu: 10m}}
";
const AUTOSCALER: &str = "
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy, namespace: app}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  maxReplicas: 2
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}
  - {type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 50}}}
";

#[test]
fn busy_pods_become_more_and_fewer_again() {
    let machine = Machine::up("autoscaling", Mesh::Off, &[]);
    let warned = machine.apply(&format!("{BUSY}{AUTOSCALER}"));
    let words = "spec.metrics[1] (memory) has no effect on a machine";
    assert!(warned.contains(words), "{warned}");
    let listed = machine.run(&["get", "hpa", "-n", "app"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..5], ["app", "busy", "Deployment/busy", "cpu:", "<unknown>/50%,"], "{listed}");
    let pods = || machine.pods().iter().filter(|it| it.owner == "busy" && it.ready).count();
    machine.wait("there are two", SCALED, || pods() == 2);
    let text = machine.run(&["get", "hpa/busy", "-n", "app", "-o", "json"]);
    let status = serde_json::from_str::<Value>(&text).expect("JSON")["status"].clone();
    let measured = &status["currentMetrics"][0]["resource"]["current"]["averageUtilization"];
    assert!(measured.as_u64() > Some(50) && status["lastScaleTime"].is_string(), "{status}");
    let events = machine.run(&["get", "events", "-n", "app"]);
    let why = "New size: 2; reason: cpu resource utilization (percentage of request) above target";
    assert!(events.contains("SuccessfulRescale") && events.contains(why), "{events}");
    // A manifest that leaves the number out does not undo it.
    machine.apply(
        &BUSY.replace("app: busy}}\n  template", "app: busy}}\n  minReadySeconds: 1\n  template"),
    );
    let text = machine.run(&["get", "deployment/busy", "-n", "app", "-o", "json"]);
    let deployment = serde_json::from_str::<Value>(&text).expect("JSON");
    let spec = &deployment["spec"];
    assert_eq!((&spec["minReadySeconds"], &spec["replicas"]), (&json!(1), &json!(2)), "{spec}");
    // Far from what they may use now, they become fewer at once.
    let idle = AUTOSCALER.replace("averageUtilization: 50}", "averageUtilization: 100000}");
    let at_once = "  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}\n";
    machine.apply(&format!("{idle}{at_once}").replace("---", ""));
    machine.wait("there is one", SCALED, || pods() == 1);
    let older = AUTOSCALER.split("  metrics:").next().expect("the first part");
    let older = older.replace("autoscaling/v2", "autoscaling/v1").replace("---", "");
    machine.apply(&format!("{older}  targetCPUUtilizationPercentage: 40\n"));
    assert!(machine.run(&["get", "hpa", "-n", "app"]).contains("%/40%"));
    machine.down();
}
