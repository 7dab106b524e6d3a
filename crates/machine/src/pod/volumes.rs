//! The volumes of a pod: made by its init, behind the stage, where its containers take them from.
//!
//! Each is a mount in the pod's own directory, and ends with the pod's last process. All but those
//! of the host are in memory: a Secret never reaches a disk. Files are replaced as the kubelet does
//! it: a new directory is filled, and then one link is renamed, so that a reader sees all old files
//! or all new ones.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use ambit_image::PathError;
use ambit_image::mount_point::{self, Kind};
use ambit_net::sys::mount::{self, MountOptions};
use k8s_openapi::ByteString;
use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::host_path::HostPath;

/// Room for all files of a volume, twice: the old ones go when the new ones are there.
const FILES_SIZE_BYTES: u64 = 64 << 20;
/// Room for places in what the host does not have.
const MISSING_SIZE_BYTES: u64 = 1 << 20;
/// What everybody may do with an empty volume.
const EMPTY_MODE: u32 = 0o777;
/// Files get the volume's group.
const SET_GROUP_ID: u32 = 0o2000;
/// What the group of a volume may do with its files.
const GROUP_READS: u32 = 0o040;
/// The link to the present files; a name of the kubelet's, as the others that begin with two dots.
const DATA: &str = "..data";
const NEXT_DATA: &str = "..data_tmp";
/// Says of a directory of files that another mount has its place in it: to remove the place would
/// end that mount.
const KEPT: &str = "..kept";

/// Of every volume: no devices of anybody, and no privileges.
const WRITABLE: MountOptions =
    MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: false };

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumePlan {
    /// Its name.
    pub(crate) name: String,
    /// The group that its files get.
    pub(crate) group: Option<u32>,
    /// What it holds.
    pub(crate) content: VolumeContent,
}

/// What a volume holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum VolumeContent {
    /// Nothing at first.
    Empty {
        /// Room in it.
        size_bytes: u64,
    },
    /// These files, which no container can change.
    Files(Vec<FilePlan>),
    /// What a claim has.
    Claim {
        /// Where that is.
        directory: PathBuf,
        /// No container can change it.
        is_read_only: bool,
    },
    /// A file or directory of the host.
    Host {
        /// Where.
        path: PathBuf,
        /// It need not be there. It is then a directory, which is made if it is writable, and
        /// otherwise has nothing in it.
        is_optional: bool,
        /// How containers may write it; without it they may not.
        writable: Option<Writable>,
    },
}

/// A part of a directory that pods may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Writable {
    /// The directory.
    pub(crate) directory: HostPath,
    /// The part's path below it.
    pub(crate) below: PathBuf,
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilePlan {
    /// Names below the volume's directory.
    pub(crate) path: PathBuf,
    /// Who may do what.
    pub(crate) mode: u32,
    /// What is in it.
    pub(crate) data: ByteString,
}

