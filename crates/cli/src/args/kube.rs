//! The arguments that name a Kubernetes cluster.

use std::path::PathBuf;

use ambit_cluster::Choice;
use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use clap::Args;

/// The arguments below, for groups of a command that a cluster is enough for.
pub(super) const CLUSTER: [&str; 4] = ["kube", "context", "kubeconfig", "mesh_namespace"];

/// Which cluster, in place of a machine. Any of these means one.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "cluster", multiple = true)]
pub(crate) struct KubeArgs {
    /// Uses a Kubernetes cluster: that of the kubeconfig's current context.
    #[arg(long, help_heading = "Kubernetes")]
    kube: bool,
    /// Uses the cluster of this context.
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    context: Option<String>,
    /// The kubeconfig [default: KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of Ambit's parts in the cluster [default: istio-system].
    #[arg(long, value_name = "NAMESPACE", help_heading = "Kubernetes")]
    mesh_namespace: Option<String>,
}

impl KubeArgs {
    /// Whether a cluster is meant.
    pub(crate) fn is_meant(&self) -> bool {
        self.kube
            || self.context.is_some()
            || self.kubeconfig.is_some()
            || self.mesh_namespace.is_some()
    }

    /// Which cluster.
    pub(crate) fn choice(&self) -> Choice {
        let mesh_namespace = self.mesh_namespace.as_deref().unwrap_or(DEFAULT_MESH_NAMESPACE);
        Choice {
            context: self.context.clone(),
            kubeconfig: self.kubeconfig.clone(),
            mesh_namespace: mesh_namespace.to_owned(),
        }
    }
}
