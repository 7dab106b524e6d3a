//! What waits for the transport, in order.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Slices given to the transport at once.
const MAX_SLICES: usize = 64;
/// A payload of this size is copied behind its frame's head: cheaper than a slice of its own, and
/// it keeps no large buffer alive.
const SMALL_BYTES: usize = 1024;
/// Room for heads and small payloads: what one TLS record carries.
const ROOM_BYTES: usize = 16 * 1024;
/// What a frame costs beside its bytes; tiny ones must not be free.
const FRAME_COST_BYTES: usize = 32;

/// Bytes in order: those of frames' heads and small payloads together, large ones where they are.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    chunks: VecDeque<Bytes>,
    /// Behind all chunks.
    tail: BytesMut,
    bytes: usize,
    /// All that ever came, and all that was written.
    came: u64,
    gone: u64,
    /// Of that, what the transport does not keep any more.
    sent: u64,
}

impl Waiting {
    /// A copy of a few bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.tail.capacity() - self.tail.len() < bytes.len() {
            self.seal();
            self.tail.reserve(ROOM_BYTES.max(bytes.len()));
        }
        self.tail.extend_from_slice(bytes);
        self.count(bytes.len());
    }

    /// The payload of a frame.
    pub(super) fn push(&mut self, payload: Bytes) {
        if payload.len() <= SMALL_BYTES {
            return self.put(&payload);
        }
        self.seal();
        self.count(payload.len());
        self.chunks.push_back(payload);
    }

    /// How much waits, with what its pieces cost.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + FRAME_COST_BYTES * self.chunks.len()
    }

    /// All that ever came.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// All that was ever written.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// How much waits here or in the transport.
    pub(super) fn unsent(&self) -> usize {
        let kept = usize::try_from(self.gone - self.sent).unwrap_or(usize::MAX);
        self.bytes().saturating_add(kept)
    }

    /// All that the transport has sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The transport keeps nothing of what was written.
    pub(super) fn flushed(&mut self) {
        self.sent = self.gone;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Calls `write` with as much as fits into one call, and drops what it wrote.
    pub(super) fn write<T>(&mut self, write: impl FnOnce(&[IoSlice<'_>]) -> (usize, T)) -> T {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let chunks = self.chunks.iter().map(|chunk| &chunk[..]).chain(tail);
        let mut used = 0;
        for (slice, chunk) in slices.iter_mut().zip(chunks) {
            *slice = IoSlice::new(chunk);
            used += 1;
        }
        let (written, result) = write(&slices[..used]);
        self.advance(written);
        result
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.came += bytes as u64;
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        self.gone += written as u64;
        while let Some(first) = self.chunks.front_mut() {
            if written < first.len() {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.chunks.pop_front();
        }
        self.tail.advance(written);
        // An idle connection holds no room.
        if self.tail.is_empty() {
            self.tail = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let mut waiting = Waiting::default();
        let mut expected = Vec::new();
        for number in 0..500usize {
            let bytes = vec![number.to_le_bytes()[0]; number * 7 % 3000];
            expected.extend_from_slice(&bytes);
            if number % 3 == 0 { waiting.put(&bytes) } else { waiting.push(bytes.into()) }
        }
        let mut got = Vec::new();
        while !waiting.is_empty() {
            waiting.write(|slices| {
                let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                let written = all.len().min(10_007);
                got.extend_from_slice(&all[..written]);
                (written, ())
            });
        }
        assert!(got == expected && waiting.bytes() == 0);
        assert_eq!(waiting.tail.capacity(), 0);
    }
}
