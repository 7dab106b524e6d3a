//! The control plane as its clients see it: real sockets on loopback, real TLS, real tokens.

mod held;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ambit_model::identity::Identity;
use ambit_net::grpc::{Target, connect};
use ambit_tls::WorkloadKey;
use ambit_tls::service::ServiceConnector;
use ambit_tls::token::{Claims, ISSUER};
use ambit_wire::ca::request_for;
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::aggregated_discovery_service_client as ads;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource,
};
use ambit_wire::proto::google::rpc::Status as RpcStatus;
use ambit_wire::proto::istio::v1::auth::istio_certificate_service_client as certificates;
use ambit_wire::xds::ResourceType;
use ambit_wire::xds::node::ProxyNode;
use bytes::Bytes;
use clap::Parser;
use http::{Method, StatusCode};
use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::*;

mod anonymous;
mod flood;
mod waypoint;

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A running control plane with a registry to write to.
struct Fixture {
    root: TempDir,
    control: Control,
    life: Life,
}

impl Fixture {
    async fn start(name: &str, flags: &str) -> Self {
        let root = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        std::fs::create_dir(root.path().join("registry")).unwrap();
        Self::restart(root, flags, mesh).await
    }

    async fn restart(root: TempDir, flags: &str, prepare: impl FnOnce(&Path)) -> Self {
        prepare(root.path());
        // Control writes the token last: one of the life before says nothing of this one's files.
        let _absent = std::fs::remove_file(root.path().join("nodes/node-1/token"));
        let at = root.path().display();
        let words = format!(
            "control --registry files:{at}/registry --state {at}/control --admin-socket \
             {at}/control.sock \
             --node-credentials {at}/nodes --xds-address 127.0.0.1:0 --monitoring-address \
             127.0.0.1:0 {flags}"
        );
        let args = Command::try_parse_from(words.split_whitespace()).unwrap().args;
        let config = Config::try_from(args).unwrap();
        let life = Life::new();
        let control = Control::set_up(config, &life).await.unwrap();
        let fixture = Self { root, control, life };
        fixture
            .eventually("node credentials", || fixture.read("nodes/node-1/token").is_some())
            .await;
        fixture
    }

    async fn stop(self) -> TempDir {
        let started = Instant::now();
        self.life.end(self.control, Duration::ZERO).await;
        assert!(started.elapsed() < DRAIN_TIMEOUT, "all tasks end in time");
        self.root
    }

    async fn end(self) {
        self.stop().await;
    }

    async fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.path().join(path)).ok()
    }

    fn signer(&self) -> TokenSigner {
        TokenSigner::from_pem(&self.read("control/token-key.pem").unwrap()).unwrap()
    }

    fn token(&self) -> String {
        self.read("nodes/node-1/token").unwrap()
    }

    async fn channel(&self) -> Channel {
        let roots = self.read("nodes/node-1/root-cert.pem").unwrap();
        let tls = ServiceConnector::new(&roots, "istiod.istio-system.svc", None).unwrap();
        let uri = format!("https://127.0.0.1:{}", self.control.ports.xds.port()).parse().unwrap();
        connect(&Target { uri, tls: Some(tls), mark: None, outside: None }).await.unwrap()
    }

    async fn admin(&self, method: Method, target: &str, body: &Value) -> (StatusCode, Value) {
        let socket = self.root.path().join("control.sock");
        let body = Bytes::from(body.to_string());
        let (status, body) =
            ambit_net::local_http::request(&socket, method, target, body, PATIENCE).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// A certificate request with a valid signing request for `identity`.
    async fn certificate(
        &self,
        token: Option<&str>,
        identity: &str,
        csr_identity: &str,
        seconds: i64,
    ) -> Result<Vec<String>, tonic::Status> {
        let csr = WorkloadKey::generate().unwrap().csr_pem(&csr_identity.parse().unwrap()).unwrap();
        let request = request_for(&identity.parse().unwrap(), csr, seconds);
        let mut request = Request::new(request);
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let mut client = certificates::IstioCertificateServiceClient::new(self.channel().await);
        client.create_certificate(request).await.map(|answer| answer.into_inner().cert_chain)
    }
}

fn put(root: &Path, path: &str, object: &Value) {
    let path = root.join("registry").join(path);
    let directory = path.parent().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    let beside = directory.join(".writing");
    std::fs::write(&beside, object.to_string()).unwrap();
    std::fs::rename(beside, path).unwrap();
}

