//! The sockets of a namespace, as `/proc/net` lists them.
//!
//! Un-enrolment waits until the proxy has no connection left in a pod; sockets of other processes
//! count as well, so the answer can only be too careful. A proxy that must end checks whether
//! another one listens in its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::nftables::Connection;
use crate::tcp_table::{OPEN_STATES, TcpConnection};

/// States of `/proc/net/tcp` in which bytes may flow, whichever process holds the socket:
/// established, and the handshake's end.
const OPEN: [&str; 2] = ["01", "03"];

/// The state of a listener.
const LISTEN: &str = "0A";

/// Half-closed states, which are in use as long as a process still holds the socket.
const HALF_CLOSED: [&str; 3] = ["04", "05", "08"];

/// Counts the established TCP sockets (v4 and v6) of the calling thread's namespace, by local port.
///
/// Half-closed ones count too: the other direction may still carry bytes. Listeners and what the
/// kernel merely winds down (`TIME_WAIT`, orphans) do not.
pub fn established_by_local_port() -> io::Result<BTreeMap<u16, usize>> {
    let mut counts = BTreeMap::new();
    each_socket(|socket| {
        let held = socket.inode != 0;
        if OPEN.contains(&socket.state) || (held && HALF_CLOSED.contains(&socket.state)) {
            *counts.entry(socket.port).or_default() += 1;
        }
    })?;
    Ok(counts)
}

/// The inodes of the TCP listeners (v4 and v6) of a port in the calling thread's namespace.
pub fn listeners(port: u16) -> io::Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    each_socket(|socket| {
        if socket.state == LISTEN && socket.port == port {
            inodes.insert(socket.inode);
        }
    })?;
    Ok(inodes)
}

/// The inodes of the sockets (v4 and v6) of the calling thread's namespace that have a port at
/// their own end and that a process holds: of TCP, whatever their state, and of UDP.
pub fn holders(port: u16) -> io::Result<(BTreeSet<u64>, BTreeSet<u64>)> {
    let of = |tables: &[&str]| {
        let mut inodes = BTreeSet::new();
        each_socket_of(tables, |socket| {
            if socket.port == port && socket.inode != 0 {
                inodes.insert(socket.inode);
            }
        })?;
        Ok::<_, io::Error>(inodes)
    };
    Ok((of(&["tcp", "tcp6"])?, of(&["udp", "udp6"])?))
}

/// The open TCP connections (v4 and v6) of the calling thread's namespace.
pub(crate) fn open_connections() -> io::Result<Vec<TcpConnection>> {
    let mut connections = Vec::new();
    each_socket(|socket| {
        let state = u8::from_str_radix(socket.state, 16).unwrap_or_default();
        let ends = end(socket.local).zip(end(socket.remote));
        if let Some((local, remote)) = ends.filter(|_| OPEN_STATES.contains(&state)) {
            connections.push(TcpConnection::listed(Connection { local, remote }, 0));
        }
    })?;
    Ok(connections)
}

/// Address and port as the kernel prints them: words of this machine's byte order, in hexadecimal.
fn end(text: &str) -> Option<SocketAddr> {
    const WORD_DIGITS: usize = 8;
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for start in (0..address.len()).step_by(WORD_DIGITS) {
        let word = address.get(start..start + WORD_DIGITS)?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        _ => IpAddr::from(Ipv6Addr::from(*bytes.first_chunk::<16>()?)).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// A line of `/proc/net/tcp` or `/proc/net/udp`.
struct Socket<'a> {
    local: &'a str,
    remote: &'a str,
    port: u16,
    state: &'a str,
    /// 0 when no process holds it.
    inode: u64,
}

fn each_socket(visit: impl FnMut(Socket<'_>)) -> io::Result<()> {
    each_socket_of(&["tcp", "tcp6"], visit)
}

fn each_socket_of(tables: &[&str], mut visit: impl FnMut(Socket<'_>)) -> io::Result<()> {
    for table in tables {
        let path = format!("/proc/thread-self/net/{table}");
        match fs::read_to_string(&path) {
            Ok(table) => {
                for line in table.lines().skip(1) {
                    visit(socket(line).ok_or_else(|| malformed(line))?);
                }
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.ends_with('6') => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn socket(line: &str) -> Option<Socket<'_>> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some(Socket { local, remote, port, state, inode: inode.parse().ok()? })
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected line in /proc/net: {line}"))
}
