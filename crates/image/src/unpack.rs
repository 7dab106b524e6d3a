//! Puts the layers of an image, one after the other, into one tree.
//!
//! As containerd does: an entry replaces what is there, except that a directory keeps what is in
//! it; links on the way are followed within the tree; `.wh.NAME` takes away what lower layers have
//! at NAME, `.wh..wh..opq` all that lower layers have in its directory. What the same layer brings
//! stays, in whatever order its entries come.
//!
//! Never made here: devices, FIFOs, extended attributes. They are counted instead. A pod has
//! devices of its own, and its processes cannot gain privileges, so that the bits for set-user-ID
//! and file capabilities would have no effect. These bits are kept only if asked for.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::rc::Rc;

use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::content::Input;
use crate::entries::{Entries, Entry, Kind, TarError, shown};
use crate::limits::{Budget, Exceeded, Limits, within};
use crate::tree::{Directory, Missing, Names, PathError, Place, Tree, children, is_directory};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Files of AUFS, the first to have whiteouts; they mean nothing elsewhere.
const WHITEOUT_META_PREFIX: &[u8] = b".wh..wh.";
const WHITEOUT_OPAQUE: &[u8] = b".wh..wh..opq";
/// What is kept of a mode, and what is not: the bits for set-user-ID and set-group-ID.
const MODE_BITS: u32 = 0o1777;
const PRIVILEGE_BITS: u32 = 0o6000;
/// What the owner of a directory needs to fill and remove it.
const OWNER_ALL: u32 = 0o700;
/// What the importer remembers of a name besides its bytes, about.
const NAME_OVERHEAD_BYTES: u64 = 64;

/// To whom the files of an image belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// To the users that the image says. Only root can do this.
    Keep,
    /// To the caller, and directories are always open to it: for a user namespace with one user.
    Caller,
}

/// What was left out of an image, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// Devices and FIFOs.
    pub special_files: u64,
    /// Files that lost their bits for set-user-ID or set-group-ID.
    pub privileged_files: u64,
    /// Extended attributes.
    pub attributes: u64,
}

/// A layer that is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stream is not a good tar archive.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// One entry is refused.
    #[error("entry {path:?} is refused")]
    Entry {
        /// As written in the archive.
        path: String,
        /// Why.
        source: EntryError,
    },
}

