//! Objects in, resources out: conversion tables, and that a change costs only what depends on it.

use ambit_model::names::NetworkAddress;
use ambit_model::policy::{Action, Match, PolicyScope, Rule};
use ambit_model::service::{Mode, Scope};
use ambit_model::workload::{AppProtocol, GatewayDestination, Tunnel, WorkloadKind};
use ambit_words::ports;
use serde_json::{Value, json};

mod authorizers;
mod backend_tls;
mod certificates;
mod edge;
mod endpoint_slices;
mod listener_sets;
mod request_policies;
mod routes;
mod telemetry;
mod traffic;
mod traffic_policies;
mod waypoints;

use super::*;
use crate::registry::{CaptureNotes, PodStatus};
use ambit_manifest::policy::{self, Converted};
use ambit_manifest::{Kind, ObjectKey, stored};

fn builder() -> Builder {
    Builder::new(Mesh::sample(), Vips::default())
}

fn put(kind: Kind, object: &Value) -> Event {
    let mut object = object.clone();
    object["apiVersion"] = kind.api_versions()[0].into();
    object["kind"] = kind.name().into();
    Event::Put(stored(kind, object.to_string().as_bytes()).unwrap())
}

fn delete(kind: Kind, namespace: &str, name: &str) -> Event {
    Event::Delete(ObjectKey::new(kind, namespace, name))
}

fn meta(namespace: &str, name: &str, labels: &Value) -> Value {
    json!({"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": labels})
}

/// A pod with one named port, running, ready and captured.
fn pod(namespace: &str, name: &str, labels: &Value, ip: &str) -> Vec<Event> {
    let object = json!({
        "metadata": meta(namespace, name, labels),
        "spec": {"nodeName": "node-1", "serviceAccountName": "sa", "containers": [
            {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]},
        ]},
    });
    vec![put(Kind::Pod, &object), status(namespace, name, ip, true), captured(namespace, name)]
}

fn status(namespace: &str, name: &str, ip: &str, ready: bool) -> Event {
    let status = PodStatus {
        uid: format!("uid-{name}").into(),
        phase: "Running".into(),
        pod_ips: vec![ip.parse().unwrap()],
        ready,
        ..PodStatus::default()
    };
    Event::PodStatus { namespace: namespace.into(), name: name.into(), status: Some(status) }
}

fn captured(namespace: &str, name: &str) -> Event {
    let uid = Some(format!("uid-{name}").into());
    let notes = CaptureNotes::default();
    Event::Captured { namespace: namespace.into(), name: name.into(), uid, notes }
}

fn service(namespace: &str, name: &str, spec: &Value) -> Event {
    put(Kind::Service, &json!({"metadata": meta(namespace, name, &json!({})), "spec": spec}))
}

fn policy(namespace: &str, name: &str, spec: &Value) -> Event {
    let object = json!({"metadata": meta(namespace, name, &json!({})), "spec": spec});
    put(Kind::AuthorizationPolicy, &object)
}

fn peer(namespace: &str, name: &str, spec: &Value) -> Event {
    let object = json!({"metadata": meta(namespace, name, &json!({})), "spec": spec});
    put(Kind::PeerAuthentication, &object)
}

fn names(changes: &[Change]) -> Vec<String> {
    let name = |change: &Change| match change {
        Change::Workload(it) => Some(format!("+{}", it.name)),
        Change::Service(it) => Some(format!("+{}", it.key)),
        Change::Policy(it) => Some(format!("+{}", it.key)),
        Change::RemoveAddress(it) => Some(format!("-{it}")),
        Change::RemovePolicy(it) => Some(format!("-{it}")),
        Change::HttpService(_) | Change::RemoveHttpService(_) => None,
        Change::RequestPolicy(_) | Change::RemoveRequestPolicy(_) => None,
        Change::Gateway(_) | Change::RemoveGateway(_) | Change::GatewayRoute(_) => None,
        Change::UnreadableGatewayRoute(_) | Change::RemoveGatewayRoute(_) => None,
        Change::Certificate(_) | Change::RemoveCertificate(_) => None,
    };
    changes.iter().filter_map(name).collect()
}

fn workload(builder: &Builder, name: &str) -> Workload {
    let mut found = builder.view().workloads().filter(|it| &*it.name == name);
    let workload = found.next().unwrap_or_else(|| panic!("no workload {name}"));
    (**workload).clone()
}

fn the_service(builder: &Builder, key: &str) -> Service {
    (**builder.view().service(&key.parse().unwrap()).unwrap()).clone()
}

