//! BackendTLSPolicies say how TLS is spoken with the endpoints of services, and are told what
//! became of them.

use std::time::SystemTime;

use ambit_model::http::origination::{Origination, Trust};
use ambit_model::http::traffic::TrafficPolicy;
use ambit_tls::{Authority, AuthorityBundle};

use super::super::backend_tls::{Reached, conditions};
use super::*;

const WEB: &str = "shop/web.shop.svc.cluster.local";

fn roots() -> String {
    AuthorityBundle::new(Authority::generate("shop", SystemTime::now()).unwrap()).roots_pem()
}

fn config_map(name: &str, data: &Value) -> Event {
    put(Kind::ConfigMap, &json!({"metadata": meta("shop", name, &json!({})), "data": data}))
}

/// A policy for `web`, or for its port of this name.
fn policy_at(name: &str, age: u32, port: Option<&str>, validation: &Value) -> Event {
    let mut metadata = meta("shop", name, &json!({}));
    metadata["creationTimestamp"] = format!("2026-01-01T00:00:{:02}Z", 30 - age).into();
    metadata["generation"] = 3.into();
    let target = json!({"group": "", "kind": "Service", "name": "web", "sectionName": port});
    let spec = json!({"targetRefs": [target], "validation": validation});
    put(Kind::BackendTlsPolicy, &json!({"metadata": metadata, "spec": spec}))
}

/// What endpoints must prove: this name, to the roots in this ConfigMap.
fn by(hostname: &str, map: &str) -> Value {
    let roots = json!([{"group": "", "kind": "ConfigMap", "name": map}]);
    json!({"hostname": hostname, "caCertificateRefs": roots})
}

fn web() -> Event {
    let ports = json!([{"name": "http", "port": 80}, {"name": "https", "port": 443}]);
    service("shop", "web", &json!({"selector": {"app": "web"}, "ports": ports}))
}

fn traffic(builder: &Builder, port: u16) -> TrafficPolicy {
    let known = builder.view().http_service(&WEB.parse().unwrap()).expect("a service");
    known.traffic(port, None).clone()
}

/// For each port the name that is sent, `plain`, or `refused`.
fn spoken(builder: &Builder) -> [String; 2] {
    [80, 443].map(|port| match traffic(builder, port) {
        TrafficPolicy { refusal: Some(_), origination: None, .. } => "refused".to_owned(),
        TrafficPolicy { refusal: None, origination: Some(it), .. } => {
            it.server_name.as_deref().unwrap_or("-").to_owned()
        }
        TrafficPolicy { refusal: None, origination: None, .. } => "plain".to_owned(),
        other => panic!("{other:?}"),
    })
}

/// Why a policy is accepted or not, and whether its references are resolved.
fn told(builder: &Builder, name: &str) -> [&'static str; 2] {
    let name = ObjectName::new("shop", name);
    let mut all = builder.store().backend_tls().iter();
    let (_, known) = all.find(|(it, _)| **it == name).expect("it is there");
    conditions(builder, &name, known).map(|it| {
        assert_eq!(it.status == "True", it.reason == it.kind, "{it:?}");
        it.reason
    })
}

