//! What the engine needs of the place that it runs in.
//!
//! A position accepts connections, knows the mesh, chooses and reaches endpoints, and writes
//! records. The engine knows none of this, so that one engine serves a waypoint, a gateway, a node
//! and a sidecar.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::authorize::Source;
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::{Asked, Custom, RequestJudgement};
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::compression::Compressions;
use ambit_model::http::head as model;
use ambit_model::http::limits::Limits;
use ambit_model::http::rate_limit::RateLimits;
use ambit_model::http::rule::{Destination, Origin};
use ambit_model::http::table::{Found, RouteTable};
use ambit_model::http::telemetry::Spans;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::ServiceName;
use ambit_model::workload::Workload;

use crate::engine::halves::BoxStream;
use crate::engine::rate_limit::buckets::Buckets;
use crate::engine::record::{CheckedAs, Record};
use crate::head::{RequestHead, Scheme};

/// A connection as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The client, as far as it is proven.
    pub source: Source,
    /// The client's workload, if the mesh knows it.
    pub workload: Option<Arc<Workload>>,
    /// The client's socket.
    pub client: SocketAddr,
    /// What it connected to: a service's address and port, or a workload's.
    pub destination: SocketAddr,
    /// Whether the client's own bytes came over TLS.
    pub scheme: Scheme,
    /// What is known of a connection from outside of the mesh; `None` for one from within, whose
    /// proxy says what is true.
    pub outside: Option<Box<Outside>>,
}

impl Arrival {
    /// The name that the TLS of a connection from outside has asked for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.outside.as_ref()?.server_name.as_ref()?.as_deref()
    }
}

/// A connection from outside of the mesh.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// The name that its TLS has asked for, in lower case; `None` without TLS.
    pub server_name: Option<Option<Text>>,
    /// What its certificate says, as it is written in X-Forwarded-Client-Cert; only of one that was
    /// verified.
    pub certificate: Option<Text>,
    /// How many proxies before this one are believed, by what they have added to fields.
    pub trusted_hops: usize,
    /// The gateway that has taken it, as the mesh knows it.
    pub gateway: Option<Arc<Workload>>,
}

/// What the routes of a connection say of a request.
#[derive(Clone, Copy, Debug)]
pub enum Routed<'a> {
    /// None are attached, so that it goes where it would go anyway.
    Anyway,
    /// A rule answers it.
    To(Found<'a>),
    /// Some are attached, and none answers it: it goes nowhere.
    Nowhere,
    /// Its host is served here, but not by what this connection's TLS has asked for.
    Misdirected,
}

impl<'a> Routed<'a> {
    /// As a table of routes says it, where there is one.
    pub fn by(table: Option<&'a RouteTable>, head: &model::RequestHead<'_>) -> Self {
        match table {
            None => Self::Anyway,
            Some(table) => table.find(head).map_or(Self::Nowhere, Self::To),
        }
    }
}

