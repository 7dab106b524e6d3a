//! gRPC channels to the control plane: TLS verified by name, keepalives, bounded waits.
//!
//! A channel is one connection, opened at once in the calling thread's network namespace; its owner
//! decides what to do when it breaks. Credentials are metadata, which the caller adds. Nothing here
//! retries, and nothing here falls back to plain text.

pub mod messages;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ambit_tls::HandshakeError;
use ambit_tls::service::ServiceConnector;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::outside::Outside;
use crate::socket::{self, DialOptions, ISTIO_KEEPALIVE};

/// How long resolving, connecting and the TLS handshake may take together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one of several addresses may take before the next is tried.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// Silence before a PING.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a PING may stay unanswered before the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control windows: a full view arrives without stalls.
pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// The same, of all streams of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Where a service of the control plane is, and how it is known.
#[derive(Clone)]
pub struct Target {
    /// Host and port.
    pub uri: Uri,
    /// Proves the server by name; `None` speaks plain text, which `http://` asks for.
    pub tls: Option<ServiceConnector>,
    /// `SO_MARK` of the connection, so that capture rules leave it alone.
    pub mark: Option<u32>,
    /// Who opens the connection, where that is not this process.
    pub outside: Option<Outside>,
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URI names no host.
    #[error("address {0} names no host")]
    NoHost(Uri),
    /// The scheme and the TLS settings disagree.
    #[error("address {0}: https:// needs a root certificate, http:// takes none")]
    Scheme(Uri),
    /// The host's name has no address.
    #[error("resolve {host}")]
    Resolve {
        /// The host.
        host: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// No address of the host answers.
    #[error("connect to {address}")]
    Connect {
        /// The address tried last.
        address: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The server could not prove who it is, or speaks no TLS.
    #[error("TLS with {host}; check the root certificate and the server's name")]
    Tls {
        /// The server.
        host: String,
        /// Why it failed.
        #[source]
        source: HandshakeError,
    },
    /// All of it took too long.
    #[error("no connection to {0} within {limit} s", limit = CONNECT_TIMEOUT.as_secs())]
    Timeout(Uri),
    /// The connection broke before HTTP/2 stood.
    #[error("HTTP/2 with {uri}")]
    Http2 {
        /// The server.
        uri: Uri,
        /// Why it failed.
        #[source]
        source: tonic::transport::Error,
    },
}

impl ConnectError {
    /// Whether the last of its addresses was reached, but nothing listens there.
    pub fn is_refused(&self) -> bool {
        let Self::Connect { source, .. } = self else { return false };
        source.kind() == io::ErrorKind::ConnectionRefused
    }
}

/// Connects and returns a channel over that one connection.
pub async fn connect(target: &Target) -> Result<Channel, ConnectError> {
    let mut stream = Some(open(target).await?);
    // The first call takes the connection made above; there is no second: a broken channel is its
    // owner's to replace, who must read a fresh token and back off.
    let connector = tower::service_fn(move |_: Uri| {
        let taken = stream.take().map(TokioIo::new);
        std::future::ready(taken.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let channel = endpoint(&target.uri).connect_with_connector(connector).await;
    channel.map_err(|source| ConnectError::Http2 { uri: target.uri.clone(), source })
}

fn endpoint(uri: &Uri) -> Endpoint {
    Endpoint::from(uri.clone())
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

/// A transport of either kind.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Connects, for a caller with its own HTTP/2.
pub async fn open(target: &Target) -> Result<Box<dyn Transport>, ConnectError> {
    let opened = tokio::time::timeout(CONNECT_TIMEOUT, transport(target)).await;
    opened.map_err(|_| ConnectError::Timeout(target.uri.clone()))?
}

async fn transport(target: &Target) -> Result<Box<dyn Transport>, ConnectError> {
    let uri = &target.uri;
    let is_https = uri.scheme_str() == Some("https");
    if is_https != target.tls.is_some() {
        return Err(ConnectError::Scheme(uri.clone()));
    }
    let host = uri.host().ok_or_else(|| ConnectError::NoHost(uri.clone()))?;
    let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let stream = dial(host, port, target).await?;
    match &target.tls {
        None => Ok(Box::new(stream)),
        Some(connector) => match connector.connect(stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(ConnectError::Tls { host: host.to_owned(), source }),
        },
    }
}

async fn dial(host: &str, port: u16, target: &Target) -> Result<TcpStream, ConnectError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let resolving = |source| ConnectError::Resolve { host: bare.to_owned(), source };
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((bare, port)).await.map_err(resolving)?.collect();
    let options =
        DialOptions { mark: target.mark, keepalive: Some(ISTIO_KEEPALIVE), ..Default::default() };
    let mut failure = resolving(io::Error::other("the name has no address"));
    for address in addresses {
        let connected = match &target.outside {
            None => socket::tcp_connect(address, &options, ADDRESS_TIMEOUT).await,
            Some(outside) => tokio::time::timeout(ADDRESS_TIMEOUT, outside.dial(address))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(source) => {
                failure = ConnectError::Connect { address: address.to_string(), source };
            }
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_tls::service::ServiceAcceptor;
    use ambit_tls::{Authority, AuthorityBundle};
    use tokio::net::TcpListener;

    use super::*;

    fn target(uri: &str, tls: Option<ServiceConnector>) -> Target {
        Target { uri: uri.parse().expect("a URI"), tls, mark: None, outside: None }
    }

    async fn refused(target: Target) -> ConnectError {
        connect(&target).await.expect_err("refused")
    }

    /// A server that shakes hands under `name`, and the roots that prove it.
    async fn server(name: &'static str) -> (u16, String) {
        let authority = Authority::generate("cluster.local", SystemTime::now()).expect("a root");
        let bundle = AuthorityBundle::new(authority);
        let hour = Duration::from_secs(3600);
        let certificate = bundle.issue_server(&[name], hour, SystemTime::now()).expect("issued");
        let acceptor = ServiceAcceptor::new(&certificate, None).expect("usable");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("accepted");
            // Held open: what follows the handshake is the client's to begin.
            if let Ok(stream) = acceptor.accept(stream).await {
                std::future::pending::<()>().await;
                drop(stream);
            }
        });
        (port, bundle.roots_pem())
    }

    #[tokio::test]
    async fn a_server_is_proven_by_the_expected_name() {
        for (name, expected, proven) in [("istiod", "istiod", true), ("other", "istiod", false)] {
            let (port, roots) = server(name).await;
            let connector = ServiceConnector::new(&roots, expected, None).expect("usable");
            let target = target(&format!("https://127.0.0.1:{port}"), Some(connector));
            match connect(&target).await {
                Ok(_) => assert!(proven, "{name}"),
                Err(ConnectError::Tls { .. }) => assert!(!proven, "{name}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn nothing_falls_back_to_plain_text() {
        let error = refused(target("https://127.0.0.1:1", None)).await;
        assert!(matches!(error, ConnectError::Scheme(_)), "{error}");
        let (_, roots) = server("istiod").await;
        let connector = ServiceConnector::new(&roots, "istiod", None).expect("usable");
        let error = refused(target("http://127.0.0.1:1", Some(connector))).await;
        assert!(matches!(error, ConnectError::Scheme(_)), "{error}");
    }

    #[tokio::test]
    async fn failures_name_the_step() {
        let error = refused(target("http://127.0.0.1:1", None)).await;
        assert!(matches!(error, ConnectError::Connect { .. }), "{error}");
        assert!(error.is_refused());
        let error = refused(target("http://[::1]:1", None)).await;
        assert!(matches!(error, ConnectError::Connect { .. }), "{error}");
        let error = refused(target("http://name.invalid:1", None)).await;
        assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
        assert!(!error.is_refused());
    }
}
