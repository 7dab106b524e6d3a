//! The socket below TLS, read in large pieces.
//!
//! A TLS library asks for a few kilobytes at a time, which costs a system call each. The transport
//! reads what the socket has, up to one large buffer, which is lent by the thread and given back as
//! soon as it is empty. It also notes that bytes arrive, for the keepalive.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What one read takes at most: four full TLS records and a little.
const INTAKE_BYTES: usize = 66 * 1024;
/// Empty buffers a thread keeps for the next read.
const MAX_KEPT: usize = 16;

thread_local! {
    static KEPT: RefCell<Vec<Intake>> = const { RefCell::new(Vec::new()) };
}

/// Bytes seen from the peer, shared between a transport and its keepalive. Belongs to one thread.
#[derive(Clone, Debug, Default)]
pub struct Activity(Rc<Cell<u64>>);

impl Activity {
    /// How many bytes have arrived, modulo 2^64.
    pub(super) fn bytes(&self) -> u64 {
        self.0.get()
    }
}

/// Bytes read from the socket and not yet asked for.
#[derive(Debug)]
struct Intake {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Intake {
    fn lend() -> Self {
        KEPT.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self {
            bytes: vec![0; INTAKE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        })
    }

    fn give_back(mut self) {
        (self.start, self.end) = (0, 0);
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < MAX_KEPT {
                kept.push(self);
            }
        });
    }
}

/// A byte stream that is read in large pieces.
#[derive(Debug)]
pub struct Transport<IO> {
    io: IO,
    intake: Option<Intake>,
    activity: Activity,
}

impl<IO> Transport<IO> {
    /// Takes over a connected stream.
    pub fn new(io: IO) -> Self {
        Self { io, intake: None, activity: Activity::default() }
    }

    /// The stream below.
    pub fn io(&self) -> &IO {
        &self.io
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
        let mut intake = match self.intake.take() {
            Some(intake) => intake,
            None => {
                let mut intake = Intake::lend();
                let mut room = ReadBuf::new(&mut intake.bytes);
                let read = Pin::new(&mut self.io).poll_read(cx, &mut room);
                intake.end = room.filled().len();
                if !matches!(read, Poll::Ready(Ok(()))) {
                    intake.give_back();
                    return read;
                }
                let count = &self.activity.0;
                count.set(count.get().wrapping_add(intake.end as u64));
                intake
            }
        };
        let bytes = buf.remaining().min(intake.end - intake.start);
        buf.put_slice(&intake.bytes[intake.start..intake.start + bytes]);
        intake.start += bytes;
        if intake.start == intake.end {
            intake.give_back();
        } else {
            self.intake = Some(intake);
        }
        Poll::Ready(Ok(()))
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
