//! The control plane's flags as written by the user, and the settings as it uses them.
//!
//! Environment names are istiod's where they mean the same thing. [`Args`] may hold anything that
//! clap accepts; `Config` holds only what has been checked. A setting that is given both as a flag
//! and in the mesh configuration must agree. Nothing but this file reads the mesh configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_model::Text;
use ambit_words::durations::{parse_duration, write_duration};
use ambit_words::names::{DEFAULT_CLUSTER_DOMAIN, DEFAULT_MESH_NAMESPACE, DEFAULT_TRUST_DOMAIN};
use ambit_words::ports;
use ipnet::IpNet;
use serde::Deserialize;

use crate::jwks::{self, Allowed};
use crate::view_builder::Mesh;

/// The variable that names the file of the system's roots, as for OpenSSL.
const SYSTEM_ROOTS: &str = "SSL_CERT_FILE";
/// How often issuers of tokens are asked at most.
const JWKS_REFRESH_MIN: Duration = Duration::from_secs(1);
/// Shortest lifetime of a workload certificate that makes sense: half of it must suffice for a
/// renewal.
const CERT_TTL_MIN: Duration = Duration::from_secs(5);

/// How long streams take to end at shutdown in a cluster, and at most. Kubernetes gives a pod 30 s.
const SHUTDOWN_SPREAD: Duration = Duration::from_secs(5);
const SHUTDOWN_SPREAD_MAX: Duration = Duration::from_secs(300);

