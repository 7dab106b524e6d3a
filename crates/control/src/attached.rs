//! What becomes of policies at waypoints: condition `WaypointAccepted`, under Istio's reasons, one
//! for all targets. Nothing here decides anything; it says what is decided.

use std::collections::BTreeSet;

use ambit_manifest::istio::{Action, AuthorizationPolicy, RequestAuthentication};
use ambit_manifest::policy::{self, StatusCondition, Target, Unenforceable, WAYPOINT_ACCEPTED};
use ambit_manifest::routing::ParentKind;
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::workload::GatewayDestination;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::view_builder::Builder;
use crate::view_builder::store::{Store, selector};

/// The namespaces in which requests are read.
pub(crate) struct Fronted {
    /// Those in which a service has a waypoint.
    services: BTreeSet<Text>,
    /// Those with a gateway at the edge.
    edges: BTreeSet<Text>,
}

impl Fronted {
    /// Those of a view.
    pub(crate) fn of(builder: &Builder) -> Self {
        let services = builder.view().services();
        let fronted = services.filter(|service| {
            let waypoint = service.waypoint.as_ref().map(|it| &it.destination);
            matches!(waypoint, Some(GatewayDestination::Hostname(_)))
        });
        let gateways = builder.store().gateways();
        let edges = gateways.iter().filter(|(name, _)| gateways.edge(name).is_some());
        Self {
            services: fronted.map(|service| service.key.namespace.clone()).collect(),
            edges: edges.map(|(name, _)| name.namespace.clone()).collect(),
        }
    }
}

/// One object that a policy is attached to, and whether a waypoint enforces the policy for it.
struct Bound {
    object: String,
    reason: &'static str,
    message: String,
}

/// What became of an AuthorizationPolicy at waypoints; nothing if none has to do with it.
pub(crate) fn of_policy(
    builder: &Builder,
    fronted: &Fronted,
    name: &ObjectName,
    policy: &AuthorizationPolicy,
) -> Option<StatusCondition> {
    let attached = policy::attachments(policy, &builder.mesh().root_namespace);
    let has_selector = selector(policy.spec.selector.as_ref()).is_some();
    let problem = policy::request_policy(policy).err();
    let whom = whom(builder, &policy.metadata, &attached);
    let consequence = match policy.spec.action {
        Action::Audit => "waypoints audit nothing of it".to_owned(),
        Action::Allow | Action::Deny | Action::Custom => {
            format!("waypoints deny everything to {whom}")
        }
    };
    condition(builder, fronted, name, has_selector, attached, problem, &consequence)
}

/// Whether waypoints enforce all of a policy that is attached to something. What layer 4 makes of
/// it then concerns nobody: only they connect to what is behind them.
pub(crate) fn is_of_waypoints(
    builder: &Builder,
    fronted: &Fronted,
    name: &ObjectName,
    policy: &AuthorizationPolicy,
) -> bool {
    let attached = policy::attachments(policy, &builder.mesh().root_namespace);
    attached.is_ok_and(|targets| !targets.is_empty())
        && of_policy(builder, fronted, name, policy).is_some_and(|it| it.reason == "Accepted")
}

/// What became of a RequestAuthentication there.
pub(crate) fn of_authentication(
    builder: &Builder,
    fronted: &Fronted,
    name: &ObjectName,
    object: &RequestAuthentication,
) -> Option<StatusCondition> {
    let root_namespace = &builder.mesh().root_namespace;
    let attached = policy::authentication_targets(object, root_namespace);
    let has_selector = selector(object.spec.selector.as_ref()).is_some();
    let problem = policy::authentication_problem(object, root_namespace);
    let whom = whom(builder, &object.metadata, &attached);
    let consequence = format!("waypoints refuse all requests to {whom}");
    condition(builder, fronted, name, has_selector, attached, problem, &consequence)
}

/// What an object is for that cannot be honoured.
fn whom(
    builder: &Builder,
    metadata: &ObjectMeta,
    attached: &Result<Vec<Target>, Unenforceable>,
) -> String {
    let whole = || policy::unreadable_reach(metadata, &builder.mesh().root_namespace);
    match attached {
        Ok(targets) if targets.is_empty() => whole(),
        Ok(_) => "what it is attached to".to_owned(),
        Err(_) => format!("{}, not only to its targets", whole()),
    }
}

