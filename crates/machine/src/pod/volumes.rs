//! The volumes of a pod: made by its init, behind the stage, where its containers take them from.
//!
//! Each is a mount in the pod's own directory, and ends with the pod's last process. All but those
//! of the host are in memory: a Secret never reaches a disk. Files are replaced as the kubelet does
//! it: a new directory is filled, and then one link is renamed, so that a reader sees all old files
//! or all new ones.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use ambit_image::mount_point::{self, Kind};
use ambit_net::sys::mount::{self, MountOptions};
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};

/// Room for all files of a volume, twice: the old ones go when the new ones are there.
const FILES_SIZE_BYTES: u64 = 64 << 20;
/// What everybody may do with an empty volume.
const EMPTY_MODE: u32 = 0o777;
/// Files get the volume's group.
const SET_GROUP_ID: u32 = 0o2000;
/// What the group of a volume may do with its files.
const GROUP_READS: u32 = 0o040;
/// The link to the present files; a name of the kubelet's, as the others that begin with two dots.
const DATA: &str = "..data";
const NEXT_DATA: &str = "..data_tmp";

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
    /// A file or directory of the host.
    Host {
        /// Where.
        path: PathBuf,
        /// The directory above it, or itself, that containers may write; without it they may not.
        allowed: Option<PathBuf>,
        /// It is made, as a directory, if it is not there and may be written.
        is_made: bool,
    },
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
    #[error("volume {volume:?}: {path} cannot be used on this machine; is it there?")]
    Host {
        /// Its name.
        volume: String,
        /// As written.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The machine's state would be seen.
    #[error("volume {volume:?}: {path} is the machine's own, or leads there; name another")]
    Own {
        /// Its name.
        volume: String,
        /// As written.
        path: PathBuf,
    },
}

/// What pods see of the host only if they may write it: kernel, devices, sockets of services.
pub(crate) const NOT_SHOWN: [&str; 4] = ["/sys", "/dev", "/run", "/var/run"];

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
        let VolumeContent::Host { path, allowed, is_made } = &volume.content else {
            fs::create_dir_all(&place).map_err(failed)?;
            return Ok((volume.clone(), None));
        };
        let wrong =
            |source| VolumeError::Host { volume: volume.name.clone(), path: path.clone(), source };
        let own = fs::canonicalize(hidden).map_err(failed)?;
        let found = of_host(path, allowed.as_deref(), *is_made, &own).map_err(wrong)?;
        let (file, is_directory) = found
            .ok_or_else(|| VolumeError::Own { volume: volume.name.clone(), path: path.clone() })?;
        // What else is mounted there stays out of sight.
        let tree = mount::detached_of(&file).map_err(wrong)?;
        let options = MountOptions { read_only: allowed.is_none(), ..WRITABLE };
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

/// A file or directory of the host, and whether it is a directory. `None` if it is none that pods
/// may see. A pod may be changing what it may write, so that the judgement is of what was opened.
fn of_host(
    path: &Path,
    allowed: Option<&Path>,
    is_made: bool,
    own: &Path,
) -> io::Result<Option<(OwnedFd, bool)>> {
    if let Some(allowed) = allowed.filter(|_| is_made && !path.exists()) {
        let below = path.strip_prefix(allowed).unwrap_or(path);
        mount_point::mount_point(allowed, below, Kind::Directory).map_err(io::Error::other)?;
    }
    let file = mount::open_path(&fs::canonicalize(path)?)?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let real = fs::read_link(&opened)?;
    let is_seen = match allowed {
        Some(allowed) => real.starts_with(fs::canonicalize(allowed)?),
        None => !NOT_SHOWN.iter().any(|hidden| real.starts_with(hidden)),
    };
    let is_own = real.starts_with(own) || own.starts_with(&real) || real.starts_with("/proc");
    let is_directory = fs::metadata(&opened)?.is_dir();
    Ok((is_seen && !is_own).then_some((file, is_directory)))
}

