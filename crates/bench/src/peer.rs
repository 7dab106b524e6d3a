//! Other meshes' sidecars: the real program beside every pod of a machine that has no mesh.
//!
//! [`Sidecars::start`] puts one proxy into the network namespace of each pod, waits until all of
//! them are ready, and only then redirects the pods' TCP through them; [`Sidecars::stop`], or
//! dropping them, takes the redirection back and kills them. Each proxy runs as the user that its
//! mesh gives it, which distinguishes its own traffic from the pod's. It belongs to the machine's
//! PID namespace, so it cannot outlive the machine, whatever happens to this process.
//!
//! | module | holds |
//! |---|---|
//! | `topology` | the pods, services and endpoints that every sidecar must know |
//! | `authority` | a certificate authority in memory, for one run and nothing else |
//! | `envoy` | Envoy, configured as Istio configures a sidecar, or a waypoint |
//! | `linkerd` | linkerd2-proxy, and the control plane that it queries |
//! | `redirect` | the nftables rules in the pods |
//! | `program` | starting, watching and ending one proxy |
//!
//! [`Sidecars::start_waypoints`] puts Envoy into the pods of a mesh's waypoints instead, where
//! nothing else runs.
//!
//! They must never flatter Ambit: a proxy gets what its own mesh would give it; where that is
//! impossible, the module says so and errs in the proxy's favour. Pods that start after the
//! sidecars have none; pods on their node's own network never get one.

mod authority;
mod envoy;
mod linkerd;
mod program;
mod redirect;
mod topology;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ambit_machine::{Check, Client, ClientError, Record, RecordError};
use ambit_net::netlink::NetlinkError;
use ambit_net::sys::process::{Pid, raise_open_files_limit};
use ambit_words::error_chain;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use authority::{Authority, AuthorityError};
use program::Running;
use redirect::Ports;
use topology::{Topology, TopologyError};

pub use program::version;

/// How long all proxies together may take until they are ready, and each of them beyond that:
/// a hundred that start at once share the processors.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_TIMEOUT_EACH: Duration = Duration::from_secs(1);
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// A kind of sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarKind {
    /// Envoy, as Istio configures it.
    Envoy,
    /// linkerd2-proxy, as Linkerd drives it.
    Linkerd,
}

impl SidecarKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Linkerd => "linkerd",
        }
    }

    /// The user that its mesh runs it as.
    fn user(self) -> u32 {
        match self {
            Self::Envoy => envoy::USER,
            Self::Linkerd => linkerd::USER,
        }
    }

    fn ports(self) -> Ports {
        match self {
            Self::Envoy => envoy::PORTS,
            Self::Linkerd => linkerd::PORTS,
        }
    }

    fn readiness(self) -> Check {
        match self {
            Self::Envoy => envoy::readiness(),
            Self::Linkerd => linkerd::readiness(),
        }
    }
}