/// What holds for the requests of a connection at this moment.
pub trait Rules {
    /// What answers a request for this host, in lower case, and path before all else: the proof to
    /// a directory that the host is served here (RFC 8555, 8.3).
    fn challenge(&self, _host: &str, _path: &str) -> Option<&Text> {
        None
    }
    /// Who answers a request of this client.
    fn route(&self, head: &model::RequestHead<'_>) -> Routed<'_>;
    /// The authorization services that policies name.
    fn authorizers(&self) -> &BTreeMap<Text, Arc<Authorizer>>;
    /// Which tokens of requests are accepted.
    fn authentication(&self) -> &Authentication;
    /// The service that is asked, and how many requests to it may come.
    fn rate_limits(&self) -> (&ServiceName, &RateLimits);
    /// How much requests may be, where something says otherwise than the settings.
    fn limits(&self) -> &Limits;
    /// Which responses are compressed.
    fn compression(&self) -> &Compressions;
    /// Whether a request may pass.
    fn judge(&self, asked: &Asked<'_>) -> RequestJudgement;
    /// Whether those who made a route speak for the service that is asked. Others, clients that
    /// route their own requests, may not say what only proxies say.
    fn is_own(&self, route: &Origin) -> bool;
    /// Whether a request may be sent on as it is now, for a destination whose policies have not
    /// judged it so, by this route; `None` for all others.
    fn judge_destination(
        &self,
        to: &Goal<'_>,
        by: &Origin,
        asked: &Asked<'_>,
    ) -> Option<RequestJudgement>;
    /// Counts up when a judgement may come out otherwise.
    fn policies_version(&self) -> u64;
    /// How requests to a destination are spread and bounded.
    fn traffic(&self, destination: &Goal<'_>) -> &TrafficPolicy;
    /// The version of HTTP that a destination's port speaks, if that is declared.
    fn version(&self, destination: &Goal<'_>) -> Option<Version>;
    /// How requests are traced, if they are.
    fn spans(&self) -> Option<&Arc<Spans>>;
    /// Whether the record is to have the fields of the response.
    fn keeps_response(&self) -> bool;
}

/// The version of HTTP towards endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub enum Goal<'a> {
    /// Where the connection went to anyway, since no route says otherwise.
    Original,
    /// A backend of a route.
    Backend(&'a Destination),
}

impl<'a> Goal<'a> {
    /// The subset of a service that is meant.
    pub fn subset(self) -> Option<&'a str> {
        match self {
            Self::Backend(Destination::Service { subset, .. }) => subset.as_deref(),
            _ => None,
        }
    }
}

/// What is asked of the choice of an endpoint.
pub struct EndpointAsk<'a> {
    /// The connection.
    pub arrival: &'a Arrival,
    /// Where the request goes.
    pub goal: Goal<'a>,
    /// The host that the client asks for, without a port, if it asks for one.
    pub host: Option<&'a str>,
    /// What decides the endpoint, where a hash does.
    pub hash: Option<u64>,
    /// The endpoint that the client's session names, by the hash of its name
    /// ([`crate::engine::hash_of`]).
    pub pinned: Option<u64>,
    /// Endpoints that were tried for this request.
    pub tried: &'a [Text],
    /// Whether an endpoint is left out because it fails.
    pub is_ejected: &'a dyn Fn(&str) -> bool,
}

/// An endpoint, and how the position reaches it.
#[derive(Clone, Debug)]
pub struct Endpoint<W> {
    /// Its name.
    pub uid: Text,
    /// Its address and port.
    pub address: SocketAddr,
    /// What the mesh knows of it.
    pub workload: Option<Arc<Workload>>,
    /// Connections of different kinds are never shared.
    pub kind: u64,
    /// How many endpoints there are beside it, itself included.
    pub alternatives: usize,
    /// How it is reached.
    pub way: W,
}

/// What an authorization service has answered for a policy on trial.
pub struct Trial<'a> {
    /// The provider, and the rule that names it.
    pub custom: &'a Custom,
    /// The request.
    pub head: &'a RequestHead,
    /// What it has answered.
    pub outcome: CheckedAs,
    /// Why, in a sentence; empty if it allows.
    pub details: String,
}

/// Why no endpoint takes a request.
#[derive(Debug)]
pub struct Unreachable {
    /// One word for the log.
    pub reason: &'static str,
    /// A sentence for the operator.
    pub text: String,
}

impl Unreachable {
    /// The reason of an endpoint whose own policies do not admit this proxy.
    pub const DENIED: &'static str = "denied_at_destination";

    /// Whether policies at the endpoint say so. It is well then, and says the same if it is asked
    /// again.
    pub fn is_denial(&self) -> bool {
        self.reason == Self::DENIED
    }
}

/// The place that an engine runs in.
pub trait Position: 'static {
    /// How an endpoint is reached.
    type Way: Clone;
    /// What holds for the requests of a connection.
    type Rules: Rules;

    /// What holds now; `None` if the control plane has not said it yet.
    fn rules(&self, arrival: &Arrival) -> impl Future<Output = Option<Self::Rules>>;

    /// Waits until a judgement may come out otherwise than by this version of the policies; returns
    /// the version by which it may.
    fn policies_changed(&self, version: u64) -> impl Future<Output = u64>;

    /// Waits until this position stands before the connection's destination no more. What is under
    /// way goes on; the client is asked to connect again, which leads elsewhere.
    fn withdrawn(&self, arrival: &Arrival) -> impl Future<Output = ()>;

    /// Waits until what policies must be able to end may go on no longer, because this position was
    /// withdrawn and hears of them no more.
    fn deserted(&self, arrival: &Arrival) -> impl Future<Output = ()>;

    /// Chooses an endpoint.
    fn choose(&self, ask: &EndpointAsk<'_>) -> Result<Endpoint<Self::Way>, Unreachable>;

    /// Whether there still is an endpoint of this name.
    fn is_there(&self, uid: &str) -> bool;

    /// Opens a connection to an endpoint.
    fn connect(
        &self,
        arrival: &Arrival,
        endpoint: &Endpoint<Self::Way>,
    ) -> impl Future<Output = Result<BoxStream, Unreachable>>;

    /// The counts of limits, which all threads of the process share.
    fn buckets(&self) -> &Buckets;

    /// A random number below `bound`, which is at least 1.
    fn random_below(&self, bound: u64) -> u64;

    /// The name under which this proxy adds itself to a request, its identity.
    fn own_name(&self) -> &str;

    /// A service was asked for a policy on trial; its request may have ended.
    fn trial(&self, arrival: &Arrival, trial: &Trial<'_>);

    /// A request has ended.
    fn record(&self, arrival: &Rc<Arrival>, record: &Record);

    /// A client's connection was ended because of what the client did besides its requests; `why`
    /// is one word of a fixed set.
    fn cut(&self, arrival: &Arrival, why: &'static str);
}
