//! The life of one pod on its node: network, capture, processes, readiness, end.
//!
//! Every step is repeated with back-off until it works or the pod is no longer wanted, and the
//! reason for waiting is in the pod's status. A pod that was running when this process started is
//! taken over at its current step.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::sys::process::{self, Signal};
use ambit_words::error_chain;
use ambit_words::names::{POD_TOKEN, TOKENS};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::Context;
use super::addresses_in_use::{ADDRESS_ANNOTATION, AddressError};
use super::cni::{self, CniError};
use super::launch::{self, LaunchError, Running};
use super::memory;
use super::network::{self, NetworkError};
use super::plan::{self, Place, PlanError, PodName, Version};
use super::probe::NodeProbe;
use crate::cgroups::CgroupError;
use crate::image::ImageMap;
use crate::logs;
use crate::pod::{
    GRACE_SECONDS_MAX, PACKET_SIZE_MAX_BYTES, PodRequest, PodState, ProbeKind, ProbeReport,
};
use crate::record::{Record, RecordError};
use crate::registry::{ContainerStatus, Phase, PodStatus, replace_file, timestamp};

/// What a pod says of itself before its first start.
const STARTING: &str = "starting";
/// First wait after a failed start.
const BACK_OFF_FIRST: Duration = Duration::from_millis(100);
/// Longest wait after a failed start.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// First wait before volumes are sent again that the init did not take over.
const VOLUMES_BACK_OFF_FIRST: Duration = Duration::from_secs(1);
/// Longest such wait.
const VOLUMES_BACK_OFF_MAX: Duration = Duration::from_secs(120);
/// A pod whose init ran this long starts afresh in its back-off.
const GOOD_RUN: Duration = Duration::from_secs(10);
/// How much longer than its grace a pod may take to end before it is killed.
const END_MARGIN: Duration = Duration::from_secs(3);
/// News of probes that may wait.
const REPORTS_MAX: usize = 16;
/// When a report is passed on again that could not be.
const REPORT_AGAIN: Duration = Duration::from_secs(1);

/// What should become of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Run.
    Run,
    /// End politely.
    Terminate {
        /// How long politely.
        grace_seconds: u64,
    },
    /// End now: its object is gone.
    Vanish,
}

/// Why a pod does not run yet.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Capture(#[from] CniError),
    #[error(transparent)]
    Images(#[from] RecordError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("waiting for control, which has not written {path}; see the logs of control")]
    Credentials { path: PathBuf },
    #[error("cannot write {path}")]
    File { path: PathBuf, source: io::Error },
}

/// A pod that is being run.
pub(crate) struct PodRun {
    context: Arc<Context>,
    names: PodName,
    /// Absent when only the remains of an older pod must be removed.
    pod: Option<Pod>,
    wishes: watch::Receiver<Wish>,
    status: PodStatus,
    written: Option<PodStatus>,
    number: Option<u8>,
    /// How often its init was started again.
    own_restarts: u32,
    probes: Probes,
    volumes: Volumes,
}

/// How far the pod's init knows what its volumes hold.
#[derive(Default)]
struct Volumes {
    /// The versions of the objects whose files it was sent last. None if that is not known.
    sent: Option<Vec<Version>>,
    /// Why some could not be sent.
    reason: String,
    /// When they are sent again, if it did not take them over.
    again: Option<Instant>,
    back_off: Duration,
}

impl Volumes {
    fn retry(&mut self) {
        if self.again.is_none() {
            self.back_off = (self.back_off * 2).clamp(VOLUMES_BACK_OFF_FIRST, VOLUMES_BACK_OFF_MAX);
            self.again = Some(Instant::now() + self.back_off);
        }
    }
}

/// The probes that are asked from the node.
struct Probes {
    /// Those that are being asked, and how often their container had been started again.
    tasks: BTreeMap<(String, ProbeKind), (u32, AbortHandle)>,
    /// Since when containers can be asked, and how often they had been started again.
    since: BTreeMap<String, (u32, Instant)>,
    reports: mpsc::Receiver<ProbeReport>,
    reporting: mpsc::Sender<ProbeReport>,
    /// One that could not be passed on, and when that is tried again; the next ones wait behind it.
    unheard: Option<(ProbeReport, Instant)>,
}

