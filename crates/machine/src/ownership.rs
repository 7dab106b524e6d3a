//! Who owns the files of a machine, and whether another user can replace them.
//!
//! A machine listens, writes and takes commands in its state directory. If another user can rename
//! entries there, or has put a symbolic link there before, root's commands and files go where that
//! user wants. So the directory must be ours, and every directory on the path to it must be safe.
//! Nothing here changes the mode or the owner of anything: an unsafe path is refused, and named.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use ambit_net::sys::file::open_no_follow;
use ambit_net::sys::process::{effective_gid, effective_uid};

/// Who may write, of a mode.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// Of a directory: only who owns an entry renames or removes it.
const STICKY: u32 = 0o1000;
/// Symbolic links on the way to a directory; as many as the kernel follows.
const LINKS_MAX: u32 = 40;

/// Why a file or directory is not to be trusted.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// It is another user's.
    #[error(
        "{path} belongs to user {owner}, not to user {own}, who runs this: {owner} can replace \
         what lies there; name another directory, or run as user {owner}"
    )]
    Foreign {
        /// What.
        path: PathBuf,
        /// Whose.
        owner: u32,
        /// Who we are.
        own: u32,
    },
    /// Others may replace what is inside.
    #[error(
        "{path} has mode {mode:04o}: other users can replace what lies there; take their right to \
         write (`chmod go-w {path}`) once you know what is inside, or name another directory"
    )]
    Writable {
        /// Which directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It leads elsewhere.
    #[error("{path} is a symbolic link, which is not followed; remove it, or name where it leads")]
    Link {
        /// Which.
        path: PathBuf,
    },
    /// It is something else than expected.
    #[error("{path} is not a {expected}; move it away, or name another directory")]
    Kind {
        /// What.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// Its path never ends.
    #[error("{path} leads through more than {LINKS_MAX} symbolic links")]
    Links {
        /// As given.
        path: PathBuf,
    },
    /// It cannot be read, created or opened.
    #[error("cannot {operation} {path}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Makes the state directory, or takes the one that is there if it is ours alone. Also looks at
/// every directory above it, so it must be called where users have their real numbers: outside of
/// a user namespace of the machine.
pub(crate) fn take_state_directory(root: &Path) -> Result<(), OwnershipError> {
    if check_way(root)?.is_none() {
        // The rest of the way is made by us, in a directory that only we can change, or a sticky
        // one. A stranger who is faster in that one is found by the second look.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.map_err(|source| failed("create", root, source))?;
    }
    let found = check_way(root)?;
    let found = found.ok_or_else(|| failed("find", root, io::ErrorKind::NotFound.into()))?;
    check_directory(root, &found, effective_uid())
}

/// Checks that the state directory is safe for commands and files: it is ours or root's, and no
/// other user can replace its entries. A missing one is fine.
pub fn check_state_directory(root: &Path) -> Result<(), OwnershipError> {
    match check_way(root)? {
        None => Ok(()),
        Some(found) if found.uid() == 0 => check_directory(root, &found, 0),
        Some(found) => check_directory(root, &found, effective_uid()),
    }
}

/// Creates a directory below the state directory, with missing parents. Existing entries must be
/// directories of ours; no link is followed.
pub(crate) fn create_below(root: &Path, directory: &Path) -> Result<(), OwnershipError> {
    let below = directory.strip_prefix(root).expect("the layout's paths lie below its root");
    let mut path = root.to_owned();
    for component in std::iter::once(Component::CurDir).chain(below.components()) {
        if let Component::Normal(name) = component {
            path.push(name);
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("create", &path, error));
            }
            Ok(()) | Err(_) => {}
        }
        let found = fs::symlink_metadata(&path).map_err(|error| failed("look at", &path, error))?;
        check_directory(&path, &found, effective_uid())?;
    }
    Ok(())
}

/// Opens a file of ours, or makes it. A link, a device or another user's file is refused, and
/// nothing is written to it.
pub(crate) fn open_own(options: &mut OpenOptions, path: &Path) -> Result<File, OwnershipError> {
    let file = match open_no_follow(options, path) {
        Ok(file) => file,
        Err(source) => {
            return Err(match fs::symlink_metadata(path) {
                Ok(found) if found.is_symlink() => OwnershipError::Link { path: path.to_owned() },
                _ => failed("open", path, source),
            });
        }
    };
    // Of what was opened, not of the name, which may be another's by now.
    let found = file.metadata().map_err(|source| failed("look at", path, source))?;
    if !found.is_file() {
        return Err(OwnershipError::Kind { path: path.to_owned(), expected: "file" });
    }
    check_owner(path, &found, effective_uid())?;
    Ok(file)
}

