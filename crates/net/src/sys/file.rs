//! Opening files without following a symbolic link.
//!
//! Another user may have put a name into a directory. Opening it must reach that very entry, or
//! fail.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens `path` as `options` say, with mode 0600 if it is made. A symbolic link there is an error
/// (`ELOOP`), and a FIFO without a reader does not block.
pub fn open_no_follow(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}
