//! Istio's own parts instead of ours, on a real cluster: every pairing must carry traffic under
//! mutual TLS and enforce policies by identity.
//!
//! `AMBIT_ISTIO` is a directory with what Istio ships: `charts/{istiod,istio-cni,ztunnel}` and
//! `charts/base/files/crd-all.gen.yaml`, and in `images/` archives of the images
//! `registry.local/istio/{pilot,install-cni,ztunnel}:test`. Without it there is nothing to test,
//! and every test says so.

use std::path::PathBuf;

use crate::cluster::{Cluster, MESH, NODES, Namespace, Said, chart, must, until};
use crate::policy::{HBONE_PORT, MARKER, Wire};

/// The name of ztunnel beside a proxy of ours, which has the name `ztunnel` already.
const BESIDE: &str = "istio-ztunnel";
const REQUESTS: u32 = 20;
const WAIT: [&str; 4] = ["--namespace", MESH, "--wait", "--timeout=180s"];

/// Who made a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Ambit,
    Istio,
}
use Maker::{Ambit, Istio};

/// Who made which part; the proxies by node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    control: Maker,
    node: Maker,
    proxies: [Maker; 2],
}

impl Parts {
    /// All of Istio ambient.
    pub(crate) const ISTIO: Self = Self { control: Istio, node: Istio, proxies: [Istio, Istio] };
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn our_proxy_serves_under_istiod_and_istio_cni() {
    check("proxy-alone", Parts { control: Istio, node: Istio, proxies: [Ambit, Ambit] });
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn ztunnel_serves_under_our_control_and_agent() {
    check("ztunnel-alone", Parts { control: Ambit, node: Ambit, proxies: [Istio, Istio] });
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn ztunnel_and_our_proxy_serve_beside_each_other() {
    check("beside", Parts { control: Ambit, node: Ambit, proxies: [Ambit, Istio] });
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn our_control_and_proxy_serve_with_istio_cni() {
    check("istio-agent", Parts { control: Ambit, node: Istio, proxies: [Ambit, Ambit] });
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn our_agent_and_proxy_serve_under_istiod() {
    check("agent-and-proxy", Parts { control: Istio, node: Ambit, proxies: [Ambit, Ambit] });
}

/// Traffic in both directions, before and after a policy, and a pod that is born into the mesh.
fn check(name: &'static str, parts: Parts) {
    let cluster = Cluster::alone();
    let Some(mesh) = Mesh::open(&cluster) else { return };
    mesh.install(parts);
    let namespace = cluster.namespace(name);
    for (node, other) in [("n1", "n2"), ("n2", "n1")] {
        let words = ["sample", "echo", "--listen", "[::]:8080"];
        namespace.run(&format!("server-{node}"), node, &words);
        namespace.run(&format!("client-{other}"), other, &["sample", "sleep"]);
    }
    namespace.enrol();
    for node in NODES {
        // Comes in by the CNI plugin, not by a label.
        namespace.run(&format!("late-{node}"), node, &["sample", "sleep"]);
    }
    for (from, to) in [("n1", "n2"), ("n2", "n1")] {
        let way = Way { cluster: &cluster, namespace: &namespace, from, to };
        way.carries_encrypted_traffic();
        way.is_under_policy();
        eprintln!("{parts:?}: {from} to {to}: mutual TLS on {HBONE_PORT}, ALLOW and DENY enforced");
    }
    // Before its agent goes.
    cluster.ask(&["delete", "namespace", name]);
}

/// From a client's node to a server's.
struct Way<'a> {
    cluster: &'a Cluster,
    namespace: &'a Namespace<'a>,
    from: &'static str,
    to: &'static str,
}

impl Way<'_> {
    fn url(&self) -> String {
        format!("http://server-{}:8080/?what={MARKER}", self.to)
    }

    fn failed(&self, client: &str) -> u64 {
        let client = format!("{client}-{}", self.from);
        self.namespace.load(&client, &self.url(), REQUESTS).failed
    }

    fn carries_encrypted_traffic(&self) {
        let seen = |client: &str| {
            let wire = Wire::tap(self.cluster, self.namespace.name);
            let failed = self.failed(client);
            let trace = wire.end();
            let markers = trace.count_marker(MARKER.as_bytes());
            (failed, markers, trace.tls_summary(HBONE_PORT))
        };
        let mut last = None;
        until("the control plane has offered HBONE for both ends", || {
            let now = seen("client");
            let (failed, markers, tunnels) = &now;
            let is_so = *failed == 0 && *markers == 0 && tunnels.payload_bytes > 0;
            if last.as_ref() != Some(&now) {
                eprintln!("{} to {}: {now:?}", self.from, self.to);
                last = Some(now);
            }
            is_so
        });
        // Whose tunnel is seen from its first byte.
        let (failed, markers, tunnels) = seen("late");
        assert_eq!((failed, markers, tunnels.other_bytes), (0, 0, 0), "{tunnels:?}");
        assert!(tunnels.tls_bytes > 0, "{tunnels:?}");
        let identity = |account: String| {
            format!("spiffe://cluster.local/ns/{}/sa/{account}", self.namespace.name)
        };
        let client = identity(format!("client-{}", self.from));
        let server = identity(format!("server-{}", self.to));
        for (node, direction) in [(self.from, "outbound"), (self.to, "inbound")] {
            until(&format!("the proxy of {node} names both identities, {direction}"), || {
                let log = proxy_log(self.cluster, node);
                log.lines().any(|line| {
                    [&*client, &*server, direction].iter().all(|part| line.contains(part))
                })
            });
        }
    }

    fn is_under_policy(&self) {
        let client = format!("client-{}", self.from);
        let policies = [("ALLOW", "late", REQUESTS), ("DENY", "client", REQUESTS)];
        for (action, other, refused) in policies {
            let name = action.to_lowercase();
            let policy = self.policy(&name, action, &client);
            self.cluster.must_apply(&policy);
            let refused = u64::from(refused);
            until(&format!("{action} {client} refuses {other}"), || self.failed(other) == refused);
            let spared = if other == "late" { "client" } else { "late" };
            assert_eq!(self.failed(spared), 0, "{action} {client} spares {spared}");
            self.cluster.remove(&policy);
            until("all is allowed again", || self.failed(other) == 0);
        }
    }

    fn policy(&self, name: &str, action: &str, account: &str) -> String {
        let Self { namespace, to, .. } = self;
        let space = namespace.name;
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {name}, namespace: {space}}}\nspec: {{selector: {{matchLabels: \
             {{app: server-{to}}}}}, action: {action}, rules: [{{from: [{{source: {{principals: \
             [cluster.local/ns/{space}/sa/{account}]}}}}]}}]}}\n"
        )
    }
}

