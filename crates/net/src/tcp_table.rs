//! The TCP connections of a namespace, and closing one from outside its process.
//!
//! It uses socket diagnosis, which also knows each socket's mark; where the kernel lacks it,
//! `/proc/net/tcp`. The kernel lists a connection in one place from its first SYN on, so a
//! connection that is open throughout the listing is listed. One in `TIME_WAIT` is not. This module
//! never chooses which connection to close.

mod connection;

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::netlink::NetlinkError;
use crate::netlink::message::{self, Answer, Request, attributes_after};
use crate::netlink::socket::{NetlinkSocket, deleted};
use crate::nftables::Connection;
use crate::procnet;
use connection::ID_BYTES;
pub(crate) use connection::OPEN_STATES;
pub use connection::TcpConnection;

/// `SOCK_DIAG_BY_FAMILY`.
const LIST: u16 = 20;
/// `SOCK_DESTROY`.
const DESTROY: u16 = 21;
/// Where it begins in `inet_diag_msg`.
const ID_AT: usize = 4;
/// Size of `inet_diag_msg`.
const SOCKET_BYTES: usize = 72;
/// `INET_DIAG_MARK`; the kernel reports it to processes with `NET_ADMIN` in the namespace.
const MARK: u16 = 15;

/// The open connections of the calling thread's namespace, those in their handshake included.
pub fn connections() -> io::Result<Vec<TcpConnection>> {
    match diagnosed() {
        Ok(connections) => Ok(connections),
        Err(error) => {
            tracing::debug!(%error, "no socket diagnosis, reading /proc/net/tcp");
            procnet::open_connections()
        }
    }
}

/// Ends connections of the calling thread's namespace: both sides are reset. Says how many; those
/// that the kernel cannot end, or that ended meanwhile, do not count.
pub fn destroy(connections: &[TcpConnection]) -> Result<usize, NetlinkError> {
    /// A kernel without `CONFIG_INET_DIAG_DESTROY` knows no such request, or no such operation.
    const NOT_DONE: [i32; 4] = [libc::ENOENT, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOTSUP];
    let mut socket = NetlinkSocket::open(libc::NETLINK_SOCK_DIAG)?;
    let mut count = 0;
    for (family, id) in connections.iter().filter_map(|connection| connection.id) {
        let request = Request::new(DESTROY, 0).body(&asked(family, 0, &id));
        let result = socket.request(request, "end a TCP connection");
        count += usize::from(deleted(result, &NOT_DONE)?);
    }
    Ok(count)
}

fn diagnosed() -> Result<Vec<TcpConnection>, NetlinkError> {
    let mut socket = NetlinkSocket::open(libc::NETLINK_SOCK_DIAG)?;
    let states = OPEN_STATES.iter().fold(0, |states, state| states | 1 << state);
    let mut connections = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let request = Request::new(LIST, 0).body(&asked(family, states, &[0; ID_BYTES]));
        let answers = match socket.dump(request, "list TCP connections") {
            // A kernel without IPv6.
            Err(error) if error.errno() == Some(libc::ENOENT) && !connections.is_empty() => break,
            answers => answers?,
        };
        connections.extend(answers.iter().filter(|it| it.kind == LIST).filter_map(read));
    }
    Ok(connections)
}

