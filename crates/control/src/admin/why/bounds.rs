//! How much a request or a connection may be, how long it may take, and which endpoints of its
//! backends are checked: what holds, and where it is written.
//!
//! What the waypoint itself is set to is not known here, and so not said.

use std::time::Duration;

use ambit_manifest::Kind;
use ambit_manifest::traffic_policy::Section;
use ambit_model::http::compression::Compression;
use ambit_model::http::health::{HealthCheck, Probe};
use ambit_model::http::limits::RequestLimits;
use ambit_model::http::rule::{Destination, Origin, Retry, Rule};
use ambit_model::http::service::ServiceHttp;
use ambit_model::http::traffic::{Ejection, Limits, TrafficPolicy};
use ambit_model::names::ServiceName;
use ambit_wire::admin::{BackendCheck, Bound};
use ambit_words::durations::write_duration;

use super::fronted::{Fronted, written};
use crate::admin::routes;

/// Where a request or connection may go.
pub(super) struct Backend<'a> {
    pub(super) name: &'a ServiceName,
    pub(super) port: u16,
    pub(super) subset: Option<&'a str>,
}

impl<'a> Backend<'a> {
    /// Those of a rule; without a rule the destination itself.
    pub(super) fn all(
        fronted: &'a Fronted<'_>,
        rule: Option<impl Iterator<Item = (u32, &'a Destination)>>,
    ) -> Vec<Self> {
        let Some(destinations) = rule else { return Self::of_destination(fronted).into() };
        let backend = |(weight, destination): (u32, &'a Destination)| match destination {
            Destination::Service { name, port, subset } if weight > 0 => {
                Some(Self { name, port: *port, subset: subset.as_deref() })
            }
            _ => None,
        };
        destinations.filter_map(backend).collect()
    }

    /// The destination itself.
    pub(super) fn of_destination(fronted: &'a Fronted<'_>) -> [Self; 1] {
        [Self { name: &fronted.name, port: fronted.target.address.port(), subset: None }]
    }
}

/// What something is bounded to, by the name of its field.
type Said = (&'static str, Option<String>);

/// What a rule of a route says.
pub(super) fn of_rule(rule: &Rule) -> Vec<Bound> {
    let said = [
        ("timeout", time(rule.timeouts.request)),
        ("backendRequestTimeout", time(rule.timeouts.backend)),
        ("perTryTimeout", time(rule.timeouts.response_head)),
        ("retries", rule.retry.as_ref().map(retries)),
    ];
    let at = routes::rule(&rule.origin);
    let from = format!("{} {} rule {}", at.kind, at.route, at.rule);
    all(said, None, &from)
}

/// What TrafficPolicies say of the size and the time of a request, and of its response.
pub(super) fn of_request(
    fronted: &Fronted<'_>,
    http: &ServiceHttp,
    route: Option<&Origin>,
) -> Vec<Bound> {
    let from = |section| fronted.policy(section, route).unwrap_or_default();
    let limits = http.limits.of(route, &fronted.name);
    let compression = http.compression.of(route, &fronted.name);
    let limited = limits.map(|it| all(sizes(it), None, &from(Section::Limits)));
    let compressed = compression
        .map(|it| all([("compression", Some(codings(it)))], None, &from(Section::Compression)));
    limited.into_iter().chain(compressed).flatten().collect()
}

fn sizes(limits: &RequestLimits) -> [Said; 5] {
    [
        ("maxHeaderBytes", number(limits.head_bytes)),
        ("maxHeaders", number(limits.fields)),
        ("maxBodyBytes", limits.body_bytes.map(|it| it.to_string())),
        ("bodyTimeout", time(limits.body_timeout)),
        ("streamIdleTimeout", time(limits.idle_timeout)),
    ]
}

fn codings(compression: &Compression) -> String {
    let names: Vec<&str> = compression.codings.iter().map(|it| it.name()).collect();
    match names[..] {
        [] => "no response is compressed".to_owned(),
        _ => format!("{} from {} bytes", names.join(" or "), compression.min_bytes),
    }
}

/// What DestinationRules say of backends. What is about requests is left out for bytes.
pub(super) fn of_backends(
    fronted: &Fronted<'_>,
    backends: &[Backend<'_>],
    is_http: bool,
) -> Vec<Bound> {
    let of_backend = |Backend { name, port, subset }: &Backend<'_>| {
        let Some(http) = fronted.builder.view().http_service(name) else { return Vec::new() };
        let TrafficPolicy { limits, ejection, .. } = http.traffic(*port, *subset);
        let Limits { connections, pending_requests, requests, retries, .. } = limits;
        let of_http = [
            ("http1MaxPendingRequests", number(*pending_requests)),
            ("http2MaxRequests", number(*requests)),
            ("maxRetries", number(*retries)),
            ("maxRequestsPerConnection", number(limits.requests_per_connection)),
            ("idleTimeout", time(limits.idle_timeout)),
        ];
        let said = [
            ("maxConnections", number(*connections)),
            ("connectTimeout", time(limits.connect_timeout)),
            ("outlierDetection", ejection.as_ref().map(|it| outliers(it, is_http))),
        ];
        let said = said.into_iter().chain(of_http.into_iter().filter(|_| is_http));
        let rule = fronted.builder.destination_rule(name, *subset);
        let from = rule.map(|it| written(Kind::DestinationRule, it)).unwrap_or_default();
        all(said, Some(*name), &from)
    };
    backends.iter().flat_map(of_backend).collect()
}

/// How the endpoints of backends are checked.
pub(super) fn checks(fronted: &Fronted<'_>, backends: &[Backend<'_>]) -> Vec<BackendCheck> {
    let mut checks: Vec<BackendCheck> = Vec::new();
    for Backend { name, .. } in backends {
        let http = fronted.builder.view().http_service(name);
        let Some(check) = http.and_then(|http| http.health_check.as_ref()) else { continue };
        let policy = fronted.builder.traffic_policy(Section::HealthCheck, name, None);
        let from = policy.map(|it| written(Kind::TrafficPolicy, it)).unwrap_or_default();
        let check = BackendCheck { service: name.to_string(), check: self::check(check), from };
        if !checks.contains(&check) {
            checks.push(check);
        }
    }
    checks
}

fn all(
    said: impl IntoIterator<Item = Said>,
    service: Option<&ServiceName>,
    from: &str,
) -> Vec<Bound> {
    let bound = |(bound, value): Said| {
        let service = service.map(ToString::to_string);
        Some(Bound { bound: bound.into(), value: value?, service, from: from.to_owned() })
    };
    said.into_iter().filter_map(bound).collect()
}

fn number(number: Option<u32>) -> Option<String> {
    number.map(|it| it.to_string())
}

fn time(time: Option<Duration>) -> Option<String> {
    time.map(write_duration)
}

fn retries(retry: &Retry) -> String {
    let methods = if retry.is_for_all_methods { "" } else { ", of methods that are idempotent" };
    format!("{} further attempts{methods}", retry.attempts)
}

/// When an endpoint is left out. Of bytes only failures to connect are known.
fn outliers(rules: &Ejection, is_http: bool) -> String {
    let failures = [
        (rules.consecutive_5xx, "answers of 5xx", is_http),
        (rules.consecutive_gateway_errors, "answers of 502 to 504", is_http),
        (rules.consecutive_local_errors, "failures on the way", rules.splits_local_errors),
    ];
    let failures = failures.into_iter().filter(|(most, _, counts)| *counts && *most > 0);
    let failures: Vec<String> = failures.map(|(most, what, _)| format!("{most} {what}")).collect();
    let failures = match (failures.is_empty(), is_http) {
        (false, _) => failures.join(" or "),
        (true, false) => {
            let most = [rules.consecutive_5xx, rules.consecutive_gateway_errors];
            let most = most.into_iter().filter(|most| *most > 0).min();
            most.map_or("nothing".to_owned(), |most| format!("{most} failures to connect"))
        }
        (true, true) => "nothing".to_owned(),
    };
    let (time, most) = (write_duration(rules.base_time), rules.max_percent);
    format!("{failures} in a row leave an endpoint out for {time}, at most {most} % of them")
}

fn check(check: &HealthCheck) -> String {
    if let Some(problem) = &check.problem {
        return format!("{problem}: no endpoint gets anything");
    }
    let asked = match &check.probe {
        Probe::Tcp => "a connection".to_owned(),
        Probe::Http { path, .. } => format!("GET {path}"),
        Probe::Grpc { service } if service.is_empty() => "grpc.health.v1".to_owned(),
        Probe::Grpc { service } => format!("grpc.health.v1 of {service}"),
    };
    let port = check.port.map(|port| format!(" at port {port}")).unwrap_or_default();
    let (every, within) = (write_duration(check.interval), write_duration(check.timeout));
    let (out, back) = (check.unhealthy_threshold, check.healthy_threshold);
    let effect = format!("out after {out} failures, back after {back} successes");
    format!("{asked}{port} every {every}, within {within}; {effect}")
}
