//! The socket on which node proxies are told of pods, and the driver of ZDS on it.
//!
//! [`ambit_wire::zds::agent`] says what is sent to whom; this module has the sockets, the
//! namespaces' descriptors and the clock. Whoever connects is handed the network namespace of every
//! pod, so that only root and the agent's own user may. A proxy that refuses, stalls or vanishes
//! costs nobody else anything.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ambit_model::Text;
use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{Connection, Listener, PacketError};
use ambit_wire::zds::agent::{Action, Agent as Machine, ConnectionId};
use ambit_wire::zds::{ACCEPTS_PER_SECOND, MAX_PACKET_BYTES, Pod};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use crate::metrics::{Metrics, count};
use crate::monitor::Health;
use crate::pod::{PodName, PodUid};

/// Proxies connected at a time: two during an upgrade, and some that have not noticed their end.
const CONNECTIONS_MAX: usize = 16;
/// Packets on their way to one proxy: one is in flight, and one may follow its answer.
const OUTBOX: usize = 4;
/// Wait before a refused pod is offered again; doubles with each refusal in a row.
const REFUSAL_RETRY_MIN: Duration = Duration::from_millis(500);
/// Longest wait between two offers.
const REFUSAL_RETRY_MAX: Duration = Duration::from_secs(15);
/// How long the proxies may take to let a pod go before the agent goes on without their answer.
const WITHDRAWAL_LIMIT: Duration = Duration::from_secs(10);

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("listen for node proxies at {}", path.display())]
pub(crate) struct ZdsError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What a proxy needs to serve a pod.
#[derive(Debug, Clone)]
pub(crate) struct Announcement {
    pub(crate) name: PodName,
    pub(crate) service_account: String,
    pub(crate) netns: Arc<NetNs>,
}

/// How the proxies stand to a pod on the roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No proxy has answered yet.
    Unanswered,
    /// A connected proxy serves it.
    Acknowledged,
    /// The proxy refused it, for this reason; it is offered again.
    Refused(String),
}

/// Everything the proxies are to know, and the proxies.
#[derive(Debug)]
pub(crate) struct ZdsServer {
    state: Mutex<State>,
    /// Something about a pod's standing or a connection changed.
    changed: watch::Sender<()>,
    /// The next deadline may be earlier than it was.
    rescheduled: Notify,
    health: Arc<Health>,
}

#[derive(Debug, Default)]
struct State {
    machine: Machine,
    peers: BTreeMap<ConnectionId, Peer>,
    netns: BTreeMap<Text, Arc<NetNs>>,
    pods: BTreeMap<Text, Pod>,
    /// Which proxy serves a pod, and said so.
    acknowledged: BTreeMap<Text, ConnectionId>,
    refusals: BTreeMap<Text, Refusal>,
    /// Pods of which some proxy is still to be told that they are withdrawn.
    withdrawing: BTreeSet<Text>,
}

#[derive(Debug)]
struct Peer {
    outbox: mpsc::Sender<Outgoing>,
    session: AbortHandle,
}

/// A packet and the namespace that goes with it.
type Outgoing = (Vec<u8>, Option<Arc<NetNs>>);

#[derive(Debug)]
struct Refusal {
    reason: String,
    /// How often in a row.
    times: u32,
    /// When to offer the pod again; `None` while the answer is awaited.
    again_at: Option<Instant>,
}

/// The listening socket, mode 0600.
pub(crate) fn listen(path: &Path) -> Result<Listener, ZdsError> {
    Listener::bind(path).map_err(|source| ZdsError { path: path.to_owned(), source })
}

impl ZdsServer {
    /// No pods, no proxies.
    pub(crate) fn new(health: Arc<Health>) -> Self {
        let changed = watch::Sender::new(());
        Self { state: Mutex::default(), changed, rescheduled: Notify::new(), health }
    }

    /// Tells when [`ZdsServer::standing`] or [`ZdsServer::has_proxy`] may answer otherwise.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Puts a pod on the roster, unless it is there; in another namespace it is another pod.
    pub(crate) fn announce(&self, uid: &PodUid, announcement: Announcement) {
        let now = now();
        let uid: Text = uid.as_str().into();
        let pod = Pod {
            uid: uid.clone(),
            name: announcement.name.name.into(),
            namespace: announcement.name.namespace.into(),
            service_account: announcement.service_account.into(),
        };
        self.change(|state| {
            let known = state.netns.get(&uid).map(|netns| netns.inode());
            if known == Some(announcement.netns.inode()) {
                return Vec::new();
            }
            let mut actions = match known {
                Some(_) => state.remove(&uid, now),
                None => Vec::new(),
            };
            state.netns.insert(uid.clone(), announcement.netns);
            state.pods.insert(uid.clone(), pod.clone());
            match state.machine.add(pod, true, now) {
                Ok(more) => actions.extend(more),
                Err(error) => {
                    let reason = error.to_string();
                    state.refusals.insert(uid, Refusal { reason, times: 1, again_at: None });
                }
            }
            actions
        });
    }

