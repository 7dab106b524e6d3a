//! A request's body that may be needed again: for another attempt, and for mirrors.
//!
//! What was read is kept within a bound. Beyond it nothing is kept and no other attempt is made.
//! Mirrors are handed each piece as it comes ([`copies`]), and nobody waits for them.
//!
//! What is read ahead takes room of what a thread has for bodies, byte by byte as it comes, and
//! gives it back when nobody will read it again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::engine::buffered::Buffered;
use crate::engine::copies::{self, Copies, Copy, Original};
use crate::engine::held::{Held, HeldBytes};
use crate::engine::piece::{BodyBounds, Broken, Piece, SHARED_BYTES_MIN, Source};

/// What a piece costs besides its bytes: a body of many small ones is no way to fill the memory.
const PIECE_BYTES: usize = 64;

/// A body that can be read again.
pub(crate) struct Replay<B> {
    inner: B,
    kept: Rc<Kept>,
    /// How much is kept at most; nothing is kept from the moment that it is 0.
    limit: usize,
    has_ended: bool,
    /// Bytes that are read ahead and not among the pieces yet.
    ahead: BytesMut,
    mirrors: Vec<Original>,
}

/// What was read of a body, for whoever reads it again.
pub(crate) struct Kept {
    pieces: RefCell<Vec<Piece>>,
    bytes: Cell<usize>,
    /// The next one to yield again.
    at: Cell<usize>,
    is_whole: Cell<bool>,
    /// The room that it takes, if it was read ahead.
    held: RefCell<Option<Held>>,
    /// What was not read ahead.
    buffered: RefCell<Buffered>,
}

/// How much of a body was read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// All of it.
    Whole,
    /// More than was asked for.
    Partial,
    /// There is no room for more.
    NoRoom,
}

impl Kept {
    /// Whether it is the whole body up to what was read last.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.get()
    }

    /// Nobody begins again: what was read goes, and the rest as it is read.
    pub(crate) fn give_up(&self) {
        self.is_whole.set(false);
        let mut pieces = self.pieces.borrow_mut();
        pieces.drain(..self.at.take());
        if pieces.is_empty() {
            *pieces = Vec::new();
            self.held.take();
            self.buffered.borrow_mut().set(0);
        }
    }

    /// The next piece that was read before.
    fn next(&self) -> Option<Piece> {
        let piece = self.pieces.borrow().get(self.at.get()).cloned()?;
        self.at.set(self.at.get() + 1);
        if !self.is_whole() {
            self.give_up();
        }
        Some(piece)
    }

    fn push(&self, piece: Piece, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        self.pieces.borrow_mut().push(piece);
    }

    /// Takes room for more bytes; false if there is none.
    fn hold(&self, room: &HeldBytes, bytes: usize) -> bool {
        let mut held = self.held.borrow_mut();
        held.get_or_insert_with(|| room.nothing()).grow(bytes)
    }
}

impl<B: Source> Replay<B> {
    /// `has_body`: otherwise it is at its end, and can be read again at no cost.
    pub(crate) fn new(inner: B, limit: usize, has_body: bool) -> Self {
        Self {
            inner,
            kept: Rc::new(Kept {
                pieces: RefCell::default(),
                bytes: Cell::new(0),
                at: Cell::new(0),
                is_whole: Cell::new(true),
                held: RefCell::default(),
                buffered: RefCell::default(),
            }),
            limit,
            has_ended: !has_body,
            ahead: BytesMut::new(),
            mirrors: Vec::new(),
        }
    }

    /// Whether it can be read from its beginning again.
    pub(crate) fn can_rewind(&self) -> bool {
        self.kept.is_whole()
    }

    /// What is kept, for whoever asks while the body is read.
    pub(crate) fn kept(&self) -> Rc<Kept> {
        self.kept.clone()
    }

    /// Begins again.
    pub(crate) fn rewind(&mut self) {
        self.kept.at.set(0);
    }

    /// Nothing that comes from here on is kept.
    pub(crate) fn keep_nothing(&mut self) {
        self.limit = 0;
        self.kept.give_up();
    }

    /// Reads more than `most` bytes, or all, before anything is read from here, and keeps them, as
    /// far as there is room. May be dropped at any time and called again.
    pub(crate) async fn read_ahead(
        &mut self,
        most: usize,
        room: &HeldBytes,
    ) -> Result<Ahead, Broken> {
        let mut trailers = None;
        while !self.has_ended && self.kept.bytes.get() + self.ahead.len() <= most {
            match self.inner.piece().await? {
                Some(Piece::Data(data)) if !self.kept.hold(room, data.len()) => {
                    return Ok(Ahead::NoRoom);
                }
                // Small pieces are joined: each would cost more than its bytes.
                Some(Piece::Data(data)) => self.ahead.extend_from_slice(&data),
                piece => {
                    self.has_ended = true;
                    trailers = piece;
                }
            }
        }
        if !self.ahead.is_empty() {
            let ahead = self.ahead.split().freeze();
            let bytes = ahead.len();
            self.kept.push(Piece::Data(ahead), bytes);
        }
        if let Some(trailers) = trailers {
            self.kept.push(trailers, 0);
        }
        let is_whole = self.has_ended && self.kept.bytes.get() <= most;
        Ok(if is_whole { Ahead::Whole } else { Ahead::Partial })
    }

