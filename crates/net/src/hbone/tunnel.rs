//! One tunnel: an HTTP/2 stream as the end of a connection.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use ambit_wire::http2::Reason;
use bytes::{Buf, Bytes};

use super::link::Link;
use super::place::Occupied;
use crate::copy::{Batch, End, EndError, Taken};
use crate::ended::Ended;
use crate::memory::{Holder, MIN_WINDOW_BYTES};

/// With so much a tunnel counts as one that holds bytes.
const HOLDING_BYTES: usize = MIN_WINDOW_BYTES as usize / 2;

/// One tunnel: an HTTP/2 stream as the end of a connection. Dropped before both sides have said
/// all, it is reset.
pub struct Tunnel {
    link: Rc<Link>,
    stream: u32,
    /// Whether END_STREAM was sent.
    is_finished: bool,
    /// What the peer got with the CONNECT and will be given once more: it is left out.
    ahead: usize,
    /// The last turn in which there was room for it among what waits for the transport.
    turn: u64,
    /// Taken and not delivered.
    held: usize,
    /// Counts as a holder while its sink is slow.
    holder: Holder,
    /// Counts the tunnel among those of its pooled connection.
    _place: Option<Rc<Occupied>>,
}

impl Tunnel {
    pub(super) fn new(link: Rc<Link>, stream: u32, place: Option<Rc<Occupied>>) -> Self {
        let holder = link.credit.holder();
        Self { link, stream, is_finished: false, ahead: 0, turn: 0, held: 0, holder, _place: place }
    }

    /// Sends the first bytes of what will be given.
    pub(super) fn send_ahead(&mut self, bytes: Bytes) -> Result<(), Ended> {
        self.ahead += bytes.len();
        self.link.send(self.stream, bytes, false)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.link.credit.delivered(self.held);
        self.link.close(self.stream, self.held);
    }
}

impl End for Tunnel {
    /// What is left in the stream takes the connection's window from its neighbours.
    const SHARES_ITS_TRANSPORT: bool = true;

    fn poll_takeable(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        self.link.poll_readable(cx, self.stream).map_err(EndError::Tunnel)
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> Poll<Result<Taken, EndError>> {
        ready!(self.poll_takeable(cx))?;
        let (bytes, is_last) = self.link.take(self.stream, limit, into);
        if bytes > 0 {
            self.held += bytes;
            self.link.credit.taken(bytes);
        }
        // Taken although its sink is slow.
        if limit == usize::MAX && self.held >= HOLDING_BYTES {
            self.holder.set_counted(true);
        }
        Poll::Ready(Ok(if is_last { Taken::Last } else { Taken::Some }))
    }

    fn delivered(&mut self, bytes: usize) {
        self.held -= bytes;
        self.link.credit.delivered(bytes);
        if self.held < HOLDING_BYTES {
            self.holder.set_counted(false);
        }
        self.link.release(self.stream, bytes);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, EndError>> {
        if self.ahead > 0 {
            return Poll::Ready(Ok(self.ahead + self.link.room(self.stream)));
        }
        let Some(most) = self.link.credit.queue_room(cx, &mut self.turn) else {
            // The reset of a waiting stream is still seen.
            return self.poll_gone(cx).map(Err);
        };
        let window = ready!(self.link.poll_window(cx, self.stream)).map_err(EndError::Tunnel)?;
        Poll::Ready(Ok(window.min(most)))
    }

    fn poll_give(
        &mut self,
        _cx: &mut Context<'_>,
        batch: &mut Batch,
        is_last: bool,
    ) -> Poll<Result<usize, EndError>> {
        let mut given = 0;
        while let Some(mut piece) = batch.pop() {
            given += piece.len();
            self.is_finished = is_last && batch.is_empty();
            let sent = piece.len().min(self.ahead);
            piece.advance(sent);
            self.ahead -= sent;
            if piece.is_empty() && !self.is_finished {
                continue;
            }
            self.link.send(self.stream, piece, self.is_finished).map_err(EndError::Tunnel)?;
        }
        Poll::Ready(Ok(given))
    }

    fn has_ended(&self) -> bool {
        self.link.has_ended(self.stream)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<EndError> {
        self.link.poll_ended(cx, self.stream).map(EndError::Tunnel)
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        if self.is_finished {
            return Poll::Ready(Ok(()));
        }
        self.is_finished = true;
        Poll::Ready(self.link.send(self.stream, Bytes::new(), true).map_err(EndError::Tunnel))
    }

    fn is_short(&self) -> bool {
        self.link.credit.is_short()
    }

    fn reset(&mut self) {
        // RFC 9113 section 8.5: any error of the TCP connection is a stream error CONNECT_ERROR.
        self.link.reset(self.stream, Reason::CONNECT_ERROR);
    }
}
