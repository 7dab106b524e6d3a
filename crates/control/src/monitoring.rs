//! `/metrics` and `/ready` on the monitoring port; `/ready` and `/live` for probes on loopback.
//!
//! The port is open to the network like istiod's 15014: nothing here may show more than counts and
//! states, and nothing that must be answered may depend on it.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use ambit_words::exposition::{self, METRICS_PATH};
use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::watch;

use crate::ca::CertificateAuthority;
use crate::http_server::{Answer, Question};
use crate::metrics::Metrics;

/// The metric for a problem in what replicas share; the administration API says which.
const SHARED_PROBLEM: &str = "what replicas share of the authority; see the log, or GET /status";

/// Answers the monitoring of the control plane.
pub(crate) struct Monitoring {
    /// Not there before the control plane serves.
    pub(crate) authority: Arc<OnceLock<Arc<CertificateAuthority>>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether the control plane serves proxies, and will continue to.
    pub(crate) serves: watch::Receiver<bool>,
}

impl Monitoring {
    /// Answers one question.
    pub(crate) fn answer(&self, question: &Question) -> Answer {
        match (&question.method, question.path.as_str()) {
            (&Method::GET, METRICS_PATH | "/stats/prometheus") => {
                self.look_at_authority();
                let accept = question.accept.as_deref();
                let (content_type, text) = exposition::answer(accept, self.metrics.text());
                Answer::text(StatusCode::OK, content_type, text)
            }
            (&Method::GET, "/ready") => {
                let ready = *self.serves.borrow();
                let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                let mut told = json!({ "ready": ready });
                if self.authority.get().is_some_and(|it| it.problem().is_some()) {
                    told["problem"] = json!(SHARED_PROBLEM);
                }
                Answer::json(status, &told)
            }
            (&Method::GET, "/debug/syncz") => {
                let message = "this port shows no names; ask the administration API";
                Answer::error(StatusCode::NOT_FOUND, message)
            }
            _ => {
                let message = "nothing at this path; ask for /metrics or /ready";
                Answer::error(StatusCode::NOT_FOUND, message)
            }
        }
    }

    /// Answers a probe from this machine; nothing when it is another question.
    pub(crate) fn probe(&self, question: &Question) -> Option<Answer> {
        match (&question.method, question.path.as_str()) {
            (&Method::GET, "/ready") => Some(self.answer(question)),
            // That it answers is the answer.
            (&Method::GET, "/live") => Some(Answer::json(StatusCode::OK, &json!({ "live": true }))),
            _ => None,
        }
    }

    fn look_at_authority(&self) {
        let Some(authority) = self.authority.get() else { return };
        let end = authority.signer_not_after().duration_since(SystemTime::UNIX_EPOCH);
        let (_, revoked) = authority.certificates();
        self.metrics.authority(end.unwrap_or_default().as_secs(), revoked.len());
    }
}
