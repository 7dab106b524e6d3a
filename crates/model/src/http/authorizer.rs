//! Authorization services: what a CUSTOM policy's provider is, and how it is asked (Envoy's
//! ext_authz).
//!
//! Nothing here asks anybody. A service that cannot be asked denies, unless [`Check::fail_open`]
//! says otherwise.

use std::time::Duration;

use crate::Text;
use crate::http::rule::Destination;
use crate::policy::TextMatch;

/// How long a provider may take where nothing is said. Istio's ten minutes would keep every client
/// waiting for a service that hangs.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The status of requests that were not judged, where nothing is said.
const DEFAULT_STATUS_ON_ERROR: u16 = 403;

/// A provider, as a waypoint asks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorizer {
    /// Where it is. One that does not exist denies.
    pub destination: Destination,
    /// How it is asked.
    pub check: Check,
}

/// How a provider is asked, and what holds if it does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it speaks.
    pub call: Call,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether requests pass if it does not answer. Only where somebody has written so.
    pub fail_open: bool,
    /// The status of requests that it does not answer, if they do not pass.
    pub status_on_error: u16,
    /// How much of a request's body it sees; nothing if absent.
    pub body: Option<BodyCheck>,
}

impl Authorizer {
    /// A provider that cannot be asked, and why: it denies.
    pub fn missing(reason: impl Into<Text>) -> Self {
        Self { destination: Destination::Invalid(reason.into()), check: Check::default() }
    }
}

impl Default for Check {
    fn default() -> Self {
        Self {
            call: Call::Grpc,
            timeout: DEFAULT_TIMEOUT,
            fail_open: false,
            status_on_error: DEFAULT_STATUS_ON_ERROR,
            body: None,
        }
    }
}

/// What a provider speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// gRPC: `envoy.service.auth.v3.Authorization`.
    Grpc,
    /// HTTP: a request that resembles the one that is judged.
    Http(HttpCall),
}

/// A check over HTTP: what of the request is sent, and what of the answer is used. Names of fields
/// are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpCall {
    /// What is put before the path.
    pub path_prefix: Text,
    /// Fields of the request that are sent.
    pub include: Vec<TextMatch>,
    /// Fields that are set besides.
    pub additional: Vec<(Text, Text)>,
    /// Fields of an answer that allows, which are set in the request.
    pub to_upstream_on_allow: Vec<TextMatch>,
    /// Fields of an answer that denies, which the client gets; `None` for all.
    pub to_downstream_on_deny: Option<Vec<TextMatch>>,
    /// Fields of an answer that allows, which are set in the response.
    pub to_downstream_on_allow: Vec<TextMatch>,
}

/// How much of a request's body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyCheck {
    /// At most so much.
    pub max_bytes: u32,
    /// Whether a longer body is cut; otherwise the request is refused with 413.
    pub allow_partial: bool,
    /// Whether gRPC gets it as bytes instead of text.
    pub as_bytes: bool,
}
