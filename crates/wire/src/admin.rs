//! The administration of control and of the node proxy: the JSON of both ends, and what `-o json`
//! prints.
//!
//! # The contract
//!
//! * Every answer is an object with `"apiVersion": "admin.ambit.io/v1"` ([`ApiVersion`]). Errors
//!   are `{"error": "..."}` in every version ([`Refusal`]). `/config_dump` is ztunnel's and has no
//!   version.
//! * Within a version fields are only added. No field changes its name, type, unit or meaning, and
//!   none goes away. Any other change needs a new version. The order of fields means nothing.
//! * A reader ignores fields that it does not know: they come from a newer writer.
//! * A reader refuses another version, and an answer without one of the fields below. A missing
//!   field would look like good news: an empty list of problems.
//! * A field that is added later is an [`Option`] at the reader. Where it says whether all is well,
//!   a reader shows its absence as unknown.
//! * A word of an open set ([`Word`]) may be one that the reader does not know. The reader shows it
//!   unchanged, and does not treat it as good news.
//!
//! Names are camelCase, and Kubernetes' own where it has one. Times are RFC 3339 in UTC, durations
//! say their unit in their name, sizes are bytes. Nothing here can hold a key or a token.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

mod authority;
mod lists;
mod proxy;
mod routes;
mod status;
mod why;

pub use authority::{
    Certificates, IssuedCertificate, Revocation, RevokedCertificate, RevokedNow, Rotation,
    RotationPhase, RotationStatus,
};
pub use lists::{
    AuthorizationPolicy, Canary, Condition, Endpoints, Gateway, GatewayListener, LoadBalancing,
    Locality, Namespace, Node, PeerAuthentication, Pod, Policy, PolicyTarget, Service, ServicePort,
    Telemetry, TrafficPolicy, Workload,
};
pub use proxy::{
    Certificate, CertificateState, Connection, Connections, HeldCertificate, Process, Share,
    ShareSource, Shares,
};
pub use routes::{
    BackendCheck, Bound, ConnectionAnswer, RequestAnswer, RequestLimit, Route, RouteLine,
    RouteParent, RouteRule, RuleEffects,
};
pub use status::{
    Authority, CaptureLack, Discovery, FailingPod, Finding, MeshIdentity, NotAccepted, NotCaptured,
    Objects, OlderConnections, Pods, ProxySync, Registry, Severity, Status, SyncStatus, TypeSync,
};
pub use why::{
    CertificateInForce, Client, DecidingPolicy, Decision, Destination, Explanation, ObjectName,
    Origin, Server,
};

/// The version of the forms below, as every answer carries it.
pub const API_VERSION: &str = "admin.ambit.io/v1";

/// Paths of control's administration.
pub mod control {
    /// [`super::Status`].
    pub const STATUS: &str = "/status";
    /// [`super::Explanation`], with `?src=NAMESPACE/POD&dst=WHERE`, and of a request with
    /// `&method=`, `&path=`, `&host=`, `&headers=` (lines `name: value`), `&claims=` and `&jwt=`.
    /// `&sni=` is the name in the client's TLS handshake.
    pub const WHY: &str = "/why";
    /// [`super::Mark`], by POST.
    pub const MARK: &str = "/mark";
    /// [`super::SyncStatus`].
    pub const SYNC: &str = "/debug/syncz";
    /// A [`super::List`] of [`super::Pod`]. `?namespace=` narrows this list and the next three.
    pub const PODS: &str = "/get/pods";
    /// A list of [`super::Service`].
    pub const SERVICES: &str = "/get/services";
    /// A list of [`super::Workload`].
    pub const WORKLOADS: &str = "/get/workloads";
    /// A list of [`super::Policy`].
    pub const POLICIES: &str = "/get/policies";
    /// A list of [`super::Gateway`]: waypoints, and gateways at the edge. `?namespace=` narrows it.
    pub const GATEWAYS: &str = "/get/gateways";
    /// A list of [`super::Route`]. `?namespace=` narrows it.
    pub const ROUTES: &str = "/get/routes";
    /// A list of [`super::RouteLine`], with `?service=NAMESPACE/NAME`.
    pub const ROUTE_TABLE: &str = "/get/route-table";
    /// A list of [`super::Telemetry`]. `?namespace=` narrows it.
    pub const TELEMETRIES: &str = "/get/telemetries";
    /// A list of [`super::TrafficPolicy`]. `?namespace=` narrows it.
    pub const TRAFFIC_POLICIES: &str = "/get/trafficpolicies";
    /// A list of [`super::Node`].
    pub const NODES: &str = "/get/nodes";
    /// A list of [`super::Namespace`].
    pub const NAMESPACES: &str = "/get/namespaces";
    /// [`super::Certificates`].
    pub const CERTIFICATES: &str = "/ca/certificates";
    /// [`super::RotationStatus`].
    pub const ROTATION: &str = "/ca/rotation";
    /// [`super::RotationStatus`], by POST.
    pub const ROTATE: &str = "/ca/rotate";
    /// [`super::RevokedNow`], by POST of a [`super::Revocation`].
    pub const REVOKE: &str = "/ca/revoke";
}

/// Paths of the node proxy's administration.
pub mod node_proxy {
    /// [`super::Connections`].
    pub const CONNECTIONS: &str = "/connections";
    /// A [`super::List`] of [`super::HeldCertificate`].
    pub const CERTIFICATES: &str = "/certificates";
    /// [`super::Shares`].
    pub const SHARES: &str = "/shares";
    /// [`super::Process`].
    pub const PROCESS: &str = "/process";
}

/// A word of an open set. The field names the words of today.
pub type Word = Cow<'static, str>;

/// The version of an answer's form: reading any other one than [`API_VERSION`] is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "Cow<'_, str>")]
pub struct ApiVersion;

/// An answer of another version than this program reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer is of version {0:?} and this command reads {API_VERSION:?}: use the command of \
     the release that answers"
)]
pub struct OtherVersion(String);

impl From<ApiVersion> for &'static str {
    fn from(_: ApiVersion) -> Self {
        API_VERSION
    }
}

impl TryFrom<Cow<'_, str>> for ApiVersion {
    type Error = OtherVersion;

    fn try_from(text: Cow<'_, str>) -> Result<Self, OtherVersion> {
        if text == API_VERSION { Ok(Self) } else { Err(OtherVersion(text.into_owned())) }
    }
}

/// A list of everything of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The items, in the order of their names.
    pub items: Vec<T>,
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self { api_version: ApiVersion, items: items.into_iter().collect() }
    }
}

/// Why a question has no other answer. It has no version: every reader understands it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The problem and the remedy: a sentence or two.
    pub error: String,
}

/// A mark in what control reads: `registry.mark` of [`Status`] reaches it once control has read
/// everything that was written before the mark was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// A number that grows with every mark, from 1 after a start.
    pub mark: u64,
}

/// Reads a field that may be null and must be present: if it were missing, null could not be
/// distinguished from no report.
fn required<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}
