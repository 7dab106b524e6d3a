//! The revocation list in its file.
//!
//! The file is looked at twice a second: ConfigMaps replace directories by links, which a stat
//! sees and a watch may not. A list that cannot be used leaves the one before it in force, and so
//! does one that is older by its number, and a file that vanishes; only an empty file withdraws a
//! list.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use ambit_tls::RevocationList;
use ambit_tls::certificate::Issuer;
use ambit_tls::revocation::{self, RevocationError};

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

/// A list that was replaced by an older one.
#[derive(Debug, thiserror::Error)]
#[error(
    "the revocation list {path} of {issuer} has a smaller CRL number than the one in force; \
     its numbers must only grow; restart the proxy with an empty file to begin again"
)]
pub(super) struct Older {
    path: PathBuf,
    issuer: Issuer,
}

/// The file, and the last that was read from it.
#[derive(Debug)]
pub(super) struct RevocationFile {
    path: PathBuf,
    stamp: Option<(u64, u64, i64, i64)>,
    /// What is to be in force; empty for nothing.
    pem: String,
    /// What is in force, or was when the worker before ended.
    in_force: String,
}

impl RevocationFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stamp: None, pem: String::new(), in_force: String::new() }
    }

    /// What the supervisor kept counts until the file says something else.
    pub(super) fn restore(&mut self, pem: String) {
        self.in_force.clone_from(&pem);
        self.pem = pem;
    }

    /// What the file says, or what was kept, is in force now.
    pub(super) fn accept(&mut self) {
        self.in_force.clone_from(&self.pem);
    }

    /// What is to be in force: the text that is there, unless a list of it is older than the one
    /// that is in force. Then that one stays, and what is wrong is told besides.
    pub(super) fn parse(
        &mut self,
        signers_pem: &str,
    ) -> Result<(RevocationList, Option<Older>), RevocationError> {
        let list = parse(&self.pem, signers_pem)?;
        if self.pem == self.in_force {
            return Ok((list, None));
        }
        // One that can no longer be read was signed by an authority that is not trusted any more.
        let readable = |block: &&str| RevocationList::from_pem(block, signers_pem).is_ok();
        let kept: String = revocation::blocks(&self.in_force).filter(readable).collect();
        let before = parse(&kept, signers_pem)?;
        let Some(issuer) = list.goes_back(&before).cloned() else { return Ok((list, None)) };
        let path = self.path.clone();
        self.pem = kept;
        Ok((before, Some(Older { path, issuer })))
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
fn parse(pem: &str, signers_pem: &str) -> Result<RevocationList, RevocationError> {
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
    fn an_older_list_brings_nothing_back() {
        use std::time::SystemTime;

        use ambit_tls::{Authority, AuthorityBundle};

        let now = SystemTime::now();
        let bundle =
            || AuthorityBundle::new(Authority::generate("cluster.local", now).expect("a root"));
        let (ours, next) = (bundle(), bundle());
        let list = |of: &AuthorityBundle, serials: &[&str], number: u64| {
            let serials: Vec<_> =
                serials.iter().map(|serial| serial.parse().expect("a serial")).collect();
            of.revoke_as(&serials, number, now, Duration::from_secs(600)).expect("signed")
        };
        let path = std::env::temp_dir().join(format!("ambit-crl-older-{}", std::process::id()));
        // A worker that starts anew has what the one before had, and sees the file only then.
        let mut file = RevocationFile::new(path.clone());
        file.restore(list(&ours, &["0a", "0b"], 7));
        let mut check = |text: &str, signers: &AuthorityBundle, expected: usize, is_older: bool| {
            std::fs::write(&path, text).expect("written");
            file.stamp = None;
            file.look().expect("looked");
            let (list, older) = file.parse(&signers.roots_pem()).expect("signed");
            assert_eq!((list.len(), older.is_some()), (expected, is_older), "{older:?}");
            file.accept();
        };
        check(&list(&ours, &["0a"], 6), &ours, 2, true);
        check(&list(&ours, &[], 6), &ours, 2, true);
        check(&list(&ours, &["0a"], 7), &ours, 1, false);
        check(&list(&ours, &["0a", "0b", "0c"], 8), &ours, 3, false);
        check(&list(&ours, &["0a", "0b"], 7), &ours, 3, true);
        check(&list(&next, &["0d"], 1), &next, 1, false);
        check("", &next, 0, false);
        // A rotation ends: of two lists in force one can no longer be read, and the other counts.
        let both = format!("{}{}", list(&ours, &["0a", "0b"], 9), list(&next, &["0d", "0e"], 9));
        let mut of_both = RevocationFile::new(path.clone());
        of_both.restore(both);
        std::fs::write(&path, list(&next, &["0d"], 8)).expect("written");
        of_both.look().expect("looked");
        let (kept, older) = of_both.parse(&next.roots_pem()).expect("signed");
        assert_eq!((kept.len(), older.is_some()), (2, true));
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn an_empty_text_withdraws_and_nonsense_is_an_error() {
        assert!(parse(" \n", "").expect("withdrawn").is_empty());
        assert!(parse("nonsense", "").is_err());
    }
}
