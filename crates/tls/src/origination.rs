//! TLS towards servers outside of the mesh, which a proxy speaks for clients that do not.
//!
//! A server proves a name, to a root of the public web or to one that is given. A client may prove
//! itself by a certificate that it is given, never by its workload's. Nothing here knows
//! identities.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::{CertificateError, certificates_of};
use crate::error::HandshakeError;
use crate::handshake::{connect_any, connect_tls};
use crate::provider::{ALPN_H2, VERSIONS, provider, signature_algorithms};
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::service::ServerCertificate;
use crate::stream::ClientStream;
use crate::verify::{Accepted, Names, Verifier};

/// The protocol of an application without TLS, as ALPN names it.
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Who vouches for a server.
#[derive(Clone, Copy)]
pub enum Trust<'a> {
    /// A root of the public web.
    Public,
    /// One of these roots, in PEM.
    Roots(&'a str),
    /// Nobody: any server is taken for the one that is meant.
    Nobody,
}

/// What is spoken inside of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inside {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; a server that does not agree is refused.
    Http2,
    /// Anything else.
    Bytes,
}

/// What is asked of a server.
pub struct Asked<'a> {
    /// The name that is sent to it, and that it must prove unless there are others.
    pub server_name: &'a str,
    /// Hosts of which it must prove one instead, or one of `uris`.
    pub alternatives: &'a [&'a str],
    /// URIs of which it must prove one instead, or one of `alternatives`.
    pub uris: &'a [&'a str],
    /// Who vouches for it.
    pub trust: Trust<'a>,
    /// What proves the client.
    pub client: Option<&'a ServerCertificate>,
    /// What is spoken.
    pub inside: Inside,
}

/// Connects to one server.
#[derive(Clone)]
pub struct Originator {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    inside: Inside,
}

impl Originator {
    /// Prepares connections to a server.
    pub fn new(asked: &Asked<'_>) -> Result<Self, CertificateError> {
        let named = |name: &str| {
            ServerName::try_from(name.to_owned())
                .map_err(|_| CertificateError::ServerName(name.to_owned()))
        };
        let name = named(asked.server_name)?;
        let mut hosts: Vec<ServerName<'static>> =
            asked.alternatives.iter().map(|it| named(it)).collect::<Result<_, _>>()?;
        let uris: Box<[Box<str>]> = asked.uris.iter().map(|it| (*it).into()).collect();
        if hosts.is_empty() && uris.is_empty() {
            hosts.push(name.clone());
        }
        let roots = match asked.trust {
            Trust::Public => Some(TrustRoots::public()),
            Trust::Roots(pem) => Some(TrustRoots::new(&certificates_of(pem, "the root")?)?),
            Trust::Nobody => None,
        };
        let verifier: Arc<dyn ServerCertVerifier> = match roots {
            None => Arc::new(AnyServer),
            Some(roots) => Arc::new(Verifier {
                roots: Arc::new(roots),
                revocations: Arc::new(RevocationList::none()),
                accepted: Accepted::Named(Names { hosts: hosts.into(), uris }),
                anonymous_clients: false,
            }),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has suites for TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match asked.client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                builder.with_client_cert_resolver(client.resolver("the client certificate")?)
            }
        };
        config.alpn_protocols = match asked.inside {
            Inside::Http1 => vec![ALPN_HTTP1.to_vec()],
            Inside::Http2 => vec![ALPN_H2.to_vec()],
            Inside::Bytes => Vec::new(),
        };
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), name, inside: asked.inside })
    }

    /// Connects.
    ///
    /// # Errors
    /// Every refusal of the server, and the transport's failure.
    pub async fn connect<IO>(&self, io: IO) -> Result<ClientStream<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (config, name) = (Arc::clone(&self.config), self.name.clone());
        let (stream, _) = match self.inside {
            Inside::Http2 => connect_tls(config, name, io).await?,
            Inside::Http1 | Inside::Bytes => connect_any(config, name, io).await?,
        };
        Ok(stream)
    }
}

/// Takes any server for the one that is meant, if it holds the key of its certificate.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, signature_algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}
