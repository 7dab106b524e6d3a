//! Places for volumes in the host's file tree, for containers without an image.
//!
//! The host's tree cannot be written, and a volume may be wanted where the host has nothing, such
//! as `/data`. Then the innermost directory that the host has is rebuilt in memory: every entry of
//! it is mounted in a new directory of the same mode, where the missing directories are made. The
//! calling process is alone in its mount namespace, so that nobody else sees it.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process;

use ambit_image::PathError;
use ambit_image::mount_point::{self, Kind};
use ambit_net::sys::mount::{self, MountOptions};

use super::root::{RootError, Shown, UNCHANGING};

/// Room for directories and links; files are mounted.
const ROOM_SIZE_BYTES: u64 = 16 << 20;
/// Most entries of a directory that is rebuilt: each is a mount, and a descriptor for a moment.
const ENTRIES_MAX: usize = 500;
/// Symbolic links on the way to a place; as many as the kernel follows.
const LINKS_MAX: u32 = 40;
/// Where a directory is rebuilt: a place of the pod's own, which only its root can write.
const WORKSHOPS: &str = "/run";

/// A directory that could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoomError {
    /// Something is in the way, or a mount failed.
    #[error(transparent)]
    Show(#[from] RootError),
    /// It has too many entries.
    #[error(
        "this machine has no place for {target}, and {directory} has more than {ENTRIES_MAX} \
         entries; make the place on this machine, or give the container an image"
    )]
    Large {
        /// Where a volume is wanted.
        target: PathBuf,
        /// What would be rebuilt.
        directory: PathBuf,
    },
    /// A step failed.
    #[error(
        "cannot make room for {target} in {directory}; make the place on this machine, or give the \
         container an image"
    )]
    Rebuild {
        /// Where a volume is wanted.
        target: PathBuf,
        /// What is rebuilt.
        directory: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Mounts something in the host's tree, and makes room for it if there is none.
pub(crate) fn show(shown: Shown) -> Result<(), RoomError> {
    let root = Path::new("/");
    match mount_point::mount_point(root, &shown.target, shown.kind) {
        Err(PathError::Io(error)) if is_read_only(error) => {
            let target = shown.target.clone();
            let failed_at = |directory: &Path, source| RoomError::Rebuild {
                target: target.clone(),
                directory: directory.to_owned(),
                source,
            };
            let (directory, missing) =
                reached(root, &target).map_err(|source| failed_at(root, source))?;
            let failed = |source| failed_at(&directory, source);
            let is_large = fs::read_dir(&directory).map_err(failed)?.count() > ENTRIES_MAX;
            if is_large {
                return Err(RoomError::Large { target, directory });
            }
            rebuild(&directory, &missing, shown.kind).map_err(failed)?;
            Ok(super::root::show(root, shown)?)
        }
        _ => Ok(super::root::show(root, shown)?),
    }
}

/// Whether nothing can be made there because the file system cannot be written.
fn is_read_only(error: impl Into<io::Error>) -> bool {
    error.into().kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// How far the way to a place leads in a tree: the innermost directory that is there, by its real
/// path, and the names that are not there.
fn reached(root: &Path, target: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let mut ahead: Vec<OsString> = names(target).rev().collect();
    let (mut here, mut links) = (root.to_owned(), 0);
    while let Some(name) = ahead.pop() {
        if name == ".." {
            if here != root {
                here.pop();
            }
            continue;
        }
        let path = here.join(&name);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::ErrorKind::TooManyLinks.into());
                }
                let to = fs::read_link(&path)?;
                if to.is_absolute() {
                    root.clone_into(&mut here);
                }
                ahead.extend(names(&to).rev());
            }
            Ok(found) if found.is_dir() => here = path,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                ahead.push(name);
                return Ok((here, ahead.into_iter().rev().collect()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((here, PathBuf::new()))
}

/// The names of a path that change where it leads.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Puts a directory of the same entries in the place of this one, and makes the missing place in
/// it.
fn rebuild(directory: &Path, missing: &Path, kind: Kind) -> io::Result<()> {
    let options = MountOptions { read_only: false, ..UNCHANGING };
    let found = fs::metadata(directory)?;
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let trees = entries.into_iter().map(|entry| {
        let kind = entry.file_type()?;
        let tree =
            (!kind.is_symlink()).then(|| mount::detached_whole(&entry.path())).transpose()?;
        Ok((entry, kind, tree))
    });
    let trees = trees.collect::<io::Result<Vec<_>>>()?;
    // Others of the pod see the empty directory.
    let workshop = Path::new(WORKSHOPS).join(format!(".room-{}", process::id()));
    let workshop = workshop.as_path();
    fs::create_dir(workshop)?;
    mount::tmpfs(workshop, ROOM_SIZE_BYTES, found.mode() & 0o7777, options)?;
    for (entry, kind, tree) in trees {
        let place = workshop.join(entry.file_name());
        match tree {
            None => symlink(fs::read_link(entry.path())?, &place)?,
            Some(tree) => {
                if kind.is_dir() {
                    fs::create_dir(&place)?;
                } else {
                    File::create(&place)?;
                }
                mount::attach(tree, mount::open_path(&place)?)?;
            }
        }
    }
    mount_point::mount_point(workshop, missing, kind).map_err(io::Error::other)?;
    fs::set_permissions(workshop, Permissions::from_mode(found.mode() & 0o7777))?;
    mount::remount_bind(workshop, UNCHANGING)?;
    if directory == Path::new("/") {
        mount::pivot_root(workshop)?;
        return fs::remove_dir(workshop);
    }
    let whole = mount::detached_whole(workshop)?;
    mount::unmount(workshop)?;
    fs::remove_dir(workshop)?;
    mount::attach(whole, mount::open_path(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_directory_is_found_through_links() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("usr/lib/deep")).unwrap();
        fs::write(root.join("usr/file"), "").unwrap();
        for (target, name) in [
            ("usr/lib", "lib"),
            ("/usr/lib", "absolute"),
            ("/data/there", "usr/dangling"),
            ("../../..", "usr/lib/up"),
            ("loop", "loop"),
        ] {
            symlink(target, root.join(name)).unwrap();
        }
        for (target, directory, missing) in [
            ("/data", "", "data"),
            ("/usr/x/y", "usr", "x/y"),
            ("/lib/x", "usr/lib", "x"),
            ("/lib/deep/x/y", "usr/lib/deep", "x/y"),
            ("/absolute/x", "usr/lib", "x"),
            ("/usr/dangling/x", "", "data/there/x"),
            ("/lib/up/x", "", "x"),
            ("/lib/deep", "usr/lib/deep", ""),
        ] {
            let found = reached(root, Path::new(target)).unwrap();
            assert_eq!(found, (root.join(directory), missing.into()), "{target}");
        }
        for target in ["/usr/file/x", "/loop/x"] {
            assert!(reached(root, Path::new(target)).is_err(), "{target}");
        }
    }
}
