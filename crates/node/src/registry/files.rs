//! The registry as a directory: it reads `objects/pods`, `objects/namespaces` and `status/pods`,
//! and writes `captured` or `uncaptured`.
//!
//! Other programs replace files atomically (write aside, rename). A file that cannot be parsed
//! keeps its earlier meaning, and so do a kind and a registry that vanish as a whole: a damaged
//! registry must never take pods out of the mesh. At the start, when nothing is known yet, a
//! damaged registry is refused: pods that an earlier agent captured stay captured meanwhile. This
//! module never writes outside `captured` and `uncaptured`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use inotify::{Inotify, WatchMask, Watches};
use tokio::sync::{mpsc, watch};

use super::{REFRESH_QUEUE, Refresh, RegistryHandle, object};
use crate::pod::{PodName, PodObject, PodStatus, PodUid, RegistryView};

/// Silence after a change before the registry is read: one `apply` writes many files.
const QUIET: Duration = Duration::from_millis(10);
/// Longest that changes without a pause put off reading.
const QUIET_MAX: Duration = Duration::from_millis(100);
/// The registry is read this often though no change was notified, in case a notification was lost.
const RESCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Largest file that is read; an object of the API server is at most 1.5 MiB.
const FILE_MAX_BYTES: u64 = 2 * 1024 * 1024;
/// Room for notifications that are read at once.
const EVENT_BUFFER_BYTES: usize = 16 * 1024;

