//! TLS of a gateway's listeners, towards clients of any kind.
//!
//! [`EdgeAcceptor`] is made for one listener, from its certificates and its rule for clients, and
//! is cheap to clone. The caller has read the name in the client's first message
//! ([`mod@crate::client_hello`]) and has chosen the listener by it. Client certificates are
//! ordinary X.509. Identities of the mesh play no part here.
//!
//! Sessions are resumed by tickets, so nothing is kept per client. All acceptors of a process share
//! the keys of their tickets: a rotated certificate does not cost every client a full handshake. A
//! listener that validates its clients neither gives nor takes tickets, because a ticket carries
//! the client's certificate past a change of the roots.

mod certificates;
mod clients;
mod distinguished_name;

use std::sync::{Arc, OnceLock};

use ambit_model::Text;
use ambit_model::http::gateway::ClientValidation;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::certificate::CertificateError;
use crate::edge::certificates::ByName;
use crate::edge::clients::Clients;
use crate::error::{HandshakeError, Offer};
use crate::handshake::judged;
use crate::key::KeyError;
use crate::provider::{EDGE_VERSIONS, edge_provider, suite_name};
use crate::stream::{ReadAhead, SEND_BUFFER_BYTES, ServerStream, Stream};

pub use certificates::EdgeCertificate;
pub use clients::{ClientCertificate, check_roots};

/// What a listener for HTTPS offers inside TLS, the preferred first.
pub const ALPN_HTTPS: &[&str] = &["h2", "http/1.1"];

/// Accepts TLS for one listener.
#[derive(Clone)]
pub struct EdgeAcceptor {
    tls: TlsAcceptor,
    /// Why no client can prove itself, where all have to.
    impossible: Option<Text>,
}

impl EdgeAcceptor {
    /// Serves with these certificates; the first is for clients that name none of the others.
    /// `alpn` is what may be spoken inside, the preferred first; empty, if ALPN is ignored.
    ///
    /// # Errors
    /// No certificate is given, or the roots for clients cannot be read.
    pub fn new(
        certificates: &[Arc<EdgeCertificate>],
        clients: &ClientValidation,
        alpn: &[&str],
    ) -> Result<Self, CertificateError> {
        let resolver = ByName::new(certificates).ok_or(CertificateError::NoneGiven)?;
        let clients = Clients::new(clients)?;
        let impossible = clients.as_ref().and_then(Clients::impossible);
        let builder = ServerConfig::builder_with_provider(edge_provider())
            .with_protocol_versions(EDGE_VERSIONS)
            .expect("the provider has suites for both versions");
        let (builder, ticketer) = match clients {
            None => (builder.with_no_client_auth(), Some(ticketer()?)),
            Some(clients) => (builder.with_client_cert_verifier(Arc::new(clients)), None),
        };
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        // Every suite is strong, so the cheapest decides: see `provider`.
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match ticketer {
            Some(ticketer) => config.ticketer = ticketer,
            None => config.send_tls13_tickets = 0,
        }
        Ok(Self { tls: TlsAcceptor::from(Arc::new(config)), impossible })
    }

    /// Accepts one connection, or says why its client is refused.
    ///
    /// # Errors
    /// Every refusal of the client, its refusal of us, and the transport's failure.
    pub async fn accept<IO>(&self, io: IO) -> Result<(ServerStream<IO>, EdgePeer), HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = self.tls.accept_with(ReadAhead::new(io), |session| {
            session.set_buffer_limit(Some(SEND_BUFFER_BYTES));
        });
        let (stream, verified) = judged(handshake, Offer::Edge).await.map_err(|error| {
            match (error, &self.impossible) {
                (HandshakeError::NoClientCertificate, Some(problem)) => {
                    HandshakeError::NoClientRoots(problem.clone())
                }
                (error, _) => error,
            }
        })?;
        let peer = EdgePeer::of(stream.get_ref().1, verified.is_some());
        Ok((Stream(stream), peer))
    }
}

/// The keys of all tickets of this process. New ones are made every six hours, and a ticket is good
/// for twelve.
fn ticketer() -> Result<Arc<dyn ProducesTickets>, KeyError> {
    static TICKETER: OnceLock<Arc<dyn ProducesTickets>> = OnceLock::new();
    if let Some(ticketer) = TICKETER.get() {
        return Ok(Arc::clone(ticketer));
    }
    let made = Ticketer::new().map_err(|_| KeyError::Generate)?;
    Ok(Arc::clone(TICKETER.get_or_init(|| made)))
}

/// What is known of a client after its handshake.
#[derive(Clone, Debug)]
pub struct EdgePeer {
    /// The name that it has asked for, in lower case.
    pub server_name: Option<Text>,
    /// What is spoken inside, as ALPN names it. `None` if the client has named nothing, or the
    /// listener offers nothing.
    pub alpn: Option<Text>,
    /// The version of TLS, as `TLSv1.3`.
    pub version: &'static str,
    /// The IANA name of the cipher suite.
    pub suite: &'static str,
    /// Whether an earlier session goes on.
    pub is_resumed: bool,
    /// Its certificate, if it has presented one that was verified.
    pub client: Option<Arc<ClientCertificate>>,
}

impl EdgePeer {
    fn of(session: &ServerConnection, is_verified: bool) -> Self {
        let alpn = session.alpn_protocol().and_then(|it| std::str::from_utf8(it).ok());
        let suite = session.negotiated_cipher_suite();
        let presented = session.peer_certificates().and_then(<[_]>::first);
        Self {
            server_name: session.server_name().map(|it| it.to_ascii_lowercase().into()),
            alpn: alpn.map(Text::from),
            version: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            suite: suite.map_or("unknown", |it| suite_name(it.suite())),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client: presented
                .filter(|_| is_verified)
                .and_then(|leaf| ClientCertificate::of(leaf).ok())
                .map(Arc::new),
        }
    }
}
