//! What is known of a request, or of a connection that is no HTTP, when it has ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::Record;
use ambit_model::http::rule::Origin;
use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::trace::TraceParent;
use ambit_model::workload::Workload;

/// The proxy itself, as lines and spans name it.
pub(crate) struct Names {
    /// Its pod.
    pub(crate) pod: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its identity.
    pub(crate) identity: String,
    /// How the control plane knows it.
    pub(crate) node_id: String,
    /// How collectors name it, GATEWAY.NAMESPACE.
    pub(crate) service: String,
    /// Tags of every span that say who it is.
    pub(crate) tags: Vec<(&'static str, String)>,
    /// The variables of its environment that tags may show.
    pub(crate) variables: BTreeMap<String, String>,
}

/// What is known of a request, or of a connection that is no HTTP.
pub(crate) struct Entry<'a> {
    pub(crate) names: &'a Names,
    pub(crate) arrival: &'a Arrival,
    /// What was asked for, if the mesh knows it.
    pub(crate) service: Option<&'a Service>,
    pub(crate) started: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) workload: Option<&'a Workload>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// Why the connection ended, if not by itself.
    pub(crate) error: Option<&'a str>,
    /// The host in the TLS handshake of a connection that is no HTTP.
    pub(crate) server_name: Option<&'a str>,
    /// Where the rule is written that took it.
    pub(crate) route: Option<&'a Origin>,
    /// The request.
    pub(crate) record: Option<&'a Record>,
}

/// A connection that is no HTTP, as the access log has it.
pub(crate) struct Passage<'a> {
    pub(crate) arrival: &'a Arrival,
    started: Instant,
    /// The endpoint that it went to, or should have.
    pub(crate) endpoint: Option<SocketAddr>,
    /// What the mesh knows of that endpoint.
    pub(crate) workload: Option<Arc<Workload>>,
    /// The service that its route leads to, if it has one.
    pub(crate) service: Option<&'a ServiceName>,
    /// Where the rule that took it is written.
    pub(crate) route: Option<&'a Origin>,
    /// The host in its TLS handshake.
    pub(crate) server_name: Option<&'a str>,
    /// Bytes from and to the client.
    pub(crate) bytes: (u64, u64),
}

impl<'a> Passage<'a> {
    /// One that begins now.
    pub(crate) fn new(arrival: &'a Arrival) -> Self {
        Self {
            arrival,
            started: Instant::now(),
            endpoint: None,
            workload: None,
            service: None,
            route: None,
            server_name: None,
            bytes: (0, 0),
        }
    }
}

impl<'a> Entry<'a> {
    /// Of a request.
    pub(crate) fn of_request(
        names: &'a Names,
        arrival: &'a Arrival,
        record: &'a Record,
        service: Option<&'a Service>,
    ) -> Self {
        let duration = record.started.elapsed();
        let tried = record.endpoint.as_ref();
        Self {
            names,
            arrival,
            service,
            started: SystemTime::now() - duration,
            duration,
            endpoint: tried.map(|it| it.address),
            workload: tried.and_then(|it| it.workload.as_deref()),
            received_bytes: record.received_bytes,
            sent_bytes: record.sent_bytes,
            error: None,
            server_name: None,
            route: record.route.as_ref(),
            record: Some(record),
        }
    }

    /// Of a connection that is no HTTP; `error` says why it ended, if not by itself.
    pub(crate) fn of_connection(
        names: &'a Names,
        passage: &'a Passage<'a>,
        service: Option<&'a Service>,
        error: Option<&'a str>,
    ) -> Self {
        let duration = passage.started.elapsed();
        Self {
            names,
            arrival: passage.arrival,
            service,
            started: SystemTime::now() - duration,
            duration,
            endpoint: passage.endpoint,
            workload: passage.workload.as_deref(),
            received_bytes: passage.bytes.0,
            sent_bytes: passage.bytes.1,
            error,
            server_name: passage.server_name,
            route: passage.route,
            record: None,
        }
    }

    /// A field of the request; of several with this name the first.
    pub(crate) fn field(&self, name: &str) -> Option<&'a [u8]> {
        let head = self.record?.head.as_ref()?;
        if name.eq_ignore_ascii_case("host") {
            return Some(head.authority().as_str().as_bytes());
        }
        let mut fields = head.fields.iter();
        let named = fields.find(|it| it.name.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|it| it.value)
    }

    /// The identity that the endpoint must prove.
    pub(crate) fn endpoint_identity(&self) -> Option<Identity> {
        self.workload.map(Workload::identity)
    }

    /// The trace that the request belongs to, here or for its client alone.
    pub(crate) fn trace(&self) -> Option<TraceParent> {
        let own = self.record?.traced.as_ref().map(|it| it.own);
        own.or_else(|| std::str::from_utf8(self.field("traceparent")?).ok()?.parse().ok())
    }

    /// The route's rule, as Istio names it.
    pub(crate) fn route_name(&self) -> Option<String> {
        self.record.map(drop).or(self.route.map(drop))?;
        Some(self.route.map_or_else(
            || "default".to_owned(),
            |it| format!("{}.{}.{}", it.namespace, it.name, it.index),
        ))
    }

    /// The service and its port, as the clusters of Istio's waypoints are named.
    pub(crate) fn cluster(&self) -> Option<String> {
        let (service, port) = (self.service?, self.arrival.destination.port());
        let kind = if self.record.is_some() { "http" } else { "tcp" };
        Some(format!("inbound-vip|{port}|{kind}|{}", service.key.hostname))
    }
}
