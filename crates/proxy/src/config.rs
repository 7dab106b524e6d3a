//! Settings of the proxy: as written ([`Args`]: flags and Istio's environment variables) and as
//! used (`Config`: validated, nothing unset).
//!
//! The fields of [`Args`] are the one table of flags, environment variables and help. This is the
//! only module of the crate that reads the environment; a variable of ztunnel's that would change
//! security or behaviour and is not supported is refused, never ignored.

mod istio;
mod parse;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ambit_dataplane::control_plane::{Access, ControlPlane, RootCertificate, Token};
use ambit_dataplane::logging::LogFormat;
use ambit_dataplane::memory::Budget;
use ambit_dataplane::own::FromOutside;
use ambit_dataplane::settings::{Hbone, Settings, Sockets};
use ambit_dataplane::views::NodeMetadata;
use ambit_model::Text;
use ambit_model::names::{WorkloadName, entry_uid};
use ambit_net::outside::Outside;
use ambit_net::socket::Keepalive;
use ambit_words::names::{DEFAULT_CLUSTER_DOMAIN, DEFAULT_TRUST_DOMAIN};
use ambit_words::ports;
pub(crate) use istio::Environment;
use istio::{CA_HEADER_PREFIX, ProxyConfig, XDS_HEADER_PREFIX};
use parse::{Threads, Uris};
use serde::Serialize;

/// Grace that remains to close connections properly before Kubernetes kills the process.
const KILL_MARGIN: Duration = Duration::from_secs(5);
/// How long connections may continue after SIGTERM by default.
const DEFAULT_TERMINATION_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// How long the connections of a deleted pod may continue by default.
const DEFAULT_POD_DRAIN: Duration = Duration::from_secs(5);
/// What may wait for slow readers when nothing says how much memory there is: what sixteen thousand
/// of them take that come from four clients.
const DEFAULT_MEMORY_BUDGET: usize = 512 << 20;
/// The part of a memory limit that may wait for slow readers: connections, tables and TLS need the
/// rest.
const MEMORY_PART: usize = 4;
/// The part of it that one pod may use each way, so that it takes several to use it up.
const POD_PART: usize = 4;
/// The part of it that may wait in the kernel, for readers that are slow on connections between two
/// pods of the node.
const KERNEL_PART: usize = 2;
/// Less would hold up even a few readers that are only a little slow.
const MIN_MEMORY_BUDGET: usize = 16 << 20;
/// Istio's places for the root certificate, the token and the revocation list.
const ROOT_CERTIFICATE: &str = "./var/run/secrets/istio/root-cert.pem";
const TOKEN: &str = "./var/run/secrets/tokens/istio-token";

