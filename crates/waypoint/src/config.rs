//! Settings of a waypoint: as written ([`Args`]: flags and environment variables) and as used
//! (`Config`: validated, nothing unset).

pub mod limits;
mod telemetry;
mod values;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ambit_dataplane::control_plane::{
    Access, ControlPlane, RootCertificate, Token, host_of, service_uri,
};
use ambit_dataplane::logging::LogFormat;
use ambit_dataplane::memory::Budget;
use ambit_dataplane::settings::{Hbone, Settings, Sockets};
use ambit_dataplane::views::{Front, NodeMetadata};
use ambit_http::Normalisation;
use ambit_http::engine;
use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_net::socket::ISTIO_KEEPALIVE;
use ambit_words::names::{DEFAULT_CLUSTER_DOMAIN, DEFAULT_TRUST_DOMAIN};
use ambit_words::ports;
use ambit_words::variables::{POSITION, waypoint_problem};

use crate::access_log::Names;
use crate::reports::Defaults;
use telemetry::variables;
pub use telemetry::{LogForm, OtlpProtocol, TelemetryArgs};
pub use values::ConfigError;
use values::duration;

/// Istio's places for the root certificate and the token.
const ROOT_CERTIFICATE: &str = "/var/run/secrets/istio/root-cert.pem";
const TOKEN: &str = "/var/run/secrets/tokens/istio-token";
/// What may wait for slow readers.
const MEMORY_BYTES: usize = 256 << 20;
/// The part of it that one client may use.
const CLIENT_BYTES: usize = 64 << 20;
/// Threads that bring no more speed.
const MAX_THREADS: usize = 64;

/// Further flags of `ambit waypoint`.
// Not within `Args`: clap calls an optional group absent if it has another group inside.
#[derive(Clone, Debug, clap::Args)]
pub struct FurtherArgs {
    /// Logs and traces
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Bounds of requests and of the whole pod
    #[command(flatten)]
    pub limits: limits::LimitsArgs,
}

