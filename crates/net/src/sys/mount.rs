//! Mounts: how a pod's init gives its processes their own root.
//!
//! All of it acts on the calling process' mount namespace; call [`make_private`] first in a new
//! one, or the mounts propagate to the parent's.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use super::check;
use super::process::c_path;

/// Of a file system in memory: how much of its size there is for each file, and how many files it
/// may have at least.
const TMPFS_BYTES_PER_FILE: u64 = 4 << 10;
const TMPFS_FILES_MIN: u64 = 1 << 10;

/// What a mount forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// No writes.
    pub read_only: bool,
    /// No set-user-id bits.
    pub no_suid: bool,
    /// No device files.
    pub no_dev: bool,
    /// No execution.
    pub no_exec: bool,
}

impl MountOptions {
    fn flags(self) -> libc::c_ulong {
        let mut flags = 0;
        for (set, flag) in [
            (self.read_only, libc::MS_RDONLY),
            (self.no_suid, libc::MS_NOSUID),
            (self.no_dev, libc::MS_NODEV),
            (self.no_exec, libc::MS_NOEXEC),
        ] {
            if set {
                flags |= flag;
            }
        }
        flags
    }

    /// The same as attributes of mount_setattr(2), whose bits are others than those of mount(2).
    fn attributes(self) -> u64 {
        let mut attributes = 0;
        for (set, attribute) in [
            (self.read_only, libc::MOUNT_ATTR_RDONLY),
            (self.no_suid, libc::MOUNT_ATTR_NOSUID),
            (self.no_dev, libc::MOUNT_ATTR_NODEV),
            (self.no_exec, libc::MOUNT_ATTR_NOEXEC),
        ] {
            if set {
                attributes |= attribute;
            }
        }
        attributes
    }
}

/// Cuts the propagation between this mount namespace and the one it was copied from.
pub fn make_private() -> io::Result<()> {
    mount_raw(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// Shows `source` (with everything mounted below it) at `target` too. `target` must exist and be of
/// the same kind.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount_raw(Some(source), target, None, libc::MS_BIND | libc::MS_REC, None)
}

/// Shows `source` alone, without what is mounted below it, at `target`.
pub fn bind_one(source: &Path, target: &Path) -> io::Result<()> {
    mount_raw(Some(source), target, None, libc::MS_BIND, None)
}

/// Changes the options of a bind mount. In a user namespace, options that were locked must be given
/// again.
pub fn remount_bind(target: &Path, options: MountOptions) -> io::Result<()> {
    mount_raw(None, target, None, libc::MS_BIND | libc::MS_REMOUNT | options.flags(), None)
}

/// Adds `options` to the mount at `target` and to every mount below it, all or none. What a mount
/// forbids already stays forbidden, so that this works in user namespaces too, where such options
/// are locked. Linux 5.12.
///
/// Fails with `EBUSY` if it forbids writes while a file of one of the mounts is open for writing.
pub fn forbid_below(target: &Path, options: MountOptions) -> io::Result<()> {
    set_attributes(libc::AT_FDCWD, &c_path(target)?, libc::AT_RECURSIVE, options)
}

fn set_attributes(
    directory: libc::c_int,
    path: &std::ffi::CStr,
    flags: libc::c_int,
    options: MountOptions,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: options.attributes(),
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path is NUL-terminated, attributes is a mount_attr of the given size, and both
    // outlive the call, which only reads them.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    } as libc::c_int)
    .map(drop)
}

/// The directory `path` on a mount of its own that is in no namespace: whatever is done later to
/// the mounts of this one, the directory stays as reachable and as writable as it is now, by paths
/// below `/proc/self/fd`. Mounts below it are left out.
pub fn detached(path: &Path) -> io::Result<OwnedFd> {
    open_tree(libc::AT_FDCWD, &c_path(path)?, 0)
}

/// [`detached`] with everything that is mounted below `path`.
pub fn detached_whole(path: &Path) -> io::Result<OwnedFd> {
    open_tree(libc::AT_FDCWD, &c_path(path)?, libc::AT_RECURSIVE as libc::c_uint)
}

/// [`detached`] of an open file or directory, which may be open for its path alone.
pub fn detached_of(file: impl AsFd) -> io::Result<OwnedFd> {
    open_tree(file.as_fd().as_raw_fd(), c"", libc::AT_EMPTY_PATH as libc::c_uint)
}

fn open_tree(
    directory: libc::c_int,
    path: &std::ffi::CStr,
    flags: libc::c_uint,
) -> io::Result<OwnedFd> {
    let flags = flags | libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: path is NUL-terminated and outlives the call; the directory is open or AT_FDCWD.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) }
        as libc::c_int)?;
    // SAFETY: the call made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Mounts a [`detached`] tree at the very file or directory that `target` is: no path is walked,
/// so no link can lead elsewhere.
pub fn attach(tree: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let (tree, target, here) = (tree.as_fd().as_raw_fd(), target.as_fd().as_raw_fd(), c"");
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both descriptors are borrowed for the call, and the paths are NUL-terminated.
    check(unsafe {
        libc::syscall(libc::SYS_move_mount, tree, here.as_ptr(), target, here.as_ptr(), flags)
    } as libc::c_int)
    .map(drop)
}

/// [`forbid_below`] for a [`detached`] tree, before anybody can reach it.
pub fn forbid_detached(tree: impl AsFd, options: MountOptions) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    set_attributes(tree.as_fd().as_raw_fd(), c"", flags, options)
}