/// Why the registry cannot be followed or reported to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// No inotify instance.
    #[error("watch the registry (raise fs.inotify.max_user_instances?)")]
    Watch(#[source] io::Error),
    /// There is nothing to follow.
    #[error(
        "cannot read the registry directory {}; check --registry, and that what keeps the registry \
         runs",
        path.display()
    )]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: io::Error,
    },
    /// Not all of it can be understood, and what an earlier agent knew is not known.
    #[error(
        "cannot read {} of the registry; repair or remove it: a pod that is not known would be \
         taken out of the mesh",
        path.display()
    )]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: io::Error,
    },
    /// A captured file could not be written or removed.
    #[error("{operation} {}", path.display())]
    Captured {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// Reads the registry once, then follows it until the handle is dropped. A registry that is not
/// there is an error: without it every pod would seem to have left the mesh.
pub(crate) async fn follow(
    root: &Path,
) -> Result<(RegistryHandle, impl Future<Output = ()> + use<>), RegistryError> {
    let missing = |source| RegistryError::Missing { path: root.to_owned(), source };
    fs::read_dir(root).map_err(missing)?;
    let inotify = Inotify::init().map_err(RegistryError::Watch)?;
    let reader = Reader::new(root, Some(inotify.watches()));
    let mut events =
        inotify.into_event_stream(vec![0; EVENT_BUFFER_BYTES]).map_err(RegistryError::Watch)?;
    let (mut reader, first) = read(reader).await;
    if let Some((path, source)) = reader.damage.take() {
        return Err(RegistryError::Damaged { path, source });
    }
    let (publish, view) = watch::channel(Arc::new(first));
    let (refresh, mut requests) = mpsc::channel::<Refresh>(REFRESH_QUEUE);
    let task = async move {
        loop {
            let mut asked = Vec::new();
            tokio::select! {
                _ = events.next() => settle(&mut events).await,
                () = tokio::time::sleep(RESCAN_INTERVAL) => {}
                request = requests.recv() => match request {
                    Some(request) => asked.push(request.answer),
                    None => return,
                },
            }
            let (returned, fresh) = read(reader).await;
            reader = returned;
            let fresh = Arc::new(fresh);
            publish.send_if_modified(|current| {
                let modified = **current != *fresh;
                if modified {
                    *current = fresh.clone();
                }
                modified
            });
            for request in asked {
                // The caller may have given up.
                let _: Result<(), _> = request.send(Ok(fresh.clone()));
            }
        }
    };
    Ok((RegistryHandle { view, refresh }, task))
}

/// Waits until changes pause.
async fn settle<S: futures::Stream + Unpin>(events: &mut S) {
    let pause = async { while tokio::time::timeout(QUIET, events.next()).await.is_ok() {} };
    // Out of patience is as good as a pause.
    let _: Result<(), _> = tokio::time::timeout(QUIET_MAX, pause).await;
}

async fn read(mut reader: Reader) -> (Reader, RegistryView) {
    let reading = tokio::task::spawn_blocking(move || {
        let view = reader.read();
        (reader, view)
    });
    reading.await.expect("reading the registry does not panic")
}

/// What distinguishes one version of a file from the next.
type Stamp = (u64, i64, i64, u64);

/// A file's content as of its last version that could be understood.
struct Known<T> {
    stamp: Stamp,
    content: Option<T>,
}

/// The files of one kind, by path.
type Cache<T> = HashMap<PathBuf, Known<T>>;

/// Reads the directory, and remembers what it read.
struct Reader {
    root: PathBuf,
    watches: Option<Watches>,
    pods: Cache<PodObject>,
    namespaces: Cache<(String, BTreeMap<String, String>)>,
    statuses: Cache<PodStatus>,
    /// What the last reading could not read.
    damage: Option<Damage>,
}

/// Something that cannot be read, and why.
type Damage = (PathBuf, io::Error);

impl Reader {
    fn new(root: &Path, watches: Option<Watches>) -> Self {
        Self {
            root: root.to_owned(),
            watches,
            pods: Cache::new(),
            namespaces: Cache::new(),
            statuses: Cache::new(),
            damage: None,
        }
    }

    fn read(&mut self) -> RegistryView {
        if fs::read_dir(&self.root).is_ok() {
            let watches = &mut self.watches;
            let objects = self.root.join("objects");
            let (pods, namespaces) = (objects.join("pods"), objects.join("namespaces"));
            let statuses = self.root.join("status/pods");
            let pods = scan(&pods, watches, &mut self.pods, object::pod);
            let namespaces = scan(&namespaces, watches, &mut self.namespaces, object::namespace);
            let statuses = scan(&statuses, watches, &mut self.statuses, object::status);
            self.damage = pods.and(namespaces).and(statuses).err();
        } else {
            tracing::warn!(registry = %self.root.display(), "cannot read the registry; what is \
                known of it stays in force");
        }
        let pods = contents(&self.pods).map(|(_, pod)| (pod.name.clone(), pod.clone()));
        let statuses = contents(&self.statuses);
        let statuses = statuses.filter_map(|(path, s)| Some((name_of(path)?, s.clone())));
        RegistryView {
            pods: pods.collect(),
            statuses: statuses.collect(),
            namespaces: contents(&self.namespaces)
                .map(|(_, namespace)| namespace.clone())
                .collect(),
        }
    }
}

fn contents<T>(cache: &Cache<T>) -> impl Iterator<Item = (&PathBuf, &T)> {
    cache.iter().filter_map(|(path, known)| Some((path, known.content.as_ref()?)))
}

/// Brings the cache up to date with `<kind>/<namespace or _>/<name>.json`. What cannot be read
/// keeps its meaning; the first such place is the error.
fn scan<T>(
    kind: &Path,
    watches: &mut Option<Watches>,
    cache: &mut Cache<T>,
    parse: fn(&[u8]) -> Result<T, serde_json::Error>,
) -> Result<(), Damage> {
    let unlisted = |error: io::Error| {
        tracing::warn!(%error, directory = %kind.display(), "cannot list a part of the \
            registry; what is known of it stays in force");
        (kind.to_owned(), error)
    };
    let files = files(kind, watches).map_err(unlisted)?;
    if !cache.is_empty() && !kind.is_dir() {
        // Objects go one by one; a kind never goes with all of its own.
        return Err(unlisted(ErrorKind::NotFound.into()));
    }
    let listed: HashSet<&PathBuf> = files.iter().collect();
    cache.retain(|path, _| listed.contains(path));
    let mut damage = Ok(());
    for path in files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json")) {
        damage = damage.and(refresh(path, cache, parse));
    }
    damage
}

/// All files of a kind.
fn files(kind: &Path, watches: &mut Option<Watches>) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for directory in list(kind, watches)? {
        if directory.is_dir() {
            files.extend(list(&directory, watches)?);
        }
    }
    Ok(files)
}

