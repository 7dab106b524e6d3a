//! The running program's own pages.

use crate::sys::program::give_back_pages;

/// Gives back the pages of the program's file that the start has touched, once it is over: reading
/// arguments and files, choosing what to do. They stay in the system's cache, for as long as it has
/// room; a resident proxy keeps what it serves with. A failure costs nothing but the memory.
pub fn give_back_start() {
    match give_back_pages() {
        Ok(bytes) => tracing::debug!(bytes, "the pages of the start are given back"),
        Err(error) => tracing::debug!(%error, "the pages of the start are kept"),
    }
}