/// Mounts at `target` what is in `lower`, with every change in `upper`, an empty directory of the
/// same file system as the empty directory `work`. An owner of one user namespace alone
/// (`is_rootless`) keeps the marks of removed files in attributes that users may write. Linux 5.11.
pub fn overlay(
    lower: impl AsFd,
    upper: &Path,
    work: &Path,
    target: &Path,
    options: MountOptions,
    is_rootless: bool,
) -> io::Result<()> {
    // By its descriptor: a path would have to be free of commas and colons.
    let lower = lower.as_fd().as_raw_fd();
    let (upper, work) = (open_path(upper)?, open_path(work)?);
    let data = format!(
        "lowerdir=/proc/self/fd/{lower},upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}{}",
        upper.as_raw_fd(),
        work.as_raw_fd(),
        if is_rootless { ",userxattr" } else { "" },
    );
    let source = Some(Path::new("overlay"));
    mount_raw(source, target, Some("overlay"), options.flags(), Some(&data))
}

/// A file or directory that is open for its path alone; a link is not followed.
pub fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: path is NUL-terminated and outlives the call.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags) })?;
    // SAFETY: the call made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Mounts an empty file system in memory, of at most `size_bytes`, whose root has the given mode.
///
/// Files are bounded too, to one for each page of the size: one without content takes memory that
/// the size does not count.
pub fn tmpfs(target: &Path, size_bytes: u64, mode: u32, options: MountOptions) -> io::Result<()> {
    let files = (size_bytes / TMPFS_BYTES_PER_FILE).max(TMPFS_FILES_MIN);
    let data = format!("size={size_bytes},nr_inodes={files},mode={mode:o}");
    mount_raw(Some(Path::new("tmpfs")), target, Some("tmpfs"), options.flags(), Some(&data))
}

/// Mounts `/proc` for the current PID namespace.
pub fn proc(target: &Path) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount_raw(Some(Path::new("proc")), target, Some("proc"), flags, None)
}

/// The files of `/proc` on a mount of their own that is in no namespace: what this one forbids
/// about `/proc` does not hold there. Takes `SYS_ADMIN` over the PID namespace. Linux 5.2.
pub(crate) fn detached_proc() -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated and outlives the call.
    let context =
        check(unsafe { libc::syscall(libc::SYS_fsopen, c"proc".as_ptr(), libc::FSOPEN_CLOEXEC) }
            as libc::c_int)?;
    // SAFETY: the call made this descriptor, and nothing else knows it.
    let context = unsafe { OwnedFd::from_raw_fd(context) };
    let (key, value) = (ptr::null::<libc::c_char>(), ptr::null::<libc::c_void>());
    // SAFETY: this command reads neither key nor value.
    check(unsafe {
        let create = libc::FSCONFIG_CMD_CREATE;
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), create, key, value, 0)
    } as libc::c_int)?;
    let options = MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: true };
    let (flags, attributes) = (libc::FSMOUNT_CLOEXEC, options.attributes());
    // SAFETY: fsmount takes integers and touches no memory of ours.
    let mount =
        check(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), flags, attributes) }
            as libc::c_int)?;
    // SAFETY: the call made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(mount) })
}

/// Mounts pseudo-terminals of which no other place has any, at most `count_max`, with its own
/// `ptmx` (devpts). Nothing can be made there but by that.
pub fn terminals(target: &Path, count_max: u32) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    let data = format!("newinstance,ptmxmode=0666,mode=0620,max={count_max}");
    mount_raw(Some(Path::new("devpts")), target, Some("devpts"), flags, Some(&data))
}

/// Mounts the kernel's trace files.
pub fn tracefs(target: &Path) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount_raw(Some(Path::new("tracefs")), target, Some("tracefs"), flags, None)
}

/// Detaches the mount at `target`, at once for new users and for the others when they close it.
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: target is NUL-terminated and outlives the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) })
        .map(drop)
}

/// Makes the mount point `root` the root of this mount namespace and detaches the old one.
pub fn pivot_root(root: &Path) -> io::Result<()> {
    std::env::set_current_dir(root)?;
    let here = c".";
    // SAFETY: both paths are NUL-terminated. pivot_root(".", ".") stacks the old root on the new
    // one.
    check(
        unsafe { libc::syscall(libc::SYS_pivot_root, here.as_ptr(), here.as_ptr()) } as libc::c_int
    )?;
    // SAFETY: as above; "." is the old root now.
    check(unsafe { libc::umount2(here.as_ptr(), libc::MNT_DETACH) })?;
    std::env::set_current_dir("/")
}

fn mount_raw(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    data: Option<&str>,
) -> io::Result<()> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let source = source.map(c_path).transpose()?;
    let target = c_path(target)?;
    let kind = kind.map(CString::new).transpose().map_err(invalid)?;
    let data = data.map(CString::new).transpose().map_err(invalid)?;
    // SAFETY: every pointer is null or that of a NUL-terminated string that outlives the call.
    check(unsafe {
        libc::mount(
            source.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
            target.as_ptr(),
            kind.as_ref().map_or(ptr::null(), |text| text.as_ptr()),
            flags,
            data.as_ref().map_or(ptr::null(), |text| text.as_ptr()).cast(),
        )
    })
    .map(drop)
}
