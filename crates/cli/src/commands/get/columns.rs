//! The columns of every list that `ambit get` prints.

use std::fmt::Display;

use ambit_wire::admin::{
    Condition, Connection, Gateway, GatewayListener, HeldCertificate, Node, Pod, Policy,
    PolicyTarget, Route, RouteLine, RouteParent, RuleEffects, Service, ServicePort, Telemetry,
    TrafficPolicy, Workload,
};
use serde::Serialize;

use super::{Autoscaler, Budget, Claim, Object, OnNode};

/// A column of a list.
pub(super) struct Column<T> {
    /// Its title.
    pub(super) title: &'static str,
    /// Whether it is for `-o wide` alone.
    pub(super) is_wide: bool,
    /// Its text for an item.
    pub(super) cell: fn(&T) -> String,
}

/// An item of a list.
pub(super) trait Row: Serialize + Sized {
    /// What is shown of it, from left to right.
    fn columns() -> Vec<Column<Self>>;
}

pub(super) fn narrow<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, is_wide: false, cell }
}

pub(super) fn wide<T>(title: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { title, is_wide: true, cell }
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn joined<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn first<T: Display>(items: &[T]) -> String {
    items.first().map(ToString::to_string).unwrap_or_default()
}

fn known<T: Display>(value: &Option<T>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

impl Row for Object {
    fn columns() -> Vec<Column<Self>> {
        let labels = |it: &Self| {
            let labels = it.0.pointer("/metadata/labels").and_then(|it| it.as_object());
            let label = |(key, value): (&String, &serde_json::Value)| {
                format!("{key}={}", value.as_str().unwrap_or_default())
            };
            labels.into_iter().flatten().map(label).collect::<Vec<_>>().join(",")
        };
        vec![
            narrow("NAMESPACE", |it| text_of(&it.0, "/metadata/namespace")),
            narrow("NAME", |it| text_of(&it.0, "/metadata/name")),
            narrow("CREATED", |it| text_of(&it.0, "/metadata/creationTimestamp")),
            wide("LABELS", labels),
        ]
    }
}

impl Row for Autoscaler {
    fn columns() -> Vec<Column<Self>> {
        let reference = |it: &Self| {
            let target = &it.0["spec"]["scaleTargetRef"];
            format!("{}/{}", text_of(target, "/kind"), text_of(target, "/name"))
        };
        vec![
            narrow("NAMESPACE", |it| text_of(&it.0, "/metadata/namespace")),
            narrow("NAME", |it| text_of(&it.0, "/metadata/name")),
            narrow("REFERENCE", reference),
            narrow("TARGETS", |it| ambit_machine::autoscaler_targets(&it.0)),
            narrow("MINPODS", |it| amount_of(&it.0, "/spec/minReplicas")),
            narrow("MAXPODS", |it| amount_of(&it.0, "/spec/maxReplicas")),
            narrow("REPLICAS", |it| amount_of(&it.0, "/status/currentReplicas")),
            narrow("CREATED", |it| text_of(&it.0, "/metadata/creationTimestamp")),
        ]
    }
}

impl Row for Budget {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| text_of(&it.0, "/metadata/namespace")),
            narrow("NAME", |it| text_of(&it.0, "/metadata/name")),
            narrow("MIN AVAILABLE", |it| amount_of(&it.0, "/spec/minAvailable")),
            narrow("MAX UNAVAILABLE", |it| amount_of(&it.0, "/spec/maxUnavailable")),
            narrow("ALLOWED DISRUPTIONS", |it| amount_of(&it.0, "/status/disruptionsAllowed")),
            narrow("CREATED", |it| text_of(&it.0, "/metadata/creationTimestamp")),
        ]
    }
}

impl Row for Claim {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| text_of(&it.0, "/metadata/namespace")),
            narrow("NAME", |it| text_of(&it.0, "/metadata/name")),
            narrow("STATUS", |it| text_of(&it.0, "/status/phase")),
            narrow("CAPACITY", |it| text_of(&it.0, "/status/capacity/storage")),
            narrow("STORAGECLASS", |it| text_of(&it.0, "/spec/storageClassName")),
            narrow("CREATED", |it| text_of(&it.0, "/metadata/creationTimestamp")),
        ]
    }
}

/// A number, or a percentage.
fn amount_of(value: &serde_json::Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(serde_json::Value::String(percentage)) => percentage.clone(),
        Some(number) => number.to_string(),
        None => "N/A".to_owned(),
    }
}

pub(super) fn text_of(value: &serde_json::Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(|it| it.as_str()).unwrap_or_default().to_owned()
}

