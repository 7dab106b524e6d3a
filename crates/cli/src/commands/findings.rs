//! What is not as its author meant it: control's findings, and pods that do not run.
//!
//! `ambit status` lists all of it; `ambit up` and `ambit apply` say once more, at their end, what
//! refuses connections, because a warning at their start is easily overlooked.

use std::fmt::Write;
use std::path::Path;

use ambit_machine::{Phase, PodInfo};
use ambit_model::printable::printable;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::get::ask;

/// Pods that a message lists; the rest is counted.
const PODS_MAX: usize = 10;

/// Control's findings as lines, errors first.
pub(super) fn text(status: &Value) -> String {
    let mut text = String::new();
    for finding in all(status) {
        let [severity, object, what, remedy] = words(finding);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{severity}: {object}: {what}; {remedy}");
    }
    text
}

/// How many findings of this severity there are.
pub(super) fn count(status: &Value, severity: &str) -> usize {
    all(status).filter(|finding| finding["severity"] == severity).count()
}

/// What refuses connections, loudly. Without an answer of control there is nothing to say: whoever
/// waited for it has said so.
pub(super) async fn loud(control: &Path) -> String {
    ask(control, "/status").await.map(|status| errors(&status)).unwrap_or_default()
}

fn errors(status: &Value) -> String {
    let mut text = String::new();
    for finding in all(status).filter(|finding| finding["severity"] == "error") {
        let [_, object, what, remedy] = words(finding);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\nWARNING: {object}: {what}");
        let _ = writeln!(text, "         to change it: {remedy}");
    }
    text
}

fn all(status: &Value) -> impl Iterator<Item = &Value> {
    status["findings"].as_array().into_iter().flatten()
}

/// Severity, object, what is wrong and the remedy; they hold words that others chose.
fn words(finding: &Value) -> [String; 4] {
    let text = |field| printable(finding[field].as_str().unwrap_or("?")).into_owned();
    ["severity", "object", "what", "remedy"].map(text)
}

/// A pod that does not do its work.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FailingPod {
    /// Its namespace and name.
    pod: String,
    /// How far it is in its life.
    phase: String,
    /// How often its containers were started again.
    restarts: u32,
    /// What is wrong.
    reason: String,
}

impl std::fmt::Display for FailingPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pod, phase, restarts, reason } = self;
        write!(f, "{pod}: {phase}")?;
        if *restarts > 0 {
            write!(f, ", {restarts} restarts")?;
        }
        write!(f, ": {}", printable(reason))
    }
}

/// The pods of a machine that are not ready, or crash again and again. Those that have done their
/// work or go away are well.
pub(super) fn of_machine(pods: &[PodInfo]) -> Vec<FailingPod> {
    let is_well = |pod: &PodInfo| pod.ready || pod.phase == Phase::Succeeded || pod.terminating;
    let failing = pods.iter().filter(|pod| pod.crash_looping || !is_well(pod));
    let failing = failing.map(|pod| FailingPod {
        pod: format!("{}/{}", pod.namespace, pod.name),
        phase: pod.phase.to_string(),
        restarts: pod.restarts,
        reason: if pod.reason.is_empty() { "not ready".to_owned() } else { pod.reason.clone() },
    });
    failing.collect()
}

/// The pods of a cluster's mesh that do not run, as control knows them.
pub(super) fn of_cluster(status: &Value) -> Vec<FailingPod> {
    let told = status.pointer("/pods/failing").and_then(Value::as_array).into_iter().flatten();
    told.filter_map(|pod| FailingPod::deserialize(pod).ok()).collect()
}

/// A line for each pod, as many as a person reads.
pub(super) fn pods_text(failing: &[FailingPod]) -> String {
    let mut text = String::new();
    for pod in failing.iter().take(PODS_MAX) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "pod not ready: {pod}");
    }
    match failing.len().saturating_sub(PODS_MAX) {
        0 => {}
        more => {
            let _ = writeln!(text, "pods not ready: {more} more; see `ambit get pods`");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, change: &Value) -> PodInfo {
        let mut pod = json!({"namespace": "app", "name": name, "uid": "u", "node": "node-1",
            "serviceAccount": "default", "owner": "", "phase": "Running", "ready": true,
            "terminating": false, "captured": true, "podIps": [], "restarts": 0, "reason": "",
            "unschedulable": false, "crashLooping": false, "created": "", "containers": [],
            "pid": 1});
        for (field, value) in change.as_object().expect("fields") {
            pod[field] = value.clone();
        }
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn pods_that_do_not_work_are_told_from_those_that_do() {
        let pods = [
            pod("well", &json!({})),
            pod("done", &json!({"ready": false, "phase": "Succeeded"})),
            pod("going", &json!({"ready": false, "terminating": true})),
            // It runs at the moment.
            pod(
                "loop",
                &json!({"restarts": 4, "crashLooping": true,
                "reason": "CrashLoopBackOff: container web exited with 1"}),
            ),
            pod(
                "nowhere",
                &json!({"ready": false, "phase": "Pending", "unschedulable": true,
                "reason": "Unschedulable: no node takes it: node-1 has no label a=b"}),
            ),
        ];
        let expected = "pod not ready: app/loop: Running, 4 restarts: CrashLoopBackOff: container \
                        web exited with 1\npod not ready: app/nowhere: Pending: Unschedulable: no \
                        node takes it: node-1 has no label a=b\n";
        assert_eq!(pods_text(&of_machine(&pods)), expected);
        let told = json!({"pods": {"failing": [{"pod": "a/b", "phase": "Running", "restarts": 2,
            "reason": "CrashLoopBackOff"}]}});
        let expected = "pod not ready: a/b: Running, 2 restarts: CrashLoopBackOff\n";
        assert_eq!(pods_text(&of_cluster(&told)), expected);
        assert_eq!(of_cluster(&json!({})), []);
    }

    #[test]
    fn what_refuses_connections_is_said_with_object_and_remedy() {
        let finding = |severity: &str| {
            json!({"severity": severity, "rule": "r", "object": "Namespace a", "what": "w",
                "remedy": "remove it"})
        };
        let status = json!({"findings": [finding("error"), finding("warning")]});
        let lines = "error: Namespace a: w; remove it\nwarning: Namespace a: w; remove it\n";
        assert_eq!(text(&status), lines);
        let loud = "\nWARNING: Namespace a: w\n         to change it: remove it\n";
        assert_eq!(errors(&status), loud);
        assert_eq!((count(&status, "error"), count(&status, "warning")), (1, 1));
        assert_eq!(errors(&json!({})), "");
    }
}
