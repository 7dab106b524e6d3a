//! Connections from the host to a port of this pod.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ambit_net::socket::{Keepalive, set_keepalive};
use ambit_net::sys::process::open_files_limit;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::exec::{ExecAnswer, answer, caller_of};

/// How long a program may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of one pod at once.
const CONNECTIONS_MAX: usize = 1024;
/// A connection has three descriptors; as many are left to all else.
const DESCRIPTORS_EACH: usize = 6;
/// How a peer that vanished is noticed.
const KEEPALIVE: Keepalive =
    Keepalive { time: Duration::from_secs(15), interval: Duration::from_secs(15), retries: 9 };

/// Room for the connections of this pod.
pub(super) fn room() -> Semaphore {
    Semaphore::new(CONNECTIONS_MAX.min(open_files_limit() / DESCRIPTORS_EACH))
}

/// Connects the caller's socket, and carries it until both ways have ended or the caller is gone.
pub(super) async fn serve(port: u16, fds: Vec<OwnedFd>, room: &Semaphore) {
    let Ok([socket, caller]) = <[OwnedFd; 2]>::try_from(fds) else {
        tracing::warn!("a connection from the host without its two descriptors");
        return;
    };
    let Some(caller) = caller_of(caller) else { return };
    let Ok(_held) = room.try_acquire() else {
        let full = "too many connections from the host lead to the pod".to_owned();
        return answer(&caller, &ExecAnswer::Error(full)).await;
    };
    let (mut socket, mut nothing) = (Some(socket), [0; 1]);
    tokio::select! {
        carried = carry(&mut socket, port) => {
            let said = carried.map_or_else(ExecAnswer::Error, |()| ExecAnswer::Exit(0));
            // A socket that was not connected is still open: the caller learns why before its end.
            answer(&caller, &said).await;
        }
        // It sends nothing: this is its end.
        _gone = caller.receive(&mut nothing) => {}
    }
}

/// Carries a socket, which is TCP of the host or of a pair within the machine. One that cannot be
/// connected stays.
async fn carry(socket: &mut Option<OwnedFd>, port: u16) -> Result<(), String> {
    let mut server = connect(port).await.map_err(|error| {
        format!("nothing accepts at port {port} of the pod's loopback address: {error}")
    })?;
    let Some(client) = socket.take().map(UnixStream::from) else { return Ok(()) };
    // However it ends, it has ended; both ends have seen how.
    let _ended = if client.local_addr().is_ok() {
        let mut client = paired(client).map_err(|error| format!("no pair: {error}"))?;
        copy_bidirectional(&mut client, &mut server).await
    } else {
        let client = taken(client.into()).map_err(|error| format!("no TCP socket: {error}"));
        copy_bidirectional(&mut client?, &mut server).await
    };
    Ok(())
}

fn paired(socket: UnixStream) -> io::Result<tokio::net::UnixStream> {
    socket.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(socket)
}

fn taken(socket: OwnedFd) -> io::Result<TcpStream> {
    let socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(true)?;
    set_keepalive(&socket, KEEPALIVE)?;
    TcpStream::from_std(socket)
}

/// The program may listen on either address. Of two failures that of IPv4 is told.
async fn connect(port: u16) -> io::Result<TcpStream> {
    let to = async |ip: IpAddr| {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect((ip, port))).await;
        connected.unwrap_or_else(|_late| Err(io::ErrorKind::TimedOut.into()))
    };
    match to(Ipv4Addr::LOCALHOST.into()).await {
        Ok(connected) => Ok(connected),
        Err(error) => to(Ipv6Addr::LOCALHOST.into()).await.map_err(|_| error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;

    use ambit_net::seqpacket::Connection;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What the end of a pair is told, and what comes back of it, when something listens or not.
    async fn forwarded(listener: Option<&TcpListener>, port: u16) -> (String, ExecAnswer) {
        let (near, far) = UnixStream::pair().expect("a pair");
        let (own, caller) = Connection::pair().expect("a pair");
        let caller = caller.as_fd().try_clone_to_owned().expect("a descriptor");
        let room = Semaphore::new(1);
        let serving = serve(port, vec![far.into(), caller], &room);
        let asking = async {
            let mut near = paired(near).expect("a socket");
            near.write_all(b"hello").await.expect("written");
            near.shutdown().await.expect("half closed");
            if let Some(listener) = listener {
                let (accepted, _) = listener.accept().expect("accepted");
                let mut program = taken(accepted.into()).expect("a socket");
                let mut heard = String::new();
                program.read_to_string(&mut heard).await.expect("read");
                program.write_all(heard.to_uppercase().as_bytes()).await.expect("written");
            }
            let mut said = String::new();
            // What is refused is cut, with what was not read.
            let _ended = near.read_to_string(&mut said).await;
            said
        };
        let (said, ()) = tokio::join!(asking, serving);
        let mut buffer = [0; 1024];
        let packet = own.receive(&mut buffer).await.expect("an answer");
        (said, serde_json::from_slice(&buffer[..packet.length]).expect("of its form"))
    }

    #[tokio::test]
    async fn one_half_of_a_pair_ends_before_the_other() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = listener.local_addr().expect("bound").port();
        let (said, answer) = forwarded(Some(&listener), port).await;
        assert_eq!((said.as_str(), answer), ("HELLO", ExecAnswer::Exit(0)));
        drop(listener);
        let (said, answer) = forwarded(None, port).await;
        let ExecAnswer::Error(reason) = answer else { panic!("nothing listens") };
        assert!(reason.contains("nothing accepts at port"), "{reason}");
        assert_eq!(said, "");
    }

    #[tokio::test]
    async fn a_program_is_found_at_either_address() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
            let listener = TcpListener::bind((ip, 0)).expect("bound");
            let port = listener.local_addr().expect("bound").port();
            let mut connected = connect(port).await.expect("connected");
            let (accepted, _) = listener.accept().expect("accepted");
            let mut accepted = taken(accepted.into()).expect("a socket");
            accepted.write_all(b"hello").await.expect("written");
            drop(accepted);
            let mut heard = String::new();
            connected.read_to_string(&mut heard).await.expect("read");
            assert_eq!(heard, "hello");
            drop(listener);
            assert!(connect(port).await.is_err(), "nobody listens any more");
        }
    }
}
