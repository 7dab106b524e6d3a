//! The runner's side of the CNI plugin's endpoint: announces a pod to the node agent before its
//! first process starts.
//!
//! The message is istio-cni's. The response comes when the pod is captured, or at once if it does
//! not belong in the mesh. Without a response the pod must not start, because its first connections
//! would bypass the mesh.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ambit_net::local_http::{self, LocalHttpError};
use http::{Method, StatusCode};
use serde_json::json;

use super::plan::PodName;

/// How long the agent may take to capture a pod.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a pod was not captured; trying again may help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    /// The agent was not reached, or did not answer.
    #[error("waiting for the node agent")]
    Away(#[from] LocalHttpError),
    /// The agent could not do it.
    #[error("the node agent says: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
}

/// Announces a pod and waits until it may start.
pub(crate) async fn announce(
    socket: &Path,
    pod: &PodName,
    netns: &Path,
    pod_ips: &[IpAddr],
) -> Result<(), CniError> {
    let body = message(pod, netns, pod_ips).into();
    let answer = local_http::request(socket, Method::POST, "/cmdadd", body, ANSWER_TIMEOUT);
    match answer.await? {
        (StatusCode::OK, _) => Ok(()),
        (_, reason) => {
            let reason = String::from_utf8_lossy(&reason).trim().to_owned();
            Err(CniError::Refused { reason })
        }
    }
}

fn message(pod: &PodName, netns: &Path, pod_ips: &[IpAddr]) -> String {
    // As Go writes a net.IPNet: the mask in base64, here of a single address.
    let address = |ip: &IpAddr| {
        let mask = if ip.is_ipv4() { "/////w==" } else { "/////////////////////w==" };
        json!({"Address": {"IP": ip, "Mask": mask}})
    };
    json!({
        "Netns": netns,
        "PodName": pod.name,
        "PodNamespace": pod.namespace,
        "IPs": pod_ips.iter().map(address).collect::<Vec<_>>(),
    })
    .to_string()
}
