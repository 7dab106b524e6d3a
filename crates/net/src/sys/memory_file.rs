//! Anonymous files in memory and their seals.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// Every seal: the content and the set of seals can never change again.
pub(crate) const ALL_SEALS: i32 =
    libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A new empty file that can be sealed, is not executable and closes on exec.
pub(crate) fn create(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL;
    // SAFETY: name is NUL-terminated; the returned descriptor is ours alone.
    unsafe {
        Ok(File::from(OwnedFd::from_raw_fd(check(libc::memfd_create(name.as_ptr(), flags))?)))
    }
}

/// Adds [`ALL_SEALS`].
pub(crate) fn seal(file: impl AsFd) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_ADD_SEALS, ALL_SEALS) }).map(drop)
}

/// The seals of a file; fails with `EINVAL` for files that cannot have any.
pub(crate) fn seals(file: impl AsFd) -> io::Result<i32> {
    // SAFETY: integers only.
    check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) })
}
