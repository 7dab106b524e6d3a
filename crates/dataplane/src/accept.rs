//! The accept loops: one for each socket of a pod on each thread.
//!
//! A loop accepts as long as its pod may have one more connection; further connections wait in the
//! kernel, and existing ones continue. On inbound sockets a client beyond its own part is reset at
//! once and does not wait, so it never keeps others from being accepted. A listener is never closed
//! for lack of resources.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_net::socket::{DEFAULT_BACKLOG, Keepalive, normalise, set_keepalive};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::descriptors::{Crowded, Permit, Share, Source};

/// First and last pause of an accept loop that cannot accept.
const ACCEPT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How often a loop checks whether there is room again. Any connection of the worker, on any
/// thread, can make room: a notification would cost every connection something at its end.
const ROOM_PAUSE: Duration = Duration::from_millis(10);

/// Says whose connection it is that came from an address.
pub(crate) type SourceOf = Box<dyn Fn(SocketAddr) -> Source>;

/// What a loop needs of its pod's share for each connection.
pub struct Entrance {
    /// The share.
    pub share: Arc<Share>,
    /// Descriptors of a connection: 2 where another one is dialled for it.
    pub count: usize,
    /// For inbound connections: finds the source. `None` for the pod's own connections.
    pub(crate) source_of: Option<SourceOf>,
    /// TCP keepalive of accepted connections, if any. A client whose kernel has given up sends
    /// nothing: without probes nobody would notice that it is gone while its earlier bytes wait.
    pub keepalive: Option<Keepalive>,
}

impl Entrance {
    /// Waits until somebody's connection has room.
    async fn room(&self) {
        while !self.share.has_room(self.count) {
            self.share.keeps_waiting();
            sleep(ROOM_PAUSE).await;
        }
    }

    /// Descriptors for a connection that was accepted. The pod's own connection waits for them, and
    /// so do those behind it; any other source without room is refused.
    async fn admit(&self, peer: SocketAddr) -> Result<Permit, Box<Crowded>> {
        if self.source_of.is_some() {
            return self.take(peer);
        }
        loop {
            // Another thread may be faster.
            self.room().await;
            if let Ok(permit) = self.take(peer) {
                return Ok(permit);
            }
        }
    }

    /// Descriptors for a connection that was accepted; none where there is no room for its source.
    pub fn take(&self, peer: SocketAddr) -> Result<Permit, Box<Crowded>> {
        self.share.take(self.source_of.as_ref().map(|source_of| source_of(peer)), self.count)
    }
}

/// Accepts connections until the guard drains, as many at a time as the share allows.
///
/// What waits by then is accepted too: its clients are already connected, and when the listener is
/// closed the kernel resets them, unless `net.ipv4.tcp_migrate_req` is on.
pub async fn accept_loop(
    listener: std::net::TcpListener,
    mut guard: Guard,
    entrance: &Entrance,
    each: impl Fn(TcpStream, SocketAddr, Result<Permit, Box<Crowded>>),
) -> io::Result<()> {
    // Accepted sockets inherit these: some system calls less for each of them.
    SockRef::from(&listener).set_tcp_nodelay(true)?;
    if let Some(keepalive) = entrance.keepalive {
        set_keepalive(&listener, keepalive)?;
    }
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let mut draining = std::pin::pin!(guard.draining());
    let mut pause = ACCEPT_PAUSES.0;
    loop {
        tokio::select! {
            biased;
            _ = &mut draining => break,
            () = entrance.room() => {}
        }
        let accepted = tokio::select! {
            biased;
            _ = &mut draining => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pause = ACCEPT_PAUSES.0;
                let peer = normalise(peer);
                tokio::select! {
                    biased;
                    permit = entrance.admit(peer) => each(stream, peer, permit),
                    _ = &mut draining => {
                        each(stream, peer, entrance.take(peer));
                        break;
                    }
                }
            }
            Err(error) if is_of_one_connection(&error) => {
                tracing::debug!(%error, "a connection was gone before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, pause_ms = pause.as_millis(), "cannot accept; waiting");
                sleep(pause).await;
                pause = (pause * 2).min(ACCEPT_PAUSES.1);
            }
        }
    }
    let has_room = || entrance.share.has_room(entrance.count);
    let each = |stream, peer| each(stream, peer, entrance.take(peer));
    accept_waiting(&listener.into_std()?, has_room, each)
}

