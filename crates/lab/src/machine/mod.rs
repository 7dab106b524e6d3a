//! The machine: nodes and pods as Linux namespaces, everything inside one process tree.
//!
//! `ambit lab-machine` is process 1 of a PID namespace of its own, so that its end is the end of
//! every process, mount and network of the machine, by the kernel's doing. The user's commands
//! reach it by [`Client`], and [`exec`] runs commands in pods. [`up`] and [`down`] work whatever
//! died before.

mod birth;
mod client;
mod down;
mod exec;
mod fabric;
mod init;
mod processes;
mod readiness;
mod record;
mod roles;
mod server;
mod state;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::addresses::NodeNetwork;
use crate::image::ImageMap;

pub use birth::{Born, UpError, up};
pub use client::{Client, ClientError, MachineStatus, NodeInfo, PodInfo, RoleInfo, WaitError};
pub(crate) use down::left;
pub use down::{DownError, DownReport, down};
pub use exec::{ExecError, ExecRequest, Terminal, exec};
pub use processes::{ProcessInfo, processes};
pub(crate) use readiness::Check;
pub use record::{Liveness, Record, RecordError, liveness};

pub use crate::registry::{ContainerStatus, Phase, PodStatus};

/// The name of a machine's node; nodes are counted from 1.
pub fn node_name(number: u8) -> String {
    NodeNetwork::new(number).name()
}

/// How a machine is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpConfig {
    /// The state directory; absolute.
    pub state: PathBuf,
    /// How many nodes.
    pub nodes: u8,
    /// The shipped binary.
    pub binary: PathBuf,
    /// Whether it carries the mesh; without, it has pods, services and DNS only, as a base line.
    pub mesh: bool,
    /// What images mean.
    pub images: ImageMap,
    /// Programs that run in place of `ambit proxy`, by node.
    pub proxies: BTreeMap<String, PathBuf>,
    /// Further arguments of every `ambit control`, `ambit node` and `ambit proxy`, by role.
    pub arguments: BTreeMap<String, Vec<String>>,
    /// Further environment of every role.
    pub environment: BTreeMap<String, String>,
}

/// What is being waited for while a machine starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    /// This is going on now.
    Waiting {
        /// For what, as in "waiting for ...".
        what: String,
    },
    /// This is done.
    Done {
        /// What.
        what: String,
    },
    /// The machine runs.
    Up,
    /// The machine could not be started.
    Failed {
        /// Why.
        error: String,
    },
}

/// Runs one of the machine's own hidden steps.
pub(crate) fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    match words.first().and_then(|word| word.to_str()) {
        Some(birth::OUTER) => birth::run_outer(),
        Some(birth::INNER) => init::run(),
        _ => anyhow::bail!("this is the machine's own; use `ambit up`"),
    }
}

/// Log lines to standard error, for programs whose output is collected.
pub(crate) fn start_log() {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .init();
}
