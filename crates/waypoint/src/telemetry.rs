//! Request metrics with Istio's names, labels and buckets, and the access log.
//!
//! What a client chooses never becomes a label. Label sets are bounded all the same: beyond the
//! bound requests count for unknown clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::{Protocol, Record};
use ambit_model::http::rule::Origin;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_words::names::UNKNOWN_LABEL;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

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
        let mut histogram = |name: &str, help: &str, unit, it: &Histograms| {
            into.register_with_unit(name, help, unit, it.clone());
        };
        let milliseconds = || Unit::Other("milliseconds".to_owned());
        let help = "From a request's head to the end of its response";
        histogram("istio_request_duration", help, milliseconds(), &self.duration);
        histogram("istio_request", "Bodies of requests", Unit::Bytes, &self.received);
        histogram("istio_response", "Bodies of responses", Unit::Bytes, &self.sent);
    }

    /// Counts one.
    pub(crate) fn count(&self, arrival: &Arrival, record: &Record, service: Option<&Service>) {
        let mut labels = labels(arrival, record, service);
        // Reading alone takes no lock for writing; most label sets are there.
        if self.total.get(&labels).is_none() {
            if self.sets.load(Ordering::Relaxed) >= MAX_LABEL_SETS {
                labels = labels.of_unknown_client();
            } else {
                self.sets.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.total.get_or_create(&labels).inc();
        let milliseconds = record.started.elapsed().as_secs_f64() * 1e3;
        self.duration.get_or_create(&labels).observe(milliseconds);
        self.received.get_or_create(&labels).observe(record.received_bytes as f64);
        self.sent.get_or_create(&labels).observe(record.sent_bytes as f64);
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

/// Writes the access log's line of a request.
pub(crate) fn log(arrival: &Arrival, record: &Record, service: Option<&Service>) {
    let head = record.head.as_ref();
    let field = |name: &str| {
        let value = head.and_then(|head| head.values(name).next());
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let path = head.and_then(|head| head.path()).map(ambit_http::Path::as_str);
    let protocol: Protocol = record.protocol;
    tracing::event!(
        target: "access",
        tracing::Level::INFO,
        method = head.map(|head| head.method().as_str()),
        path,
        protocol = protocol.as_str(),
        response_code = record.status,
        response_flags = record.flags.letters(),
        reason = record.reason,
        details = Some(&*record.details).filter(|text| !text.is_empty()),
        bytes_received = record.received_bytes,
        bytes_sent = record.sent_bytes,
        duration = %format_args!("{}ms", record.started.elapsed().as_millis()),
        upstream_service_time = record.upstream_time.map(|it| it.as_millis()),
        attempts = record.attempts,
        authority = head.map(|head| head.authority().as_str()),
        user_agent = field("user-agent"),
        request_id = field("x-request-id"),
        src.addr = %arrival.client,
        src.workload = arrival.workload.as_ref().map(|it| &*it.name),
        src.identity = arrival.source.identity().map(tracing::field::display),
        dst.addr = %arrival.destination,
        dst.service = service.map(|it| &*it.key.hostname),
        upstream_host = record.endpoint.as_ref().map(|it| tracing::field::display(it.address)),
        route_name = record.route.as_ref().map(|it| tracing::field::display(route_name(it))),
        allowed_by = record.allowed_by.as_ref().map(tracing::field::display),
        ext_authz = checks(record),
        dry_run = trial(record),
        "request complete"
    );
}

/// What authorization services have answered, as `PROVIDER=OUTCOME`.
fn checks(record: &Record) -> Option<String> {
    let said = record.checks.iter().map(|it| format!("{}={}", it.provider, it.outcome.as_str()));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join(","))
}

/// What policies on trial would have done.
fn trial(record: &Record) -> Option<String> {
    let said: Vec<String> = record.dry_run.iter().map(|it| format!("would be {it}")).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// A connection that is no HTTP, as the access log has it.
pub(crate) struct Passage<'a> {
    arrival: &'a Arrival,
    started: Instant,
    /// The endpoint that it went to, or should have.
    pub(crate) endpoint: Option<SocketAddr>,
    /// Where the rule that took it is written.
    pub(crate) route: Option<&'a Origin>,
    /// The host in its TLS handshake.
    pub(crate) server_name: Option<&'a str>,
    /// Bytes from and to the client.
    pub(crate) bytes: (u64, u64),
}

impl<'a> Passage<'a> {
    /// One that begins now.
    pub(crate) fn new(arrival: &'a Arrival) -> Self {
        let started = Instant::now();
        Self { arrival, started, endpoint: None, route: None, server_name: None, bytes: (0, 0) }
    }

    /// Writes its line. `error` says why it ended, if it did not end by itself.
    pub(crate) fn end(self, error: Option<&str>) {
        let Self { arrival, bytes: (received, sent), .. } = self;
        tracing::event!(
            target: "access",
            tracing::Level::INFO,
            bytes_received = received,
            bytes_sent = sent,
            duration = %format_args!("{}ms", self.started.elapsed().as_millis()),
            src.addr = %arrival.client,
            src.workload = arrival.workload.as_ref().map(|it| &*it.name),
            src.identity = arrival.source.identity().map(tracing::field::display),
            dst.addr = %arrival.destination,
            upstream_host = self.endpoint.map(tracing::field::display),
            requested_server_name = self.server_name,
            route_name = self.route.map(|it| tracing::field::display(route_name(it))),
            error,
            "connection complete"
        );
    }
}

/// The name of a rule in the access log.
fn route_name(origin: &Origin) -> String {
    format!("{}/{} rule {}", origin.namespace, origin.name, origin.index)
}
