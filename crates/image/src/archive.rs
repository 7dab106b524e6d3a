//! Where the parts of an image lie: a directory, or an archive with the same names in it.
//!
//! An archive is read once to learn where its members are. One that is compressed as a whole is
//! written out first, to a file without a name in the store.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::content::{Bounded, Counted, Slice, decompressed, exceeded, is_compressed};
use crate::entries::{Entries, Kind, TarError};
use crate::halt::Guard;
use crate::limits::{Budget, Exceeded, Limits, within};

/// Links from one member to the next.
const MEMBER_LINKS_MAX: usize = 8;

/// An archive or layout that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is not there, or not for the caller.
    #[error("cannot open {path}")]
    Open {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be decompressed.
    #[error("cannot decompress {path}")]
    Decompress {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a good tar archive.
    #[error("{path} is not a good archive")]
    Tar {
        /// Where.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// It is too large.
    #[error("{path} is too large an archive")]
    Bound {
        /// Where.
        path: PathBuf,
        /// The bound.
        source: Exceeded,
    },
}

/// Files by name, as a layout of OCI or an archive of Docker has them.
#[derive(Debug)]
pub(crate) enum Archive {
    Directory(PathBuf),
    Members(HashMap<Vec<u8>, Member>),
}

/// One member of an archive.
#[derive(Debug)]
pub(crate) enum Member {
    File(Slice),
    /// The whole name of the member that it stands for.
    Link(Vec<u8>),
}

impl Archive {
    /// Opens a directory or an archive; `scratch` is a directory for what must be written out.
    pub(crate) fn open(
        path: &Path,
        scratch: &Path,
        limits: &Limits,
        guard: &Guard<'_>,
    ) -> Result<Self, ArchiveError> {
        let failed = |source| ArchiveError::Open { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut archive = Slice::whole(open_regular(path).map_err(failed)?).map_err(failed)?;
        let mut first = [0; 8];
        let length = archive.clone().read(&mut first).map_err(failed)?;
        if is_compressed(&first[..length]) {
            archive = write_out(archive, scratch, limits, guard).map_err(|source| {
                let path = path.to_owned();
                match exceeded(&source) {
                    Some(source) => ArchiveError::Bound { path, source },
                    None => ArchiveError::Decompress { path, source },
                }
            })?;
        }
        let tar = |source| ArchiveError::Tar { path: path.to_owned(), source };
        let mut members = HashMap::new();
        let mut left = Budget::new(limits.archive_members, "members of the archive");
        let mut entries = Entries::new(archive, limits);
        let bound = |source| ArchiveError::Bound { path: path.to_owned(), source };
        while let Some(entry) = entries.next().map_err(tar)? {
            left.take(1).map_err(bound)?;
            // All names and targets are kept.
            let names = [&entry.path, entry.kind.target().unwrap_or(&entry.path)];
            let longest = names.map(Vec::len).into_iter().max().unwrap_or_default() as u64;
            within(longest, limits.path_bytes, "bytes of a path").map_err(bound)?;
            let Some(name) = normal(b"", &entry.path) else { continue };
            let member = match entry.kind {
                Kind::File => entries.input().part(entry.size).map(Member::File),
                Kind::Symlink(target) => normal(above(&name), &target).map(Member::Link),
                Kind::HardLink(target) => normal(b"", &target).map(Member::Link),
                _ => continue,
            };
            let cut = || tar(TarError::Read(io::ErrorKind::UnexpectedEof.into()));
            match member {
                Some(member) => drop(members.insert(name, member)),
                None if entry.size > 0 => return Err(cut()),
                // A link that leads nowhere: nobody will find it.
                None => {}
            }
        }
        Ok(Self::Members(members))
    }

    /// The file of this name; `None` if there is none.
    pub(crate) fn file(&self, name: &str) -> Result<Option<Slice>, ArchiveError> {
        let members = match self {
            Self::Members(members) => members,
            Self::Directory(directory) => return file_of(directory, name),
        };
        let mut name = match normal(b"", name.as_bytes()) {
            Some(name) => name,
            None => return Ok(None),
        };
        for _ in 0..MEMBER_LINKS_MAX {
            match members.get(&name) {
                Some(Member::File(slice)) => return Ok(Some(slice.clone())),
                Some(Member::Link(target)) => name.clone_from(target),
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}

fn file_of(directory: &Path, name: &str) -> Result<Option<Slice>, ArchiveError> {
    let Some(normal) = normal(b"", name.as_bytes()) else { return Ok(None) };
    let path = directory.join(OsStr::from_bytes(&normal));
    match open_regular(&path).and_then(Slice::whole) {
        Ok(slice) => Ok(Some(slice)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ArchiveError::Open { path, source }),
    }
}

/// Opens a file that is none of those whose reading waits or never ends.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Writes an archive out that is compressed as a whole, so that its members can be found.
fn write_out(
    archive: Slice,
    scratch: &Path,
    limits: &Limits,
    guard: &Guard<'_>,
) -> io::Result<Slice> {
    guard.look().map_err(io::Error::other)?;
    let mut total = Budget::new(limits.archive_bytes, "bytes in the decompressed archive");
    let (counted, compressed) = Counted::new(archive);
    let mut plain =
        Bounded::new(guard.over(decompressed(counted)?), &mut total, compressed, limits);
    let mut file = unnamed_file(scratch)?;
    io::copy(&mut plain, &mut file)?;
    file.flush()?;
    Slice::whole(file)
}

/// A file that is gone when it is closed, also after a crash.
fn unnamed_file(directory: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("archive-{}-{number}", process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    match std::fs::remove_file(&path) {
        // Somebody who cleaned up was faster.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(file),
    }
}

/// A member's name from the root of the archive, without what means nothing. `None` if it leads
/// out of the archive.
fn normal(above: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let start = if name.starts_with(b"/") { &b""[..] } else { above };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in start.split(|it| *it == b'/').chain(name.split(|it| *it == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

fn above(name: &[u8]) -> &[u8] {
    name.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &name[..slash])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_members_stay_within_the_archive() {
        let check = |above: &str, name: &str, expected: Option<&str>| {
            let found = normal(above.as_bytes(), name.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{name}");
        };
        check("", "./a//b", Some("a/b"));
        check("", "/a", Some("a"));
        check("a", "../b/layer.tar", Some("b/layer.tar"));
        check("a", "../../b", None);
        check("a/b", "/c/../d", Some("d"));
    }
}
