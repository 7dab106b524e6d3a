//! ALLOW policies that select pods behind a waypoint and do not admit the waypoint, for
//! `ambit status`: it alone may connect to these pods, so nothing gets in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ambit_manifest::{Kind, ObjectName};
use ambit_model::authorize::{Decision, Denial, Source};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::{Action, Match, Policy, PolicyScope};
use ambit_model::workload::{GatewayDestination, Tunnel, Workload};
use ambit_wire::admin::{Finding, Severity};

use crate::view_builder::Builder;

/// Pods that a finding names; the rest is counted.
const PODS_MAX: usize = 3;

/// Policies and waypoints, each pair with the pods where the one shuts the other out.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let mut shut_out: BTreeMap<(PolicyName, ServiceName), BTreeSet<String>> = BTreeMap::new();
    let captured = builder.view().workloads().filter(|it| it.tunnel == Tunnel::Hbone);
    for workload in captured.filter(|it| !it.policies.is_empty()) {
        for (waypoint, policy) in shut_out_of(builder, workload) {
            let pod = format!("{}/{}", workload.namespace, workload.name);
            shut_out.entry((policy, waypoint)).or_default().insert(pod);
        }
    }
    shut_out
        .iter()
        .map(|((policy, waypoint), pods)| finding(builder, policy, waypoint, pods))
        .collect()
}

fn finding(
    builder: &Builder,
    policy: &PolicyName,
    waypoint: &ServiceName,
    pods: &BTreeSet<String>,
) -> Finding {
    let named: Vec<&str> = pods.iter().take(PODS_MAX).map(String::as_str).collect();
    let more = match pods.len().saturating_sub(PODS_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let principal = principal(builder, waypoint).map_or_else(
        || "the principal of the waypoint".to_owned(),
        |own| format!("the principal {}", own.trim_start_matches("spiffe://")),
    );
    let name = ObjectName::new(&policy.namespace, &policy.name);
    Finding {
        // What refuses requests is an error, which `ambit apply` says too.
        severity: Severity::Error,
        rule: "waypoint-not-admitted".into(),
        object: format!("{} {}/{}", Kind::AuthorizationPolicy.name(), name.namespace, name.name),
        what: format!(
            "it selects {}{more} behind the waypoint {waypoint}, which is the only client there, \
             and no ALLOW policy admits it: requests are answered 503",
            named.join(", ")
        ),
        remedy: format!(
            "attach it to the Service with targetRefs in place of the selector, or add {principal} \
             to it"
        ),
    }
}

/// Who a waypoint proves to be.
fn principal(builder: &Builder, waypoint: &ServiceName) -> Option<String> {
    let pods = builder.view().endpoints(waypoint)?;
    pods.iter().next().map(|pod| pod.identity().to_string())
}

/// Waypoints that a pod's policies do not admit, at a port at which they admit somebody.
fn shut_out_of(builder: &Builder, workload: &Workload) -> BTreeSet<(ServiceName, PolicyName)> {
    let view = builder.view();
    let of_services = workload.services.iter().flat_map(|(name, ports)| {
        let waypoint = view.service(name).and_then(|service| service.waypoint.as_ref());
        let ports = ports.iter().map(|port| port.target_port).filter(|port| *port != 0);
        ports.filter_map(move |port| Some((&waypoint?.destination, port)))
    });
    let served = workload.services.values().flatten().map(|port| port.target_port);
    let own = served.filter_map(|port| Some((&workload.waypoint.as_deref()?.destination, port)));
    let mut found = BTreeSet::new();
    for (destination, port) in of_services.chain(own) {
        let GatewayDestination::Hostname(waypoint) = destination else { continue };
        let Some(ip) = workload.addresses.first() else { continue };
        let Some(pods) = view.endpoints(waypoint) else { continue };
        let mut own = pods.iter();
        let Some(own) = own.find(|pod| pod.healthy) else { continue };
        let own_ip = own.addresses.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let source = Source::new(Some(own.identity()), own_ip);
        let judged = view.authorize(workload, &source, SocketAddr::new(*ip, port));
        let Decision::Deny(Denial::NotAllowed { policy, .. }) = judged.decision else { continue };
        let mut policies = view.policies_of(workload).flatten();
        if policies.any(|policy| is_for_somebody(policy, port)) {
            found.insert((waypoint.clone(), policy));
        }
    }
    found
}

/// Whether an ALLOW policy with a selector lets some client in at a port. One that lets nobody in
/// is meant so.
fn is_for_somebody(policy: &Policy, port: u16) -> bool {
    let may_match = |it: &Match| {
        let is_wanted = it.destination_ports.is_empty() || it.destination_ports.contains(&port);
        *it != Match::default() && is_wanted && !it.not_destination_ports.contains(&port)
    };
    let is_selecting = policy.scope == PolicyScope::WorkloadSelector;
    is_selecting
        && policy.action == Action::Allow
        && !policy.dry_run
        && policy.rules.iter().any(|rule| {
            let mut clauses = rule.clauses.iter();
            clauses.all(|it| it.matches.is_empty() || it.matches.iter().any(may_match))
        })
}
