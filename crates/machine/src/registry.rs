//! The registry directory as its readers see it: objects, pod statuses, and notice of their
//! changes.
//!
//! The machine writes objects, nodes write statuses, all other parts read. A [`Mirror`] keeps what
//! was read and re-reads only what a [`Watch`] names. It never writes an object.

mod mirror;
mod watch;

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use mirror::Mirror;
pub(crate) use watch::Watch;
pub use watch::WatchError;

/// What a node reports about one of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// The pod's uid: a status of an older pod of the same name does not count.
    pub uid: String,
    /// The node that runs it.
    pub node: String,
    /// Pending, Running, Succeeded or Failed.
    pub phase: Phase,
    /// Its addresses, IPv4 first.
    #[serde(rename = "podIPs")]
    pub pod_ips: Vec<IpAddr>,
    /// Whether it takes traffic.
    pub ready: bool,
    /// Whether it has ever taken any.
    pub was_ready: bool,
    /// The path of its network namespace inside the machine; empty until there is one.
    pub netns: PathBuf,
    /// The process id of its init inside the machine; 0 until it runs.
    pub pid: i32,
    /// How often its containers, or its init, were started again.
    pub restarts: u32,
    /// Why it is not running or not ready, that its containers end again and again, or that its
    /// volumes are not as they should be; empty when all is well.
    pub reason: String,
    /// When it was started.
    pub started_at: Option<String>,
    /// Each of its containers.
    pub containers: Vec<ContainerStatus>,
}

/// What a node reports about one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// It runs.
    pub running: bool,
    /// Its first process, by the pod's own numbers, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// It runs, and its `postStart` has ended: from now on its probes are asked.
    pub probed: bool,
    /// Its start is over: its startup probe, if any, has succeeded.
    pub started: bool,
    /// It has started and its readiness probe, if any, says so.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// Its last exit: a status, or 128 and the signal that ended it.
    pub last_exit: Option<i32>,
    /// At its last end the kernel had killed a process of it: it wanted more memory than its limit.
    #[serde(skip_serializing_if = "is_not")]
    pub oom_killed: bool,
    /// It has ended twice in a row soon after its start, and has not run for long since.
    pub crash_looping: bool,
    /// Why it does not run, or is not ready.
    pub reason: String,
    /// Failures of its probes.
    #[serde(skip_serializing_if = "Occurrences::are_none")]
    pub unhealthy: Occurrences,
    /// How it was ended because of its probes or its `postStart`.
    #[serde(skip_serializing_if = "Occurrences::are_none")]
    pub killed: Occurrences,
    /// How often its `postStart` failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub post_start_failures: u32,
    /// How often its `preStop` failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub pre_stop_failures: u32,
}

/// What happens to a container again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Occurrences {
    /// How often.
    pub count: u32,
    /// What is to be said of the last time.
    pub message: String,
}

impl Occurrences {
    /// It happened.
    pub(crate) fn add(&mut self, message: String) {
        self.count = self.count.saturating_add(1);
        self.message = message;
    }

    fn are_none(&self) -> bool {
        self.count == 0
    }
}

fn is_not(word: &bool) -> bool {
    !*word
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Kubernetes' word for an end for want of memory.
pub(crate) const OOM_KILLED: &str = "OOMKilled";

impl ContainerStatus {
    /// Kubernetes' word for the state of a container that ends again and again, and why if it could
    /// not even start.
    pub(crate) fn loop_reason(&self) -> Option<String> {
        let exit = self.last_exit.filter(|_| self.crash_looping)?;
        let ended = || match self.oom_killed {
            true => format!("exited with {exit}: {OOM_KILLED}"),
            false => format!("exited with {exit}"),
        };
        let why = self.start_failure().unwrap_or_else(ended);
        Some(format!("CrashLoopBackOff: container {} {why}", self.name))
    }

    /// Why its program did not even run at the last start; the exit is its launcher's then.
    pub(crate) fn start_failure(&self) -> Option<String> {
        let ended = format!("exited with {}", self.last_exit?);
        let is_other = !self.running && !self.reason.is_empty() && self.reason != ended;
        is_other.then(|| format!("cannot start: {}", self.reason))
    }
}

/// How far a pod is in its life, in Kubernetes' words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not all of it runs yet.
    #[default]
    Pending,
    /// Its containers run, or are being started again.
    Running,
    /// Its containers have ended well and stay so.
    Succeeded,
    /// Its containers have ended, at least one of them badly.
    Failed,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// Replaces a file as a whole: readers see the old content or the new one.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().expect("files lie in directories");
    fs::create_dir_all(directory)?;
    let name = path.file_name().expect("files have names").to_string_lossy();
    // Watchers pass over names that begin with a dot.
    let aside = directory.join(format!(".{name}.new"));
    fs::write(&aside, content)?;
    fs::rename(&aside, path)
}

/// The same for a secret: nobody but the owner can read it at any moment.
pub(crate) fn replace_secret_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().expect("files lie in directories");
    fs::create_dir_all(directory)?;
    let name = path.file_name().expect("files have names").to_string_lossy();
    let aside = directory.join(format!(".{name}.new"));
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    file.write_all(content)?;
    fs::rename(&aside, path)
}

/// The current time as Kubernetes writes it.
pub(crate) fn timestamp() -> String {
    written(jiff::Timestamp::now())
}

/// A time as Kubernetes writes it.
pub(crate) fn written(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
