//! Dialling: a TCP connection from inside a pod's namespace, and a tunnel to another proxy.
//!
//! Every socket is made in the namespace of the pod it belongs to and carries the proxy's mark.
//! Nothing is sent to a peer before its certificate proves an identity that was expected, and no
//! connection is shared between identities, namespaces or destinations.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::plan::Target;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_net::hbone::{Client, HboneError, Settings, Transport, Tunnel};
use ambit_net::memory::Accounts;
use ambit_net::pool::PoolError;
use ambit_net::socket::{DialOptions, tcp_dial};
use ambit_tls::{HandshakeError, Peer};
use ambit_wire::hbone::proxy_protocol::IdentityTooLong;
use ambit_wire::hbone::{self, Baggage, Forwarded, TraceParent};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::certificates::{CertificateError, Credentials};
use crate::dataplane::{DataPlane, Served};
use crate::descriptors::{Crowded, Direction};
use crate::failure::{Failure, ResponseFlags};
use crate::metrics::Reporter;
use crate::pods::Pod;

/// How long a TCP connection may take to be established.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other proxy may take to answer a CONNECT; it dials the application meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that a tunnel is asked of before the destination is given up.
const MAX_TUNNEL_ATTEMPTS: usize = 3;

/// Who connects to whom: what two connections must agree in to share an HBONE connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    /// The pod, and so its namespace.
    pub(crate) pod: Text,
    /// Its identity.
    pub(crate) source: Identity,
    /// The address it connects from.
    pub(crate) source_ip: IpAddr,
    /// The identities of which the destination must prove one.
    pub(crate) destinations: Vec<Identity>,
    /// Where the tunnel ends.
    pub(crate) hbone: SocketAddr,
}

/// Who answered at the other end of an HBONE connection.
pub(crate) type TunnelPeer = Arc<Peer>;

/// Why a destination could not be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The pod has no certificate.
    #[error("this pod cannot prove its identity")]
    Certificate(#[from] CertificateError),
    /// No socket could be made in the pod's namespace.
    #[error("cannot open a socket in the pod's network namespace")]
    Socket(#[source] io::Error),
    /// The TCP connection failed.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// Nobody answered; for the port of HBONE there is a usual reason.
    #[error(
        "{0} did not answer within {limit_s} s: maybe a NetworkPolicy is blocking HBONE port 15008",
        limit_s = CONNECT_TIMEOUT.as_secs()
    )]
    HboneTimeout(SocketAddr),
    /// Nobody answered.
    #[error("{0} did not answer within {limit_s} s", limit_s = CONNECT_TIMEOUT.as_secs())]
    Timeout(SocketAddr),
    /// The TLS handshake failed.
    #[error("TLS with {address} failed")]
    Tls {
        /// With whom.
        address: SocketAddr,
        /// Why.
        #[source]
        cause: HandshakeError,
    },
    /// HTTP/2 failed.
    #[error("HBONE with {address} failed")]
    Hbone {
        /// With whom.
        address: SocketAddr,
        /// Why.
        #[source]
        cause: HboneError,
    },
    /// The destination's policies deny the connection.
    #[error("denied by the policies of the destination (status 401); its proxy's log names them")]
    Denied,
    /// The destination's proxy cannot reach the application, or has no descriptor for it.
    #[error(
        "the destination's proxy cannot reach the application, or this client has used up its \
         share there (status 503); its log says which"
    )]
    Unavailable,
    /// The other proxy did not answer.
    #[error(
        "{address} did not answer the CONNECT within {limit_s} s",
        limit_s = ANSWER_TIMEOUT.as_secs()
    )]
    Silent {
        /// Who.
        address: SocketAddr,
    },
    /// The client's identity does not fit what the application wants to be told.
    #[error("the application cannot be told of the client")]
    ProxyProtocol(#[from] IdentityTooLong),
    /// The pod may have no more descriptors.
    #[error(transparent)]
    Share(#[from] Box<Crowded>),
    /// An HBONE connection that is shared could not be opened.
    #[error(transparent)]
    Pool(PoolError<DialError>),
}

impl DialError {
    /// Whether another endpoint may do better; nothing has been sent to this one.
    pub(crate) fn is_of_the_endpoint(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::HboneTimeout(_)
            | Self::Timeout(_)
            | Self::Unavailable
            | Self::Silent { .. } => true,
            Self::Pool(PoolError::Connect(error)) => error.is_of_the_endpoint(),
            _ => false,
        }
    }

    /// Whether the connection was cut before it could carry anything, as when the other proxy dies:
    /// the next one may find its successor.
    fn is_cut(&self) -> bool {
        match self {
            // It stood, in the queue of a listener that was closed; where nobody listens it is
            // refused.
            Self::Connect { cause, .. } => cause.kind() == io::ErrorKind::ConnectionReset,
            Self::Tls { cause: HandshakeError::Closed | HandshakeError::Io(_), .. } => true,
            Self::Hbone { cause, .. } => cause.transport().is_some(),
            Self::Pool(PoolError::Connect(error)) => error.is_cut(),
            _ => false,
        }
    }
}