/// The condition of an object with these targets, or why they cannot be read, and with what else of
/// it cannot be honoured.
fn condition(
    builder: &Builder,
    fronted: &Fronted,
    name: &ObjectName,
    has_selector: bool,
    attached: Result<Vec<Target>, Unenforceable>,
    problem: Option<Unenforceable>,
    consequence: &str,
) -> Option<StatusCondition> {
    let is_attached = attached.as_ref().is_ok_and(|targets| !targets.is_empty());
    let is_root = name.namespace == builder.mesh().root_namespace;
    let is_among = |all: &BTreeSet<Text>| match is_root {
        true => !all.is_empty(),
        false => all.contains(&name.namespace),
    };
    let (at_services, at_edge) = (is_among(&fronted.services), is_among(&fronted.edges));
    let holds = at_services || at_edge;
    // What selects pods is judged there.
    let is_of_waypoints = is_attached || holds && (!has_selector || attached.is_err());
    if !is_of_waypoints {
        return None;
    }
    let targets = match (attached, problem) {
        (Err(problem), _) | (Ok(_), Some(problem)) => {
            return Some(told(false, "Invalid", format!("{problem}: {consequence}")));
        }
        (Ok(targets), None) => targets,
    };
    if targets.is_empty() {
        let whose = if is_root { "the mesh" } else { "its namespace" };
        let message = match (at_services, at_edge) {
            (true, true) => {
                format!("enforced by the waypoints of {whose}'s services, and by its gateways")
            }
            (false, true) => format!("enforced by the gateways of {whose}"),
            _ => format!("enforced by the waypoints of {whose}'s services"),
        };
        return Some(told(true, "Accepted", message));
    }
    Some(flattened(targets.iter().map(|target| bound(builder.store(), target)).collect()))
}

fn told(holds: bool, reason: &'static str, message: String) -> StatusCondition {
    let status = if holds { "True" } else { "False" };
    StatusCondition { kind: WAYPOINT_ACCEPTED, status, reason, message }
}

/// One condition for all targets, as Istio makes it.
fn flattened(mut all: Vec<Bound>) -> StatusCondition {
    let is_bound = |it: &Bound| it.reason == "Accepted";
    if all.len() == 1 {
        let only = all.remove(0);
        return told(is_bound(&only), only.reason, only.message);
    }
    let (bound, unbound): (Vec<Bound>, Vec<Bound>) = all.into_iter().partition(is_bound);
    if unbound.is_empty() {
        let messages: Vec<String> = bound.into_iter().map(|it| it.message).collect();
        return told(true, "Accepted", messages.join("; "));
    }
    let unbound: Vec<String> =
        unbound.iter().map(|it| format!("{} ({})", it.object, it.message)).collect();
    let message = format!("Invalid targetRefs: {}", unbound.join(", "));
    match bound.is_empty() {
        true => told(false, "Invalid", message),
        false => told(true, "PartiallyInvalid", message),
    }
}

fn bound(store: &Store, target: &Target) -> Bound {
    match target {
        Target::Service(name) => of_parent(store, ParentKind::Service, name),
        Target::ServiceEntry(name) => of_parent(store, ParentKind::ServiceEntry, name),
        Target::Gateway(name) => {
            let full = format!("{}/{}", name.namespace, name.name);
            let object = format!("Gateway.gateway.networking.k8s.io:{full}");
            let (reason, message) = match store.gateways().is_ours(name) {
                true => ("Accepted", format!("bound to {full}")),
                false => ("TargetNotFound", format!("there is no waypoint or gateway {full}")),
            };
            Bound { object, reason, message }
        }
        Target::GatewayClass(name) => {
            let object = format!("GatewayClass.gateway.networking.k8s.io:{name}");
            let gateways = store.gateways();
            let (reason, message) = match gateways.position(name).is_some() {
                true => ("Accepted", format!("bound to {name}")),
                false => ("TargetNotFound", format!("{name} is no class of waypoints or gateways")),
            };
            Bound { object, reason, message }
        }
    }
}

fn of_parent(store: &Store, kind: ParentKind, name: &ObjectName) -> Bound {
    let kind_of = Kind::from(kind).name();
    let (group, is_there) = match kind {
        ParentKind::Service => ("core", store.service(name).is_some()),
        _ => ("networking.istio.io", store.service_entry(name).is_some()),
    };
    let full = format!("{}/{}", name.namespace, name.name);
    let object = format!("{kind_of}.{group}:{full}");
    let (reason, message) = match store.waypoint_of(&(kind, name.clone())) {
        Ok(waypoint) => ("Accepted", format!("bound to {waypoint}")),
        Err(_) if !is_there => ("TargetNotFound", format!("{kind_of} {full} was not found")),
        Err(why) => {
            ("AncestorNotBound", format!("{kind_of} {full} is not bound to a waypoint: {why}"))
        }
    };
    Bound { object, reason, message }
}
