//! What arrives on a connection of HTTP/1.1: heads, and bodies in pieces.
//!
//! The buffer is there only while it holds bytes: an idle connection keeps none, and neither does a
//! body or an upgraded connection of which nothing comes.

use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

use crate::engine::buffered::Buffered;
use crate::engine::halves::ReadHalf;
use crate::engine::piece::{Broken, Piece, SHARED_BYTES_MIN};
use crate::h1::chunks::{self, Decoder};
use crate::h1::framing::{RequestBody, ResponseBody};
use crate::h1::parse::{self, Limits, Parsed, Progress};
use crate::head::{RequestHead, ResponseHead, Scheme};

/// How much is read at once through the stack: heads, and what of a body comes first.
const STACK_READ_BYTES: usize = 4 * 1024;
/// How much of a body is read at once while much comes.
const BODY_READ_BYTES: usize = 16 * 1024;
/// How much is read ahead of what is asked for, to see the end of a connection.
const AHEAD_BYTES_MAX: usize = 16 * 1024;

/// The bytes that have arrived and are not used yet.
pub(crate) struct Inbox {
    io: ReadHalf,
    buffer: BytesMut,
    buffered: Buffered,
    /// More may wait than the stack takes.
    is_bulk: bool,
}

impl Inbox {
    /// With what was read before.
    pub(crate) fn new(io: ReadHalf, buffer: BytesMut) -> Self {
        let mut buffered = Buffered::default();
        buffered.set(buffer.capacity());
        Self { io, buffer, buffered, is_bulk: false }
    }

