//! NetworkPolicies that let an application's port in and not the mesh's.
//!
//! Captured connections arrive at port 15008 in place of the application's. Whoever may reach any
//! TCP port of a pod by a policy must therefore be able to reach that one; policies add up, so any
//! policy of the pod may allow it. A policy of another kind than Kubernetes' is named and not
//! judged.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::selector::takes;
use super::{Report, is_member, labelled_namespaces, listed};
use crate::Facts;
use crate::facts::List;
use crate::json::{items, name, namespace, text};

/// Where captured connections arrive.
const HBONE_PORT: u64 = 15008;
/// Where the kubelet's probes of captured pods come from.
const PROBE_ADDRESS: &str = "169.254.7.127/32";
/// Kinds of policies that are not judged, by their definitions.
const OTHER_KINDS: [&str; 6] = [
    "ciliumnetworkpolicies.cilium.io",
    "ciliumclusterwidenetworkpolicies.cilium.io",
    "networkpolicies.crd.projectcalico.org",
    "globalnetworkpolicies.crd.projectcalico.org",
    "adminnetworkpolicies.policy.networking.k8s.io",
    "baselineadminnetworkpolicies.policy.networking.k8s.io",
];
/// Pods that one policy is judged by; pods of one policy are mostly alike.
const PODS_MAX: usize = 50;

/// What a policy keeps from the mesh.
#[derive(Default)]
struct Harm<'a> {
    /// Pods that cannot be reached through the mesh by somebody who may reach them without it.
    closed: Vec<&'a str>,
    /// Pods whose probes would be dropped.
    unprobed: Vec<&'a str>,
    /// Who is kept out.
    sources: Option<&'a Value>,
}

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let labelled = labelled_namespaces(facts);
    let mut members: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for pod in facts.known(List::Pods).iter().filter(|pod| is_member(pod, &labelled)) {
        members.entry(namespace(pod)).or_default().push(pod);
    }
    let policies = facts.known(List::NetworkPolicies);
    for (namespace_name, pods) in &members {
        let here: Vec<&Value> = policies
            .iter()
            .filter(|it| namespace(it) == *namespace_name && has_ingress(it))
            .collect();
        for policy in &here {
            tell(policy, &harm(policy, &here, pods), report);
        }
    }
    let others: Vec<&str> = facts
        .known(List::CustomResourceDefinitions)
        .iter()
        .map(name)
        .filter(|it| OTHER_KINDS.contains(it))
        .collect();
    if !others.is_empty() {
        let what = "policies of this kind are not looked at";
        let remedy = "see that they let TCP 15008 in wherever they let the application's port in, \
                      and probes from 169.254.7.127";
        report.info("other-policies", listed(&others)).says(what, remedy);
    }
}

fn has_ingress(policy: &Value) -> bool {
    let types = &policy["spec"]["policyTypes"];
    types.is_null() || items(policy, "/spec/policyTypes").any(|it| it == "Ingress")
}

fn harm<'a>(policy: &'a Value, all: &[&'a Value], pods: &[&'a Value]) -> Harm<'a> {
    let mut harm = Harm::default();
    let selects = |policy: &Value, pod: &Value| takes(&policy["spec"]["podSelector"], pod);
    for pod in pods.iter().filter(|pod| selects(policy, pod)).take(PODS_MAX) {
        let of_pod = || all.iter().filter(|it| selects(it, pod));
        let rules = || of_pod().flat_map(|policy| items(policy, "/spec/ingress"));
        let open = |rule: &Value| allows(rule, pod, HBONE_PORT);
        let kept_out = items(policy, "/spec/ingress").find(|rule| {
            lets_tcp_in(rule) && !rules().any(|other| open(other) && admits(other, rule))
        });
        if let Some(rule) = kept_out {
            harm.closed.push(name(pod));
            harm.sources.get_or_insert(&rule["from"]);
        }
        let probed = probe_ports(pod);
        let is_probed =
            |port: &u64| rules().any(|rule| allows(rule, pod, *port) && admits_probes(rule));
        if !probed.iter().all(is_probed) {
            harm.unprobed.push(name(pod));
        }
    }
    harm
}