    /// The first bytes of what was read ahead.
    pub(crate) fn ahead(&self, most: usize) -> Bytes {
        let mut all = BytesMut::new();
        for piece in self.kept.pieces.borrow().iter() {
            if let Piece::Data(data) = piece {
                all.extend_from_slice(&data[..data.len().min(most - all.len())]);
            }
        }
        all.freeze()
    }

    /// One more reader of the same bytes, from the beginning.
    pub(crate) fn copy(&mut self, copies: &Arc<Copies>) -> Copy {
        let (original, copy) = copies::copy(copies, self.kept.pieces.borrow().iter());
        if self.has_ended {
            original.finish();
        } else {
            self.mirrors.push(original);
        }
        copy
    }

    fn keep(&mut self, piece: &Piece) {
        let bytes = PIECE_BYTES
            + match piece {
                Piece::Data(data) => data.len(),
                Piece::Trailers(_) => 0,
            };
        if !self.kept.is_whole() || self.kept.bytes.get() + bytes > self.limit {
            return self.kept.give_up();
        }
        let kept = match piece {
            Piece::Data(data) if data.len() < SHARED_BYTES_MIN => {
                Piece::Data(Bytes::copy_from_slice(data))
            }
            piece => piece.clone(),
        };
        self.kept.push(kept, bytes);
        self.kept.at.set(self.kept.at.get() + 1);
        self.kept.buffered.borrow_mut().set(self.kept.bytes.get());
    }

    /// Hands on to mirrors what has come.
    fn tell(&mut self, piece: Option<&Piece>) {
        if let Some(piece) = piece {
            self.mirrors.retain(|mirror| mirror.put(piece));
        }
        if self.has_ended {
            self.mirrors.drain(..).for_each(|mirror| mirror.finish());
        }
    }
}

impl<B: Source> Source for Replay<B> {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        // Mirrors had it when it came.
        if let Some(piece) = self.kept.next() {
            return Ok(Some(piece));
        }
        if self.has_ended {
            self.tell(None);
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
        self.tell(piece.as_ref());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of these pieces.
    struct Pieces(Vec<&'static [u8]>);

    impl Source for Pieces {
        async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
            let next = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            Ok(next.map(|it| Piece::Data(Bytes::from_static(it))))
        }
    }

    async fn rest(body: &mut Replay<Pieces>) -> String {
        let mut all = Vec::new();
        while let Some(Piece::Data(data)) = body.piece().await.expect("a piece") {
            all.extend_from_slice(&data);
        }
        String::from_utf8(all).expect("text")
    }

    #[tokio::test]
    async fn what_is_read_ahead_takes_room_until_nobody_reads_it_again() {
        let room = HeldBytes::default();
        let mut body = Replay::new(Pieces(vec![b"abc", b"def", b"gh"]), 1024, true);
        assert_eq!(body.read_ahead(4, &room).await.expect("read"), Ahead::Partial);
        assert_eq!((room.in_use(), &*body.ahead(4)), (6, &b"abcd"[..]));
        assert_eq!(rest(&mut body).await, "abcdefgh");
        body.rewind();
        assert_eq!((rest(&mut body).await, room.in_use()), ("abcdefgh".to_owned(), 6));
        body.kept().give_up();
        assert_eq!((room.in_use(), body.can_rewind()), (0, false));
        // Before it was read, it goes as it is read.
        let mut body = Replay::new(Pieces(vec![b"abc", b"def"]), 1024, true);
        assert_eq!(body.read_ahead(9, &room).await.expect("read"), Ahead::Whole);
        body.keep_nothing();
        assert_eq!(room.in_use(), 6);
        assert_eq!((rest(&mut body).await, room.in_use()), ("abcdef".to_owned(), 0));
    }

    #[tokio::test]
    async fn without_room_nothing_is_read_ahead() {
        let room = HeldBytes::default();
        let mut all = room.nothing();
        assert!(all.grow(room.left() - 4));
        let mut body = Replay::new(Pieces(vec![b"abc", b"def"]), 1024, true);
        assert_eq!(body.read_ahead(9, &room).await.expect("read"), Ahead::NoRoom);
        drop((all, body));
        assert_eq!(room.in_use(), 0);
    }
}
