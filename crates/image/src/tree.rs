//! A directory tree in which paths of strangers are safe.
//!
//! A path is walked part by part with descriptors of directories, and the kernel follows no link.
//! This file follows them itself, as a process whose root is this tree would: `/` and `..` in a
//! link's target never leave the root. `openat2` could do the same for one path that is there; it
//! makes no directories on the way and does not say which ones it came through.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, Result as IoResult};

use crate::limits::{Exceeded, Limits, within};

/// Who opens a directory only to name what is in it.
const PASS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Who lists a directory or changes its mode.
const LIST: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Directories that no entry describes.
const IMPLIED_MODE: Mode = Mode::from_raw_mode(0o755);

/// A path that cannot be walked.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It leads out of the tree.
    #[error("it has a part \"..\"")]
    Parent,
    /// It has a byte that no path has.
    #[error("it has a zero byte")]
    Nul,
    /// It names the root itself.
    #[error("it names the root of the image")]
    Root,
    /// A file is expected there.
    #[error("it is a directory")]
    Directory,
    /// A regular file is expected there.
    #[error("it is not a regular file")]
    NotFile,
    /// Part of it is a file.
    #[error("a part of it is not a directory")]
    NotDirectory,
    /// It is not there.
    #[error("it is not there")]
    Missing,
    /// It is too long, too deep, or has too many links.
    #[error(transparent)]
    Bound(#[from] Exceeded),
    /// The file system refuses it.
    #[error("the file system refuses it")]
    Io(#[from] Errno),
}

/// Whether directories that are not there are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Make,
    Refuse,
}

/// A directory of the tree.
#[derive(Debug)]
pub(crate) struct Directory {
    descriptor: OwnedFd,
    /// Its number in the file system, which knows it whatever its path.
    pub(crate) number: u64,
}

/// A name in a directory, whether something is there or not.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: Rc<Directory>,
    pub(crate) name: CString,
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) enum Target {
    /// A directory.
    Directory(Rc<Directory>),
    /// Anything else, but no link.
    File(Place),
    /// Nothing is there. The directory of the place is.
    Nothing(Place),
}

/// The tree below one directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Directory>,
    limits: Limits,
}

/// A path as it is in an archive, made of names alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names(Vec<CString>);

impl Names {
    /// Reads a path of an archive: an absolute one begins at the root of the tree, as for Docker.
    pub(crate) fn parse(path: &[u8], limits: &Limits) -> Result<Self, PathError> {
        within(path.len() as u64, limits.path_bytes, "bytes of a path")?;
        let names: Vec<CString> = parts(path)
            .map(|part| match part {
                b".." => Err(PathError::Parent),
                _ => CString::new(part).map_err(|_| PathError::Nul),
            })
            .collect::<Result<_, _>>()?;
        within(names.len() as u64, limits.depth, "directories above a file")?;
        for name in &names {
            within(name.as_bytes().len() as u64, limits.name_bytes, "bytes of a name")?;
        }
        Ok(Self(names))
    }

    /// The names of the directories, and the last one; `None` for the root.
    pub(crate) fn split(&self) -> Option<(&[CString], &CString)> {
        self.0.split_last().map(|(last, before)| (before, last))
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[CString] {
        &self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|name| name.as_bytes())
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.0.iter().map(|name| name.to_string_lossy()).collect();
        formatter.write_str(&names.join("/"))
    }
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

impl Directory {
    fn new(descriptor: OwnedFd) -> IoResult<Self> {
        let number = fs::fstat(&descriptor)?.st_ino;
        Ok(Self { descriptor, number })
    }

    fn enter(&self, name: &CString) -> IoResult<Self> {
        Self::new(fs::openat(&self.descriptor, name, PASS, Mode::empty())?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Place {
    /// What is here, itself and not what it links to.
    pub(crate) fn stat(&self) -> IoResult<Option<Stat>> {
        match fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What knows a name, whatever its path.
    pub(crate) fn key(&self) -> (u64, CString) {
        (self.directory.number, self.name.clone())
    }

    /// The directory that is here, to be listed or changed.
    pub(crate) fn open_directory(&self) -> IoResult<OwnedFd> {
        fs::openat(&self.directory, &self.name, LIST, Mode::empty())
    }

    /// Makes a directory that no entry describes. The caller's mask of modes does not count.
    fn make_directory(&self) -> IoResult<Directory> {
        fs::mkdirat(&self.directory, &self.name, IMPLIED_MODE)?;
        fs::fchmod(self.open_directory()?, IMPLIED_MODE)?;
        self.directory.enter(&self.name)
    }

    /// Removes what is here, with all that is below it.
    pub(crate) fn remove(&self) -> IoResult<()> {
        match fs::unlinkat(&self.directory, &self.name, AtFlags::empty()) {
            // Which of the two a directory gets depends on the file system.
            Err(Errno::ISDIR | Errno::PERM) => {
                for child in children(self.open_directory()?)? {
                    child.remove()?;
                }
                fs::unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR)
            }
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }
}

/// What is in a directory.
pub(crate) fn children(directory: OwnedFd) -> IoResult<Vec<Place>> {
    let mut entries = fs::Dir::read_from(&directory)?;
    let directory = Rc::new(Directory::new(directory)?);
    let mut places = Vec::new();
    while let Some(entry) = entries.read() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            places.push(Place { directory: directory.clone(), name });
        }
    }
    Ok(places)
}

/// Whether this is a directory.
pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// A walk through the tree: the directories that it is in, and the names that are ahead.
struct Walk<'t> {
    tree: &'t Tree,
    within: Vec<Rc<Directory>>,
    /// The next one is last.
    ahead: Vec<CString>,
    links: u64,
    /// Names passed so far.
    steps: u64,
}

impl Walk<'_> {
    /// The next name of an entry; `..` is passed over, and above the root is the root.
    fn next(&mut self) -> Result<Option<CString>, PathError> {
        while let Some(name) = self.ahead.pop() {
            self.steps += 1;
            within(self.steps, self.tree.limits.steps, "names on the way")?;
            // Only links have it.
            if name.as_bytes() != b".." {
                return Ok(Some(name));
            }
            self.within.pop();
        }
        Ok(None)
    }

