//! One data-plane thread: its pods, their listeners, and everything it owns for itself.
//!
//! A connection lives and dies on the thread that accepted it. Nothing here knows what is done
//! with a connection: that is told in `outbound`, `inbound` and `plaintext`. The thread never
//! closes a listener for want of resources, it waits.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::names::WorkloadName;
use ambit_net::drain::{Drain, Guard};
use ambit_net::namespace::remember_home;
use ambit_net::pool::{Limits, Pool};
use ambit_net::socket::{DEFAULT_BACKLOG, DialOptions, normalise};
use ambit_net::sys::process::raise_open_files_limit;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::certificates::Credentials;
use crate::choice::Balance;
use crate::connections::{ConnectionInfo, Connections};
use crate::handshakes::Handshakes;
use crate::pods::Pod;
use crate::record::Tally;
use crate::shared::Shared;
use crate::tunnel::{DialError, PoolKey, TunnelPeer};
use crate::{inbound, outbound, plaintext};

/// The part of all file descriptors that the connections of one pod may take, so that one that
/// opens too many stops itself and not the others of its node.
const POD_SHARE_OF_DESCRIPTORS: usize = 4;
/// Connections that may wait for an HBONE connection to one destination.
const MAX_POOL_WAITERS: usize = 4096;
/// How often the remaining connections of a pod that is gone are cut.
const CUT_INTERVAL: Duration = Duration::from_millis(100);
/// The usual limit of file descriptors, where the process' own cannot be read.
const USUAL_DESCRIPTORS: u64 = 1024;
/// First and last pause of an accept loop that cannot accept.
const ACCEPT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// What the control thread asks of a data-plane thread.
pub(crate) enum Command {
    /// Serve a pod.
    Add {
        /// The pod.
        pod: Arc<Pod>,
        /// This thread's sockets in its namespace.
        listeners: Listeners,
    },
    /// A pod is gone: its connections may finish until the deadline.
    Remove {
        /// Which pod.
        uid: Text,
        /// How long its connections may go on.
        deadline: Duration,
    },
    /// Another worker takes the new connections; those that are here go on.
    StopAccepting,
    /// Tell of every connection.
    List(oneshot::Sender<Vec<ConnectionInfo>>),
}

/// A thread's own sockets of one pod (`SO_REUSEPORT`), of both families.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// Captured outbound connections, port 15001.
    pub(crate) outbound: Vec<std::net::TcpListener>,
    /// HBONE, port 15008.
    pub(crate) inbound: Vec<std::net::TcpListener>,
    /// Captured inbound connections, port 15006.
    pub(crate) plaintext: Vec<std::net::TcpListener>,
}

/// What all connections of a thread use.
pub(crate) struct DataPlane {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Connections,
    pub(crate) pool: Pool<PoolKey, TunnelPeer, DialError>,
    pub(crate) balance: Balance,
    pub(crate) tally: Tally,
    trust: watch::Receiver<u64>,
    /// Connections that one pod may have on this thread.
    pod_budget: usize,
}

/// A pod as one thread serves it.
pub(crate) struct Served {
    pub(crate) pod: Arc<Pod>,
    /// Everything that runs for the pod.
    pub(crate) drain: Drain,
    pub(crate) handshakes: Handshakes,
    /// What is left of the connections it may have; more wait in the kernel.
    pub(crate) budget: Arc<Semaphore>,
}

/// Serves pods until [`Command::StopAccepting`] was given, or the sender is gone, and every
/// connection has ended. Must run in a `LocalSet`.
pub(crate) async fn run(shared: Arc<Shared>, commands: mpsc::Receiver<Command>) {
    if let Err(error) = remember_home() {
        tracing::warn!(%error, "every dial will ask anew which namespace this thread is in");
    }
    let everything = Drain::new();
    let plane = Rc::new(DataPlane::new(shared, everything.guard()));
    let mut thread = Thread { plane: plane.clone(), pods: HashMap::new(), everything };
    tokio::select! {
        () = thread.serve(commands) => {}
        () = plane.connections.keep_judged(&plane.shared) => {}
    }
}

impl DataPlane {
    fn new(shared: Arc<Shared>, guard: Guard) -> Self {
        let hbone = &shared.config.hbone;
        let limits = Limits {
            tunnels_per_connection: hbone.max_streams_per_connection.into(),
            idle: hbone.idle_timeout,
            waiters: MAX_POOL_WAITERS,
        };
        Self {
            connections: Connections::default(),
            pool: Pool::new(limits, guard),
            balance: Balance::new(rand::random()),
            tally: Tally::new(shared.clone()),
            trust: shared.certificates.trust_changed(),
            pod_budget: pod_budget(shared.config.worker_threads),
            shared,
        }
    }

