//! How many requests may come.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use ambit_model::http::rate_limit::{
    Attribute, Condition, Cost, Counter, GlobalCounter, RateLimit, RateLimitPolicy, RateLimits,
    RouteRateLimits,
};
use ambit_model::names::ServiceName;
use ambit_model::policy::TextMatch;

use super::super::{ConvertError, Problem, each, known, port, text};
use super::{
    EMPTY, duration, duration_message, inner, matching, optional, optional_string, optional_text,
    policy, policy_name, policy_name_message, required, rule, strings, texts,
};
use crate::proto::ambit::http as proto;

pub(super) fn limits(message: proto::RateLimits) -> Result<RateLimits, ConvertError> {
    Ok(RateLimits {
        service: optional("service", message.service, of_policy)?,
        routes: each("routes", message.routes, of_route)?,
    })
}

pub(super) fn limits_message(limits: &RateLimits) -> Option<proto::RateLimits> {
    let is_there = *limits != RateLimits::default();
    is_there.then(|| proto::RateLimits {
        service: limits.service.as_deref().map(policy_message),
        routes: limits.routes.iter().map(route_message).collect(),
    })
}

fn of_route(message: proto::RouteRateLimits) -> Result<RouteRateLimits, ConvertError> {
    Ok(RouteRateLimits {
        kind: rule::route_kind("kind", message.kind)?,
        namespace: text(&message.namespace),
        name: text(&message.name),
        rule_name: optional_text(message.rule_name),
        policy: inner("policy", message.policy, of_policy)?,
    })
}

fn route_message(route: &RouteRateLimits) -> proto::RouteRateLimits {
    proto::RouteRateLimits {
        kind: rule::route_kind_message(route.kind).into(),
        namespace: route.namespace.to_string(),
        name: route.name.to_string(),
        rule_name: optional_string(&route.rule_name),
        policy: Some(policy_message(&route.policy)),
    }
}

fn of_policy(message: proto::RateLimitPolicy) -> Result<Arc<RateLimitPolicy>, ConvertError> {
    Ok(Arc::new(RateLimitPolicy {
        name: inner("name", message.name, policy_name)?,
        limits: each("limits", message.limits, limit)?,
        says_what_is_left: message.says_what_is_left,
        problem: optional_text(message.problem),
    }))
}

fn policy_message(policy: &RateLimitPolicy) -> proto::RateLimitPolicy {
    proto::RateLimitPolicy {
        name: Some(policy_name_message(&policy.name)),
        limits: policy.limits.iter().map(limit_message).collect(),
        says_what_is_left: policy.says_what_is_left,
        problem: optional_string(&policy.problem),
    }
}

fn limit(message: proto::RateLimit) -> Result<RateLimit, ConvertError> {
    use proto::rate_limit::Counter as Message;
    Ok(RateLimit {
        name: text(&message.name),
        conditions: each("conditions", message.conditions, condition)?,
        distinct: each("distinct", message.distinct, attribute)?,
        counter: match required("counter", message.counter)? {
            Message::Local(it) => Counter::Local(quota(it).map_err(|error| error.within("local"))?),
            Message::Global(it) => {
                let counter = global(it).map_err(|error| error.within("global"))?;
                Counter::Global(Arc::new(counter))
            }
        },
        request_cost: inner("request_cost", message.request_cost, cost)?,
        response_cost: optional("response_cost", message.response_cost, cost)?,
        is_shared: message.is_shared,
        is_shadow: message.is_shadow,
    })
}

fn limit_message(limit: &RateLimit) -> proto::RateLimit {
    use proto::rate_limit::Counter as Message;
    proto::RateLimit {
        name: limit.name.to_string(),
        conditions: limit.conditions.iter().map(condition_message).collect(),
        distinct: limit.distinct.iter().map(attribute_message).collect(),
        counter: Some(match &limit.counter {
            Counter::Local(it) => Message::Local(quota_message(it)),
            Counter::Global(it) => Message::Global(global_message(it)),
        }),
        request_cost: Some(cost_message(&limit.request_cost)),
        response_cost: limit.response_cost.as_ref().map(cost_message),
        is_shared: limit.is_shared,
        is_shadow: limit.is_shadow,
    }
}

fn condition(message: proto::RateLimitCondition) -> Result<Condition, ConvertError> {
    use proto::rate_limit_condition::Kind;
    let within = |field: &'static str| move |error: ConvertError| error.within(field);
    Ok(match required("kind", message.kind)? {
        Kind::Header(it) => Condition::Header(matching::named(it).map_err(within("header"))?),
        Kind::Path(it) => Condition::Path(matching::path(it).map_err(within("path"))?),
        Kind::Methods(it) => Condition::Method(texts(&it.any_of)),
        Kind::Principal(it) => {
            Condition::Principal(policy::words(it).map_err(within("principal"))?)
        }
        Kind::Namespace(it) => {
            Condition::Namespace(policy::words(it).map_err(within("namespace"))?)
        }
        Kind::Source(it) => Condition::Source(policy::block(it).map_err(within("source"))?),
        Kind::Claim(it) => Condition::Claim {
            keys: texts(&it.keys),
            value: inner("value", it.value, policy::words).map_err(within("claim"))?,
        },
    })
}

