//! What happens to a connection: `/why`, which `ambit why` prints.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiVersion, ConnectionAnswer, RequestAnswer, Word};

/// What happens to a connection, what decides it, and what would have to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// Who connects.
    pub source: Client,
    /// The newest certificate of the client's identity on its node; null if this replica of control
    /// has issued none.
    pub certificate: Option<CertificateInForce>,
    /// Where to.
    pub destination: Destination,
    /// What the client's proxy does: `tunnel`, `local` (same node), `direct` (plain TCP), `lookup`
    /// (the same to a host that it looks up first), `waypoint` or `refuse`.
    pub plan: Word,
    /// The same as a sentence; absent if the client's proxy refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The server; absent if it is not in the mesh's registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// The decision.
    pub decision: Decision,
    /// The proxy that decides; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// The policy that decides; absent if no single rule does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DecidingPolicy>,
    /// Why: a sentence.
    pub reason: String,
    /// What would have to change; absent unless the connection is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// What a waypoint does with the request; absent unless one was asked about and a waypoint
    /// reads it. Decision, policy, reason and remedy are then the request's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestAnswer>,
    /// What a waypoint does with the connection; absent unless it goes to a waypoint, and its port
    /// carries no HTTP. Decision, policy, reason and remedy are then the waypoint's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionAnswer>,
    /// Further facts, one sentence each.
    pub notes: Vec<String>,
}

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// The address that it connects from.
    pub address: IpAddr,
    /// Its node.
    pub node: String,
    /// Whether its traffic goes through the mesh.
    pub captured: bool,
    /// Who it is: `spiffe://...`.
    pub identity: String,
}

/// A certificate that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateInForce {
    /// Its serial number, hexadecimal.
    pub serial: String,
    /// When it ends.
    pub not_after: String,
}

/// Where a connection goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The requested destination, as it was understood.
    pub name: String,
    /// Its address and port.
    pub address: SocketAddr,
}

/// The server of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// The workload, `NAMESPACE/NAME`.
    pub workload: String,
    /// Its own address and port.
    pub address: SocketAddr,
    /// Its node.
    pub node: String,
    /// How it is reached: `HBONE`, `TCP` or `LEGACY_ISTIO_MTLS`.
    pub protocol: Word,
    /// Whether it takes traffic.
    pub ready: bool,
    /// It must prove one of these identities; absent where it need not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<String>,
}

/// The decision about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It is let through.
    Allow,
    /// It is refused.
    Deny,
    /// A waypoint decides.
    Waypoint,
    /// A decision of a newer control plane.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Waypoint => "waypoint",
            Self::Unknown => "unknown",
        })
    }
}

/// The rule that decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidingPolicy {
    /// The policy, `NAMESPACE/NAME`, as proxies and logs name it.
    pub name: String,
    /// Which of its rules, from 0.
    pub rule: usize,
    /// What a user wrote for it; absent if that is gone by now.
    #[serde(flatten)]
    pub origin: Option<Origin>,
}

/// What a user wrote for a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The object.
    pub object: ObjectName,
    /// What of it decides: one of an AuthorizationPolicy's `rules`, or a PeerAuthentication's
    /// `spec`.
    pub written: Value,
}

/// The name of a Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectName {
    /// `AuthorizationPolicy` or `PeerAuthentication`.
    pub kind: Word,
    /// `NAMESPACE/NAME`.
    pub name: String,
}
