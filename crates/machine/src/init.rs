//! Process 1 of a machine: makes the networks, starts the programs, serves the commands, reaps the
//! dead.
//!
//! When it ends, in whatever way, the kernel ends everything else. So nothing needs to be cleaned
//! up here, and nothing here may live outside this process tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambit_log::{LineFormat, LogFormat};
use ambit_net::namespace::NetNs;
use ambit_net::seqpacket::{BlockingConnection, PacketError};
use ambit_net::sys::{mount, process};
use ambit_words::error_chain;
use anyhow::{Context, bail};
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::birth::CONFIGURATION_PACKET_BYTES;
use super::config::{LinkConfig, Progress, UpConfig};
use super::record::{Record, start_ticks};
use super::roles::{self, Roles};
use super::state::{Machine, Objects, Position};
use super::{exec, fabric, kubernetes_api, pod_cpu, publish, server};
use crate::addresses::NodeNetwork;
use crate::cgroups::Cgroups;
use crate::cluster;
use crate::controller::autoscale::{self, Autoscaler, Moment};
use crate::controller::{self, MeshNames};
use crate::egress;
use crate::events::Events;
use crate::join::CarriedWorkload;
use crate::layout::Layout;
use crate::link::{Access, Identity};
use crate::logs::LogFile;
use crate::objects::{Admission, Limited, Store, node_object};
use crate::ownership::{OwnershipError, create_below, open_own};
use crate::reaper::Reaper;
use crate::registry::{Mirror, Watch, WatchError, timestamp};

/// How long the programs may take until they do their work.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A program that has ended so often instead will not begin to.
const START_ENDS_MAX: u32 = 5;
/// How often they are asked.
const START_INTERVAL: Duration = Duration::from_millis(20);
/// Wait before the controllers try again what could not be written.
const CONTROLLER_RETRY: Duration = Duration::from_secs(1);

/// Runs a machine. Its configuration comes on standard input, its progress goes to standard output.
pub(super) fn run() -> anyhow::Result<ExitCode> {
    let (config, way_out) = receive_configuration().context("read the machine's configuration")?;
    process::new_session().context("leave the caller's terminal")?;
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(live(config, way_out)));
    if let Err(error) = &outcome {
        tell(&Progress::Failed { error: format!("{error:#}") });
    }
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Takes what the command sends on standard input, to the end of the connection: the configuration,
/// and the socket of the way out if there is one.
fn receive_configuration() -> anyhow::Result<(UpConfig, Option<OwnedFd>)> {
    let input = BlockingConnection::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (mut text, mut sockets) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; CONFIGURATION_PACKET_BYTES];
    loop {
        match input.receive(&mut buffer) {
            Ok(packet) => {
                text.extend_from_slice(&buffer[..packet.length]);
                sockets.extend(packet.fds);
            }
            Err(PacketError::Closed) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut config: UpConfig = serde_json::from_slice(&text)?;
    let mut sockets = sockets.into_iter();
    let mut way_out = None;
    if config.egress.is_some() {
        way_out = Some(sockets.next().context("the socket of the way out is missing")?);
    }
    config.link = config.link.with_socket(sockets.next());
    Ok((config, way_out))
}

/// Reports to the command that waits for the machine, if it still waits.
fn tell(progress: &Progress) {
    let mut line = serde_json::to_vec(progress).expect("progress can be written as JSON");
    line.push(b'\n');
    let mut output = io::stdout().lock();
    let _nobody_waits = output.write_all(&line).and_then(|()| output.flush());
}

async fn live(config: UpConfig, way_out: Option<OwnedFd>) -> anyhow::Result<()> {
    let layout = Layout::new(&config.state);
    create_directories(&layout)?;
    start_log(&layout)?;
    let _held_for_life = lock(&layout)?;
    // Each connection with the host takes files of this process. What it starts keeps the limit
    // that the machine was started with: programs of containers may call `select(2)`.
    let open_files = process::open_files_limit();
    process::raise_open_files_limit().context("raise the limit of open files")?;
    let (machine, reaper) = set_up(&config, layout, open_files)?;
    let machine = Arc::new(machine);
    server::listen(&machine)?;
    exec::listen(&machine)?;
    publish::listen(&machine)?;
    // Home has the objects of a machine that joined, and decides about them; a cluster its own.
    if !config.is_joined() && config.cluster().is_none() {
        kubernetes_api::listen(&machine)?;
    }
    if let Some(socket) = way_out {
        egress::open(&machine, socket, config.link.socket()).context("open the way out")?;
    }
    let controllers = if config.is_joined() {
        let watch = Watch::new(&[machine.layout.objects(), machine.layout.pod_statuses()])?;
        tokio::spawn(follow_home(Arc::clone(&machine), watch))
    } else {
        let watch = Watch::new(&[machine.layout.pod_statuses()])?;
        tokio::spawn(run_controllers(Arc::clone(&machine), watch))
    };
    // What it begins with is work for them.
    machine.changed.notify_one();
    let autoscaler = tokio::spawn(run_autoscaler(Arc::clone(&machine)));
    for role in &machine.role_list {
        let netns = machine.place(role).try_clone()?;
        machine.roles.keep(role.clone(), netns, reaper.clone());
    }
    wait_until_ready(&machine).await?;
    tell(&Progress::Up);
    tokio::select! {
        () = machine.end.notified() => Ok(()),
        ended = controllers => Ok(ended.context("the controllers died")??),
        ended = autoscaler => ended.context("the autoscaler died"),
    }
}

/// Directories that the programs expect.
fn create_directories(layout: &Layout) -> Result<(), OwnershipError> {
    for directory in [
        layout.root().to_owned(),
        layout.pod_logs(),
        layout.control(),
        layout.nodes(),
        layout.pod_statuses(),
        layout.captured_directory(),
        layout.uncaptured_directory(),
        layout.join(),
        layout.root().join("netns"),
    ] {
        create_below(layout.root(), &directory)?;
    }
    Ok(())
}

fn start_log(layout: &Layout) -> anyhow::Result<()> {
    let path = layout.role_log("lab", None);
    let log = LogFile::open(&path).with_context(|| format!("open {}", path.display()))?;
    tracing_subscriber::fmt()
        .event_format(LineFormat(LogFormat::Plain))
        .with_max_level(tracing::Level::INFO)
        .with_writer(Mutex::new(log))
        .init();
    Ok(())
}

/// Takes the lock that says that the machine lives.
fn lock(layout: &Layout) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let file = open_own(options.create(true).write(true).truncate(true), &layout.lock())
        .context("create the machine's lock")?;
    file.try_lock().context("another machine has just been started here")?;
    Ok(file)
}

