//! How many bytes wait in the buffers of this thread's connections.
//!
//! One engine belongs to one thread, and so does this count: every buffer says how much it holds,
//! and what is dropped holds nothing. It is what overload is judged by, and what shows that slow
//! clients cost no more than they may.

use std::cell::Cell;

thread_local! {
    static BUFFERED: Cell<usize> = const { Cell::new(0) };
}

/// What one buffer holds.
#[derive(Debug, Default)]
pub(crate) struct Buffered(usize);

impl Buffered {
    /// It holds so many bytes from now on.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            BUFFERED.with(|held| held.set(held.get() + bytes - self.0));
            self.0 = bytes;
        }
    }

    /// So many.
    pub(crate) fn bytes(&self) -> usize {
        self.0
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What all buffers of this thread hold.
pub(crate) fn buffered_bytes() -> usize {
    BUFFERED.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_holds_nothing() {
        let (mut one, mut two) = (Buffered::default(), Buffered::default());
        one.set(10);
        two.set(5);
        one.set(7);
        assert_eq!((buffered_bytes(), one.bytes()), (12, 7));
        drop(one);
        assert_eq!(buffered_bytes(), 5);
        drop(two);
        assert_eq!(buffered_bytes(), 0);
    }
}
