//! The pods and services of the mesh: is each in the state that its labels ask for?

use std::collections::BTreeSet;

use ambit_words::annotations::{
    BYPASS_INBOUND_CAPTURE, CAPTURE_LACKS, ENABLED, NOT_CAPTURED, OLDER_CONNECTIONS, REDIRECTION,
};
use ambit_words::labels::{
    AMBIENT, CUT_OPEN_CONNECTIONS, DATAPLANE_MODE, GATEWAY_MANAGED, GATEWAY_NAME, NONE,
    USE_WAYPOINT, USE_WAYPOINT_NAMESPACE,
};
use ambit_words::names::{CNI_PLUGIN, ISTIO_PROXY};
use jiff::Timestamp;
use serde_json::Value;

use super::{Report, is_member, labelled_namespaces, listed, object};
use crate::Facts;
use crate::facts::List;
use crate::json::{annotation, items, label, name, namespace, text};

/// A pod that started less long ago may still be on its way.
const STARTED_SECONDS_MIN: i64 = 15;

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let labelled = labelled_namespaces(facts);
    let mut left_alone = Vec::new();
    for pod in facts.known(List::Pods) {
        let is_meant = match label(pod, DATAPLANE_MODE) {
            Some(mode) => mode == AMBIENT,
            None => labelled.contains(&namespace(pod)),
        };
        let is_captured = annotation(pod, REDIRECTION) == Some(ENABLED);
        if is_captured && runs(pod) {
            standing(pod, report);
        }
        if is_meant && !is_member(pod, &labelled) {
            left_alone.push(format!("{}/{}", namespace(pod), name(pod)));
        } else if is_meant {
            member(facts, pod, is_captured, report);
        } else if is_captured && runs(pod) {
            report.warning("not-released", object("Pod", pod)).says(
                "is still captured, though no label asks for it",
                format!("see `ambit logs --kube node/{}`", text(pod, "/spec/nodeName")),
            );
        }
    }
    if !left_alone.is_empty() {
        let what = "left alone: pods on their node's network are never captured";
        report.info("host-network", format!("Pod {}", listed(&left_alone))).says(what, "");
    }
    waypoints(facts, report);
}

/// The state of a pod's capture, as its agent reports it.
fn standing(pod: &Value, report: &mut Report) {
    if let Some(connections) = annotation(pod, OLDER_CONNECTIONS) {
        report.info("older-connections", object("Pod", pod)).says(
            format!("open connections older than its capture, in plain text: {connections}"),
            format!("restart the pod, or label it {CUT_OPEN_CONNECTIONS}=true"),
        );
    }
    if let Some(parameter) = annotation(pod, CAPTURE_LACKS) {
        report.warning("capture-lacks", object("Pod", pod)).says(
            format!("is captured without the kernel parameter {parameter}, by the filter alone"),
            format!(
                "see `ambit logs --kube node/{}`: the agent needs SYS_ADMIN to set it",
                text(pod, "/spec/nodeName")
            ),
        );
    }
    if annotation(pod, BYPASS_INBOUND_CAPTURE) == Some("true") {
        report.warning("bypass-inbound", object("Pod", pod)).says(
            "takes plain connections past its proxy: no policy applies to them, STRICT included",
            format!("remove the annotation {BYPASS_INBOUND_CAPTURE}, if that is not meant"),
        );
    }
}

fn member(facts: &Facts, pod: &Value, is_captured: bool, report: &mut Report) {
    let place = || object("Pod", pod);
    let containers = || items(pod, "/spec/containers").chain(items(pod, "/spec/initContainers"));
    if containers().any(|container| name_of(container) == ISTIO_PROXY) {
        report.warning("sidecar", place()).says(
            "has a sidecar and is not captured: it speaks for itself",
            "remove the namespace's injection label and restart the pod",
        );
        return;
    }
    let started = text(pod, "/status/startTime").parse::<Timestamp>();
    let is_new = started
        .is_ok_and(|it| facts.now.as_second().saturating_sub(it.as_second()) < STARTED_SECONDS_MIN);
    if is_captured || (!runs(pod) && text(pod, "/status/phase") != "Pending") {
        return;
    }
    let uid = text(pod, "/metadata/uid");
    let of_pod = |event: &&Value| {
        text(event, "/involvedObject/uid") == uid
            && text(event, "/involvedObject/name") == name(pod)
    };
    let events = facts.known(List::PodWarnings).iter().filter(of_pod);
    let newest = events.max_by_key(|event| text(event, "/lastTimestamp"));
    if !runs(pod) {
        let failed = newest.filter(|it| text(it, "/message").contains(CNI_PLUGIN));
        if let Some(event) = failed.filter(|_| pod["metadata"]["deletionTimestamp"].is_null()) {
            report.error("not-started", place()).says(
                format!("cannot start, because it cannot be captured: {}", text(event, "/message")),
                format!("see `ambit logs --kube node/{}`", text(pod, "/spec/nodeName")),
            );
        }
        return;
    }
    if is_new {
        return;
    }
    let told = newest.map(|it| format!(": {}: {}", text(it, "/reason"), text(it, "/message")));
    let logs = || format!("see `ambit logs --kube node/{}`", text(pod, "/spec/nodeName"));
    let (why, remedy) = match annotation(pod, NOT_CAPTURED) {
        Some(line) => obstacle(line, logs()),
        None => (told.unwrap_or_default(), logs()),
    };
    report
        .error("not-captured", place())
        .says(format!("its labels take it into the mesh and it is not captured{why}"), remedy);
}

/// What keeps a pod out, in its agent's words, and what to do about it.
fn obstacle(line: &str, logs: String) -> (String, String) {
    let taken = line.strip_prefix("PortTaken ").map(|rest| rest.split_once(' '));
    match (taken, line.split_once(' ')) {
        (Some(Some((port, process))), _) => (
            format!(": {process:?} in the pod has port {port}, which the node proxy needs there"),
            "stop that program or have it listen on another port".to_owned(),
        ),
        (_, Some((_, words))) => (format!(": {words}"), logs),
        (_, None) => (format!(": {line}"), logs),
    }
}

fn name_of(container: &Value) -> &str {
    text(container, "/name")
}

fn runs(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// What names a waypoint that control has made no Service for: there is no such Gateway, or it is
/// not accepted.
fn waypoints(facts: &Facts, report: &mut Report) {
    let services = facts.known(List::Services).iter();
    let made = services.filter_map(|it| {
        label(it, GATEWAY_MANAGED)?;
        Some((namespace(it), label(it, GATEWAY_NAME)?))
    });
    let made: BTreeSet<(&str, &str)> = made.collect();
    let of = |kind: &'static str, list: List| facts.known(list).iter().map(move |it| (kind, it));
    let labelled = of("Service", List::Services)
        .chain(of("Namespace", List::Namespaces))
        .chain(of("Pod", List::Pods));
    for (kind, it) in labelled {
        let named = label(it, USE_WAYPOINT).filter(|waypoint| ![NONE, ""].contains(waypoint));
        let Some(waypoint) = named else { continue };
        let own = if kind == "Namespace" { name(it) } else { namespace(it) };
        if made.contains(&(label(it, USE_WAYPOINT_NAMESPACE).unwrap_or(own), waypoint)) {
            continue;
        }
        report.error("waypoint", object(kind, it)).says(
            format!(
                "asks for the waypoint {waypoint}, which does not exist: captured clients are \
                 refused rather than sent around it"
            ),
            format!(
                "make it with `ambit waypoint apply --kube`, or remove the label {USE_WAYPOINT}"
            ),
        );
    }
}
