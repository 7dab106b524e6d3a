//! What every thread of a proxy reads: the current view of the mesh, and what is left of each
//! share.
//!
//! All of it is immutable or behind an atomic pointer: a data-plane thread never waits for the
//! control thread. Nothing here decides anything.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ambit_model::Text;
use ambit_model::view::View;
use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::certificates::Certificates;
use crate::demand::Demand;
use crate::descriptors::Descriptors;
use crate::lately::Lately;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::names::Names;
use crate::settings::Settings;

/// What every thread of a proxy reads.
pub struct Mesh {
    /// What the role has set.
    pub settings: Settings,
    /// The mesh as last received.
    pub view: ArcSwap<View>,
    /// What was in force until a moment ago.
    pub lately: Lately,
    /// Bumped after each publication of a view with which a waypoint may need to know of others.
    pub needs_changed: watch::Sender<u64>,
    /// Bumped after each publication of a view.
    pub(crate) view_changed: watch::Sender<u64>,
    /// Whether the view was ever received completely. No pod is served before.
    pub view_complete: watch::Sender<bool>,
    /// Why the control plane does not answer; nothing while it does, and before the first attempt.
    pub control_plane_away: ArcSwapOption<Text>,
    /// Control has said that whom this proxy serves is none of the mesh any more: of a workload
    /// outside of the cluster, whose description it does not take back before it ends the stream.
    pub disowned: Arc<AtomicBool>,
    /// Asks the control plane for an address before a plan is made, where not all are known.
    pub demand: Demand,
    /// Certificates of the workloads that this proxy acts for, and revocations.
    pub certificates: Certificates,
    /// The addresses of endpoints that are names.
    pub names: Names,
    /// Who may hold how much.
    pub memory: Memory,
    /// Counters.
    pub metrics: Metrics,
    /// Who may have how many descriptors.
    pub descriptors: Arc<Descriptors>,
}

impl Mesh {
    /// Nothing known yet.
    pub fn new(settings: Settings, certificates: Certificates, demand: Demand) -> Self {
        let (resolvers, mark) = (settings.resolvers.clone(), settings.sockets.mark);
        Self {
            view: ArcSwap::default(),
            lately: Lately::default(),
            needs_changed: watch::Sender::new(0),
            view_changed: watch::Sender::new(0),
            view_complete: watch::Sender::new(false),
            control_plane_away: ArcSwapOption::empty(),
            disowned: Arc::default(),
            names: Names::new(resolvers, mark, !demand.is_needed()),
            demand,
            certificates,
            memory: Memory::new(settings.memory),
            metrics: Metrics::new(settings.component),
            descriptors: Descriptors::of_this_process(settings.threads),
            settings,
        }
    }

    /// Publishes a view and wakes all tasks that wait for one.
    pub fn publish(&self, view: View) {
        // Half a view allows what the other half forbids.
        if *self.view_complete.borrow() {
            // Before it is replaced: whoever misses something in the new one looks there.
            self.lately.keep(self.view.load_full());
        }
        self.view.store(Arc::new(view));
        self.view_changed.send_modify(|version| *version += 1);
    }
}