/// The entries of a directory, sorted; none if it is not there. Watched before it is read, so that
/// what comes later is notified.
fn list(directory: &Path, watches: &mut Option<Watches>) -> io::Result<Vec<PathBuf>> {
    if let Some(watches) = watches {
        let changes = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ONLYDIR;
        match watches.add(directory, changes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => tracing::warn!(%error, directory = %directory.display(), "cannot watch; \
                changes are seen within {RESCAN_INTERVAL:?}"),
        }
    }
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

fn refresh<T>(
    path: PathBuf,
    cache: &mut Cache<T>,
    parse: fn(&[u8]) -> Result<T, serde_json::Error>,
) -> Result<(), Damage> {
    let stamp = match fs::metadata(&path) {
        Ok(found) if found.len() > FILE_MAX_BYTES => {
            tracing::warn!(file = %path.display(), bytes = found.len(), "too large, ignored");
            let limit = format!("it is larger than {FILE_MAX_BYTES} bytes");
            return Err((path, io::Error::other(limit)));
        }
        Ok(found) => (found.ino(), found.mtime(), found.mtime_nsec(), found.len()),
        // Gone since it was listed: the notification of that is under way.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err((path, error)),
    };
    if cache.get(&path).is_some_and(|known| known.stamp == stamp) {
        return Ok(());
    }
    match fs::read(&path).and_then(|bytes| Ok(parse(&bytes)?)) {
        Ok(content) => {
            cache.insert(path, Known { stamp, content: Some(content) });
            Ok(())
        }
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "cannot read; its last content stays \
                in force");
            cache.entry(path.clone()).or_insert(Known { stamp, content: None }).stamp = stamp;
            Err((path, error))
        }
    }
}

/// The pod that a file of `status/pods/<namespace>/<name>.json` speaks of.
fn name_of(path: &Path) -> Option<PodName> {
    let name = path.file_stem()?.to_str()?;
    let namespace = path.parent()?.file_name()?.to_str()?;
    Some(PodName::new(namespace, name))
}

/// The directories that say which pods are captured and why others are not:
/// `captured/<namespace>/<name>` holds the uid, `uncaptured/<namespace>/<name>` the uid and a line.
#[derive(Clone, Debug)]
pub(crate) struct CapturedFiles {
    directory: PathBuf,
    reasons: PathBuf,
}

impl CapturedFiles {
    /// The directory of a registry.
    pub(crate) fn new(registry: &Path) -> Self {
        Self { directory: registry.join("captured"), reasons: registry.join("uncaptured") }
    }

    /// Reports a pod as captured: its uid, then a line for each note that says anything.
    pub(crate) fn mark(
        &self,
        name: &PodName,
        uid: &PodUid,
        notes: &[String; 2],
    ) -> Result<(), RegistryError> {
        let mut content = uid.as_str().to_owned();
        if notes.iter().any(|note| !note.is_empty()) {
            content = format!("{uid}\n{}\n{}", notes[0], notes[1]);
        }
        write(&file_of(&self.directory, name), uid, &content)?;
        remove(&file_of(&self.reasons, name), uid)
    }

    /// Says in a line why a pod is not captured.
    pub(crate) fn explain(
        &self,
        name: &PodName,
        uid: &PodUid,
        line: &str,
    ) -> Result<(), RegistryError> {
        write(&file_of(&self.reasons, name), uid, &format!("{uid}\n{line}"))
    }

    /// Takes report and reason back, unless they speak of a later pod of the same name.
    pub(crate) fn clear(&self, name: &PodName, uid: &PodUid) -> Result<(), RegistryError> {
        remove(&file_of(&self.reasons, name), uid)?;
        remove(&file_of(&self.directory, name), uid)
    }

    /// Every report: what an earlier agent left.
    pub(crate) fn all(&self) -> Result<Vec<(PodName, PodUid)>, RegistryError> {
        Self::named(&self.directory)
    }

    /// The pods with a reported reason, which an earlier agent left.
    pub(crate) fn explained(&self) -> Result<Vec<(PodName, PodUid)>, RegistryError> {
        Self::named(&self.reasons)
    }

