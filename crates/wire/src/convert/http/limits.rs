//! How much the requests to a service may be.

use ambit_model::http::limits::{Limits, RequestLimits, RouteLimits};

use super::super::{ConvertError, each, text};
use super::{duration, duration_message, inner, optional, optional_string, optional_text, rule};
use crate::proto::ambit::http as proto;

pub(super) fn limits(message: proto::RequestLimits) -> Result<Limits, ConvertError> {
    Ok(Limits {
        service: optional("service", message.service, limit)?,
        routes: each("routes", message.routes, of_route)?,
    })
}

/// Absent where there are none.
pub(super) fn message(limits: &Limits) -> Option<proto::RequestLimits> {
    (*limits != Limits::default()).then(|| proto::RequestLimits {
        service: limits.service.as_ref().map(limit_message),
        routes: limits.routes.iter().map(of_route_message).collect(),
    })
}

fn of_route(message: proto::RouteRequestLimit) -> Result<RouteLimits, ConvertError> {
    Ok(RouteLimits {
        kind: rule::route_kind("kind", message.kind)?,
        namespace: text(&message.namespace),
        name: text(&message.name),
        rule_name: optional_text(message.rule_name),
        limits: inner("limit", message.limit, limit)?,
    })
}

fn of_route_message(it: &RouteLimits) -> proto::RouteRequestLimit {
    proto::RouteRequestLimit {
        kind: rule::route_kind_message(it.kind).into(),
        namespace: it.namespace.to_string(),
        name: it.name.to_string(),
        rule_name: optional_string(&it.rule_name),
        limit: Some(limit_message(&it.limits)),
    }
}

fn limit(message: proto::RequestLimit) -> Result<RequestLimits, ConvertError> {
    Ok(RequestLimits {
        head_bytes: message.head_bytes,
        fields: message.fields,
        body_bytes: message.body_bytes,
        body_timeout: optional("body_timeout", message.body_timeout, duration)?,
        idle_timeout: optional("idle_timeout", message.idle_timeout, duration)?,
        problem: optional_text(message.problem),
    })
}

fn limit_message(it: &RequestLimits) -> proto::RequestLimit {
    proto::RequestLimit {
        head_bytes: it.head_bytes,
        fields: it.fields,
        body_bytes: it.body_bytes,
        body_timeout: it.body_timeout.map(duration_message),
        idle_timeout: it.idle_timeout.map(duration_message),
        problem: optional_string(&it.problem),
    }
}