/// Flags of `ambit proxy`, which stands in ztunnel's place.
#[allow(rustdoc::bare_urls, reason = "the text is the help of the flags too")]
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of the node whose pods this proxy serves
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Socket of the node agent, which announces the pods to serve (ZDS)
    #[arg(long, env = "INPOD_UDS", default_value = "/var/run/ztunnel/ztunnel.sock")]
    pub zds_socket: PathBuf,
    /// Control plane for discovery, https://HOST:PORT, or http:// for plain text [default:
    /// https://istiod.istio-system.svc:15012 in a cluster, else https://localhost:15012]
    #[arg(long, env = "XDS_ADDRESS", value_name = "URI")]
    pub xds_address: Option<String>,
    /// Certificate authority, https:// or http:// [default: as for --xds-address]
    #[arg(long, env = "CA_ADDRESS", value_name = "URI")]
    pub ca_address: Option<String>,
    /// Root certificate that proves the control plane: a file, PEM text, or SYSTEM
    #[arg(long, env = "XDS_ROOT_CA", default_value = ROOT_CERTIFICATE, value_name = "ROOT")]
    pub xds_root_ca: String,
    /// Root certificate that proves the certificate authority: a file, PEM text, or SYSTEM
    #[arg(long, env = "CA_ROOT_CA", default_value = ROOT_CERTIFICATE, value_name = "ROOT")]
    pub ca_root_ca: String,
    /// Token for the control plane: a file (read again for each connection) or the token itself
    /// [default: ./var/run/secrets/tokens/istio-token if it exists]
    #[arg(long, env = "AUTH_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub auth_token: Option<String>,
    /// Name that the certificates of control plane and authority must have, if not that of the host
    #[arg(long, value_name = "NAME")]
    pub alt_hostname: Option<String>,
    /// As --alt-hostname, only for discovery
    #[arg(long, env = "ALT_XDS_HOSTNAME", value_name = "NAME")]
    pub alt_xds_hostname: Option<String>,
    /// As --alt-hostname, only for the certificate authority
    #[arg(long, env = "ALT_CA_HOSTNAME", value_name = "NAME")]
    pub alt_ca_hostname: Option<String>,
    /// Request workloads when they are needed, instead of all at once
    #[arg(long, env = "XDS_ON_DEMAND", default_value_t = false, action = clap::ArgAction::Set)]
    pub xds_on_demand: bool,
    /// Lifetime to request for certificates
    #[arg(long, env = "SECRET_TTL", default_value = "24h", value_parser = parse::duration)]
    pub secret_ttl: Duration,
    /// Certificate revocation list [default: ca-crl.pem beside the authority's root certificate]
    #[arg(long, env = "CRL_PATH", value_name = "FILE")]
    pub crl_path: Option<PathBuf>,
    /// Trust domain of the pods' identities
    #[arg(long, env = "TRUST_DOMAIN", default_value = DEFAULT_TRUST_DOMAIN)]
    pub trust_domain: String,
    /// Cluster that this proxy belongs to [default: ISTIO_META_CLUSTER_ID, else Kubernetes]
    #[arg(long, env = "CLUSTER_ID", value_name = "NAME")]
    pub cluster_id: Option<String>,
    /// Domain of the cluster's DNS
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = DEFAULT_CLUSTER_DOMAIN)]
    pub cluster_domain: String,
    /// Network that this node is on
    #[arg(long, env = "NETWORK", default_value = "")]
    pub network: String,
    /// Serve IPv6
    #[arg(long, env = "IPV6_ENABLED", default_value_t = true, action = clap::ArgAction::Set)]
    pub ipv6: bool,
    /// Mark (SO_MARK) of the proxy's packets, by which the capture rules recognise them
    #[arg(long, env = "PACKET_MARK", default_value = "1337", value_name = "MARK")]
    pub packet_mark: u32,
    /// Probe idle connections
    #[arg(long, env = "KEEPALIVE_ENABLED", default_value_t = true, action = clap::ArgAction::Set)]
    pub keepalive: bool,
    /// Silence before the first probe
    #[arg(long, env = "KEEPALIVE_TIME", default_value = "180s", value_parser = parse::duration)]
    pub keepalive_time: Duration,
    /// Time between probes
    #[arg(long, env = "KEEPALIVE_INTERVAL", default_value = "180s", value_parser = parse::duration)]
    pub keepalive_interval: Duration,
    /// Unanswered probes before a connection is ended
    #[arg(long, env = "KEEPALIVE_RETRIES", default_value = "9")]
    pub keepalive_retries: u32,
    /// End connections whose data is unacknowledged for as long as all probes take
    #[arg(
        long,
        env = "USER_TIMEOUT_ENABLED",
        default_value_t = false,
        action = clap::ArgAction::Set,
    )]
    pub user_timeout: bool,
    /// Largest flow-control window of an HBONE stream, in bytes; it shrinks while memory is short
    #[arg(long, env = "HTTP2_STREAM_WINDOW_SIZE", default_value = "1048576", value_name = "BYTES")]
    pub http2_stream_window: u32,
    /// Largest flow-control window of an HBONE connection, in bytes
    #[arg(
        long,
        env = "HTTP2_CONNECTION_WINDOW_SIZE",
        default_value = "67108864",
        value_name = "BYTES"
    )]
    pub http2_connection_window: u32,
    /// Largest HTTP/2 frame, in bytes
    #[arg(long, env = "HTTP2_FRAME_SIZE", default_value = "1048576", value_name = "BYTES")]
    pub http2_frame: u32,
    /// Memory for bytes that wait for a slow reader, for all pods together [default: a quarter of
    /// the container's memory limit, else 512 MiB]
    #[arg(long, env = "AMBIT_MEMORY_BUDGET", value_name = "BYTES")]
    pub memory_budget: Option<usize>,
    /// The same for one pod, for inbound and outbound each. One client of the pod gets half of it
    /// [default: a quarter of --memory-budget]
    #[arg(long, env = "AMBIT_POD_MEMORY_BUDGET", value_name = "BYTES")]
    pub pod_memory_budget: Option<usize>,
    /// Streams on one HBONE connection before another is opened
    #[arg(long, env = "POOL_MAX_STREAMS_PER_CONNECTION", default_value = "100", value_name = "N")]
    pub pool_max_streams: u16,
    /// How long an unused HBONE connection is kept
    #[arg(
        long,
        env = "POOL_UNUSED_RELEASE_TIMEOUT",
        default_value = "5m",
        value_parser = parse::duration,
    )]
    pub pool_unused_release: Duration,
    /// How two pods of this node are connected
    #[arg(long, env = "AMBIT_SAME_NODE", value_enum, default_value = "join")]
    pub same_node: SameNode,
    /// Whether the kernel moves the bytes of two joined pods past the proxy (Linux 6.13, BTF)
    #[arg(long, env = "AMBIT_KERNEL_PATH", value_enum, default_value = "auto")]
    pub kernel_path: KernelPathUse,
    /// Dial applications from the client's address
    #[arg(long, env = "ENABLE_ORIG_SRC", default_value_t = true, action = clap::ArgAction::Set)]
    pub original_source: bool,
    /// Send the destination's baggage in answers to HBONE requests
    #[arg(
        long,
        env = "ENABLE_RESPONSE_BAGGAGE",
        default_value_t = true,
        action = clap::ArgAction::Set,
    )]
    pub response_baggage: bool,
    /// Deliver application tunnels to localhost
    #[arg(
        long,
        env = "LOCALHOST_APP_TUNNEL",
        default_value_t = true,
        action = clap::ArgAction::Set,
    )]
    pub localhost_app_tunnel: bool,
    /// Log each decision of a policy at INFO instead of DEBUG
    #[arg(
        long,
        env = "AUTHZ_POLICY_INFO_LOGGING",
        default_value_t = false,
        action = clap::ArgAction::Set,
    )]
    pub policy_info_logging: bool,
    /// How long connections may go on after SIGTERM, and after their pod is deleted [default: from
    /// the grace period, else 30m and 5s]
    #[arg(
        long,
        env = "CONNECTION_TERMINATION_DEADLINE",
        value_parser = parse::duration,
        value_name = "DURATION",
    )]
    pub termination_deadline: Option<Duration>,
    /// Kubernetes' grace period in seconds; the proxy uses all but the last five
    #[arg(long, env = "TERMINATION_GRACE_PERIOD_SECONDS", value_name = "SECONDS")]
    pub termination_grace_period: Option<u64>,
    /// Data-plane threads: a number, a percentage of the cores, or 0 for all [default: the larger
    /// of 2 and a quarter of the cores]
    #[arg(long, env = "ZTUNNEL_WORKER_THREADS", value_name = "N|N%")]
    pub worker_threads: Option<Threads>,
    /// Number of cores that the proxy may use
    #[arg(long, env = "ZTUNNEL_CPU_LIMIT", value_name = "N")]
    pub cpu_limit: Option<usize>,
    /// CPU limit of the container, as a Kubernetes quantity
    #[arg(
        long,
        env = "ZTUNNEL_RESOURCE_CPU_LIMIT",
        value_parser = parse::cpu_quantity,
        value_name = "CPU",
    )]
    pub resource_cpu_limit: Option<usize>,
    /// CPU request of the container, as a Kubernetes quantity
    #[arg(
        long,
        env = "ZTUNNEL_RESOURCE_CPU_REQUEST",
        value_parser = parse::cpu_quantity,
        value_name = "CPU",
    )]
    pub resource_cpu_request: Option<usize>,
    /// Keep the last view in this file, so that the proxy starts without the control plane
    #[arg(long, env = "AMBIT_SNAPSHOT", value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Age from which the snapshot is no longer used
    #[arg(
        long,
        env = "AMBIT_SNAPSHOT_MAX_AGE",
        default_value = "24h",
        value_parser = parse::duration,
    )]
    pub snapshot_max_age: Duration,
    /// DNS servers for names outside the mesh [default: those of this node's /etc/resolv.conf]
    #[arg(
        long,
        env = "AMBIT_DNS_UPSTREAM",
        value_delimiter = ',',
        value_name = "IP[:PORT]",
        value_parser = parse::dns_server,
    )]
    pub dns_upstream: Vec<SocketAddr>,
    /// DNS servers that hosts of ServiceEntries are looked up with [default: those of
    /// --dns-upstream, else of this node's /etc/resolv.conf]
    #[arg(
        long,
        env = "AMBIT_LOOKUP_RESOLVERS",
        value_delimiter = ',',
        value_name = "IP[:PORT]",
        value_parser = parse::dns_server,
    )]
    pub lookup_resolvers: Vec<SocketAddr>,
    /// Address of the administration API; loopback only
    #[arg(
        long,
        env = "AMBIT_ADMIN_ADDRESS",
        default_value_t = ports::on_loopback(ports::PROXY_ADMIN),
    )]
    pub admin_address: SocketAddr,
    /// Unix socket of the administration API
    #[arg(long, env = "AMBIT_ADMIN_SOCKET", value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// Address of /metrics
    #[arg(
        long,
        env = "AMBIT_METRICS_ADDRESS",
        default_value_t = ports::everywhere(ports::PROXY_METRICS),
    )]
    pub metrics_address: SocketAddr,
    /// Address of /healthz/ready
    #[arg(
        long,
        env = "AMBIT_READINESS_ADDRESS",
        default_value_t = ports::everywhere(ports::PROXY_READINESS),
    )]
    pub readiness_address: SocketAddr,
    /// Sample allocations for /debug/pprof/heap
    #[arg(
        long,
        env = "AMBIT_HEAP_PROFILING",
        default_value_t = false,
        action = clap::ArgAction::Set,
    )]
    pub heap_profiling: bool,
    /// Log level, or levels by target, such as info,access=off
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    pub log_level: String,
    /// Format of the log
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "plain")]
    pub log_format: LogFormat,
    /// The one pod that is served stands for a WorkloadEntry of a cluster: others reach it at this
    /// address of the host
    #[arg(long, value_name = "IP", requires = "outside_socket", hide = true)]
    pub outside_address: Option<IpAddr>,
    /// Where sockets of the host's network are handed out
    #[arg(long, value_name = "PATH", requires = "outside_control_socket", hide = true)]
    pub outside_socket: Option<PathBuf>,
    /// The same for the connections with control, which must not wait for those of the pod
    #[arg(long, value_name = "PATH", requires = "outside_address", hide = true)]
    pub outside_control_socket: Option<PathBuf>,
    /// Run as the worker of the supervisor whose socket standard input is
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// What happens between two pods of this very node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum SameNode {
    /// The proxy joins the sockets, without TLS; the destination's policies apply.
    Join,
    /// As between nodes: HBONE and mutual TLS.
    Encrypt,
}

