//! The socket below TLS; it records arriving bytes for the keepalive.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes seen from the peer, shared between a transport and its keepalive. Belongs to one thread.
#[derive(Clone, Debug, Default)]
pub struct Activity(Rc<Cell<u64>>);

impl Activity {
    /// How many bytes have arrived, modulo 2^64.
    pub(super) fn bytes(&self) -> u64 {
        self.0.get()
    }
}

/// A byte stream that notes the arrival of bytes.
#[derive(Debug)]
pub struct Transport<IO> {
    io: IO,
    activity: Activity,
    held: Option<Box<dyn Any>>,
}

impl<IO> Transport<IO> {
    /// Takes over a connected stream.
    pub fn new(io: IO) -> Self {
        Self { io, activity: Activity::default(), held: None }
    }

    /// Keeps this until the stream is closed, such as the permission to have it open.
    pub fn holding(mut self, what: impl Any) -> Self {
        self.held = Some(Box::new(what));
        self
    }

    /// Where the arrival of bytes is noted.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Transport<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let arrived = (buf.filled().len() - before) as u64;
        self.activity.0.set(self.activity.0.get().wrapping_add(arrived));
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Transport<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
