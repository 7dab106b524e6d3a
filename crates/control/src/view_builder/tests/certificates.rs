//! Gateways at the edge get the certificates and roots that they name and may use.

use std::time::{Duration, SystemTime};

use ambit_model::http::gateway::{ClientValidation, Proof};
use ambit_tls::{Authority, AuthorityBundle};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::edge::Edge;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn authority() -> AuthorityBundle {
    AuthorityBundle::new(Authority::generate("edge", SystemTime::now()).expect("a root"))
}

/// A certificate and its key, as a Secret has them.
fn pair(authority: &AuthorityBundle) -> (String, String) {
    let issued = authority.issue_server(&["a.example"], HOUR, SystemTime::now()).expect("a pair");
    (issued.chain_pem, issued.key_pem.to_string())
}

fn secret(namespace: &str, name: &str, kind: &str, chain: &str, key: &str) -> Event {
    let data = json!({"tls.crt": STANDARD.encode(chain), "tls.key": STANDARD.encode(key)});
    let metadata = meta(namespace, name, &json!({}));
    put(Kind::Secret, &json!({"metadata": metadata, "type": kind, "data": data}))
}

fn roots(namespace: &str, name: &str, data: &Value) -> Event {
    put(Kind::ConfigMap, &json!({"metadata": meta(namespace, name, &json!({})), "data": data}))
}

fn grant(kind: &str, to: &str) -> Event {
    grant_for("Gateway", kind, to)
}

fn grant_for(from: &str, kind: &str, to: &str) -> Event {
    let from = json!([{"group": "gateway.networking.k8s.io", "kind": from,
        "namespace": "infra"}]);
    let spec = json!({"from": from, "to": [{"group": "", "kind": kind, "name": to}]});
    put(Kind::ReferenceGrant, &json!({"metadata": meta("certs", "g", &json!({})), "spec": spec}))
}

/// One listener with these Secrets, and what is asked of its clients.
fn gateway(secrets: &Value, frontend: &Value) -> Event {
    let listeners = json!([{"name": "web", "port": 443, "protocol": "HTTPS",
        "tls": {"certificateRefs": secrets}}]);
    let spec = json!({"gatewayClassName": "ambit", "listeners": listeners,
        "tls": {"frontend": frontend}});
    put(Kind::Gateway, &json!({"metadata": meta("infra", "edge", &json!({})), "spec": spec}))
}

fn own(builder: &Builder) -> ServiceName {
    builder.store().gateways().service_of(builder.mesh(), &ObjectName::new("infra", "edge"))
}

/// What changes of certificates.
fn told(changes: &[Change]) -> Vec<String> {
    let told = |change: &Change| match change {
        Change::Certificate(it) => Some(format!("+{}", it.key.secret)),
        Change::RemoveCertificate(it) => Some(format!("-{}", it.secret)),
        _ => None,
    };
    changes.iter().filter_map(told).collect()
}

/// The reasons why the listener's references are not resolved, and why it is not accepted.
fn faults(builder: &Builder) -> [&'static str; 2] {
    let edge = Edge::find(builder.store(), &ObjectName::new("infra", "edge")).expect("an edge");
    let made = edge.made(builder.store()).remove("web").expect("the listener");
    [made.unresolved, made.refused].map(|it| it.map_or("", |it| it.reason))
}

