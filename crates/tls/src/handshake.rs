//! Mutual TLS between workloads: [`Acceptor`] and [`Connector`].
//!
//! Each proves one workload's identity and learns the peer's. They use only SPIFFE identities as
//! names, open no socket and keep no session: every connection is a full handshake, so a revoked or
//! expired certificate cannot come back with a ticket.
//!
//! In TLS 1.3 the client is done before the server has judged its certificate. A client that is
//! refused sees [`Connector::connect`] succeed and its first read fail;
//! [`HandshakeError::from_io`] distinguishes that failure from others.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use rustls::client::Resumption;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, CommonState, ServerConfig};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::{Issuer, Serial};
use crate::error::{HandshakeError, Offer};
use crate::provider::{ALPN_H2, Cipher, Group, VERSIONS, provider};
use crate::revocation::RevocationList;
use crate::stream::{ClientStream, ReadAhead, SEND_BUFFER_BYTES, ServerStream, Stream};
use crate::verify::{Accepted, VerifiedCertificate, Verifier, take_verdict};
use crate::workload::WorkloadCertificate;

/// How long a peer may take for its part of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The peer's identity, as its certificate proves it, and how the connection is protected.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its identity.
    pub identity: Identity,
    /// Serial number of its certificate.
    pub serial: Serial,
    /// Issuer of its certificate.
    pub issuer: Issuer,
    /// Serial number and issuer of each authority between its certificate and the root.
    pub intermediates: Arc<[(Serial, Issuer)]>,
    /// End of its certificate's validity.
    pub not_after: SystemTime,
    /// Key exchange group of the connection.
    pub group: Group,
    /// Cipher suite of the connection.
    pub cipher: Cipher,
    /// Fingerprint of the roots that the peer was verified with
    /// ([`WorkloadCertificate::roots_fingerprint`]).
    pub roots_fingerprint: [u8; 32],
}

/// Accepts mutual TLS in the name of one workload.
///
/// Made once per certificate and revocation list, then shared: `accept` only counts a reference.
#[derive(Clone)]
pub struct Acceptor {
    tls: TlsAcceptor,
    roots_fingerprint: [u8; 32],
}

impl Acceptor {
    /// Accepts workloads of the certificate's own trust domain and of those in `also_trusted`.
    pub fn new(
        certificate: Arc<WorkloadCertificate>,
        revocations: Arc<RevocationList>,
        also_trusted: &[Text],
    ) -> Self {
        let own = &certificate.identity().trust_domain;
        let trusted = std::iter::once(own).chain(also_trusted).cloned().collect();
        let verifier = Verifier {
            roots: Arc::clone(certificate.trust()),
            revocations,
            accepted: Accepted::TrustDomains(trusted),
            anonymous_clients: false,
        };
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has suites for TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(certificate.resolver());
        let roots_fingerprint = certificate.roots_fingerprint();
        Self { tls: acceptor_of(config), roots_fingerprint }
    }

    /// Accepts one connection, or says why its client is refused.
    ///
    /// # Errors
    /// Every refusal of the client, its refusal of us, and the transport's failure.
    pub async fn accept<IO>(&self, io: IO) -> Result<(ServerStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, verified) = accept_tls(&self.tls, io).await?;
        let verified = verified.ok_or(HandshakeError::NoCertificate)?;
        let peer = peer_of(verified, stream.0.get_ref().1, self.roots_fingerprint)
            .ok_or(HandshakeError::NoCertificate)?;
        Ok((stream, peer))
    }
}

/// Opens mutual TLS in the name of one workload.
///
/// Made once per certificate and revocation list, then shared.
#[derive(Clone)]
pub struct Connector {
    certificate: Arc<WorkloadCertificate>,
    revocations: Arc<RevocationList>,
    /// Complete but for the expected identities, which each connection brings.
    config: Arc<ClientConfig>,
}

impl Connector {
    /// Connects in the name of `certificate`'s workload.
    pub fn new(certificate: Arc<WorkloadCertificate>, revocations: Arc<RevocationList>) -> Self {
        let nobody = Verifier {
            roots: Arc::clone(certificate.trust()),
            revocations: Arc::clone(&revocations),
            accepted: Accepted::OneOf([].into()),
            anonymous_clients: false,
        };
        let config = client_config(nobody, Some(&certificate));
        Self { certificate, revocations, config: Arc::new(config) }
    }

