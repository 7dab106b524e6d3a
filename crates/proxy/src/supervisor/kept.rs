//! What the supervisor keeps for the next worker: the view as received, the revocation list,
//! certificates with their keys.
//!
//! Keys stay in sealed memory; the supervisor never reads them. Only a complete view is handed on:
//! half a view would let through what the other half forbids.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_net::memfd::Sealed;
use ambit_wire::proto::ambit::snapshot::{Delta, Snapshot};
use ambit_wire::xds::retained::{DeltaError, Retained};
use bytes::Bytes;
use prost::Message as _;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::config;
use crate::handover::{Message, ToWorker};
use crate::snapshot::{self, SnapshotError};

/// Shortest time between two writes of the snapshot.
const MIN_SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// A write may take at most this part of the time.
const SAVE_SHARE: u32 = 20;

/// Why something a worker sent was not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    /// The file cannot be read.
    #[error("read a sealed file from the worker")]
    Read(#[source] io::Error),
    /// The file is not what it should be.
    #[error("decode the worker's view; do supervisor and worker run the same version?")]
    Decode(#[source] prost::DecodeError),
    /// The view holds what this version does not know.
    #[error("the worker's view")]
    Delta(#[source] DeltaError),
    /// The list is no text.
    #[error("the worker's revocation list is not text")]
    Text,
}

/// Everything that outlives a worker.
pub(super) struct Kept {
    retained: Retained,
    /// Whether the view was ever received as a whole.
    complete: bool,
    crl_pem: String,
    certificates: BTreeMap<String, Arc<OwnedFd>>,
    confirmed: SystemTime,
    disk: Option<Disk>,
}

/// The snapshot on disk and when it is written next.
struct Disk {
    path: PathBuf,
    dirty: bool,
    not_before: Instant,
    saving: Option<JoinHandle<(Duration, Result<(), SnapshotError>)>>,
    /// What was there after this process read or wrote it last.
    seen: Arc<Mutex<Option<Stamp>>>,
}

/// Distinguishes a file from one that replaced it: inode and time of writing.
type Stamp = (u64, SystemTime);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.modified().ok()?))
}

impl Kept {
    /// What an earlier proxy left on disk, or nothing.
    pub(super) fn load(settings: &config::Snapshot, now: SystemTime) -> Self {
        let mut kept = Self {
            retained: Retained::default(),
            complete: false,
            crl_pem: String::new(),
            certificates: BTreeMap::new(),
            confirmed: now,
            disk: None,
        };
        let config::Snapshot::File { path, max_age } = settings else { return kept };
        kept.disk = Some(Disk {
            path: path.clone(),
            dirty: false,
            not_before: Instant::now(),
            saving: None,
            seen: Arc::new(Mutex::new(stamp(path))),
        });
        match snapshot::load(path, *max_age, now) {
            Ok(Some(snapshot)) => kept.take(snapshot),
            Ok(None) => {}
            Err(error) => {
                let error = anyhow::Error::new(error);
                warn!(error = format!("{error:#}"), "the snapshot is not used");
            }
        }
        kept
    }

    fn take(&mut self, snapshot: Snapshot) {
        let (crl_pem, resources) = (snapshot.crl_pem.clone(), snapshot.resources.len());
        let created = Duration::from_secs(u64::try_from(snapshot.created_unix).unwrap_or_default());
        match Retained::from_snapshot(snapshot) {
            Ok(retained) => {
                self.retained = retained;
                self.crl_pem = crl_pem;
                self.complete = true;
                // Written again, it is as old as it was.
                self.confirmed = UNIX_EPOCH + created;
                info!(resources, "starting from the snapshot on disk");
            }
            Err(error) => warn!(%error, "the snapshot is not used"),
        }
    }

    /// A worker's view changed, or is confirmed.
    pub(super) fn keep_view(&mut self, file: &Sealed, complete: bool) -> Result<(), KeepError> {
        let content = file.read().map_err(KeepError::Read)?;
        let delta = Delta::decode(Bytes::copy_from_slice(&content)).map_err(KeepError::Decode)?;
        self.retained.apply(delta).map_err(KeepError::Delta)?;
        self.complete |= complete;
        self.confirmed = SystemTime::now();
        self.mark_dirty();
        Ok(())
    }

    /// A worker put a revocation list in force.
    pub(super) fn keep_revocations(&mut self, file: &Sealed) -> Result<(), KeepError> {
        let content = file.read().map_err(KeepError::Read)?;
        self.crl_pem = std::str::from_utf8(&content).map_err(|_| KeepError::Text)?.to_owned();
        self.mark_dirty();
        Ok(())
    }

    /// A worker obtained a certificate.
    pub(super) fn keep_certificate(&mut self, identity: String, file: Sealed) {
        self.certificates.insert(identity, Arc::new(file.into()));
    }