#[test]
fn a_pod_becomes_a_workload() {
    let mut builder = builder();
    let node = json!({"metadata": {"name": "node-1", "labels": {
        "topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "a",
            "topology.istio.io/subzone": "r1",
    }}});
    let mut object = json!({
        "metadata": meta("shop", "web-5d-x", &json!({"app": "web", "version": "v2",
            "pod-template-hash": "5d"})),
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]},
    });
    object["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "u",
            "controller": true},
    ]);
    let unready = PodStatus {
        uid: "uid-web-5d-x".into(),
        phase: "Running".into(),
        pod_ips: vec!["fd00::2".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        ..PodStatus::default()
    };
    let told = |status: PodStatus| Event::PodStatus {
        namespace: "shop".into(),
        name: "web-5d-x".into(),
        status: Some(status),
    };
    let changes = builder.apply([put(Kind::Node, &node), put(Kind::Pod, &object)]);
    assert_eq!(names(&changes), [""; 0], "no address yet");
    assert_eq!(names(&builder.apply([told(unready.clone())])), ["+web-5d-x"]);
    let got = workload(&builder, "web-5d-x");
    assert_eq!(&*got.uid, "Kubernetes//Pod/shop/web-5d-x");
    assert_eq!((got.kind, &*got.workload_name), (WorkloadKind::Deployment, "web"));
    assert_eq!((&*got.canonical_name, &*got.canonical_revision), ("web", "v2"));
    assert_eq!(
        (&*got.locality.region, &*got.locality.zone, &*got.locality.subzone),
        ("eu", "a", "r1")
    );
    assert_eq!((got.tunnel, got.healthy, &*got.service_account), (Tunnel::None, false, "default"));
    assert_eq!(
        *got.addresses,
        ["10.0.0.2", "fd00::2"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap())
    );

    // An earlier incarnation's capture and status say nothing about this one.
    let stale = Event::Captured {
        namespace: "shop".into(),
        name: "web-5d-x".into(),
        uid: Some("uid-before".into()),
        notes: CaptureNotes::default(),
    };
    assert_eq!(names(&builder.apply([stale])), [""; 0]);
    assert_eq!(names(&builder.apply([captured("shop", "web-5d-x")])), ["+web-5d-x"]);
    assert_eq!(workload(&builder, "web-5d-x").tunnel, Tunnel::Hbone);
    let old = PodStatus { uid: "uid-before".into(), ready: true, ..unready.clone() };
    assert_eq!(names(&builder.apply([told(old)])), ["-Kubernetes//Pod/shop/web-5d-x"]);
    builder.apply([told(unready.clone())]);
    let failed = PodStatus { phase: "Failed".into(), ..unready };
    assert_eq!(names(&builder.apply([told(failed)])), ["-Kubernetes//Pod/shop/web-5d-x"]);
}

#[test]
fn a_pod_that_is_being_deleted_takes_no_new_connections() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    assert!(workload(&builder, "web").healthy);
    let mut object = json!({
        "metadata": meta("shop", "web", &json!({"app": "web"})),
        "spec": {"nodeName": "node-1", "serviceAccountName": "sa", "containers": []},
    });
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(names(&builder.apply([put(Kind::Pod, &object)])), ["+web"]);
    let ending = workload(&builder, "web");
    assert_eq!((ending.healthy, ending.tunnel), (false, Tunnel::Hbone), "it ends in the mesh");
}

#[test]
fn a_service_becomes_a_service() {
    let check = |spec: Value, expected: &dyn Fn(&Service)| {
        let mut builder = builder();
        builder.apply([service("shop", "web", &spec)]);
        expected(&the_service(&builder, "shop/web.shop.svc.cluster.local"));
    };
    check(
        json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [
        {"name": "grpc-a", "port": 80, "targetPort": "http"}, {"name": "b", "port": 81,
            "appProtocol": "kubernetes.io/h2c"},
        {"name": "c", "port": 53, "protocol": "UDP"},
    ], "ipFamilies": ["IPv4", "IPv6"], "selector": {"app": "web"}}),
        &|service| {
            let addresses: Vec<_> = service.addresses.iter().map(|it| it.address.clone()).collect();
            let expected =
                ["10.96.0.1", "fd00::1"].map(|ip| NetworkAddress::new("", ip.parse().unwrap()));
            assert_eq!(addresses, expected);
            let ports: Vec<_> = service
                .ports
                .iter()
                .map(|it| (it.service_port, it.target_port, it.app_protocol))
                .collect();
            assert_eq!(ports, [(80, 0, AppProtocol::Grpc), (81, 81, AppProtocol::Http2)]);
            assert_eq!(service.ip_families, ambit_model::service::IpFamilies::Dual);
            assert!(service.canonical && service.waypoint.is_none());
        },
    );
    check(json!({"ports": [{"port": 81}]}), &|service| {
        assert_eq!(service.ports[0].target_port, 0, "its slices alone say where it leads");
    });
    check(
        json!({"clusterIP": "None", "ports": [{"port": 80}], "publishNotReadyAddresses": true}),
        &|service| {
            assert!(service.addresses.is_empty() && service.load_balancing.allow_unhealthy);
        },
    );
    check(json!({"ports": [{"port": 80}], "trafficDistribution": "PreferSameNode"}), &|service| {
        let it = &service.load_balancing;
        assert_eq!(it.mode, Mode::Failover);
        let expected = [Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node];
        assert_eq!(it.routing_preference, expected);
    });
    check(
        json!({"ports": [{"port": 80}], "trafficDistribution": "PreferClose",
            "internalTrafficPolicy": "Local"}),
        &|service| {
            assert_eq!(service.load_balancing.mode, Mode::Strict);
            assert_eq!(service.load_balancing.routing_preference, [Scope::Node]);
        },
    );
    check(json!({"ports": [{"port": 80}], "sessionAffinity": "ClientIP"}), &|service| {
        assert_eq!(service.load_balancing.client_affinity_seconds, Some(10_800));
    });
}

