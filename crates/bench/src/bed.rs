//! Where a mode is measured: on its own machine, or in a namespace of a cluster.
//!
//! The run treats both alike: it brings them up, loads them, reads what was used, takes them down.

mod machine;
mod namespace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_cluster::TemporaryNamespace;
use ambit_load::{REPORT_VERSION, Report};
use ambit_net::sys::process::effective_uid;
use anyhow::{Context, Result, bail};

use super::experiment::Size;
use super::guests::CLIENT_CONTAINER;
use super::modes::{self, Mode};
use super::record::{MachineSize, Meanwhile, Memory, Usage};
use super::roles::Roles;
use super::words;

pub(super) use machine::Machines;
pub(super) use namespace::{Stage, cpu_seconds, namespace_of};

use machine::Machine;
use namespace::Namespace;

/// What directories of state are called, but for the number of the run's process.
const SCRATCH: &str = "ambit-bench-";
/// What is sent once to prove that a stranger is refused.
const KNOCKS: &str = "--rate 10/s --connections 1 --requests 3 --timeout 2s --keep-going";

/// Where the modes of a run are measured.
pub(super) enum Place {
    /// On this host, on machines of their own.
    Here(Machines),
    /// In namespaces of a cluster.
    Cluster(Stage),
}

/// Where one mode is measured.
pub(super) enum Bed {
    Machine(Box<Machine>),
    Namespace(Box<Namespace>),
}

/// What was used so far.
pub(super) enum Used {
    Machine(machine::Used),
    Namespace(namespace::Used),
}

impl Place {
    /// A bed that is not up yet. `name` is its own among those of the run.
    pub(super) fn bed(&self, mode: Mode, name: &str, logs: PathBuf, size: &Size) -> Bed {
        match self {
            Self::Here(machines) => {
                Bed::Machine(Box::new(Machine::new(mode, machines, name, logs, size)))
            }
            Self::Cluster(stage) => Bed::Namespace(Box::new(Namespace::new(mode, stage, size))),
        }
    }

    /// Fails unless one more of this size fits beside so many pods.
    pub(super) fn ensure_room(&self, size: &Size, pods: usize) -> Result<()> {
        match self {
            Self::Here(_) => machine::ensure_room(size, pods),
            // Its scheduler knows.
            Self::Cluster(_) => Ok(()),
        }
    }

    /// How a load is driven by hand.
    pub(super) fn by_hand(&self, pod: &str, words: &[String]) -> String {
        let words = words.join(" ");
        match self {
            Self::Here(_) => format!("ambit exec {pod} -- ambit {words}"),
            Self::Cluster(_) => format!(
                "kubectl exec -n {} {pod} -c {CLIENT_CONTAINER} -- {} {words}",
                namespace::namespace_of("MODE"),
                namespace::PROGRAM
            ),
        }
    }

    /// What to do about what a run leaves that cannot take it down any more.
    pub(super) fn if_killed(&self) -> Option<String> {
        match self {
            // The next run says it.
            Self::Here(_) => None,
            Self::Cluster(stage) => Some(format!(
                "`{} delete namespace -l {}` removes what it leaves, and nobody else's",
                stage.cluster.kubectl(),
                TemporaryNamespace::selector(&stage.run)
            )),
        }
    }

    /// How to remove the remains of these beds, if there are any.
    pub(super) fn remedy<'a>(&self, beds: impl Iterator<Item = &'a Bed>) -> Option<String> {
        let left: Vec<String> = beds.filter_map(Bed::left).collect();
        let commands = match self {
            _ if left.is_empty() => return None,
            Self::Here(_) => {
                left.iter().map(|root| format!("`ambit down --state {root}`")).collect()
            }
            Self::Cluster(stage) => {
                vec![format!("`{} delete namespace {}`", stage.cluster.kubectl(), left.join(" "))]
            }
        };
        Some(format!("do it with {}", words::listed(&commands)))
    }

    /// How many beds are taken down at the same time. A cluster's take their time without anybody's
    /// help; machines would take it from each other, and how long one takes is in the record.
    pub(super) fn down_at_once(&self) -> usize {
        match self {
            Self::Here(_) => 1,
            Self::Cluster(_) => modes::MODES.len(),
        }
    }
}

impl Bed {
    pub(super) fn mode(&self) -> &Mode {
        match self {
            Self::Machine(machine) => &machine.mode,
            Self::Namespace(namespace) => &namespace.mode,
        }
    }

    /// Its size, as far as it is known yet.
    pub(super) fn size(&self) -> &MachineSize {
        match self {
            Self::Machine(machine) => &machine.size,
            Self::Namespace(namespace) => &namespace.size,
        }
    }

    pub(super) fn size_mut(&mut self) -> &mut MachineSize {
        match self {
            Self::Machine(machine) => &mut machine.size,
            Self::Namespace(namespace) => &mut namespace.size,
        }
    }

    /// What bringing it up is, in words.
    pub(super) fn beginning(&self) -> String {
        match self {
            Self::Machine(machine) => format!("starting a machine for {}", machine.size.name),
            Self::Namespace(namespace) => format!("making the namespace {}", namespace.name()),
        }
    }

