//! Where commands send requests: a machine's sockets, or a cluster's pods by port-forward.

use ambit_cluster::{Cluster, kubeconfig_file};
use ambit_machine::layout::Layout;
use ambit_machine::ownership::check_state_directory;
use ambit_machine::{Record, RecordError};
use ambit_wire::admin::{Explanation, List, Node, Status, control};
use anyhow::{Result, anyhow, bail};
use serde::de::DeserializeOwned;

use super::ask::{self, Role};
use crate::args::{KubeArgs, StateArgs};
use crate::progress::{self, Shown};

/// What proxies answered, each with its node.
pub(super) type Answers<T> = Vec<(String, Result<T>)>;

/// A mesh that can be asked.
pub(super) enum Mesh {
    /// Of a machine that runs, or ran.
    Machine(Layout),
    /// Of a Kubernetes cluster.
    Cluster(Box<Cluster>),
}

/// The mesh that the arguments name; by default a machine.
pub(super) async fn find(state: &StateArgs, kube: &KubeArgs) -> Result<Mesh> {
    if kube.is_meant() {
        let _shown = asking();
        return Ok(Mesh::Cluster(Box::new(Cluster::connect(&kube.choice()).await?)));
    }
    let layout = super::layout(state);
    check_state_directory(layout.root())?;
    match Record::read(&layout) {
        Err(error @ RecordError::NoMachine { .. }) => Err(hinted(error)),
        // Other problems with it are reported where it is used.
        _ => Ok(Mesh::Machine(layout)),
    }
}

/// A part of a cluster is asked over the API server and a port-forward.
fn asking() -> Shown {
    progress::shown("asking the cluster")
}

/// Who runs no machine and has a cluster may have meant that one.
fn hinted(error: RecordError) -> anyhow::Error {
    let variable = |name| std::env::var_os(name);
    let file = kubeconfig_file(variable("KUBECONFIG").as_deref(), variable("HOME").as_deref());
    match file {
        Some(file) => {
            let file = file.display();
            anyhow!("{error}; to ask the Kubernetes cluster of {file}, add --kube")
        }
        None => error.into(),
    }
}

impl Mesh {
    /// How the mesh is, as control sees it.
    pub(super) async fn status(&self) -> Result<Status> {
        match self {
            Self::Machine(_) => self.control(control::STATUS).await,
            Self::Cluster(cluster) => {
                let _shown = asking();
                Ok(cluster.status().await?)
            }
        }
    }

    /// The nodes.
    pub(super) async fn nodes(&self) -> Result<List<Node>> {
        match self {
            Self::Machine(_) => self.control(control::NODES).await,
            Self::Cluster(cluster) => {
                let _shown = asking();
                Ok(cluster.nodes().await?)
            }
        }
    }

    /// What happens to a connection; the target is [`control::WHY`] with its parameters.
    pub(super) async fn why(&self, target: &str) -> Result<Explanation> {
        match self {
            Self::Machine(_) => self.control(target).await,
            Self::Cluster(cluster) => {
                let _shown = asking();
                Ok(cluster.why(target).await?)
            }
        }
    }

    /// Asks control what all its replicas answer alike.
    pub(super) async fn control<T: DeserializeOwned>(&self, target: &str) -> Result<T> {
        match self {
            Self::Machine(layout) => {
                let socket = layout.control_socket();
                if let Ok(Record { workload: Some(workload), .. }) = Record::read(layout) {
                    bail!(
                        "control is in the cluster, at {}; ask it with --kube, where kubectl works",
                        workload.control
                    );
                }
                ask::get(Role { name: "control", socket: &socket }, target).await
            }
            Self::Cluster(cluster) => {
                let _shown = asking();
                Ok(cluster.ask_control(target).await?)
            }
        }
    }

    /// Asks the proxies of all nodes at once.
    pub(super) async fn proxies<T>(&self, target: &str) -> Result<Answers<T>>
    where
        T: DeserializeOwned + Send + 'static,
    {
        match self {
            Self::Machine(layout) => {
                let asked = Record::read(layout)?.nodes.into_iter().map(|node| {
                    let (socket, target) = (layout.proxy_admin_socket(&node), target.to_owned());
                    let answer = tokio::spawn(async move {
                        let name = format!("proxy/{node}");
                        let answer = ask::get(Role { name: &name, socket: &socket }, &target).await;
                        (node, answer)
                    });
                    async { answer.await.expect("a question does not panic") }
                });
                let mut answers = Answers::new();
                for answer in asked.collect::<Vec<_>>() {
                    answers.push(answer.await);
                }
                Ok(answers)
            }
            Self::Cluster(cluster) => {
                let _shown = asking();
                let answers = cluster.ask_proxies(target).await?.into_iter();
                Ok(answers.map(|(node, answer)| (node, answer.map_err(Into::into))).collect())
            }
        }
    }
}
