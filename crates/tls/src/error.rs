//! Why a handshake failed.
use std::time::SystemTime;
use ambit_model::Text;
use ambit_model::identity::Identity;
use crate::certificate::{Issuer, Serial};

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer sent no certificate.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// Expired.
    #[error("the peer's certificate expired")]
    Expired {
        /// When.
        not_after: SystemTime,
    },
    /// Not yet valid.
    #[error("the peer's certificate is not valid yet")]
    NotYetValid {
        /// When.
        not_before: SystemTime,
    },
    /// Chain does not end at a trusted root.
    #[error("unknown issuer")]
    UnknownIssuer,
    /// Another identity than expected.
    #[error("wrong identity {got}")]
    WrongIdentity {
        /// Who was expected.
        expected: Vec<Identity>,
        /// Who answered.
        got: Identity,
    },
    /// Of another trust domain.
    #[error("foreign trust domain")]
    ForeignTrustDomain {
        /// Who came.
        got: Identity,
        /// What is trusted here.
        trusted: Vec<Text>,
    },
    /// Revoked.
    #[error("revoked")]
    Revoked {
        /// Which certificate.
        serial: Serial,
        /// Of whom.
        issuer: Issuer,
    },
    /// No common TLS version, suite, group or ALPN protocol.
    #[error("nothing in common: {0}")]
    Incompatible(String),
    /// The peer refused us.
    #[error("the peer refused us with alert {alert}")]
    PeerAlert {
        /// The alert's RFC 8446 name.
        alert: String,
    },
    /// No handshake within the time allowed.
    #[error("no handshake in time")]
    Timeout,
    /// The transport failed.
    #[error("the connection broke during the handshake")]
    Io(#[source] std::io::Error),
}

impl HandshakeError {
    /// The TLS failure in an I/O error of an established stream.
    ///
    /// In TLS 1.3 a client is done before the server has judged its certificate: the server's
    /// alert arrives with the first read.
    pub fn from_io(_error: &std::io::Error) -> Option<Self> {
        unimplemented!()
    }
}
