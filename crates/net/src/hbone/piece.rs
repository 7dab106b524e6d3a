//! Bytes that are counted while the HTTP/2 library holds them.
//!
//! The library does not report what it holds. If a peer lowers SETTINGS_INITIAL_WINDOW_SIZE, frames
//! that fitted the earlier window stay in the library; a stream that is reset drops its frames. So
//! the bytes themselves report when they are sent or dropped.

use std::cell::Cell;
use std::rc::Rc;

use bytes::{Buf, Bytes};

/// What a frame costs in the library's queue beside its bytes; tiny ones must not be free.
const FRAME_COST_BYTES: usize = 128;

/// What the library has of one connection's tunnels, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Rc<Cell<usize>>);

/// The payload of a frame.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    queue: Queue,
}

impl Queue {
    pub(super) fn bytes(&self) -> usize {
        self.0.get()
    }

    /// Counts bytes that the library is about to get.
    pub(super) fn piece(&self, bytes: Bytes) -> Piece {
        self.0.set(self.0.get() + bytes.len() + FRAME_COST_BYTES);
        Piece { bytes, queue: self.clone() }
    }

    fn gone(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes);
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.queue.gone(count);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.queue.gone(self.bytes.len() + FRAME_COST_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_or_is_dropped_is_not_counted() {
        let queue = Queue::default();
        let mut first = queue.piece(Bytes::from_static(&[7; 100]));
        let second = queue.piece(Bytes::new());
        assert_eq!(queue.bytes(), 100 + 2 * FRAME_COST_BYTES);
        first.advance(60);
        assert_eq!((queue.bytes(), first.chunk().len()), (40 + 2 * FRAME_COST_BYTES, 40));
        drop((first, second));
        assert_eq!(queue.bytes(), 0);
    }
}