#[test]
fn a_certificate_is_sent_while_a_listener_names_it_and_its_pair_is_whole() {
    let authority = authority();
    let ((chain, key), (rotated, new_key)) = (pair(&authority), pair(&authority));
    let tls = "kubernetes.io/tls";
    let mut builder = builder();
    let named = json!([{"name": "own"}]);
    // A Secret that nobody names is sent to nobody.
    let other = secret("infra", "other", tls, &chain, &key);
    assert_eq!(told(&builder.apply([gateway(&named, &json!({})), other])), [""; 0]);
    assert_eq!(faults(&builder), ["InvalidCertificateRef", ""]);
    for (what, event, change, fault) in [
        ("it appears", secret("infra", "own", tls, &chain, &key), "+infra/own", ""),
        ("rotated", secret("infra", "own", tls, &rotated, &new_key), "+infra/own", ""),
        (
            "the key of another",
            secret("infra", "own", tls, &chain, &new_key),
            "-infra/own",
            "InvalidCertificateRef",
        ),
        ("whole again", secret("infra", "own", tls, &chain, &key), "+infra/own", ""),
        (
            "another type",
            secret("infra", "own", "Opaque", &chain, &key),
            "-infra/own",
            "InvalidCertificateRef",
        ),
        ("whole again", secret("infra", "own", tls, &chain, &key), "+infra/own", ""),
        ("no PEM", secret("infra", "own", tls, "a", "b"), "-infra/own", "InvalidCertificateRef"),
        ("whole again", secret("infra", "own", tls, &chain, &key), "+infra/own", ""),
        ("gone", delete(Kind::Secret, "infra", "own"), "-infra/own", "InvalidCertificateRef"),
    ] {
        assert_eq!(told(&builder.apply([event])), [change], "{what}");
        assert_eq!(faults(&builder), [fault, ""], "{what}");
    }
    builder.apply([secret("infra", "own", tls, &chain, &key)]);
    let held = builder.view().certificate(&own(&builder), "infra/own").expect("it is named");
    assert!((held.chain_pem.as_str(), held.key_pem.as_str()) == (&*chain, &*key));
    // The Gateway names another, and is gone.
    let named = json!([{"name": "other"}]);
    let changes = builder.apply([gateway(&named, &json!({}))]);
    assert_eq!(told(&changes), ["-infra/own", "+infra/other"]);
    let changes = builder.apply([delete(Kind::Gateway, "infra", "edge")]);
    assert_eq!(told(&changes), ["-infra/other"]);
    // Nothing that is written for people has a key in it.
    let text = format!("{:?} {changes:?}", builder.store());
    assert!(!text.contains("PRIVATE KEY"));
}

#[test]
fn a_secret_of_another_namespace_needs_a_grant() {
    let authority = authority();
    let (chain, key) = pair(&authority);
    let mut builder = builder();
    let named = json!([{"name": "far", "namespace": "certs"}]);
    let far = secret("certs", "far", "kubernetes.io/tls", &chain, &key);
    assert_eq!(told(&builder.apply([gateway(&named, &json!({})), far])), [""; 0]);
    assert_eq!(faults(&builder), ["RefNotPermitted", ""]);
    assert_eq!(told(&builder.apply([grant("ConfigMap", "far")])), [""; 0]);
    assert_eq!(told(&builder.apply([grant("Secret", "other")])), [""; 0]);
    assert_eq!(told(&builder.apply([grant("Secret", "far")])), ["+certs/far"]);
    assert_eq!(faults(&builder), ["", ""]);
    let changes = builder.apply([delete(Kind::ReferenceGrant, "certs", "g")]);
    assert_eq!(told(&changes), ["-certs/far"]);
}

