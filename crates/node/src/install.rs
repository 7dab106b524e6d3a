//! The CNI plugin on its node: the executable, and its place in the configuration of the network.
//!
//! Others own that configuration and write it anew when they like: it is watched and put right, but
//! never in a race with whoever keeps writing. What was there before is kept beside it, so that it
//! comes back byte for byte when the plugin leaves. A configuration that is not understood is not
//! touched, and no file is ever seen half written.

pub(crate) mod conflist;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ambit_words::error_chain;
use ambit_words::names::CNI_PLUGIN;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use serde_json::Value;
use tokio::time::Instant;

use crate::monitor::Health;
use conflist::{Chained, ConflistError};

/// The original of `NAME` is kept as `.ambit-original-NAME.saved`: a name that no container runtime
/// takes for a configuration, as it would if the name ended like one.
const SAVED: (&str, &str) = (".ambit-original-", ".saved");
/// Files that are not whole yet.
const ASIDE: (&str, &str) = (".ambit-", ".tmp");
/// Largest configuration that is read.
const CONFIGURATION_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Silence after a change before the configuration is looked at.
const QUIET: Duration = Duration::from_millis(50);
/// The directory is looked at this often though nothing was notified.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// Wait after a repair before the next look; doubles while somebody keeps undoing repairs.
const REPAIR_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest wait after a repair.
const REPAIR_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Without a repair for this long, nobody undoes them.
const PEACE: Duration = Duration::from_secs(600);
/// Room for notifications that are read at once.
const EVENT_BUFFER_BYTES: usize = 4 * 1024;

/// Why the plugin could not be put in place or taken away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("{operation} {}", path.display())]
    Files {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the CNI configuration {} stays as it is", path.display())]
    Configuration {
        path: PathBuf,
        #[source]
        source: ConflistError,
    },
}

/// What a look at the directory led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    /// There is no configuration yet: the node has no network.
    Nothing,
    /// The plugin is in its place.
    InPlace,
    /// The plugin was put into this configuration.
    Written(String),
}

/// The directories, and what belongs there.
#[derive(Debug, Clone)]
pub(crate) struct Installer {
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dir: PathBuf,
    /// The configuration to use instead of the first.
    pub(crate) conf_name: Option<String>,
    /// The executable to install.
    pub(crate) executable: PathBuf,
    /// The plugin's entry.
    pub(crate) entry: Value,
    /// Held while files are changed; once the plugin was taken away it is not put back.
    pub(crate) removed: Arc<Mutex<bool>>,
}

impl Installer {
    /// Puts the plugin in its place, wherever it is not.
    pub(crate) fn look(&self) -> Result<Look, InstallError> {
        let removed = self.lock();
        if *removed {
            return Ok(Look::Nothing);
        }
        self.install_executable()?;
        let names = self.configurations()?;
        let first = match &self.conf_name {
            Some(wanted) => {
                // A single plugin has become a list of another name, unless its owner wrote anew.
                let list = conflist::list_name(wanted);
                names.iter().find(|name| *name == wanted).or(names.iter().find(|n| **n == list))
            }
            None => names.first(),
        };
        let Some(first) = first else { return Ok(Look::Nothing) };
        let path = self.conf_dir.join(first);
        let original = read(&path)?;
        let chained = conflist::chain(first, &original, &self.entry)
            .map_err(|source| InstallError::Configuration { path: path.clone(), source })?;
        let look = match &chained {
            None => Look::InPlace,
            Some(chained) => {
                self.write(first, &original, chained)?;
                Look::Written(chained.name.clone())
            }
        };
        let ours = chained.as_ref().map_or(first, |chained| &chained.name);
        for name in names.iter().filter(|name| *name != first && *name != ours) {
            // No longer the network's configuration.
            self.restore(name)?;
        }
        Ok(look)
    }

    /// The original aside first: there is no moment at which it could be lost.
    fn write(&self, name: &str, original: &[u8], chained: &Chained) -> Result<(), InstallError> {
        let path = self.conf_dir.join(name);
        let mode = fs::metadata(&path).map_or(0o644, |found| found.permissions().mode() & 0o777);
        if conflist::ours(original).is_none() {
            write_atomically(&self.conf_dir, &between(SAVED, name), original, mode)?;
        }
        write_atomically(&self.conf_dir, &chained.name, &chained.content, mode)?;
        if chained.name != name {
            remove(&path)?;
        }
        Ok(())
    }

