//! Sealed files in memory: how secrets and views pass between supervisor and workers.
//!
//! Sealed means that neither side can change the content afterwards, so a reader may check it once
//! and trust it. It never reaches a disk. Readers get the bytes in a buffer that is wiped when
//! dropped.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::sys::memory_file;

/// Largest content that [`Sealed::read`] accepts: a view of 100,000 workloads fits many times over.
pub const MAX_SIZE_BYTES: u64 = 1 << 30;

/// A file in memory whose content can never change again.
#[derive(Debug)]
pub struct Sealed(File);

impl Sealed {
    /// Writes `content` into a new file and seals it. `name` shows up in `/proc/*/fd` only.
    pub fn create(name: &str, content: &[u8]) -> io::Result<Self> {
        Self::write(name, |file| file.write_all(content))
    }

    /// A new file with what `content` writes, sealed.
    pub fn write(
        name: &str,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<Self> {
        let name = CString::new(name)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut file = memory_file::create(&name)?;
        content(&mut file)?;
        memory_file::seal(&file)?;
        Ok(Self(file))
    }

    /// Takes over a descriptor that came from another process, which must be fully sealed.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let unsealed =
            || io::Error::new(io::ErrorKind::InvalidInput, "not a fully sealed file in memory");
        let seals = memory_file::seals(&fd).map_err(|_| unsealed())?;
        if seals & memory_file::ALL_SEALS != memory_file::ALL_SEALS {
            return Err(unsealed());
        }
        Ok(Self(File::from(fd)))
    }

    /// The content. Independent of any file position, so it may be read many times and from many
    /// processes.
    pub fn read(&self) -> io::Result<Secret> {
        let size = self.0.metadata()?.len();
        if size > MAX_SIZE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "sealed file is over its size limit",
            ));
        }
        let size = usize::try_from(size).expect("MAX_SIZE_BYTES fits into usize");
        // Allocated once, in full: growing would leave copies behind.
        let mut content = Secret(vec![0; size]);
        self.0.read_exact_at(&mut content.0, 0)?;
        Ok(content)
    }

    /// Another descriptor for the same file.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Sealed> for OwnedFd {
    fn from(sealed: Sealed) -> Self {
        sealed.0.into()
    }
}

/// Bytes that are wiped when dropped and never shown.
pub struct Secret(Vec<u8>);

impl Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Secret({} bytes)", self.0.len())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}
