//! NetworkPolicies that let an application's port pass and not the mesh's, and those that the mesh
//! passes by.
//!
//! Captured connections arrive at port 15008 in place of the application's. Whoever may reach any
//! TCP port of a pod by a policy must therefore be able to reach that one, by the policies of the
//! server (ingress) and by those of the client (egress); policies add up, so any policy of the pod
//! may allow it. A policy of another kind than Kubernetes' is named and not judged. Connections
//! that are joined inside a node's proxy meet no NetworkPolicy at all.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_words::addresses::PROBE_V4;
use ambit_words::names::PROXY;
use ambit_words::ports::HBONE;
use serde_json::{Value, json};

use super::selector::takes;
use super::{Report, is_member, labelled_namespaces, listed};
use crate::Facts;
use crate::facts::{List, Stage};
use crate::json::{items, name, namespace, number, text};
use crate::parts::is_ours;

/// Kinds of policies that are not judged, by their definitions.
const OTHER_KINDS: [&str; 6] = [
    "ciliumnetworkpolicies.cilium.io",
    "ciliumclusterwidenetworkpolicies.cilium.io",
    "networkpolicies.crd.projectcalico.org",
    "globalnetworkpolicies.crd.projectcalico.org",
    "adminnetworkpolicies.policy.networking.k8s.io",
    "baselineadminnetworkpolicies.policy.networking.k8s.io",
];
/// What says to a node's proxy how it connects two pods of its own.
const SAME_NODE: &str = "AMBIT_SAME_NODE";
/// Pods that one policy is judged by; pods of one policy are mostly alike.
const PODS_MAX: usize = 50;

/// Who is, or will be, in the mesh.
struct Mesh<'a> {
    namespaces: BTreeMap<&'a str, &'a Value>,
    /// Its pods, by namespace.
    members: BTreeMap<&'a str, Vec<&'a Value>>,
}

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

/// What a policy keeps from reaching the mesh.
#[derive(Default)]
struct Confinement<'a> {
    /// Pods whose connections do not arrive through the mesh and would without it.
    clients: Vec<&'a str>,
    /// Whom they are for.
    servers: Option<&'a Value>,
}

pub(super) fn check(facts: &Facts, report: &mut Report) {
    let mesh = Mesh::of(facts);
    let joins = joins(facts);
    let mut passed_by = Vec::new();
    for (namespace_name, pods) in &mesh.members {
        let policies = facts.known(List::NetworkPolicies).iter();
        let here: Vec<&Value> = policies.filter(|it| namespace(it) == *namespace_name).collect();
        let of = |direction| here.iter().copied().filter(move |it| is_of(it, direction)).collect();
        let (ingress, egress): (Vec<&Value>, Vec<&Value>) = (of("Ingress"), of("Egress"));
        for policy in &ingress {
            tell(policy, &harm(policy, &ingress, pods), report);
        }
        for policy in &egress {
            tell_confined(policy, &confinement(policy, &egress, pods, &mesh), report);
        }
        let is_met = |policy: &&&Value| pods.iter().any(|pod| selects(policy, pod));
        let met = here.iter().filter(is_met).filter(|_| joins);
        passed_by.extend(met.map(|it| format!("{}/{}", namespace(it), name(it))));
    }
    if !passed_by.is_empty() {
        report
            .warning("network-policy-same-node", format!("NetworkPolicy {}", listed(&passed_by)))
            .says(
                "selects pods of the mesh and is not applied between two of them on one node, \
                 whose connections are joined inside the node's proxy (proxy.sameNode=join)",
                "install with --set proxy.sameNode=encrypt, so that these connections too go \
                 through the network, at TCP 15008; or write the same rule as an \
                 AuthorizationPolicy",
            );
    }
    others(facts, report);
}

impl<'a> Mesh<'a> {
    fn of(facts: &'a Facts) -> Self {
        let labelled = labelled_namespaces(facts);
        let mut members: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for pod in facts.known(List::Pods).iter().filter(|pod| is_member(pod, &labelled)) {
            members.entry(namespace(pod)).or_default().push(pod);
        }
        let namespaces = facts.known(List::Namespaces).iter().map(|it| (name(it), it)).collect();
        Self { namespaces, members }
    }
}

/// Whether the proxies join connections between two pods of one node. Before they are there, the
/// chart's default counts.
fn joins(facts: &Facts) -> bool {
    let Some(sets) = facts.list(List::DaemonSets) else { return false };
    let is_proxy = |it: &&Value| name(it) == PROXY && namespace(it) == facts.mesh_namespace;
    let Some(proxy) = sets.iter().find(is_proxy) else { return facts.stage == Stage::Before };
    let containers = items(proxy, "/spec/template/spec/containers");
    let variables = containers.flat_map(|container| items(container, "/env"));
    // Of a variable that is there twice, the last counts.
    let setting = variables.filter(|it| text(it, "/name") == SAME_NODE).last();
    is_ours(proxy) && setting.is_none_or(|it| text(it, "/value") == "join")
}

