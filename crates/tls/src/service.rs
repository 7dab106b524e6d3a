//! TLS of the control plane's own endpoint.
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use crate::certificate::CertificateError;
use crate::workload::WorkloadCertificate;
use crate::{ClientStream, HandshakeError, Peer, ServerStream};
use zeroize::Zeroizing;

/// A server certificate with DNS and IP names, made by an authority.
pub struct ServerCertificate {
    /// Leaf first, then intermediates, PEM.
    pub chain_pem: String,
    /// PKCS#8 PEM.
    pub key_pem: Zeroizing<String>,
}

/// Accepts TLS as a named server (control's 15012).
#[derive(Clone)]
pub struct ServiceAcceptor {}

impl ServiceAcceptor {
    /// `client_roots_pem`: with it, clients may (need not) present a workload certificate.
    pub fn new(
        _certificate: &ServerCertificate,
        _client_roots_pem: Option<&str>,
    ) -> Result<Self, CertificateError> {
        unimplemented!()
    }
    /// Accepts one connection.
    pub async fn accept<IO>(&self, _io: IO) -> Result<(ServerStream<IO>, Option<Peer>), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        unimplemented!()
    }
}

/// Connects to a named server (xDS, CA).
#[derive(Clone)]
pub struct ServiceConnector {}

impl ServiceConnector {
    /// `server_name`: DNS name or IP that its certificate must hold (the alternative hostname if one is configured).
    pub fn new(
        _roots_pem: &str,
        _server_name: &str,
        _client: Option<&Arc<WorkloadCertificate>>,
    ) -> Result<Self, CertificateError> {
        unimplemented!()
    }
    /// Connects.
    pub async fn connect<IO>(&self, _io: IO) -> Result<ClientStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        unimplemented!()
    }
}
