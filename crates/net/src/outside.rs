//! Sockets of another network namespace, from a process that hands them out on a Unix socket.
//!
//! A proxy that serves a workload outside of a cluster lives in namespaces of its own, while the
//! mesh is reached from the host's network. It may not enter that: a user without root could not,
//! and should not. So it asks for each connection, and gets one that is established; and for the
//! socket that listens on the host. One question a connection, one answer, no state.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::seqpacket::{BlockingConnection, Connection, Packet, PacketError};

/// Longest question or answer.
pub const PACKET_SIZE_MAX_BYTES: usize = 64;
/// How long a supervisor waits for the listener.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before who asks is tried again, while others wait in its queue.
const RETRY: Duration = Duration::from_millis(5);

const DIAL: &[u8] = b"dial ";
const LISTENER: &[u8] = b"listener";

/// Where sockets of the other network are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    path: PathBuf,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// A connection to this address.
    Dial(SocketAddr),
    /// The socket that listens for other proxies.
    Listener,
}

impl Question {
    fn write(self) -> Vec<u8> {
        match self {
            Self::Dial(to) => [DIAL, to.to_string().as_bytes()].concat(),
            Self::Listener => LISTENER.to_owned(),
        }
    }

    /// `None` if it is no question.
    pub fn read(packet: &[u8]) -> Option<Self> {
        if packet == LISTENER {
            return Some(Self::Listener);
        }
        let address = std::str::from_utf8(packet.strip_prefix(DIAL)?).ok()?;
        address.parse().ok().map(Self::Dial)
    }
}

impl Outside {
    /// Asks at this socket.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// A connection to `to`; its errors are those of the other network.
    pub async fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let connection = loop {
            match Connection::connect(&self.path) {
                // So many ask at this moment; the caller says how long it waits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
                connected => break connected?,
            }
        };
        connection.send(&Question::Dial(to).write(), &[]).await.map_err(io::Error::other)?;
        let mut buffer = [0; PACKET_SIZE_MAX_BYTES];
        let packet = connection.receive(&mut buffer).await.map_err(of_packet)?;
        let stream = std::net::TcpStream::from(answered(&buffer, packet)?);
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }

    /// The socket that listens for other proxies.
    pub fn listener(&self) -> io::Result<TcpListener> {
        let connection = BlockingConnection::connect(&self.path)?;
        connection.set_receive_timeout(Some(LISTENER_TIMEOUT))?;
        connection.send(&Question::Listener.write(), &[]).map_err(io::Error::other)?;
        let mut buffer = [0; PACKET_SIZE_MAX_BYTES];
        let packet = connection.receive(&mut buffer).map_err(of_packet)?;
        let listener = TcpListener::from(answered(&buffer, packet)?);
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

fn of_packet(error: PacketError) -> io::Error {
    match error {
        PacketError::Closed => io::ErrorKind::NotConnected.into(),
        PacketError::Receive(error) => error,
        error => io::Error::other(error),
    }
}

fn answered(buffer: &[u8], packet: Packet) -> io::Result<OwnedFd> {
    let number = buffer[..packet.length].try_into().map_err(io::Error::other)?;
    match i32::from_be_bytes(number) {
        0 => packet.fds.into_iter().next().ok_or_else(|| io::Error::other("no socket came along")),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Takes the one question of a connection; `None` if there is none.
pub async fn question(connection: &Connection) -> Option<Question> {
    let mut buffer = [0; PACKET_SIZE_MAX_BYTES];
    let packet = connection.receive(&mut buffer).await.ok()?;
    Question::read(&buffer[..packet.length])
}

/// Answers a question with a socket, or with the number of the system's error.
pub async fn answer(
    connection: &Connection,
    socket: Result<OwnedFd, i32>,
) -> Result<(), PacketError> {
    match socket {
        Ok(socket) => connection.send(&0_i32.to_be_bytes(), &[socket.as_fd()]).await,
        Err(errno) => connection.send(&errno.to_be_bytes(), &[]).await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::seqpacket::Listener;

    #[test]
    fn what_is_written_is_read() {
        for question in [
            Question::Listener,
            Question::Dial("192.0.2.1:80".parse().expect("an address")),
            Question::Dial("[ffff:2001:db8:1111:2222:3333:4444:5555]:65535".parse().expect("one")),
        ] {
            let written = question.write();
            assert!(written.len() <= PACKET_SIZE_MAX_BYTES, "{question:?}");
            assert_eq!(Question::read(&written), Some(question));
        }
        for wrong in
            [&b""[..], b"dial", b"dial ", b"dial host:80", b"listeners", b"\xff", b"dial \xff"]
        {
            assert_eq!(Question::read(wrong), None, "{wrong:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sockets_come_along_and_errors_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("outside.sock");
        let server = Listener::bind(&path).expect("a socket");
        let there = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listening");
        let address = there.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            for _ in 0..3 {
                let connection = server.accept().await.expect("a connection");
                let socket = match question(&connection).await.expect("a question") {
                    Question::Listener => {
                        let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
                        Ok(OwnedFd::from(listener))
                    }
                    Question::Dial(to) if to.port() == 1 => Err(libc::ECONNREFUSED),
                    Question::Dial(to) => {
                        Ok(std::net::TcpStream::connect(to).expect("connected").into())
                    }
                };
                answer(&connection, socket).await.expect("sent");
            }
        });
        let outside = Outside::new(path.clone());
        let mut stream = outside.dial(address).await.expect("a connection");
        let (mut accepted, _) = there.accept().await.expect("accepted");
        accepted.write_all(b"x").await.expect("written");
        assert_eq!(stream.read_u8().await.expect("read"), b'x');
        let refused = outside.dial("192.0.2.1:1".parse().expect("an address")).await;
        assert_eq!(refused.expect_err("refused").kind(), io::ErrorKind::ConnectionRefused);
        let listener = tokio::task::spawn_blocking(move || outside.listener());
        assert!(listener.await.expect("no panic").expect("a listener").local_addr().is_ok());
        serving.await.expect("served");
        let gone = Outside::new(path).dial(address).await;
        assert!(gone.is_err(), "{gone:?}");
    }
}
