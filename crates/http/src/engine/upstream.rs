//! A request to one endpoint, over HTTP/1.1 or HTTP/2: what is sent, and what is answered.

pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod heard;
pub(crate) mod pool;

use bytes::Bytes;

use crate::engine::piece::{Broken, Piece, Sink, Source};
use crate::engine::upstream::heard::Heard;
use crate::fields::Fields;

/// The side of an exchange with an endpoint that sends.
pub(crate) enum Sending<'a> {
    Http1(&'a mut crate::engine::outbox::Outbox),
    Http2(&'a mut h2::Sending),
}

/// The side that reads.
pub(crate) enum Reading<'a> {
    Http1(h1::Reading<'a>),
    Http2(&'a mut h2::Reading),
}

impl Sink for Sending<'_> {
    fn put(&mut self, data: Bytes) {
        match self {
            Self::Http1(outbox) => outbox.put(&data),
            Self::Http2(stream) => stream.put(data),
        }
    }

    fn finish(&mut self, trailers: Option<Fields>) {
        match self {
            Self::Http1(outbox) => outbox.finish(trailers.as_ref()),
            Self::Http2(stream) => stream.finish(trailers),
        }
    }

    fn is_pending(&self) -> bool {
        match self {
            Self::Http1(outbox) => outbox.is_pending(),
            Self::Http2(stream) => stream.is_pending(),
        }
    }

    fn is_full(&self) -> bool {
        match self {
            Self::Http1(outbox) => outbox.is_full(),
            Self::Http2(stream) => stream.is_full(),
        }
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        match self {
            Self::Http1(outbox) => outbox.flush().await,
            Self::Http2(stream) => stream.flush().await,
        }
    }
}

impl Source for Reading<'_> {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        match self {
            Self::Http1(reading) => reading.piece().await,
            Self::Http2(stream) => stream.piece().await,
        }
    }
}

impl Reading<'_> {
    /// The next head. May be dropped at any time and asked again.
    pub(crate) async fn head(&mut self) -> Result<Heard, Broken> {
        match self {
            Self::Http1(reading) => reading.head().await,
            Self::Http2(stream) => stream.head().await,
        }
    }
}