    /// Numbers what an HBONE connection is proven with: the certificate, and what was trusted and
    /// revoked at the time. Connections of another number get no new tunnels.
    pub(crate) fn generation(&self, credentials: &Arc<Credentials>) -> u64 {
        let mut hasher = rustc_hash::FxHasher::default();
        (Arc::as_ptr(credentials) as usize, *self.trust.borrow()).hash(&mut hasher);
        hasher.finish()
    }

    /// The address that an application shall see as its client's: the client's own, where the
    /// settings say so and families allow it. The kernel chooses the port.
    pub(crate) fn original_source(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<SocketAddr> {
        let possible = client.is_ipv4() == server.is_ipv4();
        let wanted = self.shared.config.original_source && possible;
        wanted.then(|| SocketAddr::new(client.ip(), 0))
    }

    /// Options of a socket towards a pod.
    pub(crate) fn dial_options(&self, source: Option<SocketAddr>) -> DialOptions {
        let sockets = &self.shared.config.sockets;
        DialOptions {
            mark: Some(sockets.mark),
            source,
            keepalive: sockets.keepalive,
            user_timeout: sockets.user_timeout,
            nodelay: true,
        }
    }
}

/// The pods of a thread, which only commands change.
struct Thread {
    plane: Rc<DataPlane>,
    pods: HashMap<Text, Rc<Served>>,
    /// Ends with the last pod's last connection.
    everything: Drain,
}

impl Thread {
    async fn serve(&mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            match commands.recv().await {
                Some(Command::StopAccepting) | None => break,
                Some(command) => self.obey(command),
            }
        }
        self.pods.values().for_each(|served| self.retire(served.clone()));
        self.plane.pool.forget(|_| true);
        self.everything.start(None);
        let mut open = true;
        loop {
            tokio::select! {
                () = self.everything.finished() => return,
                command = commands.recv(), if open => match command {
                    None => open = false,
                    Some(command) => self.obey(command),
                },
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add { pod, listeners } => self.add(pod, listeners),
            Command::Remove { uid, deadline } => self.remove(&uid, deadline),
            Command::StopAccepting => {}
            Command::List(answer) => {
                // Whoever asked may have gone.
                let _unwanted = answer.send(self.plane.connections.list());
            }
        }
    }

    fn add(&mut self, pod: Arc<Pod>, listeners: Listeners) {
        let uid = pod.uid.clone();
        if let Some(before) = self.pods.remove(&uid) {
            self.retire(before);
        }
        let budget = Arc::new(Semaphore::new(self.plane.pod_budget));
        let handshakes = Handshakes::default();
        let served = Rc::new(Served { pod, drain: Drain::new(), handshakes, budget });
        self.pods.insert(uid, served.clone());
        self.listen(&served, listeners.outbound, outbound::serve);
        self.listen(&served, listeners.inbound, inbound::serve);
        self.listen(&served, listeners.plaintext, plaintext::serve);
    }

    /// Lets a pod's connections go on without time limit, but takes no new ones.
    fn retire(&self, served: Rc<Served>) {
        served.drain.start(None);
        self.everything.guard().spawn_local(async move { served.drain.finished().await });
    }

    /// Starts one accept loop for each of a pod's sockets of one kind.
    fn listen<F>(
        &self,
        served: &Rc<Served>,
        listeners: Vec<std::net::TcpListener>,
        serve: fn(Rc<DataPlane>, Rc<Served>, TcpStream, SocketAddr) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        for listener in listeners {
            let guard = served.drain.guard();
            let (plane, served) = (self.plane.clone(), served.clone());
            let (name, budget) = (served.pod.name.clone(), served.budget.clone());
            let each = move |stream, peer, within: OwnedSemaphorePermit| {
                let connection = serve(plane.clone(), served.clone(), stream, peer);
                served.drain.guard().spawn_local(async move {
                    let _within_the_budget = within;
                    connection.await;
                });
            };
            guard.clone().spawn_local(async move {
                if let Err(error) = accept_loop(listener, guard, &name, budget, each).await {
                    tracing::error!(pod = %name, %error, "cannot accept connections of this pod");
                }
            });
        }
    }

