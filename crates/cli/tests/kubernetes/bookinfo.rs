//! The example bookinfo behind a waypoint, in the cluster.

use ambit_load::Report;
use serde_json::Value;

use crate::bookinfo_steps::{self, Place};
use crate::cluster::{Cluster, NODES, Namespace, until};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");
const ORIGINALS: &str = "docker.io/istio/examples-bookinfo-";
/// The services that are called, whose names the client's node does not resolve.
const CALLED: [&str; 4] = ["productpage", "details", "reviews", "ratings"];

/// Bookinfo in a cluster.
struct Bookinfo<'a> {
    cluster: &'a Cluster,
    namespace: &'a Namespace<'a>,
}

/// A file of the examples, with our images for its own: the cluster has no others.
fn example(path: &str) -> String {
    let text = std::fs::read_to_string(format!("{EXAMPLES}{path}")).unwrap();
    let line = |line: &str| match line.split_once("image: ") {
        None => line.to_owned(),
        Some((start, image)) => {
            let (indent, words) = (start.replace('-', " "), words(image));
            format!(
                "{start}image: registry.local/ambit:test\n{indent}imagePullPolicy: Never\n\
                 {indent}args: {words}"
            )
        }
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    let text = lines.join("\n").replace("nodeName: node-1", &format!("nodeName: {}", NODES[0]));
    // The client needs no program but its load.
    text.replace("    command: [sleep, infinity]\n", "")
}

/// The words of our sample that takes the place of an image.
fn words(image: &str) -> String {
    let service = image.strip_prefix(ORIGINALS).and_then(|rest| rest.rsplit_once(':'));
    let of_service = match service {
        None => return "[sample, sleep]".to_owned(),
        Some(("productpage-v1", _)) => "productpage, --close-upstream",
        Some(("details-v1", _)) => "details, --two-writes",
        Some(("reviews-v1", _)) => "reviews, --version, v1",
        Some(("reviews-v2", _)) => "reviews, --version, v2",
        Some(("reviews-v3", _)) => "reviews, --version, v3",
        Some(("ratings-v1", _)) => "ratings",
        Some((other, _)) => panic!("{other} is no service of bookinfo"),
    };
    format!("[sample, {of_service}, --listen, '0.0.0.0:9080']")
}

impl Bookinfo<'_> {
    /// What curl says, run in the network namespace of a pod.
    fn curl_in(&self, selector: &str, words: &str) -> String {
        let pods = self.cluster.pods(self.namespace.name, selector);
        let text = |pointer: &str| pods[0].pointer(pointer).and_then(Value::as_str).unwrap();
        let script = format!(
            "for ns in /run/netns/*; do if nsenter --net=$ns ip -o addr | grep -qF ' {}/'; then \
             exec nsenter --net=$ns curl {words}; fi; done; exit 1",
            text("/status/podIP")
        );
        let said = self.cluster.on_node(text("/spec/nodeName"), &["sh", "-c", &script]);
        format!("{}{}", said.out, said.err)
    }
}

impl Place for Bookinfo<'_> {
    fn step(&self, name: &str) {
        self.cluster.must_apply(&example(&format!("bookinfo-steps/{name}.yaml")));
    }

    fn curl(&self, words: &str) -> String {
        let of = |service: &&str| {
            let path = "jsonpath={.spec.clusterIP}";
            let words = ["-n", self.namespace.name, "get", "service", service, "-o", path];
            format!("--resolve {service}.bookinfo:9080:{} ", self.cluster.ask(&words))
        };
        let addresses: String = CALLED.iter().map(of).collect();
        self.curl_in("app=fortio", &format!("{addresses} {words}"))
    }

    fn load(&self, words: &str) -> Report {
        let all = ["-n", self.namespace.name, "exec", "fortio", "--", "/ambit"];
        let words = words.split(' ').chain(["--keep-going", "--output", "json"]);
        let all: Vec<&str> = all.into_iter().chain(words).collect();
        serde_json::from_str(&self.cluster.ask(&all)).unwrap()
    }

    fn metrics(&self) -> String {
        let waypoint = "gateway.networking.k8s.io/gateway-name=waypoint";
        self.curl_in(waypoint, "-s http://127.0.0.1:15020/metrics")
    }

    fn log(&self) -> String {
        let waypoint = "gateway.networking.k8s.io/gateway-name=waypoint";
        self.cluster.logs(self.namespace.name, waypoint)
    }

    fn wait(&self, what: &str, is_so: impl FnMut() -> bool) {
        until(what, is_so);
    }
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn bookinfo_behind_a_waypoint_does_what_its_steps_say() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("bookinfo");
    cluster.must_apply(&example("bookinfo/app.yaml"));
    let bookinfo = Bookinfo { cluster: &cluster, namespace: &namespace };
    bookinfo.step("mesh-on");
    for deployment in ["productpage-v1", "details-v1", "reviews-v1", "reviews-v2", "reviews-v3"] {
        cluster.await_rollout(namespace.name, &format!("deployment/{deployment}"));
    }
    namespace.await_captured();
    bookinfo_steps::run(&bookinfo);
}
