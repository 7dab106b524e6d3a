//! The cells of pods.
//!
//! The word in the column Status is not the pod's phase: it is the reason of the container that
//! matters most, as `printPod` of Kubernetes finds it.

use serde_json::{Value, json};

use super::cells::{self, list, text};

/// Phases of a pod that will not run again.
const ENDED: [&str; 2] = ["Succeeded", "Failed"];

pub(super) fn ready(pod: &Value) -> Value {
    let statuses = list(pod, "/status/containerStatuses");
    let is_ready = |it: &&Value| it["ready"] == true && it["state"]["running"].is_object();
    let count = list(pod, "/spec/containers").len();
    json!(format!("{}/{count}", statuses.iter().filter(is_ready).count()))
}

pub(super) fn restarts(pod: &Value) -> Value {
    let both = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let counts = both.iter().flat_map(|pointer| list(pod, pointer));
    json!(counts.filter_map(|it| it["restartCount"].as_u64()).sum::<u64>())
}

pub(super) fn status(pod: &Value) -> Value {
    let phase = text(pod, "/status/phase");
    let is_going = pod.pointer("/metadata/deletionTimestamp").is_some();
    if is_going && !ENDED.contains(&phase) {
        return json!("Terminating");
    }
    let shown = initialising(pod).unwrap_or_else(|| running(pod, phase));
    json!(shown)
}

/// What the first init container that is not done says.
fn initialising(pod: &Value) -> Option<String> {
    let statuses = list(pod, "/status/initContainerStatuses");
    let specs = list(pod, "/spec/initContainers");
    let is_sidecar = |name: &Value| {
        specs.iter().any(|it| it["name"] == *name && it["restartPolicy"] == "Always")
    };
    let is_done = |it: &Value| {
        let has_succeeded = it.pointer("/state/terminated/exitCode") == Some(&json!(0));
        let is_up = is_sidecar(&it["name"]) && it["state"]["running"].is_object();
        has_succeeded || is_up
    };
    let at = statuses.iter().position(|it| !is_done(it))?;
    let one = &statuses[at];
    let waiting = text(one, "/state/waiting/reason");
    Some(match one.pointer("/state/terminated") {
        Some(ended) => format!("Init:{}", of_ended(ended)),
        None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
        None => format!("Init:{at}/{}", specs.len()),
    })
}

/// What the first container says that has something to say, and otherwise the phase.
fn running(pod: &Value, phase: &str) -> String {
    let reason = text(pod, "/status/reason");
    let mut shown = if reason.is_empty() { phase } else { reason }.to_owned();
    let mut some_run = false;
    for one in list(pod, "/status/containerStatuses").iter().rev() {
        let waiting = text(one, "/state/waiting/reason");
        match one.pointer("/state/terminated") {
            _ if !waiting.is_empty() => waiting.clone_into(&mut shown),
            Some(ended) => shown = of_ended(ended),
            None => some_run |= one["ready"] == true,
        }
    }
    if shown == "Completed" && some_run {
        let is_ready = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
        let ready = list(pod, "/status/conditions").iter().any(is_ready);
        shown = if ready { "Running" } else { "NotReady" }.to_owned();
    }
    shown
}

fn of_ended(ended: &Value) -> String {
    match (text(ended, "/reason"), ended["signal"].as_i64()) {
        ("", Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        ("", _) => format!("ExitCode:{}", ended["exitCode"]),
        (reason, _) => reason.to_owned(),
    }
}

pub(super) fn ip(pod: &Value) -> Value {
    cells::or_none(text(pod, "/status/podIP"))
}

pub(super) fn node(pod: &Value) -> Value {
    cells::or_none(text(pod, "/spec/nodeName"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pod: &Value, expected: [&str; 3]) {
        let text = |it: Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
        let shown = [ready(pod), status(pod), restarts(pod)].map(text);
        assert_eq!(shown, expected);
    }

    fn pod(states: &[Value]) -> Value {
        let containers: Vec<Value> =
            (0..states.len()).map(|it| json!({"name": it.to_string()})).collect();
        json!({
            "spec": {"containers": containers},
            "status": {"phase": "Running", "containerStatuses": states},
        })
    }

    fn container(is_ready: bool, state: Value) -> Value {
        json!({"ready": is_ready, "restartCount": 1, "state": state})
    }

    #[test]
    fn the_reason_that_matters_is_the_status() {
        check(
            &json!({"spec": {"containers": [{}]}, "status": {"phase": "Pending"}}),
            ["0/1", "Pending", "0"],
        );
        let up = || container(true, json!({"running": {}}));
        check(&pod(&[up(), up()]), ["2/2", "Running", "2"]);
        let waits = container(false, json!({"waiting": {"reason": "CrashLoopBackOff"}}));
        check(&pod(&[up(), waits]), ["1/2", "CrashLoopBackOff", "2"]);
        let failed = container(false, json!({"terminated": {"exitCode": 3, "reason": "Error"}}));
        check(&pod(&[failed]), ["0/1", "Error", "1"]);
        let bare = container(false, json!({"terminated": {"exitCode": 3}}));
        check(&pod(&[bare]), ["0/1", "ExitCode:3", "1"]);
        let done =
            || container(false, json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
        check(&pod(&[done()]), ["0/1", "Completed", "1"]);
        check(&pod(&[done(), up()]), ["1/2", "NotReady", "2"]);
        let mut going = pod(&[up()]);
        going["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:00:00Z");
        check(&going, ["1/1", "Terminating", "1"]);
    }

    #[test]
    fn init_containers_come_first() {
        let with = |state: Value, policy: Option<&str>| {
            let mut pod =
                pod(&[container(false, json!({"waiting": {"reason": "PodInitializing"}}))]);
            pod["spec"]["initContainers"] = json!([{"name": "i", "restartPolicy": policy}]);
            pod["status"]["initContainerStatuses"] =
                json!([{"name": "i", "restartCount": 0, "state": state}]);
            pod
        };
        check(&with(json!({"running": {}}), None), ["0/1", "Init:0/1", "1"]);
        check(&with(json!({"running": {}}), Some("Always")), ["0/1", "PodInitializing", "1"]);
        check(&with(json!({"terminated": {"exitCode": 0}}), None), ["0/1", "PodInitializing", "1"]);
        check(&with(json!({"terminated": {"exitCode": 2}}), None), ["0/1", "Init:ExitCode:2", "1"]);
        check(
            &with(json!({"waiting": {"reason": "CrashLoopBackOff"}}), None),
            ["0/1", "Init:CrashLoopBackOff", "1"],
        );
    }
}
