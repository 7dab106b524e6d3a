//! Bodies on their way: what arrives, what is sent, and the pump between the two.
//!
//! A [`Source`] yields pieces, a [`Sink`] takes them. The pump never holds more than one piece and
//! what the sink has not written yet, so a slow reader slows its sender down. What comes in one
//! go is sent in one go: bytes are written when the source has nothing more for now.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::engine::messages::Messages;
use crate::fields::Fields;
use crate::refused::Refused;

/// A smaller piece is copied: as a part of the buffer that it was read into, it would keep all of
/// that in memory for as long as it waits.
pub(crate) const SHARED_BYTES_MIN: usize = 2 * 1024;

/// A part of a body.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Some bytes, at least one.
    Data(Bytes),
    /// The trailers, which are the last piece.
    Trailers(Fields),
}

/// How much a body may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyBounds {
    /// Its bytes.
    pub(crate) bytes: Option<u64>,
    /// When it must have come.
    pub(crate) by: Option<Instant>,
}

/// Why a message did not arrive, or could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection below failed.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// HTTP/2 failed, or the peer reset the stream.
    #[error("the HTTP/2 stream broke")]
    H2(#[from] h2::Error),
    /// The peer's bytes are no HTTP.
    #[error("what the peer sent is refused")]
    Refused(#[from] Refused),
    /// The connection was closed in the middle of a message.
    #[error("the connection was closed before the end of the message")]
    Closed,
    /// Nothing moved for so long.
    #[error("nothing came for {} s", .0.as_secs())]
    Silent(Duration),
}

/// Where the pieces of a body come from.
pub(crate) trait Source {
    /// The next piece; `None` behind the last. May be dropped at any time and asked again.
    fn piece(&mut self) -> impl Future<Output = Result<Option<Piece>, Broken>>;

    /// Sets how much may come, where that is known only now.
    fn bound(&mut self, _: BodyBounds) {}

    /// From here on everything that comes belongs to another protocol.
    fn become_tunnel(&mut self) {}

    /// Waits until its sender is gone, whether or not the body has ended. Nothing of what comes is
    /// lost. [`Broken::Closed`]: it has closed its direction, and had time to read an answer.
    fn gone(&mut self) -> impl Future<Output = Broken> {
        pending()
    }
}

/// Where the pieces of a body go.
pub(crate) trait Sink {
    /// Takes some bytes, which [`Self::flush`] writes.
    fn put(&mut self, data: Bytes);

    /// Nothing follows but these trailers.
    fn finish(&mut self, trailers: Option<Fields>);

    /// Whether something is to be written.
    fn is_pending(&self) -> bool;

    /// Whether it should be written before more is put in.
    fn is_full(&self) -> bool;

    /// Writes everything. May be dropped at any time and called again.
    fn flush(&mut self) -> impl Future<Output = Result<(), Broken>>;

    /// Waits until nobody reads any more.
    fn gone(&mut self) -> impl Future<Output = ()> {
        pending()
    }
}

/// What a pump has moved.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Bytes of the body.
    pub(crate) bytes: Cell<u64>,
    /// Messages in it, if it is gRPC.
    pub(crate) messages: Option<Cell<Messages>>,
    /// The status of gRPC in the trailers.
    pub(crate) grpc_status: Cell<Option<u32>>,
}

impl Tally {
    /// Nothing has moved yet.
    pub(crate) fn new(is_grpc: bool) -> Self {
        Self { messages: is_grpc.then(Cell::default), ..Self::default() }
    }

    fn count(&self, data: &[u8]) {
        self.bytes.set(self.bytes.get() + data.len() as u64);
        if let Some(messages) = &self.messages {
            let mut passed = messages.get();
            passed.pass(data);
            messages.set(passed);
        }
    }

    /// Messages of gRPC.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.as_ref().map_or(0, |it| it.get().begun())
    }
}

/// Writes what is pending; if nothing is, waits until nobody reads any more.
pub(crate) async fn settle(sink: &mut impl Sink) -> Result<(), Broken> {
    if sink.is_pending() {
        return sink.flush().await;
    }
    sink.gone().await;
    Err(Broken::Closed)
}

/// The status of gRPC, in trailers or in a head that is also the end.
pub(crate) fn grpc_status(fields: &Fields) -> Option<u32> {
    let status = fields.first("grpc-status")?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

/// Which side has stopped a pump.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The body did not arrive.
    Source(Broken),
    /// It could not be sent.
    Sink(Broken),
}

/// Moves a body to its end.
pub(crate) async fn pump(
    source: &mut impl Source,
    sink: &mut impl Sink,
    moved: &Tally,
) -> Result<(), Stopped> {
    loop {
        if sink.is_full() {
            sink.flush().await.map_err(Stopped::Sink)?;
        }
        let piece = tokio::select! {
            biased;
            piece = source.piece() => piece.map_err(Stopped::Source)?,
            settled = settle(sink) => {
                settled.map_err(Stopped::Sink)?;
                continue;
            }
        };
        match piece {
            Some(Piece::Data(data)) => {
                moved.count(&data);
                sink.put(data);
            }
            Some(Piece::Trailers(fields)) => {
                moved.grpc_status.set(grpc_status(&fields));
                sink.finish(Some(fields));
                return sink.flush().await.map_err(Stopped::Sink);
            }
            None => {
                sink.finish(None);
                return sink.flush().await.map_err(Stopped::Sink);
            }
        }
    }
}
