//! What the routes of a VirtualService mean for the requests and connections at one port of a
//! service.
//!
//! A route that is wrong answers 500 and keeps its place: what it was meant for never goes
//! elsewhere. A field that is right and not honoured is a remark.

mod bytes;
mod changed;
mod checks;

pub(crate) use self::checks::check_virtual_service;
pub use self::checks::remarks_at_ports;

use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::bytes::BytesRule;
use ambit_model::http::matching::{Match, NamedMatch, PathMatch, Pattern, ValueMatch};
use ambit_model::http::rule::{
    Abort, Action, Backend, Destination, Faults, Fraction, HeaderChanges, Mirror, Origin,
    PathChange, Redirect, RedirectPort, Retry, RetryOn, Rewrite, RouteKind, Rule, Timeouts,
};

use super::backends::{Backends, Known};
use super::{claims, delegates, lose};
use crate::FieldPath;
use crate::remarks::{Remark, Remarks};
use crate::virtual_service::{self as written, HttpMatch, HttpRoute, StringMatch, VirtualService};

/// The first pause before an attempt is made again: Envoy's.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);
/// Most further attempts.
const ATTEMPTS_MAX: i64 = 100;
/// What becomes of the requests for a destination that is not there.
const ANSWERED: &str = "of requests is answered with 500";
/// What becomes of the copies for one.
const NOT_COPIED: &str = "of copies is sent nowhere";
/// Begins the path of a redirect that replaces a prefix alone.
const PREFIX: &str = "%PREFIX()%";
/// What counts as failed where nothing is said: Istio's.
const DEFAULT_RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled";
/// The names of gRPC's statuses, by their numbers.
const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// What a VirtualService means at one port.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VirtualRouting {
    /// Its rules, in their order.
    pub rules: Vec<Arc<Rule>>,
    /// Its rules of connections that are no HTTP: `tls` before `tcp`.
    pub connections: Vec<Arc<BytesRule>>,
    /// What of it is wrong by itself, or is not honoured.
    pub remarks: Vec<Remark>,
    /// What it refers to and is not there.
    pub missing: Vec<Remark>,
}

/// What a VirtualService can refer to.
pub struct Around<'a> {
    /// Services.
    pub backends: &'a dyn Backends,
    /// VirtualServices without hosts, which are visible to this one, by namespace and name.
    pub delegates: &'a dyn Fn(&str, &str) -> Option<Arc<VirtualService>>,
}

/// What `service` means for requests at this port of a service; without one, what it means as far
/// as that does not depend on it.
pub fn virtual_service(
    service: &VirtualService,
    around: &Around<'_>,
    port: Option<u16>,
) -> VirtualRouting {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    let origin = Origin {
        kind: RouteKind::VirtualService,
        namespace: namespace.into(),
        name: metadata.name.as_deref().unwrap_or_default().into(),
        created_unix_s: created.unwrap_or_default(),
        index: 0,
        rule_name: None,
    };
    let mut reader = Reader {
        namespace,
        backends: around.backends,
        port,
        origin,
        rules: Vec::new(),
        connections: Vec::new(),
        remarks: Remarks::default(),
        missing: Remarks::default(),
    };
    let at = FieldPath::at("spec");
    if let Some(why) = &service.unreadable {
        let remedy = "use what this version knows";
        reader.remarks.wrong(&at, format!("it cannot be read: {why}"), remedy);
        reader.push(None, Vec::new(), Some("it cannot be read".to_owned()), None);
        let backends = super::bytes::refused("the VirtualService cannot be read");
        let origin = reader.origin.clone();
        reader.connections.push(Arc::new(BytesRule { origin, matches: Vec::new(), backends }));
    }
    for field in &service.spec.unknown {
        let what = "this version does not know it: it has no effect";
        reader.remarks.unhonoured(true, &at.field(field), what, "use what this version knows");
    }
    for (field, kind, routes) in
        [("tls", Kind::Tls, &service.spec.tls), ("tcp", Kind::Tcp, &service.spec.tcp)]
    {
        for (index, route) in routes.iter().enumerate() {
            reader.connections(route, kind, &at.field(field).index(index));
        }
    }
    for (index, route) in service.spec.http.iter().enumerate() {
        let at = at.field("http").index(index);
        match &route.delegate {
            None => reader.route(route, &at),
            Some(delegate) => reader.delegate(route, delegate, around, &at),
        }
    }
    let Reader { rules, connections, remarks, missing, .. } = reader;
    VirtualRouting { rules, connections, remarks: remarks.0, missing: missing.0 }
}

