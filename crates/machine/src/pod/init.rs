//! Process 1 of a pod: isolates the pod, runs its containers, answers on its socket.
//!
//! It stays behind the stage with all its privileges, since it makes the mounts of containers.
//! Nothing that runs for a container has them.
//!
//! It knows nothing of the registry, of services or of the mesh. It ends when it is asked to
//! terminate; when it dies the kernel ends everything in the pod.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ambit_log::{LineFormat, LogFormat};
use ambit_net::memfd::Sealed;
use ambit_net::seqpacket::{Connection, Listener, PacketError};
use ambit_net::sys::mount;
use ambit_net::sys::process::{self, Exit, Signal};
use anyhow::Context;
use futures::future::join_all;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::container::{self, Attended, OwnTree, Process, Stage, Started, Streams};
use super::exec;
use super::forward;
use super::health::{self, Ailment};
use super::terminals::{Terminals, is_null};
use super::volumes::{self, VolumePlan};
use super::{
    ContainerPlan, GRACE_SECONDS_MAX, Hook, PACKET_SIZE_MAX_BYTES, PodPlan, PodRequest, PodState,
    ProbeReport, RestartPolicy,
};
use super::{isolation, leftovers};
use crate::accepting::ACCEPT_PAUSE;
use crate::cgroups::HeldCgroups;
use crate::layout::{LAYER, SOCKET_NAME};
use crate::logs::LogFile;
use crate::reaper::{Reaper, code_of};
use crate::registry::{ContainerStatus, Phase};

/// Wait before the second restart in a row; the first comes at once.
const BACK_OFF_FIRST: Duration = Duration::from_millis(500);
/// Longest wait before a restart.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// A container that ran this long starts afresh in its back-off.
const GOOD_RUN: Duration = Duration::from_secs(10);
/// How long the pod runner may take to come to a pod that it started.
const RUNNER_TIMEOUT: Duration = Duration::from_secs(30);
/// The command of a hook never takes longer; before a container's end the pod's grace mostly ends
/// first.
const HOOK_MAX: Duration = Duration::from_secs(3600);
/// The exit of a program that SIGKILL has ended, as a shell counts.
const KILLED: i32 = 128 + 9;
/// How long processes get to die of SIGKILL before the pod's end does it.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Runs a pod. Its plan comes on standard input; its standard output is a log.
pub(crate) fn run(_words: &[OsString]) -> anyhow::Result<ExitCode> {
    start_log();
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("read the pod's plan")?;
    let plan: PodPlan = serde_json::from_str(&text).context("the pod's plan is not as expected")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(live(plan))?;
    Ok(ExitCode::SUCCESS)
}

/// Nothing is left to say so if a line cannot be written.
fn start_log() {
    let lines = tracing_subscriber::fmt::layer()
        .event_format(LineFormat(LogFormat::Plain))
        .with_writer(io::stdout)
        .log_internal_errors(false);
    tracing_subscriber::registry().with(LevelFilter::INFO).with(lines).init();
}

struct Pod {
    plan: PodPlan,
    /// The volumes as they are now.
    volumes: Mutex<Vec<VolumePlan>>,
    /// The directory of the logs, by a descriptor: the path leads to a mount that cannot be
    /// written.
    logs: PathBuf,
    stage: Stage,
    cgroups: HeldCgroups,
    terminals: Terminals,
    reaper: Reaper,
    state: watch::Sender<PodState>,
    terminating: watch::Sender<bool>,
    /// The containers beside which sidecars run have ended.
    sidecars_end: watch::Sender<bool>,
    running: Mutex<BTreeMap<String, Running>>,
    /// Other processes that were started in containers with a tree of their own, by container.
    beside: Mutex<Vec<(String, Process)>>,
    /// Room for connections from the host.
    forwards: Semaphore,
}

/// A container's first process.
#[derive(Clone)]
struct Running {
    process: Process,
    /// It is the container's program, no longer a launcher behind the stage.
    is_program: bool,
    /// The program's file tree, if it does not share that of the pod.
    tree: Option<Arc<OwnTree>>,
    /// It is being ended politely.
    is_stopping: bool,
    /// Takes the news of its probes.
    reports: mpsc::Sender<ProbeReport>,
}

