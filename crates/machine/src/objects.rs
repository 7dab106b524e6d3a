//! The machine's objects: what was applied, completed as an API server would.
//!
//! `Store` is the only writer of `registry/objects`. A change is drafted in memory, admitted as a
//! whole, staged on disk and then moved into place, so that an error anywhere leaves everything as
//! it was. It never runs anything: controllers and nodes read what it wrote.

mod admit;
mod autoscaler_fields;
mod change;
mod families;
mod host_programs;
mod merge;
mod node_ports;
mod nodes;
mod pod_fields;
mod store;
#[cfg(test)]
mod tests;
mod without_effect;
mod workload_fields;
mod workloads;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use admit::ApplyError;
pub(crate) use admit::{Admission, is_owned_by};
pub use ambit_manifest::Kind;
pub(crate) use autoscaler_fields::scaled_by;
pub use merge::Sent;
pub(crate) use nodes::{joined_node_object, node_object, ready as node_readiness};
pub(crate) use pod_fields::Limited;
pub use store::StoreError;
pub(crate) use store::{Store, random_bytes};
pub use workload_fields::refused_fields;
pub(crate) use workloads::default_job;

/// Names one object, as `kubectl` would.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Plural name of its kind, `deployments`.
    pub plural: String,
    /// Its namespace; none for Namespaces and Nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// A reference to an object of this kind.
    pub fn new(kind: Kind, namespace: Option<&str>, name: &str) -> Self {
        Self {
            plural: kind.plural().to_owned(),
            namespace: namespace.filter(|_| kind.is_namespaced()).map(str::to_owned),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = Kind::from_plural(&self.plural);
        write!(f, "{} ", kind.map_or(self.plural.as_str(), |kind| kind.name()))?;
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// What an apply or delete did to one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Which object.
    pub object: ObjectRef,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was there and differs now.
    Configured,
    /// It was there and is the same.
    Unchanged,
    /// It is going away.
    Deleted,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Created => "created",
            Outcome::Configured => "configured",
            Outcome::Unchanged => "unchanged",
            Outcome::Deleted => "deleted",
        };
        write!(f, "{} {outcome}", self.object)
    }
}

/// What an apply or delete did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// One entry per object that was named, in that order; cascades follow.
    pub changes: Vec<Change>,
    /// Fields that have no effect on a machine, images that it does not have, and pods that no node
    /// takes, each with its object.
    pub warnings: Vec<String>,
}