impl Row for Pod {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("READY", |it| yes(it.ready)),
            narrow("PHASE", |it| it.phase.to_string()),
            narrow("RESTARTS", |it| it.restarts.to_string()),
            narrow("NODE", |it| it.node.clone()),
            narrow("IP", |it| first(&it.ips)),
            narrow("CAPTURED", |it| yes(it.captured)),
            narrow("REASON", |it| known(&it.reason)),
            wide("SERVICE ACCOUNT", |it| it.service_account.clone()),
            wide("IPS", |it| joined(&it.ips)),
        ]
    }
}

impl Row for Service {
    fn columns() -> Vec<Column<Self>> {
        let ports = |it: &Self| it.ports.iter().map(port).collect::<Vec<_>>().join(",");
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("ADDRESS", |it| first(&it.addresses)),
            narrow("PORTS", ports),
            narrow("ENDPOINTS", |it| format!("{}/{}", it.endpoints.ready, it.endpoints.total)),
            wide("HOSTNAME", |it| it.hostname.clone()),
            wide("ADDRESSES", |it| joined(&it.addresses)),
            wide("BALANCING", |it| it.load_balancing.mode.to_string()),
            wide("WAYPOINT", |it| known(&it.waypoint)),
            wide("CANARY", canary),
            wide("ENTRANCES", |it| joined(&it.entrances)),
        ]
    }
}

fn port(port: &ServicePort) -> String {
    match (port.port, port.target_port) {
        (port, target) if target != 0 && target != port => format!("{port}->{target}"),
        (port, _) => port.to_string(),
    }
}

fn canary(service: &Service) -> String {
    let canary = service.canary.as_ref();
    canary.map_or_else(String::new, |it| format!("{} {}%", it.waypoint, it.weight))
}

impl Row for Workload {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("ADDRESS", |it| first(&it.addresses)),
            narrow("NODE", |it| it.node.clone()),
            narrow("PROTOCOL", |it| it.protocol.to_string()),
            narrow("HEALTHY", |it| yes(it.healthy)),
            wide("IDENTITY", |it| it.identity.clone()),
            wide("SERVICES", |it| joined(&it.services)),
            wide("POLICIES", |it| joined(&it.policies)),
            wide("WAYPOINT", |it| known(&it.waypoint)),
        ]
    }
}

impl Row for Policy {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("KIND", |it| match it {
                Self::AuthorizationPolicy(_) => "AuthorizationPolicy".to_owned(),
                Self::PeerAuthentication(_) => "PeerAuthentication".to_owned(),
                Self::Unknown => "unknown to this release".to_owned(),
            }),
            narrow("NAMESPACE", |it| match it {
                Self::AuthorizationPolicy(policy) => policy.namespace.clone(),
                Self::PeerAuthentication(policy) => policy.namespace.clone(),
                Self::Unknown => String::new(),
            }),
            narrow("NAME", |it| match it {
                Self::AuthorizationPolicy(policy) => policy.name.clone(),
                Self::PeerAuthentication(policy) => policy.name.clone(),
                Self::Unknown => String::new(),
            }),
            narrow("ACTION", |it| match it {
                Self::AuthorizationPolicy(policy) => policy.action.to_string(),
                Self::PeerAuthentication(policy) => policy.mode.to_string(),
                Self::Unknown => String::new(),
            }),
            narrow("SCOPE", |it| {
                of_authorization(it, |policy| match policy.targets.is_empty() {
                    true => known(&policy.scope),
                    false => joined(&policy.targets),
                })
            }),
            narrow("WORKLOADS", |it| {
                of_authorization(it, |policy| match policy.targets.is_empty() {
                    true => policy.workloads.to_string(),
                    // Waypoints enforce it, not the proxies of workloads.
                    false => String::new(),
                })
            }),
            narrow("ACCEPTED", |it| of_condition(it, |condition| condition.status.to_string())),
            wide("RULES", |it| of_authorization(it, |policy| policy.rules.to_string())),
            wide("DRY RUN", |it| of_authorization(it, |policy| yes(policy.dry_run))),
            wide("REASON", |it| of_condition(it, |condition| condition.reason.to_string())),
            wide("MESSAGE", |it| of_authorization(it, message)),
        ]
    }
}

/// What becomes of a policy at waypoints; then at pods, if that is something else.
fn message(policy: &ambit_wire::admin::AuthorizationPolicy) -> String {
    let Some((first, others)) = policy.conditions.split_first() else { return String::new() };
    let others = others.iter().filter(|it| it.status != "True");
    let others = others.map(|it| format!("; at pods without a waypoint: {}", it.message));
    format!("{}{}", first.message, others.collect::<String>())
}