/// What a kind of routes of connections must or must not match by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By names in TLS handshakes, always.
    Tls,
    /// By anything but these.
    Tcp,
}

struct Reader<'a> {
    namespace: &'a str,
    backends: &'a dyn Backends,
    /// The service's port, if one is known.
    port: Option<u16>,
    origin: Origin,
    rules: Vec<Arc<Rule>>,
    connections: Vec<Arc<BytesRule>>,
    remarks: Remarks,
    missing: Remarks,
}

impl Reader<'_> {
    /// Puts the routes of a delegate in the place of a route.
    fn delegate(
        &mut self,
        root: &HttpRoute,
        name: &written::Delegate,
        around: &Around<'_>,
        at: &FieldPath,
    ) {
        let at = at.field("delegate");
        let namespace = name.namespace.as_deref().unwrap_or(self.namespace);
        if !root.route.is_empty() || root.redirect.is_some() || root.direct_response.is_some() {
            let what = "a route that delegates does nothing itself";
            self.remarks.wrong(&at, what, "remove `route`, `redirect` and `directResponse`");
        }
        let Some(delegate) = (around.delegates)(namespace, &name.name) else {
            let what = format!(
                "the VirtualService `{namespace}/{}` is not there, has hosts, or is not exported \
                 to `{}`: nothing routes by it",
                name.name, self.namespace
            );
            return self.missing.unhonoured(true, &at, what, "correct the name, or add it");
        };
        if let Some(why) = &delegate.unreadable {
            let unread = Some(format!("its delegate cannot be read: {why}"));
            let lost = HttpRoute { matches: root.matches.clone(), unread, ..HttpRoute::default() };
            return self.route(&lost, &at);
        }
        for (index, placed) in delegates::placed(root, &delegate.spec.http) {
            match placed {
                Ok(route) if route.delegate.is_none() => self.route(&route, &at),
                Ok(_) => {
                    let what = format!("its route {index} delegates again, and is left out");
                    self.missing.unhonoured(true, &at, what, "delegate once");
                }
                Err(()) => {
                    let what = format!(
                        "its route {index} matches what this route does not, and is left out"
                    );
                    self.missing.unhonoured(true, &at, what, "make its matches narrower");
                }
            }
        }
    }

    fn route(&mut self, route: &HttpRoute, at: &FieldPath) {
        let (before, missing_before) = (self.wrong(), self.missing.0.len());
        let mut matches = Vec::new();
        let mut is_elsewhere = !route.matches.is_empty();
        for (index, one) in route.matches.iter().enumerate() {
            let one = self.matching(one, &at.field("match").index(index));
            is_elsewhere &= one.is_none();
            matches.extend(one);
        }
        let rule = match &route.unread {
            None => self.rule(route, at),
            Some(why) => {
                let what = format!("it cannot be read: {why}");
                self.remarks.wrong(at, what, "use what this version knows");
                self.nothing()
            }
        };
        let lost = (self.wrong() > before).then(|| {
            let said = self.remarks.0.iter().rfind(|it| it.is_wrong);
            said.map(|it| format!("{}: {}", it.at.as_str(), it.what)).unwrap_or_default()
        });
        match is_elsewhere {
            false => self.push(route.name.as_deref(), matches, lost, Some(rule)),
            // Where it does not hold, nothing is missing for it.
            true => self.missing.0.truncate(missing_before),
        }
    }

    fn wrong(&self) -> usize {
        self.remarks.0.iter().filter(|it| it.is_wrong).count()
    }

    /// Adds a rule; one that is lost answers 500.
    fn push(
        &mut self,
        name: Option<&str>,
        matches: Vec<Match>,
        lost: Option<String>,
        rule: Option<Rule>,
    ) {
        let index = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
        let origin = Origin { index, rule_name: name.map(Text::from), ..self.origin.clone() };
        let mut rule = Rule { origin, matches, ..rule.unwrap_or_else(|| self.nothing()) };
        if let Some(why) = lost {
            rule = Rule { origin: rule.origin, matches: rule.matches, ..self.nothing() };
            lose(&mut rule, &why);
        }
        self.rules.push(Arc::new(rule));
    }

    fn nothing(&self) -> Rule {
        Rule {
            origin: self.origin.clone(),
            matches: Vec::new(),
            action: Action::Forward { backends: Vec::new(), rewrite: Rewrite::default() },
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            mirrors: Vec::new(),
            cors: None,
            faults: Faults::default(),
            timeouts: Timeouts::default(),
            retry: None,
            session: None,
        }
    }

    fn rule(&mut self, route: &HttpRoute, at: &FieldPath) -> Rule {
        let (request_headers, response_headers, host) =
            self.headers(route.headers.as_ref(), &at.field("headers"));
        let retries = route.retries.as_ref();
        let at_retries = at.field("retries");
        // Without retries it says nothing, as in Istio.
        let tries_again = retries.filter(|it| it.attempts != 0);
        let per_try = tries_again.and_then(|it| it.per_try_timeout.as_deref());
        let limit = |it: Duration| Some(it).filter(|it| !it.is_zero());
        let request = self.remarks.duration(route.timeout.as_deref(), &at.field("timeout"));
        let per_try = self.remarks.duration(per_try, &at_retries.field("perTryTimeout"));
        let (request, response_head) = (request.and_then(limit), per_try.and_then(limit));
        Rule {
            action: self.action(route, host, at),
            request_headers,
            response_headers,
            mirrors: self.mirrors(route, at),
            cors: route.cors_policy.as_ref().map(|it| self.cors(it, &at.field("corsPolicy"))),
            faults: self.faults(route.fault.as_ref(), &at.field("fault")),
            timeouts: Timeouts { request, backend: None, response_head },
            retry: retries.map(|it| self.retry(it, &at_retries)),
            ..self.nothing()
        }
    }

    fn action(&mut self, route: &HttpRoute, host: Option<Text>, at: &FieldPath) -> Action {
        let ways =
            [!route.route.is_empty(), route.redirect.is_some(), route.direct_response.is_some()];
        if ways.iter().filter(|is_there| **is_there).count() != 1 {
            let what = "a route has one of `route`, `redirect`, `directResponse` and `delegate`";
            self.remarks.wrong(at, what, "write exactly one");
        }
        if let Some(redirect) = &route.redirect {
            return Action::Redirect(self.redirect(redirect, &at.field("redirect")));
        }
        if let Some(response) = &route.direct_response {
            return self.respond(response, &at.field("directResponse"));
        }
        let is_alone = route.route.len() == 1;
        let backends = route.route.iter().enumerate();
        let backends = backends
            .map(|(index, it)| self.backend(it, is_alone, &at.field("route").index(index)))
            .collect::<Vec<_>>();
        if !backends.is_empty() && backends.iter().all(|it| it.weight == 0) {
            self.remarks.wrong(&at.field("route"), "no destination has a weight", "add weights");
        }
        let mut rewrite = self.rewrite(route.rewrite.as_ref(), &at.field("rewrite"));
        rewrite.host = rewrite.host.or(host);
        Action::Forward { backends, rewrite }
    }

    fn backend(&mut self, it: &written::Weighted, is_alone: bool, at: &FieldPath) -> Backend {
        let (request_headers, response_headers, host) =
            self.headers(it.headers.as_ref(), &at.field("headers"));
        if host.is_some() {
            let what = "the host of requests is changed for all destinations of a route alike";
            self.remarks.wrong(&at.field("headers"), what, "use `rewrite.authority` of the route");
        }
        let weight = self.remarks.number(it.weight, &at.field("weight"));
        let destination = match &it.destination {
            Some(destination) => self.destination(destination, &at.field("destination"), ANSWERED),
            None => {
                let at = at.field("destination");
                self.remarks.wrong(&at, "no destination is named", "add it");
                Destination::Invalid("no destination is named".into())
            }
        };
        // The weight of a destination without another one has no meaning.
        let weight = if is_alone { 1 } else { weight.unwrap_or_default() };
        Backend { weight, destination, request_headers, response_headers }
    }

    /// What a destination names: a name without dots is a Service of the own namespace. `lost` says
    /// what becomes of its share if there is none.
    fn destination(
        &mut self,
        written: &written::Destination,
        at: &FieldPath,
        lost: &str,
    ) -> Destination {
        let host = written.host.as_str();
        let known = match host.contains('.') {
            true => self.backends.host(self.namespace, host),
            false => self.backends.service(self.namespace, host),
        };
        let port = written.port.as_ref().map(|it| it.number);
        let at_port = at.field("port").field("number");
        let port = match port.map(u16::try_from) {
            None | Some(Ok(0)) => None,
            Some(Ok(port)) => Some(port),
            Some(Err(_)) => {
                let what = format!("{} is no port", port.unwrap_or_default());
                self.remarks.wrong(&at_port, what, "use 1 to 65535");
                None
            }
        };
        let Some(Known { name, ports, .. }) = known else {
            let what = format!(
                "no Service and no ServiceEntry that `{}` sees has the host `{host}`: its share \
                 {lost}",
                self.namespace
            );
            let remedy = "correct the name, or add what it names";
            self.missing.unhonoured(true, &at.field("host"), &what, remedy);
            return Destination::Invalid(what.into());
        };
        let port = port.or(match &ports[..] {
            [only] => Some(only.number),
            _ => self.port,
        });
        // Of the port of a service that is not known it cannot be said that it is not there.
        let port = port.or(ports.first().map(|it| it.number)).unwrap_or_default();
        if !ports.is_empty() && !ports.iter().any(|it| it.number == port) {
            let numbers: Vec<String> = ports.iter().map(|it| it.number.to_string()).collect();
            let what = format!("`{host}` has no port {port}: its share {lost}");
            let remedy = format!("use {}", numbers.join(" or "));
            self.missing.unhonoured(true, at, &what, remedy);
            return Destination::Invalid(what.into());
        }
        let subset = written.subset.as_deref().filter(|it| !it.is_empty());
        if let Some(subset) = subset.filter(|it| !self.backends.has_subset(&name, it)) {
            let what = format!(
                "no DestinationRule of `{host}` has the subset `{subset}`: its share \
                                has no endpoint"
            );
            let remedy = "correct the name, or add the subset to a DestinationRule";
            self.missing.unhonoured(true, &at.field("subset"), what, remedy);
        }
        Destination::Service { name, port, subset: subset.map(Text::from) }
    }

    fn respond(&mut self, written: &written::DirectResponse, at: &FieldPath) -> Action {
        let body = written.body.as_ref();
        let body = match body.map(|it| (it.string.as_deref(), it.bytes.as_deref())) {
            None | Some((None, None)) => "",
            Some((Some(text), None)) => text,
            Some(_) => {
                let what = "only a body as `string` can be answered";
                self.remarks.wrong(&at.field("body"), what, "use `string`");
                ""
            }
        };
        let status = self.status(written.status, 200..=599, &at.field("status"));
        Action::Respond { status, body: body.into() }
    }

    fn status(&mut self, status: i64, range: std::ops::RangeInclusive<u16>, at: &FieldPath) -> u16 {
        let converted = u16::try_from(status).ok().filter(|it| range.contains(it));
        converted.unwrap_or_else(|| {
            let (from, to) = (range.start(), range.end());
            self.remarks.wrong(
                at,
                format!("{status} cannot be answered"),
                format!("use {from} to {to}"),
            );
            500
        })
    }

    fn redirect(&mut self, written: &written::Redirect, at: &FieldPath) -> Redirect {
        let status = written.redirect_code.unwrap_or(301);
        let at_code = at.field("redirectCode");
        let status = match status {
            301 | 302 | 303 | 307 | 308 => self.status(status, 301..=308, &at_code),
            other => {
                let what = format!("{other} redirects nobody");
                self.remarks.wrong(&at_code, what, "use 301, 302, 303, 307 or 308");
                302
            }
        };
        let port = match (written.port, written.derive_port.as_deref()) {
            (None, None) => RedirectPort::OfAuthority,
            (None, Some("FROM_PROTOCOL_DEFAULT")) => RedirectPort::OfScheme,
            (None, Some("FROM_REQUEST_PORT")) => RedirectPort::OfListener,
            (Some(port), None) if u16::try_from(port).is_ok_and(|port| port > 0) => {
                RedirectPort::Given(u16::try_from(port).unwrap_or_default())
            }
            _ => {
                let what = "the port is no port, or is given in two ways";
                let remedy = "use `port`, 1 to 65535, or `derivePort`";
                self.remarks.wrong(&at.field("port"), what, remedy);
                RedirectPort::OfAuthority
            }
        };
        if written.uri.is_some() && written.prefix_rewrite.is_some() {
            let what = "`uri` and `prefixRewrite` exclude each other";
            self.remarks.wrong(at, what, "remove one of the two");
        }
        let path = written.uri.as_deref().map(|uri| match uri.strip_prefix(PREFIX) {
            Some(rest) => PathChange::Prefix(rest.into()),
            None => PathChange::Full(uri.into()),
        });
        let prefix = written.prefix_rewrite.as_deref().map(|it| PathChange::Prefix(it.into()));
        Redirect {
            scheme: written.scheme.as_deref().map(Text::from),
            host: written.authority.as_deref().map(Text::from),
            port,
            path: path.or(prefix),
            status,
        }
    }

    fn rewrite(&mut self, written: Option<&written::Rewrite>, at: &FieldPath) -> Rewrite {
        let Some(written) = written else { return Rewrite::default() };
        let host = written.authority.as_deref().map(Text::from);
        let uri = written.uri.as_deref();
        let path = match (uri, &written.uri_regex_rewrite) {
            (None, None) => None,
            (Some(uri), None) => Some(PathChange::Prefix(uri.into())),
            (None, Some(regex)) => {
                let at = at.field("uriRegexRewrite");
                let pattern = self.pattern(&regex.pattern, &at.field("match"));
                let substitution = substitution(&regex.rewrite).into();
                Some(PathChange::Regex { pattern, substitution })
            }
            (Some(_), Some(_)) => {
                let what = "`uri` and `uriRegexRewrite` exclude each other";
                self.remarks.wrong(at, what, "remove one of the two");
                None
            }
        };
        Rewrite { host, path }
    }

    fn pattern(&mut self, source: &str, at: &FieldPath) -> Pattern {
        Pattern::new(source).unwrap_or_else(|error| {
            self.remarks.wrong(at, error.to_string(), "correct the expression");
            Pattern::new("").expect("it is an expression")
        })
    }

    fn mirrors(&mut self, route: &HttpRoute, at: &FieldPath) -> Vec<Mirror> {
        let mut mirrors = Vec::new();
        if let Some(destination) = &route.mirror {
            let percentage = route.mirror_percentage;
            let older = route.mirror_percent.map(|it| written::Percent { value: it as f64 });
            let at_percentage = at.field("mirrorPercentage");
            let fraction = percentage.or(older).map(|it| self.fraction(it, &at_percentage));
            let destination = self.destination(destination, &at.field("mirror"), NOT_COPIED);
            mirrors.push(Mirror { destination, fraction: fraction.unwrap_or(Fraction::ALL) });
        }
        for (index, mirror) in route.mirrors.iter().enumerate() {
            let at = at.field("mirrors").index(index);
            let Some(destination) = &mirror.destination else {
                self.remarks.wrong(&at.field("destination"), "nobody is named", "add it");
                continue;
            };
            let at_percentage = at.field("percentage");
            let fraction = mirror.percentage.map(|it| self.fraction(it, &at_percentage));
            let destination = self.destination(destination, &at.field("destination"), NOT_COPIED);
            mirrors.push(Mirror { destination, fraction: fraction.unwrap_or(Fraction::ALL) });
        }
        mirrors
    }

    fn fraction(&mut self, percent: written::Percent, at: &FieldPath) -> Fraction {
        let value = percent.value;
        if !(0.0..=100.0).contains(&value) {
            self.remarks.wrong(at, format!("{value} is no percentage"), "use 0.0 to 100.0");
        }
        // At most a million, and whole.
        let millionths = format!("{:.0}", value.clamp(0.0, 100.0) * 10_000.0);
        Fraction { numerator: millionths.parse().unwrap_or_default(), denominator: 1_000_000 }
    }

    fn faults(&mut self, written: Option<&written::Fault>, at: &FieldPath) -> Faults {
        let Some(written) = written else { return Faults::default() };
        let delay = written.delay.as_ref().and_then(|it| self.delay(it, &at.field("delay")));
        let abort = written.abort.as_ref().and_then(|it| self.abort(it, &at.field("abort")));
        Faults { delay, abort }
    }

    fn delay(&mut self, written: &written::Delay, at: &FieldPath) -> Option<(Fraction, Duration)> {
        let older = written.percent.map(|it| written::Percent { value: it as f64 });
        let percent = written.percentage.or(older).unwrap_or_default();
        let fraction = self.fraction(percent, &at.field("percentage"));
        let at_fixed = at.field("fixedDelay");
        if written.exponential_delay.is_some() || written.fixed_delay.is_none() {
            let what = "a delay is always as long as `fixedDelay` says";
            self.remarks.wrong(&at_fixed, what, "use `fixedDelay` alone");
        }
        let delay = self.remarks.duration(written.fixed_delay.as_deref(), &at_fixed)?;
        Some((fraction, delay))
    }

    fn abort(&mut self, written: &written::Abort, at: &FieldPath) -> Option<(Fraction, Abort)> {
        let percent = written.percentage.unwrap_or_default();
        let fraction = self.fraction(percent, &at.field("percentage"));
        let abort = match (written.http_status, written.grpc_status.as_deref()) {
            (Some(status), None) => {
                Abort::Http(self.status(status, 200..=599, &at.field("httpStatus")))
            }
            (None, Some(status)) => {
                let number = GRPC_STATUSES.iter().position(|name| *name == status);
                let number = number.and_then(|it| u32::try_from(it).ok());
                let number = number.or_else(|| status.parse().ok().filter(|it| *it <= 16));
                let Some(number) = number else {
                    let what = format!("`{status}` is no status of gRPC");
                    let remedy = "write its name, as in UNAVAILABLE";
                    self.remarks.wrong(&at.field("grpcStatus"), what, remedy);
                    return None;
                };
                Abort::Grpc(number)
            }
            _ => {
                let what = "an abort has either `httpStatus` or `grpcStatus`";
                self.remarks.wrong(at, what, "write exactly one");
                return None;
            }
        };
        Some((fraction, abort))
    }

    fn retry(&mut self, written: &written::Retries, at: &FieldPath) -> Retry {
        let attempts = match written.attempts {
            attempts @ 0..=ATTEMPTS_MAX => u32::try_from(attempts).unwrap_or_default(),
            attempts => {
                let what = format!("{attempts} attempts cannot be made");
                let remedy = format!("use 0 to {ATTEMPTS_MAX}");
                self.remarks.wrong(&at.field("attempts"), what, remedy);
                0
            }
        };
        let what = "another endpoint is always tried first, however far";
        for (is_there, field) in [
            (written.retry_remote_localities == Some(false), "retryRemoteLocalities"),
            (written.retry_ignore_previous_hosts == Some(false), "retryIgnorePreviousHosts"),
        ] {
            self.remarks.unhonoured(is_there, &at.field(field), what, "remove it");
        }
        let at_on = at.field("retryOn");
        let asked = written.retry_on.as_deref().filter(|it| !it.is_empty());
        let mut on = Vec::new();
        for word in asked.unwrap_or(DEFAULT_RETRY_ON).split(',').map(str::trim) {
            match retry_on(word) {
                Some(more) => on.extend_from_slice(more),
                None => match word.parse::<u16>() {
                    Ok(code @ 100..=599) => on.push(RetryOn::Status(code)),
                    _ => {
                        let what = format!("`{word}` is no reason to try again that is known");
                        self.remarks.unhonoured(true, &at_on, what, "remove it");
                    }
                },
            }
        }
        let backoff = self.remarks.duration(written.backoff.as_deref(), &at.field("backoff"));
        let backoff = backoff.filter(|it| !it.is_zero()).unwrap_or(DEFAULT_BACKOFF);
        // Who says when asks for it; Istio's own reasons alone must not repeat what has an effect.
        Retry { attempts, on, backoff, is_for_all_methods: asked.is_some() }
    }

    /// Whether a match for this port is for the one that is read for.
    fn is_at(&self, port: Option<i64>) -> bool {
        let here = self.port.map(i64::from);
        port.is_none_or(|port| port == 0 || here.is_none_or(|here| port == here))
    }

    /// A match as used; `None` where it is not for requests of the mesh at this port.
    fn matching(&mut self, written: &HttpMatch, at: &FieldPath) -> Option<Match> {
        let at_labels = at.field("sourceLabels");
        let has_labels = !written.source_labels.is_empty();
        let what = "a waypoint does not know the labels of clients: this match never holds";
        self.remarks.unhonoured(has_labels, &at_labels, what, "use `sourceNamespace`");
        let what = "metrics have no names of their own";
        let has_prefix = written.stat_prefix.is_some();
        self.remarks.unhonoured(has_prefix, &at.field("statPrefix"), what, "remove it");
        let path = written.uri.as_ref().and_then(|uri| {
            let ignores_case = written.ignore_uri_case.unwrap_or_default();
            self.path(uri, ignores_case, &at.field("uri"))
        });
        let is_here = self.is_at(written.port);
        let mut named = |all: &std::collections::BTreeMap<String, StringMatch>,
                         field: &str,
                         is_inverted: bool| {
            let all = all.iter().filter(|(name, _)| claims::keys(name).is_none());
            let named = all.map(|(name, value)| {
                let at = at.field(field).field(name);
                let value = self.value(value, &at);
                let name = match field {
                    "queryParams" => name.as_str().into(),
                    _ => name.to_ascii_lowercase().into(),
                };
                NamedMatch { name, value, is_inverted }
            });
            named.collect::<Vec<_>>()
        };
        let mut headers = named(&written.headers, "headers", false);
        headers.extend(named(&written.without_headers, "withoutHeaders", true));
        let parameters = named(&written.query_params, "queryParams", false);
        let (claims, wrong) = claims::compared(written, at, |it, at| self.value(it, at));
        for (at, what) in wrong {
            self.remarks.wrong(&at, what, "correct the name");
        }
        let mut value = |it: &Option<StringMatch>, field: &str| {
            let it = it.as_ref()?;
            Some(self.value(it, &at.field(field)))
        };
        let matching = Match {
            path,
            method: value(&written.method, "method"),
            scheme: value(&written.scheme, "scheme"),
            authority: value(&written.authority, "authority"),
            headers,
            parameters,
            client_namespace: written.source_namespace.as_deref().map(Text::from),
            claims,
        };
        (is_here && !has_labels && written.is_of_mesh()).then_some(matching)
    }

    fn path(&mut self, uri: &StringMatch, ignores_case: bool, at: &FieldPath) -> Option<PathMatch> {
        Some(match (self.value(uri, at), ignores_case) {
            (ValueMatch::Exact(text), false) => PathMatch::Exact(text),
            (ValueMatch::Exact(text) | ValueMatch::ExactNoCase(text), _) => {
                PathMatch::ExactNoCase(text)
            }
            (ValueMatch::Prefix(text), false) => PathMatch::Prefix(text),
            (ValueMatch::Prefix(text), true) => PathMatch::PrefixNoCase(text),
            (ValueMatch::Regex(pattern), _) => PathMatch::Regex(pattern),
            (ValueMatch::Present, _) => return None,
        })
    }

    fn value(&mut self, written: &StringMatch, at: &FieldPath) -> ValueMatch {
        match (&written.exact, &written.prefix, &written.regex) {
            (Some(text), None, None) => ValueMatch::Exact(text.as_str().into()),
            (None, Some(text), None) => ValueMatch::Prefix(text.as_str().into()),
            // Not an expression, but Istio's word for whatever is there.
            (None, None, Some(regex)) if regex == "*" => ValueMatch::Present,
            (None, None, Some(regex)) => ValueMatch::Regex(self.pattern(regex, &at.field("regex"))),
            (None, None, None) => ValueMatch::Present,
            _ => {
                let what = "`exact`, `prefix` and `regex` exclude each other";
                self.remarks.wrong(at, what, "write one of them");
                ValueMatch::Present
            }
        }
    }
}

