//! What is told of the requests to a service, and to whom: access logs, traces and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Text;
use crate::expression::Expression;
use crate::http::access_log::Format;
use crate::http::rule::Fraction;
use crate::names::ServiceName;

/// The part of new traces that is recorded where nothing else is said: 1 %, as in Istio.
pub const DEFAULT_SAMPLING: Fraction = Fraction { numerator: 1, denominator: 100 };
/// Bytes of a tag's value where nothing else is said, as in Istio.
pub const DEFAULT_TAG_BYTES: usize = 256;
/// How long an export may take where nothing else is said.
pub const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is told of the requests to one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// Where each request is logged, none is a log that is off; `None`: as the proxy is set.
    pub access_logs: Option<Vec<FilteredLog>>,
    /// Whether requests are traced; `None`: as the proxy is set.
    pub tracing: Option<Tracing>,
    /// What is changed of metrics; `None`: nothing.
    pub metrics: Option<Arc<MetricChanges>>,
}

/// What is changed of metrics, by metric.
pub type MetricChanges = BTreeMap<Metric, MetricChange>;

/// A metric of requests, under the name that Istio's Telemetry has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// `REQUEST_COUNT`: `istio_requests_total`.
    RequestCount,
    /// `REQUEST_DURATION`: `istio_request_duration_milliseconds`.
    RequestDuration,
    /// `REQUEST_SIZE`: `istio_request_bytes`.
    RequestSize,
    /// `RESPONSE_SIZE`: `istio_response_bytes`.
    ResponseSize,
    /// `GRPC_REQUEST_MESSAGES`: `istio_request_messages_total`.
    RequestMessages,
    /// `GRPC_RESPONSE_MESSAGES`: `istio_response_messages_total`.
    ResponseMessages,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::RequestCount,
        Self::RequestDuration,
        Self::RequestSize,
        Self::ResponseSize,
        Self::RequestMessages,
        Self::ResponseMessages,
    ];

    /// Its name in a Telemetry.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestCount => "REQUEST_COUNT",
            Self::RequestDuration => "REQUEST_DURATION",
            Self::RequestSize => "REQUEST_SIZE",
            Self::ResponseSize => "RESPONSE_SIZE",
            Self::RequestMessages => "GRPC_REQUEST_MESSAGES",
            Self::ResponseMessages => "GRPC_RESPONSE_MESSAGES",
        }
    }
}

/// What is changed of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricChange {
    /// Whether nothing is counted.
    pub is_off: bool,
    /// What is changed of its labels, by name.
    pub labels: BTreeMap<Text, LabelChange>,
}

/// What is changed of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelChange {
    /// It is left out.
    Removed,
    /// It is this, whether it was there or not.
    Is(Text),
    /// It is the value of this expression, `unknown` where there is none.
    Value(Expression),
}

/// What expressions of a Telemetry may name: a request that has ended, or a connection that is no
/// HTTP, which has no `request` and no `response`.
pub const NAMES: [&str; 27] = [
    "request.method",
    "request.path",
    "request.url_path",
    "request.query",
    "request.host",
    "request.scheme",
    "request.protocol",
    "request.headers",
    "request.useragent",
    "request.referer",
    "request.id",
    "request.size",
    "request.duration_ms",
    "response.code",
    "response.code_details",
    "response.flags",
    "response.grpc_status",
    "response.size",
    "source.principal",
    "source.namespace",
    "source.address",
    "destination.principal",
    "destination.service",
    "destination.port",
    "upstream.address",
    "xds.route_name",
    "connection.mtls",
];

/// Which requests are logged to a place.
#[derive(Clone, Debug, PartialEq)]
pub struct FilteredLog {
    /// The place.
    pub log: AccessLog,
    /// What must be true of a request; what is an error is not logged.
    pub filter: Option<Expression>,
}

/// A place to which requests are logged.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessLog {
    /// The proxy's output.
    Lines(Arc<Format>),
    /// A collector.
    Collector {
        /// Who.
        collector: Arc<Collector>,
        /// The record's body.
        body: Arc<Format>,
        /// The record's attributes.
        attributes: Arc<Format>,
    },
}

impl AccessLog {
    /// Whether a field of the response is asked for that the proxy does not know anyway.
    pub fn reads_response(&self) -> bool {
        match self {
            Self::Lines(format) => format.reads_response(),
            Self::Collector { body, attributes, .. } => {
                body.reads_response() || attributes.reads_response()
            }
        }
    }
}

/// Whether requests are traced.
#[derive(Clone, Debug, PartialEq)]
pub enum Tracing {
    /// They are not; what clients say of traces is passed on as it is.
    Off,
    /// They are.
    On(Arc<Spans>),
}

/// How requests are traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Spans {
    /// Who gets the spans.
    pub collector: Arc<Collector>,
    /// The part of new traces that is recorded. A trace that has begun elsewhere is recorded if it
    /// is there.
    pub sampling: Fraction,
    /// Whether the request says that it is a part of this proxy's span.
    pub is_passed_on: bool,
    /// Tags of every span besides those that all have.
    pub tags: Vec<(Text, Tag)>,
    /// Bytes of a tag's value.
    pub max_tag_bytes: usize,
}

/// Where a tag's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// It is this.
    Literal(Text),
    /// A field of the request, in lower case; without it the default, and without that no tag.
    Header(Text, Option<Text>),
    /// A variable of the proxy's environment, likewise.
    Environment(Text, Option<Text>),
}

/// A receiver of OpenTelemetry's protocol (OTLP).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    /// Where it is.
    pub place: Place,
    /// How it is spoken to.
    pub way: Way,
    /// How long an export may take.
    pub timeout: Duration,
}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A service of the mesh.
    Service(ServiceName, u16),
    /// A host and a port, in plain text.
    Host(Text, u16),
}

/// How a collector is spoken to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// gRPC, with this metadata.
    Grpc(Vec<(Text, Text)>),
    /// Protobuf in HTTP/1.1 POST, with these fields. `path` is that of spans; logs go to the same
    /// with `traces` replaced by `logs`.
    Http {
        /// The path of spans, `/v1/traces` in the standard.
        path: Text,
        /// Fields of each request.
        headers: Vec<(Text, Text)>,
    },
}

impl Way {
    /// The standard's path of spans.
    pub const TRACES: &str = "/v1/traces";
}
