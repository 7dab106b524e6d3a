//! Starts a machine: from the user's command through new namespaces to process 1.
//!
//! The command starts the shipped binary in new namespaces (without root, also in a user
//! namespace). That process starts the binary again as process 1 of the new PID namespace and ends.
//! A pipe reports what process 1 is waiting for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ambit_net::seqpacket::{BlockingConnection, Connection, PacketError};
use ambit_net::sys::process::{self, Namespaces};
use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::Instant;

use super::config::{Progress, UpConfig};
use super::down::{DownError, down_held, remove_state, wait_for_store};
use super::import::{self, Claim, ImportError};
use super::record::{Liveness, Record, RecordError, liveness};
use crate::addresses::NODES_MAX;
use crate::egress;
use crate::image::{ImageMap, SHIPPED_BINARY};
use crate::layout::{IMAGE_STORE, Layout, STATE_PATH_LEN_MAX};
use crate::ownership::{
    OwnershipError, check_remains, create_below, open_own, take_state_directory,
};

/// How often, and after which pauses, the control groups of a dead machine are tried to be removed.
const CGROUPS_TRIES: usize = 100;
const CGROUPS_PAUSE: Duration = Duration::from_millis(10);

/// The step in the new namespaces, still in the old PID namespace.
pub(super) const OUTER: &str = "outer";
/// Process 1.
pub(super) const INNER: &str = "init";
/// How much of its configuration process 1 is handed at once.
pub(super) const CONFIGURATION_PACKET_BYTES: usize = 32 << 10;

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// One is there already.
    #[error("a machine runs at {state}; use `ambit apply` to change it, or `ambit down` first")]
    Running {
        /// Its state directory.
        state: PathBuf,
    },
    /// Another command is about to start one, or to end one.
    #[error(
        "another command is importing images at {state}, or starting or ending a machine there; \
         wait for it, or end it"
    )]
    Importing {
        /// The state directory.
        state: PathBuf,
    },
    /// The number of nodes is out of bounds.
    #[error("{nodes} nodes; a machine has 1 to {NODES_MAX}")]
    Nodes {
        /// As asked for.
        nodes: u8,
    },
    /// A node that there will not be.
    #[error("a proxy is given for {node:?}, but the nodes are node-1 to node-{nodes}")]
    ProxyNode {
        /// As written.
        node: String,
        /// How many there will be.
        nodes: u8,
    },
    /// The directory's name is of no use.
    #[error(
        "the state directory {state} must be absolute and at most {STATE_PATH_LEN_MAX} bytes long, \
         because sockets lie in it; choose another with --state"
    )]
    StatePath {
        /// As given.
        state: PathBuf,
    },
    /// The directory holds something else.
    #[error("{state} is not empty and holds no machine; choose another directory with --state")]
    Foreign {
        /// Its path.
        state: PathBuf,
    },
    /// The directory cannot be read.
    #[error("cannot look at the state directory {state}")]
    State {
        /// Its path.
        state: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could replace what the machine keeps there.
    #[error("no machine is started where another user can interfere")]
    Ownership(#[from] OwnershipError),
    /// An older machine's remains cannot be removed.
    #[error("cannot remove what an older machine left")]
    Remains(#[from] DownError),
    /// An image cannot be imported.
    #[error("no machine is started without its images")]
    Import(#[from] ImportError),
    /// The kernel gives no namespaces.
    #[error(
        "cannot create namespaces; run as root, or let the kernel give user namespaces to users \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
         kernel.apparmor_restrict_unprivileged_userns)"
    )]
    Namespaces(#[source] io::Error),
    /// There is no way out.
    #[error("cannot start the process that connects the machine to the outside")]
    Egress(#[source] io::Error),
    /// Process 1 cannot be talked to.
    #[error("cannot talk to the machine while it starts")]
    Pipe(#[source] io::Error),
    /// Process 1 does not take its configuration.
    #[error("cannot hand the machine its configuration")]
    Configuration(#[source] PacketError),
    /// Process 1 gave up.
    #[error("the machine did not start: {error}; see {log}")]
    Failed {
        /// Its words.
        error: String,
        /// Its log.
        log: PathBuf,
    },
    /// Its description cannot be read.
    #[error("the machine started and cannot be found")]
    Record(#[from] RecordError),
}

/// A machine that was just started.
#[derive(Debug)]
pub struct Born {
    /// Where it keeps its state.
    pub layout: Layout,
    /// The machine's record.
    pub record: Record,
}

/// Starts a machine and returns when control plane, agents and proxies answer. Nothing is applied
/// yet.
///
/// It keeps running after the caller has ended; [`super::down`] ends it.
pub async fn up(config: &UpConfig, progress: impl FnMut(Progress)) -> Result<Born, UpError> {
    up_with(config, async |_, _| Ok(ImageMap::default()), progress).await
}

/// [`up`] of a machine with images beside those that `config` says, which `import` brings into its
/// store. If it fails, or the machine does not start, nothing is left but logs.
pub async fn up_with(
    config: &UpConfig,
    import: impl AsyncFnOnce(&Layout, &mut dyn FnMut(&str)) -> Result<ImageMap, ImportError>,
    mut progress: impl FnMut(Progress),
) -> Result<Born, UpError> {
    check(config)?;
    let layout = Layout::new(&config.state);
    take_state_directory(layout.root())?;
    make_room(&layout)?;
    let mut held = Some(hold_store(&layout)?);
    let born = async {
        let mut waiting =
            |name: &str| progress(Progress::Waiting { what: format!("the import of {name}") });
        let images = import(&layout, &mut waiting).await?;
        let images = config.images.clone().extended(images);
        start(&UpConfig { images, ..config.clone() }, &layout, &mut held, progress).await
    };
    let born = born.await;
    // Without the store, what is there may be another command's.
    let is_absent = || liveness(&layout).is_ok_and(|state| state == Liveness::Absent);
    if born.is_err() && held.is_some() && is_absent() {
        remove_state(&layout)?;
    }
    born
}

/// Takes the store of images until the machine has it, so that nobody takes it for remains.
fn hold_store(layout: &Layout) -> Result<File, UpError> {
    let state = || layout.root().to_owned();
    create_below(layout.root(), &layout.images())?;
    match import::claim(layout).map_err(|source| UpError::State { state: state(), source })? {
        Claim::Taken(held) => Ok(held),
        Claim::Absent | Claim::Busy => Err(UpError::Importing { state: state() }),
    }
}

/// Starts the machine's processes. Lets go of the store as soon as the machine can be found, so
/// that it can be taken down while it starts.
async fn start(
    config: &UpConfig,
    layout: &Layout,
    held: &mut Option<File>,
    mut progress: impl FnMut(Progress),
) -> Result<Born, UpError> {
    let (ours, theirs) = BlockingConnection::pair().map_err(UpError::Pipe)?;
    let mut command = Command::new(&config.binary);
    command
        .arg0(SHIPPED_BINARY)
        .args(["lab-machine", OUTER])
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(open_log(layout)?);
    let own =
        Namespaces::MOUNT | Namespaces::PID | Namespaces::NET | Namespaces::IPC | Namespaces::UTS;
    let rootless = process::effective_uid() != 0;
    let namespaces = if rootless { own | Namespaces::USER } else { own };
    // Here, where the host's network is. It ends when nobody has the socket any more.
    let way_out = config.egress.as_ref().map(|egress| {
        let source = config.cluster().map(|workload| workload.address);
        egress::start(&config.binary, egress, source)
    });
    let way_out = way_out.transpose().map_err(UpError::Egress)?;
    process::start_in_namespaces(&mut command, namespaces);
    let mut child = tokio::process::Command::from(command).spawn().map_err(UpError::Namespaces)?;
    send_configuration(ours, config, way_out).await?;
    let output = child.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(output).lines();
    let mut found = None;
    loop {
        let line = lines.next_line().await.map_err(UpError::Pipe)?;
        let Some(line) = line else {
            return Err(gave_up(layout, found, "its first process died".to_owned()).await);
        };
        if held.is_some() {
            found = living(layout);
            held.take_if(|_| found.is_some());
        }
        match serde_json::from_str(&line) {
            Ok(Progress::Failed { error }) => return Err(gave_up(layout, found, error).await),
            Ok(Progress::Up) => break,
            Ok(step) => progress(step),
            Err(error) => tracing::debug!(%error, line, "a line that is no progress"),
        }
    }
    // It has done its part; waiting only keeps it from staying a zombie.
    let _ended = child.wait().await;
    progress(Progress::Up);
    let record = Record::read(layout)?;
    Ok(Born { layout: layout.clone(), record })
}

/// Hands process 1 its configuration, in packets, and with the first of them its sockets: that of
/// the way out, then that of the link. It knows the end by the end of the connection.
async fn send_configuration(
    to: BlockingConnection,
    config: &UpConfig,
    way_out: Option<OwnedFd>,
) -> Result<(), UpError> {
    let text = serde_json::to_vec(config).expect("a configuration can be written as JSON");
    let to = Connection::from_fd(to.into()).map_err(UpError::Pipe)?;
    let link = config.link.socket().map(|socket| socket.as_fd());
    let mut sockets: Vec<_> = way_out.iter().map(AsFd::as_fd).chain(link).collect();
    for packet in text.chunks(CONFIGURATION_PACKET_BYTES) {
        to.send(packet, &std::mem::take(&mut sockets)).await.map_err(UpError::Configuration)?;
    }
    Ok(())
}

/// The machine that holds its lock and has written itself down.
fn living(layout: &Layout) -> Option<Record> {
    let is_alive = liveness(layout).is_ok_and(|state| state == Liveness::Alive);
    is_alive.then(|| Record::read(layout).ok()).flatten()
}

/// A machine that did not start leaves nothing but its logs, either. One that could be found may
/// have been taken down, and another one may be in its place.
async fn gave_up(layout: &Layout, found: Option<Record>, error: String) -> UpError {
    let is_ours = |found: &Record| {
        let place = |record: &Record| (record.pid, record.start_ticks);
        Record::read(layout).is_ok_and(|now| place(&now) == place(found))
    };
    let removed = match &found {
        None => down_held(layout, Instant::now()).await.map(drop),
        // Looked at behind the lock: meanwhile nobody else begins there.
        Some(found) => match wait_for_store(layout).await {
            Ok(_held) if is_ours(found) => down_held(layout, Instant::now()).await.map(drop),
            Ok(_) => Ok(()),
            Err(left) => Err(left),
        },
    };
    match removed {
        // What is left is ours and goes with the rest, or is another command's.
        Ok(()) | Err(DownError::NoMachine { .. } | DownError::Importing { .. }) => {}
        Err(left) => tracing::warn!(%left, "a machine that did not start is not gone"),
    }
    UpError::Failed { error, log: layout.role_log("lab", None) }
}

/// The machine outlives its caller, and must not hold the caller's standard error open.
fn open_log(layout: &Layout) -> Result<File, UpError> {
    create_below(layout.root(), &layout.logs())?;
    check_remains(&layout.logs())?;
    let path = layout.role_log("lab", None);
    Ok(open_own(OpenOptions::new().create(true).append(true), &path)?)
}

fn check(config: &UpConfig) -> Result<(), UpError> {
    let nodes = config.nodes;
    if nodes == 0 || nodes > NODES_MAX {
        return Err(UpError::Nodes { nodes });
    }
    for node in config.proxies.keys() {
        let number = crate::addresses::NodeNetwork::of_name(node);
        let there = (1..=nodes).any(|n| Some(crate::addresses::NodeNetwork::new(n)) == number);
        if !there {
            return Err(UpError::ProxyNode { node: node.clone(), nodes });
        }
    }
    let length = config.state.as_os_str().len();
    if !config.state.is_absolute() || length > STATE_PATH_LEN_MAX {
        return Err(UpError::StatePath { state: config.state.clone() });
    }
    Ok(())
}

/// Makes sure that no machine lives there and that nothing of an older one is left.
fn make_room(layout: &Layout) -> Result<(), UpError> {
    let failed = |source| UpError::State { state: layout.root().to_owned(), source };
    match liveness(layout).map_err(failed)? {
        Liveness::Alive => Err(UpError::Running { state: layout.root().to_owned() }),
        Liveness::Dead => match import::claim(layout).map_err(failed)? {
            Claim::Busy => Err(UpError::Importing { state: layout.root().to_owned() }),
            Claim::Absent | Claim::Taken(_) => {
                remove_cgroups(layout);
                Ok(remove_state(layout)?)
            }
        },
        Liveness::Absent if is_foreign(layout.root()).map_err(failed)? => {
            Err(UpError::Foreign { state: layout.root().to_owned() })
        }
        Liveness::Absent => match import::remove_left(layout).map_err(failed)? {
            Some(_) => Ok(()),
            None => Err(UpError::Importing { state: layout.root().to_owned() }),
        },
    }
}

/// Removes the control groups of a dead machine, whose last processes may be ending just now.
fn remove_cgroups(layout: &Layout) {
    // Without a record it has made none.
    let Ok(record) = Record::read(layout) else { return };
    for _ in 0..CGROUPS_TRIES {
        if record.cgroups.remove().is_empty() {
            return;
        }
        std::thread::sleep(CGROUPS_PAUSE);
    }
    for left in record.cgroups.present() {
        tracing::warn!(left = %left.display(), "a control group of a dead machine is in use");
    }
}

/// Whether the directory holds anything but logs, and images of an `up` that was killed early.
fn is_foreign(root: &Path) -> io::Result<bool> {
    match std::fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(entries) => {
            let names: Vec<_> =
                entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
            Ok(names.iter().any(|name| name != "logs" && name != IMAGE_STORE))
        }
    }
}

/// In the new namespaces: starts process 1, which takes over the pipes, and ends.
pub(super) fn run_outer() -> anyhow::Result<ExitCode> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(SHIPPED_BINARY).args(["lab-machine", INNER]);
    // What the caller's caller left open is none of the machine's, let alone of its pods'.
    process::start_with_standard_only(&mut command);
    command.spawn().context("start process 1 of the machine")?;
    Ok(ExitCode::SUCCESS)
}
