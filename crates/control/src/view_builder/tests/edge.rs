//! Gateways at the edge get the routes that attach to them, and routes are told where they do.

mod entrances;

use ambit_model::http::gateway::HostMatch;

use super::super::edge::Edges;
use super::*;

fn gateway(class: &str, listeners: &Value) -> Event {
    let spec = json!({"gatewayClassName": class, "listeners": listeners});
    put(Kind::Gateway, &json!({"metadata": meta("infra", "edge", &json!({})), "spec": spec}))
}

/// One listener for HTTP, to which routes of these namespaces may attach.
fn web(from: &str) -> Value {
    let namespaces = json!({"from": from, "selector": {"matchLabels": {"edge": "y"}}});
    json!([{"name": "web", "port": 80, "protocol": "HTTP",
        "allowedRoutes": {"namespaces": namespaces}}])
}

pub(super) fn namespace(name: &str, labels: &Value) -> Event {
    put(Kind::Namespace, &json!({"metadata": {"name": name, "labels": labels}}))
}

fn parents(section: &str) -> Value {
    let mut parent = json!({"name": "edge", "namespace": "infra"});
    if !section.is_empty() {
        parent["sectionName"] = section.into();
    }
    json!([parent])
}

pub(super) fn route(
    kind: Kind,
    namespace: &str,
    name: &str,
    section: &str,
    hosts: &Value,
) -> Event {
    let mut spec = json!({"parentRefs": parents(section),
        "rules": [{"backendRefs": [{"name": "app", "port": 80}]}]});
    if !matches!(kind, Kind::TcpRoute | Kind::UdpRoute) {
        spec["hostnames"] = hosts.clone();
    }
    put(kind, &json!({"metadata": meta(namespace, name, &json!({})), "spec": spec}))
}

pub(super) fn own_service(builder: &Builder) -> ServiceName {
    builder.store().gateways().service_of(builder.mesh(), &ObjectName::new("infra", "edge"))
}

/// What the gateway is sent: each listener with the routes at each of its hosts.
pub(super) fn sent(builder: &Builder) -> Vec<String> {
    sent_as(builder, &own_service(builder))
}

fn sent_as(builder: &Builder, service: &ServiceName) -> Vec<String> {
    let Some(gateway) = builder.view().gateway(service) else {
        return vec!["nothing".to_owned()];
    };
    let host = |host: &Option<HostMatch>| match host {
        None => "any".to_owned(),
        Some(HostMatch::Exact(name)) => name.to_string(),
        Some(HostMatch::Suffix(end)) => format!("*{end}"),
    };
    let line = |it: &Arc<ambit_model::http::gateway::Listener>| {
        let mut routes: Vec<String> = Vec::new();
        for (of, table) in it.tables() {
            let names = table.iter().map(|it| it.rule.origin.name.to_string());
            routes.push(format!("{}:{}", host(&of), names.collect::<Vec<_>>().join("+")));
        }
        let bytes = it.bytes().into_iter().flat_map(|it| it.iter());
        routes.extend(bytes.map(|(_, rule)| format!("bytes:{}", rule.origin.name)));
        format!("{}@{}/{} [{}]", it.name, it.port, host(&it.host), routes.join(" "))
    };
    gateway.listeners().map(line).collect()
}

/// The conditions of a route at its parents.
pub(super) fn told(builder: &Builder, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
    let name = (kind, ObjectName::new(namespace, name));
    let (store, routing) = (builder.store(), builder.routing(&name).expect("it is read"));
    let route = store.routes().get(&name).expect("it is there");
    let conditions = http_services::conditions(&Edges::new(store), route, routing);
    let of_parent = |(_, all): &(_, Vec<policy::StatusCondition>)| {
        let all = all.iter().map(|it| format!("{}={}", it.kind, it.reason));
        all.collect::<Vec<_>>().join(" ")
    };
    conditions.iter().map(of_parent).collect()
}

/// How many routes are attached to each listener, by its name.
pub(super) fn attached(builder: &Builder) -> Vec<String> {
    let edge = Edge::find(builder.store(), &ObjectName::new("infra", "edge"));
    let made = edge.expect("a gateway at the edge").made(builder.store());
    made.iter().map(|(name, it)| format!("{name} {}", it.attached_routes.unwrap())).collect()
}

fn changed(changes: &[Change]) -> Vec<String> {
    let name = |change: &Change| match change {
        Change::Gateway(it) => Some(format!("+{}", it.service)),
        Change::RemoveGateway(name) => Some(format!("-{name}")),
        Change::GatewayRoute(it) => Some(format!("+{}", it.name.route)),
        Change::RemoveGatewayRoute(name) => Some(format!("-{}", name.route)),
        _ => None,
    };
    changes.iter().filter_map(name).collect()
}

