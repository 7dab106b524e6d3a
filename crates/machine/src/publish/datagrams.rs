//! UDP ports of the host: each client has a session, with a socket of its own towards the service.
//!
//! UDP has no connections, so nothing says when a client is done. A session ends when it was silent
//! for long, and the one that was silent longest makes room for another: how many there are, and
//! what waits for them, is bounded for each port. Answers go to the address that has asked, and are
//! taken from the service alone: a session's socket is connected.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambit_log::Throttle;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use crate::accepting::ACCEPT_PAUSE;

/// Clients that one port carries at once.
const SESSIONS_MAX: usize = 1024;
/// After so long without a datagram in either direction a session ends. Twice what the kernel keeps
/// an exchange in mind that was answered once.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A service that has not answered for so long may have gone from where it was: its place is looked
/// up again. The kernel would send to the old one for as long as a client sends.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);
/// After a failure nobody is looked up for so long. What comes meanwhile is lost, as UDP may be.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);
/// Datagrams that wait for one session, and their size for all of a port.
const WAITING_MAX: usize = 16;
const WAITING_MAX_BYTES: usize = 1 << 20;
/// The largest there are.
const DATAGRAM_MAX_BYTES: usize = 65_535;
/// Clients may send as much as they like.
static FAILURES: Throttle = Throttle::new("about datagrams from the host", 5);

/// Carries what comes to a socket of the host to where `to` says that it leads, and the answers
/// back, for ever. `connect` opens a socket towards there.
pub(super) async fn carry<T, C, F>(host: UdpSocket, to: impl Fn() -> T, connect: C)
where
    T: Clone + PartialEq + Display + Send + Sync + 'static,
    C: Fn(T) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = anyhow::Result<UdpSocket>> + Send + 'static,
{
    let port = Arc::new(Port::new(host));
    let mut sessions = Sessions::new(SESSIONS_MAX);
    let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
    loop {
        let (length, client) = match port.host.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, to = %to(), "cannot take datagrams; waiting");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A client without a port cannot be answered.
        let Some(datagram) = port.datagram(&buffer[..length]).filter(|_| client.port() != 0) else {
            continue;
        };
        let to = to();
        let datagrams = sessions.of(client, &to, |used, datagrams| {
            let port = Arc::clone(&port);
            let (to, connect) = (to.clone(), connect.clone());
            let session = Session { port, client, to, connect, used, server: None };
            tokio::spawn(session.run(datagrams));
        });
        // One that has too much to do loses datagrams, as a network does.
        let _lost = datagrams.try_send(datagram);
    }
}

/// A port of the host.
struct Port {
    host: UdpSocket,
    /// For one answer, on its way from one socket to the other.
    answer: Mutex<Box<[u8]>>,
    /// Bytes that may still wait for sessions.
    waiting: Arc<Semaphore>,
}

/// What a client has sent.
struct Datagram {
    bytes: Box<[u8]>,
    _held: OwnedSemaphorePermit,
}

impl Port {
    fn new(host: UdpSocket) -> Self {
        let waiting = Arc::new(Semaphore::new(WAITING_MAX_BYTES));
        let answer = Mutex::new(vec![0; DATAGRAM_MAX_BYTES].into());
        Self { host, answer, waiting }
    }

    /// A datagram that may wait, if there is room for it.
    fn datagram(&self, bytes: &[u8]) -> Option<Datagram> {
        let size = u32::try_from(bytes.len()).ok()?;
        let held = Arc::clone(&self.waiting).try_acquire_many_owned(size).ok()?;
        Some(Datagram { bytes: bytes.into(), _held: held })
    }

    /// Passes on one answer that is there.
    fn pass_back(&self, server: &UdpSocket, client: SocketAddr) -> io::Result<()> {
        let mut buffer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let length = server.try_recv(&mut buffer)?;
        if let Err(error) = self.host.try_send_to(&buffer[..length], client) {
            tracing::debug!(%error, %client, "an answer is lost");
        }
        Ok(())
    }
}

/// When a datagram of a session passed last.
#[derive(Clone)]
struct Used(Arc<Mutex<Instant>>);

