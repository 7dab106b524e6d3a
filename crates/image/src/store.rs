//! The images of this machine: one directory for each, with all its layers in one tree.
//!
//! ```text
//! DIR/lock                      held for moments, while directories change
//! DIR/images/HEX/image.json     what the image says of itself, and what was left out
//! DIR/images/HEX/root/          its tree
//! DIR/unfinished/HEX/           the same, while it is being unpacked
//! ```
//!
//! HEX is the digest of the image's configuration. A directory of `images` is complete: it appears
//! there by one rename, after its content is on the disk. Whoever unpacks an image holds a lock on
//! its directory in `unfinished`; one that nobody holds is of somebody who died, and the next one
//! who opens the store removes it.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ambit_words::host_architecture;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::digest::Digest;
use crate::documents::Configuration;
use crate::files::{
    Locked, StoreError, WAIT_MAX, WAIT_STEP, at, make_directory, read_json, remove_tree,
    sync_directory, write_json,
};
use crate::halt::{self, Guard, Halt, Stop};
use crate::layer::{self, LayerError};
use crate::limits::{Budget, Limits};
use crate::manifest::{Finder, Found, ManifestError};
use crate::source::Source;
use crate::tree::Tree;
use crate::unpack::{Omitted, Ownership, Rules, Unpacker};

const LOCK_FILE: &str = "lock";
const IMAGES: &str = "images";
const UNFINISHED: &str = "unfinished";
const RECORD_FILE: &str = "image.json";
const ROOT: &str = "root";
/// Of a root directory that the image says nothing of.
const ROOT_MODE: u32 = 0o755;

/// How a store unpacks images.
#[derive(Clone, Debug)]
pub struct Options {
    /// To whom the files belong.
    pub ownership: Ownership,
    /// For which processors images are, as Go names them: `amd64`, `arm64`.
    pub architecture: String,
    /// What an image may be at most.
    pub limits: Limits,
    /// What ends imports from another thread.
    pub stop: Stop,
}

impl Default for Options {
    /// For this machine; the files belong to whom the image says if the caller is root.
    fn default() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self {
            ownership: if is_root { Ownership::Keep } else { Ownership::Caller },
            architecture: host_architecture().to_owned(),
            limits: Limits::default(),
            stop: Stop::default(),
        }
    }
}

/// What fails.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image cannot be found in its source, or its documents are wrong.
    #[error("cannot load {image}")]
    Manifest {
        /// The source.
        image: String,
        /// Why.
        #[source]
        source: Box<ManifestError>,
    },
    /// A layer cannot be unpacked, or is not the right one.
    #[error("cannot unpack layer {number} of {image}")]
    Layer {
        /// The source.
        image: String,
        /// Counted from 1.
        number: usize,
        /// Why.
        #[source]
        source: Box<LayerError>,
    },
    /// The store's own files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such image.
    #[error("there is no image {digest} in the store")]
    NoImage {
        /// Which one.
        digest: Digest,
    },
}

/// What an image says of how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments after it, unless others are given; the program, if there is no entry point.
    pub cmd: Vec<String>,
    /// Variables in the image's order.
    pub env: Vec<(String, String)>,
    /// Who it runs as, for [`resolve`](crate::users::resolve).
    pub user: String,
    /// Where it starts; `/` if the image says nothing.
    pub working_dir: PathBuf,
    /// What ends it, such as `SIGQUIT`.
    pub stop_signal: Option<String>,
    /// As written, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// Directories that are to be writable.
    pub volumes: Vec<PathBuf>,
    /// What its maker says of it.
    pub labels: BTreeMap<String, String>,
    /// Such as `linux/arm64/v8`.
    pub platform: String,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Of its configuration.
    pub digest: Digest,
    /// What it says of how it is run.
    pub config: ImageConfig,
    /// Its tree. Nothing in it may be changed.
    pub root: PathBuf,
    /// What was left out of it.
    pub omitted: Omitted,
    /// Bytes of its layers before compression.
    pub unpacked_bytes: u64,
    /// Entries of its layers.
    pub entries: u64,
}

/// `image.json`.
#[derive(Serialize, Deserialize)]
struct Record {
    digest: Digest,
    config: ImageConfig,
    diff_ids: Vec<Digest>,
    omitted: Omitted,
    unpacked_bytes: u64,
    entries: u64,
}

/// The images of this machine.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    options: Options,
}

