//! One tunnel: an HTTP/2 stream as the end of a connection.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

use super::credit::Credit;
use super::piece::Piece;
use super::place::Occupied;
use crate::copy::{Batch, End, EndError, READ_BYTES, Taken};
use crate::memory::{Holder, MIN_WINDOW_BYTES};

/// With so much a tunnel counts as one that holds bytes.
const HOLDING_BYTES: usize = MIN_WINDOW_BYTES as usize / 2;

/// One tunnel: an HTTP/2 stream as the end of a connection.
pub struct Tunnel {
    send: SendStream<Piece>,
    receive: Received,
    /// Whether END_STREAM was sent.
    is_finished: bool,
    credit: Rc<Credit>,
    /// Taken and not delivered.
    held: usize,
    /// Counts as a holder while its sink is slow.
    holder: Holder,
    /// Counts the tunnel among those of its pooled connection.
    _place: Option<Rc<Occupied>>,
}

/// The receiving half. The library has no way to ask whether something is there, so the first
/// piece is taken and kept.
struct Received {
    stream: RecvStream,
    ahead: Option<Bytes>,
    ended: bool,
}

impl Tunnel {
    pub(super) fn new(
        send: SendStream<Piece>,
        receive: RecvStream,
        credit: Rc<Credit>,
        place: Option<Rc<Occupied>>,
    ) -> Self {
        let receive = Received { stream: receive, ahead: None, ended: false };
        let holder = credit.holder();
        Self { send, receive, is_finished: false, credit, held: 0, holder, _place: place }
    }

    /// Takes what is there, up to `limit` bytes; says how much it took.
    fn poll_pieces(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> (usize, Poll<Result<Taken, EndError>>) {
        let mut room = limit;
        while room > 0 && (limit == usize::MAX || !into.is_full()) {
            match self.receive.poll_ahead(cx) {
                Poll::Ready(Ok(())) => {}
                // What came before a reset is delivered; the reset is seen again behind it.
                _ if room < limit => break,
                Poll::Ready(Err(error)) => return (0, Poll::Ready(Err(error))),
                Poll::Pending => return (0, Poll::Pending),
            }
            let Some(mut piece) = self.receive.ahead.take() else {
                return (limit - room, Poll::Ready(Ok(Taken::Last)));
            };
            if piece.len() > room {
                self.receive.ahead = Some(piece.split_off(room));
            }
            room -= piece.len();
            into.push(piece);
        }
        (limit - room, Poll::Ready(Ok(Taken::Some)))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.credit.delivered(self.held);
    }
}

impl Received {
    /// Ready when a piece is kept or the stream has ended.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        while self.ahead.is_none() && !self.ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(piece)) if piece.is_empty() => {}
                Some(Ok(piece)) => self.ahead = Some(piece),
                Some(Err(error)) => return Poll::Ready(Err(EndError::Tunnel(error))),
                None => self.ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl End for Tunnel {
    /// Many small frames left in the stream would exhaust the connection's budget for them.
    const SHARES_ITS_TRANSPORT: bool = true;

    fn poll_takeable(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        self.receive.poll_ahead(cx)
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> Poll<Result<Taken, EndError>> {
        let (bytes, taken) = self.poll_pieces(cx, limit, into);
        if bytes > 0 {
            self.held += bytes;
            self.credit.taken(bytes);
        }
        // Taken although its sink is slow.
        if limit == usize::MAX && self.held >= HOLDING_BYTES {
            self.holder.set_counted(true);
        }
        taken
    }

    fn delivered(&mut self, bytes: usize) {
        self.held -= bytes;
        self.credit.delivered(bytes);
        if self.held < HOLDING_BYTES {
            self.holder.set_counted(false);
        }
        if let Err(error) = self.receive.stream.flow_control().release_capacity(bytes) {
            tracing::debug!(%error, bytes, "the tunnel ended before its window was reopened");
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, EndError>> {
        let Some(most) = self.credit.queue_room(cx) else {
            // The reset of a waiting stream is still seen.
            return self.poll_gone(cx).map(Err);
        };
        self.send.reserve_capacity(READ_BYTES);
        loop {
            let room = self.send.capacity().min(most);
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(EndError::Tunnel(error))),
                None => return Poll::Ready(Err(self.closed(cx))),
            }
        }
    }

    fn poll_give(
        &mut self,
        _cx: &mut Context<'_>,
        batch: &mut Batch,
        is_last: bool,
    ) -> Poll<Result<usize, EndError>> {
        let mut given = 0;
        while let Some(piece) = batch.pop() {
            given += piece.len();
            let piece = self.credit.queued(piece);
            self.is_finished = is_last && batch.is_empty();
            self.send.send_data(piece, self.is_finished).map_err(EndError::Tunnel)?;
        }
        Poll::Ready(Ok(given))
    }

    fn rest(&mut self) {
        self.send.reserve_capacity(0);
    }

    fn has_ended(&self) -> bool {
        self.receive.ended || self.receive.stream.is_end_stream()
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<EndError> {
        self.send.poll_reset(cx).map(|reason| match reason {
            Ok(reason) => EndError::Tunnel(reason.into()),
            Err(error) => EndError::Tunnel(error),
        })
    }

    fn poll_finish(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        if self.is_finished {
            return Poll::Ready(Ok(()));
        }
        self.is_finished = true;
        let nothing = self.credit.queued(Bytes::new());
        Poll::Ready(self.send.send_data(nothing, true).map_err(EndError::Tunnel))
    }

    fn is_short(&self) -> bool {
        self.credit.is_short()
    }

    fn reset(&mut self) {
        // RFC 9113 section 8.5: any error of the TCP connection is a stream error CONNECT_ERROR.
        self.send.send_reset(Reason::CONNECT_ERROR);
    }
}

impl Tunnel {
    /// Why the stream takes nothing any more.
    fn closed(&mut self, cx: &mut Context<'_>) -> EndError {
        match self.poll_gone(cx) {
            Poll::Ready(error) => error,
            Poll::Pending => EndError::TunnelClosed,
        }
    }
}