/// Flags of `ambit waypoint`, which stands in istio-proxy's place.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of this pod
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: String,
    /// Namespace of this pod
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    pub pod_namespace: String,
    /// Service account of this pod
    #[arg(long, env = "SERVICE_ACCOUNT", value_name = "NAME")]
    pub service_account: String,
    /// Address of this pod
    #[arg(long, env = "INSTANCE_IP", value_name = "IP")]
    pub instance_ip: IpAddr,
    /// Node of this pod
    #[arg(long, env = "NODE_NAME", default_value = "", value_name = "NAME")]
    pub node_name: String,
    /// Gateway that this waypoint belongs to
    #[arg(long, env = "GATEWAY_NAME", value_name = "NAME")]
    pub gateway_name: String,
    /// Control plane for discovery, https://HOST:PORT
    #[arg(
        long,
        env = "XDS_ADDRESS",
        default_value = "https://istiod.istio-system.svc:15012",
        value_name = "URI"
    )]
    pub xds_address: String,
    /// Certificate authority [default: as --xds-address]
    #[arg(long, env = "CA_ADDRESS", value_name = "URI")]
    pub ca_address: Option<String>,
    /// Root certificate that proves both: a file, PEM text, or SYSTEM
    #[arg(long, env = "XDS_ROOT_CA", default_value = ROOT_CERTIFICATE, value_name = "ROOT")]
    pub root_ca: String,
    /// Token for the control plane: a file (read again for each connection) or the token itself
    #[arg(long, env = "AUTH_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub auth_token: Option<String>,
    /// Name that the certificate of discovery must have, if not that of the host
    #[arg(long, env = "ALT_XDS_HOSTNAME", value_name = "NAME")]
    pub alt_xds_hostname: Option<String>,
    /// Name that the certificate of the authority must have, if not that of the host
    #[arg(long, env = "ALT_CA_HOSTNAME", value_name = "NAME")]
    pub alt_ca_hostname: Option<String>,
    /// Trust domain of identities
    #[arg(long, env = "TRUST_DOMAIN", default_value = DEFAULT_TRUST_DOMAIN)]
    pub trust_domain: String,
    /// Cluster that this waypoint belongs to
    #[arg(long, env = "CLUSTER_ID", default_value = "Kubernetes", value_name = "NAME")]
    pub cluster_id: String,
    /// Domain of the cluster's DNS
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = DEFAULT_CLUSTER_DOMAIN)]
    pub cluster_domain: String,
    /// Network that this pod is on
    #[arg(long, env = "NETWORK", default_value = "")]
    pub network: String,
    /// Lifetime to request for certificates
    #[arg(long, env = "SECRET_TTL", default_value = "24h", value_parser = duration)]
    pub secret_ttl: Duration,
    /// Certificate revocation list
    #[arg(
        long,
        env = "CRL_PATH",
        default_value = "/var/run/secrets/istio/ca-crl.pem",
        value_name = "FILE"
    )]
    pub crl_path: PathBuf,
    /// Where it is: before services of the mesh, or at its edge
    #[arg(long, env = POSITION, value_enum, default_value = "waypoint")]
    pub position: Place,
    /// At the edge: how many proxies before this one are believed, by what they add to
    /// X-Forwarded-For and X-Forwarded-Proto
    #[arg(long, env = "AMBIT_TRUSTED_PROXIES", default_value = "0", value_name = "N")]
    pub trusted_proxies: usize,
    /// At the edge: every connection begins with a PROXY protocol header (version 1 or 2), which
    /// says where its client is. Only for gateways that nobody but a load balancer reaches
    #[arg(long, env = "AMBIT_PROXY_PROTOCOL")]
    pub proxy_protocol: bool,
    /// Data-plane threads, or 0 for one for each core
    #[arg(long, env = "AMBIT_WAYPOINT_THREADS", default_value = "2", value_name = "N")]
    pub threads: usize,
    /// Address for other proxies' tunnels (HBONE)
    #[arg(long, env = "AMBIT_HBONE_ADDRESS", default_value_t = ports::everywhere(ports::HBONE))]
    pub hbone_address: SocketAddr,
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
    /// How paths are normalised before routes and policies read them
    #[arg(long, env = "AMBIT_PATH_NORMALIZATION", value_enum, default_value = "base")]
    pub path_normalization: PathNormalization,
    /// Ask clients to connect anew after so long, so that all replicas get their share; 0 for never
    #[arg(
        long,
        env = "AMBIT_MAX_CONNECTION_AGE",
        default_value = "10m",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub max_connection_age: Duration,
    /// How long a client of an undeclared port may be silent before it is taken for no HTTP
    #[arg(
        long,
        env = "AMBIT_DETECT_TIMEOUT",
        default_value = "500ms",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub detect_timeout: Duration,
    /// How long a request's head may take
    #[arg(
        long,
        env = "AMBIT_HEAD_TIMEOUT",
        default_value = "10s",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub head_timeout: Duration,
    /// How long a connection without a request is kept
    #[arg(
        long,
        env = "AMBIT_IDLE_TIMEOUT",
        default_value = "1h",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub idle_timeout: Duration,
    /// How long nothing may move in a request: no answer, and no byte of either body or behind an
    /// upgrade; and in a connection that is no HTTP
    #[arg(
        long,
        env = "AMBIT_STREAM_IDLE_TIMEOUT",
        default_value = "1h",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub stream_idle_timeout: Duration,
    /// How long a client of HTTP/1 that has closed its direction may wait for its answer
    #[arg(
        long,
        env = "AMBIT_HALF_CLOSE_TIMEOUT",
        default_value = "5s",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub half_close_timeout: Duration,
    /// Leave out x-ambit-reason, which says why the waypoint itself has answered
    #[arg(long, env = "AMBIT_HIDE_REASON")]
    pub hide_reason: bool,
    /// How long requests may go on after SIGTERM
    #[arg(
        long,
        env = "TERMINATION_DRAIN_DURATION",
        default_value = "25s",
        value_parser = duration,
        value_name = "DURATION",
    )]
    pub drain: Duration,
    /// Log level, or levels by target, such as info,access=off
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    pub log_level: String,
    /// Format of the log
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "plain")]
    pub log_format: LogFormat,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// Before services or workloads of the mesh, behind HBONE.
    Waypoint,
    /// At the edge of the mesh, behind the listeners of its Gateway.
    Gateway,
}

/// Istio's `pathNormalization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PathNormalization {
    /// Not at all.
    None,
    /// RFC 3986, and `\` becomes `/`.
    Base,
    /// And several slashes in a row become one.
    MergeSlashes,
    /// And `%2F` and `%5C` become slashes before.
    DecodeAndMergeSlashes,
}