fn set_up(config: &UpConfig, layout: Layout, files: usize) -> anyhow::Result<(Machine, Reaper)> {
    // Before the new /proc hides it: who this process is on the host.
    let pid: i32 = fs::read_link("/proc/self")?
        .to_str()
        .and_then(|name| name.parse().ok())
        .context("/proc/self is not as documented")?;
    let start_ticks = start_ticks(pid)?;
    let pid_namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    mount::make_private().context("cut the machine's mounts off from the host's")?;
    mount::proc(std::path::Path::new("/proc")).context("mount /proc")?;
    tell(&Progress::Waiting { what: "the networks".to_owned() });
    let own = NetNs::current().context("open the machine's network namespace")?;
    let networks = config.networks();
    let members = match config.is_joined() {
        false => fabric::create(&layout, &networks, config.cluster().is_none())?,
        true => fabric::create_joined(&layout, networks[0])?,
    };
    let mut network_namespaces: BTreeMap<String, u64> =
        members.iter().map(|(name, netns)| (name.clone(), netns.inode())).collect();
    network_namespaces.insert(fabric::BRIDGE.to_owned(), own.inode());
    let rootless = is_rootless()?;
    let cgroups = find_cgroups(config, pid_namespace, start_ticks);
    let mut record = Record {
        pid,
        start_ticks,
        pid_namespace,
        network_namespaces,
        started_at: timestamp(),
        nodes: networks.iter().map(|network| network.name()).collect(),
        rootless,
        mesh: config.mesh,
        images: config.images.clone(),
        host_paths: config.host_paths.clone(),
        confined: config.confined,
        cgroups,
        egress: config.egress.clone(),
        workload: config.cluster().map(CarriedWorkload::from),
        binary: config.binary.clone(),
    };
    // Written down before they are made, so that they are found whatever happens.
    record.write(&layout)?;
    record.cgroups = create_cgroups(record.cgroups);
    record.write(&layout)?;
    let node_labels = config.node_labels.clone();
    let limited = Limited::of(&record.cgroups);
    let admission = Admission { images: config.images.clone(), rootless, node_labels, limited };
    let store = create_store(config, &layout, &networks, &admission)?;
    let position = position(config, &layout)?;
    let (reported, mesh) = (Mirror::new(&layout), MeshNames::of(config));
    let (events, settled) = (Events::default(), watch::Sender::default());
    let reaper = Reaper::start()?;
    tell(&Progress::Done { what: "the networks".to_owned() });
    let machine = Machine {
        role_list: roles::roles(config, &layout),
        roles: Roles::new(files),
        fabric: own,
        capture: Mutex::new(None),
        objects: Mutex::new(Objects { store, reported, admission, mesh, events, settled }),
        has_lost_egress: AtomicBool::new(false),
        changed: Notify::new(),
        end: Notify::new(),
        joins: Mutex::default(),
        position,
        layout,
        record,
        members,
    };
    Ok((machine, reaper))
}

