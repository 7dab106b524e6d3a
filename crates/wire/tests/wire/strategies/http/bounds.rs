//! Arbitrary limits of requests, compression of responses, and health checks.

use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::compression::{Coding, Compression, Compressions, RouteCompression};
use ambit_model::http::health::{HealthCheck, Probe};
use ambit_model::http::limits::{Limits, RequestLimits, RouteLimits};
use ambit_model::http::rule::RouteKind;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{text, word};
use super::{duration, status};

pub(super) fn limits() -> impl Strategy<Value = Limits> {
    let kind = select(vec![RouteKind::HttpRoute, RouteKind::GrpcRoute, RouteKind::VirtualService]);
    let route = (kind, word(), word(), option::of(word()), request_limits()).prop_map(
        |(kind, namespace, name, rule_name, limits)| RouteLimits {
            kind,
            namespace,
            name,
            rule_name,
            limits,
        },
    );
    (option::of(request_limits()), vec(route, 0..2))
        .prop_map(|(service, routes)| Limits { service, routes })
}

fn request_limits() -> impl Strategy<Value = RequestLimits> {
    let sizes = (any::<Option<u32>>(), any::<Option<u32>>(), any::<Option<u64>>());
    let times = (option::of(duration()), option::of(duration()));
    (sizes, times, option::of(text())).prop_map(|(sizes, times, problem)| RequestLimits {
        head_bytes: sizes.0,
        fields: sizes.1,
        body_bytes: sizes.2,
        body_timeout: times.0,
        idle_timeout: times.1,
        problem,
    })
}

pub(super) fn compressions() -> impl Strategy<Value = Compressions> {
    let kind = select(vec![RouteKind::HttpRoute, RouteKind::VirtualService]);
    let route = (kind, word(), word(), option::of(word()), compression()).prop_map(
        |(kind, namespace, name, rule_name, compression)| RouteCompression {
            kind,
            namespace,
            name,
            rule_name,
            compression,
        },
    );
    (option::of(compression()), vec(route, 0..2))
        .prop_map(|(service, routes)| Compressions { service, routes })
}

fn compression() -> impl Strategy<Value = Arc<Compression>> {
    (vec(select(Coding::ALL.to_vec()), 0..3), any::<u64>(), vec(word(), 0..3)).prop_map(
        |(codings, min_bytes, content_types)| {
            Arc::new(Compression { codings, min_bytes, content_types })
        },
    )
}

pub(super) fn health_check() -> impl Strategy<Value = HealthCheck> {
    let http = (text(), option::of(text()), vec((status(), status()), 0..2))
        .prop_map(|(path, host, statuses)| Probe::Http { path, host, statuses });
    let grpc = text().prop_map(|service| Probe::Grpc { service });
    let probe = prop_oneof![Just(Probe::Tcp), http, grpc];
    let time = || (1..u64::MAX).prop_map(Duration::from_millis);
    let numbers = (any::<u32>(), 1..=u32::MAX, 1..=u32::MAX, any::<u32>());
    (probe, any::<Option<u16>>(), (time(), time()), numbers, option::of(text())).prop_map(
        |(probe, port, (interval, timeout), numbers, problem)| {
            let (jitter_percent, unhealthy_threshold, healthy_threshold, panic_percent) = numbers;
            HealthCheck {
                probe,
                port,
                interval,
                jitter_percent,
                timeout,
                unhealthy_threshold,
                healthy_threshold,
                panic_percent,
                problem,
            }
        },
    )
}
