//! What routes of the Gateway API mean: the rules that a proxy follows, and what of a route cannot
//! be honoured.
//!
//! A rule that cannot be honoured as written keeps its place and answers 500: what it was meant for
//! never goes elsewhere. A backend that does not exist, or may not be used, takes its share of a
//! rule with it. Every such thing is a [`Problem`] with a field and a remedy: `apply` refuses what
//! a route has wrong by itself, and in a cluster the route's conditions say so. Nothing here may
//! give a route a meaning that it does not have.

mod backends;
mod bytes;
mod claims;
mod conditions;
mod delegates;
mod filters;
mod limits;
mod matches;
mod parents;
mod problem;
mod protocols;
mod virtual_services;

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::bytes::BytesRule;
use ambit_model::http::matching::{Match, PathMatch};
use ambit_model::http::rule::{
    Action, Backend, Destination, Faults, HeaderChanges, Origin, Retry, Rewrite, RouteKind, Rule,
    Session, Timeouts,
};

use self::backends::Lookup;
use self::filters::{Filters, Place};
use self::problem::{Problems, Reason};
use crate::istio::IstioObject;
use crate::remarks::Remarks;
use crate::routes::{
    BackendRef, GrpcRoute, GrpcRouteRule, HttpRoute, HttpRouteRule, RouteFilter, RouteSpec,
};
use crate::{FieldPath, ObjectIssues, routes};

pub(crate) use self::backends::Whatever;
pub use self::backends::{Backends, Known, grants};
pub(crate) use self::bytes::{check_tcp, check_tls, check_udp};
pub use self::bytes::{tcp, tls, udp};
pub use self::conditions::{conditions, not_accepted, without_parent};
pub use self::parents::{
    Parent, ParentKind, Port, entry_ports, parents, service_datagram_ports, service_ports,
};
pub use self::problem::Problem;
pub use self::protocols::{entry_protocols, service_protocols};
pub(crate) use self::virtual_services::check_virtual_service;
pub use self::virtual_services::{Around, VirtualRouting, remarks_at_ports, virtual_service};

/// Most that a backend may weigh.
const WEIGHT_MAX: i64 = 1_000_000;

/// What a route means.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Routing {
    /// Its rules, in their order; at least one if it is a route of requests.
    pub rules: Vec<Arc<Rule>>,
    /// Its rules, in their order; at least one if it is a route of connections.
    pub connections: Vec<Arc<BytesRule>>,
    /// What of it cannot be honoured.
    pub problems: Vec<Problem>,
}

impl Routing {
    /// How many rules it has.
    pub fn rule_count(&self) -> usize {
        self.rules.len() + self.connections.len()
    }
}

/// What an HTTPRoute means.
pub fn http(route: &HttpRoute, backends: &dyn Backends) -> Routing {
    let reader = Reader::new(route, RouteKind::HttpRoute, backends);
    let everything = [HttpRouteRule::default()];
    reader.route(or_everything(&route.spec.rules, &everything), Reader::http)
}

/// What a GRPCRoute means.
pub fn grpc(route: &GrpcRoute, backends: &dyn Backends) -> Routing {
    let reader = Reader::new(route, RouteKind::GrpcRoute, backends);
    let everything = [GrpcRouteRule::default()];
    reader.route(or_everything(&route.spec.rules, &everything), Reader::grpc)
}

/// A route without rules has one that matches everything and has no backend.
fn or_everything<'a, R>(rules: &'a [R], everything: &'a [R]) -> &'a [R] {
    if rules.is_empty() { everything } else { rules }
}

/// Checks an HTTPRoute by itself, whatever it refers to.
pub(crate) fn check_http(route: &HttpRoute, issues: &mut ObjectIssues) {
    report(http(route, &Whatever), issues);
}

/// Checks a GRPCRoute by itself, whatever it refers to.
pub(crate) fn check_grpc(route: &GrpcRoute, issues: &mut ObjectIssues) {
    report(grpc(route, &Whatever), issues);
}