    /// Drops the certificate of an identity that no pod uses any more.
    pub(super) fn forget_certificate(&mut self, identity: &str) {
        self.certificates.remove(identity);
    }

    /// The messages for a new worker.
    pub(super) fn messages(&self) -> io::Result<Vec<Message<ToWorker>>> {
        let mut messages = Vec::with_capacity(self.certificates.len() + 1);
        if self.complete {
            let view = Sealed::write("view", |file| self.write(file))?;
            messages.push(Message::with_file(ToWorker::View, view));
        }
        messages.extend(
            self.certificates
                .values()
                .map(|file| Message { header: ToWorker::Certificate, fds: vec![file.clone()] }),
        );
        Ok(messages)
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let created = snapshot::unix_seconds(self.confirmed);
        self.retained.write(self.crl_pem.clone(), created, to)
    }

    fn mark_dirty(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.dirty = true;
        }
    }

    /// Starts to write the snapshot if it is due; to be called about once a second.
    pub(super) async fn save_if_due(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        if disk.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        if let Some(saving) = disk.saving.take() {
            let (took, outcome) = saving.await.expect("writing a snapshot does not panic");
            disk.not_before = Instant::now() + (took * SAVE_SHARE).max(MIN_SAVE_INTERVAL);
            report(outcome);
        }
        if !disk.dirty || !self.complete || Instant::now() < disk.not_before {
            return;
        }
        disk.dirty = false;
        let path = disk.path.clone();
        // Compressed as it is: to open it takes a while.
        let (retained, crl_pem) = (self.retained.clone(), self.crl_pem.clone());
        let created = snapshot::unix_seconds(self.confirmed);
        let seen = disk.seen.clone();
        let saving = tokio::task::spawn_blocking(move || {
            let start = std::time::Instant::now();
            let outcome = snapshot::save(&path, |file| retained.write(crl_pem, created, file));
            *seen.lock().expect("no holder panics") = stamp(&path);
            (start.elapsed(), outcome)
        });
        if let Some(disk) = &mut self.disk {
            disk.saving = Some(saving);
        }
    }

    /// Writes pending changes. Blocks on the disk; for the end of the process.
    pub(super) async fn save_last(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        if let Some(saving) = disk.saving.take() {
            report(saving.await.expect("writing a snapshot does not panic").1);
        }
        if disk.dirty && self.complete {
            disk.dirty = false;
            let path = disk.path.clone();
            report(snapshot::save(&path, |file| self.write(file)));
        }
    }

    /// Removes the written file, unless another proxy has replaced it; nothing is written any more.
    /// Blocks on the disk; for the end of the process.
    pub(super) async fn clear_disk(&mut self) {
        let Some(disk) = self.disk.take() else { return };
        if let Some(saving) = disk.saving {
            report(saving.await.expect("writing a snapshot does not panic").1);
        }
        let seen = *disk.seen.lock().expect("no holder panics");
        if stamp(&disk.path) != seen {
            return;
        }
        match std::fs::remove_file(&disk.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!(%error, path = %disk.path.display(), "the snapshot cannot be removed");
            }
            _ => {}
        }
    }
}

fn report(outcome: Result<(), SnapshotError>) {
    if let Err(error) = outcome {
        let error = anyhow::Error::new(error);
        warn!(
            error = format!("{error:#}"),
            "the snapshot is not written; the next change tries again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, created_unix: i64) {
        let empty = Retained::default();
        snapshot::save(path, |file| empty.write(String::new(), created_unix, file))
            .expect("written");
    }

    #[test]
    fn a_view_from_the_disk_is_as_old_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("snapshot");
        let now = SystemTime::now();
        let created_unix = snapshot::unix_seconds(now) - 3600;
        put(&path, created_unix);
        let max_age = Duration::from_secs(86_400);
        let kept = Kept::load(&config::Snapshot::File { path, max_age }, now);
        assert!(kept.complete);
        let mut written = Vec::new();
        kept.write(&mut written).expect("memory takes it");
        let written = Snapshot::decode(&*written).expect("a snapshot");
        assert_eq!(written.created_unix, created_unix);
    }

    #[tokio::test]
    async fn a_successors_file_outlives_the_end_of_the_one_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("snapshot");
        let now = SystemTime::now();
        let created_unix = snapshot::unix_seconds(now);
        let settings =
            config::Snapshot::File { path: path.clone(), max_age: Duration::from_secs(86_400) };
        for is_followed in [false, true] {
            put(&path, created_unix);
            let mut kept = Kept::load(&settings, now);
            kept.mark_dirty();
            kept.save_if_due().await;
            // Waits for what is being written.
            kept.save_last().await;
            if is_followed {
                put(&path, created_unix);
            }
            kept.clear_disk().await;
            assert_eq!(path.exists(), is_followed);
        }
    }
}