/// A machine that joined another begins with nothing: home sends all objects.
fn create_store(
    config: &UpConfig,
    layout: &Layout,
    networks: &[NodeNetwork],
    admission: &Admission,
) -> anyhow::Result<Store> {
    let mut store = Store::create(layout.clone())?;
    for network in networks {
        fs::create_dir_all(layout.node(&network.name()))?;
    }
    if !config.is_joined() {
        let mut initial = controller::initial_objects();
        if let LinkConfig::Cluster { token, command, .. } = &config.link {
            initial.extend(cluster::objects(&token.cluster, command, &config.host_paths));
        }
        store.apply(initial, admission, &timestamp())?;
        for network in networks {
            let (object, value) = node_object(*network, &config.node_labels);
            store.write(object, value, &timestamp())?;
        }
    }
    Ok(store)
}

/// Makes what a link needs to prove itself.
fn position(config: &UpConfig, layout: &Layout) -> anyhow::Result<Position> {
    Ok(match &config.link {
        LinkConfig::None => Position::Alone,
        LinkConfig::Home { address, .. } => {
            Position::Home { address: *address, root: Identity::create(layout)? }
        }
        LinkConfig::Joined { token, .. } => {
            Access::create(layout, token)?;
            Position::Joined { home: token.address, link: Mutex::default() }
        }
        LinkConfig::Cluster { token, .. } => {
            let written = cluster::keep(layout, token);
            written.map_err(|(path, error)| {
                anyhow::Error::new(error).context(format!("write {}", path.display()))
            })?;
            Position::Cluster { workload: CarriedWorkload::from(&token.cluster) }
        }
    })
}

/// The control groups that the machine can have, by a name that no other machine has.
fn find_cgroups(config: &UpConfig, pid_namespace: u64, start_ticks: u64) -> Cgroups {
    if !config.limits {
        return Cgroups::default();
    }
    Cgroups::find(&format!("ambit-{pid_namespace}-{start_ticks}")).unwrap_or_else(|error| {
        tracing::warn!(%error, "limits of containers have no effect: no control groups are found");
        Cgroups::default()
    })
}

fn create_cgroups(found: Cgroups) -> Cgroups {
    let (cgroups, failed) = found.create();
    for error in failed {
        let error = error_chain(&error);
        tracing::warn!(error, "limits of containers have no effect");
    }
    cgroups
}

/// Whether this user namespace has a single user.
fn is_rootless() -> anyhow::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map").context("read the map of users")?;
    let count = map.split_whitespace().nth(2).and_then(|field| field.parse::<u64>().ok());
    Ok(count == Some(1))
}

async fn wait_until_ready(machine: &Machine) -> anyhow::Result<()> {
    let latest = Instant::now() + START_TIMEOUT;
    for role in &machine.role_list {
        tell(&Progress::Waiting { what: role.name.clone() });
        let netns = machine.place(role);
        while let Err(reason) = role.check.ask(netns).await {
            let info = machine.roles.info(role);
            if info.restarts > START_ENDS_MAX {
                bail!(
                    "{} ends again and again (exit {}) and says {:?}; see {}",
                    role.name,
                    info.last_exit.unwrap_or_default(),
                    why_it_ended(&fs::read_to_string(&role.log).unwrap_or_default()),
                    role.log.display()
                );
            }
            if Instant::now() > latest {
                bail!(
                    "{} does not work within {} s ({reason}; started again {} times); see {}",
                    role.name,
                    START_TIMEOUT.as_secs(),
                    info.restarts,
                    role.log.display()
                );
            }
            sleep(START_INTERVAL).await;
        }
        tell(&Progress::Done { what: role.name.clone() });
    }
    Ok(())
}

/// How a line begins, or what it holds, that says why a program ended: its last words, an error of
/// its command line, a panic, and errors in the forms of the roles' logs and of ztunnel's.
const ERRORS: [&str; 6] =
    ["ambit: ", "error: ", "panicked at", " ERROR ", "\terror\t", "\"level\":\"error\""];

