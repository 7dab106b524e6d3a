//! A waypoint that has too much to do, on one machine: it refuses requests, and then connections,
//! and still says how it is.

use std::process::Child;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, sum};
use crate::rate_limits::ask;

/// Requests that may be under way at once.
const MOST: usize = 2;

#[test]
fn a_waypoint_that_sheds_still_says_how_it_is() {
    let machine = Machine::up("overload", Mesh::On, &[]);
    let passes = || ask(&machine, "/", "").starts_with("HTTP/1.1 200");
    machine.put_behind_patched_waypoint(&variable("AMBIT_MAX_REQUESTS", &MOST.to_string()), passes);
    refuses_requests(&machine);
    machine.wait("requests pass again", SETTLE_TIMEOUT, passes);
    // Every timer is later than this, so that the waypoint takes itself for overloaded: it refuses
    // requests, and some seconds later connections.
    machine.put_behind_patched_waypoint(&variable("AMBIT_OVERLOAD_LAG", "1us"), || {
        let answer = ask(&machine, "/", "");
        answer.contains("x-ambit-reason: overload") || !answer.starts_with("HTTP/1.1")
    });
    refuses_connections(&machine);
    machine.put_behind_patched_waypoint(&variable("AMBIT_OVERLOAD_LAG", "500ms"), passes);
    machine.down();
}

/// A patch that sets a variable of the waypoint's pods.
fn variable(name: &str, value: &str) -> String {
    let container = format!("{{name: istio-proxy, env: [{{name: {name}, value: '{value}'}}]}}");
    format!("spec: {{template: {{spec: {{containers: [{container}]}}}}}}")
}

fn refuses_requests(machine: &Machine) {
    let held: Vec<Child> = (0..MOST).map(|number| hold(machine, number)).collect();
    machine.wait("all that may be under way is", SETTLE_TIMEOUT, || {
        let metrics = machine.page("app/waypoint", "127.0.0.1/15020", "/metrics");
        sum(&metrics, "ambit_http_requests_under_way", &[]) == MOST as u64
    });
    for refused in 1..=3 {
        let answer = ask(machine, "/", "");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("x-ambit-reason: overload"), "{answer}");
        let metrics = says_how_it_is(machine);
        let shed = sum(&metrics, "ambit_http_shed_total", &["reason=\"requests\""]);
        assert_eq!(shed, refused, "{metrics}");
    }
    machine.bash("client/load", "kill $(cat /tmp/held-*)");
    for mut child in held {
        child.wait().expect("it ends");
    }
}

/// A request that is not answered for a minute.
fn hold(machine: &Machine, number: usize) -> Child {
    let script = format!(
        "echo $$ > /tmp/held-{number} && exec 3<>/dev/tcp/web.app/80 && \
         printf 'GET /?delay=60s HTTP/1.1\\r\\nHost: web.app\\r\\n\\r\\n' >&3 && exec cat <&3"
    );
    machine.spawn(&["exec", "client/load", "--", "bash", "-c", &script])
}

fn refuses_connections(machine: &Machine) {
    machine.wait("connections are refused too", SETTLE_TIMEOUT, || {
        let answer = ask(machine, "/", "");
        let refused = "ambit_http_refused_connections_total";
        !answer.starts_with("HTTP/1.1")
            && sum(&says_how_it_is(machine), refused, &["reason=\"overload\""]) > 0
    });
}

/// Its pages answer in its own pod, to clients in the mesh and to those outside; returns its
/// metrics.
fn says_how_it_is(machine: &Machine) -> String {
    let pods = machine.waypoint_pods();
    let pod = pods.first().expect("a pod of the waypoint");
    let (own, ip) = (format!("app/{pod}"), machine.pod_ip("app", pod, false));
    for client in [&own, "client/load", "outside/stranger"] {
        let ready = machine.page(client, &format!("{ip}/15021"), "/healthz/ready");
        assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("ready\n"), "{ready}");
        let metrics = machine.page(client, &format!("{ip}/15020"), "/metrics");
        assert!(metrics.contains("ambit_http_shed_total"), "{client}: {metrics}");
    }
    let status = machine.run(&["waypoint", "status", "waypoint", "-n", "app"]);
    assert!(status.contains("1 of 1 pods are ready"), "{status}");
    machine.page(&own, "127.0.0.1/15020", "/metrics")
}
