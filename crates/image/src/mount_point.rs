//! Places in a tree of strangers where somebody mounts something: found or made without leaving the
//! tree, and handed out as descriptors, so that no path has to be walked again.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, FileType, Mode, OFlags};

use crate::limits::Limits;
use crate::tree::{Directory, Missing, Names, PathError, Place, Target, Tree};

/// Of files that are made to be mounted over.
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// Opened for its path alone.
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// Anything else but a link.
    File,
}

/// The place `path` of the tree below `root`, to mount something of this kind over it. What is not
/// there is made; links are followed as by a process whose root the tree is.
pub fn mount_point(root: &Path, path: &Path, kind: Kind) -> Result<OwnedFd, PathError> {
    let limits = Limits::default();
    let tree = Tree::open(root, &limits)?;
    let names = Names::parse(path.as_os_str().as_bytes(), &limits)?;
    if kind == Kind::Directory {
        let made = tree.directory(names.all(), Missing::Make, |_, _| Ok::<_, PathError>(()))?;
        return own(&made);
    }
    match tree.target(names.all(), Missing::Make)? {
        Target::File(place) => file_at(&place),
        Target::Directory(_) => Err(PathError::Directory),
        Target::Nothing(place) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            fs::openat(&place.directory, &place.name, flags, FILE_MODE)?;
            file_at(&place)
        }
    }
}

fn file_at(place: &Place) -> Result<OwnedFd, PathError> {
    match opened(place)? {
        (file, Kind::File) => Ok(file),
        (_, Kind::Directory) => Err(PathError::Directory),
    }
}

/// What is at `path` in the tree below `root`, through all links of the tree, and what it is.
/// `None` if nothing is there.
pub fn find(root: &Path, path: &Path) -> Result<Option<(OwnedFd, Kind)>, PathError> {
    let limits = Limits::default();
    let tree = Tree::open(root, &limits)?;
    let names = Names::parse(path.as_os_str().as_bytes(), &limits)?;
    match tree.target(names.all(), Missing::Refuse) {
        Ok(Target::Directory(directory)) => Ok(Some((own(&directory)?, Kind::Directory))),
        Ok(Target::File(place)) => opened(&place).map(Some),
        Ok(Target::Nothing(_)) | Err(PathError::Missing) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens what is at a place, for its path alone. It is judged by what was opened: somebody may be
/// changing the tree.
fn opened(place: &Place) -> Result<(OwnedFd, Kind), PathError> {
    let file = fs::openat(&place.directory, &place.name, PATH, Mode::empty())?;
    match FileType::from_raw_mode(fs::fstat(&file)?.st_mode) {
        FileType::Symlink => Err(PathError::NotDirectory),
        FileType::Directory => Ok((file, Kind::Directory)),
        _ => Ok((file, Kind::File)),
    }
}

fn own(directory: &Directory) -> Result<OwnedFd, PathError> {
    Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all, read_dir, read_link, write};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    fn path_of(fd: &OwnedFd) -> PathBuf {
        read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
    }

    /// A tree beside a directory that nothing may touch.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let all = tempfile::tempdir().unwrap();
        let root = all.path().canonicalize().unwrap().join("root");
        create_dir_all(root.join("usr/etc")).unwrap();
        create_dir_all(all.path().join("outside")).unwrap();
        symlink("usr/etc", root.join("etc")).unwrap();
        symlink(all.path().join("outside"), root.join("absolute")).unwrap();
        symlink("../../outside", root.join("up")).unwrap();
        symlink("../../../../../../etc/passwd", root.join("usr/etc/hosts")).unwrap();
        create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("into")).unwrap();
        symlink("into/../file", root.join("through")).unwrap();
        (all, root)
    }

    #[test]
    fn mount_points_are_made_within_the_tree() {
        let (all, root) = tree();
        let inside = root.join(all.path().canonicalize().unwrap().strip_prefix("/").unwrap());
        for (path, kind, expected) in [
            ("/data/a", Kind::Directory, root.join("data/a")),
            ("/etc/secrets", Kind::Directory, root.join("usr/etc/secrets")),
            ("/etc/resolv.conf", Kind::File, root.join("usr/etc/resolv.conf")),
            ("/etc/hosts", Kind::File, root.join("usr/etc/passwd")),
            ("/absolute/x", Kind::Directory, inside.join("outside/x")),
            ("/up/x", Kind::File, root.join("outside/x")),
            // `..` is of the directory that the link leads to, not of the path as it is written.
            ("/through", Kind::File, root.join("a/file")),
            ("/through", Kind::File, root.join("a/file")),
            ("/", Kind::Directory, root.clone()),
        ] {
            let place = mount_point(&root, Path::new(path), kind).expect(path);
            assert_eq!(path_of(&place), expected, "{path}");
        }
        assert_eq!(read_dir(all.path().join("outside")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_place_is_refused() {
        let (_all, root) = tree();
        File::create(root.join("file")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for (path, kind) in [
            ("/a/../../b", Kind::Directory),
            ("/file/x", Kind::Directory),
            ("/file", Kind::Directory),
            ("/usr", Kind::File),
            ("/loop", Kind::File),
        ] {
            assert!(mount_point(&root, Path::new(path), kind).is_err(), "{path}");
        }
    }

    #[test]
    fn what_is_there_is_found_through_links() {
        let (_all, root) = tree();
        write(root.join("usr/etc/passwd"), "").unwrap();
        let kind = |path: &str| find(&root, Path::new(path)).unwrap().map(|(_, kind)| kind);
        assert_eq!(kind("/"), Some(Kind::Directory));
        assert_eq!(kind("etc"), Some(Kind::Directory));
        assert_eq!(kind("etc/passwd"), Some(Kind::File));
        assert_eq!(kind("absolute"), None, "nothing outside is seen");
        assert_eq!(kind("through"), None);
        write(root.join("file"), "").unwrap();
        assert_eq!(kind("through"), None, "it leads to a/file");
        write(root.join("a/file"), "").unwrap();
        assert_eq!(kind("through"), Some(Kind::File));
        assert_eq!(kind("none/x"), None);
    }
}
