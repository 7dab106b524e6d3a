//! Request metrics with Istio's names, labels and buckets.
//!
//! What a client chooses never becomes a label. Label sets are bounded all the same: beyond the
//! bound requests count for unknown clients. A thread remembers the series of what it has counted
//! before (`series`), so that the next request like it makes no label.

mod series;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::Record;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_words::names::UNKNOWN_LABEL;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use series::Remembered;
use series::Series;

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
/// Label sets that are told apart.
const MAX_LABEL_SETS: usize = 20_000;
/// Limits that are told apart.
const MAX_LIMITS: usize = 2_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reporter: &'static str,
    source_workload: String,
    source_canonical_service: String,
    source_canonical_revision: String,
    source_workload_namespace: String,
    source_principal: String,
    source_app: String,
    source_version: String,
    source_cluster: String,
    destination_workload: String,
    destination_workload_namespace: String,
    destination_principal: String,
    destination_app: String,
    destination_version: String,
    destination_service: String,
    destination_canonical_service: String,
    destination_canonical_revision: String,
    destination_service_name: String,
    destination_service_namespace: String,
    destination_cluster: String,
    request_protocol: &'static str,
    response_code: u16,
    grpc_response_status: String,
    response_flags: &'static str,
    connection_security_policy: &'static str,
}

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    /// The TrafficPolicy, `NAMESPACE/NAME`.
    policy: String,
    /// The name of the limit.
    rule: String,
    /// Whether requests were refused for it.
    enforced: &'static str,
}

#[derive(Clone, Debug)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

type Histograms = Family<Labels, Histogram, Buckets>;

/// Counters of requests.
pub(crate) struct Requests {
    total: Family<Labels, Counter>,
    request_messages: Family<Labels, Counter>,
    response_messages: Family<Labels, Counter>,
    rate_limited: Family<LimitLabels, Counter>,
    limits: AtomicUsize,
    duration: Histograms,
    received: Histograms,
    sent: Histograms,
    sets: AtomicUsize,
}

impl Default for Requests {
    fn default() -> Self {
        let histograms = || Family::new_with_constructor(Buckets);
        Self {
            total: Family::default(),
            request_messages: Family::default(),
            response_messages: Family::default(),
            rate_limited: Family::default(),
            limits: AtomicUsize::new(0),
            duration: histograms(),
            received: histograms(),
            sent: histograms(),
            sets: AtomicUsize::new(0),
        }
    }
}

impl Requests {
    /// Shows them.
    pub(crate) fn register(&self, into: &mut Registry) {
        into.register("istio_requests", "Requests", self.total.clone());
        let help = "Messages of gRPC that clients have sent";
        into.register("istio_request_messages", help, self.request_messages.clone());
        let help = "Messages of gRPC that clients were sent";
        into.register("istio_response_messages", help, self.response_messages.clone());
        let help = "Requests for which a limit of a TrafficPolicy was reached";
        into.register("ambit_rate_limited", help, self.rate_limited.clone());
        let mut histogram = |name: &str, help: &str, unit, it: &Histograms| {
            into.register_with_unit(name, help, unit, it.clone());
        };
        let milliseconds = || Unit::Other("milliseconds".to_owned());
        let help = "From a request's head to the end of its response";
        histogram("istio_request_duration", help, milliseconds(), &self.duration);
        histogram("istio_request", "Bodies of requests", Unit::Bytes, &self.received);
        histogram("istio_response", "Bodies of responses", Unit::Bytes, &self.sent);
    }

    /// Counts a request.
    pub(crate) fn count(
        &self,
        remembered: &mut Remembered,
        arrival: &Arrival,
        record: &Record,
        service: Option<&Arc<Service>>,
    ) {
        let series = || self.series(arrival, record, service.map(|it| &**it));
        remembered.count(arrival, record, service, series);
        self.count_limits(record);
    }

