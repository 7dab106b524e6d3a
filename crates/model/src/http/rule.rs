//! What a rule does with a request that it matches.
//!
//! A rule is the common form of HTTPRoute, GRPCRoute and VirtualService, as used: every field is
//! set, so a proxy needs no defaults.

use std::time::Duration;

use crate::Text;
use crate::http::head::RequestHead;
use crate::http::matching::{Match, Pattern, ValueMatch};
use crate::names::ServiceName;

/// One rule of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where it is written.
    pub origin: Origin,
    /// Alternatives; none matches every request.
    pub matches: Vec<Match>,
    /// What becomes of the request.
    pub action: Action,
    /// Changes of the request's fields.
    pub request_headers: HeaderChanges,
    /// Changes of the response's fields.
    pub response_headers: HeaderChanges,
    /// Who else gets a copy; nobody waits for what they answer.
    pub mirrors: Vec<Mirror>,
    /// How requests of web pages of other origins are answered.
    pub cors: Option<Cors>,
    /// Faults that are made on purpose.
    pub faults: Faults,
    /// How long a request may take.
    pub timeouts: Timeouts,
    /// When a failed attempt is made again.
    pub retry: Option<Retry>,
    /// What keeps the requests of one client with one endpoint.
    pub session: Option<Session>,
}

impl Rule {
    /// The services that it sends requests or copies to; one may come several times.
    pub fn destinations(&self) -> impl Iterator<Item = &ServiceName> {
        let backends = match &self.action {
            Action::Forward { backends, .. } => &backends[..],
            Action::Redirect(_) | Action::Respond { .. } => &[],
        };
        let backends = backends.iter().map(|it| &it.destination);
        let all = backends.chain(self.mirrors.iter().map(|it| &it.destination));
        all.filter_map(Destination::service)
    }
}

/// Where a rule is written, and what decides its place among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Of which kind the route is.
    pub kind: RouteKind,
    /// The route's namespace.
    pub namespace: Text,
    /// The route's name.
    pub name: Text,
    /// When the route was created, in seconds since 1970.
    pub created_unix_s: i64,
    /// The rule's index in its route, from 0.
    pub index: u32,
    /// The rule's own name, where it has one.
    pub rule_name: Option<Text>,
}

impl Origin {
    /// Whether the route is of the service's own namespace: a producer's. Others, as consumers,
    /// route their own requests and do not speak for the service: what they write must not lift
    /// what holds for it.
    pub fn is_producers(&self, service: &ServiceName) -> bool {
        self.namespace == service.namespace
    }
}

/// The kinds of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// `gateway.networking.k8s.io` HTTPRoute.
    HttpRoute,
    /// `gateway.networking.k8s.io` GRPCRoute.
    GrpcRoute,
    /// `networking.istio.io` VirtualService.
    VirtualService,
    /// `gateway.networking.k8s.io` TLSRoute, of connections.
    TlsRoute,
    /// `gateway.networking.k8s.io` TCPRoute, of connections.
    TcpRoute,
    /// `gateway.networking.k8s.io` UDPRoute, of datagrams at gateways.
    UdpRoute,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// It goes to one of the backends.
    Forward {
        /// Alternatives by weight. None at all, or none with a weight, is a 500.
        backends: Vec<Backend>,
        /// What changes of its target on the way.
        rewrite: Rewrite,
    },
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// The client gets this answer.
    Respond {
        /// The status.
        status: u16,
        /// The body.
        body: Text,
    },
}

/// One of the places that requests of a rule go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// Its share of the sum of weights.
    pub weight: u32,
    /// What it is.
    pub destination: Destination,
    /// Further changes of the request's fields.
    pub request_headers: HeaderChanges,
    /// Further changes of the response's fields.
    pub response_headers: HeaderChanges,
}

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A port of a service.
    Service {
        /// The service.
        name: ServiceName,
        /// Its port.
        port: u16,
        /// The part of its endpoints that a DestinationRule calls so.
        subset: Option<Text>,
    },
    /// Nothing: what the route names does not exist or may not be used. Its share of the requests
    /// is answered with 500 (Gateway API).
    Invalid(Text),
}

impl Destination {
    /// The service, if it is one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service { name, .. } => Some(name),
            Self::Invalid(_) => None,
        }
    }
}

/// Changes of fields, made in this order, which is Envoy's: remove, set, add. A field that is both
/// removed and set or added is there afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Names of fields that are removed, in lower case.
    pub remove: Vec<Text>,
    /// Fields that replace those of the same name.
    pub set: Vec<(Text, Text)>,
    /// Fields that are added.
    pub add: Vec<(Text, Text)>,
}

/// Changes of a request's target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The new host.
    pub host: Option<Text>,
    /// What changes of the path.
    pub path: Option<PathChange>,
}