/// Flags of `ambit control`, the control plane in istiod's place.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Source of the objects: kubernetes (the API server), or files:DIR (the registry directory of
    /// `ambit up`)
    #[arg(long, env = "AMBIT_REGISTRY", value_name = "SOURCE")]
    pub registry: String,

    /// Kubeconfig of the API server [default: KUBECONFIG, or the pod's ServiceAccount]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Directory of roots, keys and allocated addresses; created if missing, mode 0700
    #[arg(long, default_value = "/var/lib/ambit/control", value_name = "DIR")]
    pub state: PathBuf,

    /// Socket of the administration API; mode 0600
    #[arg(long, default_value = "/var/run/ambit/control.sock", value_name = "PATH")]
    pub admin_socket: PathBuf,

    /// Address of the administration API over TCP, in addition to the socket; loopback only
    /// [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub admin_address: Option<SocketAddr>,

    /// Time over which the proxies' streams end at shutdown, one after another [default: 5s with
    /// --registry kubernetes, otherwise 0s]
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    pub shutdown_spread: Option<Duration>,

    /// Directory for each node's token, roots and revocation list, as DIR/NODE/...
    #[arg(long, value_name = "DIR")]
    pub node_credentials: Option<PathBuf>,

    /// Address of discovery and certificates (TLS, token)
    #[arg(long, default_value_t = ports::everywhere(ports::XDS))]
    pub xds_address: SocketAddr,

    /// Address of discovery without TLS and token; loopback only [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub plaintext_xds_address: Option<SocketAddr>,

    /// Address of /metrics and /ready
    #[arg(long, default_value_t = ports::everywhere(ports::CONTROL_MONITORING))]
    pub monitoring_address: SocketAddr,

    /// Further DNS name or address in the server certificate; may be repeated
    #[arg(long = "server-name", value_name = "NAME")]
    pub server_names: Vec<String>,

    /// Directory of your own authority, with Istio's file names: ca-cert.pem, ca-key.pem,
    /// cert-chain.pem, root-cert.pem
    #[arg(long, value_name = "DIR")]
    pub ca_dir: Option<PathBuf>,

    /// Lifetime of workload certificates
    #[arg(long, env = "DEFAULT_WORKLOAD_CERT_TTL", default_value = "24h",
        value_parser = parse_duration, value_name = "DURATION")]
    pub workload_cert_ttl: Duration,

    /// Longest lifetime that proxies may request [default: --workload-cert-ttl]
    #[arg(long, env = "MAX_WORKLOAD_CERT_TTL",
        value_parser = parse_duration, value_name = "DURATION")]
    pub max_workload_cert_ttl: Option<Duration>,

    /// Namespace whose policies apply in all namespaces
    #[arg(long, env = "ROOT_NAMESPACE", value_name = "NAMESPACE")]
    pub root_namespace: Option<String>,

    /// Trust domain of all identities
    #[arg(long, env = "TRUST_DOMAIN", value_name = "DOMAIN")]
    pub trust_domain: Option<String>,

    /// Name of the cluster; part of every workload's name
    #[arg(long, env = "CLUSTER_ID", default_value = "Kubernetes", value_name = "ID")]
    pub cluster_id: String,

    /// DNS suffix of services
    #[arg(
        long,
        env = "CLUSTER_DOMAIN",
        default_value = DEFAULT_CLUSTER_DOMAIN,
        value_name = "DOMAIN",
    )]
    pub cluster_domain: String,

    /// Service accounts that may request certificates of pods on their node, as NAMESPACE/NAME,
    /// separated by commas [default: ztunnel of the root namespace]
    #[arg(long, env = "CA_TRUSTED_NODE_ACCOUNTS", value_delimiter = ',', value_name = "ACCOUNT")]
    pub trusted_node_accounts: Vec<String>,

    /// Image of waypoints, with --registry kubernetes: that of control [default: none, no waypoints
    /// are made]
    #[arg(long, value_name = "IMAGE")]
    pub waypoint_image: Option<String>,

    /// When the image of waypoints is pulled [default: the cluster's]
    #[arg(long, value_name = "POLICY")]
    pub waypoint_image_pull_policy: Option<String>,

    /// Serve Gateways of Istio's class `istio` as well, in the place of Istio's gateways; with
    /// --registry files they always are
    #[arg(long)]
    pub istio_gateways: bool,

    /// The only hosts that are asked for the keys of token issuers (jwksUri and issuer of a
    /// RequestAuthentication), separated by commas; `*.example.com` is every name below [default:
    /// all]
    #[arg(long, env = "AMBIT_JWKS_HOSTS", value_delimiter = ',', value_name = "HOST")]
    pub jwks_hosts: Vec<String>,

    /// Networks in which token issuers may be asked though their addresses mean control's own host
    /// or link or a cloud's metadata service, and also without TLS; separated by commas
    #[arg(long, env = "AMBIT_JWKS_NETWORKS", value_delimiter = ',', value_name = "CIDR")]
    pub jwks_networks: Vec<IpNet>,

    /// How old the keys of token issuers are when they are fetched again; at least one second. For
    /// so long tokens of an issuer's new key may be refused
    #[arg(long, env = "AMBIT_JWKS_REFRESH", default_value = "1m",
        value_parser = parse_duration, value_name = "DURATION")]
    pub jwks_refresh: Duration,

    /// Further roots (PEM) that servers of token issuers may have, beside the system's
    #[arg(long, env = "AMBIT_JWKS_CA", value_name = "FILE")]
    pub jwks_ca: Option<PathBuf>,

    /// Mesh configuration (YAML): trustDomain, rootNamespace
    #[arg(long, value_name = "FILE")]
    pub mesh_config: Option<PathBuf>,
}

