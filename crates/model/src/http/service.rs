//! What a waypoint knows of one service beyond layer 4: protocols, routes, policies, traffic.
//!
//! The control plane computes it, so a waypoint compares no labels and knows no scopes. It is
//! compiled when it arrives: [`ServiceHttp::routes`] is a look-up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Text;
use crate::http::attached::{Attached, Compile};
use crate::http::authentication::Authentication;
use crate::http::authorizer::Authorizer;
use crate::http::bytes::{self, BytesRoutes, BytesTable};
use crate::http::compression::Compressions;
use crate::http::health::HealthCheck;
use crate::http::limits::Limits;
use crate::http::rate_limit::RateLimits;
use crate::http::rule::{RouteKind, Rule};
use crate::http::table::RouteTable;
use crate::http::telemetry::Telemetry;
use crate::http::traffic::TrafficPolicy;
use crate::names::{PolicyName, ServiceName};

/// What holds for the requests to one service.
///
/// That of a waypoint's own service holds for what comes in for a workload instead of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceHttp {
    /// The service.
    pub service: ServiceName,
    /// The application protocol of each port. One that is missing is [`Protocol::Detect`].
    pub protocols: BTreeMap<u16, Protocol>,
    /// Who answers which request.
    pub routes: Routes,
    /// Who takes which connection that is no HTTP.
    pub bytes: BytesRoutes,
    /// The policies that hold for requests to this service. One that the view lacks denies.
    pub policies: Vec<PolicyName>,
    /// The providers that these policies ask, by name.
    pub authorizers: BTreeMap<Text, Arc<Authorizer>>,
    /// The tokens that are read of requests.
    pub authentication: Authentication,
    /// How many requests may come.
    pub rate_limits: RateLimits,
    /// How requests are spread over its endpoints.
    pub traffic: Traffic,
    /// How much its requests may be.
    pub limits: Limits,
    /// Which of its responses are compressed.
    pub compression: Compressions,
    /// How its endpoints are checked, if they are.
    pub health_check: Option<HealthCheck>,
    /// Parts of its endpoints, by the names that a DestinationRule gives them.
    pub subsets: BTreeMap<Text, Subset>,
    /// What is told of the requests to it.
    pub telemetry: Telemetry,
}

/// The routes of a service's requests.
pub type Routes = Attached<Rule, RouteTable>;

pub use crate::http::attached::RouteGroup;

/// What an application speaks at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// It is not declared: what a client sends first decides.
    #[default]
    Detect,
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without TLS of its own, also as h2c and below gRPC.
    Http2,
    /// Bytes.
    Tcp,
    /// TLS, which only the two ends read.
    Tls,
}

/// A [`TrafficPolicy`] for all ports, and for single ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// What holds for ports that are not listed.
    pub all: TrafficPolicy,
    /// What holds for these ports instead.
    pub ports: BTreeMap<u16, TrafficPolicy>,
}

/// A part of a service's endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subset {
    /// Uids of workloads, ascending.
    members: Arc<[Text]>,
    /// What holds for requests to it; `None` is what holds for the service.
    pub traffic: Option<Traffic>,
}

impl ServiceHttp {
    /// A service of which nothing is said.
    pub fn named(service: ServiceName) -> Self {
        Self {
            service,
            protocols: BTreeMap::new(),
            routes: Routes::default(),
            bytes: BytesRoutes::default(),
            policies: Vec::new(),
            authorizers: BTreeMap::new(),
            authentication: Authentication::default(),
            rate_limits: RateLimits::default(),
            traffic: Traffic::default(),
            limits: Limits::default(),
            compression: Compressions::default(),
            health_check: None,
            subsets: BTreeMap::new(),
            telemetry: Telemetry::default(),
        }
    }

    /// Whether another service is of another namespace: what holds for requests to this one says
    /// nothing of that one.
    pub fn is_elsewhere(&self, other: &ServiceName) -> bool {
        other.namespace != self.service.namespace
    }

