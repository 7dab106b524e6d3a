//! Names of the mesh, answered inside the pods that ask (port 15053, UDP and TCP).
//!
//! One thread serves all pods. The namespace of the socket shows which pod asks. Names in the view
//! are answered from it; everything else goes, byte for byte, to the resolver that the pod
//! addressed. Each pod has a bound on its queries in flight; beyond it queries are refused, never
//! queued. Pods take turns, and each has its pace.

mod message;
mod resolve;
mod turns;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::accept::accept_waiting;
use ambit_dataplane::descriptors::{Direction, Permit, Share};
use ambit_dataplane::resolver::{self, Asker as From, Transport};
use ambit_model::Text;
use ambit_net::conntrack::{Conntrack, Tuple};
use ambit_net::drain::{Drain, Guard};
use ambit_net::nftables::Protocol;
use ambit_net::socket::{normalise, original_destination};
use futures::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::pods::Pod;
use crate::shared::Shared;
use message::{Asked, Known, Outcome};
use resolve::{Asker, Resolution};
use turns::Turns;

/// Queries of one pod that may be under way upstream.
const MAX_FORWARDED: usize = 256;
/// TCP connections of one pod that may be open.
const MAX_CONNECTIONS: usize = 64;
/// How long a TCP connection may be silent.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// Longest datagram that is read; RFC 6891 recommends to offer no more.
const MAX_DATAGRAM_BYTES: usize = 4096;
/// Longest query that is read of a connection. One has a question of 271 bytes at most, and
/// options, cookies and signatures of a few hundred.
const MAX_TCP_QUERY_BYTES: usize = 4096;
/// Pause after a socket failed.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// How long queries in flight may take once the thread must stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Most datagrams that are read from a socket that must close: more than wait in it, unless they
/// keep coming.
const UNREAD_MAX: usize = 1024;

/// What the control thread asks of the DNS thread.
pub(crate) enum Command {
    /// Serve a pod.
    Add {
        /// The pod, which the thread knows by its uid.
        pod: Arc<Pod>,
        /// Its DNS listeners, UDP and TCP.
        sockets: Sockets,
    },
    /// A pod is gone.
    Remove {
        /// Which.
        uid: Text,
    },
    /// Take no more queries.
    Stop,
}

/// The DNS sockets of one pod.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// For datagrams.
    pub(crate) udp: Vec<std::net::UdpSocket>,
    /// For connections.
    pub(crate) tcp: Vec<std::net::TcpListener>,
}

/// A pod that is served.
struct Served {
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    forwarded: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    /// What the pod may have of the worker's descriptors.
    share: Arc<Share>,
    /// When its queries are served.
    turns: Turns,
    /// Where other names are looked up when that is unknown.
    fallback: Vec<SocketAddr>,
}

/// Serves pods until [`Command::Stop`]. Must run in a `LocalSet`.
pub(crate) async fn run(shared: Arc<Shared>, mut commands: mpsc::Receiver<Command>) {
    let mut pods: HashMap<Text, Drain> = HashMap::new();
    let fallback = resolver::node_resolvers(&shared.config.dns.upstream);
    while let Some(command) = commands.recv().await {
        match command {
            Command::Add { pod, sockets } => {
                let drain = Drain::new();
                let served = Rc::new(Served {
                    shared: shared.clone(),
                    pod: pod.clone(),
                    forwarded: Arc::new(Semaphore::new(MAX_FORWARDED)),
                    connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
                    share: pod.shares.of(Direction::Dns).clone(),
                    turns: Turns::new(),
                    fallback: fallback.clone(),
                });
                serve(&served, sockets, &drain);
                // Queries in flight for an earlier pod with this uid continue by themselves.
                if let Some(before) = pods.insert(pod.uid.clone(), drain) {
                    before.start(Some(Instant::now()));
                }
            }
            Command::Remove { uid } => {
                if let Some(drain) = pods.remove(&uid) {
                    drain.start(Some(Instant::now()));
                }
            }
            Command::Stop => break,
        }
    }
    let until = Instant::now() + STOP_LIMIT;
    pods.values().for_each(|drain| drain.start(Some(until)));
    for drain in pods.values() {
        drop(tokio::time::timeout_at(until, drain.finished()).await);
    }
}

