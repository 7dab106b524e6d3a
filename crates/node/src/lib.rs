//! Role: the node agent, which replaces istio-cni: it decides which pods of its node are in the
//! mesh, programs capture in their network namespaces and hands them to the node proxy over ZDS.
//!
//! The agent holds nothing that traffic needs: rules are in the kernel, connections in the proxy.
//! Killing it disturbs nothing, and a new one continues where the old one stopped. It never reads
//! or forwards a byte of the pods' traffic, and never touches a namespace that no pod of this node
//! owns, except for its own table in the node's.
//!
//! | module | holds |
//! |---|---|
//! | `args` | flags and settings |
//! | `registry` | pods, namespaces, statuses: from files or a cluster; reports of captured pods |
//! | `place` | where a pod's network namespace is |
//! | `pod`, `plan` | which pods belong in the mesh, and what is wanted for each: pure |
//! | `enrolment` | one pod's way in and out: a state machine without I/O |
//! | `agent`, `work` | the task that runs the state machines, and its jobs on other threads |
//! | `capture` | rules, routes and parameters in a pod's namespace |
//! | `bridges` | forged probes between pods on one bridge, with or without nftables for bridges |
//! | `node_side` | probes of the node: source address and the set of captured pods |
//! | `zds_server` | the proxies' socket |
//! | `cni`, `monitor` | the CNI plugin's socket; readiness and metrics |
//! | `plugin`, `install` | the CNI plugin itself; its place in the node's configuration |
//! | `cluster` | the node's taint, the agent's DaemonSet |
//! | `course`, `departure` | whether the mesh stays on the node; how it leaves |

use ambit_apiserver::ConnectError;

mod agent;
mod args;
mod bridges;
mod capture;
mod cluster;
mod cni;
mod course;
mod departure;
mod enrolment;
mod install;
mod metrics;
mod monitor;
mod node_side;
mod place;
mod plan;
mod plugin;
mod pod;
mod registry;
#[cfg(test)]
mod testbed;
#[cfg(test)]
mod tests;
mod work;
mod zds_server;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

pub use args::{Args, ArgsError};
pub use plugin::cni_plugin;

use agent::{Agent, Parts};
use args::{Settings, Source};
use course::Course;
use departure::Departure;
use monitor::Health;
use registry::RegistryHandle;
use registry::files::CapturedFiles;
use registry::reports::{Annotations, Reports};
use work::Workshop;
use zds_server::ZdsServer;

/// Announcements of the CNI plugin that may wait for the agent.
const ANNOUNCEMENTS: usize = 64;

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The flags are wrong.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// The registry cannot be followed.
    #[error("follow the registry")]
    Registry(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no way to the API server.
    #[error(transparent)]
    ApiServer(#[from] ConnectError),
    /// One of the agent's sockets cannot be opened.
    #[error("open the agent's sockets")]
    Socket(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The executable is not known, and cannot be installed as the CNI plugin.
    #[error("find this program's own executable, to install it as the CNI plugin")]
    Executable(#[source] std::io::Error),
    /// Signals cannot be handled.
    #[error("handle SIGTERM and SIGINT")]
    Signals(#[source] std::io::Error),
}

/// Runs the agent until SIGTERM or SIGINT. Captures stay in place when it ends, unless the mesh is
/// being removed.
pub async fn run(args: Args) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run_until(args.try_into()?, stop).await
}

/// Serves until it is asked to stop, and then for as long as the mesh takes to leave the node.
async fn run_until(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let health = Arc::new(Health::default());
    let monitored = monitor::listen(settings.readiness_address).await;
    let monitored = monitored.map_err(|error| RunError::Socket(error.into()))?;
    let client = match &settings.source {
        Source::Files(_) => None,
        Source::Kubernetes { kubeconfig, .. } => {
            Some(ambit_apiserver::connect(kubeconfig.as_deref()).await?)
        }
    };
    let departure = Departure::new(&settings, client.clone())?;
    health.installed.store(departure.installer.is_none(), Ordering::Relaxed);
    let (course, followed) = watch::channel(departure.ask().await);
    let (tell, told) = watch::channel(String::new());
    let own_pod = client.clone().zip(settings.own_pod.clone());
    let answering = async {
        match &own_pod {
            Some((client, pod)) => course::answer(client, pod, told).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        result = serve(settings, client.clone(), &health, followed, tell) => result,
        () = monitor::serve(monitored, health.clone()) => Ok(()),
        () = departure.keep(&health, &course) => Ok(()),
        () = answering => Ok(()),
        () = async { stop.await; departure.stopped().await } => {
            tracing::info!("stopping; pods stay captured");
            Ok(())
        }
    }
}

/// Follows the registry, looks at the pods that are there, then opens the sockets, then serves.
async fn serve(
    settings: Settings,
    client: Option<Client>,
    health: &Arc<Health>,
    course: watch::Receiver<Course>,
    tell: watch::Sender<String>,
) -> Result<(), RunError> {
    let (registry, following, reports) = follow(&settings, client).await?;
    let zds = Arc::new(ZdsServer::new(health.clone()));
    let workshop = Workshop::new(reports, settings.ipv6, zds.clone(), health.clone());
    let guarding = workshop.clone();
    let (zds_path, cni_path) = (settings.zds_socket.clone(), settings.cni_socket.clone());
    let parts = Parts {
        settings,
        registry,
        zds: zds.clone(),
        workshop,
        health: health.clone(),
        course,
        tell,
    };
    let mut agent = Agent::new(parts);
    let work = async {
        agent.settle().await;
        let proxies = zds_server::listen(&zds_path);
        let proxies = proxies.map_err(|error| RunError::Socket(error.into()))?;
        let plugin = cni::listen(&cni_path);
        let plugin = plugin.map_err(|error| RunError::Socket(error.into()))?;
        let (announced, announcements) = mpsc::channel(ANNOUNCEMENTS);
        health.ready.store(true, Ordering::Relaxed);
        tracing::info!(zds = %zds_path.display(), cni = %cni_path.display(), "node agent ready");
        tokio::select! {
            () = agent.run(announcements) => {
                departure::remove_sockets([&zds_path, &cni_path]);
            }
            () = zds.serve(proxies) => {}
            () = guarding.guard_new_ports() => {}
            () = cni::serve(plugin, announced, health.clone()) => {}
        }
        Ok(())
    };
    tokio::select! {
        result = work => result,
        () = following => Ok(()),
    }
}

/// Follows the registry, and says where captured pods are reported.
async fn follow(
    settings: &Settings,
    client: Option<Client>,
) -> Result<(RegistryHandle, BoxFuture<'static, ()>, Reports), RunError> {
    match (&settings.source, client) {
        (Source::Files(directory), _) => {
            let followed = registry::files::follow(directory).await;
            let (handle, following) = followed.map_err(|error| RunError::Registry(error.into()))?;
            Ok((handle, following.boxed(), Reports::Files(CapturedFiles::new(directory))))
        }
        (Source::Kubernetes { sources, .. }, client) => {
            let client = client.expect("made with the settings");
            let (node, sources) = (&settings.node_name, sources.clone());
            let (handle, following) =
                registry::kubernetes::follow(client.clone(), node, sources).await;
            let reports = Reports::Annotations(Annotations::new(client, handle.view.clone()));
            Ok((handle, following.boxed(), reports))
        }
    }
}
