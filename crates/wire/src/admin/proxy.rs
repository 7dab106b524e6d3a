//! The administration of a node proxy: connections, shares, certificates, the process.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ApiVersion, Word, required};

/// The live connections of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The youngest last.
    pub items: Vec<Connection>,
    /// How many workers have not listed all of theirs. Null if the others could not be asked, so
    /// their number is unknown.
    #[serde(deserialize_with = "required")]
    pub left_out: Option<usize>,
}

/// One live connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// `outbound` or `inbound`, as the pod of this proxy sees it.
    pub direction: Word,
    /// How it goes: `local`, `tunnel`, `waypoint`, `direct`, or `undecided`.
    pub plan: Word,
    /// The client's socket.
    pub source_address: String,
    /// The client, `NAMESPACE/NAME`.
    pub source_workload: Option<String>,
    /// Who the client is, as proven: `spiffe://...`.
    pub source_identity: Option<String>,
    /// The application's socket.
    pub destination_address: String,
    /// The server, `NAMESPACE/NAME`.
    pub destination_workload: Option<String>,
    /// Who the server is, as proven: `spiffe://...`.
    pub destination_identity: Option<String>,
    /// The hostname of the service through which the server was chosen.
    pub service: Option<String>,
    /// The socket of the proxy at the other end of the tunnel.
    pub hbone_peer: Option<String>,
    /// The tunnel's key exchange group.
    pub tls_group: Option<Word>,
    /// The policy and rule that let it in.
    pub policy: Option<String>,
    /// Bytes from client to server so far.
    pub bytes_to_server: u64,
    /// Bytes from server to client so far.
    pub bytes_to_client: u64,
    /// How long it is open.
    pub age_ms: u64,
}

/// How the descriptors of a node proxy are shared, and which shares of them and of memory are used
/// up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shares {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The process' limit of open files.
    pub limit: usize,
    /// What connections may have of it.
    pub for_connections: usize,
    /// What they have.
    pub used: usize,
    /// The most that one share may have now, beyond its guarantee.
    pub loan: usize,
    /// Whether the sockets of one more pod can be taken on.
    pub fits_another_pod: bool,
    /// The shares that are used up, and their main sources: a sentence each.
    pub used_up: Vec<String>,
    /// The shares that have something, those that are used up first.
    pub items: Vec<Share>,
    /// How many shares are not among the items.
    pub left_out: usize,
}

/// The share of one direction of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// `outbound`, `inbound`, `handshakes`, `plaintext` or `dns`.
    pub direction: Word,
    /// Descriptors that it has.
    pub used: usize,
    /// The most that it may have now, including its guarantee.
    pub bound: usize,
    /// Whether it, or a source of it, may have no more.
    pub is_used_up: bool,
    /// Connections and tunnels that were refused since the pod is served.
    pub refused: u64,
    /// How many sources have something of it.
    pub source_count: usize,
    /// Those with most.
    pub sources: Vec<ShareSource>,
    /// IPv6 sites whose networks together may have no more.
    pub used_up_sites: Vec<String>,
}

/// One source of a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareSource {
    /// Where it connects from.
    pub address: IpAddr,
    /// Who it is, if that is proven: `spiffe://...`.
    pub identity: Option<String>,
    /// Descriptors that it has.
    pub used: usize,
    /// Whether it may have no more.
    pub is_used_up: bool,
}

/// The certificate of one identity on a node. The form is that of ztunnel's `/config_dump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldCertificate {
    /// Whose: `spiffe://...`.
    pub identity: String,
    /// Whether there is one.
    pub state: CertificateState,
    /// The certificate, and those up to the root, without it; empty if there is none.
    pub cert_chain: Vec<Certificate>,
    /// The roots that its holder trusts.
    pub root_certs: Vec<Certificate>,
    /// Why the last attempt to get one failed; null if it did not.
    pub last_failure: Option<String>,
}

/// One certificate of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// PEM in base64, as ztunnel has it.
    pub pem: String,
    /// Its serial number, hexadecimal, as control, logs and openssl have it; absent from a proxy of
    /// an earlier build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The same number, decimal, as ztunnel has it.
    pub serial_number: String,
    /// From when it is valid.
    pub valid_from: String,
    /// When it ends.
    pub expiration_time: String,
}

/// Whether there is a certificate, in ztunnel's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum CertificateState {
    /// The first one has not come yet.
    Initializing,
    /// There is one.
    Available,
    /// There is one, it is revoked, and no other has come.
    Revoked,
    /// There is one, it has ended, and no other has come.
    Expired,
    /// There is one, and by this node's clock it is not valid yet.
    NotYetValid,
    /// There is none, for this reason.
    Unavailable(String),
    /// Something else that a newer proxy says.
    Other(String),
}

impl fmt::Display for CertificateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initializing => f.write_str("Initializing"),
            Self::Available => f.write_str("Available"),
            Self::Revoked => f.write_str("Revoked"),
            Self::Expired => f.write_str("Expired"),
            Self::NotYetValid => f.write_str("NotYetValid"),
            Self::Unavailable(reason) => write!(f, "Unavailable: {reason}"),
            Self::Other(state) => f.write_str(state),
        }
    }
}

impl FromStr for CertificateState {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "Initializing" => Self::Initializing,
            "Available" => Self::Available,
            "Revoked" => Self::Revoked,
            "Expired" => Self::Expired,
            "NotYetValid" => Self::NotYetValid,
            _ => match text.strip_prefix("Unavailable: ") {
                Some(reason) => Self::Unavailable(reason.to_owned()),
                None => Self::Other(text.to_owned()),
            },
        })
    }
}

impl From<String> for CertificateState {
    fn from(text: String) -> Self {
        text.parse().unwrap_or(Self::Other(text))
    }
}

impl From<CertificateState> for String {
    fn from(state: CertificateState) -> Self {
        state.to_string()
    }
}

/// The process that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// Its process number.
    pub pid: u32,
    /// Whether it serves all pods.
    pub ready: bool,
}
