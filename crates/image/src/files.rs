//! The store's own files and directories: made, locked, written as a whole, removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::halt::{Halt, Stop};

/// Bytes of a file that the store itself wrote.
const OWN_FILE_MAX_BYTES: u64 = 16 << 20;
/// How long one waits for a lock, or for another import of the same image.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(600);
pub(crate) const WAIT_STEP: Duration = Duration::from_millis(20);

/// A store that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses something.
    #[error("cannot {step} {path}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has been changed by somebody else.
    #[error("{path} is not as this program writes it; remove the image and load it again")]
    Record {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It was ended before its time.
    #[error(transparent)]
    Halt(#[from] Halt),
    /// Somebody else is at it.
    #[error("another process has been working at {path} for {} seconds", WAIT_MAX.as_secs())]
    Busy {
        /// Where.
        path: PathBuf,
    },
}

/// Adds to an error of the file system what was tried, and where.
pub(crate) fn at<T>(
    step: &'static str,
    path: &Path,
    result: Result<T, impl Into<io::Error>>,
) -> Result<T, StoreError> {
    let path = path.to_owned();
    result.map_err(|source| StoreError::Io { step, path, source: source.into() })
}

/// A file or directory that this process holds until the value ends.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// `None` if another one holds it.
    pub(crate) fn try_now(file: File, path: &Path) -> Result<Option<Self>, StoreError> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => at("lock", path, Err(error)),
        }
    }

    /// Waits until nobody else holds it, or until it is stopped.
    pub(crate) fn wait(path: &Path, stop: &Stop) -> Result<Self, StoreError> {
        let started = Instant::now();
        while started.elapsed() < WAIT_MAX {
            let file = File::options().create(true).truncate(false).write(true).open(path);
            if let Some(locked) = Self::try_now(at("open", path, file)?, path)? {
                return Ok(locked);
            }
            stop.look()?;
            thread::sleep(WAIT_STEP);
        }
        Err(StoreError::Busy { path: path.to_owned() })
    }

    /// Writes everything to the disk that lies in the same file system.
    pub(crate) fn sync_file_system(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.0)
    }
}

/// Makes a directory that only the caller can enter, and those above it.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
    at("make", path, DirBuilder::new().recursive(true).mode(0o700).create(path))
}

/// Removes a directory with all that is in it, or a file, if it is there.
pub(crate) fn remove_tree(path: &Path) -> Result<(), StoreError> {
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        other => other,
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => at("remove", path, other),
    }
}

/// Makes sure that a rename in a directory outlives a crash of the machine.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    at("write to the disk", path, File::open(path).and_then(|directory| directory.sync_all()))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|source| StoreError::Record { path: path.to_owned(), source })?;
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&text)?;
        file.sync_all()
    };
    at("write", path, write())
}

/// Reads a file of the store; `None` if there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => at("open", path, other)?,
    };
    let mut text = Vec::new();
    at("read", path, file.take(OWN_FILE_MAX_BYTES).read_to_end(&mut text))?;
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|source| StoreError::Record { path: path.to_owned(), source })
}