fn of_authorization(
    policy: &Policy,
    cell: fn(&ambit_wire::admin::AuthorizationPolicy) -> String,
) -> String {
    match policy {
        Policy::AuthorizationPolicy(policy) => cell(policy),
        Policy::PeerAuthentication(_) | Policy::Unknown => String::new(),
    }
}

fn of_condition(policy: &Policy, cell: fn(&Condition) -> String) -> String {
    match policy {
        Policy::AuthorizationPolicy(policy) => of_first(&policy.conditions, cell),
        Policy::PeerAuthentication(_) | Policy::Unknown => String::new(),
    }
}

impl Row for Gateway {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("CLASS", |it| it.class.clone()),
            narrow("TRAFFIC", traffic),
            narrow("ADDRESS", |it| first(&it.addresses)),
            narrow("PODS", |it| format!("{}/{}", it.endpoints.ready, it.endpoints.total)),
            narrow("PROGRAMMED", |it| condition_of(it, "Programmed")),
            wide("ACCEPTED", |it| condition_of(it, "Accepted")),
            wide("LISTENERS", listeners),
            wide("MESSAGE", |it| {
                let failed = it.conditions.iter().find(|condition| condition.status != "True");
                failed.map(|condition| condition.message.clone()).unwrap_or_default()
            }),
        ]
    }
}

/// The traffic that it is for. Without a label a waypoint is for services.
fn traffic(gateway: &Gateway) -> String {
    let unlabelled = if gateway.listeners.is_empty() { "service" } else { "edge" };
    gateway.traffic.clone().unwrap_or_else(|| unlabelled.to_owned())
}

fn listeners(gateway: &Gateway) -> String {
    let listener = |it: &GatewayListener| {
        let host = it.host.as_deref().unwrap_or("*");
        format!("{} {}:{host}:{} routes={}", it.name, it.protocol, it.port, it.attached_routes)
    };
    gateway.listeners.iter().map(listener).collect::<Vec<_>>().join(", ")
}

fn condition_of(gateway: &Gateway, kind: &str) -> String {
    let condition = gateway.conditions.iter().find(|condition| condition.kind == kind);
    condition.map(|condition| condition.status.to_string()).unwrap_or_default()
}

impl Row for Telemetry {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("SCOPE", |it| known(&it.scope)),
            narrow("SERVICES", |it| it.services.to_string()),
            narrow("SAYS", |it| joined(&it.sections)),
            narrow("PROVIDERS", |it| joined(&it.providers)),
            narrow("HONOURED", |it| of_first(&it.conditions, |it| it.status.to_string())),
            wide("TARGETS", |it| joined(&it.targets)),
            wide("MESSAGE", |it| of_first(&it.conditions, |it| it.message.clone())),
        ]
    }
}

impl Row for TrafficPolicy {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("SAYS", |it| joined(&it.sections)),
            narrow("TARGETS", |it| each_target(it, |target| &target.target)),
            narrow("ACCEPTED", |it| each_target(it, |target| &target.condition.status)),
            wide("MESSAGE", |it| each_target(it, |target| &target.condition.message)),
        ]
    }
}

fn each_target(policy: &TrafficPolicy, cell: fn(&PolicyTarget) -> &str) -> String {
    policy.targets.iter().map(cell).collect::<Vec<_>>().join(",")
}

fn of_first(conditions: &[Condition], cell: fn(&Condition) -> String) -> String {
    conditions.first().map(cell).unwrap_or_default()
}

impl Row for Route {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("KIND", |it| it.kind.to_string()),
            narrow("NAMESPACE", |it| it.namespace.clone()),
            narrow("NAME", |it| it.name.clone()),
            narrow("RULES", |it| it.rules.to_string()),
            narrow("PARENTS", |it| each_parent(it, |parent| parent.name.clone())),
            narrow("ACCEPTED", |it| {
                each_parent(it, |parent| match of_parent(parent, "Accepted") {
                    // A VirtualService attaches to nothing.
                    none if none.is_empty() => of_parent(parent, "ambit.io/Honoured"),
                    accepted => accepted,
                })
            }),
            narrow("RESOLVED", |it| each_parent(it, |parent| of_parent(parent, "ResolvedRefs"))),
            wide("MESSAGE", |it| {
                let all = it.parents.iter().flat_map(|parent| &parent.conditions);
                let mut bad =
                    all.filter(|it| (it.status == "True") == (it.kind == "PartiallyInvalid"));
                bad.next().map(|it| it.message.clone()).unwrap_or_default()
            }),
        ]
    }
}

fn each_parent(route: &Route, cell: fn(&RouteParent) -> String) -> String {
    route.parents.iter().map(cell).collect::<Vec<_>>().join(",")
}