impl Probes {
    fn new() -> Self {
        let (reporting, reports) = mpsc::channel(REPORTS_MAX);
        let (tasks, since) = (BTreeMap::new(), BTreeMap::new());
        Self { tasks, since, reports, reporting, unheard: None }
    }

    /// Asks this probe of a container, or none, as its status says.
    fn set(&mut self, kind: ProbeKind, probe: NodeProbe, status: &ContainerStatus) {
        let (name, restarts) = (&status.name, status.restarts);
        let is_due = status.probed && status.started == (kind != ProbeKind::Startup);
        let key = (name.clone(), kind);
        let asks = self.tasks.get(&key).map(|(of, _)| *of);
        if asks == is_due.then_some(restarts) {
            return;
        }
        if let Some((_, task)) = self.tasks.remove(&key) {
            task.abort();
        }
        if is_due {
            let now = (restarts, Instant::now());
            let since = self.since.entry(name.clone()).or_insert(now);
            if since.0 != restarts {
                *since = now;
            }
            let task = probe.run(status.clone(), since.1, self.reporting.clone());
            self.tasks.insert(key, (restarts, tokio::spawn(task).abort_handle()));
        }
    }

    /// Asks none, and forgets what was said of this init's containers.
    fn end(&mut self) {
        std::mem::take(&mut self.tasks).into_values().for_each(|(_, task)| task.abort());
        *self = Self::new();
    }
}

impl PodRun {
    /// A pod to run, or to join where the last runner left it.
    pub(crate) fn new(
        context: Arc<Context>,
        names: PodName,
        pod: Option<Pod>,
        wishes: watch::Receiver<Wish>,
        adopted: Option<PodStatus>,
    ) -> Self {
        let number = adopted.as_ref().and_then(|status| {
            status.pod_ips.first().and_then(|ip| context.network.pod_number(*ip))
        });
        if let Some(number) = number {
            context.addresses.adopt(number);
        }
        let fresh = PodStatus {
            uid: names.uid.clone(),
            node: context.node.clone(),
            reason: STARTING.to_owned(),
            ..PodStatus::default()
        };
        let own_restarts = adopted.as_ref().map_or(0, |status| {
            status.restarts.saturating_sub(container_restarts(&status.containers))
        });
        Self {
            own_restarts,
            volumes: Volumes::default(),
            probes: Probes::new(),
            status: adopted.unwrap_or(fresh),
            written: None,
            context,
            names,
            pod,
            wishes,
            number,
        }
    }

    /// Runs the pod until it is no longer wanted and has been taken down.
    pub(crate) async fn live(mut self) {
        // What is gone before it began has no status: its name may be another's by now.
        if self.wish() != Wish::Vanish {
            self.write_status();
        }
        let mut joined = self.join().await;
        // It ran when the last runner wrote its status, and died while nobody looked.
        self.own_restarts += u32::from(joined.is_none() && self.status.pid != 0);
        let mut back_off = Duration::ZERO;
        while joined.is_some() || self.wish() == Wish::Run {
            let started = Instant::now();
            let outcome = match joined.take() {
                Some(running) => Ok(running),
                None => self.start().await,
            };
            match outcome {
                Ok(running) => {
                    self.follow(running).await;
                    if started.elapsed() >= GOOD_RUN {
                        back_off = Duration::ZERO;
                    }
                    self.own_restarts += 1;
                    self.status.reason = "its init died".to_owned();
                }
                Err(error) => self.status.reason = error_chain(&error),
            }
            self.status.pid = 0;
            self.status.ready = false;
            self.status.phase = Phase::Pending;
            if self.wish() == Wish::Run {
                self.write_status();
                self.pause(back_off).await;
                back_off = (back_off * 2).clamp(BACK_OFF_FIRST, BACK_OFF_MAX);
            }
        }
        self.take_down();
    }

