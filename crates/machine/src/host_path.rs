//! Directories of the host that pods may write: `--host-path`.
//!
//! Each is found once, when the machine is started, and known from then on by its number: whatever
//! is put at its path later, by a pod or by another user, is not it. What is below it is reached
//! from the directory itself, and no link leads out.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ambit_image::mount_point::{self, Kind};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use crate::ownership::{OwnershipError, check_target};

/// A directory of the host that pods may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPath {
    /// As volumes name it.
    written: PathBuf,
    /// The same without links.
    real: PathBuf,
    /// Which directory it is, of which file system.
    device: u64,
    inode: u64,
}

/// A `--host-path` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// It depends on where the command was run.
    #[error("--host-path {}: write an absolute path, as volumes do", .path.display())]
    Relative {
        /// As written.
        path: PathBuf,
    },
    /// It cannot be found.
    #[error("--host-path {}: cannot find it", .path.display())]
    Find {
        /// As written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("--host-path {}: it is not a directory", .path.display())]
    Kind {
        /// As written.
        path: PathBuf,
    },
    /// Somebody else decides which directory is there.
    #[error("--host-path {}: another user can put another directory there", .path.display())]
    Way {
        /// As written.
        path: PathBuf,
        /// Who, and how.
        source: OwnershipError,
    },
    /// Pods that write one could replace the other.
    #[error(
        "--host-path {} and {}: one lies in the other; name the outer one alone",
        .one.display(), .other.display()
    )]
    Nested {
        /// As written.
        one: PathBuf,
        /// As written.
        other: PathBuf,
    },
}

impl HostPath {
    /// Finds all directories that a command names. It must be called where users have their real
    /// numbers: outside of a user namespace of the machine.
    pub fn all(paths: &[PathBuf]) -> Result<Vec<Self>, HostPathError> {
        let found = paths.iter().map(|path| Self::find(path)).collect::<Result<Vec<_>, _>>()?;
        for (index, one) in found.iter().enumerate() {
            let is_nested = |other: &&Self| {
                one.real.starts_with(&other.real) || other.real.starts_with(&one.real)
            };
            if let Some(other) = found[..index].iter().find(is_nested) {
                let (one, other) = (other.written.clone(), one.written.clone());
                return Err(HostPathError::Nested { one, other });
            }
        }
        Ok(found)
    }

    fn find(path: &Path) -> Result<Self, HostPathError> {
        let written = path.to_owned();
        if !path.is_absolute() {
            return Err(HostPathError::Relative { path: written });
        }
        let failed = |source| HostPathError::Find { path: path.to_owned(), source };
        let real = fs::canonicalize(path).map_err(failed)?;
        check_target(path)
            .map_err(|source| HostPathError::Way { path: path.to_owned(), source })?;
        let metadata = fs::metadata(&real).map_err(failed)?;
        if !metadata.is_dir() {
            return Err(HostPathError::Kind { path: written });
        }
        Ok(Self { written, real, device: metadata.dev(), inode: metadata.ino() })
    }

    /// The directory, as volumes name it.
    pub(crate) fn path(&self) -> &Path {
        &self.written
    }

    /// What a path of a volume is below the directory; `None` if it is elsewhere.
    pub(crate) fn below(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.written).or_else(|_| path.strip_prefix(&self.real));
        below.ok().map(Path::to_owned)
    }

    /// Opens a file or directory below it for its path alone, and makes it if it is missing and
    /// should be made. `None` if another directory is there now.
    pub(crate) fn open(&self, below: &Path, is_made: bool) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let no_links = ResolveFlags::NO_SYMLINKS;
        let here = rustix::fs::openat2(rustix::fs::CWD, &self.real, flags, Mode::empty(), no_links);
        let directory = match here {
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let found = fs::metadata(seen(&directory))?;
        if (found.dev(), found.ino()) != (self.device, self.inode) {
            return Ok(None);
        }
        match open_beneath(&directory, below) {
            Err(error) if is_made && error.kind() == io::ErrorKind::NotFound => {
                let root = seen(&directory).join(".");
                mount_point::mount_point(&root, below, Kind::Directory)
                    .map_err(io::Error::other)?;
                open_beneath(&directory, below).map(Some)
            }
            other => other.map(Some),
        }
    }
}

