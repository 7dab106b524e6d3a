//! The process that stays: it talks to the node agent and keeps what must outlive a worker.
//!
//! It opens the listeners in the pods' namespaces, hands them to a worker, keeps the view, the
//! revocation list and the worker's certificates, and replaces a dead worker at once. It never
//! accepts a connection, never talks to the control plane and never reads a key.

mod agent;
mod kept;
mod sockets;
mod workers;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_net::program;
use ambit_wire::zds::Pod;
use ambit_wire::zds::proxy::Event;
use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::handover::{Descriptors, FromWorker, Message, PodInfo, ToWorker};
use agent::Asked;
use kept::Kept;
use sockets::{OperatorSockets, PodSocketOptions, PodSockets};
use workers::{Launcher, Phase, Restarts, START_LIMIT, Said, ThisProgram, Worker};

/// Requests of the agent that may wait; it sends one at a time.
const ASKED: usize = 1;
/// Words of workers that may wait; a worker that says more waits.
const SAID: usize = 1024;
/// Signals that may wait.
const WISHES: usize = 8;
/// Workers that are asked for one list; each costs a descriptor in one packet.
const MAX_ASKED_WORKERS: usize = 200;
/// How often timers are checked.
const TICK: Duration = Duration::from_secs(1);
/// How long before its deadline a proxy without a successor stops accepting, so that short
/// connections end by themselves.
const LAST_CALL: Duration = Duration::from_secs(5);
/// How much longer than its deadline a worker may take to end itself.
const END_MARGIN: Duration = Duration::from_secs(3);

/// Runs the supervisor until it is asked to end.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let wishes = follow_signals()?;
        let launcher = ThisProgram::new(config.heap_profiling);
        let launcher = Box::new(launcher.context("find this program's own file")?);
        let operator = OperatorSockets::open(&config.operator)?;
        let (said, words) = mpsc::channel(SAID);
        let mut supervisor = Supervisor::new(config, launcher, operator, said);
        supervisor.start_worker();
        let (asked, requests) = mpsc::channel(ASKED);
        let agent = tokio::spawn(agent::follow(config.zds_socket.clone(), asked));
        supervisor.serve(requests, words, wishes).await;
        agent.abort();
        supervisor.leave_disk().await;
        Ok(())
    })
}

/// What the signals say that the supervisor obeys.
fn follow_signals() -> anyhow::Result<mpsc::Receiver<Wish>> {
    let (wish, wishes) = mpsc::channel(WISHES);
    for (kind, meaning) in [
        (SignalKind::terminate(), Wish::End),
        (SignalKind::interrupt(), Wish::End),
        (SignalKind::hangup(), Wish::Replace),
    ] {
        let mut signals = signal(kind).context("listen to signals")?;
        let wish = wish.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() && wish.send(meaning).await.is_ok() {}
        });
    }
    Ok(wishes)
}

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Finish and end; at once when asked again.
    End,
    /// A new worker beside the old one.
    Replace,
}

/// A pod that is served.
struct ServedPod {
    info: PodInfo,
    sockets: PodSockets,
    /// Whether the worker in charge holds it.
    held: bool,
    /// The agent's request that waits for that.
    waiting: Option<oneshot::Sender<Result<(), String>>>,
}

struct Supervisor {
    options: PodSocketOptions,
    termination_deadline: Duration,
    launcher: Box<dyn Launcher>,
    operator: Option<OperatorSockets>,
    pods: BTreeMap<Text, ServedPod>,
    kept: Kept,
    workers: BTreeMap<u64, Worker>,
    next_id: u64,
    said: mpsc::Sender<(u64, Said)>,
    restarts: Restarts,
    restart_at: Option<Instant>,
    /// The agent has named all pods.
    enrolled: bool,
    /// When everything must have ended, once the end was asked for and nobody else serves the pods.
    leave_by: Option<Instant>,
    /// When everything must have ended, once nothing new is accepted.
    end_by: Option<Instant>,
    /// The agent had named no pod when the end began.
    ended_idle: bool,
}

impl Supervisor {
    fn new(
        config: &Config,
        launcher: Box<dyn Launcher>,
        operator: OperatorSockets,
        said: mpsc::Sender<(u64, Said)>,
    ) -> Self {
        Self {
            options: PodSocketOptions::of(config),
            termination_deadline: config.termination_deadline,
            launcher,
            operator: Some(operator),
            pods: BTreeMap::new(),
            kept: Kept::load(&config.snapshot, SystemTime::now()),
            workers: BTreeMap::new(),
            next_id: 0,
            said,
            restarts: Restarts::default(),
            restart_at: None,
            enrolled: false,
            leave_by: None,
            end_by: None,
            ended_idle: false,
        }
    }