    /// Has the proxies go on with a pod of which this agent knows only the uid.
    pub(crate) fn keep(&self, uid: &PodUid) {
        let uid: Text = uid.as_str().into();
        let unknown = Text::default();
        let pod = Pod {
            uid,
            name: unknown.clone(),
            namespace: unknown.clone(),
            service_account: unknown,
        };
        self.change(|state| state.machine.add(pod, false, now()).unwrap_or_default());
    }

    /// Takes a pod off the roster and begins to tell the proxies.
    pub(crate) fn withdraw(&self, uid: &PodUid) {
        let uid: Text = uid.as_str().into();
        self.change(|state| state.remove(&uid, now()));
    }

    /// Waits until every proxy has let the pod go, or has had its time to.
    pub(crate) async fn withdrawn(&self, uid: &PodUid) {
        let mut changes = self.changes();
        let uid: Text = uid.as_str().into();
        let answered = async {
            while self.lock().withdrawing.contains(&uid) {
                changes.changed().await.expect("the sender lives as long as self");
            }
        };
        if tokio::time::timeout(WITHDRAWAL_LIMIT, answered).await.is_err() {
            tracing::warn!(%uid, "a proxy has not let the pod go yet; going on without it");
        }
    }

    /// How the proxies stand to a pod.
    pub(crate) fn standing(&self, uid: &PodUid) -> Standing {
        let state = self.lock();
        if state.acknowledged.contains_key(uid.as_str()) {
            return Standing::Acknowledged;
        }
        let refusal = state.refusals.get(uid.as_str());
        refusal.map_or(Standing::Unanswered, |refusal| Standing::Refused(refusal.reason.clone()))
    }

    /// Whether a proxy is connected that takes new pods.
    pub(crate) fn has_proxy(&self) -> bool {
        self.lock().machine.has_proxy()
    }

    /// Serves proxies until the future is dropped, which disconnects them.
    pub(crate) async fn serve(self: Arc<Self>, listener: Listener) {
        tokio::select! {
            () = self.accept(&listener) => {}
            () = self.keep_time() => {}
        }
    }