    fn wish(&self) -> Wish {
        *self.wishes.borrow()
    }

    /// Waits; a change of the registry or of the wish ends the wait, for it may be what was
    /// missing.
    async fn pause(&mut self, back_off: Duration) {
        if back_off.is_zero() {
            return;
        }
        let mut changes = self.context.changes.subscribe();
        changes.mark_unchanged();
        // The pod's own status is a change too: wait at least a little.
        sleep(BACK_OFF_FIRST).await;
        tokio::select! {
            () = sleep(back_off) => {}
            _ = changes.changed() => {}
            _ = self.wishes.changed() => {}
        }
    }

    fn host_network(&self) -> bool {
        let spec = self.pod.as_ref().and_then(|pod| pod.spec.as_ref());
        spec.is_some_and(|spec| spec.host_network == Some(true))
    }

    fn netns_path(&self) -> PathBuf {
        if self.host_network() {
            self.context.layout.network_namespace(&self.context.node)
        } else {
            self.context.layout.pod_network_namespace(&self.context.node, &self.names.uid)
        }
    }

    fn socket(&self) -> PathBuf {
        self.context.layout.pod_socket(&self.context.node, &self.names.uid)
    }

    /// Finds the pod's init if it runs.
    async fn join(&mut self) -> Option<Running> {
        launch::find(&self.socket()).await.ok()
    }

    async fn start(&mut self) -> Result<Running, StartError> {
        let Some(pod) = self.pod.clone() else {
            unreachable!("only a pod with an object is wanted");
        };
        let netns = self.set_up_network(&pod)?;
        if self.context.record.mesh && !self.host_network() {
            self.status.reason = reason_of_start(&self.status.reason).to_owned();
            self.write_status();
            let socket = self.context.layout.cni_socket(&self.context.node);
            let (netns, ips) = (self.status.netns.clone(), self.status.pod_ips.clone());
            cni::announce(&socket, &self.names, &netns, &ips).await?;
        }
        self.require_credentials(&pod)?;
        self.write_files(&pod)?;
        // Read again for each start: `ambit apply --image` adds to it.
        let images = Record::read(&self.context.layout)?.images;
        let (mut plan, versions) = {
            let mirror = self.context.mirror();
            let plan = plan::plan(&pod, &self.place(&images), &mirror)?;
            (plan, plan::versions(&pod, &mirror))
        };
        if !self.context.record.mesh {
            plan.directories.clear();
        }
        self.volumes = Volumes { sent: Some(versions), ..Volumes::default() };
        plan.cgroups.ensure()?;
        let running = launch::start(plan, netns, &self.context.reaper).await?;
        self.status.started_at = Some(timestamp());
        Ok(running)
    }

    fn place<'a>(&'a self, images: &'a ImageMap) -> Place<'a> {
        Place {
            layout: &self.context.layout,
            node: &self.context.node,
            host_ips: self.context.network.fabric().both(),
            pod_ips: &self.status.pod_ips,
            images,
            is_rootless: self.context.record.rootless,
            host_paths: &self.context.record.host_paths,
            is_confined: self.context.record.confined,
            cgroups: &self.context.record.cgroups,
            memory_bytes: memory::total_bytes(),
            processor_count: thread::available_parallelism().map_or(1, |count| count.get() as u64),
        }
    }