#[test]
fn a_route_is_sent_to_the_listeners_that_take_it() {
    let listeners = json!([
        {"name": "web", "port": 80, "protocol": "HTTP", "hostname": "*.example.com"},
        {"name": "all", "port": 80, "protocol": "HTTP"},
        {"name": "tls", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
        {"name": "tcp", "port": 9000, "protocol": "TCP"},
        {"name": "one", "port": 9001, "protocol": "HTTP"},
        {"name": "two", "port": 9001, "protocol": "TCP"},
        {"name": "udp", "port": 53, "protocol": "UDP"},
    ]);
    let mut builder = builder();
    let hosts = json!(["a.example.com", "b.org"]);
    builder.apply([
        gateway("ambit", &listeners),
        service("infra", "app", &json!({"ports": [{"port": 80}]})),
        route(Kind::HttpRoute, "infra", "some", "", &hosts),
        route(Kind::GrpcRoute, "infra", "calls", "web", &json!([])),
        route(Kind::TlsRoute, "infra", "names", "", &json!(["c.org"])),
        route(Kind::TcpRoute, "infra", "bytes", "tcp", &json!([])),
        route(Kind::UdpRoute, "infra", "datagrams", "udp", &json!([])),
        route(Kind::HttpRoute, "infra", "lost", "gone", &json!([])),
        route(Kind::HttpRoute, "infra", "kind", "tcp", &json!([])),
        route(Kind::HttpRoute, "infra", "host", "web", &json!(["b.org"])),
        route(Kind::HttpRoute, "shop", "far", "", &json!([])),
    ]);
    let expected = [
        "web@80/*.example.com [a.example.com:some *.example.com:calls]",
        "all@80/any [a.example.com:some b.org:some]",
        "tls@443/any [bytes:names]",
        "tcp@9000/any [bytes:bytes]",
        "udp@53/any [bytes:datagrams]",
    ];
    assert_eq!(sent(&builder), expected, "one and two conflict");
    let counts = ["all 1", "one 1", "tcp 1", "tls 1", "two 0", "udp 1", "web 2"];
    assert_eq!(attached(&builder), counts, "they count what is attached");
    let of = |kind, name: &str| told(&builder, kind, "infra", name);
    let taken = ["Accepted=Accepted ResolvedRefs=ResolvedRefs"];
    assert_eq!(of(Kind::HttpRoute, "some"), taken);
    assert_eq!(of(Kind::GrpcRoute, "calls"), taken);
    assert_eq!(of(Kind::TlsRoute, "names"), taken);
    assert_eq!(of(Kind::TcpRoute, "bytes"), taken);
    for (name, reason) in [
        ("lost", "NoMatchingParent"),
        ("kind", "NotAllowedByListeners"),
        ("host", "NoMatchingListenerHostname"),
    ] {
        let expected = [format!("Accepted={reason} ResolvedRefs=ResolvedRefs")];
        assert_eq!(of(Kind::HttpRoute, name), expected);
    }
    let far = told(&builder, Kind::HttpRoute, "shop", "far");
    assert_eq!(far, ["Accepted=NotAllowedByListeners ResolvedRefs=BackendNotFound"]);
}

#[test]
fn a_change_costs_the_gateways_that_it_concerns() {
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &web("Selector")),
        namespace("shop", &json!({})),
        service("shop", "app", &json!({"ports": [{"port": 80}]})),
    ]);
    let own = own_service(&builder);
    let news = ["+HTTPRoute/shop/r"];
    let changes = builder.apply([route(Kind::HttpRoute, "shop", "r", "", &json!([]))]);
    assert_eq!(changed(&changes), [""; 0], "its namespace has no such label");
    assert_eq!(sent(&builder), ["web@80/any []"]);
    assert_eq!(changed(&builder.apply([namespace("shop", &json!({"edge": "y"}))])), news);
    assert_eq!(sent(&builder), ["web@80/any [any:r]"]);
    let changes = builder.apply([namespace("shop", &json!({"edge": "y", "more": "z"}))]);
    assert_eq!(changed(&changes), [""; 0]);
    // A backend that goes changes what a rule answers.
    assert_eq!(changed(&builder.apply([delete(Kind::Service, "shop", "app")])), news);
    let changes = builder.apply([delete(Kind::HttpRoute, "shop", "r")]);
    assert_eq!(changed(&changes), ["-HTTPRoute/shop/r"]);
    assert_eq!(changed(&builder.apply([gateway("ambit", &web("Same"))])), [""; 0]);
    let gone = [format!("-{own}")];
    assert_eq!(changed(&builder.apply([gateway("other", &web("Same"))])), gone);
    assert_eq!(sent(&builder), ["nothing"]);
    let class = json!({"metadata": {"name": "other"},
        "spec": {"controllerName": "ambit.io/gateway-controller"}});
    assert_eq!(changed(&builder.apply([put(Kind::GatewayClass, &class)])).len(), 1);
    let own = own_service(&builder);
    let changes = builder.apply([delete(Kind::Gateway, "infra", "edge")]);
    assert_eq!(changed(&changes), [format!("-{own}")]);
}

