//! `ambit bench`: checks the arguments, runs, prints the results, saves them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ambit_cluster::Cluster;
use ambit_load::tell;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::args::{BenchArgs, Other, RunArgs};
use super::bed::{Machines, Place, Scratch};
use super::doubts;
use super::engine::{Engine, Settings};
use super::experiment::{EXPERIMENTS, Experiment, OwnManifests};
use super::host;
use super::modes::{self, Mode};
use super::order::Order;
use super::peer;
use super::record::{Ending, Host, ModeOutcome, ModeRun, RUN_VERSION, Run};
use super::{compare, keep as files, kube};

/// What a shell reports for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
/// What a second Ctrl-C is for.
const AGAIN: &str = "once more, and what is there stays";
/// A second signal within this time counts as the first again: timeout(1) and shells send two.
const SECOND_THOUGHT: Duration = Duration::from_millis(500);
/// Where runs are kept unless another place is named.
const RUNS: &str = "bench/runs";
/// The most runs of one experiment, machine and day.
const MAX_RUNS_A_DAY: u32 = 100;
/// So many bytes of a program's digest distinguish it from others.
const DIGEST_BYTES: usize = 6;
/// What is asked of a peer for its version; the first that works counts.
const VERSION_WORDS: [&str; 2] = ["--version", "version"];

impl BenchArgs {
    /// The manifests of the user's own that the words name, if they name some.
    pub fn own_manifests(&self) -> Option<&Path> {
        let named = &self.run.as_ref()?.experiment;
        let is_experiment = EXPERIMENTS.iter().any(|(name, _)| name == named);
        let looks_like_path = named.contains(['/', '.']) || Path::new(named).exists();
        (!is_experiment && looks_like_path).then_some(Path::new(named))
    }
}

/// The experiments that there are, for the command's help.
pub fn help() -> String {
    let mut text = String::from("Experiments:\n");
    for (name, title) in EXPERIMENTS {
        text += &format!("  {name:<14} {title}\n");
    }
    text += "\nModes:\n";
    for mode in modes::MODES {
        text += &format!("  {:<17} {}\n", mode.name, mode.title);
    }
    text + "\nThe first mode is what the others are compared with. Each runs on this machine, in \
            network namespaces of its own.\n\n\
            With --kube, `path` runs on a cluster that has Ambit. Each mode gets a namespace \
            ambit-bench-MODE, which is deleted at the end.\n"
}

/// Where a run takes place.
pub enum Site {
    /// On this host, with the program and perhaps with manifests of the user's own.
    Here {
        /// The program.
        binary: PathBuf,
        /// The manifests.
        own: Option<OwnManifests>,
    },
    /// On a cluster that has the mesh.
    Cluster(Box<Cluster>),
}

/// Runs what the words ask for.
pub async fn run(args: BenchArgs, site: Site) -> Result<ExitCode> {
    match (args.other, args.run) {
        (Some(Other::Compare(args)), _) => comparison(&args.before, &args.after),
        (Some(Other::Report(args)), _) => report(&args.run),
        (None, Some(args)) => measure(&args, site).await,
        (None, None) => bail!("name an experiment, or manifests of your own by their path"),
    }
}

async fn measure(args: &RunArgs, site: Site) -> Result<ExitCode> {
    // From the first moment on: nothing may be left.
    let mut end_wished = pin!(end_wished(&ENDS)?);
    let order = match site {
        Site::Here { binary, own } => order(args, binary, own).await?,
        Site::Cluster(cluster) => tokio::select! {
            order = kube::order(args, *cluster) => order?,
            () = &mut end_wished => return Ok(ExitCode::from(INTERRUPTED)),
        },
    };
    // A place that cannot be written is better known before an hour of load than after.
    let keep = fresh_directory(args.keep.as_deref(), &order.experiment.name, &order.host)?;
    let run = describe(args, &order)?;
    let Order { experiment, modes, place, .. } = order;
    let settings = Settings {
        place,
        repetitions: run.repetitions,
        duration: args.duration,
        warm_up: args.warm_up,
        logs: keep.join("logs"),
    };
    let start = Instant::now();
    let tell_time = |line: fmt::Arguments<'_>| {
        tell(format_args!("{:7.1}s {line}", start.elapsed().as_secs_f64()));
    };
    if let Some(remedy) = settings.place.if_killed() {
        tell_time(format_args!("if this is killed: {remedy}"));
    }
    let mut engine = Engine::new(&settings, run, experiment.counts_calls, &tell_time)?;
    let outcome = tokio::select! {
        outcome = engine.drive(&experiment, &modes) => outcome.map(|()| Ending::Complete),
        () = &mut end_wished => Ok(Ending::Interrupted),
    };
    let ending = outcome.unwrap_or_else(|error| Ending::Failed(format!("{error:#}")));
    match ending {
        Ending::Complete => {}
        Ending::Interrupted => tell_time(format_args!("taking everything down; {AGAIN}")),
        Ending::Failed(_) => tell_time(format_args!("taking everything down")),
    }
    let first = (ending != Ending::Interrupted).then_some(end_wished);
    let struck = tokio::select! {
        struck = engine.strike() => struck,
        () = insisted(first) => Ok(()),
    };
    let left = engine.left();
    let mut run = engine.finish(ending);
    run.condense();
    let code = conclude(&run, &keep);
    if let Some(remedy) = left {
        // The last words: nothing else says what is there still.
        tell(format_args!("not everything was taken down: {remedy}"));
    }
    struck?;
    code
}