/// What a path must be, as other resources write it like routes.
pub(crate) fn path(
    written: &routes::PathMatch,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> PathMatch {
    let mut problems = Problems::default();
    let path = matches::path(written, at, &mut problems);
    for problem in problems.found {
        remarks.wrong(&problem.at, problem.what, problem.remedy);
    }
    path
}

fn report(routing: Routing, issues: &mut ObjectIssues) {
    for problem in routing.problems {
        issues.error(&problem.at, problem.what, problem.remedy);
    }
}

/// Reads the rules of one route.
struct Reader<'a> {
    lookup: Lookup<'a>,
    origin: Origin,
    /// Why no rule of it can be honoured.
    unreadable: Option<&'a str>,
}

/// Where a rule is written.
struct Spot {
    at: FieldPath,
    index: usize,
}

/// What HTTPRoutes and GRPCRoutes write alike in a rule, and what the matches and limits of each
/// came to.
struct Parts<'a> {
    name: Option<&'a str>,
    matches: Vec<Match>,
    has_prefix: bool,
    filters: &'a [RouteFilter],
    backends: &'a [BackendRef],
    timeouts: Timeouts,
    retry: Option<Retry>,
    session: Option<Session>,
}

impl<'a> Reader<'a> {
    fn new<R: Default>(
        route: &'a IstioObject<RouteSpec<R>>,
        kind: RouteKind,
        backends: &'a dyn Backends,
    ) -> Self {
        let metadata = &route.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
        let origin = Origin {
            kind,
            namespace: namespace.into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
            created_unix_s: created.unwrap_or_default(),
            index: 0,
            rule_name: None,
        };
        let parents = parents(&route.spec, namespace).collect();
        let lookup = Lookup { kind, namespace, parents, backends };
        Self { lookup, origin, unreadable: route.unreadable.as_deref() }
    }