#[test]
fn a_route_that_changes_is_sent_alone() {
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "HTTP"});
    let a = |section: &str, hosts: Value| route(Kind::HttpRoute, "infra", "a", section, &hosts);
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &json!([listener("one", 80), listener("two", 81)])),
        service("infra", "app", &json!({"ports": [{"port": 80}]})),
        a("one", json!(["a.org"])),
        route(Kind::HttpRoute, "infra", "b", "", &json!([])),
    ]);
    assert_eq!(sent(&builder), ["one@80/any [a.org:a any:b]", "two@81/any [any:b]"]);
    let mut check = |event: Event, expected: &[&str]| {
        assert_eq!(changed(&builder.apply([event])), expected);
        sent(&builder).join(" ")
    };
    check(a("one", json!(["a.org"])), &[]);
    check(a("one", json!(["c.org"])), &["+HTTPRoute/infra/a"]);
    let at = check(a("two", json!(["c.org"])), &["+HTTPRoute/infra/a"]);
    assert_eq!(at, "one@80/any [any:b] two@81/any [c.org:a any:b]");
    check(a("three", json!(["c.org"])), &["-HTTPRoute/infra/a"]);
    check(a("two", json!(["c.org"])), &["+HTTPRoute/infra/a"]);
    // A listener that goes takes along what is attached to it alone.
    let fewer = gateway("ambit", &json!([listener("one", 80)]));
    let own = "+infra/edge-ambit.infra.svc.cluster.local";
    let at = check(fewer, &[own, "-HTTPRoute/infra/a", "+HTTPRoute/infra/b"]);
    assert_eq!(at, "one@80/any [any:b]");
    // Its author attaches it to another parent.
    let spec =
        json!({"parentRefs": [{"kind": "Service", "group": "", "name": "app"}], "rules": []});
    let moved = json!({"metadata": meta("infra", "b", &json!({})), "spec": spec});
    let at = check(put(Kind::HttpRoute, &moved), &["-HTTPRoute/infra/b"]);
    assert_eq!(at, "one@80/any []");
}

#[test]
fn of_gateways_that_ask_for_one_service_the_first_is_behind_it() {
    let gateway = |name: &str, port: u16| {
        let listeners = json!([{"name": "web", "port": port, "protocol": "HTTP"}]);
        let named = json!({"gateway.istio.io/name-override": "edge"});
        let mut metadata = meta("infra", name, &json!({}));
        metadata["annotations"] = named;
        let spec = json!({"gatewayClassName": "ambit", "listeners": listeners});
        put(Kind::Gateway, &json!({"metadata": metadata, "spec": spec}))
    };
    let route = |name: &str, gateway: &str| {
        let spec = json!({"parentRefs": [{"name": gateway}],
            "rules": [{"backendRefs": [{"name": "app", "port": 80}]}]});
        put(Kind::HttpRoute, &json!({"metadata": meta("infra", name, &json!({})), "spec": spec}))
    };
    let mut builder = builder();
    builder.apply([
        service("infra", "app", &json!({"ports": [{"port": 80}]})),
        gateway("b", 81),
        route("of-b", "b"),
    ]);
    let own = {
        let gateways = builder.store().gateways();
        gateways.service_of(builder.mesh(), &ObjectName::new("infra", "b"))
    };
    let sent = |builder: &Builder| sent_as(builder, &own);
    assert_eq!(sent(&builder), ["web@81/any [any:of-b]"]);
    builder.apply([gateway("a", 80), route("of-a", "a")]);
    assert_eq!(sent(&builder), ["web@80/any [any:of-a]"]);
    builder.apply([route("more", "b"), gateway("b", 82)]);
    assert_eq!(sent(&builder), ["web@80/any [any:of-a]"]);
    builder.apply([delete(Kind::Gateway, "infra", "a")]);
    assert_eq!(sent(&builder), ["web@82/any [any:more+of-b]"]);
    builder.apply([delete(Kind::Gateway, "infra", "b")]);
    assert_eq!(sent(&builder), ["nothing"]);
}

