//! Who passes for a waypoint's pod, and what it may have.

use ambit_tls::token::PodClaim;

use super::*;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

const WAY: &str = "nodes/node-1/waypoints/uid-way/tokens/istio-token";

/// Puts an object into the registry.
fn put(root: &Path, plural: &str, place: &str, object: &Value) {
    let path = root.join(format!("registry/objects/{plural}/{place}.json"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // As the machine does it: never half written.
    let beside = path.with_extension("new");
    std::fs::write(&beside, object.to_string()).unwrap();
    std::fs::rename(beside, path).unwrap();
}

fn gateway(root: &Path, namespace: &str, name: &str) {
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"namespace": namespace, "name": name, "uid": name},
        "spec": {"gatewayClassName": "ambit-waypoint",
            "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]},
    });
    put(root, "gateways", &format!("{namespace}/{name}"), &object);
}

/// A pod of node-1 that says it is of Gateway `of`, at this address.
fn pod(root: &Path, namespace: &str, name: &str, account: &str, of: &str, ip: &str) {
    let uid = format!("uid-{name}");
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": {
            "gateway.networking.k8s.io/gateway-name": of,
            "gateway.istio.io/managed": "istio.io-mesh-controller"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": of,
                "uid": "d", "controller": true}]},
        "spec": {"nodeName": "node-1", "serviceAccountName": account, "containers": []},
    });
    let status = json!({"uid": uid, "phase": "Running", "podIPs": [ip], "ready": true});
    let path = root.join(format!("registry/status/pods/{namespace}"));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join(format!("{name}.json")), status.to_string()).unwrap();
    put(root, "pods", &format!("{namespace}/{name}"), &object);
}

/// The mesh, a waypoint at the address that the tests call from, and pods that are none.
fn with_waypoints(root: &Path) {
    mesh(root);
    gateway(root, "shop", "way");
    pod(root, "shop", "way", "way", "way", "127.0.0.1");
    pod(root, "shop", "false-account", "web", "way", "127.0.0.1");
    pod(root, "shop", "false-gateway", "nobody", "nobody", "127.0.0.1");
    pod(root, "shop", "elsewhere", "way", "way", "10.244.1.99");
    gateway(root, "istio-system", "ztunnel");
    pod(root, "istio-system", "way-of-ztunnel", "ztunnel", "ztunnel", "127.0.0.1");
}

async fn fixture(name: &str) -> Fixture {
    let root = tempfile::Builder::new().prefix(name).tempdir().unwrap();
    std::fs::create_dir(root.path().join("registry")).unwrap();
    let fixture = Fixture::restart(root, "", with_waypoints).await;
    fixture.eventually("the waypoint's token", || fixture.read(WAY).is_some()).await;
    fixture
}

