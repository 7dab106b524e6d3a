//! The Kubernetes API of a machine, for kubectl: it reads and writes objects, runs commands in pods
//! and connects to their ports.
//!
//! Off unless asked for: unlike the machine's sockets, a port on loopback can be reached by every
//! user of the host. Who may ask is who can read the kubeconfig that the machine writes, mode 0600:
//! it holds a token of 256 random bits, and the root of the server's certificate, so that whoever
//! takes the port later is not sent the token.
//!
//! A machine's networks have no link to the host's. So the user's command opens the port where it
//! runs itself, and hands it to process 1, which serves it on a thread of its own.

mod access;
mod body;
mod content;
mod definitions;
mod endpoints;
mod refusals;
mod serve;
mod server;
mod streams;
mod write;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::seqpacket::{Connection, Listener, PacketError};
use ambit_net::socket::{ListenOptions, tcp_listener};
use anyhow::{Context as _, ensure};
use tokio::time::{sleep, timeout};

use self::access::Access;
use self::server::Server;
use crate::accepting::ACCEPT_PAUSE;
use crate::layout::Layout;
use crate::ownership::{OwnershipError, check_state_directory, open_own};
use crate::state::Machine;

/// Longest answer of process 1 to the command.
const PACKET_SIZE_MAX_BYTES: usize = 4096;
/// How long the command may take to send the port.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the API is served: a port of the host's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiAddress(SocketAddr);

/// What is no such address.
#[derive(Debug, thiserror::Error)]
#[error("{written:?}: {what}; write PORT or IP:PORT of the loopback, as in 127.0.0.1:6443")]
pub struct ApiAddressError {
    written: String,
    what: &'static str,
}

/// Why the API is not served.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesApiError {
    /// The host does not give the port.
    #[error("cannot listen at {address} for the Kubernetes API; choose another port")]
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
    /// Somebody else could take the port.
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
    /// The machine speaks another dialect.
    #[error("the machine's answer is not as expected; was it started by another version?")]
    Answer(#[source] serde_json::Error),
    /// The machine cannot serve it.
    #[error("the machine does not serve the Kubernetes API: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ApiAddress {
    type Err = ApiAddressError;

    /// A port alone is one of 127.0.0.1; the kernel chooses one for 0.
    fn from_str(written: &str) -> Result<Self, ApiAddressError> {
        let wrong = |what| ApiAddressError { written: written.to_owned(), what };
        let port = written.parse().ok().map(|port| (IpAddr::from(Ipv4Addr::LOCALHOST), port));
        let address = port.map(SocketAddr::from).or_else(|| written.parse().ok());
        let address = address.ok_or_else(|| wrong("it is neither a port nor IP:PORT"))?;
        if address.ip().is_loopback() {
            Ok(Self(address))
        } else {
            Err(wrong("other computers could reach it"))
        }
    }
}

/// Opens the port, where this process is.
pub fn bind_kubernetes_api(at: ApiAddress) -> Result<TcpListener, KubernetesApiError> {
    let ApiAddress(address) = at;
    let options = ListenOptions { v6only: true, ..ListenOptions::default() };
    let opened = tcp_listener(address, &options);
    opened.map_err(|source| KubernetesApiError::Listen { address, source })
}

/// Hands the port to a machine, which writes [`Layout::kubeconfig`] and serves the API to its end.
pub async fn serve_kubernetes_api(
    layout: &Layout,
    port: TcpListener,
) -> Result<(), KubernetesApiError> {
    check_state_directory(layout.root())?;
    let socket = layout.kubernetes_api_socket();
    let unreachable = |source| KubernetesApiError::Unreachable { socket: socket.clone(), source };
    let connection = Connection::connect(&socket).map_err(unreachable)?;
    let peer = connection.peer_credentials().map_err(unreachable)?;
    if !peer.is_own_or_root() {
        return Err(KubernetesApiError::Foreign { socket, uid: peer.uid });
    }
    connection.send(b"serve", &[port.as_fd()]).await.map_err(KubernetesApiError::Broken)?;
    let mut answer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = connection.receive(&mut answer).await.map_err(KubernetesApiError::Broken)?;
    match serde_json::from_slice(&answer[..packet.length]).map_err(KubernetesApiError::Answer)? {
        Some(reason) => Err(KubernetesApiError::Refused { reason }),
        None => Ok(()),
    }
}