#[test]
fn a_namespace_speaks_for_its_services() {
    let mut builder = builder();
    let namespace = |labels: Value, annotations: Value| {
        put(
            Kind::Namespace,
            &json!({"metadata": {"name": "shop", "labels": labels, "annotations": annotations}}),
        )
    };
    builder.apply([
        service("shop", "web", &json!({"ports": [{"port": 80}]})),
        service("other", "web", &json!({"ports": [{"port": 80}]})),
    ]);
    let changes = builder.apply([namespace(
        json!({"istio.io/use-waypoint": "wp", "istio.io/use-waypoint-namespace": "infra"}),
        json!({"networking.istio.io/traffic-distribution": "PreferSameZone"}),
    )]);
    assert_eq!(names(&changes), ["+shop/web.shop.svc.cluster.local"]);
    let service = the_service(&builder, "shop/web.shop.svc.cluster.local");
    assert_eq!(service.load_balancing.mode, Mode::Failover);
    let waypoint = service.waypoint.unwrap();
    assert_eq!(waypoint.hbone_mtls_port, ports::HBONE);
    let refused = "wp.infra.svc.cluster.local".into();
    assert_eq!(waypoint.destination, GatewayDestination::Refused(refused));
    builder.apply([put(
        Kind::Service,
        &json!({
            "metadata": meta("shop", "web", &json!({"istio.io/use-waypoint": "none"})),
            "spec": {"ports": [{"port": 80}]},
        }),
    )]);
    assert_eq!(the_service(&builder, "shop/web.shop.svc.cluster.local").waypoint, None);
}

#[test]
fn endpoints_serve_the_ports_they_have() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    builder.apply([
        service(
            "shop",
            "web",
            &json!({"selector": {"app": "web"}, "ports": [
                {"name": "a", "port": 80, "targetPort": "http"}, {"name": "b", "port": 81,
                    "targetPort": 9000},
                {"name": "c", "port": 82, "targetPort": "absent"},
            ]}),
        ),
        service("shop", "all", &json!({"ports": [{"port": 80}]})),
        service("other", "web", &json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})),
    ]);
    let served = workload(&builder, "web").services.clone();
    assert_eq!(served.len(), 1, "an empty selector and another namespace select nothing");
    let ports = &served[&"shop/web.shop.svc.cluster.local".parse().unwrap()];
    let ports: Vec<_> = ports.iter().map(|port| (port.service_port, port.target_port)).collect();
    assert_eq!(ports, [(80, 8080), (81, 9000)]);
}

#[test]
fn one_change_costs_what_depends_on_it() {
    let mut builder = builder();
    for index in 0..50 {
        let app = if index % 2 == 0 { "even" } else { "odd" };
        builder.apply(pod(
            "shop",
            &format!("pod-{index}"),
            &json!({"app": app}),
            &format!("10.0.0.{}", index + 1),
        ));
    }
    builder.apply(pod("bank", "till", &json!({"app": "even"}), "10.0.1.1"));
    let selector = json!({"matchLabels": {"app": "even"}});
    let web = json!({"selector": {"app": "even"}, "ports": [{"port": 80}]});
    assert_eq!(
        names(&builder.apply([service("shop", "web", &web)])).len(),
        26,
        "the service and 25 endpoints"
    );
    assert_eq!(names(&builder.apply([service("shop", "web", &web)])), [""; 0], "nothing changed");
    let affinity = json!({"selector": {"app": "even"}, "ports": [{"port": 80}],
        "sessionAffinity": "ClientIP"});
    assert_eq!(builder.apply([service("shop", "web", &affinity)]).len(), 1, "the service alone");
    assert_eq!(names(&builder.apply([status("shop", "pod-1", "10.0.0.2", false)])), ["+pod-1"]);
    assert_eq!(names(&builder.apply([status("shop", "pod-1", "10.0.0.2", false)])), [""; 0]);
    let allow = json!({"selector": selector, "rules": [{}]});
    let changes = builder.apply([policy("shop", "p", &allow)]);
    assert_eq!(
        (names(&changes)[0].as_str(), changes.len()),
        ("+shop/p", 26),
        "the policy comes first"
    );
    let changes = builder.apply([policy(
        "shop",
        "p",
        &json!({"selector": selector, "action": "DENY", "rules": [{}]}),
    )]);
    assert_eq!(names(&changes), ["+shop/p"], "workloads name it already");
    let changes = builder.apply([delete(Kind::AuthorizationPolicy, "shop", "p")]);
    assert_eq!(
        (names(&changes)[25].as_str(), changes.len()),
        ("-shop/p", 26),
        "the policy goes last"
    );
    assert_eq!(
        builder.apply([policy("istio-system", "p", &allow)]).len(),
        27,
        "the root namespace's selects everywhere"
    );
    let strict = peer("bank", "default", &json!({"mtls": {"mode": "STRICT"}}));
    assert_eq!(names(&builder.apply([strict])), ["+till"]);
}