    /// Takes the plugin out of one configuration, if it is in it.
    fn restore(&self, name: &str) -> Result<(), InstallError> {
        let path = self.conf_dir.join(name);
        let content = read(&path)?;
        let Some(entry) = conflist::ours(&content) else { return Ok(()) };
        let stem = name.strip_suffix(".conflist").unwrap_or(name);
        let names = [name.to_owned(), format!("{stem}.conf"), format!("{stem}.json")];
        for original_name in &names {
            let saved_path = self.conf_dir.join(between(SAVED, original_name));
            let Ok(saved) = read(&saved_path) else { continue };
            let chained = conflist::chain(original_name, &saved, &entry);
            if chained.is_ok_and(|chained| chained.is_some_and(|c| c.content == content)) {
                // Nobody has changed it meanwhile.
                let mode = fs::metadata(&saved_path).map_or(0o644, |f| f.permissions().mode());
                write_atomically(&self.conf_dir, original_name, &saved, mode & 0o777)?;
                if original_name != name {
                    remove(&path)?;
                }
                return remove(&saved_path);
            }
        }
        let without = conflist::unchain(&content)
            .map_err(|source| InstallError::Configuration { path: path.clone(), source })?;
        match without {
            Some(without) => {
                let mode = fs::metadata(&path).map_or(0o644, |f| f.permissions().mode() & 0o777);
                write_atomically(&self.conf_dir, name, &without, mode)
            }
            None => remove(&path),
        }
    }

    /// Takes the plugin away: out of every configuration first, then its executable.
    pub(crate) fn uninstall(&self) -> Result<(), InstallError> {
        let mut removed = self.lock();
        *removed = true;
        for name in self.configurations()? {
            self.restore(&name)?;
        }
        for name in names(&self.conf_dir)? {
            if is_between(SAVED, &name) || is_between(ASIDE, &name) {
                remove(&self.conf_dir.join(name))?;
            }
        }
        remove(&self.bin_dir.join(between(ASIDE, CNI_PLUGIN)))?;
        remove(&self.bin_dir.join(CNI_PLUGIN))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of all configurations, in the order in which container runtimes take them.
    fn configurations(&self) -> Result<Vec<String>, InstallError> {
        let mut names = names(&self.conf_dir)?;
        names.retain(|name| {
            conflist::is_configuration(name)
                && !is_between(ASIDE, name)
                && self.conf_dir.join(name).is_file()
        });
        names.sort_unstable();
        Ok(names)
    }

    /// Copies the executable, unless the same is there.
    fn install_executable(&self) -> Result<(), InstallError> {
        let installed = self.bin_dir.join(CNI_PLUGIN);
        let same = same_content(&self.executable, &installed);
        if same.map_err(|source| failed("compare", &self.executable, source))? {
            return Ok(());
        }
        let aside = self.bin_dir.join(between(ASIDE, CNI_PLUGIN));
        let copy = || {
            fs::copy(&self.executable, &aside)?;
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
            File::open(&aside)?.sync_all()?;
            fs::rename(&aside, &installed)
        };
        copy().map_err(|source| failed("install the CNI plugin as", &installed, source))
    }
}

/// Looks whenever something changes in the directory, until the task is dropped.
pub(crate) async fn keep(installer: Installer, health: Arc<Health>) {
    let mut events = watch(&installer.conf_dir);
    let mut pause = REPAIR_PAUSE_MIN;
    let mut last_repair: Option<Instant> = None;
    let mut was_installed = false;
    loop {
        let looking = installer.clone();
        let looked = tokio::task::spawn_blocking(move || looking.look()).await;
        match looked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(Look::Nothing) => tracing::warn!(directory = %installer.conf_dir.display(),
                "there is no CNI configuration yet"),
            Ok(Look::InPlace) => health.installed.store(true, Ordering::Relaxed),
            Ok(Look::Written(name)) => {
                health.installed.store(true, Ordering::Relaxed);
                tracing::info!(configuration = %name, "the CNI plugin was put in its place");
                if was_installed {
                    if last_repair.is_some_and(|moment| moment.elapsed() > PEACE) {
                        pause = REPAIR_PAUSE_MIN;
                    }
                    last_repair = Some(Instant::now());
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(REPAIR_PAUSE_MAX);
                }
            }
            Err(error) => tracing::warn!(error = %error_chain(&error),
                "the CNI plugin is not in its place; tried again"),
        }
        was_installed = health.installed.load(Ordering::Relaxed);
        match &mut events {
            Some(events) => {
                // A notification may be lost, so that it is not waited for without end.
                if tokio::time::timeout(LOOK_INTERVAL, events.next()).await.is_ok() {
                    while tokio::time::timeout(QUIET, events.next()).await.is_ok() {}
                }
            }
            None => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// The changes in a directory. `None`: it is only looked at now and then.
fn watch(directory: &Path) -> Option<inotify::EventStream<Vec<u8>>> {
    let watch = || {
        let inotify = Inotify::init()?;
        let changes = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE;
        inotify.watches().add(directory, changes)?;
        inotify.into_event_stream(vec![0; EVENT_BUFFER_BYTES])
    };
    let watched: io::Result<_> = watch();
    watched
        .inspect_err(|error| {
            tracing::warn!(%error, directory = %directory.display(), "cannot watch; changes are \
                seen within {LOOK_INTERVAL:?}");
        })
        .ok()
}

fn between((before, after): (&str, &str), name: &str) -> String {
    format!("{before}{name}{after}")
}

fn is_between((before, after): (&str, &str), name: &str) -> bool {
    name.starts_with(before) && name.ends_with(after)
}

fn names(directory: &Path) -> Result<Vec<String>, InstallError> {
    let list = || {
        let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
        let entries = entries.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.into_iter().filter_map(|name| name.into_string().ok()).collect())
    };
    list().map_err(|source| failed("list the CNI directory", directory, source))
}

fn read(path: &Path) -> Result<Vec<u8>, InstallError> {
    let mut content = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(CONFIGURATION_MAX_BYTES).read_to_end(&mut content));
    read.map_err(|source| failed("read", path, source))?;
    Ok(content)
}

fn remove(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

fn write_atomically(
    directory: &Path,
    name: &str,
    content: &[u8],
    mode: u32,
) -> Result<(), InstallError> {
    let (aside, path) = (directory.join(between(ASIDE, name)), directory.join(name));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&aside)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&aside, &path)
    };
    write().map_err(|source| failed("write", &path, source))
}

