//! Copies of a request's body on their way to mirrors, and why some are cut.
//!
//! The original is never held up for a copy. What a slow mirror has not taken yet waits here,
//! within a bound for each copy and one for all of them. Beyond it the copy is cut: its reader gets
//! an error and never an end, so that no part of a body is taken for all of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::engine::piece::{Broken, Piece, SHARED_BYTES_MIN, Source};

/// What may wait of one copy, besides what was read before it began.
const COPY_BYTES_MAX: usize = 1 << 20;
/// What may wait of all copies of a pod that has no bound for its buffers.
const ALL_BYTES_MAX: usize = 64 << 20;
/// Small pieces are joined up to here.
const JOINED_BYTES: usize = 16 * 1024;

/// Why a copy was not sent, or not as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its endpoint took the body too slowly.
    Slow,
    /// All copies together hold as much as they may.
    Memory,
    /// Too many are under way.
    Crowded,
    /// The limits of its destination are reached.
    Limits,
    /// A policy denies it there.
    Denied,
    /// There is no endpoint, or no connection to one.
    Unreachable,
    /// The connection to its endpoint broke.
    Broken,
    /// It took too long.
    Timeout,
    /// The request itself was not read to its end.
    Request,
}

impl Cut {
    const ALL: [Self; 9] = [
        Self::Slow,
        Self::Memory,
        Self::Crowded,
        Self::Limits,
        Self::Denied,
        Self::Unreachable,
        Self::Broken,
        Self::Timeout,
        Self::Request,
    ];

    /// One word, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Memory => "memory",
            Self::Crowded => "crowded",
            Self::Limits => "limits",
            Self::Denied => "denied",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
            Self::Request => "request",
        }
    }
}

/// All copies of a pod.
#[derive(Debug)]
pub struct Copies {
    most_bytes: usize,
    bytes: AtomicUsize,
    /// Those that were cut, by [`Cut`].
    cut: [AtomicUsize; Cut::ALL.len()],
}

impl Default for Copies {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Copies {
    /// They may hold so many bytes together.
    pub(crate) fn new(most_bytes: Option<usize>) -> Self {
        let most_bytes = most_bytes.unwrap_or(ALL_BYTES_MAX);
        Self { most_bytes, bytes: AtomicUsize::new(0), cut: Default::default() }
    }

    /// Bytes that wait for mirrors.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Counts a copy that was not sent, or not as a whole.
    pub(crate) fn count(&self, why: Cut) {
        self.cut[why as usize].fetch_add(1, Relaxed);
    }

    /// Copies that were not sent, or not as a whole.
    pub fn cut(&self) -> impl Iterator<Item = (Cut, usize)> {
        Cut::ALL.into_iter().map(|why| (why, self.cut[why as usize].load(Relaxed)))
    }

    fn take(&self, bytes: usize) -> bool {
        let has_room = self.bytes.fetch_add(bytes, Relaxed) + bytes <= self.most_bytes;
        if !has_room {
            self.give_back(bytes);
        }
        has_room
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// How a copy ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Whole,
    Cut(Cut),
}

struct Waiting {
    pieces: VecDeque<Piece>,
    /// Small pieces behind these, joined.
    joined: BytesMut,
    bytes: usize,
    most_bytes: usize,
    end: Option<End>,
    copies: Arc<Copies>,
}

impl Waiting {
    fn push(&mut self, piece: Piece) {
        if self.end.is_some() {
            return;
        }
        let bytes = length(&piece);
        if self.bytes + bytes > self.most_bytes {
            return self.cut(Cut::Slow);
        }
        if !self.copies.take(bytes) {
            return self.cut(Cut::Memory);
        }
        self.bytes += bytes;
        match piece {
            Piece::Data(data) if data.len() < SHARED_BYTES_MIN => {
                if self.joined.len() + data.len() > JOINED_BYTES {
                    self.queue_joined();
                }
                self.joined.extend_from_slice(&data);
            }
            piece => {
                self.queue_joined();
                self.pieces.push_back(piece);
            }
        }
    }

    fn queue_joined(&mut self) {
        if !self.joined.is_empty() {
            self.pieces.push_back(Piece::Data(std::mem::take(&mut self.joined).freeze()));
        }
    }

    /// Takes the next piece, or the end.
    fn next(&mut self) -> Option<Result<Option<Piece>, Broken>> {
        if self.pieces.is_empty() {
            self.queue_joined();
        }
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= length(&piece);
            self.copies.give_back(length(&piece));
            return Some(Ok(Some(piece)));
        }
        match self.end? {
            End::Whole => Some(Ok(None)),
            End::Cut(_) => Some(Err(Broken::Closed)),
        }
    }

    /// Ends it, unless it has ended; what waits goes.
    fn cut(&mut self, why: Cut) {
        if self.end.is_none() {
            self.end = Some(End::Cut(why));
            self.clear();
        }
    }

