//! What a gateway at the edge serves: its listeners, and the routes that are attached to each.
//!
//! The control plane judges what is written (names that conflict, routes that may not attach); this
//! says which listener a connection or a request is for, and which of its routes are asked. A
//! request is for the most specific listener of its port that has its host, and for no other
//! (listener isolation). Routes come one by one ([`GatewayRoute`]): they are no part of what a
//! gateway is sent as, or compared by.

mod route;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::Text;
use crate::http::attached::Compile as _;
use crate::http::bytes::{BytesRule, BytesTable, Connection, NoBytesRoute, ServerNameMatch};
use crate::http::certificate::CertificateName;
use crate::http::head::RequestHead;
use crate::http::table::{Found, RouteTable};
use crate::names::ServiceName;
use route::HostTables;

pub use route::{GatewayRoute, GatewayRouteName, Place};

/// A host as a listener or a route names it: `example.com`, `*.example.com`, or `*`.
pub type HostMatch = ServerNameMatch;

/// A gateway, as used.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// The service in front of its pods, whose policies hold for what comes in.
    pub service: ServiceName,
    /// What proves it to backends with which TLS is spoken.
    pub proof: Proof,
    /// What it answers to who asks whether hosts are its own.
    pub challenges: Vec<Challenge>,
    /// Its listeners of connections by port, the more specific host first.
    ports: BTreeMap<u16, Vec<Arc<Listener>>>,
    /// Its listeners of datagrams by port.
    datagrams: BTreeMap<u16, Arc<Listener>>,
}

/// What proves a gateway to backends with which TLS is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Proof {
    /// Nothing.
    #[default]
    None,
    /// The certificate of this Secret, `namespace/name`.
    Certificate(Text),
    /// A certificate that cannot be used: no TLS is spoken.
    Impossible {
        /// Why.
        problem: Text,
    },
}

/// Where a directory asks for the answer to a challenge: the token follows (RFC 8555, 8.3).
const CHALLENGES_PATH: &str = "/.well-known/acme-challenge/";

/// What a gateway answers to a directory that asks whether a host is its own: HTTP-01 of ACME.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Challenge {
    /// The host, in lower case.
    pub host: Text,
    /// What the directory asks for.
    pub token: Text,
    /// The answer.
    pub answer: Text,
}

/// Where a gateway listens.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its name.
    pub name: Text,
    /// Its port.
    pub port: u16,
    /// The host that it serves; `None` is every one.
    pub host: Option<HostMatch>,
    /// What is spoken there.
    pub speaks: ListenerSpeaks,
    /// The routes of its requests, by the hosts that they are for.
    tables: HostTables,
    /// The routes of its connections that are no HTTP, or of its datagrams, by their names.
    bytes_routes: Vec<Arc<GatewayRoute>>,
    /// The same, compiled when a connection first asks; `None` where there are none.
    bytes: OnceLock<Option<BytesTable>>,
}

/// What is spoken at a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerSpeaks {
    /// HTTP.
    Http,
    /// HTTP in TLS that ends at the gateway.
    Https(Termination),
    /// Bytes in TLS that ends at the gateway.
    Tls(Termination),
    /// TLS, which only the two ends read.
    TlsPassthrough,
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
}

impl ListenerSpeaks {
    /// How TLS ends, if it ends here.
    pub fn termination(&self) -> Option<&Termination> {
        match self {
            Self::Https(termination) | Self::Tls(termination) => Some(termination),
            Self::Http | Self::TlsPassthrough | Self::Tcp | Self::Udp => None,
        }
    }
}

/// How TLS ends at a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// The Secrets with its certificates, each `namespace/name`. Without any no connection is
    /// taken.
    pub certificates: Vec<Text>,
    /// Which clients prove themselves, and how.
    pub clients: ClientValidation,
}

/// Which clients must prove themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientValidation {
    /// None is asked to.
    #[default]
    None,
    /// One without a certificate of these roots is refused.
    Required {
        /// The roots, as PEM.
        roots_pem: Text,
    },
    /// One without a certificate, or with one of other roots, is taken all the same
    /// (`AllowInsecureFallback`).
    Optional {
        /// The roots, as PEM.
        roots_pem: Text,
    },
    /// Nobody can prove anything, because the roots cannot be used: all are refused.
    Impossible {
        /// Why.
        problem: Text,
    },
}

