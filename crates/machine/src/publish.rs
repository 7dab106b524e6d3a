//! Ports of the host that lead to gateways and services of the machine.
//!
//! A machine's networks have no link to the host's. So the user's command opens the sockets where
//! it runs itself, and hands them to process 1, which carries what comes from within a node:
//! connections to the gateway's or the service's address, and datagrams (`datagrams`) to a pod
//! behind it. Nothing is opened that neither a flag nor the type of a service names, and a port
//! leads to nothing else than it names.

mod datagrams;
mod lookup;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambit_net::namespace::{NetNs, remember_home};
use ambit_net::nftables::Protocol;
use ambit_net::seqpacket::{Connection, Listener, PacketError};
use ambit_net::socket::{ListenOptions, tcp_listener, udp_bind, unspecified_like};
use ambit_net::sys::process::open_files_limit;
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::accepting::ACCEPT_PAUSE;
use crate::layout::Layout;
use crate::objects::Kind;
use crate::ownership::{OwnershipError, check_state_directory};
use crate::publish::datagrams::{Lead, Sessions};
use crate::state::Machine;

/// Longest message between the command and process 1.
const PACKET_SIZE_MAX_BYTES: usize = 4096;
/// Connections that one published port carries at once; others wait.
const CONNECTIONS_MAX: usize = 1024;
/// Answers of process 1.
const DONE: &[u8; 1] = b"1";
const NOT_DONE: &[u8; 1] = b"0";
/// How long a gateway or a service may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After a port was looked up, changes of the registry wait for so long.
const LOOKUP_PAUSE: Duration = Duration::from_millis(200);
/// The namespace where none is written.
const DEFAULT_NAMESPACE: &str = "default";

/// A port of the host, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Where the host listens.
    pub address: SocketAddr,
    /// What it carries.
    pub transport: Transport,
    /// Of what kind it is.
    pub to: Destination,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The port of the Gateway's listener, or of the service.
    pub port: u16,
}

/// What a port of the host can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    /// As a publication has it after its port.
    const ALL: [(&str, Self); 2] = [("tcp", Self::Tcp), ("udp", Self::Udp)];

    /// Kubernetes' word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::Tcp,
            Self::Udp => Protocol::Udp,
        }
    }
}

/// What a port of the host can lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// A listener of a Gateway.
    Gateway,
    /// A service.
    Service,
}

impl Destination {
    fn kind(self) -> Kind {
        match self {
            Self::Gateway => Kind::Gateway,
            Self::Service => Kind::Service,
        }
    }
}

/// What is no publication.
#[derive(Debug, thiserror::Error)]
#[error(
    "{written:?}: {what}; write [IP:]PORT[/udp]=[NAMESPACE/]SERVICE:PORT, or a / before the port \
     of a Gateway, as in 8443=ingress/443"
)]
pub struct PublishedError {
    written: String,
    what: &'static str,
}

