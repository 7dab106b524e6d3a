//! Limits of how many requests come.

use std::sync::Arc;

use ambit_http::engine::record::{Flags, LimitOutcome, LimitReached};
use ambit_model::http::limits::{Limits, RequestLimits, RouteLimits};
use ambit_model::http::matching::{NamedMatch, ValueMatch};
use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use ambit_model::http::rate_limit::{
    Attribute, Condition, Cost, Counter, RateLimit, RateLimitPolicy, RateLimits, RouteRateLimits,
};
use ambit_model::http::rule::RouteKind;
use ambit_model::names::PolicyName;

use crate::world::{Bed, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A limit of so many an hour, so that none comes back while a test runs.
pub(crate) fn limit(name: &str, requests: u32) -> RateLimit {
    RateLimit {
        name: name.into(),
        conditions: Vec::new(),
        distinct: Vec::new(),
        counter: Counter::Local(Quota { requests, unit: Unit::Hour, burst: requests }),
        request_cost: Cost::Number(1),
        response_cost: None,
        is_shared: false,
        is_shadow: false,
    }
}

fn policy(name: &str, limits: Vec<RateLimit>) -> Arc<RateLimitPolicy> {
    let name = PolicyName::new("app", name);
    Arc::new(RateLimitPolicy { name, limits, says_what_is_left: true, problem: None })
}

pub(crate) fn hold(bed: &Bed, limits: Vec<RateLimit>) {
    bed.world.rate_limits.borrow_mut().service = Some(policy("limits", limits));
}

/// The statuses of requests with these fields, one after the other.
pub(crate) async fn statuses(bed: &Bed, fields: &[&str]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for fields in fields {
        let request = format!("GET / HTTP/1.1\r\nHost: web\r\n{fields}Connection: close\r\n\r\n");
        let answer = bed.ask(&request).await;
        statuses.push(answer[9..12].parse().unwrap_or_else(|_| panic!("{answer}")));
    }
    statuses
}

#[test]
fn what_comes_beyond_a_limit_is_refused_and_told_when_to_come_again() {
    run(async |bed| {
        bed.answers("web-1", OK);
        hold(bed, vec![limit("all", 2)]);
        let first = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.to_lowercase();
        assert!(first.contains("x-ratelimit-limit: 2, 2;w=3600;name=\"all\"\r\n"), "{first}");
        assert!(first.contains("x-ratelimit-remaining: 1\r\n"), "{first}");
        assert!(first.contains("x-ratelimit-reset: 1800\r\n"), "{first}");
        assert_eq!(statuses(bed, &[""]).await, [200]);
        let third = bed.ask("GET / HTTP/1.1\r\nHost: web\r\n\r\n").await;
        assert!(third.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{third}");
        for field in
            ["retry-after: 1800", "x-ratelimit-remaining: 0", "x-ambit-reason: rate_limited"]
        {
            assert!(third.contains(&format!("{field}\r\n")), "{field} in {third}");
        }
        assert!(third.ends_with("\r\n\r\ntoo many requests"), "{third}");
        let last = bed.last();
        assert_eq!(
            (last.status, last.flags, last.reason),
            (429, Flags::RateLimited, "rate_limited")
        );
        let policy = PolicyName::new("app", "limits");
        let reached = LimitReached { policy, limit: "all".into(), outcome: LimitOutcome::Refused };
        assert_eq!(last.limits, [reached]);
        assert!(last.details.contains("`all` of TrafficPolicy app/limits"), "{}", last.details);
        assert_eq!(last.attempts, 0, "nothing was sent");
    });
}

#[test]
fn each_sender_has_its_own_count() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let distinct = vec![Attribute::Header("x-user".into())];
        hold(bed, vec![RateLimit { distinct, ..limit("user", 1) }]);
        let (ann, bob) = ("X-User: ann\r\n", "x-user: bob\r\n");
        assert_eq!(statuses(bed, &[ann, bob, ann, bob]).await, [200, 200, 429, 429]);
        assert_eq!(statuses(bed, &["", "", ""]).await, [200; 3], "no sender is known");
    });
}

#[test]
fn one_more_line_makes_nobody_another_sender() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let distinct = vec![Attribute::Header("x-user".into())];
        hold(bed, vec![RateLimit { distinct, ..limit("user", 2) }]);
        let (ann, twice) = ("x-user: ann\r\n", "x-user: ann\r\nX-User: ann\r\n");
        let (list, other) = ("x-user: ann,\r\n", "x-user: ann\r\nx-user: bob\r\n");
        assert_eq!(statuses(bed, &[ann, twice, list, ann]).await, [200, 200, 429, 429]);
        let empty = "x-user: ann\r\nx-user:\r\n";
        assert_eq!(statuses(bed, &[other, empty]).await, [400, 400]);
        let last = bed.last();
        assert_eq!((last.reason, &*last.limits[0].limit), ("rate_limit_repeated", "user"));
        let by_line = ValueMatch::Exact("ann".into());
        let by_line = NamedMatch { name: "x-user".into(), value: by_line, is_inverted: false };
        let conditions = vec![Condition::Header(by_line)];
        hold(bed, vec![RateLimit { conditions, ..limit("ann", 2) }]);
        assert_eq!(statuses(bed, &[ann, other, empty, list]).await, [200, 200, 429, 429]);
    });
}