/// Which routes a request is for.
#[derive(Clone, Copy, Debug)]
pub enum HostRoutes<'a> {
    /// Those of this listener.
    Of(&'a Listener),
    /// No listener of the port has the host: 404.
    NoListener,
    /// Another listener than that of the connection's TLS has the host: 421 (RFC 9110, 15.5.20).
    Misdirected,
}

impl Gateway {
    /// A gateway with these listeners.
    pub fn new(service: ServiceName, listeners: impl IntoIterator<Item = Listener>) -> Self {
        let mut ports: BTreeMap<u16, Vec<Arc<Listener>>> = BTreeMap::new();
        let mut datagrams = BTreeMap::new();
        for listener in listeners {
            if listener.speaks == ListenerSpeaks::Udp {
                datagrams.insert(listener.port, Arc::new(listener));
            } else {
                ports.entry(listener.port).or_default().push(Arc::new(listener));
            }
        }
        for listeners in ports.values_mut() {
            listeners.sort_by_key(|it| Reverse(rank(it.host.as_ref())));
        }
        Self { service, proof: Proof::None, challenges: Vec::new(), ports, datagrams }
    }

    /// With these answers to challenges.
    pub fn with_challenges(self, challenges: Vec<Challenge>) -> Self {
        Self { challenges, ..self }
    }

    /// With this proof to backends.
    pub fn with_proof(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// The answer to a challenge, if the path of a request to this host, in lower case, asks for
    /// one that is known.
    pub fn challenge(&self, host: &str, path: &str) -> Option<&Text> {
        let token = path.strip_prefix(CHALLENGES_PATH)?;
        let asked = |it: &&Challenge| *it.host == *host && *it.token == *token;
        self.challenges.iter().find(asked).map(|it| &it.answer)
    }

    /// Attaches a route of a name that is not attached.
    pub(crate) fn attach(&mut self, route: &Arc<GatewayRoute>) {
        for place in &route.places {
            let Some(listener) = self.listener_mut(&place.listener) else { continue };
            listener.attach(&place.hosts, route);
        }
    }

    /// Takes away a route as it was attached.
    pub(crate) fn detach(&mut self, route: &GatewayRoute) {
        for place in &route.places {
            let Some(listener) = self.listener_mut(&place.listener) else { continue };
            listener.detach(&place.hosts, &route.name);
        }
    }

    fn listener_mut(&mut self, name: &str) -> Option<&mut Listener> {
        let mut all = self.ports.values_mut().flatten().chain(self.datagrams.values_mut());
        all.find(|it| *it.name == *name).map(Arc::make_mut)
    }

    /// The certificates that it names, for its listeners and for backends; one may come several
    /// times.
    pub fn certificates(&self) -> impl Iterator<Item = CertificateName> {
        let ends = self.listeners().filter_map(|it| it.speaks.termination());
        let own = match &self.proof {
            Proof::Certificate(secret) => Some(secret),
            Proof::None | Proof::Impossible { .. } => None,
        };
        let secrets = ends.flat_map(|it| &it.certificates).chain(own).cloned();
        secrets.map(|secret| CertificateName { gateway: self.service.clone(), secret })
    }

    /// All listeners, by their ports, those of datagrams last.
    pub fn listeners(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.ports.values().flatten().chain(self.datagrams.values())
    }

    /// The listeners of datagrams, by their ports.
    pub fn datagrams(&self) -> &BTreeMap<u16, Arc<Listener>> {
        &self.datagrams
    }

    /// The ports that take connections.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.ports.keys().copied()
    }

    /// The listeners of connections of a port, the more specific host first.
    pub fn at(&self, port: u16) -> &[Arc<Listener>] {
        self.ports.get(&port).map_or(&[], Vec::as_slice)
    }

    /// Whether something listens at a port, for connections or for datagrams.
    pub fn listens_at(&self, port: u16) -> bool {
        self.ports.contains_key(&port) || self.datagrams.contains_key(&port)
    }

    /// Whether connections to a port begin with TLS.
    pub fn begins_with_tls(&self, port: u16) -> bool {
        use ListenerSpeaks::{Https, Tls, TlsPassthrough};
        let is_tls = |it: &Arc<Listener>| matches!(it.speaks, Https(_) | Tls(_) | TlsPassthrough);
        self.at(port).iter().any(is_tls)
    }

    /// The listener that takes a TLS connection which asks for this name, in lower case.
    pub fn named(&self, port: u16, server_name: Option<&str>) -> Option<&Arc<Listener>> {
        best(self.at(port), server_name)
    }