/// A change of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// All of it is replaced.
    Full(Text),
    /// The segments that the match names are replaced (Gateway API's `ReplacePrefixMatch`).
    Segments(Text),
    /// The bytes that the match names are replaced (Istio's `rewrite.uri`); all of the path where
    /// the match is no prefix.
    Prefix(Text),
    /// What the expression finds is replaced (Istio's `uriRegexRewrite`); `$1` is a group.
    Regex {
        /// The expression.
        pattern: Pattern,
        /// The replacement.
        substitution: Text,
    },
}

/// Where a client is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The new scheme.
    pub scheme: Option<Text>,
    /// The new host; with [`RedirectPort::OfAuthority`] its port follows, where it names one.
    pub host: Option<Text>,
    /// The new port.
    pub port: RedirectPort,
    /// What changes of the path.
    pub path: Option<PathChange>,
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// The port that a client is sent to. The usual one of the scheme is not written, unless
/// [`RedirectPort::OfAuthority`] takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectPort {
    /// This one.
    Given(u16),
    /// The usual one of the new scheme, or of the request's if there is no new one.
    OfScheme,
    /// The one at which the request came in (Gateway API, without a new scheme).
    OfListener,
    /// As the new host names it; without a new host as `Host` names it, unless that is the usual
    /// port of a scheme that changes (VirtualService, as Envoy).
    OfAuthority,
}

/// A part of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// So many ...
    pub numerator: u32,
    /// ... of so many, at least 1.
    pub denominator: u32,
}

/// Who else gets a copy of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// What it is.
    pub destination: Destination,
    /// The part of requests that is copied.
    pub fraction: Fraction,
}

/// How requests of web pages of other origins are answered (the Fetch standard's CORS protocol).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The origins; `*` is [`ValueMatch::Present`].
    pub allow_origins: Vec<ValueMatch>,
    /// The methods; `*` is every one.
    pub allow_methods: Vec<Text>,
    /// The fields that a page may send; `*` is every one.
    pub allow_headers: Vec<Text>,
    /// The fields that a page may read.
    pub expose_headers: Vec<Text>,
    /// Whether a page may send credentials.
    pub allow_credentials: bool,
    /// How long a browser may remember the answer.
    pub max_age: Option<Duration>,
    /// Whether a preflight of an origin that is not allowed is sent on as any other request.
    /// Otherwise it is answered without permission.
    pub forwards_unmatched: bool,
}

/// Faults that are made on purpose, each for a part of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The request waits.
    pub delay: Option<(Fraction, Duration)>,
    /// The request is answered by the proxy.
    pub abort: Option<(Fraction, Abort)>,
}

/// The answer to a request that a fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// An HTTP status.
    Http(u16),
    /// A gRPC status, in the trailers of a 200.
    Grpc(u32),
}

/// How long a request may take. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's head to the last byte of the response, all attempts together.
    pub request: Option<Duration>,
    /// One attempt, to the last byte of its response.
    pub backend: Option<Duration>,
    /// One attempt, to the head of its response (Envoy's `per_try_timeout`).
    pub response_head: Option<Duration>,
}

/// When a failed attempt is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Further attempts after the first.
    pub attempts: u32,
    /// What counts as failed.
    pub on: Vec<RetryOn>,
    /// The first pause; it doubles with each attempt, up to ten times.
    pub backoff: Duration,
    /// Also requests whose method is not idempotent (RFC 9110, section 9.2.2) and that may have
    /// reached the application.
    pub is_for_all_methods: bool,
}

/// What counts as a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// No connection came about: the application has seen nothing.
    ConnectFailure,
    /// The peer refused the stream: the application has seen nothing.
    RefusedStream,
    /// The connection ended before the response's head.
    Reset,
    /// The response has this status.
    Status(u16),
    /// The response has a status from 500.
    ServerError,
    /// The response has 502, 503 or 504.
    GatewayError,
    /// The response has this gRPC status in its head.
    Grpc(u32),
}

/// What keeps the requests of one client with one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Where the client keeps it.
    pub keeper: SessionKeeper,
    /// How long it lasts from its beginning.
    pub absolute_timeout: Option<Duration>,
    /// How long it lasts without a request.
    pub idle_timeout: Option<Duration>,
}

/// Where a client keeps its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKeeper {
    /// In a cookie, for the browser's session or until the absolute timeout.
    Cookie {
        /// The cookie's name.
        name: Text,
        /// It outlives the browser.
        is_permanent: bool,
    },
    /// In a field of its requests.
    Header(Text),
}

/// Why no backend takes a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBackend {
    /// The rule has no backend with a weight.
    #[error("the rule has no backend with a weight")]
    None,
    /// The backend that was drawn cannot be used.
    #[error("the backend cannot be used: {0}")]
    Invalid(Text),
}

