//! Arbitrary limits of how many requests may come.

use std::sync::Arc;

use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use ambit_model::http::rate_limit::{
    Attribute, Condition, Cost, Counter, GlobalCounter, RateLimit, RateLimitPolicy, RateLimits,
    RouteRateLimits,
};
use ambit_model::http::rule::RouteKind;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{net, policy_name, service_name, text, text_match, word};
use super::{duration, named, path};

pub(super) fn limits() -> impl Strategy<Value = RateLimits> {
    use RouteKind::{GrpcRoute, HttpRoute};
    let route = (select(vec![HttpRoute, GrpcRoute]), word(), word(), option::of(word()), policy());
    let route = route.prop_map(|(kind, namespace, name, rule_name, policy)| RouteRateLimits {
        kind,
        namespace,
        name,
        rule_name,
        policy,
    });
    (option::of(policy()), vec(route, 0..2))
        .prop_map(|(service, routes)| RateLimits { service, routes })
}

fn policy() -> impl Strategy<Value = Arc<RateLimitPolicy>> {
    (policy_name(), vec(limit(), 0..2), any::<bool>(), option::of(text())).prop_map(
        |(name, limits, says_what_is_left, problem)| {
            Arc::new(RateLimitPolicy { name, limits, says_what_is_left, problem })
        },
    )
}

fn limit() -> impl Strategy<Value = RateLimit> {
    let costs = (cost(), option::of(cost()));
    (word(), vec(condition(), 0..2), vec(attribute(), 0..2), counter(), costs, any::<[bool; 2]>())
        .prop_map(|(name, conditions, distinct, counter, costs, [is_shared, is_shadow])| {
            let (request_cost, response_cost) = costs;
            RateLimit {
                name,
                conditions,
                distinct,
                counter,
                request_cost,
                response_cost,
                is_shared,
                is_shadow,
            }
        })
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        named().prop_map(Condition::Header),
        path().prop_map(Condition::Path),
        vec(text(), 0..2).prop_map(Condition::Method),
        text_match().prop_map(Condition::Principal),
        text_match().prop_map(Condition::Namespace),
        net().prop_map(Condition::Source),
        (vec(text(), 0..2), text_match())
            .prop_map(|(keys, value)| Condition::Claim { keys, value }),
    ]
}

fn attribute() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        text().prop_map(Attribute::Header),
        Just(Attribute::Principal),
        Just(Attribute::Namespace),
        Just(Attribute::Source),
        vec(text(), 0..2).prop_map(Attribute::Claim),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    let unit = select(vec![Unit::Second, Unit::Minute, Unit::Hour, Unit::Day]);
    (any::<u32>(), unit, any::<u32>()).prop_map(|(requests, unit, burst)| Quota {
        requests,
        unit,
        burst,
    })
}

fn counter() -> impl Strategy<Value = Counter> {
    let descriptor = vec((text(), text()), 0..2);
    let global = (
        service_name(),
        any::<u16>(),
        text(),
        descriptor,
        option::of(quota()),
        duration(),
        any::<bool>(),
    );
    let global = global.prop_map(
        |(service, port, domain, descriptor, quota, timeout, denies_without_answer)| {
            Counter::Global(Arc::new(GlobalCounter {
                service,
                port,
                domain,
                descriptor,
                quota,
                timeout,
                denies_without_answer,
            }))
        },
    );
    prop_oneof![quota().prop_map(Counter::Local), global]
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        any::<u32>().prop_map(Cost::Number),
        (text(), any::<u32>()).prop_map(|(name, max)| Cost::Header { name, max }),
    ]
}
