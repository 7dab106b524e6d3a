//! What the agent has done on other threads: kernel work, reports, withdrawals.
//!
//! Every job ends; those of the kernel share a bounded number of threads. A job never changes the
//! agent's state: it answers with what happened.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{LinkWatch, NetlinkError};
use ambit_net::nftables::Watch;
use ambit_wire::capture::Obstacle;
use ambit_words::error_chain;
use tokio::sync::{Semaphore, oneshot};

use crate::capture::rules::Extent;
use crate::capture::{self, CaptureError, Drift, Occasion, Standing, ports};
use crate::enrolment::{Action, Outcome};
use crate::metrics::count;
use crate::monitor::Health;
use crate::node_side::{NodeSide, NodeSideError};
use crate::pod::{CaptureOptions, NewPod, PodName, PodUid, RegistryView};
use crate::registry::RegistryHandle;
use crate::registry::reports::{Report, ReportError, Reports};
use crate::zds_server::ZdsServer;

/// Kernel jobs at a time: each needs a thread.
const KERNEL_JOBS_MAX: u32 = 8;
/// How often it is tried to take back the report of a pod that no action takes back.
const CLEAR_TRIES: u32 = 8;
/// Wait before the second try; doubles with each further one.
const CLEAR_RETRY_MIN: Duration = Duration::from_millis(200);
/// Pause between two notifications of altered rules: whoever alters them all the time gets no more
/// of the agent's time than this.
const TAMPER_PAUSE: Duration = Duration::from_millis(100);

/// The same between two looks at new interfaces; a pod takes longer to start.
const LINKS_PAUSE: Duration = Duration::from_millis(50);

/// Why a job failed; the operator sees the whole chain.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    NodeSide(#[from] NodeSideError),
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Something to be done.
pub(crate) enum Job {
    /// An action of the enrolment machine, for a pod in this namespace.
    Act {
        action: Action,
        uid: PodUid,
        generation: u64,
        name: PodName,
        netns: Arc<NetNs>,
        ips: Vec<IpAddr>,
    },
    /// Waits until somebody alters the rules of a namespace.
    Watch { uid: PodUid, generation: u64, watch: Watch },
    /// Compares the node's own table and puts it right.
    MendNodeSide,
    /// Takes back the report of a pod that ended while no agent ran.
    ClearReport { name: PodName, uid: PodUid },
    /// Finds out what keeps a pod from being captured, and says so.
    Explain { uid: PodUid, generation: u64, name: PodName, netns: Arc<NetNs>, obstacle: Obstacle },
    /// Reads the registry anew for a pod that the CNI plugin announced.
    Refresh {
        registry: RegistryHandle,
        new_pod: NewPod,
        reply: oneshot::Sender<Result<(), String>>,
    },
}

/// What was done.
pub(crate) enum Done {
    /// Answer to [`Job::Act`].
    Acted {
        uid: PodUid,
        generation: u64,
        action: Action,
        outcome: Outcome,
        problem: Option<String>,
    },
    /// Answer to [`Job::Watch`].
    Tampered { uid: PodUid, generation: u64, watch: Watch },
    /// Answer to [`Job::MendNodeSide`].
    NodeSide,
    /// Answer to [`Job::ClearReport`].
    ReportCleared,
    /// Answer to [`Job::Explain`].
    Explained { uid: PodUid, generation: u64, name: PodName, obstacle: Obstacle },
    /// Answer to [`Job::Refresh`].
    Refreshed {
        new_pod: NewPod,
        reply: oneshot::Sender<Result<(), String>>,
        view: Result<Arc<RegistryView>, String>,
    },
}

/// The tools, shared by all jobs.
#[derive(Clone)]
pub(crate) struct Workshop {
    tools: Arc<Tools>,
    kernel_jobs: Arc<Semaphore>,
}

struct Tools {
    reports: Reports,
    node_side: NodeSide,
    zds: Arc<ZdsServer>,
    health: Arc<Health>,
    /// The mesh leaves the node: whoever reads reports may be gone already.
    leaving: AtomicBool,
}