impl Prepared {
    /// Mounts the volumes, behind the stage.
    pub(crate) fn mount(self, directory: &Path) -> Result<(), VolumeError> {
        for (volume, tree) in self.0 {
            let place = place(directory, &volume.name);
            let failed = |source| step(&volume, "be mounted", source);
            match (&volume.content, tree) {
                (VolumeContent::Host { .. }, None) => unreachable!("its tree was taken"),
                (_, Some(tree)) => {
                    let place = mount::open_path(&place).map_err(failed)?;
                    mount::attach(tree, place).map_err(failed)?;
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

/// Replaces the files of volumes whose content is another one now. Answers those that could not be.
pub(crate) fn update(directory: &Path, old: &[VolumePlan], new: &[VolumePlan]) -> Vec<VolumeError> {
    let changed = new.iter().filter_map(|volume| {
        let before = old.iter().find(|before| before.name == volume.name)?;
        match (&before.content, &volume.content) {
            (VolumeContent::Files(before), VolumeContent::Files(files)) if before != files => {
                Some((volume, files))
            }
            _ => None,
        }
    });
    let written = changed.map(|(volume, files)| {
        let written = write(&place(directory, &volume.name), files, volume.group);
        written.map_err(|source| step(volume, "be updated", source))
    });
    written.filter_map(Result::err).collect()
}

/// Makes these the files of a volume, all at once.
fn write(place: &Path, files: &[FilePlan], group: Option<u32>) -> io::Result<()> {
    let before = fs::read_link(place.join(DATA)).ok();
    let number = before.as_deref().and_then(number_of).map_or(0, |number| number + 1);
    let name = directory_name(number);
    let directory = place.join(&name);
    fs::create_dir(&directory)?;
    for file in files {
        write_file(&directory, file, group)?;
    }
    let next = place.join(NEXT_DATA);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    symlink(&name, &next)?;
    fs::rename(&next, place.join(DATA))?;
    link(place, files)?;
    match before {
        Some(before) => fs::remove_dir_all(place.join(before)),
        None => Ok(()),
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

/// Links to the present files, under the first of their names.
fn link(place: &Path, files: &[FilePlan]) -> io::Result<()> {
    let first = |file: &FilePlan| match file.path.components().next() {
        Some(Component::Normal(name)) => Some(name.to_owned()),
        _ => None,
    };
    let wanted: BTreeSet<OsString> = files.iter().filter_map(first).collect();
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        let is_own = name.to_str().is_some_and(|name| name.starts_with(".."));
        if !is_own && !wanted.contains(&name) {
            fs::remove_file(place.join(name))?;
        }
    }
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
        let failed =
            update(directory, &old, &[volume("a", "1"), volume("b", "2"), volume("c", "3")]);
        assert!(failed.is_empty(), "{failed:?}");
        assert!(names(&place(directory, "a")).contains(&"..0".to_owned()));
        assert!(names(&place(directory, "b")).contains(&"..1".to_owned()));
    }

    #[test]
    fn the_machine_shows_nobody_its_state() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path();
        fs::create_dir(path.join("state")).unwrap();
        symlink(path.join("state"), path.join("link")).unwrap();
        let host = |path: &Path| VolumePlan {
            name: "v".to_owned(),
            group: None,
            content: VolumeContent::Host {
                path: path.to_owned(),
                allowed: Some("/".into()),
                is_made: false,
            },
        };
        for wrong in [path, &path.join("state"), &path.join("link"), Path::new("/proc/self")] {
            let prepared = prepare(path, &[host(wrong)], &path.join("state"));
            assert!(matches!(prepared, Err(VolumeError::Own { .. })), "{}", wrong.display());
        }
        let prepared = prepare(path, &[host(&path.join("none"))], &path.join("state"));
        assert!(matches!(prepared, Err(VolumeError::Host { .. })));
    }

    #[test]
    fn a_link_leads_no_pod_out_of_what_it_may_write() {
        let all = tempfile::tempdir().unwrap();
        let (may, may_not) = (all.path().join("may"), all.path().join("may-not"));
        fs::create_dir(&may).unwrap();
        fs::create_dir(&may_not).unwrap();
        symlink(&may_not, may.join("link")).unwrap();
        let own = all.path().join("own");
        let find = |path: &str, is_made| of_host(&may.join(path), Some(&may), is_made, &own);
        assert!(find("", false).unwrap().is_some());
        assert!(find("link", false).unwrap().is_none(), "it leads out");
        assert!(find("a/b", false).is_err(), "it is not there");
        assert!(find("a/b", true).unwrap().is_some_and(|(_, is_directory)| is_directory));
        assert!(of_host(Path::new("/dev/null"), None, false, &own).unwrap().is_none());
        assert!(of_host(&may_not, None, false, &own).unwrap().is_some());
    }
}
