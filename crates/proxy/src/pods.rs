//! The pods that this proxy serves, as the node agent enrolled them.
//!
//! A pod's identity is what the agent said, never what the view says: the view may be stale, the
//! agent holds the pod's very namespace. Maps are persistent, so that one more pod costs no copy.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_net::namespace::NetNs;

use crate::descriptors::Shares;

/// An enrolled pod.
#[derive(Debug)]
pub(crate) struct Pod {
    /// Its uid, as Kubernetes numbers pods.
    pub(crate) uid: Text,
    /// Namespace and name, by which the view knows it too.
    pub(crate) name: WorkloadName,
    /// Its network namespace.
    pub(crate) netns: NetNs,
    /// The identity it acts under.
    pub(crate) identity: Identity,
    /// What it may have of the worker's descriptors.
    pub(crate) shares: Shares,
}

impl Pod {
    /// What the view says of this pod. A description under its name but of another service account
    /// is that of an earlier pod, and one without a node was written by somebody for something
    /// else: nothing of it, its policies least of all, holds for this one.
    pub(crate) fn described_in<'a>(&self, view: &'a View) -> Option<&'a Arc<Workload>> {
        let described = view.workload_named(&self.name);
        described.filter(|it| it.is_pod() && it.service_account == self.identity.service_account)
    }
}

/// All enrolled pods at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods {
    by_uid: imbl::HashMap<Text, Arc<Pod>>,
    by_name: imbl::HashMap<WorkloadName, Arc<Pod>>,
}

impl Pods {
    /// Adds a pod, or replaces the one with its uid.
    pub(crate) fn insert(&mut self, pod: Arc<Pod>) {
        self.remove(&pod.uid);
        self.by_name.insert(pod.name.clone(), pod.clone());
        self.by_uid.insert(pod.uid.clone(), pod);
    }

    /// Removes a pod.
    pub(crate) fn remove(&mut self, uid: &Text) -> Option<Arc<Pod>> {
        let pod = self.by_uid.remove(uid)?;
        // A StatefulSet's next pod has the same name: it stays when its predecessor goes.
        if self.by_name.get(&pod.name).is_some_and(|named| named.uid == pod.uid) {
            self.by_name.remove(&pod.name);
        }
        Some(pod)
    }

    /// The pod of this namespace and name; of two, the one that came last.
    pub(crate) fn by_name(&self, name: &WorkloadName) -> Option<&Arc<Pod>> {
        self.by_name.get(name)
    }

    /// All of them, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_uid.values()
    }
}
