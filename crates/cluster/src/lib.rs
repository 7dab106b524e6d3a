//! A Kubernetes cluster as a user's command sees it.
//!
//! Which context is meant, where Ambit's parts run, how their administration is reached (by
//! port-forward, as `kubectl port-forward` does), what is wrong with the cluster, how the mesh
//! leaves it, and what it takes to measure there: rights, a namespace for a while, commands in its
//! pods. Objects are read as JSON and the few fields that are needed are looked up in it. Nothing
//! here decides anything about traffic, and only [`Departure`] and [`TemporaryNamespace`] change
//! anything.

mod access;
mod api;
mod context;
mod control;
mod departure;
mod exec;
mod facts;
mod findings;
mod forward;
mod json;
mod measured;
mod parts;
mod temporary;
mod workloads;

pub use access::Right;
pub use api::ClusterError;
pub use context::{Choice, Cluster, kubeconfig_file};
pub use departure::{Departure, DepartureError};
pub use facts::{Facts, Stage};
pub use findings::{Finding, Severity, findings};
pub use measured::{PROXY_CONTAINER, ReadyNode};
pub use parts::{Part, PodName, Proxy};
pub use temporary::{LivePod, TemporaryNamespace};
pub use workloads::{LiveNode, LiveWorkloads};