    /// Reads once, through the stack: nothing is kept while nothing comes. 0 is the end.
    async fn fill_for_head(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_stack(cx)).await
    }

    fn poll_stack(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); STACK_READ_BYTES];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
        self.buffer.extend_from_slice(read.filled());
        self.buffered.set(self.buffer.capacity());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Reads once: through the stack, and what comes behind that right into the buffer.
    async fn fill_for_body(&mut self) -> io::Result<usize> {
        poll_fn(|cx| {
            let read = if self.is_bulk { self.poll_bulk(cx) } else { self.poll_stack(cx) };
            self.is_bulk = match &read {
                Poll::Ready(Ok(read)) => self.is_bulk || *read == STACK_READ_BYTES,
                Poll::Ready(Err(_)) | Poll::Pending => false,
            };
            if read.is_pending() && self.buffer.is_empty() {
                self.let_go();
            }
            read
        })
        .await
    }

    fn poll_bulk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(BODY_READ_BYTES);
        self.buffered.set(self.buffer.capacity());
        pin!(self.io.read_buf(&mut self.buffer)).poll(cx)
    }

    fn let_go(&mut self) {
        self.buffer = BytesMut::new();
        self.buffered.set(0);
    }

    /// Waits for the first byte of the next message; false at the connection's end.
    pub(crate) async fn begins(&mut self) -> Result<bool, Broken> {
        if !self.buffer.is_empty() {
            return Ok(true);
        }
        self.let_go();
        Ok(self.fill_for_head().await? > 0)
    }

    /// Waits for the end of what comes, and keeps the bytes that come before it. With many bytes
    /// that nobody has read yet it never ends: they are proof enough of a client.
    pub(crate) async fn ended(&mut self) -> io::Result<()> {
        while self.buffer.len() < AHEAD_BYTES_MAX {
            if self.fill_for_head().await? == 0 {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// Whether nothing has come on a connection on which nothing may come now.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let came = std::pin::pin!(self.fill_for_head()).poll(&mut cx);
        came.is_pending() && self.buffer.is_empty()
    }

    /// The head of a request.
    pub(crate) async fn request(
        &mut self,
        scheme: Scheme,
        limits: &Limits,
    ) -> Result<RequestHead, Broken> {
        let mut progress = Progress::default();
        loop {
            let read = parse::request(&self.buffer, scheme, limits, &mut progress)?;
            if let Parsed::Complete { head, used } = read {
                self.buffer.advance(used);
                return Ok(head);
            }
            if self.fill_for_head().await? == 0 {
                return Err(Broken::Closed);
            }
        }
    }

    /// The head of a response; `progress` is the caller's memory of it.
    pub(crate) async fn response(
        &mut self,
        limits: &Limits,
        progress: &mut Progress,
    ) -> Result<ResponseHead, Broken> {
        loop {
            let read = parse::response(&self.buffer, limits, progress)?;
            if let Parsed::Complete { head, used } = read {
                self.buffer.advance(used);
                *progress = Progress::default();
                return Ok(head);
            }
            if self.fill_for_head().await? == 0 {
                return Err(Broken::Closed);
            }
        }
    }

    /// Whether any byte of the next message is there.
    pub(crate) fn has_begun(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Where a body is.
#[derive(Debug)]
pub(crate) enum Body {
    /// Behind its end.
    Ended,
    /// So many bytes are left.
    Sized(u64),
    /// In chunks.
    Chunked(Box<Decoder>),
    /// All that comes.
    UntilClose,
}

impl Body {
    pub(crate) fn of_request(body: RequestBody, limits: &Limits) -> Self {
        match body {
            RequestBody::Absent | RequestBody::Sized(0) => Self::Ended,
            RequestBody::Sized(size) => Self::Sized(size),
            RequestBody::Chunked => Self::Chunked(Box::new(Decoder::new(*limits))),
        }
    }

    pub(crate) fn of_response(body: ResponseBody, limits: &Limits) -> Self {
        match body {
            ResponseBody::Absent { .. } | ResponseBody::Sized(0) => Self::Ended,
            ResponseBody::Sized(size) => Self::Sized(size),
            ResponseBody::Chunked => Self::Chunked(Box::new(Decoder::new(*limits))),
            ResponseBody::UntilClose | ResponseBody::Tunnel => Self::UntilClose,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended)
    }

    /// The next piece of this body, read from its connection.
    pub(crate) async fn piece(&mut self, inbox: &mut Inbox) -> Result<Option<Piece>, Broken> {
        loop {
            if let Some(piece) = self.next_in(&mut inbox.buffer)? {
                return Ok(Some(piece));
            }
            if self.has_ended() {
                return Ok(None);
            }
            if inbox.fill_for_body().await? == 0 {
                let is_end = matches!(self, Self::UntilClose);
                *self = Self::Ended;
                return if is_end { Ok(None) } else { Err(Broken::Closed) };
            }
        }
    }

    /// The next piece, if the buffer has it.
    fn next_in(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, Broken> {
        match self {
            Self::Ended => Ok(None),
            _ if buffer.is_empty() => Ok(None),
            Self::UntilClose => {
                let length = buffer.len();
                Ok(Some(Piece::Data(taken(buffer, length, length))))
            }
            Self::Sized(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                *left -= length as u64;
                if *left == 0 {
                    *self = Self::Ended;
                }
                Ok(Some(Piece::Data(taken(buffer, length, length))))
            }
            Self::Chunked(decoder) => {
                let (used, found) = match decoder.decode(buffer)? {
                    (used, chunks::Piece::Data(data)) => (used, Found::Data(data.len())),
                    (used, chunks::Piece::Partial) => (used, Found::Nothing),
                    (used, chunks::Piece::End(fields)) => (used, Found::End(fields)),
                };
                match found {
                    Found::Nothing => {
                        buffer.advance(used);
                        Ok(None)
                    }
                    Found::Data(length) => Ok(Some(Piece::Data(taken(buffer, used, length)))),
                    Found::End(fields) => {
                        buffer.advance(used);
                        *self = Self::Ended;
                        Ok(Some(fields).filter(|it| it.len() > 0).map(Piece::Trailers))
                    }
                }
            }
        }
    }
}

enum Found {
    Nothing,
    Data(usize),
    End(crate::fields::Fields),
}

/// Takes `used` bytes, and answers the last `length` of them.
fn taken(buffer: &mut BytesMut, used: usize, length: usize) -> Bytes {
    if length < SHARED_BYTES_MIN {
        let data = Bytes::copy_from_slice(&buffer[used - length..used]);
        buffer.advance(used);
        return data;
    }
    buffer.split_to(used).freeze().split_off(used - length)
}
