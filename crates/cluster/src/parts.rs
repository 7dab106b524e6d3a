//! Where Ambit's parts run in a cluster, and their logs.

use std::fmt;

use ambit_words::names::{CONTROL, PROXY};
use ambit_words::ports;
use futures::{AsyncBufReadExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{ClusterError, Form, told};
use crate::json::{is_ready, items, name, namespace, owner, text};

/// The DaemonSet of the node agent.
pub(crate) const AGENT: &str = "istio-cni-node";
/// The roles that our image is started in, each in the place of one of Istio's parts.
pub(crate) const ROLES: [(&str, &str); 3] =
    [(CONTROL, "control"), (PROXY, "proxy"), (AGENT, "node")];
/// Proxies that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;

/// Whether a Deployment or DaemonSet runs our image, whatever a mirror has called it.
pub(crate) fn is_ours(part: &Value) -> bool {
    let role = ROLES.iter().find(|(of, _)| *of == name(part)).map(|(_, role)| *role);
    items(part, "/spec/template/spec/containers").any(|container| {
        let image = text(container, "/image").rsplit('/').next().unwrap_or_default();
        let is_named = image.split([':', '@']).next() == Some("ambit");
        is_named
            || items(container, "/args").next().and_then(Value::as_str) == role && role.is_some()
    })
}

/// A pod's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodName {
    pub(crate) fn of(pod: &Value) -> Self {
        Self { namespace: namespace(pod).to_owned(), name: name(pod).to_owned() }
    }
}

/// A node's proxy. While one takes another's place, a node has two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its node.
    pub node: String,
    /// Its pod.
    pub pod: PodName,
}

/// Whose log is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The control plane's: that of its first ready replica.
    Control,
    /// A node's proxy.
    Proxy(String),
    /// A node's agent.
    Agent(String),
    /// Any pod.
    Pod(PodName),
}

impl crate::Cluster {
    pub(crate) async fn mesh_pods(&self) -> Result<Vec<Value>, ClusterError> {
        let path = format!("/api/v1/namespaces/{}/pods", self.mesh_namespace());
        self.list(&path, Form::Whole, |_| {}).await
    }

    /// The pods of control that are ready.
    pub(crate) async fn control_pods(&self) -> Result<Vec<PodName>, ClusterError> {
        let pods = self.mesh_pods().await?;
        let found: Vec<PodName> =
            pods.iter().filter(|pod| is_control(pod) && is_ready(pod)).map(PodName::of).collect();
        if found.is_empty() {
            let remedy = if pods.iter().any(is_control) {
                "none of its pods is ready, see `ambit check`"
            } else {
                "install the chart, or name its namespace with --mesh-namespace"
            };
            return Err(self.missing("ready control plane (app=istiod)", remedy));
        }
        Ok(found)
    }

    /// The proxies that run, by node.
    pub async fn proxies(&self) -> Result<Vec<Proxy>, ClusterError> {
        let found = proxies(&self.mesh_pods().await?);
        if found.is_empty() {
            return Err(self.missing(
                "running node proxy (app=ztunnel)",
                "install the chart, or name its namespace with --mesh-namespace",
            ));
        }
        Ok(found)
    }

    /// Asks every node's proxy, several at a time; the answers are in the order of the nodes.
    pub async fn ask_proxies<T: DeserializeOwned>(
        &self,
        target: &str,
    ) -> Result<Vec<(String, Result<T, ClusterError>)>, ClusterError> {
        Ok(self.ask_each(self.proxies().await?, target).await)
    }

    pub(crate) async fn ask_each<T: DeserializeOwned>(
        &self,
        proxies: Vec<Proxy>,
        target: &str,
    ) -> Vec<(String, Result<T, ClusterError>)> {
        let asked = proxies.into_iter().map(|proxy| async move {
            let answer = self.ask(&proxy.pod, ports::PROXY_ADMIN, target).await;
            (proxy.node, answer)
        });
        futures::stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await
    }

    /// Hands the log of a part on, line by line, until it ends or `line` wants no more.
    pub async fn logs(
        &self,
        part: &Part,
        container: Option<&str>,
        follow: bool,
        mut line: impl FnMut(&str) -> bool,
    ) -> Result<(), ClusterError> {
        let pod = self.pod_of(part).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let container = container.map(str::to_owned);
        let wanted = LogParams { follow, container, ..LogParams::default() };
        let what = format!("the log of {pod}");
        let log = pods.log_stream(&pod.name, &wanted).await;
        let mut lines = log.map_err(|error| told(what.clone(), error))?.lines();
        while let Some(next) = lines.next().await {
            let next = next.map_err(|error| ClusterError::Answer {
                what: what.clone(),
                message: error.to_string(),
            })?;
            if !line(&next) {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn pod_of(&self, part: &Part) -> Result<PodName, ClusterError> {
        let (daemon_set, node) = match part {
            Part::Pod(pod) => return Ok(pod.clone()),
            // A replica that is not ready is the one whose log is wanted most.
            Part::Control => {
                let pods = self.mesh_pods().await?;
                let found =
                    pods.iter().filter(|pod| is_control(pod)).max_by_key(|pod| is_ready(pod));
                return found.map(PodName::of).ok_or_else(|| {
                    self.missing("control plane (app=istiod)", "see --mesh-namespace")
                });
            }
            Part::Proxy(node) => (PROXY, node),
            Part::Agent(node) => (AGENT, node),
        };
        let pods = self.mesh_pods().await?;
        let mut of_node = pods.iter().filter(|pod| {
            owner(pod, "DaemonSet") == Some(daemon_set) && text(pod, "/spec/nodeName") == node
        });
        let found = of_node.by_ref().max_by_key(|pod| text(pod, "/metadata/creationTimestamp"));
        found.map(PodName::of).ok_or_else(|| {
            self.missing(&format!("pod of {daemon_set} on node {node}"), "see `ambit get nodes`")
        })
    }

    fn missing(&self, what: &str, remedy: &str) -> ClusterError {
        ClusterError::NoPart {
            namespace: self.mesh_namespace().to_owned(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

/// Whether a pod is a replica of control.
pub(crate) fn is_control(pod: &Value) -> bool {
    crate::json::label(pod, "app") == Some(CONTROL)
}

/// The proxies that run among the pods of the mesh's namespace, by node.
pub(crate) fn proxies(pods: &[Value]) -> Vec<Proxy> {
    let runs = |pod: &&Value| {
        crate::json::label(pod, "app") == Some(PROXY) && text(pod, "/status/phase") == "Running"
    };
    let proxy =
        |pod: &Value| Proxy { node: text(pod, "/spec/nodeName").to_owned(), pod: PodName::of(pod) };
    let mut found: Vec<Proxy> = pods.iter().filter(runs).map(proxy).collect();
    found.sort_by(|a, b| (&a.node, &a.pod.name).cmp(&(&b.node, &b.pod.name)));
    found
}