#[test]
fn the_narrower_policy_decides_then_the_older_and_a_wrong_one_refuses() {
    const ACCEPTED: [&str; 2] = ["Accepted", "ResolvedRefs"];
    const CONFLICTED: [&str; 2] = ["Conflicted", "ResolvedRefs"];
    let ca = roots();
    let check = |policies: &[(&str, u32, Option<&str>, Value)],
                 expected: [&str; 2],
                 reasons: &[[&str; 2]]| {
        let mut builder = builder();
        let maps = [
            config_map("ca", &json!({"ca.crt": ca})),
            config_map("bad", &json!({"ca.crt": "no PEM"})),
            config_map("empty", &json!({})),
        ];
        builder.apply(maps.into_iter().chain([web()]));
        for (name, age, port, validation) in policies {
            builder.apply([policy_at(name, *age, *port, validation)]);
        }
        assert_eq!(spoken(&builder), expected, "{policies:?}");
        for ((name, ..), reasons) in policies.iter().zip(reasons) {
            assert_eq!(told(&builder, name), *reasons, "{name} of {policies:?}");
        }
        for (name, ..) in policies {
            builder.apply([delete(Kind::BackendTlsPolicy, "shop", name)]);
        }
        assert_eq!(spoken(&builder), ["plain", "plain"], "nothing stays of {policies:?}");
    };
    let all = |name, age, validation| (name, age, None, validation);
    let at = |name, age, port, validation| (name, age, Some(port), validation);
    let (a, b) = (|| by("a.example", "ca"), || by("b.example", "ca"));
    check(&[], ["plain", "plain"], &[]);
    check(&[all("p", 0, a())], ["a.example", "a.example"], &[ACCEPTED]);
    check(&[at("p", 0, "https", a())], ["plain", "a.example"], &[ACCEPTED]);
    let both = [all("p", 9, a()), at("q", 0, "https", b())];
    check(&both, ["a.example", "b.example"], &[ACCEPTED, ACCEPTED]);
    let aged = [all("p", 0, a()), all("q", 9, b())];
    check(&aged, ["b.example", "b.example"], &[CONFLICTED, ACCEPTED]);
    let named = [at("q", 0, "https", b()), at("p", 0, "https", a())];
    check(&named, ["plain", "a.example"], &[CONFLICTED, ACCEPTED]);
    let no_roots = ["NoValidCACertificate", "InvalidCACertificateRef"];
    for map in ["none", "bad", "empty"] {
        let wrong = [at("p", 0, "https", by("a.example", map))];
        check(&wrong, ["plain", "refused"], &[no_roots]);
    }
    let mut of_secret = a();
    of_secret["caCertificateRefs"][0]["kind"] = "Secret".into();
    check(&[all("p", 0, of_secret)], ["refused"; 2], &[["NoValidCACertificate", "InvalidKind"]]);
    // One that can be used is enough, and what is wrong is told.
    let mut some = a();
    let absent = json!({"group": "", "kind": "ConfigMap", "name": "none"});
    some["caCertificateRefs"].as_array_mut().unwrap().push(absent);
    let partly = ["Accepted", "InvalidCACertificateRef"];
    check(&[all("p", 0, some)], ["a.example", "a.example"], &[partly]);
    let public = |name: &str| json!({"hostname": "a.example", "wellKnownCACertificates": name});
    check(&[all("p", 0, public("System"))], ["a.example", "a.example"], &[ACCEPTED]);
    let invalid = ["Invalid", "ResolvedRefs"];
    check(&[all("p", 0, public("example.com/own"))], ["refused"; 2], &[invalid]);
    check(&[all("p", 0, by("*.example", "ca"))], ["refused"; 2], &[invalid]);
    // An older one that is wrong decides as well.
    let wrong = [all("p", 9, public("other")), all("q", 0, a())];
    check(&wrong, ["refused"; 2], &[invalid, CONFLICTED]);
    let nowhere = ["TargetNotFound", "ResolvedRefs"];
    check(&[at("p", 0, "other", a())], ["plain", "plain"], &[nowhere]);
}