/// How a run of a container ended.
struct End {
    /// As a shell counts.
    exit: i32,
    /// The pod ended it because it was not well.
    was_unwell: bool,
}

async fn live(plan: PodPlan) -> anyhow::Result<()> {
    // On mounts of their own: those of the pod's namespace are about to become read-only.
    let log_directory = mount::detached(&plan.logs.0).context("open the directory of the logs")?;
    let own_directory = mount::detached(&plan.directory).context("open the pod's directory")?;
    isolation::forbid_tracing()?;
    isolation::forget_keys()?;
    fs::create_dir_all(plan.directory.join(LAYER)).context("make the place of a layer")?;
    let cgroups = plan.cgroups.hold().context("open the pod's control groups")?;
    let volumes = volumes::prepare(&plan.directory, &plan.volumes, &plan.hidden)?;
    let terminals = Terminals::take().context("take the host's terminals")?;
    isolation::go_behind_the_stage()?;
    volumes.mount(&plan.directory)?;
    let tree = isolation::make_tree(&plan.hidden, &plan.files, &plan.directories)?;
    let stage = Stage::new(tree, isolation::own_binary());
    let stage = stage.context("keep the pod's tree")?;
    process::set_hostname(&plan.hostname).context("set the host name")?;
    // By its descriptor: the path leads to a mount that cannot be written.
    let listener = Listener::bind(&seen(&own_directory).join(SOCKET_NAME))
        .context("listen for the pod runner")?;
    // A runner that died has not reported this process: then it must not become the pod.
    let runner = timeout(RUNNER_TIMEOUT, listener.accept()).await;
    let runner = runner.context("no pod runner came")?.context("accept the pod runner")?;
    let statuses = plan.init_containers.iter().chain(&plan.containers).map(initial).collect();
    let (state, _) = watch::channel(PodState { containers: statuses, ..PodState::default() });
    let pod = Arc::new(Pod {
        logs: seen(&log_directory),
        stage,
        cgroups,
        terminals,
        volumes: Mutex::new(plan.volumes.clone()),
        plan,
        reaper: Reaper::start().context("watch children")?,
        state,
        terminating: watch::channel(false).0,
        sidecars_end: watch::channel(false).0,
        running: Mutex::default(),
        beside: Mutex::default(),
        forwards: forward::room(),
    });
    tokio::spawn(Arc::clone(&pod).serve(runner));
    tokio::spawn(Arc::clone(&pod).run_containers());
    let mut terminating = pod.terminating.subscribe();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(connection) => drop(tokio::spawn(Arc::clone(&pod).serve(connection))),
                // As when there are too many connections: the containers know nothing of that.
                Err(error) => {
                    tracing::warn!(pod = pod.plan.logs.1, %error, "cannot accept; waiting");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = terminating.wait_for(|ended| *ended) => break,
        }
    }
    pod.wait_for_end().await;
    drop((log_directory, own_directory));
    Ok(())
}

