//! The registry of one machine: a directory of objects, watched.
//!
//! `registry/objects/<plural>/<namespace or _>/<name>.json` are the objects, `registry/status/pods`
//! the nodes' reports, `registry/captured` the pods that agents captured, `registry/uncaptured` why
//! they could not capture others. Writers replace files by renaming, so a file is never half
//! written. Changes are collected for a short time that churn cannot extend. An object that cannot
//! be read keeps its last good version and is reported; a deleted file is a deleted object. Nothing
//! here ever writes to the registry.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use ambit_manifest::{Kind, ObjectKey, Typed, stored};
use ambit_net::readable::Readable;
use ambit_wire::capture::Obstacle;
use ambit_words::annotations::LAST_APPLIED;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::{Batch, CaptureNotes, Event, GATHER_MAX, KINDS, PodStatus};

/// Most changed paths in one batch.
const BATCH_MAX: usize = 50_000;
/// Room for inotify's answers: some hundreds of events at a time.
const BUFFER_SIZE_BYTES: usize = 64 << 10;
/// Largest file that is read; Kubernetes' own limit for an object is 1.5 MiB.
const FILE_SIZE_MAX_BYTES: u64 = 4 << 20;
/// Why the registry cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The directory is not there, or cannot be read.
    #[error(
        "there is no registry at {path}; check `--registry`: it is the registry directory of a \
         machine that runs, or a directory made for it"
    )]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// A directory cannot be made or listed.
    #[error("cannot read the registry directory {path}; check `--registry` and its permissions")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not watch.
    #[error("cannot watch the registry; raise fs.inotify.max_user_instances or max_user_watches")]
    Watch(#[source] io::Error),
    /// A watch of the API server ended, which it never does by itself.
    #[error("a watch of the API server broke; see the log")]
    Broken,
}

/// What one file of the registry is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Object(ObjectKey),
    PodStatus { namespace: String, name: String },
    Captured { namespace: String, name: String },
    Uncaptured { namespace: String, name: String },
}

/// A watched directory of objects.
pub(crate) struct FilesRegistry {
    root: PathBuf,
    inotify: Inotify,
    readable: Readable,
    watched: HashMap<WatchDescriptor, PathBuf>,
    noted: Noted,
    /// Files that could not be read; a mark tries them again.
    failed: BTreeSet<PathBuf>,
    /// Hash of each file's contents as it was last read.
    known: BTreeMap<PathBuf, [u8; 32]>,
}

/// What the kernel has said of changes that are not read yet.
#[derive(Default)]
struct Noted {
    paths: BTreeSet<PathBuf>,
    /// The kernel has lost count: anything may have changed.
    is_lost: bool,
}

impl FilesRegistry {
    /// Watches `root` and reads all of it.
    pub(crate) fn open(root: &Path) -> Result<(Self, Vec<Event>), RegistryError> {
        // Made here, a misspelt path would look like a mesh without objects.
        let missing = |source| RegistryError::Missing { path: root.to_owned(), source };
        std::fs::read_dir(root).map_err(missing)?;
        let inotify = Inotify::init().map_err(RegistryError::Watch)?;
        let readable = Readable::of(&inotify).map_err(RegistryError::Watch)?;
        let (root, watched) = (root.to_owned(), HashMap::new());
        let (noted, known) = (Noted::default(), BTreeMap::new());
        let failed = BTreeSet::new();
        let mut registry = Self { root, inotify, readable, watched, noted, failed, known };
        let events = registry.rescan()?;
        Ok((registry, events))
    }

