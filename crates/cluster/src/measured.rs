//! Where the mesh can be measured: the nodes that take pods, and the image of the node proxies.

use ambit_words::names::{ISTIO_PROXY, PROXY};
use serde_json::Value;

use crate::api::{ClusterError, Form};
use crate::json::{condition, items, name, text};
use crate::workloads::{LiveNode, sort};

/// What a proxy's container is called.
pub const PROXY_CONTAINER: &str = ISTIO_PROXY;

/// A node that takes pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyNode {
    /// Its name.
    pub name: String,
    /// What it is.
    pub sort: LiveNode,
    /// Of its processors, such as `amd64`.
    pub architecture: String,
    /// Linux release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// The kubelet's version.
    pub kubelet: String,
}

impl crate::Cluster {
    /// The nodes that are ready and take any pod, by name.
    pub async fn ready_nodes(&self) -> Result<Vec<ReadyNode>, ClusterError> {
        let nodes = self.list("/api/v1/nodes", Form::Whole, |_| {}).await?;
        let mut ready: Vec<ReadyNode> = nodes.iter().filter(takes_any).map(ReadyNode::of).collect();
        ready.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ready)
    }

    /// The image that the DaemonSet of the node proxies runs.
    pub async fn proxy_image(&self) -> Result<String, ClusterError> {
        let namespace = self.mesh_namespace();
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{PROXY}");
        let set = match self.read(&path).await {
            Err(ClusterError::Absent(_)) => Value::Null,
            set => set?,
        };
        image(&set).ok_or_else(|| ClusterError::NoPart {
            namespace: namespace.to_owned(),
            what: format!("DaemonSet {PROXY} with a container {PROXY_CONTAINER}"),
            remedy: "install the chart, or name its namespace with --mesh-namespace".to_owned(),
        })
    }
}

impl ReadyNode {
    fn of(node: &Value) -> Self {
        let info = |field: &str| text(node, &format!("/status/nodeInfo/{field}")).to_owned();
        Self {
            name: name(node).to_owned(),
            sort: sort(node),
            architecture: info("architecture"),
            kernel: info("kernelVersion"),
            system: info("osImage"),
            kubelet: info("kubeletVersion"),
        }
    }
}

/// Whether a pod that asks for nothing special may run there.
fn takes_any(node: &&Value) -> bool {
    let keeps_out = |taint: &Value| taint["effect"] != "PreferNoSchedule";
    condition(node, "Ready").is_some_and(|it| it["status"] == "True")
        && node["spec"]["unschedulable"] != true
        && text(node, "/status/nodeInfo/operatingSystem") != "windows"
        && !items(node, "/spec/taints").any(keeps_out)
}

fn image(set: &Value) -> Option<String> {
    let mut containers = items(set, "/spec/template/spec/containers");
    let container = containers.find(|it| text(it, "/name") == PROXY_CONTAINER)?;
    Some(text(container, "/image").to_owned()).filter(|image| !image.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_takes_pods_unless_something_keeps_them_out() {
        let check = |ready: &str, spec: Value, expected: bool| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let node = json!({"spec": spec, "status": {"conditions": conditions}});
            assert_eq!(takes_any(&&node), expected, "{node}");
        };
        check("True", json!({}), true);
        check("Unknown", json!({}), false);
        check("True", json!({"unschedulable": true}), false);
        check("True", json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), true);
        check("True", json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}), false);
    }

    #[test]
    fn the_proxies_image_is_that_of_their_container() {
        let containers = json!([{"name": "other", "image": "x"},
            {"name": PROXY_CONTAINER, "image": "ambit:1"}]);
        let set = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        assert_eq!(image(&set).as_deref(), Some("ambit:1"));
        assert_eq!(image(&Value::Null), None);
    }
}