#[test]
fn a_policy_takes_the_place_of_a_destination_rules_tls_and_of_nothing_else() {
    let ca = roots();
    let mut builder = builder();
    let tls = json!({"mode": "SIMPLE", "sni": "rule.example"});
    let spec = json!({"host": "web", "trafficPolicy": {
        "tls": tls, "connectionPool": {"http": {"maxRequestsPerConnection": 7}}},
        "subsets": [{"name": "v1", "labels": {"v": "1"}, "trafficPolicy": {"tls": tls}}]});
    let rule = json!({"metadata": meta("shop", "r", &json!({})), "spec": spec});
    builder.apply([web(), put(Kind::DestinationRule, &rule)]);
    assert_eq!(spoken(&builder), ["rule.example", "rule.example"]);
    let mut validation = by("a.example", "ca");
    validation["subjectAltNames"] = json!([
        {"type": "Hostname", "hostname": "b.example"}, {"type": "URI", "uri": "spiffe://a/b"}]);
    builder.apply([policy_at("p", 0, Some("https"), &validation)]);
    assert_eq!(spoken(&builder), ["rule.example", "refused"], "its roots are not there yet");
    assert_eq!(builder.store().named_root_maps(builder.mesh()).len(), 1);
    builder.apply([config_map("ca", &json!({"ca.crt": ca}))]);
    assert_eq!(spoken(&builder), ["rule.example", "a.example"]);
    let expected = Origination {
        server_name: Some("a.example".into()),
        alternatives: vec!["b.example".into()],
        uris: vec!["spiffe://a/b".into()],
        trust: Trust::Roots(ca.as_str().into()),
        client: None,
    };
    let of_port = traffic(&builder, 443);
    assert_eq!(of_port.origination.as_ref(), Some(&expected));
    assert_eq!(of_port.limits.requests_per_connection, Some(7));
    let known = builder.view().http_service(&WEB.parse().unwrap()).expect("a service").clone();
    assert_eq!(known.traffic(443, Some("v1")).origination.as_ref(), Some(&expected));
    let of_rule = known.traffic(80, Some("v1")).origination.as_ref();
    assert_eq!(of_rule.and_then(|it| it.server_name.as_deref()), Some("rule.example"));
    // Roots that change are heard of.
    for (data, expected) in
        [(json!({"ca.crt": ""}), "refused"), (json!({"ca.crt": roots()}), "a.example")]
    {
        builder.apply([config_map("ca", &data)]);
        assert_eq!(spoken(&builder), ["rule.example", expected], "{data}");
    }
    builder.apply([delete(Kind::ConfigMap, "shop", "ca")]);
    assert_eq!(spoken(&builder), ["rule.example", "refused"]);
    builder.apply([delete(Kind::BackendTlsPolicy, "shop", "p")]);
    assert_eq!(spoken(&builder), ["rule.example", "rule.example"]);
    assert!(builder.store().named_root_maps(builder.mesh()).is_empty());
}

#[test]
fn its_ancestors_are_the_gateways_that_have_a_route_to_the_service() {
    let mut builder = builder();
    let gateway = |name: &str, class: &str, protocol: &str, port: u16| {
        let listeners = json!([{"name": "web", "port": port, "protocol": protocol}]);
        let spec = json!({"gatewayClassName": class, "listeners": listeners});
        put(Kind::Gateway, &json!({"metadata": meta("shop", name, &json!({})), "spec": spec}))
    };
    let route = |parents: &[&str], section: Option<&str>| {
        let parents: Value =
            parents.iter().map(|name| json!({"name": name, "sectionName": section})).collect();
        let spec = json!({"parentRefs": parents,
            "rules": [{"backendRefs": [{"name": "web", "port": 443}]}]});
        put(Kind::HttpRoute, &json!({"metadata": meta("shop", "r", &json!({})), "spec": spec}))
    };
    let ancestors = |builder: &Builder| {
        let (_, known) = builder.store().backend_tls().iter().next().expect("a policy");
        let all = Reached::of(builder).ancestors(known).into_iter();
        all.map(|(name, controller)| format!("{}:{controller}", name.name)).collect::<Vec<_>>()
    };
    builder.apply([
        web(),
        policy_at("p", 0, None, &by("a.example", "ca")),
        gateway("one", "ambit", "HTTP", 80),
        gateway("two", "ambit", "HTTP", 80),
        gateway("other", "example", "HTTP", 80),
        gateway("way", "istio-waypoint", "HBONE", 15_008),
    ]);
    assert_eq!(ancestors(&builder), [""; 0]);
    builder.apply([route(&["two", "one", "other"], None)]);
    let edge = "ambit.io/gateway-controller";
    assert_eq!(ancestors(&builder), [format!("one:{edge}"), format!("two:{edge}")]);
    builder.apply([route(&["one"], Some("none"))]);
    assert_eq!(ancestors(&builder), [""; 0], "it is not attached");
    let labels = json!({"istio.io/use-waypoint": "way"});
    builder.apply([put(Kind::Namespace, &json!({"metadata": {"name": "shop", "labels": labels}}))]);
    assert_eq!(ancestors(&builder), ["way:istio.io/mesh-controller"]);
}