/// The line of a log that says why a program ended: the last error, or else the last line.
fn why_it_ended(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_error = |line: &&str| {
        let (at_start, within) = ERRORS.split_at(2);
        at_start.iter().any(|mark| line.starts_with(mark))
            || within.iter().any(|mark| line.contains(mark))
    };
    let Some(at) = lines.iter().rposition(is_error) else {
        return lines.last().copied().unwrap_or_default().to_owned();
    };
    // What follows a colon, such as a missing flag, is on the next line.
    let more = lines.get(at + 1).filter(|_| lines[at].ends_with(':'));
    more.map_or_else(|| lines[at].to_owned(), |more| format!("{} {}", lines[at], more.trim()))
}

/// Follows objects and reports with pods, for ever.
async fn run_controllers(machine: Arc<Machine>, mut watch: Watch) -> Result<(), WatchError> {
    let mut settled = true;
    loop {
        let wait = controller::wait_for_time(&machine.objects().store, Timestamp::now());
        let changes = tokio::select! {
            changes = watch.changes() => changes?,
            () = machine.changed.notified() => Vec::new(),
            () = sleep(CONTROLLER_RETRY), if !settled => Vec::new(),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => Vec::new(),
        };
        machine.forget_deleted_nodes();
        let mut objects = machine.objects();
        objects.reported.read(&changes);
        let outcome = objects.settle();
        settled = outcome.is_ok();
        if let Err(error) = outcome {
            let error = anyhow::Error::new(error);
            tracing::error!(error = format!("{error:#}"), "the controllers cannot write");
        }
    }
}

/// Takes what home sends for the machine's own objects, for ever. Home's controllers decide.
async fn follow_home(machine: Arc<Machine>, mut watch: Watch) -> Result<(), WatchError> {
    loop {
        let changes = watch.changes().await?;
        let mut objects = machine.objects();
        let Objects { store, reported, .. } = &mut *objects;
        reported.read(&changes);
        store.follow(reported.objects());
        objects.settled.send_modify(|count| *count += 1);
    }
}

/// Decides again and again how many pods autoscalers want, for ever.
async fn run_autoscaler(machine: Arc<Machine>) {
    if matches!(machine.position, Position::Joined { .. }) {
        return std::future::pending().await;
    }
    let (start, mut autoscaler) = (Instant::now(), Autoscaler::default());
    loop {
        sleep(autoscale::INTERVAL).await;
        let Some((roots, ready)) = autoscaled(&machine) else {
            autoscaler = Autoscaler::default();
            continue;
        };
        let sample = match pod_cpu::sample(&roots) {
            Ok(sample) => sample,
            Err(error) => {
                tracing::error!(%error, "cannot read what pods use of processors");
                continue;
            }
        };
        let moment = Moment { at: start.elapsed(), now: Timestamp::now() };
        if !autoscaler.measure(sample, ready, moment.at) {
            continue;
        }
        let mut objects = machine.objects();
        let Objects { store, reported, .. } = &mut *objects;
        let acted = autoscaler.act(store, reported, moment).and_then(|()| objects.settle());
        if let Err(error) = acted {
            let error = anyhow::Error::new(error);
            tracing::error!(error = format!("{error:#}"), "an autoscaler cannot write");
        }
    }
}

/// The first process of each pod with the pod's uid, and the uids of pods that are ready; `None` if
/// there is no autoscaler.
fn autoscaled(machine: &Machine) -> Option<(BTreeMap<i32, String>, BTreeSet<String>)> {
    let objects = machine.objects();
    Autoscaler::is_needed(&objects.store).then(|| {
        let all = || objects.reported.statuses().map(|(_, status)| status);
        let roots = all().filter(|it| it.pid != 0).map(|it| (it.pid, it.uid.clone()));
        let ready = all().filter(|it| it.ready).map(|it| it.uid.clone());
        (roots.collect(), ready.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::why_it_ended;

    #[test]
    fn the_line_that_says_why_is_quoted() {
        let check = |log: &str, expected: &str| assert_eq!(why_it_ended(log), expected);
        check("", "");
        check("one\ntwo\n\n", "two");
        let usage = "error: invalid value 'x' for '--n <N>'\n\nUsage: ambit proxy\n\n\
                     For more information, try '--help'.\n";
        check(usage, "error: invalid value 'x' for '--n <N>'");
        let missing = "error: these arguments were not provided:\n  --node-name <NAME>\n\n\
                       Usage: ambit proxy\n";
        check(missing, "error: these arguments were not provided: --node-name <NAME>");
        check("t ERROR ambit: no port\nt  INFO ambit: ending\n", "t ERROR ambit: no port");
        check("t\terror\tworker\tno key\nt\tinfo\tworker\tbye\n", "t\terror\tworker\tno key");
        check("t ERROR early\nambit: no registry\n", "ambit: no registry");
    }
}