#[test]
fn routes_of_http_and_grpc_hold_beside_each_other() {
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &web("All")),
        route(Kind::HttpRoute, "shop", "pages", "web", &json!(["a.com"])),
        route(Kind::GrpcRoute, "shop", "calls", "web", &json!(["a.com"])),
    ]);
    assert_eq!(sent(&builder), ["web@80/any [a.com:calls+pages]"]);
    let pages = told(&builder, Kind::HttpRoute, "shop", "pages");
    assert_eq!(pages, ["Accepted=Accepted ResolvedRefs=BackendNotFound"]);
}

#[test]
fn a_route_that_names_a_gateway_twice_is_attached_once() {
    let parents = json!([
        {"name": "edge", "namespace": "infra"},
        {"name": "edge", "namespace": "infra", "sectionName": "web"},
        {"name": "edge", "namespace": "infra", "port": 81},
        {"name": "way", "namespace": "infra"},
        {"name": "other", "namespace": "infra"},
    ]);
    let spec = json!({"parentRefs": parents, "hostnames": ["a.com"], "rules": [{}]});
    let object = json!({"metadata": meta("infra", "r", &json!({})), "spec": spec});
    let way = json!({"metadata": meta("infra", "way", &json!({})), "spec": {
        "gatewayClassName": "ambit-waypoint",
        "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]}});
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &web("Same")),
        put(Kind::Gateway, &way),
        put(Kind::HttpRoute, &object),
    ]);
    assert_eq!(sent(&builder), ["web@80/any [a.com:r]"]);
    assert_eq!(attached(&builder), ["web 1"]);
    let taken = "Accepted=Accepted ResolvedRefs=ResolvedRefs";
    let lost = "Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs";
    let expected = [taken, taken, lost, "Accepted=NoMatchingParent", ""];
    assert_eq!(told(&builder, Kind::HttpRoute, "infra", "r"), expected);
}

