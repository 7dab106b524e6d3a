//! Memory for the encoders of a pod, whichever thread they belong to.
//!
//! Each response that is compressed holds an encoder until it ends, which its client may make take
//! long. When there is no room left responses are sent as they are; no request is refused for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What all encoders of a pod may take that has no bound for its buffers.
const ALL_BYTES_MAX: usize = 64 << 20;

/// What encoders may take, and what they do take.
#[derive(Debug)]
pub(crate) struct Room {
    most_bytes: usize,
    bytes: AtomicUsize,
}

/// A part of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Room {
    pub(crate) fn new(most_bytes: Option<usize>) -> Self {
        let most_bytes = most_bytes.unwrap_or(ALL_BYTES_MAX);
        Self { most_bytes, bytes: AtomicUsize::default() }
    }

    /// Takes so much, if it is there.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Taken> {
        let sum = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.most_bytes);
        self.bytes.fetch_update(Relaxed, Relaxed, sum).ok()?;
        Some(Taken { room: self.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let room = Arc::new(Room::new(Some(10)));
        let first = room.take(6);
        assert!(first.is_some() && room.take(5).is_none() && room.take(usize::MAX).is_none());
        let second = room.take(4);
        assert!(second.is_some() && room.take(1).is_none());
        drop((first, second));
        assert!(room.take(10).is_some());
        assert_eq!(room.bytes.load(Relaxed), 0);
    }
}
