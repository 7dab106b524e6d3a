//! Properties of a terminal.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Lines and characters per line of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Its lines.
    pub rows: u16,
    /// Its characters per line.
    pub columns: u16,
}

/// The size of the terminal behind a descriptor; an error if there is none.
pub fn window_size(terminal: impl AsFd) -> io::Result<WindowSize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    let fd = terminal.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for the call, and TIOCGWINSZ writes one winsize.
    check(unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &mut size) })?;
    Ok(WindowSize { rows: size.ws_row, columns: size.ws_col })
}