/// Whether the kernel moves the bytes of two joined pods past the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum KernelPathUse {
    /// Where the kernel can; where it cannot, the log says why, and the proxy moves them.
    Auto,
    /// The proxy does not start where the kernel cannot.
    On,
    /// The proxy moves them.
    Off,
}

/// The settings as used.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// Who and where this proxy is.
    pub(crate) node: Node,
    /// Options of every socket towards pods.
    pub(crate) sockets: Sockets,
    /// HBONE's HTTP/2 settings and pool.
    pub(crate) hbone: Hbone,
    /// What may wait for slow readers.
    pub(crate) memory: Budget,
    /// Where the view comes from.
    pub(crate) discovery: ControlPlane,
    /// Where certificates come from.
    pub(crate) authority: ControlPlane,
    /// What the control plane is shown.
    pub(crate) token: Token,
    /// Ask for workloads when they are needed instead of for all.
    pub(crate) on_demand: bool,
    /// Lifetime to ask for in certificates.
    pub(crate) certificate_ttl: Duration,
    /// Where the revocation list is, if it exists.
    pub(crate) crl_path: PathBuf,
    /// Names of the mesh, answered in the pods.
    pub(crate) dns: Dns,
    /// Where the last view is kept, if anywhere.
    pub(crate) snapshot: Snapshot,
    /// Addresses of what an operator asks.
    pub(crate) operator: Operator,
    /// Data-plane threads.
    pub(crate) worker_threads: usize,
    /// Where the node agent listens.
    pub(crate) zds_socket: PathBuf,
    /// How the mesh is reached from outside of its cluster.
    #[serde(skip)]
    pub(crate) outside: Option<FromHost>,
    /// What happens between two pods of this very node.
    pub(crate) same_node: SameNode,
    /// Whether the kernel moves the bytes of two joined pods past the proxy.
    pub(crate) kernel_path: KernelPathUse,
    /// Answer CONNECT with the destination's baggage.
    pub(crate) response_baggage: bool,
    /// Log decisions of policies at INFO instead of DEBUG.
    pub(crate) policy_info_logging: bool,
    /// Deliver application tunnels to localhost instead of the pod's address.
    pub(crate) localhost_app_tunnel: bool,
    /// Dial the application from the client's address.
    pub(crate) original_source: bool,
    /// Sample allocations.
    pub(crate) heap_profiling: bool,
    /// How long connections may continue after SIGTERM.
    pub(crate) termination_deadline: Duration,
    /// How long connections may continue after their pod is deleted.
    pub(crate) drain_deadline: Duration,
}

