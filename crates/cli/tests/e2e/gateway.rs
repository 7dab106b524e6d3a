//! A gateway at the edge of a machine: from a port of the host to the pods of the mesh, and never
//! around policy.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ambit_tls::origination::{Asked, Inside, Originator, Trust};
use rcgen::{CertificateParams, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::machine::{MESH_ON, Machine, Mesh, SETTLE_TIMEOUT, deployment};

/// The Gateway and its route; `CERTIFICATE` is the Secret.
const EDGE: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: outside}
spec:
  gatewayClassName: ambit
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - name: https
    port: 443
    protocol: HTTPS
    hostname: '*.example.com'
    tls: {certificateRefs: [{name: edge-tls}]}
    allowedRoutes: {namespaces: {from: All}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: edge, namespace: app}
spec:
  parentRefs: [{name: edge, namespace: outside}]
  hostnames: [www.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /a}}]
    backendRefs: [{name: web, port: 80}]
";

const READ_ONLY: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: read-only, namespace: outside}
spec:
  targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}]
  action: DENY
  rules: [{to: [{operation: {notMethods: [GET]}}]}]
";

const CLOSED: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: app}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  action: DENY
  rules: [{to: [{operation: {paths: [/a/closed]}}]}]
";

const REDIRECTED: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: app}
spec:
  parentRefs: [{kind: Service, group: '', name: web}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /a/old}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /a}}
  - backendRefs: [{name: web, port: 80}]
";

#[test]
fn the_host_enters_the_mesh_through_a_gateway() {
    let [http, https] = [free_port(), free_port()];
    let flags = [
        format!("--publish={http}=outside/edge/80"),
        format!("--publish={https}=outside/edge/443"),
    ];
    let certificate = Certificate::new("www.example.com");
    let more = format!("{EDGE}---\n{}", certificate.secret("outside/edge-tls"));
    let machine = Machine::up_with("gateway", Mesh::On, &[&flags[0], &flags[1]], &more);
    programmed(&machine);
    entered(&machine, http);
    secured(&machine, https, certificate);
    judged(&machine, http);
    never_around_a_waypoint(&machine, http);
    judged_without_a_hop(&machine, http);
    changed_under_load(&machine, http);
    machine.down();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, http)).is_err(), "the port is free again");
}

#[test]
fn a_port_that_leads_nowhere_is_refused_before_anything_starts() {
    let machine = Machine::none("gateway-publish");
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let taken = taken.local_addr().expect("it has an address").port();
    for (publish, part) in [
        (
            "8443=outside/nothing/80".to_owned(),
            "there is no Gateway outside/nothing among the manifests",
        ),
        ("8443=outside/edge/81".to_owned(), "Gateway outside/edge has no listener at port 81"),
        ("8443=edge".to_owned(), "as in 8443=ingress/443"),
        (format!("{taken}=outside/edge/80"), "choose another port"),
    ] {
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, taken));
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: outside}\n---\n";
        let input = format!("{namespace}{}", EDGE.split("---").next().expect("a Gateway"));
        let flag = format!("--publish={publish}");
        let said = machine.ambit_with(&["up", "-", "--detach", &flag], &input);
        assert!(!said.status.success() && said.err.contains(part), "{publish}: {}", said.err);
        assert!(!machine.layout.lock().exists(), "nothing was started");
    }
}

/// A port of the host that nobody uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it has an address").port()
}

/// What the host is answered.
fn ask(port: u16, method: &str, host: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return String::new();
    };
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket has timeouts");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let (mut answer, _sent) = (Vec::new(), stream.write_all(request.as_bytes()));
    let _broken = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn status_of(answer: &str) -> &str {
    answer.get(9..12).unwrap_or_default()
}

fn programmed(machine: &Machine) {
    machine.wait("the gateway is programmed", SETTLE_TIMEOUT, || {
        machine.list("gateways").iter().any(|it| {
            let conditions = it["conditions"].as_array();
            it["name"] == "edge"
                && conditions.is_some_and(|all| {
                    !all.is_empty() && all.iter().all(|it| it["status"] == "True")
                })
        })
    });
    let pods = machine.pods();
    assert!(pods.iter().any(|pod| pod.namespace == "outside" && pod.owner == "edge-ambit"));
}

fn entered(machine: &Machine, port: u16) {
    machine.wait("a request passes", SETTLE_TIMEOUT, || {
        status_of(&ask(port, "GET", "www.example.com", "/a/b")) == "200"
    });
    for (host, path, status) in [
        ("www.example.com", "/b", "404"),
        ("other.example.com", "/a", "404"),
        ("127.0.0.1", "/a", "404"),
        ("", "/a", "400"),
    ] {
        let answer = ask(port, "GET", host, path);
        assert_eq!(status_of(&answer), status, "{host} {path}: {answer}");
    }
}

fn judged(machine: &Machine, port: u16) {
    machine.apply(READ_ONLY);
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        status_of(&ask(port, "POST", "www.example.com", "/a")) == "403"
    });
    // Who may not ask is not told which routes there are.
    assert_eq!(status_of(&ask(port, "POST", "www.example.com", "/b")), "403");
    assert_eq!(status_of(&ask(port, "GET", "www.example.com", "/a")), "200");
}

/// A service with a waypoint is reached through it, and judged there.
fn never_around_a_waypoint(machine: &Machine, port: u16) {
    machine.put_behind_waypoint(|| status_of(&ask(port, "GET", "www.example.com", "/a")) == "200");
    machine.apply(CLOSED);
    machine.wait("the waypoint judges", SETTLE_TIMEOUT, || {
        status_of(&ask(port, "GET", "www.example.com", "/a/closed")) == "403"
    });
    assert_eq!(status_of(&ask(port, "GET", "www.example.com", "/a/open")), "200");
}