/// Whether all that an earlier machine left in a directory is ours: directories and files, no link.
pub(crate) fn check_remains(directory: &Path) -> Result<(), OwnershipError> {
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(&path).map_err(|error| failed("look at", &path, error))?;
        if found.is_file() {
            check_owner(&path, &found, effective_uid())?;
            continue;
        }
        check_directory(&path, &found, effective_uid())?;
        let unreadable = |error| failed("list", &path, error);
        for entry in fs::read_dir(&path).map_err(unreadable)? {
            waiting.push(entry.map_err(unreadable)?.path());
        }
    }
    Ok(())
}

/// Checks that nobody else decides which directory `path` leads to, through links at its end too.
/// Whose the directory itself is does not matter. Answers what lies there.
pub(crate) fn check_target(path: &Path) -> Result<Option<Metadata>, OwnershipError> {
    let mut reached = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let found = check_way(&reached)?;
        let Some(link) = found.as_ref().filter(|it| it.is_symlink()) else { return Ok(found) };
        check_trusted(&reached, link)?;
        let to = fs::read_link(&reached).map_err(|error| failed("read", &reached, error))?;
        reached.pop();
        reached.push(to);
    }
    Err(OwnershipError::Links { path: path.to_owned() })
}

/// Looks at every directory and link on the way to `path`, and what lies there, if anything does.
/// Whatever is on the way is ours or root's, and only we, root or its sticky bit decide what a name
/// in it means.
fn check_way(path: &Path) -> Result<Option<Metadata>, OwnershipError> {
    let mut rest: VecDeque<OsString> = names(path).collect();
    let mut reached = PathBuf::from("/");
    let mut links = 0;
    let mut found = look(&reached)?;
    while let Some(name) = rest.pop_front() {
        let Some(directory) = found else { return Ok(None) };
        check_step(&reached, &directory)?;
        if name == ".." {
            reached.pop();
            found = look(&reached)?;
            continue;
        }
        reached.push(name);
        found = look(&reached)?;
        // Not the last: the directory itself must not be a link, and its owner is judged later.
        let is_last = rest.is_empty();
        let Some(link) = found.as_ref().filter(|it| it.is_symlink() && !is_last) else { continue };
        check_trusted(&reached, link)?;
        links += 1;
        if links > LINKS_MAX {
            return Err(OwnershipError::Links { path: path.to_owned() });
        }
        let to = fs::read_link(&reached).map_err(|error| failed("read", &reached, error))?;
        names(&to).rev().for_each(|name| rest.push_front(name));
        reached.pop();
        if to.is_absolute() {
            reached = PathBuf::from("/");
        }
        found = look(&reached)?;
    }
    Ok(found)
}

/// The names of a path that change where it leads.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect::<Vec<_>>().into_iter()
}

fn look(path: &Path) -> Result<Option<Metadata>, OwnershipError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("look at", path, source)),
    }
}

/// A directory on the way. The group that may write is root's or ours, as where every user has a
/// group of their own.
fn check_step(path: &Path, found: &Metadata) -> Result<(), OwnershipError> {
    if !found.is_dir() {
        return Err(OwnershipError::Kind { path: path.to_owned(), expected: "directory" });
    }
    check_trusted(path, found)?;
    let mode = found.mode();
    let group_is_trusted = found.gid() == 0 || found.gid() == effective_gid();
    let open = mode & OTHERS_WRITE != 0 || (mode & GROUP_WRITES != 0 && !group_is_trusted);
    if open && mode & STICKY == 0 {
        return Err(OwnershipError::Writable { path: path.to_owned(), mode: mode & 0o7777 });
    }
    Ok(())
}

/// Checks a directory in which we rely on every entry.
fn check_directory(path: &Path, found: &Metadata, owner: u32) -> Result<(), OwnershipError> {
    if found.is_symlink() {
        return Err(OwnershipError::Link { path: path.to_owned() });
    }
    if !found.is_dir() {
        return Err(OwnershipError::Kind { path: path.to_owned(), expected: "directory" });
    }
    check_owner(path, found, owner)?;
    let mode = found.mode();
    if mode & (GROUP_WRITES | OTHERS_WRITE) != 0 {
        return Err(OwnershipError::Writable { path: path.to_owned(), mode: mode & 0o7777 });
    }
    Ok(())
}