#[test]
fn a_gateway_proves_itself_to_backends_by_a_secret_that_it_may_use() {
    let authority = authority();
    let (chain, key) = pair(&authority);
    let tls = "kubernetes.io/tls";
    let named = |reference: &Value| {
        let listeners = json!([{"name": "web", "port": 80, "protocol": "HTTP"}]);
        let spec = json!({"gatewayClassName": "ambit", "listeners": listeners,
            "tls": {"backend": {"clientCertificateRef": reference}}});
        put(Kind::Gateway, &json!({"metadata": meta("infra", "edge", &json!({})), "spec": spec}))
    };
    let invalid = "InvalidClientCertificateRef";
    let mut builder = builder();
    let mut check = |event: Event, change: &[&str], secret: Option<&str>, reason: &str| {
        assert_eq!(told(&builder.apply([event])), change, "{reason}");
        let gateway = builder.view().gateway(&own(&builder)).expect("it is sent");
        let proof = match &gateway.proof {
            Proof::Certificate(secret) => Some(&**secret),
            Proof::None | Proof::Impossible { .. } => None,
        };
        assert_eq!(proof, secret);
        let name = ObjectName::new("infra", "edge");
        let edge = Edge::find(builder.store(), &name).expect("an edge");
        let fault = edge.unresolved(builder.store()).map_or("", |it| it.reason);
        assert_eq!(fault, reason);
        let is_impossible = matches!(gateway.proof, Proof::Impossible { .. });
        assert_eq!(is_impossible, !reason.is_empty());
        assert_eq!(faults(&builder), ["", ""], "of the listener");
    };
    check(named(&json!(null)), &[], None, "");
    check(named(&json!({"name": "own"})), &[], None, invalid);
    let whole = || secret("infra", "own", tls, &chain, &key);
    check(whole(), &["+infra/own"], Some("infra/own"), "");
    check(secret("infra", "own", "Opaque", &chain, &key), &["-infra/own"], None, invalid);
    check(whole(), &["+infra/own"], Some("infra/own"), "");
    let wrong = |group: &str, kind: &str| json!({"name": "own", "group": group, "kind": kind});
    check(named(&wrong("", "WrongKind")), &["-infra/own"], None, invalid);
    check(named(&wrong("wrong.example.com", "Secret")), &[], None, invalid);
    check(named(&json!({"name": "far", "namespace": "certs"})), &[], None, "RefNotPermitted");
    check(grant("Secret", "far"), &[], None, invalid);
    check(secret("certs", "far", tls, &chain, &key), &["+certs/far"], Some("certs/far"), "");
    let ungranted = delete(Kind::ReferenceGrant, "certs", "g");
    check(ungranted, &["-certs/far"], None, "RefNotPermitted");
}

#[test]
fn a_listener_set_refers_to_secrets_as_itself() {
    let authority = authority();
    let (chain, key) = pair(&authority);
    let check = |namespace: &str, grant: Option<Event>, expected: &[&str], fault: &str| {
        let mut builder = builder();
        let spec = json!({"gatewayClassName": "ambit",
            "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}],
            "allowedListeners": {"namespaces": {"from": "All"}}});
        let tls = json!({"certificateRefs": [{"name": "far", "namespace": "certs"}]});
        let of_set = json!({"parentRef": {"name": "edge", "namespace": "infra"}, "listeners": [
            {"name": "tls", "port": 443, "protocol": "HTTPS", "tls": tls}]});
        let (edge, own) = (meta("infra", "edge", &json!({})), meta(namespace, "own", &json!({})));
        builder.apply([
            put(Kind::Gateway, &json!({"metadata": edge, "spec": spec})),
            put(Kind::ListenerSet, &json!({"metadata": own, "spec": of_set})),
        ]);
        let far = secret("certs", "far", "kubernetes.io/tls", &chain, &key);
        let mut changes = builder.apply([far]);
        changes.extend(builder.apply(grant));
        assert_eq!(told(&changes), expected, "{namespace}");
        let edge = Edge::find(builder.store(), &ObjectName::new("infra", "edge")).expect("an edge");
        let mut made = edge.made(builder.store());
        let made = made.remove(&format!("{namespace}/own/tls")).expect("the listener");
        assert_eq!(made.unresolved.map_or("", |it| it.reason), fault, "{namespace}");
    };
    let denied = "RefNotPermitted";
    check("infra", None, &[], denied);
    check("infra", Some(grant("Secret", "far")), &[], denied);
    check("infra", Some(grant_for("ListenerSet", "Secret", "far")), &["+certs/far"], "");
    check("shop", Some(grant_for("ListenerSet", "Secret", "far")), &[], denied);
    check("certs", None, &["+certs/far"], "");
}

