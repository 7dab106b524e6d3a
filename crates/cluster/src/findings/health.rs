//! Ambit's own parts: are all there, ready, of one version and in step?

use std::collections::{BTreeMap, BTreeSet};

use ambit_wire::admin::{FailingPod, Finding, NotAccepted, Status};
use ambit_words::annotations::DEPARTURE;
use ambit_words::labels::{APP_NAME, ISTIO_NOT_READY};
use ambit_words::names::{CONTROL, CONTROL_LEASE, PROXY};
use jiff::Timestamp;
use serde_json::Value;

use super::platform::linux_nodes;
use super::{Report, listed, object};
use crate::Facts;
use crate::facts::{DEFINITIONS, List};
use crate::json::{
    annotation, condition, is_ready, items, label, name, namespace, number, owner, text,
};
use crate::parts::{AGENT, is_control};

/// Taints that keep pods off a node whose agent is not ready.
const TAINTS: [&str; 2] = ["ambit.io/not-ready", ISTIO_NOT_READY];
/// So many restarts of a container are told.
const RESTARTS_TOLD: u64 = 3;
/// What an agent or proxy does for its node.
const PARTS: [(&str, &str, &str); 2] = [
    (PROXY, "no-proxy", "captured pods there reach nothing and nothing reaches them"),
    (AGENT, "no-agent", "new pods there are not captured"),
];

/// Why a container waits that will not start by waiting.
const WAITS_IN_VAIN: [&str; 8] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

pub(super) fn check(facts: &Facts, report: &mut Report) {
    definitions(facts, report);
    orders(facts, report);
    permissions(facts, report);
    nodes(facts, report);
    control(facts, report);
    lease(facts, report);
    for (part, rule, consequence) in PARTS {
        on_nodes(facts, part, rule, consequence, report);
    }
    containers(facts, report);
    images(facts, report);
    status(facts, report);
    taints(facts, report);
    admission(facts, report);
}

/// Whether any part is there; a cluster without one has a single thing wrong with it.
pub(super) fn is_installed(facts: &Facts, report: &mut Report) -> bool {
    let (Some(deployments), Some(sets)) =
        (facts.list(List::Deployments), facts.list(List::DaemonSets))
    else {
        return true;
    };
    let is_part = |it: &Value| {
        namespace(it) == facts.mesh_namespace && [CONTROL, PROXY, AGENT].contains(&name(it))
    };
    let found = deployments.iter().chain(sets).any(is_part);
    if !found {
        report.error("not-installed", format!("Namespace {}", facts.mesh_namespace)).says(
            "no part of Ambit is there",
            "install the chart after `ambit check --pre`, or name its namespace with \
             --mesh-namespace",
        );
    }
    found
}

fn mesh_pods(facts: &Facts) -> impl Iterator<Item = &Value> {
    let pods = facts.known(List::Pods).iter();
    pods.filter(|pod| namespace(pod) == facts.mesh_namespace)
}

fn definitions(facts: &Facts, report: &mut Report) {
    let Some(present) = facts.list(List::CustomResourceDefinitions) else { return };
    let is_missing = |wanted: &&str| !present.iter().any(|it| name(it) == *wanted);
    let missing: Vec<&str> = DEFINITIONS.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        report
            .error("no-definition", format!("CustomResourceDefinition {}", missing.join(", ")))
            .says(
                "is not there: no such object can be made, and those that there were are gone",
                "kubectl apply -f deploy/chart/crds/ (Helm installs definitions once and never \
                 again)",
            );
    }
}

/// An order to leave that somebody has given and not withdrawn.
fn orders(facts: &Facts, report: &mut Report) {
    let agents = facts.known(List::DaemonSets).iter();
    for set in agents.filter(|it| namespace(it) == facts.mesh_namespace && name(it) == AGENT) {
        let Some(order) = annotation(set, DEPARTURE) else { continue };
        report.error("departing", object("DaemonSet", set)).says(
            format!("orders every pod out of the mesh ({order})"),
            format!(
                "wait for the uninstalling to end, or withdraw what one has left behind: kubectl \
                 -n {} annotate daemonset/{AGENT} {}-",
                facts.mesh_namespace, DEPARTURE
            ),
        );
    }
}

