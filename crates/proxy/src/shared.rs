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
use crate::metrics::Metrics;
use crate::pods::Pods;

/// What every thread of a worker reads.
pub(crate) struct Shared {
    /// The validated settings.
    pub(crate) config: Config,
    /// The mesh as last received.
    pub(crate) view: ArcSwap<View>,
    /// Bumped after each publication of a view.
    pub(crate) view_changed: watch::Sender<u64>,
    /// Certificates of the enrolled pods, and what is revoked.
    pub(crate) certificates: Certificates,
    /// The pods that this proxy serves.
    pub(crate) pods: ArcSwap<Pods>,
    /// Counters.
    pub(crate) metrics: Metrics,
}

impl Shared {
    /// Publishes a view and wakes whoever waits for one.
    pub(crate) fn publish(&self, view: View) {
        self.view.store(Arc::new(view));
        self.view_changed.send_modify(|version| *version += 1);
    }
}
