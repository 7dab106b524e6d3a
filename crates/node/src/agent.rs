//! The agent: one task that knows every pod of the node and sees to it that each gets where the
//! plan wants it.
//!
//! It decides nothing itself: [`crate::plan`] says what is wished, [`crate::enrolment`] what comes
//! next, and [`crate::work`] does it on other threads. It never waits for a proxy, a pod or the
//! kernel, so that one stuck pod delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ambit_net::namespace::NetNs;
use ambit_net::nftables::Watch;
use ambit_wire::capture::Obstacle;
use ambit_words::departure::Answer;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::args::Settings;
use crate::cni::Announced;
use crate::course::Course;
use crate::enrolment::{Action, Enrolment, Footprint, Outcome, Wish};
use crate::metrics::count;
use crate::monitor::Health;
use crate::plan::{Intent, Planned, plan, status_of};
use crate::pod::{Defaults, NewPod, PodName, PodUid, RegistryView};
use crate::registry::RegistryHandle;
use crate::work::{Done, Job, Workshop};
use crate::zds_server::{Announcement, Standing, ZdsServer, now};

/// How long the CNI plugin waits for a pod to be captured before it is told to fail.
const CNI_DEADLINE: Duration = Duration::from_secs(10);
/// How long looking at the pods found at start may take before proxies are let in all the same.
const STARTUP_LIMIT: Duration = Duration::from_secs(10);
/// How often a namespace that could not be opened is tried again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Longest the agent sleeps with nothing to do.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A pod of this node whose namespace is open.
struct Tracked {
    name: PodName,
    service_account: String,
    netns: Arc<NetNs>,
    ips: Vec<IpAddr>,
    enrolment: Enrolment,
    /// Tells results for this namespace from those for one that the pod had before.
    generation: u64,
    waiting: Vec<Waiting>,
    /// What kept it from being captured when that was last tried.
    obstacle: Option<Obstacle>,
    /// The refusals of the proxy that were looked into.
    refusals: u32,
    /// Captured connections that were open when they were last counted, on its way out.
    connections: usize,
    watching: Option<tokio::task::AbortHandle>,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.take() {
            watching.abort();
        }
    }
}

/// A CNI plugin that waits for the pod to be captured.
struct Waiting {
    reply: oneshot::Sender<Result<(), String>>,
    deadline: Instant,
}

/// The agent's whole state.
pub(crate) struct Agent {
    settings: Settings,
    registry: RegistryHandle,
    zds: Arc<ZdsServer>,
    workshop: Workshop,
    health: Arc<Health>,
    zds_changes: watch::Receiver<()>,
    pods: BTreeMap<PodUid, Tracked>,
    announced: BTreeMap<PodUid, NewPod>,
    /// Ending pods of which only the uid is known.
    kept: BTreeMap<PodUid, PodName>,
    /// Pods that an earlier agent reported as captured.
    reported: BTreeSet<PodUid>,
    jobs: JoinSet<Done>,
    generations: u64,
    reopen_at: Option<Instant>,
    node_side_at: Option<Instant>,
    /// What is to become of the mesh on this node, and its next change.
    course: Course,
    courses: watch::Receiver<Course>,
    /// How far that is, for the one who ordered it.
    tell: watch::Sender<String>,
    /// Connections that were cut because the time for them was over.
    cut: Option<usize>,
}

/// The ends of the agent's channels and the tools it works with.
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) registry: RegistryHandle,
    pub(crate) zds: Arc<ZdsServer>,
    pub(crate) workshop: Workshop,
    pub(crate) health: Arc<Health>,
    /// What is to become of the mesh on this node.
    pub(crate) course: watch::Receiver<Course>,
    /// Takes how far that is.
    pub(crate) tell: watch::Sender<String>,
}

