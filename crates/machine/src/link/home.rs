//! Home's side of links: takes joined machines, and gives each what its node needs.
//!
//! One session for each node: a newer one ends the older, which may not know yet that its
//! connection is gone. Who may join is process 1's to say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::Duration;

use ambit_net::accept::{self, Admitted, Listener};
use ambit_net::admission::{Admission, Bound, Bounds, Owner};
use ambit_net::netlink::{Route, RouteSocket};
use ambit_net::socket::normalise;
use ambit_net::tun::Tun;
use ambit_tls::ServerStream;
use ambit_tls::service::ServiceAcceptor;
use anyhow::Context as _;
use ipnet::IpNet;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::entry::{self, Credential, Entry, Place};
use super::filter::{Filter, Way};
use super::frame::{self, Frame, Limits, Message, VERSION};
use super::identity::Identity;
use super::outbox::Outbox;
use super::ready::show_ready;
use super::session::{Ended, MESSAGES_MAX, Session};
use super::{report, share};
use crate::accepting::ACCEPT_PAUSE;
use crate::addresses::{NODES_MAX, NodeNetwork, POD_PREFIX};
use crate::client::{Client, ClientError};
use crate::command::{NoteLink, Seated};
use crate::controller::text;
use crate::join::Proof;
use crate::layout::Layout;
use crate::node::network::{host, set_parameters, with_prefix};
use crate::record::Record;
use crate::registry::{Mirror, Watch};

/// Connections that have not proven themselves yet, in total and of one source: a strange one
/// makes room for others.
const STRANGERS: Bound = Bound { total: 256, each: 64 };
/// Connections of joined machines, in total and of one node, which has a second one for the moment
/// in which it replaces the first.
const KNOWN: Bound = Bound { total: 2 * NODES_MAX as usize, each: 2 };
/// How long one may take to prove itself.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a machine whose node was deleted has to hear of it.
const FAREWELL: Duration = Duration::from_millis(500);
/// A session is not followed by another one of the same node sooner: two computers with the same
/// key would take turns without end.
const SESSION_MIN: Duration = Duration::from_secs(1);
/// How often a session asks whether the machine still has its node.
const SEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Changes of the registry that come within it are sent together.
const TOGETHER: Duration = Duration::from_millis(50);
/// How often a node's credentials are looked at.
const CREDENTIALS_INTERVAL: Duration = Duration::from_millis(500);

/// What the sessions share.
struct Home {
    layout: Layout,
    client: Client,
    /// Nodes that are no other machine's.
    own: Vec<String>,
    mirror: RwLock<Mirror>,
    /// Counts the changes of the mirror.
    changes: watch::Sender<u64>,
    seats: Mutex<BTreeMap<u8, Arc<Seat>>>,
}

/// The place of a node's one session.
#[derive(Default)]
struct Seat {
    /// Somebody wants it: who has it leaves.
    wanted: Notify,
    taken: Arc<tokio::sync::Mutex<()>>,
}

impl Home {
    fn mirror(&self) -> RwLockReadGuard<'_, Mirror> {
        self.mirror.read().expect("nothing panics while it holds the lock")
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<u8, Arc<Seat>>> {
        self.seats.lock().expect("nothing panics while it holds the lock")
    }

    /// Takes a node's seat from whoever has it.
    async fn take_seat(&self, node: NodeNetwork) -> (Arc<Seat>, OwnedMutexGuard<()>) {
        let seat = Arc::clone(self.seats().entry(node.number()).or_default());
        loop {
            seat.wanted.notify_waiters();
            let taken = Arc::clone(&seat.taken).lock_owned();
            // Who has it may not have waited for the word yet.
            if let Ok(taken) = timeout(ACCEPT_PAUSE, taken).await {
                return (seat, taken);
            }
        }
    }

