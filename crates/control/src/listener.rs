//! TCP and TLS below discovery and certificates.
//!
//! Every pod can reach this port, so a connection has to prove itself: by a TLS handshake, and by a
//! call of a node's proxy soon after it. Until then it is one of a bounded number;
//! [`ambit_net::admission`] says how they are bounded, and which is closed first. Handshakes run in
//! parallel, a limited number for each source, so a flood from one place does not take the
//! processor from the others. The server certificate can be replaced while connections live.
//! Nothing here knows what is served.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ambit_net::accept::{self, Admitted, Listener};
use ambit_net::admission::{Admission, Bound, Bounds, Owner, Proof, Source};
use ambit_net::drain::Guard;
use ambit_tls::service::ServiceAcceptor;
use ambit_tls::{HandshakeError, ServerStream};
use ambit_words::error_chain;
use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::transport::server::Connected;

/// Connections that have proven nothing yet. Each takes a descriptor and, after its handshake,
/// about 17 KiB.
const SILENT_MAX: usize = 2048;
/// Those of one source. Proxies have addresses of their own in most clusters; behind a translated
/// address a thousand may reconnect at once. A flood from there of as many connections a second
/// leaves each of them a second to prove itself.
const SILENT_OF_SOURCE_MAX: usize = 1024;
/// Connections of node proxies: two for each of 8,000 nodes.
const PROVEN_MAX: usize = 16_384;
/// Those of all WorkloadEntries' computers. Whoever may make WorkloadEntries may make many: their
/// connections close no node's, and the oldest of the namespace that has most goes.
const PROVEN_OF_ENTRIES_MAX: usize = PROVEN_MAX / 4;
/// Those of one node. A proxy has two; while it is upgraded there are two proxies, of two workers
/// each; as many again may have died without our knowing it yet. The rest is room.
const PROVEN_OF_NODE_MAX: usize = 32;
/// Which parts of the descriptors that the process may have silent and proven connections take at
/// most. What is left is for keys, files, the administration and other ports.
const SILENT_SHARE: usize = 8;
const PROVEN_SHARE: usize = 4;
/// Longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after its handshake a connection may be without a call of a node's proxy.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection stays whose call was refused: for the answer to reach its client.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(1);
/// What a connection may send before it is read, of all its calls: requests are small, but for what
/// a proxy holds when it comes back.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// What a client may send until it has proven itself: all that its window lets it send of its first
/// calls, which it need not hold back until the first of them is judged, and half as much for the
/// handshake and the heads of 64 calls. Frames that belong to no call, PING and SETTINGS among
/// them, have no window; without this bound they could be sent until the time is over.
pub(crate) const UNPROVEN_BYTES_MAX: usize =
    CONNECTION_WINDOW_BYTES as usize + (CONNECTION_WINDOW_BYTES / 2) as usize;
/// Handshakes of one source under way, from the client's first byte on: 0.2 ms of a processor each.
const HANDSHAKES_OF_SOURCE_MAX: usize = 64;
/// How long a handshake counts as under way: what it costs us is spent by then. A client that says
/// nothing more keeps nobody waiting who shares its address.
const HANDSHAKE_TURN: Duration = Duration::from_millis(20);
/// Connections that are established and not yet taken by the server.
const ESTABLISHED_QUEUE: usize = 64;

/// The client of a call: where it connects from, and what it has proven.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub(crate) address: SocketAddr,
    proof: Proof,
    /// Held while a call is judged on a connection that has proven nothing.
    judging: Arc<tokio::sync::Mutex<()>>,
}

impl Remote {
    /// One call after another on a connection that has proven nothing: what a stranger can have
    /// under way is bounded by his connections.
    pub(crate) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.proof.is_proven() { None } else { Some(self.judging.lock().await) }
    }

    /// Who may call has called. Where nobody can say who that is, it is the connection's source.
    pub(crate) fn prove(&self, owner: Option<Owner>) {
        self.proof.prove(owner.unwrap_or_else(|| Owner::Source(self.proof.source())));
    }

    /// Closes the connection with all its calls.
    pub(crate) fn end(&self) {
        self.proof.end();
    }

    /// A call was refused. The connection ends soon unless it proves itself before.
    pub(crate) fn refuse(&self) {
        self.proof.prove_sooner(REFUSED_TIMEOUT);
    }
}

/// One established connection.
pub(crate) struct Connection {
    transport: Transport,
    remote: Remote,
}