impl Workshop {
    /// Tools that report captured pods there.
    pub(crate) fn new(
        reports: Reports,
        ipv6: bool,
        zds: Arc<ZdsServer>,
        health: Arc<Health>,
    ) -> Self {
        let (node_side, leaving) = (NodeSide::new(ipv6), AtomicBool::new(false));
        let tools = Tools { reports, node_side, zds, health, leaving };
        let kernel_jobs = Arc::new(Semaphore::new(KERNEL_JOBS_MAX as usize));
        Self { tools: Arc::new(tools), kernel_jobs }
    }

    /// The pods that an earlier agent reported as captured.
    pub(crate) fn reports(&self) -> Vec<(PodName, PodUid)> {
        listed(self.tools.reports.all())
    }

    /// The pods of which an earlier agent said why they are not captured.
    pub(crate) fn explained(&self) -> Vec<(PodName, PodUid)> {
        listed(self.tools.reports.explained())
    }

    /// Lets the node's connections to these addresses of a captured pod take the probe address.
    pub(crate) fn expect_probes(&self, uid: &PodUid, ips: &[IpAddr]) {
        if let Err(error) = self.tools.node_side.insert(uid, ips) {
            count(&self.tools.health.metrics.failures);
            tracing::warn!(error = %error_chain(&error), "probes of a captured pod may be refused \
                until the node's table is put right");
        }
    }

    /// From here on the mesh leaves the node, and does not wait for those who read reports.
    pub(crate) fn leave(&self) {
        self.tools.leaving.store(true, Ordering::Relaxed);
    }

    /// Removes what is left in these namespaces, and the node's own table; says how many open
    /// connections that cut.
    pub(crate) async fn erase(&self, left: Vec<(PodName, Arc<NetNs>)>) -> usize {
        // All of them: what another job has begun must not come after.
        self.on_thread_with(KERNEL_JOBS_MAX, move |tools| {
            let mut all = 0;
            for (name, netns) in left {
                let cut = capture::connections(&netns).unwrap_or(0);
                all += cut;
                match capture::remove_all(&netns) {
                    Ok(()) => tracing::warn!(pod = %name, cut, "out of the mesh, with open \
                        connections"),
                    Err(error) => tracing::error!(pod = %name, error = %error_chain(&error),
                        "rules are left in the pod's network namespace"),
                }
            }
            if let Err(error) = tools.node_side.erase() {
                tracing::error!(error = %error_chain(&error), "the node's own table is left");
            }
            all
        })
        .await
    }

    /// Guards every port of a bridge as soon as it is there; for ever. When the notifications
    /// break, the periodic comparison has to do.
    pub(crate) async fn guard_new_ports(&self) {
        let watched = async {
            let mut links = LinkWatch::open()?;
            loop {
                links.changed().await?;
                self.on_thread(|tools| tools.guard_new_ports()).await;
                tokio::time::sleep(LINKS_PAUSE).await;
            }
        };
        let ended: Result<Infallible, NetlinkError> = watched.await;
        let Err(error) = ended;
        tracing::warn!(error = %error_chain(&error), "no more notifications of new interfaces");
        std::future::pending().await
    }

    /// The node's connections to the addresses of this pod keep their own.
    pub(crate) fn expect_no_probes(&self, uid: &PodUid) {
        if let Err(error) = self.tools.node_side.remove(uid) {
            count(&self.tools.health.metrics.failures);
            tracing::warn!(error = %error_chain(&error), "the node's table; put right later");
        }
    }

    /// The job as a future that does it; it ends by itself.
    pub(crate) fn start(&self, job: Job) -> impl Future<Output = Done> + Send + use<> {
        let workshop = self.clone();
        async move {
            match job {
                Job::Act { action, uid, generation, name, netns, ips } => {
                    let work = Work { uid, name, netns, ips };
                    workshop.act(action, generation, work).await
                }
                Job::Watch { uid, generation, mut watch } => {
                    altered(&mut watch).await;
                    Done::Tampered { uid, generation, watch }
                }
                Job::MendNodeSide => {
                    workshop.on_thread(|tools| tools.mend_node_side()).await;
                    Done::NodeSide
                }
                Job::ClearReport { name, uid } => {
                    workshop.clear_report(&name, &uid).await;
                    Done::ReportCleared
                }
                Job::Explain { uid, generation, name, netns, obstacle } => {
                    let obstacle = workshop.explain(&name, &uid, netns, obstacle).await;
                    Done::Explained { uid, generation, name, obstacle }
                }
                Job::Refresh { registry, new_pod, reply } => {
                    let view = registry.refresh(&new_pod).await;
                    Done::Refreshed { new_pod, reply, view }
                }
            }
        }
    }

