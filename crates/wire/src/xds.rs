//! Delta discovery: how a control plane sends the state of the mesh to proxies.
//!
//! [`client`] and [`server`] are the two ends as state machines: they take messages and return
//! messages, and never open a connection, wait or read a clock. [`resources`] is what a server
//! serves, [`retained`] is what a client keeps across connections and restarts, and [`digest`] lets
//! a stream resume without listing every name.
//!
//! | resource | name | aliases |
//! |---|---|---|
//! | workload | its uid | `network/ip` |
//! | service | `namespace/hostname` | `network/ip` or `network/ip/length` |
//! | policy | `namespace/name` | none |
//! | service of layer 7 | `namespace/hostname` | none |
//! | certificate of a gateway | the gateway's, then `/namespace/name` of the Secret | none |
//! | gateway at the edge | `namespace/hostname` | none |
//! | route of a gateway | the gateway's, then `/kind/namespace/name` | none |
//! | policy that reads requests | `namespace/name` | none |

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use ambit_model::service::Service;
use ambit_model::workload::Workload;

mod backoff;
pub mod client;
pub mod digest;
mod held;
pub mod node;
pub mod replies;
pub mod resources;
pub mod retained;
pub mod server;

pub use backoff::Backoff;

/// Largest response, the view of half a million pods: the usual 4 MiB are exceeded by 10,000.
pub const MAX_RESPONSE_BYTES: usize = 200 * 1024 * 1024;
/// Largest request: a proxy that restarts names half a million resources with versions.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;
/// Most fields of a request, each of which may name a resource: names held, names requested, and
/// the few others.
pub const MAX_REQUEST_FIELDS: usize = 1_000_016;
/// The field of a request that is a message of several levels: the node.
pub const NESTED_REQUEST_FIELDS: &[u32] = &[1];

/// The gRPC service of discovery.
pub const DISCOVERY_SERVICE: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
/// The path of its method for delta discovery, as both ends call it.
pub const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Subscribes to everything; together with an unsubscription from it, to nothing.
pub const WILDCARD: &str = "*";

/// Bytes of the content hash that make a version.
const VERSION_BYTES: usize = 16;
/// Length of such a version in text.
const VERSION_LEN: usize = 2 * VERSION_BYTES;

/// A kind of resource that is discovered.
///
/// The order is that of sending: a policy arrives before what names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceType {
    /// Layer-4 policies.
    Authorization,
    /// Policies that read requests. Only waypoints ask for them, and only by name.
    RequestPolicy,
    /// Services of layer 7. Only waypoints ask for them, and only by name.
    HttpService,
    /// Certificates with their keys. Only the gateway that serves one asks for it, by name.
    Certificate,
    /// Gateways at the edge, and with each the routes that are attached to it. Only they themselves
    /// ask for them, and only by name.
    Gateway,
    /// Workloads and services.
    Address,
    /// Workloads alone.
    Workload,
}

/// A type URL that is not served here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource type {0:?} is not served; subscribe to Address, Workload or Authorization")]
pub struct UnknownType(pub(crate) String);

impl ResourceType {
    /// All of them, in the order of sending.
    pub const ALL: [Self; 7] = [
        Self::Authorization,
        Self::RequestPolicy,
        Self::HttpService,
        Self::Certificate,
        Self::Gateway,
        Self::Address,
        Self::Workload,
    ];

    /// The URL that names it on the wire.
    pub fn url(self) -> &'static str {
        match self {
            Self::Authorization => "type.googleapis.com/istio.security.Authorization",
            Self::RequestPolicy => "type.googleapis.com/ambit.http.RequestPolicy",
            Self::HttpService => "type.googleapis.com/ambit.http.Service",
            Self::Certificate => "type.googleapis.com/ambit.http.Certificate",
            Self::Gateway => "type.googleapis.com/ambit.http.GatewayResource",
            Self::Address => "type.googleapis.com/istio.workload.Address",
            Self::Workload => "type.googleapis.com/istio.workload.Workload",
        }
    }

    /// Whether it holds private keys: it is never kept elsewhere, such as on a disk.
    pub(crate) fn is_secret(self) -> bool {
        self == Self::Certificate
    }

    /// Whether it is only for those who ask for it by name.
    pub fn is_only_by_name(self) -> bool {
        matches!(self, Self::RequestPolicy | Self::HttpService | Self::Certificate | Self::Gateway)
    }

    /// Whether a resource that cannot be read takes its previous version with it. That of layer 7
    /// might allow or route what the new one does not; without any, requests are refused.
    pub(crate) fn is_void_if_unreadable(self) -> bool {
        matches!(self, Self::RequestPolicy | Self::HttpService | Self::Gateway)
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url())
    }
}

impl FromStr for ResourceType {
    type Err = UnknownType;

    fn from_str(url: &str) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|it| it.url() == url).ok_or_else(|| UnknownType(url.into()))
    }
}

/// The version of a resource: a hash of its content, so that replicas and restarts agree on it.
pub fn content_version(body: &[u8]) -> String {
    let hash = Sha256::digest(body);
    let mut version = String::with_capacity(VERSION_LEN);
    for byte in &hash[..VERSION_BYTES] {
        for nibble in [byte >> 4, byte & 0xf] {
            version.push(char::from_digit(nibble.into(), 16).expect("a nibble is a hex digit"));
        }
    }
    version
}

/// The other names of a workload: its addresses, unless they are its node's.
pub(crate) fn workload_aliases(workload: &Workload) -> Vec<String> {
    if workload.host_network {
        return Vec::new();
    }
    workload.addresses.iter().map(|ip| format!("{}/{ip}", workload.network)).collect()
}

/// The other names of a service: its virtual addresses.
pub(crate) fn service_aliases(service: &Service) -> Vec<String> {
    let alias = |it: &ambit_model::service::VirtualAddress| match it.prefix_len {
        Some(length) => format!("{}/{length}", it.address),
        None => it.address.to_string(),
    };
    service.addresses.iter().map(alias).collect()
}