#[test]
fn mutual_tls_modes_reach_their_workloads() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    let policies = |builder: &Builder| {
        let names = workload(builder, "web").policies.clone();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let strict = "istio-system/istio_converted_static_strict";
    let own = "shop/converted_peer_authentication_web";
    builder.apply([peer("istio-system", "default", &json!({"mtls": {"mode": "STRICT"}}))]);
    assert_eq!(policies(&builder), [strict]);
    let ports = json!({"selector": {"matchLabels": {"app": "web"}},
        "portLevelMtls": {"8080": {"mode": "PERMISSIVE"}}});
    let changes = builder.apply([peer("shop", "web", &ports)]);
    assert_eq!(names(&changes), [format!("+{own}"), "+web".to_owned()]);
    assert_eq!(policies(&builder), [own]);
    let changes =
        builder.apply([peer("istio-system", "default", &json!({"mtls": {"mode": "PERMISSIVE"}}))]);
    assert_eq!(
        names(&changes),
        ["+web".to_owned(), format!("-{own}")],
        "nothing is left to except"
    );
    assert_eq!(policies(&builder), [""; 0]);
}

#[test]
fn entries_become_services_and_workloads() {
    let mut builder = builder();
    let entry = |spec: Value| {
        put(Kind::ServiceEntry, &json!({"metadata": meta("shop", "ext", &json!({})), "spec": spec}))
    };
    let changes = builder.apply([entry(json!({
        "hosts": ["a.example", "b.example"], "resolution": "STATIC",
        "ports": [{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": 8080}],
        "endpoints": [{"address": "192.0.2.1", "ports": {"http": 9090}, "weight": 3},
            {"address": "192.0.2.2", "locality": "eu/a"}],
    }))]);
    assert_eq!(names(&changes), ["+shop/a.example", "+shop/b.example", "+ext", "+ext"]);
    let uid = "Kubernetes/networking.istio.io/ServiceEntry/shop/ext/192.0.2.1";
    let endpoint = builder.view().workload(uid).unwrap();
    assert_eq!((endpoint.capacity, endpoint.services.len()), (3, 2));
    assert_eq!(endpoint.services.values().next().unwrap()[0].target_port, 9090);
    let address =
        |builder: &Builder, host: &str| the_service(builder, host).addresses[0].address.ip;
    let (first, other) = (address(&builder, "shop/a.example"), address(&builder, "shop/b.example"));
    assert!(first.to_string().starts_with("240.240.") && first != other, "{first} {other}");
    assert!(builder.changed_vips().is_some() && builder.changed_vips().is_none());
    let changes = builder.apply([entry(json!({
        "hosts": ["a.example"], "resolution": "DNS", "ports": [{"number": 80, "name": "http",
            "protocol": "HTTP"}],
    }))]);
    let gone = ["1", "2"].map(|last| {
        format!("-Kubernetes/networking.istio.io/ServiceEntry/shop/ext/192.0.2.{last}")
    });
    let expected = ["+shop/a.example", "-shop/b.example", "+ext", &gone[0], &gone[1]];
    assert_eq!(names(&changes), expected);
    assert_eq!(&*workload(&builder, "ext").hostname, "a.example");
    assert_eq!(address(&builder, "shop/a.example"), first, "a host keeps its address");
    builder.apply([entry(json!({
        "hosts": ["a.example"], "addresses": ["198.51.100.0/24"], "ports": [{"number": 80,
            "name": "http"}],
    }))]);
    let service = the_service(&builder, "shop/a.example");
    assert_eq!(service.addresses[0].prefix_len, Some(24));
    assert_eq!((service.addresses.len(), service.load_balancing.mode), (1, Mode::Passthrough));
    assert_eq!(names(&builder.apply([delete(Kind::ServiceEntry, "shop", "ext")])).len(), 1);
}

#[test]
fn entries_select_pods_and_workload_entries() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "db"}), "10.0.0.2"));
    let changes = builder.apply([
        put(
            Kind::WorkloadEntry,
            &json!({
                "metadata": meta("shop", "vm", &json!({})),
                "spec": {"address": "192.0.2.7", "labels": {"app": "db"}, "serviceAccount": "db",
                    "ports": {"tcp": 5433}},
            }),
        ),
        put(
            Kind::ServiceEntry,
            &json!({
                "metadata": meta("shop", "db", &json!({})),
                "spec": {"hosts": ["db.example"], "resolution": "STATIC",
                    "workloadSelector": {"labels": {"app": "db"}},
                         "ports": [{"number": 5432, "name": "tcp", "protocol": "TCP"}]},
            }),
        ),
    ]);
    assert_eq!(names(&changes), ["+shop/db.example", "+web", "+vm"]);
    let key = "shop/db.example".parse().unwrap();
    assert_eq!(workload(&builder, "web").services[&key][0].target_port, 5432);
    let vm = workload(&builder, "vm");
    assert_eq!((vm.services[&key][0].target_port, &*vm.service_account), (5433, "db"));
}

