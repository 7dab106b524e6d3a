//! Canaries of waypoints, and what becomes there of what is attached to objects.

use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routing::ParentKind;

use super::*;
use crate::attached::{self, Fronted};

fn gateway(name: &str, traffic: &str) -> Event {
    let labels = json!({"istio.io/waypoint-for": traffic});
    let listener = json!({"name": "mesh", "protocol": "HBONE", "port": 15008});
    let spec = json!({"gatewayClassName": "ambit-waypoint", "listeners": [listener]});
    put(Kind::Gateway, &json!({"metadata": meta("shop", name, &labels), "spec": spec}))
}

fn namespace(labels: &Value, weight: &Value) -> Event {
    let annotations = json!({"istio.io/use-waypoint-canary-weight": weight});
    let mut metadata = json!({"name": "shop", "labels": labels});
    if !weight.is_null() {
        metadata["annotations"] = annotations;
    }
    put(Kind::Namespace, &json!({"metadata": metadata}))
}

fn web(labels: &Value, weight: &Value) -> Event {
    let mut metadata = meta("shop", "web", labels);
    if !weight.is_null() {
        metadata["annotations"] = json!({"istio.io/use-waypoint-canary-weight": weight});
    }
    let spec = json!({"ports": [{"port": 80}], "selector": {"app": "web"}});
    put(Kind::Service, &json!({"metadata": metadata, "spec": spec}))
}

const WEB: &str = "shop/web.shop.svc.cluster.local";

/// The waypoints of the service with their shares.
fn shares(builder: &Builder) -> String {
    let service = the_service(builder, WEB);
    let share = |(gateway, weight): &(ambit_model::workload::GatewayAddress, u32)| {
        let GatewayDestination::Hostname(name) = &gateway.destination else { panic!("by name") };
        format!("{} {weight}", name.hostname.split('.').next().unwrap())
    };
    let shares: Vec<String> = service.weighted_waypoints.iter().map(share).collect();
    shares.join(", ")
}

#[test]
fn a_service_is_split_between_its_waypoint_and_a_canary_that_is_fit() {
    let none = json!(null);
    let both = json!({"istio.io/use-waypoint": "one", "istio.io/use-waypoint-canary": "two"});
    let check = |events: Vec<Event>, expected: &str| {
        let mut builder = builder();
        builder.apply([gateway("one", "service"), gateway("two", "service")]);
        builder.apply([gateway("pods", "workload"), namespace(&json!({}), &none)]);
        builder.apply(events);
        assert_eq!(shares(&builder), expected);
        assert!(the_service(&builder, WEB).waypoint.is_some(), "the first one stays");
    };
    check(vec![web(&both, &json!("5"))], "one 95, two 5");
    check(vec![web(&both, &none)], "one 100, two 0");
    check(vec![web(&both, &json!("5%"))], "");
    let named =
        |name: &str| json!({"istio.io/use-waypoint": "one", "istio.io/use-waypoint-canary": name});
    for unfit in ["one", "pods", "gone", "none"] {
        check(vec![web(&named(unfit), &json!("5"))], "");
    }
    check(vec![namespace(&both, &json!("7")), web(&json!({}), &none)], "one 93, two 7");
    let own = json!({"istio.io/use-waypoint": "one"});
    check(vec![namespace(&both, &json!("7")), web(&own, &none)], "");
}

#[test]
fn a_canary_that_comes_or_goes_changes_the_service_and_nothing_else() {
    let mut builder = builder();
    let both = json!({"istio.io/use-waypoint": "one", "istio.io/use-waypoint-canary": "two"});
    builder.apply([gateway("one", "service"), namespace(&json!({}), &json!(null))]);
    builder.apply([web(&both, &json!("5"))]);
    assert_eq!(shares(&builder), "");
    let changes = builder.apply([gateway("two", "all")]);
    assert_eq!(names(&changes), [format!("+{WEB}")]);
    assert_eq!(shares(&builder), "one 95, two 5");
    let changes = builder.apply([web(&both, &json!("6"))]);
    assert_eq!(names(&changes), [format!("+{WEB}")]);
    builder.apply([delete(Kind::Gateway, "shop", "two")]);
    assert_eq!(shares(&builder), "");
    let parent = (ParentKind::Service, ObjectName::new("shop", "web"));
    let canary = builder.store().binding(&parent).unwrap().canary.unwrap();
    assert_eq!(canary.1.unwrap_err().reason(), "WaypointIsNotReady");
}

fn said(condition: Option<StatusCondition>) -> String {
    let said = |it: StatusCondition| format!("{} {}: {}", it.status, it.reason, it.message);
    condition.map(said).unwrap_or_default()
}