fn same_content(one: &Path, other: &Path) -> io::Result<bool> {
    let one = File::open(one)?;
    let Ok(other) = File::open(other) else { return Ok(false) };
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (io::BufReader::new(one), io::BufReader::new(other));
    loop {
        use io::BufRead;
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if left[..length] != right[..length] {
            return Ok(false);
        }
        if length == 0 {
            return Ok(left.len() == right.len());
        }
        one.consume(length);
        other.consume(length);
    }
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> InstallError {
    InstallError::Files { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::conflist::tests::{BRIDGE, CALICO, CILIUM};
    use super::*;
    use crate::testbed::Directory;

    /// Directories of a node, and the installer for them.
    struct Host {
        directory: Directory,
        installer: Installer,
    }

    impl Host {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let directory = Directory::new(name);
            for part in ["net.d", "bin"] {
                fs::create_dir_all(directory.path(part)).expect("directory");
            }
            fs::write(directory.path("ambit"), "the executable").expect("write");
            let installer = Installer {
                conf_dir: directory.path("net.d"),
                bin_dir: directory.path("bin"),
                conf_name: None,
                executable: directory.path("ambit"),
                entry: conflist::entry(Path::new("/s"), None),
                removed: Arc::default(),
            };
            let host = Self { directory, installer };
            files.iter().for_each(|(name, content)| host.write(name, content));
            host
        }

        fn write(&self, name: &str, content: &str) {
            fs::write(self.directory.path("net.d").join(name), content).expect("write");
        }

        fn files(&self) -> BTreeMap<String, String> {
            let path = |name: &String| self.directory.path("net.d").join(name);
            let names = names(&self.directory.path("net.d")).expect("listed").into_iter();
            names.map(|n| (n.clone(), fs::read_to_string(path(&n)).expect("text"))).collect()
        }

        /// Which configurations the plugin is in.
        fn chained(&self) -> Vec<String> {
            let files = self.files().into_iter();
            let files = files.filter(|(_, text)| conflist::ours(text.as_bytes()).is_some());
            files.map(|(name, _)| name).collect()
        }

        fn look(&self) -> Look {
            self.installer.look().expect("done")
        }

        fn uninstall(&self, expected: &[(&str, &str)]) {
            self.installer.uninstall().expect("done");
            let expected = expected.iter().map(|(n, text)| ((*n).to_owned(), (*text).to_owned()));
            assert_eq!(self.files(), expected.collect());
            assert_eq!(names(&self.directory.path("bin")).expect("listed"), Vec::<String>::new());
        }
    }

    #[test]
    fn the_first_configuration_is_chained_once_and_comes_back_byte_for_byte() {
        for (name, content, chained_name) in [
            ("10-calico.conflist", CALICO, "10-calico.conflist"),
            ("05-cilium.conflist", CILIUM, "05-cilium.conflist"),
            ("10-bridge.conf", BRIDGE, "10-bridge.conflist"),
            ("10-bridge.json", BRIDGE, "10-bridge.conflist"),
        ] {
            let files = [(name, content), ("99-loopback.conf", "{}"), ("calico-kubeconfig", "k")];
            let host = Host::new("install", &files);
            assert_eq!(host.look(), Look::Written(chained_name.to_owned()));
            assert_eq!(host.chained(), [chained_name]);
            assert_eq!(host.look(), Look::InPlace);
            let installed = host.directory.path("bin/ambit-cni");
            assert_eq!(fs::read_to_string(&installed).expect("there"), "the executable");
            assert_eq!(
                fs::metadata(&installed).expect("there").permissions().mode() & 0o777,
                0o755
            );
            // Whatever container runtimes take for a configuration is one.
            let hidden = host.files().into_keys().filter(|name| name.starts_with('.'));
            assert!(hidden.into_iter().all(|name| !conflist::is_configuration(&name)));
            host.uninstall(&files);
        }
    }

    #[test]
    fn a_rewritten_configuration_is_mended_and_its_new_bytes_come_back() {
        let host = Host::new("rewritten", &[("10-calico.conflist", CALICO)]);
        host.look();
        let other = CALICO.replace("info", "debug");
        host.write("10-calico.conflist", &other);
        assert_eq!(host.look(), Look::Written("10-calico.conflist".to_owned()));
        host.uninstall(&[("10-calico.conflist", &other)]);

        let host = Host::new("rewritten-plain", &[("10-bridge.conf", BRIDGE)]);
        host.look();
        let other = BRIDGE.replace("cni0", "cni1");
        host.write("10-bridge.conf", &other);
        assert_eq!(host.look(), Look::Written("10-bridge.conflist".to_owned()));
        host.uninstall(&[("10-bridge.conf", &other)]);
    }

    #[test]
    fn a_configuration_that_somebody_changed_loses_only_the_plugin() {
        let host = Host::new("changed", &[("10-calico.conflist", CALICO)]);
        host.look();
        let changed = host.files()["10-calico.conflist"].replace("\"info\"", "\"debug\"");
        host.write("10-calico.conflist", &changed);
        assert_eq!(host.look(), Look::InPlace);
        host.installer.uninstall().expect("done");
        let files = host.files();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
        let left: Value = serde_json::from_str(&files["10-calico.conflist"]).expect("JSON");
        let mut expected: Value = serde_json::from_str(CALICO).expect("JSON");
        expected["plugins"][0]["log_level"] = "debug".into();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_network_that_comes_first_takes_the_plugin_over() {
        let host = Host::new("several", &[("10-bridge.conf", BRIDGE)]);
        host.look();
        host.write("05-cilium.conflist", CILIUM);
        assert_eq!(host.look(), Look::Written("05-cilium.conflist".to_owned()));
        assert_eq!(host.chained(), ["05-cilium.conflist"]);
        host.uninstall(&[("05-cilium.conflist", CILIUM), ("10-bridge.conf", BRIDGE)]);
    }

    #[test]
    fn the_configuration_named_is_used_and_what_is_broken_is_left_alone() {
        let files = [("05-cilium.conflist", CILIUM), ("10-bridge.conf", BRIDGE)];
        let mut host = Host::new("named", &files);
        host.installer.conf_name = Some("10-bridge.conf".to_owned());
        assert_eq!(host.look(), Look::Written("10-bridge.conflist".to_owned()));
        assert_eq!(host.look(), Look::InPlace);
        host.uninstall(&files);

        let host = Host::new("broken", &[("05-new.conflist", "{"), ("10-bridge.conf", BRIDGE)]);
        let error = host.installer.look().expect_err("not understood");
        assert!(error.to_string().contains("05-new.conflist"), "{error}");
        assert_eq!(host.chained(), Vec::<String>::new());
        assert_eq!(Host::new("empty", &[]).look(), Look::Nothing);
    }

    #[test]
    fn a_new_executable_replaces_the_old_one() {
        let host = Host::new("executable", &[]);
        host.look();
        fs::write(host.directory.path("ambit"), "a newer executable").expect("write");
        host.look();
        let installed = fs::read_to_string(host.directory.path("bin/ambit-cni")).expect("there");
        assert_eq!(installed, "a newer executable");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rival_is_answered_at_growing_intervals() {
        let host = Host::new("rival", &[("05-cilium.conflist", CILIUM)]);
        let health = Arc::new(Health::default());
        let keeping = tokio::spawn(keep(host.installer.clone(), health.clone()));
        let mended = async || {
            let path = host.directory.path("net.d/05-cilium.conflist");
            while conflist::ours(&fs::read(&path).expect("there")).is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        mended().await;
        let began = Instant::now();
        for _ in 0..3 {
            host.write("05-cilium.conflist", CILIUM);
            mended().await;
        }
        // The first repair at once, the second after one pause, the third after a doubled one.
        assert!(began.elapsed() >= 3 * REPAIR_PAUSE_MIN, "{:?}", began.elapsed());
        assert!(health.installed.load(Ordering::Relaxed));
        keeping.abort();
    }
}
