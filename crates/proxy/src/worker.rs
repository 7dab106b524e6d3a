//! The process that moves bytes: one control thread, one DNS thread, N data-plane threads.
//!
//! The control thread takes what the supervisor hands over, follows the control plane and answers
//! operators; traffic never waits for it. No pod is served before the view is complete: half a view
//! would let through what the other half forbids. A worker whose supervisor has died keeps serving
//! until another proxy has taken over.

mod takeover;
mod threads;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ambit_dataplane::certificates::{CertificateAuthority, Certificates, Clock, Keeper};
use ambit_dataplane::demand;
use ambit_dataplane::descriptors::Shares;
use ambit_dataplane::learned::Successor;
use ambit_dataplane::logging::Levels;
use ambit_dataplane::views::Views;
use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_net::kernel_path::KernelPath;
use ambit_net::memfd::Sealed;
use ambit_net::namespace::NetNs;
use ambit_net::program;
use ambit_net::seqpacket::Connection;
use ambit_tls::WorkloadCertificate;
use ambit_wire::proto::ambit::snapshot::Snapshot;
use ambit_words::error_chain;
use anyhow::Context as _;
use prost::Message as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::admin::connections::{LiveConnections, PassedOn};
use crate::admin::{self, Admin};
use crate::config::{Config, KernelPathUse, SameNode};
use crate::dataplane::Listeners;
use crate::dns;
use crate::handover::{
    self, Descriptors, DnsSocket, FromWorker, HandoverError, ListenerKind, Message, OperatorSocket,
    PodInfo, ToWorker,
};
use crate::link::Link;
use crate::pods::Pod;
use crate::shared::Shared;
use threads::Threads;

/// How long connections of this worker continue when it must end without a deadline.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// Runs a worker on the socket that its supervisor made its standard input.
pub(crate) fn run(config: Config, levels: Levels) -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("take over the socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let signals = Signals::new()?;
        let (mut worker, outbox) = Worker::new(config, levels.clone())?;
        worker.serve(socket, outbox, signals).await
    });
    levels.flush();
    // Tasks that wait for the control plane hold nobody up.
    runtime.shutdown_background();
    outcome
}

/// Signals that concern a worker only when it has no supervisor any more.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen to signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a wish to end. A hang-up concerns the supervisor alone.
    async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {}
            }
        }
    }
}

/// What joins two pods in the kernel, if the settings want it and the kernel can.
pub(crate) fn kernel_path(config: &Config) -> anyhow::Result<Option<KernelPath>> {
    if config.same_node != SameNode::Join || config.kernel_path == KernelPathUse::Off {
        return Ok(None);
    }
    match KernelPath::open(config.kernel_budget_bytes()) {
        Ok(path) => {
            info!("the kernel moves the bytes between two pods of this node");
            Ok(Some(path))
        }
        Err(error) if config.kernel_path == KernelPathUse::On => {
            let remedy = "--kernel-path on: use auto to let the proxy move the bytes instead";
            Err(error).context(remedy)
        }
        Err(error) => {
            let error = error_chain(&error);
            info!(error, "the proxy moves the bytes between two pods of this node");
            Ok(None)
        }
    }
}

/// A pod whose listeners are still arriving.
struct Arriving {
    info: PodInfo,
    netns: NetNs,
    dns: dns::Sockets,
    listeners: BTreeMap<usize, Listeners>,
    threads: usize,
}

/// A pod that this worker holds.
struct Held {
    pod: Arc<Pod>,
    /// Its sockets, until the view is there.
    waiting: Option<(Vec<Listeners>, dns::Sockets)>,
}

struct Worker {
    shared: Arc<Shared>,
    link: Link,
    threads: Threads,
    views: Option<Views>,
    keeper: Option<Keeper<CertificateAuthority>>,
    arriving: HashMap<String, Arriving>,
    held: BTreeMap<Text, Held>,
    admin: Arc<Admin>,
    /// Ends the operator's listeners.
    accepting: watch::Sender<bool>,
    enrolled: Arc<AtomicBool>,
    stopping: bool,
}