/// How the host's network is reached by a proxy that is not in it.
#[derive(Clone, Debug)]
pub(crate) struct FromHost {
    /// The host's, at which others reach the pod.
    pub(crate) address: IpAddr,
    /// Who opens the pod's connections.
    pub(crate) outside: Outside,
    /// Who opens those with control, and has the listener for other proxies.
    pub(crate) control: Outside,
}

/// Who and where this proxy is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    /// The node's name.
    pub(crate) name: Text,
    /// The cluster it belongs to.
    pub(crate) cluster_id: Text,
    /// The domain of the cluster's DNS.
    pub(crate) cluster_domain: Text,
    /// The network it is on, empty for the only one.
    pub(crate) network: Text,
    /// The trust domain of its pods' identities.
    pub(crate) trust_domain: Text,
    /// The metadata for the control plane.
    pub(crate) metadata: NodeMetadata,
}

/// Names of the mesh, answered in the pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Dns {
    /// Whether queries are served.
    pub(crate) enabled: bool,
    /// Servers for other names; empty means those of the node's resolv.conf.
    pub(crate) upstream: Vec<SocketAddr>,
    /// Servers for hosts of ServiceEntries; empty means those of the node's resolv.conf.
    pub(crate) lookups: Vec<SocketAddr>,
}