/// `inet_diag_req_v2`.
fn asked(family: u8, states: u32, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

fn read(answer: &Answer) -> Option<TcpConnection> {
    let payload = &answer.payload;
    let family = *payload.first()?;
    let id: [u8; ID_BYTES] = *payload.get(ID_AT..)?.first_chunk()?;
    let ip_bytes = if i32::from(family) == libc::AF_INET { 4 } else { 16 };
    let end = |port_at: usize, ip_at: usize| {
        let port = u16::from_be_bytes(*id[port_at..].first_chunk()?);
        let ip: IpAddr = message::read_ip(&id[ip_at..ip_at + ip_bytes])?;
        Some(SocketAddr::new(ip.to_canonical(), port))
    };
    let ends = Connection { local: end(0, 4)?, remote: end(2, 20)? };
    let mark = attributes_after(payload, SOCKET_BYTES).find(|(kind, _)| *kind == MARK);
    let mark = mark.map_or(0, |(_, value)| message::read_u32(value));
    Some(TcpConnection { ends, mark, id: Some((family, id)) })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv6Addr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::namespace::NetNs;
    use crate::netlink::RouteSocket;
    use crate::socket::{self, ListenOptions};

    /// A namespace of this test alone, with loopback up.
    fn namespace() -> NetNs {
        let namespace = NetNs::create().expect("a namespace (needs root)");
        let mut routes = RouteSocket::open_in(&namespace).expect("rtnetlink");
        routes.set_up("lo").expect("up");
        namespace
    }

    fn pair(namespace: &NetNs, listen: &str, connect: &str) -> (TcpListener, TcpStream, TcpStream) {
        let work = || {
            let address: SocketAddr = listen.parse().expect("literal");
            let mark = ListenOptions { mark: Some(0x539), ..ListenOptions::default() };
            let listener = match address.ip().is_unspecified() {
                // Takes IPv4 as well.
                true => TcpListener::bind(address).expect("listen"),
                false => socket::tcp_listener(address, &mark).expect("listen"),
            };
            listener.set_nonblocking(false).expect("blocking");
            let client = TcpStream::connect(connect).expect("connect");
            let (server, _) = listener.accept().expect("accept");
            (listener, client, server)
        };
        namespace.run(work).expect("enter")
    }

    #[test]
    fn every_way_to_list_tells_the_same_and_marks_are_known() {
        let namespace = namespace();
        let v4 = pair(&namespace, "[::]:7001", "127.0.0.1:7001");
        let v6 = pair(&namespace, "[::1]:7002", "[::1]:7002");
        let sorted = |mut all: Vec<TcpConnection>| {
            all.sort_by_key(|it| it.ends);
            all
        };
        let found = sorted(namespace.run(connections).expect("enter").expect("list"));
        let plain = namespace.run(procnet::open_connections).expect("enter").expect("list");
        let ends = |all: &[TcpConnection]| all.iter().map(|it| it.ends).collect::<Vec<_>>();
        assert_eq!(ends(&found), ends(&sorted(plain)));
        assert_eq!(found.len(), 4);
        for ((_, client, server), of_server) in [(&v4, 0), (&v6, 0x539)] {
            for (stream, mark) in [(client, 0), (server, of_server)] {
                let end = |end: io::Result<SocketAddr>| {
                    let end = end.expect("an address");
                    SocketAddr::new(end.ip().to_canonical(), end.port())
                };
                let (local, remote) = (end(stream.local_addr()), end(stream.peer_addr()));
                let it = found.iter().find(|it| it.ends == Connection { local, remote });
                assert_eq!(it.map(|it| it.mark), Some(mark), "{local} {remote}");
            }
        }
        assert!(found.iter().any(|it| it.ends.local.ip() == Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn a_connection_that_is_ended_is_reset() {
        let namespace = namespace();
        let (_listener, mut client, server) = pair(&namespace, "[::]:7003", "127.0.0.1:7003");
        let _other = pair(&namespace, "[::]:7004", "127.0.0.1:7004");
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
        let server_end = server.local_addr().expect("an address").port();
        let chosen = |it: &TcpConnection| it.ends.local.port() == server_end;
        let end = || {
            let all = connections().expect("list");
            let (ended, _): (Vec<_>, Vec<_>) = all.into_iter().partition(chosen);
            destroy(&ended).expect("end")
        };
        assert_eq!(namespace.run(end).expect("enter"), 1);
        let read = client.read(&mut [0; 1]).expect_err("reset");
        assert_eq!(read.kind(), io::ErrorKind::ConnectionReset);
        let left = namespace.run(connections).expect("enter").expect("list");
        assert_eq!(left.len(), 2, "the other connection lives on: {left:?}");
    }
}
