//! The connections that are older than a pod's capture: which they are, and what becomes of them.
//!
//! They are noted once, when a pod is enrolled, between the redirects and the filter: from the
//! first on no connection can join them. The kernel's set is the only record. Nothing here ever
//! adds to it later; a connection leaves it when its socket is gone.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;

use ambit_net::conntrack::{Conntrack, Entry, Tuple};
use ambit_net::nftables::{Connection, Protocol};
use ambit_net::tcp_table::{self, TcpConnection};
use ambit_words::ports::{DNS_CAPTURE, HBONE, INBOUND, OUTBOUND};

use super::rules::{MARK_MASK, PROXY_MARK, TRANSPARENT_MARK};

/// Ports at which every connection is a captured one.
const PROXY_PORTS: [u16; 4] = [OUTBOUND, INBOUND, HBONE, DNS_CAPTURE];
/// Longest record: it is written in one transaction of some 60 bytes each. What is beyond is cut.
const OLDER_MAX: usize = 200_000;

/// Those of a namespace's connections that no capture took, of its sockets and of what connection
/// tracking knows of them.
pub(crate) fn older(sockets: &[TcpConnection], entries: &[Entry]) -> BTreeSet<Connection> {
    let ends: HashSet<Connection> = sockets.iter().map(|it| it.ends).collect();
    let translated: HashSet<Connection> =
        entries.iter().filter(|it| is_translated(it)).map(|it| sent_by(&it.original)).collect();
    let is_older = |it: &&TcpConnection| {
        let Connection { local, remote } = it.ends;
        let of_proxy = it.mark & MARK_MASK == PROXY_MARK || PROXY_PORTS.contains(&local.port());
        let within = |end: SocketAddr| end.ip().is_loopback() || end.ip().is_unspecified();
        // The other end is here as well: the application's own, or the proxy's.
        let is_inner = ends.contains(&Connection { local: remote, remote: local });
        let is_inner = is_inner || within(local) || within(remote);
        !of_proxy && !is_inner && !translated.contains(&it.ends)
    };
    let mut older: BTreeSet<Connection> =
        sockets.iter().filter(is_older).map(|it| it.ends).collect();
    if older.len() > OLDER_MAX {
        tracing::warn!(
            open = older.len(),
            limit = OLDER_MAX,
            "more connections are open than can \
            be noted; the rest is cut"
        );
        older = older.into_iter().take(OLDER_MAX).collect();
    }
    older
}

/// The entries that may lead a new connection past the redirects: those that no redirect made and
/// that belong to no open socket. They were left by connections before, or by stray packets.
pub(crate) fn is_stale(entry: &Entry, sockets: &HashSet<Connection>) -> bool {
    let sent = sent_by(&entry.original);
    let received = Connection { local: sent.remote, remote: sent.local };
    entry.original.protocol == Protocol::Tcp
        && !is_translated(entry)
        && entry.mark & MARK_MASK != TRANSPARENT_MARK
        && !sockets.contains(&sent)
        && !sockets.contains(&received)
}

/// The open connections of the calling thread's namespace that are older than its capture. Entries
/// of connection tracking that are stale go, too.
pub(crate) fn note() -> std::io::Result<Vec<TcpConnection>> {
    // An entry comes before its socket is seen, or a translation is known after it: hence twice.
    let before = entries();
    let sockets = tcp_table::connections()?;
    let after = entries();
    forget_stale(&before, &sockets);
    let older = older(&sockets, &after);
    Ok(sockets.into_iter().filter(|it| older.contains(&it.ends)).collect())
}

fn entries() -> Vec<Entry> {
    let listed = Conntrack::open().and_then(|mut conntrack| conntrack.entries());
    listed.unwrap_or_else(|error| {
        // Without it captured connections count among the older ones of a pod that comes back.
        tracing::debug!(%error, "connection tracking cannot be listed");
        Vec::new()
    })
}

fn forget_stale(entries: &[Entry], sockets: &[TcpConnection]) {
    let sockets: HashSet<Connection> = sockets.iter().map(|it| it.ends).collect();
    let mut stale = entries.iter().filter(|entry| is_stale(entry, &sockets)).peekable();
    if stale.peek().is_none() {
        return;
    }
    match Conntrack::open().and_then(|mut conntrack| conntrack.delete(stale)) {
        Ok(stale) => tracing::debug!(stale, "entries of connection tracking without a socket"),
        Err(error) => tracing::debug!(%error, "stale entries of connection tracking are left"),
    }
}

