//! Sends small frames of HTTP/2 of the same moment at once.
//!
//! The HTTP/2 library writes and flushes every DATA frame of more than a few hundred bytes
//! separately. With many streams in one connection, each costs a TLS record, a system call, a
//! segment and maybe a wake-up of the peer. A [`Cork`] sits between the library and the transport
//! and holds small writes back; the task that drives the connection calls [`Driver::push`] when the
//! library has nothing more to write for now. Nothing is held longer, so no byte waits for another.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is held at most: what one TLS record carries (RFC 8446 section 5.1).
const HELD_BYTES: usize = 16 * 1024;
/// Empty buffers a thread keeps for its connections.
const MAX_SPARE_BUFFERS: usize = 8;

thread_local! {
    static SPARE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The library's side.
pub struct Cork<IO>(Rc<RefCell<Corked<IO>>>);

/// The side of the task that drives the connection.
pub struct Driver<IO>(Rc<RefCell<Corked<IO>>>);

struct Corked<IO> {
    io: IO,
    /// Before there is a driver everything passes.
    is_driven: bool,
    /// Lent while it holds bytes.
    held: Vec<u8>,
    /// Something was written and not flushed.
    is_dirty: bool,
    /// Why a push failed; the library gets the error on its next call.
    failed: Option<io::Error>,
}

/// Puts a cork on a stream.
pub fn cork<IO>(io: IO) -> (Cork<IO>, Driver<IO>) {
    let corked = Corked { io, is_driven: false, held: Vec::new(), is_dirty: false, failed: None };
    let corked = Rc::new(RefCell::new(corked));
    (Cork(corked.clone()), Driver(corked))
}

impl<IO: AsyncWrite + Unpin> Driver<IO> {
    /// From now on small writes are held until [`Self::push`].
    pub fn start(&self) {
        self.0.borrow_mut().is_driven = true;
    }

    /// Writes the held bytes, or as many as the transport takes now; the task is woken when it
    /// takes more. Must be called each time after the library was polled.
    pub fn push(&self, cx: &mut Context<'_>) {
        let mut corked = self.0.borrow_mut();
        if let Poll::Ready(Err(error)) = corked.poll_push(cx) {
            corked.failed = Some(error);
            cx.waker().wake_by_ref();
        }
    }
}

impl<IO: AsyncWrite + Unpin> Corked<IO> {
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_held(cx))?;
        if self.is_dirty {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.is_dirty = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_dirty = true;
            self.held.drain(..written);
            if self.held.is_empty() {
                give_back(std::mem::take(&mut self.held));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        if self.is_driven && self.held.len() + bytes > HELD_BYTES {
            ready!(self.poll_write_held(cx))?;
        }
        if !self.is_driven || bytes > HELD_BYTES {
            self.is_dirty = true;
            return Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        }
        if self.held.capacity() == 0 {
            self.held = lend();
        }
        bufs.iter().for_each(|buf| self.held.extend_from_slice(buf));
        Poll::Ready(Ok(bytes))
    }

    fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

fn lend() -> Vec<u8> {
    let spare = SPARE_BUFFERS.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| Vec::with_capacity(HELD_BYTES))
}

fn give_back(buffer: Vec<u8>) {
    SPARE_BUFFERS.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffer);
        }
    });
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Cork<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut corked = self.0.borrow_mut();
        corked.check()?;
        Pin::new(&mut corked.io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Cork<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut corked = self.0.borrow_mut();
        corked.check()?;
        // The driver flushes when the library has said everything.
        if corked.is_driven { Poll::Ready(Ok(())) } else { corked.poll_push(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut corked = self.0.borrow_mut();
        ready!(corked.poll_push(cx))?;
        Pin::new(&mut corked.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Counts writes, and takes at most so many bytes with each.
    struct Counted {
        io: DuplexStream,
        writes: Rc<RefCell<Vec<usize>>>,
        step: usize,
    }

    impl AsyncRead for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            let step = self.step.min(buf.len());
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &buf[..step]))?;
            self.writes.borrow_mut().push(written);
            Poll::Ready(Ok(written))
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_shutdown(cx)
        }
    }

    struct Setup {
        cork: Cork<Counted>,
        driver: Driver<Counted>,
        writes: Rc<RefCell<Vec<usize>>>,
        far: DuplexStream,
    }

    fn setup(room: usize, step: usize) -> Setup {
        let (near, far) = duplex(room);
        let writes = Rc::new(RefCell::new(Vec::new()));
        let (cork, driver) = cork(Counted { io: near, writes: writes.clone(), step });
        Setup { cork, driver, writes, far }
    }

    async fn push(driver: &Driver<Counted>) {
        poll_fn(|cx| {
            driver.push(cx);
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn small_writes_wait_for_the_push_and_go_as_one() {
        let Setup { mut cork, driver, writes, mut far } = setup(1 << 20, usize::MAX);
        cork.write_all(b"preface").await.expect("written");
        assert_eq!(*writes.borrow(), [7], "nothing is held before there is a driver");
        driver.start();
        for _ in 0..3 {
            cork.write_all(&[1; 1000]).await.expect("held");
            cork.flush().await.expect("left to the driver");
        }
        assert_eq!(*writes.borrow(), [7]);
        push(&driver).await;
        assert_eq!(*writes.borrow(), [7, 3000]);
        let mut got = [0; 3007];
        far.read_exact(&mut got).await.expect("all of it");
        push(&driver).await;
        assert_eq!(writes.borrow().len(), 2, "there was nothing left");
    }

    #[tokio::test]
    async fn a_large_write_goes_at_once_and_behind_what_is_held() {
        let Setup { mut cork, driver, writes, mut far } = setup(1 << 20, usize::MAX);
        driver.start();
        cork.write_all(&[1; 10]).await.expect("held");
        cork.write_all(&[2; HELD_BYTES + 1]).await.expect("written");
        cork.write_all(&[3; HELD_BYTES]).await.expect("held");
        cork.write_all(&[4; 1]).await.expect("held");
        assert_eq!(*writes.borrow(), [10, HELD_BYTES + 1, HELD_BYTES]);
        cork.shutdown().await.expect("closed");
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.expect("all of it");
        let expected = [vec![1; 10], vec![2; HELD_BYTES + 1], vec![3; HELD_BYTES], vec![4]];
        assert!(got == expected.concat());
    }

    #[tokio::test]
    async fn a_transport_that_is_full_gets_the_rest_later() {
        let Setup { mut cork, driver, mut far, .. } = setup(100, 64);
        driver.start();
        let sent: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        cork.write_all(&sent).await.expect("held");
        let mut got = vec![0; sent.len()];
        let driven = poll_fn(|cx| {
            driver.push(cx);
            Poll::<()>::Pending
        });
        tokio::select! {
            read = far.read_exact(&mut got) => { read.expect("all of it"); }
            () = driven => {}
        }
        assert!(got == sent);
    }

    #[tokio::test]
    async fn a_failed_push_is_told_to_the_library() {
        let Setup { mut cork, driver, far, .. } = setup(100, 64);
        driver.start();
        cork.write_all(b"lost").await.expect("held");
        drop(far);
        push(&driver).await;
        let told = cork.read(&mut [0; 8]).await.expect_err("the transport is broken");
        assert_eq!(told.kind(), io::ErrorKind::BrokenPipe);
    }
}
