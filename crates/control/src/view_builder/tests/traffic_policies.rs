//! Which TrafficPolicy decides for which requests, and what its author is told.

use ambit_manifest::traffic_policy::Section;
use ambit_model::http::rule::{Origin, RouteKind};
use ambit_model::names::ServiceName;

use super::*;
use crate::view_builder::traffic_policies::conditions;

const GROUP: &str = "gateway.networking.k8s.io";

fn policy(name: &str, created: &str, targets: &Value) -> Event {
    let mut metadata = meta("shop", name, &json!({}));
    metadata["creationTimestamp"] = created.into();
    let limits = json!([{"limit": {"requests": 1, "unit": "Second"}}]);
    let spec = json!({"targetRefs": targets, "rateLimits": limits});
    put(Kind::TrafficPolicy, &json!({"metadata": metadata, "spec": spec}))
}

fn early(name: &str, targets: &Value) -> Event {
    policy(name, "2026-01-01T00:00:00Z", targets)
}

fn late(name: &str, targets: &Value) -> Event {
    policy(name, "2026-02-01T00:00:00Z", targets)
}

fn web() -> Value {
    json!([{"group": "", "kind": "Service", "name": "web"}])
}

fn of_route(rule: Option<&str>) -> Value {
    let mut target = json!({"group": GROUP, "kind": "HTTPRoute", "name": "web"});
    if let Some(rule) = rule {
        target["sectionName"] = rule.into();
    }
    json!([target])
}

fn waypoint() -> Value {
    json!([{"group": GROUP, "kind": "Gateway", "name": "way"}])
}