#[test]
fn all_limits_count_and_a_refused_request_costs_nothing() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let distinct = vec![Attribute::Header("x-user".into())];
        hold(bed, vec![limit("all", 3), RateLimit { distinct, ..limit("user", 1) }]);
        let (ann, bob) = ("x-user: ann\r\n", "x-user: bob\r\n");
        assert_eq!(statuses(bed, &[ann, ann, ann, ann, bob]).await, [200, 429, 429, 429, 200]);
        assert_eq!(statuses(bed, &["", ""]).await, [200, 429], "one of three was left");
        assert_eq!(&*bed.last().limits[0].limit, "all");
    });
}

#[test]
fn what_a_policy_denies_costs_nothing() {
    run(async |bed| {
        bed.answers("web-1", OK);
        hold(bed, vec![limit("all", 1)]);
        *bed.world.denies.borrow_mut() = Some(|_| true);
        assert_eq!(statuses(bed, &["", ""]).await, [403, 403]);
        *bed.world.denies.borrow_mut() = None;
        assert_eq!(statuses(bed, &["", ""]).await, [200, 429]);
    });
}

#[test]
fn requests_and_responses_cost_what_their_fields_say() {
    run(async |bed| {
        let answer = "HTTP/1.1 200 OK\r\nX-Tokens: 40\r\nContent-Length: 2\r\n\r\nok";
        bed.answers("web-1", answer);
        let cost = |name: &str, max| Cost::Header { name: name.into(), max };
        hold(bed, vec![RateLimit { request_cost: cost("x-cost", 10), ..limit("all", 10) }]);
        let of = |cost: &str| format!("x-cost: {cost}\r\n");
        let (six, much) = (of("6"), of("9999"));
        assert_eq!(
            statuses(bed, &[&six, &six, "", "", "", ""]).await,
            [200, 429, 200, 200, 200, 200]
        );
        assert_eq!(statuses(bed, &[&much, ""]).await, [429, 429]);
        let tokens = RateLimit {
            request_cost: Cost::Number(0),
            response_cost: Some(cost("x-tokens", 100)),
            ..limit("tokens", 100)
        };
        hold(bed, vec![tokens]);
        assert_eq!(statuses(bed, &["", "", "", ""]).await, [200, 200, 200, 429]);
    });
}

#[test]
fn a_limit_in_shadow_is_reported_and_lets_pass() {
    run(async |bed| {
        bed.answers("web-1", OK);
        hold(bed, vec![RateLimit { is_shadow: true, ..limit("trial", 1) }]);
        assert_eq!(statuses(bed, &["", ""]).await, [200, 200]);
        let reached = &bed.last().limits[0];
        assert_eq!((&*reached.limit, reached.outcome), ("trial", LimitOutcome::Shadow));
    });
}

#[test]
fn a_route_has_its_own_limits() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| rule.origin.rule_name = Some("slow".into()));
        let of_rule = RouteRateLimits {
            kind: RouteKind::HttpRoute,
            namespace: "app".into(),
            name: "route".into(),
            rule_name: Some("slow".into()),
            policy: policy("slow", vec![limit("one", 1)]),
        };
        *bed.world.rate_limits.borrow_mut() = RateLimits {
            service: Some(policy("limits", vec![limit("none", 0)])),
            routes: vec![of_rule],
        };
        assert_eq!(statuses(bed, &["", ""]).await, [200, 429]);
        assert_eq!(bed.last().limits[0].policy.to_string(), "app/slow");
    });
}

/// A consumer's route, with limits that its author wrote, answers to those of the service.
#[test]
fn a_route_of_another_namespace_has_no_limits_of_its_own() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| rule.origin.namespace = "cli".into());
        let (kind, namespace, name) = (RouteKind::HttpRoute, "cli", "route");
        let of_route = RouteRateLimits {
            kind,
            namespace: namespace.into(),
            name: name.into(),
            rule_name: None,
            policy: policy("mine", vec![limit("many", 1_000)]),
        };
        *bed.world.rate_limits.borrow_mut() = RateLimits {
            service: Some(policy("rl", vec![limit("one", 1)])),
            routes: vec![of_route],
        };
        let bytes = |most| RequestLimits { body_bytes: Some(most), ..RequestLimits::default() };
        let of_route = RouteLimits {
            kind,
            namespace: namespace.into(),
            name: name.into(),
            rule_name: None,
            limits: bytes(1_000),
        };
        *bed.world.limits.borrow_mut() =
            Limits { service: Some(bytes(10)), routes: vec![of_route] };
        let post = "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 11\r\n\r\nhello world";
        assert!(bed.ask(post).await.starts_with("HTTP/1.1 413"));
        assert_eq!(statuses(bed, &["", ""]).await, [200, 429]);
        assert_eq!(bed.last().limits[0].policy.to_string(), "app/rl");
    });
}

#[test]
fn limits_that_cannot_be_honoured_let_nothing_pass() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let policy = RateLimitPolicy {
            name: PolicyName::new("app", "limits"),
            limits: Vec::new(),
            says_what_is_left: true,
            problem: Some("spec.rateLimits[0]: no".into()),
        };
        bed.world.rate_limits.borrow_mut().service = Some(Arc::new(policy));
        assert_eq!(statuses(bed, &[""]).await, [500]);
        assert_eq!(bed.last().reason, "rate_limit_invalid");
    });
}

#[test]
fn a_client_of_grpc_is_told_that_a_resource_is_exhausted() {
    run(async |bed| {
        hold(bed, vec![limit("all", 1)]);
        bed.answers("web-1", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let grpc = "Content-Type: application/grpc\r\n";
        assert_eq!(statuses(bed, &[grpc, grpc]).await, [200, 200]);
        let last = bed.last();
        assert_eq!((last.grpc_status, last.reason), (Some(8), "rate_limited"));
    });
}
