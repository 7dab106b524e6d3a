//! What `/proc/net` tells about the sockets of a namespace.
//!
//! Un-enrolment waits until the proxy has no connection left in a pod; sockets of other processes
//! count as well, so the answer can only be too careful. A proxy that is to end looks whether
//! another one listens in its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

/// States of `/proc/net/tcp` in which bytes may flow whoever holds the socket: established, and the
/// handshake's end.
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

/// A line of `/proc/net/tcp`.
struct Socket<'a> {
    port: u16,
    state: &'a str,
    /// 0 when no process holds it.
    inode: u64,
}

fn each_socket(mut visit: impl FnMut(Socket<'_>)) -> io::Result<()> {
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        match fs::read_to_string(path) {
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
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some(Socket { port, state, inode: inode.parse().ok()? })
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected line in /proc/net/tcp: {line}"))
}
