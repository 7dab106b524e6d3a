//! Routes and their tables: `/get/routes` and `/get/route-table`, which `ambit get routes` and
//! `ambit routes` print.

use serde::{Deserialize, Serialize};

use super::{Condition, Word};

/// A route as a user wrote it, with what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// `HTTPRoute`, `GRPCRoute`, `TLSRoute`, `TCPRoute`, `UDPRoute` or `VirtualService`.
    pub kind: Word,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How many rules it has.
    pub rules: usize,
    /// The Services and ServiceEntries that it attaches to, or the hosts of a VirtualService.
    pub parents: Vec<RouteParent>,
}

/// What a route attaches to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteParent {
    /// `Service`, `ServiceEntry`, `Gateway` or `host`.
    pub kind: Word,
    /// `NAMESPACE/NAME`; a host as it is written.
    pub name: String,
    /// Whether it routes there, and whether all of it can be honoured. Of a Gateway of another
    /// controller there are none.
    pub conditions: Vec<Condition>,
}

/// One match of one rule in the table of a service's port. A list of them is in the order in which
/// a waypoint asks them, for each port and each kind of client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteLine {
    /// The port of the service.
    pub port: u16,
    /// The namespace whose clients it is for; null for all that have no routes of their own.
    pub client_namespace: Option<String>,
    /// What a request or connection must be, in words.
    pub matches: String,
    /// What becomes of it, in words.
    pub action: String,
    /// What the rule does beside.
    #[serde(flatten)]
    pub effects: RuleEffects,
    /// Where the rule is written.
    #[serde(flatten)]
    pub rule: RouteRule,
}

/// What a rule does beside sending a request on, in words. Each field is absent where there is
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleEffects {
    /// Faults that are made on purpose, and for how many requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// What changes of host and path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<String>,
    /// Changes of the fields of requests and responses: `request: set x-team: ops`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Who else gets a copy, and of how many requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The web pages that may read the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
}

/// Where a rule of a route is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// `HTTPRoute`, `GRPCRoute`, `VirtualService`, `TLSRoute`, `TCPRoute` or `UDPRoute`.
    pub kind: Word,
    /// The route, `NAMESPACE/NAME`.
    pub route: String,
    /// Which of its rules, from 0.
    pub rule: u32,
    /// The rule's own name, if it has one.
    pub rule_name: Option<String>,
}

/// What a waypoint does with a request, for `/why` with a method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAnswer {
    /// The waypoint's service, `NAMESPACE/HOSTNAME`.
    pub waypoint: String,
    /// The method.
    pub method: String,
    /// The host that routes and policies compare.
    pub host: String,
    /// The path that routes and policies compare: normalised, without its query.
    pub path: String,
    /// The rule that answers; absent where no route is attached, or none matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RouteRule>,
    /// What of the rule matches, in words; absent without a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// What becomes of the request if it may pass, in words.
    pub action: String,
    /// The status of the waypoint's own answer; absent if an endpoint answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What the rule does beside.
    #[serde(flatten)]
    pub effects: RuleEffects,
    /// The limits that count it if it may pass; absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<RequestLimit>,
    /// How much it may be and how long it may take, as far as an object says so; absent where none
    /// does. What none says is as the waypoint is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bound>,
    /// The health checks of the services that it may go to; absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<BackendCheck>,
}

/// A limit of how many requests may come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestLimit {
    /// The TrafficPolicy, `NAMESPACE/NAME`.
    pub policy: String,
    /// The name of the limit in it.
    pub limit: String,
    /// How many requests may come, and who counts, in words.
    pub quota: String,
    /// What tells the sender apart, as `KEY=VALUE`; empty where all senders have one count.
    pub sender: String,
    /// What the request costs of it.
    pub cost: u32,
    /// Whether requests are refused for it; otherwise it only counts and reports.
    pub enforced: bool,
}

/// How much a request or a connection may be, or how long it may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// What is bounded, as the object's field names it: `maxBodyBytes`, `maxConnections`.
    pub bound: Word,
    /// How much, in words: a number, or a duration with its unit.
    pub value: String,
    /// The service for which it holds, `NAMESPACE/HOSTNAME`; null if it holds for the request,
    /// wherever it goes.
    pub service: Option<String>,
    /// Where it is written: `KIND NAMESPACE/NAME`, and `rule N` of a route.
    pub from: String,
}

/// How the endpoints of a service are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendCheck {
    /// The service, `NAMESPACE/HOSTNAME`.
    pub service: String,
    /// What is asked and how often, and what follows, in words.
    pub check: String,
    /// Where it is written: `TrafficPolicy NAMESPACE/NAME`.
    pub from: String,
}

/// What a waypoint does with a connection to a port that carries no HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionAnswer {
    /// The waypoint's service, `NAMESPACE/HOSTNAME`.
    pub waypoint: String,
    /// What the port carries: `TLS` or `TCP`.
    pub protocol: Word,
    /// The name in the client's TLS handshake; null if it names none.
    pub server_name: Option<String>,
    /// The rule that takes it; absent where no route is attached, or none takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RouteRule>,
    /// What of the rule matches, in words; absent without a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// What becomes of it if it may pass, in words.
    pub action: String,
    /// As for a request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<Bound>,
    /// As for a request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_checks: Vec<BackendCheck>,
}
