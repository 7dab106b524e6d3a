//! TLS of the control plane's own endpoint: a server with names, clients that verify by name.
//!
//! xDS and the certificate authority are served over it (port 15012). A client authenticates with a
//! token inside. It may also present a workload certificate, which must then be valid. SPIFFE
//! identities play no part in verifying the server.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use crate::certificate::{CertificateError, certificates_of};
use crate::error::HandshakeError;
use crate::handshake::{Peer, accept_tls, acceptor_of, client_config, connect_tls, peer_of};
use crate::key::{KeyError, private_key_of};
use crate::provider::{VERSIONS, provider};
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::stream::{ClientStream, ServerStream};
use crate::verify::{Accepted, Names, Verifier};
use crate::workload::WorkloadCertificate;

/// A server certificate with DNS and IP names, and its key.
pub struct ServerCertificate {
    /// The leaf, then intermediates.
    pub chain_pem: String,
    /// The private key.
    pub key_pem: Zeroizing<String>,
}

impl ServerCertificate {
    /// The leaf as DER, for other meshes' programs: some read nothing else.
    pub fn leaf_der(&self) -> Result<Vec<u8>, CertificateError> {
        Ok(certificates_of(&self.chain_pem, "the server certificate")?.swap_remove(0).to_vec())
    }

    /// What proves its holder; `what` it is in an error.
    pub(crate) fn resolver(
        &self,
        what: &'static str,
    ) -> Result<Arc<SingleCertAndKey>, CertificateError> {
        Ok(Arc::new(SingleCertAndKey::from(self.certified(what)?)))
    }

    /// The chain and the key, which belong together.
    pub(crate) fn certified(&self, what: &'static str) -> Result<CertifiedKey, CertificateError> {
        let chain = certificates_of(&self.chain_pem, what)?;
        let key = private_key_of(&self.key_pem)?;
        let key = any_supported_type(&key)
            .map_err(|_| KeyError::Unsupported("an ECDSA, RSA or Ed25519 key"))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| CertificateError::NotItsKey)?;
        Ok(certified)
    }

    /// The private key as PKCS#8 DER, for the same.
    pub fn key_der(&self) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
        Ok(Zeroizing::new(private_key_of(&self.key_pem)?.secret_der().to_vec()))
    }
}

/// Accepts TLS as a named server.
#[derive(Clone)]
pub struct ServiceAcceptor {
    tls: TlsAcceptor,
    roots_fingerprint: [u8; 32],
}

impl ServiceAcceptor {
    /// Serves with `certificate`. With `client_roots_pem`, clients may present a certificate.
    pub fn new(
        certificate: &ServerCertificate,
        client_roots_pem: Option<&str>,
    ) -> Result<Self, CertificateError> {
        let resolver = certificate.resolver("the server certificate")?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has suites for TLS 1.3");
        let Some(roots_pem) = client_roots_pem else {
            let config = builder.with_no_client_auth().with_cert_resolver(resolver);
            return Ok(Self { tls: acceptor_of(config), roots_fingerprint: [0; 32] });
        };
        let roots = trust_roots(roots_pem)?;
        let roots_fingerprint = roots.fingerprint();
        let verifier = Verifier {
            roots,
            revocations: Arc::new(RevocationList::none()),
            accepted: Accepted::AnyWorkload,
            anonymous_clients: true,
        };
        let config =
            builder.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(resolver);
        Ok(Self { tls: acceptor_of(config), roots_fingerprint })
    }

    /// Accepts one connection; the peer is known if it presented a certificate.
    ///
    /// # Errors
    /// A certificate that is not good, the client's refusal of us, and the transport's failure.
    pub async fn accept<IO>(
        &self,
        io: IO,
    ) -> Result<(ServerStream<IO>, Option<Peer>), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, verified) = accept_tls(&self.tls, io).await?;
        let peer = verified
            .and_then(|verified| peer_of(verified, stream.0.get_ref().1, self.roots_fingerprint));
        Ok((stream, peer))
    }
}

/// Connects to a named server.
#[derive(Clone)]
pub struct ServiceConnector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ServiceConnector {
    /// Believes a server that `roots_pem` vouches for and whose certificate holds `server_name`, a
    /// DNS name or an IP address (the alternative hostname, where one is configured).
    pub fn new(
        roots_pem: &str,
        server_name: &str,
        client: Option<&Arc<WorkloadCertificate>>,
    ) -> Result<Self, CertificateError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| CertificateError::ServerName(server_name.to_owned()))?;
        let verifier = Verifier {
            roots: trust_roots(roots_pem)?,
            revocations: Arc::new(RevocationList::none()),
            accepted: Accepted::Named(Names { hosts: [name.clone()].into(), uris: [].into() }),
            anonymous_clients: false,
        };
        Ok(Self { config: Arc::new(client_config(verifier, client)), name })
    }

    /// Connects.
    ///
    /// # Errors
    /// Every refusal of the server, and the transport's failure.
    pub async fn connect<IO>(&self, io: IO) -> Result<ClientStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, _) = connect_tls(Arc::clone(&self.config), self.name.clone(), io).await?;
        Ok(stream)
    }
}

fn trust_roots(pem: &str) -> Result<Arc<TrustRoots>, CertificateError> {
    Ok(Arc::new(TrustRoots::new(&certificates_of(pem, "the root certificate")?)?))
}
