//! Unix SOCK_SEQPACKET: whole packets with file descriptors, between agent, supervisor and workers.
//!
//! A packet that does not fit the buffer is an error, never a shorter packet; descriptors of a bad
//! packet are closed. Listening sockets belong to their owner alone (mode 0600).

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::unix::AsyncFd;

use crate::socket::{self, PeerCredentials};
use crate::sys::{self, control_message};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Why a packet could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The peer closed the connection in an orderly way.
    #[error("the peer closed the socket")]
    Closed,
    /// The packet or its descriptors exceed what the receiver makes room for.
    #[error("packet is larger than the {limit_bytes} byte buffer or carries too many descriptors")]
    Truncated {
        /// Size of the receiver's buffer.
        limit_bytes: usize,
    },
    /// An empty packet looks like a closed socket.
    #[error("an empty packet cannot be sent")]
    Empty,
    /// Sending failed.
    #[error("send a packet")]
    Send(#[source] io::Error),
    /// Receiving failed.
    #[error("receive a packet")]
    Receive(#[source] io::Error),
}

/// One received packet.
#[derive(Debug)]
pub struct Packet {
    /// How many bytes of the buffer it fills.
    pub length: usize,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A connection for code without a runtime.
#[derive(Debug)]
pub struct BlockingConnection(OwnedFd);

impl BlockingConnection {
    /// Two ends of one connection; hand one to a child process.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = control_message::seqpacket_pair()?;
        Ok((Self(one), Self(other)))
    }

    /// Connects to a listening socket.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(Self(socket.into()))
    }

    /// Sends one packet; the caller keeps its descriptors.
    pub fn send(&self, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        retry_interrupted(|| send_once(&self.0, payload, fds))
    }

    /// Receives one packet into `buffer`.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Packet, PacketError> {
        retry_interrupted(|| receive_once(&self.0, buffer))
    }

    /// Makes a [`BlockingConnection::receive`] that waits longer fail with `WouldBlock`.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        socket2::SockRef::from(&self.0).set_read_timeout(timeout)
    }

    /// Who is at the other end.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        socket::peer_credentials(&self.0)
    }
}

impl From<OwnedFd> for BlockingConnection {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<BlockingConnection> for OwnedFd {
    fn from(connection: BlockingConnection) -> Self {
        connection.0
    }
}

impl AsFd for BlockingConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection for a tokio runtime.
#[derive(Debug)]
pub struct Connection(AsyncFd<OwnedFd>);

impl Connection {
    /// Two ends of one connection.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = control_message::seqpacket_pair()?;
        Ok((Self::from_fd(one)?, Self::from_fd(other)?))
    }

    /// Connects to a listening socket.
    ///
    /// Does not wait: while the listener's queue is full the answer is `WouldBlock`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Self::from_fd(socket.into())
    }

    /// Takes over a connected descriptor and makes it non-blocking.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        socket2::SockRef::from(&fd).set_nonblocking(true)?;
        Ok(Self(sys::watch(fd)?))
    }

    /// Sends one packet; the caller keeps its descriptors. Cancel safe: sent whole or not at all.
    pub async fn send(&self, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        loop {
            let mut ready = self.0.writable().await.map_err(PacketError::Send)?;
            match send_once(self.0.get_ref(), payload, fds) {
                Err(PacketError::Send(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready()
                }
                Err(PacketError::Send(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Receives one packet into `buffer`. Cancel safe: a packet is taken whole or not at all.
    pub async fn receive(&self, buffer: &mut [u8]) -> Result<Packet, PacketError> {
        loop {
            let mut ready = self.0.readable().await.map_err(PacketError::Receive)?;
            match receive_once(self.0.get_ref(), buffer) {
                Err(PacketError::Receive(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                }
                Err(PacketError::Receive(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Waits until there is something to read, without reading it; `false` when the peer is gone.
    ///
    /// The agent's keepalive: a proxy never sends on its own, so anything here means that it left
    /// or misbehaves.
    pub async fn peek(&self) -> io::Result<bool> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut byte = [0];
            match control_message::receive(self.0.get_ref(), &mut byte, libc::MSG_PEEK) {
                Ok(received) => return Ok(received.length > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Who is at the other end.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        socket::peer_credentials(self.0.get_ref())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A listening socket of a path of its own.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncFd<OwnedFd>,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, which only the current user may connect to. Replaces a socket that was
    /// left there.
    ///
    /// Anything at `path` that is not a socket stays and is an error.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        socket.bind(&SockAddr::unix(path)?)?;
        // Nobody can connect before listen, so the mode is never too wide.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        socket.listen(BACKLOG)?;
        let socket = sys::watch(socket.into())?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ready = self.socket.readable().await?;
            match socket2::SockRef::from(self.socket.get_ref()).accept() {
                Ok((socket, _)) => return Connection::from_fd(socket.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn send_once(socket: &OwnedFd, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
    if payload.is_empty() {
        return Err(PacketError::Empty);
    }
    match control_message::send(socket, payload, fds) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(PacketError::Closed),
        Err(error) => Err(PacketError::Send(error)),
    }
}

fn receive_once(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Packet, PacketError> {
    let received = control_message::receive(socket, buffer, 0).map_err(PacketError::Receive)?;
    if received.truncated {
        return Err(PacketError::Truncated { limit_bytes: buffer.len() });
    }
    if received.length == 0 {
        return Err(PacketError::Closed);
    }
    Ok(Packet { length: received.length, fds: received.fds })
}

fn retry_interrupted<T>(
    mut attempt: impl FnMut() -> Result<T, PacketError>,
) -> Result<T, PacketError> {
    loop {
        match attempt() {
            Err(PacketError::Send(error) | PacketError::Receive(error))
                if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
