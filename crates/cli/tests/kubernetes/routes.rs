//! How soon a changed route is obeyed: from the API server's answer to the first request that
//! follows it, with 5,000 other routes in the same waypoint, under the load of the drills.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use ambit_load::SeenResult;

use crate::cluster::{Cluster, until};
use crate::drills::{attach, deploy, start_load};
use crate::followed::{LOAD_S, Routes, asking, change_all, now, tell};
use crate::load::Running;

const ROUTES: Routes = Routes { namespace: "route-change", port: 8080 };
/// So many services are written by one client, with their routes.
const WRITTEN_AT_ONCE: usize = 5;
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
        let answered = now();
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

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_changed_route_is_obeyed_soon_and_no_request_is_lost() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace(ROUTES.namespace);
    deploy(&cluster, &namespace, 1);
    attach(&cluster, &namespace);
    // Each write waits for a disk, so many are made at a time.
    std::thread::scope(|scope| {
        for part in ROUTES.others().chunks(WRITTEN_AT_ONCE) {
            let (cluster, part) = (&cluster, part.concat());
            scope.spawn(move || {
                let created = cluster.create(&part);
                assert!(created.is_success, "{}", created.err);
            });
        }
    });
    cluster.must_apply(&ROUTES.measured(0));
    let api = Api::new(&cluster);
    let load = start_load(&cluster, &namespace, LOAD_S);
    let seen = format!("lab-load {}", asking("http://web:8080/?size=20"));
    let seen = Running::start(&cluster, &namespace, &seen);
    let answered = change_all(|edition| {
        api.patch(MEASURED, &format!("{{\"spec\": {{\"rules\": {}}}}}", ROUTES.rules(edition)))
    });
    let seen: SeenResult = seen.end();
    let outcome = load.end();
    tell(&answered, &seen);
    eprintln!("{}", outcome.row("a route changes"));
    outcome.assert_whole("a route changes");
}