impl Store {
    /// Opens a store, or makes one, and removes what those left who died.
    pub fn open(directory: &Path, options: Options) -> Result<Self, ImageError> {
        let store = Self { directory: directory.to_owned(), options };
        for path in [store.directory.clone(), store.path(IMAGES), store.path(UNFINISHED)] {
            make_directory(&path)?;
        }
        store.clean()?;
        Ok(store)
    }

    /// Takes an image into the store, if it is not there yet.
    ///
    /// It blocks until all layers are unpacked, or until [`Options::stop`] ends it. On an error
    /// nothing is left.
    pub fn import(&self, source: &Source) -> Result<Image, ImageError> {
        let guard = Guard::new(&self.directory, &self.options.limits, &self.options.stop);
        // What a reader makes of it is no news.
        self.import_guarded(source, &guard).map_err(|error| match guard.halted() {
            Some(halt) => StoreError::from(halt).into(),
            None => error,
        })
    }

    fn import_guarded(&self, source: &Source, guard: &Guard<'_>) -> Result<Image, ImageError> {
        let failed = |source_error: ManifestError| ImageError::Manifest {
            image: source.to_string(),
            source: Box::new(source_error),
        };
        let limits = &self.options.limits;
        let archive = Archive::open(&source.path, &self.path(UNFINISHED), limits, guard)
            .map_err(|error| failed(error.into()))?;
        let architecture = &self.options.architecture;
        let is_stored = |digest: &Digest| self.has(digest);
        let finder = Finder { archive: &archive, source, architecture, limits, is_stored };
        let found = finder.find().map_err(failed)?;
        let digest = found.digest;
        if let Some(unfinished) = self.start(&digest)? {
            let image = source.to_string();
            let unpacked = self.unpack(&image, &found, &unfinished.path, guard);
            if let Err(error) = unpacked.and_then(|()| self.finish(&unfinished, &digest)) {
                // If this fails too, the next one who opens the store removes it.
                let _left = remove_tree(&unfinished.path);
                return Err(error);
            }
        }
        self.find(&digest)?.ok_or(ImageError::NoImage { digest })
    }

