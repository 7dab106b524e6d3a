//! DestinationRules and VirtualServices become what waypoints know of services.

use ambit_model::http::rule::Destination;
use ambit_model::http::traffic::Balancing;

use super::*;

const WEB: &str = "shop/web.shop.svc.cluster.local";

fn rule(namespace: &str, name: &str, spec: &Value) -> Event {
    put(
        Kind::DestinationRule,
        &json!({"metadata": meta(namespace, name, &json!({})), "spec": spec}),
    )
}

fn virtual_service(namespace: &str, name: &str, spec: &Value) -> Event {
    let object = json!({"metadata": meta(namespace, name, &json!({})), "spec": spec});
    put(Kind::VirtualService, &object)
}

fn web() -> Event {
    service("shop", "web", &json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}))
}

/// A waypoint of another namespace, and the label of `shop` that names it.
fn waypoint() -> Vec<Event> {
    let gateway = json!({"metadata": meta("infra", "way", &json!({})), "spec": {
        "gatewayClassName": "istio-waypoint", "listeners": [{"name": "mesh", "protocol": "HBONE",
            "port": 15008, "allowedRoutes": {"namespaces": {"from": "All"}}}]}});
    let namespace = json!({"metadata": {"name": "shop", "labels": {
        "istio.io/use-waypoint": "way", "istio.io/use-waypoint-namespace": "infra"}}});
    vec![put(Kind::Gateway, &gateway), put(Kind::Namespace, &namespace)]
}

fn known(builder: &Builder, name: &str) -> std::sync::Arc<ambit_model::http::service::ServiceHttp> {
    builder.view().http_service(&name.parse().unwrap()).expect("a service").clone()
}

fn balancing(builder: &Builder) -> Balancing {
    known(builder, WEB).traffic(80, None).balancing.clone()
}

fn simple(host: &str, simple: &str) -> Value {
    json!({"host": host, "trafficPolicy": {"loadBalancer": {"simple": simple}}})
}

/// The names of the rules for requests at a port, in their order.
fn rules(builder: &Builder, port: u16) -> String {
    let http = known(builder, WEB);
    let Some(table) = http.routes(port, None) else { return "none".to_owned() };
    let name = |found: ambit_model::http::table::Found<'_>| {
        let origin = &found.rule.origin;
        format!("{}:{}", origin.name, origin.rule_name.as_deref().unwrap_or("-"))
    };
    table.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_nearest_namespace_decides_then_the_most_specific_host() {
    use Balancing::{LeastRequest, Random, RoundRobin};
    let mut builder = builder();
    builder.apply([web()]);
    builder.apply([rule("istio-system", "root", &simple("*", "RANDOM"))]);
    assert_eq!(balancing(&builder), Random);
    builder.apply([rule("shop", "wide", &simple("*.shop.svc.cluster.local", "ROUND_ROBIN"))]);
    assert_eq!(balancing(&builder), RoundRobin, "the service's namespace before the root");
    builder.apply([rule("shop", "exact", &simple("web", "LEAST_REQUEST"))]);
    assert_eq!(balancing(&builder), LeastRequest, "the more specific host");
    builder.apply(waypoint());
    assert_eq!(balancing(&builder), LeastRequest);
    builder.apply([rule("infra", "far", &simple("web.shop.svc.cluster.local", "RANDOM"))]);
    assert_eq!(balancing(&builder), Random, "the waypoint's namespace before the service's");
    builder.apply([delete(Kind::DestinationRule, "infra", "far")]);
    let mut private = simple("web", "LEAST_REQUEST");
    private["exportTo"] = json!(["."]);
    builder.apply([rule("shop", "exact", &private)]);
    assert_eq!(balancing(&builder), RoundRobin, "not exported to the waypoint's namespace");
    let mut of_some = simple("web", "RANDOM");
    of_some["workloadSelector"] = json!({"matchLabels": {"app": "client"}});
    builder.apply([rule("shop", "exact", &of_some)]);
    assert_eq!(balancing(&builder), RoundRobin, "a rule for some clients counts for none");
    builder.apply([delete(Kind::DestinationRule, "shop", "wide")]);
    assert_eq!(balancing(&builder), Random, "the root namespace again");
    assert_eq!(builder.apply([rule("app", "foreign", &simple("web", "RANDOM"))]).len(), 0);
}

