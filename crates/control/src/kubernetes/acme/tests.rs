//! What is done for a Gateway before any directory is asked.

use ambit_words::annotations::ACME_DIRECTORY;
use serde_json::Value;

use super::*;
use crate::kubernetes::fake::FakeApi;
use crate::registry::Registry;
use crate::view_builder::{Mesh, Vips};

const GATEWAY: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/edge/gateways/in";
const SECRET: &str = "/api/v1/namespaces/edge/secrets/own";

fn gateway(listeners: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"annotations": {ACME_DIRECTORY: "https://acme.example/dir"}},
        "spec": {"gatewayClassName": "ambit", "listeners": listeners},
    })
}

fn web() -> Value {
    json!({"name": "web", "protocol": "HTTP", "port": 80})
}

fn https(host: &str) -> Value {
    json!({"name": "tls", "protocol": "HTTPS", "port": 443, "hostname": host,
        "tls": {"certificateRefs": [{"name": "own"}]}})
}

/// What a leader that starts now tells of the Gateway.
async fn told(api: &FakeApi) -> Told {
    let metrics = Arc::new(Metrics::new());
    let world = World::new(Mesh::sample(), Vips::default(), "/nonexistent".into(), metrics.clone());
    let mut registry = Registry::kubernetes(&api.client(), "istio-system");
    registry.load(|events| world.apply(events)).await.expect("it is loaded");
    let certificates = Certificates {
        client: api.client(),
        world: Arc::new(world),
        leads: watch::channel(true).1,
        told: watch::Sender::default(),
        metrics,
        system_roots: None,
    };
    certificates.step(&mut BTreeMap::new()).await;
    certificates.told.borrow().clone()
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_never_written() {
    let check = async |secret: Option<Value>, expected: Option<&str>| {
        let api = FakeApi::default();
        api.put(GATEWAY, gateway(json!([web(), https("a.example")])));
        if let Some(secret) = &secret {
            api.put(SECRET, secret.clone());
        }
        let before = api.get(SECRET);
        let told = told(&api).await;
        let what = told.get(&(ObjectName::new("edge", "in"), "own".to_owned()));
        match expected {
            None => assert_eq!(what, None, "{secret:?}"),
            Some(part) => assert!(what.is_some_and(|it| it.contains(part)), "{secret:?}: {what:?}"),
        }
        assert_eq!(api.get(SECRET), before);
        assert_eq!(api.count("POST") + api.count("PUT") + api.count("PATCH"), 0);
    };
    let secret = |kind: &str, owner: &str| {
        let labels = json!({"ambit.io/acme": owner});
        Some(json!({"apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"labels": labels}, "data": {"tls.crt": "", "tls.key": ""}}))
    };
    let waits = Some("a pod of the gateway is ready");
    check(None, waits).await;
    check(secret("kubernetes.io/tls", "in"), waits).await;
    check(secret("kubernetes.io/tls", "other"), None).await;
    check(secret("Opaque", "other"), Some("not control's to change")).await;
}

#[tokio::test]
async fn what_cannot_be_proven_is_not_asked_for() {
    for listeners in [json!([https("a.example")]), json!([web(), https("*.example")])] {
        let api = FakeApi::default();
        api.put(GATEWAY, gateway(listeners.clone()));
        assert_eq!(told(&api).await, Told::new(), "{listeners}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_waited_out_and_changes_by_others_are_not() {
    let acme = Acme { directory: String::new(), email: None, directory_ca: None };
    let wants = Wants { acme, hosts: Vec::new() };
    let progress = |failures, seen: Option<&str>| Progress {
        wants: wants.clone(),
        failures,
        tried: Instant::now(),
        next: Instant::now() + PAUSE,
        seen: seen.map(str::to_owned),
    };
    let check = |it: &Progress, chain: Option<&str>, expected: bool| {
        assert_eq!(it.rests(&wants, chain.map(str::to_owned).as_ref()), expected, "{chain:?}");
    };
    let good = progress(0, Some("one"));
    check(&good, Some("one"), true);
    check(&good, Some("two"), false);
    check(&good, None, false);
    let failed = progress(1, Some("one"));
    check(&failed, None, true);
    // Other words end a pause, but not the shortest after a failure.
    let others = Wants { hosts: vec!["a.example".to_owned()], ..wants.clone() };
    assert!(failed.rests(&others, None) && !good.rests(&others, None));
    tokio::time::advance(PAUSE * 2).await;
    check(&good, Some("one"), false);
    check(&failed, None, false);
    tokio::time::advance(PAUSE_MIN).await;
    assert!(!failed.rests(&others, None));
}
