//! linkerd2-proxy as Linkerd's injector sets it up, with as much of a control plane as it asks for.
//!
//! The proxy is told what Linkerd's chart tells it by default (as of edge-26.8): one worker, HTTP
//! carried as HTTP/2 between proxies, a transport header on TCP, endpoints chosen by the least
//! peak EWMA. Each asks the API of the public crate `linkerd2-proxy-api` for its certificate, for
//! policies and for endpoints; [`api`] answers on loopback inside the pod, where no other process
//! can pose as another pod's proxy. [`messages`] writes the answers, which are those that Linkerd's
//! controllers give for a Service without annotations, and, for inbound, for a Server whose
//! AuthorizationPolicy names the identities of all pods.
//!
//! Where it differs from a cluster:
//! * Answers never change, and no control plane's traffic is encrypted or measured.
//! * Every port is detected: Linkerd does not go by the names of ports. A server that speaks first
//!   is waited for, as without its annotation.
//! * No access log, which is Linkerd's default; requests are counted in metrics.

mod api;
mod messages;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ambit_machine::Check;
use ambit_model::identity::Identity;
use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;
use tokio::runtime::Handle;

use super::SidecarError;
use super::authority::Authority;
use super::program::{Launch, PrivateDirectory};
use super::redirect::Ports;
use super::topology::{Pod, Topology};
use api::Api;

/// Who a sidecar runs as in Linkerd.
pub(super) const USER: u32 = 2102;
/// Where it listens in Linkerd.
pub(super) const PORTS: Ports = Ports { outbound: 4140, inbound: 4143, admin: 4191 };
const CONTROL_PORT: u16 = 4190;
/// Where its control plane listens, in the pod, on loopback.
const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4192);
/// Where Linkerd runs.
const NAMESPACE: &str = "linkerd";
/// The cluster's networks in Linkerd's default configuration.
const NETWORKS: &str = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8";
/// What Linkerd's chart sets whatever the pod is.
const SETTINGS: [(&str, &str); 19] = [
    ("CORES", "1"),
    ("CORES_MIN", "1"),
    ("LOG", "warn,linkerd=info,hickory=error"),
    ("LOG_FORMAT", "plain"),
    ("SHUTDOWN_ENDPOINT_ENABLED", "false"),
    ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140,[::1]:4140"),
    ("INBOUND_LISTEN_ADDR", "[::]:4143"),
    ("DESTINATION_PROFILE_NETWORKS", NETWORKS),
    ("DESTINATION_PROFILE_SUFFIXES", "svc.cluster.local."),
    ("POLICY_CLUSTER_NETWORKS", NETWORKS),
    ("INBOUND_CONNECT_TIMEOUT", "100ms"),
    ("OUTBOUND_CONNECT_TIMEOUT", "1000ms"),
    ("INBOUND_ACCEPT_KEEPALIVE", "10000ms"),
    ("OUTBOUND_CONNECT_KEEPALIVE", "10000ms"),
    ("INBOUND_ACCEPT_USER_TIMEOUT", "30s"),
    ("OUTBOUND_CONNECT_USER_TIMEOUT", "30s"),
    ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL", "10s"),
    ("INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT", "3s"),
    // Until a port's policy is known nobody without a certificate comes in either.
    ("INBOUND_DEFAULT_POLICY", "all-authenticated"),
];

/// A proxy of this program for a pod, and its control plane inside the pod.
pub(super) fn launch(
    program: &Path,
    topology: &Arc<Topology>,
    pod: &Pod,
    authority: &Authority,
    handle: &Handle,
) -> Result<Launch, SidecarError> {
    let name = identity_name(&pod.identity);
    let credentials = authority.named(&name)?;
    let system = |operation: &str| {
        let operation = format!("{operation} of {pod}");
        move |source| SidecarError::System { operation, source }
    };
    let files = [
        ("key.p8", credentials.key_der.as_slice()),
        // Its control plane has signed already: neither of these means anything to it.
        ("csr.der", b"none".as_slice()),
        ("token", b"none".as_slice()),
    ];
    let files =
        PrivateDirectory::create(USER, &files).map_err(system("write the key of the sidecar"))?;
    let api = Api::new(Arc::clone(topology), pod, credentials.certificate_der);
    api.serve(API, &pod.netns, handle).map_err(system("serve the sidecar"))?;
    Ok(Launch {
        program: program.to_owned(),
        arguments: Vec::new(),
        environment: environment(topology, pod, &name, &authority.root_pem(), files.path()),
        user: USER,
        input: Vec::new(),
        files: Some(files),
    })
}

/// How to ask it whether it is ready.
pub(super) fn readiness() -> Check {
    Check::Get { address: (Ipv4Addr::LOCALHOST, PORTS.admin).into(), path: "/ready" }
}

/// What Linkerd calls an identity.
fn identity_name(identity: &Identity) -> String {
    let Identity { namespace, service_account, .. } = identity;
    format!(
        "{service_account}.{namespace}.serviceaccount.identity.{NAMESPACE}.{DEFAULT_CLUSTER_DOMAIN}"
    )
}

fn environment(
    topology: &Topology,
    pod: &Pod,
    identity: &str,
    root_pem: &str,
    directory: &Path,
) -> BTreeMap<String, String> {
    let list = |items: Vec<String>| items.join(",");
    let ports = topology.inbound_ports(pod).into_iter().map(|(port, _)| port.to_string());
    let workload = format!("{{\"ns\":\"{}\", \"pod\":\"{}\"}}", pod.namespace, pod.name);
    let directory = directory.display();
    let own = [
        ("INBOUND_IPS", list(pod.addresses.iter().map(ToString::to_string).collect())),
        ("INBOUND_PORTS", list(ports.collect())),
        ("CONTROL_LISTEN_ADDR", format!("[::]:{CONTROL_PORT}")),
        ("ADMIN_LISTEN_ADDR", format!("[::]:{}", PORTS.admin)),
        ("POLICY_WORKLOAD", workload.clone()),
        ("DESTINATION_CONTEXT", workload),
        ("DESTINATION_SVC_ADDR", API.to_string()),
        ("POLICY_SVC_ADDR", API.to_string()),
        ("IDENTITY_SVC_ADDR", API.to_string()),
        ("IDENTITY_LOCAL_NAME", identity.to_owned()),
        ("IDENTITY_TRUST_ANCHORS", root_pem.to_owned()),
        ("IDENTITY_DIR", directory.to_string()),
        ("IDENTITY_TOKEN_FILE", format!("{directory}/token")),
    ];
    let settings = SETTINGS.map(|(name, value)| (name, value.to_owned()));
    settings
        .into_iter()
        .chain(own)
        .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value))
        .collect()
}