/// Those of the record whose sockets are still there.
pub(crate) fn still_open(record: &BTreeSet<Connection>) -> std::io::Result<Vec<TcpConnection>> {
    let sockets = tcp_table::connections()?;
    Ok(sockets.into_iter().filter(|it| record.contains(&it.ends)).collect())
}

/// Ends them; those that the kernel cannot end get no further packet through.
pub(crate) fn cut(connections: &[TcpConnection]) {
    if connections.is_empty() {
        return;
    }
    let all = connections.len();
    let ended = tcp_table::destroy(connections).unwrap_or_else(|error| {
        tracing::debug!(%error, "connections cannot be ended");
        0
    });
    tracing::info!(
        reset = ended,
        dropped = all - ended,
        "connections older than the capture are cut, as the pod or its namespace asks"
    );
}

/// Whether addresses were changed for it, which only redirects do here.
fn is_translated(entry: &Entry) -> bool {
    let (original, reply) = (&entry.original, &entry.reply);
    (original.source, original.destination) != (reply.destination, reply.source)
}

/// The connection of the socket that sent such packets.
fn sent_by(tuple: &Tuple) -> Connection {
    Connection { local: tuple.source, remote: tuple.destination }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> SocketAddr {
        text.parse().expect("literal")
    }

    fn tuple(source: &str, destination: &str) -> Tuple {
        Tuple { protocol: Protocol::Tcp, source: end(source), destination: end(destination) }
    }

    fn entry(from: &str, to: &str, answered_by: &str, mark: u32) -> Entry {
        let (original, reply) = (tuple(from, to), tuple(answered_by, from));
        Entry { original, reply, mark, zone: 0 }
    }

    fn socket(local: &str, remote: &str, mark: u32) -> TcpConnection {
        TcpConnection::listed(Connection { local: end(local), remote: end(remote) }, mark)
    }

    #[test]
    fn only_what_no_capture_took_is_older() {
        let sockets = [
            socket("10.0.0.5:8080", "10.0.9.9:5555", 0),
            socket("10.0.0.5:40000", "10.0.9.9:443", 0),
            socket("[fd00::5]:8080", "[fd00::9]:5555", 0),
            // Captured on its way out, and the proxy's end of it.
            socket("10.0.0.5:40001", "10.0.9.9:443", 0),
            socket("127.64.9.9:15001", "10.0.0.5:40001", PROXY_MARK),
            // The proxy's own, and what it dialled for a client.
            socket("10.0.0.5:40002", "10.0.9.9:15008", PROXY_MARK),
            socket("10.0.0.5:15008", "10.0.9.9:6000", 0),
            socket("10.0.9.9:6001", "10.0.0.5:8080", 0),
            socket("10.0.0.5:8080", "10.0.9.9:6001", 0),
            socket("127.0.0.1:8080", "127.0.0.1:6002", 0),
        ];
        let entries = [
            entry("10.0.0.5:40000", "10.0.9.9:443", "10.0.9.9:443", 0),
            entry("10.0.0.5:40001", "10.0.9.9:443", "127.64.9.9:15001", 0),
        ];
        let found: Vec<String> =
            older(&sockets, &entries).iter().map(|it| it.local.to_string()).collect();
        assert_eq!(found, ["10.0.0.5:8080", "10.0.0.5:40000", "[fd00::5]:8080"]);
    }

    #[test]
    fn entries_without_a_socket_are_stale_unless_capture_made_them() {
        let listed = [socket("10.0.0.5:8080", "10.0.9.9:5555", 0)];
        let sockets = listed.iter().map(|it| it.ends).collect();
        let (pod, peer) = ("10.0.0.5:8080", "10.0.9.9:5556");
        let table = [
            (entry(peer, pod, pod, 0), true),
            (entry(pod, peer, peer, 0), true),
            (entry("10.0.9.9:5555", pod, pod, 0), false),
            (entry(pod, "10.0.9.9:5555", "10.0.9.9:5555", 0), false),
            (entry(peer, pod, "10.0.0.5:15006", 0), false),
            (entry(peer, pod, pod, TRANSPARENT_MARK), false),
        ];
        for (entry, expected) in table {
            assert_eq!(is_stale(&entry, &sockets), expected, "{entry:?}");
        }
    }
}