fn serve(served: &Rc<Served>, sockets: Sockets, drain: &Drain) {
    for socket in sockets.udp {
        let (served, guard) = (served.clone(), drain.guard());
        guard.clone().spawn_local(async move {
            let name = served.pod.name.clone();
            if let Err(error) = serve_udp(served, socket, guard).await {
                warn!(pod = %name, %error, "cannot serve DNS over UDP in this pod");
            }
        });
    }
    for socket in sockets.tcp {
        let (served, guard) = (served.clone(), drain.guard());
        guard.clone().spawn_local(async move {
            let name = served.pod.name.clone();
            if let Err(error) = serve_tcp(served, socket, guard).await {
                warn!(pod = %name, %error, "cannot serve DNS over TCP in this pod");
            }
        });
    }
}

async fn serve_udp(
    served: Rc<Served>,
    socket: std::net::UdpSocket,
    mut guard: Guard,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = Rc::new(UdpSocket::from_std(socket)?);
    let local = socket.local_addr()?;
    let datagrams = Datagrams { served, socket: socket.clone(), local, forwarded: Drain::new() };
    let mut draining = std::pin::pin!(guard.draining());
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let received = tokio::select! {
            biased;
            _ = &mut draining => break,
            received = socket.recv_from(&mut buffer) => received,
        };
        datagrams.take(received, &buffer).await;
    }
    // As long as an answer from upstream is to leave by this socket, it gets queries too, and
    // nobody else gets those.
    let unread = std::net::UdpSocket::from(socket.as_fd().try_clone_to_owned()?);
    let closes_at = Instant::now() + STOP_LIMIT;
    loop {
        // Of the kernel, because the runtime may not have heard yet of what came last.
        for _ in 0..UNREAD_MAX {
            let Ok(received) = unread.recv_from(&mut buffer) else { break };
            datagrams.take(Ok(received), &buffer).await;
        }
        // The other pods' turn, however much comes of this one.
        tokio::task::yield_now().await;
        let is_answered = datagrams.forwarded.finished().now_or_never().is_some();
        if is_answered || Instant::now() >= closes_at {
            return Ok(());
        }
        tokio::select! {
            () = datagrams.forwarded.finished() => {}
            received = socket.recv_from(&mut buffer) => datagrams.take(received, &buffer).await,
            () = tokio::time::sleep_until(closes_at) => {}
        }
    }
}

/// One socket for datagrams.
struct Datagrams {
    served: Rc<Served>,
    socket: Rc<UdpSocket>,
    local: SocketAddr,
    /// Queries that are answered once a resolver has answered.
    forwarded: Drain,
}

impl Datagrams {
    /// Answers what was received, or begins to.
    async fn take(&self, received: io::Result<(usize, SocketAddr)>, buffer: &[u8]) {
        let (length, peer) = match received {
            Ok(received) => received,
            Err(error) => {
                // Such as a client that closed its socket before the answer came.
                debug!(%error, "DNS socket");
                return tokio::time::sleep(ERROR_PAUSE).await;
            }
        };
        let (served, query) = (&self.served, &buffer[..length]);
        served.shared.metrics.dns_request();
        let answer = match served.turns.take(|| served.answer(query, Transport::Udp)).await {
            Outcome::Ignore => return,
            Outcome::Answer(answer) => answer,
            Outcome::Forward => match served.permits(&served.forwarded, 1) {
                Some(permits) => return self.forward(query.to_vec(), peer, permits),
                None => served.refuse(query),
            },
        };
        send(&self.socket, &answer, peer).await;
    }

