//! What every thread of a worker reads.
//!
//! Every proxy reads the [`Mesh`]; a node proxy adds its settings and its pods. A data-plane thread
//! never waits for the control thread. Nothing here decides anything.

use std::sync::Arc;

use ambit_dataplane::certificates::Certificates;
use ambit_dataplane::demand::Demand;
use ambit_dataplane::mesh::Mesh;
use ambit_net::kernel_path::KernelPath;
use arc_swap::ArcSwap;

use crate::config::Config;
use crate::metrics::NodeMetrics;
use crate::pods::Pods;

/// What every thread of a worker reads.
pub(crate) struct Shared {
    /// The validated settings.
    pub(crate) config: Config,
    /// The current view of the mesh.
    pub(crate) mesh: Arc<Mesh>,
    /// Counters of pods and of DNS; all others are the mesh's.
    pub(crate) metrics: NodeMetrics,
    /// The pods that this proxy serves.
    pub(crate) pods: ArcSwap<Pods>,
    /// What joins two of its pods in the kernel, if anything does.
    pub(crate) kernel_path: Option<KernelPath>,
}

impl Shared {
    /// Nothing known yet.
    pub(crate) fn new(
        config: Config,
        certificates: Certificates,
        demand: Demand,
        kernel_path: Option<KernelPath>,
    ) -> Self {
        let mesh = Arc::new(Mesh::new(config.settings(), certificates, demand));
        let metrics = NodeMetrics::default();
        mesh.metrics.register(|registry| metrics.register(registry));
        metrics.kernel_path(kernel_path.is_some());
        Self { config, mesh, metrics, pods: ArcSwap::default(), kernel_path }
    }
}
