//! Request metrics with Istio's names, labels and buckets.
//!
//! What a client chooses becomes a label only where a Telemetry asks for it. Label sets are bounded
//! all the same (`labels`): beyond the bound requests count for unknown clients. A thread remembers
//! the series of what it has counted before (`series`), so that the next request like it makes no
//! label.

mod labels;
mod series;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::Record;
use ambit_model::http::telemetry::{Metric, MetricChange, MetricChanges};
use ambit_model::service::Service;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use labels::{Bounded, Labels};
pub(crate) use series::Remembered;
use series::Series;

use crate::access_log::Entry;

/// Istio's buckets, of milliseconds and of bytes alike.
const BUCKETS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Limits that are told apart.
const MAX_LIMITS: usize = 2_000;

#[derive(Clone, Debug)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    /// The TrafficPolicy, `NAMESPACE/NAME`.
    policy: String,
    /// The name of the limit.
    rule: String,
    /// What became of requests there.
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

type Histograms = Bounded<Histogram, Buckets>;

/// Counters of requests.
pub(crate) struct Requests {
    total: Bounded<Counter>,
    request_messages: Bounded<Counter>,
    response_messages: Bounded<Counter>,
    rate_limited: Family<LimitLabels, Counter>,
    limits: AtomicUsize,
    duration: Histograms,
    received: Histograms,
    sent: Histograms,
    cuts: Family<ReasonLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
}

impl Default for Requests {
    fn default() -> Self {
        let counters = || Bounded::new(Counter::default as fn() -> Counter);
        let histograms = || Bounded::new(Buckets);
        Self {
            total: counters(),
            request_messages: counters(),
            response_messages: counters(),
            rate_limited: Family::default(),
            limits: AtomicUsize::new(0),
            duration: histograms(),
            received: histograms(),
            sent: histograms(),
            cuts: Family::default(),
            refused: Family::default(),
        }
    }
}

impl Requests {
    /// Shows them.
    pub(crate) fn register(&self, into: &mut Registry) {
        into.register("istio_requests", "Requests", self.total.family());
        let help = "Messages of gRPC that clients have sent";
        into.register("istio_request_messages", help, self.request_messages.family());
        let help = "Messages of gRPC that clients were sent";
        into.register("istio_response_messages", help, self.response_messages.family());
        let help =
            "Requests that reached a limit of a TrafficPolicy, or that its service did not count";
        into.register("ambit_rate_limited", help, self.rate_limited.clone());
        let help = "Connections of HTTP/2 that were cut because of their clients, by reason";
        into.register("ambit_http_cuts", help, self.cuts.clone());
        let help = "Connections that were refused because there is too much, by reason";
        into.register("ambit_http_refused_connections", help, self.refused.clone());
        let mut histogram = |name: &str, help: &str, unit, it: &Histograms| {
            into.register_with_unit(name, help, unit, it.family());
        };
        let milliseconds = || Unit::Other("milliseconds".to_owned());
        let help = "From a request's head to the end of its response";
        histogram("istio_request_duration", help, milliseconds(), &self.duration);
        histogram("istio_request", "Bodies of requests", Unit::Bytes, &self.received);
        histogram("istio_response", "Bodies of responses", Unit::Bytes, &self.sent);
    }

    /// Counts a connection of a client that did too much.
    pub(crate) fn cut(&self, reason: &'static str) {
        self.cuts.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Counts a connection that was refused because there is too much of something.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Counts a request, with what a Telemetry changes of metrics.
    pub(crate) fn count(
        &self,
        remembered: &mut Remembered,
        arrival: &Arrival,
        record: &Record,
        service: Option<&Arc<Service>>,
        changes: Option<&Arc<MetricChanges>>,
        entry: &Entry<'_>,
    ) {
        let series = || {
            let labels = Labels::of(arrival, record, service.map(|it| &**it));
            self.series(labels, entry, record.is_grpc, changes.map(|it| &**it))
        };
        let values = labels::values(changes.map(|it| &**it), entry);
        remembered.count(arrival, record, service, (changes, values), series);
        self.count_limits(record);
    }

    /// The series of a request with these labels.
    fn series(
        &self,
        labels: Labels,
        entry: &Entry<'_>,
        is_grpc: bool,
        changes: Option<&MetricChanges>,
    ) -> Series {
        let change = |metric| changes.and_then(|it| it.get(&metric));
        let shown = |metric| match change(metric) {
            None => Some(labels.clone()),
            Some(MetricChange { is_off: true, .. }) => None,
            Some(change) => Some(labels.clone().changed(&change.labels, entry)),
        };
        let of_grpc = |metric| shown(metric).filter(|_| is_grpc);
        let messages = &self.request_messages;
        Series {
            total: shown(Metric::RequestCount).map(|it| self.total.find(it)),
            duration: shown(Metric::RequestDuration).map(|it| self.duration.find(it)),
            received: shown(Metric::RequestSize).map(|it| self.received.find(it)),
            sent: shown(Metric::ResponseSize).map(|it| self.sent.find(it)),
            requests: of_grpc(Metric::RequestMessages).map(|it| messages.find(it)),
            responses: of_grpc(Metric::ResponseMessages).map(|it| self.response_messages.find(it)),
        }
    }
}

impl Requests {
    fn count_limits(&self, record: &Record) {
        for reached in &record.limits {
            let labels = LimitLabels {
                policy: reached.policy.to_string(),
                rule: reached.limit.to_string(),
                outcome: reached.outcome.as_str(),
            };
            // What was deleted long ago is still there: names do not grow without end.
            let is_known = self.rate_limited.get(&labels).is_some();
            if is_known || self.limits.fetch_add(1, Ordering::Relaxed) < MAX_LIMITS {
                self.rate_limited.get_or_create(&labels).inc();
            } else {
                let other = || "other".to_owned();
                let other = LimitLabels { policy: other(), rule: other(), ..labels };
                self.rate_limited.get_or_create(&other).inc();
            }
        }
    }
}

#[cfg(test)]
mod tests;
