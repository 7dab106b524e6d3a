//! What the agent does to its own cluster beside reporting pods: it opens the node for pods when it
//! is ready, and finds out whether it is stopped for good.
//!
//! It changes one taint of its own node and nothing else.

use std::time::Duration;

use ambit_apiserver::ANSWER_TIMEOUT;
use ambit_words::annotations::DEPARTURE;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Wait before something that could not be written is tried again; doubles.
pub(crate) const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest wait before it is tried again.
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(30);

/// A DaemonSet, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonSetName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Removes the taint from the node; comes back when it is not there.
pub(crate) async fn remove_taint(client: &Client, node: &str, key: &str) {
    let mut wait = RETRY_MIN;
    while let Err(error) = try_remove_taint(client, node, key).await {
        tracing::warn!(%error, taint = key, "the node stays tainted; tried again (the agent needs \
            get and patch on nodes)");
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(RETRY_MAX);
    }
}

async fn try_remove_taint(client: &Client, node: &str, key: &str) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get(node).await?;
    let taints = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let (removed, kept): (Vec<_>, Vec<_>) = taints.into_iter().partition(|t| t.key == key);
    if removed.is_empty() {
        return Ok(());
    }
    // Refused if somebody has changed the node meanwhile: the list is written whole.
    let version = found.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": kept}});
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    tracing::info!(taint = key, "the node is open for pods");
    Ok(())
}

/// What the server says of the agent's DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is there, and so is the agent's permission to ask.
    There {
        /// What it orders, if anything.
        order: Option<String>,
    },
    /// Deleted, or being deleted.
    Gone,
    /// The agent may not ask, or is unknown.
    Refused,
    /// The server did not answer.
    Unknown,
}

/// Asks for the agent's DaemonSet: whether the agent is stopped because the mesh is removed, and
/// not for an upgrade or a restart, and what it is ordered.
pub(crate) async fn state_of(client: &Client, daemon_set: &DaemonSetName) -> State {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    match tokio::time::timeout(ANSWER_TIMEOUT, sets.get_metadata(&daemon_set.name)).await {
        Ok(Ok(mut found)) if found.metadata.deletion_timestamp.is_none() => {
            State::There { order: found.annotations_mut().remove(DEPARTURE) }
        }
        Ok(Ok(_)) => State::Gone,
        // Said by the server; 404 alone may be what stands before it.
        Ok(Err(kube::Error::Api(status))) if status.reason == "NotFound" => State::Gone,
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => State::Refused,
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot ask for the agent's DaemonSet; nothing is removed");
            State::Unknown
        }
        Err(_) => {
            tracing::warn!(
                "no answer about the agent's DaemonSet within {ANSWER_TIMEOUT:?}; nothing is \
                removed"
            );
            State::Unknown
        }
    }
}
