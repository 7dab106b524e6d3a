//! The stored record of a machine, and whether the machine is running.
//!
//! A machine holds a lock for as long as it lives; the kernel releases it however the machine dies.
//! Process ids are used only together with the start time of the process, because the kernel reuses
//! them.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroups::Cgroups;
use crate::egress::Egress;
use crate::host_path::HostPath;
use crate::image::ImageMap;
use crate::join::CarriedWorkload;
use crate::layout::Layout;
use crate::registry::replace_file;

/// A machine's own description, `machine.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its process 1, as seen on the host.
    pub pid: i32,
    /// When that started, in clock ticks since boot; with the process id this names one process for
    /// good.
    pub start_ticks: u64,
    /// The number of its PID namespace.
    pub pid_namespace: u64,
    /// The numbers of its network namespaces, by name: `fabric`, `control` and each node.
    pub network_namespaces: BTreeMap<String, u64>,
    /// When it was started.
    pub started_at: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// It was started without root, and has one user only.
    pub rootless: bool,
    /// It carries the mesh, not only pods, services and DNS.
    pub mesh: bool,
    /// What images mean.
    pub images: ImageMap,
    /// Directories of the host that pods may write.
    #[serde(default)]
    pub host_paths: Vec<HostPath>,
    /// Pods run no programs of the host, and see of its files only these directories.
    #[serde(default)]
    pub confined: bool,
    /// Its control groups, where limits of containers hold.
    #[serde(default)]
    pub cgroups: Cgroups,
    /// What of the outside pods may reach; nothing without.
    #[serde(default)]
    pub egress: Option<Egress>,
    /// The workload of a cluster that it carries.
    #[serde(default)]
    pub workload: Option<CarriedWorkload>,
    /// The shipped binary.
    pub binary: PathBuf,
}

/// A description that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is none.
    #[error("no machine at {state}; start one with `ambit up`, or name its directory with --state")]
    NoMachine {
        /// The state directory.
        state: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not as written.
    #[error("{path} is damaged; take the machine down with `ambit down` and start it again")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Record {
    /// A record for tests, of a process that there is not.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let text = serde_json::json!({"pid": 1, "startTicks": 0, "pidNamespace": 0,
            "networkNamespaces": {}, "startedAt": "", "nodes": [], "rootless": false, "mesh": true,
            "images": {}, "binary": "/"});
        serde_json::from_value(text).expect("a record")
    }

    /// Reads the description of the machine of this state directory, alive or not.
    pub fn read(layout: &Layout) -> Result<Self, RecordError> {
        let path = layout.record();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RecordError::NoMachine { state: layout.root().to_owned() });
            }
            Err(source) => return Err(RecordError::Read { path, source }),
        };
        serde_json::from_slice(&text).map_err(|source| RecordError::Damaged { path, source })
    }

    /// Reads it, changes it and writes it.
    pub(crate) fn change(
        layout: &Layout,
        change: impl FnOnce(&mut Self),
    ) -> Result<(), RecordError> {
        let mut record = Self::read(layout)?;
        change(&mut record);
        record.write(layout)
    }

    pub(crate) fn write(&self, layout: &Layout) -> Result<(), RecordError> {
        let path = layout.record();
        let text = serde_json::to_vec_pretty(self).expect("a record can be written as JSON");
        replace_file(&path, &text).map_err(|source| RecordError::Write { path, source })
    }
}

/// Whether a machine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It does.
    Alive,
    /// It died and left its state.
    Dead,
    /// There is nothing.
    Absent,
}

/// Looks whether the machine of this state directory lives.
pub fn liveness(layout: &Layout) -> io::Result<Liveness> {
    let file = match File::open(layout.lock()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let remains = layout.record().exists() || layout.nodes().exists();
            return Ok(if remains { Liveness::Dead } else { Liveness::Absent });
        }
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Liveness::Dead),
        Err(TryLockError::WouldBlock) => Ok(Liveness::Alive),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The start time of a process of the `/proc` in sight, in clock ticks since boot.
pub(crate) fn start_ticks(pid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name, in parentheses, may hold blanks and parentheses.
    let after_name = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks = after_name.split_whitespace().nth(19).and_then(|field| field.parse().ok());
    ticks.ok_or_else(|| io::Error::other("/proc/PID/stat is not as documented"))
}
