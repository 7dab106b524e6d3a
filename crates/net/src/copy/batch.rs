//! Chunks of bytes between their source and their sink, in order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Chunks given to the kernel in one call.
const MAX_SLICES: usize = 16;
/// Chunks smaller than this are put together once there are more than fit into one call.
const SMALL_BYTES: usize = 1024;
/// With chunks smaller than this on average what they lie in may be many times as large.
const SCATTERED_BYTES: usize = 8 * 1024;
/// Empty batches a thread keeps for the next to come.
const MAX_KEPT: usize = 64;

thread_local! {
    static KEPT: RefCell<Vec<Batch>> = const { RefCell::new(Vec::new()) };
}

/// Chunks of bytes on their way through, in order.
#[derive(Debug, Default)]
pub struct Batch {
    chunks: VecDeque<Bytes>,
    /// Small chunks put together, behind all others.
    tail: BytesMut,
    /// How many of the first chunks lie in memory of their own size.
    packed: usize,
}

impl Batch {
    /// An empty batch, from those the thread keeps.
    pub(super) fn lend() -> Self {
        KEPT.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Back to the thread's keeping, if it came to no great size.
    pub(super) fn give_back(self) {
        debug_assert!(self.is_empty());
        if self.chunks.capacity() > 4 * MAX_SLICES || self.tail.capacity() > 0 {
            return;
        }
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < MAX_KEPT {
                kept.push(self);
            }
        });
    }

    /// How many bytes are in it.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum::<usize>() + self.tail.len()
    }

    /// Whether its chunks are small on average: each may keep a whole read alive.
    pub(super) fn is_scattered(&self) -> bool {
        self.chunks.len() > 1 && self.bytes() < SCATTERED_BYTES * self.chunks.len()
    }

    /// Copies its bytes to memory of their own size: a chunk keeps the whole buffer alive that it
    /// was read into, which may be a hundred times as large.
    pub(super) fn pack(&mut self) {
        if self.packed == self.chunks.len() {
            return;
        }
        let mut first = self.packed;
        let mut bytes: usize = self.chunks.range(first..).map(Bytes::len).sum();
        // With the ones before that are not much larger: few chunks are left, and a byte is copied
        // a few times at most, however small the pieces are that it came in.
        while first > 0 && self.chunks[first - 1].len() <= 2 * bytes {
            first -= 1;
            bytes += self.chunks[first].len();
        }
        let mut all = BytesMut::with_capacity(bytes);
        self.chunks.drain(first..).for_each(|chunk| all.extend_from_slice(&chunk));
        self.chunks.push_back(all.freeze());
        self.packed = self.chunks.len();
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty()
    }

    /// Whether it holds as many chunks as are given in one call.
    pub fn is_full(&self) -> bool {
        self.chunks.len() >= MAX_SLICES
    }

    /// Adds a chunk at the end; an empty one is nothing.
    pub fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        if self.is_full() && chunk.len() < SMALL_BYTES {
            // Thousands of tiny chunks would each hold on to a whole frame buffer.
            self.tail.extend_from_slice(&chunk);
            return;
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(chunk);
    }

    /// Takes the first chunk.
    pub fn pop(&mut self) -> Option<Bytes> {
        if let Some(chunk) = self.chunks.pop_front() {
            self.packed = self.packed.saturating_sub(1);
            return Some(chunk);
        }
        let tail = std::mem::take(&mut self.tail);
        (!tail.is_empty()).then(|| tail.freeze())
    }

    /// Puts back the rest of a chunk that was taken.
    pub(crate) fn put_back(&mut self, rest: Bytes) {
        self.packed = 0;
        self.chunks.push_front(rest);
    }

    /// Calls `write` with as many slices as fit into one call, and drops what it wrote.
    pub fn write<T>(&mut self, write: impl FnOnce(&[IoSlice<'_>]) -> (usize, T)) -> T {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut used = 0;
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let chunks = self.chunks.iter().map(|chunk| &chunk[..]).chain(tail);
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            used += 1;
        }
        let (written, result) = write(&slices[..used]);
        self.advance(written);
        result
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(first) = self.chunks.front_mut() {
            if bytes < first.len() {
                first.advance(bytes);
                return;
            }
            bytes -= first.len();
            self.packed = self.packed.saturating_sub(1);
            self.chunks.pop_front();
        }
        self.tail.advance(bytes);
        if self.tail.is_empty() {
            self.tail = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes chunks of these sizes, writes `steps` bytes at a time, and compares.
    fn check(sizes: &[usize], step: usize, max_chunks: usize) {
        let mut batch = Batch::default();
        let mut expected = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let chunk = vec![u8::try_from(number % 251).expect("below 251"); *size];
            expected.extend_from_slice(&chunk);
            batch.push(chunk.into());
        }
        assert!(batch.chunks.len() <= max_chunks, "{} chunks", batch.chunks.len());
        let mut got = Vec::new();
        while !batch.is_empty() {
            batch.write(|slices| {
                let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                let written = step.min(all.len());
                got.extend_from_slice(&all[..written]);
                (written, ())
            });
        }
        assert_eq!(got, expected);
    }

    #[test]
    fn packed_bytes_keep_their_order_and_take_no_more_room_than_they_need() {
        let buffer = Bytes::from(vec![7; 512 * 1024]);
        for (pieces, size) in [(1, 1), (5_000, 1), (300, 700), (40, 20_000)] {
            let (mut batch, mut expected) = (Batch::default(), Vec::new());
            for number in 0..pieces {
                let start = number * 13;
                let piece = buffer.slice(start..start + size);
                expected.extend_from_slice(&piece);
                batch.push(piece);
                batch.pack();
                assert!(batch.chunks.len() <= 2 * MAX_SLICES, "{} chunks", batch.chunks.len());
            }
            assert_eq!(batch.bytes(), expected.len());
            let here = buffer.as_ptr_range();
            assert!(batch.chunks.iter().all(|chunk| !here.contains(&chunk.as_ptr())));
            let mut got = Vec::new();
            while let Some(chunk) = batch.pop() {
                got.extend_from_slice(&chunk);
            }
            assert!(got == expected);
        }
    }

    #[test]
    fn bytes_keep_their_order_however_they_are_cut() {
        check(&[1, 2, 3], 1, 3);
        check(&[5000, 0, 1, 70_000], 333, 3);
        check(&[10; 1000], 7, MAX_SLICES);
        check(&[&[10; 100][..], &[5000], &[10; 100]].concat(), 1000, MAX_SLICES + 2);
    }
}
