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
#[error("listen for node proxies at {} (its directory must exist)", path.display())]
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
    /// The proxy refused it; it is offered again.
    Refused {
        /// Why, in its words.
        reason: String,
        /// How often in a row.
        times: u32,
    },
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
        // An error: a uid too long for a packet, which no proxy can have been told of.
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
        refusal.map_or(Standing::Unanswered, |Refusal { reason, times, .. }| Standing::Refused {
            reason: reason.clone(),
            times: *times,
        })
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
            let peer = connection.peer_credentials();
            if !peer.as_ref().is_ok_and(|peer| peer.is_own_or_root()) {
                count(&self.health.metrics.zds_failures);
                tracing::warn!(?peer, "a process of another user at the ZDS socket, refused");
                continue;
            }
            if sessions.len() >= CONNECTIONS_MAX {
                count(&self.health.metrics.zds_failures);
                tracing::warn!("{CONNECTIONS_MAX} node proxies are connected; one is refused");
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
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ambit_wire::zds::REPLY_DEADLINE;
    use tokio::time::Instant as Moment;

    use super::*;
    use crate::testbed::{Directory, FakeProxy};

    /// A served socket and the roster behind it.
    struct Served {
        server: Arc<ZdsServer>,
        health: Arc<Health>,
        path: PathBuf,
        netns: Arc<NetNs>,
        _directory: Directory,
        _tasks: JoinSet<()>,
    }

    fn serve(name: &str) -> Served {
        let directory = Directory::new(name);
        let path = directory.path("ztunnel.sock");
        let health = Arc::new(Health::default());
        let server = Arc::new(ZdsServer::new(health.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(server.clone().serve(listen(&path).expect("listen")));
        let netns = Arc::new(NetNs::create().expect("a namespace (needs root)"));
        Served { server, health, path, netns, _directory: directory, _tasks: tasks }
    }

    impl Served {
        fn announce(&self, uid: &str) {
            let announcement = Announcement {
                name: PodName::new("shop", uid),
                service_account: "default".to_owned(),
                netns: self.netns.clone(),
            };
            self.server.announce(&PodUid::new(uid), announcement);
        }

        fn withdraw(&self, uid: &str) {
            self.server.withdraw(&PodUid::new(uid));
        }

        fn standing(&self, uid: &str) -> Standing {
            self.server.standing(&PodUid::new(uid))
        }

        async fn acknowledged(&self, uid: &str) {
            let mut changes = self.server.changes();
            while self.standing(uid) != Standing::Acknowledged {
                changes.changed().await.expect("the server lives");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_is_told_everything_with_its_namespace_and_then_changes() {
        let served = serve("zds-snapshot");
        let mode = std::fs::metadata(&served.path).expect("the socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        served.announce("a");
        served.server.keep(&PodUid::new("k"));
        assert_eq!(served.standing("a"), Standing::Unanswered);
        assert!(!served.server.has_proxy());
        let mut proxy = FakeProxy::connect(&served.path).await;
        assert_eq!(proxy.receive().await, "+a");
        assert_eq!(proxy.namespaces["a"].inode(), served.netns.inode());
        assert_eq!(served.standing("a"), Standing::Unanswered);
        proxy.answer(Ok(())).await;
        served.acknowledged("a").await;
        assert_eq!(
            proxy.receive().await,
            "refuse pod k is not served here; send it with its \
            network namespace"
        );
        proxy.answer(Err("unknown")).await;
        assert_eq!(proxy.accept(1).await, ["snapshot"]);
        served.announce("b");
        served.announce("b");
        assert_eq!(proxy.accept(1).await, ["+b"]);
        served.acknowledged("b").await;
        served.withdraw("a");
        assert_eq!(proxy.accept(1).await, ["-a"]);
        served.server.withdrawn(&PodUid::new("a")).await;
        assert_eq!(served.health.metrics.zds_connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn additions_go_to_the_newest_and_removals_to_all() {
        let served = serve("zds-two");
        served.announce("a");
        let mut old = FakeProxy::connect(&served.path).await;
        assert_eq!(old.accept(2).await, ["+a", "snapshot"]);
        let mut new = FakeProxy::connect(&served.path).await;
        assert_eq!(new.accept(2).await, ["+a", "snapshot"]);
        served.announce("b");
        assert_eq!(new.accept(1).await, ["+b"]);
        served.withdraw("a");
        assert_eq!(old.accept(1).await, ["-a"]);
        assert_eq!(new.accept(1).await, ["-a"]);
        drop(new);
        assert_eq!(old.accept(1).await, ["+b"], "it takes over what it missed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_pod_is_reported_and_offered_again() {
        let served = serve("zds-refused");
        let mut proxy = FakeProxy::connect(&served.path).await;
        assert_eq!(proxy.accept(1).await, ["snapshot"]);
        served.announce("a");
        assert_eq!(proxy.receive().await, "+a");
        for (wait, times) in [(REFUSAL_RETRY_MIN, 1), (2 * REFUSAL_RETRY_MIN, 2)] {
            let refused = Moment::now();
            proxy.answer(Err("no room")).await;
            assert_eq!(proxy.receive().await, "+a");
            assert_eq!(refused.elapsed(), wait);
            let refused = Standing::Refused { reason: "no room".to_owned(), times };
            assert_eq!(served.standing("a"), refused);
        }
        proxy.answer(Err("no room")).await;
        served.announce("b");
        assert_eq!(proxy.accept(1).await, ["+b"], "others do not wait");
        assert_eq!(proxy.accept(1).await, ["+a"]);
        served.acknowledged("a").await;
        assert_eq!(served.health.metrics.zds_refusals.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_does_not_answer_is_dropped_and_delays_nobody() {
        let served = serve("zds-slow");
        served.announce("a");
        let mut slow = FakeProxy::connect(&served.path).await;
        assert_eq!(slow.receive().await, "+a");
        let began = Moment::now();
        let mut good = FakeProxy::connect(&served.path).await;
        assert_eq!(good.accept(2).await, ["+a", "snapshot"]);
        served.withdraw("a");
        assert_eq!(good.accept(1).await, ["-a"]);
        served.server.withdrawn(&PodUid::new("a")).await;
        assert_eq!(began.elapsed(), REPLY_DEADLINE, "the slow one cannot know of the removal");
        assert_eq!(slow.receive().await, "closed");
        served.announce("b");
        assert_eq!(good.accept(1).await, ["+b"]);
        assert_eq!(served.health.metrics.zds_failures.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_vanishes_leaves_its_pods_to_the_next() {
        let served = serve("zds-vanish");
        let mut proxy = FakeProxy::connect(&served.path).await;
        assert_eq!(proxy.accept(1).await, ["snapshot"]);
        served.announce("a");
        assert_eq!(proxy.receive().await, "+a");
        drop(proxy);
        let mut next = FakeProxy::connect(&served.path).await;
        assert_eq!(next.accept(2).await, ["+a", "snapshot"]);
        served.acknowledged("a").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_returns_in_another_namespace_is_deleted_and_added() {
        let mut served = serve("zds-namespace");
        served.announce("a");
        let mut proxy = FakeProxy::connect(&served.path).await;
        assert_eq!(proxy.accept(2).await, ["+a", "snapshot"]);
        served.netns = Arc::new(NetNs::create().expect("a namespace"));
        served.announce("a");
        assert_eq!(served.standing("a"), Standing::Unanswered);
        assert_eq!(proxy.accept(2).await, ["-a", "+a"]);
        assert_eq!(proxy.namespaces["a"].inode(), served.netns.inode());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_asked_for_ends_the_connection() {
        let served = serve("zds-unsolicited");
        let mut proxy = FakeProxy::connect(&served.path).await;
        assert_eq!(proxy.accept(1).await, ["snapshot"]);
        proxy.answer(Ok(())).await;
        assert_eq!(proxy.receive().await, "closed");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_accepted_at_a_pace() {
        let served = serve("zds-pace");
        let began = Moment::now();
        for _ in 0..=ACCEPTS_PER_SECOND {
            let mut proxy = FakeProxy::connect(&served.path).await;
            assert_eq!(proxy.accept(1).await, ["snapshot"]);
        }
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[test]
    fn the_waits_after_refusals_are_bounded() {
        assert_eq!(refusal_wait(1), REFUSAL_RETRY_MIN);
        assert_eq!(refusal_wait(3), 4 * REFUSAL_RETRY_MIN);
        assert_eq!(refusal_wait(u32::MAX), REFUSAL_RETRY_MAX);
    }
}
