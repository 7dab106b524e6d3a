//! The task's side of a connection: reads the transport, and writes what waits for it.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use super::link::Link;
use crate::copy::arena;
use crate::ended::Ended;

/// Less of a frame that has not come whole is copied, so that it keeps no read alive.
const SMALL_BYTES: usize = 4096;
/// What is read before others of the thread have their turn.
const TURN_BYTES: usize = 512 * 1024;
/// How long a peer may take to close its side, once ours is closed. Until then what it sends is
/// read: to bytes that nobody reads Linux answers with a reset, and throws away what the peer has
/// not got yet.
const LINGER: Duration = Duration::from_secs(30);
/// It is given up sooner when it says nothing for so long. One that only reads asks now and then
/// whether we are there.
const QUIET: Duration = Duration::from_secs(15);

/// The task's side of a connection. The connection is over when it is dropped.
pub(super) struct Driver<IO> {
    io: IO,
    link: Rc<Link>,
    /// A frame that has not come whole.
    input: BytesMut,
    /// It was copied, and keeps no read alive.
    is_copied: bool,
    is_dirty: bool,
    /// Something was written since this was last looked at.
    has_written: bool,
    /// While nothing is left but to write what waits: when it is given up.
    stuck: Option<Pin<Box<Sleep>>>,
    stage: Stage,
    /// The peer has closed its side.
    has_read_all: bool,
    over: Option<Result<(), Ended>>,
}

/// How far a connection is.
enum Stage {
    Open,
    /// What waits is written, and then our side is closed.
    Closing,
    /// It is, and the peer closes its own, or is too late.
    Lingering {
        /// At the latest.
        until: Instant,
        /// If it says nothing.
        quiet: Pin<Box<Sleep>>,
    },
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    pub(super) fn new(io: IO, link: Rc<Link>) -> Self {
        Self {
            io,
            link,
            input: BytesMut::new(),
            is_copied: false,
            is_dirty: false,
            has_written: false,
            stuck: None,
            stage: Stage::Open,
            has_read_all: false,
            over: None,
        }
    }