/// The settings as used.
pub(crate) struct Config {
    pub(crate) pod: Text,
    pub(crate) namespace: Text,
    pub(crate) account: Text,
    pub(crate) instance: IpAddr,
    pub(crate) trust_domain: Text,
    pub(crate) network: Text,
    pub(crate) certificate_ttl: Duration,
    pub(crate) crl_path: PathBuf,
    pub(crate) threads: usize,
    pub(crate) place: Place,
    /// Proxies before a gateway that are believed.
    pub(crate) trusted_proxies: usize,
    /// Whether connections to a gateway begin with a PROXY protocol header.
    pub(crate) proxy_protocol: bool,
    pub(crate) hbone: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) readiness: SocketAddr,
    pub(crate) engine: engine::Settings,
    /// Connections of one client identity at once.
    pub(crate) max_client_connections: Option<usize>,
    pub(crate) drain: Duration,
    pub(crate) reports: Defaults,
    variables: BTreeMap<String, String>,
    node: String,
    gateway: String,
    cluster_id: Text,
    cluster_domain: String,
    discovery: ControlPlane,
    authority: ControlPlane,
    token: Token,
}

impl Config {
    /// Validates what was written.
    pub(crate) fn new(args: &Args, further: &FurtherArgs) -> Result<Self, ConfigError> {
        for (name, value) in [
            ("--pod-name", &args.pod_name),
            ("--pod-namespace", &args.pod_namespace),
            ("--service-account", &args.service_account),
            ("--gateway-name", &args.gateway_name),
        ] {
            if value.is_empty() {
                let reason = "is empty; give what the pod's own manifest says".to_owned();
                return Err(ConfigError { name, reason });
            }
        }
        if args.trust_domain.is_empty() || args.trust_domain.contains('/') {
            let reason = format!("{:?} is no trust domain", args.trust_domain);
            return Err(ConfigError { name: "--trust-domain", reason });
        }
        let ca_address = args.ca_address.as_deref().unwrap_or(&args.xds_address);
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if args.threads == 0 { cores() } else { args.threads };
        Ok(Self {
            pod: args.pod_name.as_str().into(),
            namespace: args.pod_namespace.as_str().into(),
            account: args.service_account.as_str().into(),
            instance: args.instance_ip,
            trust_domain: args.trust_domain.as_str().into(),
            network: args.network.as_str().into(),
            certificate_ttl: args.secret_ttl,
            crl_path: args.crl_path.clone(),
            threads: threads.clamp(1, MAX_THREADS),
            place: args.position,
            trusted_proxies: args.trusted_proxies,
            proxy_protocol: args.proxy_protocol,
            hbone: args.hbone_address,
            metrics: args.metrics_address,
            readiness: args.readiness_address,
            engine: further.limits.apply(engine(args))?,
            max_client_connections: further.limits.client_connections(),
            drain: args.drain,
            reports: further.telemetry.defaults()?,
            variables: variables(),
            node: args.node_name.clone(),
            gateway: args.gateway_name.clone(),
            cluster_id: args.cluster_id.as_str().into(),
            cluster_domain: args.cluster_domain.clone(),
            discovery: control_plane(
                "--xds-address",
                &args.xds_address,
                args.alt_xds_hostname.as_deref(),
                args,
            )?,
            authority: control_plane(
                "--ca-address",
                ca_address,
                args.alt_ca_hostname.as_deref(),
                args,
            )?,
            token: Token::parse(args.auth_token.as_deref(), TOKEN),
        })
    }

