//! What holds for the requests of one connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::position::{Arrival, Goal, Routed, Rules, Version};
use ambit_model::Text;
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::{Asked, RequestJudgement, authorize};
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::bytes::{BytesRule, Connection, NoBytesRoute};
use ambit_model::http::compression::Compressions;
use ambit_model::http::elsewhere;
use ambit_model::http::gateway::{Gateway, HostRoutes};
use ambit_model::http::head as model;
use ambit_model::http::limits::Limits;
use ambit_model::http::passing::Passing;
use ambit_model::http::rate_limit::RateLimits;
use ambit_model::http::rule::{Destination, Origin};
use ambit_model::http::service::{Protocol, ServiceHttp};
use ambit_model::http::telemetry::Spans;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::view::View;

use super::said::{NO_TRAFFIC, traffic};
use crate::hello::{HELLO_TIMEOUT, ServerName};
use crate::shared::Shared;

/// A gateway, as one connection may ask it.
pub(super) struct AtGateway {
    pub(super) gateway: Arc<Gateway>,
    /// The name that its TLS has asked for; `None` without TLS.
    pub(super) asked_for: Option<Option<Text>>,
}

/// What holds for the requests of one connection.
pub(crate) struct Holds {
    pub(super) view: Arc<View>,
    pub(super) http: Arc<ServiceHttp>,
    pub(super) port: u16,
    pub(super) namespace: Option<Text>,
    /// The gateway that this is, and which of its listeners the connection may ask.
    pub(super) gateway: Option<AtGateway>,
    /// Whose routes speak for all that this position stands before.
    pub(super) makers: Text,
    pub(super) shared: Arc<Shared>,
    /// Of the policies that are in force, which a view of before does not know.
    pub(super) version: u64,
}

impl Holds {
    /// How long the first message of a client is waited for, if anybody asks for the name in it.
    /// `detect` is for ports of which it is not declared that they speak TLS.
    pub(crate) fn server_name_patience(&self, detect: Duration) -> Option<Duration> {
        let client = self.namespace.as_deref();
        let limit = match self.http.served_as(self.port, client) {
            Protocol::Tls => HELLO_TIMEOUT,
            _ => detect,
        };
        self.http.asks_for_names(self.port, client).then_some(limit)
    }

    /// The rule that takes a connection; `None` where no routes are attached, so that it goes where
    /// it would go anyway. An error says that routes are attached and none takes it.
    pub(crate) fn bytes_rule(
        &self,
        destination: SocketAddr,
        server_name: Option<&str>,
    ) -> Result<Option<&BytesRule>, NoBytesRoute> {
        let client_namespace = self.namespace.as_deref();
        if let Some(AtGateway { gateway, .. }) = &self.gateway {
            let destination = destination.ip();
            let connection = Connection { server_name, destination, client_namespace };
            return gateway.bytes_rule(self.port, &connection).map(Some);
        }
        let Some(table) = self.http.bytes_routes(self.port, client_namespace) else {
            return Ok(None);
        };
        let destination = destination.ip();
        let (_, rule) = table.find(&Connection { server_name, destination, client_namespace })?;
        Ok(Some(rule))
    }

    /// The rule that takes the datagrams of a client.
    pub(crate) fn datagram_rule(&self, destination: IpAddr) -> Result<&BytesRule, NoBytesRoute> {
        let connection = Connection { server_name: None, destination, client_namespace: None };
        match &self.gateway {
            Some(AtGateway { gateway, .. }) => gateway.datagram_rule(self.port, &connection),
            None => Err(NoBytesRoute::of(&connection)),
        }
    }

    /// Whether what comes from outside enters a service at this gateway.
    fn is_entered(&self, name: &ServiceName) -> bool {
        self.gateway.is_some()
            && self.view.service(name).is_some_and(|it| it.enters_at(&self.http.service))
    }

    /// A service of the view by which this holds.
    pub(crate) fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.view.service(name)
    }

    /// A connection that is no HTTP, as policies read it.
    pub(super) fn passing<'a>(&'a self, arrival: &'a Arrival, name: &'a ServerName) -> Passing<'a> {
        Passing {
            source: &arrival.source,
            client_namespace: self.namespace.as_ref(),
            destination: arrival.destination,
            server_name: name.host(),
            is_name_known: *name != ServerName::Unknown,
        }
    }
}

