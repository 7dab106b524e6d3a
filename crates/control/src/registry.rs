//! Where objects come from: one source at a time yields a stream of typed events.
//!
//! The rest of the control plane sees [`Event`]s and cannot tell a directory from a Kubernetes API
//! server. A source must never invent an object, nor keep a deleted one.

mod files;
pub(crate) mod kubernetes;

use std::path::Path;
use std::time::Duration;

use ambit_model::Text;
use ambit_wire::capture::Obstacle;
use kube::Client;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

use self::files::FilesRegistry;
pub(crate) use self::files::RegistryError;
use self::kubernetes::KubernetesRegistry;
use ambit_manifest::policy::KeySource;
use ambit_manifest::{Kind, ObjectKey, Typed};

/// Longest time from the first change of a batch to its processing.
const GATHER_MAX: Duration = Duration::from_millis(5);
/// The kinds that the control plane looks at; of ConfigMaps the mesh configuration alone, of
/// Secrets those with certificates.
const KINDS: [Kind; 26] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Pod,
    Kind::AuthorizationPolicy,
    Kind::PeerAuthentication,
    Kind::RequestAuthentication,
    Kind::ServiceEntry,
    Kind::WorkloadEntry,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::ReferenceGrant,
    Kind::HttpRoute,
    Kind::GrpcRoute,
    Kind::TlsRoute,
    Kind::TcpRoute,
    Kind::UdpRoute,
    Kind::DestinationRule,
    Kind::VirtualService,
    Kind::Telemetry,
    Kind::ConfigMap,
    Kind::Secret,
    Kind::TrafficPolicy,
    Kind::BackendTlsPolicy,
];

/// Where objects come from.
pub(crate) enum Registry {
    /// A directory, and what was in it when it was opened.
    Files(FilesRegistry, Vec<Event>),
    /// A cluster's API server.
    Kubernetes(KubernetesRegistry),
}

impl Registry {
    /// The directory at `root`, watched.
    pub(crate) fn files(root: &Path) -> Result<Self, RegistryError> {
        let (registry, events) = FilesRegistry::open(root)?;
        Ok(Self::Files(registry, events))
    }

    /// A cluster, watched; its mesh configuration is in this namespace.
    pub(crate) fn kubernetes(client: &Client, root_namespace: &str) -> Self {
        Self::Kubernetes(KubernetesRegistry::open(client, root_namespace))
    }

    /// Whether marks are answered.
    pub(crate) fn answers_marks(&self) -> bool {
        matches!(self, Self::Files(..))
    }

    /// Passes all objects to `take`, in one piece or in several.
    pub(crate) async fn load(
        &mut self,
        mut take: impl FnMut(Vec<Event>),
    ) -> Result<(), RegistryError> {
        match self {
            Self::Files(_, events) => take(std::mem::take(events)),
            Self::Kubernetes(registry) => registry.load(take).await?,
        }
        Ok(())
    }

    /// Sends what changes, until the receiver is gone or the source can no longer be watched.
    /// Whenever `marks` has grown, everything that was there by then is sent together with the
    /// mark, if the source answers marks.
    pub(crate) async fn run(
        self,
        marks: watch::Receiver<u64>,
        batches: mpsc::Sender<Batch>,
    ) -> Result<(), RegistryError> {
        match self {
            Self::Files(registry, _) => registry.run(marks, batches).await,
            Self::Kubernetes(registry) => registry.run(batches).await,
        }
    }
}

/// What changed in the registry at one moment.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The changes, in an order that does not matter.
    pub(crate) events: Vec<Event>,
    /// Everything that existed when this mark was set has been sent by now.
    pub(crate) mark: Option<u64>,
}

impl Batch {
    /// Whether anything of it may change what requests obey.
    pub(crate) fn is_of_requests(&self) -> bool {
        self.events.iter().any(|event| {
            let kind = match event {
                Event::Put(object) => object.kind(),
                Event::Delete(key) => key.kind,
                _ => return false,
            };
            matches!(
                kind,
                Kind::HttpRoute
                    | Kind::GrpcRoute
                    | Kind::VirtualService
                    | Kind::DestinationRule
                    | Kind::AuthorizationPolicy
                    | Kind::RequestAuthentication
            )
        })
    }

    /// Takes a later batch in.
    pub(crate) fn add(&mut self, later: Self) {
        self.events.extend(later.events);
        self.mark = later.mark.or(self.mark);
    }
}

/// What is known of the keys that an issuer publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IssuerKeys {
    /// The last that were fetched, as a JSON Web Key Set.
    pub(crate) keys: Option<Text>,
    /// When that was, in seconds since 1970.
    pub(crate) fetched: Option<u64>,
    /// Why they could not be fetched since.
    pub(crate) problem: Option<KeysProblem>,
}

/// Why keys could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeysProblem {
    /// When they last could not, in seconds since 1970.
    pub(crate) at: u64,
    /// Why.
    pub(crate) what: Text,
}

/// One thing that changed in the registry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// An object appeared or changed.
    Put(Typed),
    /// An object is gone.
    Delete(ObjectKey),
    /// What the node reports about a pod; `None` when it no longer reports it.
    PodStatus {
        /// Namespace of the pod.
        namespace: Text,
        /// Name of the pod.
        name: Text,
        /// What the node says.
        status: Option<PodStatus>,
    },
    /// Whether the node agent has captured a pod's traffic, and which incarnation of the pod.
    Captured {
        /// Namespace of the pod.
        namespace: Text,
        /// Name of the pod.
        name: Text,
        /// The uid of the captured pod; `None` when it is not captured.
        uid: Option<Text>,
        /// The agent's notes about it.
        notes: CaptureNotes,
    },
    /// Why the node agent could not capture a pod, and which incarnation of it.
    Uncaptured {
        /// Namespace of the pod.
        namespace: Text,
        /// Name of the pod.
        name: Text,
        /// The uid of the pod and the reason; `None` when there is none any more.
        obstacle: Option<(Text, Obstacle)>,
    },
    /// The keys of an issuer that objects name by URL; `None` when none does any more.
    IssuerKeys(KeySource, Option<IssuerKeys>),
}

/// What an agent reports about a captured pod, besides its capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CaptureNotes {
    /// Open connections that are older than the capture and continue in plain text.
    pub(crate) older: u32,
    /// The kernel parameter that capture has to do without; empty: none.
    pub(crate) lacks: Text,
}

impl CaptureNotes {
    /// Parses an agent's values; what is not a number counts as none.
    pub(crate) fn read(older: Option<&str>, lacks: Option<&str>) -> Self {
        let older = older.and_then(|number| number.parse().ok()).unwrap_or_default();
        Self { older, lacks: lacks.unwrap_or_default().into() }
    }
}

/// What the node reports about a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    /// The pod it speaks of; an older incarnation's words do not count.
    pub(crate) uid: Text,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub(crate) phase: Text,
    /// Its addresses.
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Vec<std::net::IpAddr>,
    /// Whether it wants traffic.
    pub(crate) ready: bool,
    /// How often its containers were started again.
    pub(crate) restarts: u32,
    /// Why it is not running, if the node knows.
    pub(crate) reason: Option<Text>,
}

#[cfg(test)]
mod tests;
