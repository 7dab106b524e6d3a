//! Dials TCP from inside a workload's namespace, and classifies why that or a tunnel fails.
//!
//! Every socket is created in the namespace of the workload it belongs to, with the proxy's mark;
//! for a workload outside of its cluster, those to others are of the host's network.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ambit_net::hbone::HboneError;
use ambit_net::outside::Outside;
use ambit_net::pool::PoolError;
use ambit_net::socket::{DialOptions, set_keepalive, tcp_dial};
use ambit_tls::HandshakeError;
use ambit_wire::hbone::proxy_protocol::IdentityTooLong;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::certificates::CertificateError;
use crate::descriptors::Crowded;
use crate::failure::{Failure, ResponseFlags};
use crate::own::OwnWorkload;

/// How long a TCP connection may take to be established.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other proxy may take to answer a CONNECT; it dials the application meanwhile.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a destination could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
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
        "{0} did not answer within {limit_s} s: maybe a NetworkPolicy is blocking HBONE port \
         {port}",
        port = ambit_words::ports::HBONE,
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
    /// The client's identity does not fit into the PROXY header that the application wants.
    #[error("cannot write the PROXY header for the application")]
    ProxyProtocol(#[from] IdentityTooLong),
    /// The pod may have no more descriptors.
    #[error(transparent)]
    Share(#[from] Box<Crowded>),
    /// An HBONE connection that is shared could not be opened.
    #[error(transparent)]
    Pool(PoolError<DialError>),
}

impl DialError {
    /// Whether another endpoint may do better. Nothing has been sent to this one, but what is
    /// [spent](ambit_net::hbone::Early::is_spent).
    pub fn is_of_the_endpoint(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::HboneTimeout(_)
            | Self::Timeout(_)
            | Self::Unavailable
            | Self::Silent { .. }
            // It ends, and takes no tunnel any more.
            | Self::Hbone { cause: HboneError::Closing(_), .. } => true,
            Self::Pool(PoolError::Connect(error)) => error.is_of_the_endpoint(),
            error => error.is_cut(),
        }
    }

    /// Whether the connection was cut before its tunnel was there, as when the other proxy dies:
    /// the next one may find its successor. What is spent is not sent to that.
    pub fn is_cut(&self) -> bool {
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

/// Opens a TCP connection from inside a workload's namespace.
pub async fn dial(
    own: &OwnWorkload,
    address: SocketAddr,
    options: &DialOptions,
) -> Result<TcpStream, DialError> {
    let connected = match own.outside_for(address) {
        Some(outside) => timeout(CONNECT_TIMEOUT, dial_outside(outside, address, options)).await,
        None => {
            let dialing = own.run(|| tcp_dial(address, options));
            let dialing = dialing.and_then(|made| made).map_err(DialError::Socket)?;
            timeout(CONNECT_TIMEOUT, dialing.connected()).await
        }
    };
    match connected {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(cause)) => Err(DialError::Connect { address, cause }),
        Err(_) => Err(DialError::Timeout(address)),
    }
}

/// Opens a connection from the network outside of a workload's namespace, whose mark and addresses
/// mean nothing there.
async fn dial_outside(
    outside: &Outside,
    address: SocketAddr,
    options: &DialOptions,
) -> io::Result<TcpStream> {
    let stream = outside.dial(address).await?;
    stream.set_nodelay(options.nodelay)?;
    if let Some(keepalive) = options.keepalive {
        set_keepalive(&stream, keepalive)?;
    }
    if options.user_timeout.is_some() {
        SockRef::from(&stream).set_tcp_user_timeout(options.user_timeout)?;
    }
    Ok(stream)
}

/// Addresses of one name that are tried for one connection.
const TRIED_MAX: usize = 3;

/// Lets the addresses of the first one's family take turns.
pub fn in_turn(addresses: &mut [SocketAddr], turn: usize) {
    let Some(first) = addresses.first() else { return };
    let is_like = first.is_ipv4();
    let alike = addresses.iter().take_while(|it| it.is_ipv4() == is_like).count();
    addresses[..alike].rotate_left(turn % alike);
}

/// Opens a connection to the first of several addresses that answers, within the time that one of
/// them alone would have. `on_try` hears of each; there is at least one.
pub async fn dial_first(
    own: &OwnWorkload,
    addresses: &[SocketAddr],
    options: &DialOptions,
    mut on_try: impl FnMut(SocketAddr),
) -> Result<TcpStream, DialError> {
    let tried = &addresses[..addresses.len().min(TRIED_MAX)];
    let limit = CONNECT_TIMEOUT / u32::try_from(tried.len().max(1)).unwrap_or(u32::MAX);
    let mut failure = DialError::Socket(io::ErrorKind::AddrNotAvailable.into());
    for address in tried {
        on_try(*address);
        let dialled = timeout(limit, dial(own, *address, options)).await;
        match dialled.unwrap_or(Err(DialError::Timeout(*address))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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

    #[test]
    fn the_addresses_of_the_first_family_take_turns() {
        let check = |turn, expected: [&str; 4]| {
            let all = ["192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1", "[2001:db8::2]:1"];
            let [mut all, expected] =
                [all, expected].map(|it| it.map(|it| it.parse().expect("an address")));
            in_turn(&mut all, turn);
            assert_eq!(all, expected, "{turn}");
        };
        let (one, other) = ("[2001:db8::1]:1", "[2001:db8::2]:1");
        check(0, ["192.0.2.1:1", "192.0.2.2:1", one, other]);
        check(1, ["192.0.2.2:1", "192.0.2.1:1", one, other]);
        check(2, ["192.0.2.1:1", "192.0.2.2:1", one, other]);
        in_turn(&mut [], 1);
    }

    #[tokio::test]
    async fn a_connection_reset_by_a_closing_listener_is_tried_again() {
        check(Listener::Closing, true).await;
        check(Listener::Absent, false).await;
    }
}
