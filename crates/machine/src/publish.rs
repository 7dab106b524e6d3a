//! Ports of the host that lead to gateways of the machine.
//!
//! A machine's networks have no link to the host's. So the user's command opens the sockets where
//! it runs itself, and hands them to process 1, which connects what comes to the gateway's address
//! from within a node. Nothing is opened that the user did not name, and a port leads to no other
//! address than that of its Gateway.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{Connection, Listener, PacketError};
use ambit_net::socket::{ListenOptions, tcp_listener};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::accepting::ACCEPT_PAUSE;
use crate::layout::Layout;
use crate::objects::{Kind, ObjectRef};
use crate::ownership::{OwnershipError, check_state_directory};
use crate::state::Machine;

/// Longest message between the command and process 1.
const PACKET_SIZE_MAX_BYTES: usize = 4096;
/// Connections that one published port carries at once; others wait.
const CONNECTIONS_MAX: usize = 1024;
/// How long a gateway may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The namespace of a Gateway where none is written.
const DEFAULT_NAMESPACE: &str = "default";

/// A port of the host, and the listener of a Gateway to which it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Where the host listens.
    pub address: SocketAddr,
    /// The Gateway's namespace.
    pub namespace: String,
    /// The Gateway's name.
    pub gateway: String,
    /// The port of its listener.
    pub port: u16,
}

/// What is no publication.
#[derive(Debug, thiserror::Error)]
#[error("{written:?}: {what}; write [IP:]PORT=[NAMESPACE/]GATEWAY/PORT, as in 8443=ingress/443")]
pub struct PublishedError {
    written: String,
    what: &'static str,
}

/// Why a port is not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The host does not give it.
    #[error("cannot listen at {address}; choose another port or address")]
    Listen {
        /// Where.
        address: SocketAddr,
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

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, namespace, gateway, port } = self;
        write!(f, "{address} leads to Gateway {namespace}/{gateway} port {port}")
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
        let address = match number(host) {
            Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            None => {
                let address = host.parse::<SocketAddr>().ok().filter(|it| it.port() != 0);
                address.ok_or_else(|| wrong("before the `=` is neither a port nor IP:PORT"))?
            }
        };
        let (name, port) =
            meant.rsplit_once('/').ok_or_else(|| wrong("the Gateway has no port"))?;
        let port = number(port).ok_or_else(|| wrong("the Gateway's port is none"))?;
        let (namespace, gateway) = name.split_once('/').unwrap_or((DEFAULT_NAMESPACE, name));
        if namespace.is_empty() || gateway.is_empty() || gateway.contains('/') {
            return Err(wrong("the Gateway has no name"));
        }
        let (namespace, gateway) = (namespace.to_owned(), gateway.to_owned());
        Ok(Self { address, namespace, gateway, port })
    }
}

/// Opens the sockets of publications, where this process is.
pub fn bind(all: &[Published]) -> Result<Vec<TcpListener>, PublishError> {
    let options = ListenOptions { v6only: true, ..ListenOptions::default() };
    let open = |it: &Published| {
        let address = it.address;
        let opened = tcp_listener(address, &options);
        opened.map_err(|source| PublishError::Listen { address, source })
    };
    all.iter().map(open).collect()
}