fn check_trusted(path: &Path, found: &Metadata) -> Result<(), OwnershipError> {
    if found.uid() == 0 { Ok(()) } else { check_owner(path, found, effective_uid()) }
}

fn check_owner(path: &Path, found: &Metadata, own: u32) -> Result<(), OwnershipError> {
    if found.uid() == own {
        return Ok(());
    }
    Err(OwnershipError::Foreign { path: path.to_owned(), owner: found.uid(), own })
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> OwnershipError {
    OwnershipError::Io { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const NOBODY: u32 = 65534;

    /// A directory of its own below `/tmp`, which is sticky.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/tmp/ambit-own-{name}-{}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn directory(&self, name: &str, mode: u32, owner: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(owner), Some(owner)).unwrap();
            path
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_good_directory_is_taken_and_made_for_us_alone() {
        let place = Place::new("good");
        let root = place.0.join("deep/state");
        check_state_directory(&root).unwrap();
        take_state_directory(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, 0o700);
        take_state_directory(&root).unwrap();
        check_state_directory(&root).unwrap();
        let link = place.0.join("link");
        symlink("deep/..//deep", &link).unwrap();
        take_state_directory(&link.join("state")).unwrap();
        create_below(&root, &root.join("logs/pods")).unwrap();
        open_own(OpenOptions::new().create(true).append(true), &root.join("logs/a.log")).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let place = Place::new("bad");
        let elsewhere = place.directory("elsewhere", 0o700, 0);
        let link = place.0.join("link");
        symlink(&elsewhere, &link).unwrap();
        let foreign = place.directory("foreign", 0o700, NOBODY);
        let below = foreign.join("state");
        let open = place.directory("open", 0o777, 0);
        let foreign_link = place.0.join("foreign-link");
        symlink(&elsewhere, &foreign_link).unwrap();
        std::os::unix::fs::lchown(&foreign_link, Some(NOBODY), None).unwrap();
        for (root, part) in [
            (foreign, "belongs to user 65534"),
            (place.directory("group", 0o770, 0), "mode 0770"),
            (place.directory("sticky", 0o1777, 0), "mode 1777"),
            (link, "is a symbolic link"),
            (below, "belongs to user 65534"),
            (open.join("state"), "mode 0777"),
            (foreign_link.join("state"), "belongs to user 65534"),
        ] {
            for refused in [take_state_directory(&root), check_state_directory(&root)] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains(part), "{}: {refused}", root.display());
            }
            assert!(fs::read_dir(&root).is_err() || fs::read_dir(&root).unwrap().next().is_none());
        }
        assert!(fs::read_dir(&elsewhere).unwrap().next().is_none(), "nothing was written");
    }

    #[test]
    fn links_and_strangers_files_inside_are_refused() {
        let place = Place::new("inside");
        let (root, aim) = (place.directory("state", 0o700, 0), place.0.join("aim"));
        symlink(&aim, root.join("logs")).unwrap();
        let refused = create_below(&root, &root.join("logs/pods")).unwrap_err();
        assert!(matches!(refused, OwnershipError::Link { .. }), "{refused}");
        let append = |path: &Path| open_own(OpenOptions::new().create(true).append(true), path);
        let refused = append(&root.join("logs")).unwrap_err();
        assert!(matches!(refused, OwnershipError::Link { .. }), "{refused}");
        assert!(!aim.exists(), "nothing was written");
        let foreign = root.join("foreign.log");
        fs::write(&foreign, "").unwrap();
        chown(&foreign, Some(NOBODY), None).unwrap();
        let refused = append(&foreign).unwrap_err();
        assert!(matches!(refused, OwnershipError::Foreign { .. }), "{refused}");
        let inner = place.directory("state/inner", 0o700, 0);
        let refused = append(&inner).unwrap_err();
        assert!(matches!(refused, OwnershipError::Io { .. }), "{refused}");
        fs::write(inner.join("a.log"), "").unwrap();
        check_remains(&inner).unwrap();
        symlink(&aim, inner.join("b.log")).unwrap();
        let refused = check_remains(&inner).unwrap_err();
        assert!(matches!(refused, OwnershipError::Link { .. }), "{refused}");
    }
}
