//! Where objects come from: one source at a time gives a stream of typed events.
//!
//! The rest of the control plane sees [`Event`]s and cannot tell a directory from a Kubernetes API
//! server. A source must never invent an object, nor keep one that is gone.

mod files;

use ambit_model::Text;
use serde::Deserialize;

pub(crate) use self::files::{FilesRegistry, RegistryError};
use crate::manifest::{ObjectKey, Typed};

/// What changed in the registry at one moment.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The changes, in an order that does not matter.
    pub(crate) events: Vec<Event>,
    /// Everything that was there when this mark was set has been told by now.
    pub(crate) mark: Option<u64>,
}

/// One thing that changed in the registry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// An object appeared or changed.
    Put(Typed),
    /// An object is gone.
    Delete(ObjectKey),
    /// What the node says of a pod; `None` when it says nothing any more.
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
    },
}

/// What the node says of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    /// The pod it speaks of; an older incarnation's words do not count.
    pub(crate) uid: String,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub(crate) phase: String,
    /// Its addresses.
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Vec<std::net::IpAddr>,
    /// Whether it wants traffic.
    pub(crate) ready: bool,
    /// How often its containers were started again.
    pub(crate) restarts: u32,
    /// Why it is not running, if the node knows.
    pub(crate) reason: Option<String>,
}
