//! How the agent learns about pods and namespaces, and reports which pods are captured.
//!
//! `files` reads the directory that `ambit up` writes, `kubernetes` watches the API server
//! through `mirror`; `processes` finds the network namespaces of a cluster's pods; `reports`
//! reports which pods are captured. Nothing here decides about a pod.

#[cfg(test)]
mod fake_api;
pub(crate) mod files;
pub(crate) mod kubernetes;
mod mirror;
pub(crate) mod object;
pub(crate) mod processes;
pub(crate) mod reports;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::pod::{NewPod, RegistryView};

/// Requests for a fresh view that may wait.
const REFRESH_QUEUE: usize = 64;

/// The current view, and a way to have it brought up to date at once.
#[derive(Clone, Debug)]
pub(crate) struct RegistryHandle {
    pub(crate) view: watch::Receiver<Arc<RegistryView>>,
    refresh: mpsc::Sender<Refresh>,
}

/// Somebody waits for a view that is as fresh as an announcement.
#[derive(Debug)]
struct Refresh {
    new_pod: NewPod,
    answer: oneshot::Sender<Result<Arc<RegistryView>, String>>,
}

impl RegistryHandle {
    /// A view that is up to date about an announced pod; or why there is none, and the pod must not
    /// start.
    pub(crate) async fn refresh(&self, new_pod: &NewPod) -> Result<Arc<RegistryView>, String> {
        let ended = || "the registry is not followed any more".to_owned();
        let (answer, fresh) = oneshot::channel();
        let request = Refresh { new_pod: new_pod.clone(), answer };
        self.refresh.send(request).await.map_err(|_| ended())?;
        fresh.await.unwrap_or_else(|_| Err(ended()))
    }
}