/// An open directory's path that works whatever is mounted over its own.
fn seen(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

fn initial(plan: &ContainerPlan) -> ContainerStatus {
    ContainerStatus { name: plan.name.clone(), ..ContainerStatus::default() }
}

/// How a container's life went on after it ended.
enum Next {
    Again,
    Done { success: bool },
}

impl Pod {
    async fn run_containers(self: Arc<Self>) {
        let mut sidecars = Vec::new();
        for index in 0..self.plan.init_containers.len() {
            let plan = &self.plan.init_containers[index];
            let name = plan.name.clone();
            let kind = if plan.is_sidecar { "sidecar" } else { "init container" };
            self.note(|state| state.reason = format!("waiting for {kind} {name:?}"));
            if plan.is_sidecar {
                let pod = Arc::clone(&self);
                sidecars.push(tokio::spawn(async move {
                    pod.supervise(&pod.plan.init_containers[index], false).await
                }));
                if !self.has_started(&name).await {
                    return;
                }
            } else if !self.supervise(plan, true).await {
                self.end_sidecars(sidecars).await;
                self.note(|state| {
                    state.phase = Phase::Failed;
                    state.reason = format!("init container {name:?} failed");
                });
                return;
            }
        }
        self.note(|state| {
            state.phase = Phase::Running;
            state.reason.clear();
        });
        let runs: Vec<_> = (0..self.plan.containers.len())
            .map(|index| {
                let pod = Arc::clone(&self);
                tokio::spawn(async move { pod.supervise(&pod.plan.containers[index], false).await })
            })
            .collect();
        let mut success = true;
        for run in runs {
            success &= run.await.unwrap_or(false);
        }
        self.end_sidecars(sidecars).await;
        self.note(|state| {
            state.phase = if success { Phase::Succeeded } else { Phase::Failed };
            state.reason = "all containers have ended".to_owned();
        });
    }

    /// Waits until a container has started; whether it has, or the pod ends.
    async fn has_started(&self, name: &str) -> bool {
        let mut changes = self.state.subscribe();
        let runs = |state: &PodState| {
            state.containers.iter().any(|status| status.name == name && status.started)
        };
        let mut terminating = self.terminating.subscribe();
        tokio::select! {
            started = changes.wait_for(runs) => started.is_ok(),
            _ = terminating.wait_for(|ended| *ended) => false,
        }
    }

    /// Ends the sidecars, the last one first, as nobody is left whom they serve.
    async fn end_sidecars(&self, sidecars: Vec<JoinHandle<bool>>) {
        if *self.terminating.borrow() {
            // Then everything is being ended, in the same order.
            return;
        }
        self.sidecars_end.send_replace(true);
        let grace = Duration::from_secs(self.plan.grace_seconds);
        let plans = self.plan.init_containers.iter().filter(|plan| plan.is_sidecar);
        let started: Vec<_> = plans.zip(sidecars).collect();
        for (plan, ended) in started.into_iter().rev() {
            let polite = async {
                self.stop(plan).await;
                ended.await
            };
            if timeout(grace, polite).await.is_err() {
                self.signal(plan, Signal::Kill);
            }
        }
    }

    /// Waits until a container is not to be started again.
    async fn must_end(&self, plan: &ContainerPlan) {
        let mut terminating = self.terminating.subscribe();
        let mut sidecars_end = self.sidecars_end.subscribe();
        tokio::select! {
            _ = terminating.wait_for(|ended| *ended) => {}
            _ = sidecars_end.wait_for(|ended| *ended), if plan.is_sidecar => {}
        }
    }

    fn is_ending(&self, plan: &ContainerPlan) -> bool {
        *self.terminating.borrow() || plan.is_sidecar && *self.sidecars_end.borrow()
    }

    /// Runs one container until it is done for good; whether it ended well.
    async fn supervise(&self, plan: &ContainerPlan, is_init: bool) -> bool {
        let mut back_off = Duration::ZERO;
        loop {
            if self.is_ending(plan) {
                return false;
            }
            let started = Instant::now();
            let end = self.run_once(plan).await;
            match self.next(plan, &end, is_init) {
                Next::Done { success } => {
                    self.note_container(&plan.name, |status| status.crash_looping = false);
                    return success;
                }
                // Probes may take longer than that to find that a container is not well.
                Next::Again if !end.was_unwell && started.elapsed() >= GOOD_RUN => {
                    back_off = Duration::ZERO;
                }
                Next::Again => {}
            }
            self.note_container(&plan.name, |status| {
                status.restarts += 1;
                // The first restart comes at once: one bad start is no loop.
                status.crash_looping = !back_off.is_zero();
            });
            // Either way the loop looks.
            let _early = timeout(back_off, self.must_end(plan)).await;
            back_off = (back_off * 2).clamp(BACK_OFF_FIRST, BACK_OFF_MAX);
        }
    }

    fn next(&self, plan: &ContainerPlan, end: &End, is_init: bool) -> Next {
        let success = end.exit == 0;
        match self.plan.restart {
            _ if self.is_ending(plan) => Next::Done { success },
            _ if plan.is_sidecar => Next::Again,
            RestartPolicy::Always if is_init && success => Next::Done { success },
            RestartPolicy::Always => Next::Again,
            RestartPolicy::OnFailure if !success || end.was_unwell => Next::Again,
            RestartPolicy::OnFailure | RestartPolicy::Never => Next::Done { success },
        }
    }

    /// Starts a container and waits for its end.
    async fn run_once(&self, plan: &ContainerPlan) -> End {
        let kills = self.cgroups.kills(&plan.name);
        let (end, complaint) = match self.start(plan) {
            Ok(started) => self.see_through(plan, started).await,
            Err(error) => {
                let (pod, container) = (&self.plan.logs.1, &plan.name);
                tracing::error!(pod, container, %error, "cannot start a container");
                (End { exit: -1, was_unwell: false }, Some(format!("{error:#}")))
            }
        };
        self.note_container(&plan.name, |status| {
            (status.running, status.pid, status.probed) = (false, None, false);
            (status.started, status.ready) = (false, false);
            status.last_exit = Some(end.exit);
            status.oom_killed = end.exit == KILLED && self.cgroups.kills(&plan.name) > kills;
            status.reason = complaint.unwrap_or_else(|| format!("exited with {}", end.exit));
        });
        end
    }

    /// Waits for the end of a container whose launcher runs; also answers with why that did not
    /// become the program.
    async fn see_through(&self, plan: &ContainerPlan, started: Started) -> (End, Option<String>) {
        let process = started.process.clone();
        let mut ended = self.reaper.end_of(process.pid);
        let (reports, mut news) = mpsc::channel(health::REPORTS_MAX);
        let launching =
            Running { process, is_program: false, tree: None, is_stopping: false, reports };
        self.running_now().insert(plan.name.clone(), launching);
        let (tree, complaint) = match started.launched().await {
            Ok(tree) => (tree.map(Arc::new), None),
            Err(reason) => (None, Some(reason)),
        };
        let end = if complaint.is_none() {
            self.note_running(plan, tree.clone());
            self.attend(plan, &mut ended, &mut news).await
        } else {
            End { exit: code_of(&mut ended).await, was_unwell: false }
        };
        let ended = self.running_now().remove(&plan.name);
        self.end_leftovers(plan, ended, tree).await;
        (end, complaint)
    }

    /// Waits for the end of a container that runs. If it turns out not to be well, asks it to end,
    /// and in the end makes it.
    async fn attend(
        &self,
        plan: &ContainerPlan,
        ended: &mut oneshot::Receiver<Exit>,
        news: &mut mpsc::Receiver<ProbeReport>,
    ) -> End {
        let note = |change: &dyn Fn(&mut ContainerStatus)| self.note_container(&plan.name, change);
        let watched = async {
            if self.run_hook(plan, plan.post_start.as_ref()).await {
                let run = |command, limit| self.run_beside(plan, command, limit);
                health::until_unwell(&plan.probes, run, note, news).await
            } else {
                Ailment::PostStart
            }
        };
        let ailment = tokio::select! {
            // An end is no ailment that is found at the same moment.
            biased;
            exit = code_of(ended) => return End { exit, was_unwell: false },
            ailment = watched => Some(ailment),
            // What is being ended is not asked how it is.
            () = self.must_end(plan) => None,
            () = self.prove(plan) => unreachable!("it waits for the end"),
        };
        let Some(ailment) = ailment.filter(|_| !self.is_ending(plan)) else {
            self.note_container(&plan.name, |status| status.probed = false);
            return End { exit: code_of(ended).await, was_unwell: false };
        };
        let is_last = self.plan.restart == RestartPolicy::Never && !plan.is_sidecar;
        self.note_container(&plan.name, |status| ailment.note(status, is_last));
        let grace = ailment.grace_seconds(&plan.probes).unwrap_or(self.plan.grace_seconds);
        let grace = Duration::from_secs(grace.min(GRACE_SECONDS_MAX));
        let polite = async {
            self.stop(plan).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            exit = code_of(ended) => return End { exit, was_unwell: true },
            _late = timeout(grace, polite) => {}
        }
        self.signal(plan, Signal::Kill);
        End { exit: code_of(ended).await, was_unwell: true }
    }

    /// Runs a hook to its end; whether it went well. None always does.
    async fn run_hook(&self, plan: &ContainerPlan, hook: Option<&Hook>) -> bool {
        match hook {
            Some(Hook::Exec(command)) => match self.run_beside(plan, command, HOOK_MAX).await {
                Ok(Ok(())) => true,
                Ok(Err(error)) => self.say_of_hook(plan, &error),
                Err(error) => self.say_of_hook(plan, &error.to_string()),
            },
            Some(Hook::Sleep { seconds }) => {
                sleep(Duration::from_secs(*seconds)).await;
                true
            }
            None => true,
        }
    }

    /// Logs that a hook went wrong, which it answers.
    fn say_of_hook(&self, plan: &ContainerPlan, error: &str) -> bool {
        let (pod, container) = (&self.plan.logs.1, &plan.name);
        tracing::warn!(pod, container, error, "a lifecycle hook failed");
        false
    }

    /// Ends what a container left behind.
    async fn end_leftovers(
        &self,
        plan: &ContainerPlan,
        ended: Option<Running>,
        tree: Option<Arc<OwnTree>>,
    ) {
        if let Some(ended) = ended {
            // The number of a session stays taken while it has processes.
            let _none_left = process::kill(-ended.process.pid, Signal::Kill);
        }
        // Also launchers, which are behind the stage and would join what is over.
        self.beside_now().retain(|(container, process)| {
            let is_of_it = *container == plan.name;
            if is_of_it {
                process.signal(Signal::Kill);
            }
            !is_of_it
        });
        let Some(tree) = tree else { return };
        if self.is_empty() {
            // Then nobody else's is left but what has put off all marks of its container.
            let _none_left = process::kill_all(Signal::Kill);
        }
        if let Err(error) = leftovers::end(self.stage.processes(), &tree).await {
            let (pod, container) = (&self.plan.logs.1, &plan.name);
            tracing::warn!(pod, container, %error, "a container's processes are not all ended");
        }
    }

    fn note_running(&self, plan: &ContainerPlan, tree: Option<Arc<OwnTree>>) {
        // In place: it may have been asked to end while it was launched.
        let pid = self.running_now().get_mut(&plan.name).map(|running| {
            (running.is_program, running.tree) = (true, tree);
            running.process.pid
        });
        self.note_container(&plan.name, |status| {
            (status.running, status.pid) = (true, pid);
            let hook = if plan.post_start.is_some() { "its postStart hook runs" } else { "" };
            hook.clone_into(&mut status.reason);
        });
    }

    fn start(&self, plan: &ContainerPlan) -> anyhow::Result<Started> {
        let name = format!("{}_{}.log", self.plan.logs.1, plan.name);
        let output = LogFile::open(self.logs.join(name))
            .and_then(LogFile::with_times)
            .and_then(LogFile::collect)
            .context("open the container's log")?;
        let error = output.try_clone()?;
        let streams = Streams { input: None, output, error, owns_terminal: false };
        let further = BTreeMap::new();
        let cgroups = self.cgroups.entrances(&plan.name, &plan.limits);
        let cgroups = cgroups.context("set the container's limits")?;
        Ok(container::start(plan, &self.stage, None, &cgroups, &plan.command, &further, streams)?)
    }

    /// A caller's stream that a command can use and not change: a terminal, or the pod's own null
    /// device.
    fn protect(&self, given: OwnedFd) -> io::Result<OwnedFd> {
        let given = fs::File::from(given);
        if is_null(&given.metadata()?) {
            self.stage.nowhere()
        } else {
            self.terminals.protect(given.into())
        }
    }

    /// Starts another process of a container, beside its program. One that shares the pod's tree
    /// need not run for that, unless it is an init container.
    fn start_beside(
        &self,
        plan: &ContainerPlan,
        command: &[String],
        further: &BTreeMap<String, String>,
        streams: Streams,
    ) -> io::Result<Started> {
        let running = self.running_now().get(&plan.name).filter(|it| it.is_program).cloned();
        let is_initial = self.plan.init_containers.iter().any(|it| it.name == plan.name);
        let tree = running.as_ref().and_then(|running| running.tree.clone());
        let must_run = is_initial || plan.process.has_own_tree();
        if must_run && running.is_none() || plan.process.has_own_tree() && tree.is_none() {
            return Err(io::Error::other("the container does not run"));
        }
        let joined = tree.as_ref().map(|tree| tree.namespace.as_fd());
        let cgroups = self.cgroups.entrances(&plan.name, &plan.limits)?;
        let started =
            container::start(plan, &self.stage, joined, &cgroups, command, further, streams)?;
        if joined.is_some() {
            let mut beside = self.beside_now();
            beside.retain(|(_, process)| !process.has_ended());
            beside.push((plan.name.clone(), started.process.clone()));
        }
        Ok(started)
    }

    /// Whether no container runs, and none has processes that outlive it: those of one that shares
    /// the pod's tree may.
    fn is_empty(&self) -> bool {
        let mut all = self.plan.init_containers.iter().chain(&self.plan.containers);
        self.running_now().is_empty() && all.all(|plan| plan.process.has_own_tree())
    }

    /// Notes once that a container has run for so long that its bad starts are over.
    async fn prove(&self, plan: &ContainerPlan) {
        sleep(GOOD_RUN).await;
        self.note_container(&plan.name, |status| status.crash_looping = false);
        std::future::pending().await
    }

    /// Runs a command in a container, unheard. The answer is how it ended, or that it took too
    /// long; the error is that it cannot be started.
    async fn run_beside(
        &self,
        plan: &ContainerPlan,
        command: &[String],
        limit: Duration,
    ) -> io::Result<Result<(), String>> {
        let (output, error) = (self.stage.nowhere()?, self.stage.nowhere()?);
        let streams = Streams { input: None, output, error, owns_terminal: false };
        let started = self.start_beside(plan, command, &BTreeMap::new(), streams)?;
        let mut ended = self.reaper.end_of(started.process.pid);
        let _attended = Attended(started.process.clone());
        let program = command.first().map(String::as_str).unwrap_or_default();
        Ok(match timeout(limit, code_of(&mut ended)).await {
            Ok(0) => Ok(()),
            Ok(exit) => Err(format!("command {program:?} exited with {exit}")),
            Err(_elapsed) => {
                Err(format!("command {program:?} timed out after {}s", limit.as_secs()))
            }
        })
    }

    fn running_now(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().expect("nothing panics while it holds the lock")
    }

    fn beside_now(&self) -> std::sync::MutexGuard<'_, Vec<(String, Process)>> {
        self.beside.lock().expect("nothing panics while it holds the lock")
    }

    fn note(&self, change: impl FnOnce(&mut PodState)) {
        self.state.send_modify(change);
    }

    fn note_container(&self, name: &str, change: impl FnOnce(&mut ContainerStatus)) {
        self.note(|state| {
            if let Some(status) = state.containers.iter_mut().find(|status| status.name == name) {
                change(status);
            }
        });
    }

    async fn serve(self: Arc<Self>, connection: Connection) {
        let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
        let packet = match connection.receive(&mut buffer).await {
            Ok(packet) => packet,
            Err(PacketError::Closed) => return,
            Err(error) => {
                return tracing::warn!(pod = self.plan.logs.1, %error, "cannot read a request");
            }
        };
        match serde_json::from_slice(&buffer[..packet.length]) {
            Ok(PodRequest::Follow) => self.tell(&connection).await,
            Ok(PodRequest::Volumes) => self.update_volumes(packet.fds),
            Ok(PodRequest::Probed(report)) => self.take_report(report),
            Ok(PodRequest::Terminate { grace_seconds }) => {
                self.terminate(Duration::from_secs(grace_seconds)).await;
            }
            Ok(PodRequest::Exec(message)) => {
                let start = |plan: &_, command: &_, further: &_, given: Streams| {
                    self.start_beside(plan, command, further, given.map(|it| self.protect(it))?)
                };
                let Self { plan, reaper, .. } = &*self;
                let containers: Vec<_> =
                    plan.containers.iter().chain(&plan.init_containers).collect();
                exec::serve(message, packet.fds, &containers, reaper, start).await;
            }
            Ok(PodRequest::Forward { port }) => {
                // The caller's own connection came along; this one says nothing more.
                drop((connection, buffer));
                forward::serve(port, packet.fds, &self.forwards).await;
            }
            Err(error) => tracing::warn!(pod = self.plan.logs.1, %error, "a request that is none"),
        }
    }

    /// Passes on what the node heard, unless it is of a run of the container that is over.
    fn take_report(&self, report: ProbeReport) {
        let is_now =
            self.state.borrow().containers.iter().any(|status| {
                status.name == report.container && status.restarts == report.restarts
            });
        let running = self.running_now().get(&report.container).cloned();
        if let Some(running) = running.filter(|_| is_now) {
            // It may have ended meanwhile, or be about to: then nobody listens any more.
            let _unheard = running.reports.try_send(report);
        }
    }

    /// Takes over what the volumes are now. What fails stays as it was, and the state says why.
    fn update_volumes(&self, fds: Vec<OwnedFd>) {
        let read = || -> anyhow::Result<Vec<VolumePlan>> {
            let sent = fds.into_iter().next().context("nothing came along")?;
            Ok(serde_json::from_slice(&Sealed::from_fd(sent)?.read()?)?)
        };
        let reason = match read() {
            Ok(new) => {
                let mut now = self.volumes.lock().expect("nothing panics while it holds the lock");
                let failed = volumes::update(&self.plan.directory, &mut now, &new);
                let reasons = failed.iter().map(|error| ambit_words::error_chain(error));
                reasons.collect::<Vec<_>>().join("; ")
            }
            Err(error) => format!("cannot read what the volumes are: {error:#}"),
        };
        self.note(|state| state.volumes_reason = reason);
    }

    /// Sends the state now and at each change, until the other side is gone.
    async fn tell(&self, connection: &Connection) {
        let mut changes = self.state.subscribe();
        loop {
            let state = changes.borrow_and_update().clone();
            let text = serde_json::to_vec(&state).expect("states can be written as JSON");
            if connection.send(&text, &[]).await.is_err() {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // It never sends anything: this is its end.
                _ = connection.peek() => return,
            }
        }
    }

    async fn terminate(&self, grace: Duration) {
        let stop_starting = !self.terminating.send_replace(true);
        if !stop_starting {
            return;
        }
        let deadline = Instant::now() + grace.min(Duration::from_secs(GRACE_SECONDS_MAX));
        let _late = timeout_at(deadline, self.end_in_order()).await;
        sleep_until(deadline).await;
        // Processes that still run have had their time.
        let _none_left = process::kill_all(Signal::Kill);
    }

    /// Asks all containers to end: first those that are no sidecars, then these, the last one
    /// first.
    async fn end_in_order(&self) {
        let all = || self.plan.init_containers.iter().chain(&self.plan.containers);
        join_all(all().filter(|plan| !plan.is_sidecar).map(|plan| self.stop(plan))).await;
        for plan in all().filter(|plan| !plan.is_sidecar) {
            self.has_ended(&plan.name).await;
        }
        for plan in self.plan.init_containers.iter().rev().filter(|plan| plan.is_sidecar) {
            self.stop(plan).await;
            self.has_ended(&plan.name).await;
        }
    }

    /// Does what comes before the end of a container, and asks it to end. One that does not run
    /// has no end to come, and one that is asked already needs no other.
    async fn stop(&self, plan: &ContainerPlan) {
        match self.running_now().get_mut(&plan.name) {
            Some(running) if !running.is_stopping => running.is_stopping = true,
            _ => return,
        }
        if !self.run_hook(plan, plan.pre_stop.as_ref()).await {
            self.note_container(&plan.name, |status| status.pre_stop_failures += 1);
        }
        self.signal(plan, Signal::Number(plan.stop_signal));
    }

    fn signal(&self, plan: &ContainerPlan, signal: Signal) {
        if let Some(running) = self.running_now().get(&plan.name) {
            running.process.signal(signal);
        }
    }

    /// Waits until a container does not run.
    async fn has_ended(&self, name: &str) {
        let mut changes = self.state.subscribe();
        let ended = |state: &PodState| {
            !state.containers.iter().any(|status| status.name == name && status.running)
        };
        // The state lives as long as this does.
        let _ended = changes.wait_for(ended).await;
    }

    /// Waits until nothing runs any more.
    async fn wait_for_end(&self) {
        let mut changes = self.state.subscribe();
        let all_ended =
            |state: &PodState| state.containers.iter().all(|container| !container.running);
        if changes.wait_for(all_ended).await.is_ok() {
            return;
        }
        sleep(KILL_GRACE).await;
    }
}