/// A volume that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// A step failed.
    #[error("volume {volume:?}: cannot {step}")]
    Step {
        /// Its name.
        volume: String,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The host has no such path.
    #[error("volume {volume:?}: cannot open {path} of this machine; make it, or correct the path")]
    Host {
        /// Its name.
        volume: String,
        /// As written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is none that pods see.
    #[error("volume {volume:?}: {path} {problem}")]
    Refused {
        /// Its name.
        volume: String,
        /// As written.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: &'static str,
    },
}

/// The machine's state would be seen.
const OWN: &str = "is the machine's own, leads there or holds it; name another";
/// Another directory is where one lay that pods may write.
const REPLACED: &str =
    "lies in a directory of --host-path that has been replaced since `ambit up`; start again";
/// What the kernel says to a link that leads out of a directory to which the way is bound.
const OUT: &str = "leads by a link out of the directory of --host-path; allow where it leads";
/// Pods would see what is [`NOT_SHOWN`].
const HIDDEN: &str = "leads to what pods do not see, or holds it; name a directory elsewhere, or \
                      allow one with `ambit up --host-path DIR`";
/// Who reaches it can do what its service can, although nothing is written.
const SOCKET: &str = "is a socket or a pipe; allow its directory with `ambit up --host-path DIR`";
/// Its files set or show the kernel.
const KERNEL: &str = "is a file system of the kernel's; no pod gets it";

/// What pods see of the host only if they may write it: kernel, devices, sockets of services and of
/// users' programs.
pub(crate) const NOT_SHOWN: [&str; 6] = ["/sys", "/dev", "/run", "/var/run", "/tmp", "/var/tmp"];

/// File systems that no pod gets, by the numbers of statfs(2), wherever they are mounted: proc and
/// nsfs.
const NEVER_SHOWN: [i64; 2] = [0x9fa0, 0x6e73_6673];
/// Those that show or set the kernel, which are as [`NOT_SHOWN`] is: sysfs, debugfs, tracefs,
/// securityfs, cgroup, cgroup2, devpts, bpf, pstore, efivarfs, configfs, selinuxfs, binfmt_misc.
const OF_KERNEL: [i64; 13] = [
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x0027_e0eb,
    0x6367_7270,
    0x1cd1,
    0xcafe_4a11,
    0x6165_676c,
    0xde5e_81e4,
    0x6265_6570,
    0xf97c_ff8c,
    0x4249_4e4d,
];

/// Where the volumes of a pod lie in its directory.
pub(crate) fn place(directory: &Path, volume: &str) -> PathBuf {
    directory.join("volumes").join(volume)
}

/// The volumes of a pod that are there before its init goes behind the stage.
pub(crate) struct Prepared(Vec<(VolumePlan, Option<OwnedFd>)>);

/// Makes the places of the volumes, and takes what they show of the host, which is about to become
/// read-only. Nobody may see the state directory, which is `hidden`.
pub(crate) fn prepare(
    directory: &Path,
    volumes: &[VolumePlan],
    hidden: &Path,
) -> Result<Prepared, VolumeError> {
    let prepared = volumes.iter().map(|volume| {
        let place = place(directory, &volume.name);
        let failed = |source| step(volume, "make its place", source);
        if let VolumeContent::Claim { directory, is_read_only } = &volume.content {
            fs::create_dir_all(&place).map_err(failed)?;
            let tree =
                mount::detached(directory).map_err(|source| step(volume, "open it", source))?;
            let options = MountOptions { read_only: *is_read_only, ..WRITABLE };
            mount::forbid_detached(&tree, options).map_err(failed)?;
            return Ok((volume.clone(), Some(tree)));
        }
        let VolumeContent::Host { path, is_optional, writable } = &volume.content else {
            fs::create_dir_all(&place).map_err(failed)?;
            return Ok((volume.clone(), None));
        };
        let wrong =
            |source| VolumeError::Host { volume: volume.name.clone(), path: path.clone(), source };
        let own = fs::canonicalize(hidden).map_err(failed)?;
        let found = match of_host(path, *is_optional, writable.as_ref(), &own) {
            Err(error) if *is_optional && error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&place).map_err(failed)?;
                return Ok((volume.clone(), None));
            }
            found => found.map_err(wrong)?,
        };
        let (file, is_directory) = found.map_err(|problem| {
            let (volume, path) = (volume.name.clone(), path.clone());
            VolumeError::Refused { volume, path, problem }
        })?;
        // What else is mounted there stays out of sight.
        let tree = mount::detached_of(&file).map_err(wrong)?;
        let options = MountOptions { read_only: writable.is_none(), ..WRITABLE };
        mount::forbid_detached(&tree, options).map_err(wrong)?;
        fs::create_dir_all(place.parent().unwrap_or(directory)).map_err(failed)?;
        if is_directory {
            fs::create_dir_all(&place).map_err(failed)?;
        } else {
            File::create(&place).map_err(failed)?;
        }
        Ok((volume.clone(), Some(tree)))
    });
    Ok(Prepared(prepared.collect::<Result<_, _>>()?))
}

