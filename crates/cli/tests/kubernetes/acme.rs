//! A gateway has its certificate from a directory: Pebble, Let's Encrypt's own for tests.
//!
//! In the cluster names are looked up in its DNS, so the host that is proven is that of the
//! gateway's own Service. On one machine Pebble runs on the host, with a file of hosts of its own.
//! The client is curl, which believes Pebble's root alone.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
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
/// The last line of a certificate; the leaf comes first in a chain.
const END: &str = "-----END CERTIFICATE-----";
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

/// A root that no system believes.
fn private_root() -> AuthorityBundle {
    AuthorityBundle::new(Authority::generate("pebble", SystemTime::now()).unwrap())
}

/// How Pebble is configured that listens at two ports, asks at another, and has its own certificate
/// in a directory.
fn config(at: &str, [directory, management, http]: [u16; 3], files: &str) -> Value {
    json!({"pebble": {
        "listenAddress": format!("{at}:{directory}"),
        "managementListenAddress": format!("{at}:{management}"),
        "certificate": format!("{files}/cert.pem"), "privateKey": format!("{files}/key.pem"),
        "httpPort": http, "tlsPort": 443, "keyAlgorithm": "ecdsa",
        "retryAfter": {"authz": 1, "order": 1},
        "profiles": {"default": {"description": "short", "validityPeriod": VALIDITY_S}},
    }})
}

/// Pebble in a pod.
fn pebble() -> String {
    let (now, root) = (SystemTime::now(), private_root());
    let served = root.issue_server(&[DIRECTORY_HOST], Duration::from_secs(86_400), now).unwrap();
    let config = config("0.0.0.0", [14_000, 15_000, 80], "/config");
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
    let chain = || {
        let decoded = "go-template={{index .data \"tls.crt\" | base64decode}}";
        cluster.kubectl(&["-n", NAMESPACE, "get", "secret/own", "-o", decoded]).out
    };
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
    // The certificates that are served come after the code.
    let asked = || {
        let shown = ["-o", "/dev/null", "-w", "%{http_code}%{certs}"];
        let words = ["--cacert", file.as_str(), "--resolve", resolve.as_str(), url.as_str()];
        curl(&cluster, &[&shown[..], &words[..]].concat()).out
    };
    let is_served = || {
        let (chain, said) = (chain(), asked());
        let end = chain.find(END).map_or(0, |at| at + END.len());
        end > 0 && said.starts_with("200") && said.contains(&chain[..end])
    };
    until("a foreign client believes it", is_served);
    until_within(RENEWAL, "it is renewed", || chain() != first);
    until("a foreign client believes the next one", is_served);
    cluster.ask(&["-n", NAMESPACE, "delete", "secret", "own"]);
    until("a certificate that was deleted comes back", || !chain().is_empty());
    until("a foreign client believes that too", is_served);
    let challenges = "/metadata/annotations/ambit.io~1acme-challenges";
    until("nothing is left of the challenges", || {
        text(&object(&cluster, "service/in-ambit"), challenges).is_empty()
    });
    std::fs::remove_file(file).unwrap();
}

/// Pebble beside a machine; it ends with this.
struct Beside(Child);

impl Beside {
    /// With its files in a directory; the names of hosts that it knows are in there.
    fn start(cluster: &Cluster, files: &Path) -> Self {
        let script = format!(
            "mount --bind {0}/hosts /etc/hosts && exec {1} -config {0}/config.json",
            files.display(),
            cluster.state().join("bin/pebble").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).env("PEBBLE_VA_NOSLEEP", "1");
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_machine_has_its_certificate_from_a_directory_and_renews_it() {
    let cluster = Cluster::alone();
    let files = tempfile::Builder::new().prefix("ambit-acme-").tempdir().unwrap();
    let at = |name: &str| files.path().join(name);
    let [directory, management, http, https] = [(); 4].map(|()| free_port());
    let (now, root) = (SystemTime::now(), private_root());
    let served = root.issue_server(&["localhost"], Duration::from_secs(86_400), now).unwrap();
    let place = files.path().display().to_string();
    let config = config("127.0.0.1", [directory, management, http], &place);
    std::fs::write(at("config.json"), config.to_string()).unwrap();
    std::fs::write(at("cert.pem"), &served.chain_pem).unwrap();
    std::fs::write(at("key.pem"), served.key_pem.as_bytes()).unwrap();
    std::fs::write(at("hosts"), "127.0.0.1 localhost\n127.0.0.1 shop.test\n").unwrap();
    let _pebble = Beside::start(&cluster, files.path());
    let roots = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "pebble-root", "namespace": "edge"},
        "data": {"ca.crt": root.roots_pem()}});
    let manifest =
        format!("{}---\n{roots}\n", MACHINE.replace("DIRECTORY", &directory.to_string()));
    std::fs::write(at("edge.yaml"), manifest).unwrap();
    let state = at("state").display().to_string();
    let ambit = |words: &[&str]| -> Command {
        let mut command = Command::new(std::env::var_os("AMBIT_BINARY").unwrap());
        command.args(words).env("AMBIT_STATE", &state);
        command
    };
    let run = |words: &[&str]| -> Said { ambit(words).output().unwrap().into() };
    let [http, https_of] = [format!("{http}=edge/in/80"), format!("{https}=edge/in/443")];
    let manifest = at("edge.yaml").display().to_string();
    let words = ["up", &*manifest, "--detach", "--publish", &*http, "--publish", &*https_of];
    must(&run(&words));
    // What a failed test leaves is taken down too.
    let machine = Down(ambit(&["down"]));
    let said = run(&["acme"]);
    assert!(
        said.out.contains("(shop.test): a certificate is issued by"),
        "{}{}",
        said.out,
        said.err
    );
    let said = run(&["acme"]);
    assert!(said.is_success && said.out.contains("is renewed in"), "{}{}", said.out, said.err);
    let root = Command::new("curl")
        .args(["-s", "-k", &format!("https://127.0.0.1:{management}/roots/0")])
        .output()
        .unwrap();
    std::fs::write(at("root.pem"), &root.stdout).unwrap();
    let shown = at("root.pem").display().to_string();
    let (resolve, url) =
        (format!("shop.test:{https}:127.0.0.1"), format!("https://shop.test:{https}/"));
    let asked = || -> String {
        let words = ["-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}%{certs}"];
        let mut curl = Command::new("curl");
        curl.args(words).args(["--cacert", &shown, "--resolve", &resolve, &url]);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    until("a foreign client believes it", || asked().starts_with("200"));
    let first = asked();
    let watch = Beside(ambit(&["acme", "--watch"]).stderr(Stdio::null()).spawn().unwrap());
    until_within(RENEWAL, "it is renewed, and a foreign client believes the next one", || {
        let said = asked();
        said.starts_with("200") && said != first
    });
    drop((watch, machine));
}

/// A machine that is taken down at the end.
struct Down(Command);

impl Drop for Down {
    fn drop(&mut self) {
        let said: Said = self.0.output().unwrap().into();
        must(&said);
    }
}

/// A gateway of a machine, and what it leads to.
const MACHINE: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: edge, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: edge, labels: {app: web}}
spec: {containers: [{name: web, image: nicholasjackson/fake-service:v0.26.2}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: edge}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 9090}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: in
  namespace: edge
  annotations:
    ambit.io/acme-directory: https://localhost:DIRECTORY/dir
    ambit.io/acme-directory-ca: pebble-root
spec:
  gatewayClassName: ambit
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: shop.test,
     tls: {certificateRefs: [{name: own}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: edge}
spec:
  parentRefs: [{name: in}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";
