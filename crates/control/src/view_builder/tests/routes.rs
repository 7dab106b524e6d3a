//! Routes become what waypoints know of services, and a change costs only what depends on it.

use ambit_model::http::rule::{Action, Destination};
use ambit_model::http::service::Protocol;

use super::super::edge::Edges;
use super::*;

fn route(kind: Kind, namespace: &str, name: &str, parents: &Value, backends: &Value) -> Event {
    let spec = json!({"parentRefs": parents, "rules": [{"backendRefs": backends}]});
    put(kind, &json!({"metadata": meta(namespace, name, &json!({})), "spec": spec}))
}

fn parent(name: &str, namespace: &str) -> Value {
    json!({"group": "", "kind": "Service", "name": name, "namespace": namespace})
}

fn at_port(name: &str, namespace: &str, port: u16) -> Value {
    let mut parent = parent(name, namespace);
    parent["port"] = port.into();
    parent
}

fn web() -> Event {
    service("shop", "web", &json!({"ports": [{"port": 80, "name": "http"}, {"port": 90}]}))
}

/// Names of services of which something changed for requests.
fn changed(changes: &[Change]) -> Vec<String> {
    let name = |change: &Change| match change {
        Change::HttpService(it) => Some(format!("+{}", it.service.hostname)),
        Change::RemoveHttpService(name) => Some(format!("-{}", name.hostname)),
        _ => None,
    };
    changes.iter().filter_map(name).collect()
}

/// The routes, by name, that answer a client of this namespace at a port.
fn asked(builder: &Builder, service: &str, port: u16, client: &str) -> Option<String> {
    let service = builder.view().http_service(&service.parse().unwrap())?;
    let table = service.routes(port, Some(client))?;
    let names = table.iter().map(|found| found.rule.origin.name.to_string());
    Some(names.collect::<Vec<_>>().join(" "))
}

/// The only backend of the first rule.
fn backend(builder: &Builder, service: &str) -> Result<String, String> {
    let service = builder.view().http_service(&service.parse().unwrap()).expect("a service");
    let table = service.routes(80, None).expect("a route");
    let rule = table.iter().next().expect("a rule").rule;
    let Action::Forward { backends, .. } = &rule.action else { panic!("it forwards") };
    match &backends[0].destination {
        Destination::Service { name, port, .. } => Ok(format!("{name}:{port}")),
        Destination::Invalid(why) => Err(why.to_string()),
    }
}

#[test]
fn routes_are_for_everybody_or_for_their_namespace() {
    let mut builder = builder();
    builder.apply([web()]);
    let host = "shop/web.shop.svc.cluster.local";
    assert_eq!(asked(&builder, host, 80, "shop"), None, "it is known, and has no route");
    let none = json!([]);
    builder.apply([
        route(Kind::HttpRoute, "shop", "all", &json!([parent("web", "shop")]), &none),
        route(Kind::HttpRoute, "shop", "one", &json!([at_port("web", "shop", 90)]), &none),
        route(Kind::GrpcRoute, "app", "own", &json!([at_port("web", "shop", 80)]), &none),
        route(Kind::HttpRoute, "app", "lost", &json!([at_port("web", "shop", 81)]), &none),
    ]);
    for (port, client, expected) in [
        (80, "shop", "all"),
        (90, "shop", "all one"),
        (80, "app", "own"),
        (90, "app", "all one"),
        (80, "other", "all"),
    ] {
        assert_eq!(
            asked(&builder, host, port, client).as_deref(),
            Some(expected),
            "{port} {client}"
        );
    }
    let protocols = &builder.view().http_service(&host.parse().unwrap()).unwrap().protocols;
    assert_eq!(protocols.clone().into_iter().collect::<Vec<_>>(), [(80, Protocol::Http)]);
    builder.apply([delete(Kind::HttpRoute, "shop", "all"), delete(Kind::HttpRoute, "shop", "one")]);
    assert_eq!(asked(&builder, host, 80, "shop"), None);
    let changes = builder.apply([delete(Kind::Service, "shop", "web")]);
    assert_eq!(changed(&changes), ["-web.shop.svc.cluster.local"]);
    // What it attached to is back.
    builder.apply([web()]);
    assert_eq!(asked(&builder, host, 80, "app").as_deref(), Some("own"));
}

