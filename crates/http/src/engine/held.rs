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
    /// A part that grows.
    pub(crate) fn nothing(&self) -> Held {
        Held { all: self.clone(), bytes: 0 }
    }
}

impl Held {
    /// Takes more, if there is that much left.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let sum = self.all.0.get().checked_add(bytes).filter(|sum| *sum <= MAX_HELD_BYTES);
        let Some(sum) = sum else { return false };
        self.all.0.set(sum);
        self.bytes += bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.set(self.all.0.get() - self.bytes);
    }
}

#[cfg(test)]
impl HeldBytes {
    pub(crate) fn in_use(&self) -> usize {
        self.0.get()
    }

    pub(crate) fn left(&self) -> usize {
        MAX_HELD_BYTES - self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let all = HeldBytes::default();
        let (mut first, mut second) = (all.nothing(), all.nothing());
        assert!(first.grow(1) && first.grow(MAX_HELD_BYTES - 1));
        assert!(!second.grow(1) && !second.grow(usize::MAX));
        drop(first);
        assert!(second.grow(1));
        drop(second);
        assert_eq!(all.in_use(), 0);
    }
}
