//! What the agent does to its own cluster beside reporting pods: it opens the node for pods when it
//! is ready, and finds out whether it is stopped for good.
//!
//! It changes one taint of its own node and nothing else.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Wait before the taint is tried again; doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest wait before the taint is tried again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Longest that the server may take to say what became of the DaemonSet.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Whether the agent may ask about its DaemonSet: asked at the start, so that a refusal at the end
/// says that its permission was taken away with all the rest.
pub(crate) async fn may_ask(client: &Client, daemon_set: &DaemonSetName) -> bool {
    !matches!(state_of(client, daemon_set).await, State::Refused | State::Unknown)
}

/// Whether the agent is stopped because the mesh is removed, not for an upgrade or a restart.
pub(crate) async fn is_removed(client: &Client, daemon_set: &DaemonSetName, may_ask: bool) -> bool {
    match state_of(client, daemon_set).await {
        State::Gone => true,
        State::Refused => may_ask,
        State::There | State::Unknown => false,
    }
}

/// What the server says of the DaemonSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    There,
    /// Deleted, or being deleted.
    Gone,
    /// The agent may not ask, or is unknown.
    Refused,
    /// The server did not answer.
    Unknown,
}

async fn state_of(client: &Client, daemon_set: &DaemonSetName) -> State {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    match tokio::time::timeout(ANSWER_TIMEOUT, sets.get_metadata_opt(&daemon_set.name)).await {
        Ok(Ok(Some(found))) if found.metadata.deletion_timestamp.is_none() => State::There,
        Ok(Ok(_)) => State::Gone,
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => State::Refused,
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot ask for the agent's DaemonSet; nothing is removed");
            State::Unknown
        }
        Err(_) => {
            tracing::warn!(
                "no word of the agent's DaemonSet within {ANSWER_TIMEOUT:?}; nothing is \
                removed"
            );
            State::Unknown
        }
    }
}
