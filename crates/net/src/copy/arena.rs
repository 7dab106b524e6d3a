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

/// Size of a chunk for connections with tunnels: a small piece that waits for a slow reader keeps
/// no more than this alive.
const SMALL_CHUNK_BYTES: usize = 64 * 1024;

thread_local! {
    static CHUNK: RefCell<BytesMut> = RefCell::new(BytesMut::new());
    static SMALL_CHUNK: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// Lends the free room of the current chunk to `read`, which must split off what it filled.
pub(crate) fn with_room<T>(read: impl FnOnce(&mut BytesMut) -> T) -> T {
    CHUNK.with_borrow_mut(|chunk| lend(chunk, CHUNK_BYTES, read))
}

/// The same, of a small chunk.
pub(crate) fn with_small_room<T>(read: impl FnOnce(&mut BytesMut) -> T) -> T {
    SMALL_CHUNK.with_borrow_mut(|chunk| lend(chunk, SMALL_CHUNK_BYTES, read))
}

fn lend<T>(chunk: &mut BytesMut, size: usize, read: impl FnOnce(&mut BytesMut) -> T) -> T {
    if chunk.capacity() < MIN_READ_BYTES {
        chunk.reserve(size);
    }
    let result = read(chunk);
    debug_assert!(chunk.is_empty());
    result
}
