//! `bpf(2)`: maps, programs, and running a program once.
//!
//! Descriptors and plain values go in and come out. What a map means and what a program does is
//! decided by the caller: the kernel verifies every program before it takes it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::check;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_TEST_RUN: libc::c_long = 10;
const BTF_LOAD: libc::c_long = 18;

/// `BPF_SK_MSG_VERDICT`.
const SK_MSG_VERDICT: u32 = 7;
/// What the kernel asks of a program that reads its structures (`license_is_gpl_compatible`). It is
/// said of the few instructions that Ambit loads, not of Ambit.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
/// Room for what the verifier says.
const LOG_BYTES: usize = 64 * 1024;
/// How often a program is loaded while signals interrupt that.
const LOAD_TRIES: usize = 5;

/// The kinds of maps that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MapKind {
    /// Values by number.
    Array = 2,
    /// Maps by number.
    Maps = 12,
    /// TCP sockets by number.
    Sockets = 15,
    /// A value beside each socket, which goes with it.
    BesideSocket = 24,
    /// Messages to this process.
    Ring = 27,
}

/// `BPF_F_NO_PREALLOC`, which [`MapKind::BesideSocket`] needs.
pub(crate) const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`.
pub(crate) const MMAPABLE: u32 = 1 << 10;

/// What a map holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapShape {
    /// Length of a key.
    pub(crate) key_bytes: u32,
    /// Length of a value.
    pub(crate) value_bytes: u32,
    /// How many values at most.
    pub(crate) entries: u32,
    /// [`NO_PREALLOC`] or [`MMAPABLE`].
    pub(crate) flags: u32,
    /// Descriptor of a map as those in a [`MapKind::Maps`].
    pub(crate) inner_map: u32,
    /// Descriptor of type information, and the numbers of the key's and the value's types in it.
    pub(crate) types: u32,
    /// See [`Self::types`].
    pub(crate) key_type: u32,
    /// See [`Self::types`].
    pub(crate) value_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
    device: u32,
    types: u32,
    key_type: u32,
    value_type: u32,
}

/// The kinds of programs that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ProgramKind {
    /// Run by [`run`] alone.
    Classifier = 3,
    /// Decides for each message that a socket sends.
    Message = 16,
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Element {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

#[repr(C)]
#[derive(Default)]
struct LoadTypes {
    types: u64,
    log: u64,
    types_bytes: u32,
    log_bytes: u32,
    log_level: u32,
    unused: u32,
}

/// # Safety
/// `attributes` must be the front of what `union bpf_attr` is for this command; every address in it
/// must be valid for the length that goes with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: pointer and length are those of a live T; the caller vouches for the rest.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    check(libc::c_int::try_from(result).unwrap_or(-1))
}

fn number(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().unsigned_abs()
}

/// # Safety
/// `made` must be a descriptor that the kernel just made for the caller alone.
unsafe fn own(made: libc::c_int) -> OwnedFd {
    // SAFETY: the caller vouches for it.
    unsafe { OwnedFd::from_raw_fd(made) }
}

/// Makes a map.
pub(crate) fn create_map(kind: MapKind, shape: MapShape) -> io::Result<OwnedFd> {
    let mut attributes = CreateMap {
        kind: kind as u32,
        key_bytes: shape.key_bytes,
        value_bytes: shape.value_bytes,
        entries: shape.entries,
        flags: shape.flags,
        inner_map: shape.inner_map,
        types: shape.types,
        key_type: shape.key_type,
        value_type: shape.value_type,
        ..CreateMap::default()
    };
    // SAFETY: numbers only.
    unsafe { Ok(own(bpf(MAP_CREATE, &mut attributes)?)) }
}

/// Loads type information, as [`MapKind::BesideSocket`] needs it.
pub(crate) fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = LoadTypes {
        types: types.as_ptr() as u64,
        types_bytes: u32::try_from(types.len()).unwrap_or(u32::MAX),
        ..LoadTypes::default()
    };
    // SAFETY: address and length are those of a live slice.
    unsafe { Ok(own(bpf(BTF_LOAD, &mut attributes)?)) }
}

/// Loads a program; a refusal comes with the end of what the verifier said.
pub(crate) fn load_program(kind: ProgramKind, code: &[u64]) -> io::Result<OwnedFd> {
    let load = |log: &mut [u8]| {
        let mut attributes = Load {
            kind: kind as u32,
            instructions: u32::try_from(code.len()).unwrap_or(u32::MAX),
            code: code.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: u32::try_from(log.len()).unwrap_or(u32::MAX),
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            ..Load::default()
        };
        // SAFETY: code, licence and log are live, and as long as said; an instruction is 8 bytes.
        unsafe { Ok(own(bpf(PROG_LOAD, &mut attributes)?)) }
    };
    // A signal that waits makes the verifier give up (EAGAIN).
    let interrupted = |result: &io::Result<OwnedFd>| {
        result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let mut tries = (0..LOAD_TRIES).map(|_| load(&mut [])).skip_while(interrupted);
    let loaded = tries.next().unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()));
    loaded.or_else(|error: io::Error| {
        let mut log = vec![0; LOG_BYTES];
        if let Ok(program) = load(&mut log) {
            return Ok(program);
        }
        let said = log.split(|&byte| byte == 0).next().unwrap_or_default();
        let said = String::from_utf8_lossy(said);
        let last = said.lines().rev().find(|line| !line.starts_with("processed"));
        Err(io::Error::new(error.kind(), format!("{error}: {}", last.unwrap_or_default().trim())))
    })
}

/// Has a message program decide for the sockets of a map.
pub(crate) fn attach(program: impl AsFd, sockets: impl AsFd) -> io::Result<()> {
    let mut attributes = Attach {
        target: number(sockets),
        program: number(program),
        kind: SK_MSG_VERDICT,
        ..Attach::default()
    };
    // SAFETY: numbers only.
    unsafe { bpf(PROG_ATTACH, &mut attributes) }.map(drop)
}

/// Puts a socket into a map of sockets, or a map into a [`MapKind::Maps`]. The second returns when
/// every program that runs now has returned, on however many processors (`maybe_wait_bpf_programs`
/// in `kernel/bpf/syscall.c`).
pub(crate) fn put(map: impl AsFd, at: u32, value: BorrowedFd<'_>) -> io::Result<()> {
    let value = number(value);
    let mut attributes = Element {
        map: number(map),
        key: std::ptr::from_ref(&at) as u64,
        value: std::ptr::from_ref(&value) as u64,
        ..Element::default()
    };
    // SAFETY: key and value of such a map are 4 bytes, and live.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Takes a socket out of a map of sockets; an empty place is an error.
pub(crate) fn take_socket(map: impl AsFd, at: u32) -> io::Result<()> {
    let mut attributes =
        Element { map: number(map), key: std::ptr::from_ref(&at) as u64, ..Element::default() };
    // SAFETY: the key of such a map is 4 bytes, and live.
    unsafe { bpf(MAP_DELETE_ELEM, &mut attributes) }.map(drop)
}

/// Runs a classifier once on `packet`, in the network namespace of the calling thread, and returns
/// what it returned.
pub(crate) fn run(program: impl AsFd, packet: &[u8]) -> io::Result<u32> {
    let mut attributes = TestRun {
        program: number(program),
        data_in_bytes: u32::try_from(packet.len()).unwrap_or(u32::MAX),
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: address and length are those of a live slice; the kernel copies it.
    unsafe { bpf(PROG_TEST_RUN, &mut attributes) }?;
    Ok(attributes.result)
}

/// The size of a page: of a ring, the smallest.
pub(crate) fn page_bytes() -> u32 {
    // SAFETY: numbers only.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).unwrap_or(4096)
}

/// Memory that programs and this process share.
#[derive(Debug)]
struct Shared {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: it is reached only through atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn of(map: impl AsFd, bytes: usize, offset: usize, is_writable: bool) -> io::Result<Self> {
        let write = if is_writable { libc::PROT_WRITE } else { 0 };
        let fd = map.as_fd().as_raw_fd();
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            let flags = libc::MAP_SHARED;
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | write, flags, fd, offset)
        };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// # Safety
    /// `T` must consist of atomics, and the mapping must hold `index + 1` of them.
    unsafe fn at<T>(&self, index: usize) -> &T {
        // SAFETY: the caller vouches for it; a mapping begins at a page.
        unsafe { self.start.cast::<T>().add(index).as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives it.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A value of an array map that programs and this process share.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// The first 32 bytes.
    pub(crate) doubles: [AtomicU64; 4],
    /// The rest.
    pub(crate) words: [AtomicU32; 8],
}

/// The values of an array map that programs and this process share.
#[derive(Debug)]
pub(crate) struct Lines {
    shared: Shared,
    count: usize,
}

impl Lines {
    /// Maps the values of an array that was made with [`MMAPABLE`] for as many [`Line`]s.
    pub(crate) fn of(map: impl AsFd, count: usize) -> io::Result<Self> {
        Ok(Self { shared: Shared::of(map, count * size_of::<Line>(), 0, true)?, count })
    }

    /// One of them.
    pub(crate) fn line(&self, index: u32) -> &Line {
        let index = index as usize;
        assert!(index < self.count, "no line {index}");
        // SAFETY: the index is within the mapping, and a line consists of atomics.
        unsafe { self.shared.at(index) }
    }
}

/// A ring of messages whose content does not matter: a bell.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Where this process is; its first page.
    heard: Shared,
    /// Where the programs are; its second page.
    rung: Shared,
    ring: File,
}

impl Bell {
    /// Takes over a [`MapKind::Ring`].
    pub(crate) fn new(ring: OwnedFd) -> io::Result<Self> {
        let page_bytes = page_bytes() as usize;
        let heard = Shared::of(&ring, page_bytes, 0, true)?;
        let rung = Shared::of(&ring, page_bytes, page_bytes, false)?;
        Ok(Self { heard, rung, ring: ring.into() })
    }

    /// Waits until a program rings or `other` can be read; which of them.
    pub(crate) fn wait(&self, other: impl AsFd) -> io::Result<(bool, bool)> {
        let poll = |fd: BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [poll(self.ring.as_fd()), poll(other.as_fd())];
        // SAFETY: pointer and length are those of a live array.
        check(unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) })?;
        Ok((fds[0].revents != 0, fds[1].revents != 0))
    }

    /// Takes note of all that has rung so far.
    pub(crate) fn hear(&self) {
        // SAFETY: each page begins with the 8 bytes of a position.
        let (heard, rung) =
            unsafe { (self.heard.at::<AtomicU64>(0), self.rung.at::<AtomicU64>(0)) };
        heard.store(rung.load(Ordering::Acquire), Ordering::Release);
    }
}
