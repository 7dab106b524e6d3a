//! Moves bytes both ways between the two ends of a connection.
//!
//! An end is a TCP socket or a tunnel (one HTTP/2 stream). [`copy`] keeps the two directions
//! apart. Each closes on its own: FIN becomes END_STREAM, and the reverse. If one end is reset, so
//! is the other: RST becomes RST_STREAM, and the reverse.
//!
//! Memory is lent only while bytes are in flight: a direction waits until its source has bytes,
//! then asks its sink for room, then reads no more than that. A slow sink delays only its own
//! direction. It never spawns a task and never looks at the bytes.

pub(crate) mod arena;
mod batch;
mod direction;
mod socket;
mod watch;

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use batch::Batch;
use direction::Direction;
pub use socket::SocketEnd;
use watch::Watch;

use ambit_wire::http2::Reason;

use crate::ended::Ended;
use crate::kernel_path::Shortcut;

/// How much is read from a socket at once: four frames of a tunnel, each of which fills four TLS
/// records with its head. A byte more would take a record of its own. Less costs a stream wake-ups
/// and segments: with a quarter of it a stream is a quarter slower.
pub(crate) const READ_BYTES: usize = 4 * (4 * TLS_RECORD_BYTES - FRAME_HEADER_BYTES);
/// What a full TLS record carries (RFC 8446 section 5.1).
const TLS_RECORD_BYTES: usize = 16 * 1024;
/// What an HTTP/2 frame begins with (RFC 9113 section 4.1).
const FRAME_HEADER_BYTES: usize = 9;

/// How long the last bytes of a side that has closed may wait for a peer that takes none of them,
/// while nothing moves the other way either. Linux gives a socket that its program has closed some
/// minutes, too.
pub const MAX_STANDSTILL: Duration = Duration::from_secs(300);

/// One end of a connection.
///
/// Every method works on one of its two directions; none of them blocks.
pub trait End {
    /// Ready when [`Self::poll_take`] has a result.
    fn poll_takeable(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>>;

    /// Takes at most `limit` bytes, at least one unless this is the end.
    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> Poll<Result<Taken, EndError>>;

    /// What was taken from here has arrived: the sender may send as much again.
    fn delivered(&mut self, bytes: usize);

    /// How much can be given now; at least one byte.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, EndError>>;

    /// Gives what is in the batch, or its beginning. `is_last`: nothing follows the batch, and the
    /// end may be sent with it; [`Self::poll_finish`] is still called.
    fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        is_last: bool,
    ) -> Poll<Result<usize, EndError>>;

    /// Whether the peer has said that nothing more comes, though not all before that is taken.
    fn has_ended(&self) -> bool;

    /// Ready when the end has failed, for as long as nobody takes from it and would notice. The
    /// end of what it says is no failure. A socket does not wake for it: [`copy`] looks again.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<EndError>;

    /// Signals the end that nothing more will be given.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>>;

    /// Whether memory is short for those this end belongs to: what waits is packed then.
    fn is_short(&self) -> bool;

    /// Resets the end, so that its peer sees an error and not an orderly close.
    fn reset(&mut self);

    /// Whether what is left inside this end costs its neighbours: then it is taken out even while
    /// the sink is slow. What is taken but not [`Self::delivered`] bounds how much that can be.
    const SHARES_ITS_TRANSPORT: bool;
}

/// What [`End::poll_take`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Some bytes.
    Some,
    /// Maybe some bytes, and they are the last.
    Last,
}

/// Why one end broke.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The socket failed; a reset by its peer is the usual case.
    #[error("the socket broke")]
    Socket(#[source] io::Error),
    /// The tunnel failed; a reset by the other proxy is the usual case.
    #[error("the tunnel broke")]
    Tunnel(#[source] Ended),
}

impl EndError {
    /// The other proxy asks for no more bytes; what it has sent before stays valid, RFC 9113
    /// section 8.1.
    fn is_no_error(&self) -> bool {
        matches!(self, Self::Tunnel(Ended::Reset(Reason::NO_ERROR)))
    }
}

/// Why a connection did not end in good order.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The end that opened the connection broke.
    #[error("the client's side of the connection broke")]
    Client(#[source] EndError),
    /// The end that was connected to broke.
    #[error("the server's side of the connection broke")]
    Server(#[source] EndError),
    /// One side has closed, and the other took none of its last bytes for too long.
    #[error(
        "one side has closed and the other took none of its last bytes for {} s",
        MAX_STANDSTILL.as_secs()
    )]
    Standstill,
    /// [`Flow::cut`] was called.
    #[error("the connection was cut")]
    Cut,
}

