//! Home's side of links: takes joined machines, and gives each what its node needs.
//!
//! One session for each node: a newer one ends the older, which may not know yet that its
//! connection is gone. Who may join is process 1's to say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
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

    /// Says of every pod of a node that it is not ready.
    fn lose(&self, node: &str) {
        for ((namespace, name), status) in self.mirror().statuses() {
            if status.node != node {
                continue;
            }
            let path = self.layout.pod_status(namespace, name);
            if let Err(error) = entry::write(&path, report::lost(status).as_bytes()) {
                let path = path.display();
                tracing::error!(%path, %error, "a pod of a lost node stays as it was");
            }
        }
    }

    /// Tells process 1 how the link of a node is.
    async fn note(&self, node: &str, peer: &str, reason: Option<String>) {
        if let Err(error) = self.client.note_link(node, peer, reason).await {
            let error = format!("{:#}", anyhow::Error::new(error));
            tracing::error!(node, error, "the machine does not know how a link is");
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
        home.note(&node, "", Some("the link was started again".to_owned())).await;
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
    let bounds = Bounds { silent: STRANGERS, proven: KNOWN, proof_within: GREETING_TIMEOUT };
    let admission = Admission::new("join", bounds);
    loop {
        let stream = accept::next(listener, &admission).await;
        let Some(peer) = stream.remote().map(normalise) else { continue };
        let (home, acceptor, proof) = (Arc::clone(home), acceptor.clone(), stream.proof());
        tokio::spawn(async move {
            match greet(&home, stream, &acceptor).await {
                Ok((stream, node)) => {
                    proof.prove(Owner::Named(node.name().into()));
                    serve(&home, stream, node, peer).await;
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
) -> anyhow::Result<(ServerStream<Admitted>, NodeNetwork)> {
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
        Ok(node) => {
            let node = NodeNetwork::of_name(&node).context("the machine names no node")?;
            Ok((stream, node))
        }
        Err(error) => {
            refuse(&mut stream, error.to_string()).await?;
            Err(error.into())
        }
    }
}

async fn refuse(stream: &mut ServerStream<Admitted>, reason: String) -> std::io::Result<()> {
    frame::write_message(stream, &Message::Refused { reason }).await?;
    stream.shutdown().await
}

/// Carries a session to its end, and says how the link is.
async fn serve(home: &Home, stream: ServerStream<Admitted>, node: NodeNetwork, peer: SocketAddr) {
    let name = node.name();
    let (seat, _taken) = home.take_seat(node).await;
    let peer = peer.to_string();
    let ended = match open_device(node) {
        Ok(tun) => {
            home.note(&name, &peer, None).await;
            tracing::info!(node = name, peer, "connected");
            tokio::select! {
                ended = session(home, stream, node, &tun) => ended.to_string(),
                () = seat.wanted.notified() => "it has connected again".to_owned(),
            }
        }
        Err(error) => format!("{:#}", error.context("make the device")),
    };
    tracing::warn!(node = name, peer, reason = ended, "the link has ended");
    home.lose(&name);
    home.note(&name, &peer, Some(ended)).await;
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
    tun: &Tun,
) -> Ended {
    let welcome = Message::Welcome { node: node.name() };
    let welcomed = async {
        frame::write_message(&mut stream, &welcome).await?;
        stream.flush().await
    };
    if let Err(error) = welcomed.await {
        return Ended::Frame(error.into());
    }
    let (messages, outgoing) = mpsc::channel(MESSAGES_MAX);
    let session = Session { tun, filter: Filter { node }, incoming: Way::Home };
    let mut reported = Some(BTreeSet::new());
    let take = |message| take(home, node, message, &mut reported);
    tokio::select! {
        ended = session.carry(stream, outgoing, take) => ended,
        ended = share(home, node, Outbox::new(messages)) => ended,
    }
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
        Message::Remove(place) => {
            if report::may_remove(&place, node, &home.mirror()) {
                remove(home, node, &place)?;
            }
            Ok(())
        }
        Message::Whole {} => {
            let Some(reported) = reported.take() else { return Ok(()) };
            remove_unreported(home, node, &reported)
        }
        Message::Refused { reason } => Err(Ended::Refused(reason)),
        Message::Alive {} | Message::Hello(_) | Message::Welcome { .. } => Ok(()),
    }
}

/// Writes a report down; whether it is taken.
fn put(home: &Home, node: NodeNetwork, entry: &Entry) -> Result<bool, Ended> {
    let taken = report::taken(entry, node, &home.mirror());
    let path = entry.place.path(&home.layout, &node.name());
    match (taken, path) {
        (Ok(content), Some(path)) => {
            let written = entry::write(&path, content.as_bytes());
            written.map(|()| true).map_err(|source| Ended::File { path, source })
        }
        (Err(error), _) => {
            if ambit_log::KNOWN.admits(Instant::now().into_std()) {
                let (node, place) = (node.name(), &entry.place);
                tracing::warn!(node, ?place, %error, "a report is not taken");
            }
            Ok(false)
        }
        (Ok(_), None) => Ok(false),
    }
}

fn remove(home: &Home, node: NodeNetwork, place: &Place) -> Result<(), Ended> {
    let Some(path) = place.path(&home.layout, &node.name()) else { return Ok(()) };
    entry::remove(&path).map_err(|source| Ended::File { path, source })
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

/// Sends the node what it needs, for as long as there is the node.
async fn share(home: &Home, node: NodeNetwork, mut outbox: Outbox) -> Ended {
    let name = node.name();
    let mut changes = home.changes.subscribe();
    changes.mark_changed();
    let (mut was_there, mut kept) = (false, BTreeMap::new());
    loop {
        let credentials = credentials(&home.layout, &name);
        if changes.has_changed().unwrap_or(false) || credentials != kept {
            changes.mark_unchanged();
            let mut now = {
                let mirror = home.mirror();
                let is_there = mirror.of_plural("nodes").any(|(object, _)| object.name == name);
                if was_there && !is_there {
                    break;
                }
                was_there |= is_there;
                share::of_node(&mirror, &name)
            };
            now.extend(credentials.clone());
            kept = credentials;
            if outbox.bring(now).await.is_err() {
                return Ended::Closed("nothing more is sent");
            }
        }
        tokio::select! {
            _ = changes.changed() => changes.mark_changed(),
            () = sleep(CREDENTIALS_INTERVAL) => {}
        }
    }
    let reason = format!("{name} was deleted at home");
    let _it_leaves = outbox.say(Message::Refused { reason }).await;
    // The other end closes the connection, or it is closed here.
    sleep(FAREWELL).await;
    Ended::Closed("the node was deleted")
}

/// What control has written for a node and its waypoints' pods.
fn credentials(layout: &Layout, node: &str) -> BTreeMap<Place, String> {
    let of_pods = std::fs::read_dir(layout.waypoint_credentials(node, "")).into_iter().flatten();
    let pods = of_pods.flatten().filter_map(|it| it.file_name().into_string().ok()).map(Some);
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