    /// Tells the pod's init what the volumes hold now, if an object of theirs is another one or it
    /// is time to try again. A volume that cannot be planned stays as it is, such as one whose
    /// object is gone.
    async fn update_volumes(&mut self) {
        let is_due = self.volumes.again.take_if(|again| *again <= Instant::now()).is_some();
        let Some(pod) = &self.pod else { return };
        let images = ImageMap::default();
        let (versions, (now, failed)) = {
            let mirror = self.context.mirror();
            let versions = plan::versions(pod, &mirror);
            let is_new = self.volumes.sent.as_ref() != Some(&versions);
            if versions.is_empty() || !is_new && !is_due {
                return;
            }
            (versions, plan::volumes(pod, &self.place(&images), &mirror))
        };
        if self.volumes.sent.replace(versions.clone()) != Some(versions) {
            (self.volumes.again, self.volumes.back_off) = (None, Duration::ZERO);
        }
        let reasons = failed.iter().map(|(volume, error)| {
            format!("volume {volume:?} stays as it was: {}", error_chain(error))
        });
        self.volumes.reason = reasons.collect::<Vec<_>>().join("; ");
        if let Err(error) = launch::send_volumes(&self.socket(), &now).await {
            let pod = &self.names.name;
            tracing::warn!(pod, error = error_chain(&error), "cannot update a pod's volumes");
            self.volumes.retry();
        }
    }

    fn set_up_network(&mut self, pod: &Pod) -> Result<NetNs, StartError> {
        let path = self.netns_path();
        let network = self.context.network;
        let netns = if self.host_network() {
            self.status.pod_ips = network.fabric().both().to_vec();
            NetNs::current().map_err(|source| NetworkError::Namespace {
                operation: "open",
                path: path.clone(),
                source,
            })?
        } else {
            let number = match self.number {
                Some(number) => number,
                None => {
                    let annotations = pod.metadata.annotations.as_ref();
                    let asked = annotations.and_then(|all| all.get(ADDRESS_ANNOTATION));
                    self.context.addresses.take(network, asked.map(String::as_str))?
                }
            };
            self.number = Some(number);
            self.status.pod_ips = network.pod(number).both().to_vec();
            {
                let further = self.context.record.workload.as_ref().map(|it| it.address);
                network::set_up_pod(network, number, further, &path)?
            }
        };
        self.status.netns = path;
        Ok(netns)
    }

    /// A waypoint's pod starts with what it proves itself by.
    fn require_credentials(&self, pod: &Pod) -> Result<(), StartError> {
        if !self.context.record.mesh || !plan::is_waypoint(pod) {
            return Ok(());
        }
        let (layout, node) = (&self.context.layout, &self.context.node);
        let all = layout.waypoint_credentials(node, &self.names.uid);
        // Control writes the token last.
        let path = all.join(TOKENS).join(POD_TOKEN);
        if path.exists() { Ok(()) } else { Err(StartError::Credentials { path }) }
    }

    fn write_files(&self, pod: &Pod) -> Result<(), StartError> {
        let directory = self.context.layout.pod_directory(&self.context.node, &self.names.uid);
        for (path, content) in
            plan::files(pod, &self.status.pod_ips, self.context.record.workload.as_ref())
        {
            let path = directory.join(plan::file_name(path));
            replace_file(&path, content.as_bytes())
                .map_err(|source| StartError::File { path, source })?;
        }
        Ok(())
    }

    /// Watches a running pod until its init is gone; ends it when it is no longer wanted.
    async fn follow(&mut self, running: Running) {
        self.status.pid = running.pid;
        let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
        let mut state = PodState::default();
        let mut deadline: Option<Instant> = None;
        let mut asked = Wish::Run;
        let mut changes = self.context.changes.subscribe();
        self.update_volumes().await;
        loop {
            if self.wish() != asked {
                asked = self.wish();
                deadline = Some(self.ask_to_end(asked).await);
            }
            let expired = until(deadline);
            let retried = until(self.volumes.again);
            let heard = until(self.probes.unheard.as_ref().map(|(_, again)| *again));
            let none_waits = self.probes.unheard.is_none();
            tokio::select! {
                packet = running.follow.receive(&mut buffer) => {
                    let Ok(packet) = packet else { break };
                    match serde_json::from_slice(&buffer[..packet.length]) {
                        Ok(said) => state = said,
                        Err(error) => tracing::warn!(%error, "a pod's init said something odd"),
                    }
                    if !state.volumes_reason.is_empty() {
                        self.volumes.retry();
                    }
                    self.ask_probes(&state);
                }
                Some(report) = self.probes.reports.recv(), if none_waits => {
                    self.pass_on(report).await;
                }
                () = heard => if let Some((report, _)) = self.probes.unheard.take() {
                    self.pass_on(report).await;
                },
                changed = self.wishes.changed() => if changed.is_err() { break },
                Ok(()) = changes.changed() => self.update_volumes().await,
                () = retried => self.update_volumes().await,
                () = expired => {
                    let _gone = process::send_signal(&running.pidfd, Signal::Kill);
                    deadline = None;
                }
            }
            self.note(&state);
        }
        self.probes.end();
        // Gone means gone: its last descriptor is closed a moment before the process is.
        let _ended = timeout(END_MARGIN, process::ended(running.pidfd)).await;
    }