impl Rules for Holds {
    fn challenge(&self, host: &str, path: &str) -> Option<&Text> {
        // A directory asks in plain text.
        let AtGateway { gateway, asked_for: None } = self.gateway.as_ref()? else { return None };
        gateway.challenge(host, path)
    }

    fn route(&self, head: &model::RequestHead<'_>) -> Routed<'_> {
        if let Some(AtGateway { gateway, asked_for }) = &self.gateway {
            let asked_for = asked_for.as_ref().map(Option::as_deref);
            return match gateway.routes(self.port, head.host, asked_for) {
                HostRoutes::Of(listener) => listener.find(head).map_or(Routed::Nowhere, Routed::To),
                HostRoutes::NoListener => Routed::Nowhere,
                HostRoutes::Misdirected => Routed::Misdirected,
            };
        }
        Routed::by(self.http.routes(self.port, self.namespace.as_deref()), head)
    }

    fn authorizers(&self) -> &BTreeMap<Text, Arc<Authorizer>> {
        &self.http.authorizers
    }

    fn authentication(&self) -> &Authentication {
        &self.http.authentication
    }

    fn rate_limits(&self) -> (&ServiceName, &RateLimits) {
        (&self.http.service, &self.http.rate_limits)
    }

    fn limits(&self) -> &Limits {
        &self.http.limits
    }

    fn compression(&self) -> &Compressions {
        &self.http.compression
    }

    fn judge(&self, asked: &Asked<'_>) -> RequestJudgement {
        let asked = Asked { service: Some(&self.http.service), ..*asked };
        authorize(self.view.request_policies_of(&self.http), &asked)
    }

    fn is_own(&self, route: &Origin) -> bool {
        // Whoever runs this waypoint speaks for all that it stands before, and whom a gateway
        // admits speaks for the hosts that it may attach to.
        self.gateway.is_some()
            || route.is_producers(&self.http.service)
            || route.namespace == self.makers
    }

    fn judge_destination(
        &self,
        to: &Goal<'_>,
        by: &Origin,
        asked: &Asked<'_>,
    ) -> Option<RequestJudgement> {
        // What a gateway sends on is judged there: by the service's waypoint, which it goes
        // through, by itself when the request has entered the service here, or by the pods' own
        // proxy.
        if self.gateway.is_some() {
            return None;
        }
        let Goal::Backend(Destination::Service { name, port, .. }) = to else { return None };
        elsewhere::judge(&self.view, (&self.http, self.is_own(by)), (name, *port), asked)
    }

    fn policies_version(&self) -> u64 {
        self.version
    }

    fn traffic(&self, goal: &Goal<'_>) -> &TrafficPolicy {
        match goal {
            Goal::Original => self.http.traffic(self.port, None),
            // What holds there is asked when it has entered.
            Goal::Backend(Destination::Service { name, .. }) if self.is_entered(name) => {
                &NO_TRAFFIC
            }
            Goal::Backend(Destination::Service { name, port, subset }) => {
                traffic(&self.view, name, *port, subset.as_deref())
            }
            Goal::Backend(Destination::Invalid(_)) => &NO_TRAFFIC,
        }
    }

    fn version(&self, goal: &Goal<'_>) -> Option<Version> {
        let protocol = match goal {
            Goal::Original => self.http.protocol(self.port),
            Goal::Backend(Destination::Service { name, port, .. }) => {
                self.view.http_service(name).map_or(Protocol::Detect, |it| it.protocol(*port))
            }
            Goal::Backend(Destination::Invalid(_)) => Protocol::Detect,
        };
        match protocol {
            Protocol::Http => Some(Version::Http1),
            Protocol::Http2 => Some(Version::Http2),
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => None,
        }
    }

    fn spans(&self) -> Option<&Arc<Spans>> {
        self.shared.reports.spans(&self.http.telemetry)
    }

    fn keeps_response(&self) -> bool {
        self.shared.reports.reads_response(&self.http.telemetry)
    }
}