    fn clear(&mut self) {
        (self.pieces, self.joined) = Default::default();
        self.copies.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear();
    }
}

fn length(piece: &Piece) -> usize {
    match piece {
        Piece::Data(data) => data.len(),
        Piece::Trailers(_) => 0,
    }
}

struct Way {
    waiting: RefCell<Waiting>,
    /// Something waits, or it has ended.
    came: Notify,
    was_cut: Notify,
}

/// Begins a copy; `ahead` is what was read of the body before.
pub(crate) fn copy<'p>(
    copies: &Arc<Copies>,
    ahead: impl Iterator<Item = &'p Piece> + Clone,
) -> (Original, Copy) {
    let waiting = Waiting {
        pieces: VecDeque::new(),
        joined: BytesMut::new(),
        bytes: 0,
        most_bytes: COPY_BYTES_MAX + ahead.clone().map(length).sum::<usize>(),
        end: None,
        copies: copies.clone(),
    };
    let (waiting, came, was_cut) = (RefCell::new(waiting), Notify::new(), Notify::new());
    let original = Original(Rc::new(Way { waiting, came, was_cut }));
    for piece in ahead {
        original.put(piece);
    }
    let copy = Copy(original.0.clone());
    (original, copy)
}

/// The side of the body that is copied. Dropped before the body's end, it cuts the copy.
pub(crate) struct Original(Rc<Way>);

impl Original {
    /// Hands on a piece that has come; false if the copy was cut.
    pub(crate) fn put(&self, piece: &Piece) -> bool {
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.push(piece.clone());
        self.0.came.notify_one();
        let is_cut = waiting.end.is_some();
        if is_cut {
            self.0.was_cut.notify_one();
        }
        !is_cut
    }

    /// The body has ended.
    pub(crate) fn finish(&self) {
        self.0.waiting.borrow_mut().end.get_or_insert(End::Whole);
        self.0.came.notify_one();
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().cut(Cut::Request);
        self.0.came.notify_one();
        self.0.was_cut.notify_one();
    }
}

/// The side of the mirror.
pub(crate) struct Copy(Rc<Way>);

impl Copy {
    /// Waits until the copy is cut at the other side.
    pub(crate) fn cut(&self) -> impl Future<Output = Cut> + 'static {
        let way = self.0.clone();
        async move {
            loop {
                if let Some(End::Cut(why)) = way.waiting.borrow().end {
                    return why;
                }
                way.was_cut.notified().await;
            }
        }
    }
}

impl Source for Copy {
    async fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        loop {
            if let Some(next) = self.0.waiting.borrow_mut().next() {
                return next;
            }
            self.0.came.notified().await;
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // Nobody reads what comes from here on.
        let mut waiting = self.0.waiting.borrow_mut();
        waiting.cut(Cut::Broken);
        waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn data(bytes: usize) -> Piece {
        Piece::Data(Bytes::from(vec![b'x'; bytes]))
    }

    fn begin(copies: &Arc<Copies>) -> (Original, Copy) {
        copy(copies, [].iter())
    }

    #[tokio::test]
    async fn small_pieces_are_joined_and_none_is_lost() {
        let copies = Arc::new(Copies::default());
        let (original, mut copy) = begin(&copies);
        for _ in 0..20_000 {
            assert!(original.put(&data(5)));
        }
        assert!(original.put(&data(SHARED_BYTES_MIN)) && original.put(&data(1)));
        assert_eq!(copies.bytes(), 100_001 + SHARED_BYTES_MIN);
        original.finish();
        drop(original);
        let (mut pieces, mut bytes) = (0, 0);
        while let Some(piece) = copy.piece().await.expect("it is not cut") {
            (pieces, bytes) = (pieces + 1, bytes + length(&piece));
        }
        assert_eq!((pieces, bytes, copies.bytes()), (9, 100_001 + SHARED_BYTES_MIN, 0));
    }

    #[tokio::test]
    async fn beyond_its_bound_a_copy_is_cut_and_holds_nothing() {
        let copies = Arc::new(Copies::default());
        let ahead = [data(COPY_BYTES_MAX)];
        let (original, mut copy) = copy(&copies, ahead.iter());
        assert!(original.put(&data(COPY_BYTES_MAX)));
        assert!(!original.put(&data(1)) && !original.put(&data(1)));
        assert_eq!((copy.cut().await, copies.bytes()), (Cut::Slow, 0));
        original.finish();
        assert!(copy.piece().await.is_err(), "it has no end");
    }

    #[tokio::test]
    async fn all_copies_share_a_bound() {
        let copies = Arc::new(Copies::new(Some(100)));
        let ((first, one), (second, other)) = (begin(&copies), begin(&copies));
        assert!(first.put(&data(60)) && !second.put(&data(60)));
        assert_eq!((other.cut().await, copies.bytes()), (Cut::Memory, 60));
        drop(first);
        assert_eq!((one.cut().await, copies.bytes()), (Cut::Request, 0));
        let (third, copy) = begin(&copies);
        assert!(third.put(&data(100)));
        drop(copy);
        assert!(!third.put(&data(1)), "nobody reads it");
        assert_eq!(copies.bytes(), 0);
    }
}
