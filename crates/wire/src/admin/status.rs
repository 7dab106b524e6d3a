//! What control reports about itself and the mesh: `/status` and `/debug/syncz`.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::authority::Rotation;
use super::{ApiVersion, Word, required};

/// How the mesh is, as control sees it. All is well if `discovery.nodesWithoutProxy`,
/// `pods.waitingForCapture`, `pods.failing` and `policiesNotAccepted` are empty and no finding is
/// an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The version of the control plane.
    pub version: String,
    /// How long control runs.
    pub uptime_seconds: u64,
    /// How many replicas this is put together from; absent for one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// Which mesh this is.
    pub mesh: MeshIdentity,
    /// How much there is of each kind.
    pub objects: Objects,
    /// How far the proxies have followed.
    pub discovery: Discovery,
    /// How far control has read.
    pub registry: Registry,
    /// Pods that are not, or not yet, what their labels say.
    pub pods: Pods,
    /// Policies that are not enforced as they were written.
    pub policies_not_accepted: Vec<NotAccepted>,
    /// Well-formed objects that probably do not do what was meant; errors first.
    pub findings: Vec<Finding>,
    /// The certificate authority.
    pub authority: Authority,
}

/// Which mesh this is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshIdentity {
    /// The cluster, as proxies name it.
    pub cluster_id: String,
    /// The trust domain of all identities.
    pub trust_domain: String,
    /// The namespace whose policies hold for the whole mesh.
    pub root_namespace: String,
    /// The domain of its Services; absent where control is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
}

/// How much there is of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Pods.
    pub pods: usize,
    /// Nodes.
    pub nodes: usize,
    /// Namespaces.
    pub namespaces: usize,
    /// Services that the proxies are sent.
    pub services: usize,
    /// Workloads that the proxies are sent.
    pub workloads: usize,
    /// Policies that the proxies are sent.
    pub policies: usize,
}

/// How far the proxies have followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// Proxies that are connected.
    pub clients: usize,
    /// Nodes whose proxy is not connected.
    pub nodes_without_proxy: Vec<String>,
    /// Nodes whose proxy has not acknowledged the newest resources: `NODE: reason` each.
    pub behind: Vec<String>,
}

/// How far control has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registry {
    /// The newest [`super::Mark`] that it has reached; 0 before the first.
    pub mark: u64,
}

/// Pods that are not, or not yet, what their labels say; each as `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// How many pods are captured.
    pub captured: usize,
    /// Pods in the mesh by their labels that are not captured yet.
    pub waiting_for_capture: Vec<String>,
    /// Pods that are captured still, though their labels do not say so any more.
    pub waiting_for_release: Vec<String>,
    /// Pods in the mesh by their labels that share their node's network, and stay outside.
    pub host_network_left_alone: Vec<String>,
    /// Captured pods with connections that are older than their capture, and so in plain text.
    pub older_than_capture: Vec<OlderConnections>,
    /// Captured pods that lack a kernel parameter.
    pub capture_lacks: Vec<CaptureLack>,
    /// Why pods of `waitingForCapture` are not captured, where their agent says so.
    pub not_captured: Vec<NotCaptured>,
    /// Pods of the mesh that something keeps from their work.
    pub failing: Vec<FailingPod>,
}

/// A pod that something keeps from its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingPod {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// How far it is in its life, as in [`super::Pod`].
    pub phase: Word,
    /// How often its containers were started again.
    pub restarts: u32,
    /// The problem: Kubernetes' word for it, such as `CrashLoopBackOff`, and details after a colon.
    pub reason: String,
}

/// A captured pod with connections that are older than its capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderConnections {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// How many there were when it was captured.
    pub connections: u32,
}

/// A captured pod that lacks a kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureLack {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// The parameter, by the name that sysctl has for it.
    pub parameter: String,
}

/// Why a pod is not captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCaptured {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// `PortTaken`, `Refused` or `Failed`.
    pub reason: Word,
    /// The port that is taken.
    pub port: Option<u16>,
    /// The program that has it, where it was found.
    pub process: Option<String>,
    /// The same as a sentence.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// A policy that is not enforced as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotAccepted {
    /// `AuthorizationPolicy` or `PeerAuthentication`.
    pub kind: Word,
    /// The policy, `NAMESPACE/NAME`.
    pub policy: String,
    /// One word, as in the object's condition `Accepted`.
    pub reason: Word,
    /// A sentence.
    pub message: String,
}

/// A well-formed object that has no effect or makes connections be refused. The form is that of a
/// finding of `ambit check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the rule, which stays the same over versions.
    pub rule: Word,
    /// Which object: `Kind NAMESPACE/NAME`.
    pub object: String,
    /// The problem: a sentence.
    pub what: String,
    /// What to do: a sentence.
    pub remedy: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Connections are refused.
    Error,
    /// Something has no effect.
    Warning,
    /// A severity of a newer control plane.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
        })
    }
}

/// The certificate authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// Certificates in force.
    pub issued: usize,
    /// Certificates on the revocation list.
    pub revoked: usize,
    /// What keeps it from its work; null if nothing does.
    #[serde(deserialize_with = "required")]
    pub problem: Option<String>,
    /// How far a rotation of the root has come.
    pub rotation: Rotation,
}

/// What each proxy was sent and has answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncStatus {
    /// The version of this form.
    pub api_version: ApiVersion,
    /// The proxies that are connected to this replica.
    pub clients: Vec<ProxySync>,
}

/// What one proxy was sent and has answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxySync {
    /// Its name for itself.
    pub proxy: String,
    /// Its node, as its token proves it; `workload entry NAMESPACE/NAME` for a computer outside of
    /// the cluster.
    pub node: String,
    /// Where it connects from.
    pub remote: Option<SocketAddr>,
    /// For how long.
    pub connected_seconds: u64,
    /// One for each type of resource that it asked for.
    pub types: Vec<TypeSync>,
}

/// One type of resource of one proxy. Numbers count control's changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeSync {
    /// `address`, `workload` or `authorization`.
    #[serde(rename = "type")]
    pub kind: Word,
    /// It wants all resources.
    pub everything: bool,
    /// How many it asked for by name.
    pub names: usize,
    /// The change that it was sent last.
    pub sent: u64,
    /// The change that it has acknowledged last.
    pub acknowledged: u64,
    /// The newest change.
    pub newest: u64,
    /// Whether it has acknowledged the newest.
    pub synced: bool,
    /// Why it refused the last response; null if it did not.
    #[serde(deserialize_with = "required")]
    pub rejected: Option<String>,
}