    async fn accept(self: &Arc<Self>, listener: &Listener) {
        let own_uid = ambit_net::sys::process::effective_uid();
        let mut sessions = JoinSet::new();
        let mut pace = tokio::time::interval(Duration::from_secs(1) / ACCEPTS_PER_SECOND);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            while sessions.try_join_next().is_some() {}
            let connection = match listener.accept().await {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a node proxy");
                    continue;
                }
            };
            let uid = connection.peer_credentials().map(|peer| peer.uid);
            if !uid.as_ref().is_ok_and(|uid| *uid == 0 || *uid == own_uid) {
                count(&self.health.metrics.zds_failures);
                tracing::warn!(?uid, "a process of another user at the ZDS socket, turned away");
                continue;
            }
            if sessions.len() >= CONNECTIONS_MAX {
                count(&self.health.metrics.zds_failures);
                tracing::warn!("{CONNECTIONS_MAX} node proxies are connected, one turned away");
                continue;
            }
            self.change(|state| {
                let id = state.machine.accepted(now());
                let (outbox, outgoing) = mpsc::channel(OUTBOX);
                let session = sessions.spawn(self.clone().session(id, connection, outgoing));
                state.peers.insert(id, Peer { outbox, session });
                Vec::new()
            });
        }
    }

    /// One proxy's connection: packets out, packets in.
    async fn session(
        self: Arc<Self>,
        id: ConnectionId,
        connection: Connection,
        mut outgoing: mpsc::Receiver<Outgoing>,
    ) {
        let mut buffer = [0; MAX_PACKET_BYTES];
        loop {
            tokio::select! {
                Some((packet, netns)) = outgoing.recv() => {
                    let fds: Vec<_> = netns.iter().map(|netns| netns.as_fd()).collect();
                    if let Err(error) = connection.send(&packet, &fds).await {
                        tracing::warn!(%error, "cannot send to the node proxy");
                        break;
                    }
                }
                received = connection.receive(&mut buffer) => {
                    let (packet, truncated) = match received {
                        Ok(packet) => (&buffer[..packet.length], false),
                        Err(PacketError::Truncated { .. }) => (&buffer[..0], true),
                        Err(error) => {
                            tracing::info!(reason = %error, "a node proxy has left");
                            break;
                        }
                    };
                    self.change(|state| state.machine.received(id, packet, truncated, now()));
                }
            }
        }
        self.change(|state| {
            state.forget(id);
            state.machine.closed(id, now())
        });
    }

    /// Gives up proxies that do not answer, and offers refused pods again.
    async fn keep_time(&self) {
        loop {
            let next = self.lock().next_moment();
            if next.is_some_and(|moment| moment <= now()) {
                self.change(|state| state.expired(now()));
                continue;
            }
            let due = async {
                match next {
                    Some(moment) => tokio::time::sleep_until(moment.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.rescheduled.notified() => {}
            }
        }
    }

    /// Changes the state, does what follows from it, and tells who waits.
    fn change(&self, edit: impl FnOnce(&mut State) -> Vec<Action>) {
        let mut state = self.lock();
        let actions = edit(&mut state);
        for action in actions {
            state.perform(action, &self.health.metrics, now());
        }
        let connections = state.peers.len() as u64;
        drop(state);
        self.health.metrics.zds_connections.store(connections, Ordering::Relaxed);
        self.changed.send_replace(());
        self.rescheduled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Better to go on with what a panicking thread left than to strand every pod of the node.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, uid: &Text, now: Instant) -> Vec<Action> {
        self.pods.remove(uid);
        self.netns.remove(uid);
        self.acknowledged.remove(uid);
        self.refusals.remove(uid);
        self.withdrawing.insert(uid.clone());
        self.machine.remove(uid, now)
    }

    /// A connection has ended: what its proxy said holds no more.
    fn forget(&mut self, id: ConnectionId) {
        self.peers.remove(&id);
        self.acknowledged.retain(|_, by| *by != id);
    }

    fn next_moment(&self) -> Option<Instant> {
        let refusals = self.refusals.values().filter_map(|refusal| refusal.again_at);
        refusals.chain(self.machine.deadline()).min()
    }

    fn expired(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = self.machine.expired(now);
        for (uid, refusal) in &mut self.refusals {
            if refusal.again_at.is_none_or(|moment| now < moment) {
                continue;
            }
            refusal.again_at = None;
            if let Some(pod) = self.pods.get(uid) {
                let again = self.machine.add(pod.clone(), true, now);
                actions.extend(again.expect("a pod that was sent once can be sent again"));
            }
        }
        actions
    }

    fn perform(&mut self, action: Action, metrics: &Metrics, now: Instant) {
        match action {
            Action::Send { connection, packet, namespace_of } => {
                let netns = namespace_of.and_then(|uid| self.netns.get(&uid).cloned());
                let Some(peer) = self.peers.get(&connection) else { return };
                // Never full: one packet at a time is in flight. Closed: the session is ending.
                if peer.outbox.try_send((packet, netns)).is_err() {
                    tracing::debug!("the connection of a node proxy is ending");
                }
            }
            Action::Close { connection, reason } => {
                count(&metrics.zds_failures);
                tracing::warn!(%reason, "node proxy disconnected");
                if let Some(peer) = self.peers.get(&connection) {
                    peer.session.abort();
                }
                self.forget(connection);
            }
            Action::Added { connection, uid, outcome: Ok(()) } => {
                self.refusals.remove(&uid);
                let by = self.acknowledged.entry(uid).or_insert(connection);
                *by = (*by).max(connection);
            }
            Action::Added { connection, uid, outcome: Err(reason) } => {
                count(&metrics.zds_refusals);
                tracing::warn!(%uid, %reason, "a node proxy refused a pod; it is offered again");
                if self.acknowledged.get(&uid).is_some_and(|by| *by > connection) {
                    return;
                }
                self.acknowledged.remove(&uid);
                let times = self.refusals.get(&uid).map_or(1, |r| r.times.saturating_add(1));
                let again_at = Some(now + refusal_wait(times));
                self.refusals.insert(uid, Refusal { reason, times, again_at });
            }
            Action::Removed { uid } => {
                self.withdrawing.remove(&uid);
            }
            Action::Complete { .. } => tracing::info!("a node proxy knows all pods"),
            Action::Refused { request, reason, .. } => {
                count(&metrics.zds_refusals);
                tracing::warn!(?request, %reason, "a node proxy refused a request");
            }
        }
    }
}

/// The wait before the next offer, after this many refusals in a row.
fn refusal_wait(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(16);
    REFUSAL_RETRY_MIN.saturating_mul(1 << doublings).min(REFUSAL_RETRY_MAX)
}

/// The runtime's time, which tests can hold still.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
