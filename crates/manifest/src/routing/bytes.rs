//! What TCPRoutes and TLSRoutes mean for connections, and UDPRoutes for datagrams.
//!
//! Of a rule that cannot be honoured the connections are refused, in its place.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::bytes::{BytesBackend, BytesMatch, BytesRule, ServerNameMatch};
use ambit_model::http::rule::{Destination, Origin, RouteKind};

use super::backends::{Backends, Whatever};
use super::problem::Problems;
use super::{Reader, Routing, Spot, report, weight};
use crate::istio::IstioObject;
use crate::routes::{BackendRef, BytesRouteRule, RouteSpec, TcpRoute, TlsRoute, UdpRoute};
use crate::validate::names;
use crate::{FieldPath, ObjectIssues};

/// What a TCPRoute means.
pub fn tcp(route: &TcpRoute, backends: &dyn Backends) -> Routing {
    of_any_host(route, RouteKind::TcpRoute, "use a TLSRoute, or remove `hostnames`", backends)
}

/// What a UDPRoute means.
pub fn udp(route: &UdpRoute, backends: &dyn Backends) -> Routing {
    of_any_host(route, RouteKind::UdpRoute, "remove `hostnames`", backends)
}

fn of_any_host(
    route: &IstioObject<RouteSpec<BytesRouteRule>>,
    kind: RouteKind,
    remedy: &str,
    backends: &dyn Backends,
) -> Routing {
    let reader = Reader::new(route, kind, backends);
    let mut problems = Problems::default();
    if !route.spec.hostnames.is_empty() {
        let what = "no host is known of what it takes";
        problems.unsupported(&FieldPath::at("spec").field("hostnames"), what, remedy);
    }
    reader.connections(&route.spec.rules, &[], &problems)
}

/// What a TLSRoute means. Without hosts it takes every connection that names one.
pub fn tls(route: &TlsRoute, backends: &dyn Backends) -> Routing {
    let reader = Reader::new(route, RouteKind::TlsRoute, backends);
    let mut problems = Problems::default();
    let at = FieldPath::at("spec").field("hostnames");
    for (index, host) in route.spec.hostnames.iter().enumerate() {
        if let Some(what) = server_name(host) {
            problems.unsupported(
                &at.index(index),
                what,
                "write `web.example.com` or `*.example.com`",
            );
        }
    }
    let hosts = route.spec.hostnames.iter().map(String::as_str);
    let every = route.spec.hostnames.is_empty().then_some("*");
    let matches: Vec<BytesMatch> = hosts.chain(every).map(named).collect();
    reader.connections(&route.spec.rules, &matches, &problems)
}

/// Checks a TCPRoute by itself, whatever it refers to.
pub(crate) fn check_tcp(route: &TcpRoute, issues: &mut ObjectIssues) {
    report(tcp(route, &Whatever), issues);
}

/// Checks a UDPRoute by itself, whatever it refers to.
pub(crate) fn check_udp(route: &UdpRoute, issues: &mut ObjectIssues) {
    report(udp(route, &Whatever), issues);
}

/// Checks a TLSRoute by itself, whatever it refers to.
pub(crate) fn check_tls(route: &TlsRoute, issues: &mut ObjectIssues) {
    report(tls(route, &Whatever), issues);
}

/// A connection whose handshake names this host.
pub(super) fn named(host: &str) -> BytesMatch {
    BytesMatch { server_name: Some(ServerNameMatch::new(host)), ..BytesMatch::default() }
}

/// What is wrong with a host in the place of a name in a TLS handshake, if anything is.
pub(super) fn server_name(host: &str) -> Option<String> {
    let name = host.strip_prefix("*.").unwrap_or(host).to_ascii_lowercase();
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match host {
        "*" => None,
        _ if is_address => Some(format!("`{host}` is an address; a handshake names hosts")),
        _ => names::dns_subdomain(&name),
    }
}

impl Reader<'_> {
    /// The rules of a route whose connections must be one of these.
    fn connections(
        &self,
        written: &[BytesRouteRule],
        matches: &[BytesMatch],
        of_route: &Problems,
    ) -> Routing {
        let nothing = [BytesRouteRule::default()];
        let written = if written.is_empty() { &nothing } else { written };
        let mut routing = Routing::default();
        for (index, rule) in written.iter().enumerate() {
            let spot = Spot { at: FieldPath::at("spec").field("rules").index(index), index };
            let mut found = Problems::default();
            found.found.extend(of_route.found.iter().cloned());
            self.readable(&mut found);
            if index > 0 {
                let what = "the first rule takes every connection, so this one takes none";
                found.unsupported(&spot.at, what, "remove it, or make a route of its own of it");
            }
            let rule = self.connection_rule(rule, matches, &spot, &mut found);
            routing.connections.push(Arc::new(rule));
            routing.problems.extend(found.of_rule(index));
        }
        routing
    }

    fn connection_rule(
        &self,
        rule: &BytesRouteRule,
        matches: &[BytesMatch],
        spot: &Spot,
        problems: &mut Problems,
    ) -> BytesRule {
        let at = spot.at.field("backendRefs");
        let backends = rule.backend_refs.iter().enumerate();
        let mut backends: Vec<BytesBackend> = backends
            .map(|(index, it)| self.connection_backend(it, &at.index(index), problems))
            .collect();
        if let Some(problem) = problems.found.iter().find(|it| !it.reason.is_of_reference()) {
            backends = refused(&format!("{}: {}", problem.at.as_str(), problem.what));
        }
        let index = u32::try_from(spot.index).unwrap_or(u32::MAX);
        let rule_name = rule.name.as_deref().map(Text::from);
        let origin = Origin { index, rule_name, ..self.origin.clone() };
        BytesRule { origin, matches: matches.to_vec(), backends }
    }

    fn connection_backend(
        &self,
        written: &BackendRef,
        at: &FieldPath,
        problems: &mut Problems,
    ) -> BytesBackend {
        if !written.filters.is_empty() {
            let what = "nothing of a connection can be changed";
            problems.unsupported(&at.field("filters"), what, "remove `filters`");
        }
        BytesBackend {
            weight: weight(written, at, problems),
            destination: self.lookup.destination(written, at, problems),
        }
    }
}

/// The backends of a rule whose connections are refused.
pub(super) fn refused(why: &str) -> Vec<BytesBackend> {
    vec![BytesBackend { weight: 1, destination: Destination::Invalid(why.into()) }]
}
