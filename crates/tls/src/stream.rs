//! An established TLS stream over any transport.
//!
//! rustls asks its transport for 4 KiB at a time, five reads for one full record. [`ReadAhead`]
//! sits between them and reads 64 KiB at once into a buffer that belongs to the thread and is lent
//! only while it holds bytes: an idle stream holds none.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What one read takes from the transport at most.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// Buffers that one thread keeps for its streams; more are allocated and freed as needed.
const MAX_SPARE_BUFFERS: usize = 32;
/// What rustls keeps of written data that the transport did not take yet. Room for several frames:
/// what does not fit is cut off into a record, a segment and a wake-up of its own.
pub(crate) const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The accepting end.
pub type ServerStream<IO> = Stream<tokio_rustls::server::TlsStream<ReadAhead<IO>>>;
/// The connecting end.
pub type ClientStream<IO> = Stream<tokio_rustls::client::TlsStream<ReadAhead<IO>>>;

/// One end of an established TLS connection.
///
/// `poll_shutdown` sends close_notify and then closes the transport's writing side; reading
/// continues until the peer's close_notify. A transport that ends without one is an `UnexpectedEof`
/// error, because a cut connection must not look like an ended one.
#[derive(Debug)]
pub struct Stream<T>(pub(crate) T);

impl<IO> ServerStream<IO> {
    /// The transport below.
    pub fn io(&self) -> &IO {
        &self.0.get_ref().0.io
    }
}

impl<IO> ClientStream<IO> {
    /// The transport below.
    pub fn io(&self) -> &IO {
        &self.0.get_ref().0.io
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Stream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Stream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A transport that is read in large steps.
#[derive(Debug)]
pub struct ReadAhead<IO> {
    io: IO,
    ahead: Option<Ahead>,
}

/// Bytes that were read and not yet asked for; never empty.
#[derive(Debug)]
struct Ahead {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<IO> ReadAhead<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self { io, ahead: None }
    }

    /// Hands out bytes that are here already; gives the buffer back with the last of them.
    fn take_ahead(&mut self, mut ahead: Ahead, buf: &mut ReadBuf<'_>) {
        let count = buf.remaining().min(ahead.end - ahead.start);
        buf.put_slice(&ahead.buffer[ahead.start..ahead.start + count]);
        ahead.start += count;
        if ahead.start == ahead.end {
            give_back(ahead.buffer);
        } else {
            self.ahead = Some(ahead);
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(ahead) = this.ahead.take() {
            this.take_ahead(ahead, buf);
            return Poll::Ready(Ok(()));
        }
        let mut buffer = borrow();
        let mut space = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut this.io).poll_read(cx, &mut space);
        let end = space.filled().len();
        if end == 0 {
            // Nothing to read yet, the end of the stream, or an error.
            give_back(buffer);
            return polled;
        }
        ready!(polled)?;
        this.take_ahead(Ahead { buffer, start: 0, end }, buf);
        Poll::Ready(Ok(()))
    }
}

fn borrow() -> Box<[u8]> {
    SPARE_BUFFERS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| vec![0; READ_AHEAD_BYTES].into_boxed_slice())
}

fn give_back(buffer: Box<[u8]>) {
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ReadAhead<IO> {
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
        bufs: &[IoSlice<'_>],
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// A transport that counts how often it is read.
    struct Counted<'a> {
        data: &'a [u8],
        reads: usize,
    }

    impl AsyncRead for Counted<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.reads += 1;
            Pin::new(&mut self.data).poll_read(cx, buf)
        }
    }

    #[tokio::test]
    async fn small_reads_take_one_large_one_and_the_buffer_goes_back() {
        let data: Vec<u8> = (0..READ_AHEAD_BYTES + 5000).map(|n| n.to_le_bytes()[0]).collect();
        let mut stream = ReadAhead::new(Counted { data: &data, reads: 0 });
        let mut got = Vec::new();
        while got.len() < data.len() {
            let mut step = [0; 4096];
            let count = stream.read(&mut step).await.expect("memory");
            assert!(count > 0);
            got.extend_from_slice(&step[..count]);
        }
        assert_eq!((got == data, stream.io.reads), (true, 2));
        assert!(stream.ahead.is_none());
        assert_eq!(SPARE_BUFFERS.with_borrow(Vec::len), 1);
        assert_eq!(stream.read(&mut [0; 16]).await.expect("memory"), 0);
        assert!(stream.ahead.is_none());
    }
}