/// The rules of a policy as `to`/`from` alternatives of each clause, for comparison.
fn converted(spec: &Value) -> (Converted, Vec<Vec<usize>>) {
    let object = json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "shop", "name": "p"}, "spec": spec,
    });
    let converted = policy::convert(&serde_json::from_value(object).unwrap(), "istio-system");
    let rules = converted.policy.iter().flat_map(|policy| &policy.rules);
    let shape = rules.map(|rule| rule.clauses.iter().map(|clause| clause.matches.len()).collect());
    let shape = shape.collect();
    (converted, shape)
}

#[test]
fn layer_4_policies_are_accepted_as_written() {
    let (got, shape) = converted(&json!({"selector": {"matchLabels": {"a": "b"}}, "rules": [
        {"from": [{"source": {"principals": ["*"]}}, {"source": {"notNamespaces": ["x*"]}}],
         "to": [{"operation": {"ports": ["80", "81"]}}],
         "when": [{"key": "source.ip", "notValues": ["10.0.0.0/8"]}, {"key": "destination.port",
             "values": ["1"]}]},
        {},
    ]}));
    assert_eq!((got.condition.status, shape), ("True", vec![vec![2, 1, 1, 1], vec![]]));
    let policy = got.policy.unwrap();
    assert_eq!(
        (policy.scope, policy.action, policy.dry_run),
        (PolicyScope::WorkloadSelector, Action::Allow, false)
    );
    assert_eq!(policy.rules[0].clauses[1].matches[0].destination_ports, [80, 81]);
    assert_eq!(converted(&json!({})).0.policy.unwrap().scope, PolicyScope::Namespace);
}

#[test]
fn layer_7_gets_its_strictest_reading() {
    let never = [Match::default()];
    let check = |spec: Value, action: Action, shape: &[&[usize]], is_never: bool| {
        let (got, got_shape) = converted(&spec);
        assert_eq!(
            (got.condition.status, got.condition.reason),
            ("False", "UnsupportedValue"),
            "{spec}"
        );
        let policy = got.policy.unwrap();
        assert_eq!(
            (policy.action, got_shape),
            (action, shape.iter().map(|it| it.to_vec()).collect()),
            "{spec}"
        );
        let first = policy.rules[0].clauses.first().map(|clause| clause.matches[..] == never);
        assert_eq!(first.unwrap_or(false), is_never, "{spec}");
    };
    let get = json!({"operation": {"methods": ["GET"]}});
    let port = json!({"operation": {"ports": ["80"]}});
    let both = json!({"operation": {"ports": ["80"], "methods": ["GET"]}});
    let header = json!([{"key": "request.headers[x]", "values": ["y"]}]);
    let source = json!([{"source": {"namespaces": ["a"]}}]);
    // An ALLOW never matches where it asks for layer 7; other alternatives and rules stay, with
    // their index.
    check(json!({"rules": [{"to": [get]}]}), Action::Allow, &[&[1]], true);
    check(json!({"rules": [{"to": [both]}]}), Action::Allow, &[&[1]], true);
    check(json!({"rules": [{"to": [get, port]}]}), Action::Allow, &[&[1]], false);
    check(json!({"rules": [{"when": header}, {"to": [port]}]}), Action::Allow, &[&[1], &[1]], true);
    check(
        json!({"rules": [{"from": [{"source": {"requestPrincipals": ["*"]}}]}]}),
        Action::Allow,
        &[&[1]],
        true,
    );
    // A DENY matches whatever layer 7 says.
    check(json!({"action": "DENY", "rules": [{"to": [get]}]}), Action::Deny, &[&[]], false);
    check(
        json!({"action": "DENY", "rules": [{"from": source, "to": [get]}]}),
        Action::Deny,
        &[&[1]],
        false,
    );
    check(json!({"action": "DENY", "rules": [{"to": [both]}]}), Action::Deny, &[&[1]], false);
    check(json!({"action": "DENY", "rules": [{"to": [get, port]}]}), Action::Deny, &[&[]], false);
    check(json!({"action": "DENY", "rules": [{"when": header}]}), Action::Deny, &[&[]], false);
    // An authoriser that cannot be asked does not say yes.
    check(
        json!({"action": "CUSTOM", "provider": {"name": "x"}, "rules": [{"to": [port]}]}),
        Action::Deny,
        &[&[1]],
        false,
    );
}