/// What the proxies of a node have written.
fn proxy_log(cluster: &Cluster, node: &str) -> String {
    let pods = cluster.pods(MESH, "app=ztunnel");
    let on_node = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node);
    let log = |pod: &serde_json::Value| {
        let name = pod["metadata"]["name"].as_str().unwrap();
        cluster.kubectl(&["-n", MESH, "logs", name, "--tail=-1"]).out
    };
    on_node.map(log).collect()
}

/// The mesh of the cluster, in parts; at its end all of it is Ambit's again.
pub(crate) struct Mesh<'a> {
    cluster: &'a Cluster,
    given: PathBuf,
    /// The settings of the chart as it was found.
    settings: PathBuf,
}

impl<'a> Mesh<'a> {
    /// Nothing without Istio's parts. With them, nothing of any mesh is installed afterwards.
    pub(crate) fn open(cluster: &'a Cluster) -> Option<Self> {
        let Some(given) = std::env::var_os("AMBIT_ISTIO").map(PathBuf::from) else {
            eprintln!("NOT RUN: set AMBIT_ISTIO to a directory with Istio's charts and images");
            return None;
        };
        for node in NODES {
            for image in ["pilot", "install-cni", "ztunnel"] {
                let archive = given.join(format!("images/{image}.tar")).display().to_string();
                let ctr = ["ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io"];
                let import = ["images", "import", &archive];
                must(&cluster.on_node(node, &[&ctr[..], &import[..]].concat()));
            }
        }
        let values = ["get", "values", "ambit", "--namespace", MESH, "--output", "yaml"];
        let values = cluster.helm(&values);
        must(&values);
        let settings = std::env::temp_dir().join(format!("ambit-before-{}", std::process::id()));
        std::fs::write(&settings, &values.out).unwrap();
        let mesh = Self { cluster, given, settings };
        mesh.uninstall("ambit");
        let definitions = mesh.given("charts/base/files/crd-all.gen.yaml");
        cluster.ask(&["apply", "--server-side", "--force-conflicts", "-f", &definitions]);
        Some(mesh)
    }

