//! The life of the control plane: set up, serve, end in good order.
//!
//! Nothing is served before the registry was read, and every task ends before the process does.
//! This file and `cluster` start every task. The end has two steps. First, new proxies and
//! certificates are refused, and the streams of connected proxies end one after another, so they do
//! not all reconnect to the other replicas at once; then everything else ends.

mod cluster;
mod renewal;

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use ambit_apiserver::ConnectError;
use ambit_net::accept::Listener;
use ambit_net::drain::{Drain, Guard};
use ambit_net::http_port;
use ambit_net::netlink::{NetlinkError, RouteSocket};
use ambit_net::socket::{ListenOptions, tcp_listener};
use ambit_net::sys::process::open_files_limit;
use ambit_tls::certificate::CertificateError;
use ambit_tls::token::{TokenError, TokenSigner};
use ambit_words::error_chain;
use ambit_words::names;
use http::StatusCode;
use tokio::net::TcpListener;
use tokio::runtime::{EnterGuard, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use self::cluster::Cluster;
use self::renewal::Renewal;
use crate::admin::{self, Admin, SocketError};
use crate::authentication::Authentication;
use crate::ca::cluster::{ClusterAuthority, ClusterError};
use crate::ca::service::{CertificateService, Guarded};
use crate::ca::{CaError, CertificateAuthority};
use crate::callers::{Callers, Reviews};
use crate::config::{Args, Config, ConfigError, Source};
use crate::delta_service::DeltaService;
use crate::durable::{self, FileError, PRIVATE};
use crate::http_server::{self, Answer};
use crate::jwks::{Jwks, JwksError};
use crate::listener::{self, CONNECTION_WINDOW_BYTES, Security};
use crate::metrics::Metrics;
use crate::monitoring::Monitoring;
use crate::node_credentials::NodeCredentials;
use crate::registry::{Batch, Registry, RegistryError};
use crate::view_builder::Vips;
use crate::world::World;
use crate::xds_server::{Clients, Discovery, Streams, Turns};

/// Batches of events that wait to be built into the view.
const EVENT_QUEUE: usize = 16;
/// How long tasks may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the authority looks at what time brings.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// HTTP/2 PINGs, as istiod sends them.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest time between two publications. Under churn each costs every connected proxy and
/// this program its share, however little changed.
const PACE: Duration = Duration::from_millis(100);
/// The same where what requests obey has changed: people watch a canary, and few proxies are sent
/// it.
const PACE_OF_REQUESTS: Duration = Duration::from_millis(20);
/// Most threads that serve proxies: a thousand of them keep two busy under churn.
const SERVING_THREADS_MAX: usize = 4;
/// Calls at the same time on one connection: a proxy has one for discovery and, when its pods
/// start, one for each certificate.
const CALLS_MAX: u32 = 64;
/// What may be sent of one call before it is read.
const CALL_WINDOW_BYTES: u32 = CONNECTION_WINDOW_BYTES / 2;
/// Largest list of a call's headers: a token of 8 KiB and little else.
const HEADERS_MAX_BYTES: u32 = 16 << 10;
/// Names under which istiod is known.
const SERVICE_NAMES: [&str; 3] = [names::CONTROL, "localhost", "ambit-control"];

/// Why the control plane cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The flags.
    #[error("the settings of the control plane")]
    Config(#[from] ConfigError),
    /// The registry cannot be read.
    #[error("the registry")]
    Registry(#[from] RegistryError),
    /// There is no way to the API server.
    #[error("the Kubernetes API server")]
    ApiServer(#[from] ConnectError),
    /// What watches the registry broke.
    #[error("watching the registry failed; see the log")]
    Watcher(#[source] tokio::task::JoinError),
    /// The threads that serve proxies cannot be started.
    #[error("start the threads that serve proxies")]
    Threads(#[source] std::io::Error),
    /// The authority cannot be set up.
    #[error("the certificate authority")]
    Authority(#[from] CaError),
    /// The authority that replicas share.
    #[error("the certificate authority of the cluster")]
    SharedAuthority(#[from] ClusterError),
    /// The state directory.
    #[error("the state directory")]
    State(#[from] FileError),
    /// The key that signs tokens.
    #[error(
        "the key of node tokens, token-key.pem in the state directory; remove it to make a new one"
    )]
    TokenKey(#[from] TokenError),
    /// The allocated addresses cannot be read.
    #[error("{path} cannot be read; remove it, and ServiceEntries get new addresses")]
    Vips {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The server certificate.
    #[error("the server certificate")]
    ServerCertificate(#[from] CertificateError),
    /// The own addresses cannot be listed for the server certificate.
    #[error("list the addresses of this network namespace")]
    Addresses(#[from] NetlinkError),
    /// A port cannot be opened.
    #[error("cannot listen on {address} ({flag}); is another control plane running?")]
    Listen {
        /// The flag that sets it.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Issuers of tokens cannot be asked for their keys.
    #[error("the keys of token issuers")]
    Jwks(#[from] JwksError),
    /// The administration socket cannot be opened.
    #[error("the administration socket")]
    AdminSocket(#[from] SocketError),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] std::io::Error),
}

/// Runs the control plane until SIGTERM or SIGINT.
///
/// # Errors
/// Settings, keys or ports that cannot be used, and a registry that can no longer be read.
pub async fn run(args: Args) -> Result<(), RunError> {
    let config = Config::try_from(args)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(RunError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(RunError::Signals)?;
    let (life, spread) = (Life::new(), config.shutdown_spread);
    let socket = config.admin_socket.clone();
    let set_up = tokio::select! {
        control = Control::set_up(config, &life) => Some(control?),
        // The API server may be long in coming.
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    let Some(mut control) = set_up else { return Ok(()) };
    let Ports { xds, plaintext_xds, monitoring, admin } = control.ports;
    tracing::info!(%xds, ?plaintext_xds, %monitoring, ?admin, "the control plane is ready");
    let ended = tokio::select! {
        ended = &mut control.registry => Some(ended),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    tracing::info!("the control plane stops");
    life.end(control, spread).await;
    durable::remove(&socket)?;
    match ended {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(error.into()),
        Some(Err(error)) => Err(RunError::Watcher(error)),
    }
}

/// How long the parts of the control plane live.
struct Life {
    /// What proxies are connected to.
    front: Drain,
    /// Everything else.
    back: Drain,
    /// Whether proxies are served.
    serves: watch::Sender<bool>,
}

impl Life {
    fn new() -> Self {
        Self { front: Drain::new(), back: Drain::new(), serves: watch::Sender::new(false) }
    }

    /// Ends everything; streams of proxies end in the course of `spread`.
    async fn end(self, control: Control, spread: Duration) {
        self.serves.send_replace(false);
        let limit = spread + DRAIN_TIMEOUT;
        self.front.start(Some(Instant::now() + limit));
        let front = tokio::time::timeout(limit, self.front.finished()).await;
        self.back.start(Some(Instant::now() + DRAIN_TIMEOUT));
        control.registry.abort();
        let back = tokio::time::timeout(DRAIN_TIMEOUT, self.back.finished()).await;
        if front.is_err() || back.is_err() {
            tracing::warn!("some connections did not end in {DRAIN_TIMEOUT:?}");
        }
        // Connections to the API server that its threads opened were of use until here.
        drop(control);
    }
}

/// What runs, as far as it must be held.
struct Control {
    registry: tokio::task::JoinHandle<Result<(), RegistryError>>,
    ports: Ports,
    _serving: Serving,
}

/// Threads of their own for what serves proxies. A change wakes every stream there is, thousands of
/// tasks; the next change must not queue behind them on its way from the registry.
struct Serving(Option<Runtime>);

impl Serving {
    fn start() -> std::io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads.min(SERVING_THREADS_MAX)).enable_all();
        Ok(Self(Some(runtime.thread_name("ambit-serving").build()?)))
    }

    /// What is spawned while the guard lives runs there.
    fn enter(&self) -> EnterGuard<'_> {
        self.0.as_ref().expect("it is there until it is dropped").enter()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Not waited for: it is dropped where nothing may block, when its tasks have ended or had
        // their time.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The ports as they were opened.
#[derive(Clone, Copy)]
struct Ports {
    xds: SocketAddr,
    plaintext_xds: Option<SocketAddr>,
    monitoring: SocketAddr,
    admin: Option<SocketAddr>,
}

/// What all parts share.
struct Parts {
    world: Arc<World>,
    authority: Arc<CertificateAuthority>,
    callers: Callers,
    metrics: Arc<Metrics>,
    clients: Arc<Clients>,
}

impl Control {
    async fn set_up(config: Config, life: &Life) -> Result<Self, RunError> {
        let cluster = match &config.registry {
            Source::Files(_) => None,
            Source::Kubernetes(file) => {
                Some(Cluster::new(ambit_apiserver::connect(file.as_deref()).await?, &config))
            }
        };
        Self::set_up_in(cluster, config, life).await
    }

    async fn set_up_in(
        cluster: Option<Cluster>,
        config: Config,
        life: &Life,
    ) -> Result<Self, RunError> {
        let guard = life.back.guard();
        let metrics = Arc::new(Metrics::new());
        let clients = Arc::new(Clients::default());
        let world = Arc::new(world(&config, metrics.clone())?);
        let signing = Arc::new(OnceLock::new());
        let monitoring = Arc::new(Monitoring {
            authority: signing.clone(),
            metrics: metrics.clone(),
            serves: life.serves.subscribe(),
        });
        let administration =
            Administration { monitoring: monitoring.clone(), admin: Arc::default() };
        let monitoring = serve_monitoring(&config, monitoring, &guard)?;
        let admin = administration.listen(&config, &guard)?;
        let authority = Arc::new(authority(cluster.as_ref(), &config).await?);
        signing.get_or_init(|| authority.clone());
        let (callers, signer) = callers(cluster.as_ref(), &config)?;
        let mut registry = match (&config.registry, &cluster) {
            (Source::Files(directory), _) => Registry::files(directory)?,
            (Source::Kubernetes(_), Some(cluster)) => {
                Registry::kubernetes(&cluster.client, &config.mesh.root_namespace)
            }
            (Source::Kubernetes(_), None) => unreachable!("a cluster is made for its registry"),
        };
        registry.load(|events| world.apply(events)).await?;
        let mut jwks = Jwks::new(world.clone(), authority.clone(), config.jwks.clone())?;
        jwks.first_round().await;
        guard.spawn(jwks.run(guard.clone()));
        let parts = Parts { world, authority, callers, metrics, clients };
        let serving = Serving::start().map_err(RunError::Threads)?;
        let front = life.front.guard();
        let (xds, plaintext_xds) = serve_proxies(&serving, &config, &parts, &front)?;
        let answers_marks = registry.answers_marks();
        let shared = cluster.as_ref().map(|cluster| cluster.authority.clone());
        administration.open(&config, &parts, answers_marks, shared, &guard)?;
        let registry = watch_registry(registry, parts.world.clone(), &guard);
        maintain(&parts, &guard);
        if let Some(cluster) = cluster {
            cluster.start(&parts, &config, &guard);
        }
        if let (Some(directory), Some(signer)) = (config.node_credentials, signer) {
            let credentials = NodeCredentials {
                directory,
                signer,
                authority: parts.authority,
                world: parts.world,
                account: config.trusted_node_accounts[0].clone(),
            };
            guard.spawn(credentials.run(guard.clone()));
        }
        life.serves.send_replace(true);
        let ports = Ports { xds, plaintext_xds, monitoring, admin };
        Ok(Self { registry, ports, _serving: serving })
    }
}

/// The authority: of the state directory or the operator's, or the one that replicas share.
async fn authority(
    cluster: Option<&Cluster>,
    config: &Config,
) -> Result<CertificateAuthority, RunError> {
    let (state, now) = (&config.state, SystemTime::now());
    let Some(cluster) = cluster else {
        let domain = &config.mesh.trust_domain;
        return Ok(CertificateAuthority::open(state, config.ca_dir.as_deref(), domain, now)?);
    };
    let root = cluster.authority.wait_for_root().await?;
    let authority =
        CertificateAuthority::of_cluster(state, root, config.max_workload_cert_ttl, now)?;
    // What other replicas took back must be known before the first proxy is served.
    cluster.authority.catch_up(&authority).await;
    Ok(authority)
}

/// How callers are verified, and what signs the tokens of one machine's nodes.
fn callers(
    cluster: Option<&Cluster>,
    config: &Config,
) -> Result<(Callers, Option<TokenSigner>), RunError> {
    if let Some(cluster) = cluster {
        let reviews = Reviews::new(cluster.client.clone());
        return Ok((Callers::Reviewed(Arc::new(reviews)), None));
    }
    let signer = token_signer(config)?;
    Ok((Callers::Own(signer.verifier()), Some(signer)))
}

fn token_signer(config: &Config) -> Result<TokenSigner, RunError> {
    let path = config.state.join("token-key.pem");
    match durable::read(&path)? {
        Some(pem) => {
            let pem = zeroize::Zeroizing::new(pem);
            // Bytes that are no text are no PEM either; the signer says so.
            Ok(TokenSigner::from_pem(std::str::from_utf8(&pem).unwrap_or_default())?)
        }
        None => {
            let signer = TokenSigner::generate()?;
            durable::replace(&path, signer.to_pem().as_bytes(), PRIVATE)?;
            Ok(signer)
        }
    }
}

fn world(config: &Config, metrics: Arc<Metrics>) -> Result<World, RunError> {
    let path = config.state.join("serviceentry-addresses.json");
    let vips = match durable::read(&path)? {
        None => Vips::default(),
        Some(json) => Vips::from_json(&json)
            .map_err(|source| RunError::Vips { path: path.clone(), source })?,
    };
    Ok(World::new(config.mesh.clone(), vips, path, metrics))
}

fn watch_registry(
    registry: Registry,
    world: Arc<World>,
    guard: &Guard,
) -> tokio::task::JoinHandle<Result<(), RegistryError>> {
    let (sender, mut events) = mpsc::channel::<Batch>(EVENT_QUEUE);
    let marks = world.marks();
    let mut drain = guard.clone();
    guard.spawn(async move {
        let publishing = async {
            // The first change after a pause waits for nothing; churn waits, and no longer than its
            // pace. What comes meanwhile goes out together.
            let mut published: Option<Instant> = None;
            while let Some(mut batch) = events.recv().await {
                loop {
                    let pace = if batch.is_of_requests() { PACE_OF_REQUESTS } else { PACE };
                    let due = published.map_or_else(Instant::now, |at| at + pace);
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep_until(due) => break,
                        more = events.recv() => match more {
                            Some(more) => batch.add(more),
                            None => break,
                        },
                    }
                }
                while let Ok(more) = events.try_recv() {
                    batch.add(more);
                }
                world.take(batch);
                published = Some(Instant::now());
            }
        };
        tokio::select! {
            _ = drain.draining() => {}
            () = publishing => {}
        }
    });
    tokio::spawn(registry.run(marks, sender))
}

fn listen(flag: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), RunError> {
    let failed = |source| RunError::Listen { flag, address, source };
    let options = ListenOptions { v6only: false, ..ListenOptions::default() };
    let listener = tcp_listener(address, &options).and_then(TcpListener::from_std);
    let listener = listener.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Discovery and certificates over TLS, and discovery in plain text on loopback if asked for.
fn serve_proxies(
    serving: &Serving,
    config: &Config,
    parts: &Parts,
    guard: &Guard,
) -> Result<(SocketAddr, Option<SocketAddr>), RunError> {
    let names = server_names(config)?;
    let renewal = Renewal { authority: parts.authority.clone(), names, clock: SystemTime::now };
    let acceptor = renewal.start(guard)?;
    let (turns, streams) = (Turns::default(), Streams::default());
    let authentication = Authentication {
        callers: parts.callers.clone(),
        world: parts.world.clone(),
        trusted_accounts: config.trusted_node_accounts.clone(),
    };
    let discovery = |authentication| Discovery {
        world: parts.world.clone(),
        authentication,
        clients: parts.clients.clone(),
        turns: turns.clone(),
        streams: streams.clone(),
        metrics: parts.metrics.clone(),
        guard: guard.clone(),
        spread: config.shutdown_spread,
    };
    let signing = CertificateService {
        authority: parts.authority.clone(),
        world: parts.world.clone(),
        trust_domain: config.mesh.trust_domain.clone(),
        default_ttl: config.workload_cert_ttl,
        max_ttl: config.max_workload_cert_ttl,
        metrics: parts.metrics.clone(),
    };
    let (secured, xds) = listen("--xds-address", config.xds_address)?;
    let router = grpc()
        .add_service(DeltaService(discovery(Some(authentication.clone()))))
        .add_service(Guarded::new(signing, authentication));
    serve_grpc(serving, router, secured, Security::Tls(acceptor), guard);
    let Some(address) = config.plaintext_xds_address else { return Ok((xds, None)) };
    let (plain, bound) = listen("--plaintext-xds-address", address)?;
    let router = grpc().add_service(DeltaService(discovery(None)));
    serve_grpc(serving, router, plain, Security::Plain, guard);
    Ok((xds, Some(bound)))
}

fn grpc() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(Some(CALLS_MAX))
        .initial_stream_window_size(Some(CALL_WINDOW_BYTES))
        .initial_connection_window_size(Some(CONNECTION_WINDOW_BYTES))
        .http2_max_header_list_size(Some(HEADERS_MAX_BYTES))
}

fn serve_grpc(
    serving: &Serving,
    router: tonic::transport::server::Router,
    listener: TcpListener,
    security: Security,
    guard: &Guard,
) {
    let _on_its_threads = serving.enter();
    let descriptors = open_files_limit();
    let connections = listener::accept(listener, security, descriptors, guard.clone());
    let connections = ReceiverStream::new(connections);
    let mut drain = guard.clone();
    guard.spawn(async move {
        let stop = async {
            drain.draining().await;
        };
        if let Err(error) = router.serve_with_incoming_shutdown(connections, stop).await {
            tracing::error!(error = error_chain(&error), "serving proxies failed");
        }
    });
}

/// Names that proxies may know us by: istiod's, this namespace's addresses, and what the user adds.
fn server_names(config: &Config) -> Result<Vec<String>, RunError> {
    let namespace = &config.mesh.root_namespace;
    let mut names: Vec<String> = SERVICE_NAMES.iter().map(|name| (*name).to_owned()).collect();
    for suffix in ["", ".svc"] {
        names.push(format!("{}.{namespace}{suffix}", names::CONTROL));
    }
    names.push(format!("{}.{namespace}.svc.{}", names::CONTROL, config.mesh.domain));
    let addresses = RouteSocket::open()?.addresses()?;
    names.extend(addresses.iter().map(|address| address.address.addr().to_string()));
    names.extend(config.server_names.iter().cloned());
    if !config.xds_address.ip().is_unspecified() {
        names.push(config.xds_address.ip().to_string());
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The monitoring port: the first to open, so that it can say that nothing is served yet.
fn serve_monitoring(
    config: &Config,
    monitoring: Arc<Monitoring>,
    guard: &Guard,
) -> Result<SocketAddr, RunError> {
    let (port, bound) = listen("--monitoring-address", config.monitoring_address)?;
    let answer: http_server::Handler = Arc::new(move |question| monitoring.answer(&question));
    let limits = http_port::PUBLIC.named("monitoring");
    guard.spawn(http_server::serve(Listener::Tcp(port), limits, answer, guard.clone()));
    Ok(bound)
}

/// The administration API, and this machine's probes beside it. No pod reaches either.
struct Administration {
    monitoring: Arc<Monitoring>,
    /// Not there before the control plane serves.
    admin: Arc<OnceLock<Admin>>,
}

impl Administration {
    /// Opens the loopback port, if asked for: at once, so that a probe is answered from the start.
    fn listen(&self, config: &Config, guard: &Guard) -> Result<Option<SocketAddr>, RunError> {
        let Some(address) = config.admin_address else { return Ok(None) };
        let (port, bound) = listen("--admin-address", address)?;
        self.serve(Listener::Tcp(port), guard);
        Ok(Some(bound))
    }

    /// Opens the socket, which says that all is served, and answers administrators from now on.
    fn open(
        &self,
        config: &Config,
        parts: &Parts,
        answers_marks: bool,
        cluster: Option<Arc<ClusterAuthority>>,
        guard: &Guard,
    ) -> Result<(), RunError> {
        self.admin.get_or_init(|| Admin {
            world: parts.world.clone(),
            authority: parts.authority.clone(),
            clients: parts.clients.clone(),
            metrics: parts.metrics.clone(),
            started: SystemTime::now(),
            answers_marks,
            cluster,
        });
        self.serve(Listener::Unix(admin::listen(&config.admin_socket)?), guard);
        Ok(())
    }

    fn serve(&self, listener: Listener, guard: &Guard) {
        let (monitoring, admin) = (self.monitoring.clone(), self.admin.clone());
        let answer: http_server::Handler = Arc::new(move |question| {
            if let Some(answer) = monitoring.probe(&question) {
                return answer;
            }
            match admin.get() {
                Some(admin) => admin.answer(&question),
                None => {
                    let what = "the control plane starts; ask again";
                    Answer::error(StatusCode::SERVICE_UNAVAILABLE, what)
                }
            }
        });
        let limits = http_port::PRIVATE.named("administration");
        guard.spawn(http_server::serve(listener, limits, answer, guard.clone()));
    }
}

/// Keeps the authority's lists fresh and a rotation going.
fn maintain(parts: &Parts, guard: &Guard) {
    let (authority, world) = (parts.authority.clone(), parts.world.clone());
    let mut drain = guard.clone();
    guard.spawn(async move {
        loop {
            tokio::select! {
                _ = drain.draining() => return,
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => {}
            }
            if let Err(error) = authority.maintain(&world.holders(), SystemTime::now()) {
                tracing::error!(error = error_chain(&error), "maintenance of the authority");
            }
        }
    });
}

#[cfg(test)]
mod tests;