/// Where the last view is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Snapshot {
    /// In the supervisor's memory only.
    Memory,
    /// Also in a file.
    File {
        /// Which.
        path: PathBuf,
        /// Age beyond which it is refused.
        max_age: Duration,
    },
}

/// Addresses of what an operator asks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Operator {
    /// Admin API.
    pub(crate) admin: SocketAddr,
    /// Admin API once more, as a Unix socket, if anywhere.
    pub(crate) admin_socket: Option<PathBuf>,
    /// Metrics.
    pub(crate) metrics: SocketAddr,
    /// Readiness.
    pub(crate) readiness: SocketAddr,
}

/// A problem with the settings, and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A variable of ztunnel's asks for something that Ambit does not do.
    #[error("{name}={value} is not supported: {remedy}")]
    Unsupported {
        /// The variable.
        name: &'static str,
        /// What it is set to.
        value: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A setting has a value that makes no sense.
    #[error("{name}: {reason}")]
    Invalid {
        /// The setting.
        name: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The mesh configuration file cannot be read.
    #[error("read {path}")]
    MeshConfigFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// `PROXY_CONFIG` or the mesh configuration file is no YAML of the expected shape.
    #[error("{name} is not a valid proxy configuration")]
    ProxyConfig {
        /// The variable or file that holds it.
        name: String,
        /// Where it is wrong.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
}

impl ConfigError {
    fn invalid(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { name: name.into(), reason: reason.into() }
    }
}

impl Config {
    /// What the kernel may hold for connections that it moves past the proxy: it counts as the
    /// proxy's memory too.
    pub(crate) fn kernel_budget_bytes(&self) -> u64 {
        (self.memory.worker_bytes / KERNEL_PART) as u64
    }

    /// The part of it that moving bytes needs.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            component: "ambit-proxy",
            network: self.node.network.clone(),
            sockets: self.sockets.clone(),
            hbone: self.hbone.clone(),
            memory: self.memory,
            threads: self.worker_threads,
            original_source: self.original_source,
            resolvers: self.dns.lookups.clone(),
            policy_info_logging: self.policy_info_logging,
        }
    }

    /// How discovery is asked.
    pub(crate) fn discovery_access(&self) -> Access {
        self.access(&self.discovery)
    }

    /// How the certificate authority is asked.
    pub(crate) fn authority_access(&self) -> Access {
        self.access(&self.authority)
    }

    fn access(&self, service: &ControlPlane) -> Access {
        Access {
            service: service.clone(),
            token: self.token.clone(),
            cluster_id: self.node.cluster_id.clone(),
            mark: self.sockets.mark,
            outside: self.outside.as_ref().map(|it| it.control.clone()),
        }
    }

    /// How a pod of this name reaches the mesh, where that is not from its own network.
    pub(crate) fn place_of(
        &self,
        name: &WorkloadName,
        disowned: Arc<AtomicBool>,
    ) -> Option<FromOutside> {
        let FromHost { address, outside, .. } = self.outside.clone()?;
        let entry = entry_uid(&self.node.cluster_id, &name.namespace, &name.name).into();
        Some(FromOutside { entry, address, outside, disowned })
    }

    /// Validates what was written. `environment` holds the variables without a flag.
    pub(crate) fn new(args: &Args, environment: &Environment) -> Result<Self, ConfigError> {
        environment.refuse_unsupported()?;
        let proxy_config = ProxyConfig::read(environment)?;
        proxy_config.refuse_unsupported()?;
        if args.node_name.is_empty() {
            let reason = "is empty; give the name of this node's Node object (or set NODE_NAME)";
            return Err(ConfigError::invalid("--node-name", reason));
        }
        let uris = Uris::new(args, &proxy_config, environment)?;
        let operator = operator(args, &proxy_config)?;
        Ok(Self {
            node: node(args, &proxy_config, environment)?,
            sockets: sockets(args),
            hbone: hbone(args)?,
            memory: memory(args, environment)?,
            discovery: ControlPlane {
                server_name: uris.server_name(&uris.discovery, &args.alt_xds_hostname, args)?,
                uri: uris.discovery.clone(),
                root: RootCertificate::parse(&args.xds_root_ca),
                headers: environment.headers(XDS_HEADER_PREFIX)?,
            },
            authority: ControlPlane {
                server_name: uris.server_name(&uris.authority, &args.alt_ca_hostname, args)?,
                uri: uris.authority.clone(),
                root: RootCertificate::parse(&args.ca_root_ca),
                headers: environment.headers(CA_HEADER_PREFIX)?,
            },
            token: Token::parse(args.auth_token.as_deref(), TOKEN),
            on_demand: args.xds_on_demand,
            certificate_ttl: positive("--secret-ttl", args.secret_ttl)?,
            crl_path: crl_path(args),
            dns: dns(args, proxy_config.dns_capture()),
            snapshot: match &args.snapshot {
                None => Snapshot::Memory,
                Some(path) => Snapshot::File { path: path.clone(), max_age: args.snapshot_max_age },
            },
            operator,
            worker_threads: parse::worker_threads(args, proxy_config.concurrency),
            zds_socket: args.zds_socket.clone(),
            outside: from_host(args),
            same_node: args.same_node,
            kernel_path: args.kernel_path,
            response_baggage: args.response_baggage,
            policy_info_logging: args.policy_info_logging,
            localhost_app_tunnel: args.localhost_app_tunnel,
            original_source: args.original_source,
            heap_profiling: args.heap_profiling,
            termination_deadline: deadline(args, DEFAULT_TERMINATION_DEADLINE),
            drain_deadline: deadline(args, DEFAULT_POD_DRAIN).min(DEFAULT_TERMINATION_DEADLINE),
        })
    }
}