    /// Changes a file of the registry, and knows it at once: what is judged next must not be judged
    /// by what was there before.
    fn change(
        &self,
        path: PathBuf,
        change: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), Ended> {
        let changed = change(&path).map_err(|source| Ended::File { path: path.clone(), source });
        read(self, &[path]);
        changed
    }

    /// Says of every pod of a node that it is not ready.
    fn lose(&self, node: &str) {
        let lost: Vec<(PathBuf, String)> = {
            let mirror = self.mirror();
            let of_node = mirror.statuses().filter(|(_, status)| status.node == node);
            let lost = of_node.map(|((namespace, name), status)| {
                (self.layout.pod_status(namespace, name), report::lost(status))
            });
            lost.collect()
        };
        // One that is gone is not written again.
        for (path, text) in lost.into_iter().filter(|(path, _)| path.exists()) {
            if let Err(error) = self.change(path, |path| entry::write(path, text.as_bytes())) {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "a pod of a lost node stays as it was");
            }
        }
    }

    /// Tells process 1 how the link of a node is; whether it is this machine's to say.
    async fn note(&self, note: NoteLink) -> bool {
        match self.client.note_link(&note).await {
            Ok(()) => true,
            Err(ClientError::Refused { .. }) => false,
            Err(error) => {
                let (node, error) = (&note.node, format!("{:#}", anyhow::Error::new(error)));
                tracing::error!(node, error, "the machine does not know how a link is");
                true
            }
        }
    }

    /// Waits until a machine that was taken has lost its node.
    async fn unseated(&self, seated: &Seated) {
        let mut changes = self.changes.subscribe();
        loop {
            if matches!(self.client.holds(seated).await, Ok(false)) {
                return;
            }
            let is_there = |mirror: &Mirror| {
                mirror.of_plural("nodes").any(|(object, _)| object.name == seated.node)
            };
            let deleted = async {
                while is_there(&self.mirror()) {
                    // It is sent for as long as this machine lives.
                    let _changed = changes.changed().await;
                }
            };
            // Where the node is not there yet, or any more, only process 1 knows which.
            let was_there = is_there(&self.mirror());
            tokio::select! {
                () = deleted, if was_there => {}
                () = sleep(SEAT_INTERVAL) => {}
            }
        }
    }
}

/// Serves until it is killed.
pub(super) async fn run(layout: Layout, socket: OwnedFd) -> anyhow::Result<std::process::ExitCode> {
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).context("use the socket")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("use the socket")?;
    let listener = Listener::Tcp(listener);
    let acceptor = Identity::read(&layout)?.acceptor()?;
    let own = Record::read(&layout)?.nodes;
    route(&own).context("route between the fabric and other machines")?;
    let mut watch = Watch::new(&[layout.objects(), layout.pod_statuses()])?;
    let home = Arc::new(Home {
        client: Client::within(layout.clone()),
        own,
        mirror: RwLock::new(Mirror::new(&layout)),
        changes: watch::channel(0).0,
        seats: Mutex::default(),
        layout,
    });
    read(&home, &watch.changes().await?);
    lose_all(&home).await;
    show_ready(&home.layout)?;
    let following = async {
        loop {
            match watch.changes().await {
                Ok(paths) => read(&home, &paths),
                Err(error) => return error,
            }
        }
    };
    tokio::select! {
        error = following => Err(error.into()),
        () = accept_all(&home, &listener, &acceptor) => unreachable!("it accepts for ever"),
    }
}

fn read(home: &Home, paths: &[PathBuf]) {
    home.mirror.write().expect("nothing panics while it holds the lock").read(paths);
    home.changes.send_modify(|count| *count += 1);
}

/// An earlier process may have died with links that worked.
async fn lose_all(home: &Home) {
    let nodes: Vec<String> = {
        let mirror = home.mirror();
        let names = mirror.of_plural("nodes").map(|(object, _)| object.name.clone());
        names.filter(|name| !home.own.contains(name)).collect()
    };
    for node in nodes {
        home.lose(&node);
        let reason = Some("the link was started again".to_owned());
        home.note(NoteLink { node, number: None, peer: String::new(), reason }).await;
    }
}

