//! What must stay fast, one operation at a time: the decisions about a connection, a change of the
//! view, HBONE and its floods, and copying.
//!
//! `cargo xtask bench` runs it and compares with the committed run. Everything is on one thread and
//! in memory or on loopback, with the shipped allocator. `ambit bench` measures whole paths.

#![allow(missing_docs, reason = "criterion's macros write functions without documentation")]
#![allow(clippy::unwrap_used, reason = "a benchmark stops where something is missing")]

mod bytes;
mod decisions;
mod floods;

use criterion::{criterion_group, criterion_main};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

criterion_group!(hot, decisions::bench, bytes::bench, floods::bench);
criterion_main!(hot);