    async fn act(&self, action: Action, generation: u64, work: Work) -> Done {
        let uid = work.uid.clone();
        let withdraw = matches!(action, Action::Withdraw | Action::Forget);
        let result = self.work_and_report(action, work).await;
        if withdraw {
            // Also when the report could not be cleared: the proxy is to let go at once.
            self.tools.zds.withdraw(&uid);
            self.tools.zds.withdrawn(&uid).await;
        }
        let (outcome, problem) = match result {
            Ok(outcome) => (outcome, None),
            Err(error) => (Outcome::Failed, Some(error_chain(&error))),
        };
        Done::Acted { uid, generation, action, outcome, problem }
    }

    /// First the kernel, then the report: whoever writes reports may be away, and must not keep the
    /// kernel's threads waiting.
    async fn work_and_report(&self, action: Action, work: Work) -> Result<Outcome, WorkError> {
        let (name, uid) = (work.name.clone(), work.uid.clone());
        let (outcome, report) = self.on_thread(move |tools| tools.act(action, &work)).await?;
        let reports = &self.tools.reports;
        let reported = match action {
            Action::Program(_) | Action::Verify(_) => reports.mark(&name, &uid, report).await,
            Action::RemoveRedirects | Action::Withdraw | Action::Forget => {
                reports.clear(&name, &uid).await
            }
            _ => Ok(()),
        };
        match reported {
            Err(error) if self.tools.leaving.load(Ordering::Relaxed) => {
                let error = error_chain(&error);
                tracing::warn!(pod = %name, error, "stays reported as captured");
            }
            reported => reported?,
        }
        Ok(outcome)
    }

    /// Says what the obstacle is, by what the pod's namespace shows where that is more than was
    /// said.
    async fn explain(
        &self,
        name: &PodName,
        uid: &PodUid,
        netns: Arc<NetNs>,
        obstacle: Obstacle,
    ) -> Obstacle {
        let seen = match obstacle {
            Obstacle::Refused(reason) => {
                let told = reason.clone();
                let looked = self.on_thread(move |_| ports::obstacle(&netns, reason)).await;
                looked.unwrap_or_else(|error| {
                    tracing::debug!(pod = %name, error = %error_chain(&error), "who has its ports");
                    Obstacle::Refused(told)
                })
            }
            known => known,
        };
        if let Err(error) = self.tools.reports.explain(name, uid, &seen).await {
            let error = error_chain(&error);
            tracing::warn!(pod = %name, error, "why it is not captured is said in this log alone");
        }
        seen
    }

    async fn clear_report(&self, name: &PodName, uid: &PodUid) {
        let mut wait = CLEAR_RETRY_MIN;
        for _ in 1..CLEAR_TRIES {
            let Err(error) = self.tools.reports.clear(name, uid).await else { return };
            count(&self.tools.health.metrics.failures);
            tracing::warn!(pod = %name, error = %error_chain(&error), "still reported as captured");
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        if let Err(error) = self.tools.reports.clear(name, uid).await {
            let error = error_chain(&error);
            tracing::error!(pod = %name, error, "stays reported as captured");
        }
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tools) -> T + Send + 'static,
    ) -> T {
        self.on_thread_with(1, work).await
    }

    /// Runs when so many jobs' places are free.
    async fn on_thread_with<T: Send + 'static>(
        &self,
        places: u32,
        work: impl FnOnce(&Tools) -> T + Send + 'static,
    ) -> T {
        let place = self.kernel_jobs.clone().acquire_many_owned(places).await;
        let tools = self.tools.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _place = place.expect("the semaphore is never closed");
            work(&tools)
        });
        done.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

