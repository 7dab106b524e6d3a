//! What all threads of a waypoint share.

use std::sync::Arc;

use ambit_dataplane::mesh::Mesh;
use ambit_dataplane::own::OwnWorkload;
use ambit_http::engine::rate_limit::buckets::Buckets;
use tokio::sync::watch;

use crate::checks::Checks;
use crate::config::Config;
use crate::reports::Reports;
use crate::telemetry::Requests;

/// What all threads share.
pub(crate) struct Shared {
    /// The settings.
    pub(crate) config: Config,
    /// The view, certificates and counters.
    pub(crate) mesh: Arc<Mesh>,
    /// The waypoint itself.
    pub(crate) own: Arc<OwnWorkload>,
    /// Counters of requests.
    pub(crate) requests: Requests,
    /// Counters of questions to authorization services.
    pub(crate) checks: Checks,
    /// Who is told of requests.
    pub(crate) reports: Reports,
    /// The counts of limits.
    pub(crate) buckets: Buckets,
    /// Whether it is to end: no new connection is taken.
    pub(crate) stopping: watch::Sender<bool>,
}