impl Failure for DialError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Certificate(_) => ResponseFlags::IdentityError,
            Self::HboneTimeout(_) => ResponseFlags::NetworkPolicy,
            Self::Tls { cause: HandshakeError::Revoked { .. }, .. } => {
                ResponseFlags::CertificateRevoked
            }
            Self::Tls { .. } => ResponseFlags::TlsFailure,
            Self::Hbone { cause: HboneError::Handshake(_) | HboneError::Silent(_), .. } => {
                ResponseFlags::H2HandshakeFailure
            }
            Self::Denied => ResponseFlags::Deny,
            Self::Share(crowded) => crowded.flags(),
            Self::Pool(PoolError::Connect(error)) => error.flags(),
            Self::Pool(PoolError::Crowded(_)) => ResponseFlags::Overflow,
            _ => ResponseFlags::Connect,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Certificate(_) => "no_certificate",
            Self::Socket(_) | Self::Connect { .. } => "connect",
            Self::HboneTimeout(_) | Self::Timeout(_) | Self::Silent { .. } => "timeout",
            Self::Tls { .. } => "tls",
            Self::Hbone { .. } => "hbone",
            Self::ProxyProtocol(_) => "proxy_protocol",
            Self::Denied => "denied_by_peer",
            Self::Unavailable => "unavailable",
            Self::Share(crowded) => crowded.reason(),
            Self::Pool(PoolError::Connect(error)) => error.reason(),
            Self::Pool(PoolError::Crowded(_)) => "crowded",
        }
    }
}

/// What the other proxy is told of a connection.
pub(crate) struct Ask<'a> {
    /// The pod that connects.
    pub(crate) source: &'a Workload,
    /// Its socket.
    pub(crate) client: SocketAddr,
    /// Where it goes.
    pub(crate) authority: SocketAddr,
    /// The service it asked for.
    pub(crate) service: Option<&'a Service>,
}

/// A tunnel that stands.
pub(crate) struct Opened {
    /// Its stream.
    pub(crate) tunnel: Tunnel,
    /// Who answered.
    pub(crate) peer: TunnelPeer,
}

/// Opens a TCP connection from inside a pod's namespace.
pub(crate) async fn dial(
    pod: &Pod,
    address: SocketAddr,
    options: &DialOptions,
) -> Result<TcpStream, DialError> {
    let dialing = pod.netns.run(|| tcp_dial(address, options));
    let dialing = dialing.and_then(|made| made).map_err(DialError::Socket)?;
    match timeout(CONNECT_TIMEOUT, dialing.connected()).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(cause)) => Err(DialError::Connect { address, cause }),
        Err(_) => Err(DialError::Timeout(address)),
    }
}

/// Opens a tunnel to the destination's proxy, in an HBONE connection that is there or a new one.
pub(crate) async fn open(
    plane: &Rc<DataPlane>,
    served: &Rc<Served>,
    target: &Target,
    ask: &Ask<'_>,
) -> Result<Opened, DialError> {
    let pod = &served.pod;
    let certificates = &plane.shared.mesh.certificates;
    let credentials = match certificates.cached(&pod.identity) {
        Some(credentials) => credentials,
        None => certificates.of(&pod.identity).await?,
    };
    let key = PoolKey {
        pod: pod.uid.clone(),
        source: pod.identity.clone(),
        source_ip: ask.client.ip(),
        destinations: target.identities.clone(),
        hbone: target.hbone,
    };
    let generation = certificates.generation(&credentials);
    let mut attempts = 1;
    loop {
        let connect = || connect(plane.clone(), served.clone(), credentials.clone(), key.clone());
        let client = plane.pool.client(&key, generation, &served.drain.guard(), connect).await;
        let client = match client.map_err(DialError::Pool) {
            Err(error) if error.is_cut() && attempts < MAX_TUNNEL_ATTEMPTS => {
                attempts += 1;
                continue;
            }
            client => client?,
        };
        if client.about().not_after <= SystemTime::now() && attempts < MAX_TUNNEL_ATTEMPTS {
            // What proved the other end has expired: it must prove itself anew.
            plane.pool.forget(|other| *other == key);
            attempts += 1;
            continue;
        }
        let answer = client.connect(request(plane, ask));
        let silent = || DialError::Silent { address: target.hbone };
        match timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| silent())? {
            Ok((_headers, tunnel)) => {
                return Ok(Opened { tunnel, peer: client.about().clone() });
            }
            Err(HboneError::Closing(_)) if attempts < MAX_TUNNEL_ATTEMPTS => attempts += 1,
            Err(HboneError::Refused(StatusCode::UNAUTHORIZED)) => return Err(DialError::Denied),
            Err(HboneError::Refused(StatusCode::SERVICE_UNAVAILABLE)) => {
                return Err(DialError::Unavailable);
            }
            Err(cause) => {
                // Nothing of the client's was sent yet.
                let error = of_hbone(target.hbone, cause);
                if !error.is_cut() || attempts == MAX_TUNNEL_ATTEMPTS {
                    return Err(error);
                }
                attempts += 1;
            }
        }
    }
}