#[test]
fn a_route_that_changes_touches_its_services_alone() {
    let mut builder = builder();
    let name = |index: usize| format!("s{index:04}");
    let of = |index: usize, backends: &Value| {
        let parents = json!([parent(&name(index), "shop")]);
        route(Kind::HttpRoute, "shop", &name(index), &parents, backends)
    };
    let ports = json!({"ports": [{"port": 80}]});
    builder.apply((0..500).map(|index| service("shop", &name(index), &ports)));
    let own = |index: usize| json!([{"name": name(index), "port": 80}]);
    let changes = builder.apply((0..500).map(|index| of(index, &own(index))));
    assert_eq!(changed(&changes).len(), 500);
    let changes = builder.apply([of(7, &own(8))]);
    assert_eq!(changed(&changes), ["+s0007.shop.svc.cluster.local"]);
    assert_eq!(changes.len(), 1);
    assert_eq!(builder.apply([of(7, &own(8))]).len(), 0, "nothing changed");
    // A backend that goes: its own service, and the one whose route leads there.
    let changes = builder.apply([delete(Kind::Service, "shop", &name(8))]);
    let expected = ["+s0007.shop.svc.cluster.local", "-s0008.shop.svc.cluster.local"];
    assert_eq!(changed(&changes), expected);
    let moved =
        route(Kind::HttpRoute, "shop", &name(7), &json!([parent(&name(9), "shop")]), &own(9));
    let expected = ["+s0007.shop.svc.cluster.local", "+s0009.shop.svc.cluster.local"];
    assert_eq!(changed(&builder.apply([moved])), expected, "where it was, and where it is");
}

#[test]
fn backends_come_and_go() {
    let mut builder = builder();
    let host = "shop/web.shop.svc.cluster.local";
    let leads_to = |backend: &Value| {
        route(Kind::HttpRoute, "shop", "r", &json!([parent("web", "shop")]), &json!([backend]))
    };
    builder.apply([web(), leads_to(&json!({"name": "pay", "namespace": "bank", "port": 80}))]);
    let why = |builder: &Builder| backend(builder, host).expect_err("it cannot be used");
    assert!(why(&builder).contains("no ReferenceGrant"), "{}", why(&builder));
    let grant = json!({"metadata": meta("bank", "g", &json!({})), "spec": {
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}],
        "to": [{"group": "", "kind": "Service"}]}});
    builder.apply([put(Kind::ReferenceGrant, &grant)]);
    assert!(why(&builder).contains("does not exist"), "{}", why(&builder));
    builder.apply([service("bank", "pay", &json!({"ports": [{"port": 80}]}))]);
    assert_eq!(backend(&builder, host).as_deref(), Ok("bank/pay.bank.svc.cluster.local:80"));
    builder.apply([service("bank", "pay", &json!({"ports": [{"port": 81}]}))]);
    assert!(why(&builder).contains("has no port 80"), "{}", why(&builder));
    builder.apply([delete(Kind::ReferenceGrant, "bank", "g")]);
    assert!(why(&builder).contains("no ReferenceGrant"), "{}", why(&builder));
    let hostname = json!({"group": "networking.istio.io", "kind": "Hostname",
        "name": "x.example.com", "port": 443});
    builder.apply([leads_to(&hostname)]);
    assert!(why(&builder).contains("no Service and no ServiceEntry"), "{}", why(&builder));
    let entry = json!({"metadata": meta("edge", "out", &json!({})), "spec": {
        "hosts": ["x.example.com"], "resolution": "NONE",
        "ports": [{"number": 443, "name": "https", "protocol": "HTTPS"}]}});
    builder.apply([put(Kind::ServiceEntry, &entry)]);
    assert_eq!(backend(&builder, host).as_deref(), Ok("edge/x.example.com:443"));
    let entry_route = route(
        Kind::HttpRoute,
        "edge",
        "e",
        &json!([{"name": "out",
        "group": "networking.istio.io", "kind": "ServiceEntry"}]),
        &json!([]),
    );
    builder.apply([entry_route]);
    assert_eq!(asked(&builder, "edge/x.example.com", 443, "shop").as_deref(), Some("e"));
    let known = builder.view().http_service(&"edge/x.example.com".parse().unwrap()).unwrap();
    assert_eq!(known.protocol(443), Protocol::Tls);
}