    /// Sends what changes, until the receiver is gone or the kernel stops watching. Whenever
    /// `marks` has grown, everything that was there by then is sent together with the mark.
    pub(crate) async fn run(
        mut self,
        mut marks: watch::Receiver<u64>,
        batches: mpsc::Sender<Batch>,
    ) -> Result<(), RegistryError> {
        let mut is_marked = true;
        loop {
            let mark = tokio::select! {
                gathered = self.gather() => {
                    gathered?;
                    None
                }
                marked = marks.changed(), if is_marked => {
                    is_marked = marked.is_ok();
                    let mark = *marks.borrow_and_update();
                    // The kernel notes a change before whoever made it goes on, and so before the
                    // mark was set.
                    self.note_all()?;
                    self.noted.paths.append(&mut self.failed);
                    is_marked.then_some(mark)
                }
            };
            let events = self.read_noted()?;
            let is_news = !events.is_empty() || mark.is_some();
            if is_news && batches.send(Batch { events, mark }).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Notes what changes until [`GATHER_MAX`] after the first change. May be dropped at any time.
    async fn gather(&mut self) -> Result<(), RegistryError> {
        let mut deadline = None;
        while self.noted.paths.len() < BATCH_MAX {
            match deadline {
                None => self.note_next().await?,
                Some(deadline) => match timeout_at(deadline, self.note_next()).await {
                    Ok(noted) => noted?,
                    Err(_) => break,
                },
            }
            deadline = deadline.or_else(|| Some(Instant::now() + GATHER_MAX));
        }
        Ok(())
    }

    /// Waits for the kernel, and notes what it says.
    async fn note_next(&mut self) -> Result<(), RegistryError> {
        self.readable.wait().await.map_err(RegistryError::Watch)?;
        self.note_all()
    }

    /// Notes all that the kernel says by now.
    fn note_all(&mut self) -> Result<(), RegistryError> {
        let mut buffer = [0; BUFFER_SIZE_BYTES];
        loop {
            if self.noted.paths.len() >= BATCH_MAX {
                // To read everything costs less than to note more.
                self.noted = Noted { paths: BTreeSet::new(), is_lost: true };
                return Ok(());
            }
            match self.inotify.read_events(&mut buffer) {
                Ok(events) => {
                    for event in events {
                        self.note(&event);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(RegistryError::Watch(error)),
            }
        }
    }

    /// Notes the path that `event` is about.
    fn note(&mut self, event: &inotify::Event<&OsStr>) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            self.noted.is_lost = true;
        } else if event.mask.contains(EventMask::IGNORED) {
            let gone = self.watched.remove(&event.wd);
            // Nothing watches what is above the directories of the kinds.
            self.noted.is_lost |= gone.is_some_and(|it| tops().any(|top| *top == *it));
        } else if let (Some(directory), Some(name)) = (self.watched.get(&event.wd), event.name) {
            self.noted.paths.insert(directory.join(name));
        }
    }

    /// Reads what is noted.
    fn read_noted(&mut self) -> Result<Vec<Event>, RegistryError> {
        let Noted { paths, is_lost } = std::mem::take(&mut self.noted);
        if is_lost { self.rescan() } else { self.read_all(&paths) }
    }

    /// Reads everything, and reports what is gone.
    fn rescan(&mut self) -> Result<Vec<Event>, RegistryError> {
        let mut found = BTreeSet::new();
        for directory in tops() {
            let path = self.root.join(&directory);
            let failed = |source| RegistryError::Directory { path: path.clone(), source };
            std::fs::create_dir_all(&path).map_err(failed)?;
            self.scan(&directory, &mut found)?;
        }
        found.extend(self.known.keys().cloned());
        Ok(self.read_files(&found))
    }

    /// Watches `directory` and all below, then lists the files there: in this order, so that none
    /// is missed.
    fn scan(
        &mut self,
        directory: &Path,
        found: &mut BTreeSet<PathBuf>,
    ) -> Result<(), RegistryError> {
        let path = self.root.join(directory);
        let mask = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ONLYDIR;
        let entries = match self.inotify.watches().add(&path, mask) {
            Ok(watch) => {
                self.watched.insert(watch, directory.to_owned());
                std::fs::read_dir(&path)
            }
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(RegistryError::Watch(error)),
        };
        let failed = |source| RegistryError::Directory { path: path.clone(), source };
        let entries = match entries {
            Err(error) if is_gone(&error) => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let child = directory.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.scan(&child, found)?;
            } else {
                found.insert(child);
            }
        }
        Ok(())
    }

    /// Reads what changed: files, and directories that came or went.
    fn read_all(&mut self, paths: &BTreeSet<PathBuf>) -> Result<Vec<Event>, RegistryError> {
        let mut files = BTreeSet::new();
        for path in paths {
            if self.root.join(path).is_dir() {
                self.scan(path, &mut files)?;
            } else {
                files.insert(path.clone());
            }
            // A directory that went takes all its files with it.
            let below = self.known.range(path.clone()..).map(|(known, _)| known);
            files.extend(below.take_while(|known| known.starts_with(path)).cloned());
        }
        Ok(self.read_files(&files))
    }

    fn read_files(&mut self, files: &BTreeSet<PathBuf>) -> Vec<Event> {
        let mut events = Vec::new();
        for path in files {
            let Some(subject) = subject(path) else { continue };
            match read_bounded(&self.root.join(path)) {
                Ok(contents) => {
                    let hash = Sha256::digest(&contents).into();
                    if self.known.get(path) == Some(&hash) {
                        continue;
                    }
                    match put(&subject, &contents) {
                        Ok(event) => {
                            self.known.insert(path.clone(), hash);
                            events.push(event);
                        }
                        Err(problem) => tracing::error!(
                            path = %path.display(),
                            problem,
                            "object of the registry cannot be used, its last good version stays",
                        ),
                    }
                }
                Err(error) if is_gone(&error) => {
                    if self.known.remove(path).is_some() {
                        events.push(gone(subject));
                    }
                }
                Err(error) => {
                    self.failed.insert(path.clone());
                    tracing::error!(
                        path = %path.display(),
                        %error,
                        "file of the registry cannot be read, its last good version stays",
                    );
                }
            }
        }
        events
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut contents = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_SIZE_MAX_BYTES + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > FILE_SIZE_MAX_BYTES {
        let mebibytes = FILE_SIZE_MAX_BYTES >> 20;
        return Err(io::Error::other(format!("larger than {mebibytes} MiB")));
    }
    Ok(contents)
}

/// What a path, relative to the registry, is about; `None` for anything that is not a file of ours.
fn subject(path: &Path) -> Option<Subject> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
    if parts.last()?.starts_with('.') {
        return None;
    }
    match parts[..] {
        ["objects", plural, namespace, file] => {
            let kind = Kind::from_plural(plural)?;
            let name = file.strip_suffix(".json")?;
            Some(Subject::Object(ObjectKey::new(kind, namespace, name)))
        }
        ["status", "pods", namespace, file] => Some(Subject::PodStatus {
            namespace: namespace.to_owned(),
            name: file.strip_suffix(".json")?.to_owned(),
        }),
        ["captured", namespace, name] => {
            Some(Subject::Captured { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        ["uncaptured", namespace, name] => {
            Some(Subject::Uncaptured { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => None,
    }
}

/// The directories in which everything is.
fn tops() -> impl Iterator<Item = PathBuf> {
    let objects = KINDS.map(|kind| Path::new("objects").join(kind.plural()));
    objects.into_iter().chain(["status/pods", "captured", "uncaptured"].map(PathBuf::from))
}

fn put(subject: &Subject, contents: &[u8]) -> Result<Event, String> {
    match subject {
        Subject::Object(key) => {
            let typed = object(key.kind, contents).map_err(|error| error.to_string())?;
            let named = typed.key();
            if named != *key {
                return Err(format!("the object calls itself {named}"));
            }
            Ok(Event::Put(typed))
        }
        Subject::PodStatus { namespace, name } => {
            let status: PodStatus =
                serde_json::from_slice(contents).map_err(|error| error.to_string())?;
            Ok(Event::PodStatus {
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
                status: Some(status),
            })
        }
        Subject::Captured { namespace, name } => {
            let text = std::str::from_utf8(contents).map_err(|error| error.to_string())?;
            let mut lines = text.trim().lines();
            Ok(Event::Captured {
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
                uid: Some(lines.next().unwrap_or_default().into()),
                notes: CaptureNotes::read(lines.next(), lines.next()),
            })
        }
        Subject::Uncaptured { namespace, name } => {
            let text = std::str::from_utf8(contents).map_err(|error| error.to_string())?;
            let (uid, line) = text.split_once('\n').ok_or("no line after the uid")?;
            let obstacle = line.parse::<Obstacle>().map_err(|error| error.to_string())?;
            Ok(Event::Uncaptured {
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
                obstacle: Some((uid.into(), obstacle)),
            })
        }
    }
}

/// An object without the manifest that it remembers: nothing here reads it, and that of a Secret
/// has its values.
fn object(kind: Kind, contents: &[u8]) -> Result<Typed, serde_json::Error> {
    let typed = stored(kind, contents)?;
    let annotations = typed.metadata().annotations.as_ref();
    if !annotations.is_some_and(|it| it.contains_key(LAST_APPLIED)) {
        return Ok(typed);
    }
    let mut value: Value = serde_json::from_slice(contents)?;
    let annotations = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.and_then(|it| it.remove(LAST_APPLIED));
    stored(kind, value.to_string().as_bytes())
}

fn gone(subject: Subject) -> Event {
    match subject {
        Subject::Object(key) => Event::Delete(key),
        Subject::PodStatus { namespace, name } => {
            Event::PodStatus { namespace: namespace.into(), name: name.into(), status: None }
        }
        Subject::Captured { namespace, name } => {
            let (namespace, name) = (namespace.into(), name.into());
            Event::Captured { namespace, name, uid: None, notes: CaptureNotes::default() }
        }
        Subject::Uncaptured { namespace, name } => {
            Event::Uncaptured { namespace: namespace.into(), name: name.into(), obstacle: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Longest wait for an event that must come.
    const PATIENCE: Duration = Duration::from_secs(10);

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("ambit-registry-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).expect("a scratch directory");
            Self(path)
        }

        /// Replaces a file as the machine does: written beside, then renamed.
        fn write(&self, path: &str, contents: &str) {
            let path = self.0.join(path);
            let directory = path.parent().expect("a file in a directory");
            std::fs::create_dir_all(directory).expect("a directory");
            let beside = directory.join(".writing");
            std::fs::write(&beside, contents).expect("a file");
            std::fs::rename(&beside, &path).expect("a file");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn namespace(name: &str, label: &str) -> String {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"x": label}},
        })
        .to_string()
    }

    fn names(events: &[Event]) -> Vec<String> {
        let name = |event: &Event| match event {
            Event::Put(typed) => format!("+{}", typed.key()),
            Event::Delete(key) => format!("-{key}"),
            Event::PodStatus { namespace, name, status } => {
                format!("status {namespace}/{name} {}", status.is_some())
            }
            Event::Uncaptured { namespace, name, obstacle } => {
                format!("uncaptured {namespace}/{name} {obstacle:?}")
            }
            Event::Captured { namespace, name, uid, .. } => {
                format!("captured {namespace}/{name} {}", uid.as_deref().unwrap_or("-"))
            }
            Event::IssuerKeys(source, _) => format!("keys {source}"),
        };
        events.iter().map(name).collect()
    }

    #[test]
    fn paths_name_what_they_are_about() {
        for (path, expected) in [
            ("objects/pods/shop/web.json", Some("Pod shop/web")),
            ("objects/nodes/_/node-1.json", Some("Node node-1")),
            ("objects/pods/shop/.web.json", None),
            ("objects/pods/shop/web.json.tmp", None),
            ("objects/unknown/shop/web.json", None),
            ("objects/pods/web.json", None),
        ] {
            let got = match subject(Path::new(path)) {
                Some(Subject::Object(key)) => Some(key.to_string()),
                _ => None,
            };
            assert_eq!(got.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn the_manifest_that_an_object_remembers_is_left_out() {
        let secret = |annotations: Value| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Secret", "data": {"a": "YQ=="},
                "metadata": {"name": "s", "namespace": "shop", "annotations": annotations},
            })
            .to_string()
        };
        let applied = secret(serde_json::json!({LAST_APPLIED: "{\"data\": {}}", "a": "1"}));
        let subject = Subject::Object(ObjectKey::new(Kind::Secret, "shop", "s"));
        let Ok(Event::Put(read)) = put(&subject, applied.as_bytes()) else { panic!("an object") };
        let without = stored(Kind::Secret, secret(serde_json::json!({"a": "1"})).as_bytes());
        assert_eq!(read, without.expect("an object"));
    }

    #[tokio::test]
    async fn a_registry_that_is_not_there_is_refused_and_not_made() {
        let scratch = Scratch::new("missing");
        let path = scratch.0.join("wrong");
        let error = FilesRegistry::open(&path).err().expect("refused").to_string();
        assert!(error.contains("wrong") && error.contains("--registry"), "{error}");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn objects_come_change_and_go() {
        let scratch = Scratch::new("events");
        scratch.write("objects/namespaces/_/a.json", &namespace("a", "1"));
        scratch.write("captured/a/web", "uid-1");
        let (registry, initial) = FilesRegistry::open(&scratch.0).expect("a registry");
        assert_eq!(names(&initial), ["captured a/web uid-1", "+Namespace a"]);
        let (sender, mut receiver) = mpsc::channel(4);
        let (marks, marked) = watch::channel(0);
        let task = tokio::spawn(registry.run(marked, sender));
        let mut batch = async || {
            let batch = tokio::time::timeout(PATIENCE, receiver.recv()).await;
            batch.expect("an event in time").expect("a running registry")
        };
        let mut next = async || names(&batch().await.events);
        scratch.write("objects/namespaces/_/a.json", &namespace("a", "2"));
        assert_eq!(next().await, ["+Namespace a"]);
        // The same contents, and contents that are no object: nothing to say.
        scratch.write("objects/namespaces/_/a.json", &namespace("a", "2"));
        scratch.write("objects/namespaces/_/b.json", "{");
        scratch
            .write("status/pods/new/web.json", r#"{"uid":"u","podIPs":["10.0.0.1"],"ready":true}"#);
        assert_eq!(next().await, ["status new/web true"]);
        std::fs::remove_dir_all(scratch.0.join("captured/a")).expect("a directory");
        std::fs::remove_file(scratch.0.join("objects/namespaces/_/a.json")).expect("a file");
        let mut both = next().await;
        if both.len() == 1 {
            both.extend(next().await);
        }
        both.sort();
        assert_eq!(both, ["-Namespace a", "captured a/web -"]);
        scratch.write("objects/namespaces/_/c.json", &namespace("c", "1"));
        marks.send_replace(7);
        let mut seen = Vec::new();
        loop {
            let batch = batch().await;
            seen.extend(names(&batch.events));
            if batch.mark == Some(7) {
                break;
            }
        }
        assert_eq!(seen, ["+Namespace c"], "a mark comes after what was there before it");
        // However soon it is set.
        for count in 0..300 {
            scratch.write("objects/namespaces/_/c.json", &namespace("c", &format!("m{count}")));
            marks.send_replace(8 + count);
            let mut seen = 0;
            loop {
                let batch = batch().await;
                seen += batch.events.len();
                if batch.mark.is_some_and(|mark| mark >= 8 + count) {
                    break;
                }
            }
            assert_eq!(seen, 1, "{count}");
        }
        task.abort();
    }

    #[test]
    fn why_a_pod_is_not_captured_is_read() {
        let subject = subject(Path::new("uncaptured/a/web")).expect("one of ours");
        let event = put(&subject, b"u1\nPortTaken 15006 nginx").expect("read");
        let Event::Uncaptured { obstacle: Some((uid, obstacle)), .. } = event else {
            panic!("{event:?}")
        };
        let nginx = Some("nginx".to_owned());
        assert_eq!(&*uid, "u1");
        assert_eq!(obstacle, Obstacle::PortTaken { port: 15006, process: nginx });
        put(&subject, b"u1").expect_err("no reason");
        let gone = gone(subject);
        assert!(matches!(gone, Event::Uncaptured { obstacle: None, .. }), "{gone:?}");
    }

    #[tokio::test]
    async fn churn_does_not_hold_changes_back() {
        let scratch = Scratch::new("churn");
        let (registry, _) = FilesRegistry::open(&scratch.0).expect("a registry");
        let (sender, mut receiver) = mpsc::channel(1000);
        let (_marks, marked) = watch::channel(0);
        let task = tokio::spawn(registry.run(marked, sender));
        let churn = tokio::task::spawn_blocking({
            let scratch = Scratch(scratch.0.clone());
            move || {
                let start = std::time::Instant::now();
                let mut written = 0;
                while start.elapsed() < Duration::from_millis(400) {
                    written += 1;
                    scratch.write(
                        "objects/namespaces/_/a.json",
                        &namespace("a", &written.to_string()),
                    );
                }
                std::mem::forget(scratch);
            }
        });
        let mut batches = 0;
        while !churn.is_finished() {
            let wait = tokio::time::timeout(Duration::from_millis(50), receiver.recv()).await;
            batches += usize::from(wait.is_ok());
        }
        churn.await.expect("the writer ends");
        assert!(batches >= 3, "only {batches} batches while objects kept changing");
        task.abort();
    }
}
