//! Problems that a user should see: control's findings, and pods that do not run.
//!
//! `ambit status` lists all of them; `ambit up` and `ambit apply` repeat at their end what refuses
//! connections, because a warning at their start is easily overlooked.

use std::fmt::Write;
use std::path::Path;

use ambit_machine::{Phase, PodInfo};
use ambit_model::printable::printable;
use ambit_wire::admin::{FailingPod, Finding, Severity, Status, control};

use super::ask::{self, Role};

/// Pods that a message lists; the rest is counted.
const PODS_MAX: usize = 10;

/// Control's findings as lines, errors first.
pub(super) fn text(status: &Status) -> String {
    let mut text = String::new();
    for finding in &status.findings {
        let severity = finding.severity;
        let [object, what, remedy] = words(finding);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{severity}: {object}: {what}; {remedy}");
    }
    text
}

/// How many findings of this severity there are.
pub(super) fn count(status: &Status, severity: Severity) -> usize {
    status.findings.iter().filter(|finding| finding.severity == severity).count()
}

/// What refuses connections, as a loud warning. Empty without an answer of control: the code that
/// waited for it has reported that.
pub(super) async fn loud(socket: &Path) -> String {
    let control = Role { name: "control", socket };
    let status = ask::get::<Status>(control, control::STATUS).await;
    status.map(|status| errors(&status)).unwrap_or_default()
}

fn errors(status: &Status) -> String {
    let mut text = String::new();
    for finding in status.findings.iter().filter(|it| it.severity == Severity::Error) {
        let [object, what, remedy] = words(finding);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\nWARNING: {object}: {what}");
        let _ = writeln!(text, "         to change it: {remedy}");
    }
    text
}

/// Object, what is wrong and the remedy; they hold words that others chose.
fn words(finding: &Finding) -> [String; 3] {
    [&finding.object, &finding.what, &finding.remedy].map(|it| printable(it).into_owned())
}

fn pod_line(pod: &FailingPod) -> String {
    let FailingPod { pod, phase, restarts, reason } = pod;
    let restarts = match restarts {
        0 => String::new(),
        restarts => format!(", {restarts} restarts"),
    };
    format!("{pod}: {phase}{restarts}: {}", printable(reason))
}

/// The pods of a machine that are not ready, or crash again and again. Those that have done their
/// work or go away are well.
pub(super) fn of_machine(pods: &[PodInfo]) -> Vec<FailingPod> {
    let is_well = |pod: &PodInfo| pod.ready || pod.phase == Phase::Succeeded || pod.terminating;
    let failing = pods.iter().filter(|pod| pod.crash_looping || !is_well(pod));
    let failing = failing.map(|pod| FailingPod {
        pod: format!("{}/{}", pod.namespace, pod.name),
        phase: pod.phase.to_string().into(),
        restarts: pod.restarts,
        reason: if pod.reason.is_empty() { "not ready".to_owned() } else { pod.reason.clone() },
    });
    failing.collect()
}

/// A line for each pod, as many as a person reads.
pub(super) fn pods_text(failing: &[FailingPod]) -> String {
    let mut text = String::new();
    for pod in failing.iter().take(PODS_MAX) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "pod not ready: {}", pod_line(pod));
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
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, change: &Value) -> PodInfo {
        let mut pod = json!({"namespace": "app", "name": name, "uid": "u", "node": "node-1",
            "serviceAccount": "default", "owner": "", "phase": "Running", "ready": true,
            "terminating": false, "captured": true, "hostNetwork": false, "podIps": [],
            "restarts": 0, "reason": "",
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
                "reason": "Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable"}),
            ),
        ];
        let expected = "pod not ready: app/loop: Running, 4 restarts: CrashLoopBackOff: container \
                        web exited with 1\npod not ready: app/nowhere: Pending: Unschedulable: \
                        0/1 nodes are available: 1 node(s) were unschedulable\n";
        assert_eq!(pods_text(&of_machine(&pods)), expected);
    }

    #[test]
    fn what_refuses_connections_is_said_with_object_and_remedy() {
        let finding = |severity| Finding {
            severity,
            rule: "r".into(),
            object: "Namespace a".to_owned(),
            what: "w".to_owned(),
            remedy: "remove it".to_owned(),
        };
        let findings = vec![finding(Severity::Error), finding(Severity::Warning)];
        let status = Status { findings, ..Status::default() };
        let lines = "error: Namespace a: w; remove it\nwarning: Namespace a: w; remove it\n";
        assert_eq!(text(&status), lines);
        let loud = "\nWARNING: Namespace a: w\n         to change it: remove it\n";
        assert_eq!(errors(&status), loud);
        let counts = (count(&status, Severity::Error), count(&status, Severity::Warning));
        assert_eq!(counts, (1, 1));
        assert_eq!(errors(&Status::default()), "");
    }
}