    fn given(&self, path: &str) -> String {
        self.given.join(path).display().to_string()
    }

    pub(crate) fn install(&self, parts: Parts) {
        let Parts { control, node, proxies } = parts;
        if control == Istio {
            self.istiod();
        }
        if node == Istio {
            self.istio_cni();
        }
        let has_ours = [control, node, proxies[0], proxies[1]].contains(&Ambit);
        let trusted = format!("control.trustedNodeAccounts={{{MESH}/{BESIDE}}}");
        let beside = ["proxy.nodeSelector.kubernetes\\.io/hostname=n1", &trusted];
        let is_beside = proxies == [Ambit, Istio];
        let of = |part: &str, ours: bool| format!("{part}.enabled={ours}");
        let enabled = [
            of("control", control == Ambit),
            of("node", node == Ambit),
            of("proxy", proxies.contains(&Ambit)),
        ];
        let sets: Vec<&str> = enabled.iter().map(String::as_str).collect();
        if has_ours {
            self.ambit(&[&sets[..], if is_beside { &beside } else { &[] }].concat());
        }
        if is_beside {
            let only = "nodeSelector.kubernetes\\.io/hostname=n2";
            self.istio("ztunnel", "ztunnel", &[&format!("resourceName={BESIDE}"), only]);
        } else if proxies == [Istio, Istio] {
            self.ztunnel();
        }
    }

    /// Our chart with the settings it was found with, and these.
    pub(crate) fn ambit(&self, sets: &[&str]) {
        must(&self.try_ambit(sets));
    }

    fn try_ambit(&self, sets: &[&str]) -> Said {
        let (chart, settings) = (chart(), self.settings.display().to_string());
        let mut words = vec!["upgrade", "--install", "ambit", &chart, "--values", &settings];
        // Of objects that another chart made under the same names; Istio's definitions stay.
        words.extend(["--take-ownership", "--skip-crds"]);
        words.extend(WAIT);
        words.extend(sets.iter().flat_map(|set| ["--set", set]));
        self.cluster.helm(&words)
    }

    pub(crate) fn uninstall(&self, release: &str) {
        must(&self.cluster.helm(&[&["uninstall", release][..], &WAIT[..]].concat()));
    }

    pub(crate) fn istiod(&self) {
        let small = ["autoscaleEnabled=false", "resources.requests.memory=64Mi"];
        self.istio("istiod", "pilot", &[&small[..], &["resources.requests.cpu=10m"]].concat());
    }

    pub(crate) fn istio_cni(&self) {
        self.istio("istio-cni", "install-cni", &[]);
    }

    pub(crate) fn ztunnel(&self) {
        self.istio("ztunnel", "ztunnel", &[]);
    }

    /// One of Istio's charts, in ambient mode.
    fn istio(&self, name: &str, image: &str, sets: &[&str]) {
        let chart = self.given(&format!("charts/{name}"));
        let image = format!("image=registry.local/istio/{image}:test");
        let mut words = vec!["upgrade", "--install", name, &chart, "--set", &image];
        words.extend(["--set", "profile=ambient"]);
        words.extend(["--set", "global.imagePullPolicy=Never", "--set", "imagePullPolicy=Never"]);
        words.extend(WAIT);
        words.extend(sets.iter().flat_map(|set| ["--set", set]));
        must(&self.cluster.helm(&words));
    }
}

impl Drop for Mesh<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.cluster.kubectl(&["-n", MESH, "get", "pods", "-o", "wide"]);
            eprintln!("{}{}", said.out, said.err);
        }
        // After a failure too, for the tests that follow; a second panic would hide the first.
        let done = |said: Said| {
            if !said.is_success {
                eprintln!("the mesh was not put back: {}{}", said.out, said.err);
            }
            assert!(said.is_success || std::thread::panicking(), "Ambit is installed again");
        };
        for release in ["ztunnel", "istio-cni", "istiod", "ambit"] {
            let uninstall = ["uninstall", release, "--ignore-not-found"];
            done(self.cluster.helm(&[&uninstall[..], &WAIT[..]].concat()));
        }
        done(self.try_ambit(&[]));
        std::fs::remove_file(&self.settings).ok();
    }
}
