//! What a pod sees of the host: its file tree, read-only, without what belongs to the machine or to
//! other pods.
//!
//! A pod has two mount namespaces. *Behind the stage* is its init's: the host's tree, read-only,
//! and the state directory, from which containers with an image get their own mounts. *The pod's
//! tree* is what other containers live in. Everything that runs for a container gives up the
//! privileges of the init, and cannot get them back. A pod's root user has the host root's number:
//! no file, kernel setting or device of the host may be left writable here.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use ambit_net::sys::capability;
use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::process::{self, Namespaces};

use crate::image::{PROGRAM_NAMES, PROGRAMS, SHIPPED_BINARY};

/// Room in each of the places where a pod may write.
const TEMPORARY_SIZE_BYTES: u64 = 256 << 20;
/// What programs expect to be writable, with its mode: empty at first, and the pod's own. `/run`
/// also takes the sockets of the host's services out of reach, which read-only mounts do not.
const WRITABLE: &[(&str, u32)] = &[("/tmp", 0o1777), ("/run", 0o755), ("/var/tmp", 0o1777)];
/// Most terminals that a pod's processes may open; the kernel has some 3,000 for all.
const TERMINALS_MAX: u32 = 128;
/// Devices that every program may expect.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Parts of `/proc` that set the kernel and not a process, where the kernel has them.
const PROC_READ_ONLY: &[&str] =
    &["sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "asound", "dynamic_debug"];
/// Parts of `/proc` that reveal the kernel's memory or that of others, where the kernel has them.
const PROC_MASKED: &[&str] = &["kcore", "keys", "timer_list", "latency_stats", "sched_debug"];

const FORBID_WRITES: MountOptions =
    MountOptions { read_only: true, no_suid: true, no_dev: true, no_exec: false };
const FORBID_DEVICES: MountOptions =
    MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: false };

/// A pod that could not be set apart.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IsolationError {
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The host has no file that could be covered.
    #[error(
        "{path} does not exist on this machine; create an empty file there, \
         pods see their own over it"
    )]
    NothingToCover {
        /// Where.
        path: PathBuf,
    },
}

fn step<T>(step: impl Into<String>, result: io::Result<T>) -> Result<T, IsolationError> {
    result.map_err(|source| IsolationError::Step { step: step.into(), source })
}

/// Cuts this mount namespace off from the machine's, and makes everything in it read-only, whatever
/// it is and wherever it is mounted. Mounts that are made later are not.
pub(crate) fn go_behind_the_stage() -> Result<(), IsolationError> {
    step("cut the pod's mounts off from the machine's", mount::make_private())?;
    step(
        "make the host's files read-only (this needs Linux 5.12)",
        mount::forbid_below(Path::new("/"), FORBID_WRITES),
    )
}

/// A pod's tree, as its init holds it.
pub(crate) struct Tree {
    /// The mount namespace of its containers.
    pub(crate) namespace: File,
    /// The tree's `/dev/null`: behind the stage no device can be opened, and a container could
    /// change the mode of one of the host's by its descriptor.
    pub(crate) nowhere: File,
    /// The tree's `/proc`, which has the pod's processes by their numbers in the pod: behind the
    /// stage there is the machine's.
    pub(crate) processes: File,
}

/// Makes the pod's tree. The caller stays behind the stage.
pub(crate) fn make_tree(
    hidden: &Path,
    files: &[(PathBuf, PathBuf)],
    directories: &[(PathBuf, PathBuf)],
) -> Result<Tree, IsolationError> {
    let open = || File::open("/proc/self/ns/mnt");
    let behind = step("open the mount namespace", open())?;
    step("make the pod's mount namespace", process::unshare(Namespaces::MOUNT))?;
    set_up_mounts(hidden, files, directories)?;
    let namespace = step("open the pod's mount namespace", open())?;
    let nowhere = File::options().read(true).write(true).open("/dev/null");
    let nowhere = step("open the pod's /dev/null", nowhere)?;
    let processes = step("open the pod's /proc", File::open("/proc"))?;
    step("go back behind the stage", process::enter(&behind, Namespaces::MOUNT))?;
    Ok(Tree { namespace, nowhere, processes })
}

/// Gives the pod its own view of the file tree, one mount after the other.
fn set_up_mounts(
    hidden: &Path,
    files: &[(PathBuf, PathBuf)],
    directories: &[(PathBuf, PathBuf)],
) -> Result<(), IsolationError> {
    let files = files.iter().map(Shown::open).collect::<Result<Vec<_>, _>>()?;
    let directories = directories.iter().map(Shown::directory).collect::<Result<Vec<_>, _>>()?;
    let binary = Shown::shipped_binary();
    let empty = MountOptions { no_exec: true, ..FORBID_WRITES };
    step("hide the state directory", mount::tmpfs(hidden, 0, 0o555, empty))?;
    for &(path, mode) in WRITABLE.iter().filter(|(path, _)| Path::new(path).is_dir()) {
        let mounted = mount::tmpfs(Path::new(path), TEMPORARY_SIZE_BYTES, mode, FORBID_DEVICES);
        step(format!("mount {path}"), mounted)?;
    }
    for file in files {
        let shown = file.show();
        step(format!("show the pod its own {}", file.target.display()), shown)?;
    }
    for directory in directories {
        let shown = directory.show_directory();
        step(format!("show the pod its own {}", directory.target.display()), shown)?;
    }
    if let Some(binary) = binary {
        step("show the pod the shipped binary", binary.show())?;
        step("name the shipped binary", other_names())?;
    }
    step("mount /proc", mount::proc(Path::new("/proc")))?;
    step("set up /dev", devices())?;
    step("protect /proc", protect_proc())
}

