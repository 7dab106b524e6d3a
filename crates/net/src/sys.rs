//! The only `unsafe` code of Ambit: thin, safe wrappers around system calls that std, tokio and
//! socket2 lack.
//!
//! Each wrapper takes and returns owned or borrowed descriptors and plain values, so that nothing
//! outside this directory has to reason about raw pointers. It must hold no policy: the callers
//! decide what is called when.
#![allow(unsafe_code)]

pub(crate) mod bpf;
pub mod capability;
pub mod clock;
pub(crate) mod control_message;
pub mod file;
pub(crate) mod mapping;
pub(crate) mod memory_file;
pub mod mount;
pub(crate) mod packet_socket;
pub mod perf_event;
pub mod process;
pub(crate) mod program;
pub(crate) mod socket_option;
pub mod terminal;
pub(crate) mod tun;

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Turns the `-1` of a system call into the error in `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// [`check`] for calls that return a length.
pub(crate) fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Registers a non-blocking descriptor with the runtime that this is called in.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped, and the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}