fn put_pod(root: &Path, name: &str, account: &str, node: &str, ip: &str, phase: &str) {
    let uid = format!("uid-{name}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "labels": {"app": name}},
        "spec": {
            "serviceAccountName": account, "nodeName": node,
            "containers": [{"name": "c", "image": "i", "ports": [{"name": "http",
                "containerPort": 8080}]}],
        },
    });
    put(root, &format!("objects/pods/shop/{name}.json"), &pod);
    let status = json!({"uid": uid, "node": node, "phase": phase, "podIPs": [ip], "ready": true});
    put(root, &format!("status/pods/shop/{name}.json"), &status);
    let captured = root.join("registry/captured/shop");
    std::fs::create_dir_all(&captured).unwrap();
    std::fs::write(captured.join(name), uid).unwrap();
}

/// A node whose proxy calls over loopback.
fn put_node(root: &Path, name: &str) {
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": addresses}});
    put(root, &format!("objects/nodes/_/{name}.json"), &node);
}

/// Two nodes; `client` and `web` on the first, `db` on the second, `old` has failed.
fn mesh(root: &Path) {
    put_node(root, "node-1");
    put_node(root, "node-2");
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}},
    });
    put(root, "objects/namespaces/_/shop.json", &namespace);
    put_pod(root, "client", "client", "node-1", "10.244.1.2", "Running");
    put_pod(root, "web", "web", "node-1", "10.244.1.3", "Running");
    put_pod(root, "db", "db", "node-2", "10.244.2.2", "Running");
    put_pod(root, "old", "old", "node-1", "10.244.1.9", "Failed");
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "db"},
        "spec": {"clusterIP": "10.96.0.20", "selector": {"app": "db"}, "ports": [{"port": 80,
            "targetPort": "http"}]},
    });
    put(root, "objects/services/shop/db.json", &service);
}

fn policy(action: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "shop", "name": "db"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}, "action": action, "rules": rules},
    })
}

fn identity(account: &str) -> String {
    Identity::new("cluster.local", "shop", account).to_string()
}

/// One delta stream and what it received.
struct Proxy {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: tonic::Streaming<DeltaDiscoveryResponse>,
}

impl Proxy {
    async fn join(fixture: &Fixture, token: &str, node: &str) -> Result<Self, tonic::Status> {
        Self::over(fixture.channel().await, Some(token), node).await
    }