/// Hands the sockets to a machine, which keeps them to its end.
pub async fn publish(
    layout: &Layout,
    all: &[Published],
    sockets: Vec<TcpListener>,
) -> Result<(), PublishError> {
    check_state_directory(layout.root())?;
    let socket = layout.publish_socket();
    let unreachable = |source| PublishError::Unreachable { socket: socket.clone(), source };
    for (published, listener) in all.iter().zip(sockets) {
        let connection = Connection::connect(&socket).map_err(unreachable)?;
        let peer = connection.peer_credentials().map_err(unreachable)?;
        if !peer.is_own_or_root() {
            return Err(PublishError::Foreign { socket, uid: peer.uid });
        }
        let text = serde_json::to_vec(published).expect("a publication can be written as JSON");
        connection.send(&text, &[listener.as_fd()]).await.map_err(PublishError::Broken)?;
        // Any answer says that it is taken.
        let mut answer = [0; 1];
        connection.receive(&mut answer).await.map_err(PublishError::Broken)?;
    }
    Ok(())
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
    let machine = Arc::clone(machine);
    let accepting = async move {
        loop {
            match listener.accept().await {
                Ok(caller) => drop(tokio::spawn(take(Arc::clone(&machine), caller))),
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

/// Takes a socket, and carries what comes to it.
async fn take(machine: Arc<Machine>, caller: Connection) {
    match taken(&caller).await {
        Ok((published, socket)) => {
            tracing::info!(%published, "published");
            let told = caller.send(b"1", &[]).await;
            if let Err(error) = told {
                tracing::debug!(%error, "the command was gone before its answer");
            }
            drop(caller);
            carry(machine, published, socket).await;
        }
        Err(error) => tracing::warn!(error = format!("{error:#}"), "a port is not published"),
    }
}

async fn taken(caller: &Connection) -> anyhow::Result<(Published, tokio::net::TcpListener)> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = caller.receive(&mut buffer).await?;
    let published = serde_json::from_slice(&buffer[..packet.length])?;
    let [socket]: [OwnedFd; 1] =
        packet.fds.try_into().map_err(|_| anyhow::anyhow!("it has not one socket"))?;
    let socket = TcpListener::from(socket);
    socket.set_nonblocking(true)?;
    Ok((published, tokio::net::TcpListener::from_std(socket)?))
}

/// Connects what comes to the gateway, for as long as the machine lives.
async fn carry(machine: Arc<Machine>, published: Published, socket: tokio::net::TcpListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let published = Arc::new(published);
    loop {
        let held = Arc::clone(&room).acquire_owned().await.expect("nobody closes it");
        let client = match socket.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, %published, "cannot accept; waiting");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (machine, published) = (Arc::clone(&machine), Arc::clone(&published));
        tokio::spawn(async move {
            if let Err(error) = join(machine, Arc::clone(&published), client).await {
                let error = format!("{error:#}");
                tracing::warn!(error, %published, "a connection from the host came to nothing");
            }
            drop(held);
        });
    }
}

/// Carries one connection to its end.
async fn join(
    machine: Arc<Machine>,
    to: Arc<Published>,
    mut client: TcpStream,
) -> anyhow::Result<()> {
    // Whoever holds the objects may hold them for long, and other connections go on meanwhile.
    let (of, wanted) = (Arc::clone(&machine), Arc::clone(&to));
    let address = tokio::task::spawn_blocking(move || address(&of, &wanted)).await??;
    let netns = machine.members.get(&machine.record.nodes[0]).context("there is no node")?;
    let connecting = timeout(CONNECT_TIMEOUT, connect(netns, address));
    let connected = connecting.await.context("the gateway does not accept in time")?;
    let mut gateway = connected.with_context(|| format!("connect to {address}"))?;
    client.set_nodelay(true)?;
    gateway.set_nodelay(true)?;
    if let Err(error) = copy_bidirectional(&mut client, &mut gateway).await {
        tracing::debug!(%error, %to, "a connection from the host broke");
    }
    Ok(())
}

/// The address at which the Gateway is now.
fn address(machine: &Machine, to: &Published) -> anyhow::Result<SocketAddr> {
    let Published { namespace, gateway, port, .. } = to;
    let objects = machine.objects();
    let object = objects.store.object(&ObjectRef::new(Kind::Gateway, Some(namespace), gateway));
    let object = object.with_context(|| format!("there is no Gateway {namespace}/{gateway}"))?;
    let addresses = object.pointer("/status/addresses").and_then(serde_json::Value::as_array);
    let mut addresses = addresses.into_iter().flatten().filter_map(|it| it["value"].as_str());
    let first = addresses.find_map(|it| it.parse::<IpAddr>().ok());
    let first =
        first.with_context(|| format!("Gateway {namespace}/{gateway} has no address yet"))?;
    Ok(SocketAddr::new(first, *port))
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
        check("8443", Err("no `=`"));
        check("0=web/80", Err("neither a port"));
        check("localhost:80=web/80", Err("neither a port"));
        check("80=web", Err("has no port"));
        check("80=web/http", Err("port is none"));
        check("80=web/0", Err("port is none"));
        check("80=/80", Err("has no name"));
        check("80=a/b/c/80", Err("has no name"));
    }
}