impl Fraction {
    /// All of them.
    pub const ALL: Self = Self { numerator: 1, denominator: 1 };

    /// So many per cent, to a ten-thousandth; nothing outside of 0 to 100.
    pub fn percent(percent: f64) -> Option<Self> {
        const DENOMINATOR: u32 = 1_000_000;
        let is_part = (0.0..=100.0).contains(&percent);
        let parts = (percent / 100.0 * f64::from(DENOMINATOR)).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "up to a million"
        )]
        let numerator = parts as u32;
        is_part.then_some(Self { numerator, denominator: DENOMINATOR })
    }

    /// Draws whether one request belongs to this part. `random_below` answers a number below its
    /// argument.
    pub fn draw(self, random_below: impl FnOnce(u64) -> u64) -> bool {
        match self {
            Self { numerator: 0, .. } => false,
            Self { numerator, denominator } if numerator >= denominator => true,
            Self { numerator, denominator } => {
                random_below(u64::from(denominator)) < u64::from(numerator)
            }
        }
    }
}

/// Draws one of `backends` by weight. `random_below` answers a number below its argument.
pub fn draw(
    backends: &[Backend],
    random_below: impl FnOnce(u64) -> u64,
) -> Result<&Backend, NoBackend> {
    let drawn = drawn(backends, |it| it.weight, random_below).ok_or(NoBackend::None)?;
    match &drawn.destination {
        Destination::Invalid(reason) => Err(NoBackend::Invalid(reason.clone())),
        Destination::Service { .. } => Ok(drawn),
    }
}

/// Draws one of some things by weight; `None` where none has a weight.
pub(super) fn drawn<T>(
    all: &[T],
    weight: impl Fn(&T) -> u32,
    random_below: impl FnOnce(u64) -> u64,
) -> Option<&T> {
    let total: u64 = all.iter().map(|it| u64::from(weight(it))).sum();
    if total == 0 {
        return None;
    }
    let mut left = if all.len() == 1 { 0 } else { random_below(total) };
    let drawn = all.iter().find(|it| {
        let weight = u64::from(weight(it));
        let is_here = left < weight;
        left = left.saturating_sub(weight);
        is_here
    });
    Some(drawn.expect("a number below the sum of weights falls on one of them"))
}

impl PathChange {
    /// The path after the change. `prefix_len` is how much of `path` the match has matched.
    pub fn apply(&self, path: &str, prefix_len: Option<usize>) -> String {
        let rest = |len: usize| path.get(len..).unwrap_or_default();
        match self {
            Self::Full(text) => text.to_string(),
            Self::Segments(text) => {
                let rest = rest(prefix_len.unwrap_or(path.len())).trim_start_matches('/');
                let start = text.trim_end_matches('/');
                match rest {
                    // A slash at the end of the replacement or of the path is kept.
                    "" if start.is_empty() => "/".to_owned(),
                    "" if path.ends_with('/') || text.ends_with('/') => format!("{start}/"),
                    "" => start.to_owned(),
                    rest => format!("{start}/{rest}"),
                }
            }
            Self::Prefix(text) => format!("{text}{}", rest(prefix_len.unwrap_or(path.len()))),
            Self::Regex { pattern, substitution } => pattern.replace(path, substitution),
        }
    }
}

