//! What a gateway at the edge serves: its listeners, and the routes that are attached to each.
//!
//! The control plane judges what is written (names that conflict, routes that may not attach); this
//! says which listener a connection or a request is for, and which of its routes are asked. A
//! request is for the most specific listener of its port that has its host, and for no other
//! (listener isolation).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use crate::Text;
use crate::http::attached::Compile as _;
use crate::http::bytes::{BytesRule, BytesTable, Connection, NoBytesRoute, ServerNameMatch};
use crate::http::certificate::CertificateName;
use crate::http::head::RequestHead;
use crate::http::rule::Rule;
use crate::http::table::{Found, RouteTable};
use crate::names::ServiceName;

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
    /// The routes of its requests, by the hosts that they are for, as they came.
    routes: Vec<HostRules>,
    /// The same, compiled when a request first asks: a gateway may have thousands of routes, of
    /// which each change makes a new listener, and control never asks.
    tables: OnceLock<HostTables>,
    /// The routes of its connections, as they came.
    bytes_rules: Vec<Arc<BytesRule>>,
    /// The same, compiled.
    bytes: Option<BytesTable>,
}

/// Rules that are attached for one host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostRules {
    /// The host; `None` is every one that the listener has.
    pub host: Option<HostMatch>,
    /// The rules, in any order.
    pub rules: Vec<Arc<Rule>>,
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

    /// The services to which its routes lead; one may come several times.
    pub fn routed(&self) -> impl Iterator<Item = &ServiceName> {
        self.listeners().flat_map(|it| it.routed())
    }

    /// The same without those to which datagrams alone are sent.
    pub fn connected(&self) -> impl Iterator<Item = &ServiceName> {
        self.ports.values().flatten().flat_map(|it| it.routed())
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
        let table = listener.and_then(|it| it.bytes.as_ref());
        let table = table.ok_or_else(|| NoBytesRoute::of(connection))?;
        table.find(connection).map(|(_, rule)| &**rule)
    }

    /// The rule that takes the datagrams of a port.
    pub fn datagram_rule(
        &self,
        port: u16,
        connection: &Connection<'_>,
    ) -> Result<&BytesRule, NoBytesRoute> {
        let table = self.datagrams.get(&port).and_then(|it| it.bytes.as_ref());
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
    /// The services to which its routes lead; one may come several times.
    fn routed(&self) -> impl Iterator<Item = &ServiceName> {
        let rules = self.routes.iter().flat_map(|it| &it.rules);
        let bytes = self.bytes_rules.iter().flat_map(|it| &it.backends);
        let bytes = bytes.filter_map(|it| it.destination.service());
        rules.flat_map(|it| it.destinations()).chain(bytes)
    }

    /// A listener to which nothing is attached.
    pub fn new(name: Text, port: u16, host: Option<HostMatch>, speaks: ListenerSpeaks) -> Self {
        let (routes, tables, bytes_rules) = (Vec::new(), OnceLock::new(), Vec::new());
        Self { name, port, host, speaks, routes, tables, bytes_rules, bytes: None }
    }

    /// With these routes of requests; of several for one host all are asked.
    pub fn with_routes(mut self, routes: Vec<HostRules>) -> Self {
        self.tables = OnceLock::new();
        self.routes = routes;
        self
    }

    /// With these rules for its connections.
    pub fn with_bytes(mut self, rules: Vec<Arc<BytesRule>>) -> Self {
        self.bytes = BytesTable::compile(rules.iter());
        self.bytes_rules = rules;
        self
    }

    /// The routes of its requests as they came.
    pub fn routes(&self) -> &[HostRules] {
        &self.routes
    }

    /// The rules of its connections as they came.
    pub fn bytes_rules(&self) -> &[Arc<BytesRule>] {
        &self.bytes_rules
    }

    /// The tables of its requests by the hosts that they are for, in the order in which they are
    /// asked for a host that has them all.
    pub fn tables(&self) -> Vec<(Option<HostMatch>, &RouteTable)> {
        let tables = self.compiled();
        let exact = tables.exact.iter();
        let exact = exact.map(|(host, it)| (Some(HostMatch::Exact(host.clone())), it));
        let suffixes = tables.suffixes.iter();
        let suffixes = suffixes.map(|(end, it)| (Some(HostMatch::Suffix(end.clone())), it));
        let mut all: Vec<_> = exact.chain(suffixes).collect();
        all.sort_by(|(one, _), (other, _)| {
            rank(other.as_ref()).cmp(&rank(one.as_ref())).then_with(|| name(one).cmp(name(other)))
        });
        all.extend(tables.all.iter().map(|it| (None, it)));
        all
    }

    /// The table of its connections, if a route for them is attached.
    pub fn bytes(&self) -> Option<&BytesTable> {
        self.bytes.as_ref()
    }

    /// The rule that answers a request: of the routes for the most specific host that has one.
    pub fn find(&self, head: &RequestHead<'_>) -> Option<Found<'_>> {
        self.compiled().of(head.host).find_map(|table| table.find(head))
    }

    fn compiled(&self) -> &HostTables {
        self.tables.get_or_init(|| HostTables::compile(&self.routes))
    }
}

/// A host without its wildcard, for sorting.
fn name(host: &Option<HostMatch>) -> &str {
    match host {
        Some(HostMatch::Exact(name) | HostMatch::Suffix(name)) => name,
        None => "",
    }
}

/// Tables by the hosts that they are for.
#[derive(Clone, Debug, Default)]
struct HostTables {
    exact: HashMap<Text, RouteTable>,
    /// By what hosts end with, the dot included: `.example.com`; nothing for `*`.
    suffixes: HashMap<Text, RouteTable>,
    /// For every host.
    all: Option<RouteTable>,
}

impl HostTables {
    fn compile(routes: &[HostRules]) -> Self {
        let mut exact: HashMap<Text, Vec<Arc<Rule>>> = HashMap::new();
        let mut suffixes: HashMap<Text, Vec<Arc<Rule>>> = HashMap::new();
        let mut all = Vec::new();
        for it in routes.iter().filter(|it| !it.rules.is_empty()) {
            let rules = match &it.host {
                Some(HostMatch::Exact(host)) => exact.entry(host.clone()).or_default(),
                Some(HostMatch::Suffix(end)) => suffixes.entry(end.clone()).or_default(),
                None => &mut all,
            };
            rules.extend(it.rules.iter().cloned());
        }
        let tables = |of: HashMap<Text, Vec<Arc<Rule>>>| {
            of.into_iter().map(|(host, rules)| (host, RouteTable::new(rules))).collect()
        };
        let all = (!all.is_empty()).then(|| RouteTable::new(all));
        Self { exact: tables(exact), suffixes: tables(suffixes), all }
    }

    /// The tables for a host, the more specific first.
    fn of<'a, 'b>(&'a self, host: &'b str) -> impl Iterator<Item = &'a RouteTable> + use<'a, 'b> {
        let begin = |(at, _)| at > 0;
        let ends = host.match_indices('.').filter(move |it| begin(*it)).map(|(at, _)| &host[at..]);
        let suffixed = ends.chain([""]).filter_map(|end| self.suffixes.get(end));
        self.exact.get(host).into_iter().chain(suffixed).chain(&self.all)
    }
}

impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.port == other.port
            && self.host == other.host
            && self.speaks == other.speaks
            && self.routes == other.routes
            && self.bytes_rules == other.bytes_rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::Client;
    use crate::http::rule::{Action, Faults, HeaderChanges, Origin, RouteKind, Timeouts};

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

    #[test]
    fn routes_of_the_most_specific_host_come_first() {
        let with = |hosts: &[(&str, &str)]| {
            let routes = hosts.iter().map(|(host, name)| {
                let host = (!host.is_empty()).then(|| HostMatch::new(host));
                HostRules { host, rules: vec![rule(name)] }
            });
            listener("web", 80, "", ListenerSpeaks::Http).with_routes(routes.collect())
        };
        let web = with(&[("", "all"), ("*.example.com", "wide"), ("a.example.com", "exact")]);
        let check = |web: &Listener, host: &str, expected: Option<&str>| {
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
            let found = web.find(&head).map(|it| it.rule.origin.name.to_string());
            assert_eq!(found.as_deref(), expected, "{host}");
        };
        check(&web, "a.example.com", Some("exact"));
        check(&web, "b.example.com", Some("wide"));
        check(&web, "other.org", Some("all"));
        check(&with(&[("a.example.com", "exact")]), "b.example.com", None);
    }
}