    fn named(directory: &Path) -> Result<Vec<(PodName, PodUid)>, RegistryError> {
        let mut reports = Vec::new();
        let directories = list(directory, &mut None);
        for namespace in directories.map_err(|source| failed("list", directory, source))? {
            for path in list(&namespace, &mut None).map_err(|e| failed("list", &namespace, e))? {
                let uid = fs::read_to_string(&path).map_err(|e| failed("read", &path, e))?;
                let name = path.file_name().and_then(|name| name.to_str());
                let directory = namespace.file_name().and_then(|name| name.to_str());
                if let (Some(directory), Some(name)) = (directory, name) {
                    let uid = PodUid::new(reported_uid(&uid));
                    reports.push((PodName::new(directory, name), uid));
                }
            }
        }
        Ok(reports)
    }
}

fn file_of(directory: &Path, name: &PodName) -> PathBuf {
    directory.join(&name.namespace).join(&name.name)
}

/// Replaces a file as a whole, unless it says this already.
fn write(path: &Path, uid: &PodUid, content: &str) -> Result<(), RegistryError> {
    if fs::read_to_string(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!(".{name}.{uid}"));
    let replace = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(&aside, content)?;
        fs::rename(&aside, path)
    };
    replace().map_err(|source| failed("write", path, source))
}

/// Removes a file, unless it speaks of another pod.
fn remove(path: &Path, uid: &PodUid) -> Result<(), RegistryError> {
    match fs::read_to_string(path) {
        Ok(found) if reported_uid(&found) != uid.as_str() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed("read", path, source)),
        Ok(_) => fs::remove_file(path).map_err(|source| failed("remove", path, source)),
    }
}

