//! Watches directories for changed files, and collects the changes for a short time.
//!
//! A burst of writes becomes one report, but a steady stream of them cannot delay it: the wait is
//! bounded from the first change on. New directories are watched, and what is already in them
//! counts as changed.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, timeout_at};

/// How long a change waits for others to join it.
const QUIET: Duration = Duration::from_millis(10);
/// How long a change waits at most.
const DELAY_MAX: Duration = Duration::from_millis(50);
/// Room for events that arrive while others are handled; the kernel says so when it had to drop
/// some.
const EVENT_BUFFER_SIZE_BYTES: usize = 16 << 10;

/// A watch that could not be set up or went away.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel has none left.
    #[error("cannot watch {path}; is fs.inotify.max_user_watches or max_user_instances too low?")]
    Add {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Events cannot be read any more.
    #[error("the watch on the registry broke")]
    Broken(#[source] io::Error),
}

/// A recursive watch.
pub(crate) struct Watch {
    roots: Vec<PathBuf>,
    events: EventStream<Vec<u8>>,
    directories: HashMap<WatchDescriptor, PathBuf>,
    changed: BTreeSet<PathBuf>,
    /// When the oldest of the changes was seen.
    since: Option<Instant>,
}

impl Watch {
    /// Watches these directories, creating them where they are missing. All present files count as
    /// changed.
    pub(crate) fn new(roots: &[PathBuf]) -> Result<Self, WatchError> {
        let inotify = Inotify::init().map_err(WatchError::Broken)?;
        let events = inotify
            .into_event_stream(vec![0; EVENT_BUFFER_SIZE_BYTES])
            .map_err(WatchError::Broken)?;
        let (directories, changed) = (HashMap::new(), BTreeSet::new());
        let mut watch = Self { roots: roots.to_vec(), events, directories, changed, since: None };
        watch.scan()?;
        Ok(watch)
    }

    /// Waits for changes and returns the paths of the files, each once.
    ///
    /// Dropping the future loses nothing and does not delay the answer: the next call continues the
    /// same wait.
    pub(crate) async fn changes(&mut self) -> Result<Vec<PathBuf>, WatchError> {
        while self.changed.is_empty() {
            self.one_event().await?;
        }
        let latest = *self.since.get_or_insert_with(Instant::now) + DELAY_MAX;
        loop {
            let quiet = (Instant::now() + QUIET).min(latest);
            match timeout_at(quiet, self.one_event()).await {
                Ok(outcome) => outcome?,
                Err(_elapsed) => break,
            }
        }
        self.since = None;
        Ok(std::mem::take(&mut self.changed).into_iter().collect())
    }

    async fn one_event(&mut self) -> Result<(), WatchError> {
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let event = self.events.next().await.ok_or_else(|| WatchError::Broken(gone()))?;
        let event = event.map_err(WatchError::Broken)?;
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            tracing::warn!("too many changes at once: reading the whole registry again");
            return self.scan();
        }
        if event.mask.contains(EventMask::IGNORED) {
            self.directories.remove(&event.wd);
            return Ok(());
        }
        let Some((directory, name)) = self.directories.get(&event.wd).zip(event.name) else {
            return Ok(());
        };
        let path = directory.join(name);
        if event.mask.contains(EventMask::ISDIR) {
            if event.mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) {
                self.add(&path)?;
            }
        } else {
            self.note(path);
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), WatchError> {
        for root in self.roots.clone() {
            fs::create_dir_all(&root)
                .map_err(|source| WatchError::Add { path: root.clone(), source })?;
            self.add(&root)?;
        }
        Ok(())
    }

    fn add(&mut self, directory: &Path) -> Result<(), WatchError> {
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::ONLYDIR;
        let failed = |source| WatchError::Add { path: directory.to_owned(), source };
        match self.events.watches().add(directory, mask) {
            Ok(descriptor) => self.directories.insert(descriptor, directory.to_owned()),
            // It went away again; its parent's watch has reported the files in it, or never needs
            // to.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        // Only now can nothing that is put there be missed.
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(failed)?,
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                self.add(&path)?;
            } else {
                self.note(path);
            }
        }
        Ok(())
    }

    fn note(&mut self, path: PathBuf) {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden {
            self.changed.insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_files_in_old_and_new_directories() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/old.json"), "1").unwrap();
        let mut watch = Watch::new(std::slice::from_ref(&root)).unwrap();
        assert_eq!(watch.changes().await.unwrap(), [root.join("a/old.json")]);

        crate::registry::replace_file(&root.join("b/c/new.json"), b"2").unwrap();
        let mut seen = Vec::new();
        while seen.is_empty() {
            seen = watch.changes().await.unwrap();
        }
        assert_eq!(seen, [root.join("b/c/new.json")]);

        fs::remove_file(root.join("a/old.json")).unwrap();
        assert_eq!(watch.changes().await.unwrap(), [root.join("a/old.json")]);
    }
}