/// Where the service says so, the gateway does what the waypoint does, though that be gone.
fn judged_without_a_hop(machine: &Machine, port: u16) {
    let status = |method: &str, path: &str| {
        status_of(&ask(port, method, "www.example.com", path)).to_owned()
    };
    let scale =
        |pods| machine.ask(async |client| client.scale(&deployment("waypoint"), pods).await);
    scale(0);
    machine.wait("nothing passes without the waypoint", SETTLE_TIMEOUT * 4, || {
        status("GET", "/a") == "503"
    });
    let said = |value: &str| {
        let waypoint = "istio.io/use-waypoint: waypoint";
        let labels = format!("ambient, {waypoint}, istio.io/ingress-use-waypoint: '{value}'");
        machine.apply(&MESH_ON.replacen("ambient", &labels, 1));
    };
    said("false");
    machine.wait("the gateway judges", SETTLE_TIMEOUT, || status("GET", "/a") == "200");
    assert_eq!(status("GET", "/a/closed"), "403", "a policy of the service");
    assert_eq!(status("POST", "/a"), "403", "a policy of the gateway");
    let services = machine.list("services");
    let web = services.iter().find(|it| it["name"] == "web" && it["namespace"] == "app");
    let web = web.expect("the service");
    assert_eq!(web["entrances"][0], "outside/edge-ambit.outside.svc.cluster.local");
    // A route of the service, which clients of the mesh are answered by at the waypoint.
    machine.apply(REDIRECTED);
    machine
        .wait("a route of the service holds", SETTLE_TIMEOUT, || status("GET", "/a/old") == "302");
    assert_eq!(status("GET", "/a/closed"), "403");
    assert_eq!(status("GET", "/a"), "200");
    let pods = machine.pods();
    let pod = pods.iter().find(|pod| pod.owner == "edge-ambit").expect("the gateway's pod");
    let why = machine.why(&format!("outside/{}", pod.name), "app/web:80");
    let path = why["path"].as_str().unwrap_or_default();
    assert!(path.starts_with("Gateway outside/edge does what"), "{why}");
    said("true");
    machine
        .wait("nothing goes around the waypoint", SETTLE_TIMEOUT, || status("GET", "/a") == "503");
    scale(1);
    machine.wait("the waypoint is back", SETTLE_TIMEOUT * 2, || status("GET", "/a") == "200");
    assert_eq!(status("GET", "/a/old"), "302");
}

/// A listener and a route are added and removed while requests go on: none fails.
fn changed_under_load(machine: &Machine, port: u16) {
    let (stop, stopped) = mpsc::channel::<()>();
    let asking = thread::spawn(move || {
        let mut statuses = Vec::new();
        while stopped.try_recv().is_err() {
            statuses.push(status_of(&ask(port, "GET", "www.example.com", "/a")).to_owned());
        }
        statuses
    });
    let more = EDGE.replace(
        "  - name: https",
        "  - {name: more, port: 8080, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}\n  \
         - name: https",
    );
    for edge in [more.as_str(), EDGE, &more, EDGE] {
        machine.apply(edge);
    }
    stop.send(()).expect("somebody asks");
    let statuses = asking.join().expect("it does not panic");
    assert!(statuses.len() > 10, "{}", statuses.len());
    assert!(statuses.iter().all(|status| status == "200"), "{statuses:?}");
}

/// A certificate of its own authority.
pub(crate) struct Certificate {
    chain: String,
    key: String,
}

impl Certificate {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let signed = params.self_signed(&key).expect("a certificate");
        Self { chain: signed.pem(), key: key.serialize_pem() }
    }

    /// A Secret with it, of this `NAMESPACE/NAME`.
    pub(crate) fn secret(&self, of: &str) -> String {
        let (namespace, name) = of.split_once('/').expect("it has a namespace");
        let indented = |pem: &str| pem.trim().replace('\n', "\n    ");
        let Self { chain, key } = self;
        format!(
            "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nstringData:\n\
             \x20 tls.crt: |\n    {}\n\x20 tls.key: |\n    {}\n",
            indented(chain),
            indented(key)
        )
    }
}

/// HTTPS ends at the gateway, and a certificate that changes is served at once.
fn secured(machine: &Machine, port: u16, first: Certificate) {
    let second = Certificate::new("www.example.com");
    machine.wait("a request passes by HTTPS", SETTLE_TIMEOUT, || {
        status_of(&ask_securely(port, &first.chain).unwrap_or_default()) == "200"
    });
    assert_eq!(ask_securely(port, &second.chain), None, "it is not served");
    machine.apply(&second.secret("outside/edge-tls"));
    machine.wait("the new certificate is served", SETTLE_TIMEOUT, || {
        status_of(&ask_securely(port, &second.chain).unwrap_or_default()) == "200"
    });
    assert_eq!(ask_securely(port, &first.chain), None, "it is served no more");
}

/// What the host is answered by HTTPS, if the gateway proves itself by this certificate.
fn ask_securely(port: u16, roots: &str) -> Option<String> {
    let asked = Asked {
        server_name: "www.example.com",
        alternatives: &[],
        uris: &[],
        trust: Trust::Roots(roots),
        client: None,
        inside: Inside::Http1,
    };
    let originator = Originator::new(&asked).expect("it can be asked for");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let request = "GET /a HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";
    let asking = async {
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        let mut stream = originator.connect(stream).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        let _broken = stream.read_to_end(&mut answer).await;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    let limited = async { tokio::time::timeout(Duration::from_secs(5), asking).await };
    runtime.expect("a runtime").block_on(limited).ok().flatten()
}