    /// The rule that takes a connection that is no HTTP. Where no route is attached nobody takes
    /// it.
    pub fn bytes_rule(
        &self,
        port: u16,
        connection: &Connection<'_>,
    ) -> Result<&BytesRule, NoBytesRoute> {
        let listener = self.named(port, connection.server_name);
        let table = listener.and_then(|it| it.bytes());
        let table = table.ok_or_else(|| NoBytesRoute::of(connection))?;
        table.find(connection).map(|(_, rule)| &**rule)
    }

    /// The rule that takes the datagrams of a port.
    pub fn datagram_rule(
        &self,
        port: u16,
        connection: &Connection<'_>,
    ) -> Result<&BytesRule, NoBytesRoute> {
        let table = self.datagrams.get(&port).and_then(|it| it.bytes());
        let table = table.ok_or_else(|| NoBytesRoute::of(connection))?;
        table.find(connection).map(|(_, rule)| &**rule)
    }

    /// The routes for a request to a host, in lower case. `server_name` is what the TLS connection
    /// has asked for; `None` without TLS.
    pub fn routes(
        &self,
        port: u16,
        host: &str,
        server_name: Option<Option<&str>>,
    ) -> HostRoutes<'_> {
        let found = best(self.at(port), Some(host));
        match (server_name, found) {
            (_, None) => HostRoutes::NoListener,
            (None, Some(found)) => HostRoutes::Of(found),
            (Some(name), Some(found)) => match self.named(port, name) {
                Some(own) if Arc::ptr_eq(own, found) => HostRoutes::Of(found),
                _ => HostRoutes::Misdirected,
            },
        }
    }
}

/// The most specific of sorted listeners that has a host; without a host one that has all.
fn best<'a>(listeners: &'a [Arc<Listener>], host: Option<&str>) -> Option<&'a Arc<Listener>> {
    listeners.iter().find(|it| has(it.host.as_ref(), host))
}

fn has(wanted: Option<&HostMatch>, host: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| host.is_some_and(|host| wanted.matches(host)))
}

/// How specific a host is; more is greater.
fn rank(host: Option<&HostMatch>) -> Option<(bool, usize)> {
    host.map(HostMatch::rank)
}

impl Listener {
    /// A listener to which nothing is attached.
    pub fn new(name: Text, port: u16, host: Option<HostMatch>, speaks: ListenerSpeaks) -> Self {
        let (tables, bytes_routes, bytes) = Default::default();
        Self { name, port, host, speaks, tables, bytes_routes, bytes }
    }

    fn attach(&mut self, hosts: &[Option<HostMatch>], route: &Arc<GatewayRoute>) {
        if !route.rules.is_empty() {
            for host in hosts {
                self.tables.attach(host.as_ref(), route);
            }
        }
        if !route.connections.is_empty() {
            route::put(&mut self.bytes_routes, route);
            self.bytes = OnceLock::new();
        }
    }

    fn detach(&mut self, hosts: &[Option<HostMatch>], name: &GatewayRouteName) {
        for host in hosts {
            self.tables.detach(host.as_ref(), name);
        }
        route::remove(&mut self.bytes_routes, name);
        self.bytes = OnceLock::new();
    }

    /// The tables of its requests by the hosts that they are for, in the order in which they are
    /// asked for a host that has them all.
    pub fn tables(&self) -> Vec<(Option<HostMatch>, &RouteTable)> {
        let mut all: Vec<_> = self.tables.iter().collect();
        all.sort_by(|(one, _), (other, _)| {
            let key = |it: &Option<HostMatch>| Reverse(rank(it.as_ref()));
            key(one).cmp(&key(other)).then_with(|| name(one).cmp(name(other)))
        });
        all
    }

    /// The table of its connections, if a route for them is attached.
    pub fn bytes(&self) -> Option<&BytesTable> {
        let rules = self.bytes_routes.iter().flat_map(|it| &it.connections);
        self.bytes.get_or_init(|| BytesTable::compile(rules)).as_ref()
    }

