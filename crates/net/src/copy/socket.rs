//! A TCP socket as the end of a connection.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use futures::future::FutureExt;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWrite, Interest};
use tokio::net::TcpStream;

use super::{Batch, End, EndError, READ_BYTES, Taken, arena};
use crate::kernel_path::Shortcut;
use crate::memory::{Accounts, Holder};
use crate::socket::{set_linger_reset, tcp_info};

/// What is taken at once for a socket: no more, because it is held while the peer does not read.
const ROOM_BYTES: u32 = 64 * 1024;
/// The same for one that took as much as that at once the last time. A stream needs fewer calls,
/// wake-ups and acknowledgements then. It is a turn of that size, too.
const ROOM_OF_STREAMS_BYTES: u32 = READ_BYTES as u32;

/// A TCP socket as the end of a connection.
#[derive(Debug)]
pub struct SocketEnd {
    stream: TcpStream,
    /// Whether anything was read yet.
    is_fresh: bool,
    /// An error found while looking ahead; returned by the next take.
    failed: Option<io::Error>,
    /// What waits for a peer that does not read, when it came from another socket: what comes out
    /// of a tunnel is on the tunnel's accounts.
    holder: Option<Holder>,
    /// Whether it took all of a full read at once the last time.
    is_streaming: bool,
    /// Whether the end was signalled to the peer.
    is_finished: bool,
    /// How the kernel puts here what the other side's application sends, past the proxy.
    shortcut: Option<Rc<Shortcut>>,
}

impl SocketEnd {
    /// Takes over a connected socket.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            is_fresh: true,
            failed: None,
            holder: None,
            is_streaming: false,
            is_finished: false,
            shortcut: None,
        }
    }

    /// What waits for the socket is on these accounts.
    pub fn on(mut self, accounts: Accounts) -> Self {
        self.holder = Some(Holder::new(accounts));
        self
    }

    /// The kernel may put here what the other side's application sends.
    pub fn past(mut self, shortcut: Rc<Shortcut>) -> Self {
        self.shortcut = Some(shortcut);
        self
    }

    /// Takes note of what a write has taken, and of what it has left over.
    fn note(&mut self, written: &Poll<io::Result<usize>>, batch: &Batch) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.is_streaming = batch.is_empty() && *bytes >= ROOM_BYTES as usize;
            if let Some(shortcut) = &self.shortcut {
                shortcut.relayed(*bytes, &self.stream, batch.is_empty());
            }
        }
        if let Some(holder) = &mut self.holder {
            let left = if batch.is_empty() { 0 } else { batch.bytes() };
            holder.set_charged(left);
        }
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes what the close follows, so that both leave in one segment if they fit: the peer is
    /// woken by the bytes and finds the close as well.
    fn poll_write_last(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        const FLAGS: i32 = libc::MSG_MORE | libc::MSG_NOSIGNAL;
        let write = || SockRef::from(&self.stream).send_vectored_with_flags(slices, FLAGS);
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_io(Interest::WRITABLE, write) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// The reset that what looks like an orderly end was. The kernel reports a reset once, and an
    /// application whose bytes were to go past the proxy may have got it.
    fn has_broken(&self) -> Option<EndError> {
        let is_joined = self.shortcut.as_ref().is_some_and(|shortcut| shortcut.is_open());
        if !is_joined || self.is_finished {
            return None;
        }
        // Before the end was signalled from here, an orderly one leaves the socket half open.
        let is_closed = tcp_info(&self.stream).is_ok_and(|info| info.is_closed);
        is_closed.then(|| EndError::Socket(io::ErrorKind::ConnectionReset.into()))
    }

    /// Whether the peer has closed right after its first bytes, as with a connection for each
    /// request. Bytes and close are then sent together: one record and one wake-up instead of two,
    /// and the client sees both at once, so that the side which closed first is also the one that
    /// remembers the port (TIME_WAIT). Asked once, because it takes a call.
    fn has_ended_at_once(&mut self) -> bool {
        if !std::mem::take(&mut self.is_fresh) {
            return false;
        }
        match SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]) {
            Ok(0) => {
                if let Some(EndError::Socket(reset)) = self.has_broken() {
                    self.failed = Some(reset);
                }
                self.failed.is_none()
            }
            Ok(_) => false,
            Err(error) => {
                // The kernel reports a reset once: a read after this one would see an orderly end.
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.failed = Some(error);
                }
                false
            }
        }
    }
}

impl End for SocketEnd {
    const SHARES_ITS_TRANSPORT: bool = false;

