//! What ends an import before its time: its caller, or a file system that is becoming full.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::Limits;

/// After so many bytes it is looked again: 16,384 entries of a layer take so many at least.
pub(crate) const LOOK_EVERY_BYTES: u64 = 8 << 20;

/// Ends imports from another thread. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends those that go on, and all that begin later.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn look(&self) -> Result<(), Halt> {
        if self.0.load(Ordering::Relaxed) { Err(Halt::Interrupted) } else { Ok(()) }
    }
}

/// Why an import has ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The caller ended it.
    #[error("it was interrupted")]
    Interrupted,
    /// The file system is too full for it.
    #[error(
        "{path} has {free_bytes} bytes free, and after {wanted_bytes} more it would be less than \
         the {kept_bytes} that Ambit leaves to others; make room, or choose a directory elsewhere \
         with --state"
    )]
    Room {
        /// The store.
        path: PathBuf,
        /// What its file system has.
        free_bytes: u64,
        /// What is known to come.
        wanted_bytes: u64,
        /// What must stay free.
        kept_bytes: u64,
    },
    /// The file system has too few files left.
    #[error(
        "the file system of {path} can take {free} more files, and Ambit leaves {kept} to others; \
         remove some, or choose a directory elsewhere with --state"
    )]
    Files {
        /// The store.
        path: PathBuf,
        /// How many it can take.
        free: u64,
        /// How many must be left.
        kept: u64,
    },
    /// The file system does not say.
    #[error("cannot see how much room is at {path}: {reason}")]
    Unknown {
        /// The store.
        path: PathBuf,
        /// What the kernel says.
        reason: String,
    },
}

/// Whether so many bytes may be written at a place; what must stay free there is left out.
pub(crate) fn room(path: &Path, wanted_bytes: u64, limits: &Limits) -> Result<(), Halt> {
    let path = path.to_owned();
    let found = match rustix::fs::statvfs(&path) {
        Ok(found) => found,
        Err(error) => return Err(Halt::Unknown { path, reason: error.to_string() }),
    };
    let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
    let total_bytes = found.f_blocks.saturating_mul(found.f_frsize);
    let kept_bytes = limits.kept_bytes.min(total_bytes / limits.kept_divisor.max(1));
    if free_bytes < wanted_bytes.saturating_add(kept_bytes) {
        return Err(Halt::Room { path, free_bytes, wanted_bytes, kept_bytes });
    }
    // Some file systems make room for files as they come, and count none.
    let (free, kept) = (found.f_favail, limits.kept_files.min(found.f_files / 4));
    if found.f_files > 0 && free < kept {
        return Err(Halt::Files { path, free, kept });
    }
    Ok(())
}

/// Looks, while an import goes on, whether it may.
#[derive(Debug)]
pub(crate) struct Guard<'g> {
    directory: &'g Path,
    limits: &'g Limits,
    stop: &'g Stop,
    unseen_bytes: Cell<u64>,
    halt: RefCell<Option<Halt>>,
}

impl<'g> Guard<'g> {
    pub(crate) fn new(directory: &'g Path, limits: &'g Limits, stop: &'g Stop) -> Self {
        let (unseen_bytes, halt) = (Cell::new(0), RefCell::new(None));
        Self { directory, limits, stop, unseen_bytes, halt }
    }

    /// Why it has ended, if that is why.
    pub(crate) fn halted(&self) -> Option<Halt> {
        self.halt.borrow().clone()
    }

    /// Looks now.
    pub(crate) fn look(&self) -> Result<(), Halt> {
        let looked = self.stop.look().and_then(|()| room(self.directory, 0, self.limits));
        if let Err(halt) = &looked {
            self.halt.replace(Some(halt.clone()));
        }
        looked
    }

    /// Looks for a stop at each piece of data, and for room now and then.
    fn pass(&self, bytes: u64) -> io::Result<()> {
        let unseen = self.unseen_bytes.get() + bytes;
        self.unseen_bytes.set(unseen);
        if self.stop.look().is_ok() && unseen < LOOK_EVERY_BYTES {
            return Ok(());
        }
        self.look().map_err(io::Error::other)?;
        self.unseen_bytes.set(0);
        Ok(())
    }

    /// Data that ends with an error when the import must end.
    pub(crate) fn over<R>(&self, inner: R) -> Guarded<'_, R> {
        Guarded { inner, guard: self }
    }
}

/// Data that is watched on its way.
pub(crate) struct Guarded<'g, R> {
    inner: R,
    guard: &'g Guard<'g>,
}

impl<R: Read> Read for Guarded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.guard.pass(count as u64)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_stay_free_is_a_share_with_a_bound() {
        let directory = tempfile::tempdir().unwrap();
        let check = |wanted: u64, kept_bytes: u64, kept_divisor: u64| {
            let limits = Limits { kept_bytes, kept_divisor, kept_files: 0, ..Limits::default() };
            room(directory.path(), wanted, &limits)
        };
        assert_eq!(check(0, 0, 1), Ok(()));
        assert!(matches!(check(0, u64::MAX, 1), Err(Halt::Room { .. })), "some of it is used");
        assert!(matches!(check(u64::MAX, 0, 1), Err(Halt::Room { .. })));
        assert_eq!(check(0, 1, 1), Ok(()), "the bound, and not the share");
        let error = check(7, u64::MAX, 1).unwrap_err().to_string();
        assert!(error.contains("after 7 more") && error.contains("--state"), "{error}");
    }

    #[test]
    fn data_ends_when_it_is_stopped() {
        let (directory, limits) = (tempfile::tempdir().unwrap(), Limits::default());
        let limits = Limits { kept_bytes: 0, kept_files: 0, ..limits };
        let stop = Stop::default();
        let guard = Guard::new(directory.path(), &limits, &stop);
        let mut data = guard.over(io::repeat(0));
        let mut piece = [0; 4096];
        for _ in 0..(3 * LOOK_EVERY_BYTES / 4096) {
            data.read_exact(&mut piece).unwrap();
        }
        assert_eq!(guard.halted(), None);
        stop.clone().stop();
        data.read_exact(&mut piece).unwrap_err();
        assert_eq!(guard.halted(), Some(Halt::Interrupted));
    }
}