/// What ends a run.
const ENDS: [SignalKind; 3] =
    [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
/// What ends it before everything is taken down. A terminal that hangs up is nobody who insists.
const INSISTS: [SignalKind; 2] = [SignalKind::interrupt(), SignalKind::terminate()];

/// Waits for one of these signals, from now on.
fn end_wished(kinds: &[SignalKind]) -> Result<impl Future<Output = ()> + use<>> {
    let listen = |kind: &SignalKind| signal(*kind).context("listen for signals");
    let mut signals: Vec<_> = kinds.iter().map(listen).collect::<Result<_>>()?;
    Ok(async move {
        let received = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        let _which = futures::future::select_all(received).await;
    })
}

/// Waits until somebody who knows that everything is being taken down wants no more of it. `first`
/// is there if nobody has wished for the end yet.
async fn insisted(first: Option<Pin<&mut impl Future<Output = ()>>>) {
    if let Some(first) = first {
        first.await;
        tell(format_args!("taking everything down; {AGAIN}"));
    }
    sleep(SECOND_THOUGHT).await;
    match end_wished(&INSISTS) {
        Ok(second) => second.await,
        // Then it is taken down to the end.
        Err(_) => std::future::pending().await,
    }
}

/// Checks the words against this host.
async fn order(args: &RunArgs, binary: PathBuf, own: Option<OwnManifests>) -> Result<Order> {
    let programs = modes::programs(&args.peers)?;
    let mut modes = modes::select(&args.modes, &programs)?;
    let experiment = Experiment::of(args, own)?;
    if !experiment.has_policies() {
        let named = |mode: &&Mode| mode.has_policies && !args.modes.is_empty();
        if let Some(mode) = modes.iter().find(named) {
            bail!("--modes {}: {} holds no AuthorizationPolicy", mode.name, experiment.name);
        }
        modes.retain(|mode| !mode.has_policies);
    }
    if !experiment.has_waypoints() {
        let named = |mode: &&Mode| mode.has_waypoint && !args.modes.is_empty();
        if let Some(mode) = modes.iter().find(named) {
            bail!("--modes {}: {} has no form with waypoints", mode.name, experiment.name);
        }
        modes.retain(|mode| !mode.has_waypoint);
    }
    let host = Host::look()?;
    let machines = Machines { binary, programs, state: Scratch::new()? };
    machines.state.left_by_others()?;
    let doubts = doubts::before(&host, host::load_average()?);
    Ok(Order {
        warnings: doubts.into_iter().chain(experiment.unproven(&modes)).collect(),
        programs: versions(&machines).await?,
        experiment,
        modes,
        place: Place::Here(machines),
        host,
    })
}

/// Prints and keeps what there is, and says how it ended.
fn conclude(run: &Run, keep: &Path) -> Result<ExitCode> {
    if run.measurements.is_empty() {
        // An empty directory is worth nothing; one with logs of failed modes is.
        let _not_empty = std::fs::remove_dir(keep);
        let reasons = run.modes.iter().filter_map(|mode| match &mode.outcome {
            ModeOutcome::Ran => None,
            ModeOutcome::Failed(reason) => Some(format!("{}: {reason}", mode.name)),
        });
        let mut reasons: Vec<String> = reasons.collect();
        match &run.ending {
            Ending::Interrupted => {
                tell(format_args!("interrupted before anything was measured; nothing is kept"));
                return Ok(ExitCode::from(INTERRUPTED));
            }
            Ending::Failed(reason) => reasons.push(reason.clone()),
            Ending::Complete => {}
        }
        bail!("nothing was measured: {}", reasons.join("; "));
    }
    // Before it is kept: what an hour of load said is not lost with a full disk; nor, what is kept,
    // with the terminal.
    let printed = ambit_load::print(&super::text(run));
    let _empty = std::fs::remove_dir(keep.join("logs"));
    files::keep(run, keep)?;
    tell(format_args!("kept in {}", keep.display()));
    printed?;
    match &run.ending {
        Ending::Complete => Ok(ExitCode::SUCCESS),
        Ending::Interrupted => Ok(ExitCode::from(INTERRUPTED)),
        Ending::Failed(reason) => bail!("{reason}; what was measured until then is kept"),
    }
}

fn comparison(before: &Path, after: &Path) -> Result<ExitCode> {
    let difference = compare::compare(&Run::read(before)?, &Run::read(after)?)?;
    ambit_load::print(&difference.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn report(path: &Path) -> Result<ExitCode> {
    let run = Run::read(path)?;
    let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    ambit_load::print(&super::text(&run))?;
    files::keep(&run, directory)?;
    Ok(ExitCode::SUCCESS)
}

/// The record of a run that has not begun.
fn describe(args: &RunArgs, order: &Order) -> Result<Run> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    let mode = |mode: &Mode| ModeRun {
        name: mode.name.to_owned(),
        title: mode.title.to_owned(),
        outcome: ModeOutcome::Ran,
        machines: Vec::new(),
    };
    let experiment = &order.experiment;
    Ok(Run {
        version: RUN_VERSION,
        experiment: experiment.name.clone(),
        title: experiment.title.to_owned(),
        started_at: jiff::Timestamp::now().to_string(),
        seconds: 0.0,
        ending: Ending::Complete,
        seed: args.seed.unwrap_or(now.as_secs()),
        repetitions: usize::try_from(args.repetitions).unwrap_or(usize::MAX),
        seconds_each: args.duration.as_secs_f64(),
        programs: order.programs.clone(),
        commands: commands(order),
        modes: order.modes.iter().map(mode).collect(),
        cases: experiment.cases().cloned().collect(),
        measurements: Vec::new(),
        warnings: order.warnings.clone(),
        host: order.host.clone(),
    })
}

/// How the run was started, and what it does by hand. Places that differ between hosts are left
/// open.
fn commands(order: &Order) -> Vec<String> {
    let mut commands = vec![format!("ambit {}", own_words().join(" "))];
    for load in order.experiment.loads() {
        // The others differ in the namespace alone.
        let (Some(pod), Some(words)) = (load.generators.first(), load.case.load.first()) else {
            continue;
        };
        let command = order.place.by_hand(pod, words);
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// The words of this command, with places that differ between hosts left open.
fn own_words() -> Vec<String> {
    let open = |word: String| match word.split_once('=') {
        Some((name, value)) if value.contains('/') => format!("{name}=PATH"),
        _ if word.starts_with('/') => "PATH".to_owned(),
        _ => word,
    };
    std::env::args().skip(1).map(open).collect()
}

/// What took part: version, size and the first bytes of the digest.
async fn versions(machines: &Machines) -> Result<BTreeMap<String, String>> {
    let own = crate::VERSION.to_owned();
    let mut versions = BTreeMap::from([("ambit".to_owned(), identified(own, &machines.binary)?)]);
    for (peer, path) in &machines.programs {
        let said = match peer.sidecar() {
            Some(kind) => peer::version(kind, path).await.ok(),
            None => said_version(path),
        };
        let said = said.unwrap_or_else(|| "does not tell its version".to_owned());
        // Some begin with the path that they were called by.
        let said = said.trim_start_matches(&*path.to_string_lossy()).trim_start().to_owned();
        versions.insert(peer.to_string(), identified(said, path)?);
    }
    Ok(versions)
}

/// A version, with what distinguishes the program from another of the same version.
fn identified(version: String, program: &Path) -> Result<String> {
    let bytes = std::fs::read(program).with_context(|| format!("read {}", program.display()))?;
    let digest = Sha256::digest(&bytes);
    let digest: String =
        digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{version}; {} bytes, SHA-256 {digest}...", bytes.len()))
}

/// What a program reports as its version, in one line.
fn said_version(program: &Path) -> Option<String> {
    VERSION_WORDS.iter().find_map(|word| {
        // A program that starts to serve in place of answering is ended.
        let output = Command::new("timeout").args(["2"]).arg(program).arg(word).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
        output.status.success().then(|| line.to_owned())
    })
}

/// A directory that was not there.
fn fresh_directory(named: Option<&Path>, experiment: &str, host: &Host) -> Result<PathBuf> {
    let make = |path: &Path| {
        std::fs::create_dir_all(path).with_context(|| {
            format!("the run cannot be kept in {}; name another place with --keep", path.display())
        })
    };
    if let Some(path) = named {
        if path.join("run.json").exists() {
            bail!("{} holds a run already; name another place with --keep", path.display());
        }
        make(path)?;
        return Ok(path.to_owned());
    }
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let machine = Path::new(RUNS).join(format!("{date}-{}", host.slug()));
    let name = Path::new(experiment).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for number in 1..=MAX_RUNS_A_DAY {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = machine.join(format!("{name}{suffix}"));
        if !path.exists() {
            make(&path)?;
            return Ok(path);
        }
    }
    bail!(
        "{} holds {MAX_RUNS_A_DAY} runs of {name}; name another place with --keep",
        machine.display()
    )
}