    fn poll_takeable(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        if self.failed.is_some() {
            return Poll::Ready(Ok(()));
        }
        self.stream.poll_read_ready(cx).map_err(EndError::Socket)
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        into: &mut Batch,
    ) -> Poll<Result<Taken, EndError>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(EndError::Socket(error)));
        }
        arena::with_room(|chunk| {
            // A read that does not fill the buffer also tells the runtime that the socket is
            // empty, which saves the read that would only return EAGAIN.
            let read = {
                let mut room = (&mut *chunk).limit(limit.min(READ_BYTES));
                pin!(self.stream.read_buf(&mut room)).poll(cx)
            };
            let bytes = ready!(read).map_err(EndError::Socket)?;
            if bytes == 0 {
                return Poll::Ready(self.has_broken().map_or(Ok(Taken::Last), Err));
            }
            into.push(chunk.split().freeze());
            let is_last = self.has_ended_at_once();
            Poll::Ready(Ok(if is_last { Taken::Last } else { Taken::Some }))
        })
    }

    fn delivered(&mut self, _bytes: usize) {}

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, EndError>> {
        // The kernel's buffer is the room; a write says whether there is any.
        let Some(holder) = &self.holder else { return Poll::Ready(Ok(ROOM_BYTES as usize)) };
        // While it is known to be full, the bytes stay in the kernel on the other side too.
        ready!(self.stream.poll_write_ready(cx)).map_err(EndError::Socket)?;
        let room = if self.is_streaming { ROOM_OF_STREAMS_BYTES } else { ROOM_BYTES };
        Poll::Ready(Ok(holder.accounts().window(room) as usize))
    }

    fn is_short(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.accounts().are_short())
    }

    fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        is_last: bool,
    ) -> Poll<Result<usize, EndError>> {
        if is_last {
            let written = batch.write(|slices| {
                let result = self.poll_write_last(cx, slices);
                (if let Poll::Ready(Ok(bytes)) = &result { *bytes } else { 0 }, result)
            });
            self.note(&written, batch);
            return written.map_err(EndError::Socket);
        }
        let stream = Pin::new(&mut self.stream);
        let written = batch.write(|slices| {
            let result = match slices {
                [one] => stream.poll_write(cx, one),
                several => stream.poll_write_vectored(cx, several),
            };
            let bytes = if let Poll::Ready(Ok(bytes)) = &result { *bytes } else { 0 };
            (bytes, result)
        });
        self.note(&written, batch);
        written.map_err(EndError::Socket)
    }

    fn has_ended(&self) -> bool {
        let known = self.stream.ready(Interest::READABLE).now_or_never();
        known.is_some_and(|known| known.is_ok_and(|ready| ready.is_read_closed()))
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<EndError> {
        // A call only when the runtime has seen an error. A FIN is none, a reset is.
        match self.stream.try_io(Interest::ERROR, || self.stream.take_error()) {
            Ok(Some(error)) => Poll::Ready(EndError::Socket(error)),
            Ok(None) => self.has_broken().map_or(Poll::Pending, Poll::Ready),
            Err(_) => Poll::Pending,
        }
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EndError>> {
        self.is_finished = true;
        Pin::new(&mut self.stream).poll_shutdown(cx).map_err(EndError::Socket)
    }

    fn reset(&mut self) {
        if let Some(shortcut) = &self.shortcut {
            shortcut.close();
        }
        if let Err(error) = set_linger_reset(&self.stream) {
            tracing::debug!(%error, "socket could not be set to reset; it closes in order");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// What a peer does after its first bytes.
    enum Then {
        Waits,
        Closes,
        Breaks,
    }

    /// Takes twice from a socket whose peer has sent `said`.
    async fn take(said: &[u8], then: Then) -> [(Result<Taken, io::ErrorKind>, Option<Bytes>); 2] {
        let listener = TcpListener::bind("[::1]:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut peer = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        peer.write_all(said).await.expect("written");
        if !said.is_empty() {
            stream.readable().await.expect("readable");
        }
        let _peer = match &then {
            Then::Waits => Some(peer),
            Then::Closes => {
                peer.shutdown().await.expect("closed");
                Some(peer)
            }
            Then::Breaks => {
                set_linger_reset(&peer).expect("set to reset");
                drop(peer);
                None
            }
        };
        if !matches!(then, Then::Waits) {
            while !stream.ready(Interest::READABLE).await.expect("ready").is_read_closed() {
                tokio::task::yield_now().await;
            }
        }
        let mut end = SocketEnd::new(stream);
        let mut once = async || {
            let mut batch = Batch::default();
            let taken = poll_fn(|cx| {
                if end.poll_takeable(cx).is_pending() {
                    return Poll::Ready(Err(EndError::Socket(io::ErrorKind::WouldBlock.into())));
                }
                end.poll_take(cx, usize::MAX, &mut batch)
            });
            let taken = taken.await.map_err(|error| match error {
                EndError::Socket(error) => error.kind(),
                other => panic!("{other}"),
            });
            (taken, batch.pop())
        };
        [once().await, once().await]
    }

    #[tokio::test]
    async fn a_first_word_that_is_the_last_says_so() {
        let [(first, answer), _] = take(b"answer", Then::Closes).await;
        assert_eq!((first, answer), (Ok(Taken::Last), Some("answer".into())));
        let [(first, answer), (second, _)] = take(b"answer", Then::Waits).await;
        assert_eq!((first, answer), (Ok(Taken::Some), Some("answer".into())));
        assert_eq!(second, Err(io::ErrorKind::WouldBlock));
        let [(first, nothing), _] = take(b"", Then::Closes).await;
        assert_eq!((first, nothing), (Ok(Taken::Last), None));
    }

    #[tokio::test]
    async fn a_reset_after_the_first_word_stays_a_reset() {
        let [(first, answer), (second, _)] = take(b"answer", Then::Breaks).await;
        assert_eq!((first, answer), (Ok(Taken::Some), Some("answer".into())));
        assert_eq!(second, Err(io::ErrorKind::ConnectionReset));
    }
}
