//! What all threads of a waypoint share.

use std::sync::Arc;

use ambit_dataplane::mesh::Mesh;
use ambit_dataplane::own::OwnWorkload;
use ambit_http::engine::rate_limit::buckets::Buckets;
use ambit_model::authorize::Source;
use tokio::sync::watch;

use crate::checks::Checks;
use crate::clients::Clients;
use crate::config::Config;
use crate::exports::Queue;
use crate::load::Load;
use crate::reports::Reports;
use crate::telemetry::Requests;
use crate::wellness::Wellness;

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
    /// Connections of each client.
    pub(crate) clients: Clients,
    /// Which endpoints get no requests.
    pub(crate) wellness: Arc<Wellness>,
    /// Whether it is to end: no new connection is taken.
    pub(crate) stopping: watch::Sender<bool>,
}

impl Shared {
    /// What a waypoint begins with; its counters are among the metrics from now on.
    pub(crate) fn new(
        config: Config,
        mesh: Arc<Mesh>,
        own: Arc<OwnWorkload>,
        exports: Queue,
    ) -> Self {
        let (requests, checks) = (Requests::default(), Checks::default());
        let wellness = Arc::new(Wellness::default());
        let load = Load::new(config.engine.pressure.clone(), wellness.clone());
        mesh.metrics.register(|registry| {
            requests.register(registry);
            checks.register(registry);
            exports.register(registry);
            load.register(registry);
        });
        let reports = Reports::new(config.reports.clone(), config.names(&own.identity), exports);
        let clients = Clients::new(config.max_client_connections);
        Self {
            config,
            mesh,
            own,
            requests,
            checks,
            reports,
            buckets: Buckets::default(),
            clients,
            wellness,
            stopping: watch::Sender::new(false),
        }
    }

    /// This pod, as others judge it.
    pub(crate) fn own_source(&self) -> Source {
        Source::new(Some(self.own.identity.clone()), self.config.instance)
    }
}
