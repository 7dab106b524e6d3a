//! Why a connection failed, in the form operators know: Istio's letters and one word.
//!
//! Every direction has its own errors; what they share is here, below all of them, so code that
//! counts and logs failures need not know the directions. Nothing here counts or logs.

use std::error::Error;

/// Why a connection failed, in Istio's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResponseFlags {
    /// It did not: `-`.
    None,
    /// A policy denied it: `DENY`.
    Deny,
    /// The destination could not be reached: `CONNECT`.
    Connect,
    /// The TLS handshake failed: `TLS_FAILURE`.
    TlsFailure,
    /// The HTTP/2 handshake failed: `H2_HANDSHAKE_FAILURE`.
    H2HandshakeFailure,
    /// Something drops packets to port 15008: `NETWORK_POLICY`.
    NetworkPolicy,
    /// There is no certificate for this pod: `IDENTITY_ERROR`.
    IdentityError,
    /// The peer's certificate is revoked: `CERT_REVOKED`.
    CertificateRevoked,
    /// A share of the proxy's descriptors is used up: `UO`, Envoy's letters for an overflow.
    Overflow,
}

impl ResponseFlags {
    /// The letters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Deny => "DENY",
            Self::Connect => "CONNECT",
            Self::TlsFailure => "TLS_FAILURE",
            Self::H2HandshakeFailure => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::IdentityError => "IDENTITY_ERROR",
            Self::CertificateRevoked => "CERT_REVOKED",
            Self::Overflow => "UO",
        }
    }
}

/// Why a connection failed: for the log, for the metrics, and in one word.
pub trait Failure: Error {
    /// Istio's letters for it.
    fn flags(&self) -> ResponseFlags;
    /// One word of a fixed set, for the counter of refusals.
    fn reason(&self) -> &'static str;
}