/// Has the fabric pass on packets between the machine's own nodes and the devices of others.
fn route(own: &[String]) -> anyhow::Result<()> {
    set_parameters(&[
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv6.conf.all.forwarding", "1"),
    ])?;
    let mut route = RouteSocket::open()?;
    for node in own.iter().filter_map(|name| NodeNetwork::of_name(name)) {
        for (pods, by_way_of) in node.pods().both().into_iter().zip(node.fabric().both()) {
            route.ensure_route(&Route::via(with_prefix(pods, POD_PREFIX), by_way_of))?;
        }
    }
    Ok(())
}

async fn accept_all(home: &Arc<Home>, listener: &Listener, acceptor: &ServiceAcceptor) {
    let bounds = Bounds {
        silent: STRANGERS,
        proven: KNOWN,
        guests: Bound::NONE,
        proof_within: GREETING_TIMEOUT,
    };
    let admission = Admission::new("join", bounds);
    loop {
        let stream = accept::next(listener, &admission).await;
        let Some(peer) = stream.remote().map(normalise) else { continue };
        let (home, acceptor, proof) = (Arc::clone(home), acceptor.clone(), stream.proof());
        tokio::spawn(async move {
            match greet(&home, stream, &acceptor).await {
                Ok((stream, node, seated)) => {
                    proof.prove(Owner::Named(node.name().into()));
                    serve(&home, stream, node, &seated, peer).await;
                }
                Err(error) => {
                    if ambit_log::STRANGERS.admits(Instant::now().into_std()) {
                        let error = format!("{error:#}");
                        tracing::warn!(%peer, error, "a machine is not taken");
                    }
                }
            }
        });
    }
}

/// Finds out who connects, or refuses it.
async fn greet(
    home: &Home,
    stream: Admitted,
    acceptor: &ServiceAcceptor,
) -> anyhow::Result<(ServerStream<Admitted>, NodeNetwork, Seated)> {
    let (mut stream, _) = acceptor.accept(stream).await?;
    let hello = match frame::read(&mut stream, Limits::GREETING).await? {
        Frame::Message(Message::Hello(hello)) => hello,
        _ => anyhow::bail!("it does not begin with who it is"),
    };
    let admitted = if hello.version == VERSION {
        let proof = Proof { secret: hello.secret, key: hello.key };
        home.client.admit(&proof).await
    } else {
        let reason = format!(
            "it speaks version {} of the link, this machine {VERSION}; use the same ambit on both",
            hello.version
        );
        Err(ClientError::Refused { reason })
    };
    match admitted {
        Ok(seated) => {
            let node = NodeNetwork::of_name(&seated.node).context("the machine names no node")?;
            Ok((stream, node, seated))
        }
        Err(error @ ClientError::Refused { .. }) => {
            refuse(&mut stream, error.to_string()).await?;
            Err(error.into())
        }
        // No word of this machine's own troubles to a stranger, who tries again.
        Err(error) => Err(error.into()),
    }
}

async fn refuse(stream: &mut ServerStream<Admitted>, reason: String) -> std::io::Result<()> {
    frame::write_message(stream, &Message::Refused { reason }).await?;
    stream.shutdown().await
}