    fn forward(&self, query: Vec<u8>, peer: SocketAddr, permits: Permits) {
        let (served, socket, local) = (self.served.clone(), self.socket.clone(), self.local);
        self.forwarded.guard().spawn_local(async move {
            let original = || served.asked_over_udp(local, peer);
            let answer = served.forward(&query, Transport::Udp, original).await;
            send(&socket, &answer, peer).await;
            drop(permits);
        });
    }
}

async fn send(socket: &UdpSocket, answer: &[u8], peer: SocketAddr) {
    if let Err(error) = socket.send_to(answer, peer).await {
        debug!(%peer, %error, "a DNS answer was not sent");
    }
}

async fn serve_tcp(
    served: Rc<Served>,
    listener: std::net::TcpListener,
    mut guard: Guard,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let tasks = guard.clone();
    let mut draining = std::pin::pin!(guard.draining());
    let each = |stream, _peer| {
        // Beyond the bound the connection is closed at once: the client asks again. One descriptor
        // is for the connection, one for the resolver's.
        let Some(permits) = served.permits(&served.connections, 2) else { return };
        let (served, mut guard) = (served.clone(), tasks.clone());
        tasks.spawn_local(async move {
            tokio::select! {
                () = served.converse(stream) => {}
                () = guard.overdue() => {}
            }
            drop(permits);
        });
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut draining => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => served.turns.take(|| each(stream, peer)).await,
            Err(error) => {
                debug!(%error, "DNS listener");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
    accept_waiting(&listener.into_std()?, || served.connections.available_permits() > 0, each)
}

/// What something that is under way holds: a place among its like, and descriptors.
type Permits = (OwnedSemaphorePermit, Permit);

impl Served {
    /// Takes a place, and descriptors of the pod's share, unless there is none.
    fn permits(&self, places: &Arc<Semaphore>, count: usize) -> Option<Permits> {
        let place = places.clone().try_acquire_owned().ok()?;
        Some((place, self.share.take(None, count).ok()?))
    }

    /// What to do with a query.
    fn answer(&self, query: &[u8], transport: Transport) -> Outcome {
        let asked = match message::read(query) {
            Ok(asked) => asked,
            Err(outcome) => return outcome,
        };
        match self.resolve(&asked) {
            Resolution::Known { canonical, addresses, ttl } => {
                let canonical = canonical.as_deref();
                let known = Known { canonical, addresses: &addresses, ttl };
                Outcome::Answer(message::answer(&asked, known, transport))
            }
            Resolution::Forward => Outcome::Forward,
        }
    }

    fn resolve(&self, asked: &Asked) -> Resolution {
        let Some(family) = asked.family else { return Resolution::Forward };
        let view = self.shared.mesh.view.load();
        let config = &self.shared.config;
        let known = self.pod.described_in(&view);
        let asker = Asker {
            namespace: &self.pod.name.namespace,
            network: known.map_or(&config.node.network, |workload| &workload.network),
            cluster_domain: &config.node.cluster_domain,
            ipv6: config.sockets.ipv6,
        };
        resolve::resolve(&view, &asker, &asked.name, family, rand::random())
    }

    /// One connection: one query after the other, until the client closes it.
    async fn converse(&self, mut stream: TcpStream) {
        let original = original_destination(&stream).ok().map(normalise);
        loop {
            match timeout(IDLE_LIMIT, self.exchange(&mut stream, original)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return debug!(%error, "DNS over TCP"),
                Err(_) => return,
            }
        }
    }

    async fn exchange(
        &self,
        stream: &mut TcpStream,
        original: Option<SocketAddr>,
    ) -> io::Result<()> {
        let length = usize::from(stream.read_u16().await?);
        if length > MAX_TCP_QUERY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut query = vec![0; length];
        stream.read_exact(&mut query).await?;
        self.shared.metrics.dns_request();
        let answer = match self.turns.take(|| self.answer(&query, Transport::Tcp)).await {
            Outcome::Ignore => return Err(io::ErrorKind::InvalidData.into()),
            Outcome::Answer(answer) => answer,
            Outcome::Forward => match self.forwarded.try_acquire() {
                Ok(_permit) => self.forward(&query, Transport::Tcp, || original).await,
                Err(_) => self.refuse(&query),
            },
        };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await
    }

    fn refuse(&self, query: &[u8]) -> Vec<u8> {
        self.shared.metrics.dns_refused();
        message::refusal(query, message::REFUSED)
    }

    /// The answer of an upstream resolver, or the news that there is none.
    async fn forward(
        &self,
        query: &[u8],
        transport: Transport,
        original: impl FnOnce() -> Option<SocketAddr>,
    ) -> Vec<u8> {
        let resolvers = self.resolvers(original);
        let start = Instant::now();
        let from = From { own: Some(&self.pod), mark: self.shared.config.sockets.mark };
        match resolver::ask(from, &resolvers, query, transport).await {
            Ok(answer) => {
                self.shared.metrics.dns_upstream(Some(start.elapsed()));
                answer
            }
            Err(error) => {
                self.shared.metrics.dns_upstream(None);
                debug!(pod = %self.pod.name, ?resolvers, %error, "no resolver answers");
                message::refusal(query, message::SERVER_FAILURE)
            }
        }
    }

    /// Whom to ask: who is configured, or whom this query was for, or the node's own resolvers.
    /// Nothing is remembered of other queries: they are of other processes, which must not decide
    /// whom this one believes.
    fn resolvers(&self, original: impl FnOnce() -> Option<SocketAddr>) -> Vec<SocketAddr> {
        if !self.shared.config.dns.upstream.is_empty() {
            return self.shared.config.dns.upstream.clone();
        }
        // A query to this very socket was not redirected: it names no resolver.
        let asked = original().filter(|it| !it.ip().is_loopback());
        asked.map_or_else(|| self.fallback.clone(), |asked| vec![asked])
    }

    /// Whom a datagram was sent to before it was redirected here; only the kernel's tables know.
    fn asked_over_udp(&self, local: SocketAddr, peer: SocketAddr) -> Option<SocketAddr> {
        let reply = Tuple { protocol: Protocol::Udp, source: local, destination: peer };
        let opened = match &self.pod.netns {
            Some(netns) => Conntrack::open_in(netns),
            None => Conntrack::open(),
        };
        let looked_up = opened.and_then(|mut conntrack| conntrack.original_of_reply(&reply, 0));
        match looked_up {
            Ok(original) => original.map(|original| original.destination),
            Err(error) => {
                debug!(pod = %self.pod.name, %error, "the pod's resolver is not known");
                None
            }
        }
    }
}

/// What the fuzzer drives: reads any bytes as a query and writes every kind of answer to it.
#[cfg(any(fuzzing, test))]
pub fn fuzz(bytes: &[u8]) {
    use hickory_proto::op::Message;

    let addresses: Vec<std::net::IpAddr> =
        (0..200u8).map(|last| std::net::Ipv4Addr::new(10, 0, 0, last).into()).collect();
    match message::read(bytes) {
        Ok(asked) => {
            for transport in [Transport::Udp, Transport::Tcp] {
                for canonical in [None, Some("cart.shop.svc.cluster.local")] {
                    let known = message::Known { canonical, addresses: &addresses, ttl: 30 };
                    let answer = message::answer(&asked, known, transport);
                    Message::from_vec(&answer).expect("an answer is a message");
                }
            }
        }
        Err(message::Outcome::Answer(refusal)) => assert!(refusal.len() >= resolver::HEADER_BYTES),
        Err(message::Outcome::Ignore | message::Outcome::Forward) => {}
    }
}

#[cfg(test)]
mod tests;