/// Opens a new HBONE connection.
async fn connect(
    plane: Rc<DataPlane>,
    served: Rc<Served>,
    credentials: Arc<Credentials>,
    key: PoolKey,
) -> Result<(Client, TunnelPeer), DialError> {
    let address = key.hbone;
    let held = served.pod.shares.of(Direction::Outbound).take(None, 1)?;
    let stream = match dial(&served.pod, address, &plane.dial_options(None)).await {
        Err(DialError::Timeout(address)) => return Err(DialError::HboneTimeout(address)),
        dialled => dialled?,
    };
    let transport = Transport::new(stream).holding(held);
    let activity = transport.activity();
    let proven = credentials.connector.connect(transport, &key.destinations).await;
    let (stream, peer) = proven.map_err(|cause| DialError::Tls { address, cause })?;
    plane.shared.mesh.metrics.handshake(Reporter::Source, peer.group.as_str());
    let settings = settings(&plane, plane.shared.mesh.memory.outbound(&key.pod));
    let client = Client::handshake(stream, activity, &settings, &served.drain.guard()).await;
    let client = client.map_err(|cause| of_hbone(address, cause))?;
    Ok((client, Arc::new(peer)))
}

/// HTTP/2 settings of an HBONE connection, those of both directions.
pub(crate) fn settings(plane: &DataPlane, accounts: Accounts) -> Settings {
    let hbone = &plane.shared.mesh.settings.hbone;
    Settings {
        stream_window_bytes: hbone.stream_window_bytes,
        connection_window_bytes: hbone.connection_window_bytes,
        frame_size_bytes: hbone.frame_size_bytes,
        accounts,
    }
}

/// In TLS 1.3 a client believes to be done before the server has judged its certificate: the
/// verdict arrives with the first read, as an error of what runs inside.
fn of_hbone(address: SocketAddr, cause: HboneError) -> DialError {
    match cause.transport().and_then(HandshakeError::from_io) {
        Some(cause) => DialError::Tls { address, cause },
        None => DialError::Hbone { address, cause },
    }
}

fn request(plane: &DataPlane, ask: &Ask<'_>) -> Request<()> {
    let host = ask.service.map(|service| service.key.hostname.to_string());
    let forwarded = Forwarded { client: Some(ask.client), host };
    let trace = TraceParent::from_random(plane.balance.random_bytes());
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = authority(ask.authority);
    let headers = request.headers_mut();
    put(headers, hbone::BAGGAGE, &Baggage::of(ask.source).to_string());
    put(headers, hbone::FORWARDED, &forwarded.to_string());
    put(headers, hbone::TRACEPARENT, &trace.to_string());
    request
}

fn authority(address: SocketAddr) -> Uri {
    let authority = address.to_string();
    authority.parse().expect("an address with its port is an authority")
}

/// Adds a header; one that cannot be written (a name with control characters) is left out, since
/// all of them are for telemetry.
pub(crate) fn put(headers: &mut HeaderMap, name: http::HeaderName, value: &str) {
    match HeaderValue::from_str(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(error) => tracing::debug!(%name, %error, "header left out"),
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::socket::tcp_dial;
    use tokio::net::TcpListener;

    use super::*;

    /// Who is dialled.
    #[derive(Clone, Copy)]
    enum Listener {
        Absent,
        /// It has closed by the time the dialler looks.
        Closing,
    }

    async fn check(listener: Listener, expected: bool) {
        let listening = TcpListener::bind("[::1]:0").await.expect("listening");
        let address = listening.local_addr().expect("an address");
        let dial = || tcp_dial(address, &DialOptions::default()).expect("a socket");
        let dialing = match listener {
            Listener::Absent => {
                drop(listening);
                dial()
            }
            Listener::Closing => {
                let dialing = dial();
                drop(listening);
                dialing
            }
        };
        let cause = dialing.connected().await.expect_err("nobody accepts");
        let error = DialError::Connect { address, cause };
        assert_eq!(error.is_cut(), expected, "{error:?}");
        let shared = DialError::Pool(PoolError::Connect(Arc::new(error)));
        assert_eq!(shared.is_cut(), expected, "{shared:?}");
    }

    #[tokio::test]
    async fn a_connection_reset_by_a_closing_listener_is_tried_again() {
        check(Listener::Closing, true).await;
        check(Listener::Absent, false).await;
    }
}