fn dns(args: &Args, enabled: bool) -> Dns {
    let upstream = args.dns_upstream.clone();
    let lookups = match args.lookup_resolvers.is_empty() {
        true => upstream.clone(),
        false => args.lookup_resolvers.clone(),
    };
    Dns { enabled, upstream, lookups }
}

fn node(
    args: &Args,
    proxy_config: &ProxyConfig,
    environment: &Environment,
) -> Result<Node, ConfigError> {
    let of_metadata = environment.variable("ISTIO_META_CLUSTER_ID");
    let cluster_id = of_metadata.or(args.cluster_id.as_deref()).unwrap_or("Kubernetes");
    if args.trust_domain.is_empty() || args.trust_domain.contains('/') {
        let reason = format!("{:?} is no trust domain, such as cluster.local", args.trust_domain);
        return Err(ConfigError::invalid("--trust-domain", reason));
    }
    Ok(Node {
        name: args.node_name.as_str().into(),
        cluster_id: cluster_id.into(),
        cluster_domain: args.cluster_domain.as_str().into(),
        network: args.network.as_str().into(),
        trust_domain: args.trust_domain.as_str().into(),
        metadata: istio::node_metadata(&args.node_name, proxy_config, environment)?,
    })
}

fn from_host(args: &Args) -> Option<FromHost> {
    let outside = |path: &Option<PathBuf>| path.clone().map(Outside::new);
    let (address, control) = (args.outside_address?, outside(&args.outside_control_socket)?);
    Some(FromHost { address, outside: outside(&args.outside_socket)?, control })
}