fn condition_message(condition: &Condition) -> proto::RateLimitCondition {
    use proto::rate_limit_condition::Kind;
    let claim = |keys: &[Text], value: &TextMatch| proto::RateLimitClaim {
        keys: strings(keys),
        value: Some(policy::words_message(value)),
    };
    let kind = match condition {
        Condition::Header(it) => Kind::Header(matching::named_message(it)),
        Condition::Path(it) => Kind::Path(matching::path_message(it)),
        Condition::Method(it) => Kind::Methods(proto::RateLimitMethods { any_of: strings(it) }),
        Condition::Principal(it) => Kind::Principal(policy::words_message(it)),
        Condition::Namespace(it) => Kind::Namespace(policy::words_message(it)),
        Condition::Source(it) => Kind::Source(policy::block_message(it)),
        Condition::Claim { keys, value } => Kind::Claim(claim(keys, value)),
    };
    proto::RateLimitCondition { kind: Some(kind) }
}

fn attribute(message: proto::RateLimitAttribute) -> Result<Attribute, ConvertError> {
    use proto::rate_limit_attribute::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Header(it) => Attribute::Header(text(&it)),
        Kind::Principal(_) => Attribute::Principal,
        Kind::Namespace(_) => Attribute::Namespace,
        Kind::Source(_) => Attribute::Source,
        Kind::Claim(it) => Attribute::Claim(texts(&it.keys)),
    })
}

fn attribute_message(attribute: &Attribute) -> proto::RateLimitAttribute {
    use proto::rate_limit_attribute::Kind;
    let kind = match attribute {
        Attribute::Header(it) => Kind::Header(it.to_string()),
        Attribute::Principal => Kind::Principal(EMPTY),
        Attribute::Namespace => Kind::Namespace(EMPTY),
        Attribute::Source => Kind::Source(EMPTY),
        Attribute::Claim(keys) => Kind::Claim(proto::ClaimKeys { keys: strings(keys) }),
    };
    proto::RateLimitAttribute { kind: Some(kind) }
}

fn quota(message: proto::RateLimitQuota) -> Result<Quota, ConvertError> {
    let unit = match known("unit", message.unit)? {
        proto::RateLimitUnit::Unspecified => {
            return Err(ConvertError::new("unit", Problem::Unspecified));
        }
        proto::RateLimitUnit::Second => Unit::Second,
        proto::RateLimitUnit::Minute => Unit::Minute,
        proto::RateLimitUnit::Hour => Unit::Hour,
        proto::RateLimitUnit::Day => Unit::Day,
    };
    Ok(Quota { requests: message.requests, unit, burst: message.burst })
}

fn quota_message(quota: &Quota) -> proto::RateLimitQuota {
    let unit = match quota.unit {
        Unit::Second => proto::RateLimitUnit::Second,
        Unit::Minute => proto::RateLimitUnit::Minute,
        Unit::Hour => proto::RateLimitUnit::Hour,
        Unit::Day => proto::RateLimitUnit::Day,
    };
    let (requests, burst) = (quota.requests, quota.burst);
    proto::RateLimitQuota { requests, unit: unit.into(), burst }
}

fn global(message: proto::GlobalRateLimit) -> Result<GlobalCounter, ConvertError> {
    if message.hostname.is_empty() {
        return Err(ConvertError::new("hostname", Problem::Missing));
    }
    let entries = message.descriptor.iter().map(|it| (text(&it.key), text(&it.value)));
    Ok(GlobalCounter {
        service: ServiceName::new(message.namespace, message.hostname),
        port: port("port", message.port)?,
        domain: text(&message.domain),
        descriptor: entries.collect(),
        quota: optional("quota", message.quota, quota)?,
        timeout: inner("timeout", message.timeout, duration)?,
        denies_without_answer: message.denies_without_answer,
    })
}

fn global_message(counter: &GlobalCounter) -> proto::GlobalRateLimit {
    let entry = |(key, value): &(Text, Text)| proto::RateLimitEntry {
        key: key.to_string(),
        value: value.to_string(),
    };
    proto::GlobalRateLimit {
        namespace: counter.service.namespace.to_string(),
        hostname: counter.service.hostname.to_string(),
        port: counter.port.into(),
        domain: counter.domain.to_string(),
        descriptor: counter.descriptor.iter().map(entry).collect(),
        quota: counter.quota.as_ref().map(quota_message),
        timeout: Some(duration_message(counter.timeout)),
        denies_without_answer: counter.denies_without_answer,
    }
}

fn cost(message: proto::RateLimitCost) -> Result<Cost, ConvertError> {
    use proto::rate_limit_cost::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Number(number) => Cost::Number(number),
        Kind::Header(it) => Cost::Header { name: text(&it.name), max: it.max },
    })
}

fn cost_message(cost: &Cost) -> proto::RateLimitCost {
    use proto::rate_limit_cost::Kind;
    let kind = match cost {
        Cost::Number(number) => Kind::Number(*number),
        Cost::Header { name, max } => {
            Kind::Header(proto::RateLimitCostHeader { name: name.to_string(), max: *max })
        }
    };
    proto::RateLimitCost { kind: Some(kind) }
}
