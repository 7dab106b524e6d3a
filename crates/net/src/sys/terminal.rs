//! Another descriptor of a terminal.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::check;

/// Device numbers of the terminals of `/dev/pts`.
const PSEUDO_TERMINAL_MAJORS: std::ops::RangeInclusive<u32> = 136..=143;
/// How many there are under one of these.
const TERMINALS_PER_MAJOR: u32 = 256;

/// Opens a terminal once more, through `terminals`, a directory like `/dev/pts`. What the mount of
/// that directory forbids, such as a change of the terminal's mode, the new descriptor cannot do.
/// `None` if the descriptor is no terminal of that directory.
pub fn reopen(terminals: impl AsFd, given: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let found = File::from(given.as_fd().try_clone_to_owned()?).metadata()?;
    let (major, minor) = (libc::major(found.rdev()), libc::minor(found.rdev()));
    if !found.file_type().is_char_device() || !PSEUDO_TERMINAL_MAJORS.contains(&major) {
        return Ok(None);
    }
    let number = (major - PSEUDO_TERMINAL_MAJORS.start()) * TERMINALS_PER_MAJOR + minor;
    let name = CString::new(number.to_string()).expect("digits have no NUL");
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the name is NUL-terminated and outlives the call; the directory is borrowed for it.
    let opened = unsafe { libc::openat(terminals.as_fd().as_raw_fd(), name.as_ptr(), flags) };
    let opened = match check(opened) {
        // SAFETY: the call made this descriptor, and nothing else knows it.
        Ok(opened) => unsafe { File::from_raw_fd(opened) },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let own = opened.metadata()?;
    let is_same = (own.dev(), own.ino()) == (found.dev(), found.ino());
    Ok(is_same.then(|| opened.into()))
}