    /// Connects to a peer that must be one of `expected`.
    ///
    /// That the peer accepts *us* is known only after its first bytes: see the module.
    ///
    /// # Errors
    /// Every refusal of the server, its refusal of us as far as it comes in time, and the
    /// transport's failure.
    pub async fn connect<IO>(
        &self,
        io: IO,
        expected: &[Identity],
    ) -> Result<(ClientStream<IO>, Peer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let verifier = Verifier {
            roots: Arc::clone(self.certificate.trust()),
            revocations: Arc::clone(&self.revocations),
            accepted: Accepted::OneOf(expected.into()),
            anonymous_clients: false,
        };
        let mut config = ClientConfig::clone(&self.config);
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        let (stream, verified) = connect_tls(Arc::new(config), unnamed(), io).await?;
        let roots_fingerprint = self.certificate.roots_fingerprint();
        let peer = verified
            .and_then(|verified| peer_of(verified, stream.0.get_ref().1, roots_fingerprint))
            .ok_or(HandshakeError::NoCertificate)?;
        Ok((stream, peer))
    }
}

/// The settings that every accepting end shares.
pub(crate) fn acceptor_of(mut config: ServerConfig) -> TlsAcceptor {
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    TlsAcceptor::from(Arc::new(config))
}

/// The configuration of a connecting end.
pub(crate) fn client_config(
    verifier: Verifier,
    certificate: Option<&Arc<WorkloadCertificate>>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .expect("the provider has suites for TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match certificate {
        Some(certificate) => builder.with_client_cert_resolver(certificate.resolver()),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    config
}

/// A server name that is sent to nobody: an IP address makes no SNI extension.
fn unnamed() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

pub(crate) async fn accept_tls<IO>(
    tls: &TlsAcceptor,
    io: IO,
) -> Result<(ServerStream<IO>, Option<VerifiedCertificate>), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = tls.accept_with(ReadAhead::new(io), |session| {
        session.set_buffer_limit(Some(SEND_BUFFER_BYTES));
    });
    let (stream, verified) = judged(handshake, Offer::Mesh).await?;
    require_h2(stream.get_ref().1)?;
    Ok((Stream(stream), verified))
}

pub(crate) async fn connect_tls<IO>(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: IO,
) -> Result<(ClientStream<IO>, Option<VerifiedCertificate>), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (stream, verified) = connect_any(config, name, io).await?;
    require_h2(stream.0.get_ref().1)?;
    Ok((stream, verified))
}

/// As [`connect_tls`], whatever is spoken inside.
pub(crate) async fn connect_any<IO>(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    io: IO,
) -> Result<(ClientStream<IO>, Option<VerifiedCertificate>), HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = TlsConnector::from(config).connect_with(name, ReadAhead::new(io), |session| {
        session.set_buffer_limit(Some(SEND_BUFFER_BYTES));
    });
    let (stream, verified) = judged(handshake, Offer::Mesh).await?;
    Ok((Stream(stream), verified))
}

/// Drives a handshake and picks up the verdict that its verifier reached on the way.
pub(crate) async fn judged<S>(
    handshake: impl Future<Output = io::Result<S>>,
    offer: Offer,
) -> Result<(S, Option<VerifiedCertificate>), HandshakeError> {
    let mut handshake = pin!(handshake);
    let mut verdict = None;
    let driven = poll_fn(|cx| {
        let polled = handshake.as_mut().poll(cx);
        // rustls calls the verifier inside this very poll: what lies in the slot is ours.
        verdict = take_verdict().or(verdict.take());
        polled
    });
    let ended = timeout(HANDSHAKE_TIMEOUT, driven)
        .await
        .map_err(|_| HandshakeError::Timeout(HANDSHAKE_TIMEOUT))?;
    match (ended, verdict) {
        (Ok(stream), verdict) => Ok((stream, verdict.transpose()?)),
        (Err(_), Some(Err(refused))) => Err(refused),
        (Err(error), _) => Err(HandshakeError::from_handshake(error, offer)),
    }
}

/// A peer that negotiates no ALPN at all would be spoken to in the wrong protocol.
fn require_h2(session: &CommonState) -> Result<(), HandshakeError> {
    match session.alpn_protocol() {
        Some(ALPN_H2) => Ok(()),
        _ => Err(HandshakeError::Incompatible("the peer did not negotiate ALPN h2".into())),
    }
}

/// The peer of an established session; none if its certificate names no workload.
pub(crate) fn peer_of(
    verified: VerifiedCertificate,
    session: &CommonState,
    roots_fingerprint: [u8; 32],
) -> Option<Peer> {
    let VerifiedCertificate { identity, serial, issuer, not_after, intermediates } = verified;
    let group = session.negotiated_key_exchange_group();
    let cipher = session.negotiated_cipher_suite();
    Some(Peer {
        identity: identity?,
        serial,
        issuer,
        intermediates,
        not_after,
        group: group
            .and_then(|group| Group::from_named(group.name()))
            .expect("the provider offers these groups only"),
        cipher: cipher
            .and_then(|cipher| Cipher::from_suite(cipher.suite()))
            .expect("the provider offers these suites only"),
        roots_fingerprint,
    })
}