/// Why a port is not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The host does not give it.
    #[error("cannot listen at {address} ({}); choose another port or address", transport.name())]
    Listen {
        /// Where.
        address: SocketAddr,
        /// For what.
        transport: Transport,
        /// Why.
        source: io::Error,
    },
    /// No machine answers.
    #[error("no machine answers at {socket}")]
    Unreachable {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else could take the sockets.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
    /// Somebody else listens.
    #[error("{socket} is served by user {uid}, neither you nor root; it was sent no socket")]
    Foreign {
        /// Where.
        socket: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The connection broke.
    #[error("the connection to the machine broke; see its log")]
    Broken(#[source] PacketError),
}

impl Published {
    /// What no other publication has.
    fn at(&self) -> (SocketAddr, Transport) {
        (self.address, self.transport)
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, transport, to, namespace, name, port } = self;
        let carried = if *transport == Transport::Udp { "/udp" } else { "" };
        let kind = to.kind().name();
        write!(f, "{address}{carried} leads to {kind} {namespace}/{name} port {port}")
    }
}

impl FromStr for Published {
    type Err = PublishedError;

    /// Without an address it is the loopback address: what is to be reached from elsewhere is
    /// named.
    fn from_str(written: &str) -> Result<Self, PublishedError> {
        let wrong = |what| PublishedError { written: written.to_owned(), what };
        let (host, meant) = written.split_once('=').ok_or_else(|| wrong("it has no `=`"))?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let (host, transport) = match host.split_once('/') {
            None => (host, Transport::Tcp),
            Some((host, carried)) => {
                let known = Transport::ALL.iter().find(|(name, _)| *name == carried);
                let (_, transport) =
                    known.ok_or_else(|| wrong("after the port is no tcp or udp"))?;
                (host, *transport)
            }
        };
        let address = match number(host) {
            Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            None => {
                let address = host.parse::<SocketAddr>().ok().filter(|it| it.port() != 0);
                address.ok_or_else(|| wrong("before the `=` is neither a port nor IP:PORT"))?
            }
        };
        // Which of the host's addresses was asked is lost, and a client takes answers of no other.
        if transport == Transport::Udp && address.ip().is_unspecified() {
            return Err(wrong("UDP needs one address, not all of the computer"));
        }
        let is_of_many = address.ip().is_multicast() || address.ip() == Ipv4Addr::BROADCAST;
        if is_of_many {
            return Err(wrong("it is an address of many, and nobody can answer from it"));
        }
        let (to, (name, port)) = match (meant.rsplit_once(':'), meant.rsplit_once('/')) {
            (Some(service), _) => (Destination::Service, service),
            (None, Some(gateway)) => (Destination::Gateway, gateway),
            (None, None) => return Err(wrong("what it leads to has no port")),
        };
        let port = number(port).ok_or_else(|| wrong("the port that it leads to is none"))?;
        let (namespace, name) = name.split_once('/').unwrap_or((DEFAULT_NAMESPACE, name));
        if namespace.is_empty() || name.is_empty() || name.contains(['/', ':']) {
            return Err(wrong("what it leads to has no name"));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Self { address, transport, to, namespace, name, port })
    }
}

/// The ports of the loopback that a service's type asks for: its node ports, and a load balancer's
/// own ports.
pub fn asked_by_service(service: &Value) -> Vec<Published> {
    let text = |pointer| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let is_balanced = match text("/spec/type") {
        "LoadBalancer" => true,
        "NodePort" => false,
        _ => return Vec::new(),
    };
    let mut asked = Vec::new();
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    for it in ports {
        let transport = match it["protocol"].as_str() {
            None | Some("TCP") => Transport::Tcp,
            Some("UDP") => Transport::Udp,
            Some(_) => continue,
        };
        let number = |field: &str| u16::try_from(it[field].as_u64()?).ok().filter(|it| *it != 0);
        let Some(port) = number("port") else { continue };
        let of_host = [Some(port).filter(|_| is_balanced), number("nodePort")];
        asked.extend(of_host.into_iter().flatten().map(|of_host| Published {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, of_host)),
            transport,
            to: Destination::Service,
            namespace: text("/metadata/namespace").to_owned(),
            name: text("/metadata/name").to_owned(),
            port,
        }));
    }
    asked
}

/// A socket of the host, which is open.
pub enum Opened {
    /// Takes connections.
    Tcp(TcpListener),
    /// Takes datagrams.
    Udp(UdpSocket),
}

