//! `/metrics`, `/ready` and `/debug/syncz` on the monitoring port.
//!
//! Open to the network like istiod's 15014: nothing here may show more than names, counts and
//! states.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::watch;

use crate::admin::METRICS_TYPE;
use crate::ca::CertificateAuthority;
use crate::http_server::{Answer, Question};
use crate::metrics::Metrics;
use crate::world::World;
use crate::xds_server::Clients;

/// Answers whoever watches the control plane.
pub(crate) struct Monitoring {
    pub(crate) world: Arc<World>,
    /// Not there before the control plane serves.
    pub(crate) authority: Arc<OnceLock<Arc<CertificateAuthority>>>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether the control plane serves proxies, and goes on to.
    pub(crate) serves: watch::Receiver<bool>,
}

impl Monitoring {
    /// Answers one question.
    pub(crate) fn answer(&self, question: &Question) -> Answer {
        match (&question.method, question.path.as_str()) {
            (&Method::GET, "/metrics" | "/stats/prometheus") => {
                self.look_at_authority();
                Answer::text(StatusCode::OK, METRICS_TYPE, self.metrics.text())
            }
            (&Method::GET, "/ready") => {
                let ready = *self.serves.borrow();
                let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                Answer::json(status, &json!({ "ready": ready }))
            }
            (&Method::GET, "/debug/syncz") => {
                let resources = self.world.resources().borrow().clone();
                let clients = self.clients.to_json(&resources);
                Answer::json(StatusCode::OK, &json!({ "clients": clients }))
            }
            _ => {
                let message = "nothing is here; ask for /metrics, /ready or /debug/syncz";
                Answer::error(StatusCode::NOT_FOUND, message)
            }
        }
    }

    fn look_at_authority(&self) {
        let Some(authority) = self.authority.get() else { return };
        let end = authority.signer_not_after().duration_since(SystemTime::UNIX_EPOCH);
        let (_, revoked) = authority.certificates();
        self.metrics.authority(end.unwrap_or_default().as_secs(), revoked.len());
    }
}
