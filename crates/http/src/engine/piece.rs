//! Bodies on their way: what arrives, what is sent, and the pump between the two.
//!
//! A [`Source`] yields pieces, a [`Sink`] takes them. The pump never holds more than one piece and
//! what the sink has not written yet, so a slow reader slows its sender down. What comes in one
//! go is sent in one go: bytes are written when the source has nothing more for now.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;

use crate::fields::Fields;
use crate::refused::Refused;

/// A part of a body.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Some bytes, at least one.
    Data(Bytes),
    /// The trailers, which are the last piece.
    Trailers(Fields),
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

    /// From here on everything that comes belongs to another protocol.
    fn become_tunnel(&mut self) {}
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
}

/// Which side has stopped a pump.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The body did not arrive.
    Source(Broken),
    /// It could not be sent.
    Sink(Broken),
}

/// Moves a body to its end. `moved` counts its bytes.
pub(crate) async fn pump(
    source: &mut impl Source,
    sink: &mut impl Sink,
    moved: &std::cell::Cell<u64>,
) -> Result<(), Stopped> {
    loop {
        if sink.is_full() {
            sink.flush().await.map_err(Stopped::Sink)?;
        }
        let is_pending = sink.is_pending();
        let piece = tokio::select! {
            biased;
            piece = source.piece() => piece.map_err(Stopped::Source)?,
            flushed = sink.flush(), if is_pending => {
                flushed.map_err(Stopped::Sink)?;
                continue;
            }
        };
        match piece {
            Some(Piece::Data(data)) => {
                moved.set(moved.get() + data.len() as u64);
                sink.put(data);
            }
            Some(Piece::Trailers(fields)) => {
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
