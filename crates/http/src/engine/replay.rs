//! A request's body that may be needed again: for another attempt, and for mirrors.
//!
//! What was read is kept within a bound. Beyond it nothing is kept and no other attempt is made;
//! a mirror that does not keep up gets a broken request, and nobody waits for it.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::engine::buffered::Buffered;
use crate::engine::piece::{BodyBounds, Broken, Piece, SHARED_BYTES_MIN, Source};

/// What a mirror may be behind.
const MIRROR_PIECES: usize = 16;

/// What a piece costs besides its bytes: a body of many small ones is no way to fill the memory.
const PIECE_BYTES: usize = 64;

/// What a mirror is sent: a piece, or the end.
pub(crate) type Copied = Option<Piece>;

/// A body that can be read again.
pub(crate) struct Replay<B> {
    inner: B,
    kept: Vec<Piece>,
    kept_bytes: usize,
    buffered: Buffered,
    /// The next one to yield again.
    at: usize,
    /// How much is kept at most; nothing is kept from the moment that it is 0.
    limit: usize,
    is_whole: Rc<Cell<bool>>,
    has_ended: bool,
    /// Bytes that are read ahead and not among the pieces yet.
    ahead: BytesMut,
    mirrors: Vec<mpsc::Sender<Copied>>,
}

impl<B: Source> Replay<B> {
    /// `has_body`: otherwise it is at its end, and can be read again at no cost.
    pub(crate) fn new(inner: B, limit: usize, has_body: bool) -> Self {
        Self {
            inner,
            kept: Vec::new(),
            kept_bytes: 0,
            buffered: Buffered::default(),
            at: 0,
            limit,
            is_whole: Rc::new(Cell::new(true)),
            has_ended: !has_body,
            ahead: BytesMut::new(),
            mirrors: Vec::new(),
        }
    }

    /// Whether it can be read from its beginning again.
    pub(crate) fn can_rewind(&self) -> bool {
        self.is_whole.get()
    }

    /// The same, for whoever asks while the body is read.
    pub(crate) fn whole(&self) -> Rc<Cell<bool>> {
        self.is_whole.clone()
    }

    /// Begins again.
    pub(crate) fn rewind(&mut self) {
        self.at = 0;
    }

    /// Nothing that comes from here on is kept.
    pub(crate) fn keep_nothing(&mut self) {
        self.limit = 0;
        if self.at == self.kept.len() {
            self.is_whole.set(self.kept.is_empty() && self.has_ended);
            self.forget();
        }
    }

    /// Reads more than `most` bytes, or all, before anything is read from here, and keeps them.
    /// Returns whether that is the whole body. May be dropped at any time and called again.
    pub(crate) async fn read_ahead(&mut self, most: usize) -> Result<bool, Broken> {
        let mut trailers = None;
        while !self.has_ended && self.kept_bytes + self.ahead.len() <= most {
            match self.inner.piece().await? {
                // Small pieces are joined: each would cost more than its bytes.
                Some(Piece::Data(data)) => self.ahead.extend_from_slice(&data),
                piece => {
                    self.has_ended = true;
                    trailers = piece;
                }
            }
        }
        if !self.ahead.is_empty() {
            self.kept_bytes += self.ahead.len();
            self.kept.push(Piece::Data(self.ahead.split().freeze()));
        }
        self.kept.extend(trailers);
        Ok(self.has_ended && self.kept_bytes <= most)
    }

    /// The first bytes of what was read ahead.
    pub(crate) fn ahead(&self, most: usize) -> Bytes {
        let mut all = BytesMut::new();
        for piece in &self.kept {
            if let Piece::Data(data) = piece {
                all.extend_from_slice(&data[..data.len().min(most - all.len())]);
            }
        }
        all.freeze()
    }

    fn forget(&mut self) {
        self.kept = Vec::new();
        self.at = 0;
        self.buffered.set(0);
    }

    /// One more reader of the same bytes, from the beginning.
    pub(crate) fn copy(&mut self) -> mpsc::Receiver<Copied> {
        let (sender, receiver) = mpsc::channel(MIRROR_PIECES + self.kept.len());
        for piece in &self.kept {
            sender.try_send(Some(piece.clone())).expect("there is room for what was read ahead");
        }
        self.mirrors.push(sender);
        receiver
    }

    fn keep(&mut self, piece: &Piece) {
        let bytes = PIECE_BYTES
            + match piece {
                Piece::Data(data) => data.len(),
                Piece::Trailers(_) => 0,
            };
        if !self.is_whole.get() || self.kept_bytes + bytes > self.limit {
            self.is_whole.set(false);
            return self.forget();
        }
        self.kept_bytes += bytes;
        self.kept.push(match piece {
            Piece::Data(data) if data.len() < SHARED_BYTES_MIN => {
                Piece::Data(Bytes::copy_from_slice(data))
            }
            piece => piece.clone(),
        });
        self.at = self.kept.len();
        self.buffered.set(self.kept_bytes);
    }

    fn tell(&mut self, piece: &Copied) {
        self.mirrors.retain(|mirror| mirror.try_send(piece.clone()).is_ok());
    }
}

impl<B: Source> Source for Replay<B> {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        if let Some(piece) = self.kept.get(self.at) {
            // Mirrors had it when it came.
            let piece = piece.clone();
            self.at += 1;
            return Ok(Some(piece));
        }
        if self.has_ended {
            self.tell(&None);
            self.mirrors.clear();
            return Ok(None);
        }
        let piece = self.inner.piece().await?;
        match &piece {
            Some(piece) => self.keep(piece),
            None => self.has_ended = true,
        }
        if matches!(piece, Some(Piece::Trailers(_))) {
            self.has_ended = true;
        }
        self.tell(&piece);
        Ok(piece)
    }

    fn bound(&mut self, bounds: BodyBounds) {
        self.inner.bound(bounds);
    }

    fn become_tunnel(&mut self) {
        self.has_ended = false;
        self.limit = 0;
        self.inner.become_tunnel();
    }

    async fn gone(&mut self) -> Broken {
        self.inner.gone().await
    }
}

/// What a mirror reads.
pub(crate) struct Copy(pub(crate) mpsc::Receiver<Copied>);

impl Source for Copy {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        self.0.recv().await.ok_or(Broken::Closed)
    }
}
