//! The workloads that a proxy acts for: for a node proxy each pod of its node, for any other proxy
//! itself.
//!
//! An identity comes from the agent that enrolled the workload, never from the view: the view may
//! be stale, while the agent holds the workload's very namespace. Nothing here decides anything.

use std::io;
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::admission::Admission;
use ambit_net::drain::Drain;
use ambit_net::namespace::NetNs;

use crate::descriptors::Shares;

/// A workload that this proxy acts for.
#[derive(Debug)]
pub struct OwnWorkload {
    /// Its uid, as Kubernetes numbers pods.
    pub uid: Text,
    /// Namespace and name, by which the view knows it too.
    pub name: WorkloadName,
    /// Its network namespace, where that is not the proxy's own.
    pub netns: Option<Arc<NetNs>>,
    /// The identity it acts under.
    pub identity: Identity,
    /// Its shares of the process' descriptors.
    pub shares: Shares,
}

impl OwnWorkload {
    /// The view's description of this workload. A description with its name but another service
    /// account is an earlier pod's, and one without a node was written by a user for something
    /// else: nothing of it applies to this one, least of all its policies.
    pub fn described_in<'a>(&self, view: &'a View) -> Option<&'a Arc<Workload>> {
        let described = view.workload_named(&self.name);
        described.filter(|it| it.is_pod() && it.service_account == self.identity.service_account)
    }

    /// Does something in its network namespace.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        match &self.netns {
            Some(netns) => netns.run(work),
            None => Ok(work()),
        }
    }
}

/// A workload as one thread serves it.
pub struct Served {
    /// Which.
    pub own: Arc<OwnWorkload>,
    /// Everything that runs for it.
    pub drain: Drain,
    /// Its TLS handshakes that are under way.
    pub handshakes: Arc<Admission>,
}

impl Served {
    /// Nothing runs for it yet.
    pub fn new(own: Arc<OwnWorkload>, handshakes: Arc<Admission>) -> Self {
        Self { own, drain: Drain::new(), handshakes }
    }
}