impl Worker {
    fn new(
        config: Config,
        levels: Levels,
    ) -> anyhow::Result<(Self, mpsc::Receiver<Message<FromWorker>>)> {
        let (link, outbox) = Link::new();
        let (successor, learned) = Successor::new();
        tokio::spawn(link.clone().hand_on(learned));
        let (certificates, asks) = Certificates::new(Clock::system());
        let (demand, demands) = demand::demand(config.on_demand);
        let kernel_path = kernel_path(&config)?;
        let shared = Arc::new(Shared::new(config, certificates.clone(), demand, kernel_path));
        let authority = CertificateAuthority::new(
            shared.config.authority_access(),
            shared.config.certificate_ttl,
        );
        let (metrics, crl) = (shared.mesh.metrics.clone(), shared.config.crl_path.clone());
        let keeper = Keeper::new(certificates, asks, authority, successor.clone(), metrics, crl);
        let (access, metadata) = (shared.config.discovery_access(), &shared.config.node.metadata);
        let views = Views::new(shared.mesh.clone(), access, metadata, successor, demands);
        shared.mesh.metrics.watch_runtime("control".into(), tokio::runtime::Handle::current());
        shared.mesh.metrics.watch_descriptors(shared.mesh.descriptors.clone());
        let threads = Threads::start(&shared)?;
        let enrolled = Arc::new(AtomicBool::new(false));
        let admin = Arc::new(Admin {
            shared: shared.clone(),
            link: link.clone(),
            levels,
            connections: LiveConnections::new(threads.commands().to_vec(), link.clone()),
            enrolled: enrolled.clone(),
        });
        let worker = Self {
            shared,
            link,
            threads,
            views: Some(views),
            keeper: Some(keeper),
            arriving: HashMap::new(),
            held: BTreeMap::new(),
            admin,
            accepting: watch::Sender::new(true),
            enrolled,
            stopping: false,
        };
        Ok((worker, outbox))
    }

    async fn serve(
        &mut self,
        socket: OwnedFd,
        outbox: mpsc::Receiver<Message<FromWorker>>,
        mut signals: Signals,
    ) -> anyhow::Result<()> {
        let socket = Arc::new(Connection::from_fd(socket).context("standard input")?);
        tokio::spawn(write(socket.clone(), outbox));
        let mut supervised = true;
        let mut taken_over = std::pin::pin!(takeover::wait(self.shared.config.operator.clone()));
        let mut buffer = vec![0; handover::MAX_HEADER_BYTES];
        let mut view_complete = self.shared.mesh.view_complete.subscribe();
        loop {
            tokio::select! {
                received = handover::receive::<ToWorker>(&socket, &mut buffer), if supervised => {
                    match received {
                        Ok((header, fds)) => self.obey(header, fds).await,
                        Err(error) if error.is_gone() => {
                            supervised = false;
                            warn!("the supervisor is gone; serving on until another takes over");
                        }
                        Err(error) => return Err(error).context("supervisor"),
                    }
                }
                Ok(()) = view_complete.changed() => self.serve_waiting().await,
                // A signal to a terminal's processes is meant for the supervisor, which reports it
                // here.
                () = signals.end() => if !supervised {
                    self.stop(Some(self.shared.config.termination_deadline)).await;
                },
                () = &mut taken_over, if !supervised && !self.stopping => {
                    self.stop(None).await;
                }
                finished = self.threads.finished() => {
                    return finished.context("a data-plane thread panicked");
                }
            }
        }
    }

    async fn obey(&mut self, header: ToWorker, mut fds: Descriptors) {
        let said = match header {
            ToWorker::View => self.take_view(fds),
            ToWorker::Certificate => self.take_certificate(fds),
            ToWorker::Operator { sockets } => self.take_operator(&sockets, fds),
            ToWorker::Pod { pod, dns, threads } => self.expect_pod(pod, &dns, threads, fds).await,
            ToWorker::Listeners { uid, thread, kinds } => {
                self.take_listeners(&uid, thread, &kinds, fds).await;
                Ok(())
            }
            ToWorker::RemovePod { uid } => {
                self.arriving.remove(&uid);
                self.remove(&uid.into()).await;
                Ok(())
            }
            ToWorker::Start => {
                self.start().await;
                Ok(())
            }
            ToWorker::Enrolled => {
                self.enrolled.store(true, Ordering::Relaxed);
                Ok(())
            }
            ToWorker::StopAccepting { deadline_ms } => {
                self.stop(deadline_ms.map(Duration::from_millis)).await;
                Ok(())
            }
            ToWorker::TellConnections => {
                self.tell_connections(fds.unix_stream());
                Ok(())
            }
            ToWorker::OthersAsked { question, workers, left_out } => {
                let answers = (0..workers).map(|_| fds.unix_stream()).collect();
                self.admin.connections.passed_on(question, PassedOn { answers, left_out });
                Ok(())
            }
        };
        if let Err(error) = said {
            error!(error = error_chain(&error), "not taken over from the supervisor");
        }
    }