    /// Obeys agent, workers and operator until the end was asked for and no worker is left.
    async fn serve(
        &mut self,
        requests: mpsc::Receiver<Asked>,
        mut words: mpsc::Receiver<(u64, Said)>,
        mut wishes: mpsc::Receiver<Wish>,
    ) {
        let mut requests = Some(requests);
        let mut tick = tokio::time::interval(TICK);
        while self.end_by.is_none() || !self.workers.is_empty() {
            let restart_at = self.restart_at;
            tokio::select! {
                asked = next_request(&mut requests) => self.answer(asked),
                Some((id, said)) = words.recv() => {
                    if let Some(wish) = self.hear(id, said) {
                        self.obey(wish);
                    }
                }
                Some(wish) = wishes.recv() => self.obey(wish),
                () = restart_time(restart_at) => {
                    self.restart_at = None;
                    self.start_worker();
                }
                _ = tick.tick() => {
                    self.leave_if_succeeded();
                    self.end_overdue();
                    if self.ended_idle {
                        // Connections that were cut may keep it for long.
                        self.kept.clear_disk().await;
                    }
                    self.kept.save_if_due().await;
                }
            }
            if self.end_by.is_some() {
                // The agent's connection closes with it: new pods go to another proxy.
                requests = None;
            }
        }
    }

    /// Leaves what the next proxy on this node starts from; nothing, where no pod was served any
    /// more: the mesh may have left the node.
    async fn leave_disk(&mut self) {
        if self.ended_idle {
            self.kept.clear_disk().await;
        }
        self.kept.save_last().await;
    }

    fn answer(&mut self, asked: Asked) {
        let Asked { event, netns, answer } = asked;
        let outcome = match event {
            Event::Serve(pod) => match netns {
                Some(netns) => return self.serve_pod(&pod, netns, answer),
                None => Err("a pod came without its network namespace".to_owned()),
            },
            Event::Keep(uid) if self.pods.contains_key(&uid) => Ok(()),
            Event::Keep(uid) => Err(format!("pod {uid} is not served here")),
            Event::Stop(uid) => {
                self.stop_pod(&uid);
                Ok(())
            }
            Event::Complete(gone) => {
                gone.iter().for_each(|uid| self.stop_pod(uid));
                self.complete_snapshot();
                Ok(())
            }
            Event::Refuse(refusal) => Err(refusal.to_string()),
        };
        // An agent that has gone meanwhile will ask again.
        drop(answer.send(outcome));
    }