    /// An empty directory for what is fetched from elsewhere. It ends with the value, or when the
    /// store is opened after a crash.
    pub fn scratch(&self) -> Result<Scratch, ImageError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.path(UNFINISHED).join(format!("scratch-{}-{number}", process::id()));
        let lock = self.lock()?;
        let scratch = Scratch(self.begin(path)?);
        drop(lock);
        Ok(scratch)
    }

    /// The image whose configuration has this digest.
    pub fn find(&self, digest: &Digest) -> Result<Option<Image>, ImageError> {
        let path = self.image_path(digest);
        let Some(record) = read_json::<Record>(&path.join(RECORD_FILE))? else {
            return Ok(None);
        };
        Ok(Some(Image {
            digest: record.digest,
            config: record.config,
            root: path.join(ROOT),
            omitted: record.omitted,
            unpacked_bytes: record.unpacked_bytes,
            entries: record.entries,
        }))
    }

    /// Whether this image is there, as a whole.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.image_path(digest).is_dir()
    }

    /// Whether so many bytes may be written into it.
    pub(crate) fn room(&self, bytes: u64) -> Result<(), Halt> {
        halt::room(&self.directory, bytes, &self.options.limits)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn image_path(&self, digest: &Digest) -> PathBuf {
        self.path(IMAGES).join(digest.hex())
    }

    /// Only one process changes directories.
    fn lock(&self) -> Result<Locked, StoreError> {
        Locked::wait(&self.path(LOCK_FILE), &self.options.stop)
    }

    /// Removes what nobody is working at.
    fn clean(&self) -> Result<(), ImageError> {
        let lock = self.lock()?;
        let path = self.path(UNFINISHED);
        for entry in at("list", &path, fs::read_dir(&path))? {
            let path = at("list", &path, entry)?.path();
            if self.is_free(&path)? {
                remove_tree(&path)?;
            }
        }
        drop(lock);
        Ok(())
    }

    /// Whether nobody is working at a place. To be asked only while the store is locked.
    fn is_free(&self, path: &Path) -> Result<bool, StoreError> {
        match File::open(path) {
            Ok(file) => Ok(Locked::try_now(file, path)?.is_some()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => at("open", path, Err(error)),
        }
    }

    /// A directory to unpack an image in; `None` if the image is there, maybe by now.
    fn start(&self, digest: &Digest) -> Result<Option<Unfinished>, ImageError> {
        let path = self.path(UNFINISHED).join(digest.hex());
        let started = Instant::now();
        while started.elapsed() < WAIT_MAX {
            let lock = self.lock()?;
            if self.has(digest) {
                return Ok(None);
            }
            if self.is_free(&path)? {
                return Ok(Some(self.begin(path)?));
            }
            drop(lock);
            self.options.stop.look().map_err(StoreError::from)?;
            thread::sleep(WAIT_STEP);
        }
        Err(StoreError::Busy { path }.into())
    }

    /// An empty directory that this process holds. To be asked only while the store is locked.
    fn begin(&self, path: PathBuf) -> Result<Unfinished, StoreError> {
        remove_tree(&path)?;
        make_directory(&path)?;
        let locked = Locked::try_now(at("open", &path, File::open(&path))?, &path)?;
        let locked = locked.ok_or_else(|| StoreError::Busy { path: path.clone() })?;
        Ok(Unfinished { path, locked })
    }

    fn unpack(
        &self,
        image: &str,
        found: &Found,
        path: &Path,
        guard: &Guard<'_>,
    ) -> Result<(), ImageError> {
        guard.look().map_err(StoreError::from)?;
        let root = path.join(ROOT);
        at("make", &root, fs::create_dir(&root))?;
        at("open", &root, fs::set_permissions(&root, Permissions::from_mode(ROOT_MODE)))?;
        let limits = &self.options.limits;
        let tree = at("open", &root, Tree::open(&root, limits))?;
        let rules = Rules { ownership: self.options.ownership, limits: limits.clone() };
        let mut unpacker = Unpacker::new(tree, &rules);
        let mut unpacked = Budget::new(limits.unpacked_bytes, "bytes in all layers of an image");
        for (index, layer) in found.layers.iter().enumerate() {
            let done = layer::unpack(layer, &mut unpacker, &mut unpacked, limits, guard);
            done.map_err(|source| {
                let (image, number) = (image.to_owned(), index + 1);
                ImageError::Layer { image, number, source: Box::new(source) }
            })?;
        }
        let record = Record {
            digest: found.digest,
            config: image_config(&found.configuration),
            diff_ids: found.configuration.rootfs.diff_ids.clone(),
            omitted: unpacker.omitted(),
            unpacked_bytes: unpacked.used(),
            entries: unpacker.entries(),
        };
        Ok(write_json(&path.join(RECORD_FILE), &record)?)
    }

    /// Lets an image appear, after it is on the disk as a whole.
    fn finish(&self, unfinished: &Unfinished, digest: &Digest) -> Result<(), ImageError> {
        let (path, lock) = (&unfinished.path, self.lock()?);
        at("write to the disk", path, unfinished.locked.sync_file_system())?;
        at("rename", path, fs::rename(path, self.image_path(digest)))?;
        sync_directory(&self.path(IMAGES))?;
        drop(lock);
        Ok(())
    }
}

/// A directory in the store for what is fetched from elsewhere.
#[derive(Debug)]
pub struct Scratch(Unfinished);

impl Scratch {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the next one who opens the store removes it.
        let _left = remove_tree(&self.0.path);
    }
}

/// A directory that is being filled.
#[derive(Debug)]
struct Unfinished {
    path: PathBuf,
    locked: Locked,
}

/// What is kept of an image's configuration.
fn image_config(configuration: &Configuration) -> ImageConfig {
    let process = configuration.config.clone();
    let variable = |text: &String| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        (name.to_owned(), value.to_owned())
    };
    let variant = configuration.variant.iter().filter(|variant| !variant.is_empty());
    let platform = [&configuration.os, &configuration.architecture].into_iter().chain(variant);
    let directory = if process.working_dir.is_empty() { "/" } else { &process.working_dir };
    ImageConfig {
        env: process.env.iter().map(variable).collect(),
        working_dir: directory.into(),
        exposed_ports: process.exposed_ports.into_keys().collect(),
        volumes: process.volumes.into_keys().map(PathBuf::from).collect(),
        platform: platform.map(String::as_str).collect::<Vec<_>>().join("/"),
        entrypoint: process.entrypoint,
        cmd: process.cmd,
        user: process.user,
        stop_signal: process.stop_signal.filter(|signal| !signal.is_empty()),
        labels: process.labels,
    }
}