/// A file or directory of the host and whether it is a directory, or why pods may not see it. A pod
/// may be changing what it may write, so that the judgement is of what was opened.
fn of_host(
    path: &Path,
    is_optional: bool,
    writable: Option<&Writable>,
    own: &Path,
) -> io::Result<Result<(OwnedFd, bool), &'static str>> {
    let file = match writable {
        None => mount::open_path(&fs::canonicalize(path)?)?,
        Some(Writable { directory, below }) => match directory.open(below, is_optional) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return Ok(Err(OUT)),
            found => match found? {
                Some(file) => file,
                None => return Ok(Err(REPLACED)),
            },
        },
    };
    let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let (real, metadata) = (fs::read_link(&opened)?, fs::metadata(&opened)?);
    let kind = metadata.file_type();
    let file_system: i64 = rustix::fs::fstatfs(&file)?.f_type;
    let is_of = |known: &[i64]| known.contains(&file_system);
    let is_read_only = writable.is_none();
    let problem = if is_of(&NEVER_SHOWN) {
        KERNEL
    } else if real.starts_with(own) || own.starts_with(&real) {
        OWN
    } else if is_read_only && (is_of(&OF_KERNEL) || is_hidden(&real, &file)) {
        HIDDEN
    } else if is_read_only && (kind.is_socket() || kind.is_fifo()) {
        SOCKET
    } else {
        return Ok(Ok((file, kind.is_dir())));
    };
    Ok(Err(problem))
}

/// Whether this is a place that pods do not see, or one of the same mount is in it.
fn is_hidden(real: &Path, file: &OwnedFd) -> bool {
    let hidden = NOT_SHOWN.iter().filter_map(|path| fs::canonicalize(path).ok());
    hidden.into_iter().any(|hidden| {
        let is_of_mount = || {
            let other = mount::open_path(&hidden).and_then(|hidden| mount_id(&hidden));
            // A kernel that does not say leaves nothing to rely on.
            !matches!((mount_id(file), other), (Ok(Some(one)), Ok(Some(other))) if one != other)
        };
        real.starts_with(&hidden) || hidden.starts_with(real) && is_of_mount()
    })
}

/// By what a mount is known. Devices do not tell: a subvolume of btrfs has one of its own.
fn mount_id(file: &OwnedFd) -> io::Result<Option<u64>> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let is_known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    Ok(is_known.then_some(found.stx_mnt_id))
}

impl Prepared {
    /// Mounts the volumes, behind the stage.
    pub(crate) fn mount(self, directory: &Path) -> Result<(), VolumeError> {
        for (volume, tree) in self.0 {
            let place = place(directory, &volume.name);
            let failed = |source| step(&volume, "be mounted", source);
            match (&volume.content, tree) {
                // The host has nothing there. Places of other mounts may be made in it.
                (VolumeContent::Host { .. }, None) => {
                    mount::tmpfs(&place, MISSING_SIZE_BYTES, 0o755, WRITABLE).map_err(failed)?;
                }
                (VolumeContent::Claim { .. }, None) => unreachable!("its tree was taken"),
                (content, Some(tree)) => {
                    let here = mount::open_path(&place).map_err(failed)?;
                    mount::attach(tree, here).map_err(failed)?;
                    if matches!(content, VolumeContent::Claim { is_read_only: false, .. }) {
                        give_to_group(&place, volume.group, EMPTY_MODE | SET_GROUP_ID)
                            .map_err(failed)?;
                    }
                }
                (VolumeContent::Empty { size_bytes }, None) => {
                    mount::tmpfs(&place, *size_bytes, EMPTY_MODE, WRITABLE).map_err(failed)?;
                    give_to_group(&place, volume.group, EMPTY_MODE | SET_GROUP_ID)
                        .map_err(failed)?;
                }
                (VolumeContent::Files(files), None) => {
                    mount::tmpfs(&place, FILES_SIZE_BYTES, 0o755, WRITABLE).map_err(failed)?;
                    write(&place, files, volume.group)
                        .map_err(|source| step(&volume, "be filled", source))?;
                }
            }
        }
        Ok(())
    }
}

fn step(volume: &VolumePlan, step: &'static str, source: io::Error) -> VolumeError {
    VolumeError::Step { volume: volume.name.clone(), step, source }
}