/// The uid in a report; what follows it are notes.
fn reported_uid(content: &str) -> &str {
    content.lines().next().unwrap_or_default()
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> RegistryError {
    RegistryError::Captured { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::NewPod;
    use crate::testbed::{Directory, PATIENCE, write_atomically};

    fn pod(uid: &str) -> String {
        format!(r#"{{"metadata":{{"name":"web","namespace":"shop","uid":"{uid}"}}}}"#)
    }

    fn new_pod() -> NewPod {
        NewPod {
            name: PodName::new("shop", "web"),
            uid: None,
            netns: "/netns".into(),
            ips: Vec::new(),
        }
    }

    fn uid_of_web(view: &RegistryView) -> Option<&str> {
        view.pods.get(&PodName::new("shop", "web")).map(|pod| pod.uid.as_str())
    }

    #[test]
    fn the_registry_is_read_whole() {
        let directory = Directory::new("registry");
        let root = directory.path("registry");
        let mut reader = Reader::new(&root, None);
        assert_eq!(reader.read(), RegistryView::default(), "nothing is there yet");
        write_atomically(&root.join("objects/pods/shop/web.json"), &pod("u1"));
        write_atomically(&root.join("objects/pods/shop/.web.json.tmp"), "{");
        let labels = r#"{"metadata":{"name":"shop","labels":{"a":"b"}}}"#;
        write_atomically(&root.join("objects/namespaces/_/shop.json"), labels);
        write_atomically(&root.join("status/pods/shop/web.json"), r#"{"uid":"u1"}"#);
        let view = reader.read();
        assert_eq!(uid_of_web(&view), Some("u1"));
        assert_eq!(view.namespaces["shop"]["a"], "b");
        assert_eq!(view.statuses[&PodName::new("shop", "web")].uid, PodUid::new("u1"));
        std::fs::remove_file(root.join("objects/pods/shop/web.json")).expect("remove");
        assert_eq!(uid_of_web(&reader.read()), None);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_meaning() {
        let directory = Directory::new("registry-damage");
        let root = directory.path("registry");
        let file = root.join("objects/pods/shop/web.json");
        write_atomically(&file, &pod("u1"));
        let mut reader = Reader::new(&root, None);
        reader.read();
        for damage in ["{", "", r#"{"metadata":{"name":"web","namespace":"shop"}}"#] {
            write_atomically(&file, damage);
            assert_eq!(uid_of_web(&reader.read()), Some("u1"), "{damage}");
        }
        let oversize = " ".repeat(usize::try_from(FILE_MAX_BYTES).expect("fits") + 1);
        write_atomically(&file, &oversize);
        assert_eq!(uid_of_web(&reader.read()), Some("u1"), "too large");
        std::fs::rename(&root, directory.path("elsewhere")).expect("rename");
        assert_eq!(uid_of_web(&reader.read()), Some("u1"), "vanished as a whole");
        std::fs::rename(directory.path("elsewhere"), &root).expect("rename");
        write_atomically(&file, &pod("u2"));
        assert_eq!(uid_of_web(&reader.read()), Some("u2"));
    }

    #[tokio::test]
    async fn changes_are_noticed_in_directories_old_and_new() {
        let directory = Directory::new("registry-follow");
        let root = directory.path("registry");
        std::fs::create_dir_all(root.join("objects/pods")).expect("directory");
        let (mut handle, following) = follow(&root).await.expect("follow");
        let following = tokio::spawn(following);
        for uid in ["u1", "u2", "u3"] {
            write_atomically(&root.join("objects/pods/shop/web.json"), &pod(uid));
            let seen = handle.view.wait_for(|view| uid_of_web(view) == Some(uid));
            // Within a scan that nothing notified, too: this only bounds the test.
            tokio::time::timeout(PATIENCE, seen).await.expect("in time").expect("followed");
        }
        write_atomically(&root.join("objects/pods/shop/web.json"), &pod("u4"));
        let fresh = handle.refresh(&new_pod()).await.expect("followed");
        assert_eq!(uid_of_web(&fresh), Some("u4"), "read at once");
        drop(handle);
        following.await.expect("ends with its handle");
    }

    #[tokio::test]
    async fn a_registry_that_is_not_there_is_refused() {
        let directory = Directory::new("registry-missing");
        let root = directory.path("registry");
        let error = follow(&root).await.err().expect("nothing to follow");
        assert!(error.to_string().contains(&root.display().to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_registry_that_cannot_be_read_whole_is_refused_at_the_start() {
        let check = async |name: &str, damage: fn(&Path)| {
            let directory = Directory::new(&format!("registry-start-{name}"));
            let root = directory.path("registry");
            write_atomically(&root.join("objects/pods/shop/web.json"), &pod("u1"));
            damage(&root);
            let error = follow(&root).await.err().expect("pods would seem to be gone");
            assert!(matches!(error, RegistryError::Damaged { .. }), "{name}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        };
        check("pods", |root| {
            std::fs::remove_dir_all(root.join("objects/pods")).expect("removed");
            std::fs::write(root.join("objects/pods"), "no directory").expect("written");
        })
        .await;
        check("namespaces", |root| {
            write_atomically(&root.join("objects/namespaces/_/shop.json"), "{");
        })
        .await;
        check("status", |root| write_atomically(&root.join("status/pods/shop/web.json"), "")).await;
    }

    #[test]
    fn a_kind_that_vanishes_keeps_its_meaning() {
        let directory = Directory::new("registry-kind");
        let root = directory.path("registry");
        let pods = root.join("objects/pods");
        write_atomically(&pods.join("shop/web.json"), &pod("u1"));
        let mut reader = Reader::new(&root, None);
        reader.read();
        std::fs::rename(&pods, root.join("aside")).expect("rename");
        assert_eq!(uid_of_web(&reader.read()), Some("u1"));
        std::fs::write(&pods, "no directory").expect("written");
        assert_eq!(uid_of_web(&reader.read()), Some("u1"));
    }

    #[test]
    fn reports_name_the_pod_and_spare_a_later_one() {
        let directory = Directory::new("captured");
        let captured = CapturedFiles::new(&directory.path("registry"));
        assert_eq!(captured.all().expect("none"), []);
        let name = PodName::new("shop", "web");
        let (old, new) = (PodUid::new("old"), PodUid::new("new"));
        captured.mark(&name, &old, &Default::default()).expect("mark");
        captured.mark(&name, &new, &Default::default()).expect("mark");
        captured.clear(&name, &old).expect("clear");
        assert_eq!(captured.all().expect("one"), [(name.clone(), new.clone())]);
        captured.clear(&name, &new).expect("clear");
        captured.clear(&name, &new).expect("clear twice");
        assert_eq!(captured.all().expect("none"), []);
    }
}