    /// Asks the pod to end; answers by when it must have.
    async fn ask_to_end(&mut self, wish: Wish) -> Instant {
        let grace_seconds = match wish {
            Wish::Terminate { grace_seconds } => grace_seconds.min(GRACE_SECONDS_MAX),
            Wish::Run | Wish::Vanish => 0,
        };
        let request = PodRequest::Terminate { grace_seconds };
        match launch::ask(&self.socket(), &request).await {
            Ok(_asked) => Instant::now() + Duration::from_secs(grace_seconds) + END_MARGIN,
            Err(error) => {
                let pod = &self.names.name;
                tracing::warn!(pod, %error, "killing a pod that cannot be asked to end");
                Instant::now()
            }
        }
    }

    /// Tells the pod's init what a probe comes to, or keeps it until that works.
    async fn pass_on(&mut self, report: ProbeReport) {
        let request = PodRequest::Probed(report.clone());
        if let Err(error) = launch::ask(&self.socket(), &request).await {
            let pod = &self.names.name;
            tracing::warn!(pod, error = error_chain(&error), "cannot pass on what a probe says");
            self.probes.unheard = Some((report, Instant::now() + REPORT_AGAIN));
        }
    }

    /// Starts the node's probes of containers that run, ends those of containers that do not.
    fn ask_probes(&mut self, state: &PodState) {
        let Some(&pod_ip) = self.status.pod_ips.first() else { return };
        let spec = self.pod.as_ref().and_then(|pod| pod.spec.as_ref());
        let initial = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
        let containers = spec.into_iter().flat_map(|spec| &spec.containers);
        for container in initial.filter(|it| plan::is_sidecar(it)).chain(containers) {
            let mut statuses = state.containers.iter();
            let Some(status) = statuses.find(|it| it.name == container.name) else { continue };
            for kind in ProbeKind::ALL {
                if let Some(probe) = NodeProbe::of(container, kind, pod_ip) {
                    self.probes.set(kind, probe, status);
                }
            }
        }
    }

    /// Writes what the pod's init says.
    fn note(&mut self, state: &PodState) {
        let containers = state.containers.clone();
        let ready = state.phase == Phase::Running && self.lasting(&containers).all(|it| it.ready);
        let ending = self.wish() != Wish::Run;
        let first_reason = containers.iter().find(|container| {
            !container.reason.is_empty() && (state.phase != Phase::Running || !container.ready)
        });
        let in_a_loop = containers.iter().find_map(ContainerStatus::loop_reason);
        self.status.reason = match (in_a_loop, first_reason.filter(|_| !ready)) {
            _ if ending => "terminating".to_owned(),
            (Some(reason), _) => reason,
            (None, Some(it)) => format!("container {}: {}", it.name, it.reason),
            (None, None) if state.reason.is_empty() => {
                let reasons = [&self.volumes.reason, &state.volumes_reason];
                let said = reasons.into_iter().filter(|reason| !reason.is_empty());
                said.map(String::as_str).collect::<Vec<_>>().join("; ")
            }
            (None, None) => state.reason.clone(),
        };
        self.status.restarts = self.own_restarts + container_restarts(&containers);
        self.status.phase = state.phase;
        self.status.ready = ready && !ending;
        self.status.was_ready |= self.status.ready;
        self.status.containers = containers;
        self.write_status();
    }

