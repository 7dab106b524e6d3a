//! Which certificates no longer count.
use std::time::SystemTime;
use crate::certificate::{Issuer, Serial};
use crate::handshake::Peer;

/// The revocation lists in force.
#[derive(Debug, Default)]
pub struct RevocationList {}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// No PEM.
    #[error("no X509 CRL block was found")]
    Empty,
}

impl RevocationList {
    /// No list at all: nothing is revoked, and status is not asked for.
    pub fn none() -> Self {
        Self::default()
    }
    /// Parses one or more `X509 CRL` blocks, each signed by a certificate of `signers_pem` (roots and intermediates).
    pub fn from_pem(_crls_pem: &str, _signers_pem: &str) -> Result<Self, RevocationError> {
        unimplemented!()
    }
    /// Whether a certificate is revoked.
    pub fn is_revoked(&self, _serial: &Serial, _issuer: &Issuer) -> bool {
        unimplemented!()
    }
    /// Whether a live connection's peer, or an intermediate of its chain, is now revoked.
    pub fn revokes(&self, _peer: &Peer) -> bool {
        unimplemented!()
    }
    /// The earliest `nextUpdate`: from then on peers of that issuer are refused.
    pub fn next_update(&self) -> Option<SystemTime> {
        unimplemented!()
    }
    /// Number of revoked certificates.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Whether nothing is revoked.
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
}