    /// What is declared to be spoken at a port.
    pub fn protocol(&self, port: u16) -> Protocol {
        self.protocols.get(&port).copied().unwrap_or_default()
    }

    /// How the connections of a client at a port are served. Where nothing is declared, routes of
    /// connections that are attached alone decide: what they are for is not taken for requests.
    pub fn served_as(&self, port: u16, client_namespace: Option<&str>) -> Protocol {
        let bytes = self.bytes_routes(port, client_namespace);
        match (self.protocol(port), bytes, self.routes(port, client_namespace)) {
            (Protocol::Detect, Some(bytes), None) if bytes.reads_server_names() => Protocol::Tls,
            (Protocol::Detect, Some(_), None) => Protocol::Tcp,
            (declared, ..) => declared,
        }
    }

    /// Whether routes or policies ask for the name in the TLS handshake of a connection.
    pub fn asks_for_names(&self, port: u16, client_namespace: Option<&str>) -> bool {
        let routes = self.bytes_routes(port, client_namespace);
        // Behind a wildcard the name is where the connection goes.
        self.service.hostname.starts_with('*')
            || routes.is_some_and(BytesTable::reads_server_names)
            || self.served_as(port, client_namespace) == Protocol::Tls && !self.policies.is_empty()
    }

    /// Whether connections at a port that are no HTTP are refused: the port is declared to speak
    /// HTTP, or nothing is declared and something holds that is about requests alone, which a
    /// client could pass by if it decided what its bytes are. Policies are not among it: they
    /// judge such connections, by the strictest reading.
    pub fn is_about_requests(&self, port: u16, client_namespace: Option<&str>) -> bool {
        match self.served_as(port, client_namespace) {
            Protocol::Http | Protocol::Http2 => true,
            Protocol::Tcp | Protocol::Tls => false,
            Protocol::Detect => {
                self.routes(port, client_namespace).is_some()
                    || self.authentication != Authentication::default()
                    || self.rate_limits != RateLimits::default()
            }
        }
    }

    /// Whether [`is_about_requests`](Self::is_about_requests) has the same answers.
    pub(crate) fn takes_bytes_like(&self, other: &Self) -> bool {
        let routed = |it: &Self| {
            let groups = it.routes.groups().iter();
            groups.map(|group| (group.client_namespace.clone(), group.port)).collect::<Vec<_>>()
        };
        let reads_tokens = |it: &Self| it.authentication != Authentication::default();
        let limits = |it: &Self| it.rate_limits != RateLimits::default();
        self.protocols == other.protocols
            && self.bytes == other.bytes
            && routed(self) == routed(other)
            && reads_tokens(self) == reads_tokens(other)
            && limits(self) == limits(other)
    }

    /// The routes for a client of this namespace, if its identity is proven, at a port. `None`: no
    /// route is attached, and requests go to the service itself. A request that no rule of a table
    /// matches goes nowhere.
    pub fn routes(&self, port: u16, client_namespace: Option<&str>) -> Option<&RouteTable> {
        self.routes.at(port, client_namespace)
    }

    /// As [`routes`](Self::routes), of connections that are no HTTP.
    pub fn bytes_routes(&self, port: u16, client_namespace: Option<&str>) -> Option<&BytesTable> {
        self.bytes.at(port, client_namespace)
    }

    /// What holds for requests to a port, of a subset where one is named. A subset that does not
    /// exist has the service's, as no endpoint is chosen for it anyway.
    pub fn traffic(&self, port: u16, subset: Option<&str>) -> &TrafficPolicy {
        let subset = subset.and_then(|name| self.subsets.get(name));
        let traffic = subset.and_then(|it| it.traffic.as_ref()).unwrap_or(&self.traffic);
        traffic.ports.get(&port).unwrap_or(&traffic.all)
    }
}

impl ServiceHttp {
    /// The services to which its routes lead; one may come several times.
    pub fn routed(&self) -> impl Iterator<Item = &ServiceName> {
        destinations(&self.routes).chain(bytes::destinations(&self.bytes))
    }

