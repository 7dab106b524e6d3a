//! A pod's own processes: its init, and the step that turns a child of it into a container.
//!
//! `ambit lab-pod-init` is process 1 of a pod. It outlives the pod runner that started it, so a
//! crash of the runner disturbs no pod: a pod consists only of this process and its descendants.

mod container;
mod exec;
mod forward;
mod health;
mod init;
mod isolation;
mod leftovers;
mod probes;
mod room;
mod root;
mod terminals;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroups::{Cgroups, Limits};
use crate::registry::{ContainerStatus, Phase};

pub(crate) use container::run as run_container;
pub(crate) use exec::{ExecAnswer, ExecControl, ExecMessage, answer};
pub(crate) use init::run as run_init;
pub(crate) use probes::{
    Asked, ProbeKind, ProbeNews, ProbePlan, ProbeRecord, ProbeReport, ProbeTiming, Probes,
};
pub(crate) use root::RootPlan;
pub(crate) use terminals::is_null;
pub(crate) use volumes::{
    FilePlan, NOT_SHOWN, VolumeContent, VolumePlan, Writable, place as volume_place,
};

/// Largest packet on a pod's socket: a command with its arguments, or the states of all containers.
pub(crate) const PACKET_SIZE_MAX_BYTES: usize = 128 << 10;
/// Longest that containers get to end politely, whatever the manifest says: a year.
pub(crate) const GRACE_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// Everything a pod's init has to know; handed over on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PodPlan {
    /// The pod's host name.
    pub(crate) hostname: String,
    /// The state directory, which the pod must not see.
    pub(crate) hidden: PathBuf,
    /// Files of the host's tree that containers in it see otherwise: where, and the content's file.
    pub(crate) files: Vec<(PathBuf, PathBuf)>,
    /// Directories that they see below `/run`, read-only: where, and which.
    pub(crate) directories: Vec<(PathBuf, PathBuf)>,
    /// The pod's own directory, in which its socket lies.
    pub(crate) directory: PathBuf,
    /// The directory of the container logs, and how their names begin.
    pub(crate) logs: (PathBuf, String),
    /// What happens when a container ends.
    pub(crate) restart: RestartPolicy,
    /// Its control groups, which are there.
    pub(crate) cgroups: Cgroups,
    /// Its volumes.
    pub(crate) volumes: Vec<VolumePlan>,
    /// How long containers get to end politely.
    pub(crate) grace_seconds: u64,
    /// Containers that run to their end, one after the other, before the others start; among them
    /// sidecars, which only have to have started.
    pub(crate) init_containers: Vec<ContainerPlan>,
    /// The containers.
    pub(crate) containers: Vec<ContainerPlan>,
}

/// One container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerPlan {
    /// Its name.
    pub(crate) name: String,
    /// Program and arguments, everything expanded.
    pub(crate) command: Vec<String>,
    /// Its environment, complete.
    pub(crate) environment: BTreeMap<String, String>,
    /// It runs beside those that come after it, though it is listed among the init containers.
    pub(crate) is_sidecar: bool,
    /// What happens after its start.
    pub(crate) post_start: Option<Hook>,
    /// What happens before it is asked to end.
    pub(crate) pre_stop: Option<Hook>,
    /// What its processes may use at most.
    pub(crate) limits: Limits,
    /// What ends it politely.
    pub(crate) stop_signal: i32,
    /// What its processes are made of.
    pub(crate) process: ProcessPlan,
    /// How it is found out whether it is well.
    pub(crate) probes: Probes,
}

/// What a container's processes are made of, those of probes and of `ambit exec` too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessPlan {
    /// Where they start.
    pub(crate) working_directory: PathBuf,
    /// Who they run as.
    pub(crate) user: UserPlan,
    /// Groups that they have besides.
    pub(crate) groups: Vec<u32>,
    /// The machine has one user only, who cannot change groups either.
    pub(crate) is_rootless: bool,
    /// The container's own file tree; without it the pod's view of the host's.
    pub(crate) root: Option<RootPlan>,
    /// What it mounts of the pod's volumes.
    pub(crate) mounts: Vec<MountPlan>,
}

impl ProcessPlan {
    /// Whether the container has a mount namespace of its own.
    pub(crate) fn has_own_tree(&self) -> bool {
        self.root.is_some() || !self.mounts.is_empty()
    }
}

/// Who a container runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UserPlan {
    /// These numbers.
    Numbers {
        /// The user.
        user: u32,
        /// The group.
        group: u32,
    },
    /// A user of the image's own lists, as `USER` or `USER:GROUP`.
    OfImage(String),
}

/// A volume, or a part of one, in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountPlan {
    /// Where the volume is, behind the stage.
    pub(crate) source: PathBuf,
    /// The part.
    pub(crate) sub_path: Option<PathBuf>,
    /// Where it goes.
    pub(crate) target: PathBuf,
    /// The container cannot write it.
    pub(crate) is_read_only: bool,
}

/// What happens after a container's start, or before it is asked to end. The latter counts as a
/// part of the pod's grace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hook {
    /// This command runs to its end, inside the container.
    Exec(Vec<String>),
    /// Nothing, for so long.
    Sleep {
        /// How long.
        seconds: u64,
    },
}

/// What happens when a container ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RestartPolicy {
    /// It is started again.
    #[default]
    Always,
    /// It is started again unless it ended well.
    OnFailure,
    /// It stays ended.
    Never,
}

/// The first packet of a connection to a pod's init.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum PodRequest {
    /// Send [`PodState`] now and whenever it changes.
    Follow,
    /// These are the volumes now: a list of [`VolumePlan`] in sealed memory comes along.
    Volumes,
    /// A probe that the node asks has news.
    Probed(ProbeReport),
    /// End every container: politely, then by force, then the pod.
    Terminate {
        /// How long politely.
        grace_seconds: u64,
    },
    /// Run a command; stdin, stdout, stderr and the caller's connection come along.
    Exec(ExecMessage),
    /// Connect a socket to a port; it comes along, and the caller's connection.
    Forward {
        /// Of this pod.
        port: u16,
    },
}

/// What the pod's init knows of its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodState {
    /// Where the pod is in its life.
    pub(crate) phase: Phase,
    /// What holds it up, if anything.
    pub(crate) reason: String,
    /// Why volumes are not as they should be, if they are not.
    pub(crate) volumes_reason: String,
    /// Its containers.
    pub(crate) containers: Vec<ContainerStatus>,
}
