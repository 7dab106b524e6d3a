//! What a machine is made of, and that none of it outlives the machine.
//!
//! It searches from outside, in the host's `/proc`: processes by PID and start time, namespaces by
//! number where a process or a descriptor still holds one, mounts and files by the state directory.
//! The kernel reuses the numbers of namespaces at once, so a holder counts only if it existed while
//! the machine lived.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ambit_machine::layout::Layout;
use ambit_machine::{ProcessInfo, Record};

/// The namespaces that a machine has of its own.
const KINDS: [&str; 6] = ["net", "pid", "mnt", "ipc", "uts", "user"];

/// The same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Everything by which a machine can be recognised.
pub(crate) struct Footprint {
    root: PathBuf,
    /// Number and start time.
    processes: Vec<(i32, u64)>,
    /// When it was taken, in ticks since boot.
    taken: u64,
    /// As the kernel writes them: `net:[4026531840]`.
    namespaces: BTreeSet<String>,
}

impl Footprint {
    /// Of a machine that runs.
    pub(crate) fn of(layout: &Layout, record: &Record, processes: &[ProcessInfo]) -> Self {
        let own: BTreeSet<String> = namespaces("self".as_ref()).collect();
        let mut found: BTreeSet<String> =
            record.network_namespaces.values().map(|inode| format!("net:[{inode}]")).collect();
        for process in processes {
            found.extend(namespaces(process.host_pid.to_string().as_ref()));
        }
        let started = |process: &ProcessInfo| Some((process.host_pid, start(process.host_pid)?));
        Self {
            root: layout.root().to_owned(),
            processes: processes.iter().filter_map(started).collect(),
            taken: now(),
            namespaces: found.difference(&own).cloned().collect(),
        }
    }

    /// Fails if anything of the machine is left but logs.
    pub(crate) fn assert_gone(&self) {
        let left = self.left();
        assert!(left.is_empty(), "the machine left {left:#?}");
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (pid, then) in &self.processes {
            if start(*pid) == Some(*then) {
                left.push(format!("process {pid}"));
            }
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let process = entry.path();
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let started = pid.and_then(start);
            if started.is_some_and(|started| started <= self.taken) {
                let held = namespaces(entry.file_name().as_ref()).chain(descriptors(&process));
                for namespace in held.filter(|held| self.namespaces.contains(held)) {
                    left.push(format!("{namespace}, held by {}", process.display()));
                }
            }
            let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            for target in mounts.lines().filter_map(|mount| mount.split(' ').nth(4)) {
                if Path::new(target).starts_with(&self.root) {
                    left.push(format!("the mount {target} in {}", process.display()));
                }
            }
        }
        let files = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let files = files.filter(|file| file.file_name() != "logs");
        left.extend(files.map(|file| format!("the file {}", file.path().display())));
        left
    }
}

fn namespaces(pid: &Path) -> impl Iterator<Item = String> + use<> {
    let directory = Path::new("/proc").join(pid).join("ns");
    KINDS.iter().filter_map(move |kind| {
        Some(fs::read_link(directory.join(kind)).ok()?.to_string_lossy().into_owned())
    })
}

fn descriptors(process: &Path) -> impl Iterator<Item = String> + use<> {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
}

/// When a process started, in ticks since boot; nothing for a zombie.
fn start(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold blanks and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") { None } else { fields.get(19)?.parse().ok() }
}

/// This moment, in ticks since boot.
fn now() -> u64 {
    let text = fs::read_to_string("/proc/uptime").expect("/proc can be read");
    let seconds: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    (seconds * TICKS_PER_SECOND) as u64
}
