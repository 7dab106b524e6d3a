//! What TrafficPolicies mean, and what of them is refused.

use std::time::Duration;

use ambit_model::http::health::Probe;
use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use ambit_model::http::rate_limit::{Attribute, Condition, Cost, Counter};
use serde_json::{Value, json};

use super::*;

fn policy(spec: &Value) -> TrafficPolicy {
    let object = json!({
        "apiVersion": "ambit.io/v1alpha1", "kind": "TrafficPolicy",
        "metadata": {"namespace": "shop", "name": "limits"}, "spec": spec,
    });
    serde_json::from_value(object).expect("a policy")
}

fn meaning(spec: &Value) -> Meaning {
    let name = |namespace: &str, name: &str| ServiceName::new(namespace, format!("{name}.mesh"));
    read(&policy(spec), &name)
}

fn with_limit(limit: &Value) -> Meaning {
    let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
    meaning(&json!({"targetRefs": targets, "rateLimits": [limit]}))
}

#[test]
fn targets_are_services_waypoints_routes_and_their_rules() {
    let group = "gateway.networking.k8s.io";
    let found = meaning(&json!({
        "targetRefs": [
            {"group": "", "kind": "Service", "name": "web"},
            {"group": group, "kind": "Gateway", "name": "waypoint"},
            {"group": group, "kind": "HTTPRoute", "name": "web", "sectionName": "slow"},
            {"group": group, "kind": "GRPCRoute", "name": "api"},
        ],
        "rateLimits": [{"limit": {"requests": 1, "unit": "Second"}}],
    }));
    assert_eq!(found.wrong(), None);
    assert!(found.has(Section::RateLimits));
    let told = |it: &Target| format!("{:?} {} {}", it.kind, it.name.name, it.rule.is_some());
    let told: Vec<String> = found.targets.iter().map(told).collect();
    let expected = [
        "Service web false",
        "Gateway waypoint false",
        "HttpRoute web true",
        "GrpcRoute api false",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_limit_is_read_with_its_defaults() {
    let found = with_limit(&json!({
        "name": "per-user",
        "clientSelectors": [
            {"headers": [{"name": "X-User", "type": "Distinct"}, {"name": "x-a", "value": "b"}]},
            {
                "path": {"value": "/api"}, "methods": [{"value": "GET"}],
                "sourceCIDR": {"type": "Distinct", "value": "10.0.0.0/8"},
                "principal": {"type": "Prefix", "value": "cluster.local/ns/shop/"},
                "namespace": {"type": "Distinct"},
                "claims": [{"name": "org.id", "type": "Distinct"}],
            },
        ],
        "limit": {"requests": 10, "unit": "Minute"},
        "cost": {"request": {"from": "Header", "header": {"name": "X-Cost"}},
            "response": {"from": "Number", "number": 2}},
        "shadowMode": true,
    }));
    assert_eq!(found.wrong(), None);
    let policy = found.rate_limits.expect("the section");
    assert_eq!((policy.name.to_string(), policy.says_what_is_left), ("shop/limits".into(), true));
    let limit = &policy.limits[0];
    assert_eq!((&*limit.name, limit.is_shadow, limit.is_shared), ("per-user", true, false));
    assert_eq!(
        limit.counter,
        Counter::Local(Quota { requests: 10, unit: Unit::Minute, burst: 10 })
    );
    let cost = Cost::Header { name: "x-cost".into(), max: 10 };
    assert_eq!((&limit.request_cost, &limit.response_cost), (&cost, &Some(Cost::Number(2))));
    let keys: Vec<String> = limit.distinct.iter().map(Attribute::key).collect();
    assert_eq!(keys, ["x-user", "org.id", "remote_address", "namespace"]);
    assert_eq!(limit.conditions.len(), 5);
    let is_header = |it: &Condition| matches!(it, Condition::Header(it) if &*it.name == "x-a");
    assert!(limit.conditions.iter().any(is_header));
}

#[test]
fn a_service_that_counts_is_asked_with_the_limits_name_and_refuses_without_an_answer() {
    let found = with_limit(&json!({
        "global": {"backendRef": {"name": "ratelimit", "port": 8081}, "domain": "shop"},
    }));
    assert_eq!(found.wrong(), None);
    let policy = found.rate_limits.expect("the section");
    let Counter::Global(counter) = &policy.limits[0].counter else { panic!("{policy:?}") };
    assert_eq!((counter.service.to_string(), counter.port), ("shop/ratelimit.mesh".into(), 8081));
    assert_eq!(counter.descriptor, [("generic_key".into(), "0".into())]);
    assert_eq!((counter.timeout.as_millis(), counter.denies_without_answer), (250, true));
    assert_eq!(counter.quota, None);
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_spoils_the_section() {
    let limit = json!({"requests": 1, "unit": "Second"});
    let selector = |it: Value| json!({"clientSelectors": [it], "limit": limit});
    let global = |more: Value| {
        let mut global =
            json!({"backendRef": {"name": "ratelimit", "port": 8081}, "domain": "shop"});
        global.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"global": global})
    };
    let header = |it: Value| selector(json!({"headers": [it]}));
    for (limit, at) in [
        (json!({}), ""),
        (json!({"limit": {"requests": 0, "unit": "Second"}}), ".limit.requests"),
        (json!({"limit": {"requests": 1, "unit": "second"}}), ".limit.unit"),
        (json!({"limit": {"requests": 1, "unit": "Second", "burst": -1}}), ".limit.burst"),
        (json!({"limit": {"requests": 1, "unit": "Day", "burst": 400}}), ".limit.burst"),
        (json!({"name": "A b", "limit": limit}), ".name"),
        (selector(json!({})), ".clientSelectors[0]"),
        (header(json!({"name": "x y", "type": "Distinct"})), ".clientSelectors[0].headers[0].name"),
        (header(json!({"name": "x"})), ".clientSelectors[0].headers[0]"),
        (
            header(json!({"name": "x", "type": "Suffix", "value": "a"})),
            ".clientSelectors[0].headers[0].type",
        ),
        (
            header(json!({"name": "x", "type": "Distinct", "value": "a"})),
            ".clientSelectors[0].headers[0].value",
        ),
        (
            header(json!({"name": "x", "type": "Distinct", "invert": true})),
            ".clientSelectors[0].headers[0].invert",
        ),
        (
            header(json!({"name": "x", "type": "RegularExpression", "value": "("})),
            ".clientSelectors[0].headers[0].value",
        ),
        (selector(json!({"path": {"value": "api"}})), ".clientSelectors[0].path.value"),
        (selector(json!({"sourceCIDR": {"value": "10"}})), ".clientSelectors[0].sourceCIDR.value"),
        (selector(json!({"claims": [{"name": ""}]})), ".clientSelectors[0].claims[0].name"),
        (
            json!({"limit": limit, "cost": {"request": {"from": "Number", "number": 2}}}),
            ".cost.request.number",
        ),
        (json!({"limit": limit, "cost": {"request": {"from": "Body"}}}), ".cost.request"),
        (global(json!({"domain": ""})), ".global.domain"),
        (global(json!({"timeout": "1 s"})), ".global.timeout"),
        (global(json!({"timeout": "1m"})), ".global.timeout"),
        (global(json!({"failureMode": "Open"})), ".global.failureMode"),
        (global(json!({"backendRef": {"name": "r", "port": 0}})), ".global.backendRef.port"),
        (
            global(json!({"backendRef": {"name": "r", "namespace": "bank", "port": 1}})),
            ".global.backendRef.namespace",
        ),
    ] {
        let found = with_limit(&limit);
        let first = found.remarks.first().unwrap_or_else(|| panic!("{limit} is wrong"));
        assert_eq!(first.at.as_str(), format!("spec.rateLimits[0]{at}"), "{limit}");
        let problem = found.rate_limits.and_then(|it| it.problem.clone()).expect("a problem");
        assert!(problem.starts_with("spec.rateLimits[0]"), "{problem}");
    }
}

#[test]
fn a_policy_of_nothing_or_of_unknown_targets_is_wrong() {
    let limits = json!([{"limit": {"requests": 1, "unit": "Second"}}]);
    let service = json!({"group": "", "kind": "Service", "name": "web"});
    let targets = |targets: Value| json!({"targetRefs": targets, "rateLimits": limits});
    for (spec, at) in [
        (json!({"targetRefs": [service]}), "spec"),
        (targets(json!([])), "spec.targetRefs"),
        (targets(json!([service, service])), "spec.targetRefs[1]"),
        (targets(json!([{"group": "", "kind": "Pod", "name": "web"}])), "spec.targetRefs[0]"),
        (
            targets(json!([{"group": "", "kind": "Service", "name": "web", "sectionName": "a"}])),
            "spec.targetRefs[0].sectionName",
        ),
        (
            json!({"targetRefs": [service], "rateLimits": limits, "rateLimitHeaders": "Some"}),
            "spec.rateLimitHeaders",
        ),
    ] {
        let found = meaning(&spec);
        let places: Vec<&str> = found.remarks.iter().map(|it| it.at.as_str()).collect();
        assert_eq!(places, [at], "{spec}");
    }
}

#[test]
fn of_a_newer_policy_the_targets_are_known_and_nothing_passes() {
    let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
    let limits = json!([{"limit": {"requests": 1, "unit": "Second"}, "newer": 1}]);
    for spec in [
        json!({"targetRefs": targets, "rateLimits": limits}),
        json!({"targetRefs": targets, "rateLimits": 5}),
    ] {
        let (read_spec, problem) = read_spec(spec.clone());
        assert!(problem.is_some(), "{spec}");
        let mut policy = policy(&json!({}));
        (policy.spec, policy.unreadable) = (read_spec, problem);
        let found = read(&policy, &|namespace, name| ServiceName::new(namespace, name));
        assert_eq!(found.targets.len(), 1);
        assert!(found.rate_limits.is_some_and(|it| it.problem.is_some()), "{spec}");
    }
}

fn with_section(section: &str, value: Value) -> Meaning {
    let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
    meaning(&json!({"targetRefs": targets, section: value}))
}

#[test]
fn limits_are_read_and_what_is_absent_stays_open() {
    let found = with_section("limits", json!({"maxBodyBytes": 1024, "bodyTimeout": "30s"}));
    assert_eq!(found.wrong(), None);
    let read = RequestLimits {
        body_bytes: Some(1024),
        body_timeout: Some(Duration::from_secs(30)),
        ..RequestLimits::default()
    };
    assert_eq!(found.limits, Some(read));
    assert!(found.has(Section::Limits) && !found.has(Section::RateLimits));
    let all = json!({
        "maxHeaderBytes": 8192, "maxHeaders": 50, "maxBodyBytes": 1, "bodyTimeout": "1m",
        "streamIdleTimeout": "5s",
    });
    let found = with_section("limits", all).limits.expect("the section");
    assert_eq!((found.head_bytes, found.fields, found.problem), (Some(8192), Some(50), None));
    assert_eq!(found.idle_timeout, Some(Duration::from_secs(5)));
}

#[test]
fn what_is_wrong_in_limits_spoils_them() {
    for (limits, at) in [
        (json!({}), ""),
        (json!({"maxHeaderBytes": 0}), ".maxHeaderBytes"),
        (json!({"maxHeaderBytes": 1_048_577}), ".maxHeaderBytes"),
        (json!({"maxHeaders": 257}), ".maxHeaders"),
        (json!({"maxBodyBytes": -1}), ".maxBodyBytes"),
        (json!({"bodyTimeout": "soon"}), ".bodyTimeout"),
        (json!({"streamIdleTimeout": "0s"}), ".streamIdleTimeout"),
    ] {
        let found = with_section("limits", limits.clone());
        let first = found.remarks.first().unwrap_or_else(|| panic!("{limits} is wrong"));
        assert_eq!(first.at.as_str(), format!("spec.limits{at}"), "{limits}");
        assert!(found.limits.is_some_and(|it| it.problem.is_some()), "{limits}");
    }
}

#[test]
fn compression_is_read_with_its_defaults() {
    use ambit_model::http::compression::Coding;
    let read = |value: Value| {
        let found = with_section("compression", value.clone());
        assert_eq!(found.wrong(), None, "{value}");
        assert!(found.has(Section::Compression) && !found.has(Section::Limits));
        (*found.compression.expect("the section")).clone()
    };
    assert_eq!(read(json!({})), Compressed::default());
    let all = json!({
        "algorithms": ["gzip", "br"], "minBytes": 0, "contentTypes": ["Text/HTML", "image/*"],
    });
    let expected = Compressed {
        codings: vec![Coding::Gzip, Coding::Brotli],
        min_bytes: 0,
        content_types: vec!["text/html".into(), "image/*".into()],
    };
    assert_eq!(read(all), expected);
    assert!(read(json!({"algorithms": []})).codings.is_empty());
}

#[test]
fn of_what_is_wrong_in_compression_nothing_is_compressed_and_nothing_refused() {
    for (compression, at) in [
        (json!({"algorithms": ["zstd"]}), ".algorithms[0]"),
        (json!({"algorithms": ["br", "GZIP"]}), ".algorithms[1]"),
        (json!({"algorithms": ["br", "br"]}), ".algorithms[1]"),
        (json!({"minBytes": -1}), ".minBytes"),
        (json!({"minBytes": 1_073_741_825_u64}), ".minBytes"),
        (json!({"contentTypes": []}), ".contentTypes"),
        (json!({"contentTypes": vec!["text/a"; 65]}), ".contentTypes"),
        (json!({"contentTypes": ["text/html", "text"]}), ".contentTypes[1]"),
        (json!({"contentTypes": ["*/*"]}), ".contentTypes[0]"),
        (json!({"contentTypes": ["text/html; charset=utf-8"]}), ".contentTypes[0]"),
        (json!({"contentTypes": ["text/x*"]}), ".contentTypes[0]"),
        (json!({"contentTypes": ["/"]}), ".contentTypes[0]"),
    ] {
        let found = with_section("compression", compression.clone());
        let first = found.remarks.first().unwrap_or_else(|| panic!("{compression} is wrong"));
        assert_eq!(first.at.as_str(), format!("spec.compression{at}"), "{compression}");
        assert_eq!(found.compression.as_deref(), Some(&Compressed::none()), "{compression}");
        assert!(!found.refuses(), "{compression}");
        let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let both = |limits: Value| {
            let spec = json!({"targetRefs": targets, "compression": compression, "limits": limits});
            meaning(&spec).refuses()
        };
        assert!(!both(json!({"maxBodyBytes": 1})) && both(json!({"maxBodyBytes": 0})));
    }
}

#[test]
fn responses_of_grpc_are_not_compressed() {
    let found = meaning(&json!({
        "targetRefs": [
            {"group": "", "kind": "Service", "name": "web"},
            {"group": "gateway.networking.k8s.io", "kind": "GRPCRoute", "name": "web"},
        ],
        "compression": {},
    }));
    let wrong = found.wrong().expect("it is wrong");
    assert!(wrong.starts_with("spec.targetRefs[1]: ") && !found.refuses(), "{wrong}");
}

#[test]
fn health_checks_are_read_with_their_defaults() {
    let http = json!({"path": "/healthz", "hostname": "h", "expectedStatuses": [204, "200-202"]});
    let found = with_section("healthCheck", json!({"type": "HTTP", "http": http}));
    assert_eq!(found.wrong(), None);
    let check = found.health_check.expect("the section");
    let statuses = vec![(204, 204), (200, 202)];
    let probe = Probe::Http { path: "/healthz".into(), host: Some("h".into()), statuses };
    assert_eq!(check.probe, probe);
    assert_eq!((check.interval, check.timeout), (Duration::from_secs(3), Duration::from_secs(1)));
    let numbers = (check.jitter_percent, check.unhealthy_threshold, check.healthy_threshold);
    assert_eq!((numbers, check.panic_percent, check.port), ((10, 3, 1), 0, None));
    for (written, probe) in [
        (json!({"type": "TCP", "port": 80}), Probe::Tcp),
        (json!({"type": "GRPC"}), Probe::Grpc { service: "".into() }),
        (json!({"type": "GRPC", "grpc": {"service": "a"}}), Probe::Grpc { service: "a".into() }),
    ] {
        let found = with_section("healthCheck", written.clone());
        assert_eq!(found.wrong(), None, "{written}");
        assert_eq!(found.health_check.map(|it| it.probe), Some(probe), "{written}");
    }
}

#[test]
fn what_is_wrong_in_a_health_check_spoils_it() {
    let http = |more: Value| {
        let mut http = json!({"path": "/"});
        http.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "HTTP", "http": http})
    };
    let tcp = |field: &str, value: Value| json!({"type": "TCP", field: value});
    for (check, at) in [
        (json!({"type": "ICMP"}), ".type"),
        (json!({"type": "HTTP"}), ".type"),
        (json!({"type": "TCP", "http": {"path": "/"}}), ".type"),
        (http(json!({"path": "healthz"})), ".http.path"),
        (http(json!({"expectedStatuses": [99]})), ".http.expectedStatuses[0]"),
        (http(json!({"expectedStatuses": [200, "300-200"]})), ".http.expectedStatuses[1]"),
        (tcp("port", json!(0)), ".port"),
        (tcp("interval", json!("1ms")), ".interval"),
        (tcp("timeout", json!("2m")), ".timeout"),
        (tcp("jitterPercent", json!(101)), ".jitterPercent"),
        (tcp("unhealthyThreshold", json!(0)), ".unhealthyThreshold"),
        (tcp("healthyThreshold", json!(0)), ".healthyThreshold"),
        (tcp("panicThreshold", json!(101)), ".panicThreshold"),
    ] {
        let found = with_section("healthCheck", check.clone());
        let first = found.remarks.first().unwrap_or_else(|| panic!("{check} is wrong"));
        assert_eq!(first.at.as_str(), format!("spec.healthCheck{at}"), "{check}");
        assert!(found.health_check.is_some_and(|it| it.problem.is_some()), "{check}");
    }
}

#[test]
fn a_route_has_no_endpoints_to_check() {
    let group = "gateway.networking.k8s.io";
    let found = meaning(&json!({
        "targetRefs": [{"group": group, "kind": "HTTPRoute", "name": "web"}],
        "healthCheck": {"type": "TCP"},
    }));
    let wrong = found.wrong().expect("it is wrong");
    assert!(wrong.starts_with("spec.targetRefs[0]: "), "{wrong}");
}