impl Agent {
    /// An agent that has looked at nothing yet.
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            settings: parts.settings,
            registry: parts.registry,
            zds_changes: parts.zds.changes(),
            zds: parts.zds,
            workshop: parts.workshop,
            health: parts.health,
            pods: BTreeMap::new(),
            announced: BTreeMap::new(),
            kept: BTreeMap::new(),
            reported: BTreeSet::new(),
            jobs: JoinSet::new(),
            generations: 0,
            reopen_at: None,
            node_side_at: None,
            course: Course::Stay,
            courses: parts.course,
            tell: parts.tell,
            cut: None,
        }
    }

    /// Looks at every pod that is there, so that the roster is whole before a proxy asks for it.
    pub(crate) async fn settle(&mut self) {
        let reports = self.workshop.reports();
        self.reported = reports.iter().map(|(_, uid)| uid.clone()).collect();
        let view = self.registry.view.borrow_and_update().clone();
        self.change_course();
        self.replan(&view);
        let deadline = now() + STARTUP_LIMIT;
        self.advance();
        while self.pods.values().any(|pod| pod.enrolment.is_unseen()) {
            let wake_at = self.wake_at().min(deadline);
            tokio::select! {
                Some(done) = self.jobs.join_next() => self.on_done(joined(done)),
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
            self.advance();
            if now() >= deadline {
                tracing::warn!("some pods could not be inspected yet; the proxy gets them later");
                break;
            }
        }
        // One that lives and whose namespace is not known yet may well be captured.
        let lives = |name: &PodName, uid: &PodUid| {
            status_of(&view, name, uid).is_some_and(|status| !status.terminated)
        };
        let gone = |(name, uid): &(PodName, PodUid)| {
            !self.pods.contains_key(uid) && !self.kept.contains_key(uid) && !lives(name, uid)
        };
        let explained = self.workshop.explained();
        for (name, uid) in reports.into_iter().chain(explained).filter(gone) {
            self.jobs.spawn(self.workshop.start(Job::ClearReport { name, uid }));
        }
        self.node_side_at = Some(now());
    }

    /// Keeps every pod where the plan wants it, until the agent is to end with the mesh: then until
    /// nothing is left, or until the moment given.
    pub(crate) async fn run(mut self, mut announced: mpsc::Receiver<Announced>) {
        loop {
            let is_ordered = self.courses.has_changed().unwrap_or(false);
            if is_ordered {
                self.change_course();
            }
            if is_ordered || self.close_when_over() {
                let view = self.registry.view.borrow().clone();
                self.replan(&view);
            }
            self.advance();
            match self.course {
                Course::End { until } if self.is_out() || until <= now() => break,
                Course::Leave { until, .. } if until <= now() && self.cut.is_none() => {
                    self.cut_off().await;
                    continue;
                }
                _ => self.tell_progress(),
            }
            let wake_at = self.wake_at();
            tokio::select! {
                Ok(()) = self.courses.changed() => self.courses.mark_changed(),
                Ok(()) = self.zds_changes.changed() => self.ask_standing(),
                Some(done) = self.jobs.join_next() => self.on_done(joined(done)),
                Ok(()) = self.registry.view.changed() => {
                    let view = self.registry.view.borrow_and_update().clone();
                    self.replan(&view);
                }
                Some(announced) = announced.recv() => self.on_announced(announced),
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
        self.cut_off().await;
    }

    fn change_course(&mut self) {
        self.course = self.courses.borrow_and_update().clone();
        self.close_when_over();
        self.cut = None;
        if let Course::End { .. } = self.course {
            self.workshop.leave();
        }
    }

    /// Stays after all if pods are to let plain connections in and the time for that is over.
    fn close_when_over(&mut self) -> bool {
        let is_over = matches!(self.course, Course::Open { until, .. } if until <= now());
        if is_over {
            tracing::error!(
                "the time is over for which pods were to let plain connections in, and nothing \
                 else was ordered: they are judged. If the order is new, clocks do not agree"
            );
            self.course = Course::Stay;
        }
        is_over
    }

    fn is_out(&self) -> bool {
        self.pods.values().all(|pod| pod.enrolment.is_out())
    }

    /// Removes what has not left by itself, and looks at it anew.
    async fn cut_off(&mut self) {
        self.jobs.shutdown().await;
        let mut left = Vec::new();
        for (uid, pod) in &mut self.pods {
            pod.watching = None;
            if !pod.enrolment.is_out() {
                self.zds.withdraw(uid);
                self.generations += 1;
                pod.generation = self.generations;
                pod.enrolment = Enrolment::new(Wish::Release, self.settings.repair_interval);
                left.push((pod.name.clone(), pod.netns.clone()));
            }
        }
        self.cut = Some(self.workshop.erase(left).await);
    }

    /// Says how far the agent is with what it was ordered.
    fn tell_progress(&self) {
        let told = match &self.course {
            Course::Stay | Course::End { .. } => return,
            Course::Open { order, .. } => {
                if !self.pods.values().all(|pod| pod.enrolment.admits_plain()) {
                    return;
                }
                Answer::Open.to(order)
            }
            Course::Leave { order, .. } if self.is_out() => {
                Answer::Left(self.cut.unwrap_or_default()).to(order)
            }
            Course::Leave { order, .. } => {
                let open: usize = self.pods.values().map(|pod| pod.connections).sum();
                Answer::Leaving(open).to(order)
            }
        };
        self.tell.send_if_modified(|before| {
            let is_news = *before != told;
            *before = told;
            is_news
        });
    }

    /// Starts whatever is due.
    fn advance(&mut self) {
        let now = now();
        if self.reopen_at.is_some_and(|moment| moment <= now) {
            let view = self.registry.view.borrow().clone();
            self.replan(&view);
        }
        if self.node_side_at.is_some_and(|moment| moment <= now) {
            self.node_side_at = None;
            self.jobs.spawn(self.workshop.start(Job::MendNodeSide));
        }
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in uids {
            while let Some(action) = self.pods.get_mut(&uid).and_then(|p| p.enrolment.next(now)) {
                self.start(&uid, action);
            }
        }
        let tracked = self.pods.len();
        self.pods.retain(|_, pod| !pod.enrolment.is_gone());
        if self.pods.len() < tracked {
            // One that came back while it was being forgotten is a new one.
            self.reopen_at = Some(now);
        }
        self.answer_waiting(now);
        self.report();
    }

    fn start(&mut self, uid: &PodUid, action: Action) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        if action == Action::Announce {
            let announcement = Announcement {
                name: pod.name.clone(),
                service_account: pod.service_account.clone(),
                netns: pod.netns.clone(),
            };
            self.zds.announce(uid, announcement);
            if self.zds.standing(uid) == Standing::Acknowledged {
                pod.enrolment.acknowledged();
            }
            return;
        }
        let job = Job::Act {
            action,
            uid: uid.clone(),
            generation: pod.generation,
            name: pod.name.clone(),
            netns: pod.netns.clone(),
            ips: pod.ips.clone(),
        };
        self.jobs.spawn(self.workshop.start(job));
    }

    fn on_done(&mut self, done: Option<Done>) {
        let Some(done) = done else { return };
        match done {
            Done::Acted { uid, generation, action, outcome, problem } => {
                self.on_acted(&uid, generation, action, outcome, problem);
            }
            Done::NodeSide => {
                self.node_side_at = Some(now() + self.settings.repair_interval);
            }
            Done::ReportCleared => {}
            Done::Explained { uid, generation, name, obstacle } => {
                self.on_explained(uid, generation, name, obstacle);
            }
            Done::Tampered { uid, generation, watch } => {
                if let Some(pod) = self.pods.get_mut(&uid)
                    && pod.generation == generation
                {
                    pod.enrolment.tampered();
                    let watch = Job::Watch { uid, generation, watch };
                    pod.watching = Some(self.jobs.spawn(self.workshop.start(watch)));
                }
            }
            Done::Refreshed { new_pod, reply, view } => self.on_refreshed(new_pod, reply, view),
        }
    }

    fn on_acted(
        &mut self,
        uid: &PodUid,
        generation: u64,
        action: Action,
        outcome: Outcome,
        problem: Option<String>,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        if pod.generation != generation {
            if !pod.enrolment.is_captured() {
                // The action was for the pod's earlier namespace and may have reported it late.
                let report = Job::ClearReport { name: pod.name.clone(), uid: uid.clone() };
                self.jobs.spawn(self.workshop.start(report));
            }
            return;
        }
        if let Some(problem) = &problem {
            count(&self.health.metrics.failures);
            tracing::warn!(pod = %pod.name, ?action, %problem, "will be tried again");
        } else {
            log_success(pod, action, outcome);
        }
        match problem.map(Obstacle::Failed) {
            Some(obstacle) if matches!(action, Action::Program(_)) => {
                let explain = explain(uid, pod, obstacle.clone());
                self.jobs.spawn(self.workshop.start(explain));
                pod.obstacle = Some(obstacle);
            }
            obstacle => pod.obstacle = obstacle,
        }
        if let Outcome::Connections(count) = outcome {
            pod.connections = count;
        }
        pod.enrolment.finish(outcome, now());
        let reported = outcome == Outcome::Inspected(Footprint::None) && self.reported.remove(uid);
        if reported && !pod.enrolment.is_wanted() {
            // Captured by an earlier agent, in a namespace that has ended with the node.
            let report = Job::ClearReport { name: pod.name.clone(), uid: uid.clone() };
            self.jobs.spawn(self.workshop.start(report));
        }
        if outcome == Outcome::Inspected(Footprint::Some) && pod.enrolment.is_wanted() {
            // Captured by an earlier agent: its address stays in the node's set.
            self.workshop.expect_probes(uid, &pod.ips);
        }
        if pod.enrolment.is_captured() && pod.watching.is_none() {
            match Watch::open_in(&pod.netns) {
                Ok(watch) => {
                    let watch = Job::Watch { uid: uid.clone(), generation, watch };
                    pod.watching = Some(self.jobs.spawn(self.workshop.start(watch)));
                    // What was altered before it was open, it does not tell.
                    pod.enrolment.tampered();
                }
                // The periodic comparison has to do.
                Err(error) => tracing::debug!(%error, "no notifications of altered rules"),
            }
        }
    }

    /// Something changed at the ZDS socket: pods that wait for a proxy may wait no longer.
    fn ask_standing(&mut self) {
        for (uid, pod) in &mut self.pods {
            if !pod.enrolment.is_unacknowledged() {
                continue;
            }
            match self.zds.standing(uid) {
                Standing::Unanswered => {}
                Standing::Acknowledged => {
                    (pod.obstacle, pod.refusals) = (None, 0);
                    pod.enrolment.acknowledged();
                }
                // Offered again and again: who is in the way may be another each time.
                Standing::Refused { reason, times } if times != pod.refusals => {
                    let obstacle = Obstacle::Refused(reason);
                    let explain = explain(uid, pod, obstacle.clone());
                    self.jobs.spawn(self.workshop.start(explain));
                    (pod.obstacle, pod.refusals) = (Some(obstacle), times);
                }
                Standing::Refused { .. } => {}
            }
        }
    }

    /// What keeps a pod out was found and told, which may have taken longer than it held.
    fn on_explained(&mut self, uid: PodUid, generation: u64, name: PodName, obstacle: Obstacle) {
        match self.pods.get_mut(&uid) {
            Some(pod) if pod.generation == generation && pod.enrolment.is_wanted() => {
                // Of one that is captured meanwhile the next report takes it back.
                if pod.enrolment.is_unacknowledged() && pod.obstacle.is_some() {
                    tracing::warn!(pod = %name, %obstacle, "cannot be captured yet");
                    pod.obstacle = Some(obstacle);
                }
            }
            Some(pod) if pod.enrolment.is_captured() => {}
            _ => {
                self.jobs.spawn(self.workshop.start(Job::ClearReport { name, uid }));
            }
        }
    }

    fn on_announced(&mut self, (new_pod, reply): Announced) {
        let registry = self.registry.clone();
        let refresh = Job::Refresh { registry, new_pod, reply };
        self.jobs.spawn(self.workshop.start(refresh));
    }

    /// The registry is as fresh as the announcement.
    fn on_refreshed(
        &mut self,
        new_pod: NewPod,
        reply: oneshot::Sender<Result<(), String>>,
        view: Result<Arc<RegistryView>, String>,
    ) {
        // Nobody waits for the answer any more: the plugin has given up and will come again.
        let answer = |reply: oneshot::Sender<_>, result| drop(reply.send(result));
        let view = match view {
            Ok(view) => view,
            Err(reason) => return answer(reply, Err(reason)),
        };
        let Some(object) = view.pods.get(&new_pod.name) else {
            answer(reply, Err("there is no such Pod object in the registry".to_owned()));
            return;
        };
        if !object.is_announced_by(&new_pod) {
            let uid = &object.uid;
            return answer(
                reply,
                Err(format!("the Pod object of that name has another uid: {uid}")),
            );
        }
        let uid = object.uid.clone();
        if status_of(&view, &new_pod.name, &uid).is_none_or(|status| status.netns.is_none()) {
            self.announced.insert(uid.clone(), new_pod.clone());
        }
        self.replan(&view);
        let planned = self.plan(&view);
        let wanted = planned.get(&uid).is_some_and(|planned| {
            matches!(planned.intent, Intent::Wished { wish: Wish::Capture(_), .. })
        });
        if !wanted {
            answer(reply, Ok(()));
            return;
        }
        match self.pods.get_mut(&uid) {
            Some(pod) => {
                pod.waiting.push(Waiting { reply, deadline: now() + CNI_DEADLINE });
            }
            None => {
                let path = new_pod.netns.display();
                answer(reply, Err(format!("its network namespace {path} cannot be opened")));
            }
        }
    }

    fn plan(&self, view: &RegistryView) -> BTreeMap<PodUid, Planned> {
        let defaults = Defaults { dns: self.settings.dns_capture, ipv6: self.settings.ipv6 };
        let mut plan = plan(view, &self.settings.node_name, defaults, &self.announced);
        for planned in plan.values_mut() {
            let Intent::Wished { wish, .. } = &mut planned.intent else { continue };
            match (&self.course, &mut *wish) {
                (Course::Open { .. }, Wish::Capture(options)) => options.bypass_inbound = true,
                (Course::Leave { .. } | Course::End { .. }, _) => *wish = Wish::Release,
                _ => {}
            }
        }
        plan
    }

    /// Compares the plan with what is tracked: new pods, changed wishes, pods that are gone.
    fn replan(&mut self, view: &RegistryView) {
        self.reopen_at = None;
        self.announced.retain(|uid, pod| {
            let status = status_of(view, &pod.name, uid);
            let object = view.pods.get(&pod.name).is_some_and(|object| object.uid == *uid);
            object && status.is_none_or(|s| s.netns.is_none() && !s.terminated)
        });
        let plan = self.plan(view);
        for (uid, pod) in &mut self.pods {
            if !plan.contains_key(uid) {
                pod.enrolment.wish(Wish::Forget);
            }
        }
        let kept = std::mem::take(&mut self.kept).into_iter();
        let (kept, ended): (_, BTreeMap<_, _>) = kept.partition(|(uid, _)| plan.contains_key(uid));
        self.kept = kept;
        for (uid, name) in ended {
            self.zds.withdraw(&uid);
            self.jobs.spawn(self.workshop.start(Job::ClearReport { name, uid }));
        }
        for (uid, planned) in plan {
            self.follow(uid, planned);
        }
    }

    /// Brings one tracked pod in line with the plan, or begins to track it.
    fn follow(&mut self, uid: PodUid, planned: Planned) {
        if let Some(pod) = self.pods.get_mut(&uid) {
            if pod.ips != planned.ips && pod.enrolment.is_captured() {
                self.workshop.expect_probes(&uid, &planned.ips);
            }
            pod.ips = planned.ips.clone();
            if planned.netns.inode().is_none_or(|inode| inode == pod.netns.inode()) {
                if let Intent::Wished { wish, .. } = planned.intent {
                    pod.enrolment.wish(wish);
                }
                return;
            }
        }
        let (wish, service_account) = match (&planned.intent, self.pods.get(&uid)) {
            (Intent::Wished { wish, service_account }, _) => (*wish, service_account.clone()),
            (Intent::AsBefore, Some(_)) => return,
            (Intent::AsBefore, None) => {
                if self.reported.remove(&uid) {
                    self.zds.keep(&uid);
                    self.kept.insert(uid, planned.name);
                }
                return;
            }
        };
        let netns = match planned.netns.open() {
            Ok(netns) => netns,
            Err(problem) => {
                tracing::warn!(pod = %planned.name, %problem, "cannot be captured yet");
                self.reopen_at = Some(now() + REOPEN_INTERVAL);
                return;
            }
        };
        self.track(uid, planned, service_account, wish, netns);
    }

    fn track(
        &mut self,
        uid: PodUid,
        planned: Planned,
        service_account: String,
        wish: Wish,
        netns: Arc<NetNs>,
    ) {
        self.generations += 1;
        let waiting = match self.pods.remove(&uid) {
            Some(mut earlier) => {
                // Its namespace is gone, and with it all that was captured in there.
                self.zds.withdraw(&uid);
                self.workshop.expect_no_probes(&uid);
                let report = Job::ClearReport { name: earlier.name.clone(), uid: uid.clone() };
                self.jobs.spawn(self.workshop.start(report));
                std::mem::take(&mut earlier.waiting)
            }
            None => Vec::new(),
        };
        let pod = Tracked {
            name: planned.name,
            service_account,
            netns,
            ips: planned.ips,
            enrolment: Enrolment::new(wish, self.settings.repair_interval),
            generation: self.generations,
            waiting,
            obstacle: None,
            refusals: 0,
            connections: 0,
            watching: None,
        };
        self.pods.insert(uid, pod);
    }

    fn answer_waiting(&mut self, now: Instant) {
        let connected = self.zds.has_proxy();
        for pod in self.pods.values_mut().filter(|pod| !pod.waiting.is_empty()) {
            let result = if pod.enrolment.is_captured() || !pod.enrolment.is_wanted() {
                Some(Ok(()))
            } else {
                None
            };
            let (ended, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut pod.waiting)
                .into_iter()
                .filter(|waiting| !waiting.reply.is_closed())
                .partition(|waiting| result.is_some() || waiting.deadline <= now);
            pod.waiting = waiting;
            for waiting in ended {
                let late = || Err(why_not_captured(pod, connected));
                drop(waiting.reply.send(result.clone().unwrap_or_else(late)));
            }
        }
    }

    fn report(&self) {
        let metrics = &self.health.metrics;
        let captured = self.pods.values().filter(|pod| pod.enrolment.is_captured()).count();
        let wanted = self.pods.values().filter(|pod| pod.enrolment.is_wanted()).count();
        metrics.enrolled.store(captured as u64, Ordering::Relaxed);
        metrics.pending.store(wanted.saturating_sub(captured) as u64, Ordering::Relaxed);
    }

    fn wake_at(&self) -> Instant {
        let pods = self.pods.values().filter_map(|pod| pod.enrolment.wake_at());
        let waiting = self.pods.values().flat_map(|pod| &pod.waiting).map(|w| w.deadline);
        let end = match self.course {
            Course::Leave { until, .. } if self.cut.is_none() => Some(until),
            Course::Open { until, .. } | Course::End { until } => Some(until),
            _ => None,
        };
        let others = [self.reopen_at, self.node_side_at, end].into_iter().flatten();
        let latest = now() + IDLE_MAX;
        pods.chain(waiting).chain(others).min().unwrap_or(latest).min(latest)
    }
}

fn joined(result: Result<Done, tokio::task::JoinError>) -> Option<Done> {
    match result {
        Ok(done) => Some(done),
        // The watch of a pod that is gone.
        Err(error) if error.is_cancelled() => None,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn explain(uid: &PodUid, pod: &Tracked, obstacle: Obstacle) -> Job {
    let (name, netns) = (pod.name.clone(), pod.netns.clone());
    Job::Explain { uid: uid.clone(), generation: pod.generation, name, netns, obstacle }
}

fn why_not_captured(pod: &Tracked, connected: bool) -> String {
    match &pod.obstacle {
        Some(obstacle) => obstacle.to_string(),
        None if !connected => "no node proxy is connected to the agent (is `ambit proxy` or \
            ztunnel running on this node?)"
            .to_owned(),
        None if pod.enrolment.is_unacknowledged() => {
            "the node proxy has not acknowledged it yet".to_owned()
        }
        None => "capture is not in place yet".to_owned(),
    }
}

fn log_success(pod: &Tracked, action: Action, outcome: Outcome) {
    let name = &pod.name;
    match (action, outcome) {
        (Action::Program(_), _) => tracing::info!(pod = %name, "captured"),
        (Action::RemoveRedirects, _) => {
            tracing::info!(pod = %name, "no longer captured; open connections go on");
        }
        (Action::RemoveAll, _) => tracing::info!(pod = %name, "out of the mesh"),
        (Action::Forget, _) => tracing::info!(pod = %name, "ended"),
        (Action::CountConnections, Outcome::Connections(count)) if count > 0 => {
            tracing::debug!(pod = %name, count, "captured connections are still open");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Source;
    use crate::monitor;
    use crate::registry::files::{CapturedFiles, follow};
    use crate::registry::reports::Reports;
    use crate::testbed::{Directory, write_atomically};

    fn settings(directory: &Directory) -> Settings {
        Settings {
            node_name: "node-1".to_owned(),
            source: Source::Files(directory.path("registry")),
            zds_socket: directory.path("ztunnel.sock"),
            cni_socket: directory.path("pluginevent.sock"),
            dns_capture: true,
            ipv6: true,
            readiness_address: ([127, 0, 0, 1], 0).into(),
            repair_interval: Duration::from_secs(5),
            cni: None,
            taint: None,
            daemon_set: None,
            own_pod: None,
            uninstall: false,
            uninstall_grace: Duration::from_secs(20),
        }
    }

    /// Runs in a namespace, in simulated time.
    fn simulate<T: Send>(netns: &NetNs, test: impl Future<Output = T> + Send) -> T {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().start_paused(true).build().expect("a runtime").block_on(test)
        };
        netns.run(runtime).expect("enter")
    }

    #[test]
    fn the_cni_plugin_is_told_in_time_why_a_pod_is_not_captured() {
        let directory = Directory::new("deadline");
        let registry = directory.path("registry");
        let pod = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u1",
            "labels":{"istio.io/dataplane-mode":"ambient"}},"spec":{"nodeName":"node-1"}}"#;
        write_atomically(&registry.join("objects/pods/shop/web.json"), pod);
        let (node, sandbox) = (NetNs::create().expect("needs root"), NetNs::create().expect("ns"));
        let path = directory.path("netns");
        sandbox.pin(&path).expect("pin");
        let settings = settings(&directory);
        let (result, waited) = simulate(&node, async {
            let (handle, following) = follow(&registry).await.expect("follow");
            let health = Arc::new(monitor::Health::default());
            let zds = Arc::new(ZdsServer::new(health.clone()));
            let reports = Reports::Files(CapturedFiles::new(&registry));
            let workshop = Workshop::new(reports, true, zds.clone(), health.clone());
            let (_stay, course) = watch::channel(Course::Stay);
            let (tell, _told) = watch::channel(String::new());
            let parts = Parts { settings, registry: handle, zds, workshop, health, course, tell };
            let mut agent = Agent::new(parts);
            agent.settle().await;
            let (announced, announcements) = mpsc::channel(1);
            let (reply, replied) = oneshot::channel();
            let name = PodName::new("shop", "web");
            let new_pod = NewPod { name, uid: None, netns: path.clone(), ips: Vec::new() };
            announced.send((new_pod, reply)).await.expect("taken");
            let began = now();
            tokio::select! {
                result = replied => (result.expect("answered"), now() - began),
                () = agent.run(announcements) => unreachable!("the agent runs on"),
                () = following => unreachable!("the registry is followed"),
            }
        });
        ambit_net::namespace::unpin(&path).expect("unpin");
        assert!(result.expect_err("refused").starts_with("no node proxy is connected"));
        assert!(waited >= CNI_DEADLINE, "{waited:?}");
        assert!(waited < CNI_DEADLINE + Duration::from_secs(1), "{waited:?}");
    }
}
