//! The Kubernetes API of a machine, as kubectl uses it: who may ask, and what is answered.
//!
//! No kubectl is needed: the requests are those that kubectl 1.32 sends.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use ambit_tls::ClientStream;
use ambit_tls::web::WebConnector;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};

/// Says two lines and stays.
const TALKER: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: app, labels: {says: lines}}
spec:
  containers:
  - {name: main, image: ambit/sample:1, command: [sh, -c, 'echo begin; echo end; sleep infinity']}
";
/// What kubectl accepts for a list, and for discovery.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const DISCOVERY: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn kubectl_reads_a_machine() {
    let machine = Machine::up("kubectl", Mesh::On, &["--kubernetes-api"]);
    let api = Api::of(&machine);
    only_who_has_the_token_is_answered(&api);
    kinds_are_discovered(&api);
    objects_are_listed(&machine, &api);
    changes_are_watched(&machine, &api);
    logs_are_read(&machine, &api);
    machine.down();
    assert!(std::net::TcpStream::connect(&api.address).is_err(), "the port is free again");
}

/// How the API is reached, from the kubeconfig.
pub(crate) struct Api {
    pub(crate) address: String,
    root_pem: String,
    token: String,
}

impl Api {
    pub(crate) fn of(machine: &Machine) -> Self {
        let path = machine.run(&["kubeconfig", "--path"]);
        let mode = std::fs::metadata(path.trim()).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else may read it");
        let text = machine.run(&["kubeconfig"]);
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(name));
            lines.next().unwrap_or_else(|| panic!("{name} is in {text}")).to_owned()
        };
        let root = STANDARD.decode(field("certificate-authority-data: ")).expect("base64");
        Self {
            address: field("server: https://"),
            root_pem: String::from_utf8(root).expect("PEM"),
            token: field("token: "),
        }
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    pub(crate) async fn connect(&self) -> ClientStream<TcpStream> {
        let tls = WebConnector::new(None, Some(&self.root_pem)).expect("a root");
        let (host, _) = self.address.rsplit_once(':').expect("a port");
        let stream = TcpStream::connect(&self.address).await.expect("it listens");
        tls.connect(host, stream).await.expect("its certificate is good")
    }

    /// Sends a request and reads the answer until `is_enough`, or to its end.
    pub(crate) fn exchange(&self, request: &str, is_enough: impl Fn(&str) -> bool) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let exchange = async {
            let mut stream = self.connect().await;
            stream.write_all(request.as_bytes()).await.expect("it reads");
            let (mut answer, mut part) = (String::new(), [0; 4096]);
            while !is_enough(&answer) {
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => answer.push_str(&String::from_utf8_lossy(&part[..length])),
                }
            }
            answer
        };
        let answer = async { tokio::time::timeout(ANSWER_TIMEOUT, exchange).await };
        runtime.expect("a runtime").block_on(answer).expect("an answer in time")
    }

    /// The answer to a request with these headers: its status and its body.
    fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let answer = self.exchange(&head(method, target, headers), |_| false);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// The answer to kubectl.
    pub(crate) fn get(&self, target: &str, accept: &str) -> (u16, Value) {
        let bearer = self.bearer();
        let headers =
            [("host", self.address.as_str()), ("authorization", &bearer), ("accept", accept)];
        let (status, body) = self.ask("GET", target, &headers);
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("JSON, not {body}")))
    }
}

pub(crate) fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").expect("a text takes all");
    }
    head + "\r\n"
}

fn only_who_has_the_token_is_answered(api: &Api) {
    let (host, bearer) = (("host", api.address.as_str()), api.bearer());
    let token = ("authorization", bearer.as_str());
    let check = |headers: &[(&str, &str)], expected: u16| {
        let (status, body) = api.ask("GET", "/version", headers);
        assert_eq!(status, expected, "{headers:?}: {body}");
    };
    check(&[host, token], 200);
    check(&[host], 401);
    check(&[host, ("authorization", "Bearer 0000")], 401);
    check(&[("host", "evil.example"), token], 403);
    check(&[host, token, ("origin", "https://evil.example")], 403);
    let plain = without_tls(api, &head("GET", "/version", &[host, token]));
    assert!(!plain.contains("HTTP/1.1"), "without TLS there is no answer: {plain}");
}

