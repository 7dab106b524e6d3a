//! Keys by which resources name one another.
//!
//! Each key prints and parses in the form that the wire uses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::Text;

/// A service, `namespace/hostname`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// The namespace it lives in.
    pub namespace: Text,
    /// Its fully qualified name, `details.books.svc.cluster.local`.
    pub hostname: Text,
}

/// A policy, `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName {
    /// The namespace it lives in.
    pub namespace: Text,
    /// Its name there.
    pub name: Text,
}

/// A workload as an agent names its pod, `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadName {
    /// The namespace it lives in.
    pub namespace: Text,
    /// Its name there.
    pub name: Text,
}

/// An address on one of the mesh's networks, `network/ip`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkAddress {
    /// The network, empty for the only one.
    pub network: Text,
    /// The address there.
    pub ip: IpAddr,
}

/// The uid of the workload that a WorkloadEntry describes, as Istio writes it.
pub fn entry_uid(cluster_id: &str, namespace: &str, name: &str) -> String {
    format!("{cluster_id}/networking.istio.io/WorkloadEntry/{namespace}/{name}")
}

/// A name that is not of the form `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form namespace/name")]
pub struct NameError(String);

impl NameError {
    /// This text is no name.
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

fn split(text: &str) -> Result<(Text, Text), NameError> {
    match text.split_once('/') {
        Some((namespace, name)) if !name.is_empty() && !name.contains('/') => {
            Ok((namespace.into(), name.into()))
        }
        _ => Err(NameError(text.into())),
    }
}

impl ServiceName {
    /// Names a service.
    pub fn new(namespace: impl Into<Text>, hostname: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), hostname: hostname.into() }
    }
}

impl PolicyName {
    /// Names a policy.
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl WorkloadName {
    /// Names a workload.
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl NetworkAddress {
    /// Names an address.
    pub fn new(network: impl Into<Text>, ip: IpAddr) -> Self {
        Self { network: network.into(), ip }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.ip)
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        split(text).map(|(namespace, hostname)| Self { namespace, hostname })
    }
}

impl FromStr for PolicyName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        split(text).map(|(namespace, name)| Self { namespace, name })
    }
}