/// A problem with the settings, and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `--registry` names no source that this build knows.
    #[error(
        "--registry {0}: unknown source; write kubernetes, or files:DIR, for example \
         files:/run/ambit/registry"
    )]
    UnknownRegistry(String),
    /// A flag that means nothing for this registry.
    #[error("{flag} is for --registry {needs}; remove it, or change --registry")]
    OtherRegistry {
        /// The flag.
        flag: &'static str,
        /// What it is for.
        needs: &'static str,
    },
    /// A port without proof of who calls would be open to the network.
    #[error("{flag} {given} is not a loopback address; use for example {example}")]
    NotLoopback {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: SocketAddr,
        /// A right one.
        example: SocketAddr,
    },
    /// A name that is part of identities cannot be one.
    #[error("{flag} {value:?} cannot be used: {what}")]
    Name {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        what: String,
    },
    /// A lifetime is out of range.
    #[error(
        "{flag} is {}; write at least {} and at most the --max-workload-cert-ttl",
        write_duration(*.given),
        write_duration(CERT_TTL_MIN)
    )]
    Lifetime {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: Duration,
    },
    /// The end would take too long.
    #[error(
        "--shutdown-spread is {}; write at most {}",
        write_duration(*.0),
        write_duration(SHUTDOWN_SPREAD_MAX)
    )]
    Spread(Duration),
    /// Issuers of tokens would be asked all the time.
    #[error(
        "--jwks-refresh is {}; write at least {}",
        write_duration(*.0),
        write_duration(JWKS_REFRESH_MIN)
    )]
    JwksRefresh(Duration),
    /// A trusted account is not `namespace/name`.
    #[error("--trusted-node-accounts {0:?}: write it as NAMESPACE/NAME")]
    Account(String),
    /// The mesh configuration cannot be read.
    #[error("--mesh-config {path}: cannot be read; check the path")]
    MeshConfigFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The mesh configuration is not what it should be.
    #[error(
        "--mesh-config {path}: {what}; known fields are trustDomain and rootNamespace, what \
         happens on one node is each proxy's --same-node"
    )]
    MeshConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its line.
        what: String,
    },
    /// A setting is given twice, differently.
    #[error(
        "{flag} is {given:?}, the mesh configuration says {configured:?}; remove one of the two"
    )]
    Contradiction {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: String,
        /// The mesh configuration's.
        configured: String,
    },
}

/// The mesh configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct MeshConfig {
    trust_domain: Option<String>,
    root_namespace: Option<String>,
}

/// Where objects are read from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A directory.
    Files(PathBuf),
    /// A cluster, reached as this file says or as a pod of it.
    Kubernetes(Option<PathBuf>),
}

/// The settings after checking.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) registry: Source,
    pub(crate) state: PathBuf,
    pub(crate) admin_socket: PathBuf,
    pub(crate) admin_address: Option<SocketAddr>,
    pub(crate) shutdown_spread: Duration,
    pub(crate) node_credentials: Option<PathBuf>,
    pub(crate) xds_address: SocketAddr,
    pub(crate) plaintext_xds_address: Option<SocketAddr>,
    pub(crate) monitoring_address: SocketAddr,
    pub(crate) server_names: Vec<String>,
    pub(crate) ca_dir: Option<PathBuf>,
    pub(crate) workload_cert_ttl: Duration,
    pub(crate) max_workload_cert_ttl: Duration,
    pub(crate) mesh: Mesh,
    /// Namespace and name of the accounts that may ask for pods' certificates.
    pub(crate) trusted_node_accounts: Vec<(Text, Text)>,
    /// The image of waypoints, in a cluster.
    pub(crate) waypoint_image: Option<String>,
    /// When it is pulled.
    pub(crate) waypoint_pull_policy: Option<String>,
    /// How keys of token issuers are fetched.
    pub(crate) jwks: jwks::Settings,
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let registry = source(&args)?;
        for (flag, given, port) in [
            ("--plaintext-xds-address", args.plaintext_xds_address, ports::PLAINTEXT_XDS),
            ("--admin-address", args.admin_address, ports::CONTROL_ADMIN),
        ] {
            if let Some(given) = given.filter(|given| !given.ip().is_loopback()) {
                let example = ports::on_loopback(port);
                return Err(ConfigError::NotLoopback { flag, given, example });
            }
        }
        let shutdown_spread = args.shutdown_spread.unwrap_or(match registry {
            Source::Files(_) => Duration::ZERO,
            Source::Kubernetes(_) => SHUTDOWN_SPREAD,
        });
        if shutdown_spread > SHUTDOWN_SPREAD_MAX {
            return Err(ConfigError::Spread(shutdown_spread));
        }
        let maximum = args.max_workload_cert_ttl.unwrap_or(args.workload_cert_ttl);
        for (flag, given) in
            [("--workload-cert-ttl", args.workload_cert_ttl), ("--max-workload-cert-ttl", maximum)]
        {
            if !(CERT_TTL_MIN..=maximum).contains(&given) {
                return Err(ConfigError::Lifetime { flag, given });
            }
        }
        let mesh = mesh(&args)?;
        if args.jwks_refresh < JWKS_REFRESH_MIN {
            return Err(ConfigError::JwksRefresh(args.jwks_refresh));
        }
        let jwks = jwks_settings(&args, matches!(registry, Source::Files(_)));
        let trusted_node_accounts = accounts(&args.trusted_node_accounts, &mesh.root_namespace)?;
        Ok(Self {
            registry,
            state: args.state,
            admin_socket: args.admin_socket,
            admin_address: args.admin_address,
            shutdown_spread,
            node_credentials: args.node_credentials,
            xds_address: args.xds_address,
            plaintext_xds_address: args.plaintext_xds_address,
            monitoring_address: args.monitoring_address,
            server_names: args.server_names,
            ca_dir: args.ca_dir,
            workload_cert_ttl: args.workload_cert_ttl,
            max_workload_cert_ttl: maximum,
            mesh,
            trusted_node_accounts,
            waypoint_image: args.waypoint_image,
            waypoint_pull_policy: args.waypoint_image_pull_policy,
            jwks,
        })
    }
}