    /// The series of a request like this one.
    fn series(&self, arrival: &Arrival, record: &Record, service: Option<&Service>) -> Series {
        let mut labels = labels(arrival, record, service);
        // Reading alone takes no lock for writing; most label sets are there.
        if self.total.get(&labels).is_none() {
            if self.sets.load(Ordering::Relaxed) >= MAX_LABEL_SETS {
                labels = labels.of_unknown_client();
            } else {
                self.sets.fetch_add(1, Ordering::Relaxed);
            }
        }
        let messages = || {
            let request = self.request_messages.get_or_create(&labels).clone();
            (request, self.response_messages.get_or_create(&labels).clone())
        };
        Series {
            total: self.total.get_or_create(&labels).clone(),
            duration: self.duration.get_or_create(&labels).clone(),
            received: self.received.get_or_create(&labels).clone(),
            sent: self.sent.get_or_create(&labels).clone(),
            messages: record.is_grpc.then(messages),
        }
    }
}

impl Requests {
    fn count_limits(&self, record: &Record) {
        for reached in &record.limits {
            let labels = LimitLabels {
                policy: reached.policy.to_string(),
                rule: reached.limit.to_string(),
                enforced: if reached.is_enforced { "true" } else { "false" },
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

impl Labels {
    fn of_unknown_client(self) -> Self {
        let unknown = || UNKNOWN_LABEL.to_owned();
        Self {
            source_workload: unknown(),
            source_canonical_service: unknown(),
            source_canonical_revision: unknown(),
            source_workload_namespace: unknown(),
            source_principal: unknown(),
            source_app: unknown(),
            source_version: unknown(),
            source_cluster: unknown(),
            ..self
        }
    }
}

fn labels(arrival: &Arrival, record: &Record, service: Option<&Service>) -> Labels {
    let unknown = || UNKNOWN_LABEL.to_owned();
    let of = |workload: Option<&Workload>, part: fn(&Workload) -> &str| {
        let text = workload.map(part).filter(|text| !text.is_empty());
        text.map_or_else(unknown, str::to_owned)
    };
    let source = arrival.workload.as_deref();
    let endpoint = record.endpoint.as_ref();
    let destination = endpoint.and_then(|it| it.workload.as_deref());
    let principal = arrival.source.identity().map_or_else(unknown, ToString::to_string);
    let of_service =
        |part: fn(&Service) -> &str| service.map(part).map_or_else(unknown, str::to_owned);
    let grpc = record.grpc_status.filter(|_| record.is_grpc);
    Labels {
        reporter: "waypoint",
        source_workload: of(source, |it| &it.workload_name),
        source_canonical_service: of(source, |it| &it.canonical_name),
        source_canonical_revision: of(source, |it| &it.canonical_revision),
        source_workload_namespace: of(source, |it| &it.namespace),
        source_principal: principal,
        source_app: of(source, |it| &it.canonical_name),
        source_version: of(source, |it| &it.canonical_revision),
        source_cluster: of(source, |it| &it.cluster_id),
        destination_workload: of(destination, |it| &it.workload_name),
        destination_workload_namespace: of(destination, |it| &it.namespace),
        destination_principal: destination.map_or_else(unknown, |it| it.identity().to_string()),
        destination_app: of(destination, |it| &it.canonical_name),
        destination_version: of(destination, |it| &it.canonical_revision),
        destination_service: of_service(|it| &it.key.hostname),
        destination_canonical_service: of(destination, |it| &it.canonical_name),
        destination_canonical_revision: of(destination, |it| &it.canonical_revision),
        destination_service_name: of_service(|it| &it.name),
        destination_service_namespace: of_service(|it| &it.key.namespace),
        destination_cluster: of(destination, |it| &it.cluster_id),
        request_protocol: if record.is_grpc { "grpc" } else { "http" },
        response_code: record.status,
        grpc_response_status: grpc.map(|it| it.to_string()).unwrap_or_default(),
        response_flags: record.flags.letters(),
        connection_security_policy: "mutual_tls",
    }
}