impl Used {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn last(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sessions of a port.
struct Sessions<T> {
    all: HashMap<SocketAddr, Entry<T>>,
    max: usize,
}

/// A session, which ends when this is dropped.
struct Entry<T> {
    to: T,
    used: Used,
    datagrams: mpsc::Sender<Datagram>,
}

impl<T: Clone + PartialEq> Sessions<T> {
    fn new(max: usize) -> Self {
        Self { all: HashMap::new(), max }
    }

    /// The way into a client's session. `start` starts one, if there is none that leads there.
    fn of(
        &mut self,
        client: SocketAddr,
        to: &T,
        start: impl FnOnce(Used, mpsc::Receiver<Datagram>),
    ) -> &mpsc::Sender<Datagram> {
        let is_there = |it: &Entry<T>| it.to == *to && !it.datagrams.is_closed();
        if !self.all.get(&client).is_some_and(is_there) {
            self.all.remove(&client);
            self.make_room();
            let (used, (datagrams, waiting)) = (Used::now(), mpsc::channel(WAITING_MAX));
            start(used.clone(), waiting);
            self.all.insert(client, Entry { to: to.clone(), used, datagrams });
        }
        &self.all[&client].datagrams
    }

    fn make_room(&mut self) {
        if self.all.len() < self.max {
            return;
        }
        self.all.retain(|_, it| !it.datagrams.is_closed());
        if self.all.len() >= self.max {
            let oldest = self.all.iter().min_by_key(|(_, it)| *it.used.last());
            let oldest = oldest.map(|(client, _)| *client);
            oldest.and_then(|client| self.all.remove(&client));
        }
    }
}

/// What goes on between a client and the service.
struct Session<T, C> {
    port: Arc<Port>,
    client: SocketAddr,
    to: T,
    connect: C,
    used: Used,
    server: Option<Server>,
}

/// The service, as a session sees it.
struct Server {
    socket: UdpSocket,
    /// Since when it has not answered what it was sent.
    unanswered: Option<Instant>,
}

impl<T, C, F> Session<T, C>
where
    T: Clone + Display,
    C: Fn(T) -> F,
    F: Future<Output = anyhow::Result<UdpSocket>>,
{
    /// Carries datagrams until there are none for long, or nobody sends any more.
    async fn run(mut self, mut datagrams: mpsc::Receiver<Datagram>) {
        loop {
            let idle = *self.used.last() + IDLE_MAX;
            let passed = tokio::select! {
                datagram = datagrams.recv() => match datagram {
                    Some(datagram) => self.send(&datagram).await,
                    None => return,
                },
                passed = self.answer() => passed.map_err(anyhow::Error::from),
                () = sleep_until(idle) => return,
            };
            match passed {
                Ok(()) => *self.used.last() = Instant::now(),
                Err(error) => {
                    self.server = None;
                    if FAILURES.admits(std::time::Instant::now()) {
                        let error = format!("{error:#}");
                        tracing::warn!(error, to = %self.to, "a datagram came to nothing");
                    }
                    sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    /// Sends a datagram to where the service is.
    async fn send(&mut self, datagram: &Datagram) -> anyhow::Result<()> {
        let now = Instant::now();
        let is_late = |since: Instant| now.duration_since(since) > UNANSWERED_MAX;
        if self.server.as_ref().is_none_or(|it| it.unanswered.is_some_and(is_late)) {
            let socket = (self.connect)(self.to.clone()).await?;
            self.server = Some(Server { socket, unanswered: None });
        }
        if let Some(server) = &mut self.server {
            server.unanswered.get_or_insert(now);
            server.socket.send(&datagram.bytes).await?;
        }
        Ok(())
    }

    /// Waits for an answer of the service, and passes it on.
    async fn answer(&mut self) -> io::Result<()> {
        let Some(server) = &mut self.server else { return std::future::pending().await };
        server.socket.readable().await?;
        match self.port.pass_back(&server.socket, self.client) {
            Ok(()) => server.unanswered = None,
            // The kernel has thrown away what it announced.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, timeout};

    use super::*;

    const LOCAL: &str = "127.0.0.1:0";

    async fn socket() -> UdpSocket {
        UdpSocket::bind(LOCAL).await.expect("a port")
    }

    async fn connected(to: SocketAddr) -> anyhow::Result<UdpSocket> {
        let socket = socket().await;
        socket.connect(to).await?;
        Ok(socket)
    }

    async fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
        let mut buffer = [0; 64];
        let received = timeout(Duration::from_secs(10), socket.recv_from(&mut buffer)).await;
        let (length, from) = received.expect("it comes").expect("it is whole");
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
    }

    #[tokio::test]
    async fn answers_come_back_to_the_client_that_has_asked() {
        let (service, host) = (socket().await, socket().await);
        let (to, at) = (service.local_addr().unwrap(), host.local_addr().unwrap());
        let carrying = tokio::spawn(async move { carry(host, || to, connected).await });
        let clients = [connected(at).await.unwrap(), connected(at).await.unwrap()];
        let mut sources = Vec::new();
        for (client, said) in clients.iter().zip(["a", "b"]) {
            client.send(said.as_bytes()).await.unwrap();
            let (heard, source) = receive(&service).await;
            assert_eq!(heard, said);
            sources.push(source);
        }
        assert_ne!(sources[0], sources[1], "each has its own session");
        // A stranger guesses the port of a session.
        socket().await.send_to(b"forged", sources[0]).await.unwrap();
        for (source, said) in sources.iter().zip(["to a", "to b"]) {
            service.send_to(said.as_bytes(), source).await.unwrap();
        }
        for (client, expected) in clients.iter().zip(["to a", "to b"]) {
            assert_eq!(receive(client).await, (expected.to_owned(), at));
        }
        clients[0].send(b"again").await.unwrap();
        assert_eq!(receive(&service).await, ("again".to_owned(), sources[0]), "the same session");
        carrying.abort();
    }

    #[tokio::test]
    async fn a_port_that_leads_elsewhere_takes_its_clients_along() {
        let (first, second, host) = (socket().await, socket().await, socket().await);
        let at = host.local_addr().unwrap();
        let to = Arc::new(Mutex::new(first.local_addr().unwrap()));
        let shared = Arc::clone(&to);
        let carrying = tokio::spawn(async move {
            carry(host, || *shared.lock().unwrap(), connected).await;
        });
        let client = connected(at).await.unwrap();
        client.send(b"a").await.unwrap();
        assert_eq!(receive(&first).await.0, "a");
        *to.lock().unwrap() = second.local_addr().unwrap();
        client.send(b"b").await.unwrap();
        assert_eq!(receive(&second).await.0, "b");
        carrying.abort();
    }

    #[tokio::test]
    async fn the_client_that_was_silent_longest_makes_room() {
        let mut sessions = Sessions::new(2);
        let mut open = HashMap::new();
        let mut ask = |sessions: &mut Sessions<u8>, port: u16, to: u8| {
            let client = SocketAddr::from(([127, 0, 0, 1], port));
            let mut is_new = false;
            sessions.of(client, &to, |used, waiting| {
                is_new = true;
                open.insert(port, (used, waiting));
            });
            let gone = open.iter_mut().filter_map(|(port, (_, waiting))| {
                let ended = waiting.try_recv();
                ended
                    .is_err_and(|it| it == mpsc::error::TryRecvError::Disconnected)
                    .then_some(*port)
            });
            let mut gone: Vec<u16> = gone.collect();
            gone.sort_unstable();
            gone.iter().for_each(|port| drop(open.remove(port)));
            if let Some((used, _)) = open.get(&port) {
                *used.last() = Instant::now();
            }
            (is_new, gone)
        };
        assert_eq!(ask(&mut sessions, 1, 0), (true, vec![]));
        assert_eq!(ask(&mut sessions, 2, 0), (true, vec![]));
        assert_eq!(ask(&mut sessions, 1, 0), (false, vec![]));
        assert_eq!(ask(&mut sessions, 3, 0), (true, vec![2]), "1 was heard after it");
        assert_eq!(ask(&mut sessions, 3, 1), (true, vec![]), "it leads elsewhere");
        assert_eq!(sessions.all.len(), 2);
    }

    #[tokio::test]
    async fn what_waits_is_bounded() {
        let port = Port::new(socket().await);
        let largest = vec![0; DATAGRAM_MAX_BYTES];
        let held: Vec<_> = std::iter::from_fn(|| port.datagram(&largest)).collect();
        assert_eq!(held.len(), WAITING_MAX_BYTES / DATAGRAM_MAX_BYTES);
        drop(held);
        assert!(port.datagram(&largest).is_some());
    }

    /// A session with a service at `to`, which counts how often it connects.
    async fn session(
        to: SocketAddr,
        connections: &Arc<AtomicUsize>,
    ) -> Session<SocketAddr, impl Fn(SocketAddr) -> BoxedSocket> {
        let counted = Arc::clone(connections);
        let connect = move |to| -> BoxedSocket {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(connected(to))
        };
        let (port, used) = (Arc::new(Port::new(socket().await)), Used::now());
        Session { port, client: to, to, connect, used, server: None }
    }

    type BoxedSocket = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<UdpSocket>> + Send>>;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_was_silent_for_long() {
        let connections = Arc::default();
        let session = session("127.0.0.1:9".parse().unwrap(), &connections).await;
        let (_sender, waiting) = mpsc::channel(1);
        let start = Instant::now();
        session.run(waiting).await;
        assert_eq!(start.elapsed(), IDLE_MAX);
        assert_eq!(connections.load(Ordering::Relaxed), 0, "nothing was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_does_not_answer_is_looked_up_again() {
        let (service, connections) = (socket().await, Arc::default());
        let mut session = session(service.local_addr().unwrap(), &connections).await;
        let datagram = Arc::clone(&session.port).datagram(b"a").expect("there is room");
        let mut connects_at = async |after: Duration| {
            advance(after).await;
            session.send(&datagram).await.expect("it is sent");
            connections.load(Ordering::Relaxed)
        };
        assert_eq!(connects_at(Duration::ZERO).await, 1);
        assert_eq!(connects_at(UNANSWERED_MAX).await, 1);
        assert_eq!(connects_at(Duration::from_secs(1)).await, 2, "it may have gone");
        assert_eq!(connects_at(Duration::from_secs(1)).await, 2, "since then it has time");
    }
}
