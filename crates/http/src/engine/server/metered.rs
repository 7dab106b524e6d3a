//! A connection of HTTP/2 whose frames are counted ([`Meter`]), and the end of it when its client
//! does too much.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::meter::{Excess, Meter};
use crate::engine::prefixed::Prefixed;
use crate::engine::unread::OfConnection;

/// The connection, as HTTP/2 reads and writes it.
pub(super) struct Metered {
    stream: Prefixed,
    watch: Watch,
    unread: OfConnection,
}

/// What is counted of it.
#[derive(Clone)]
pub(super) struct Watch(Rc<Watched>);

struct Watched {
    meter: RefCell<Meter>,
    /// An excess, or something that is half there.
    changed: Notify,
}

impl Metered {
    pub(super) fn new(stream: Prefixed, unread: OfConnection) -> (Self, Watch) {
        let meter = RefCell::new(Meter::new(Instant::now()));
        let watch = Watch(Rc::new(Watched { meter, changed: Notify::new() }));
        (Self { stream, watch: watch.clone(), unread }, watch)
    }
}

impl Watch {
    /// Waits until the client does more than it may, or does not end what it has begun in time.
    pub(super) async fn excess(&self, limit: Duration) -> Excess {
        loop {
            let (excess, whole_by) = {
                let meter = self.0.meter.borrow();
                (meter.excess(), meter.whole_by(limit))
            };
            if let Some(excess) = excess {
                return excess;
            }
            let Some(by) = whole_by else {
                self.0.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = sleep_until(by) => {
                    // What is half there now may be something else.
                    if self.0.meter.borrow().whole_by(limit) == Some(by) {
                        return Excess::SlowHead;
                    }
                }
            }
        }
    }

    fn received(&self, bytes: &[u8]) {
        let mut meter = self.0.meter.borrow_mut();
        let was_half = meter.whole_by(Duration::ZERO).is_some();
        meter.received(bytes, Instant::now());
        let is_half = meter.whole_by(Duration::ZERO).is_some();
        if meter.excess().is_some() || is_half && !was_half {
            self.0.changed.notify_one();
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Whoever does too much is read no more; the connection is about to end.
        if self.watch.0.meter.borrow().excess().is_some() {
            return Poll::Pending;
        }
        // What others send waits below while the buffers are full and too much of it is not read.
        ready!(self.unread.poll_room(cx));
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.unread.received(buf.filled().len() - before);
        self.watch.received(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.watch.0.meter.borrow_mut().sent(&buf[..wrote]);
        Poll::Ready(Ok(wrote))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut left = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        let wrote = left;
        let mut meter = self.watch.0.meter.borrow_mut();
        for buf in bufs {
            let part = left.min(buf.len());
            meter.sent(&buf[..part]);
            left -= part;
        }
        drop(meter);
        Poll::Ready(Ok(wrote))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
