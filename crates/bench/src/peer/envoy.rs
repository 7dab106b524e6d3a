//! Envoy as Istio configures a sidecar: HTTP/1.1, mutual TLS, role-based access control, two
//! worker threads; and as it configures a waypoint (`waypoint`).
//!
//! What istiod sends over xDS is written into a static bootstrap here, one for each pod: the same
//! listeners, filter chains, routes and clusters, under Istio's names (as of Istio 1.32 and Envoy
//! 1.40). Every sidecar knows every service, which is Istio's default. Mutual TLS is STRICT; one
//! ALLOW policy names the identities of all pods, those of the pod's own namespace first. There is
//! no access log, which is Istio's default profile.
//!
//! Where it differs, it has less to do than Istio's own build:
//! * Istio's filters `istio.stats`, `istio.metadata_exchange` and `istio.alpn` are not in Envoy;
//!   the last one's work, the ALPN of a connection, is part of the clusters here.
//! * Certificates are ECDSA P-256 and part of the bootstrap, not RSA and served by an agent.
//! * No tracing. On ports with no declared protocol, HTTP/2 is carried as TCP.

mod bootstrap;
mod cluster;
mod http;
mod listener;
mod waypoint;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use ambit_machine::Check;
use ambit_words::ports;
use serde_json::{Value, json};

use super::authority::{Authority, AuthorityError, Credentials};
use super::program::Launch;
use super::redirect::Ports;
use super::topology::{Pod, Topology};

/// Who a sidecar runs as in Istio.
pub(super) const USER: u32 = 1337;
/// Where it listens in Istio.
pub(super) const PORTS: Ports =
    Ports { outbound: ports::OUTBOUND, inbound: ports::INBOUND, admin: ports::PROXY_ADMIN };
/// Worker threads, Istio's default for a sidecar.
const CONCURRENCY: u8 = 2;

/// A proxy of this program for a pod.
pub(super) fn launch(
    program: &Path,
    topology: &Topology,
    pod: &Pod,
    authority: &Authority,
) -> Result<Launch, AuthorityError> {
    launched(program, topology, pod, authority, bootstrap::write)
}

/// A proxy of this program that is the waypoint of a pod.
pub(super) fn launch_waypoint(
    program: &Path,
    topology: &Topology,
    pod: &Pod,
    authority: &Authority,
) -> Result<Launch, AuthorityError> {
    launched(program, topology, pod, authority, waypoint::write)
}

fn launched(
    program: &Path,
    topology: &Topology,
    pod: &Pod,
    authority: &Authority,
    write: fn(&Topology, &Pod, &Credentials, &str) -> Value,
) -> Result<Launch, AuthorityError> {
    let credentials = authority.workload(&pod.identity)?;
    let bootstrap = write(topology, pod, &credentials, &authority.root_pem());
    let concurrency = CONCURRENCY.to_string();
    let arguments = [
        // Without a suffix it is read as JSON.
        "-c",
        "/dev/fd/0",
        "--concurrency",
        &concurrency,
        "--log-level",
        "warning",
        "--component-log-level",
        "misc:error",
        // Several on one host would take each other for their predecessors.
        "--disable-hot-restart",
    ];
    Ok(Launch {
        program: program.to_owned(),
        arguments: arguments.map(str::to_owned).to_vec(),
        environment: BTreeMap::new(),
        user: USER,
        input: bootstrap.to_string().into_bytes(),
        files: None,
    })
}

/// How to ask it whether it is ready.
pub(super) fn readiness() -> Check {
    Check::Get { address: (Ipv4Addr::LOCALHOST, PORTS.admin).into(), path: "/ready" }
}

/// A message with its type, as `google.protobuf.Any` is written in JSON.
fn typed(kind: &str, mut message: Value) -> Value {
    message["@type"] = json!(format!("type.googleapis.com/{kind}"));
    message
}

/// An extension with its configuration.
fn extension(name: &str, kind: &str, message: Value) -> Value {
    json!({"name": name, "typed_config": typed(kind, message)})
}

/// An address to listen at or to connect to.
fn socket_address(address: impl ToString, port: u16) -> Value {
    json!({"socket_address": {"address": address.to_string(), "port_value": port}})
}
