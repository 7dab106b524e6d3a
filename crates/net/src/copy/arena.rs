//! The memory that a thread reads sockets into, shared by all its connections.
//!
//! A read takes a slice of the current chunk; the chunk is used again once all its slices are
//! gone. An idle connection therefore holds no memory, and a read makes no allocation.

use std::cell::RefCell;

use bytes::BytesMut;

/// Size of a chunk: some large reads, or hundreds of small ones.
const CHUNK_BYTES: usize = 512 * 1024;
/// With less room than this a new chunk is begun.
const MIN_READ_BYTES: usize = 16 * 1024;

thread_local! {
    static CHUNK: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Lends the free room of the current chunk to `read`, which must split off what it filled.
pub(crate) fn with_room<T>(read: impl FnOnce(&mut BytesMut) -> T) -> T {
    CHUNK.with_borrow_mut(|chunk| {
        if chunk.capacity() < MIN_READ_BYTES {
            chunk.reserve(CHUNK_BYTES);
        }
        let result = read(chunk);
        debug_assert!(chunk.is_empty());
        result
    })
}