#[test]
fn conditions_are_of_each_parent() {
    let mut builder = builder();
    let parents = json!([parent("web", "shop"), parent("gone", "shop"), {"name": "gateway"}]);
    builder.apply([web(), route(Kind::HttpRoute, "shop", "r", &parents, &json!([]))]);
    let (name, route) = builder.store().routes().iter().next().unwrap();
    let routing = builder.routing(name).unwrap();
    let told = http_services::conditions(&Edges::new(builder.store()), route, routing);
    let told: Vec<_> = told
        .iter()
        .map(|(parent, all)| {
            let all: Vec<_> = all.iter().map(|it| format!("{}={}", it.kind, it.reason)).collect();
            format!("{} {}", parent.name, all.join(" "))
        })
        .collect();
    let expected = [
        "web Accepted=Accepted ResolvedRefs=ResolvedRefs ResolvedWaypoints=MissingUseWaypointLabel",
        "gone Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs",
        // It is another controller's, as far as we know.
        "gateway ",
    ];
    assert_eq!(told, expected);
}

#[test]
fn of_an_http_route_beside_a_grpc_route_it_is_said_where_it_does_not_hold() {
    let service = "shop/web.shop.svc.cluster.local";
    let all = parent("web", "shop");
    let at = |port| at_port("web", "shop", port);
    let whole = "only GRPCRoutes hold at port 80 (GRPCRoute shop/g), port 90 (GRPCRoute shop/g): ";
    let of_80 = "only GRPCRoutes hold at port 80 (GRPCRoute shop/g): ";
    let part = "the route is in force; only GRPCRoutes hold at port 80 (GRPCRoute shop/g): ";
    let why = "where both kinds are attached to a port, no HTTPRoute does (GEP-1294)";
    let in_force = "the route is in force";
    for (namespace, http, grpc, verdict, message, answers_80) in [
        ("shop", all.clone(), all.clone(), "False Conflicted", format!("{whole}{why}"), "g"),
        ("shop", at(80), all.clone(), "False Conflicted", format!("{of_80}{why}"), "g"),
        ("shop", all.clone(), at(80), "True Accepted", format!("{part}{why}"), "g"),
        ("shop", at(80), at(90), "True Accepted", in_force.to_owned(), "h"),
        // They are for other clients.
        ("app", all.clone(), all.clone(), "True Accepted", in_force.to_owned(), "h"),
    ] {
        let mut builder = builder();
        builder.apply([
            web(),
            route(Kind::HttpRoute, "shop", "h", &json!([http]), &json!([])),
            route(Kind::GrpcRoute, namespace, "g", &json!([grpc]), &json!([])),
        ]);
        let name = (Kind::HttpRoute, ObjectName::new("shop", "h"));
        let route = builder.store().routes().get(&name).unwrap();
        let routing = builder.routing(&name).unwrap();
        let told = http_services::conditions(&Edges::new(builder.store()), route, routing);
        let accepted = &told[0].1[0];
        assert_eq!(format!("{} {}", accepted.status, accepted.reason), verdict, "{http} {grpc}");
        assert_eq!(accepted.message, message, "{http} {grpc}");
        assert_eq!(asked(&builder, service, 80, "shop").as_deref(), Some(answers_80));
    }
}