/// Opens what is below a directory. Links are followed, but none leads out.
fn open_beneath(directory: &OwnedFd, below: &Path) -> io::Result<OwnedFd> {
    let below = if below.as_os_str().is_empty() { OsStr::new(".") } else { below.as_os_str() };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(directory, below, flags, Mode::empty(), resolve)?)
}

fn seen(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    const NOBODY: u32 = 65534;

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let all = tempfile::tempdir().unwrap();
        let path = all.path().canonicalize().unwrap();
        for name in ["may/in", "may-not"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        (all, path)
    }

    #[test]
    fn directories_in_one_another_are_refused() {
        let (_all, path) = directory();
        symlink("may/in", path.join("link")).unwrap();
        let paths = |names: &[&str]| names.iter().map(|it| path.join(it)).collect::<Vec<_>>();
        assert_eq!(HostPath::all(&paths(&["may", "may-not"])).unwrap().len(), 2);
        for names in [["may", "may/in"], ["may/in", "may"], ["may", "link"], ["may", "may"]] {
            let error = HostPath::all(&paths(&names)).unwrap_err();
            assert!(matches!(error, HostPathError::Nested { .. }), "{error}");
        }
    }

    #[test]
    fn a_way_that_another_user_can_change_is_refused() {
        let (_all, path) = directory();
        fs::write(path.join("file"), "").unwrap();
        let error = |path: &Path| HostPath::all(&[path.to_owned()]).unwrap_err().to_string();
        assert!(error(Path::new("may")).contains("absolute"));
        assert!(error(&path.join("none")).contains("cannot find it"));
        assert!(error(&path.join("file")).contains("not a directory"));
        // Whose the directory itself is does not matter: pods may write it anyway.
        chown(path.join("may/in"), Some(NOBODY), None).unwrap();
        HostPath::all(&[path.join("may/in")]).unwrap();
        chown(path.join("may"), Some(NOBODY), None).unwrap();
        assert!(error(&path.join("may/in")).contains("another user"));
        symlink("may-not", path.join("link")).unwrap();
        fs::create_dir(path.join("may-not/x")).unwrap();
        HostPath::all(&[path.join("link/x")]).unwrap();
        std::os::unix::fs::lchown(path.join("link"), Some(NOBODY), None).unwrap();
        symlink("link", path.join("second")).unwrap();
        for name in ["link/x", "link", "second"] {
            assert!(error(&path.join(name)).contains("another user"), "{name}");
        }
    }

    #[test]
    fn another_directory_at_the_path_is_not_it() {
        let (_all, path) = directory();
        let found = HostPath::all(&[path.join("may")]).unwrap().remove(0);
        assert!(found.open(Path::new("in"), false).unwrap().is_some());
        fs::rename(path.join("may"), path.join("moved")).unwrap();
        assert!(found.open(Path::new("in"), false).unwrap().is_none(), "it is gone");
        symlink("moved", path.join("may")).unwrap();
        assert!(found.open(Path::new("in"), false).unwrap().is_none(), "no link is followed");
        fs::remove_file(path.join("may")).unwrap();
        fs::create_dir_all(path.join("may/in")).unwrap();
        assert!(found.open(Path::new("in"), false).unwrap().is_none(), "it is another one");
    }

    #[test]
    fn no_link_leads_out() {
        let (_all, path) = directory();
        for (target, name) in [("../may-not", "out"), ("/etc", "absolute"), ("in", "within")] {
            symlink(target, path.join("may").join(name)).unwrap();
        }
        let found = HostPath::all(&[path.join("may")]).unwrap().remove(0);
        let open = |below: &str, is_made| found.open(Path::new(below), is_made);
        assert!(open("", false).unwrap().is_some());
        assert!(open("within", false).unwrap().is_some());
        for below in ["out", "out/x", "absolute", "absolute/x", "none"] {
            assert!(open(below, false).is_err(), "{below}");
        }
        assert!(open("a/b", true).unwrap().is_some() && path.join("may/a/b").is_dir());
        assert!(open("out/x", true).is_err());
        assert!(!path.join("may-not/x").exists());
        assert_eq!(found.below(&path.join("may/x/y")), Some("x/y".into()));
        assert_eq!(found.below(&path.join("may-not")), None);
    }
}