    /// Those, and the services that are asked whether its requests may pass, or that count them.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = &ServiceName> {
        let asked = self.authorizers.values().filter_map(|it| it.destination.service());
        self.routed().chain(asked).chain(self.rate_limits.counters())
    }
}

/// The services that rules send requests or copies to; one may come several times.
fn destinations(routes: &Routes) -> impl Iterator<Item = &ServiceName> {
    let rules = routes.groups().iter().flat_map(|group| &group.rules);
    rules.flat_map(|rule| rule.destinations())
}

/// Where HTTPRoutes and GRPCRoutes meet, only GRPCRoutes count: the more specific kind (GEP-1294).
impl Compile<Rule> for RouteTable {
    fn compile<'a>(rules: impl Iterator<Item = &'a Arc<Rule>> + Clone) -> Option<Self> {
        let has_grpc = rules.clone().any(|it| it.origin.kind == RouteKind::GrpcRoute);
        let counts = |it: &&Arc<Rule>| !has_grpc || it.origin.kind != RouteKind::HttpRoute;
        let table = RouteTable::new(rules.filter(counts).cloned());
        (!table.is_empty()).then_some(table)
    }
}

impl Subset {
    /// The workloads of these uids.
    pub fn new(members: impl IntoIterator<Item = Text>, traffic: Option<Traffic>) -> Self {
        let members: BTreeSet<Text> = members.into_iter().collect();
        Self { members: members.into_iter().collect(), traffic }
    }