    async fn over(
        channel: Channel,
        token: Option<&str>,
        node: &str,
    ) -> Result<Self, tonic::Status> {
        let (requests, receiver) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let node = Node::from(ProxyNode {
            ip: "172.18.0.11".parse().unwrap(),
            pod: "ztunnel".to_owned(),
            namespace: "istio-system".to_owned(),
            node: node.to_owned(),
            metadata: std::collections::BTreeMap::new(),
        });
        // The server answers the call itself only once it looks at it.
        let first = [ResourceType::Address, ResourceType::Authorization];
        for (index, resource_type) in first.into_iter().enumerate() {
            let node = (index == 0).then(|| node.clone());
            requests.send(subscribe(resource_type, node)).await.unwrap();
        }
        let mut client = ads::AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.delta_aggregated_resources(request).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, tonic::Status> {
        let next = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        let next = next.expect("an answer in time")?;
        if let Some(response) = &next {
            self.acknowledge(response, None).await;
        }
        Ok(next)
    }

    async fn acknowledge(&self, response: &DeltaDiscoveryResponse, error: Option<&str>) {
        let request = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: error.map(|message| RpcStatus { code: 3, message: message.to_owned() }),
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }

    /// Names put and removed, until all of `expected` have been seen.
    async fn see(&mut self, expected: &[&str]) {
        let mut missing: BTreeSet<String> = expected.iter().map(|it| (*it).to_owned()).collect();
        while !missing.is_empty() {
            let response = self.next().await.unwrap().expect("the stream goes on");
            for resource in &response.resources {
                let resource = Resource::decode(resource.clone()).unwrap();
                missing.remove(&format!("+{}", resource.name));
            }
            for name in &response.removed_resources {
                missing.remove(&format!("-{name}"));
            }
        }
    }
}

fn subscribe(resource_type: ResourceType, node: Option<Node>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node,
        type_url: resource_type.url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_are_told_what_is_there_and_what_changes() {
    let fixture = Fixture::start("xds", "").await;
    let mut proxy = Proxy::join(&fixture, &fixture.token(), "node-1").await.unwrap();
    proxy
        .see(&[
            "+Kubernetes//Pod/shop/client",
            "+Kubernetes//Pod/shop/web",
            "+Kubernetes//Pod/shop/db",
            "+shop/db.shop.svc.cluster.local",
            "+istio-system/istio_converted_static_strict",
        ])
        .await;
    let started = Instant::now();
    let rules = json!([{"from": [{"source": {"namespaces": ["shop"]}}]}]);
    put(
        fixture.root.path(),
        "objects/authorizationpolicies/shop/db.json",
        &policy("ALLOW", &rules),
    );
    proxy.see(&["+shop/db", "+Kubernetes//Pod/shop/db"]).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    std::fs::remove_file(fixture.root.path().join("registry/objects/pods/shop/web.json")).unwrap();
    proxy.see(&["-Kubernetes//Pod/shop/web"]).await;
    let (_, nodes) = fixture.admin(Method::GET, "/get/nodes", &Value::Null).await;
    assert_eq!(nodes["items"][0]["proxyConnected"], true);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_seen_and_the_stream_goes_on() {
    let fixture = Fixture::start("nack", "").await;
    let mut proxy = Proxy::join(&fixture, &fixture.token(), "node-1").await.unwrap();
    let response = proxy.responses.message().await.unwrap().unwrap();
    proxy.acknowledge(&response, Some("no such thing")).await;
    let address = fixture.control.ports.monitoring;
    fixture
        .eventually("the refusal is counted", || {
            monitoring(address, "/metrics").contains("pilot_total_xds_rejects_total{")
        })
        .await;
    let (_, told) = fixture.admin(Method::GET, "/debug/syncz", &Value::Null).await;
    assert!(told.to_string().contains("no such thing"), "{told}");
    assert!(monitoring(address, "/ready").contains("true"));
    put_pod(fixture.root.path(), "late", "late", "node-2", "10.244.2.9", "Running");
    proxy.see(&["+Kubernetes//Pod/shop/late"]).await;
    fixture.end().await;
}

fn monitoring(address: SocketAddr, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_wants_a_node_proxys_token() {
    let fixture = Fixture::start("xds-auth", "").await;
    let check = async |token: Option<&str>, node: &str, expected: Code| {
        let joined = Proxy::over(fixture.channel().await, token, node).await;
        let status = match joined {
            Err(status) => status,
            Ok(mut proxy) => loop {
                match proxy.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("the stream ended without a status"),
                    Err(status) => break status,
                }
            },
        };
        assert_eq!(status.code(), expected, "{status:?}");
    };
    check(None, "node-1", Code::Unauthenticated).await;
    check(Some("x.y.z"), "node-1", Code::Unauthenticated).await;
    check(Some(&fixture.token()), "node-2", Code::PermissionDenied).await;
    let signer = fixture.signer();
    let claims = claims("node-1");
    let other = Claims { service_account: "default".to_owned(), ..claims.clone() };
    check(Some(&signer.sign(&other).unwrap()), "node-1", Code::PermissionDenied).await;
    let short = Claims { expires_at: SystemTime::now() + Duration::from_secs(2), ..claims };
    check(Some(&signer.sign(&short).unwrap()), "node-1", Code::Unauthenticated).await;
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_discovery_is_for_loopback() {
    let fixture = Fixture::start("plain", "--plaintext-xds-address 127.0.0.1:0").await;
    let port = fixture.control.ports.plaintext_xds.unwrap().port();
    let uri = format!("http://127.0.0.1:{port}").parse().unwrap();
    let channel = connect(&Target { uri, tls: None, mark: None, outside: None }).await.unwrap();
    let mut proxy = Proxy::over(channel.clone(), None, "node-1").await.unwrap();
    proxy.see(&["+Kubernetes//Pod/shop/web"]).await;
    let mut authority = certificates::IstioCertificateServiceClient::new(channel);
    let refused = authority.create_certificate(request_for(
        &identity("web").parse().unwrap(),
        String::new(),
        60,
    ));
    assert_eq!(refused.await.unwrap_err().code(), Code::Unimplemented);
    fixture.end().await;
}

fn claims(node: &str) -> Claims {
    let now = SystemTime::now();
    Claims {
        issuer: ISSUER.to_owned(),
        audience: vec!["istio-ca".to_owned()],
        issued_at: now,
        expires_at: now + Duration::from_secs(600),
        namespace: "istio-system".to_owned(),
        service_account: "ztunnel".to_owned(),
        node: node.to_owned(),
        pod: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_for_pods_of_the_callers_node() {
    let fixture = Fixture::start("ca", "--workload-cert-ttl 60s").await;
    let token = fixture.token();
    let chain = fixture.certificate(Some(&token), &identity("web"), &identity("web"), 86_400).await;
    let chain = chain.expect("a pod of this node");
    assert_eq!(chain.last().unwrap(), &fixture.read("nodes/node-1/root-cert.pem").unwrap());
    let leaf = ambit_tls::certificate::CertificateSummary::from_pem(&chain[0]).unwrap();
    let left = leaf.not_after.duration_since(SystemTime::now()).unwrap();
    assert!(left <= Duration::from_secs(60), "the lifetime is capped: {left:?}");

    let signer = fixture.signer();
    let sign = |claims: &Claims| signer.sign(claims).unwrap();
    let foreign = TokenSigner::generate().unwrap().sign(&claims("node-1")).unwrap();
    let own = claims("node-1");
    let past = SystemTime::now() - Duration::from_secs(3600);
    let expired = sign(&Claims {
        issued_at: past,
        expires_at: past + Duration::from_secs(60),
        ..own.clone()
    });
    let audience = sign(&Claims { audience: vec!["kubernetes".to_owned()], ..own.clone() });
    let account = sign(&Claims { service_account: "default".to_owned(), ..own.clone() });
    let namespace = sign(&Claims { namespace: "shop".to_owned(), ..own });
    let other_node = sign(&claims("node-2"));
    let no_node = sign(&claims(""));
    let (web, db, old) = (identity("web"), identity("db"), identity("old"));
    let foreign_domain = Identity::new("evil.example", "shop", "web").to_string();
    let other_namespace = Identity::new("cluster.local", "bank", "web").to_string();
    for (attack, token, wanted, csr, expected) in [
        ("no token", None, &web, &web, Code::Unauthenticated),
        ("no JWT", Some("abc"), &web, &web, Code::Unauthenticated),
        ("foreign key", Some(&*foreign), &web, &web, Code::Unauthenticated),
        ("expired token", Some(&*expired), &web, &web, Code::Unauthenticated),
        ("other audience", Some(&*audience), &web, &web, Code::Unauthenticated),
        ("other account", Some(&*account), &web, &web, Code::PermissionDenied),
        ("other namespace's account", Some(&*namespace), &web, &web, Code::PermissionDenied),
        ("no node", Some(&*no_node), &web, &web, Code::PermissionDenied),
        ("other node's pod", Some(&*token), &db, &db, Code::PermissionDenied),
        ("own pod, other node's token", Some(&*other_node), &web, &web, Code::PermissionDenied),
        ("failed pod", Some(&*token), &old, &old, Code::PermissionDenied),
        ("no such pod", Some(&*token), &identity("nobody"), &web, Code::PermissionDenied),
        (
            "same account elsewhere",
            Some(&*token),
            &other_namespace,
            &other_namespace,
            Code::PermissionDenied,
        ),
        (
            "other trust domain",
            Some(&*token),
            &foreign_domain,
            &foreign_domain,
            Code::PermissionDenied,
        ),
        ("request for another", Some(&*token), &web, &db, Code::PermissionDenied),
    ] {
        let got = fixture.certificate(token, wanted, csr, 60).await;
        let status = got.err().unwrap_or_else(|| panic!("{attack}: signed"));
        assert_eq!(status.code(), expected, "{attack}: {status:?}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused() {
    let fixture = Fixture::start("ca-malformed", "").await;
    let mut client = certificates::IstioCertificateServiceClient::new(fixture.channel().await);
    let bearer: tonic::metadata::MetadataValue<_> =
        format!("Bearer {}", fixture.token()).parse().unwrap();
    let identity = identity("web").parse().unwrap();
    let mut nobody = request_for(&identity, "x".to_owned(), 60);
    nobody.metadata = None;
    for request in [nobody, request_for(&identity, "no PEM".to_owned(), 60)] {
        let mut request = Request::new(request);
        request.metadata_mut().insert("authorization", bearer.clone());
        let status = client.create_certificate(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_appears_while_asking_gets_its_certificate() {
    let fixture = Fixture::start("ca-late", "").await;
    let (token, late) = (fixture.token(), identity("late"));
    let asking = fixture.certificate(Some(&token), &late, &late, 60);
    let appearing = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        put_pod(fixture.root.path(), "late", "late", "node-1", "10.244.1.20", "Running");
    };
    let (signed, ()) = tokio::join!(asking, appearing);
    signed.expect("the pod is there before the wait ends");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revocations_reach_the_nodes_and_survive() {
    let fixture = Fixture::start("revoke", "").await;
    let (token, web) = (fixture.token(), identity("web"));
    fixture.certificate(Some(&token), &web, &web, 600).await.unwrap();
    assert!(fixture.read("nodes/node-2/ca-crl.pem").is_none(), "nothing was revoked yet");
    let ask = async |body: Value| fixture.admin(Method::POST, "/ca/revoke", &body).await;
    assert_eq!(ask(json!({})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(json!({"pod": "shop/nobody"})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(json!({"serial": "xyz"})).await.0, StatusCode::BAD_REQUEST);
    let (status, answer) = ask(json!({"pod": "shop/web"})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["revoked"][0]["identity"], web);
    fixture.eventually("the list", || fixture.read("nodes/node-2/ca-crl.pem").is_some()).await;
    let crl = fixture.read("nodes/node-2/ca-crl.pem").unwrap();
    let roots = fixture.read("nodes/node-2/root-cert.pem").unwrap();
    assert_eq!(ambit_tls::RevocationList::from_pem(&crl, &roots).unwrap().len(), 1);
    assert_eq!(ask(json!({"pod": "shop/web"})).await.1["revoked"], json!([]));
    assert_eq!(ask(json!({"serial": "01ab"})).await.0, StatusCode::BAD_REQUEST, "a typing error");
    let unlisted = ask(json!({"serial": "01ab", "unlisted": true})).await.1;
    assert_eq!(unlisted["revoked"][0]["serial"], "01ab");
    let (_, held) = fixture.admin(Method::GET, "/ca/certificates", &Value::Null).await;
    let serial = held["items"][0]["serial"].as_str().unwrap();
    let decimal = serial.parse::<ambit_tls::certificate::Serial>().unwrap().to_decimal();
    let (status, again) = ask(json!({"serial": decimal})).await;
    assert_eq!((status, &again["revoked"]), (StatusCode::OK, &json!([])));

    let root = fixture.stop().await;
    let fixture = Fixture::restart(root, "", |_| {}).await;
    let (_, held) = fixture.admin(Method::GET, "/ca/certificates", &Value::Null).await;
    assert_eq!(held["revoked"].as_array().unwrap().len(), 2, "{held}");
    assert_eq!(fixture.read("nodes/node-1/root-cert.pem").unwrap(), roots);
    fixture.certificate(Some(&token), &web, &web, 60).await.expect("tokens survive too");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_is_rotated_once_everybody_trusts_the_next() {
    let fixture = Fixture::start("rotate", "").await;
    let roots = || fixture.read("nodes/node-1/root-cert.pem").unwrap().matches("BEGIN").count();
    let old = fixture.read("nodes/node-1/root-cert.pem").unwrap();
    let ask = async |target: &str| fixture.admin(Method::POST, target, &Value::Null).await;
    assert_eq!(ask("/ca/rotate?finish=true").await.0, StatusCode::CONFLICT);
    let (status, answer) = ask("/ca/rotate").await;
    assert_eq!((status, &answer["phase"]), (StatusCode::OK, &json!("trusted")));
    assert_eq!(answer["waitingFor"], 3, "client, web and db");
    assert_eq!(ask("/ca/rotate").await.0, StatusCode::CONFLICT);
    assert_eq!(ask("/ca/rotate?finish=true").await.0, StatusCode::CONFLICT);
    fixture.eventually("both roots", || roots() == 2).await;
    let token = fixture.token();
    let chain = fixture.certificate(Some(&token), &identity("web"), &identity("web"), 600).await;
    assert_eq!(chain.unwrap().last().unwrap().matches("BEGIN").count(), 2);

    let root = fixture.stop().await;
    let fixture = Fixture::restart(root, "", |_| {}).await;
    let ask = async |target: &str| fixture.admin(Method::POST, target, &Value::Null).await;
    let (_, answer) = fixture.admin(Method::GET, "/ca/rotation", &Value::Null).await;
    assert_eq!(answer["phase"], "trusted", "a restart does not forget");
    let (status, answer) = ask("/ca/rotate?finish=true&force=true").await;
    assert_eq!((status, &answer["phase"]), (StatusCode::OK, &json!("steady")));
    assert!(answer["waitingFor"].as_u64() > Some(0), "{answer}");
    assert!(answer["next"].as_str().unwrap().contains("connections are not cut"), "{answer}");
    let new = || fixture.read("nodes/node-1/root-cert.pem").unwrap();
    fixture.eventually("one root", || new().matches("BEGIN").count() == 1).await;
    assert_ne!(new(), old);
    fixture.channel().await;
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_tells_a_client_outside_of_the_mesh_to_come_in() {
    let fixture = Fixture::start("why-outside", "").await;
    put_pod(fixture.root.path(), "stray", "stray", "node-1", "10.244.1.7", "Running");
    std::fs::remove_file(fixture.root.path().join("registry/captured/shop/stray")).unwrap();
    let strict = json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": {"namespace": "shop", "name": "default"}, "spec": {"mtls": {"mode": "STRICT"}},
    });
    put(fixture.root.path(), "objects/peerauthentications/shop/default.json", &strict);
    let remedy = async |parts: &[&str]| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let target = "/why?src=shop/stray&dst=db.shop:80";
            let (_, answer) = fixture.admin(Method::GET, target, &Value::Null).await;
            let remedy = answer["remedy"].as_str().unwrap_or_default();
            if parts.iter().all(|part| remedy.contains(part)) {
                return remedy.to_owned();
            }
            assert!(Instant::now() < deadline, "{parts:?}: {answer}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let label = "label the namespace shop, or the pod stray, istio.io/dataplane-mode=ambient";
    let enrol = remedy(&["enrol the client", label]).await;
    let (_, answer) =
        fixture.admin(Method::GET, "/why?src=shop/stray&dst=db.shop:80", &Value::Null).await;
    let decides = &answer["policy"];
    assert_eq!(decides["name"], "istio-system/istio_converted_static_strict", "{answer}");
    let object = json!({"kind": "PeerAuthentication", "name": "shop/default"});
    assert_eq!(decides["object"], object, "the object that a user can change");
    assert_eq!(decides["written"], json!({"mtls": {"mode": "STRICT"}}));
    assert!(!enrol.contains("then"), "{enrol}");
    // Inside, it would be refused for another reason, which is not kept from the user.
    let rules = json!([{"from": [{"source": {"serviceAccounts": ["stray"]}}]}]);
    put(fixture.root.path(), "objects/authorizationpolicies/shop/db.json", &policy("DENY", &rules));
    remedy(&[label, "; then rule 0 of DENY policy shop/db must no longer match"]).await;
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_says_what_decides() {
    let fixture = Fixture::start("why", "").await;
    let why = async |query: &str| {
        fixture.admin(Method::GET, &format!("/why?{query}"), &Value::Null).await
    };
    let (_, answer) = why("src=shop/client&dst=db").await;
    assert_eq!(answer["plan"], "tunnel", "{answer}");
    assert_eq!(answer["decision"], "allow");
    assert_eq!(answer["server"]["workload"], "shop/db");
    assert_eq!(answer["server"]["address"], "10.244.2.2:8080");
    let (_, answer) = why("src=shop/client&dst=shop/web:8080").await;
    assert_eq!(answer["plan"], "local", "{answer}");
    let rules = json!([{"from": [{"source": {"serviceAccounts": ["web"]}}]}]);
    put(fixture.root.path(), "objects/authorizationpolicies/shop/db.json", &policy("DENY", &rules));
    let deadline = Instant::now() + PATIENCE;
    let denied = loop {
        let (_, answer) = why("src=shop/web&dst=db.shop:80").await;
        if answer["decision"] == "deny" || Instant::now() > deadline {
            break answer;
        }
    };
    assert_eq!(denied["policy"]["name"], "shop/db", "{denied}");
    let object = json!({"kind": "AuthorizationPolicy", "name": "shop/db"});
    assert_eq!(denied["policy"]["object"], object);
    assert_eq!(denied["policy"]["written"]["from"][0]["source"]["serviceAccounts"][0], "web");
    assert!(denied["remedy"].as_str().unwrap().contains("no longer match"), "{denied}");
    // An entry that lists the pod's address does not lead around the pod's policies.
    let entry = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"namespace": "other", "name": "around"},
        "spec": {
            "hosts": ["around.example"], "resolution": "STATIC",
            "ports": [{"number": 8080, "name": "tcp", "protocol": "TCP"}],
            "endpoints": [{"address": "10.244.2.2"}],
        },
    });
    put(fixture.root.path(), "objects/serviceentries/other/around.json", &entry);
    let around = loop {
        let (code, answer) = why("src=shop/web&dst=around.example:8080").await;
        if code == StatusCode::OK || Instant::now() > deadline {
            break answer;
        }
    };
    assert_eq!(around["server"]["workload"], "shop/db", "{around}");
    assert_eq!((&around["plan"], &around["decision"]), (&json!("tunnel"), &json!("deny")));
    let (_, answer) = why("src=shop/client&dst=10.96.0.20:81").await;
    assert_eq!((&answer["plan"], &answer["decision"]), (&json!("refuse"), &json!("deny")));
    let (_, answer) = why("src=shop/client&dst=1.1.1.1:443").await;
    assert_eq!(answer["plan"], "direct");
    for (query, part) in [
        ("src=shop/nobody&dst=db", "no running pod shop/nobody"),
        ("src=shop/client&dst=nothing", "no service is called"),
        ("src=shop/client&dst=shop/nothing", "no service, pod or workload shop/nothing"),
        ("src=shop/client&dst=shop/client", "say which port"),
        ("src=shop/client&dst=10.0.0.1:0", "port 0"),
        ("src=shop/client&dst=db:0", "port 0"),
        ("src=shop/client", "/why?src="),
    ] {
        let (_, answer) = why(query).await;
        assert!(answer["error"].as_str().unwrap_or_default().contains(part), "{query}: {answer}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_show_the_mesh() {
    let fixture = Fixture::start("lists", "").await;
    let list = async |what: &str| {
        fixture.admin(Method::GET, &format!("/get/{what}"), &Value::Null).await.1["items"].clone()
    };
    let pods = list("pods?namespace=shop").await;
    assert_eq!(pods.as_array().unwrap().len(), 4);
    assert_eq!(pods[0]["name"], "client");
    assert_eq!((&pods[0]["mode"], &pods[0]["captured"]), (&json!("ambient"), &json!(true)));
    assert_eq!(list("pods?namespace=other").await, json!([]));
    let services = list("services").await;
    assert_eq!(services[0]["endpoints"], json!({"ready": 1, "total": 1}));
    assert_eq!(list("workloads").await.as_array().unwrap().len(), 3);
    let rules = json!([{"to": [{"operation": {"methods": ["GET"]}}]}]);
    put(
        fixture.root.path(),
        "objects/authorizationpolicies/shop/db.json",
        &policy("ALLOW", &rules),
    );
    let deadline = Instant::now() + PATIENCE;
    let policies = loop {
        let policies = list("policies").await;
        if policies != json!([]) || Instant::now() > deadline {
            break policies;
        }
    };
    let condition = &policies[0]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Accepted"), &json!("False")));
    assert!(condition["message"].as_str().unwrap().contains("methods"), "{condition}");
    // Once a mark is reached, what was there before it is known. AUDIT is no reason to worry.
    let mut audit = policy("AUDIT", &rules);
    audit["metadata"]["name"] = json!("see");
    put(fixture.root.path(), "objects/authorizationpolicies/shop/see.json", &audit);
    let (_, set) = fixture.admin(Method::POST, "/mark", &Value::Null).await;
    let status = loop {
        let (_, status) = fixture.admin(Method::GET, "/status", &Value::Null).await;
        if status["registry"]["mark"] == set["mark"] {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
    };
    assert_eq!(list("policies").await.as_array().unwrap().len(), 2);
    assert_eq!(status["policiesNotAccepted"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["policiesNotAccepted"][0]["policy"], "shop/db", "{status}");
    assert_eq!(status["discovery"]["behind"], json!([]));
    assert_eq!(
        fixture.admin(Method::GET, "/get/secrets", &Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
    fixture.end().await;
}