    fn here(&self) -> Rc<Directory> {
        self.within.last().unwrap_or(&self.tree.root).clone()
    }

    fn enter(&mut self, directory: Directory) -> Result<(), PathError> {
        self.within.push(Rc::new(directory));
        let depth = self.within.len() as u64;
        Ok(within(depth, self.tree.limits.depth, "directories above a file")?)
    }

    /// Puts a link's target before the names that are ahead.
    fn follow(&mut self, name: &CString) -> Result<(), PathError> {
        let target = match fs::readlinkat(self.here(), name, Vec::new()) {
            Ok(target) => target,
            Err(Errno::INVAL) => return Err(PathError::NotDirectory),
            Err(error) => return Err(error.into()),
        };
        self.links += 1;
        let limits = &self.tree.limits;
        within(self.links, limits.links_followed, "symbolic links on the way")?;
        if target.as_bytes().starts_with(b"/") {
            self.within.clear();
        }
        let names = parts(target.as_bytes()).rev();
        self.ahead.extend(names.map(|name| CString::new(name).expect("it is of a C string")));
        Ok(within(self.ahead.len() as u64, limits.path_bytes, "names ahead")?)
    }
}

impl Tree {
    pub(crate) fn open(root: &Path, limits: &Limits) -> IoResult<Self> {
        let descriptor = fs::open(root, LIST, Mode::empty())?;
        Ok(Self { root: Rc::new(Directory::new(descriptor)?), limits: limits.clone() })
    }

    /// The tree's own directory.
    pub(crate) fn root(&self) -> &Rc<Directory> {
        &self.root
    }

    fn walk(&self, names: &[CString]) -> Walk<'_> {
        let ahead = names.iter().rev().cloned().collect();
        Walk { tree: self, within: Vec::new(), ahead, links: 0, steps: 0 }
    }

    /// The directory at the end of these names, through links. Every step is reported: the place,
    /// and whether the directory had to be made.
    pub(crate) fn directory<E: From<PathError>>(
        &self,
        names: &[CString],
        missing: Missing,
        mut passed: impl FnMut(Place, bool) -> Result<(), E>,
    ) -> Result<Rc<Directory>, E> {
        let mut walk = self.walk(names);
        while let Some(name) = walk.next()? {
            let here = walk.here();
            match here.enter(&name) {
                Ok(directory) => {
                    walk.enter(directory)?;
                    passed(Place { directory: here, name }, false)?;
                }
                Err(Errno::NOENT) if missing == Missing::Make => {
                    let place = Place { directory: here, name };
                    walk.enter(place.make_directory().map_err(PathError::from)?)?;
                    passed(place, true)?;
                }
                Err(Errno::NOENT) => return Err(PathError::Missing.into()),
                Err(Errno::NOTDIR | Errno::LOOP) => walk.follow(&name)?,
                Err(error) => return Err(PathError::from(error).into()),
            }
        }
        Ok(walk.here())
    }

    /// The place of an existing path, through links up to its last name.
    pub(crate) fn place(&self, names: &Names) -> Result<Place, PathError> {
        let (above, name) = names.split().ok_or(PathError::Root)?;
        let directory = self.directory(above, Missing::Refuse, |_, _| Ok::<_, PathError>(()))?;
        Ok(Place { directory, name: name.clone() })
    }

    /// What these names lead to, through all links, also at their end. Directories on the way are
    /// made if they are missing and should be.
    pub(crate) fn target(&self, names: &[CString], missing: Missing) -> Result<Target, PathError> {
        let mut walk = self.walk(names);
        while let Some(name) = walk.next()? {
            let place = Place { directory: walk.here(), name };
            let is_last = walk.ahead.is_empty();
            match place.directory.enter(&place.name) {
                Ok(directory) => walk.enter(directory)?,
                Err(Errno::NOENT) if is_last => return Ok(Target::Nothing(place)),
                Err(Errno::NOENT) if missing == Missing::Make => {
                    walk.enter(place.make_directory()?)?;
                }
                Err(Errno::NOENT) => return Err(PathError::Missing),
                Err(Errno::NOTDIR | Errno::LOOP) => match place.stat()? {
                    Some(stat) if is_link(&stat) => walk.follow(&place.name)?,
                    Some(_) if is_last => return Ok(Target::File(place)),
                    Some(_) => return Err(PathError::NotDirectory),
                    None => return Err(PathError::Missing),
                },
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Target::Directory(walk.here()))
    }

    /// Opens the regular file at a path for reading, through all links.
    pub(crate) fn open_file(&self, path: &[u8]) -> Result<std::fs::File, PathError> {
        let names = Names::parse(path, &self.limits)?;
        let place = match self.target(names.all(), Missing::Refuse)? {
            Target::File(place) => place,
            Target::Directory(_) => return Err(PathError::Directory),
            Target::Nothing(_) => return Err(PathError::Missing),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Not even opened, which some files notice.
        if !place.stat()?.as_ref().is_some_and(is_file) {
            return Err(PathError::NotFile);
        }
        Ok(fs::openat(&place.directory, &place.name, flags, Mode::empty())?.into())
    }
}