#[test]
fn policies_of_a_gateway_are_those_of_its_service() {
    let mut builder = builder();
    builder.apply([gateway("ambit", &web("Same"))]);
    let own = own_service(&builder);
    let name = own.hostname.split('.').next().unwrap().to_owned();
    let at = |group: &str, kind: &str, name: &str| {
        json!({"targetRefs": [{"group": group, "kind": kind, "name": name}],
            "rules": [{"to": [{"operation": {"methods": ["GET"]}}]}]})
    };
    let gateways = "gateway.networking.k8s.io";
    builder.apply([
        service("infra", &name, &json!({"ports": [{"port": 80}]})),
        service("infra", "app", &json!({"ports": [{"port": 80}]})),
        policy("infra", "edge", &at(gateways, "Gateway", "edge")),
        policy("infra", "gone", &at(gateways, "Gateway", "gone")),
        policy("istio-system", "class", &at(gateways, "GatewayClass", "ambit")),
        policy("istio-system", "ways", &at(gateways, "GatewayClass", "ambit-waypoint")),
    ]);
    let policies = |builder: &Builder, service: &ServiceName| {
        let http = builder.view().http_service(service).expect("it is known");
        http.policies.iter().map(|it| it.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(policies(&builder, &own), ["edge", "class"]);
    let app = "infra/app.infra.svc.cluster.local".parse().unwrap();
    assert_eq!(policies(&builder, &app), ["ways"]);
    let fronted = crate::attached::Fronted::of(&builder);
    for (policy, expected) in [("edge", "Accepted"), ("gone", "TargetNotFound")] {
        let name = ObjectName::new("infra", policy);
        let (_, object) = builder.store().policies().find(|it| *it.0 == name).expect("a policy");
        let told = crate::attached::of_policy(&builder, &fronted, &name, object).expect("told");
        assert_eq!(told.reason, expected, "{policy}: {}", told.message);
    }
    let limit = |name: &str, kind: &str, target: &str| {
        let spec = json!({"targetRefs": [{"group": gateways, "kind": kind, "name": target}],
            "limits": {"maxBodyBytes": 7}, "compression": {}});
        put(
            Kind::TrafficPolicy,
            &json!({"metadata": meta("infra", name, &json!({})), "spec": spec}),
        )
    };
    builder.apply([
        route(Kind::HttpRoute, "infra", "r", "", &json!([])),
        limit("all", "Gateway", "edge"),
        limit("of-route", "HTTPRoute", "r"),
    ]);
    let limits = &builder.view().http_service(&own).expect("it is known").limits;
    assert!(limits.service.is_some());
    assert_eq!(limits.routes.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["r"]);
    let compression = &builder.view().http_service(&own).expect("it is known").compression;
    assert!(compression.service.is_some());
    assert_eq!(compression.routes.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["r"]);
    let (name, known) = builder.store().traffic_policies().iter().next().expect("a policy");
    let conditions = crate::view_builder::traffic_policies::conditions(&builder, name, known);
    assert_eq!(conditions[0].1.reason, "Accepted", "{}", conditions[0].1.message);
}

#[test]
fn policies_that_select_a_gateways_pods_hold_at_the_gateway() {
    let mut builder = builder();
    let selecting = |namespace: &str, name: &str, key: &str, value: &str| {
        let spec = json!({"selector": {"matchLabels": {key: value}}, "action": "DENY",
            "rules": [{"to": [{"operation": {"paths": ["/admin"]}}]}]});
        policy(namespace, name, &spec)
    };
    let by_name = "gateway.networking.k8s.io/gateway-name";
    builder.apply([
        selecting("infra", "before", by_name, "edge"),
        selecting("infra", "other", by_name, "other"),
        selecting("infra", "team", "team", "a"),
        selecting("shop", "elsewhere", by_name, "edge"),
    ]);
    assert_eq!(builder.request_policies.len(), 0);
    builder.apply([gateway("ambit", &web("Same"))]);
    let own = own_service(&builder);
    let name = own.hostname.split('.').next().unwrap().to_owned();
    builder.apply([
        service("infra", &name, &json!({"ports": [{"port": 80}]})),
        service("infra", "app", &json!({"ports": [{"port": 80}], "selector": {by_name: "edge"}})),
    ]);
    let policies = |builder: &Builder, service: &ServiceName| {
        let http = builder.view().http_service(service).expect("it is known");
        http.policies.iter().map(|it| it.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(policies(&builder, &own), ["before"]);
    let app = "infra/app.infra.svc.cluster.local".parse().unwrap();
    assert_eq!(policies(&builder, &app), Vec::<String>::new());
    builder.apply([
        selecting("istio-system", "mesh", by_name, "edge"),
        put(
            Kind::Gateway,
            &json!({"metadata": meta("infra", "edge", &json!({})),
                "spec": {"gatewayClassName": "ambit", "listeners": web("Same"),
                    "infrastructure": {"labels": {"team": "a"}}}}),
        ),
    ]);
    assert_eq!(policies(&builder, &own), ["before", "team", "mesh"]);
    builder.apply([delete(Kind::AuthorizationPolicy, "infra", "before")]);
    assert_eq!(policies(&builder, &own), ["team", "mesh"]);
    let keys = json!({"selector": {"matchLabels": {by_name: "edge"}},
        "jwtRules": [{"issuer": "some", "jwks": "{\"keys\":[]}"}]});
    builder.apply([put(
        Kind::RequestAuthentication,
        &json!({"metadata": meta("infra", "tokens", &json!({})), "spec": keys}),
    )]);
    let authentication = &builder.view().http_service(&own).expect("it is known").authentication;
    assert_eq!(authentication.rules.len(), 1);
    builder.apply([gateway("ambit-waypoint", &web("Same"))]);
    assert_eq!(builder.request_policies.len(), 0);
}

#[test]
fn what_its_service_says_of_challenges_is_sent_to_a_gateway() {
    let mut builder = builder();
    builder.apply([gateway("ambit", &web("Same"))]);
    let own = own_service(&builder);
    let name = own.hostname.split('.').next().unwrap().to_owned();
    let served = |written: Option<&str>| {
        let mut metadata = meta("infra", &name, &json!({}));
        if let Some(written) = written {
            metadata["annotations"] = json!({"ambit.io/acme-challenges": written});
        }
        put(Kind::Service, &json!({"metadata": metadata, "spec": {"ports": [{"port": 80}]}}))
    };
    let answered = |builder: &Builder| {
        let gateway = builder.view().gateway(&own).expect("it is known");
        gateway.challenge("a.example", "/.well-known/acme-challenge/abc").map(|it| it.to_string())
    };
    builder.apply([served(None)]);
    assert_eq!(answered(&builder), None);
    builder.apply([served(Some("a.example abc abc.thumb\n"))]);
    assert_eq!(answered(&builder).as_deref(), Some("abc.thumb"));
    builder.apply([served(None)]);
    assert_eq!(answered(&builder), None);
}
