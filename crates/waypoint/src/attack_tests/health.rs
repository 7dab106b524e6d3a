//! Endpoints whose health checks fail get no requests.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ambit_model::http::health::{HealthCheck, Probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::world::{Count, HTTP, World, run, until};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// A server with a name, whose checks pass as long as it is well.
#[derive(Clone)]
struct Server {
    name: &'static str,
    is_well: Rc<Cell<bool>>,
    checks: Count,
}

impl Server {
    fn new(name: &'static str) -> Self {
        Self { name, is_well: Rc::new(Cell::new(true)), checks: Count::default() }
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut heard = Vec::new();
        while let Ok(1..) = stream.read_buf(&mut heard).await {
            if !heard.ends_with(b"\r\n\r\n") {
                continue;
            }
            let is_check = heard.starts_with(b"GET /healthz HTTP/1.1\r\n");
            self.checks.add(usize::from(is_check));
            heard.clear();
            let status = if is_check && !self.is_well.get() { "503 Unwell" } else { "200 OK" };
            let (name, length) = (self.name, self.name.len());
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{name}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn check(panic_percent: u32) -> HealthCheck {
    HealthCheck {
        probe: Probe::Http { path: "/healthz".into(), host: None, statuses: vec![(200, 299)] },
        port: Some(HTTP),
        interval: Duration::from_millis(50),
        jitter_percent: 10,
        timeout: Duration::from_secs(5),
        unhealthy_threshold: 2,
        healthy_threshold: 2,
        panic_percent,
        problem: None,
    }
}

async fn two_servers(world: &World) -> (Server, Server) {
    let (one, two) = (Server::new("one"), Server::new("two"));
    let serving = one.clone();
    world.serve(HTTP, move |stream| serving.clone().serve(stream));
    let (listener, serving) = (world.second_server().await, two.clone());
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(serving.clone().serve(stream));
        }
    });
    (one, two)
}

/// Who answers forty requests.
async fn answers(world: &World) -> (usize, usize, usize) {
    let (mut one, mut two, mut none) = (0, 0, 0);
    for _ in 0..40 {
        let answer = world.ask(HTTP, GET).await;
        match &answer[answer.len() - 3..] {
            "one" => one += 1,
            "two" => two += 1,
            _ => {
                assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
                assert!(answer.contains("x-ambit-reason: no_healthy_endpoint\r\n"), "{answer}");
                none += 1;
            }
        }
    }
    (one, two, none)
}

fn healthy(world: &World) -> f64 {
    let labels =
        r#"{destination_service="web.app.svc.cluster.local",destination_service_namespace="app"}"#;
    world.metric(&format!("ambit_health_check_healthy{labels}"))
}

#[test]
fn an_endpoint_whose_checks_fail_gets_no_requests_until_they_pass() {
    run(&[], async |world| {
        let (one, two) = two_servers(world).await;
        world.change_http(|http| http.health_check = Some(check(0)));
        until("both are checked", || one.checks.get() > 1 && two.checks.get() > 1).await;
        let (of_one, of_two, none) = answers(world).await;
        assert!(of_one > 0 && of_two > 0 && none == 0, "{of_one} {of_two} {none}");
        two.is_well.set(false);
        until("one is left", || healthy(world) == 1.0).await;
        assert_eq!(answers(world).await, (40, 0, 0));
        one.is_well.set(false);
        until("none is left", || healthy(world) == 0.0).await;
        assert_eq!(answers(world).await, (0, 0, 40), "there is no panic");
        two.is_well.set(true);
        until("one is back", || healthy(world) == 1.0).await;
        assert_eq!(answers(world).await, (0, 40, 0));
        // What is not to be checked any more is not left out either.
        world.change_http(|http| http.health_check = None);
        until("nothing is checked", || healthy(world) == 0.0).await;
        let (of_one, of_two, _) = answers(world).await;
        assert!(of_one > 0 && of_two > 0);
        world.stays_good().await;
    });
}

#[test]
fn in_a_panic_all_get_requests_and_what_cannot_be_checked_gets_none() {
    run(&[], async |world| {
        let (one, two) = two_servers(world).await;
        one.is_well.set(false);
        two.is_well.set(false);
        world.change_http(|http| http.health_check = Some(check(50)));
        until("both are checked", || one.checks.get() > 3 && two.checks.get() > 3).await;
        let (of_one, of_two, none) = answers(world).await;
        assert!(of_one > 0 && of_two > 0 && none == 0, "{of_one} {of_two} {none}");
        let problem = Some("the interval is no time".into());
        world.change_http(|http| http.health_check = Some(HealthCheck { problem, ..check(0) }));
        let answer = world.ask(HTTP, GET).await;
        assert!(answer.contains("x-ambit-reason: health_check\r\n"), "{answer}");
    });
}