/// What counts as failed, by Envoy's word for it.
fn retry_on(word: &str) -> Option<&'static [RetryOn]> {
    use RetryOn::{ConnectFailure, GatewayError, Grpc, RefusedStream, Reset, ServerError, Status};
    Some(match word {
        "5xx" => &[ServerError, Reset, ConnectFailure, RefusedStream],
        "gateway-error" => &[GatewayError],
        "reset" => &[Reset, ConnectFailure, RefusedStream],
        "reset-before-request" | "connect-failure" => &[ConnectFailure],
        "refused-stream" => &[RefusedStream],
        "retriable-4xx" => &[Status(409)],
        "cancelled" => &[Grpc(1)],
        "deadline-exceeded" => &[Grpc(4)],
        "resource-exhausted" => &[Grpc(8)],
        "internal" => &[Grpc(13)],
        "unavailable" => &[Grpc(14)],
        // It says that the statuses are listed, which they are.
        "retriable-status-codes" => &[],
        _ => return None,
    })
}

/// A substitution of RE2, where `\1` is the first group, as Rust writes it.
fn substitution(text: &str) -> String {
    let mut written = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '$' => written.push_str("$$"),
            '\\' => match letters.next() {
                Some(digit @ '0'..='9') => written.push_str(&format!("${{{digit}}}")),
                Some(other) => written.push(other),
                None => {}
            },
            other => written.push(other),
        }
    }
    written
}

#[cfg(test)]
mod tests;