#[test]
fn what_cannot_be_read_gets_its_strictest_reading() {
    for (source, is_l4) in [
        (json!({"principals": ["spiffe://cluster.local/ns/a/sa/b"]}), false),
        (json!({"principals": []}), false),
        (json!({"ipBlocks": ["10.0.0.0/40"]}), false),
        (json!({"namespaces": ["a*b"]}), false),
        (json!({"namespaces": ["a"]}), true),
    ] {
        let spec =
            |action: &str| json!({"action": action, "rules": [{"from": [{"source": source}]}]});
        let (allow, _) = converted(&spec("ALLOW"));
        let (deny, shape) = converted(&spec("DENY"));
        let matches = &allow.policy.unwrap().rules[0].clauses[0].matches;
        assert_eq!(matches[..] == [Match::default()], !is_l4, "{source}");
        assert_eq!(shape, if is_l4 { vec![vec![1]] } else { vec![vec![]] }, "{source}");
        assert_eq!(deny.condition.status == "True", is_l4, "{source}");
    }
    // An empty list of sources is not "every source" in an ALLOW, and is in a DENY.
    let (allow, shape) = converted(&json!({"rules": [{"from": []}]}));
    assert_eq!((allow.condition.status, shape), ("False", vec![vec![1]]));
    assert_eq!(converted(&json!({"action": "DENY", "rules": [{"from": []}]})).1, [vec![0; 0]]);
}

#[test]
fn policies_that_are_not_sent_are_not_named() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    let selector = json!({"matchLabels": {"app": "web"}});
    let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"});
    let changes = builder.apply([
        policy("shop", "audit", &json!({"action": "AUDIT", "selector": selector, "rules": [{}]})),
        policy("shop", "attached", &json!({"targetRefs": [gateway], "rules": [{}]})),
    ]);
    assert_eq!(names(&changes), [""; 0]);
    assert!(workload(&builder, "web").policies.is_empty());
    let reason = |name: &str| builder.condition(&ObjectName::new("shop", name)).unwrap().reason;
    assert_eq!((reason("audit"), reason("attached")), ("UnsupportedValue", "TargetNotFound"));
    builder.apply([delete(Kind::AuthorizationPolicy, "shop", "audit")]);
    assert_eq!(builder.condition(&ObjectName::new("shop", "audit")), None);
}

#[test]
fn an_ipv4_block_written_as_ipv6_is_read_or_the_policy_is_not_accepted() {
    let check = |block: &str, sent: &[&str], accepted: bool| {
        let mut builder = builder();
        for field in ["ipBlocks", "notIpBlocks"] {
            let rules = json!([{"from": [{"source": {field: [block]}}]}]);
            builder.apply([policy("shop", "p", &json!({"action": "DENY", "rules": rules}))]);
            let policy = builder.view().policy(&"shop/p".parse().unwrap()).unwrap();
            let matches = policy.rules[0].clauses.iter().flat_map(|clause| &clause.matches);
            let blocks: Vec<String> = matches
                .flat_map(|one| one.source_ips.iter().chain(&one.not_source_ips))
                .map(ToString::to_string)
                .collect();
            assert_eq!(blocks, sent, "{block}");
            // What cannot be read holds for everybody.
            assert_eq!(policy.rules[0].clauses.is_empty(), !accepted, "{block}");
            let condition = builder.condition(&ObjectName::new("shop", "p")).unwrap();
            assert_eq!(condition.status == "True", accepted, "{block}: {condition:?}");
            if !accepted {
                assert!(condition.message.contains("holds IPv4"), "{}", condition.message);
            }
        }
    };
    check("::ffff:10.244.1.2", &["10.244.1.2/32"], true);
    check("::ffff:10.244.1.2/112", &["10.244.0.0/16"], true);
    check("::ffff:0:0/96", &["0.0.0.0/0"], true);
    check("::/0", &["::/0"], true);
    check("::ffff:10.244.1.2/95", &[], false);
    check("::/64", &[], false);
}

