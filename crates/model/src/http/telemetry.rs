//! What is told of the requests to a service, and to whom: access logs and traces.

use std::sync::Arc;
use std::time::Duration;

use crate::Text;
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
    pub access_logs: Option<Vec<AccessLog>>,
    /// Whether requests are traced; `None`: as the proxy is set.
    pub tracing: Option<Tracing>,
}

/// A place to which each request is logged.
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
