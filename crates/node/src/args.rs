//! The agent's flags as written by the user, and the settings as the agent uses them.
//!
//! Environment names are those of istio-cni where they mean the same thing. [`Args`] may hold
//! anything clap accepts; [`Settings`] holds only what has been checked. This module never opens a
//! file or a socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ambit_words::departure::GRACE_MAX;
use ambit_words::durations::{DurationError, parse_duration_within};
use ambit_words::labels::ISTIO_NOT_READY;
use ambit_words::ports;

use crate::cluster::DaemonSetName;
use crate::install::conflist;
use crate::pod::PodName;
use crate::registry::processes::Sources;

/// Longest time that a pod's capture rules may stay altered before they are looked at again.
pub(crate) const REPAIR_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Shortest interval between two looks, so that a typing error does not burn a core.
pub(crate) const REPAIR_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Flags of `ambit node`, the node agent in istio-cni's place.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the node whose pods this agent enrols
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,

    /// Source of pods and namespaces: kubernetes (the API server), or files:DIR (the registry
    /// directory of `ambit up`)
    #[arg(long, env = "AMBIT_REGISTRY", value_name = "SOURCE")]
    pub registry: String,

    /// Kubeconfig of the API server [default: KUBECONFIG, ~/.kube/config, or the pod's
    /// ServiceAccount]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The node's /proc, to find the network namespaces of pods (needs hostPID)
    #[arg(long, default_value = "/proc", value_name = "DIR")]
    pub proc: PathBuf,

    /// Directory in which libcni records the network namespaces that it made
    #[arg(long, default_value = "/var/lib/cni/results", value_name = "DIR")]
    pub cni_results: PathBuf,

    /// Socket that announces pods to the node proxy (ZDS); mode 0600
    #[arg(long, env = "ZTUNNEL_UDS_ADDRESS", default_value = "/var/run/ztunnel/ztunnel.sock")]
    pub zds_socket: PathBuf,

    /// Socket on which the CNI plugin announces new pods; mode 0600
    #[arg(long, default_value = "/var/run/istio-cni/pluginevent.sock")]
    pub cni_socket: PathBuf,

    /// The container runtime's directory of CNI configurations. The agent adds its plugin to the
    /// first one and keeps it there; without this flag it changes none
    #[arg(long, requires = "cni_bin_dir", value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,

    /// The container runtime's directory of CNI plugins. The agent installs ambit-cni there
    #[arg(long, requires = "cni_conf_dir", value_name = "DIR")]
    pub cni_bin_dir: Option<PathBuf>,

    /// Name of the CNI configuration to use instead of the first, such as 10-calico.conflist
    #[arg(long, requires = "cni_conf_dir", value_name = "NAME")]
    pub cni_conf_name: Option<String>,

    /// Taint that the agent removes from the node when it is ready; empty for none
    #[arg(long, default_value = ISTIO_NOT_READY, value_name = "KEY")]
    pub remove_taint: String,

    /// The agent's own DaemonSet, as NAMESPACE/NAME. If it is deleted when the agent stops, the
    /// agent removes everything from the node
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub daemonset: Option<String>,

    /// The agent's own pod, in the namespace of --daemonset. The agent reports on it while the mesh
    /// is uninstalled
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// Remove everything from the node and end: pods leave the mesh, and open connections are cut
    /// after --uninstall-grace
    #[arg(long)]
    pub uninstall: bool,

    /// How long captured connections may stay open at the end (0s to 1h)
    #[arg(long, default_value = "20s", value_parser = parse_grace, value_name = "DURATION")]
    pub uninstall_grace: Duration,

    /// Send the pods' DNS queries to the proxy; the annotation ambient.istio.io/dns-capture wins
    #[arg(long, env = "AMBIENT_DNS_CAPTURE", default_value_t = true, action = clap::ArgAction::Set)]
    pub dns_capture: bool,

    /// Capture IPv6 as well as IPv4
    #[arg(long, env = "AMBIENT_IPV6", default_value_t = true, action = clap::ArgAction::Set)]
    pub ipv6: bool,

    /// Address of /readyz, /healthz and /metrics
    #[arg(long, default_value_t = ports::on_loopback(ports::NODE_MONITORING))]
    pub readiness_address: SocketAddr,

    /// How often the agent checks each pod's capture rules, besides whenever the kernel reports a
    /// change of them (50ms to 5s)
    #[arg(long, default_value = "5s", value_parser = parse_interval, value_name = "DURATION")]
    pub repair_interval: Duration,
}