/// Why an entry is refused.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Its path cannot be used.
    #[error("its path cannot be used")]
    Path(#[from] PathError),
    /// The path of the file that it is another name of cannot be used.
    #[error("its target {target:?} cannot be used")]
    Target {
        /// As written.
        target: String,
        /// Why.
        source: PathError,
    },
    /// A whiteout of nothing, or of a directory above.
    #[error("it is a whiteout of no name")]
    Whiteout,
    /// A directory that would be a whiteout.
    #[error("a directory on its path has a name that is kept for whiteouts")]
    WhiteoutDirectory,
    /// The root is a directory.
    #[error("only a directory can be the root of the image")]
    Root,
    /// A sparse file.
    #[error("it is a sparse file, which is not supported; make the layer without --sparse")]
    Sparse,
    /// Something else than files.
    #[error("its type is {0:?}, which is not one of files")]
    Type(char),
    /// No such user.
    #[error("its owner {uid}:{gid} is none of Linux")]
    Owner {
        /// As written.
        uid: u64,
        /// As written.
        gid: u64,
    },
    /// It is larger than a bound, or with it the image is.
    #[error(transparent)]
    Bound(#[from] Exceeded),
    /// Its data ends early.
    #[error("cannot read its data")]
    Data(#[source] TarError),
    /// The file system refuses it.
    #[error("cannot {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// How layers are unpacked.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) ownership: Ownership,
    pub(crate) limits: Limits,
}

/// Unpacks the layers of one image.
#[derive(Debug)]
pub(crate) struct Unpacker<'r> {
    tree: Tree,
    rules: &'r Rules,
    entries: Budget,
    omitted: Omitted,
}

/// What is known of the layer being unpacked.
struct Layer {
    /// The names that it brings or came through. A directory's number may be given again after its
    /// end; the new directory then is of the same layer, and all in it is.
    brought: HashSet<(u64, CString)>,
    /// Times of directories, by path, set when nothing more changes in them. Not by [`Place`]: each
    /// of these has a descriptor open. Not by [`Names`]: one of many short names takes many times
    /// the bytes that it is made of.
    times: Vec<(Box<[u8]>, Timespec)>,
    /// Directories from which all that lower layers had is gone: what comes later is of this layer.
    /// Each is listed once, however often a layer asks for it.
    emptied: HashSet<u64>,
    names_bytes: Budget,
    /// The last directory, as written and as found.
    last: Option<(Vec<CString>, Rc<Directory>)>,
}

/// What a path of a layer asks for.
enum Request {
    /// That something is put here.
    Put,
    /// That this name is taken away from the directory.
    Remove(CString),
    /// That the directory is emptied.
    Empty,
    /// Nothing.
    Ignore,
}

fn io<T>(step: &'static str, result: rustix::io::Result<T>) -> Result<T, EntryError> {
    result.map_err(|error| EntryError::Io { step, source: error.into() })
}

impl<'r> Unpacker<'r> {
    pub(crate) fn new(tree: Tree, rules: &'r Rules) -> Self {
        let entries = Budget::new(rules.limits.entries, "entries in all layers of an image");
        Self { tree, rules, entries, omitted: Omitted::default() }
    }

    /// Unpacks the next layer on top of those before.
    pub(crate) fn layer<R: Input>(&mut self, input: R) -> Result<(), UnpackError> {
        let mut layer = Layer {
            brought: HashSet::new(),
            times: Vec::new(),
            emptied: HashSet::new(),
            names_bytes: Budget::new(self.rules.limits.names_bytes, "bytes of names in a layer"),
            last: None,
        };
        let limits = self.rules.limits.clone();
        let mut entries = Entries::new(input, &limits);
        while let Some(entry) = entries.next()? {
            self.entry(&mut layer, &entry, &mut entries)
                .map_err(|source| UnpackError::Entry { path: shown(&entry.path), source })?;
        }
        for (path, modified) in layer.times {
            self.set_directory_time(&path, modified)
                .map_err(|source| UnpackError::Entry { path: shown(&path), source })?;
        }
        Ok(())
    }

    pub(crate) fn omitted(&self) -> Omitted {
        self.omitted
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries.used()
    }

    fn entry<R: Input>(
        &mut self,
        layer: &mut Layer,
        entry: &Entry,
        data: &mut Entries<'_, R>,
    ) -> Result<(), EntryError> {
        self.entries.take(1)?;
        within(entry.size, self.rules.limits.file_bytes, "bytes of one file")?;
        let names = Names::parse(&entry.path, &self.rules.limits)?;
        let Some((above, name)) = names.split() else {
            return self.root(entry);
        };
        match request(&names, name)? {
            Request::Ignore => Ok(()),
            Request::Empty => match self.find(above)? {
                Some(directory) => self.empty(layer, &directory),
                None => Ok(()),
            },
            Request::Remove(name) => match self.find(above)? {
                Some(directory) => self.white_out(layer, Place { directory, name }),
                None => Ok(()),
            },
            Request::Put => {
                let directory = self.make(layer, above)?;
                if entry.kind == Kind::Directory {
                    layer.names_bytes.take(entry.path.len() as u64 + NAME_OVERHEAD_BYTES)?;
                    let path = entry.path.clone().into_boxed_slice();
                    layer.times.push((path, timestamps(entry).last_modification));
                }
                self.put(layer, entry, Place { directory, name: name.clone() }, data)
            }
        }
    }

    /// Sets what the image says of its root directory.
    fn root(&mut self, entry: &Entry) -> Result<(), EntryError> {
        if entry.kind != Kind::Directory {
            return Err(EntryError::Root);
        }
        let root = self.tree.root().clone();
        self.describe_open(&*root, entry, OWNER_ALL)?;
        io("set the time of the root", fs::futimens(&*root, &timestamps(entry)))
    }

    /// The directory that whiteouts are about, if it is there.
    fn find(&self, names: &[CString]) -> Result<Option<Rc<Directory>>, EntryError> {
        match self.tree.directory(names, Missing::Refuse, |_, _| Ok::<_, PathError>(())) {
            Ok(directory) => Ok(Some(directory)),
            Err(PathError::Missing | PathError::NotDirectory) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory that something is put into; it is made if it is missing, as all above it.
    fn make(&mut self, layer: &mut Layer, names: &[CString]) -> Result<Rc<Directory>, EntryError> {
        if let Some((last, directory)) = &layer.last
            && last == names
        {
            return Ok(directory.clone());
        }
        let (entries, keep) = (&mut self.entries, self.rules.ownership == Ownership::Keep);
        let directory = self.tree.directory(names, Missing::Make, |place, is_new| {
            if is_new {
                entries.take(1)?;
                // A directory that nobody describes is root's.
                if keep {
                    own(&place, Uid::ROOT, Gid::ROOT)?;
                }
            }
            layer.bring(&place)
        })?;
        layer.last = Some((names.to_vec(), directory.clone()));
        Ok(directory)
    }

    /// Sets the time of a directory, if it still is one.
    fn set_directory_time(&self, path: &[u8], modified: Timespec) -> Result<(), EntryError> {
        let names = Names::parse(path, &self.rules.limits)?;
        let place = match self.tree.place(&names) {
            Err(PathError::Missing | PathError::NotDirectory) => return Ok(()),
            other => other?,
        };
        match io("look at a directory", place.stat())? {
            Some(stat) if is_directory(&stat) => {}
            _ => return Ok(()),
        }
        let times = Timestamps { last_access: modified, last_modification: modified };
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        io("set a time", fs::utimensat(&place.directory, &place.name, &times, no_follow))
    }

    /// Removes what lower layers have at a place.
    fn white_out(&self, layer: &mut Layer, place: Place) -> Result<(), EntryError> {
        layer.last = None;
        if !layer.brought.contains(&place.key()) {
            return io("remove what it takes away", place.remove());
        }
        // This layer has something there: only what is below it, and is not of this layer, goes.
        match io("look at what it takes away", place.stat())? {
            Some(stat) if is_directory(&stat) => {
                self.empty_opened(layer, io("open a directory", place.open_directory())?)
            }
            _ => Ok(()),
        }
    }

    /// Removes all that lower layers have in a directory.
    fn empty(&self, layer: &mut Layer, directory: &Directory) -> Result<(), EntryError> {
        layer.last = None;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = fs::openat(directory, c".", flags, Mode::empty());
        self.empty_opened(layer, io("open a directory", opened)?)
    }

    fn empty_opened(
        &self,
        layer: &mut Layer,
        directory: std::os::fd::OwnedFd,
    ) -> Result<(), EntryError> {
        let number = io("look at a directory", fs::fstat(&directory))?.st_ino;
        if !layer.emptied.insert(number) {
            return Ok(());
        }
        for child in io("list a directory", children(directory))? {
            self.white_out(layer, child)?;
        }
        Ok(())
    }

    fn put<R: Input>(
        &mut self,
        layer: &mut Layer,
        entry: &Entry,
        place: Place,
        data: &mut Entries<'_, R>,
    ) -> Result<(), EntryError> {
        self.omitted.attributes += entry.attributes;
        layer.bring(&place)?;
        if let Kind::HardLink(target) = &entry.kind {
            return self.hard_link(layer, target, &place);
        }
        if let Kind::Unknown(kind) = entry.kind {
            return Err(EntryError::Type(kind.into()));
        }
        if entry.kind == Kind::Sparse {
            return Err(EntryError::Sparse);
        }
        let there = io("look at its place", place.stat())?;
        if entry.kind == Kind::Directory && there.as_ref().is_some_and(is_directory) {
            return self.describe_directory(entry, &place);
        }
        if there.is_some() {
            layer.last = None;
            io("replace what is there", place.remove())?;
        }
        match &entry.kind {
            Kind::Directory => {
                let mode = Mode::from_raw_mode(OWNER_ALL);
                io("make the directory", fs::mkdirat(&place.directory, &place.name, mode))?;
                self.describe_directory(entry, &place)
            }
            Kind::Symlink(target) => self.symlink(entry, target, &place),
            Kind::File => self.file(entry, &place, data),
            _ => {
                self.omitted.special_files += 1;
                Ok(())
            }
        }
    }

    fn file<R: Input>(
        &mut self,
        entry: &Entry,
        place: &Place,
        data: &mut Entries<'_, R>,
    ) -> Result<(), EntryError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let flags = flags | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let opened = fs::openat(&place.directory, &place.name, flags, mode);
        let mut file = File::from(io("make the file", opened)?);
        copy(data, &mut file)?;
        self.describe_open(&file, entry, 0)?;
        io("set its time", fs::futimens(&file, &timestamps(entry)))
    }

    fn symlink(&self, entry: &Entry, target: &[u8], place: &Place) -> Result<(), EntryError> {
        let refused = |source| EntryError::Target { target: shown(target), source };
        within(target.len() as u64, self.rules.limits.path_bytes, "bytes of a link's target")?;
        if target.is_empty() {
            return Err(refused(PathError::Missing));
        }
        let target = CString::new(target).map_err(|_| refused(PathError::Nul))?;
        io("make the link", fs::symlinkat(&target, &place.directory, &place.name))?;
        if self.rules.ownership == Ownership::Keep {
            let (uid, gid) = owner(entry)?;
            own(place, uid, gid)?;
        }
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        let times = timestamps(entry);
        io("set its time", fs::utimensat(&place.directory, &place.name, &times, no_follow))
    }

    /// Gives a file another name. The link's target is a path from the root of the image; it may
    /// lead through links, and the kernel does not follow the last one.
    fn hard_link(&self, layer: &mut Layer, target: &[u8], place: &Place) -> Result<(), EntryError> {
        let refused = |source| EntryError::Target { target: shown(target), source };
        let names = Names::parse(target, &self.rules.limits).map_err(refused)?;
        let from = self.tree.place(&names).map_err(refused)?;
        if from.key() == place.key() {
            return Ok(());
        }
        match io("look at its target", from.stat())? {
            None => return Err(refused(PathError::Missing)),
            Some(stat) if is_directory(&stat) => return Err(refused(PathError::NotDirectory)),
            Some(_) => {}
        }
        if io("look at its place", place.stat())?.is_some() {
            layer.last = None;
            io("replace what is there", place.remove())?;
        }
        let (from_name, to_name) = (&from.name, &place.name);
        let flags = AtFlags::empty();
        let linked = fs::linkat(&from.directory, from_name, &place.directory, to_name, flags);
        match linked {
            // What was replaced contained the target.
            Err(Errno::NOENT) => Err(refused(PathError::Missing)),
            other => io("link it to its target", other),
        }
    }

    fn describe_directory(&mut self, entry: &Entry, place: &Place) -> Result<(), EntryError> {
        let opened = io("open the directory", place.open_directory())?;
        let always = if self.rules.ownership == Ownership::Caller { OWNER_ALL } else { 0 };
        self.describe_open(&opened, entry, always)
    }

    /// Sets owner and mode; the owner first, because a change of it clears bits of the mode.
    fn describe_open(
        &mut self,
        opened: impl std::os::fd::AsFd,
        entry: &Entry,
        always: u32,
    ) -> Result<(), EntryError> {
        if self.rules.ownership == Ownership::Keep {
            let (uid, gid) = owner(entry)?;
            io("set its owner", fs::fchown(&opened, Some(uid), Some(gid)))?;
        }
        if entry.mode & PRIVILEGE_BITS != 0 {
            self.omitted.privileged_files += 1;
        }
        let mode = Mode::from_raw_mode(entry.mode & MODE_BITS | always);
        io("set its mode", fs::fchmod(&opened, mode))
    }
}

impl Layer {
    /// Remembers that a name is of this layer.
    fn bring(&mut self, place: &Place) -> Result<(), EntryError> {
        let key = place.key();
        if !self.brought.contains(&key) {
            self.names_bytes.take(key.1.as_bytes().len() as u64 + NAME_OVERHEAD_BYTES)?;
            self.brought.insert(key);
        }
        Ok(())
    }
}

/// What the last name of a path asks for.
fn request(names: &Names, name: &CString) -> Result<Request, EntryError> {
    if name.as_bytes() == WHITEOUT_OPAQUE {
        return Ok(Request::Empty);
    }
    if names.iter().any(|name| name.starts_with(WHITEOUT_META_PREFIX)) {
        return Ok(Request::Ignore);
    }
    let Some(removed) = name.as_bytes().strip_prefix(WHITEOUT_PREFIX) else {
        let is_whiteout = names.iter().any(|name| name.starts_with(WHITEOUT_PREFIX));
        return if is_whiteout { Err(EntryError::WhiteoutDirectory) } else { Ok(Request::Put) };
    };
    match removed {
        b"" | b"." | b".." => Err(EntryError::Whiteout),
        _ => Ok(Request::Remove(CString::new(removed).expect("it is of a C string"))),
    }
}

fn copy<R: Input>(data: &mut Entries<'_, R>, file: &mut File) -> Result<(), EntryError> {
    use std::io::Write;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = data.read(&mut buffer).map_err(|error| EntryError::Data(error.into()))?;
        if count == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..count])
            .map_err(|source| EntryError::Io { step: "write its data", source })?;
    }
}

fn owner(entry: &Entry) -> Result<(Uid, Gid), EntryError> {
    // The highest number means "as it is" to the kernel.
    let number = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    let (uid, gid) = (entry.uid, entry.gid);
    match (number(uid), number(gid)) {
        (Some(uid), Some(gid)) => Ok((Uid::from_raw(uid), Gid::from_raw(gid))),
        _ => Err(EntryError::Owner { uid, gid }),
    }
}

fn own(place: &Place, uid: Uid, gid: Gid) -> Result<(), EntryError> {
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    let changed = fs::chownat(&place.directory, &place.name, Some(uid), Some(gid), no_follow);
    io("set its owner", changed)
}

fn timestamps(entry: &Entry) -> Timestamps {
    let (seconds, nanoseconds) = entry.modified;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
