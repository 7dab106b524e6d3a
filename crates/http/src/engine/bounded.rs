//! A request's body that may have so many bytes, and take so long.

use tokio::time::timeout_at;

use crate::engine::piece::{BodyBounds, Broken, Piece, Source};
use crate::refused::Refused;

/// A body within bounds.
pub(crate) struct Bounded<B> {
    inner: B,
    bounds: BodyBounds,
    bytes: u64,
}

impl<B: Source> Bounded<B> {
    /// Without a bound, until one is set.
    pub(crate) fn new(inner: B) -> Self {
        Self { inner, bounds: BodyBounds::default(), bytes: 0 }
    }
}

impl<B: Source> Source for Bounded<B> {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        let coming = self.inner.piece();
        let piece = match self.bounds.by {
            None => coming.await?,
            Some(by) => timeout_at(by, coming).await.map_err(|_| Refused::BodyTooSlow)??,
        };
        if let Some(Piece::Data(data)) = &piece {
            self.bytes += data.len() as u64;
            if self.bounds.bytes.is_some_and(|most| self.bytes > most) {
                return Err(Refused::BodyTooLarge.into());
            }
        }
        Ok(piece)
    }

    fn bound(&mut self, bounds: BodyBounds) {
        self.bounds = bounds;
    }

    fn become_tunnel(&mut self) {
        // What follows is no body.
        self.bounds = BodyBounds::default();
        self.inner.become_tunnel();
    }

    async fn gone(&mut self) -> Broken {
        self.inner.gone().await
    }
}