/// Carries a session to its end, and says how the link is.
async fn serve(
    home: &Home,
    stream: ServerStream<Admitted>,
    node: NodeNetwork,
    seated: &Seated,
    peer: SocketAddr,
) {
    let (seat, _taken) = home.take_seat(node).await;
    let (name, peer, started) = (node.name(), peer.to_string(), Instant::now());
    let note = |reason: Option<String>| {
        let (node, number) = (name.clone(), Some(seated.number));
        home.note(NoteLink { node, number, peer: peer.clone(), reason })
    };
    let ended = match open_device(node) {
        Ok(tun) => {
            // It may have lost the node while it waited for the seat.
            if !note(None).await {
                tracing::warn!(node = name, peer, "the node was deleted before the link began");
                return;
            }
            tracing::info!(node = name, peer, "connected");
            tokio::select! {
                ended = session(home, stream, node, seated, &tun) => ended.to_string(),
                () = seat.wanted.notified() => "it has connected again".to_owned(),
            }
        }
        Err(error) => format!("{:#}", error.context("make the device")),
    };
    tracing::warn!(node = name, peer, reason = ended, "the link has ended");
    home.lose(&name);
    note(Some(ended)).await;
    sleep(SESSION_MIN.saturating_sub(started.elapsed())).await;
}

/// The device of a node, with the routes to it. It goes with what is returned.
fn open_device(node: NodeNetwork) -> anyhow::Result<Tun> {
    let link = format!("link-{}", node.number());
    let tun = Tun::open(&link)?;
    let mut route = RouteSocket::open()?;
    route.set_up(&link)?;
    let own = node.fabric().both().map(host);
    let pods: [IpNet; 2] = node.pods().both().map(|pods| with_prefix(pods, POD_PREFIX));
    for network in own.into_iter().chain(pods) {
        route.ensure_route(&Route::on_link(network, &link))?;
    }
    Ok(tun)
}

async fn session(
    home: &Home,
    mut stream: ServerStream<Admitted>,
    node: NodeNetwork,
    seated: &Seated,
    tun: &Tun,
) -> Ended {
    let welcome = Message::Welcome { node: node.name() };
    let welcomed = async {
        frame::write_message(&mut stream, &welcome).await?;
        stream.flush().await
    };
    match timeout(GREETING_TIMEOUT, welcomed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Ended::Frame(error.into()),
        Err(_elapsed) => return Ended::Unread,
    }
    let (messages, outgoing) = mpsc::channel(MESSAGES_MAX);
    let (filter, limits) = (Filter { node }, Limits::REPORTS);
    let session = Session { tun, filter, incoming: Way::Home, limits };
    let mut reported = Some(BTreeSet::new());
    let take = |message| take(home, node, message, &mut reported);
    let sharing = share(home, node, Outbox::new(messages.clone(), Limits::SESSION));
    let mut carrying = std::pin::pin!(session.carry(stream, outgoing, take));
    tokio::select! {
        ended = &mut carrying => return ended,
        ended = sharing => return ended,
        () = home.unseated(seated) => {}
    }
    // It hears of it, if it listens.
    let farewell = async {
        let reason = format!("{} was deleted at home", node.name());
        let _heard = messages.send(Message::Refused { reason }).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = carrying => {}
        () = farewell => {}
        () = sleep(FAREWELL) => {}
    }
    Ended::Closed("the node was deleted")
}

/// Takes what a joined machine says of its pods. `reported` has what it has said of since the
/// session began, until it has said everything.
fn take(
    home: &Home,
    node: NodeNetwork,
    message: Message,
    reported: &mut Option<BTreeSet<Place>>,
) -> Result<(), Ended> {
    match message {
        Message::Put(entry) => {
            if put(home, node, &entry)?
                && let Some(reported) = reported
            {
                reported.insert(entry.place);
            }
            Ok(())
        }
        Message::Remove(place) => remove(home, node, &place),
        Message::Whole {} => {
            let Some(reported) = reported.take() else { return Ok(()) };
            remove_unreported(home, node, &reported)
        }
        Message::Alive {}
        | Message::Hello(_)
        | Message::Welcome { .. }
        | Message::Refused { .. } => Ok(()),
    }
}