/// Gives a file or directory to the volume's group, if it has one.
fn give_to_group(path: &Path, group: Option<u32>, mode: u32) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    chown(path, None, Some(group))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Replaces the files of volumes whose content is another one now, in `now` too. Answers what
/// failed: either the files are as they were, or what they replaced is still there.
pub(crate) fn update(
    directory: &Path,
    now: &mut [VolumePlan],
    new: &[VolumePlan],
) -> Vec<VolumeError> {
    let mut failed = Vec::new();
    for volume in new {
        let before = now.iter_mut().find(|before| before.name == volume.name);
        let Some(before) = before.filter(|before| before.content != volume.content) else {
            continue;
        };
        let (VolumeContent::Files(_), VolumeContent::Files(files)) =
            (&before.content, &volume.content)
        else {
            continue;
        };
        let place = place(directory, &volume.name);
        if let Err(source) = replace(&place, files, volume.group) {
            failed.push(step(volume, "update its files, which stay as they were", source));
        } else if let Err(source) = clean(&place) {
            failed.push(step(volume, "remove what its new files replaced", source));
        } else {
            before.content.clone_from(&volume.content);
        }
    }
    failed
}

/// Makes these the files of a volume.
fn write(place: &Path, files: &[FilePlan], group: Option<u32>) -> io::Result<()> {
    replace(place, files, group)?;
    clean(place)
}

/// Makes these the present files of a volume, all at once, or leaves the others.
fn replace(place: &Path, files: &[FilePlan], group: Option<u32>) -> io::Result<()> {
    let before = fs::read_link(place.join(DATA)).ok();
    // What a change left behind that failed.
    clean(place)?;
    let number = before.as_deref().and_then(number_of).map_or(0, |number| number + 1);
    let name = directory_name(number);
    let directory = place.join(&name);
    let filled = fill(&directory, files, group).and_then(|()| {
        link(place, files)?;
        let next = place.join(NEXT_DATA);
        symlink(&name, &next)?;
        fs::rename(&next, place.join(DATA))
    });
    if filled.is_err() {
        // It may be in the way of room for the next change, which tries again if this fails.
        let _left = clean(place);
    }
    filled
}

/// Removes all but the present files, and their names.
fn clean(place: &Path) -> io::Result<()> {
    let present = place.join(DATA);
    keep_own(place, fs::read_link(&present).ok().as_deref())?;
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let name = entry.file_name();
        // What is no link is the place of another mount.
        let is_name = entry.file_type()?.is_symlink() && !is_own(&name);
        if is_name && fs::symlink_metadata(present.join(&name)).is_err() {
            fs::remove_file(place.join(name))?;
        }
    }
    Ok(())
}

/// Whether a name is the volume's own, and of no file.
fn is_own(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(".."))
}

fn fill(directory: &Path, files: &[FilePlan], group: Option<u32>) -> io::Result<()> {
    fs::create_dir(directory)?;
    files.iter().try_for_each(|file| write_file(directory, file, group))
}

/// Removes all directories of a volume's own but this one.
fn keep_own(place: &Path, kept: Option<&Path>) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        let is_present = name == DATA || Some(Path::new(&name)) == kept;
        if is_own(&name) && !is_present && !place.join(&name).join(KEPT).exists() {
            remove(&place.join(name))?;
        }
    }
    Ok(())
}

/// Removes whatever is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// The name of the directory that is filled as the `number`th.
fn directory_name(number: u64) -> String {
    format!("..{number}")
}

fn number_of(directory: &Path) -> Option<u64> {
    directory.to_str()?.strip_prefix("..")?.parse().ok()
}