fn jwks_settings(args: &Args, asks_endpoints: bool) -> jwks::Settings {
    let hosts = args.jwks_hosts.iter().map(|host| host.trim().to_ascii_lowercase()).collect();
    jwks::Settings {
        refresh: args.jwks_refresh,
        allowed: Allowed { hosts, networks: args.jwks_networks.clone() },
        system_roots: std::env::var_os(SYSTEM_ROOTS).map(PathBuf::from),
        roots: args.jwks_ca.clone(),
        asks_endpoints,
        kept: args.state.join("issuer-keys.json"),
    }
}

fn source(args: &Args) -> Result<Source, ConfigError> {
    let only_for = |flag, is_given: bool, needs| {
        if is_given { Err(ConfigError::OtherRegistry { flag, needs }) } else { Ok(()) }
    };
    match args.registry.split_once(':') {
        Some(("files", directory)) if !directory.is_empty() => {
            only_for("--kubeconfig", args.kubeconfig.is_some(), "kubernetes")?;
            only_for("--waypoint-image", args.waypoint_image.is_some(), "kubernetes")?;
            Ok(Source::Files(PathBuf::from(directory)))
        }
        None if args.registry == "kubernetes" => {
            // A cluster's proxies bring tokens of the cluster and mount its roots.
            only_for("--node-credentials", args.node_credentials.is_some(), "files:DIR")?;
            only_for("--ca-dir", args.ca_dir.is_some(), "files:DIR")?;
            Ok(Source::Kubernetes(args.kubeconfig.clone()))
        }
        _ => Err(ConfigError::UnknownRegistry(args.registry.clone())),
    }
}

fn mesh(args: &Args) -> Result<Mesh, ConfigError> {
    let file = match &args.mesh_config {
        Some(path) => read_mesh_config(path)?,
        None => MeshConfig::default(),
    };
    let trust_domain = agreed(
        "--trust-domain",
        args.trust_domain.clone(),
        file.trust_domain,
        DEFAULT_TRUST_DOMAIN,
    )?;
    let root_namespace = agreed(
        "--root-namespace",
        args.root_namespace.clone(),
        file.root_namespace,
        DEFAULT_MESH_NAMESPACE,
    )?;
    let rule = ambit_manifest::names::dns_subdomain;
    for (flag, value) in [
        ("--trust-domain", &trust_domain),
        ("--root-namespace", &root_namespace),
        ("--cluster-domain", &args.cluster_domain),
    ] {
        if let Some(what) = rule(value) {
            return Err(ConfigError::Name { flag, value: value.clone(), what });
        }
    }
    if args.cluster_id.is_empty() || args.cluster_id.contains('/') {
        let what = "it must be a text without `/`".to_owned();
        let value = args.cluster_id.clone();
        return Err(ConfigError::Name { flag: "--cluster-id", value, what });
    }
    Ok(Mesh {
        cluster_id: args.cluster_id.as_str().into(),
        trust_domain: trust_domain.into(),
        root_namespace: root_namespace.into(),
        domain: args.cluster_domain.as_str().into(),
        // Nobody else serves them on a machine.
        stands_in: args.istio_gateways || args.registry.starts_with("files:"),
    })
}