fn sockets(args: &Args) -> Sockets {
    let keepalive = Keepalive {
        time: args.keepalive_time,
        interval: args.keepalive_interval,
        retries: args.keepalive_retries,
    };
    // RFC 5482: give up when keepalive would have.
    let user_timeout = keepalive.time + keepalive.interval * keepalive.retries;
    Sockets {
        mark: Some(args.packet_mark),
        keepalive: args.keepalive.then_some(keepalive),
        user_timeout: args.user_timeout.then_some(user_timeout),
        ipv6: args.ipv6,
    }
}

fn hbone(args: &Args) -> Result<Hbone, ConfigError> {
    /// RFC 9113 section 6.5.2.
    const FRAME_SIZES: std::ops::RangeInclusive<u32> = 16_384..=16_777_215;
    const WINDOW_SIZES: std::ops::RangeInclusive<u32> = 65_535..=2_147_483_647;
    let within = |name: &str, range: &std::ops::RangeInclusive<u32>, value: u32| {
        let reason = || format!("{value} is not between {} and {}", range.start(), range.end());
        let fits = range.contains(&value).then_some(value);
        fits.ok_or_else(|| ConfigError::invalid(name, reason()))
    };
    if args.pool_max_streams == 0 {
        let reason = "0 streams carry nothing; give at least 1";
        return Err(ConfigError::invalid("--pool-max-streams", reason));
    }
    let (stream, connection) = (args.http2_stream_window, args.http2_connection_window);
    Ok(Hbone {
        stream_window_bytes: within("--http2-stream-window", &WINDOW_SIZES, stream)?,
        connection_window_bytes: within("--http2-connection-window", &WINDOW_SIZES, connection)?,
        frame_size_bytes: within("--http2-frame", &FRAME_SIZES, args.http2_frame)?,
        max_streams_per_connection: args.pool_max_streams,
        idle_timeout: args.pool_unused_release,
    })
}