    /// Brings it up, and checks that it really runs its mode.
    pub(super) async fn up(&mut self, size: &Size) -> Result<()> {
        match self {
            Self::Machine(machine) => machine.up(size).await,
            Self::Namespace(namespace) => namespace.up(size).await,
        }
    }

    /// Its processes, as far as this host has them.
    pub(super) async fn roles(&self) -> Result<Roles> {
        match self {
            Self::Machine(machine) => machine.roles().await,
            Self::Namespace(_) => Ok(Roles::default()),
        }
    }

    /// What was used so far.
    pub(super) async fn used(&self) -> Result<Used> {
        Ok(match self {
            Self::Machine(machine) => Used::Machine(machine.used().await?),
            Self::Namespace(namespace) => Used::Namespace(namespace.used().await?),
        })
    }

    /// What was used since then, and the state of its host; fails if any process restarted.
    pub(super) async fn used_since(
        &self,
        before: &Used,
    ) -> Result<(BTreeMap<String, Usage>, Meanwhile)> {
        match (self, before) {
            (Self::Machine(machine), Used::Machine(before)) => machine.used_since(before).await,
            (Self::Namespace(namespace), Used::Namespace(before)) => {
                Ok((namespace.used_since(before).await?, Meanwhile::default()))
            }
            _ => unreachable!("what was used was asked of the same bed"),
        }
    }

    /// Drives a load for a time from all its pods at once.
    pub(super) async fn drive(
        &self,
        generators: &[String],
        loads: &[Vec<String>],
        duration: Duration,
    ) -> Result<Report> {
        let time = ["--duration".to_owned(), format!("{}s", duration.as_secs_f64())];
        let words = loads.iter().map(|words| [words.as_slice(), &time].concat());
        let words: Vec<Vec<String>> = words.collect();
        let runs = generators.iter().zip(&words).map(|(pod, words)| async move {
            match self {
                Self::Machine(machine) => machine.load(pod, words).await,
                Self::Namespace(namespace) => namespace.load(pod, words, duration).await,
            }
        });
        let reports = futures::future::try_join_all(runs).await?;
        Report::merged(&reports).context("a load has at least one generator")
    }

    /// Takes it down, whatever is left of it.
    pub(super) async fn down(&mut self) -> Result<()> {
        match self {
            Self::Machine(machine) => machine.down().await,
            Self::Namespace(namespace) => namespace.down().await,
        }
    }

    /// What is left of it, by the name that its removal needs.
    fn left(&self) -> Option<String> {
        match self {
            Self::Machine(machine) => machine.left(),
            Self::Namespace(namespace) => namespace.left(),
        }
    }

    /// Keeps the logs of one that failed.
    pub(super) fn keep_logs(&self) -> Result<()> {
        match self {
            Self::Machine(machine) => machine.keep_logs(),
            // The error says what a pod waits for.
            Self::Namespace(_) => Ok(()),
        }
    }

    /// Drops the logs of a bed that worked.
    pub(super) fn forget_logs(&self) {
        if let Self::Machine(machine) = self {
            machine.forget_logs();
        }
    }
}

impl Used {
    /// What memory there was when it was asked; nothing where this host does not have it.
    pub(super) fn memory_before(&self) -> BTreeMap<String, Memory> {
        match self {
            Self::Machine(used) => used.memory_before(),
            Self::Namespace(_) => BTreeMap::new(),
        }
    }

    /// What memory there is now.
    pub(super) fn memory_now(&self) -> BTreeMap<String, Memory> {
        match self {
            Self::Machine(used) => used.memory_now(),
            Self::Namespace(_) => BTreeMap::new(),
        }
    }
}

/// What the load generator said.
fn read_report(printed: &str) -> Result<Report> {
    let report = serde_json::from_str(printed);
    let report: Report = report.context("read what the load generator says")?;
    if report.version != REPORT_VERSION {
        bail!(
            "the load generator's report is of version {}, and this ambit knows {REPORT_VERSION}; \
             use the ambit of the same release",
            report.version
        );
    }
    if report.interrupted {
        bail!("the load generator was interrupted");
    }
    Ok(report)
}

/// Where a run's machines keep their state: its own alone, short because paths of sockets are, gone
/// with its last machine.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;

        let path = scratch_parent().join(format!("{SCRATCH}{}", std::process::id()));
        // Never an existing directory: it might be another user's.
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| {
            format!("make {}, where the machines keep their state", path.display())
        })?;
        Ok(Self(path))
    }

    /// Warns of machines that killed runs have left.
    pub(super) fn left_by_others(&self) -> Result<()> {
        let entries = std::fs::read_dir(scratch_parent()).context("list the machines' state")?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(SCRATCH));
            let is_dead = pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
            if is_dead && entry.path() != self.0 {
                ambit_load::tell(format_args!(
                    "warning: a run that was killed has left machines; end them with `ambit down \
                     --state` and each of {}/*, and remove that directory",
                    entry.path().display()
                ));
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Empty unless a machine could not be taken down, which was said then.
        let _not_empty = std::fs::remove_dir(&self.0);
    }
}

/// A directory of root's, or of the user's.
fn scratch_parent() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|_| effective_uid() != 0) {
        Some(directory) => directory,
        None if effective_uid() == 0 => PathBuf::from("/run"),
        None => std::env::temp_dir(),
    }
}