#[test]
fn an_entry_names_no_address_that_means_its_client() {
    for own in ["127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1", "224.0.0.1"] {
        let mut builder = builder();
        let spec = json!({
            "hosts": ["db.example"], "addresses": [own], "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http", "protocol": "TCP"}],
            "endpoints": [{"address": own}],
        });
        let entry = json!({"metadata": meta("shop", "db", &json!({})), "spec": spec});
        builder.apply([put(Kind::ServiceEntry, &entry)]);
        let entry = json!({"metadata": meta("shop", "vm", &json!({})), "spec": {"address": own}});
        builder.apply([put(Kind::WorkloadEntry, &entry)]);
        let ip = own.parse().unwrap();
        let view = builder.view();
        assert!(view.service_at(&"".into(), ip, "shop").is_none(), "{own}");
        assert!(view.workload_at(&"".into(), ip).is_none(), "{own}");
        assert_eq!(view.workloads().filter(|it| !it.addresses.is_empty()).count(), 0, "{own}");
    }
}

#[test]
fn what_is_attached_to_a_service_holds_for_its_endpoints() {
    let mut builder = builder();
    builder.apply(pod("shop", "web", &json!({"app": "web"}), "10.0.0.2"));
    builder.apply(pod("shop", "db", &json!({"app": "db"}), "10.0.0.3"));
    let selecting =
        |app: &str| service("shop", "front", &json!({"selector": {"app": app}, "ports": []}));
    let attached = |action: &str, target: Value| {
        let get = json!([{"to": [{"operation": {"methods": ["GET"]}}]}]);
        let spec = json!({"action": action, "targetRefs": [target], "rules": get});
        policy("shop", "p", &spec)
    };
    let front = || json!({"kind": "Service", "name": "front"});
    let holds = |builder: &Builder, expected: [bool; 2]| {
        let names = |pod: &str| workload(builder, pod).policies.len() == 1;
        assert_eq!([names("web"), names("db")], expected);
    };
    // Whatever comes first, and whatever changes.
    builder.apply([attached("DENY", front())]);
    holds(&builder, [false, false]);
    builder.apply([selecting("web")]);
    holds(&builder, [true, false]);
    let sent = builder.view().policy(&"shop/p".parse().unwrap()).unwrap();
    assert_eq!((sent.scope, sent.action), (PolicyScope::WorkloadSelector, Action::Deny));
    assert_eq!(sent.rules[0].clauses.len(), 0, "it always matches");
    let condition = builder.condition(&ObjectName::new("shop", "p")).unwrap();
    assert_eq!((condition.status, condition.reason), ("False", "UnsupportedValue"));
    assert!(condition.message.contains("the Service's endpoints"), "{}", condition.message);
    builder.apply([selecting("db")]);
    holds(&builder, [false, true]);
    // A Service of another namespace is not its author's to close; nobody else is known here.
    let (http, istio) = ("gateway.networking.k8s.io", "networking.istio.io");
    for (group, kind, namespace, reason, said) in [
        ("", "Service", "bank", "UnsupportedValue", "every service of the namespace `shop`"),
        ("apps", "Service", "shop", "UnsupportedValue", "every service of the namespace `shop`"),
        (http, "Gateway", "shop", "TargetNotFound", "Gateway front: a waypoint enforces it"),
        (istio, "ServiceEntry", "shop", "TargetNotFound", "ServiceEntry front: a waypoint"),
    ] {
        let target = json!({"group": group, "kind": kind, "name": "front", "namespace": namespace});
        builder.apply([attached("DENY", front())]);
        holds(&builder, [false, true]);
        builder.apply([attached("DENY", target)]);
        holds(&builder, [false, false]);
        let condition = builder.condition(&ObjectName::new("shop", "p")).unwrap();
        assert_eq!((condition.status, condition.reason), ("False", reason));
        assert!(condition.message.contains(said), "{}", condition.message);
    }
    builder.apply([attached("DENY", front())]);
    builder.apply([delete(Kind::AuthorizationPolicy, "shop", "p")]);
    holds(&builder, [false, false]);
    // A Service whose endpoints are listed.
    let slice = json!({
        "metadata": meta("shop", "front-1", &json!({"kubernetes.io/service-name": "front"})),
        "addressType": "IPv4", "ports": [],
        "endpoints": [{"addresses": ["10.0.0.2"], "targetRef": {"kind": "Pod", "name": "web"}}],
    });
    let listing = service("shop", "front", &json!({"ports": [{"port": 80}]}));
    builder.apply([listing, put(Kind::EndpointSlice, &slice)]);
    holds(&builder, [false, false]);
    builder.apply([attached("DENY", front())]);
    holds(&builder, [true, false]);
    builder.apply([delete(Kind::AuthorizationPolicy, "shop", "p"), selecting("db")]);
    // The Service goes.
    builder.apply([attached("DENY", front())]);
    holds(&builder, [false, true]);
    builder.apply([delete(Kind::Service, "shop", "front")]);
    holds(&builder, [false, false]);
}

