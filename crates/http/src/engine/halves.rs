//! The two directions of one connection of this thread, so that a request can be sent while its
//! answer is read. Neither half locks: both belong to one thread.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Any connection, as a position hands it to the engine.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// One connection.
pub type BoxStream = Box<dyn Stream>;

/// What arrives.
pub(crate) struct ReadHalf(Rc<RefCell<BoxStream>>);

/// What is sent.
pub(crate) struct WriteHalf(Rc<RefCell<BoxStream>>);

/// Takes a connection apart.
pub(crate) fn halves(stream: BoxStream) -> (ReadHalf, WriteHalf) {
    let stream = Rc::new(RefCell::new(stream));
    (ReadHalf(stream.clone()), WriteHalf(stream))
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}
