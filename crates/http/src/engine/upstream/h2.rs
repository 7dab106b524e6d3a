//! One stream of HTTP/2 to an endpoint.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};

use crate::engine::buffered::Buffered;
use crate::engine::heads;
use crate::engine::piece::{Broken, Piece};
use crate::engine::upstream::heard::Heard;
use crate::fields::{FieldLimits, Fields};
use crate::h1::framing::{ResponseBody, ResponseFraming};
use crate::head::RequestHead;
use crate::refused::Refused;

/// What a stream may hand to its connection before it is written: one frame of the usual size. A
/// peer that reads slowly costs this for each of its streams, beside what waits here for it.
pub(crate) const SEND_BUFFER_BYTES: usize = 16 * 1024;
/// From here on the body waits.
const FULL_BYTES: usize = 64 * 1024;

/// What is sent on a stream.
pub(crate) struct Sending {
    stream: SendStream<Bytes>,
    waiting: VecDeque<Bytes>,
    /// What waits.
    buffered: Buffered,
    end: Option<Option<Fields>>,
    has_ended: bool,
}

impl Sending {
    pub(crate) fn new(stream: SendStream<Bytes>) -> Self {
        let (waiting, buffered) = (VecDeque::new(), Buffered::default());
        Self { stream, waiting, buffered, end: None, has_ended: false }
    }

    /// One whose head was also its end.
    pub(crate) fn ended(stream: SendStream<Bytes>) -> Self {
        let mut ended = Self::new(stream);
        ended.has_ended = true;
        ended
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Waits until the peer resets the stream.
    pub(crate) async fn reset_by_peer(&mut self) -> Result<h2::Reason, h2::Error> {
        poll_fn(|cx| self.stream.poll_reset(cx)).await
    }

    pub(crate) fn put(&mut self, data: Bytes) {
        if self.has_ended {
            return;
        }
        self.buffered.set(self.buffered.bytes() + data.len());
        self.waiting.push_back(data);
    }

    pub(crate) fn finish(&mut self, trailers: Option<Fields>) {
        if !self.has_ended {
            self.end = Some(trailers);
            self.has_ended = true;
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.waiting.is_empty() || self.end.is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.buffered.bytes() >= FULL_BYTES
    }

    pub(crate) fn reset(&mut self, reason: h2::Reason) {
        self.stream.send_reset(reason);
    }

    /// Hands everything to the connection, as the peer's windows allow.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        while let Some(next) = self.waiting.front_mut() {
            self.stream.reserve_capacity(next.len());
            let room = poll_fn(|cx| match self.stream.capacity() {
                0 => self.stream.poll_capacity(cx),
                room => Poll::Ready(Some(Ok(room))),
            });
            let room = room.await.ok_or(Broken::Closed)??;
            let data = next.split_to(room.min(next.len()));
            if next.is_empty() {
                self.waiting.pop_front();
            }
            self.buffered.set(self.buffered.bytes() - data.len());
            let is_last = self.waiting.is_empty() && matches!(self.end, Some(None));
            self.stream.send_data(data, is_last)?;
            if is_last {
                self.end = None;
            }
        }
        match self.end.take() {
            None => {}
            Some(None) => self.stream.send_data(Bytes::new(), true)?,
            Some(Some(fields)) => self.stream.send_trailers(heads::to_map(&fields))?,
        }
        Ok(())
    }
}

/// What arrives on a stream.
pub(crate) struct Reading {
    response: ResponseFuture,
    body: Option<Incoming>,
    limits: FieldLimits,
}

/// A body of HTTP/2.
pub(crate) struct Incoming {
    stream: RecvStream,
    limits: FieldLimits,
    has_data: bool,
}

impl Incoming {
    pub(crate) fn new(stream: RecvStream, limits: FieldLimits) -> Self {
        Self { stream, limits, has_data: true }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Bytes that have come and were not read.
    pub(crate) fn unread_bytes(&mut self) -> usize {
        self.stream.flow_control().used_capacity()
    }

    pub(crate) async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    pub(crate) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Piece>, Broken>> {
        while self.has_data {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    // Taken here, the pump writes it before it takes more.
                    self.stream.flow_control().release_capacity(data.len())?;
                    return Poll::Ready(Ok(Some(Piece::Data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => self.has_data = false,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
        let fields = trailers.map(|map| heads::trailers(&map, self.limits)).transpose()?;
        Poll::Ready(Ok(fields.filter(|it| it.len() > 0).map(Piece::Trailers)))
    }
}

/// Opens a stream with a request's head.
pub(crate) fn open(
    sender: &mut SendRequest<Bytes>,
    head: &RequestHead,
    scheme: &str,
    has_body: bool,
    limits: FieldLimits,
) -> Result<(Sending, Reading), Broken> {
    let request = heads::to_request(head, scheme)?;
    let (response, stream) = sender.send_request(request, !has_body)?;
    let sending = if has_body { Sending::new(stream) } else { Sending::ended(stream) };
    Ok((sending, Reading { response, body: None, limits }))
}

impl Reading {
    pub(crate) async fn head(&mut self) -> Result<Heard, Broken> {
        let informed = poll_fn(|cx| {
            if let Poll::Ready(Some(informed)) = self.response.poll_informational(cx) {
                return Poll::Ready(Ok(informed.map(Some)));
            }
            match std::pin::Pin::new(&mut self.response).poll(cx) {
                Poll::Ready(Ok(response)) => Poll::Ready(Err(Ok(response))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(Err(error))),
                Poll::Pending => Poll::Pending,
            }
        });
        match informed.await {
            Ok(informed) => {
                let (parts, ()) = informed?.expect("asked for one").into_parts();
                // HTTP/2 has no upgrades (RFC 9113, 8.6).
                if parts.status == http::StatusCode::SWITCHING_PROTOCOLS {
                    return Err(Refused::Upgrade.into());
                }
                Ok(Heard::Informational(heads::response(&parts, self.limits)?))
            }
            Err(response) => {
                let (parts, stream) = response?.into_parts();
                let head = heads::response(&parts, self.limits)?;
                let length = head.fields.first("content-length").and_then(number);
                let body = match length {
                    // Whatever comes behind these is no body (RFC 9110, 6.4.1).
                    _ if head.status.code() == 204 => ResponseBody::Absent { length: None },
                    _ if head.status.code() == 304 => ResponseBody::Absent { length },
                    _ if stream.is_end_stream() => ResponseBody::Absent { length },
                    Some(length) => ResponseBody::Sized(length),
                    None => ResponseBody::Chunked,
                };
                self.body = Some(Incoming::new(stream, self.limits));
                let framing = ResponseFraming { body, is_persistent: true, upgrade: None };
                Ok(Heard::Final(head, framing))
            }
        }
    }

    pub(crate) async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        match &mut self.body {
            Some(body) => body.piece().await,
            None => Ok(None),
        }
    }
}

/// A number that the library has checked against the body.
fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