#[test]
fn a_policy_says_which_of_its_targets_a_waypoint_enforces_it_for() {
    let mut builder = builder();
    let one = json!({"istio.io/use-waypoint": "one"});
    builder.apply([gateway("one", "service"), namespace(&json!({}), &json!(null))]);
    builder.apply([web(&one, &json!(null)), service("shop", "bare", &json!({"ports": []}))]);
    let check = |builder: &mut Builder, namespace: &str, spec: &Value, expected: &str| {
        builder.apply([policy(namespace, "p", spec)]);
        let name = ObjectName::new(namespace, "p");
        let object = builder.store().policy(&name).unwrap().clone();
        let fronted = Fronted::of(builder);
        let condition = said(attached::of_policy(builder, &fronted, &name, &object));
        assert!(condition.starts_with(expected), "{spec}: {condition}");
        assert!(condition.is_empty() == expected.is_empty(), "{spec}: {condition}");
        let is_whole = condition.starts_with("True Accepted: bound to");
        let is_theirs = attached::is_of_waypoints(builder, &fronted, &name, &object);
        assert_eq!(is_theirs, is_whole, "layer 4 has no part in {spec}");
    };
    let target = |kind: &str, name: &str| {
        let group = match kind {
            "Service" => "",
            "ServiceEntry" => "networking.istio.io",
            _ => "gateway.networking.k8s.io",
        };
        json!({"group": group, "kind": kind, "name": name})
    };
    let to = |targets: &[Value]| json!({ "targetRefs": targets });
    let builder = &mut builder;
    check(builder, "shop", &to(&[target("Service", "web")]), "True Accepted: bound to shop/one");
    check(builder, "shop", &to(&[target("Gateway", "one")]), "True Accepted: bound to shop/one");
    check(builder, "shop", &to(&[target("Gateway", "two")]), "False TargetNotFound");
    check(builder, "shop", &to(&[target("ServiceEntry", "x")]), "False TargetNotFound");
    let bare = "False AncestorNotBound: Service shop/bare is not bound to a waypoint: neither";
    check(builder, "shop", &to(&[target("Service", "bare")]), bare);
    let some = [target("Service", "web"), target("Service", "gone")];
    let expected = "True PartiallyInvalid: Invalid targetRefs: Service.core:shop/gone (Service \
                    shop/gone was not found)";
    check(builder, "shop", &to(&some), expected);
    let none = [target("Service", "bare"), target("Service", "gone")];
    check(builder, "shop", &to(&none), "False Invalid: Invalid targetRefs: Service.core:shop/bare");
    let class = to(&[target("GatewayClass", "istio-waypoint")]);
    check(builder, "shop", &class, "False Invalid");
    check(builder, "istio-system", &class, "True Accepted: bound to istio-waypoint");
    let wrong = json!({"rules": [{"when": [{"key": "request.unknown", "values": ["a"]}]}]});
    check(builder, "shop", &wrong, "False Invalid: spec.rules[0].when[0]");
    check(builder, "shop", &json!({}), "True Accepted: enforced by the waypoints of its namespace");
    check(builder, "bank", &json!({}), "");
    check(builder, "istio-system", &json!({}), "True Accepted: enforced by the waypoints of the");
    check(builder, "shop", &json!({"selector": {"matchLabels": {"app": "web"}}}), "");
}

#[test]
fn a_wildcard_has_an_address_and_an_endpoint_that_is_a_name_where_it_has_a_waypoint() {
    let entry = |labels: &Value| {
        let spec = json!({
            "hosts": ["*.example.com"], "resolution": "DYNAMIC_DNS", "location": "MESH_EXTERNAL",
            "ports": [{"number": 443, "name": "tls", "protocol": "TLS"}],
        });
        put(Kind::ServiceEntry, &json!({"metadata": meta("shop", "out", labels), "spec": spec}))
    };
    let mut builder = builder();
    let hostname = "*.example.com";
    builder.apply([gateway("one", "service"), entry(&json!({}))]);
    let service = the_service(&builder, "shop/*.example.com");
    assert_eq!((service.load_balancing.mode, service.addresses.len()), (Mode::Passthrough, 0));
    builder.apply([entry(&json!({"istio.io/use-waypoint": "one"}))]);
    let service = the_service(&builder, "shop/*.example.com");
    assert_eq!((service.load_balancing.mode, service.addresses.len()), (Mode::Unspecified, 2));
    let endpoint = workload(&builder, "out");
    assert_eq!((&*endpoint.hostname, endpoint.addresses.len()), (hostname, 0));
    assert!(endpoint.services.contains_key(&service.key));
    builder.apply([entry(&json!({}))]);
    let service = the_service(&builder, "shop/*.example.com");
    assert_eq!((service.load_balancing.mode, service.addresses.len()), (Mode::Passthrough, 0));
}

#[test]
fn pods_may_reach_what_the_mesh_configuration_says() {
    let config = |mesh: &str| {
        let metadata = meta("istio-system", "istio", &json!({}));
        put(Kind::ConfigMap, &json!({"metadata": metadata, "data": {"mesh": mesh}}))
    };
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({}), "10.0.0.2"));
    let entry = json!({"metadata": meta("shop", "legacy", &json!({})),
        "spec": {"address": "192.0.2.7"}});
    builder.apply([put(Kind::WorkloadEntry, &entry)]);
    assert!(!workload(&builder, "web").registry_only);
    let mode = |mode: &str| format!("outboundTrafficPolicy: {{mode: {mode}}}");
    let changes = builder.apply([config(&mode("REGISTRY_ONLY"))]);
    assert_eq!(names(&changes), ["+web", "+legacy"]);
    assert!(workload(&builder, "web").registry_only);
    assert!(workload(&builder, "legacy").registry_only, "a computer outside may have a proxy");
    builder.apply(pod("shop", "late", &json!({}), "10.0.0.3"));
    assert!(workload(&builder, "late").registry_only);
    builder.apply([config(&mode("ALLOW_ANY"))]);
    assert!(!workload(&builder, "web").registry_only);
    builder.apply([config(&mode("ALLOW_SOME"))]);
    assert!(workload(&builder, "web").registry_only, "what is wrong is read strictly");
    builder.apply([delete(Kind::ConfigMap, "istio-system", "istio")]);
    assert!(!workload(&builder, "web").registry_only);
}