    /// The part of it that moving bytes needs.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            component: "ambit-waypoint",
            network: self.network.clone(),
            sockets: Sockets {
                mark: None,
                keepalive: Some(ISTIO_KEEPALIVE),
                user_timeout: None,
                ipv6: self.hbone.is_ipv6(),
            },
            hbone: Hbone {
                stream_window_bytes: 1 << 20,
                connection_window_bytes: 64 << 20,
                frame_size_bytes: 1 << 20,
                max_streams_per_connection: 100,
                idle_timeout: Duration::from_secs(300),
            },
            memory: Budget { worker_bytes: MEMORY_BYTES, pod_bytes: CLIENT_BYTES },
            threads: self.threads,
            original_source: false,
            resolvers: Vec::new(),
            policy_info_logging: false,
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
        let cluster_id = self.cluster_id.clone();
        Access {
            service: service.clone(),
            token: self.token.clone(),
            cluster_id,
            mark: None,
            outside: None,
        }
    }

    /// What it asks the control plane for.
    pub(crate) fn front(&self) -> Front {
        match self.place {
            Place::Waypoint => Front::Waypoint(self.own_service()),
            Place::Gateway => Front::Gateway(self.own_service()),
        }
    }

    /// The service by which others name this waypoint.
    pub(crate) fn own_service(&self) -> ServiceName {
        let Self { gateway, namespace, cluster_domain, .. } = self;
        let hostname = format!("{gateway}.{namespace}.svc.{cluster_domain}");
        ServiceName::new(namespace.clone(), hostname)
    }

    /// How the control plane knows it.
    fn node_id(&self) -> String {
        let Self { pod, namespace, instance, cluster_domain, .. } = self;
        format!("waypoint~{instance}~{pod}.{namespace}~{namespace}.svc.{cluster_domain}")
    }

    /// How logs and spans name it, under this identity.
    pub(crate) fn names(&self, identity: &Identity) -> Names {
        let Self { gateway, namespace, .. } = self;
        Names {
            pod: self.pod.to_string(),
            namespace: namespace.to_string(),
            identity: identity.to_string(),
            node_id: self.node_id(),
            service: format!("{gateway}.{namespace}"),
            tags: vec![
                ("istio.canonical_service", gateway.clone()),
                ("istio.canonical_revision", "latest".to_owned()),
                ("istio.mesh_id", self.trust_domain.to_string()),
                ("istio.namespace", namespace.to_string()),
                ("istio.cluster_id", self.cluster_id.to_string()),
            ],
            variables: self.variables.clone(),
        }
    }

    /// What the control plane is told.
    pub(crate) fn metadata(&self) -> NodeMetadata {
        let Self { pod, namespace, instance, node, .. } = self;
        let id = self.node_id();
        let fields = [
            ("NAME", pod.to_string()),
            ("NAMESPACE", namespace.to_string()),
            ("INSTANCE_IPS", instance.to_string()),
            ("NODE_NAME", node.clone()),
            ("GATEWAY_NAME", self.gateway.clone()),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.into()));
        NodeMetadata { id, fields: BTreeMap::from(fields) }
    }
}

/// Refuses variables that look like settings of a waypoint and are none: the setting would silently
/// not be in force.
pub(crate) fn check_variables(names: impl Iterator<Item = String>) -> Result<(), ConfigError> {
    let problem = names.into_iter().find_map(|name| waypoint_problem(&name));
    problem.map_or(Ok(()), |reason| Err(ConfigError { name: "environment", reason }))
}

fn engine(args: &Args) -> engine::Settings {
    engine::Settings {
        normalisation: match args.path_normalization {
            PathNormalization::None => Normalisation::None,
            PathNormalization::Base => Normalisation::Base,
            PathNormalization::MergeSlashes => Normalisation::MergeSlashes,
            PathNormalization::DecodeAndMergeSlashes => Normalisation::DecodeAndMergeSlashes,
        },
        head_timeout: args.head_timeout,
        idle_timeout: args.idle_timeout,
        stream_idle_timeout: args.stream_idle_timeout,
        half_close_timeout: args.half_close_timeout,
        detect_timeout: args.detect_timeout,
        max_connection_age: Some(args.max_connection_age).filter(|age| !age.is_zero()),
        says_why: !args.hide_reason,
        ..engine::Settings::default()
    }
}

fn control_plane(
    name: &'static str,
    uri: &str,
    alternative: Option<&str>,
    args: &Args,
) -> Result<ControlPlane, ConfigError> {
    let uri = service_uri(uri).map_err(|reason| ConfigError { name, reason })?;
    let server_name = alternative.unwrap_or_else(|| host_of(&uri)).to_owned();
    let root = RootCertificate::parse(&args.root_ca);
    Ok(ControlPlane { uri, root, server_name, headers: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ambit_words::variables::WAYPOINT;

    use super::*;

    #[test]
    fn every_variable_is_known_to_control_too() {
        let command = <Args as clap::Args>::augment_args(clap::Command::new("waypoint"));
        let command = <FurtherArgs as clap::Args>::augment_args(command);
        let read = command.get_arguments().filter_map(|it| it.get_env()?.to_str());
        let read: BTreeSet<&str> = read.filter(|it| it.starts_with("AMBIT_")).collect();
        assert_eq!(read, BTreeSet::from(WAYPOINT), "add it to ambit_words::variables");
    }

    #[test]
    fn a_misspelt_variable_is_refused() {
        let check = |name: &str| check_variables([name.to_owned()].into_iter());
        let error = check("AMBIT_PATH_NORMALISATION").expect_err("it has no effect").to_string();
        assert!(error.contains("did you mean AMBIT_PATH_NORMALIZATION?"), "{error}");
        assert!(check("AMBIT_PATH_NORMALIZATION").is_ok());
    }
}