/// The pod that an action is for.
struct Work {
    uid: PodUid,
    name: PodName,
    netns: Arc<NetNs>,
    ips: Vec<IpAddr>,
}

impl Tools {
    /// Does it, and says what there is to report of a captured pod.
    fn act(&self, action: Action, work: &Work) -> Result<(Outcome, Report), WorkError> {
        let occasion = match action {
            Action::Verify(_) => Occasion::Repair,
            _ => Occasion::Enrolment,
        };
        let outcome = match action {
            // The agent and the roster see to these; there is nothing to do in the kernel.
            Action::Announce | Action::Withdraw => Outcome::Done,
            Action::Inspect => Outcome::Inspected(capture::footprint(&work.netns)?),
            Action::Program(options) | Action::Verify(options) => {
                let standing = self.program(options, occasion, work)?;
                let report = Report { older: standing.older, lacks: standing.lacks };
                return Ok((Outcome::Done, report));
            }
            Action::RemoveRedirects => {
                capture::remove_redirects(&work.netns)?;
                self.node_side.remove(&work.uid)?;
                Outcome::Done
            }
            Action::CountConnections => {
                let drifts = capture::remove_redirects(&work.netns)?;
                self.note_repair(&work.name, &drifts);
                Outcome::Connections(capture::connections(&work.netns)?)
            }
            Action::RemoveAll => {
                capture::remove_all(&work.netns)?;
                Outcome::Done
            }
            Action::Forget => {
                self.node_side.remove(&work.uid)?;
                Outcome::Done
            }
        };
        Ok((outcome, Report::default()))
    }

    /// The probe address first: between the redirect and it, probes would be refused.
    fn program(
        &self,
        options: CaptureOptions,
        occasion: Occasion,
        work: &Work,
    ) -> Result<Standing, WorkError> {
        self.node_side.insert(&work.uid, &work.ips)?;
        let standing = capture::program(&work.netns, options, Extent::Full, occasion)?;
        match occasion {
            Occasion::Repair => self.note_repair(&work.name, &standing.drifts),
            Occasion::Enrolment if standing.older > 0 => {
                tracing::info!(pod = %work.name, open = standing.older, "connections are older \
                    than the capture and go on in plain text");
            }
            Occasion::Enrolment => {}
        }
        Ok(standing)
    }

    fn note_repair(&self, name: &PodName, drifts: &[Drift]) {
        if drifts.is_empty() {
            return;
        }
        count(&self.health.metrics.repairs);
        let drifts: Vec<String> = drifts.iter().map(ToString::to_string).collect();
        tracing::warn!(pod = %name, altered = drifts.join("; "), "restored changed capture rules");
    }

    fn mend_node_side(&self) {
        match self.node_side.mend() {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => {
                tracing::info!(?differences, "the node's own table was corrected");
            }
            Err(error) => {
                count(&self.health.metrics.failures);
                tracing::warn!(error = %error_chain(&error), "the node's own table; tried again");
            }
        }
        self.health.forgeable.store(self.node_side.is_open(), Ordering::Relaxed);
    }

    fn guard_new_ports(&self) {
        if let Err(error) = self.node_side.guard_new_ports() {
            count(&self.health.metrics.failures);
            tracing::warn!(error = %error_chain(&error), "a new port of a bridge; tried again");
        }
        self.health.forgeable.store(self.node_side.is_open(), Ordering::Relaxed);
    }
}

/// What is known of earlier reports; nothing, where they cannot be read.
fn listed(reports: Result<Vec<(PodName, PodUid)>, ReportError>) -> Vec<(PodName, PodUid)> {
    reports.unwrap_or_else(|error| {
        tracing::warn!(error = %error_chain(&error), "cannot read the reports of an earlier agent");
        Vec::new()
    })
}

/// Ends when the rules of the namespace were altered, by whomever. When the notifications break it
/// never ends, and the periodic comparison has to do.
async fn altered(watch: &mut Watch) {
    match watch.changed().await {
        Ok(()) => tokio::time::sleep(TAMPER_PAUSE).await,
        Err(error) => {
            tracing::warn!(error = %error_chain(&error), "no more notifications of altered rules");
            std::future::pending().await
        }
    }
}