impl Opened {
    fn new(fd: OwnedFd, transport: Transport) -> io::Result<Self> {
        Ok(match transport {
            Transport::Tcp => {
                let listener = TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
            Transport::Udp => {
                let socket = UdpSocket::from(fd);
                socket.set_nonblocking(true)?;
                Self::Udp(socket)
            }
        })
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Opens the sockets of publications, where this process is.
pub fn bind(all: &[Published]) -> Result<Vec<Opened>, PublishError> {
    all.iter().map(bind_one).collect()
}

fn bind_one(published: &Published) -> Result<Opened, PublishError> {
    let options = ListenOptions { v6only: true, ..ListenOptions::default() };
    let Published { address, transport, .. } = *published;
    let opened = match transport {
        Transport::Tcp => tcp_listener(address, &options).map(Opened::Tcp),
        Transport::Udp => udp_bind(address, &options).map(Opened::Udp),
    };
    opened.map_err(|source| PublishError::Listen { address, transport, source })
}

/// Hands the sockets to a machine, which keeps them to its end.
pub async fn publish(
    layout: &Layout,
    all: &[Published],
    sockets: Vec<Opened>,
) -> Result<(), PublishError> {
    for (published, socket) in all.iter().zip(sockets) {
        let order = Order { published: published.clone(), may_move: false };
        ask(layout, &order, Some(socket)).await?;
    }
    Ok(())
}

/// Opens a port that the type of a service asks for, and hands it to a machine. One that the
/// machine has already for a service leads to this one from now on. Whether it was opened now.
pub async fn publish_of_service(
    layout: &Layout,
    published: &Published,
) -> Result<bool, PublishError> {
    let order = Order { published: published.clone(), may_move: true };
    if ask(layout, &order, None).await? {
        return Ok(false);
    }
    let socket = bind_one(published)?;
    ask(layout, &order, Some(socket)).await?;
    Ok(true)
}

/// What the command asks of process 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    published: Published,
    /// Another order may have it lead elsewhere: the type of a service asks for it, and not a flag.
    may_move: bool,
}

/// Whether process 1 does so: with a socket always.
async fn ask(layout: &Layout, order: &Order, opened: Option<Opened>) -> Result<bool, PublishError> {
    check_state_directory(layout.root())?;
    let socket = layout.publish_socket();
    let unreachable = |source| PublishError::Unreachable { socket: socket.clone(), source };
    let connection = Connection::connect(&socket).map_err(unreachable)?;
    let peer = connection.peer_credentials().map_err(unreachable)?;
    if !peer.is_own_or_root() {
        return Err(PublishError::Foreign { socket, uid: peer.uid });
    }
    let text = serde_json::to_vec(order).expect("an order can be written as JSON");
    let fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    connection.send(&text, &fds).await.map_err(PublishError::Broken)?;
    let mut answer = [0; 1];
    let said = connection.receive(&mut answer).await.map_err(PublishError::Broken)?;
    Ok(said.length == 1 && answer == *DONE)
}

/// Starts to take sockets, on a thread of its own: what passes must not wait while the controllers
/// of the machine work.
pub(super) fn listen(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = machine.layout.publish_socket();
    let listener = {
        let _entered = runtime.enter();
        Listener::bind(&path).with_context(|| format!("listen at {}", path.display()))?
    };
    let publisher = Arc::new(Publisher {
        machine: Arc::clone(machine),
        ways: Ways::default(),
        sessions: Sessions::new(open_files_limit()),
        settled: machine.objects().settled.subscribe(),
    });
    let accepting = async move {
        if let Err(error) = remember_home() {
            tracing::warn!(%error, "every socket asks again which namespace this thread is in");
        }
        loop {
            match listener.accept().await {
                Ok(caller) => drop(tokio::spawn(take(Arc::clone(&publisher), caller))),
                Err(error) => {
                    tracing::error!(%error, "cannot take a port to publish; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("publish".to_owned())
        .spawn(move || runtime.block_on(accepting))?;
    Ok(())
}

/// What all ports share.
struct Publisher {
    machine: Arc<Machine>,
    ways: Ways,
    sessions: Arc<Sessions>,
    /// Says when objects and what is reported of them may have changed.
    settled: watch::Receiver<u64>,
}

/// The ports that are open, and where each leads now.
#[derive(Default)]
struct Ways(Mutex<HashMap<(SocketAddr, Transport), Arc<Way>>>);

/// Where a port leads now.
struct Way {
    to: watch::Sender<Arc<Published>>,
    may_move: bool,
}

impl Way {
    fn to(&self) -> Arc<Published> {
        self.to.borrow().clone()
    }
}

impl Ways {
    fn all(&self) -> MutexGuard<'_, HashMap<(SocketAddr, Transport), Arc<Way>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a port that is open for a service lead to another one; whether it does.
    fn lead(&self, order: &Order) -> bool {
        let all = self.all();
        let Some(way) = all.get(&order.published.at()) else { return false };
        let is_it = way.to().as_ref() == &order.published;
        let may = is_it || way.may_move && order.may_move;
        if may {
            way.to.send_replace(Arc::new(order.published.clone()));
        }
        may
    }

    /// Enters a port that was opened.
    fn open(&self, order: Order) -> Arc<Way> {
        let Order { published, may_move } = order;
        let at = published.at();
        let way = Arc::new(Way { to: watch::Sender::new(Arc::new(published)), may_move });
        self.all().insert(at, Arc::clone(&way));
        way
    }
}

/// Takes an order: opens a way with the socket that came along, or looks for one that is open.
async fn take(publisher: Arc<Publisher>, caller: Connection) {
    let ways = &publisher.ways;
    let way = match taken(&caller).await {
        Ok((order, Some(socket))) => Some((ways.open(order), socket)),
        Ok((order, None)) if ways.lead(&order) => None,
        Ok((_, None)) => return tell(&caller, NOT_DONE).await,
        Err(error) => {
            let error = format!("{error:#}");
            return tracing::warn!(error, "a port is not published");
        }
    };
    tell(&caller, DONE).await;
    drop(caller);
    let Some((way, opened)) = way else { return };
    tracing::info!(published = %way.to(), "published");
    let carried = match opened {
        Opened::Tcp(listener) => carry_connections(publisher.machine.clone(), &way, listener).await,
        Opened::Udp(socket) => carry_datagrams(&publisher, &way, socket).await,
    };
    if let Err(error) = carried {
        tracing::error!(%error, published = %way.to(), "a port is not published");
    }
}

async fn tell(caller: &Connection, answer: &[u8]) {
    if let Err(error) = caller.send(answer, &[]).await {
        tracing::debug!(%error, "the command was gone before its answer");
    }
}

async fn taken(caller: &Connection) -> anyhow::Result<(Order, Option<Opened>)> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = caller.receive(&mut buffer).await?;
    let order: Order = serde_json::from_slice(&buffer[..packet.length])?;
    let mut sockets = packet.fds;
    ensure!(sockets.len() <= 1, "it has more than one socket");
    let socket = sockets.pop();
    let opened = socket.map(|socket| Opened::new(socket, order.published.transport)).transpose()?;
    Ok((order, opened))
}

/// Connects what comes to where the port leads, for as long as the machine lives.
async fn carry_connections(
    machine: Arc<Machine>,
    way: &Way,
    listener: TcpListener,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let held = Arc::clone(&room).acquire_owned().await.expect("nobody closes it");
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, published = %way.to(), "cannot accept; waiting");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (machine, published) = (Arc::clone(&machine), way.to());
        tokio::spawn(async move {
            if let Err(error) = join(machine, Arc::clone(&published), client).await {
                let error = format!("{error:#}");
                tracing::warn!(error, %published, "a connection from the host came to nothing");
            }
            drop(held);
        });
    }
}

/// Carries datagrams to where the port leads, for as long as the machine lives.
async fn carry_datagrams(publisher: &Publisher, way: &Way, socket: UdpSocket) -> io::Result<()> {
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    let netns = entry(&publisher.machine).map_err(io::Error::other)?;
    let open = |endpoint: SocketAddr| {
        let socket = netns.run(|| UdpSocket::bind((unspecified_like(endpoint.ip()), 0)))??;
        socket.set_nonblocking(true)?;
        socket.connect(endpoint)?;
        Ok(socket)
    };
    // A port that nobody uses costs nothing.
    socket.readable().await?;
    let (mut to, mut settled) = (way.to.subscribe(), publisher.settled.clone());
    let first = lead(&publisher.machine, &mut to, &mut settled).await;
    let (leads, follower) = watch::channel(first);
    let following = async {
        loop {
            let changed = async {
                sleep(LOOKUP_PAUSE).await;
                settled.changed().await
            };
            tokio::select! {
                changed = to.changed() => changed,
                changed = changed => changed,
            }
            .map_err(io::Error::other)?;
            let now = lead(&publisher.machine, &mut to, &mut settled).await;
            leads.send_if_modified(|before| {
                let is_new = *before != now;
                *before = now;
                is_new
            });
        }
    };
    tokio::select! {
        ended = following => ended,
        ended = datagrams::carry(Arc::clone(&publisher.sessions), socket, follower, open) => ended,
    }
}

/// Where a port of datagrams leads now.
async fn lead(
    machine: &Arc<Machine>,
    to: &mut watch::Receiver<Arc<Published>>,
    settled: &mut watch::Receiver<u64>,
) -> Lead {
    settled.mark_unchanged();
    let to = to.borrow_and_update().clone();
    let found = looked_up(machine, &to, lookup::endpoints).await;
    found.map_err(|error| format!("{error:#}"))
}

/// Carries one connection to its end.
async fn join(
    machine: Arc<Machine>,
    to: Arc<Published>,
    mut client: TcpStream,
) -> anyhow::Result<()> {
    let address = looked_up(&machine, &to, lookup::address).await?;
    let connecting = timeout(CONNECT_TIMEOUT, connect(entry(&machine)?, address));
    let connected = connecting.await.context("nobody accepts in time")?;
    let mut server = connected.with_context(|| format!("connect to {address}"))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, %to, "a connection from the host broke");
    }
    Ok(())
}

/// The node from which a machine is entered.
fn entry(machine: &Machine) -> anyhow::Result<&NetNs> {
    machine.members.get(&machine.record.nodes[0]).context("there is no node")
}

/// What is known of it now. Somebody may hold the objects for long, and what else passes goes on
/// meanwhile.
async fn looked_up<T: Send + 'static>(
    machine: &Arc<Machine>,
    to: &Arc<Published>,
    look: fn(&Machine, &Published) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (machine, to) = (Arc::clone(machine), Arc::clone(to));
    tokio::task::spawn_blocking(move || look(&machine, &to)).await?
}

/// A socket belongs to where it was made, not to where it is used.
async fn connect(netns: &NetNs, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = netns.run(|| match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_publication_names_a_port_of_the_host_and_a_listener() {
        let check = |written: &str, expected: Result<&str, &str>| {
            let read = written.parse::<Published>();
            let told = read.as_ref().map(ToString::to_string).map_err(ToString::to_string);
            match (&told, expected) {
                (Ok(told), Ok(expected)) => assert_eq!(told, expected, "{written}"),
                (Err(error), Err(part)) => {
                    assert!(error.contains(part) && error.contains("8443=ingress/443"), "{error}");
                }
                _ => panic!("{written}: {told:?}"),
            }
        };
        check("8443=ingress/443", Ok("127.0.0.1:8443 leads to Gateway default/ingress port 443"));
        check("8443=edge/web/443", Ok("127.0.0.1:8443 leads to Gateway edge/web port 443"));
        check("0.0.0.0:80=web/8080", Ok("0.0.0.0:80 leads to Gateway default/web port 8080"));
        check("[::1]:80=web/80", Ok("[::1]:80 leads to Gateway default/web port 80"));
        check("8080=web:80", Ok("127.0.0.1:8080 leads to Service default/web port 80"));
        check("[::1]:80=shop/web:80", Ok("[::1]:80 leads to Service shop/web port 80"));
        check("53/udp=dns:53", Ok("127.0.0.1:53/udp leads to Service default/dns port 53"));
        check("53/tcp=dns:53", Ok("127.0.0.1:53 leads to Service default/dns port 53"));
        check("[::1]:53/udp=edge/53", Ok("[::1]:53/udp leads to Gateway default/edge port 53"));
        check("53/sctp=dns:53", Err("no tcp or udp"));
        check("0.0.0.0:53/udp=dns:53", Err("UDP needs one address"));
        for of_many in ["224.0.0.251:53", "[ff02::fb]:53", "255.255.255.255:53"] {
            check(&format!("{of_many}/udp=dns:53"), Err("an address of many"));
            check(&format!("{of_many}=dns:53"), Err("an address of many"));
        }
        check("8443", Err("no `=`"));
        check("0=web/80", Err("neither a port"));
        check("localhost:80=web/80", Err("neither a port"));
        check("80=web", Err("has no port"));
        check("80=web/http", Err("port that it leads to is none"));
        check("80=web/0", Err("port that it leads to is none"));
        check("80=web:http", Err("port that it leads to is none"));
        check("80=/80", Err("has no name"));
        check("80=:80", Err("has no name"));
        check("80=a/b/c/80", Err("has no name"));
        check("80=a/b:c:80", Err("has no name"));
        check("80=a/b/c:80", Err("has no name"));
    }

    #[test]
    fn the_type_of_a_service_asks_for_ports() {
        let check = |spec: Value, expected: &[&str]| {
            let service = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
            let asked = asked_by_service(&service);
            let asked: Vec<_> = asked.iter().map(ToString::to_string).collect();
            assert_eq!(asked, expected);
        };
        let ports = json!([{"port": 80, "nodePort": 30_080},
            {"port": 53, "nodePort": 30_053, "protocol": "UDP"}]);
        check(json!({"ports": ports}), &[]);
        check(
            json!({"type": "NodePort", "ports": ports}),
            &[
                "127.0.0.1:30080 leads to Service shop/web port 80",
                "127.0.0.1:30053/udp leads to Service shop/web port 53",
            ],
        );
        check(
            json!({"type": "LoadBalancer", "ports": ports}),
            &[
                "127.0.0.1:80 leads to Service shop/web port 80",
                "127.0.0.1:30080 leads to Service shop/web port 80",
                "127.0.0.1:53/udp leads to Service shop/web port 53",
                "127.0.0.1:30053/udp leads to Service shop/web port 53",
            ],
        );
        check(
            json!({"type": "LoadBalancer", "ports": [{"port": 80},
                {"port": 81, "protocol": "SCTP"}]}),
            &["127.0.0.1:80 leads to Service shop/web port 80"],
        );
    }

    #[test]
    fn a_port_of_a_service_can_lead_to_another() {
        let order =
            |written: &str, may_move| Order { published: written.parse().unwrap(), may_move };
        let ways = Ways::default();
        assert!(!ways.lead(&order("80=web:80", true)), "it is not open");
        let way = ways.open(order("80=web:80", true));
        assert!(ways.lead(&order("80=web:80", true)));
        assert!(ways.lead(&order("80=other:80", true)));
        assert_eq!(way.to().name, "other");
        assert!(!ways.lead(&order("80/udp=web:80", true)), "another port of the host");
        // What a flag has opened stays where it leads.
        let way = ways.open(order("81=web:80", false));
        assert!(ways.lead(&order("81=web:80", true)));
        assert!(!ways.lead(&order("81=other:80", true)));
        assert_eq!(way.to().name, "web");
    }
}
