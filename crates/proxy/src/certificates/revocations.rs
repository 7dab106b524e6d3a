//! The revocation list in its file.
//!
//! The file is looked at twice a second: ConfigMaps replace directories by links, which a stat
//! sees and a watch may not. A list that cannot be used leaves the one before it in force, and so
//! does a file that vanishes; only an empty file withdraws a list.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use ambit_tls::RevocationList;
use ambit_tls::revocation::RevocationError;

/// How often the file is looked at.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Largest file that is read.
const MAX_SIZE_BYTES: u64 = 16 << 20;

/// What the file says now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// What it said before.
    Same,
    /// Something else.
    Changed,
    /// It is gone.
    Vanished,
}

/// Why the file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// Reading failed.
    #[error("read the revocation list {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is too large.
    #[error("the revocation list {path} has {size} bytes; at most {MAX_SIZE_BYTES} are read")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
}

/// The file, and the last that was read from it.
#[derive(Debug)]
pub(super) struct RevocationFile {
    path: PathBuf,
    stamp: Option<(u64, u64, i64, i64)>,
    /// What is to be in force; empty for nothing.
    pem: String,
}

impl RevocationFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stamp: None, pem: String::new() }
    }

    /// What the supervisor kept counts until the file says something else.
    pub(super) fn restore(&mut self, pem: String) {
        self.pem = pem;
    }

    /// What is to be in force; empty for nothing.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Looks whether the file has changed, and reads it if so.
    pub(super) fn look(&mut self) -> Result<Seen, ReadError> {
        let failed = |source| ReadError::Read { path: self.path.clone(), source };
        let metadata = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let was_there = self.stamp.take().is_some();
                return Ok(if was_there { Seen::Vanished } else { Seen::Same });
            }
            Err(source) => return Err(failed(source)),
        };
        let stamp = (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if self.stamp == Some(stamp) {
            return Ok(Seen::Same);
        }
        self.stamp = Some(stamp);
        if metadata.len() > MAX_SIZE_BYTES {
            return Err(ReadError::Size { path: self.path.clone(), size: metadata.len() });
        }
        let pem = std::fs::read_to_string(&self.path).map_err(failed)?;
        if pem.trim() == self.pem.trim() {
            return Ok(Seen::Same);
        }
        self.pem = pem;
        Ok(Seen::Changed)
    }
}

/// Reads a list; an empty text is none.
pub(super) fn parse(pem: &str, signers_pem: &str) -> Result<RevocationList, RevocationError> {
    match pem.trim() {
        "" => Ok(RevocationList::none()),
        pem => RevocationList::from_pem(pem, signers_pem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_seen_and_a_vanished_file_changes_nothing() {
        let path = std::env::temp_dir().join(format!("ambit-crl-{}", std::process::id()));
        let mut file = RevocationFile::new(path.clone());
        assert_eq!(file.look().expect("looked"), Seen::Same);
        std::fs::write(&path, "one").expect("written");
        assert_eq!(file.look().expect("looked"), Seen::Changed);
        assert_eq!(file.pem(), "one");
        assert_eq!(file.look().expect("looked"), Seen::Same);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(file.look().expect("looked"), Seen::Vanished);
        assert_eq!(file.look().expect("looked"), Seen::Same);
        assert_eq!(file.pem(), "one");
        std::fs::write(&path, "").expect("written");
        assert_eq!(file.look().expect("looked"), Seen::Changed);
        assert_eq!(file.pem(), "");
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn an_empty_text_withdraws_and_nonsense_is_an_error() {
        assert!(parse(" \n", "").expect("withdrawn").is_empty());
        assert!(parse("nonsense", "").is_err());
    }
}