/// What is wrong with the flags, and what would be right.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// `--registry` names no source that this build knows.
    #[error(
        "--registry {0}: unknown source; write kubernetes or files:DIR, for example \
        files:/run/ambit/registry"
    )]
    UnknownRegistry(String),
    /// `--kubeconfig` beside another source.
    #[error("--kubeconfig is of no use with --registry {0}; leave it out, or write kubernetes")]
    UselessKubeconfig(String),
    /// `--daemonset` is no such name, or there is no cluster.
    #[error(
        "--daemonset {0}: write NAMESPACE/NAME, for example istio-system/istio-cni-node, and only \
        with --registry kubernetes"
    )]
    WrongDaemonSet(String),
    /// `--cni-conf-name` is a path, or the name of something else.
    #[error(
        "--cni-conf-name {0}: write the name of a file in --cni-conf-dir that ends in .conflist, \
        .conf or .json"
    )]
    WrongConfName(String),
    /// `--node-name` is empty.
    #[error("--node-name is empty; give the name of this node's Node object (or set NODE_NAME)")]
    EmptyNodeName,
}

/// Where pods and namespaces come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A directory of manifests and statuses.
    Files(PathBuf),
    /// The API server, and the node itself for the pods' network namespaces.
    Kubernetes { kubeconfig: Option<PathBuf>, sources: Sources },
}

/// The flags after checking; every field is usable as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) node_name: String,
    pub(crate) source: Source,
    pub(crate) zds_socket: PathBuf,
    pub(crate) cni_socket: PathBuf,
    pub(crate) dns_capture: bool,
    pub(crate) ipv6: bool,
    pub(crate) readiness_address: SocketAddr,
    pub(crate) repair_interval: Duration,
    pub(crate) cni: Option<CniDirectories>,
    pub(crate) taint: Option<String>,
    pub(crate) daemon_set: Option<DaemonSetName>,
    pub(crate) own_pod: Option<PodName>,
    pub(crate) uninstall: bool,
    pub(crate) uninstall_grace: Duration,
}

/// Where the CNI plugin is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CniDirectories {
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dir: PathBuf,
    pub(crate) conf_name: Option<String>,
}

impl TryFrom<Args> for Settings {
    type Error = ArgsError;

    fn try_from(args: Args) -> Result<Self, ArgsError> {
        if args.node_name.is_empty() {
            return Err(ArgsError::EmptyNodeName);
        }
        let cni = cni_directories(args.cni_conf_dir, args.cni_bin_dir, args.cni_conf_name)?;
        let in_cluster = args.registry == "kubernetes";
        let daemon_set = args.daemonset.map(|name| daemon_set(name, in_cluster)).transpose()?;
        let own_pod = args.pod_name.zip(daemon_set.as_ref());
        let own_pod = own_pod.map(|(name, set)| PodName::new(set.namespace.clone(), name));
        let source = match (args.registry.split_once(':'), args.kubeconfig) {
            (Some(("files", dir)), None) if !dir.is_empty() => Source::Files(dir.into()),
            (Some(("files", dir)), Some(_)) if !dir.is_empty() => {
                return Err(ArgsError::UselessKubeconfig(args.registry));
            }
            (None, kubeconfig) if args.registry == "kubernetes" => {
                let sources = Sources { proc: args.proc, cni_results: args.cni_results };
                Source::Kubernetes { kubeconfig, sources }
            }
            _ => return Err(ArgsError::UnknownRegistry(args.registry)),
        };
        Ok(Self {
            node_name: args.node_name,
            source,
            zds_socket: args.zds_socket,
            cni_socket: args.cni_socket,
            dns_capture: args.dns_capture,
            ipv6: args.ipv6,
            readiness_address: args.readiness_address,
            repair_interval: args.repair_interval,
            cni,
            taint: Some(args.remove_taint).filter(|key| !key.is_empty()),
            daemon_set,
            own_pod,
            uninstall: args.uninstall,
            uninstall_grace: args.uninstall_grace,
        })
    }
}

fn cni_directories(
    conf_dir: Option<PathBuf>,
    bin_dir: Option<PathBuf>,
    conf_name: Option<String>,
) -> Result<Option<CniDirectories>, ArgsError> {
    if let Some(name) = &conf_name
        && (name.contains('/') || !conflist::is_configuration(name))
    {
        return Err(ArgsError::WrongConfName(name.clone()));
    }
    let directories = conf_dir.zip(bin_dir);
    Ok(directories.map(|(conf_dir, bin_dir)| CniDirectories { conf_dir, bin_dir, conf_name }))
}