/// Why there are no sidecars, or not all of them any more.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The machine does not answer.
    #[error("cannot ask the machine for its pods")]
    Machine(#[from] ClientError),
    /// The machine's description cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The machine's user namespace has one user only.
    #[error(
        "a sidecar runs as user {user}, which a machine that was started without root does not \
         have; start it as root"
    )]
    Rootless {
        /// Who it would run as.
        user: u32,
    },
    /// Two meshes at once.
    #[error("the machine carries the mesh; sidecars need one that was started without")]
    Meshed,
    /// Pods or services are not as they must be.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No certificates.
    #[error("cannot issue the sidecars' certificates")]
    Certificates(#[from] AuthorityError),
    /// The operating system refuses.
    #[error("cannot {operation}")]
    System {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {program} as user {user}; is it a program that every user may execute?")]
    NotAProgram {
        /// Which.
        program: PathBuf,
        /// As whom.
        user: u32,
        /// Why.
        source: io::Error,
    },
    /// A pod's traffic cannot be redirected.
    #[error("cannot redirect the traffic of {pod}")]
    Redirect {
        /// Namespace and name.
        pod: String,
        /// Why.
        source: NetlinkError,
    },
    /// A proxy is gone.
    #[error("the sidecar of {pod} ended with {end}")]
    Ended {
        /// Namespace and name.
        pod: String,
        /// Its exit and its last words.
        end: String,
    },
    /// A proxy does not become ready.
    #[error("the sidecar of {pod} is not ready after {} s: {reason}; see {log}", waited.as_secs())]
    NotReady {
        /// Namespace and name.
        pod: String,
        /// How long.
        waited: Duration,
        /// What it lacks.
        reason: String,
        /// Where it says more.
        log: PathBuf,
    },
}

/// The proxies of a machine; they end when this is dropped.
#[derive(Debug)]
pub struct Sidecars {
    running: Vec<Running>,
    redirected: Vec<usize>,
    /// Collects logs, reaps and serves control planes, apart from the measuring thread. Taken at
    /// the end.
    runtime: Option<Runtime>,
}

impl Sidecars {
    /// Puts a proxy beside every pod, whose logs go to `directory/NAMESPACE.POD.log`. All pods must
    /// run. From then on their new connections go through the proxies; nothing else changes.
    pub async fn start(
        kind: SidecarKind,
        program: &Path,
        client: &Client,
        directory: &Path,
    ) -> Result<Self, SidecarError> {
        let record = Record::read(client.layout())?;
        if record.mesh {
            return Err(SidecarError::Meshed);
        }
        let (topology, home, mut sidecars) = prepare(kind, client, &record, directory).await?;
        let authority = Authority::generate()?;
        for pod in &topology.pods {
            let handle = sidecars.runtime().handle();
            let launch = match kind {
                SidecarKind::Envoy => envoy::launch(program, &topology, pod, &authority)?,
                SidecarKind::Linkerd => {
                    linkerd::launch(program, &topology, pod, &authority, handle)?
                }
            };
            let running = launch.start(pod, &home, handle)?;
            sidecars.running.push(running);
        }
        sidecars.wait_until_ready(kind).await?;
        sidecars.redirect(kind, &topology)?;
        Ok(sidecars)
    }

    /// Puts Envoy into every pod of this service account: the waypoints of a machine that carries
    /// the mesh. They prove themselves by certificates of the mesh's own authority. Nothing is
    /// redirected: a waypoint is called by its address.
    pub async fn start_waypoints(
        program: &Path,
        client: &Client,
        directory: &Path,
        account: &str,
    ) -> Result<Self, SidecarError> {
        let kind = SidecarKind::Envoy;
        let record = Record::read(client.layout())?;
        let (topology, home, mut sidecars) = prepare(kind, client, &record, directory).await?;
        let authority = Authority::of_machine(&client.layout().control())?;
        for pod in topology.pods.iter().filter(|pod| *pod.identity.service_account == *account) {
            let handle = sidecars.runtime().handle();
            let launch = envoy::launch_waypoint(program, &topology, pod, &authority)?;
            let running = launch.start(pod, &home, handle)?;
            sidecars.running.push(running);
        }
        sidecars.wait_until_ready(kind).await?;
        Ok(sidecars)
    }

    /// The host's process numbers of those that live.
    pub fn pids(&self) -> Vec<Pid> {
        self.running.iter().filter(|it| it.end().is_none()).map(Running::pid).collect()
    }

    /// Whether all of them live; if not, whose does not, and its last words.
    pub fn alive(&self) -> Result<(), SidecarError> {
        self.running.iter().try_for_each(|running| match running.end() {
            None => Ok(()),
            Some(end) => Err(SidecarError::Ended { pod: running.pod().to_owned(), end }),
        })
    }

    /// Takes the redirection back and ends all of them. Says what of that did not work; the
    /// rest is done nevertheless.
    pub fn stop(mut self) -> Result<(), SidecarError> {
        self.end()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is taken at the end only")
    }

    async fn wait_until_ready(&mut self, kind: SidecarKind) -> Result<(), SidecarError> {
        let count = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let waited = READY_TIMEOUT + READY_TIMEOUT_EACH * count;
        let latest = Instant::now() + waited;
        let check = kind.readiness();
        for running in &self.running {
            while let Err(reason) = check.ask(running.netns()).await {
                self.alive()?;
                if Instant::now() > latest {
                    let (pod, log) = (running.pod().to_owned(), running.log().to_owned());
                    return Err(SidecarError::NotReady { pod, waited, reason, log });
                }
                sleep(READY_INTERVAL).await;
            }
        }
        self.running.iter_mut().for_each(Running::has_started);
        self.alive()
    }

    fn redirect(&mut self, kind: SidecarKind, topology: &Topology) -> Result<(), SidecarError> {
        for (index, (running, pod)) in self.running.iter().zip(&topology.pods).enumerate() {
            redirect::install(running.netns(), kind.ports(), kind.user(), pod.gateway)
                .map_err(|source| SidecarError::Redirect { pod: pod.to_string(), source })?;
            self.redirected.push(index);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), SidecarError> {
        let mut outcome = Ok(());
        for index in self.redirected.drain(..) {
            let running = &self.running[index];
            if let Err(source) = redirect::remove(running.netns()) {
                let pod = running.pod().to_owned();
                outcome = Err(SidecarError::Redirect { pod, source });
            }
        }
        // All at once, and then wait: their ends do not add up.
        self.running.iter().for_each(Running::kill);
        for running in self.running.drain(..) {
            if let Err(source) = running.wait_for_end() {
                let operation = format!("end the sidecar of {}", running.pod());
                outcome = Err(SidecarError::System { operation, source });
            }
        }
        if let Some(runtime) = self.runtime.take() {
            program::shut_down(runtime);
        }
        outcome
    }
}

/// What proxies have to know, where they live, and none of them yet.
async fn prepare(
    kind: SidecarKind,
    client: &Client,
    record: &Record,
    directory: &Path,
) -> Result<(Arc<Topology>, program::Home, Sidecars), SidecarError> {
    if record.rootless {
        return Err(SidecarError::Rootless { user: kind.user() });
    }
    let topology = Arc::new(Topology::read(client, record).await?);
    let system = |operation: &str| {
        let operation = operation.to_owned();
        move |source| SidecarError::System { operation, source }
    };
    raise_open_files_limit().map_err(system("raise the limit of open files"))?;
    std::fs::create_dir_all(directory).map_err(system("make the directory of the logs"))?;
    let runtime = program::runtime().map_err(system("start the thread that keeps sidecars"))?;
    let home = program::Home::of_machine(record, directory)
        .map_err(system("open the machine's PID namespace"))?;
    let sidecars = Sidecars { running: Vec::new(), redirected: Vec::new(), runtime: Some(runtime) };
    Ok((topology, home, sidecars))
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(error = %error_chain(&error), "not all sidecars ended");
        }
    }
}
