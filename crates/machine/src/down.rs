//! Ends a machine, whatever state it is in: kills process 1, waits until the rest is gone, removes
//! its files.
//!
//! The kernel ends everything inside. This file checks that before it reports success. It removes
//! only files; logs stay.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_net::sys::process::{self, Signal};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use super::import::{self, Claim};
use super::record::{Liveness, Record, RecordError, liveness, start_ticks};
use crate::layout::Layout;
use crate::ownership::{OwnershipError, check_state_directory};

/// How long the kernel may take to end a machine.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// How long somebody else may hold its images.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether that is so.
const END_INTERVAL: Duration = Duration::from_millis(10);

/// What `down` did and found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownReport {
    /// A machine was running and was ended.
    pub ended: bool,
    /// Where its logs stay.
    pub logs: PathBuf,
    /// How long it took.
    pub duration_ms: u64,
}

/// A machine that could not be taken down.
#[derive(Debug, thiserror::Error)]
pub enum DownError {
    /// There is none.
    #[error("no machine at {state}; name its directory with --state")]
    NoMachine {
        /// The state directory.
        state: PathBuf,
    },
    /// Its store of images is another command's.
    #[error(
        "another command is importing images at {state}, or starting or ending a machine there; \
         wait for it, or end it"
    )]
    Importing {
        /// The state directory.
        state: PathBuf,
    },
    /// Somebody else may have written what would be believed: which process to end.
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
    /// Its state cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It lives and its process cannot be found.
    #[error(
        "a machine holds {lock}, but its process {pid} is not there; is this another PID namespace?"
    )]
    Elsewhere {
        /// The lock.
        lock: PathBuf,
        /// As recorded.
        pid: i32,
    },
    /// Its process cannot be ended.
    #[error("cannot end the machine's process {pid}; run as the user who started it")]
    Kill {
        /// Which.
        pid: i32,
        /// Why.
        source: io::Error,
    },
    /// Some of its processes keep running.
    #[error(
        "after {} s there is still {}; run `ambit down` again",
        END_TIMEOUT.as_secs(), left.join(", ")
    )]
    Left {
        /// What, in words.
        left: Vec<String>,
    },
    /// Its files cannot be read or removed.
    #[error("cannot remove {path}")]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Ends a machine and removes everything of it except its logs. Also works on the remains of one.
pub async fn down(layout: &Layout) -> Result<DownReport, DownError> {
    let start = Instant::now();
    check_state_directory(layout.root())?;
    let is_there = liveness(layout).is_ok_and(|state| state != Liveness::Absent);
    let _held = if is_there { wait_for_store(layout).await? } else { None };
    down_held(layout, start).await
}

/// Takes the images of a machine from those who bring more of them, or gives up before anything is
/// ended. `None` if it has none.
pub(super) async fn wait_for_store(layout: &Layout) -> Result<Option<File>, DownError> {
    let latest = Instant::now() + STORE_TIMEOUT;
    loop {
        let claim = import::claim(layout);
        match claim.map_err(|source| DownError::Remove { path: layout.images(), source })? {
            Claim::Taken(held) => return Ok(Some(held)),
            Claim::Absent => return Ok(None),
            Claim::Busy if Instant::now() > latest => {
                return Err(DownError::Importing { state: layout.root().to_owned() });
            }
            Claim::Busy => sleep(END_INTERVAL).await,
        }
    }
}

