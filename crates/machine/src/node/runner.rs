//! Keeps the pods that run on a node equal to the pods that the registry places there.
//!
//! Each pod is its own task ([`super::pod_run`]); this file only decides which tasks exist and what
//! they should do. Pods that ran before this process started are taken over.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};

use super::Context;
use super::plan::PodName;
use super::pod_run::{PodRun, Wish};
use crate::controller::decode;
use crate::registry::PodStatus;

/// Ended pods that may wait to be noticed.
const ENDED_MAX: usize = 64;
/// How long a pod may take to end when its object does not say.
const GRACE_SECONDS: u64 = 30;

/// The pods of a node.
pub(crate) struct Runner {
    context: Arc<Context>,
    pods: BTreeMap<(String, String), Handle>,
    ended: mpsc::Receiver<(String, String)>,
    ends: mpsc::Sender<(String, String)>,
}

struct Handle {
    uid: String,
    wish: watch::Sender<Wish>,
}

impl Runner {
    /// No pods yet.
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let (ends, ended) = mpsc::channel(ENDED_MAX);
        Self { context, pods: BTreeMap::new(), ended, ends }
    }

    /// Waits until a pod has been taken down.
    pub(crate) async fn pod_ended(&mut self) {
        if let Some(key) = self.ended.recv().await {
            self.pods.remove(&key);
            // Its status file is gone, though the watch may not have reported it yet: a status
            // still in the mirror would look like a pod that an earlier process left.
            let path = self.context.layout.pod_status(&key.0, &key.1);
            let mut mirror = self.context.mirror.write();
            mirror.as_mut().expect("nothing panics while it holds the lock").read(&[path]);
        }
    }

    /// Starts, ends and leaves alone, as the registry says.
    pub(crate) fn reconcile(&mut self) {
        let context = Arc::clone(&self.context);
        let mirror = context.mirror();
        let on_this_node: BTreeMap<(String, String), Pod> = mirror
            .of_plural("pods")
            .map(|(_, value)| decode::<Pod>(value))
            .filter(|pod| {
                let spec = pod.spec.as_ref();
                spec.and_then(|spec| spec.node_name.as_deref()) == Some(&context.node)
            })
            .map(|pod| {
                let names = PodName::of(&pod);
                ((names.namespace, names.name), pod)
            })
            .collect();
        let left_over: Vec<(PodName, PodStatus)> = mirror
            .statuses()
            .filter(|(_, status)| status.node == context.node)
            .map(|((namespace, name), status)| {
                let (namespace, name, uid) = (namespace.clone(), name.clone(), status.uid.clone());
                (PodName { namespace, name, uid }, status.clone())
            })
            .collect();
        drop(mirror);
        // Addresses of running pods are taken before a new one can be given any.
        for (names, status) in &left_over {
            let key = (names.namespace.clone(), names.name.clone());
            if !self.pods.contains_key(&key) {
                let pod = on_this_node.get(&key).filter(|pod| PodName::of(pod).uid == names.uid);
                self.start(names.clone(), pod.cloned(), Some(status.clone()));
            }
        }
        for (key, pod) in &on_this_node {
            if !self.pods.contains_key(key) && pod.metadata.deletion_timestamp.is_none() {
                self.start(PodName::of(pod), Some(pod.clone()), None);
            }
        }
        for (key, handle) in &self.pods {
            let pod = on_this_node.get(key).filter(|pod| PodName::of(pod).uid == handle.uid);
            let wish = pod.map_or(Wish::Vanish, wish);
            handle.wish.send_if_modified(|old| {
                let changed = *old != wish;
                *old = wish;
                changed
            });
        }
    }

    fn start(&mut self, names: PodName, pod: Option<Pod>, adopted: Option<PodStatus>) {
        let key = (names.namespace.clone(), names.name.clone());
        let (wish, wishes) = watch::channel(pod.as_ref().map_or(Wish::Vanish, wish));
        self.pods.insert(key.clone(), Handle { uid: names.uid.clone(), wish });
        let run = PodRun::new(Arc::clone(&self.context), names, pod, wishes, adopted);
        let ends = self.ends.clone();
        tokio::spawn(async move {
            run.live().await;
            // The runner lives as long as the process.
            let _noticed = ends.send(key).await;
        });
    }
}

fn wish(pod: &Pod) -> Wish {
    if pod.metadata.deletion_timestamp.is_none() {
        return Wish::Run;
    }
    let spec = pod.spec.as_ref();
    let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let grace_seconds = grace.and_then(|grace| u64::try_from(grace).ok()).unwrap_or(GRACE_SECONDS);
    Wish::Terminate { grace_seconds }
}