/// Gives the shipped binary its other names, beside the one that it is shown under.
fn other_names() -> io::Result<()> {
    let binary = Path::new(PROGRAMS).join(SHIPPED_BINARY);
    let mut others = PROGRAM_NAMES.iter().filter(|name| **name != SHIPPED_BINARY);
    others.try_for_each(|name| symlink(&binary, Path::new(PROGRAMS).join(name)))
}

/// A file that the pod sees otherwise than the host, or a directory that only it sees.
///
/// Both ends are found before anything is covered: the content lies in the hidden directory, and
/// the target may be a link into `/run`, as `/etc/resolv.conf` often is.
struct Shown {
    content: File,
    target: PathBuf,
}

impl Shown {
    fn open((path, content): &(PathBuf, PathBuf)) -> Result<Self, IsolationError> {
        if !path.exists() {
            return Err(IsolationError::NothingToCover { path: path.clone() });
        }
        let target = step(format!("find {}", path.display()), fs::canonicalize(path))?;
        let content = step(format!("open {}", content.display()), File::open(content))?;
        Ok(Self { content, target })
    }

    /// A directory of a place that is the pod's own, so that it need not be there yet.
    fn directory((path, content): &(PathBuf, PathBuf)) -> Result<Self, IsolationError> {
        let content = step(format!("open {}", content.display()), File::open(content))?;
        Ok(Self { content, target: path.clone() })
    }

    /// The binary that runs this, unless it has been replaced on the disk since.
    fn shipped_binary() -> Option<Self> {
        let content = File::open(fs::read_link("/proc/self/exe").ok()?).ok()?;
        Some(Self { content, target: Path::new(PROGRAMS).join(SHIPPED_BINARY) })
    }

    /// Shows the directory itself: files that are replaced in it are seen.
    fn show_directory(&self) -> io::Result<()> {
        fs::create_dir_all(&self.target)?;
        let content = format!("/proc/self/fd/{}", self.content.as_raw_fd());
        mount::bind_one(Path::new(&content), &self.target)
    }

    fn show(&self) -> io::Result<()> {
        if !self.target.exists() {
            if let Some(directory) = self.target.parent() {
                fs::create_dir_all(directory)?;
            }
            File::create(&self.target)?;
        }
        let content = format!("/proc/self/fd/{}", self.content.as_raw_fd());
        mount::bind_one(Path::new(&content), &self.target)
    }
}

/// A `/dev` with the harmless devices only, and terminals of the pod's own.
///
/// Each is a mount of its own, and the only ones on which device files work: real root may make
/// others anywhere.
fn devices() -> io::Result<()> {
    let options = MountOptions { no_exec: true, ..FORBID_DEVICES };
    let stage = Path::new("/tmp/.dev");
    fs::create_dir(stage)?;
    mount::tmpfs(stage, TEMPORARY_SIZE_BYTES, 0o755, options)?;
    for device in DEVICES {
        let target = stage.join(device);
        File::create(&target)?;
        mount::bind_one(&Path::new("/dev").join(device), &target)?;
        let options = MountOptions { no_dev: false, no_exec: true, ..FORBID_WRITES };
        mount::remount_bind(&target, options)?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, stage.join(link))?;
    }
    let shared_memory = stage.join("shm");
    fs::create_dir(&shared_memory)?;
    mount::tmpfs(&shared_memory, TEMPORARY_SIZE_BYTES, 0o1777, options)?;
    let terminals = stage.join("pts");
    fs::create_dir(&terminals)?;
    mount::terminals(&terminals, TERMINALS_MAX)?;
    symlink("pts/ptmx", stage.join("ptmx"))?;
    mount::bind(stage, Path::new("/dev"))?;
    mount::unmount(stage)?;
    fs::remove_dir(stage)
}

/// Keeps the pod's `/proc` from setting the kernel: many of its files ask for the user's number
/// only, not for a capability.
fn protect_proc() -> io::Result<()> {
    let existing = |names: &[&str]| -> Vec<PathBuf> {
        let paths = names.iter().map(|name| Path::new("/proc").join(name));
        paths.filter(|path| path.exists()).collect()
    };
    for path in existing(PROC_READ_ONLY) {
        mount::bind(&path, &path)?;
        mount::forbid_below(&path, FORBID_WRITES)?;
    }
    for path in existing(PROC_MASKED) {
        mount::bind_one(Path::new("/dev/null"), &path)?;
    }
    Ok(())
}

/// Gives up everything that a container must not have, for this process and all it starts.
pub(crate) fn give_up_privileges() -> Result<(), IsolationError> {
    step("drop capabilities", capability::keep_pod_defaults())?;
    step("forbid new privileges", process::set_no_new_privileges())
}

/// Lets no process of the pod use the keys of the session that started the machine.
pub(crate) fn forget_keys() -> Result<(), IsolationError> {
    step(
        "get a session keyring of the pod's own (see sysctl kernel.keys.maxkeys)",
        process::new_session_keyring(),
    )
}

/// Lets no process of the pod look into this one, which has what they must not have: privileges,
/// and files that it can write.
pub(crate) fn forbid_tracing() -> Result<(), IsolationError> {
    step("forbid tracing", process::set_not_dumpable())
}

/// The binary that runs this, on a mount that cannot be written: a process has the file that it
/// runs at hand. `None` if it has been replaced on the disk since.
pub(crate) fn own_binary() -> Option<File> {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let file = File::open(fs::read_link("/proc/self/exe").ok()?).ok()?;
    same(file.metadata().ok()?, fs::metadata("/proc/self/exe").ok()?).then_some(file)
}
