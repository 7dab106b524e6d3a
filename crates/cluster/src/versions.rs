//! Which version each part in a cluster has, by the metrics in which it says so.

use ambit_words::exposition::build_tag;
use ambit_words::labels::{GATEWAY_MANAGED, GATEWAY_NAME};
use ambit_words::names::PROXY;
use ambit_words::ports;
use futures::StreamExt;
use serde_json::Value;

use crate::api::{ClusterError, Form};
use crate::json::{label, name, namespace, owner, text};
use crate::parts::{AGENT, PodName, is_control};

/// Parts that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;

/// One part of the mesh, and its version.
#[derive(Debug)]
pub struct PartVersion {
    /// What it is: `control`, `node`, `proxy` or `waypoint`.
    pub part: &'static str,
    /// Its node if it has one on each, or else its pod.
    pub name: String,
    /// Its version; nothing if it does not say.
    pub version: Result<Option<String>, ClusterError>,
}

/// A part, and the port with its metrics.
#[derive(Debug, PartialEq)]
struct Asked {
    part: &'static str,
    name: String,
    pod: PodName,
    port: u16,
}

impl crate::Cluster {
    /// The version of each part that runs.
    pub async fn versions(&self) -> Result<Vec<PartVersion>, ClusterError> {
        let waypoints = format!("/api/v1/pods?labelSelector={GATEWAY_NAME}");
        let mut pods = self.mesh_pods().await?;
        pods.extend(self.list(&waypoints, Form::Whole, |_| {}).await?);
        let mut found: Vec<Asked> = pods.iter().filter_map(asked).collect();
        found.sort_by(|a, b| (a.part, &a.name, &a.pod.name).cmp(&(b.part, &b.name, &b.pod.name)));
        found.dedup();
        let versions = found.into_iter().map(|Asked { part, name, pod, port }| async move {
            let metrics = self.metrics_at(&pod, port).await;
            let version = metrics.map(|text| build_tag(&text).map(str::to_owned));
            PartVersion { part, name, version }
        });
        Ok(futures::stream::iter(versions).buffered(ASKED_AT_ONCE).collect().await)
    }
}

/// Which part a pod is; `None` if it is none, or does not run.
fn asked(pod: &Value) -> Option<Asked> {
    if text(pod, "/status/phase") != "Running" {
        return None;
    }
    let of_node = || text(pod, "/spec/nodeName").to_owned();
    let (part, name, port) = if label(pod, GATEWAY_NAME).is_some() {
        label(pod, GATEWAY_MANAGED)?;
        ("waypoint", format!("{}/{}", namespace(pod), name(pod)), ports::PROXY_METRICS)
    } else if is_control(pod) {
        ("control", name(pod).to_owned(), ports::CONTROL_MONITORING)
    } else if label(pod, "app") == Some(PROXY) {
        ("proxy", of_node(), ports::PROXY_METRICS)
    } else if owner(pod, "DaemonSet") == Some(AGENT) {
        ("node", of_node(), ports::NODE_MONITORING)
    } else {
        return None;
    };
    Some(Asked { part, name, pod: PodName::of(pod), port })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_are_told_from_other_pods() {
        let pod = |labels: Value, owner: &str, phase: &str| {
            json!({
                "metadata": {
                    "name": "p", "namespace": "mesh", "labels": labels,
                    "ownerReferences": [{"kind": "DaemonSet", "name": owner}],
                },
                "spec": {"nodeName": "n1"},
                "status": {"phase": phase},
            })
        };
        let gateway = json!({GATEWAY_NAME: "wp", GATEWAY_MANAGED: "controller"});
        for (labels, owner, phase, expected) in [
            (json!({"app": "istiod"}), "", "Running", Some(("control", "p", 15014))),
            (json!({"app": "istiod"}), "", "Pending", None),
            (json!({"app": "ztunnel"}), "ztunnel", "Running", Some(("proxy", "n1", 15020))),
            (json!({}), AGENT, "Running", Some(("node", "n1", 8000))),
            (gateway, "", "Running", Some(("waypoint", "mesh/p", 15020))),
            (json!({GATEWAY_NAME: "wp"}), "", "Running", None),
            (json!({"app": "kiali"}), "other", "Running", None),
        ] {
            let found = asked(&pod(labels, owner, phase));
            let found = found.as_ref().map(|it| (it.part, &*it.name, it.port));
            assert_eq!(found, expected);
        }
    }
}