fn others(facts: &Facts, report: &mut Report) {
    let others: Vec<&str> = facts
        .known(List::CustomResourceDefinitions)
        .iter()
        .map(name)
        .filter(|it| OTHER_KINDS.contains(it))
        .collect();
    if !others.is_empty() {
        let what = "policies of this kind are not checked";
        let remedy = format!(
            "see that they let TCP {HBONE} in and out wherever they let the application's port \
             pass, and probes from {PROBE_V4} in; with proxy.sameNode=join they are not applied \
             between two pods of one node"
        );
        report.info("other-policies", listed(&others)).says(what, remedy);
    }
}

/// Whether a policy is one of `Ingress`, or of `Egress`.
fn is_of(policy: &Value, direction: &str) -> bool {
    match policy["spec"]["policyTypes"].as_array() {
        Some(types) => types.iter().any(|it| it == direction),
        None => direction == "Ingress" || items(policy, "/spec/egress").next().is_some(),
    }
}

fn selects(policy: &Value, pod: &Value) -> bool {
    takes(&policy["spec"]["podSelector"], pod)
}

fn harm<'a>(policy: &'a Value, all: &[&'a Value], pods: &[&'a Value]) -> Harm<'a> {
    let mut harm = Harm::default();
    for pod in pods.iter().filter(|pod| selects(policy, pod)).take(PODS_MAX) {
        let of_pod = || all.iter().filter(|it| selects(it, pod));
        let rules = || of_pod().flat_map(|policy| items(policy, "/spec/ingress"));
        let open = |rule: &Value| allows(rule, pod, u64::from(HBONE));
        let kept_out = items(policy, "/spec/ingress").find(|rule| {
            is_about_tcp(rule) && !rules().any(|other| open(other) && admits(other, rule))
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

fn confinement<'a>(
    policy: &'a Value,
    all: &[&'a Value],
    pods: &[&'a Value],
    mesh: &Mesh<'a>,
) -> Confinement<'a> {
    let mut confinement = Confinement::default();
    let home = namespace(policy);
    let rules = items(policy, "/spec/egress").filter(|rule| is_about_tcp(rule));
    let rules: Vec<(&Value, Vec<&Value>)> =
        rules.map(|rule| (rule, servers(rule, home, mesh))).collect();
    for client in pods.iter().filter(|pod| selects(policy, pod)).take(PODS_MAX) {
        let of_client = || all.iter().filter(|it| selects(it, client));
        let allowed = || of_client().flat_map(|policy| items(policy, "/spec/egress"));
        let is_kept_from = |server: &&Value| {
            !std::ptr::eq::<Value>(*server, *client)
                && !allowed().any(|rule| opens(rule, server, home, mesh))
        };
        if let Some((rule, _)) = rules.iter().find(|(_, servers)| servers.iter().any(is_kept_from))
        {
            confinement.clients.push(name(client));
            confinement.servers.get_or_insert(&rule["to"]);
        }
    }
    confinement
}

/// The pods of the mesh that an egress rule means, as many as are looked at.
///
/// A rule that names pods by their labels means its ports there. One that names whole namespaces,
/// or nobody, may mean others, such as DNS: it counts where a pod says that it has such a port.
/// Blocks of addresses are for what is outside the cluster.
fn servers<'a>(rule: &Value, home: &str, mesh: &Mesh<'a>) -> Vec<&'a Value> {
    let has_port =
        |pod: &Value| ports(pod).any(|port| is_tcp(port) && allows(rule, pod, number_of(port)));
    let is_to_anybody = items(rule, "/to").next().is_none();
    let mut found = Vec::new();
    for (place, pods) in &mesh.members {
        let there: Vec<&Value> =
            items(rule, "/to").filter(|peer| is_placed(peer, place, home, mesh)).collect();
        let means = |peer: &&Value, pod: &Value| {
            takes(&peer["podSelector"], pod) && (names_pods(peer) || has_port(pod))
        };
        let is_meant = |pod: &&&Value| match is_to_anybody {
            true => has_port(pod),
            false => there.iter().any(|peer| means(peer, pod)),
        };
        let wanted = PODS_MAX.saturating_sub(found.len());
        found.extend(pods.iter().filter(is_meant).take(wanted).copied());
    }
    found
}

/// Whether a peer, seen from a policy of namespace `home`, may be pods of a namespace.
fn is_placed(peer: &Value, place: &str, home: &str, mesh: &Mesh) -> bool {
    let is_chosen = match &peer["namespaceSelector"] {
        Value::Null => place == home,
        selector => mesh.namespaces.get(place).is_some_and(|it| takes(selector, it)),
    };
    peer["ipBlock"].is_null() && is_chosen
}

fn is_peer(peer: &Value, pod: &Value, home: &str, mesh: &Mesh) -> bool {
    is_placed(peer, namespace(pod), home, mesh) && takes(&peer["podSelector"], pod)
}

fn names_pods(peer: &Value) -> bool {
    let has = |pointer| peer.pointer(pointer).is_some_and(|it| !it.is_null());
    has("/podSelector/matchLabels") || has("/podSelector/matchExpressions")
}

/// Whether an egress rule lets captured connections to a pod out.
fn opens(rule: &Value, pod: &Value, home: &str, mesh: &Mesh) -> bool {
    let mut to = items(rule, "/to").peekable();
    allows(rule, pod, u64::from(HBONE))
        && (to.peek().is_none()
            || to.any(|it| is_peer(it, pod, home, mesh) || is_in_block(&it["ipBlock"], pod)))
}

/// Whether an address of a pod lies in a block. A pod that has none yet is not judged by it.
fn is_in_block(block: &Value, pod: &Value) -> bool {
    let has = |address: &str| {
        let mut but = items(block, "/except").filter_map(Value::as_str);
        contains(text(block, "/cidr"), address) && !but.any(|cidr| contains(cidr, address))
    };
    let mut addresses = items(pod, "/status/podIPs").map(|it| text(it, "/ip")).peekable();
    !block.is_null() && (addresses.peek().is_none() || addresses.any(has))
}

fn contains(cidr: &str, address: &str) -> bool {
    let parts = cidr.split_once('/').and_then(|(network, bits)| {
        Some((network.parse().ok()?, bits.parse::<u32>().ok()?, address.parse().ok()?))
    });
    // Bits behind the prefix do not count; a shift by all of them is none that is defined.
    match parts {
        Some((IpAddr::V4(network), bits @ 0..=32, IpAddr::V4(address))) => {
            let differing = network.to_bits() ^ address.to_bits();
            differing.checked_shr(32 - bits).unwrap_or_default() == 0
        }
        Some((IpAddr::V6(network), bits @ 0..=128, IpAddr::V6(address))) => {
            let differing = network.to_bits() ^ address.to_bits();
            differing.checked_shr(128 - bits).unwrap_or_default() == 0
        }
        _ => false,
    }
}

/// Whether a rule is about TCP at all.
fn is_about_tcp(rule: &Value) -> bool {
    let mut ports = items(rule, "/ports").peekable();
    ports.peek().is_none() || ports.any(is_tcp)
}

fn is_tcp(port: &Value) -> bool {
    ["", "TCP"].contains(&text(port, "/protocol"))
}

/// Whether a rule lets anybody it names reach a TCP port of a pod.
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
    let own = format!("{PROBE_V4}/32");
    let is_wide = |cidr: &str| [&own, "169.254.0.0/16", "0.0.0.0/0"].contains(&cidr);
    from.peek().is_none() || from.any(|peer| is_wide(text(peer, "/ipBlock/cidr")))
}

