//! The workloads that a proxy acts for: for a node proxy each pod of its node, for any other proxy
//! itself.
//!
//! An identity comes from the agent that enrolled the workload, never from the view: the view may
//! be stale, while the agent holds the workload's very namespace. Nothing here decides anything.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::admission::Admission;
use ambit_net::drain::Drain;
use ambit_net::namespace::NetNs;
use ambit_net::outside::Outside;
use ambit_words::ports;

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
    /// How the mesh is reached, where that is not from its own network.
    pub outside: Option<Arc<FromOutside>>,
    /// The identity it acts under.
    pub identity: Identity,
    /// Its shares of the process' descriptors.
    pub shares: Shares,
}

/// A workload outside of the cluster whose mesh it is in: others reach it at an address of the
/// host, and it reaches them from there. Its own namespace holds the program alone.
#[derive(Debug)]
pub struct FromOutside {
    /// Its WorkloadEntry, as the view numbers it. A pod may have the same name.
    pub entry: Text,
    /// The WorkloadEntry's address.
    pub address: IpAddr,
    /// Who opens connections to others.
    pub outside: Outside,
    /// Control has said that it is none any more: see [`crate::mesh::Mesh::disowned`].
    pub disowned: Arc<AtomicBool>,
}

impl OwnWorkload {
    /// The view's description of this workload. A description with its name but another service
    /// account is an earlier pod's, and one without a node was written by a user for something
    /// else: nothing of it applies to this one, least of all its policies.
    pub fn described_in<'a>(&self, view: &'a View) -> Option<&'a Arc<Workload>> {
        let described = match &self.outside {
            Some(_) if self.is_disowned() => None,
            Some(outside) => view.workload(&outside.entry),
            None => view.workload_named(&self.name).filter(|it| it.is_pod()),
        };
        described.filter(|it| it.service_account == self.identity.service_account)
    }

    /// Whether control has said that it is none of the mesh any more.
    pub fn is_disowned(&self) -> bool {
        self.outside.as_ref().is_some_and(|outside| outside.disowned.load(Ordering::Relaxed))
    }

    /// Who opens a connection to `to`; `None` if it is opened in the workload's own namespace.
    pub fn outside_for(&self, to: SocketAddr) -> Option<&Outside> {
        let outside = self.outside.as_deref()?;
        // It reaches itself by its own proxy's port, as others do.
        let is_own = to.ip() == outside.address && to.port() != ports::HBONE;
        let is_here = is_own || to.ip().is_loopback();
        (!is_here).then_some(&outside.outside)
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

#[cfg(test)]
mod tests {
    use ambit_model::names::entry_uid;
    use ambit_model::view::Change;

    use super::*;
    use crate::descriptors::Descriptors;

    #[test]
    fn a_workload_outside_is_its_entry_and_no_pod_of_its_name() {
        let entry: Text = entry_uid("Kubernetes", "shop", "db").into();
        let described = |uid: &str, node: &str| {
            let mut workload = Workload::named(uid, "shop", "db");
            (workload.service_account, workload.node) = ("db".into(), node.into());
            Change::Workload(workload)
        };
        let name = WorkloadName::new("shop", "db");
        let disowned = Arc::new(AtomicBool::default());
        let mut own = OwnWorkload {
            uid: "1".into(),
            netns: None,
            outside: Some(Arc::new(FromOutside {
                entry: entry.clone(),
                address: "192.0.2.7".parse().expect("an address"),
                outside: Outside::new("/none".into()),
                disowned: disowned.clone(),
            })),
            identity: Identity::new("cluster.local", "shop", "db"),
            shares: Shares::new(&Descriptors::of_this_process(1), &name),
            name,
        };
        let mut view = View::default();
        view.apply(described("Kubernetes//Pod/shop/db", "node-1"));
        assert!(own.described_in(&view).is_none(), "a pod of its name is another workload");
        view.apply(described(&entry, ""));
        let uid = |own: &OwnWorkload| own.described_in(&view).map(|it| it.uid.clone());
        assert_eq!(uid(&own), Some(entry));
        disowned.store(true, Ordering::Relaxed);
        assert_eq!(uid(&own), None, "control has said that it is none any more");
        disowned.store(false, Ordering::Relaxed);
        let is_outside = |own: &OwnWorkload, to: &str| {
            own.outside_for(to.parse().expect("an address")).is_some()
        };
        assert!(is_outside(&own, "10.244.1.2:80") && is_outside(&own, "192.0.2.8:80"));
        assert!(!is_outside(&own, "192.0.2.7:80") && !is_outside(&own, "127.0.0.1:15008"));
        assert!(is_outside(&own, "192.0.2.7:15008"), "its own proxy listens on the host");
        own.identity = Identity::new("cluster.local", "shop", "other");
        assert_eq!(uid(&own), None, "another account is another workload");
        own.outside = None;
        own.identity = Identity::new("cluster.local", "shop", "db");
        assert_eq!(uid(&own).as_deref(), Some("Kubernetes//Pod/shop/db"));
        assert!(!is_outside(&own, "10.244.1.2:80"), "a pod dials in its own namespace");
    }
}