/// Whether each part may do what it cannot do without.
fn permissions(facts: &Facts, report: &mut Report) {
    let mut denied: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for access in facts.access.iter().filter(|access| !access.allowed) {
        let resource = match access.group {
            "" => access.resource.to_owned(),
            group => format!("{}.{group}", access.resource),
        };
        let of_account = denied.entry(access.account).or_default();
        of_account.push(format!("{} {resource}", access.verb));
    }
    for (account, denied) in denied {
        let place = format!("ServiceAccount {}/{account}", facts.mesh_namespace);
        report.error("part-permissions", place).says(
            format!("may not {}", denied.join(", ")),
            "apply the chart again (helm upgrade): it has the roles and their bindings",
        );
    }
}

/// Nodes on which no pod can start, for whatever reason: a missing CNI configuration is one.
fn nodes(facts: &Facts, report: &mut Report) {
    for node in linux_nodes(facts) {
        let Some(ready) = condition(node, "Ready").filter(|it| it["status"] != "True") else {
            continue;
        };
        let (reason, message) = (text(ready, "/reason"), text(ready, "/message"));
        report.error("node-not-ready", object("Node", node)).says(
            format!("is not ready ({reason}: {message}): no pod starts there"),
            format!(
                "kubectl describe node {0}; if its network has no configuration, see that there is \
                 one in the directory cniConfDir of the chart's values, and `ambit logs --kube \
                 node/{0}`",
                name(node)
            ),
        );
    }
}

fn control(facts: &Facts, report: &mut Report) {
    let Some(deployments) = facts.list(List::Deployments) else { return };
    let is_it = |it: &&Value| name(it) == CONTROL && namespace(it) == facts.mesh_namespace;
    let Some(deployment) = deployments.iter().find(is_it) else {
        report.error("no-control", format!("Namespace {}", facts.mesh_namespace)).says(
            format!("has no Deployment {CONTROL}: the proxies get no configuration"),
            "install the chart, or name its namespace with --mesh-namespace",
        );
        return;
    };
    let (wanted, ready) =
        (number(deployment, "/spec/replicas"), number(deployment, "/status/readyReplicas"));
    if ready < wanted || wanted == 0 {
        let place = object("Deployment", deployment);
        let (what, remedy) =
            (format!("{ready} of {wanted} replicas are ready"), "see `ambit logs --kube control`");
        match ready {
            0 => report.error("control-not-ready", place).says(what, remedy),
            _ => report.warning("control-not-ready", place).says(what, remedy),
        }
    }
}

fn lease(facts: &Facts, report: &mut Report) {
    let Some(leases) = facts.list(List::Leases) else { return };
    let place = format!("Lease {}/{CONTROL_LEASE}", facts.mesh_namespace);
    let remedy = "see `ambit logs --kube control`, and that control may write leases";
    let Some(lease) = leases.iter().find(|it| name(it) == CONTROL_LEASE) else {
        report.error("no-leader", place).says("is not there: no replica leads", remedy);
        return;
    };
    let holder = text(lease, "/spec/holderIdentity");
    let renewed = text(lease, "/spec/renewTime").parse::<Timestamp>();
    let seconds = i64::try_from(number(lease, "/spec/leaseDurationSeconds")).unwrap_or(i64::MAX);
    let has_ended =
        renewed.is_ok_and(|it| facts.now.as_second().saturating_sub(it.as_second()) > seconds);
    if holder.is_empty() || has_ended {
        let what = format!("no replica leads: the last one, `{holder}`, has not renewed it");
        report.error("no-leader", place).says(what, remedy);
    }
}