#[test]
fn what_a_service_lets_in_is_not_let_into_all_of_its_endpoints() {
    let front = json!({"kind": "Service", "name": "front"});
    let cart = json!([{"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/cart"]}}]}]);
    let spec = |targets: Value| json!({"action": "ALLOW", "targetRefs": targets, "rules": cart});
    let (attached, shape) = converted(&spec(json!([front])));
    assert_eq!((attached.policy.unwrap().action, shape), (Action::Allow, vec![]));
    assert!(attached.condition.message.contains("it allows nothing"));
    let (_, shape) = converted(&spec(json!([])));
    assert_eq!(shape.len(), 1, "attached to nothing it allows what it says");
}

#[test]
fn a_deny_that_is_attached_to_a_service_holds_at_every_port_and_address_of_its_endpoints() {
    let shape = |fields: Value| {
        let mut spec = json!({"action": "DENY", "targetRefs": [{"kind": "Service", "name": "f"}]});
        spec["rules"] = json!([fields]);
        converted(&spec).0.policy.unwrap().rules[0].clone()
    };
    // The Service's port and address, where the pod has others.
    for to in [json!({"ports": ["80"]}), json!({"notPorts": ["8080"]})] {
        assert_eq!(shape(json!({"to": [{"operation": to}]})), Rule::default());
    }
    for (key, values, value) in [
        ("destination.port", "values", "80"),
        ("destination.ip", "values", "10.96.0.1"),
        ("destination.ip", "notValues", "10.0.0.0/8"),
    ] {
        let mut condition = json!({ "key": key });
        condition[values] = json!([value]);
        assert_eq!(shape(json!({"when": [condition]})), Rule::default());
    }
    // Who comes is the same at both.
    let from = json!([{"source": {"namespaces": ["evil"]}}]);
    let alone = shape(json!({ "from": from }));
    assert_ne!(alone, Rule::default());
    assert_eq!(shape(json!({"from": from, "to": [{"operation": {"ports": ["80"]}}]})), alone);
}

#[test]
fn what_is_attached_to_a_service_holds_for_whom_an_entry_of_its_host_selects() {
    let entry = json!({"hosts": ["front.shop.svc.cluster.local"], "resolution": "STATIC",
        "ports": [{"number": 80, "name": "http"}],
        "workloadSelector": {"labels": {"app": "db"}}});
    let entry = put(
        Kind::ServiceEntry,
        &json!({"metadata": meta("shop", "beside", &json!({})), "spec": entry}),
    );
    let deny = policy(
        "shop",
        "p",
        &json!({"action": "DENY", "rules": [{}],
            "targetRefs": [{"kind": "Service", "name": "front"}]}),
    );
    let front = service("shop", "front", &json!({"selector": {"app": "web"}, "ports": []}));
    let events = [vec![entry], vec![deny], vec![front]];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut builder = builder();
        builder.apply(pod("shop", "db", &json!({"app": "db"}), "10.0.0.3"));
        for at in order {
            builder.apply(events[at].clone());
        }
        assert_eq!(workload(&builder, "db").policies.len(), 1, "{order:?}");
        builder.apply([delete(Kind::AuthorizationPolicy, "shop", "p")]);
        assert_eq!(workload(&builder, "db").policies.len(), 0, "{order:?}");
    }
}

#[test]
fn what_is_attached_to_a_service_and_a_waypoint_says_what_nothing_enforces() {
    let front = json!({"kind": "Service", "name": "front"});
    let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "way"});
    let (both, _) = converted(&json!({"action": "DENY", "targetRefs": [front, gateway]}));
    assert!(both.policy.is_some());
    assert!(both.condition.message.contains("nothing enforces it for Gateway way"));
    let (old, _) = converted(&json!({"action": "DENY", "targetRef": front}));
    assert!(old.policy.is_some() && !old.condition.message.contains("nothing enforces"));
}

#[test]
fn a_policy_on_trial_is_marked() {
    let mut builder = builder();
    let object = json!({
        "metadata": {"namespace": "istio-system", "name": "p",
            "annotations": {"istio.io/dry-run": "true"}},
        "spec": {"rules": [{}]},
    });
    builder.apply([put(Kind::AuthorizationPolicy, &object)]);
    let policy = builder.view().policy(&"istio-system/p".parse().unwrap()).unwrap();
    assert_eq!((policy.dry_run, policy.scope), (true, PolicyScope::Global));
}
