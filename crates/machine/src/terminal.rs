//! A terminal that is made for a command in a pod, and whose other end its caller has.
//!
//! It is one of the host's: the pod's init gives the command another descriptor of it, by which its
//! mode cannot be changed.

use std::io;
use std::os::fd::OwnedFd;

use ambit_net::sys;
use rustix::io::{ioctl_fionbio, read, write};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;

/// More than a terminal holds when its last writer ends.
pub(crate) const TERMINAL_SIZE_MAX_BYTES: usize = 1 << 20;

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    /// A new terminal, and the command's end of it.
    pub(crate) fn open() -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags)?;
        unlockpt(&own)?;
        let theirs = ioctl_tiocgptpeer(&own, flags)?;
        ioctl_fionbio(&own, true)?;
        Ok((Self(sys::watch(own)?), theirs))
    }

    /// Reads what is written to it; an error when nobody has the command's end any more.
    pub(crate) async fn read(&self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|own| Ok(read(own.get_ref(), &mut *piece)?)) {
                Ok(done) => return done,
                Err(_would_block) => {}
            }
        }
    }

    /// Types all of this.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            if let Ok(written) = ready.try_io(|own| Ok(write(own.get_ref(), bytes)?)) {
                bytes = &bytes[written?..];
            }
        }
        Ok(())
    }

    /// Changes its size; the programs in it learn so.
    pub(crate) fn resize(&self, size: Winsize) -> io::Result<()> {
        Ok(tcsetwinsize(&self.0, size)?)
    }

    /// Reads what is there now.
    pub(crate) fn read_now(&self, piece: &mut [u8]) -> io::Result<usize> {
        Ok(read(self.0.get_ref(), piece)?)
    }
}
