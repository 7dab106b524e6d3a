//! What the agent has done on other threads: kernel work, reports, withdrawals.
//!
//! Every job ends; those of the kernel share a bounded number of threads. A job never changes the
//! agent's state: it answers with what happened.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::namespace::NetNs;
use ambit_net::nftables::Watch;
use tokio::sync::{Semaphore, oneshot};

use crate::capture::rules::Extent;
use crate::capture::{self, CaptureError, Drift};
use crate::cni::NewPod;
use crate::enrolment::{Action, Outcome};
use crate::metrics::count;
use crate::monitor::Health;
use crate::node_side::{NodeSide, NodeSideError};
use crate::pod::{CaptureOptions, PodName, PodUid, RegistryView};
use crate::registry::files::{CapturedFiles, RegistryError, RegistryHandle};
use crate::zds_server::ZdsServer;

/// Kernel jobs at a time: each needs a thread.
const KERNEL_JOBS_MAX: usize = 8;
/// Pause between two notifications of altered rules: whoever alters them all the time gets no more
/// of the agent's time than this.
const TAMPER_PAUSE: Duration = Duration::from_millis(100);

/// Why a job failed; the operator sees the whole chain.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    NodeSide(#[from] NodeSideError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
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
    /// Answer to [`Job::Refresh`].
    Refreshed {
        new_pod: NewPod,
        reply: oneshot::Sender<Result<(), String>>,
        view: Arc<RegistryView>,
    },
}

/// The tools, shared by all jobs.
#[derive(Clone)]
pub(crate) struct Workshop {
    tools: Arc<Tools>,
    kernel_jobs: Arc<Semaphore>,
}

struct Tools {
    captured: CapturedFiles,
    node_side: NodeSide,
    zds: Arc<ZdsServer>,
    health: Arc<Health>,
}

impl Workshop {
    /// Tools for the registry in this directory.
    pub(crate) fn new(
        registry: &Path,
        ipv6: bool,
        zds: Arc<ZdsServer>,
        health: Arc<Health>,
    ) -> Self {
        let captured = CapturedFiles::new(registry);
        let tools = Tools { captured, node_side: NodeSide::new(ipv6), zds, health };
        let kernel_jobs = Arc::new(Semaphore::new(KERNEL_JOBS_MAX));
        Self { tools: Arc::new(tools), kernel_jobs }
    }

    /// The pods that an earlier agent reported as captured.
    pub(crate) fn reports(&self) -> Vec<(PodName, PodUid)> {
        self.tools.captured.all().unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "cannot read the reports of captured pods");
            Vec::new()
        })
    }

    /// Lets the node's connections to these addresses of a captured pod take the probe address.
    pub(crate) fn expect_probes(&self, uid: &PodUid, ips: &[IpAddr]) {
        if let Err(error) = self.tools.node_side.insert(uid, ips) {
            count(&self.tools.health.metrics.failures);
            tracing::warn!(error = %chain(&error), "probes of a captured pod may be refused until \
                the node's table is put right");
        }
    }

    /// Takes back everything that names a pod outside of its namespace.
    pub(crate) fn forget(&self, name: &PodName, uid: &PodUid) {
        self.tools.clear_report(name, uid);
        if let Err(error) = self.tools.node_side.remove(uid) {
            count(&self.tools.health.metrics.failures);
            tracing::warn!(error = %chain(&error), "the node's table; put right later");
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
                    workshop.on_thread(move |tools| tools.clear_report(&name, &uid)).await;
                    Done::ReportCleared
                }
                Job::Refresh { registry, new_pod, reply } => {
                    let current = registry.view.borrow().clone();
                    let view = registry.refresh().await.unwrap_or(current);
                    Done::Refreshed { new_pod, reply, view }
                }
            }
        }
    }

    async fn act(&self, action: Action, generation: u64, work: Work) -> Done {
        let uid = work.uid.clone();
        let withdraw = matches!(action, Action::Withdraw | Action::Forget);
        let result = self.on_thread(move |tools| tools.act(action, &work)).await;
        if withdraw {
            // Also when the report could not be cleared: the proxy is to let go at once.
            self.tools.zds.withdraw(&uid);
            self.tools.zds.withdrawn(&uid).await;
        }
        let (outcome, problem) = match result {
            Ok(outcome) => (outcome, None),
            Err(error) => (Outcome::Failed, Some(chain(&error))),
        };
        Done::Acted { uid, generation, action, outcome, problem }
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tools) -> T + Send + 'static,
    ) -> T {
        let place = self.kernel_jobs.clone().acquire_owned().await;
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
    fn act(&self, action: Action, work: &Work) -> Result<Outcome, WorkError> {
        match action {
            // The agent and the roster see to these; there is nothing to do in the kernel.
            Action::Announce | Action::Withdraw => Ok(Outcome::Done),
            Action::Inspect => Ok(Outcome::Inspected(capture::footprint(&work.netns)?)),
            Action::Program(options) => {
                self.program(options, work)?;
                Ok(Outcome::Done)
            }
            Action::Verify(options) => {
                let drifts = self.program(options, work)?;
                self.note_repair(&work.name, &drifts);
                Ok(Outcome::Done)
            }
            Action::RemoveRedirects => {
                capture::remove_redirects(&work.netns)?;
                self.captured.clear(&work.name, &work.uid)?;
                self.node_side.remove(&work.uid)?;
                Ok(Outcome::Done)
            }
            Action::CountConnections => {
                let drifts = capture::remove_redirects(&work.netns)?;
                self.note_repair(&work.name, &drifts);
                Ok(Outcome::Connections(capture::connections(&work.netns)?))
            }
            Action::RemoveAll => {
                capture::remove_all(&work.netns)?;
                Ok(Outcome::Done)
            }
            Action::Forget => {
                self.captured.clear(&work.name, &work.uid)?;
                self.node_side.remove(&work.uid)?;
                Ok(Outcome::Done)
            }
        }
    }

    /// The probe address first: between the redirect and it, probes would be refused.
    fn program(&self, options: CaptureOptions, work: &Work) -> Result<Vec<Drift>, WorkError> {
        self.node_side.insert(&work.uid, &work.ips)?;
        let drifts = capture::program(&work.netns, options, Extent::Full)?;
        self.captured.mark(&work.name, &work.uid)?;
        Ok(drifts)
    }

    fn note_repair(&self, name: &PodName, drifts: &[Drift]) {
        if drifts.is_empty() {
            return;
        }
        count(&self.health.metrics.repairs);
        let drifts: Vec<String> = drifts.iter().map(ToString::to_string).collect();
        tracing::warn!(pod = %name, altered = drifts.join("; "), "capture was altered, put right");
    }

    fn mend_node_side(&self) {
        match self.node_side.mend() {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => {
                tracing::info!(?differences, "the node's own table was brought in line");
            }
            Err(error) => {
                count(&self.health.metrics.failures);
                tracing::warn!(error = %chain(&error), "the node's own table; tried again");
            }
        }
    }

    fn clear_report(&self, name: &PodName, uid: &PodUid) {
        if let Err(error) = self.captured.clear(name, uid) {
            count(&self.health.metrics.failures);
            tracing::warn!(pod = %name, error = %chain(&error), "still reported as captured");
        }
    }
}

/// Ends when the rules of the namespace were altered, by whomever. When the notifications break it
/// never ends, and the periodic comparison has to do.
async fn altered(watch: &mut Watch) {
    match watch.changed().await {
        Ok(()) => tokio::time::sleep(TAMPER_PAUSE).await,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "no more notifications of altered rules");
            std::future::pending().await
        }
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