#[test]
fn clients_prove_themselves_by_the_roots_that_a_gateway_names() {
    let (one, two) = (authority().roots_pem(), authority().roots_pem());
    let named = |names: &[&str], mode: &str| {
        let refs = names.iter().map(|it| {
            let (namespace, name) = it.split_once('/').expect("namespace/name");
            if namespace.is_empty() {
                let group = "certificates.k8s.io";
                return json!({"group": group, "kind": "ClusterTrustBundle", "name": name});
            }
            json!({"group": "", "kind": "ConfigMap", "name": name, "namespace": namespace})
        });
        let refs: Value = refs.collect();
        json!({"default": {"validation": {"caCertificateRefs": refs, "mode": mode}}})
    };
    let valid = "AllowValidOnly";
    let both = format!("{one}\n{two}");
    let all = authority().roots_pem();
    let all_and_two = format!("{all}\n{two}");
    let required = |roots: &str| ClientValidation::Required { roots_pem: roots.into() };
    let optional = |roots: &str| ClientValidation::Optional { roots_pem: roots.into() };
    let problem = "none of the roots for clients can be used".into();
    let impossible = ClientValidation::Impossible { problem };
    let no_map = "InvalidCACertificateRef";
    let none = "NoValidCACertificate";
    for (frontend, expected, faults_of) in [
        (json!({}), ClientValidation::None, ["", ""]),
        (named(&["infra/one"], valid), required(&one), ["", ""]),
        (named(&["infra/one"], "AllowInsecureFallback"), optional(&one), ["", ""]),
        (named(&["infra/one", "infra/two"], valid), required(&both), ["", ""]),
        (named(&["/all", "infra/two"], valid), required(&all_and_two), ["", ""]),
        (named(&["/none"], valid), impossible.clone(), [no_map, none]),
        // One that can be used is enough, and what is wrong is told.
        (named(&["infra/none", "infra/two"], valid), required(&two), [no_map, ""]),
        (named(&["infra/none"], valid), impossible.clone(), [no_map, none]),
        (named(&["infra/bad"], valid), impossible.clone(), [no_map, none]),
        (named(&["infra/empty"], valid), impossible.clone(), [no_map, none]),
        (named(&["certs/far"], valid), impossible.clone(), ["RefNotPermitted", none]),
    ] {
        let mut builder = builder();
        let (chain, key) = pair(&authority());
        builder.apply([
            gateway(&json!([{"name": "own"}]), &frontend),
            secret("infra", "own", "kubernetes.io/tls", &chain, &key),
            roots("infra", "one", &json!({"ca.crt": one})),
            roots("infra", "two", &json!({"ca.crt": two})),
            roots("infra", "bad", &json!({"ca.crt": "no PEM"})),
            roots("infra", "empty", &json!({"other": one})),
            roots("", "all", &json!({"ca.crt": all})),
            roots("certs", "far", &json!({"ca.crt": one})),
        ]);
        let gateway = builder.view().gateway(&own(&builder)).expect("it is sent");
        let listener = gateway.listeners().next().expect("one");
        let clients = &listener.speaks.termination().expect("HTTPS").clients;
        assert_eq!(clients, &expected, "{frontend}");
        assert_eq!(faults(&builder), faults_of, "{frontend}");
        let names = builder.store().named_root_maps(builder.mesh());
        assert_eq!(names.is_empty(), expected == ClientValidation::None, "{frontend}");
    }
    // A grant, and roots that change, are heard of.
    let mut builder = builder();
    builder.apply([
        gateway(&json!([{"name": "own"}]), &named(&["certs/far"], valid)),
        roots("certs", "far", &json!({"ca.crt": one})),
        grant("ConfigMap", "far"),
    ]);
    assert_eq!(faults(&builder), ["InvalidCertificateRef", ""]);
    let is_sent = |changes: &[Change]| changes.iter().any(|it| matches!(it, Change::Gateway(_)));
    assert!(is_sent(&builder.apply([roots("certs", "far", &json!({"ca.crt": two}))])));
    assert!(!is_sent(&builder.apply([roots("certs", "other", &json!({"ca.crt": two}))])));
}

#[test]
fn the_mesh_configuration_is_nobodys_roots() {
    let named = |of: &str, name: &str| json!({"kind": "ConfigMap", "name": name, "namespace": of});
    let mesh = named("istio-system", "istio");
    let refs = json!([mesh, named("infra", "one"), named("a b", "c")]);
    let frontend = json!({"default": {"validation": {"caCertificateRefs": refs}}});
    let mut builder = builder();
    builder.apply([gateway(&json!([]), &frontend)]);
    let names = builder.store().named_root_maps(builder.mesh());
    assert_eq!(names.into_iter().collect::<Vec<_>>(), [ObjectName::new("infra", "one")]);
}
