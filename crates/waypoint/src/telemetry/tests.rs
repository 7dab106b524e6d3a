//! Requests in, series out: exactly Istio's names and labels, and what a Telemetry changes.

use std::collections::BTreeMap;

use ambit_model::Text;
use ambit_model::expression::Expression;
use ambit_model::http::telemetry::{LabelChange, NAMES};

use super::*;
use crate::access_log::fixture::{HEAD, arrival, names, record};

/// Istio's labels of a request, sorted.
const LABELS: [&str; 25] = [
    "connection_security_policy",
    "destination_app",
    "destination_canonical_revision",
    "destination_canonical_service",
    "destination_cluster",
    "destination_principal",
    "destination_service",
    "destination_service_name",
    "destination_service_namespace",
    "destination_version",
    "destination_workload",
    "destination_workload_namespace",
    "grpc_response_status",
    "reporter",
    "request_protocol",
    "response_code",
    "response_flags",
    "source_app",
    "source_canonical_revision",
    "source_canonical_service",
    "source_cluster",
    "source_principal",
    "source_version",
    "source_workload",
    "source_workload_namespace",
];

/// What is scraped after one request of gRPC.
fn scraped(changes: Option<MetricChanges>) -> String {
    let (requests, mut registry) = (Requests::default(), Registry::default());
    requests.register(&mut registry);
    let mut record = record(HEAD);
    record.is_grpc = true;
    let changes = changes.map(Arc::new);
    let mut remembered = Remembered::default();
    for _ in 0..2 {
        let (names, arrival) = (names(), arrival());
        let entry = Entry::of_request(&names, &arrival, &record, None);
        requests.count(&mut remembered, &arrival, &record, None, changes.as_ref(), &entry);
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
    text
}

/// The series of a name, as names and values of labels, without the histograms' own.
fn labels(text: &str, name: &str) -> BTreeMap<String, String> {
    let series = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let (labels, _) = series.and_then(|it| it.split_once('}')).unwrap_or_default();
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.filter(|(name, _)| *name != "le");
    pairs.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect()
}

#[test]
fn series_have_exactly_istios_names_and_labels() {
    let text = scraped(None);
    for name in [
        "istio_requests_total",
        "istio_request_duration_milliseconds_bucket",
        "istio_request_bytes_bucket",
        "istio_response_bytes_bucket",
        "istio_request_messages_total",
        "istio_response_messages_total",
    ] {
        let labels = labels(&text, name);
        assert_eq!(labels.keys().collect::<Vec<_>>(), LABELS, "{name}");
        assert_eq!(labels["reporter"], "waypoint");
        assert_eq!(labels["source_principal"], "spiffe://t/ns/shop/sa/cart");
        assert_eq!(labels["destination_workload"], "unknown");
    }
    let total = text.lines().find(|line| line.starts_with("istio_requests_total")).unwrap_or("");
    assert!(total.ends_with("} 2"), "{total}");
}

#[test]
fn a_telemetry_switches_metrics_off_and_changes_labels() {
    let labels_of = |changes: &[(&str, LabelChange)]| {
        changes.iter().map(|(name, change)| (Text::from(*name), change.clone())).collect()
    };
    let changed = labels_of(&[
        ("source_principal", LabelChange::Removed),
        ("destination_app", LabelChange::Is("b".into())),
        ("team", LabelChange::Is("a".into())),
        ("host", LabelChange::Value(Expression::new("request.host", &NAMES).expect("a value"))),
        ("none", LabelChange::Value(Expression::new("request.referer", &NAMES).expect("a value"))),
    ]);
    let text = scraped(Some(MetricChanges::from([
        (Metric::RequestSize, MetricChange { is_off: true, ..MetricChange::default() }),
        (Metric::RequestCount, MetricChange { is_off: false, labels: changed }),
    ])));
    assert!(labels(&text, "istio_request_bytes_bucket").is_empty(), "{text}");
    assert_eq!(labels(&text, "istio_response_bytes_bucket").len(), LABELS.len());
    let labels = labels(&text, "istio_requests_total");
    assert_eq!((labels["team"].as_str(), labels["destination_app"].as_str()), ("a", "b"));
    assert_eq!((labels["host"].as_str(), labels["none"].as_str()), ("web:80", "unknown"));
    assert!(!labels.contains_key("source_principal"));
    assert_eq!(labels.len(), LABELS.len() + 2);
}

/// The values of a label in all series of `istio_requests_total`, sorted.
fn values(requests: &Requests, label: &str) -> Vec<String> {
    let mut registry = Registry::default();
    requests.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
    let label = format!("{label}=\"");
    let lines = text.lines().filter(|line| line.starts_with("istio_requests_total{"));
    let values = lines.filter_map(|line| line.split(&label).nth(1)?.split('"').next());
    let mut values: Vec<_> = values.map(str::to_owned).collect();
    values.sort();
    values
}

#[test]
fn an_endpoint_cannot_make_a_series_with_each_answer() {
    let requests = Requests::default();
    let count = |status, grpc_status: Option<u32>| {
        let mut record = record(HEAD);
        (record.status, record.is_grpc) = (status, grpc_status.is_some());
        record.grpc_status = grpc_status;
        let (names, arrival) = (names(), arrival());
        let entry = Entry::of_request(&names, &arrival, &record, None);
        requests.count(&mut Remembered::default(), &arrival, &record, None, None, &entry);
    };
    for code in [0, 16, 17, 4711, u32::MAX] {
        count(200, Some(code));
    }
    assert_eq!(values(&requests, "grpc_response_status"), ["0", "16", "2"]);
    requests.total.fill();
    for status in [201, 202, 299, 404, 999] {
        count(status, None);
    }
    assert_eq!(values(&requests, "response_code"), ["200", "200", "200", "2xx", "4xx", "9xx"]);
}