enum Transport {
    Tls(Box<ServerStream<Metered>>),
    Plain(Admitted),
}

/// What is read of a client is counted until it has proven itself.
struct Metered {
    stream: Admitted,
    proof: Proof,
    /// Bytes that may still be read; no bound once it is proven.
    left: Option<usize>,
}

/// A client sent more than what may be sent without a proof.
#[derive(Debug, thiserror::Error)]
#[error("more than {UNPROVEN_BYTES_MAX} bytes without the call of a node's proxy")]
struct Chatter;

impl Metered {
    fn new(stream: Admitted) -> Self {
        let proof = stream.proof();
        Self { stream, proof, left: Some(UNPROVEN_BYTES_MAX) }
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        let Some(left) = self.left else { return Ok(()) };
        if self.proof.is_proven() {
            self.left = None;
            return Ok(());
        }
        self.left = Some(left.saturating_sub(bytes));
        let chatter = || io::Error::new(io::ErrorKind::ConnectionAborted, Chatter);
        if bytes > left { Err(chatter()) } else { Ok(()) }
    }
}

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("no handshake within {HANDSHAKE_TIMEOUT:?}")]
    Silent,
    #[error("no handshake")]
    Gone(#[source] io::Error),
    #[error("TLS handshake")]
    Handshake(#[from] HandshakeError),
}

/// How connections of one port are established.
#[derive(Clone)]
pub(crate) enum Security {
    /// TLS with whatever certificate is current.
    Tls(Arc<ArcSwap<ServiceAcceptor>>),
    /// None; for loopback. A client there has proven enough.
    Plain,
}

impl Security {
    /// The bounds of this port in a process that may have so many descriptors.
    fn bounds(&self, descriptors: usize) -> Bounds {
        let total = SILENT_MAX.min(descriptors / SILENT_SHARE);
        let silent = Bound { total, each: SILENT_OF_SOURCE_MAX.min(total.div_ceil(2)) };
        let all = (PROVEN_MAX + PROVEN_OF_ENTRIES_MAX).min(descriptors / PROVEN_SHARE);
        let of_entries = all * PROVEN_OF_ENTRIES_MAX / (PROVEN_MAX + PROVEN_OF_ENTRIES_MAX);
        let (proven, guests) = match self {
            Self::Tls(_) => (
                Bound { total: all - of_entries, each: PROVEN_OF_NODE_MAX },
                Bound { total: of_entries, each: of_entries },
            ),
            Self::Plain => (Bound { total: all, each: all }, Bound::NONE),
        };
        Bounds { silent, proven, guests, proof_within: HANDSHAKE_TIMEOUT }
    }
}

/// Accepts until asked to drain; established connections come out of the receiver.
pub(crate) fn accept(
    listener: TcpListener,
    security: Security,
    descriptors: usize,
    guard: Guard,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(ESTABLISHED_QUEUE);
    let admission = Admission::new("discovery", security.bounds(descriptors));
    let mut drain = guard.clone();
    guard.spawn(async move {
        let (listener, handshakes) = (Listener::Tcp(listener), Arc::new(Handshakes::default()));
        loop {
            let admitted = tokio::select! {
                _ = drain.draining() => return,
                admitted = accept::next(&listener, &admission) => admitted,
            };
            let Some(address) = admitted.remote() else { continue };
            let proof = admitted.proof();
            let remote = Remote { address, proof, judging: Arc::default() };
            let (sender, security) = (sender.clone(), security.clone());
            let handshakes = handshakes.clone();
            drain.spawn(async move {
                match establish(admitted, &security, &handshakes, &remote).await {
                    Ok(transport) => {
                        // If nothing takes it, the server is gone; then the close informs the
                        // client.
                        let _ = sender.send(Ok(Connection { transport, remote })).await;
                    }
                    Err(error) => {
                        let (remote, error) = (address, error_chain(&error));
                        // A flood must not fill the log as well; what it costs is told apart.
                        tracing::debug!(%remote, error, "connection refused");
                    }
                }
            });
        }
    });
    receiver
}

async fn establish(
    mut admitted: Admitted,
    security: &Security,
    handshakes: &Handshakes,
    remote: &Remote,
) -> Result<Transport, Refused> {
    let acceptor = match security {
        Security::Plain => {
            remote.prove(None);
            return Ok(Transport::Plain(admitted));
        }
        Security::Tls(acceptor) => acceptor,
    };
    let handshake = async {
        admitted.readable().await.map_err(Refused::Gone)?;
        let turn = handshakes.turn(remote.proof.source());
        let turn = admitted.stay_for(turn).await.map_err(Refused::Gone)?;
        let acceptor = acceptor.load_full();
        let mut accepting = pin!(acceptor.accept(Metered::new(admitted)));
        let accepted = tokio::time::timeout(HANDSHAKE_TURN, &mut accepting).await;
        drop(turn);
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(_) => accepting.await,
        };
        Ok(accepted?.0)
    };
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    let stream: Result<_, Refused> = stream.map_err(|_| Refused::Silent)?;
    remote.proof.prove_within(FIRST_CALL_TIMEOUT);
    Ok(Transport::Tls(Box::new(stream?)))
}

