//! A descriptor of another library's, waited for by tokio.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use crate::sys;

/// A second descriptor of what somebody else reads.
pub struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Waits for what can be read from this descriptor, which stays the caller's.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        sys::watch(fd.as_fd().try_clone_to_owned()?).map(Self)
    }

    /// Waits until something may be there. Whoever has waited must read until nothing is: only what
    /// comes after that is told again.
    pub async fn wait(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
