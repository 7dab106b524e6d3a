//! The terminal of a command, whose other end a client has.
//!
//! It is one of the host's, as that of somebody who types `ambit exec`: the pod's init gives the
//! command another descriptor of it, by which its mode cannot be changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ambit_kubeapi::streams::TerminalSize;
use ambit_net::sys;
use rustix::io::{ioctl_fionbio, read, write};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;

/// The client's end.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    /// A new terminal, and the command's end of it.
    pub(super) fn open() -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags)?;
        unlockpt(&own)?;
        let theirs = ioctl_tiocgptpeer(&own, flags)?;
        ioctl_fionbio(&own, true)?;
        Ok((Self(sys::watch(own)?), theirs))
    }

    /// Reads what is written to it; an error when nobody has the command's end any more.
    pub(super) async fn read(&self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|own| Ok(read(own.get_ref(), &mut *piece)?)) {
                Ok(done) => return done,
                Err(_would_block) => {}
            }
        }
    }

    /// Types all of this.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            if let Ok(written) = ready.try_io(|own| Ok(write(own.get_ref(), bytes)?)) {
                bytes = &bytes[written?..];
            }
        }
        Ok(())
    }

    /// Changes its size; the programs in it learn so.
    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let TerminalSize { rows, columns } = size;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