/// Starts to take a port.
pub(super) fn listen(machine: &Arc<Machine>) -> anyhow::Result<()> {
    let path = machine.layout.kubernetes_api_socket();
    let listener =
        Listener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
    let machine = Arc::clone(machine);
    let taking = async move {
        let mut is_served = false;
        loop {
            match listener.accept().await {
                Ok(caller) => is_served |= take(&machine, caller, is_served).await,
                Err(error) => {
                    tracing::error!(%error, "cannot take a port for the Kubernetes API; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::spawn(taking);
    Ok(())
}

/// Takes a port and serves it, or says why not. Whether it is served.
async fn take(machine: &Arc<Machine>, caller: Connection, is_served: bool) -> bool {
    let taking = async {
        ensure!(!is_served, "it is served already; see `ambit kubeconfig`");
        timeout(TAKE_TIMEOUT, try_take(machine, &caller)).await.context("nothing was sent")?
    };
    let reason = taking.await.err().map(|error| format!("{error:#}"));
    if let Some(reason) = &reason {
        tracing::warn!(%reason, "the Kubernetes API is not served");
    }
    let text = serde_json::to_vec(&reason).expect("a text can be written as JSON");
    if let Err(error) = caller.send(&text, &[]).await {
        tracing::debug!(%error, "the command was gone before its answer");
    }
    reason.is_none()
}

async fn try_take(machine: &Arc<Machine>, caller: &Connection) -> anyhow::Result<()> {
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    let packet = caller.receive(&mut buffer).await?;
    let [socket]: [OwnedFd; 1] =
        packet.fds.try_into().map_err(|_| anyhow::anyhow!("it was sent not one socket"))?;
    let socket = TcpListener::from(socket);
    let address = socket.local_addr().context("look at the port")?;
    ensure!(address.ip().is_loopback(), "{address} is not of the loopback");
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = {
        let _entered = runtime.enter();
        tokio::net::TcpListener::from_std(socket)?
    };
    let (access, acceptor) = access::create(address)?;
    write_kubeconfig(&machine.layout, &access)?;
    let server = Server::new(Arc::clone(machine), access);
    let serving = serve::accept(Arc::new(server), socket, acceptor);
    // On a thread of its own the controllers and the programs of the machine wait for no client,
    // but for the copy of what it asks for.
    std::thread::Builder::new()
        .name("kubernetes-api".to_owned())
        .spawn(move || runtime.block_on(serving))?;
    tracing::info!(%address, "the Kubernetes API is served");
    Ok(())
}

/// Nobody but the machine's user may read it, not for a moment.
fn write_kubeconfig(layout: &Layout, access: &Access) -> anyhow::Result<()> {
    let path = layout.kubeconfig();
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.with_context(|| format!("remove the old {}", path.display()))?,
    }
    let mut options = fs::OpenOptions::new();
    let mut file = open_own(options.write(true).create_new(true).mode(0o600), &path)?;
    let text = access.kubeconfig();
    file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_an_address() {
        let check = |written: &str, expected: Result<&str, &str>| {
            let read = written.parse::<ApiAddress>().map(|it| it.to_string());
            match (read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (read, expected) => panic!("{written}: {read:?}, not {expected:?}"),
            }
        };
        check("6443", Ok("127.0.0.1:6443"));
        check("127.0.0.2:0", Ok("127.0.0.2:0"));
        check("[::1]:6443", Ok("[::1]:6443"));
        check("0.0.0.0:6443", Err("other computers could reach it"));
        check("192.0.2.1:6443", Err("other computers could reach it"));
        check("[::ffff:127.0.0.1]:1", Err("other computers could reach it"));
        check("localhost:6443", Err("neither a port nor IP:PORT"));
        check("70000", Err("neither a port nor IP:PORT"));
        check("", Err("neither a port nor IP:PORT"));
    }
}