    fn serve_pod(
        &mut self,
        pod: &Pod,
        netns: ambit_net::namespace::NetNs,
        answer: oneshot::Sender<Result<(), String>>,
    ) {
        let info = PodInfo {
            uid: pod.uid.to_string(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            service_account: pod.service_account.to_string(),
        };
        if let Some(served) = self.pods.get_mut(&pod.uid)
            && served.sockets.are_in(&netns)
            && served.info == info
        {
            if served.held {
                drop(answer.send(Ok(())));
            } else {
                served.waiting = Some(answer);
            }
            return;
        }
        self.stop_pod(&pod.uid);
        let sockets = match PodSockets::open(netns, &self.options) {
            Ok(sockets) => sockets,
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::new(error));
                warn!(pod = %pod.name, namespace = %pod.namespace, %reason, "cannot serve a pod");
                drop(answer.send(Err(reason)));
                return;
            }
        };
        info!(pod = %pod.name, namespace = %pod.namespace, uid = %pod.uid, "serving a pod");
        for worker in self.workers.values().filter(|worker| worker.phase != Phase::Draining) {
            sockets.messages(&info).into_iter().for_each(|message| worker.send(message));
        }
        let served = ServedPod { info, sockets, held: false, waiting: Some(answer) };
        self.pods.insert(pod.uid.clone(), served);
    }

    /// Forgets a pod and closes its sockets here; workers finish its connections.
    fn stop_pod(&mut self, uid: &Text) {
        let Some(served) = self.pods.remove(uid) else { return };
        info!(pod = served.info.name, namespace = served.info.namespace, %uid, "pod is gone");
        let header = ToWorker::RemovePod { uid: uid.to_string() };
        self.workers.values().for_each(|worker| worker.send(Message::bare(header.clone())));
    }

    fn complete_snapshot(&mut self) {
        info!(pods = self.pods.len(), "the node agent has named all pods");
        self.enrolled = true;
        self.workers.values().for_each(|worker| worker.send(Message::bare(ToWorker::Enrolled)));
    }

    /// Starts a worker and hands it everything. Without success, tries again later.
    fn start_worker(&mut self) {
        if self.end_by.is_some() {
            return;
        }
        self.next_id += 1;
        let id = self.next_id;
        let started = Worker::start(self.launcher.as_mut(), id, &self.said);
        let messages = self.kept.messages();
        let (worker, messages) = match (started, messages) {
            (Ok(worker), Ok(messages)) => (worker, messages),
            (Ok(worker), Err(error)) => {
                warn!(%error, "no memory for the view; the worker asks the control plane for it");
                (worker, Vec::new())
            }
            (Err(error), _) => {
                let wait = self.restarts.after_death(Phase::Starting, Duration::ZERO);
                error!(%error, "cannot start a worker");
                self.restart_at = Some(Instant::now() + wait.max(TICK));
                return;
            }
        };
        info!(pid = worker.pid, "started a worker");
        messages.into_iter().for_each(|message| worker.send(message));
        if let Some(operator) = &self.operator {
            worker.send(operator.message());
        }
        for pod in self.pods.values() {
            pod.sockets.messages(&pod.info).into_iter().for_each(|message| worker.send(message));
        }
        if self.enrolled {
            worker.send(Message::bare(ToWorker::Enrolled));
        }
        worker.send(Message::bare(ToWorker::Start));
        self.workers.insert(id, worker);
    }

    /// Takes in what happened to a worker; returns what an operator wants, if that is it.
    fn hear(&mut self, id: u64, said: Said) -> Option<Wish> {
        match said {
            Said::Message(header, fds) => return self.listen(id, header, fds),
            Said::Broken(error) => {
                error!(error = format!("{:#}", anyhow::Error::new(error)), "ending a worker");
                if let Some(worker) = self.workers.get(&id) {
                    worker.end();
                }
            }
            Said::Exited(how) => self.bury(id, &how),
        }
        None
    }

    fn listen(&mut self, id: u64, header: FromWorker, mut fds: Descriptors) -> Option<Wish> {
        // A worker on its way out keeps its own view: the next one's is the one that counts.
        let in_charge = self.workers.get(&id).is_some_and(|w| w.phase != Phase::Draining);
        match header {
            FromWorker::Ready => self.put_in_charge(id),
            FromWorker::PodHeld { uid } if in_charge => self.settle(&uid, Ok(())),
            FromWorker::PodRefused { uid, reason } if in_charge => self.settle(&uid, Err(reason)),
            FromWorker::Replace => return Some(Wish::Replace),
            FromWorker::Quit => return Some(Wish::End),
            FromWorker::AskOthers { question } => self.ask_others(id, question),
            FromWorker::Forget { identity } if in_charge => {
                self.kept.forget_certificate(&identity);
            }
            header if in_charge => self.keep(header, &mut fds),
            _ => {}
        }
        None
    }

    /// Makes the other workers list their connections for the worker that asks. Waits for nothing.
    fn ask_others(&mut self, id: u64, question: u64) {
        let mut answers = Vec::new();
        let mut left_out = 0;
        let others = self.workers.iter_mut().filter(|(other, _)| **other != id);
        for (_, worker) in others.filter(|(_, worker)| worker.phase != Phase::Starting) {
            let has_room = answers.len() < MAX_ASKED_WORKERS;
            match has_room.then(|| worker.ask_for_connections()).flatten() {
                Some(answer) => answers.push(answer),
                None => left_out += 1,
            }
        }
        let Some(asker) = self.workers.get(&id) else { return };
        let header = ToWorker::OthersAsked { question, workers: answers.len(), left_out };
        asker.send(Message { header, fds: answers });
    }

    fn keep(&mut self, header: FromWorker, fds: &mut Descriptors) {
        let file = match fds.sealed("of the worker") {
            Ok(file) => file,
            Err(error) => {
                error!(error = format!("{:#}", anyhow::Error::new(error)), "not kept");
                return;
            }
        };
        let kept = match header {
            FromWorker::View { complete } => self.kept.keep_view(&file, complete),
            FromWorker::Revocations => self.kept.keep_revocations(&file),
            FromWorker::Certificate { identity } => {
                self.kept.keep_certificate(identity, file);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = kept {
            error!(error = format!("{:#}", anyhow::Error::new(error)), "not kept");
        }
    }

    /// A worker is ready: it serves from now on, others finish what they have.
    fn put_in_charge(&mut self, id: u64) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.phase != Phase::Starting {
            return;
        }
        info!(pid = worker.pid, took = ?worker.since.elapsed(), "the worker is ready");
        worker.enter(Phase::Serving);
        program::give_back_start();
        let others = self.workers.iter_mut().filter(|(other, _)| **other != id);
        for (_, worker) in others.filter(|(_, worker)| worker.phase == Phase::Serving) {
            info!(pid = worker.pid, "the worker before it finishes its connections");
            worker.enter(Phase::Draining);
            worker.send(Message::bare(ToWorker::StopAccepting { deadline_ms: None }));
        }
    }

    fn settle(&mut self, uid: &str, outcome: Result<(), String>) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.held |= outcome.is_ok();
        if let Some(waiting) = pod.waiting.take() {
            // An agent that has gone meanwhile will ask again.
            drop(waiting.send(outcome));
        }
    }

    fn bury(&mut self, id: u64, how: &str) {
        let Some(worker) = self.workers.remove(&id) else { return };
        let (pid, phase) = (worker.pid, worker.phase);
        if phase == Phase::Draining {
            info!(pid, how, "the worker has finished");
            return;
        }
        error!(pid, how, ?phase, "a worker died; its listeners go on queueing");
        let others = self.workers.values().any(|worker| worker.phase != Phase::Draining);
        if others || self.end_by.is_some() {
            return;
        }
        self.pods.values_mut().for_each(|pod| pod.held = false);
        match self.restarts.after_death(phase, worker.since.elapsed()) {
            Duration::ZERO => self.start_worker(),
            wait => self.restart_at = Some(Instant::now() + wait),
        }
    }

    fn obey(&mut self, wish: Wish) {
        match wish {
            Wish::Replace if self.end_by.is_some() => {}
            Wish::Replace if self.workers.values().any(|w| w.phase == Phase::Starting) => {
                info!("a new worker is starting already");
            }
            Wish::Replace => {
                info!("starting a new worker beside the old one");
                self.start_worker();
            }
            Wish::End if self.end_by.is_some() => {
                warn!("asked to end once more: cutting what is left");
                self.workers.values().for_each(Worker::end);
            }
            Wish::End => self.leave(),
        }
    }

    /// Ends as soon as another proxy serves the pods; asked again, at once.
    ///
    /// Kubernetes starts none before this one is gone when a pod is deleted by hand, and pods that
    /// are still captured must not be left without a proxy for the length of the grace.
    fn leave(&mut self) {
        if let Some(leave_by) = self.leave_by {
            return self.begin_end(leave_by);
        }
        self.leave_by = Some(Instant::now() + self.termination_deadline);
        self.leave_if_succeeded();
        if self.end_by.is_none() {
            info!(
                pods = self.pods.len(),
                "asked to end, and no other proxy serves the pods: serving until one does"
            );
        }
    }

    fn leave_if_succeeded(&mut self) {
        let Some(leave_by) = self.leave_by.filter(|_| self.end_by.is_none()) else { return };
        let is_late = Instant::now() + LAST_CALL.min(self.termination_deadline / 2) >= leave_by;
        if is_late || self.pods.values().all(|pod| pod.sockets.have_successor()) {
            self.begin_end(leave_by);
        }
    }

    /// Closes every listener, so that another proxy's take over what is queued, and lets the
    /// workers finish.
    fn begin_end(&mut self, end_by: Instant) {
        let deadline = end_by.saturating_duration_since(Instant::now());
        info!(?deadline, "ending: connections may finish until the deadline");
        self.end_by = Some(end_by);
        self.restart_at = None;
        self.ended_idle = self.enrolled && self.pods.is_empty();
        self.pods.clear();
        self.operator = None;
        let deadline_ms = Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
        for worker in self.workers.values_mut() {
            if worker.phase == Phase::Starting {
                worker.end();
            }
            worker.enter(Phase::Draining);
            worker.send(Message::bare(ToWorker::StopAccepting { deadline_ms }));
        }
    }

    /// Ends workers that do not get ready, or do not end themselves.
    fn end_overdue(&self) {
        let past_end = self.end_by.is_some_and(|end| Instant::now() > end + END_MARGIN);
        for worker in self.workers.values() {
            let stuck = worker.phase == Phase::Starting && worker.since.elapsed() > START_LIMIT;
            if stuck || past_end {
                error!(pid = worker.pid, phase = ?worker.phase, "ending an overdue worker");
                worker.end();
            }
        }
    }
}

/// The agent's next request; never, once its connection was given up.
async fn next_request(requests: &mut Option<mpsc::Receiver<Asked>>) -> Asked {
    let asked = match requests {
        Some(requests) => requests.recv().await,
        None => None,
    };
    match asked {
        Some(asked) => asked,
        None => std::future::pending().await,
    }
}

async fn restart_time(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
