//! A Kubernetes cluster as a user's command sees it.
//!
//! Which context is meant, where Ambit's parts run, how to reach their administration (by
//! port-forward, as `kubectl port-forward` does), what is wrong with the cluster, how the mesh
//! leaves it, and what a measurement needs: rights, a temporary namespace, commands in its pods.
//! Objects are read as JSON, and the few needed fields are looked up in it. Nothing here decides
//! anything about traffic, and only [`Departure`], [`TemporaryNamespace`] and the
//! commands about waypoints change anything.

mod access;
mod api;
mod context;
mod control;
mod departure;
mod exec;
mod facts;
mod findings;
mod forward;
mod gateways;
mod json;
mod measured;
mod outside;
mod parts;
mod temporary;
mod versions;
mod workloads;

pub use access::Right;
pub use api::ClusterError;
pub use context::{Choice, Cluster, kubeconfig_file};
pub use departure::{Departure, DepartureError};
pub use facts::{Facts, Stage};
pub use findings::{Finding, Severity, findings};
pub use measured::{PROXY_CONTAINER, ReadyNode};
pub use outside::{AccountToken, Way};
pub use parts::{Part, PodName, Proxy};
pub use temporary::{LivePod, TemporaryNamespace};
pub use versions::PartVersion;
pub use workloads::{LiveNode, LiveWorkloads};