fn of_pod(namespace: &str, account: &str, pod: &str) -> Claims {
    Claims {
        namespace: namespace.to_owned(),
        service_account: account.to_owned(),
        pod: Some(PodClaim { name: pod.to_owned(), uid: format!("uid-{pod}") }),
        ..claims("node-1")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waypoint_has_its_own_certificate_and_no_other() {
    let fixture = fixture("waypoint").await;
    let token = fixture.read(WAY).unwrap();
    let mode = std::fs::metadata(fixture.root.path().join(WAY)).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    let root = "nodes/node-1/waypoints/uid-way/istio/root-cert.pem";
    assert_eq!(fixture.read(root), fixture.read("nodes/node-1/root-cert.pem"));
    assert_eq!(fixture.read("nodes/node-1/waypoints/uid-false-account/tokens/istio-token"), None);
    let way = Identity::new("cluster.local", "shop", "way").to_string();
    let chain = fixture.certificate(Some(&token), &way, &way, 60).await;
    chain.expect("its own identity");
    let signer = fixture.signer();
    let sign = |claims: &Claims| signer.sign(claims).unwrap().to_string();
    let ztunnel = sign(&of_pod("istio-system", "ztunnel", "way-of-ztunnel"));
    let elsewhere = sign(&of_pod("shop", "way", "elsewhere"));
    let (web, db) = (identity("web"), identity("db"));
    let bank = Identity::new("cluster.local", "bank", "way").to_string();
    let foreign = Identity::new("evil.example", "shop", "way").to_string();
    let proxy = Identity::new("cluster.local", "istio-system", "ztunnel").to_string();
    for (attack, token, wanted, csr, expected) in [
        ("a pod of its node", &token, &web, &web, Code::PermissionDenied),
        ("a pod of another node", &token, &db, &db, Code::PermissionDenied),
        ("another namespace", &token, &bank, &bank, Code::PermissionDenied),
        ("another trust domain", &token, &foreign, &foreign, Code::PermissionDenied),
        ("a node proxy", &token, &proxy, &proxy, Code::PermissionDenied),
        ("another identity in the request", &token, &way, &web, Code::PermissionDenied),
        ("a waypoint with the proxies' account", &ztunnel, &web, &web, Code::PermissionDenied),
        ("another pod's address", &elsewhere, &way, &way, Code::Unauthenticated),
    ] {
        let refused = fixture.certificate(Some(token), wanted, csr, 60).await.expect_err(attack);
        assert_eq!(refused.code(), expected, "{attack}: {refused:?}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_waypoints_pod_passes_for_one() {
    let fixture = fixture("no-waypoint").await;
    let signer = fixture.signer();
    let sign = |claims: &Claims| signer.sign(claims).unwrap().to_string();
    let own = of_pod("shop", "way", "way");
    let past = SystemTime::now() - Duration::from_secs(3600);
    let expired =
        Claims { issued_at: past, expires_at: past + Duration::from_secs(60), ..own.clone() };
    let other_uid = PodClaim { name: "way".to_owned(), uid: "uid-old".to_owned() };
    let replaced = Claims { pod: Some(other_uid), ..own.clone() };
    let audience = Claims { audience: vec!["kubernetes".to_owned()], ..own.clone() };
    let good = sign(&own);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (header, body) = signed.split_once('.').unwrap();
    let claims = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap();
    let claims = BASE64_URL_SAFE_NO_PAD.encode(claims.replace("shop", "bank"));
    let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
    let foreign = TokenSigner::generate().unwrap().sign(&own).unwrap().to_string();
    let way = Identity::new("cluster.local", "shop", "way").to_string();
    let gone = of_pod("shop", "way", "gone");
    for (attack, token, expected) in [
        ("expired", sign(&expired), Code::Unauthenticated),
        ("a pod that was replaced", sign(&replaced), Code::Unauthenticated),
        ("a pod that does not exist", sign(&gone), Code::Unauthenticated),
        ("another audience", sign(&audience), Code::Unauthenticated),
        ("another key", foreign, Code::Unauthenticated),
        ("tampered", format!("{header}.{claims}.{signature}"), Code::Unauthenticated),
        ("alg none", format!("{none}.{body}."), Code::Unauthenticated),
        ("alg none, signed", format!("{none}.{body}.{signature}"), Code::Unauthenticated),
        ("another account", sign(&of_pod("shop", "web", "way")), Code::PermissionDenied),
        (
            "an ordinary account",
            sign(&of_pod("shop", "web", "false-account")),
            Code::PermissionDenied,
        ),
        (
            "no Gateway of the name",
            sign(&of_pod("shop", "nobody", "false-gateway")),
            Code::PermissionDenied,
        ),
    ] {
        let refused = fixture.certificate(Some(&token), &way, &way, 60).await.expect_err(attack);
        assert_eq!(refused.code(), expected, "{attack}: {refused:?}");
        assert!(!refused.message().contains(&token), "a token in an error");
        assert!(!sees_the_mesh(&fixture, &token).await, "{attack}");
    }
    assert!(sees_the_mesh(&fixture, &good).await);
    fixture.end().await;
}

/// Whether a stream with this token is sent any workload.
async fn sees_the_mesh(fixture: &Fixture, token: &str) -> bool {
    let mut client = ads::AggregatedDiscoveryServiceClient::new(fixture.channel().await);
    let first = DeltaDiscoveryRequest {
        type_url: ResourceType::Address.url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::once(first),
        tokio_stream::pending::<DeltaDiscoveryRequest>(),
    );
    let mut request = Request::new(requests);
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    let Ok(answers) = client.delta_aggregated_resources(request).await else { return false };
    matches!(answers.into_inner().message().await, Ok(Some(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waypoint_whose_gateway_goes_is_served_no_longer() {
    let fixture = fixture("gone").await;
    let token = fixture.read(WAY).unwrap();
    let mut client = ads::AggregatedDiscoveryServiceClient::new(fixture.channel().await);
    let first = DeltaDiscoveryRequest {
        type_url: ResourceType::Address.url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::once(first),
        tokio_stream::pending::<DeltaDiscoveryRequest>(),
    );
    let mut request = Request::new(requests);
    let value = format!("Bearer {}", token).parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    let mut answers = client.delta_aggregated_resources(request).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    let (_, status) = fixture.admin(Method::GET, "/status", &Value::Null).await;
    assert_eq!(status["discovery"]["clients"], 0, "it is no node's proxy");
    let gateway = fixture.root.path().join("registry/objects/gateways/shop/way.json");
    std::fs::remove_file(gateway).unwrap();
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ends without a reason"),
                Err(status) => return status,
            }
        }
    });
    let ended = ended.await.expect("the stream ends");
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended:?}");
    fixture.eventually("its credentials are gone", || fixture.read(WAY).is_none()).await;
    fixture.end().await;
}
