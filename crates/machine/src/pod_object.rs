//! A pod's object as Kubernetes shows it.
//!
//! The machine keeps what its nodes report of pods apart from the objects. Here it is where
//! Kubernetes has it, in `status`.

use serde_json::{Map, Value, json};

use crate::client::PodInfo;
use crate::registry::{ContainerStatus, OOM_KILLED, Phase};

/// Writes what is reported of a pod into its object.
pub fn complete_pod(object: &mut Value, info: &PodInfo) {
    let spec = object["spec"].clone();
    let init_count = spec["initContainers"].as_array().map_or(0, Vec::len);
    let (init, main) = info.containers.split_at(init_count.min(info.containers.len()));
    let statuses = |containers: &[ContainerStatus], field: &str| -> Vec<Value> {
        containers.iter().map(|it| container(it, &spec[field])).collect()
    };
    // A pod that waits for a volume has no containers yet.
    let wanted = spec["containers"].as_array().map_or(0, Vec::len);
    let all_ready = main.len() >= wanted && main.iter().all(|it| it.ready);
    let mut conditions = vec![
        readiness("Ready", info.ready, info.phase),
        readiness("ContainersReady", all_ready, info.phase),
    ];
    if !object["status"].is_object() {
        object["status"] = Value::Object(Map::new());
    }
    let status = &mut object["status"];
    conditions.extend(status["conditions"].as_array().into_iter().flatten().cloned());
    status["conditions"] = json!(conditions);
    status["phase"] = json!(info.phase);
    if let Some(first) = info.pod_ips.first() {
        status["podIP"] = json!(first);
        let all = info.pod_ips.iter().map(|ip| json!({ "ip": ip }));
        status["podIPs"] = all.collect();
    }
    if !info.reason.is_empty() {
        status["message"] = json!(info.reason);
    }
    if !init.is_empty() {
        status["initContainerStatuses"] = json!(statuses(init, "initContainers"));
    }
    status["containerStatuses"] = json!(statuses(main, "containers"));
}

/// A condition that says whether a pod is ready, and why not in Kubernetes' word.
fn readiness(condition: &str, is_so: bool, phase: Phase) -> Value {
    if is_so {
        return json!({"type": condition, "status": "True"});
    }
    let reason = match phase {
        Phase::Succeeded => "PodCompleted",
        Phase::Failed => "PodFailed",
        Phase::Pending | Phase::Running => "ContainersNotReady",
    };
    json!({"type": condition, "status": "False", "reason": reason})
}

fn container(status: &ContainerStatus, specs: &Value) -> Value {
    let specs = specs.as_array().into_iter().flatten();
    let mut specs = specs.filter(|it| it["name"] == status.name.as_str());
    let image = specs.next().map_or(Value::Null, |it| it["image"].clone());
    let exit = status.last_exit.map(|code| {
        let reason = match code {
            0 => "Completed",
            _ if status.oom_killed => OOM_KILLED,
            _ => "Error",
        };
        json!({"terminated": {"exitCode": code, "reason": reason}})
    });
    let state = match (status.running, status.crash_looping, &exit) {
        (true, ..) => json!({"running": {}}),
        (false, false, Some(exit)) => exit.clone(),
        (false, true, _) => {
            json!({"waiting": {"reason": "CrashLoopBackOff", "message": status.reason}})
        }
        (false, false, None) => json!({"waiting": {"reason": status.reason}}),
    };
    let mut shown = json!({
        "name": status.name,
        "image": image,
        "ready": status.ready,
        "restartCount": status.restarts,
        "started": status.started,
        "state": state,
    });
    if let Some(exit) = exit.filter(|_| status.restarts > 0) {
        shown["lastState"] = exit;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_reports_is_in_the_status_of_the_pod() {
        let mut object = json!({
            "metadata": {"uid": "u"},
            "spec": {
                "initContainers": [{"name": "first", "image": "i"}],
                "containers": [{"name": "web", "image": "w"}, {"name": "side", "image": "s"}],
            },
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "True"},
            ]},
        });
        let info = json!({
            "namespace": "app", "name": "web", "uid": "u", "node": "node-1",
            "serviceAccount": "default", "owner": "", "phase": "Running", "ready": false,
            "terminating": false, "captured": true, "hostNetwork": false,
            "podIps": ["10.0.0.1", "fd00::1"], "restarts": 2, "reason": "why",
            "unschedulable": false, "crashLooping": true, "created": "", "pid": 1,
            "containers": [
                {"name": "first", "running": false, "lastExit": 0},
                {"name": "web", "running": true, "started": true, "ready": true},
                {"name": "side", "restarts": 2, "lastExit": 3, "crashLooping": true,
                 "reason": "it ended"},
            ],
        });
        complete_pod(&mut object, &serde_json::from_value(info).expect("a pod"));
        insta::assert_snapshot!(serde_json::to_string_pretty(&object["status"]).expect("JSON"));
    }

    #[test]
    fn a_pod_that_waits_has_no_ready_containers() {
        let check = |phase: &str, containers: Value, expected: [&str; 2]| {
            let spec = json!({"containers": [{"name": "web", "image": "w"}]});
            let mut object = json!({"metadata": {"uid": "u"}, "spec": spec});
            let info = json!({
                "namespace": "app", "name": "web", "uid": "u", "node": "node-1",
                "serviceAccount": "default", "owner": "", "phase": phase, "ready": false,
                "terminating": false, "captured": true, "hostNetwork": false, "podIps": [],
                "restarts": 0, "reason": "", "unschedulable": false, "crashLooping": false,
                "created": "", "pid": 0, "containers": containers,
            });
            complete_pod(&mut object, &serde_json::from_value(info).expect("a pod"));
            let condition = &object["status"]["conditions"][1];
            assert_eq!(condition["type"], "ContainersReady");
            let found = ["status", "reason"].map(|it| condition[it].as_str().unwrap_or_default());
            assert_eq!(found, expected, "{phase} {containers}");
        };
        check("Pending", json!([]), ["False", "ContainersNotReady"]);
        let ended = json!([{"name": "web", "lastExit": 0}]);
        check("Succeeded", ended.clone(), ["False", "PodCompleted"]);
        check("Failed", ended, ["False", "PodFailed"]);
        let runs = json!([{"name": "web", "running": true, "started": true, "ready": true}]);
        check("Running", runs, ["True", ""]);
    }
}