    /// In a task of its own: who asks may read slowly.
    fn tell_connections(&self, asker: std::os::unix::net::UnixStream) {
        let admin = self.admin.clone();
        tokio::spawn(async move { admin.connections.tell(asker).await });
    }

    fn take_view(&mut self, mut fds: Descriptors) -> Result<(), HandoverError> {
        let file = fds.sealed("view")?;
        match snapshot_of(&file) {
            Ok(snapshot) => {
                if let Some(keeper) = &mut self.keeper {
                    keeper.hand_revocations(snapshot.crl_pem.clone());
                }
                if let Some(views) = &mut self.views {
                    views.restore(snapshot);
                }
            }
            Err(error) => warn!(error = format!("{error:#}"), "the supervisor's view is not used"),
        }
        Ok(())
    }

    fn take_certificate(&mut self, mut fds: Descriptors) -> Result<(), HandoverError> {
        let file = fds.sealed("certificate")?;
        let content = file.read();
        let content =
            content.map_err(|source| HandoverError::Kind { message: "certificate", source })?;
        match (WorkloadCertificate::from_bytes(&content), &mut self.keeper) {
            (Ok(certificate), Some(keeper)) => keeper.hand(certificate),
            (Err(error), _) => warn!(error = error_chain(&error), "a kept certificate"),
            (Ok(_), None) => {}
        }
        Ok(())
    }

    fn take_operator(
        &mut self,
        sockets: &[OperatorSocket],
        mut fds: Descriptors,
    ) -> Result<(), HandoverError> {
        for kind in sockets {
            let socket = match kind {
                OperatorSocket::AdminUnix => admin::Socket::Unix(fds.unix_listener()),
                _ => admin::Socket::Tcp(fds.tcp_listener()),
            };
            let service = match kind {
                OperatorSocket::Admin | OperatorSocket::AdminUnix => admin::Service::Admin,
                OperatorSocket::Metrics => admin::Service::Metrics,
                OperatorSocket::Readiness => admin::Service::Readiness,
            };
            let serving =
                admin::serve(self.admin.clone(), socket, service, self.accepting.subscribe());
            tokio::spawn(async move {
                if let Err(error) = serving.await {
                    error!(%error, "cannot serve an operator");
                }
            });
        }
        Ok(())
    }

    async fn expect_pod(
        &mut self,
        info: PodInfo,
        kinds: &[DnsSocket],
        threads: usize,
        mut fds: Descriptors,
    ) -> Result<(), HandoverError> {
        let netns = fds.netns("pod")?;
        let mut dns = dns::Sockets::default();
        for kind in kinds {
            match kind {
                DnsSocket::Udp => dns.udp.push(fds.next().into()),
                DnsSocket::Tcp => dns.tcp.push(fds.tcp_listener()),
            }
        }
        let own = self.threads.commands().len();
        if threads != own {
            let reason = format!("{threads} threads' listeners for a worker with {own} threads");
            self.link.refuse(info.uid, reason).await;
            return Ok(());
        }
        let listeners = BTreeMap::new();
        self.arriving.insert(info.uid.clone(), Arriving { info, netns, dns, listeners, threads });
        Ok(())
    }

    async fn take_listeners(
        &mut self,
        uid: &str,
        thread: usize,
        kinds: &[ListenerKind],
        mut fds: Descriptors,
    ) {
        let Some(arriving) = self.arriving.get_mut(uid) else { return };
        let listeners = arriving.listeners.entry(thread).or_default();
        for kind in kinds {
            let listener = fds.tcp_listener();
            match kind {
                ListenerKind::Outbound => listeners.outbound.push(listener),
                ListenerKind::Plaintext => listeners.plaintext.push(listener),
                ListenerKind::Inbound => listeners.inbound.push(listener),
            }
        }
        if arriving.listeners.len() == arriving.threads
            && let Some(arrived) = self.arriving.remove(uid)
        {
            self.hold(arrived).await;
        }
    }