/// The number of a container's named port.
fn port_of(pod: &Value, name: &str) -> Option<u64> {
    ports(pod).find(|port| text(port, "/name") == name).map(number_of)
}

/// The ports that a pod says it has.
fn ports(pod: &Value) -> impl Iterator<Item = &Value> {
    items(pod, "/spec/containers").flat_map(|container| items(container, "/ports"))
}

fn number_of(port: &Value) -> u64 {
    number(port, "/containerPort")
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
                "does not let {PROBE_V4} in, where the kubelet's probes of captured pods come \
                 from; unless the network plugin always admits the node itself, the probes of {} \
                 fail",
                listed(&harm.unprobed)
            ),
            format!("add a rule from {{ipBlock: {{cidr: {PROBE_V4}/32}}}} to the probed ports"),
        );
    }
}

fn tell_confined(policy: &Value, confinement: &Confinement, report: &mut Report) {
    if confinement.clients.is_empty() {
        return;
    }
    let anybody = json!("anybody");
    let servers = confinement.servers.filter(|it| !it.is_null()).unwrap_or(&anybody);
    report.error("network-policy-egress", super::object("NetworkPolicy", policy)).says(
        format!(
            "lets its pods out to {servers} at the applications' ports and not at TCP 15008, where \
             captured connections arrive; those of {} do not get there",
            listed(&confinement.clients)
        ),
        "add a port {protocol: TCP, port: 15008} to the rule, or a companion with `to` to the \
         chart's networkPolicies",
    );
}