/// The status of a condition; its reason where it does not hold.
fn of_parent(parent: &RouteParent, kind: &str) -> String {
    let condition = parent.conditions.iter().find(|condition| condition.kind == kind);
    condition
        .map(|it| if it.status == "True" { &it.status } else { &it.reason })
        .map_or_else(String::new, ToString::to_string)
}

impl Row for RouteLine {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("PORT", |it| it.port.to_string()),
            narrow("CLIENTS", |it| it.client_namespace.clone().unwrap_or_else(|| "all".to_owned())),
            narrow("MATCHES", |it| it.matches.clone()),
            narrow("ACTION", |it| it.action.clone()),
            narrow("ALSO", |it| also(&it.effects)),
            narrow("FROM", |it| {
                format!("{} {} rule {}", it.rule.kind, it.rule.route, it.rule.rule)
            }),
            wide("RULE NAME", |it| known(&it.rule.rule_name)),
        ]
    }
}

/// What a rule does beside, a word each; faults in full.
fn also(RuleEffects { faults, rewrite, headers, mirrors, cors }: &RuleEffects) -> String {
    let words = [
        (rewrite.is_some(), "rewrite"),
        (!headers.is_empty(), "headers"),
        (!mirrors.is_empty(), "mirror"),
        (cors.is_some(), "CORS"),
    ];
    let words = words.into_iter().filter(|(is_done, _)| *is_done).map(|(_, word)| word.to_owned());
    let all: Vec<String> = faults.iter().cloned().chain(words).collect();
    all.join(", ")
}

impl Row for Node {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NAME", |it| it.name.clone()),
            narrow("ZONE", |it| it.zone.clone()),
            narrow("PODS", |it| it.pods.to_string()),
            narrow("PROXY CONNECTED", |it| yes(it.proxy_connected)),
            wide("REGION", |it| it.region.clone()),
        ]
    }
}

impl Row for OnNode<HeldCertificate> {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NODE", |it| it.node.clone()),
            narrow("IDENTITY", |it| it.item.identity.clone()),
            narrow("STATE", |it| it.item.state.to_string()),
            narrow("SERIAL", |it| of_leaf(&it.item, serial)),
            narrow("EXPIRES", |it| of_leaf(&it.item, |leaf| leaf.expiration_time.clone())),
            wide("VALID FROM", |it| of_leaf(&it.item, |leaf| leaf.valid_from.clone())),
        ]
    }
}

/// The serial number in the form that control, logs and openssl print.
fn serial(leaf: &ambit_wire::admin::Certificate) -> String {
    leaf.serial.clone().unwrap_or_else(|| format!("{} (decimal)", leaf.serial_number))
}

fn of_leaf(held: &HeldCertificate, cell: fn(&ambit_wire::admin::Certificate) -> String) -> String {
    held.cert_chain.first().map(cell).unwrap_or_default()
}

impl Row for OnNode<Connection> {
    fn columns() -> Vec<Column<Self>> {
        vec![
            narrow("NODE", |it| it.node.clone()),
            narrow("DIRECTION", |it| it.item.direction.to_string()),
            narrow("SOURCE", |it| known(&it.item.source_workload)),
            narrow("DESTINATION", |it| known(&it.item.destination_workload)),
            narrow("ADDRESS", |it| it.item.destination_address.clone()),
            narrow("PLAN", |it| it.item.plan.to_string()),
            narrow("GROUP", |it| known(&it.item.tls_group)),
            narrow("POLICY", |it| known(&it.item.policy)),
            narrow("AGE MS", |it| it.item.age_ms.to_string()),
            wide("SOURCE IDENTITY", |it| known(&it.item.source_identity)),
            wide("DESTINATION IDENTITY", |it| known(&it.item.destination_identity)),
            wide("HBONE PEER", |it| known(&it.item.hbone_peer)),
            wide("TO SERVER", |it| it.item.bytes_to_server.to_string()),
            wide("TO CLIENT", |it| it.item.bytes_to_client.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use ambit_wire::admin::Endpoints;

    use super::*;

    #[test]
    fn cells_show_what_a_person_looks_for() {
        let port = |port, target_port| ServicePort { port, target_port, protocol: "tcp".into() };
        let service = Service {
            ports: vec![port(80, 8080), port(81, 81), port(82, 0)],
            endpoints: Endpoints { ready: 1, total: 2 },
            ..Service::default()
        };
        let check = |title: &str, expected: &str| {
            let column = Service::columns().into_iter().find(|it| it.title == title);
            assert_eq!((column.expect("a column").cell)(&service), expected, "{title}");
        };
        check("PORTS", "80->8080,81,82");
        check("ENDPOINTS", "1/2");
        check("WAYPOINT", "");
        check("ADDRESS", "");
    }
}