fn daemon_set(text: String, in_cluster: bool) -> Result<DaemonSetName, ArgsError> {
    match text.split_once('/') {
        Some((namespace, name))
            if in_cluster && !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(DaemonSetName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err(ArgsError::WrongDaemonSet(text)),
    }
}

fn parse_grace(text: &str) -> Result<Duration, DurationError> {
    parse_duration_within(text, Duration::ZERO..=GRACE_MAX)
}

fn parse_interval(text: &str) -> Result<Duration, DurationError> {
    parse_duration_within(text, REPAIR_INTERVAL_MIN..=REPAIR_INTERVAL_MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Result<Args, String> {
        parse_from("files:/r", flags)
    }

    /// The arguments of an agent that reads its pods there.
    pub(crate) fn parse_from(registry: &str, flags: &[&str]) -> Result<Args, String> {
        let words = ["node", "--node-name", "node-1", "--registry", registry];
        let words = words.iter().chain(flags.iter());
        Command::try_parse_from(words).map(|c| c.args).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_those_of_istio_cni() {
        let settings = Settings::try_from(parse(&[]).expect("parses")).expect("valid");
        assert_eq!(settings.zds_socket, PathBuf::from("/var/run/ztunnel/ztunnel.sock"));
        assert_eq!(settings.cni_socket, PathBuf::from("/var/run/istio-cni/pluginevent.sock"));
        assert_eq!(settings.readiness_address.to_string(), "127.0.0.1:8000");
        assert_eq!(settings.source, Source::Files("/r".into()));
        assert!(settings.dns_capture && settings.ipv6);
    }

    #[test]
    fn switches_take_a_value() {
        let args = parse(&["--dns-capture", "false", "--ipv6", "false"]).expect("parses");
        assert!(!args.dns_capture && !args.ipv6);
    }

    #[test]
    fn a_duration_has_any_unit() {
        let args = parse(&["--uninstall-grace", "1m"]).expect("parses");
        assert_eq!(args.uninstall_grace, Duration::from_secs(60));
        let error = parse(&["--uninstall-grace", "2h"]).expect_err("refused");
        assert!(error.contains("write 0s to 1h0m0s"), "{error}");
    }

    #[test]
    fn an_interval_out_of_range_or_without_a_unit_is_refused_with_the_range() {
        for (text, part) in [("6s", "50ms to 5s"), ("1ms", "50ms to 5s"), ("3", "500ms, 90s")] {
            let error = parse(&["--repair-interval", text]).expect_err("refused");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_cluster_is_reached_as_usual_or_by_a_file() {
        let kubernetes = |flags: &[&str]| {
            let mut args = parse(flags).expect("parses");
            args.registry = "kubernetes".into();
            Settings::try_from(args).expect("valid").source
        };
        let sources =
            |proc: &str| Sources { proc: proc.into(), cni_results: "/var/lib/cni/results".into() };
        let expected = Source::Kubernetes { kubeconfig: None, sources: sources("/proc") };
        assert_eq!(kubernetes(&[]), expected);
        let kubeconfig = Some("/k".into());
        let expected = Source::Kubernetes { kubeconfig, sources: sources("/host/proc") };
        assert_eq!(kubernetes(&["--kubeconfig", "/k", "--proc", "/host/proc"]), expected);
        let files = Settings::try_from(parse(&["--kubeconfig", "/k"]).expect("parses"));
        assert_eq!(files.expect_err("refused"), ArgsError::UselessKubeconfig("files:/r".into()));
    }

    #[test]
    fn the_plugin_is_installed_only_with_both_directories() {
        parse(&["--cni-conf-dir", "/etc/cni/net.d"]).expect_err("no --cni-bin-dir");
        parse(&["--cni-conf-name", "a.conf"]).expect_err("no directories");
        let both = ["--cni-conf-dir", "/c", "--cni-bin-dir", "/b"];
        let settings = Settings::try_from(parse(&both).expect("parses")).expect("valid");
        let cni = settings.cni.expect("installed");
        assert_eq!((cni.conf_dir, cni.bin_dir), ("/c".into(), "/b".into()));
        for name in ["../a.conf", "kubeconfig"] {
            let args = parse(&[&both[..], &["--cni-conf-name", name]].concat()).expect("parses");
            let error = Settings::try_from(args).expect_err("refused").to_string();
            assert!(error.contains(name) && error.contains("--cni-conf-dir"), "{error}");
        }
        assert_eq!(Settings::try_from(parse(&[]).expect("parses")).expect("valid").cni, None);
    }

    #[test]
    fn the_daemon_set_is_a_namespace_and_a_name_in_a_cluster() {
        let check = |registry: &str, text: &str, valid: bool| {
            let mut args = parse(&["--daemonset", text]).expect("parses");
            args.registry = registry.to_owned();
            assert_eq!(Settings::try_from(args).is_ok(), valid, "{registry} {text}");
        };
        check("kubernetes", "istio-system/istio-cni-node", true);
        check("files:/r", "istio-system/istio-cni-node", false);
        for text in ["istio-cni-node", "/x", "x/", "a/b/c"] {
            check("kubernetes", text, false);
        }
    }

    #[test]
    fn an_unknown_registry_is_refused_with_the_remedy() {
        let mut args = parse(&[]).expect("parses");
        args.registry = "consul:here".into();
        let error = Settings::try_from(args).expect_err("refused").to_string();
        assert!(error.contains("consul:here") && error.contains("files:DIR"), "{error}");
    }
}
