//! What `/proc/net` tells about the sockets of a namespace.
//!
//! Un-enrolment waits until the proxy has no connection left in a pod; sockets of other processes
//! count as well, so the answer can only be too careful.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// States of `/proc/net/tcp` in which bytes may flow whoever holds the socket: established, and the
/// handshake's end.
const OPEN: [&str; 2] = ["01", "03"];

/// Half-closed states, which are in use as long as a process still holds the socket.
const HALF_CLOSED: [&str; 3] = ["04", "05", "08"];

/// Counts the established TCP sockets (v4 and v6) of the calling thread's namespace, by local port.
///
/// Half-closed ones count too: the other direction may still carry bytes. Listeners and what the
/// kernel merely winds down (`TIME_WAIT`, orphans) do not.
pub fn established_by_local_port() -> io::Result<BTreeMap<u16, usize>> {
    let mut counts = BTreeMap::new();
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        match fs::read_to_string(path) {
            Ok(table) => count_established(&table, &mut counts)?,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.ends_with('6') => {}
            Err(error) => return Err(error),
        }
    }
    Ok(counts)
}

fn count_established(table: &str, counts: &mut BTreeMap<u16, usize>) -> io::Result<()> {
    for line in table.lines().skip(1) {
        let malformed = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("unexpected line in /proc/net/tcp: {line}"),
            )
        };
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else {
            return Err(malformed());
        };
        let held = inode != "0";
        if OPEN.contains(&state) || (held && HALF_CLOSED.contains(&state)) {
            let port = local.rsplit_once(':').ok_or_else(malformed)?.1;
            let port = u16::from_str_radix(port, 16).map_err(|_| malformed())?;
            *counts.entry(port).or_default() += 1;
        }
    }
    Ok(())
}
