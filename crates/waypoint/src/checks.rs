//! What authorization services answer: metrics, and the lines of those on trial.

use ambit_http::engine::position::{Arrival, Trial};
use ambit_http::engine::record::{Checked, CheckedAs};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// A provider is one of the mesh configuration, so there are few.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    provider: String,
    outcome: &'static str,
    dry_run: &'static str,
}

/// Counters of questions to authorization services.
#[derive(Default)]
pub(crate) struct Checks(Family<Labels, Counter>);

impl Checks {
    /// Shows them.
    pub(crate) fn register(&self, into: &mut Registry) {
        let help = "Questions to authorization services, by what they have answered";
        into.register("ambit_ext_authz_checks", help, self.0.clone());
    }

    /// Counts those of a request.
    pub(crate) fn count(&self, checks: &[Checked]) {
        for Checked { provider, outcome } in checks {
            self.add(provider, *outcome, "false");
        }
    }

    fn add(&self, provider: &str, outcome: CheckedAs, dry_run: &'static str) {
        let (provider, outcome) = (provider.to_owned(), outcome.as_str());
        self.0.get_or_create(&Labels { provider, outcome, dry_run }).inc();
    }

    /// Counts one of a policy on trial, and writes what would have become of the request.
    pub(crate) fn trial(&self, arrival: &Arrival, trial: &Trial<'_>) {
        self.add(&trial.custom.provider, trial.outcome, "true");
        if trial.outcome == CheckedAs::Allowed {
            return;
        }
        let request_id = trial.head.values("x-request-id").next();
        tracing::event!(
            target: "access",
            tracing::Level::INFO,
            policy = %trial.custom.rule,
            provider = &*trial.custom.provider,
            method = trial.head.method().as_str(),
            path = trial.head.path().map(ambit_http::Path::as_str),
            request_id = request_id.map(|it| String::from_utf8_lossy(it).into_owned()),
            src.addr = %arrival.client,
            src.identity = arrival.source.identity().map(tracing::field::display),
            dst.addr = %arrival.destination,
            details = trial.details,
            "dry run: this request would be denied"
        );
    }
}
