//! What every thread of a worker reads.
//!
//! All of it is immutable or behind an atomic pointer: a data-plane thread never waits for the
//! control thread. Nothing here decides anything.

use std::sync::Arc;

use ambit_model::view::View;
use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::certificates::Certificates;
use crate::config::Config;
use crate::descriptors::Descriptors;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::pods::Pods;
use crate::views::Demand;

/// What every thread of a worker reads.
pub(crate) struct Shared {
    /// The validated settings.
    pub(crate) config: Config,
    /// The mesh as last received.
    pub(crate) view: ArcSwap<View>,
    /// Bumped after each publication of a view.
    pub(crate) view_changed: watch::Sender<u64>,
    /// Whether the view was ever received as a whole. No pod is served before.
    pub(crate) view_complete: watch::Sender<bool>,
    /// Asks the control plane for an address before a plan is made, where not all are known.
    pub(crate) demand: Demand,
    /// Certificates of the enrolled pods, and what is revoked.
    pub(crate) certificates: Certificates,
    /// The pods that this proxy serves.
    pub(crate) pods: ArcSwap<Pods>,
    /// Who may hold how much.
    pub(crate) memory: Memory,
    /// Counters.
    pub(crate) metrics: Metrics,
    /// Who may have how many descriptors.
    pub(crate) descriptors: Arc<Descriptors>,
}

impl Shared {
    /// Nothing known yet.
    pub(crate) fn new(config: Config, certificates: Certificates, demand: Demand) -> Self {
        let descriptors = Descriptors::of_this_process(config.worker_threads);
        Self {
            memory: Memory::new(config.memory),
            config,
            view: ArcSwap::default(),
            view_changed: watch::Sender::new(0),
            view_complete: watch::Sender::new(false),
            demand,
            certificates,
            pods: ArcSwap::default(),
            metrics: Metrics::default(),
            descriptors,
        }
    }

    /// Publishes a view and wakes whoever waits for one.
    pub(crate) fn publish(&self, view: View) {
        self.view.store(Arc::new(view));
        self.view_changed.send_modify(|version| *version += 1);
    }
}