/// The handshakes under way, by source.
#[derive(Default)]
struct Handshakes(Mutex<HashMap<Source, Weak<Semaphore>>>);

impl Handshakes {
    /// Sources that are looked through for those without a handshake, at most.
    const SOURCES_MAX: usize = 2 * SILENT_MAX;

    async fn turn(&self, source: Source) -> (OwnedSemaphorePermit, Arc<Semaphore>) {
        let turns = self.of(source);
        let permit = turns.clone().acquire_owned().await.expect("nobody closes it");
        (permit, turns)
    }

    fn of(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = self.0.lock().expect("no holder of the lock panics");
        if let Some(turns) = sources.get(&source).and_then(Weak::upgrade) {
            return turns;
        }
        if sources.len() >= Self::SOURCES_MAX {
            sources.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new(HANDSHAKES_OF_SOURCE_MAX));
        sources.insert(source, Arc::downgrade(&turns));
        turns
    }
}

impl Connected for Connection {
    type ConnectInfo = Remote;

    fn connect_info(&self) -> Remote {
        self.remote.clone()
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        Poll::Ready(this.count(buf.filled().len() - before))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_tls::{Authority, AuthorityBundle};

    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for descriptors in [1024, 20_000, 1 << 20] {
            let bounds = Security::Plain.bounds(descriptors);
            assert!(bounds.descriptors() <= descriptors / 2, "{descriptors}: {bounds:?}");
            assert!(bounds.silent.each <= bounds.silent.total, "{descriptors}: {bounds:?}");
        }
    }

    #[tokio::test]
    async fn computers_of_entries_have_a_share_beside_that_of_nodes() {
        let now = std::time::SystemTime::now();
        let authority = Authority::generate("cluster.local", now).expect("a root");
        let hour = Duration::from_secs(3600);
        let certificate = AuthorityBundle::new(authority).issue_server(&["istiod"], hour, now);
        let acceptor = ServiceAcceptor::new(&certificate.expect("issued"), None).expect("usable");
        let acceptor = Arc::new(ArcSwap::from_pointee(acceptor));
        for (descriptors, nodes, entries) in [(1024, 205, 51), (1 << 20, PROVEN_MAX, 4096)] {
            let bounds = Security::Tls(acceptor.clone()).bounds(descriptors);
            assert_eq!(bounds.proven, Bound { total: nodes, each: PROVEN_OF_NODE_MAX });
            assert_eq!(bounds.guests, Bound { total: entries, each: entries });
            assert!(bounds.descriptors() <= descriptors / 2, "{descriptors}: {bounds:?}");
        }
    }

    #[tokio::test]
    async fn handshakes_of_one_source_wait_for_each_other_and_for_no_one_else() {
        let handshakes = Handshakes::default();
        let mut turns = Vec::new();
        for _ in 0..HANDSHAKES_OF_SOURCE_MAX {
            turns.push(handshakes.turn(Source::V6(1)).await);
        }
        let soon = Duration::from_millis(10);
        assert!(tokio::time::timeout(soon, handshakes.turn(Source::V6(1))).await.is_err());
        drop(handshakes.turn(Source::V6(2)).await);
        turns.pop();
        drop(handshakes.turn(Source::V6(1)).await);
        drop(turns);
        for source in 0..10 * Handshakes::SOURCES_MAX as u64 {
            handshakes.of(Source::V6(source));
        }
        let kept = handshakes.0.lock().unwrap().len();
        assert!(kept <= Handshakes::SOURCES_MAX, "{kept}");
    }
}