/// Whether a rule is about TCP at all.
fn lets_tcp_in(rule: &Value) -> bool {
    let mut ports = items(rule, "/ports").peekable();
    ports.peek().is_none() || ports.any(is_tcp)
}

fn is_tcp(port: &Value) -> bool {
    ["", "TCP"].contains(&text(port, "/protocol"))
}

/// Whether a rule lets anybody reach a TCP port of a pod.
fn allows(rule: &Value, pod: &Value, wanted: u64) -> bool {
    let mut ports = items(rule, "/ports").peekable();
    let covers = |port: &Value| match (&port["port"], port["endPort"].as_u64()) {
        (Value::Null, _) => true,
        (Value::Number(first), Some(last)) => {
            first.as_u64().is_some_and(|first| (first..=last).contains(&wanted))
        }
        (Value::String(name), _) => port_of(pod, name) == Some(wanted),
        (first, None) => first.as_u64() == Some(wanted),
        _ => false,
    };
    ports.peek().is_none() || ports.any(|port| is_tcp(port) && covers(port))
}

/// Whether everybody whom the narrow rule lets in is let in by the wide one.
fn admits(wide: &Value, narrow: &Value) -> bool {
    let mut of_wide = items(wide, "/from").peekable();
    if of_wide.peek().is_none() {
        return true;
    }
    let mut of_narrow = items(narrow, "/from").peekable();
    of_narrow.peek().is_some() && of_narrow.all(|peer| items(wide, "/from").any(|it| it == peer))
}

fn admits_probes(rule: &Value) -> bool {
    let mut from = items(rule, "/from").peekable();
    let is_wide = |cidr: &str| [PROBE_ADDRESS, "169.254.0.0/16", "0.0.0.0/0"].contains(&cidr);
    from.peek().is_none() || from.any(|peer| is_wide(text(peer, "/ipBlock/cidr")))
}

/// The number of a container's named port.
fn port_of(pod: &Value, name: &str) -> Option<u64> {
    let mut ports = items(pod, "/spec/containers").flat_map(|container| items(container, "/ports"));
    ports.find(|port| text(port, "/name") == name)?["containerPort"].as_u64()
}

/// The ports at which the kubelet probes a pod.
fn probe_ports(pod: &Value) -> Vec<u64> {
    let mut found = Vec::new();
    for container in items(pod, "/spec/containers") {
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            for way in ["httpGet", "tcpSocket", "grpc"] {
                match &container[probe][way]["port"] {
                    Value::String(name) => found.extend(port_of(pod, name)),
                    port => found.extend(port.as_u64()),
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn tell(policy: &Value, harm: &Harm, report: &mut Report) {
    let place = || super::object("NetworkPolicy", policy);
    if !harm.closed.is_empty() {
        let anybody = json!("anybody");
        let sources = harm.sources.filter(|it| !it.is_null()).unwrap_or(&anybody);
        report.error("network-policy-hbone", place()).says(
            format!(
                "lets {sources} in at the application's ports and not at TCP 15008, where captured \
                 connections arrive; closed to them: {}",
                listed(&harm.closed)
            ),
            "add a port {protocol: TCP, port: 15008} to the rule, or switch the chart's companion \
             policies on",
        );
    }
    if !harm.unprobed.is_empty() {
        report.warning("network-policy-probes", place()).says(
            format!(
                "does not let 169.254.7.127 in, where the kubelet's probes of captured pods come \
                 from; unless the network plugin always admits the node itself, the probes of {} \
                 fail",
                listed(&harm.unprobed)
            ),
            format!("add a rule from {{ipBlock: {{cidr: {PROBE_ADDRESS}}}}} to the probed ports"),
        );
    }
}