fn write_file(directory: &Path, file: &FilePlan, group: Option<u32>) -> io::Result<()> {
    let path = directory.join(&file.path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut written =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    written.write_all(&file.data.0)?;
    // Not at the creation, where the mask would count.
    written.set_permissions(Permissions::from_mode(file.mode))?;
    give_to_group(&path, group, file.mode | GROUP_READS)
}

/// Links to files that are about to be present, under the first of their names.
fn link(place: &Path, files: &[FilePlan]) -> io::Result<()> {
    let first = |file: &FilePlan| match file.path.components().next() {
        Some(Component::Normal(name)) => Some(name.to_owned()),
        _ => None,
    };
    let wanted: BTreeSet<OsString> = files.iter().filter_map(first).collect();
    for name in wanted {
        match symlink(Path::new(DATA).join(&name), place.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// What a container mounts of a volume: a detached tree, and whether it is a directory.
pub(crate) fn take(
    place: &Path,
    sub_path: Option<&Path>,
    is_read_only: bool,
) -> io::Result<(OwnedFd, Kind)> {
    let (tree, kind) = match sub_path {
        None => {
            let is_directory = fs::metadata(place)?.is_dir();
            let kind = if is_directory { Kind::Directory } else { Kind::File };
            (mount::detached(place)?, kind)
        }
        Some(path) => {
            let found = mount_point::find(place, path).map_err(io::Error::other)?;
            let (file, kind) = match found {
                Some(found) => found,
                None => (make_below(place, path)?, Kind::Directory),
            };
            (mount::detached_of(&file)?, kind)
        }
    };
    let options = MountOptions { read_only: is_read_only, ..WRITABLE };
    mount::forbid_detached(&tree, options)?;
    Ok((tree, kind))
}

/// Makes the place of another mount in a volume that its container cannot write, as the kubelet
/// does. What nobody can write has such a place already, or the container cannot start.
pub(crate) fn make_place(volume: &Path, path: &Path, kind: Kind) -> io::Result<()> {
    let data = volume.join(DATA);
    let is_of_files = data.is_symlink();
    if is_of_files && is_own(path.as_os_str()) {
        let said = "names that begin with two dots are the volume's own";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
    }
    match mount_point::mount_point(volume, path, kind) {
        Ok(_place) => {}
        Err(PathError::Io(error)) if error == rustix::io::Errno::ROFS => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    }
    let first = path.components().next();
    if is_of_files && first.is_some_and(|first| data.join(first).exists()) {
        File::create(data.join(KEPT))?;
    }
    Ok(())
}

/// Makes a directory of a volume, for whom the volume is.
fn make_below(place: &Path, path: &Path) -> io::Result<OwnedFd> {
    let made = mount_point::mount_point(place, path, Kind::Directory).map_err(io::Error::other)?;
    let (opened, whole) = (format!("/proc/self/fd/{}", made.as_raw_fd()), fs::metadata(place)?);
    chown(&opened, Some(whole.uid()), Some(whole.gid()))?;
    fs::set_permissions(&opened, whole.permissions())?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use ambit_net::sys::process::{self, Namespaces};

    use super::*;

    fn file(path: &str, mode: u32, data: &str) -> FilePlan {
        FilePlan { path: path.into(), mode, data: ByteString(data.as_bytes().to_vec()) }
    }

    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_replaced_all_at_once() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let read = |path: &str| fs::read_to_string(place.join(path)).ok();
        write(place, &[file("a", 0o644, "1"), file("b/c", 0o400, "2")], None).unwrap();
        assert_eq!(names(place), ["..0", "..data", "a", "b"]);
        assert_eq!((read("a"), read("b/c")), (Some("1".to_owned()), Some("2".to_owned())));
        let mode = |path: &str| fs::metadata(place.join(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("a"), mode("b/c")), (0o644, 0o400));
        assert_eq!(fs::read_link(place.join("a")).unwrap(), Path::new("..data/a"));

        write(place, &[file("a", 0o644, "3"), file("d", 0o644, "4")], None).unwrap();
        assert_eq!(names(place), ["..1", "..data", "a", "d"]);
        assert_eq!((read("a"), read("d")), (Some("3".to_owned()), Some("4".to_owned())));
        // A half-made change of an init that died.
        symlink("..none", place.join(NEXT_DATA)).unwrap();
        write(place, &[], None).unwrap();
        assert_eq!(names(place), ["..2", "..data"]);
    }

    #[test]
    fn places_of_other_mounts_stay_in_a_volume_of_files() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let make = |path: &str, kind| make_place(place, Path::new(path), kind).unwrap();
        write(place, &[file("a", 0o644, "1"), file("b", 0o644, "2")], None).unwrap();
        make("lib/deep", Kind::Directory);
        make("file", Kind::File);
        // What is there is a place.
        make("a", Kind::File);
        write(place, &[file("a", 0o644, "3"), file("lib", 0o644, "4")], None).unwrap();
        assert_eq!(names(place), ["..0", "..1", "..data", "a", "file", "lib"]);
        assert!(place.join("lib/deep").is_dir(), "another mount is there");
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "3");
        for own in ["..data", "..1", "..data/x"] {
            make_place(place, Path::new(own), Kind::Directory).unwrap_err();
        }

        write(place, &[file("d/e", 0o644, "5")], None).unwrap();
        make("d/place", Kind::Directory);
        write(place, &[file("d/e", 0o644, "6")], None).unwrap();
        write(place, &[file("d/e", 0o644, "7")], None).unwrap();
        assert_eq!(names(place), ["..0", "..2", "..4", "..data", "d", "file", "lib"]);
        assert!(place.join("..2/d/place").is_dir(), "another mount is there");
    }

    #[test]
    fn only_changed_files_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let volume = |name: &str, data: &str| VolumePlan {
            name: name.to_owned(),
            group: None,
            content: VolumeContent::Files(vec![file("f", 0o644, data)]),
        };
        let old = [volume("a", "1"), volume("b", "1")];
        for it in &old {
            fs::create_dir_all(place(directory, &it.name)).unwrap();
            let VolumeContent::Files(files) = &it.content else { unreachable!() };
            write(&place(directory, &it.name), files, None).unwrap();
        }
        let mut now = old.to_vec();
        let new = [volume("a", "1"), volume("b", "2"), volume("c", "3")];
        let failed = update(directory, &mut now, &new);
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(now, new[..2]);
        assert!(names(&place(directory, "a")).contains(&"..0".to_owned()));
        assert!(names(&place(directory, "b")).contains(&"..1".to_owned()));
    }

    #[test]
    fn a_change_that_fails_leaves_the_files_and_stops_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let volume = |name: &str, files: &[FilePlan]| VolumePlan {
            name: name.to_owned(),
            group: None,
            content: VolumeContent::Files(files.to_vec()),
        };
        let old = [file("f", 0o644, "1")];
        for name in ["a", "b"] {
            fs::create_dir_all(place(directory, name)).unwrap();
            write(&place(directory, name), &old, None).unwrap();
        }
        let of = |name: &str| fs::read_to_string(place(directory, name).join("f")).unwrap();
        let mut now = vec![volume("a", &old), volume("b", &old)];
        // A file cannot be a directory too.
        let bad = [file("f", 0o644, "2"), file("f/g", 0o644, "2")];
        let good = [file("f", 0o644, "2")];
        let failed = update(directory, &mut now, &[volume("a", &bad), volume("b", &good)]);
        assert_eq!(failed.len(), 1);
        assert!(failed[0].to_string().contains("volume \"a\": cannot update its files"));
        assert_eq!((of("a"), of("b")), ("1".to_owned(), "2".to_owned()));
        assert_eq!(names(&place(directory, "a")), ["..0", "..data", "f"], "nothing is left of it");
        assert_eq!(now, [volume("a", &old), volume("b", &good)]);
        // What an init left that was killed.
        let place_a = place(directory, "a");
        fs::create_dir_all(place_a.join("..1/x")).unwrap();
        symlink("..data/gone", place_a.join("gone")).unwrap();
        assert!(update(directory, &mut now, &[volume("a", &good)]).is_empty());
        assert_eq!(of("a"), "2");
        assert_eq!(names(&place_a), ["..1", "..data", "f"]);
    }

    #[test]
    fn nothing_is_made_below_a_file() {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), &[file("f", 0o644, "1")], None).unwrap();
        take(place.path(), Some(Path::new("f/g")), true).unwrap_err();
        assert_eq!(names(place.path()), ["..0", "..data", "f"]);
    }

    #[test]
    fn the_machine_shows_nobody_its_state() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path();
        fs::create_dir(path.join("state")).unwrap();
        symlink(path.join("state"), path.join("link")).unwrap();
        let writable = |path: &Path| Writable {
            directory: HostPath::all(&["/".into()]).unwrap().remove(0),
            below: path.strip_prefix("/").unwrap().to_owned(),
        };
        let host = |path: &Path| VolumePlan {
            name: "v".to_owned(),
            group: None,
            content: VolumeContent::Host {
                path: path.to_owned(),
                is_optional: false,
                writable: Some(writable(path)),
            },
        };
        let kernel = [Path::new("/proc"), Path::new("/proc/sys")];
        for wrong in [path, &path.join("state"), &path.join("link"), kernel[0], kernel[1]] {
            let prepared = prepare(path, &[host(wrong)], &path.join("state"));
            let refused = matches!(prepared, Err(VolumeError::Refused { .. }));
            assert!(refused, "{}", wrong.display());
        }
        let prepared = prepare(path, &[host(&path.join("none"))], &path.join("state"));
        assert!(matches!(prepared, Err(VolumeError::Host { .. })));
        let optional = |writable| VolumePlan {
            content: VolumeContent::Host { path: path.join("none"), is_optional: true, writable },
            ..host(path)
        };
        assert!(prepare(path, &[optional(None)], &path.join("state")).is_ok());
        assert!(place(path, "v").is_dir() && !path.join("none").exists(), "nothing is made there");
        let made = [optional(Some(writable(&path.join("none"))))];
        assert!(prepare(path, &made, &path.join("state")).is_ok());
        assert!(path.join("none").is_dir(), "pods may write there");
    }

    /// What is wrong with a path that pods cannot write.
    fn problem(path: &Path) -> Option<&'static str> {
        of_host(path, false, None, Path::new("/no-state")).unwrap().err()
    }

    #[test]
    fn what_is_read_only_shows_no_sockets_and_nothing_of_the_kernel() {
        // Not below /tmp, which is never shown.
        let all = tempfile::tempdir_in("/var/lib").unwrap();
        let path = all.path();
        assert_eq!(problem(path), None);
        let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
        assert_eq!(problem(&path.join("socket")), Some(SOCKET));
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, path.join("pipe"), kind, mode, 0).unwrap();
        assert_eq!(problem(&path.join("pipe")), Some(SOCKET));
        symlink("/dev/null", path.join("link")).unwrap();
        for hidden in ["/dev/null", "/tmp", "/var/tmp", "/run"] {
            assert_eq!(problem(Path::new(hidden)), Some(HIDDEN), "{hidden}");
        }
        assert_eq!(problem(&path.join("link")), Some(HIDDEN));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_of_mount = !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/var/tmp"));
        assert_eq!(problem(Path::new("/var")), is_of_mount.then_some(HIDDEN), "it holds /var/tmp");
        for (path, expected) in [("/proc", KERNEL), ("/proc/sys", KERNEL), ("/sys", HIDDEN)] {
            assert_eq!(problem(Path::new(path)), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_mount_of_the_same_device_is_another_mount() {
        let mounted = || {
            process::unshare(Namespaces::MOUNT).unwrap();
            mount::make_private().unwrap();
            // One device, as subvolumes of one mount have many.
            mount::bind_one(Path::new("/var/tmp"), Path::new("/var/tmp")).unwrap();
            problem(Path::new("/var"))
        };
        let found = std::thread::scope(|scope| scope.spawn(mounted).join().unwrap());
        assert_eq!(found, None, "what is mounted there stays out of sight");
    }

    #[test]
    fn a_change_that_fails_adds_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        write(place, &[file("f", 0o644, "1")], None).unwrap();
        let too_long = "n".repeat(256);
        let new = [file("a", 0o644, "2"), file("f", 0o644, "2"), file(&too_long, 0o644, "2")];
        link(place, &new).unwrap_err();
        replace(place, &new, None).unwrap_err();
        assert_eq!(names(place), ["..0", "..data", "f"]);
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "1");
    }

    #[test]
    fn the_kernels_file_systems_are_known_wherever_they_are_mounted() {
        let place = tempfile::tempdir_in("/var/lib").unwrap();
        let mounted = || {
            process::unshare(Namespaces::MOUNT).unwrap();
            mount::make_private().unwrap();
            mount::bind_one(Path::new("/proc"), place.path()).unwrap();
            let found = problem(place.path());
            mount::unmount(place.path()).unwrap();
            mount::bind_one(Path::new("/sys"), place.path()).unwrap();
            [found, problem(place.path())]
        };
        // A mount namespace belongs to a thread.
        let found = std::thread::scope(|scope| scope.spawn(mounted).join().unwrap());
        assert_eq!(found, [Some(KERNEL), Some(HIDDEN)]);
    }
}
