//! HBONE connections of other proxies to a workload that this proxy acts for, from accept to end.
//!
//! TLS proves the client. Each of its tunnels is then handed to the role, which judges and serves
//! it. A claim in a header never decides anything.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_net::admission::{Leave, Owner};
use ambit_net::drain::{Drain, Guard};
use ambit_net::hbone::{Connect, HboneError, Transport, serve as serve_hbone};
use ambit_net::socket::{bound_unsent, normalise};
use ambit_tls::{HandshakeError, Peer, ServerStream};
use ambit_words::ports;
use tokio::net::TcpStream;

use crate::certificates::{CertificateError, Certificates};
use crate::descriptors::{Carrier, Crowded, Direction, Permit, Source};
use crate::failure::{Failure, ResponseFlags};
use crate::metrics::Reporter;
use crate::own::Served;
use crate::plane::Plane;
use crate::record::{Cause, Record};

/// How often the wall clock is compared with the end of a client's certificate, besides at every
/// new tunnel: so soon after a suspend the client is asked to reconnect.
const CLOCK_INTERVAL: Duration = Duration::from_secs(30);

/// Why another proxy's connection was not served.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    /// Others connect to the pod, and this handshake was the oldest of the source that has most.
    #[error("too many TLS handshakes are under way with this pod, and this is the oldest of them")]
    Crowded(#[source] Leave),
    /// There is no descriptor for one more connection of this client.
    #[error(transparent)]
    Share(#[from] Box<Crowded>),
    /// The pod has no certificate.
    #[error("this pod cannot prove its identity")]
    Certificate(#[from] CertificateError),
    /// The peer did not prove who it is.
    #[error("the TLS handshake failed")]
    Tls(#[source] HandshakeError),
    /// The peer speaks no HBONE.
    #[error("the HBONE connection failed")]
    Hbone(#[source] HboneError),
    /// The peer's certificate was revoked while the handshake went on.
    #[error("the peer's certificate was revoked during the handshake")]
    Revoked,
}

impl SessionError {
    fn cause(&self) -> Cause {
        match self {
            Self::Tls(HandshakeError::Revoked { .. }) => Cause::Known,
            Self::Crowded(_) | Self::Tls(_) => Cause::Stranger,
            Self::Share(_) | Self::Certificate(_) | Self::Hbone(_) | Self::Revoked => Cause::Known,
        }
    }
}

impl Failure for SessionError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Crowded(_) => ResponseFlags::Overflow,
            Self::Share(crowded) => crowded.flags(),
            Self::Certificate(_) => ResponseFlags::IdentityError,
            Self::Revoked | Self::Tls(HandshakeError::Revoked { .. }) => {
                ResponseFlags::CertificateRevoked
            }
            Self::Tls(_) => ResponseFlags::TlsFailure,
            Self::Hbone(_) => ResponseFlags::H2HandshakeFailure,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Crowded(_) => "crowded",
            Self::Share(crowded) => crowded.reason(),
            Self::Certificate(_) => "no_certificate",
            Self::Tls(_) => "tls",
            Self::Hbone(_) => "hbone",
            Self::Revoked => "revoked",
        }
    }
}

/// One HBONE connection to a workload of this proxy.
pub struct Session {
    /// What the thread's connections share.
    pub plane: Rc<Plane>,
    /// The workload.
    pub served: Rc<Served>,
    /// The other proxy's socket; its address is the client pod's.
    pub from: SocketAddr,
    /// The address that the connection was made to.
    pub own: SocketAddr,
    /// Who has proven to be at the other end.
    pub peer: Arc<Peer>,
    /// Its descriptors.
    pub carrier: Rc<Carrier>,
}

/// Serves one HBONE connection from accept to its end. `each` is called for each of its tunnels,
/// and must not block.
pub async fn serve(
    plane: Rc<Plane>,
    served: Rc<Served>,
    stream: TcpStream,
    from: SocketAddr,
    held: Permit,
    each: impl Fn(Rc<Session>, Connect),
) {
    let unknown = SocketAddr::new(from.ip(), ports::HBONE);
    let own = stream.local_addr().map_or(unknown, normalise);
    if let Err(error) = session(&plane, &served, stream, (from, own), held, each).await {
        let record = Record::new(Reporter::Destination, from, own);
        record.failed_early(&plane.tally, &error, error.cause());
    }
}

async fn session(
    plane: &Rc<Plane>,
    served: &Rc<Served>,
    stream: TcpStream,
    (from, own): (SocketAddr, SocketAddr),
    held: Permit,
    each: impl Fn(Rc<Session>, Connect),
) -> Result<(), SessionError> {
    let mut handshaking = served.handshakes.admit(from.ip().into()).await;
    let certificates = &plane.mesh.certificates;
    // A client that has gone meanwhile is found by the handshake.
    let _ = bound_unsent(&stream);
    let transport = Transport::new(stream);
    let activity = transport.activity();
    let (stream, peer) = tokio::select! {
        biased;
        leave = poll_fn(|cx| handshaking.poll_leave(cx)) => {
            return Err(SessionError::Crowded(leave));
        }
        proven = prove(certificates, &served.own.identity, transport) => proven?,
    };
    handshaking.proof().prove(Owner::Named(peer.identity.to_string().into()));
    // From here on it counts with those of whom it has proven to be.
    let source = Source::proven(from.ip(), peer.identity.clone());
    let carrier = Carrier::new(served.own.shares.of(Direction::Inbound), source)?;
    drop((handshaking, held));
    let metrics = &plane.mesh.metrics;
    metrics.handshake(Reporter::Destination, peer.group.as_str());
    let peer = Arc::new(peer);
    let pods = vec![served.own.clone()];
    let entered = plane.connections.enter(pods, None, Some(peer.clone()));
    // From here on a revocation cuts the entry; one that came during the handshake is seen now.
    if certificates.revocations().revokes(&peer) {
        metrics.revocation_rejection();
        return Err(SessionError::Revoked);
    }
    let (plane, served) = (plane.clone(), served.clone());
    let (uid, identity) = (&served.own.uid, Some(&peer.identity));
    let accounts = plane.mesh.memory.inbound(uid, identity, from.ip());
    let settings = plane.hbone_settings(accounts);
    let leaving = Drain::new();
    let (guard, pod) = (leaving.guard(), served.drain.guard());
    let session = Rc::new(Session { plane, served, from, own, peer, carrier });
    let each = |connect| each(session.clone(), connect);
    let serving = serve_hbone(stream, activity, &settings, &guard, each);
    let certificates = session.plane.mesh.certificates.clone();
    let expiry = expired(certificates, session.peer.not_after);
    pod.clone().spawn_local(leave(leaving, pod, expiry));
    tokio::select! {
        biased;
        served = serving => match served {
            Err(error @ (HboneError::Handshake(_) | HboneError::Silent(_))) => {
                Err(SessionError::Hbone(error))
            }
            Err(error) => {
                tracing::debug!(%from, %error, "HBONE connection broke");
                Ok(())
            }
            Ok(()) => Ok(()),
        },
        reason = entered.cut_off() => {
            let identity = &session.peer.identity;
            tracing::info!(%from, %identity, %reason, "HBONE connection cut");
            Ok(())
        }
    }
}

/// Proves both ends to one another.
async fn prove(
    certificates: &Certificates,
    own: &Identity,
    transport: Transport<TcpStream>,
) -> Result<(ServerStream<Transport<TcpStream>>, Peer), SessionError> {
    let credentials = match certificates.cached(own) {
        Some(credentials) => credentials,
        None => certificates.of(own).await?,
    };
    credentials.acceptor.accept(transport).await.map_err(SessionError::Tls)
}

/// Asks the client to open its next tunnels elsewhere when the pod drains or when the client's
/// certificate has expired, which proves nothing from then on. Open tunnels continue. Ends with the
/// session.
async fn leave(session: Drain, mut pod: Guard, expiry: impl Future<Output = ()>) {
    let mut late = pod.clone();
    let leaving = async {
        tokio::select! {
            _ = pod.draining() => {}
            () = expiry => {}
        }
        session.start(None);
        late.overdue().await;
        session.start(Some(tokio::time::Instant::now()));
    };
    tokio::select! {
        () = session.finished() => return,
        () = leaving => {}
    }
    session.finished().await;
}

/// Waits until the wall clock says so. Timers stop while a machine is suspended, so the clock is
/// read at intervals.
async fn expired(certificates: Certificates, not_after: SystemTime) {
    while let Ok(left) = not_after.duration_since(certificates.now()) {
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CLOCK_INTERVAL)).await;
    }
}
