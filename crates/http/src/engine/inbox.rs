//! What arrives on a connection of HTTP/1.1: heads, and bodies in pieces.
//!
//! The buffer is there only while it holds bytes: an idle connection keeps none.

use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::engine::halves::ReadHalf;
use crate::engine::piece::{Broken, Piece};
use crate::h1::chunks::{self, Decoder};
use crate::h1::framing::{RequestBody, ResponseBody};
use crate::h1::parse::{self, Limits, Parsed, Progress};
use crate::head::{RequestHead, ResponseHead, Scheme};

/// How much of a head is read at once, through the stack.
const HEAD_READ_BYTES: usize = 4 * 1024;
/// How much of a body is read at once.
const BODY_READ_BYTES: usize = 16 * 1024;
/// How much is read ahead of what is asked for, to see the end of a connection.
const AHEAD_BYTES_MAX: usize = 16 * 1024;

/// The bytes that have arrived and are not used yet.
pub(crate) struct Inbox {
    io: ReadHalf,
    buffer: BytesMut,
}

impl Inbox {
    /// With what was read before.
    pub(crate) fn new(io: ReadHalf, buffer: BytesMut) -> Self {
        Self { io, buffer }
    }

    /// Reads once, through the stack: nothing is kept while nothing comes. 0 is the end.
    async fn fill_for_head(&mut self) -> io::Result<usize> {
        let Self { io, buffer } = self;
        poll_fn(|cx| {
            let mut bytes = [MaybeUninit::uninit(); HEAD_READ_BYTES];
            let mut read = ReadBuf::uninit(&mut bytes);
            ready!(Pin::new(&mut *io).poll_read(cx, &mut read))?;
            buffer.extend_from_slice(read.filled());
            Poll::Ready(Ok(read.filled().len()))
        })
        .await
    }

    async fn fill_for_body(&mut self) -> io::Result<usize> {
        self.buffer.reserve(BODY_READ_BYTES);
        tokio::io::AsyncReadExt::read_buf(&mut self.io, &mut self.buffer).await
    }

    /// Waits for the first byte of the next message; false at the connection's end.
    pub(crate) async fn begins(&mut self) -> Result<bool, Broken> {
        if !self.buffer.is_empty() {
            return Ok(true);
        }
        self.buffer = BytesMut::new();
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
                drop(self.buffer.split_to(used));
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
                drop(self.buffer.split_to(used));
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
            Self::UntilClose => Ok(Some(Piece::Data(buffer.split().freeze()))),
            Self::Sized(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                *left -= length as u64;
                if *left == 0 {
                    *self = Self::Ended;
                }
                Ok(Some(Piece::Data(buffer.split_to(length).freeze())))
            }
            Self::Chunked(decoder) => {
                let (used, found) = match decoder.decode(buffer)? {
                    (used, chunks::Piece::Data(data)) => (used, Found::Data(data.len())),
                    (used, chunks::Piece::Partial) => (used, Found::Nothing),
                    (used, chunks::Piece::End(fields)) => (used, Found::End(fields)),
                };
                let mut taken = buffer.split_to(used).freeze();
                match found {
                    Found::Nothing => Ok(None),
                    Found::Data(length) => Ok(Some(Piece::Data(tail(&mut taken, length)))),
                    Found::End(fields) => {
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

/// The last `length` bytes.
fn tail(taken: &mut Bytes, length: usize) -> Bytes {
    taken.split_off(taken.len() - length)
}
