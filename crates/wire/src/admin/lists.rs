//! The lists of control: `/get/...`, which `ambit get` prints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Word;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its node; empty while it has none.
    pub node: String,
    /// What made it, such as its Deployment; empty for a pod of its own.
    pub owner: String,
    /// Its service account.
    pub service_account: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Word,
    /// Whether it takes traffic.
    pub ready: bool,
    /// How often its containers were started again.
    pub restarts: u32,
    /// Why it does not run, if its node says so.
    pub reason: Option<String>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Whether it shares its node's network.
    pub host_network: bool,
    /// What its labels, or its namespace's, ask for: `ambient`, `none`, or `host-network` for
    /// ambient that cannot be.
    pub mode: Word,
    /// Whether its traffic goes through the mesh.
    pub captured: bool,
    /// Connections that it had open when it was captured: they pass by the mesh.
    pub older_connections: u32,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its name in DNS.
    pub hostname: String,
    /// Its virtual addresses, single ones and blocks (`10.0.0.0/24`).
    pub addresses: Vec<String>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// How many endpoints it has.
    pub endpoints: Endpoints,
    /// The waypoint that its connections must pass.
    pub waypoint: Option<String>,
    /// The second waypoint, which a share of new connections passes instead; absent if there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The services of gateways that do what its waypoint does, `NAMESPACE/HOSTNAME` each; absent
    /// if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrances: Vec<String>,
    /// How connections are spread.
    pub load_balancing: LoadBalancing,
}

/// The canary waypoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// The waypoint's service, `NAMESPACE/HOSTNAME`.
    pub waypoint: String,
    /// How many of a hundred new connections pass it.
    pub weight: u32,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// The port that clients use.
    pub port: u16,
    /// The port of its endpoints; 0 where each has its own.
    pub target_port: u16,
    /// The declared application protocol: `unspecified`, `tcp`, `http`, ...
    pub protocol: Word,
}

/// How many endpoints a service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// Those that take traffic.
    pub ready: usize,
    /// All.
    pub total: usize,
}

/// How connections to a service are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancing {
    /// `any`, `strict`, `failover` or `passthrough`.
    pub mode: Word,
    /// What an endpoint should have in common with the client, most general first: `region`,
    /// `zone`, `subzone`, `node`, `cluster` or `network`.
    pub preference: Vec<Word>,
    /// Whether endpoints that are not ready are chosen too.
    pub allow_unready: bool,
    /// How long a client stays with its endpoint; null if it does not.
    pub client_affinity_seconds: Option<u32>,
}

/// A workload, as the proxies are sent it: a pod or a WorkloadEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Its name among all resources, such as `Kubernetes//Pod/shop/web`.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its name in DNS; empty if it has addresses.
    pub hostname: String,
    /// Its node; empty outside of the cluster.
    pub node: String,
    /// How it is reached: `HBONE`, `TCP` or `LEGACY_ISTIO_MTLS`.
    pub protocol: Word,
    /// Who it is: `spiffe://...`.
    pub identity: String,
    /// The services that it serves, `NAMESPACE/HOSTNAME` each.
    pub services: Vec<String>,
    /// The policies that it names, `NAMESPACE/NAME` each. Those of its namespace and of the mesh
    /// hold for it as well.
    pub policies: Vec<String>,
    /// The waypoint that connections to its addresses must pass.
    pub waypoint: Option<String>,
    /// Whether it takes traffic.
    pub healthy: bool,
    /// Its application, by its labels.
    pub canonical_name: String,
    /// The version of its application, by its labels.
    pub canonical_revision: String,
    /// Where it is.
    pub locality: Locality,
    /// Whether it shares its node's network.
    pub host_network: bool,
    /// Its weight among other endpoints; 1 for a pod.
    pub capacity: u32,
}

/// Where something is; empty as far as that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// The region.
    pub region: String,
    /// The zone in the region.
    pub zone: String,
    /// The part of the zone.
    pub subzone: String,
}