/// Accepts what waits now, as far as there is room: no more than the queue has room for, lest the
/// listener never closes.
pub fn accept_waiting(
    listener: &std::net::TcpListener,
    has_room: impl Fn() -> bool,
    each: impl Fn(TcpStream, SocketAddr),
) -> io::Result<()> {
    for _ in 0..DEFAULT_BACKLOG {
        if !has_room() {
            break;
        }
        // Of the kernel, because the runtime may not have heard yet of what came last.
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                each(TcpStream::from_std(stream)?, normalise(peer));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the error says something about the connection only, not about the listener or us.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use ambit_net::socket::ISTIO_KEEPALIVE;
    use std::cell::RefCell;
    use std::io::Write as _;

    use ambit_model::names::WorkloadName;
    use ambit_net::drain::Drain;
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::descriptors::{Descriptors, Direction, Process, Shares};

    /// An entrance with room for this many connections, beside those that hold the permits.
    fn entrance(room: usize, source_of: Option<SourceOf>) -> (Entrance, Vec<Permit>) {
        let descriptors = Descriptors::new(Process { limit: 20_000, threads: 1 });
        let shares = || Shares::new(&descriptors, &WorkloadName::new("shop", "cart-1"));
        let fill = |share: &Arc<Share>| -> Vec<_> {
            std::iter::from_fn(|| share.take(None, 1).ok()).collect()
        };
        // When nothing can be lent any more, what is left is exact.
        let others: Vec<_> = (0..50).map(|_| shares()).collect();
        let lent = others.iter().map(|it| fill(it.of(Direction::Outbound)));
        let mut taken: Vec<_> = lent.flatten().collect();
        let share = shares().of(Direction::Outbound).clone();
        taken.extend(fill(&share));
        taken.truncate(taken.len() - room);
        (Entrance { share, count: 1, source_of, keepalive: Some(ISTIO_KEEPALIVE) }, taken)
    }

    fn listening() -> (std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind("[::1]:0").expect("listening");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    fn connect(address: SocketAddr) -> std::net::TcpStream {
        std::net::TcpStream::connect(address).expect("queued by the kernel")
    }

    /// Lets `waiting` connections wait at a listener that will be closed, with room for `room`.
    async fn check(waiting: usize, room: usize, expected: usize) {
        let (listener, address) = listening();
        let mut clients: Vec<_> = (0..waiting).map(|_| connect(address)).collect();
        let (drain, accepted) = (Drain::new(), RefCell::new(Vec::new()));
        let guard = drain.guard();
        drain.start(None);
        let (entrance, _others) = entrance(room, None);
        let each = |stream, _, permit: Result<Permit, _>| {
            accepted.borrow_mut().push((stream, permit.expect("room")));
        };
        accept_loop(listener, guard, &entrance, each).await.expect("closed in good order");
        let accepted: Vec<(TcpStream, Permit)> = accepted.into_inner();
        assert_eq!(accepted.len(), expected);
        for ((mut stream, _), client) in accepted.into_iter().zip(&mut clients) {
            client.write_all(b"?").expect("not reset");
            assert_eq!(stream.read_u8().await.expect("heard"), b'?');
        }
    }

    #[tokio::test]
    async fn what_waits_when_a_listener_is_to_be_closed_is_accepted() {
        check(0, 8, 0).await;
        check(3, 8, 3).await;
        check(3, 2, 2).await;
    }

    #[tokio::test]
    async fn an_accepted_socket_is_probed() {
        let (listener, address) = listening();
        let (drain, probed) = (Drain::new(), RefCell::new(None));
        let (entrance, _others) = entrance(8, None);
        let each = |stream: TcpStream, _, _: Result<Permit, _>| {
            let socket = SockRef::from(&stream);
            *probed.borrow_mut() = socket
                .keepalive()
                .and_then(|is_on| {
                    Ok((is_on, socket.tcp_keepalive_time()?, socket.tcp_keepalive_interval()?))
                })
                .ok();
            drain.start(None);
        };
        let accepting = accept_loop(listener, drain.guard(), &entrance, each);
        // The loop listens by then.
        let (ended, _client) = tokio::join!(accepting, async { connect(address) });
        ended.expect("closed in good order");
        let Keepalive { time, interval, .. } = ISTIO_KEEPALIVE;
        assert_eq!(probed.into_inner(), Some((true, time, interval)));
    }

    #[tokio::test]
    async fn a_pods_own_connections_wait_for_room() {
        let (listener, address) = listening();
        let _clients = [connect(address), connect(address)];
        let (drain, accepted) = (Drain::new(), RefCell::new(Vec::new()));
        let (entrance, mut others) = entrance(1, None);
        let each = |_, _, permit: Result<Permit, _>| {
            accepted.borrow_mut().push(permit.expect("it waits instead"));
        };
        let accepting = accept_loop(listener, drain.guard(), &entrance, each);
        let looking = async {
            let enough = |count| {
                let accepted = &accepted;
                async move {
                    while accepted.borrow().len() < count {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            };
            enough(1).await;
            sleep(3 * ROOM_PAUSE).await;
            assert_eq!(accepted.borrow().len(), 1, "the second one waits");
            others.pop();
            enough(2).await;
            drain.start(None);
        };
        let both = async { tokio::join!(accepting, looking).0 };
        let ended = tokio::time::timeout(Duration::from_secs(5), both).await;
        ended.expect("in time").expect("closed in good order");
    }

    #[tokio::test]
    async fn a_client_beyond_its_part_does_not_block_the_next_one() {
        let (listener, address) = listening();
        let greedy = Source::unproven([10, 0, 0, 1].into(), true);
        let other = Source::unproven([10, 0, 0, 2].into(), true);
        let sources = [greedy.clone(), greedy.clone(), other];
        let next = std::cell::Cell::new(0);
        let source_of = move |_| sources[next.replace(next.get() + 1)].clone();
        let (entrance, others) = entrance(0, Some(Box::new(source_of)));
        drop(others);
        let kept = || entrance.share.take(Some(greedy.clone()), 1).ok();
        let kept: Vec<_> = std::iter::from_fn(kept).collect();
        let _clients = [connect(address), connect(address), connect(address)];
        let (drain, outcomes) = (Drain::new(), RefCell::new(Vec::new()));
        let each = |_, _, permit: Result<Permit, _>| {
            outcomes.borrow_mut().push(permit.is_ok());
            if outcomes.borrow().len() == 3 {
                drain.start(None);
            }
        };
        let ended = accept_loop(listener, drain.guard(), &entrance, each);
        let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
        ended.expect("in time").expect("closed in good order");
        assert_eq!(outcomes.into_inner(), [false, false, true]);
        drop(kept);
    }
}