    /// The rule that answers a request: of the routes for the most specific host that has one.
    pub fn find(&self, head: &RequestHead<'_>) -> Option<Found<'_>> {
        self.tables.of(head.host).find_map(|table| table.find(head))
    }
}

/// A host without its wildcard, for sorting.
fn name(host: &Option<HostMatch>) -> &str {
    match host {
        Some(HostMatch::Exact(name) | HostMatch::Suffix(name)) => name,
        None => "",
    }
}

impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.port == other.port
            && self.host == other.host
            && self.speaks == other.speaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::Client;
    use crate::http::rule::{Action, Faults, HeaderChanges, Origin, RouteKind, Rule, Timeouts};

    fn rule(name: &str) -> Arc<Rule> {
        let (namespace, name) = ("app".into(), name.into());
        let kind = RouteKind::HttpRoute;
        Arc::new(Rule {
            origin: Origin { kind, namespace, name, created_unix_s: 0, index: 0, rule_name: None },
            matches: Vec::new(),
            action: Action::Respond { status: 200, body: "".into() },
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            mirrors: Vec::new(),
            cors: None,
            faults: Faults::default(),
            timeouts: Timeouts::default(),
            retry: None,
            session: None,
        })
    }

    fn listener(name: &str, port: u16, host: &str, speaks: ListenerSpeaks) -> Listener {
        let host = (!host.is_empty()).then(|| HostMatch::new(host));
        Listener::new(name.into(), port, host, speaks)
    }

    fn gateway(listeners: Vec<Listener>) -> Gateway {
        Gateway::new(ServiceName::new("edge", "ingress"), listeners)
    }

    fn https() -> ListenerSpeaks {
        ListenerSpeaks::Https(Termination {
            certificates: Vec::new(),
            clients: ClientValidation::None,
        })
    }

    #[test]
    fn the_most_specific_listener_of_a_port_has_a_host_and_no_other() {
        let http = |name, host| listener(name, 80, host, ListenerSpeaks::Http);
        let all = gateway(vec![
            http("all", ""),
            http("wide", "*.example.com"),
            http("wider", "*.com"),
            http("exact", "a.example.com"),
            listener("other", 81, "b.example.com", ListenerSpeaks::Http),
        ]);
        let check = |host: &str, expected: &str| {
            let HostRoutes::Of(found) = all.routes(80, host, None) else { panic!("{host}") };
            assert_eq!(&*found.name, expected, "{host}");
        };
        check("a.example.com", "exact");
        check("b.example.com", "wide");
        check("x.a.example.com", "wide");
        check("example.com", "wider");
        check("com", "all");
        check("10.0.0.1", "all");
        assert!(matches!(all.routes(81, "a.example.com", None), HostRoutes::NoListener));
        assert!(matches!(all.routes(82, "a.example.com", None), HostRoutes::NoListener));
    }

    #[test]
    fn a_request_for_another_listener_than_that_of_its_tls_is_misdirected() {
        let all = gateway(vec![
            listener("a", 443, "a.example.com", https()),
            listener("wide", 443, "*.example.com", https()),
        ]);
        let check = |server_name: Option<&str>, host: &str, expected: &str| {
            let said = match all.routes(443, host, Some(server_name)) {
                HostRoutes::Of(it) => it.name.to_string(),
                HostRoutes::NoListener => "404".to_owned(),
                HostRoutes::Misdirected => "421".to_owned(),
            };
            assert_eq!(said, expected, "{server_name:?} {host}");
        };
        check(Some("a.example.com"), "a.example.com", "a");
        check(Some("a.example.com"), "b.example.com", "421");
        check(Some("b.example.com"), "c.example.com", "wide");
        check(Some("b.example.com"), "a.example.com", "421");
        check(Some("a.example.com"), "other.org", "404");
        check(None, "a.example.com", "421");
        assert!(all.begins_with_tls(443) && !all.begins_with_tls(80));
        assert!(all.named(443, None).is_none(), "nobody has a connection without a name");
    }

    #[test]
    fn a_challenge_is_answered_for_its_host_and_token_alone() {
        let challenge = Challenge {
            host: "a.example.com".into(),
            token: "abc".into(),
            answer: "abc.thumb".into(),
        };
        let all = gateway(Vec::new()).with_challenges(vec![challenge]);
        let check = |host: &str, path: &str, expected: Option<&str>| {
            assert_eq!(all.challenge(host, path).map(|it| &**it), expected, "{host} {path}");
        };
        check("a.example.com", "/.well-known/acme-challenge/abc", Some("abc.thumb"));
        check("b.example.com", "/.well-known/acme-challenge/abc", None);
        check("a.example.com", "/.well-known/acme-challenge/abcd", None);
        check("a.example.com", "/.well-known/acme-challenge/", None);
        check("a.example.com", "/x/.well-known/acme-challenge/abc", None);
        check("a.example.com", "/abc", None);
    }

