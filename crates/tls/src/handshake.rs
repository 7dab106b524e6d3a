//! Mutual TLS between workloads.
use std::sync::Arc;
use std::time::SystemTime;
use ambit_model::Text;
use ambit_model::identity::Identity;
use tokio::io::{AsyncRead, AsyncWrite};
use crate::certificate::{Issuer, Serial};
use crate::provider::{Cipher, Group};
use crate::revocation::RevocationList;
use crate::workload::WorkloadCertificate;
use crate::{ClientStream, HandshakeError, ServerStream};

/// Who is at the other end, as proven by its certificate.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its identity.
    pub identity: Identity,
    /// Serial of its certificate.
    pub serial: Serial,
    /// Issuer of its certificate.
    pub issuer: Issuer,
    /// End of its certificate's validity.
    pub not_after: SystemTime,
    /// Key exchange group.
    pub group: Group,
    /// Cipher suite.
    pub cipher: Cipher,
    /// SHA-256 over the root bundle that the peer was verified with.
    pub roots_fingerprint: [u8; 32],
}

/// Accepts mutual TLS in the name of one workload. Clone and cache per certificate.
#[derive(Clone)]
pub struct Acceptor {}

impl Acceptor {
    /// `also_trusted`: trust domains beside the certificate's own.
    pub fn new(
        _certificate: Arc<WorkloadCertificate>,
        _revocations: Arc<RevocationList>,
        _also_trusted: &[Text],
    ) -> Self {
        unimplemented!()
    }
    /// Accepts one connection.
    pub async fn accept<IO>(&self, _io: IO) -> Result<(ServerStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        unimplemented!()
    }
}

/// Opens mutual TLS in the name of one workload. Clone and cache per certificate.
#[derive(Clone)]
pub struct Connector {}

impl Connector {
    /// A connector for one certificate.
    pub fn new(_certificate: Arc<WorkloadCertificate>, _revocations: Arc<RevocationList>) -> Self {
        unimplemented!()
    }
    /// Connects to a peer that must be one of `expected`.
    pub async fn connect<IO>(
        &self,
        _io: IO,
        _expected: &[Identity],
    ) -> Result<(ClientStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        unimplemented!()
    }
}
