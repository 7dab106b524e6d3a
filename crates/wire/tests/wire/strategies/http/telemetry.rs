//! Arbitrary telemetry.

use std::sync::Arc;

use ambit_model::expression::Expression;
use ambit_model::http::access_log::{DEFAULT_TEXT, Format};
use ambit_model::http::telemetry::{
    AccessLog, Collector, FilteredLog, LabelChange, Metric, MetricChange, NAMES, Place, Spans, Tag,
    Telemetry, Tracing, Way,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{service_name, text, word};
use super::{duration, fraction};

pub(super) fn telemetry() -> impl Strategy<Value = Telemetry> {
    let tracing = prop_oneof![Just(Tracing::Off), spans().prop_map(|it| Tracing::On(Arc::new(it)))];
    let metrics = btree_map(select(Metric::ALL.to_vec()), metric_change(), 1..3);
    let metrics = option::of(metrics.prop_map(Arc::new));
    (option::of(vec(filtered_log(), 0..2)), option::of(tracing), metrics)
        .prop_map(|(access_logs, tracing, metrics)| Telemetry { access_logs, tracing, metrics })
}

fn metric_change() -> impl Strategy<Value = MetricChange> {
    let value = Expression::new("request.host", &NAMES).expect("an expression");
    let label = prop_oneof![
        Just(LabelChange::Removed),
        text().prop_map(LabelChange::Is),
        Just(LabelChange::Value(value)),
    ];
    (any::<bool>(), btree_map(text(), label, 0..3))
        .prop_map(|(is_off, labels)| MetricChange { is_off, labels })
}

fn format() -> impl Strategy<Value = Arc<Format>> {
    let text = prop_oneof![Just(DEFAULT_TEXT.to_owned()), "[a-z ]{0,9}%(PROTOCOL|REQ\\(a\\))%"];
    let json = vec(("[a-z]{1,3}", "[a-z]{0,3}%DURATION%"), 0..3);
    prop_oneof![
        text.prop_map(|it| Format::text(&it).expect("a format")),
        json.prop_map(|fields| {
            let fields = fields.iter().map(|(key, format)| (&**key, &**format));
            Format::json(fields).expect("a format")
        }),
    ]
    .prop_map(Arc::new)
}

fn filtered_log() -> impl Strategy<Value = FilteredLog> {
    let source = option::of(select(vec!["response.code >= 500", "request.method == 'GET'"]));
    let filter = source
        .prop_map(|it| it.map(|it| Expression::condition(it, &NAMES).expect("an expression")));
    (access_log(), filter).prop_map(|(log, filter)| FilteredLog { log, filter })
}

fn access_log() -> impl Strategy<Value = AccessLog> {
    prop_oneof![
        format().prop_map(AccessLog::Lines),
        (collector(), format(), format()).prop_map(|(collector, body, attributes)| {
            AccessLog::Collector { collector, body, attributes }
        }),
    ]
}

fn collector() -> impl Strategy<Value = Arc<Collector>> {
    let place = prop_oneof![
        (service_name(), any::<u16>()).prop_map(|(name, port)| Place::Service(name, port)),
        (word(), any::<u16>()).prop_map(|(host, port)| Place::Host(host, port)),
    ];
    let headers = || vec((word(), text()), 0..2);
    let way = prop_oneof![
        headers().prop_map(Way::Grpc),
        (text(), headers()).prop_map(|(path, headers)| Way::Http { path, headers }),
    ];
    (place, way, duration())
        .prop_map(|(place, way, timeout)| Arc::new(Collector { place, way, timeout }))
}

fn spans() -> impl Strategy<Value = Spans> {
    let tag = prop_oneof![
        text().prop_map(Tag::Literal),
        (word(), option::of(text())).prop_map(|(name, default)| Tag::Header(name, default)),
        (word(), option::of(text())).prop_map(|(name, default)| Tag::Environment(name, default)),
    ];
    (collector(), fraction(), any::<bool>(), vec((word(), tag), 0..2), any::<u16>()).prop_map(
        |(collector, sampling, is_passed_on, tags, max)| Spans {
            collector,
            sampling,
            is_passed_on,
            tags,
            max_tag_bytes: max.into(),
        },
    )
}