    fn remove(&mut self, uid: &Text, deadline: Duration) {
        let Some(served) = self.pods.remove(uid) else { return };
        let plane = self.plane.clone();
        let until = Instant::now() + deadline;
        served.drain.start(Some(until));
        plane.pool.forget(|key| key.pod == served.pod.uid);
        self.everything.guard().spawn_local(async move {
            let finished = tokio::time::timeout_at(until, served.drain.finished()).await.is_ok();
            // Joined connections run for the pod of their client and end here all the same.
            if finished && plane.connections.hold(&served.pod.uid) {
                sleep_until(until).await;
            }
            loop {
                plane.connections.cut_pod(&served.pod.uid);
                // One that was still dialling may stand now.
                let rest = tokio::time::timeout(CUT_INTERVAL, served.drain.finished());
                if rest.await.is_ok() {
                    return;
                }
            }
        });
    }
}

/// How many connections one pod may have on one of so many threads. Each takes up to two
/// descriptors.
fn pod_budget(threads: usize) -> usize {
    // The limit was raised when the process started; asking for it again changes nothing.
    let descriptors = raise_open_files_limit().unwrap_or(USUAL_DESCRIPTORS);
    let descriptors = usize::try_from(descriptors).unwrap_or(Semaphore::MAX_PERMITS);
    (descriptors / POD_SHARE_OF_DESCRIPTORS / threads.max(1)).clamp(1, Semaphore::MAX_PERMITS)
}

/// Accepts connections until the guard drains, as many at a time as the budget allows.
///
/// What waits by then is accepted too: its clients were told that they are connected, and when the
/// listener is closed the kernel resets them, unless `net.ipv4.tcp_migrate_req` is on.
async fn accept_loop(
    listener: std::net::TcpListener,
    mut guard: Guard,
    pod: &WorkloadName,
    budget: Arc<Semaphore>,
    each: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit),
) -> io::Result<()> {
    // Accepted sockets inherit it: one system call less for each of them.
    SockRef::from(&listener).set_tcp_nodelay(true)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let mut draining = std::pin::pin!(guard.draining());
    let mut pause = ACCEPT_PAUSES.0;
    loop {
        if budget.available_permits() == 0 {
            tracing::warn!(%pod, "the pod has as many connections as it may; more of them wait");
        }
        let within = tokio::select! {
            biased;
            _ = &mut draining => break,
            within = budget.clone().acquire_owned() => within.expect("it is never closed"),
        };
        let accepted = tokio::select! {
            biased;
            _ = &mut draining => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pause = ACCEPT_PAUSES.0;
                each(stream, normalise(peer), within);
            }
            Err(error) if is_of_one_connection(&error) => {
                tracing::debug!(%error, "a connection was gone before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, pause_ms = pause.as_millis(), "cannot accept; waiting");
                sleep(pause).await;
                pause = (pause * 2).min(ACCEPT_PAUSES.1);
            }
        }
    }
    accept_waiting(&listener.into_std()?, &budget, each)
}

/// Accepts what waits now, as far as the budget allows: no more than the queue has room for, lest
/// the listener never closes.
pub(crate) fn accept_waiting(
    listener: &std::net::TcpListener,
    budget: &Arc<Semaphore>,
    each: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit),
) -> io::Result<()> {
    for _ in 0..DEFAULT_BACKLOG {
        let Ok(within) = budget.clone().try_acquire_owned() else { break };
        // Of the kernel, because the runtime may not have heard yet of what came last.
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                each(TcpStream::from_std(stream)?, normalise(peer), within);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the error says something about the connection only, not about the listener or us.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write as _;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Lets `waiting` connections wait at a listener that is to be closed, with room for `budget`.
    async fn check(waiting: usize, budget: usize, expected: usize) {
        let listener = std::net::TcpListener::bind("[::1]:0").expect("listening");
        let address = listener.local_addr().expect("an address");
        let connect = |_| std::net::TcpStream::connect(address).expect("queued by the kernel");
        let mut clients: Vec<_> = (0..waiting).map(connect).collect();
        let (drain, accepted) = (Drain::new(), RefCell::new(Vec::new()));
        let (guard, budget) = (drain.guard(), Arc::new(Semaphore::new(budget)));
        drain.start(None);
        let each = |stream: TcpStream, _, within| accepted.borrow_mut().push((stream, within));
        let name = WorkloadName::new("shop", "cart-1");
        accept_loop(listener, guard, &name, budget, each).await.expect("closed in good order");
        let accepted = accepted.into_inner();
        assert_eq!(accepted.len(), expected);
        for ((mut stream, _), client) in accepted.into_iter().zip(&mut clients) {
            client.write_all(b"?").expect("not reset");
            assert_eq!(stream.read_u8().await.expect("heard"), b'?');
        }
    }

    #[tokio::test]
    async fn what_waits_when_a_listener_is_to_be_closed_is_accepted() {
        check(0, 8, 0).await;
        check(3, 8, 3).await;
        check(3, 2, 2).await;
    }
}