    /// The containers that do not run to an end before the others: these, and sidecars.
    fn lasting<'s>(
        &self,
        statuses: &'s [ContainerStatus],
    ) -> impl Iterator<Item = &'s ContainerStatus> {
        let spec = self.pod.as_ref().and_then(|pod| pod.spec.as_ref());
        let initial = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        let count = initial.len();
        let sidecars: Vec<bool> = initial.iter().map(plan::is_sidecar).collect();
        let lasts = move |index: usize| index >= count || sidecars[index];
        statuses.iter().enumerate().filter(move |(index, _)| lasts(*index)).map(|(_, it)| it)
    }

    fn write_status(&mut self) {
        if self.written.as_ref() == Some(&self.status) {
            return;
        }
        let path = self.context.layout.pod_status(&self.names.namespace, &self.names.name);
        let text =
            serde_json::to_vec_pretty(&self.status).expect("a status can be written as JSON");
        match replace_file(&path, &text) {
            Ok(()) => self.written = Some(self.status.clone()),
            Err(error) => tracing::error!(path = %path.display(), %error, "cannot write a status"),
        }
    }

    /// Removes everything that the pod had. Its status goes last: that is the word that it is gone.
    fn take_down(&mut self) {
        if let Some(number) = self.number.take() {
            let path = self.netns_path();
            if let Err(error) = network::remove_pod(self.context.network, number, &path) {
                tracing::error!(
                    pod = self.names.name,
                    error = error_chain(&error),
                    "cannot take a pod's network down"
                );
            }
            self.context.addresses.give_back(number);
        }
        for group in self.context.record.cgroups.remove_pod(&self.names.uid) {
            let group = group.display();
            tracing::warn!(pod = self.names.name, %group, "a pod's control group is in use");
        }
        self.prune_logs();
        let directory = self.context.layout.pod_directory(&self.context.node, &self.names.uid);
        let status = self.context.layout.pod_status(&self.names.namespace, &self.names.name);
        // A StatefulSet gives the name to another pod, whose node may be another.
        let there = std::fs::read(&status).ok();
        let there = there.and_then(|text| serde_json::from_slice::<PodStatus>(&text).ok());
        let is_own = there.is_none_or(|there| there.uid == self.names.uid);
        let removed = if is_own { std::fs::remove_file(&status) } else { Ok(()) };
        for removed in [std::fs::remove_dir_all(&directory), removed] {
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::error!(pod = self.names.name, %error, "cannot remove what a pod left");
                }
                _ => {}
            }
        }
    }
}

impl PodRun {
    /// Logs stay when a pod goes, but not without bound.
    fn prune_logs(&self) {
        let mirror = self.context.mirror();
        let is_in_use = |file: &str| {
            let pod = file.split('_').take(2).map(str::to_owned).collect::<Vec<_>>();
            let [namespace, name] = pod.as_slice() else { return false };
            mirror.object("pods", namespace, name).is_some()
        };
        if let Err(error) = logs::prune(&self.context.layout.pod_logs(), is_in_use) {
            tracing::warn!(%error, "cannot remove old logs");
        }
    }
}

/// The time, or for ever.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn container_restarts(containers: &[ContainerStatus]) -> u32 {
    containers.iter().map(|container| container.restarts).sum()
}

/// What a pod says of itself that starts, by what it said before. Why the last attempt failed stays
/// until the next one has an outcome: in between nothing is known that explains more.
fn reason_of_start(before: &str) -> &str {
    match before {
        "" | STARTING => "waiting to be captured",
        failed => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_pod_does_not_start_is_said_until_it_does() {
        let check = |before, expected| assert_eq!(reason_of_start(before), expected);
        check("", "waiting to be captured");
        check(STARTING, "waiting to be captured");
        check("waiting to be captured", "waiting to be captured");
        check("volume \"v\": there is no ConfigMap", "volume \"v\": there is no ConfigMap");
    }
}