fn on_nodes(facts: &Facts, part: &str, rule: &'static str, consequence: &str, report: &mut Report) {
    if facts.list(List::Pods).is_none() {
        return;
    }
    let of_part = || mesh_pods(facts).filter(|pod| owner(pod, "DaemonSet") == Some(part));
    let on = |node: &str| of_part().filter(|pod| text(pod, "/spec/nodeName") == node).collect();
    let mut without = Vec::new();
    for node in linux_nodes(facts).map(name) {
        let pods: Vec<&Value> = on(node);
        if pods.is_empty() {
            without.push(node);
        } else if !pods.iter().any(|pod| is_ready(pod)) {
            let why = pods.iter().find_map(|pod| why_not_ready(pod)).unwrap_or_default();
            report.error(rule, format!("Node {node}")).says(
                format!("its {part} ({}) is not ready{why}: {consequence}", name(pods[0])),
                match part {
                    PROXY => format!("see `ambit logs --kube proxy/{node}`"),
                    _ => format!("see `ambit logs --kube node/{node}`"),
                },
            );
        }
    }
    if !without.is_empty() {
        report.error(rule, format!("Node {}", listed(&without))).says(
            format!("has no pod of {part}: {consequence}"),
            format!(
                "let the DaemonSet {}/{part} run there: see its node selector and tolerations, and \
                 `kubectl describe daemonset`",
                facts.mesh_namespace
            ),
        );
    }
}

/// What a pod says of its not being ready.
fn why_not_ready(pod: &Value) -> Option<String> {
    let statuses = items(pod, "/status/containerStatuses");
    let waiting = statuses.map(|it| &it["state"]["waiting"]).find(|it| it.is_object());
    let told = waiting.or_else(|| condition(pod, "Ready"))?;
    let (reason, message) = (text(told, "/reason"), text(told, "/message"));
    Some(format!(" ({reason}: {message})"))
}

fn containers(facts: &Facts, report: &mut Report) {
    for pod in mesh_pods(facts) {
        for status in items(pod, "/status/containerStatuses") {
            let restarts = number(status, "/restartCount");
            let waiting = text(status, "/state/waiting/reason");
            let place = || format!("{} container {}", object("Pod", pod), text(status, "/name"));
            let ended = &status["lastState"]["terminated"];
            let last = match text(ended, "/reason") {
                "" => String::new(),
                reason => format!(", last for {reason} (code {})", ended["exitCode"]),
            };
            let of_pod = format!("-n {} {}", namespace(pod), name(pod));
            let previous = format!("kubectl logs {of_pod} --previous");
            if WAITS_IN_VAIN.contains(&waiting) {
                let what = format!("does not start: {waiting}{last}");
                let remedy = match waiting {
                    "CrashLoopBackOff" => previous,
                    _ if waiting.contains("Image") => format!(
                        "see that nodes can have the image (image.repository, image.tag, \
                         image.pullSecrets of the chart); kubectl describe pod {of_pod}"
                    ),
                    _ => format!("kubectl describe pod {of_pod}"),
                };
                report.error("container-waits", place()).says(what, remedy);
            } else if restarts >= RESTARTS_TOLD {
                let what = format!("was restarted {restarts} times{last}");
                report.warning("restarts", place()).says(what, previous);
            }
        }
    }
}

fn images(facts: &Facts, report: &mut Report) {
    let mut by_image: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in mesh_pods(facts) {
        let is_part = |it: &str| [PROXY, AGENT].contains(&it);
        // An old proxy may finish its connections for as long as its grace lasts.
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        if !is_control(pod) && !owner(pod, "DaemonSet").is_some_and(is_part) {
            continue;
        }
        for container in items(pod, "/spec/containers") {
            by_image.entry(text(container, "/image")).or_default().insert(name(pod));
        }
    }
    if by_image.len() > 1 {
        let each = by_image.iter().map(|(image, pods)| format!("{image} in {}", pods.len()));
        report.warning("versions-differ", format!("Namespace {}", facts.mesh_namespace)).says(
            format!("its parts run different images: {}", each.collect::<Vec<_>>().join(", ")),
            "fine during an upgrade; else see `kubectl rollout status`, and whether the DaemonSets \
             wait for their pods to be deleted",
        );
    }
}

