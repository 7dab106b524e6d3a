//! What a run measured: the JSON below `bench/runs`, written and read through one type.

use std::collections::BTreeMap;

use ambit_load::Report;
use serde::{Deserialize, Serialize};

/// The shape of the JSON; a reader that does not know it must refuse it.
pub const RUN_VERSION: u32 = 1;

/// A run of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`RUN_VERSION`].
    pub version: u32,
    /// The experiment's name, such as `tiered`, or the path of the user's own manifests.
    pub experiment: String,
    /// In a few words.
    pub title: String,
    /// RFC 3339.
    pub started_at: String,
    /// From the first machine's start to the last one's end.
    pub seconds: f64,
    /// How it ended; whatever was measured until then is here.
    pub ending: Ending,
    /// What the orders were shuffled with.
    pub seed: u64,
    /// Repetitions that were asked for.
    pub repetitions: usize,
    /// How long each measurement was to last, without its warm-up.
    pub seconds_each: f64,
    /// The host that it ran on.
    pub host: Host,
    /// Programs that took part by name (`ambit`, `ztunnel`, `envoy`): their versions, sizes and
    /// digests, as far as they report them.
    pub programs: BTreeMap<String, String>,
    /// Commands that do the same by hand.
    pub commands: Vec<String>,
    /// In the order of the table of modes.
    pub modes: Vec<ModeRun>,
    /// In the order of the experiment.
    pub cases: Vec<Case>,
    /// In the order in which they were taken.
    pub measurements: Vec<Measurement>,
    /// About the run as a whole: why not to trust it.
    pub warnings: Vec<String>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Everything that was asked for was measured.
    Complete,
    /// By Ctrl-C.
    Interrupted,
    /// By an error, in words.
    Failed(String),
}

/// The host; of a run on a cluster the node of the load generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its processor's model.
    pub cpu: String,
    /// Logical processors.
    pub cpus: usize,
    /// Memory.
    pub memory_bytes: u64,
    /// Linux release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
}

/// A mode of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeRun {
    /// Its name, such as `none`, `ambient`, `ambient+l4policy`, `ztunnel`, `envoy`, `linkerd`.
    pub name: String,
    /// In a few words.
    pub title: String,
    /// Whether it took part.
    pub outcome: ModeOutcome,
    /// The size of its machine and what starting it took, one for each size of the experiment.
    pub machines: Vec<MachineSize>,
}

/// Whether a mode took part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeOutcome {
    /// To the end.
    Ran,
    /// Not, or not to the end, for this reason.
    Failed(String),
}

/// A machine of a mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSize {
    /// Unlike that of every other size.
    pub name: String,
    /// The namespaces of the application.
    pub namespaces: u32,
    /// All pods, load generators included.
    pub pods: usize,
    /// From nothing until every pod was ready and, in a mesh, captured.
    pub up_seconds: f64,
    /// Until nothing was left.
    pub down_seconds: f64,
    /// Before any load.
    pub at_rest: BTreeMap<String, Memory>,
    /// When the last load had ended.
    pub after: BTreeMap<String, Memory>,
}

/// One load, which every mode gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short, and unlike every other case's.
    pub name: String,
    /// In a few words.
    pub title: String,
    /// The size of machine that it is for, by its name.
    pub machine: String,
    /// Namespaces of the application.
    pub namespaces: u32,
    /// The load generator's words, once for each of them.
    pub load: Vec<Vec<String>>,
    /// The published figures of the same experiment in milliseconds: mode, then percentile (`avg`,
    /// `p50`, ...). Of another machine: a ratio between modes can be compared, a figure cannot.
    pub published: BTreeMap<String, BTreeMap<String, f64>>,
    /// Who measured them, where.
    pub published_source: String,
}

/// One case in one mode, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// From 1.
    pub repetition: usize,
    /// By its name.
    pub mode: String,
    /// By its name.
    pub case: String,
    /// RFC 3339.
    pub started_at: String,
    /// What all load generators saw together: sums, and one histogram of all their answers.
    pub load: Report,
    /// The processor that each role used: `load`, `application`, `proxy`, `waypoint`, `agent`,
    /// `control`, `machine` (what takes Kubernetes' place). Sidecars are proxies.
    pub usage: BTreeMap<String, Usage>,
    /// Memory right before the load, by the same roles.
    #[serde(default)]
    pub memory_before: BTreeMap<String, Memory>,
    /// Memory near the end of the load, while its connections are open, by the same roles.
    pub memory: BTreeMap<String, Memory>,
    /// System calls by the same roles, and of the load's and application's own threads; in
    /// `syscalls` alone.
    pub calls: BTreeMap<String, Calls>,
    /// The host as a whole, meanwhile; nothing is known of a cluster's.
    pub host: Meanwhile,
    /// Why not to trust it.
    pub warnings: Vec<String>,
}

/// The processor that a role used during a load, over all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Outside the kernel.
    pub user_seconds: f64,
    /// In the kernel.
    pub system_seconds: f64,
    /// Either, where only their sum is known: of proxies on a cluster. Then the other fields were
    /// not measured, except the processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsplit_seconds: Option<f64>,
    /// Context switches because a thread waited: as many wake-ups.
    pub voluntary_switches: u64,
    /// Context switches because a thread's time was up.
    pub involuntary_switches: u64,
    /// Its processes.
    pub processes: usize,
}

impl Usage {
    /// All of it.
    pub(super) fn seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds + self.unsplit_seconds.unwrap_or_default()
    }
}

/// The memory of a role, over all its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident, shared pages counted in each process.
    pub rss_bytes: u64,
    /// Of that what no file backs: what the processes themselves need.
    pub private_bytes: u64,
    /// Its processes.
    pub processes: usize,
}

/// System calls during a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Every kind that takes bytes from a socket: read, readv, recvfrom, recvmsg.
    pub reads: u64,
    /// Every kind that gives bytes to a socket: write, writev, sendto, sendmsg.
    pub writes: u64,
    /// Waits for events: epoll, poll, select.
    pub waits: u64,
    /// futex.
    pub futexes: u64,
    /// All of them, of every kind.
    pub all: u64,
}

/// The host during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meanwhile {
    /// Share of all processors' time that anything used.
    pub busy: f64,
    /// Share that another guest of the same hardware took.
    pub stolen: f64,
    /// Mean frequency of the processors in MHz, before; 0 if the host does not report it.
    pub mhz_before: f64,
    /// The same, after.
    pub mhz_after: f64,
    /// Over the last minute, at the end.
    pub load_average: f64,
}