    fn route<R>(
        &self,
        written: &[R],
        parts: impl for<'r> Fn(&Self, &'r R, &Spot, &mut Problems) -> Parts<'r>,
    ) -> Routing {
        let (mut rules, mut problems) = (Vec::new(), Vec::new());
        for (index, rule) in written.iter().enumerate() {
            let spot = Spot { at: FieldPath::at("spec").field("rules").index(index), index };
            let mut found = Problems::default();
            self.readable(&mut found);
            let parts = parts(self, rule, &spot, &mut found);
            rules.push(Arc::new(self.rule(parts, &spot, &mut found)));
            problems.extend(found.of_rule(index));
        }
        Routing { rules, problems, ..Routing::default() }
    }

    /// Notes why nothing of the route can be honoured, if it cannot be read.
    fn readable(&self, problems: &mut Problems) {
        if let Some(why) = self.unreadable {
            let what = format!("the route cannot be read: {why}");
            problems.unsupported(&FieldPath::at("spec"), what, "use what this version knows");
        }
    }

    fn http<'r>(&self, rule: &'r HttpRouteRule, spot: &Spot, problems: &mut Problems) -> Parts<'r> {
        let (at, own_name) = (&spot.at, self.session_name(spot));
        let at_matches = at.field("matches");
        let matches = rule.matches.iter().enumerate();
        let matches =
            matches.map(|(index, it)| matches::http(it, &at_matches.index(index), problems));
        let matches = matches.collect();
        let at_session = at.field("sessionPersistence");
        let persistence = rule.session_persistence.as_ref();
        Parts {
            name: rule.name.as_deref(),
            matches,
            has_prefix: rule.matches.iter().all(matches::is_of_prefix),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: limits::timeouts(rule.timeouts.as_ref(), &at.field("timeouts"), problems),
            retry: limits::retry(rule.retry.as_ref(), &at.field("retry"), problems),
            session: limits::session(persistence, &own_name, &at_session, problems),
        }
    }

    fn grpc<'r>(&self, rule: &'r GrpcRouteRule, spot: &Spot, problems: &mut Problems) -> Parts<'r> {
        let (at, own_name) = (&spot.at, self.session_name(spot));
        let at_matches = at.field("matches");
        let matches = rule.matches.iter().enumerate();
        let matches =
            matches.map(|(index, it)| matches::grpc(it, &at_matches.index(index), problems));
        let matches = matches.collect();
        let at_session = at.field("sessionPersistence");
        let persistence = rule.session_persistence.as_ref();
        Parts {
            name: rule.name.as_deref(),
            matches,
            has_prefix: false,
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: Timeouts::default(),
            retry: None,
            session: limits::session(persistence, &own_name, &at_session, problems),
        }
    }

    /// The name of a rule's session that the route does not name. It must stay the same, and be
    /// another than those of other rules.
    fn session_name(&self, spot: &Spot) -> String {
        let Origin { namespace, name, .. } = &self.origin;
        format!("ambit-session-{namespace}-{name}-{}", spot.index)
    }

    fn rule(&self, parts: Parts<'_>, spot: &Spot, problems: &mut Problems) -> Rule {
        let at = &spot.at;
        let (at_filters, at_backends) = (at.field("filters"), at.field("backendRefs"));
        let has_prefix = parts.has_prefix;
        let place = Place { lookup: &self.lookup, is_of_backend: false, has_prefix };
        let filters = filters::read(parts.filters, &place, &at_filters, problems);
        if filters.redirect.is_some() && !parts.backends.is_empty() {
            let what = "a request that is redirected goes to no backend";
            let remedy = "remove the redirect or the backends";
            problems.add(Reason::IncompatibleFilters, &at_filters, what, remedy);
        }
        let backends = parts.backends.iter().enumerate();
        let backends = backends
            .map(|(index, it)| self.backend(it, &at_backends.index(index), problems))
            .collect();
        let mut rule = Rule {
            origin: Origin {
                index: u32::try_from(spot.index).unwrap_or(u32::MAX),
                rule_name: parts.name.map(Text::from),
                ..self.origin.clone()
            },
            matches: parts.matches,
            action: Action::Forward { backends, rewrite: Rewrite::default() },
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            mirrors: Vec::new(),
            cors: None,
            faults: Faults::default(),
            timeouts: parts.timeouts,
            retry: parts.retry,
            session: parts.session,
        };
        match problems.found.iter().find(|it| !it.reason.is_of_reference()) {
            Some(problem) => lose(&mut rule, &format!("{}: {}", problem.at.as_str(), problem.what)),
            None => fill(&mut rule, filters),
        }
        rule
    }

    fn backend(&self, written: &BackendRef, at: &FieldPath, problems: &mut Problems) -> Backend {
        let place = Place { lookup: &self.lookup, is_of_backend: true, has_prefix: false };
        let filters = filters::read(&written.filters, &place, &at.field("filters"), problems);
        Backend {
            weight: weight(written, at, problems),
            destination: self.lookup.destination(written, at, problems),
            request_headers: filters.request_headers,
            response_headers: filters.response_headers,
        }
    }
}

/// The weight of a backend; one that is none is noted.
fn weight(written: &BackendRef, at: &FieldPath, problems: &mut Problems) -> u32 {
    let weight = written.weight.unwrap_or(1);
    if !(0..=WEIGHT_MAX).contains(&weight) {
        let what = format!("{weight} is no weight");
        problems.unsupported(&at.field("weight"), what, format!("use 0 to {WEIGHT_MAX}"));
    }
    u32::try_from(weight).unwrap_or_default()
}

fn fill(rule: &mut Rule, filters: Filters) {
    rule.request_headers = filters.request_headers;
    rule.response_headers = filters.response_headers;
    rule.mirrors = filters.mirrors;
    rule.cors = filters.cors;
    if let Some(redirect) = filters.redirect {
        rule.action = Action::Redirect(redirect);
    } else if let Action::Forward { rewrite, .. } = &mut rule.action {
        *rewrite = filters.rewrite.unwrap_or_default();
    }
}

/// Makes a rule answer 500, and do nothing else.
fn lose(rule: &mut Rule, why: &str) {
    let invalid = Backend {
        weight: 1,
        destination: Destination::Invalid(why.into()),
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
    };
    rule.action = Action::Forward { backends: vec![invalid], rewrite: Rewrite::default() };
    (rule.timeouts, rule.retry, rule.session) = (Timeouts::default(), None, None);
}

#[cfg(test)]
mod tests;