/// What is answered to a request in plain text before the connection ends.
fn without_tls(api: &Api, request: &str) -> String {
    use std::io::{ErrorKind, Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(&api.address).expect("it listens");
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("it takes bytes");
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("no end: {error}"),
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

fn kinds_are_discovered(api: &Api) {
    let (status, old) = api.get("/api", DISCOVERY);
    assert_eq!((status, &old["kind"]), (200, &"APIGroupDiscoveryList".into()));
    let (_, groups) = api.get("/apis", DISCOVERY);
    let (status, document) = api.get("/openapi/v3/apis/apps/v1", "application/json");
    assert!(status == 200 && document.to_string().contains("fieldValidation"), "{document}");
    for kind in ["Deployment", "HTTPRoute", "VirtualService", "TrafficPolicy", "EndpointSlice"] {
        assert!(groups.to_string().contains(&format!("\"kind\":\"{kind}\"")), "{kind}: {groups}");
    }
    let (status, single) = api.get("/apis/apps/v1", "application/json");
    assert_eq!((status, &single["resources"][0]["name"]), (200, &"deployments".into()));
    assert!(single.to_string().contains("\"sts\""), "users type short names: {single}");
    assert_eq!(api.get("/apis/batch/v9", "application/json").0, 404);
}

fn objects_are_listed(machine: &Machine, api: &Api) {
    machine.apply(TALKER);
    machine.wait("the talker runs", SETTLE_TIMEOUT, || {
        let (_, table) = api.get("/api/v1/namespaces/app/pods?labelSelector=says%3Dlines", TABLE);
        let cells = &table["rows"][0]["cells"];
        (&cells[0], &cells[1], &cells[2]) == (&"talker".into(), &"1/1".into(), &"Running".into())
    });
    let (_, pod) = api.get("/api/v1/namespaces/app/pods/talker", "application/json");
    let node = pod["spec"]["nodeName"].as_str().expect("it is placed");
    assert!(pod["status"]["podIP"].is_string() && pod["status"]["hostIP"].is_string(), "{pod}");
    assert!(pod["spec"]["securityContext"].is_object(), "clients rely on defaults: {pod}");
    let on_node = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let (_, list) = api.get(&on_node, "application/json");
    let is_talker = |it: &Value| it["metadata"]["name"] == "talker";
    let items = list["items"].as_array().expect("items");
    assert!(items.iter().any(is_talker) && items.iter().all(|it| it["spec"]["nodeName"] == node));
    let (status, refusal) = api.get("/api/v1/pods?fieldSelector=spec.x%3Dy", "application/json");
    assert_eq!((status, &refusal["reason"]), (400, &"BadRequest".into()));
    let (status, refusal) = api.get("/api/v1/namespaces/app/pods/none", "application/json");
    assert_eq!((status, &refusal["message"]), (404, &"pods \"none\" not found".into()));
    for (target, part) in [
        ("/api/v1/nodes", "node-2"),
        ("/api/v1/namespaces", "Active"),
        ("/api/v1/services", "ClusterIP"),
        ("/api/v1/namespaces/app/endpoints", ":"),
        ("/apis/discovery.k8s.io/v1/namespaces/app/endpointslices", "IPv4"),
        ("/api/v1/namespaces/app/events", "Scheduled"),
    ] {
        let (status, table) = api.get(target, TABLE);
        assert_eq!((status, &table["kind"]), (200, &"Table".into()), "{target}");
        assert!(table["rows"].to_string().contains(part), "{target}: {table}");
    }
}

fn changes_are_watched(machine: &Machine, api: &Api) {
    let path = "/apis/apps/v1/namespaces/app/deployments";
    let (_, list) = api.get(path, "application/json");
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let manifest = "apiVersion: apps/v1\nkind: Deployment\n\
                    metadata: {name: watched, namespace: app}\nspec:\n  replicas: 0\n  \
                    selector: {matchLabels: {app: watched}}\n  template:\n    \
                    metadata: {labels: {app: watched}}\n    \
                    spec: {containers: [{name: main, image: ambit/sample:1, args: [echo]}]}\n";
    machine.apply(manifest);
    let bearer = api.bearer();
    let headers = [("host", api.address.as_str()), ("authorization", &bearer)];
    let target = format!("{path}?watch=true&resourceVersion={version}");
    let seen = api.exchange(&head("GET", &target, &headers), |seen| seen.contains("watched"));
    assert!(seen.contains("\"type\":\"ADDED\""), "{seen}");
    let (status, gone) = api.get(&format!("{path}?watch=1&resourceVersion=1"), "application/json");
    assert_eq!((status, &gone["reason"]), (410, &"Expired".into()));
}

fn logs_are_read(machine: &Machine, api: &Api) {
    let bearer = api.bearer();
    let headers = [("host", api.address.as_str()), ("authorization", &bearer)];
    let path = "/api/v1/namespaces/app/pods/talker/log";
    machine.wait("the talker has spoken", SETTLE_TIMEOUT, || {
        let (status, log) = api.ask("GET", &format!("{path}?tailLines=1"), &headers);
        status == 200 && log.contains("end\n") && !log.contains("begin")
    });
    let target = format!("{path}?follow=true&container=main");
    let followed = api.exchange(&head("GET", &target, &headers), |log| log.contains("end\n"));
    assert!(followed.contains("begin\n"), "{followed}");
    let (status, refusal) = api.get(&format!("{path}?previous=true"), "application/json");
    assert_eq!((status, &refusal["reason"]), (400, &"BadRequest".into()));
}