    /// Uids of its workloads, ascending. Some may not, or no longer, be in the view.
    pub fn members(&self) -> &[Text] {
        &self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::rate_limit::RateLimitPolicy;
    use crate::http::rule::{Action, Faults, HeaderChanges, Origin, Timeouts};
    use crate::http::traffic::Balancing;

    fn rule(kind: RouteKind, name: &str) -> Arc<Rule> {
        Arc::new(Rule {
            origin: Origin {
                kind,
                namespace: "app".into(),
                name: name.into(),
                created_unix_s: 0,
                index: 0,
                rule_name: None,
            },
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

    fn group(client: Option<&str>, port: Option<u16>, rules: Vec<Arc<Rule>>) -> RouteGroup {
        RouteGroup { client_namespace: client.map(Text::from), port, rules }
    }

    #[test]
    fn routes_are_of_a_port_and_of_the_clients_namespace() {
        use RouteKind::{GrpcRoute, HttpRoute};
        let web = ServiceName::new("app", "web");
        let mut service = ServiceHttp::named(web);
        let names = |service: &ServiceHttp, port, client| {
            let table = service.routes(port, client);
            table.map(|it| {
                let names = it.iter().map(|found| found.rule.origin.name.to_string());
                names.collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(names(&service, 80, None), None);
        service.routes = Routes::new(vec![
            group(None, None, vec![rule(HttpRoute, "a")]),
            group(None, Some(80), vec![rule(HttpRoute, "b")]),
            group(None, Some(90), vec![rule(GrpcRoute, "g")]),
            group(Some("shop"), Some(80), vec![rule(HttpRoute, "c")]),
            group(Some("none"), None, Vec::new()),
        ]);
        for (port, client, expected) in [
            (8080, None, "a"),
            (80, None, "a b"),
            (90, None, "g"),
            (80, Some("shop"), "c"),
            // Its own routes are for another port.
            (8080, Some("shop"), "a"),
            (80, Some("other"), "a b"),
            (80, Some("none"), "a b"),
        ] {
            let found = names(&service, port, client);
            assert_eq!(found.as_deref(), Some(expected), "{port} {client:?}");
        }
    }

    #[test]
    fn routes_of_connections_decide_what_is_not_declared() {
        use crate::http::bytes::{BytesMatch, BytesRule, ServerNameMatch};
        use Protocol::{Detect, Http, Tcp, Tls};
        let bytes = |name: Option<&str>| {
            let server_name = name.map(ServerNameMatch::new);
            let origin = rule(RouteKind::TlsRoute, "t").origin.clone();
            let matches = vec![BytesMatch { server_name, ..BytesMatch::default() }];
            Arc::new(BytesRule { origin, matches, backends: Vec::new() })
        };
        let mut service = ServiceHttp::named(ServiceName::new("app", "web"));
        service.protocols = BTreeMap::from([(80, Http), (443, Tls)]);
        service.routes =
            Routes::new(vec![group(None, Some(8080), vec![rule(RouteKind::HttpRoute, "a")])]);
        let of = |port, rules| RouteGroup { client_namespace: None, port, rules };
        service.bytes = BytesRoutes::new(vec![
            of(None, vec![bytes(None)]),
            of(Some(9443), vec![bytes(Some("a"))]),
        ]);
        for (port, expected) in [(80, Http), (443, Tls), (8080, Detect), (90, Tcp), (9443, Tls)] {
            assert_eq!(service.served_as(port, None), expected, "{port}");
        }
        service.bytes = BytesRoutes::default();
        assert_eq!(service.served_as(90, None), Detect);
    }

    #[test]
    fn bytes_are_refused_where_what_holds_is_about_requests() {
        use Protocol::{Detect, Http, Http2, Tcp, Tls};
        let bare = ServiceHttp::named(ServiceName::new("app", "web"));
        let mut routed = bare.clone();
        routed.routes =
            Routes::new(vec![group(None, Some(80), vec![rule(RouteKind::HttpRoute, "a")])]);
        let mut elsewhere = bare.clone();
        elsewhere.routes =
            Routes::new(vec![group(None, Some(81), vec![rule(RouteKind::HttpRoute, "a")])]);
        let mut tokens = bare.clone();
        tokens.authentication.problem = Some("no keys".into());
        let mut limited = bare.clone();
        limited.rate_limits.service = Some(Arc::new(RateLimitPolicy {
            name: PolicyName::new("app", "limits"),
            limits: Vec::new(),
            says_what_is_left: false,
            problem: None,
        }));
        for (name, service, undeclared) in [
            ("bare", bare, false),
            ("routed", routed, true),
            ("routed at another port", elsewhere, false),
            ("tokens", tokens, true),
            ("limited", limited, true),
        ] {
            for (protocol, expected) in
                [(Detect, undeclared), (Http, true), (Http2, true), (Tcp, false), (Tls, false)]
            {
                let protocols = BTreeMap::from([(80, protocol)]);
                let service = ServiceHttp { protocols, ..service.clone() };
                assert_eq!(service.is_about_requests(80, None), expected, "{name} {protocol:?}");
            }
        }
    }

    #[test]
    fn traffic_is_that_of_the_subset_then_of_the_port() {
        let policy = |balancing| TrafficPolicy { balancing, ..TrafficPolicy::default() };
        let traffic =
            |all, port| Traffic { all: policy(all), ports: BTreeMap::from([(80, policy(port))]) };
        let mut service = ServiceHttp::named(ServiceName::new("app", "web"));
        service.traffic = traffic(Balancing::LeastRequest, Balancing::Random);
        let own = Traffic { all: policy(Balancing::RoundRobin), ports: BTreeMap::new() };
        let members = ["b", "a", "b"].map(Text::from);
        service.subsets.insert("v1".into(), Subset::new(members.clone(), Some(own)));
        service.subsets.insert("v2".into(), Subset::new(members, None));
        for (port, subset, expected) in [
            (81, None, Balancing::LeastRequest),
            (80, None, Balancing::Random),
            (80, Some("v1"), Balancing::RoundRobin),
            (81, Some("v1"), Balancing::RoundRobin),
            (80, Some("v2"), Balancing::Random),
            (80, Some("v3"), Balancing::Random),
        ] {
            assert_eq!(service.traffic(port, subset).balancing, expected, "{port} {subset:?}");
        }
        let subset = &service.subsets["v1"];
        assert_eq!(subset.members(), ["a".into(), "b".into()]);
    }
}
