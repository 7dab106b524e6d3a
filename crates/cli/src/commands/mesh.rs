//! Where to ask: a machine's sockets, or a cluster's pods by port-forward.

use ambit_cluster::{Cluster, kubeconfig_file};
use ambit_machine::layout::Layout;
use ambit_machine::ownership::check_state_directory;
use ambit_machine::{Record, RecordError};
use anyhow::{Result, anyhow};
use serde_json::Value;

use super::get::ask;
use crate::args::{KubeArgs, StateArgs};

/// What proxies answered, each with its node.
pub(super) type Answers = Vec<(String, Result<Value>)>;

/// A mesh that can be asked.
pub(super) enum Mesh {
    /// Of a machine that runs, or ran.
    Machine(Layout),
    /// Of a Kubernetes cluster.
    Cluster(Box<Cluster>),
}

/// The mesh that is meant. Without a word a machine is.
pub(super) async fn find(state: &StateArgs, kube: &KubeArgs) -> Result<Mesh> {
    if kube.is_meant() {
        return Ok(Mesh::Cluster(Box::new(Cluster::connect(&kube.choice()).await?)));
    }
    let layout = super::layout(state);
    check_state_directory(layout.root())?;
    match Record::read(&layout) {
        Err(error @ RecordError::NoMachine { .. }) => Err(hinted(error)),
        // Whatever else is wrong with it, whoever uses it says.
        _ => Ok(Mesh::Machine(layout)),
    }
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
    /// Asks control.
    pub(super) async fn control(&self, target: &str) -> Result<Value> {
        match self {
            Self::Machine(layout) => ask(&layout.control_socket(), target).await,
            Self::Cluster(cluster) => Ok(cluster.ask_control(target).await?),
        }
    }

    /// Asks the proxy of every node.
    pub(super) async fn proxies(&self, target: &str) -> Result<Answers> {
        match self {
            Self::Machine(layout) => {
                let mut answers = Answers::new();
                for node in Record::read(layout)?.nodes {
                    let answer = ask(&layout.proxy_admin_socket(&node), target).await;
                    answers.push((node, answer));
                }
                Ok(answers)
            }
            Self::Cluster(cluster) => {
                let answers = cluster.ask_proxies(target).await?.into_iter();
                Ok(answers.map(|(node, answer)| (node, answer.map_err(Into::into))).collect())
            }
        }
    }
}