/// What control says of the proxies and policies.
fn status(facts: &Facts, report: &mut Report) {
    let Some(control) = &facts.control else { return };
    let status = match control {
        Ok(status) => status,
        Err(error) => {
            let remedy = "proxies in step and policies are not judged without it";
            report.warning("control-silent", "control").says(error.clone(), remedy);
            return;
        }
    };
    for node in &status.discovery.nodes_without_proxy {
        report.error("proxy-not-connected", format!("Node {node}")).says(
            "its proxy is connected to no replica of control: it goes on with what it last knew",
            format!("see `ambit logs --kube proxy/{node}`"),
        );
    }
    for behind in &status.discovery.behind {
        let (node, why) = behind.split_once(": ").unwrap_or((behind, ""));
        let remedy = format!("see `ambit logs --kube proxy/{node}`");
        report.warning("proxy-behind", format!("Node {node}")).says(why, remedy);
    }
    for NotAccepted { kind, policy, message, .. } in &status.policies_not_accepted {
        report.error("policy-not-accepted", format!("{kind} {policy}")).says(
            format!("is not enforced as written: {message}"),
            "see `ambit get policies --kube -o wide`",
        );
    }
    told(status, report);
}

/// Rules that control alone can judge; those on labels of waypoints are judged here as well.
const OF_CONTROL: [&str; 3] = ["misspelt-label", "policy-selects-nothing", "unknown-namespace"];

/// What has no effect, and pods of the mesh that do not run, in control's words.
fn told(status: &Status, report: &mut Report) {
    for finding in &status.findings {
        let Some(rule) = OF_CONTROL.into_iter().find(|it| *it == finding.rule) else {
            continue;
        };
        let Finding { object, what, remedy, .. } = finding;
        report.warning(rule, object.as_str()).says(what.as_str(), remedy.as_str());
    }
    for FailingPod { pod, restarts, reason, .. } in &status.pods.failing {
        let restarts = match restarts {
            0 => String::new(),
            restarts => format!(" ({restarts} restarts)"),
        };
        let (namespace, name) = pod.split_once('/').unwrap_or_default();
        report.warning("pod-not-ready", format!("Pod {pod}")).says(
            format!("does not run: {reason}{restarts}"),
            format!("see `kubectl -n {namespace} describe pod {name}`"),
        );
    }
}

fn taints(facts: &Facts, report: &mut Report) {
    for node in facts.known(List::Nodes) {
        let key = |taint: &Value| TAINTS.into_iter().find(|it| *it == text(taint, "/key"));
        let Some(taint) = items(node, "/spec/taints").find_map(key) else { continue };
        let is_of_node = |pod: &&Value| {
            owner(pod, "DaemonSet") == Some(AGENT) && text(pod, "/spec/nodeName") == name(node)
        };
        if mesh_pods(facts).filter(is_of_node).any(is_ready) {
            report.warning("taint-left", object("Node", node)).says(
                format!(
                    "still has the taint {taint}, though its agent is ready: no pod goes there"
                ),
                format!("kubectl taint node {} {taint}-", name(node)),
            );
        }
    }
}

/// Whether something refuses, at admission, what could only fail open.
fn admission(facts: &Facts, report: &mut Report) {
    let (Some(policies), Some(bindings)) =
        (facts.list(List::AdmissionPolicies), facts.list(List::AdmissionBindings))
    else {
        return;
    };
    let is_ours = |it: &&Value| {
        name(it).starts_with("ambit")
            || label(it, "app.kubernetes.io/part-of") == Some("ambit")
            || label(it, APP_NAME) == Some("ambit")
    };
    let remedy = "switch it on in the chart's values, or leave it: policies are held to their \
                  strictest reading all the same";
    let own: Vec<&Value> = policies.iter().filter(is_ours).collect();
    if own.is_empty() && !facts.known(List::AdmissionWebhooks).iter().any(|it| is_ours(&it)) {
        report.warning("no-admission", "ValidatingAdmissionPolicy").says(
            "none is Ambit's: a policy that cannot be enforced is reported only after it is stored",
            remedy,
        );
    }
    for policy in own {
        if !bindings.iter().any(|it| text(it, "/spec/policyName") == name(policy)) {
            report.warning("admission-unbound", object("ValidatingAdmissionPolicy", policy)).says(
                "has no ValidatingAdmissionPolicyBinding, so it refuses nothing",
                "apply the chart again",
            );
        }
    }
}
