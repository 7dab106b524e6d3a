//! Files that are whole or absent: written beside their place, then renamed.
//!
//! Keys and tokens are readable by their owner only, from their first byte on. Nothing here may
//! leave a half-written file under its final name.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Mode of keys, tokens and ledgers.
pub(crate) const PRIVATE: u32 = 0o600;
/// Mode of certificates.
pub(crate) const PUBLIC: u32 = 0o644;

/// A file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}; check permissions and free space")]
pub struct FileError {
    /// What was tried.
    pub operation: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why it failed.
    pub source: io::Error,
}

/// Replaces the file at `path`.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), FileError> {
    let failed = |source| FileError { operation: "write", path: path.to_owned(), source };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(failed)
}

/// Replaces the file at `path` unless it already holds `contents`; answers whether it did.
pub(crate) fn update(path: &Path, contents: &[u8], mode: u32) -> Result<bool, FileError> {
    if fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(false);
    }
    replace(path, contents, mode).map(|()| true)
}

/// The file's contents, or nothing when it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError { operation: "read", path: path.to_owned(), source }),
    }
}

/// Removes the file if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError { operation: "remove", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Makes a directory, and those above it, for its owner only.
pub(crate) fn private_directory(path: &Path) -> Result<(), FileError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| FileError { operation: "make", path: path.to_owned(), source })
}