    /// A route of requests to these hosts of the listener `web`; `""` is every one.
    fn route(name: &str, hosts: &[&str]) -> Arc<GatewayRoute> {
        let host = |host: &&str| (!host.is_empty()).then(|| HostMatch::new(host));
        let gateway = ServiceName::new("edge", "ingress");
        let place = Place { listener: "web".into(), hosts: hosts.iter().map(host).collect() };
        Arc::new(GatewayRoute {
            name: GatewayRouteName { gateway, route: format!("HTTPRoute/app/{name}").into() },
            places: vec![place],
            rules: vec![rule(name)],
            connections: Vec::new(),
        })
    }

    /// The route that answers a request to this host.
    fn found(gateway: &Gateway, host: &str) -> Option<String> {
        let head = RequestHead {
            method: "GET",
            scheme: "http",
            host,
            port: None,
            path: "/",
            query: "",
            fields: &(),
            client: Client::default(),
        };
        let found = gateway.at(80)[0].find(&head);
        found.map(|it| it.rule.origin.name.to_string())
    }

    #[test]
    fn routes_of_the_most_specific_host_come_first() {
        let mut all = gateway(vec![listener("web", 80, "", ListenerSpeaks::Http)]);
        all.attach(&route("exact", &["a.example.com"]));
        assert_eq!(found(&all, "b.example.com"), None);
        all.attach(&route("all", &[""]));
        all.attach(&route("wide", &["*.example.com"]));
        assert_eq!(found(&all, "a.example.com").as_deref(), Some("exact"));
        assert_eq!(found(&all, "b.example.com").as_deref(), Some("wide"));
        assert_eq!(found(&all, "other.org").as_deref(), Some("all"));
    }

    #[test]
    fn a_route_is_replaced_and_taken_away_alone() {
        use crate::view::{Change, View};

        let own = ServiceName::new("edge", "ingress");
        let web = || gateway(vec![listener("web", 80, "", ListenerSpeaks::Http)]);
        let mut view = View::default();
        let put = |view: &mut View, name: &str, hosts: &[&str]| {
            view.apply(Change::GatewayRoute(route(name, hosts)));
        };
        let at = |view: &View, host: &str| found(view.gateway(&own).expect("it is there"), host);
        // Routes may come before their gateway.
        put(&mut view, "one", &["a.org", "*.b.org", ""]);
        assert!(view.gateway(&own).is_none());
        view.apply(Change::Gateway(Arc::new(web())));
        let before = view.clone();
        assert_eq!(at(&view, "a.org").as_deref(), Some("one"));
        // Of the same name, for other hosts.
        put(&mut view, "one", &["c.org"]);
        put(&mut view, "two", &["a.org"]);
        assert_eq!(at(&view, "c.org").as_deref(), Some("one"));
        assert_eq!(at(&view, "a.org").as_deref(), Some("two"));
        assert_eq!(at(&view, "x.b.org"), None);
        assert_eq!(at(&before, "a.org").as_deref(), Some("one"), "readers keep theirs");
        // A gateway that changes keeps what is attached; one that goes takes nothing along.
        view.apply(Change::Gateway(Arc::new(web())));
        assert_eq!(at(&view, "a.org").as_deref(), Some("two"));
        view.apply(Change::RemoveGateway(own.clone()));
        view.apply(Change::RemoveGatewayRoute(route("two", &[]).name.clone()));
        view.apply(Change::RemoveGatewayRoute(route("three", &[]).name.clone()));
        view.apply(Change::Gateway(Arc::new(web())));
        assert_eq!(at(&view, "a.org"), None);
        assert_eq!(at(&view, "c.org").as_deref(), Some("one"));
        assert_eq!(view.gateway_routes(&own).count(), 1);
    }

    #[test]
    fn the_name_of_a_route_is_that_of_its_gateway_and_its_own() {
        let name = route("a", &[]).name.clone();
        assert_eq!(name.to_string(), "edge/ingress/HTTPRoute/app/a");
        assert_eq!(name.to_string().parse(), Ok(name));
        for wrong in ["", "edge", "edge/ingress", "edge/ingress/", "edge//x"] {
            assert!(wrong.parse::<GatewayRouteName>().is_err(), "{wrong}");
        }
    }
}