/// What may be seen of, and done to, a connection while its bytes move. Belongs to one thread.
#[derive(Debug, Default)]
pub struct Flow {
    to_server: Cell<u64>,
    to_client: Cell<u64>,
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// What the kernel carries past [`copy`], to the server and to the client.
    past: OnceCell<[Rc<Shortcut>; 2]>,
}

impl Flow {
    /// A connection on which nothing has moved.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes from client to server so far.
    pub fn to_server(&self) -> u64 {
        self.to_server.get() + self.past.get().map_or(0, |[to_server, _]| to_server.bytes())
    }

    /// Bytes from server to client so far.
    pub fn to_client(&self) -> u64 {
        self.to_client.get() + self.past.get().map_or(0, |[_, to_client]| to_client.bytes())
    }

    /// What goes past [`copy`] counts too. To be called once.
    pub fn count_past(&self, to_server: Rc<Shortcut>, to_client: Rc<Shortcut>) {
        let said = self.past.set([to_server, to_client]);
        debug_assert!(said.is_ok(), "a connection has one way past");
    }

    /// Ends the connection; both ends see a reset.
    pub fn cut(&self) {
        self.is_cut.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether [`Self::cut`] was called.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Waits for [`Self::cut`]; for the time before [`copy`] takes over.
    pub async fn cut_off(&self) {
        std::future::poll_fn(|cx| self.poll_cut(cx)).await;
    }

    fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_cut.get() {
            return Poll::Ready(());
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|held| held.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Moves bytes between a client's and a server's end until both directions have ended, one end
/// broke, or the flow is cut. In the last two cases both ends are reset.
pub async fn copy<C: End, S: End>(
    client: &mut C,
    server: &mut S,
    flow: &Flow,
) -> Result<(), CopyError> {
    let mut to_server = Direction::new();
    let mut to_client = Direction::new();
    let mut watch = Watch::default();
    let result = std::future::poll_fn(|cx| {
        if flow.poll_cut(cx).is_ready() {
            return Poll::Ready(Err(CopyError::Cut));
        }
        // What an end has said before it broke is delivered, whichever direction sees it first.
        let there = to_server.poll(cx, client, server, to_client.is_done(), &flow.to_server);
        let back = to_client.poll(cx, server, client, to_server.is_done(), &flow.to_client);
        let there = there.map_err(|broken| broken.of(CopyError::Client, CopyError::Server))?;
        let back = back.map_err(|broken| broken.of(CopyError::Server, CopyError::Client))?;
        if there.is_ready() && back.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let is_stuck = to_server.is_stuck() || to_client.is_stuck();
        let is_half_closed = there.is_ready() || back.is_ready();
        if (is_stuck || is_half_closed) && watch.poll_look(cx).is_ready() {
            gone(cx, client).map_or(Ok(()), |error| Err(CopyError::Client(error)))?;
            gone(cx, server).map_or(Ok(()), |error| Err(CopyError::Server(error)))?;
            let is_last =
                to_server.is_stuck_at_the_end(client) || to_client.is_stuck_at_the_end(server);
            if watch.is_over(flow.to_server() + flow.to_client(), is_last) {
                return Poll::Ready(Err(CopyError::Standstill));
            }
        }
        Poll::Pending
    })
    .await;
    if result.is_err() {
        client.reset();
        server.reset();
    }
    result
}

/// Why an end is gone, if it is.
fn gone(cx: &mut Context<'_>, end: &mut impl End) -> Option<EndError> {
    match end.poll_gone(cx) {
        Poll::Ready(error) if !error.is_no_error() => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hbone::Tunnel;

    /// 264 were measured.
    const COPY_BYTES: usize = 290;

    fn size_bytes<'a, C, S, F>(_copy: impl Fn(&'a mut C, &'a mut S, &'a Flow) -> F) -> usize
    where
        C: 'a,
        S: 'a,
    {
        size_of::<F>()
    }

    /// It lives as long as its connection, so a byte more is a byte for each of them. The bound is
    /// what was measured, and a tenth more.
    #[test]
    fn copying_holds_little() {
        let bytes = size_bytes(copy::<SocketEnd, Tunnel>);
        println!("copy: {bytes} bytes");
        assert!(bytes <= COPY_BYTES, "{bytes}: what does it hold that is new?");
    }
}
