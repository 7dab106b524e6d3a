//! What is sent on a connection of HTTP/1.1. Heads and pieces gather in one buffer, which is
//! written when there is nothing more to put in for now, and given back when it is empty.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::engine::buffered::Buffered;
use crate::engine::halves::WriteHalf;
use crate::engine::piece::Broken;
use crate::fields::Fields;
use crate::h1::chunks;

/// From here on the buffer is written before more is put in.
const FULL_BYTES: usize = 64 * 1024;
/// A buffer begins with so much: most heads, with a small body behind them, make it grow no more.
const FIRST_BYTES: usize = 2 * 1024;

/// How the body that is being sent is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// As it is: a body with a length, or one that ends with the connection.
    Plain,
    /// In chunks.
    Chunked,
    /// As it is, and its end is the end of the connection's direction.
    UntilClose,
    /// There is none; what comes is not sent.
    Absent,
}

/// The bytes that are not written yet.
pub(crate) struct Outbox {
    io: WriteHalf,
    buffer: Vec<u8>,
    buffered: Buffered,
    written: usize,
    framing: Framing,
    /// What is written is to be passed on by the transport too.
    is_dirty: bool,
    shuts_down: bool,
}

impl Outbox {
    pub(crate) fn new(io: WriteHalf) -> Self {
        let framing = Framing::Absent;
        Self {
            io,
            buffer: Vec::new(),
            buffered: Buffered::default(),
            written: 0,
            framing,
            is_dirty: false,
            shuts_down: false,
        }
    }

    /// Puts a head in. Its body is framed so.
    pub(crate) fn head(&mut self, framing: Framing, write: impl FnOnce(&mut Vec<u8>)) {
        self.framing = framing;
        if self.buffer.capacity() == 0 {
            self.buffer.reserve(FIRST_BYTES);
        }
        write(&mut self.buffer);
        self.buffered.set(self.buffer.capacity());
    }

    /// Frames the body behind the head that was put in.
    pub(crate) fn frame(&mut self, framing: Framing) {
        self.framing = framing;
    }

    pub(crate) fn put(&mut self, data: &Bytes) {
        match self.framing {
            Framing::Plain | Framing::UntilClose => self.buffer.extend_from_slice(data),
            Framing::Chunked => chunks::encode(data, &mut self.buffer),
            Framing::Absent => {}
        }
        self.buffered.set(self.buffer.capacity());
    }

    pub(crate) fn finish(&mut self, trailers: Option<&Fields>) {
        match self.framing {
            Framing::Chunked => {
                chunks::encode_end(trailers, &mut self.buffer);
                self.buffered.set(self.buffer.capacity());
            }
            Framing::UntilClose => self.shuts_down = true,
            Framing::Plain | Framing::Absent => {}
        }
    }

    /// Nothing follows what is put in, not even another message.
    pub(crate) fn end(&mut self) {
        self.shuts_down = true;
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.written < self.buffer.len() || self.is_dirty || self.shuts_down
    }

    pub(crate) fn is_full(&self) -> bool {
        self.buffer.len() - self.written >= FULL_BYTES
    }

    /// Writes everything. May be dropped at any time and called again.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        poll_fn(|cx| {
            while self.written < self.buffer.len() {
                let rest = &self.buffer[self.written..];
                let wrote = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
                if wrote == 0 {
                    return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                }
                self.written += wrote;
                self.is_dirty = true;
            }
            self.buffer = Vec::new();
            self.buffered.set(0);
            self.written = 0;
            if self.is_dirty {
                ready!(Pin::new(&mut self.io).poll_flush(cx))?;
                self.is_dirty = false;
            }
            if self.shuts_down {
                ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
                self.shuts_down = false;
            }
            Poll::Ready(Ok(()))
        })
        .await
        .map_err(Broken::Io)
    }
}
