//! The pods that this proxy serves, as the node agent enrolled them.
//!
//! A pod's identity comes from the agent ([`OwnWorkload`]). Maps are persistent, so one more pod
//! costs no copy.

use std::sync::Arc;

use ambit_dataplane::own::OwnWorkload;
use ambit_model::Text;
use ambit_model::names::WorkloadName;

/// An enrolled pod.
pub(crate) type Pod = OwnWorkload;

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
