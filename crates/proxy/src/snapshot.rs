//! The last view on disk, so that a proxy starts without the control plane.
//!
//! Only its owner may read the file (0600). It is replaced as a whole, and refused when it is too
//! old: its policies and revocations may be outdated. It never holds keys.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_wire::proto::ambit::snapshot::Snapshot;
use bytes::Bytes;
use prost::Message as _;

/// Largest file that is read: many times a view of 100,000 workloads.
const MAX_SIZE_BYTES: u64 = 1 << 30;
/// A file this far from the future is a wrong clock, not an attack on the maximum age.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(300);

/// Why a snapshot is not used, or was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// Reading failed.
    #[error("read the snapshot {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Writing failed.
    #[error("write the snapshot {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others could have changed it.
    #[error(
        "the snapshot {path} has mode {mode:o} and owner {owner}; only the proxy's own user may \
         have access (chmod 600)"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
    },
    /// It is no snapshot.
    #[error("the snapshot {path} cannot be decoded")]
    Decode {
        /// The file.
        path: PathBuf,
        /// Where it is wrong.
        #[source]
        source: prost::DecodeError,
    },
    /// It is larger than any snapshot.
    #[error("the snapshot {path} has {size} bytes, more than the {MAX_SIZE_BYTES} that are read")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
    },
    /// It is too old, or from the future.
    #[error(
        "the snapshot {path} was written {age_seconds} s ago, outside of the {max_seconds} s \
         allowed (--snapshot-max-age)"
    )]
    Age {
        /// The file.
        path: PathBuf,
        /// How old it is; negative from the future.
        age_seconds: i64,
        /// How old it may be.
        max_seconds: u64,
    },
}

/// Reads a snapshot; `None` when there is none.
pub(crate) fn load(
    path: &Path,
    max_age: Duration,
    now: SystemTime,
) -> Result<Option<Snapshot>, SnapshotError> {
    let failed = |source| SnapshotError::Read { path: path.to_owned(), source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let metadata = file.metadata().map_err(failed)?;
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    if mode & 0o077 != 0 || owner != ambit_net::sys::process::effective_uid() {
        return Err(SnapshotError::Exposed { path: path.to_owned(), mode, owner });
    }
    if metadata.len() > MAX_SIZE_BYTES {
        return Err(SnapshotError::Size { path: path.to_owned(), size: metadata.len() });
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let decoded = Snapshot::decode(Bytes::from(bytes));
    let snapshot =
        decoded.map_err(|source| SnapshotError::Decode { path: path.to_owned(), source })?;
    let age_seconds = unix_seconds(now).saturating_sub(snapshot.created_unix);
    let max_seconds = max_age.as_secs();
    let oldest = i64::try_from(max_seconds).unwrap_or(i64::MAX);
    let newest = -(CLOCK_TOLERANCE.as_secs() as i64);
    if !(newest..=oldest).contains(&age_seconds) {
        return Err(SnapshotError::Age { path: path.to_owned(), age_seconds, max_seconds });
    }
    Ok(Some(snapshot))
}

/// Replaces the snapshot as a whole by what `content` writes. Blocks on the disk.
pub(crate) fn save(
    path: &Path,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), SnapshotError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = write_new(&temporary, content);
    let replaced = written.and_then(|()| fs::rename(&temporary, path));
    replaced.map_err(|source| {
        // What is left of a failed attempt helps nobody; the error that counts is the first.
        drop(fs::remove_file(&temporary));
        SnapshotError::Write { path: path.to_owned(), source }
    })
}

fn write_new(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    content(&mut file)?;
    file.sync_all()
}

/// Seconds since 1970, as snapshots count.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn in_directory(test: impl FnOnce(&Path)) {
        let directory = tempfile::tempdir().expect("a directory");
        test(&directory.path().join("snapshot"));
    }

    fn snapshot(now: SystemTime) -> Snapshot {
        let crl_pem = "list".to_owned();
        Snapshot { resources: Vec::new(), crl_pem, created_unix: unix_seconds(now) }
    }

    fn put(path: &Path, snapshot: &Snapshot) {
        save(path, |file| file.write_all(&snapshot.encode_to_vec())).expect("saved");
    }

    #[test]
    fn what_was_saved_is_loaded_until_it_is_too_old() {
        in_directory(|path| {
            let now = SystemTime::now();
            assert!(load(path, DAY, now).expect("nothing there").is_none());
            put(path, &snapshot(now));
            let mode = fs::metadata(path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(load(path, DAY, now + DAY).expect("in date"), Some(snapshot(now)));
            let late = load(path, DAY, now + DAY + Duration::from_secs(1));
            assert!(
                matches!(late, Err(SnapshotError::Age { age_seconds: 86_401, .. })),
                "{late:?}"
            );
            let early = load(path, DAY, now - DAY);
            assert!(matches!(early, Err(SnapshotError::Age { .. })), "{early:?}");
        });
    }

    #[test]
    fn a_file_that_others_may_touch_is_refused() {
        in_directory(|path| {
            let now = SystemTime::now();
            put(path, &snapshot(now));
            fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("chmod");
            let exposed = load(path, DAY, now);
            assert!(matches!(exposed, Err(SnapshotError::Exposed { mode: 0o640, .. })));
        });
    }

    #[test]
    fn damage_is_an_error_and_the_next_save_repairs_it() {
        in_directory(|path| {
            let now = SystemTime::now();
            write_new(path, |file| file.write_all(b"\xff\xff\xff")).expect("written");
            assert!(matches!(load(path, DAY, now), Err(SnapshotError::Decode { .. })));
            put(path, &snapshot(now));
            assert!(load(path, DAY, now).expect("repaired").is_some());
        });
    }
}