/// [`down`] by somebody who holds the machine's images, if there is a machine.
pub(super) async fn down_held(layout: &Layout, start: Instant) -> Result<DownReport, DownError> {
    let lock = layout.lock();
    let state =
        liveness(layout).map_err(|source| DownError::Remove { path: lock.clone(), source })?;
    if state == Liveness::Absent {
        // An `ambit up` that was killed early leaves images.
        let root = || layout.root().to_owned();
        let left = import::remove_left(layout)
            .map_err(|source| DownError::Remove { path: layout.images(), source })?;
        return match left {
            Some(true) => Ok(report(layout, false, start)),
            Some(false) => Err(DownError::NoMachine { state: root() }),
            None => Err(DownError::Importing { state: root() }),
        };
    }
    let record = match Record::read(layout) {
        Ok(record) => Some(record),
        // It died before it had written anything down; its lock says whether it did die.
        Err(RecordError::NoMachine { .. } | RecordError::Damaged { .. })
            if state == Liveness::Dead =>
        {
            None
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(record) = &record {
        let members = descendants(record.pid);
        if state == Liveness::Alive {
            end(record, &lock).await?;
        }
        wait_until_nothing_is_left(record, layout, &members).await?;
    }
    remove_state(layout)?;
    Ok(report(layout, state == Liveness::Alive, start))
}

fn report(layout: &Layout, ended: bool, start: Instant) -> DownReport {
    let duration_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    DownReport { ended, logs: layout.logs(), duration_ms }
}

async fn end(record: &Record, lock: &Path) -> Result<(), DownError> {
    let pid = record.pid;
    let elsewhere = || DownError::Elsewhere { lock: lock.to_owned(), pid };
    // The descriptor first, then the look: from then on the number cannot be another's.
    let pidfd = process::pidfd_open(pid).map_err(|_gone| elsewhere())?;
    if start_ticks(pid).ok() != Some(record.start_ticks) {
        return Err(elsewhere());
    }
    let failed = |source| DownError::Kill { pid, source };
    process::send_signal(&pidfd, Signal::Kill).map_err(failed)?;
    match timeout(END_TIMEOUT, process::ended(pidfd)).await {
        Ok(ended) => ended.map_err(failed),
        Err(_elapsed) => Err(DownError::Left { left: vec![format!("process {pid}")] }),
    }
}

async fn wait_until_nothing_is_left(
    record: &Record,
    layout: &Layout,
    members: &[Member],
) -> Result<(), DownError> {
    let latest = Instant::now() + END_TIMEOUT;
    loop {
        let alive = members.iter().filter(|member| lives(member.pid, member.start_ticks));
        let mut left: Vec<String> = alive.map(|member| format!("process {}", member.pid)).collect();
        record.cgroups.remove();
        left.extend(self::left(record, layout));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > latest {
            return Err(DownError::Left { left });
        }
        sleep(END_INTERVAL).await;
    }
}

/// A process that was seen inside a machine.
#[derive(Clone, Copy, Debug)]
struct Member {
    pid: i32,
    start_ticks: u64,
}

/// The processes below this one, as long as it lives.
fn descendants(root: i32) -> Vec<Member> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: BTreeMap<i32, i32> =
        pids.filter_map(|pid| Some((pid, stat_field(pid, PARENT)?.parse().ok()?))).collect();
    let is_below = |pid: &i32| {
        let mut up = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        up.any(|pid| pid == root)
    };
    let member = |pid: &i32| Some(Member { pid: *pid, start_ticks: start_ticks(*pid).ok()? });
    parents.keys().filter(|pid| is_below(pid)).filter_map(member).collect()
}

/// The remains of a machine: its process 1, with which the kernel ends all its others, control
/// groups, and mounts below its state directory.
pub fn left(record: &Record, layout: &Layout) -> Vec<String> {
    let mut left = Vec::new();
    if lives(record.pid, record.start_ticks) {
        left.push(format!("process {}", record.pid));
    }
    let groups = record.cgroups.present();
    left.extend(groups.iter().map(|group| format!("the control group {}", group.display())));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
        if Path::new(mount).starts_with(layout.root()) && Path::new(mount) != layout.root() {
            left.push(format!("the mount {mount}"));
        }
    }
    left
}

/// Positions in `/proc/PID/stat`, counted after the name.
const STATE: usize = 0;
const PARENT: usize = 1;

/// Whether this very process lives. A zombie that the host's init has not reaped yet counts as
/// dead: it holds nothing any more.
fn lives(pid: i32, started: u64) -> bool {
    let dead = stat_field(pid, STATE).is_none_or(|state| state == "Z" || state == "X");
    !dead && start_ticks(pid).ok() == Some(started)
}

fn stat_field(pid: i32, position: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(position).map(str::to_owned)
}

/// Removes all files of a dead machine but its logs.
pub(super) fn remove_state(layout: &Layout) -> Result<(), DownError> {
    let failed = |path: &Path, source| DownError::Remove { path: path.to_owned(), source };
    let entries = fs::read_dir(layout.root()).map_err(|source| failed(layout.root(), source))?;
    for entry in entries {
        let entry = entry.map_err(|source| failed(layout.root(), source))?;
        let path = entry.path();
        if path == layout.logs() {
            continue;
        }
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) } {
            // The `ambit up` of a machine that is ended while it starts removes it, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(|source| failed(&path, source))?,
        }
    }
    Ok(())
}