/// A service behind a waypoint, with a route of two rules.
fn world() -> Builder {
    let mut builder = builder();
    let gateway = json!({
        "metadata": meta("shop", "way", &json!({"istio.io/waypoint-for": "all"})),
        "spec": {"gatewayClassName": "istio-waypoint",
            "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]},
    });
    let web = json!({
        "metadata": meta("shop", "web", &json!({"istio.io/use-waypoint": "way"})),
        "spec": {"ports": [{"port": 80}]},
    });
    let rules = json!([{"name": "slow"}, {"name": "fast"}]);
    let parents = json!([{"group": "", "kind": "Service", "name": "web"}]);
    let spec = json!({"parentRefs": parents, "rules": rules});
    builder.apply([
        put(Kind::Gateway, &gateway),
        put(Kind::Service, &web),
        service("shop", "plain", &json!({"ports": [{"port": 80}]})),
        put(Kind::HttpRoute, &json!({"metadata": meta("shop", "web", &json!({})), "spec": spec})),
    ]);
    builder
}

/// The policies that decide for both rules of the route, and for what no route answers.
fn deciding(builder: &Builder) -> String {
    let service = "shop/web.shop.svc.cluster.local".parse().unwrap();
    let limits = &builder.view().http_service(&service).expect("a service").rate_limits;
    let origin = |rule: &str| Origin {
        kind: RouteKind::HttpRoute,
        namespace: "shop".into(),
        name: "web".into(),
        created_unix_s: 0,
        index: 0,
        rule_name: Some(rule.into()),
    };
    let name = |route: Option<&Origin>| {
        limits.of(route, &service).map_or_else(|| "-".to_owned(), |it| it.name.name.to_string())
    };
    let [slow, fast] = ["slow", "fast"].map(|rule| name(Some(&origin(rule))));
    format!("{slow} {fast} {}", name(None))
}

/// `NAME: REASON` of all policies.
fn told(builder: &Builder) -> Vec<String> {
    let policies = builder.store().traffic_policies().iter();
    let told = policies.flat_map(|(name, known)| {
        let all = conditions(builder, name, known).into_iter();
        all.map(|(_, condition)| format!("{}: {}", name.name, condition.reason))
    });
    told.collect()
}

#[test]
fn the_most_specific_target_decides_and_the_oldest_there() {
    let mut builder = world();
    assert_eq!(deciding(&builder), "- - -");
    for (event, expected) in [
        (early("way", &waypoint()), "way way way"),
        (late("web", &web()), "web web web"),
        (early("web-old", &web()), "web-old web-old web-old"),
        (late("route", &of_route(None)), "route route web-old"),
        (late("rule", &of_route(Some("slow"))), "rule route web-old"),
    ] {
        builder.apply([event]);
        assert_eq!(deciding(&builder), expected);
    }
    assert_eq!(
        told(&builder),
        [
            "route: Accepted",
            "rule: Accepted",
            "way: Accepted",
            "web: Conflicted",
            "web-old: Accepted"
        ]
    );
    for (name, expected) in [
        ("web-old", "rule route web"),
        ("rule", "route route web"),
        ("route", "web web web"),
        ("web", "way way way"),
        ("way", "- - -"),
    ] {
        builder.apply([delete(Kind::TrafficPolicy, "shop", name)]);
        assert_eq!(deciding(&builder), expected, "without {name}");
    }
}

#[test]
fn a_route_that_comes_later_gets_its_limits() {
    let mut builder = builder();
    builder.apply([late("route", &of_route(None)), late("web", &web())]);
    assert_eq!(told(&builder), ["route: TargetNotFound", "web: TargetNotFound"]);
    let parents = json!([{"group": "", "kind": "Service", "name": "web"}]);
    let spec = json!({"parentRefs": parents, "rules": [{"name": "slow"}, {"name": "fast"}]});
    builder.apply([
        put(Kind::HttpRoute, &json!({"metadata": meta("shop", "web", &json!({})), "spec": spec})),
        service("shop", "web", &json!({"ports": [{"port": 80}]})),
    ]);
    assert_eq!(deciding(&builder), "route route web");
    assert_eq!(told(&builder), ["route: Accepted", "web: Accepted"]);
}

#[test]
fn what_cannot_be_honoured_is_told_and_decides() {
    let mut builder = world();
    let limits = json!([{"limit": {"requests": 1, "unit": "Moment"}}]);
    let spec = json!({"targetRefs": web(), "rateLimits": limits});
    let metadata = meta("shop", "wrong", &json!({}));
    builder.apply([put(Kind::TrafficPolicy, &json!({"metadata": metadata, "spec": spec}))]);
    assert_eq!(told(&builder), ["wrong: Invalid"]);
    let name = "shop/web.shop.svc.cluster.local".parse().unwrap();
    let limits = &builder.view().http_service(&name).expect("a service").rate_limits;
    assert!(limits.of(None, &name).expect("they hold").problem.is_some());
    let none = |target: &Value| early("none", target);
    for target in [
        json!([{"group": "", "kind": "Service", "name": "absent"}]),
        json!([{"group": GROUP, "kind": "Gateway", "name": "absent"}]),
        of_route(Some("absent")),
    ] {
        builder.apply([none(&target)]);
        assert_eq!(told(&builder)[0], "none: TargetNotFound", "{target}");
    }
    builder.apply([none(&json!([{"group": "", "kind": "Service", "name": "plain"}]))]);
    let (name, known) = builder.store().traffic_policies().iter().next().unwrap();
    let message = &conditions(&builder, name, known)[0].1.message;
    assert!(message.contains("has no waypoint"), "{message}");
}

#[test]
fn each_section_is_decided_for_itself() {
    let mut builder = world();
    let policy = |name: &str, targets: Value, section: &str, value: Value| {
        let spec = json!({"targetRefs": targets, section: value});
        let metadata = meta("shop", name, &json!({}));
        put(Kind::TrafficPolicy, &json!({"metadata": metadata, "spec": spec}))
    };
    builder.apply([
        early("counted", &web()),
        policy("small", waypoint(), "limits", json!({"maxBodyBytes": 10})),
        policy("large", of_route(Some("slow")), "limits", json!({"maxBodyBytes": 99})),
        policy("pages", waypoint(), "compression", json!({})),
        policy("secrets", of_route(Some("slow")), "compression", json!({"algorithms": []})),
        policy("well", waypoint(), "healthCheck", json!({"type": "TCP", "interval": "9s"})),
    ]);
    let web = |builder: &Builder| {
        let service = "shop/web.shop.svc.cluster.local".parse().unwrap();
        builder.view().http_service(&service).expect("a service").clone()
    };
    let service = web(&builder);
    assert_eq!(deciding(&builder), "counted counted counted");
    let origin = |rule: Option<&str>| {
        rule.map(|rule| Origin {
            kind: RouteKind::HttpRoute,
            namespace: "shop".into(),
            name: "web".into(),
            created_unix_s: 0,
            index: 0,
            rule_name: Some(rule.into()),
        })
    };
    let body = |rule: Option<&str>| {
        let limits = service.limits.of(origin(rule).as_ref(), &service.service);
        limits.and_then(|it| it.body_bytes)
    };
    let codings = |rule: Option<&str>| {
        let compression = service.compression.of(origin(rule).as_ref(), &service.service);
        compression.map(|it| it.codings.len())
    };
    assert_eq!(
        [codings(Some("slow")), codings(Some("fast")), codings(None)],
        [Some(0), Some(2), Some(2)]
    );
    assert_eq!(
        [body(Some("slow")), body(Some("fast")), body(None)],
        [Some(99), Some(10), Some(10)]
    );
    let interval = service.health_check.as_ref().map(|it| it.interval.as_secs());
    assert_eq!(interval, Some(9));
    let accepted = ["counted", "large", "pages", "secrets", "small", "well"]
        .map(|it| format!("{it}: Accepted"));
    assert_eq!(told(&builder), accepted);
    builder.apply([
        delete(Kind::TrafficPolicy, "shop", "well"),
        policy("small", waypoint(), "limits", json!({"maxBodyBytes": -1})),
        policy("secrets", of_route(Some("slow")), "compression", json!({"minBytes": -1})),
    ]);
    let service = web(&builder);
    assert_eq!(service.health_check, None);
    assert!(service.limits.of(None, &service.service).expect("they hold").problem.is_some());
    let secrets = service.compression.of(origin(Some("slow")).as_ref(), &service.service);
    assert_eq!(secrets.map(|it| it.codings.len()), Some(0));
    let mut policies = builder.store().traffic_policies().iter();
    let (name, known) = policies.find(|it| *it.0.name == *"secrets").expect("it is there");
    let message = &conditions(&builder, name, known)[0].1.message;
    assert!(message.ends_with("no response that this section is for is compressed"), "{message}");
}

/// A consumer's policy would otherwise lift what the service's namespace says.
#[test]
fn policies_of_routes_of_other_namespaces_have_no_effect() {
    let mut builder = world();
    let policy = |namespace: &str, name: &str, targets: Value, bytes: u32| {
        let limits = json!([{"limit": {"requests": bytes, "unit": "Second"}}]);
        let spec = json!({
            "targetRefs": targets, "rateLimits": limits, "limits": {"maxBodyBytes": bytes},
        });
        let metadata = meta(namespace, name, &json!({}));
        put(Kind::TrafficPolicy, &json!({"metadata": metadata, "spec": spec}))
    };
    let route = |parents: Value| {
        let metadata = meta("cli", "evil", &json!({}));
        let spec = json!({"parentRefs": parents, "rules": [{"name": "all"}]});
        put(Kind::HttpRoute, &json!({"metadata": metadata, "spec": spec}))
    };
    let web = json!({"group": "", "kind": "Service", "name": "web", "namespace": "shop"});
    let own = json!({"group": "", "kind": "Service", "name": "own"});
    let targets = |rule: Option<&str>| {
        let mut target = json!({"group": GROUP, "kind": "HTTPRoute", "name": "evil"});
        if let Some(rule) = rule {
            target["sectionName"] = rule.into();
        }
        json!([target])
    };
    builder.apply([
        service("cli", "own", &json!({"ports": [{"port": 80}]})),
        route(json!([web])),
        policy("shop", "rl", self::web(), 10),
        policy("cli", "mine", targets(None), 99),
        policy("cli", "rule", targets(Some("all")), 99),
    ]);
    let origin = Origin {
        kind: RouteKind::HttpRoute,
        namespace: "cli".into(),
        name: "evil".into(),
        created_unix_s: 0,
        index: 0,
        rule_name: Some("all".into()),
    };
    let decided = |builder: &Builder, service: &str| {
        let name: ServiceName = service.parse().unwrap();
        let http = builder.view().http_service(&name).expect("a service").clone();
        let bytes = http.limits.of(Some(&origin), &name).and_then(|it| it.body_bytes);
        let policy = http.rate_limits.of(Some(&origin), &name).map(|it| it.name.to_string());
        let told = builder.traffic_policy(Section::Limits, &name, Some(&origin));
        (bytes, policy, told.map(|it| format!("{}/{}", it.namespace, it.name)))
    };
    let (rl, rule) = (Some("shop/rl".to_owned()), Some("cli/rule".to_owned()));
    let web_host = "shop/web.shop.svc.cluster.local";
    assert_eq!(decided(&builder, web_host), (Some(10), rl.clone(), rl.clone()));
    let name: ServiceName = web_host.parse().unwrap();
    let http = builder.view().http_service(&name).expect("a service");
    assert!(http.limits.routes.is_empty() && http.rate_limits.routes.is_empty());
    assert_eq!(told(&builder), ["mine: NotPermitted", "rule: NotPermitted", "rl: Accepted"]);
    // The same route for the consumer's own service has its limits.
    builder.apply([route(json!([web, own]))]);
    assert_eq!(decided(&builder, web_host), (Some(10), rl.clone(), rl));
    let own_host = "cli/own.cli.svc.cluster.local";
    assert_eq!(decided(&builder, own_host), (Some(99), rule.clone(), rule));
    assert_eq!(told(&builder), ["mine: Accepted", "rule: Accepted", "rl: Accepted"]);
    let (policy, known) = builder.store().traffic_policies().iter().next().unwrap();
    let message = &conditions(&builder, policy, known)[0].1.message;
    assert!(
        message.ends_with(
            "no effect on requests to `shop/web`: a service or Gateway is \
                               limited by policies of its own namespace alone"
        ),
        "{message}"
    );
}
