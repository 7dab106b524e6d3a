//! Services name the gateways that do what their waypoint does, if they ask for it.

use super::*;

const APP: &str = "shop/app.shop.svc.cluster.local";

fn labels(says: &str) -> Value {
    let mut labels = json!({"istio.io/use-waypoint": "way"});
    if !says.is_empty() {
        labels["istio.io/ingress-use-waypoint"] = says.into();
    }
    labels
}

/// A Service with a waypoint that says this, or nothing.
fn fronted(name: &str, says: &str) -> Event {
    let spec = json!({"ports": [{"port": 80}]});
    put(Kind::Service, &json!({"metadata": meta("shop", name, &labels(says)), "spec": spec}))
}

fn to_app() -> Event {
    route(Kind::HttpRoute, "shop", "r", "", &json!([]))
}

/// A gateway, a waypoint, a service with it, and a route from the one to the other.
fn mesh() -> Builder {
    let mut builder = builder();
    let way = json!({"gatewayClassName": "ambit-waypoint",
        "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]});
    let way = json!({"metadata": meta("shop", "way", &json!({})), "spec": way});
    builder.apply([gateway("ambit", &web("All")), namespace("shop", &json!({}))]);
    builder.apply([put(Kind::Gateway, &way), fronted("app", ""), to_app()]);
    builder
}

/// How many gateways a service names.
fn entrances(builder: &Builder, name: &str) -> usize {
    let service = the_service(builder, &format!("shop/{name}.shop.svc.cluster.local"));
    assert!(service.entrances.iter().all(|it| *it == own_service(builder)));
    service.entrances.len()
}

#[test]
fn a_service_asks_or_its_namespace() {
    let mut builder = mesh();
    assert_eq!(entrances(&builder, "app"), 0, "it does not ask");
    for (says, expected) in [("false", 1), ("true", 0), ("False", 0)] {
        builder.apply([fronted("app", says)]);
        assert_eq!(entrances(&builder, "app"), expected, "{says}");
        assert_eq!(the_service(&builder, APP).ingress_use_waypoint, says == "true");
    }
    let asking = || namespace("shop", &json!({"istio.io/ingress-use-waypoint": "false"}));
    builder.apply([asking()]);
    assert_eq!(entrances(&builder, "app"), 0, "a word that means nothing is not passed by");
    builder.apply([fronted("app", "")]);
    assert_eq!(entrances(&builder, "app"), 1);
    builder.apply([namespace("shop", &json!({}))]);
    assert_eq!(entrances(&builder, "app"), 0);
    builder.apply([asking()]);
    assert_eq!(entrances(&builder, "app"), 1);
}

#[test]
fn those_are_named_whose_routes_lead_there() {
    let mut builder = mesh();
    builder.apply([fronted("app", "false")]);
    let changes = builder.apply([delete(Kind::HttpRoute, "shop", "r")]);
    assert!(names(&changes).contains(&format!("+{APP}")), "{:?}", names(&changes));
    assert_eq!(entrances(&builder, "app"), 0, "no route leads to it");
    // A route of strangers that nobody has granted leads nowhere.
    let spec = json!({"parentRefs": parents(""), "rules": [{"backendRefs":
        [{"name": "app", "namespace": "shop", "port": 80}]}]});
    let metadata = meta("other", "r", &json!({}));
    builder.apply([put(Kind::HttpRoute, &json!({"metadata": metadata, "spec": spec}))]);
    assert_eq!(entrances(&builder, "app"), 0);
    builder.apply([to_app()]);
    assert_eq!(entrances(&builder, "app"), 1);
    builder.apply([delete(Kind::Gateway, "infra", "edge")]);
    assert_eq!(entrances(&builder, "app"), 0, "the gateway is gone");
    builder.apply([gateway("ambit", &web("All"))]);
    assert_eq!(entrances(&builder, "app"), 1);
    builder.apply([delete(Kind::Gateway, "shop", "way")]);
    assert_eq!(entrances(&builder, "app"), 0, "what it names is no waypoint");
}

#[test]
fn services_to_which_its_own_routes_lead_name_them_too() {
    let mut builder = mesh();
    builder.apply(["app", "v2", "v3"].map(|name| fronted(name, "false")));
    let backend = |name: &str| json!({"name": name, "port": 80});
    let spec = json!({"parentRefs": [{"kind": "Service", "group": "", "name": "app"}],
        "rules": [{"backendRefs": [backend("app"), backend("v2")]}]});
    let own = json!({"metadata": meta("shop", "own", &json!({})), "spec": spec});
    let all = |builder: &Builder| ["app", "v2", "v3"].map(|name| entrances(builder, name));
    assert_eq!(all(&builder), [1, 0, 0]);
    builder.apply([put(Kind::HttpRoute, &own)]);
    assert_eq!(all(&builder), [1, 1, 0]);
    builder.apply([fronted("app", "true")]);
    assert_eq!(all(&builder), [0, 0, 0], "nobody enters what leads there");
    builder.apply([fronted("app", "false")]);
    assert_eq!(all(&builder), [1, 1, 0]);
    // Another waypoint may hold more.
    let other = json!({"istio.io/use-waypoint": "other", "istio.io/ingress-use-waypoint": "false"});
    let spec = json!({"ports": [{"port": 80}]});
    let v2 = json!({"metadata": meta("shop", "v2", &other), "spec": spec});
    builder.apply([put(Kind::Service, &v2)]);
    assert_eq!(all(&builder), [1, 0, 0]);
    builder.apply([fronted("v2", "false")]);
    assert_eq!(all(&builder), [1, 1, 0]);
    builder.apply([delete(Kind::HttpRoute, "shop", "own")]);
    assert_eq!(all(&builder), [1, 0, 0]);
}
