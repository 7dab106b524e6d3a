//! Counters of the kernel's tracepoints (`perf_event_open(2)`): how often threads hit one.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

use super::check;
use super::process::Pid;

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;
/// `PERF_ATTR_SIZE_VER0`: the oldest shape of the attributes, which every kernel takes.
const ATTRIBUTES_BYTES: u32 = 64;
/// The second bit of the flags: threads and processes that the thread starts later count too.
const INHERIT: u64 = 1 << 1;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// `struct perf_event_attr` as far as its oldest shape goes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Counts one tracepoint for one thread, on every processor, and for all that it starts from now
/// on. Counts until it is dropped.
#[derive(Debug)]
pub struct TracepointCounter(File);

impl TracepointCounter {
    /// Starts to count. `tracepoint` is the number in the tracepoint's `id` file below
    /// `events` of tracefs; `thread` as this process' PID namespace numbers it.
    pub fn start(tracepoint: u64, thread: Pid) -> io::Result<Self> {
        let attributes = Attributes {
            kind: TRACEPOINT,
            size: ATTRIBUTES_BYTES,
            config: tracepoint,
            flags: INHERIT,
            ..Attributes::default()
        };
        let (any_processor, no_group): (libc::c_int, libc::c_int) = (-1, -1);
        // SAFETY: `attributes` outlives the call and is as long as its `size` says.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                thread,
                any_processor,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        let fd = check(libc::c_int::try_from(fd).unwrap_or(-1))?;
        // SAFETY: the kernel just gave this descriptor to us alone.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// How often so far.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_tracepoint_is_an_error() {
        assert_eq!(size_of::<Attributes>(), ATTRIBUTES_BYTES as usize);
        TracepointCounter::start(u64::MAX, 0).unwrap_err();
    }
}