    /// Takes a pod on: asks for its certificate, and serves it as soon as the view is known.
    async fn hold(&mut self, arrived: Arriving) {
        let Arriving { info, netns, dns, listeners, .. } = arrived;
        let trust_domain = self.shared.config.node.trust_domain.clone();
        let identity = Identity::new(trust_domain, &*info.namespace, &*info.service_account);
        let uid: Text = info.uid.as_str().into();
        self.remove(&uid).await;
        let name = WorkloadName::new(&*info.namespace, &*info.name);
        let shares = Shares::new(&self.shared.mesh.descriptors, &name);
        let outside = self.shared.config.place_of(&name, self.shared.mesh.disowned.clone());
        let outside = outside.map(Arc::new);
        let netns = Some(netns);
        let pod = Pod {
            uid: uid.clone(),
            name,
            netns: netns.map(Arc::new),
            outside,
            identity: identity.clone(),
            shares,
        };
        let pod = Arc::new(pod);
        self.shared.pods.rcu(|pods| {
            let mut pods = (**pods).clone();
            pods.insert(pod.clone());
            pods
        });
        self.shared.mesh.certificates.hold(identity).await;
        let waiting = Some((listeners.into_values().collect(), dns));
        self.held.insert(uid, Held { pod, waiting });
        self.shared.metrics.pod_started();
        self.serve_waiting().await;
        self.link.say(FromWorker::PodHeld { uid: info.uid }).await;
    }

    /// Serves the pods that wait, once the view is known.
    async fn serve_waiting(&mut self) {
        if *self.shared.mesh.view_complete.borrow() && !self.stopping {
            for held in self.held.values_mut() {
                let Some((listeners, sockets)) = held.waiting.take() else { continue };
                self.threads.add(&held.pod, listeners, sockets).await;
            }
        }
        self.count();
    }

    async fn remove(&mut self, uid: &Text) {
        let Some(held) = self.held.remove(uid) else { return };
        self.shared.pods.rcu(|pods| {
            let mut pods = (**pods).clone();
            pods.remove(uid);
            pods
        });
        self.threads.remove(uid, self.shared.config.drain_deadline).await;
        self.shared.mesh.certificates.release(held.pod.identity.clone()).await;
        self.shared.metrics.pod_stopped();
        self.count();
    }

    fn count(&self) {
        let pending = self.held.values().filter(|held| held.waiting.is_some()).count();
        self.shared.metrics.pods(self.held.len() - pending, pending);
    }

    /// All that the supervisor holds is here: follows the control plane from it.
    async fn start(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            tokio::spawn(keeper.run());
        }
        if let Some(views) = self.views.take() {
            tokio::spawn(views.run());
        }
        info!(pods = self.held.len(), "ready");
        self.link.say(FromWorker::Ready).await;
        program::give_back_start();
    }

    /// Accepts nothing more. Connections continue, until the deadline if there is one.
    async fn stop(&mut self, deadline: Option<Duration>) {
        if !self.stopping {
            info!(?deadline, "accepting nothing more");
            self.stopping = true;
            self.accepting.send_replace(false);
            self.arriving.clear();
            self.held.values_mut().for_each(|held| held.waiting = None);
            self.threads.stop_accepting().await;
        }
        if let Some(deadline) = deadline {
            let deadline = deadline.min(FOR_EVER);
            for uid in self.held.keys() {
                self.threads.remove(uid, deadline).await;
            }
            self.threads.end_by(deadline).await;
        }
    }
}

fn snapshot_of(file: &Sealed) -> anyhow::Result<Snapshot> {
    let content = file.read().context("read it")?;
    Snapshot::decode(&*content).context("decode it")
}

async fn write(socket: Arc<Connection>, mut outbox: mpsc::Receiver<Message<FromWorker>>) {
    while let Some(message) = outbox.recv().await {
        if let Err(error) = handover::send(&socket, &message).await {
            if !error.is_gone() {
                error!(error = error_chain(&error), "supervisor");
            }
            return;
        }
    }
}