/// Writes a report down; whether it is taken.
fn put(home: &Home, node: NodeNetwork, entry: &Entry) -> Result<bool, Ended> {
    let taken = report::taken(entry, node, &home.mirror());
    let path = entry.place.path(&home.layout, &node.name());
    match (taken, path) {
        (Ok(content), Some(path)) => {
            let is_new = std::fs::read(&path).ok().is_none_or(|old| old != content.as_bytes());
            if is_new {
                home.change(path, |path| entry::write(path, content.as_bytes()))?;
            }
            Ok(true)
        }
        (Err(error), Some(_)) => {
            if ambit_log::KNOWN.admits(Instant::now().into_std()) {
                let (node, place) = (node.name(), &entry.place);
                tracing::warn!(node, ?place, %error, "a report is not taken");
            }
            Ok(false)
        }
        (_, None) => Ok(false),
    }
}

/// Removes what is the node's to take back, as it is at this moment.
fn remove(home: &Home, node: NodeNetwork, place: &Place) -> Result<(), Ended> {
    let Some(path) = place.path(&home.layout, &node.name()) else { return Ok(()) };
    let Ok(content) = std::fs::read_to_string(&path) else { return Ok(()) };
    if !report::may_remove(place, &content, node, &home.mirror()) {
        return Ok(());
    }
    home.change(path, entry::remove)
}

/// Pods that the node had and does not report any more are gone.
fn remove_unreported(
    home: &Home,
    node: NodeNetwork,
    reported: &BTreeSet<Place>,
) -> Result<(), Ended> {
    let gone: Vec<Place> = {
        let mirror = home.mirror();
        let of_node = mirror.statuses().filter(|(_, status)| status.node == node.name());
        let places = of_node.flat_map(|((namespace, name), _)| {
            let (namespace, name) = (namespace.clone(), name.clone());
            [
                Place::Status { namespace: namespace.clone(), name: name.clone() },
                Place::Captured { namespace: namespace.clone(), name: name.clone() },
                Place::Uncaptured { namespace, name },
            ]
        });
        places.filter(|place| !reported.contains(place)).collect()
    };
    gone.iter().try_for_each(|place| remove(home, node, place))
}

/// Sends the node what it needs.
async fn share(home: &Home, node: NodeNetwork, mut outbox: Outbox) -> Ended {
    let name = node.name();
    let mut changes = home.changes.subscribe();
    changes.mark_changed();
    let mut kept = BTreeMap::new();
    loop {
        let credentials = credentials(home, &name);
        if changes.has_changed().unwrap_or(false) || credentials != kept {
            changes.mark_unchanged();
            let mut now = share::of_node(&home.mirror(), &name);
            now.extend(credentials.clone());
            kept = credentials;
            if outbox.bring(now).await.is_err() {
                return Ended::Closed("nothing more is sent");
            }
        }
        tokio::select! {
            _ = changes.changed() => {
                sleep(TOGETHER).await;
                changes.mark_changed();
            }
            () = sleep(CREDENTIALS_INTERVAL) => {}
        }
    }
}

/// What control has written for a node and the waypoints' pods that it has.
fn credentials(home: &Home, node: &str) -> BTreeMap<Place, String> {
    let Home { layout, .. } = home;
    let pods: Vec<String> = {
        let mirror = home.mirror();
        let pods = mirror.of_plural("pods").map(|(_, pod)| pod);
        let on_node = pods.filter(|pod| text(pod, "/spec/nodeName") == node);
        let uids = on_node.map(|pod| text(pod, "/metadata/uid").to_owned());
        uids.filter(|uid| layout.waypoint_credentials(node, uid).exists()).collect()
    };
    let pods = pods.into_iter().map(Some);
    let mut found = BTreeMap::new();
    for pod in pods.chain([None]) {
        for file in Credential::ALL {
            let place = Place::Credential { pod: pod.clone(), file };
            let path = place.path(layout, node);
            if let Some(content) = path.and_then(|path| std::fs::read_to_string(path).ok()) {
                found.insert(place, content);
            }
        }
    }
    found
}
