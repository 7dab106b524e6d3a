//! A gateway has its certificate from a directory: Pebble, Let's Encrypt's own for tests.
//!
//! Its names are looked up in the cluster's DNS, so the host that is proven is that of the
//! gateway's own Service. The client is curl, which believes Pebble's root alone.

use std::process::Command;
use std::time::{Duration, SystemTime};

use ambit_tls::authority::{Authority, AuthorityBundle};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Said, must, until, until_within};

const NAMESPACE: &str = "issued";
const HOST: &str = "in-ambit.issued.svc.cluster.local";
const DIRECTORY_HOST: &str = "pebble.issued.svc.cluster.local";
/// So that it is renewed while the test looks on: after two thirds.
const VALIDITY_S: u64 = 90;
/// How long a renewal may take that is due within that time.
const RENEWAL: Duration = Duration::from_secs(240);
/// What the owner of the namespace says before control writes Secrets in it.
const BINDING: [&str; 7] = [
    "-n",
    NAMESPACE,
    "create",
    "rolebinding",
    "ambit-acme",
    "--clusterrole=istiod-acme-istio-system",
    "--serviceaccount=istio-system:istiod",
];

/// Pebble, with a certificate of its own by a root that no system believes.
fn pebble() -> String {
    let now = SystemTime::now();
    let root = AuthorityBundle::new(Authority::generate("pebble", now).unwrap());
    let served = root.issue_server(&[DIRECTORY_HOST], Duration::from_secs(86_400), now).unwrap();
    let config = json!({"pebble": {
        "listenAddress": "0.0.0.0:14000", "managementListenAddress": "0.0.0.0:15000",
        "certificate": "/config/cert.pem", "privateKey": "/config/key.pem",
        "httpPort": 80, "tlsPort": 443, "keyAlgorithm": "ecdsa",
        "retryAfter": {"authz": 1, "order": 1},
        "profiles": {"default": {"description": "short", "validityPeriod": VALIDITY_S}},
    }});
    let object = |kind: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let files = json!({"data": {"config.json": config.to_string(),
        "cert.pem": served.chain_pem, "key.pem": *served.key_pem}});
    let ports = [14_000, 15_000].map(|port| json!({"name": format!("p{port}"), "port": port}));
    let labels = json!({"app": "pebble"});
    let container = json!({"name": "pebble", "image": "registry.local/pebble:1",
        "imagePullPolicy": "Never", "args": ["-config", "/config/config.json"],
        "env": [{"name": "PEBBLE_VA_NOSLEEP", "value": "1"}],
        "readinessProbe": {"tcpSocket": {"port": 14_000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}]});
    let mut deployment = object(
        "Deployment",
        "pebble",
        json!({"spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container],
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "config", "configMap": {"name": "pebble"}}]}}}}),
    );
    deployment["apiVersion"] = "apps/v1".into();
    let all = [
        object("ConfigMap", "pebble", files),
        object("ConfigMap", "pebble-root", json!({"data": {"ca.crt": root.roots_pem()}})),
        object("Service", "pebble", json!({"spec": {"selector": labels, "ports": ports}})),
        deployment,
    ];
    all.map(|it| it.to_string()).join("\n---\n")
}

fn gateway() -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: in
  namespace: {NAMESPACE}
  annotations:
    ambit.io/acme-directory: https://{DIRECTORY_HOST}:14000/dir
    ambit.io/acme-email: ops@example.com
    ambit.io/acme-directory-ca: pebble-root
spec:
  gatewayClassName: ambit
  listeners:
  - {{name: http, port: 80, protocol: HTTP}}
  - {{name: https, port: 443, protocol: HTTPS, hostname: {HOST},
     tls: {{certificateRefs: [{{name: own}}]}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web, namespace: {NAMESPACE}}}
spec:
  parentRefs: [{{name: in}}]
  rules: [{{backendRefs: [{{name: web, port: 8080}}]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: nobody-in-plain-text, namespace: {NAMESPACE}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: in}}]
  action: DENY
  rules: [{{to: [{{operation: {{ports: ['80']}}}}]}}]
"
    )
}

fn object(cluster: &Cluster, name: &str) -> Value {
    let said = cluster.kubectl(&["-n", NAMESPACE, "get", name, "-o", "json"]);
    serde_json::from_str(&said.out).unwrap_or(Value::Null)
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// curl, in the network from which the addresses of load balancers are reached.
fn curl(cluster: &Cluster, words: &[&str]) -> Said {
    let mut curl = Command::new("nsenter");
    curl.arg(format!("--net=/proc/{}/ns/net", cluster.machine())).args(["curl", "-s", "-m", "10"]);
    curl.args(words).output().unwrap().into()
}

#[test]
fn a_gateway_has_its_certificate_from_a_directory_and_renews_it() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace(NAMESPACE);
    namespace.run("web", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    cluster.must_apply(&pebble());
    cluster.await_rollout(NAMESPACE, "deployment/pebble");
    cluster.must_apply(&gateway());
    let told = || {
        let gateway = object(&cluster, "gateway/in");
        let all = gateway.pointer("/status/listeners/1/conditions").and_then(Value::as_array);
        let of = all.into_iter().flatten().find(|it| it["type"] == "ResolvedRefs");
        of.and_then(|it| it["message"].as_str()).unwrap_or_default().to_owned()
    };
    until("the listener says who allows control to write its Secret", || {
        told().contains("create rolebinding ambit-acme")
    });
    assert_eq!(object(&cluster, "secret/own"), Value::Null);
    must(&cluster.kubectl(&BINDING));
    let chain = || text(&object(&cluster, "secret/own"), "/data/tls.crt");
    until("there is a certificate", || !chain().is_empty());
    let first = chain();
    let address = text(&object(&cluster, "gateway/in"), "/status/addresses/0/value");
    let pods = cluster.pods(NAMESPACE, "app=pebble");
    let pebble = text(&pods[0], "/status/podIP");
    let root = curl(&cluster, &["-k", &format!("https://{pebble}:15000/roots/0")]);
    must(&root);
    let file = cluster.state().join("pebble-root.pem");
    std::fs::write(&file, &root.out).unwrap();
    let (file, resolve) = (file.display().to_string(), format!("{HOST}:443:{address}"));
    let url = format!("https://{HOST}/");
    let asked = || {
        let shown = ["-o", "/dev/null", "-w", "%{http_code}"];
        let words = ["--cacert", file.as_str(), "--resolve", resolve.as_str(), url.as_str()];
        curl(&cluster, &[&shown[..], &words[..]].concat()).out
    };
    until("a foreign client believes it", || asked() == "200");
    until_within(RENEWAL, "it is renewed", || chain() != first);
    until("a foreign client believes the next one", || asked() == "200");
    cluster.ask(&["-n", NAMESPACE, "delete", "secret", "own"]);
    until("a certificate that was deleted comes back", || !chain().is_empty());
    until("a foreign client believes that too", || asked() == "200");
    let challenges = "/metadata/annotations/ambit.io~1acme-challenges";
    until("nothing is left of the challenges", || {
        text(&object(&cluster, "service/in-ambit"), challenges).is_empty()
    });
    std::fs::remove_file(file).unwrap();
}
