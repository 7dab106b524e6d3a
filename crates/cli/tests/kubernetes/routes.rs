//! How soon a changed route is obeyed: from the API server's answer to the first request that
//! follows it, with 5,000 other routes in the same waypoint, under the load of the drills.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ambit_load::SeenResult;

use crate::cluster::{Cluster, until};
use crate::drills::{attach, deploy, start_load};
use crate::load::Running;

/// Services, each with routes of its own.
const SERVICES: usize = 100;
const ROUTES_OF_EACH: usize = 50;
/// Changes, and the time between two: 40 per second.
const CHANGES: u64 = 400;
const CHANGE_EVERY: Duration = Duration::from_millis(25);
/// How long the load runs around them.
const LOAD_S: u32 = 20;
/// Where the route that changes is.
const MEASURED: &str =
    "/apis/gateway.networking.k8s.io/v1/namespaces/route-change/httproutes/measured";

/// The API server, by a proxy of kubectl that adds no more than a hop.
struct Api {
    proxy: Child,
    socket: PathBuf,
}

impl Api {
    fn new(cluster: &Cluster) -> Self {
        let socket = cluster.state().join("api.sock");
        let _none_yet = std::fs::remove_file(&socket);
        let mut kubectl = cluster.command();
        kubectl.arg("proxy").arg(format!("--unix-socket={}", socket.display()));
        let proxy = kubectl.stdout(Stdio::null()).spawn().unwrap();
        until("kubectl serves the API", || socket.exists());
        Self { proxy, socket }
    }

    /// Sends a merge patch; returns when the API server had answered.
    fn patch(&self, path: &str, body: &str) -> Duration {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let request = format!(
            "PATCH {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
             application/merge-patch+json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        let answered = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200", "{rest}");
        answered
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.proxy.kill();
        let _ended = self.proxy.wait();
        let _gone = std::fs::remove_file(&self.socket);
    }
}

fn rules(edition: u64) -> String {
    format!(
        "[{{\"filters\": [{{\"type\": \"ResponseHeaderModifier\", \"responseHeaderModifier\": \
         {{\"set\": [{{\"name\": \"x-edition\", \"value\": \"{edition}\"}}]}}}}], \"backendRefs\": \
         [{{\"name\": \"web\", \"port\": 8080}}]}}]"
    )
}

fn route(name: &str, service: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, \
         namespace: route-change}}\nspec:\n  parentRefs: [{{group: '', kind: Service, name: \
         {service}, port: 8080}}]\n  rules: {rules}\n"
    )
}

/// The other routes, and the services that have them.
fn others() -> String {
    let mut text = String::new();
    for service in 0..SERVICES {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: other-{service}, namespace: \
             route-change}}\nspec: {{ports: [{{name: http, port: 8080}}]}}\n"
        )
        .unwrap();
        for number in 0..ROUTES_OF_EACH {
            let rules = format!(
                "[{{matches: [{{path: {{type: PathPrefix, value: /path-{number}}}}}], backendRefs: \
                 [{{name: web, port: 8080}}]}}]"
            );
            let (name, service) = (format!("r-{service}-{number}"), format!("other-{service}"));
            text.push_str(&route(&name, &service, &rules));
        }
    }
    text
}

/// The time at which a part of the values lies below.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_changed_route_is_obeyed_soon_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("route-change");
    deploy(&cluster, &namespace, 1);
    attach(&cluster, &namespace);
    let created = cluster.create(&others());
    assert!(created.is_success, "{}", created.err);
    cluster.must_apply(&route("measured", "web", &rules(0)));
    let api = Api::new(&cluster);
    let load = start_load(&cluster, &namespace, LOAD_S);
    let seen = "lab-load seen http://web:8080/?size=20 --field x-edition --pause 0 --seconds";
    let seen = Running::start(&cluster, &namespace, &format!("{seen} {}", LOAD_S - 2));
    std::thread::sleep(Duration::from_secs(3));
    let start = Instant::now();
    let mut answered = Vec::new();
    for edition in 1..=CHANGES {
        let body = format!("{{\"spec\": {{\"rules\": {}}}}}", rules(edition));
        answered.push(api.patch(MEASURED, &body));
        let next = CHANGE_EVERY * u32::try_from(edition).unwrap();
        std::thread::sleep((start + next).saturating_duration_since(Instant::now()));
    }
    let rate = CHANGES as f64 / start.elapsed().as_secs_f64();
    let seen: SeenResult = seen.end();
    let outcome = load.end();
    assert!(seen.failed == 0 && !seen.values.is_empty(), "{seen:?}");
    let followed = |edition: u64, answered: &Duration| {
        let is_it = |value: &str| value.parse::<u64>().is_ok_and(|value| value >= edition);
        let first = seen.values.iter().find(|seen| is_it(&seen.value));
        let at = Duration::from_micros(first.expect("every change is obeyed").at_us);
        // An answer may be overtaken by what it answers.
        at.saturating_sub(*answered)
    };
    let mut all: Vec<Duration> =
        answered.iter().zip(1..).map(|(answered, edition)| followed(edition, answered)).collect();
    all.sort();
    let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(&all, percent));
    let routes = SERVICES * ROUTES_OF_EACH + 1;
    eprintln!(
        "drill | a route changes | one of {routes} routes, {rate:.1} times per second: first \
               request that follows p50 {p50:?}, p99 {p99:?}, max {max:?}"
    );
    eprintln!("{}", outcome.row("a route changes"));
    outcome.assert_whole("a route changes");
}