fn read_mesh_config(path: &Path) -> Result<MeshConfig, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::MeshConfigFile { path: path.to_owned(), source })?;
    serde_saphyr::from_str(&text).map_err(|error| ConfigError::MeshConfig {
        path: path.to_owned(),
        what: error.without_snippet().to_string(),
    })
}

fn agreed(
    flag: &'static str,
    given: Option<String>,
    configured: Option<String>,
    default: &str,
) -> Result<String, ConfigError> {
    match (given, configured) {
        (Some(given), Some(configured)) if given != configured => {
            Err(ConfigError::Contradiction { flag, given, configured })
        }
        (Some(value), _) | (None, Some(value)) => Ok(value),
        (None, None) => Ok(default.to_owned()),
    }
}

fn accounts(given: &[String], root_namespace: &str) -> Result<Vec<(Text, Text)>, ConfigError> {
    if given.is_empty() {
        return Ok(vec![(root_namespace.into(), "ztunnel".into())]);
    }
    let account = |text: &String| match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((Text::from(namespace), Text::from(name)))
        }
        _ => Err(ConfigError::Account(text.clone())),
    };
    given.iter().map(account).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn check(flags: &str, expected: Result<(), &str>) {
        let words = ["control"].into_iter().chain(flags.split_whitespace());
        let got = Command::try_parse_from(words)
            .map_err(|error| error.to_string())
            .and_then(|command| Config::try_from(command.args).map_err(|error| error.to_string()));
        match (got, expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) => assert!(error.contains(part), "{flags}: {error}"),
            (got, _) => panic!("{flags}: {got:?}"),
        }
    }

    #[test]
    fn flags_are_checked() {
        check("--registry files:/tmp", Ok(()));
        check("", Err("--registry"));
        check("--registry etcd:/tmp", Err("write kubernetes, or files:DIR"));
        check("--registry kubernetes", Ok(()));
        check("--registry kubernetes:/tmp", Err("unknown source"));
        check("--registry kubernetes --kubeconfig /k", Ok(()));
        check("--registry files:/tmp --kubeconfig /k", Err("--kubeconfig is for --registry kube"));
        check("--registry kubernetes --waypoint-image i", Ok(()));
        check("--registry files:/tmp --waypoint-image i", Err("for --registry kubernetes"));
        check("--registry kubernetes --ca-dir /ca", Err("--ca-dir is for --registry files:DIR"));
        check("--registry files:/tmp --plaintext-xds-address 0.0.0.0:15010", Err("not a loopback"));
        check("--registry files:/tmp --plaintext-xds-address 127.0.0.1:15010", Ok(()));
        check("--registry files:/tmp --admin-address 10.0.0.1:1", Err("not a loopback"));
        check("--registry files:/tmp --admin-address [::1]:9876 --shutdown-spread 30s", Ok(()));
        check("--registry files:/tmp --shutdown-spread 1h", Err("at most 5m0s"));
        check("--registry files:/tmp --workload-cert-ttl 1s", Err("at least 5s"));
        check(
            "--registry files:/tmp --workload-cert-ttl 2h --max-workload-cert-ttl 1h",
            Err("at most"),
        );
        check("--registry files:/tmp --workload-cert-ttl soon", Err("is not a duration"));
        check("--registry files:/tmp --jwks-refresh 1ms", Err("write at least 1s"));
        check("--registry files:/tmp --shutdown-spread 500ms", Ok(()));
        check("--registry files:/tmp --trust-domain a/b", Err("--trust-domain"));
        check("--registry files:/tmp --trusted-node-accounts ztunnel", Err("NAMESPACE/NAME"));
        check("--registry files:/tmp --mesh-config /nowhere", Err("check the path"));
    }
}
