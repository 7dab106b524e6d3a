//! Which policies hold for the requests to which service.

use ambit_model::http::policy::{Action, RequestPolicy};

use super::*;

fn held(builder: &Builder, service: &str) -> String {
    let known = builder.view().http_service(&service.parse().unwrap()).expect("a service");
    let names = known.policies.iter().map(ToString::to_string);
    names.collect::<Vec<_>>().join(" ")
}

fn sent<'a>(changes: &'a [Change], name: &str) -> Option<&'a RequestPolicy> {
    changes.iter().find_map(|change| match change {
        Change::RequestPolicy(policy) if policy.key.to_string() == name => Some(&**policy),
        _ => None,
    })
}

fn target(group: &str, kind: &str, name: &str) -> Value {
    json!({"targetRefs": [{"group": group, "kind": kind, "name": name}]})
}

#[test]
fn policies_hold_for_what_they_are_attached_to() {
    let mut builder = builder();
    let ports = json!({"ports": [{"port": 80}]});
    builder.apply([
        service("shop", "web", &ports),
        service("shop", "api", &ports),
        service("bank", "pay", &ports),
    ]);
    let [web, api, pay] = ["web.shop", "api.shop", "pay.bank"].map(|name| {
        let (_, namespace) = name.split_once('.').unwrap();
        format!("{namespace}/{name}.svc.cluster.local")
    });
    let check = |builder: &Builder, expected: [&str; 3]| {
        assert_eq!([&web, &api, &pay].map(|it| held(builder, it)), expected);
    };
    let changes = builder.apply([policy("shop", "one", &target("", "Service", "web"))]);
    assert_eq!(sent(&changes, "shop/one").unwrap().action, Action::Allow);
    let touched = changes.iter().filter(|it| matches!(it, Change::HttpService(_))).count();
    check(&builder, ["shop/one", "", ""]);
    assert_eq!(touched, 1, "only what it is attached to changes");
    builder.apply([policy("shop", "all", &json!({}))]);
    check(&builder, ["shop/all shop/one", "shop/all", ""]);
    builder.apply([policy("istio-system", "mesh", &json!({}))]);
    check(
        &builder,
        ["istio-system/mesh shop/all shop/one", "istio-system/mesh shop/all", "istio-system/mesh"],
    );
    builder.apply([
        delete(Kind::AuthorizationPolicy, "istio-system", "mesh"),
        delete(Kind::AuthorizationPolicy, "shop", "all"),
        policy("shop", "one", &json!({"selector": {"matchLabels": {"app": "web"}}})),
    ]);
    check(&builder, ["", "", ""]);
    let gateway = target("gateway.networking.k8s.io", "Gateway", "api");
    builder.apply([policy("shop", "way", &gateway)]);
    check(&builder, ["", "shop/way", ""]);
}

#[test]
fn a_policy_for_a_class_holds_where_the_class_is_one_of_waypoints() {
    let mut builder = builder();
    builder.apply([service("shop", "web", &json!({"ports": [{"port": 80}]}))]);
    let host = "shop/web.shop.svc.cluster.local";
    let class = |controller: &str| {
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "own", "uid": "own"}, "spec": {"controllerName": controller}});
        put(Kind::GatewayClass, &object)
    };
    for (name, expected) in
        [("istio-waypoint", "istio-system/p"), ("ambit-waypoint", "istio-system/p"), ("own", "")]
    {
        let target = target("gateway.networking.k8s.io", "GatewayClass", name);
        builder.apply([policy("istio-system", "p", &target)]);
        assert_eq!(held(&builder, host), expected, "{name}");
    }
    builder.apply([class("ambit.io/mesh-controller")]);
    assert_eq!(held(&builder, host), "istio-system/p", "the class is one of waypoints now");
    builder.apply([class("example.com/gateway")]);
    assert_eq!(held(&builder, host), "");
}

#[test]
fn a_policy_that_cannot_be_honoured_denies_what_it_is_for() {
    let mut builder = builder();
    builder.apply([service("shop", "web", &json!({"ports": [{"port": 80}]}))]);
    let host = "shop/web.shop.svc.cluster.local";
    let mut spec = target("", "Service", "web");
    spec["rules"] = json!([{"when": [{"key": "request.unknown", "values": ["a"]}]}]);
    let changes = builder.apply([policy("shop", "one", &spec)]);
    let denial = sent(&changes, "shop/one").expect("it is sent");
    assert_eq!((&denial.action, denial.rules.len()), (&Action::Deny, 1));
    let mut audit = spec.clone();
    audit["action"] = json!("AUDIT");
    let changes = builder.apply([policy("shop", "two", &audit)]);
    let nothing = sent(&changes, "shop/two").expect("it is sent");
    assert_eq!((&nothing.action, nothing.rules.len()), (&Action::Audit, 0));
    builder.apply([delete(Kind::AuthorizationPolicy, "shop", "two")]);
    assert_eq!(held(&builder, host), "shop/one");
    let changes = builder.apply([policy("shop", "one", &target("", "Pod", "web"))]);
    assert_eq!(changes.iter().filter(|it| matches!(it, Change::RequestPolicy(_))).count(), 0);
    assert_eq!(held(&builder, host), "shop/one", "it denies the whole namespace");
    let changes = builder.apply([delete(Kind::AuthorizationPolicy, "shop", "one")]);
    assert!(changes.iter().any(|it| matches!(it, Change::RemoveRequestPolicy(_))));
    assert_eq!(held(&builder, host), "");
}

#[test]
fn tokens_are_read_where_their_authentication_holds() {
    let mut builder = builder();
    let of = |app: &str| json!({"selector": {"app": app}, "ports": [{"port": 80}]});
    builder.apply([
        service("shop", "web", &of("web")),
        service("shop", "api", &of("api")),
        service("bank", "pay", &of("web")),
    ]);
    let put = |namespace: &str, spec: &Value| {
        let object = json!({
            "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
            "metadata": {"namespace": namespace, "name": "jwt"}, "spec": spec,
        });
        super::put(Kind::RequestAuthentication, &object)
    };
    let rules = json!([{"issuer": "https://a", "jwks": "{\"keys\":[]}"}]);
    let with = |more: Value| {
        let mut spec = json!({"jwtRules": rules});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let attached = target("", "Service", "api");
    let selecting = json!({"selector": {"matchLabels": {"app": "web"}}});
    for (namespace, more, expected) in [
        ("shop", json!({}), [1, 1, 0]),
        ("istio-system", json!({}), [1, 1, 1]),
        ("shop", attached, [0, 1, 0]),
        ("shop", selecting.clone(), [1, 0, 0]),
        ("istio-system", selecting, [1, 0, 1]),
    ] {
        builder.apply([put(namespace, &with(more.clone()))]);
        let held = ["shop/web.shop", "shop/api.shop", "bank/pay.bank"].map(|name| {
            let name = format!("{name}.svc.cluster.local").parse().unwrap();
            let known = builder.view().http_service(&name).expect("a service");
            let rules = &known.authentication.rules;
            assert!(rules.iter().all(|it| &*it.from_headers[0].0 == "authorization"));
            rules.len()
        });
        assert_eq!(held, expected, "{namespace} {more}");
        builder.apply([delete(Kind::RequestAuthentication, namespace, "jwt")]);
    }
    builder.apply([put("shop", &json!({"jwtRules": [{"issuer": ""}]}))]);
    let web = builder.view().http_service(&"shop/web.shop.svc.cluster.local".parse().unwrap());
    let problem = web.unwrap().authentication.problem.clone().unwrap();
    assert!(problem.contains("spec.jwtRules[0].issuer"), "{problem}");
}