#[test]
fn subsets_are_the_endpoints_with_their_labels() {
    let mut builder = builder();
    let labels = |version: &str| json!({"app": "web", "version": version});
    let subsets = json!({"host": "web", "subsets": [
        {"name": "v1", "labels": {"version": "v1"}},
        {"name": "v2", "labels": {"version": "v2"}},
        {"name": "other", "labels": {"app": "other"}}]});
    builder.apply([web(), rule("shop", "web", &subsets)]);
    let members = |builder: &Builder, subset: &str| {
        let http = known(builder, WEB);
        let members = http.subsets[subset].members().iter();
        let names = members.map(|uid| uid.rsplit('/').next().unwrap_or_default().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(members(&builder, "v1"), "");
    builder.apply(pod("shop", "a", &labels("v1"), "10.0.0.1"));
    builder.apply(pod("shop", "b", &labels("v1"), "10.0.0.2"));
    builder.apply(pod("shop", "c", &json!({"app": "c", "version": "v1"}), "10.0.0.3"));
    let all = |builder: &Builder| ["v1", "v2", "other"].map(|name| members(builder, name));
    assert_eq!(all(&builder), ["a b", "", ""]);
    builder.apply(pod("shop", "b", &labels("v2"), "10.0.0.2"));
    assert_eq!(all(&builder), ["a", "b", ""], "its label changed");
    builder.apply([delete(Kind::Pod, "shop", "a")]);
    assert_eq!(all(&builder), ["", "b", ""]);
    // Another rule for the same host adds a subset, and changes none.
    let more = json!({"host": "web.shop.svc.cluster.local", "subsets": [
        {"name": "v2", "labels": {"version": "none"}},
        {"name": "all", "labels": {}}]});
    builder.apply([rule("shop", "x-more", &more)]);
    assert_eq!(members(&builder, "v2"), "b");
    assert_eq!(members(&builder, "all"), "b");
    let entry = json!({"metadata": meta("shop", "out", &json!({})), "spec": {
        "hosts": ["out.example.com"], "resolution": "STATIC",
        "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
        "endpoints": [{"address": "192.0.2.1", "labels": {"version": "v1"}},
            {"address": "192.0.2.2", "labels": {"version": "v2"}}]}});
    let of_entry = json!({"host": "out.example.com", "subsets": [
        {"name": "v1", "labels": {"version": "v1"}}]});
    builder.apply([put(Kind::ServiceEntry, &entry), rule("shop", "out", &of_entry)]);
    let http = known(&builder, "shop/out.example.com");
    let uids = http.subsets["v1"].members();
    assert_eq!(uids.len(), 1);
    assert!(builder.view().workload(&uids[0]).is_some(), "{uids:?}");
}

#[test]
fn virtual_services_are_of_the_waypoints_and_the_services_namespace() {
    let mut builder = builder();
    let to = |host: &str| json!([{"destination": {"host": host}}]);
    let one = |name: &str| json!({"hosts": ["web"], "http": [{"name": name, "route": to("web")}]});
    builder.apply([web(), virtual_service("shop", "own", &one("a"))]);
    assert_eq!(rules(&builder, 80), "own:a");
    let far = json!({"hosts": ["*.cluster.local"],
        "http": [{"name": "b", "route": to("web.shop.svc.cluster.local")}]});
    builder.apply([virtual_service("infra", "far", &far)]);
    assert_eq!(rules(&builder, 80), "own:a", "it is of neither namespace");
    builder.apply(waypoint());
    assert_eq!(rules(&builder, 80), "far:b own:a");
    let mut private = one("a");
    private["exportTo"] = json!(["."]);
    builder.apply([virtual_service("shop", "own", &private)]);
    assert_eq!(rules(&builder, 80), "far:b", "not exported to the waypoint's namespace");
    let mut of_gateway = one("a");
    of_gateway["gateways"] = json!(["edge"]);
    builder.apply([virtual_service("shop", "own", &of_gateway)]);
    assert_eq!(rules(&builder, 80), "far:b", "it is for a gateway");
    // An HTTPRoute comes first, whatever its age.
    let parents = json!([{"group": "", "kind": "Service", "name": "web"}]);
    let spec = json!({"parentRefs": parents, "rules": [{"name": "r"}]});
    let route = json!({"metadata": meta("shop", "route", &json!({})), "spec": spec});
    builder.apply([put(Kind::HttpRoute, &route)]);
    assert_eq!(rules(&builder, 80), "route:r far:b");
    builder.apply([delete(Kind::HttpRoute, "shop", "route")]);
    builder.apply([delete(Kind::VirtualService, "infra", "far")]);
    assert_eq!(rules(&builder, 80), "none");
}

#[test]
fn a_virtual_service_follows_what_it_names() {
    let mut builder = builder();
    let spec = json!({"hosts": ["web"], "http": [
        {"name": "a", "route": [{"destination": {"host": "api"}}]},
        {"name": "b", "delegate": {"name": "team"}}]});
    builder.apply([web(), virtual_service("shop", "own", &spec)]);
    let leads_to = |builder: &Builder| {
        let http = known(builder, WEB);
        let table = http.routes(80, None).expect("a table");
        let rule = table.iter().next().expect("a rule").rule;
        let ambit_model::http::rule::Action::Forward { backends, .. } = &rule.action else {
            panic!("it forwards")
        };
        match &backends[0].destination {
            Destination::Service { name, port, .. } => format!("{name}:{port}"),
            Destination::Invalid(why) => why.to_string(),
        }
    };
    assert!(leads_to(&builder).contains("`api`"), "{}", leads_to(&builder));
    let api = |ports: Value| service("shop", "api", &json!({"ports": ports}));
    builder.apply([api(json!([{"port": 8080}]))]);
    assert_eq!(leads_to(&builder), "shop/api.shop.svc.cluster.local:8080");
    builder.apply([api(json!([{"port": 80, "name": "a"}, {"port": 90, "name": "b"}]))]);
    assert_eq!(leads_to(&builder), "shop/api.shop.svc.cluster.local:80", "the port of the request");
    assert_eq!(rules(&builder, 80), "own:a");
    let remarks = |builder: &Builder| {
        let (_, it) = builder.store().virtual_services().iter().next().expect("it is there");
        let remarks = builder.virtual_service_remarks(it);
        remarks.iter().map(|it| it.at.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(remarks(&builder), "spec.http[1].delegate");
    let team = json!({"http": [{"name": "c", "route": [{"destination": {"host": "far"}}]}]});
    let changes = builder.apply([virtual_service("shop", "team", &team)]);
    assert_eq!(changes.len(), 1);
    assert_eq!(rules(&builder, 80), "own:a own:b-c");
    let changes = builder.apply([service("shop", "far", &json!({"ports": [{"port": 80}]}))]);
    let is_web = |it: &Change| match it {
        Change::HttpService(it) => it.service.to_string() == WEB,
        _ => false,
    };
    assert!(changes.iter().any(is_web), "a backend of a delegate came");
    assert_eq!(remarks(&builder), "");
}

#[test]
fn a_rule_that_cannot_be_read_refuses_whatever_the_others_say() {
    let mut builder = builder();
    builder.apply([web(), rule("shop", "a-first", &simple("web", "RANDOM"))]);
    let unreadable = |name: &str| {
        let object = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": meta("shop", name, &json!({})), "spec": {"host": "web"}});
        let mut object: ambit_manifest::destination_rule::DestinationRule =
            serde_json::from_value(object).unwrap();
        object.unreadable = Some("spec: it is newer".to_owned());
        Event::Put(ambit_manifest::Typed::DestinationRule(object.into()))
    };
    builder.apply([unreadable("b-second")]);
    let refusal = |builder: &Builder| known(builder, WEB).traffic(80, Some("v1")).refusal.clone();
    let expected = "its DestinationRule shop/b-second: it cannot be read: spec: it is newer";
    assert_eq!(refusal(&builder).as_deref(), Some(expected));
    builder.apply([delete(Kind::DestinationRule, "shop", "b-second")]);
    assert_eq!((refusal(&builder), balancing(&builder)), (None, Balancing::Random));
}

#[test]
fn a_subset_that_no_rule_has_is_told() {
    let mut builder = builder();
    let route = json!([{"destination": {"host": "web", "subset": "v1"}}]);
    let spec = json!({"hosts": ["web"], "http": [{"route": route}]});
    builder.apply([web(), virtual_service("shop", "v", &spec)]);
    let told = |builder: &Builder| {
        let (_, service) = builder.store().virtual_services().iter().next().unwrap();
        let remarks = builder.virtual_service_remarks(service);
        remarks.iter().map(|it| it.at.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told(&builder), ["spec.http[0].route[0].destination.subset"]);
    let subsets = json!({"host": "web", "subsets": [{"name": "v1"}]});
    builder.apply([rule("shop", "web", &subsets)]);
    assert_eq!(told(&builder), Vec::<String>::new());
}
