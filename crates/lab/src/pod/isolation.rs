//! What a pod sees of the host: its file tree, less what belongs to the machine or to other pods.
//!
//! Runs in the pod's fresh mount namespace, before anything of the pod does. After it, the process
//! holds the privileges of a pod and no more; there is no way back.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use ambit_net::sys::mount::{self, MountOptions};
use ambit_net::sys::{capability, process};

/// Room in a pod's `/tmp` and `/dev/shm`.
const TEMPORARY_SIZE_BYTES: u64 = 256 << 20;
/// Devices that every program may expect.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

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

/// Gives the pod its own view of the file tree.
pub(crate) fn set_up_mounts(
    hidden: &Path,
    files: &[(PathBuf, PathBuf)],
    rootless: bool,
) -> Result<(), IsolationError> {
    step("cut the pod's mounts off from the machine's", mount::make_private())?;
    if !rootless {
        // Real root may make device files anywhere: none but those of the pod's own /dev shall
        // work.
        let no_devices = MountOptions { no_dev: true, ..MountOptions::default() };
        step("forbid device files", mount::remount_bind(Path::new("/"), no_devices))?;
    }
    for (path, content) in files {
        if !path.exists() {
            return Err(IsolationError::NothingToCover { path: path.clone() });
        }
        step(format!("show the pod its own {}", path.display()), mount::bind_one(content, path))?;
    }
    let empty = MountOptions { read_only: true, no_suid: true, no_dev: true, no_exec: true };
    step("hide the state directory", mount::tmpfs(hidden, 0, 0o555, empty))?;
    let temporary = MountOptions { no_suid: true, no_dev: true, ..MountOptions::default() };
    step("mount /tmp", mount::tmpfs(Path::new("/tmp"), TEMPORARY_SIZE_BYTES, 0o1777, temporary))?;
    step("mount /proc", mount::proc(Path::new("/proc")))?;
    step("set up /dev", devices())
}

/// A `/dev` with the harmless devices only.
fn devices() -> io::Result<()> {
    let options = MountOptions { no_suid: true, no_exec: true, ..MountOptions::default() };
    let stage = Path::new("/tmp/.dev");
    fs::create_dir(stage)?;
    mount::tmpfs(stage, TEMPORARY_SIZE_BYTES, 0o755, options)?;
    for device in DEVICES {
        let target = stage.join(device);
        fs::File::create(&target)?;
        mount::bind_one(&Path::new("/dev").join(device), &target)?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, stage.join(link))?;
    }
    fs::DirBuilder::new().mode(0o1777).create(stage.join("shm"))?;
    mount::bind(stage, Path::new("/dev"))?;
    mount::unmount(stage)?;
    fs::remove_dir(stage)
}

/// Gives up everything that a pod must not have, for this process and all it starts.
///
/// The init itself is not to be traced: it holds the directory of the logs open.
pub(crate) fn give_up_privileges() -> Result<(), IsolationError> {
    step("drop capabilities", capability::keep_pod_defaults())?;
    step("forbid new privileges", process::set_no_new_privileges())?;
    step("forbid tracing of the pod's init", process::set_not_dumpable())
}