impl Redirect {
    /// The value of `Location`. `prefix_len` is how much of the path the match has matched,
    /// `listener_port` the port at which the request came in.
    pub fn location(
        &self,
        head: &RequestHead<'_>,
        prefix_len: Option<usize>,
        listener_port: u16,
    ) -> String {
        let scheme = self.scheme.as_deref().unwrap_or(head.scheme);
        let usual = |scheme: &str| if scheme == "https" { 443 } else { 80 };
        let unusual = |port: u16| Some(port).filter(|port| *port != usual(scheme));
        let port = match self.port {
            RedirectPort::Given(port) => unusual(port),
            RedirectPort::OfScheme => None,
            RedirectPort::OfListener => unusual(listener_port),
            RedirectPort::OfAuthority if self.host.is_some() => None,
            RedirectPort::OfAuthority => {
                head.port.filter(|port| scheme == head.scheme || *port != usual(head.scheme))
            }
        };
        let mut text = format!("{scheme}://{}", self.host.as_deref().unwrap_or(head.host));
        if let Some(port) = port {
            text.push_str(&format!(":{port}"));
        }
        match &self.path {
            Some(change) => text.push_str(&change.apply(head.path, prefix_len)),
            None => text.push_str(head.path),
        }
        if !head.query.is_empty() {
            text.push('?');
            text.push_str(head.query);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::Client;

    fn change(change: PathChange, path: &str, prefix_len: usize, expected: &str) {
        assert_eq!(change.apply(path, Some(prefix_len)), expected, "{change:?} {path}");
    }

    #[test]
    fn segments_are_replaced_as_the_gateway_api_says() {
        // The table of HTTPPathModifier.replacePrefixMatch.
        for (path, prefix, replacement, expected) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/a/b", "", "/xyz", "/xyz/a/b"),
        ] {
            change(PathChange::Segments(replacement.into()), path, prefix.len(), expected);
        }
    }

    #[test]
    fn bytes_are_replaced_as_istio_does() {
        change(PathChange::Prefix("/b".into()), "/a/c", 2, "/b/c");
        change(PathChange::Prefix("/".into()), "/a/c", 2, "//c");
        change(PathChange::Full("/x".into()), "/a/c", 2, "/x");
        assert_eq!(PathChange::Prefix("/b".into()).apply("/a/c", None), "/b");
        let pattern = Pattern::new("^/service/([^/]+)(/.*)$").unwrap();
        let substitution = Text::from("$2/instance/$1");
        let regex = PathChange::Regex { pattern, substitution };
        change(regex, "/service/foo/v1/api", 0, "/v1/api/instance/foo");
    }

    fn redirect(scheme: Option<&str>, host: Option<&str>, port: RedirectPort) -> Redirect {
        let (scheme, host) = (scheme.map(Text::from), host.map(Text::from));
        Redirect { scheme, host, port, path: None, status: 302 }
    }

    #[test]
    fn locations_name_only_unusual_ports() {
        use RedirectPort::{Given, OfAuthority, OfListener, OfScheme};
        let head = |port| RequestHead {
            method: "GET",
            scheme: "http",
            host: "web",
            port,
            path: "/a",
            query: "c=d",
            fields: &(),
            client: Client::default(),
        };
        let https = Some("https");
        for (scheme, host, port, named_port, listener_port, expected) in [
            (None, None, OfListener, None, 80, "http://web"),
            (None, None, OfListener, Some(80), 8080, "http://web:8080"),
            (None, Some("x"), OfListener, None, 80, "http://x"),
            (https, None, OfScheme, Some(8080), 8080, "https://web"),
            (None, None, OfScheme, Some(8080), 8080, "http://web"),
            (None, None, Given(80), None, 8080, "http://web"),
            (https, None, Given(80), None, 80, "https://web:80"),
            (None, None, OfAuthority, None, 8080, "http://web"),
            (None, None, OfAuthority, Some(9090), 8080, "http://web:9090"),
            (https, None, OfAuthority, Some(9090), 8080, "https://web:9090"),
            (https, None, OfAuthority, Some(80), 8080, "https://web"),
            (None, Some("x"), OfAuthority, Some(9090), 8080, "http://x"),
            (None, Some("x:81"), OfAuthority, Some(9090), 8080, "http://x:81"),
        ] {
            let redirect = redirect(scheme, host, port);
            let location = redirect.location(&head(named_port), None, listener_port);
            assert_eq!(location, format!("{expected}/a?c=d"), "{redirect:?}");
        }
        let path = Some(PathChange::Full("/".into()));
        let root = Redirect { path, ..redirect(None, None, OfListener) };
        assert_eq!(root.location(&head(None), None, 80), "http://web/?c=d");
    }

    fn backend(weight: u32, destination: Option<&str>) -> Backend {
        let destination = match destination {
            Some(name) => {
                Destination::Service { name: ServiceName::new("app", name), port: 80, subset: None }
            }
            None => Destination::Invalid("no such service".into()),
        };
        Backend {
            weight,
            destination,
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
        }
    }

    #[test]
    fn each_backend_has_its_share() {
        let backends = [backend(1, Some("a")), backend(0, Some("b")), backend(2, None)];
        let drawn: Vec<_> = (0..3).map(|number| draw(&backends, |_| number)).collect();
        assert_eq!(drawn[0], Ok(&backends[0]));
        let invalid = Err(NoBackend::Invalid("no such service".into()));
        assert_eq!(drawn[1], invalid);
        assert_eq!(drawn[2], invalid);
        assert_eq!(draw(&[], |_| 0), Err(NoBackend::None));
        assert_eq!(draw(&[backend(0, Some("a"))], |_| 0), Err(NoBackend::None));
    }

    #[test]
    fn a_fraction_is_drawn_of_its_denominator() {
        let part = Fraction { numerator: 1, denominator: 4 };
        assert_eq!((0..4).filter(|number| part.draw(|_| *number)).count(), 1);
        assert!(Fraction::ALL.draw(|_| unreachable!("nothing is drawn")));
        let none = Fraction { numerator: 0, denominator: 4 };
        assert!(!none.draw(|_| unreachable!("nothing is drawn")));
    }
}