    /// Reads and writes what there is. Ready when the connection is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if self.over.is_none() {
            let over = ready!(self.poll_end(cx));
            self.link.end(over.as_ref().err().cloned().unwrap_or(Ended::Closed));
            self.over = Some(over);
        }
        Poll::Ready(self.over.clone().unwrap_or(Ok(())))
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if !matches!(self.stage, Stage::Open) {
            return self.poll_close(cx);
        }
        self.link.adjust(cx);
        if self.link.is_due() {
            // Before what is read adds to it.
            let _pending = self.poll_write(cx)?;
        }
        match self.poll_read(cx) {
            Poll::Ready(Ok(())) => self.stage = Stage::Closing,
            Poll::Ready(Err(ended @ Ended::Fault(_))) => {
                // The peer learns why; whether it listens is its own affair.
                let _pending = self.poll_write(cx);
                return Poll::Ready(Err(ended));
            }
            Poll::Ready(Err(ended)) => return Poll::Ready(Err(ended)),
            Poll::Pending => {}
        }
        let written = self.poll_write(cx);
        self.link.written();
        let written = written?;
        // Until all is written the peer is listened to, and its questions are answered.
        if self.link.is_done() && written.is_ready() {
            self.stage = Stage::Closing;
        }
        if matches!(self.stage, Stage::Open) {
            return if self.link.is_done() { self.poll_stuck(cx).map(Ok) } else { Poll::Pending };
        }
        self.link.finish();
        self.poll_close(cx)
    }

    /// Ready when the peer has closed.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let mut left = TURN_BYTES;
        loop {
            let read = self.poll_some(cx);
            let is_small = !self.input.is_empty() && self.input.len() < SMALL_BYTES;
            if read.is_pending() && is_small && !self.is_copied {
                self.input = BytesMut::from(&self.input[..]);
                self.is_copied = true;
            }
            let came = ready!(read)?;
            let bytes = came.len();
            if bytes == 0 {
                let is_cut = self.link.has_streams();
                let cut = || failed(io::ErrorKind::UnexpectedEof.into());
                return Poll::Ready(if is_cut { Err(cut()) } else { Ok(()) });
            }
            self.is_copied = false;
            if self.input.is_empty() {
                self.input = came;
            } else {
                self.input.unsplit(came);
            }
            self.link.read(&mut self.input).map_err(Ended::Fault)?;
            if self.input.is_empty() {
                self.input = BytesMut::new();
            }
            if self.link.is_due() {
                // What does not go now goes later; it has a bound.
                let _pending = self.poll_write(cx)?;
            }
            left = left.saturating_sub(bytes);
            if left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Ready when nothing waits any more. The transport gets more when all it had has gone: what it
    /// keeps by itself is behind no bound of ours, and every small request would wait behind it.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            if self.is_dirty {
                ready!(Pin::new(&mut self.io).poll_flush(cx)).map_err(failed)?;
                self.link.flushed();
                self.is_dirty = false;
            }
            let io = Pin::new(&mut self.io);
            let written = self.link.write(|slices| {
                let polled = io.poll_write_vectored(cx, slices);
                (if let Poll::Ready(Ok(bytes)) = &polled { *bytes } else { 0 }, polled)
            });
            let Some(written) = written else { return Poll::Ready(Ok(())) };
            let bytes = ready!(written).map_err(failed)?;
            if bytes == 0 {
                return Poll::Ready(Err(failed(io::ErrorKind::WriteZero.into())));
            }
            self.is_dirty = true;
            self.has_written = true;
        }
    }

    /// Ready when the peer has taken nothing for long, although all else is over.
    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if std::mem::take(&mut self.has_written) {
            stuck.as_mut().reset(Instant::now() + LINGER);
        }
        stuck.as_mut().poll(cx)
    }

    /// What comes next; nothing if the peer has closed its side.
    fn poll_some(&mut self, cx: &mut Context<'_>) -> Poll<Result<BytesMut, Ended>> {
        let read = arena::with_small_room(|chunk| {
            let room = chunk.capacity();
            let polled = pin!(self.io.read_buf(&mut (&mut *chunk).limit(room))).poll(cx);
            polled.map_ok(|_| chunk.split())
        });
        let came = ready!(read).map_err(failed)?;
        self.has_read_all = came.is_empty();
        Poll::Ready(Ok(came))
    }

    /// Nothing is open any more, so that it does not matter whether the peer hears of the end. What
    /// it was sent before must reach it.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if !matches!(self.stage, Stage::Lingering { .. }) {
            let is_written = ready!(self.poll_write(cx)).is_ok();
            if !is_written || ready!(Pin::new(&mut self.io).poll_shutdown(cx)).is_err() {
                return Poll::Ready(Ok(()));
            }
            let until = Instant::now() + LINGER;
            self.stage = Stage::Lingering { until, quiet: Box::pin(sleep(QUIET)) };
        }
        let mut left = TURN_BYTES;
        while !self.has_read_all {
            match self.poll_some(cx) {
                Poll::Ready(Ok(ignored)) => left = left.saturating_sub(ignored.len()),
                Poll::Ready(Err(_)) => break,
                Poll::Pending => return self.poll_late(cx, left < TURN_BYTES),
            }
            if left == 0 {
                cx.waker().wake_by_ref();
                return self.poll_late(cx, true);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer has had time enough to close its side.
    fn poll_late(&mut self, cx: &mut Context<'_>, has_read: bool) -> Poll<Result<(), Ended>> {
        let Stage::Lingering { until, quiet } = &mut self.stage else { return Poll::Pending };
        let now = Instant::now();
        if now >= *until {
            return Poll::Ready(Ok(()));
        }
        if has_read {
            quiet.as_mut().reset((now + QUIET).min(*until));
        }
        quiet.as_mut().poll(cx).map(Ok)
    }

    /// Whether nothing is left to do but to write what waits and to wait for the peer.
    pub(super) fn is_leaving(&self) -> bool {
        !matches!(self.stage, Stage::Open) || self.stuck.is_some()
    }
}

impl<IO> Drop for Driver<IO> {
    fn drop(&mut self) {
        // As if the transport had broken: a tunnel that was asked for may be asked for again.
        self.link.end(failed(io::ErrorKind::BrokenPipe.into()));
    }
}

fn failed(error: io::Error) -> Ended {
    Ended::Transport(Arc::new(error))
}
