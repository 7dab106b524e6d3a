//! Memory for bodies that are kept whole, which a thread has for all its requests together.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes of bodies that a thread keeps at once.
const MAX_HELD_BYTES: usize = 64 << 20;

/// What of it is in use.
#[derive(Clone, Default)]
pub(crate) struct HeldBytes(Rc<Cell<usize>>);

/// A part of it, until it is dropped.
pub(crate) struct Held {
    all: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Takes a part, if there is that much left.
    pub(crate) fn take(&self, bytes: usize) -> Option<Held> {
        let sum = self.0.get().checked_add(bytes).filter(|sum| *sum <= MAX_HELD_BYTES)?;
        self.0.set(sum);
        Some(Held { all: self.clone(), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.set(self.all.0.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let all = HeldBytes::default();
        let first = all.take(MAX_HELD_BYTES).expect("nothing is in use");
        assert!(all.take(1).is_none() && all.take(usize::MAX).is_none());
        drop(first);
        assert!(all.take(1).is_some());
        assert_eq!(all.0.get(), 0);
    }
}