/// A policy as a user wrote it, with what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Policy {
    /// Who may connect.
    AuthorizationPolicy(AuthorizationPolicy),
    /// Whether plain text is accepted.
    PeerAuthentication(PeerAuthentication),
    /// A kind of a newer control plane; nothing of it is shown.
    #[serde(other)]
    Unknown,
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationPolicy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// As it was written: `ALLOW`, `DENY`, `AUDIT` or `CUSTOM`.
    pub action: Word,
    /// Its scope: `mesh`, `namespace`, `selector` or `targets`; null if it is not sent to anybody.
    pub scope: Option<Word>,
    /// What it is attached to, `KIND NAMESPACE/NAME`: the waypoints of these enforce it. Absent
    /// where it is attached to nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// What the proxies do: `ALLOW` or `DENY`; null if they are not sent it.
    pub enforced_as: Option<Word>,
    /// How many rules were written.
    pub rules: usize,
    /// Whether it is on trial: denials are logged and not carried out.
    pub dry_run: bool,
    /// How many workloads it holds for.
    pub workloads: usize,
    /// Whether it is enforced as it was written: `WaypointAccepted` by waypoints, if any has to do
    /// with it, and `Accepted` at pods, unless it is for waypoints alone.
    pub conditions: Vec<Condition>,
}

/// Whether plain text is accepted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerAuthentication {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `STRICT`, `PERMISSIVE`, `DISABLE` or `UNSET`.
    pub mode: Word,
    /// The modes of single ports, as they were written: `{"8080": {"mode": "STRICT"}}`.
    pub port_level_mtls: Value,
    /// The workloads it holds for, as they were written; null for all of the namespace.
    pub selector: Option<Value>,
}

/// A condition of an object's status, as Kubernetes writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The type of the condition: `Accepted`.
    #[serde(rename = "type")]
    pub kind: Word,
    /// `True` or `False`.
    pub status: Word,
    /// One word for programs.
    pub reason: Word,
    /// A sentence for people.
    pub message: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its region, by its labels.
    pub region: String,
    /// Its zone, by its labels.
    pub zone: String,
    /// The part of its zone, by its labels.
    pub subzone: String,
    /// How many pods are placed on it.
    pub pods: usize,
    /// Whether its proxy is connected to control.
    pub proxy_connected: bool,
}

/// A Gateway that asks for a waypoint, or for a gateway at the edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gateway {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// The traffic that a waypoint is for, as its label says; null without the label.
    pub traffic: Option<String>,
    /// The revision that its label names; null without the label.
    pub revision: Option<String>,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its pods.
    pub endpoints: Endpoints,
    /// The listeners of a gateway at the edge; none of a waypoint.
    pub listeners: Vec<GatewayListener>,
    /// What became of it: `Accepted` and `Programmed`.
    pub conditions: Vec<Condition>,
}

/// A listener of a gateway at the edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayListener {
    /// Its name.
    pub name: String,
    /// Its port, as it is written.
    pub port: i32,
    /// Its protocol, as it is written.
    pub protocol: String,
    /// The hosts that it serves; null for all.
    pub host: Option<String>,
    /// How many routes are attached to it.
    pub attached_routes: usize,
    /// What is wrong with it; null if it is served as it is written.
    pub problem: Option<String>,
}

/// A Telemetry: what waypoints report of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// For whom it holds: `mesh`, `namespace` or `targets`; null if it holds for nobody.
    pub scope: Option<Word>,
    /// What it is attached to: `KIND NAMESPACE/NAME`.
    pub targets: Vec<String>,
    /// Of what it says something: `accessLogging`, `metrics`, `tracing`.
    pub sections: Vec<Word>,
    /// The providers that it names, of the mesh configuration.
    pub providers: Vec<String>,
    /// How many services it holds for, with or without a waypoint. What a narrower one says of the
    /// same counts in its place.
    pub services: usize,
    /// Whether all of it is in force.
    pub conditions: Vec<Condition>,
}

/// A TrafficPolicy: limits and health checks of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficPolicy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Of what it says something: `rateLimits`, `limits`, `healthCheck`.
    pub sections: Vec<Word>,
    /// What it is attached to.
    pub targets: Vec<PolicyTarget>,
}

/// What a policy is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTarget {
    /// `KIND NAMESPACE/NAME`, and ` rule NAME` of a route.
    pub target: String,
    /// Whether it is in force there.
    pub condition: Condition,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// What its label `istio.io/dataplane-mode` says; `none` without one.
    pub mode: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How many pods it has.
    pub pods: usize,
}