fn memory(args: &Args, environment: &Environment) -> Result<Budget, ConfigError> {
    let given = |name: &str, bytes: Option<usize>, most: usize| match bytes {
        Some(bytes) if !(MIN_MEMORY_BUDGET..=most).contains(&bytes) => {
            let reason = format!("{bytes} is not between {MIN_MEMORY_BUDGET} and {most} bytes");
            Err(ConfigError::invalid(name, reason))
        }
        bytes => Ok(bytes),
    };
    let of_limit = |limit: usize| (limit / MEMORY_PART).max(MIN_MEMORY_BUDGET);
    let default = environment.memory_limit().map_or(DEFAULT_MEMORY_BUDGET, of_limit);
    let worker = given("--memory-budget", args.memory_budget, usize::MAX)?;
    let worker_bytes = worker.unwrap_or(default);
    let pod = given("--pod-memory-budget", args.pod_memory_budget, worker_bytes)?;
    let pod_bytes = pod.unwrap_or((worker_bytes / POD_PART).max(MIN_MEMORY_BUDGET));
    Ok(Budget { worker_bytes, pod_bytes })
}

fn operator(args: &Args, proxy_config: &ProxyConfig) -> Result<Operator, ConfigError> {
    let with_port = |address: SocketAddr, port: Option<u16>| {
        port.map_or(address, |port| SocketAddr::new(address.ip(), port))
    };
    let wildcard = |address: SocketAddr| match (args.ipv6, address.ip()) {
        (false, IpAddr::V6(ip)) if ip.is_unspecified() => {
            SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), address.port())
        }
        _ => address,
    };
    let admin = with_port(args.admin_address, proxy_config.proxy_admin_port);
    if !admin.ip().is_loopback() {
        let reason = format!("{admin} is no loopback address; the admin API has no authentication");
        return Err(ConfigError::invalid("--admin-address", reason));
    }
    Ok(Operator {
        admin,
        admin_socket: args.admin_socket.clone(),
        metrics: wildcard(with_port(args.metrics_address, proxy_config.stats_port)),
        readiness: wildcard(args.readiness_address),
    })
}

/// The deadline asked for, or what Kubernetes' grace period leaves, or `default`.
fn deadline(args: &Args, default: Duration) -> Duration {
    let of_grace = |seconds: u64| {
        let margin = if seconds > 2 * KILL_MARGIN.as_secs() { KILL_MARGIN.as_secs() } else { 1 };
        Duration::from_secs(seconds.saturating_sub(margin).max(1))
    };
    let of_grace = args.termination_grace_period.map(of_grace);
    args.termination_deadline.or(of_grace).unwrap_or(default)
}

/// The list named, or the one beside the authority's root certificate.
fn crl_path(args: &Args) -> PathBuf {
    let named = args.crl_path.clone().filter(|path| !path.as_os_str().is_empty());
    named.unwrap_or_else(|| match RootCertificate::parse(&args.ca_root_ca) {
        RootCertificate::File(path) => path.with_file_name("ca-crl.pem"),
        _ => PathBuf::from(ROOT_CERTIFICATE).with_file_name("ca-crl.pem"),
    })
}

fn positive(name: &str, duration: Duration) -> Result<Duration, ConfigError> {
    let reason = "a lifetime of nothing; write for example 24h";
    if duration.is_zero() { Err(ConfigError::invalid(name, reason)) } else { Ok(duration) }
}

#[cfg(test)]
pub(crate) mod tests;
