//! Requests against the admin API, over its Unix socket.

use std::io::Write as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ambit_dataplane::certificates::{Certificates, Clock};
use ambit_dataplane::demand::Demand;
use ambit_dataplane::descriptors::{Descriptors, Direction, Process, Shares};
use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName, WorkloadName};
use ambit_model::policy::{Action, Clause, Match, Policy, PolicyScope, Rule, TextMatch};
use ambit_model::view::{Change, View};
use ambit_model::workload::{AppProtocol, PortMapping, Tunnel, Workload};
use ambit_net::local_http;
use ambit_net::namespace::NetNs;
use ambit_wire::admin::{Connection, Connections};
use serde_json::Value;
use tokio::sync::mpsc;

use super::connections::PassedOn;
use super::*;
use crate::config;
use crate::handover::Message;
use crate::pods::Pod;

struct World {
    admin: Arc<Admin>,
    path: PathBuf,
    said: mpsc::Receiver<Message<FromWorker>>,
    accepting: watch::Sender<bool>,
}

impl World {
    fn new(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    fn with(name: &str, change: impl FnOnce(&mut Shared)) -> Self {
        let variables = [("AUTH_TOKEN", "a.hush.token"), ("CA_HEADER_X-KEY", "hidden")];
        let config = config::tests::config(&[], &variables).expect("valid");
        let (certificates, _asks) = Certificates::new(Clock::system());
        let mut shared = Shared::new(config, certificates, Demand::nothing(), None);
        change(&mut shared);
        let shared = Arc::new(shared);
        let (link, said) = Link::new();
        let levels = Levels::detached("info");
        let enrolled = Arc::new(AtomicBool::new(false));
        let connections = LiveConnections::new(Vec::new(), link.clone());
        let admin = Arc::new(Admin { shared, link, levels, connections, enrolled });
        let name = format!("ambit-admin-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listening");
        let accepting = watch::Sender::new(true);
        let socket = Socket::Unix(listener);
        tokio::spawn(serve(admin.clone(), socket, Service::Admin, accepting.subscribe()));
        Self { admin, path, said, accepting }
    }

    async fn ask(&self, method: Method, target: &str) -> (u16, String) {
        self.ask_with(method, target, Bytes::new()).await
    }

    async fn ask_with(&self, method: Method, target: &str, body: Bytes) -> (u16, String) {
        let patience = Duration::from_secs(5);
        let asked = local_http::request(&self.path, method, target, body, patience).await;
        let (status, body) = asked.expect("answered");
        (status.as_u16(), String::from_utf8(body.to_vec()).expect("text"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).expect("removed");
    }
}

fn view() -> View {
    let mut view = View::default();
    let mut pod = Workload::named("k//Pod/shop/cart", "shop", "cart");
    pod.addresses = vec![[10, 0, 0, 1].into()].into();
    view.apply(Change::Workload(pod));
    view.apply(Change::Service(ambit_model::service::Service::named("shop", "cart.shop")));
    let namespaces = vec![TextMatch::Exact("shop".into()), TextMatch::Presence];
    let one = Match { namespaces: namespaces.into(), ..Default::default() };
    view.apply(Change::Policy(Policy {
        key: PolicyName::new("shop", "deny"),
        scope: PolicyScope::Namespace,
        action: Action::Deny,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![one] }] }],
        dry_run: true,
        is_of_waypoints: false,
    }));
    view
}

#[tokio::test]
async fn the_dump_has_ztunnels_shape_and_no_secrets() {
    let world = World::new("dump");
    world.admin.shared.mesh.publish(view());
    let (status, text) = world.ask(Method::GET, "/config_dump").await;
    assert_eq!(status, 200);
    for secret in ["hush", "hidden", "PRIVATE KEY"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let dump: Value = serde_json::from_str(&text).expect("JSON");
    let check = |pointer: &str, expected: Value| {
        assert_eq!(dump.pointer(pointer), Some(&expected), "{pointer}");
    };
    check("/workloads/0/workloadIps", serde_json::json!(["10.0.0.1"]));
    check("/workloads/0/status", "Healthy".into());
    check("/workloads/0/protocol", "TCP".into());
    check("/services/0/hostname", "cart.shop".into());
    check("/policies/0/action", "Deny".into());
    check("/policies/0/dryRun", true.into());
    let rule = serde_json::json!([{ "namespaces": [{ "Exact": "shop" }, { "Presence": {} }] }]);
    check("/policies/0/rules/0/0", rule);
    check("/certificates", serde_json::json!([]));
    check("/stagedServices", serde_json::json!({}));
    check("/config/token", "Literal(redacted)".into());
    check("/version/version", env!("CARGO_PKG_VERSION").into());
}

/// What istioctl and other tools of Istio read, field by field.
#[tokio::test]
async fn the_view_in_the_dump_is_ztunnels_field_by_field() {
    let world = World::new("fields");
    let mut view = view();
    let mut web = Workload::named("k//Pod/shop/web", "shop", "web");
    let cart = ServiceName::new("shop", "cart.shop");
    let app_protocol = AppProtocol::Tcp;
    web.serve(cart, vec![PortMapping { service_port: 80, target_port: 8080, app_protocol }]);
    web.policies = vec![PolicyName::new("shop", "deny")];
    web.tunnel = Tunnel::Hbone;
    web.healthy = false;
    view.apply(Change::Workload(web));
    world.admin.shared.mesh.publish(view);
    let (_, text) = world.ask(Method::GET, "/config_dump").await;
    let mut dump: Value = serde_json::from_str(&text).expect("JSON");
    let view = ["workloads", "services", "policies"].map(|list| (list, dump[list].take()));
    insta::assert_snapshot!(serde_json::to_string_pretty(&view).expect("JSON"));
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let world = World::new("ready");
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    assert_eq!(status, 503);
    assert!(text.contains("agent") && text.contains("view"), "{text}");
    world.admin.enrolled.store(true, Ordering::Relaxed);
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    assert!(status == 503 && !text.contains("agent"), "{text}");
    let mesh = &world.admin.shared.mesh;
    mesh.control_plane_away.store(Some(Arc::new("TLS: one clock is wrong\nready".into())));
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    assert!(status == 503 && text.contains("one clock is wrong\\nready"), "{text}");
    mesh.view_complete.send_replace(true);
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    assert!(status == 200 && text.contains("one clock is wrong"), "{text}");
    mesh.control_plane_away.store(None);
    let ready = world.ask(Method::GET, "/healthz/ready").await;
    assert_eq!(ready, (200, "ready\n".to_owned()));
    let (_, text) = world.ask(Method::GET, "/process").await;
    let process: ambit_wire::admin::Process = serde_json::from_str(&text).expect("JSON");
    assert!(process.ready && process.pid == std::process::id());
}

#[tokio::test]
async fn shares_that_are_used_up_are_told_and_only_a_full_proxy_is_not_ready() {
    let world = World::new("shares");
    world.admin.enrolled.store(true, Ordering::Relaxed);
    world.admin.shared.mesh.view_complete.send_replace(true);
    let shared = &world.admin.shared;
    let name = WorkloadName::new("shop", "cart");
    let pod = Arc::new(Pod {
        uid: "1".into(),
        shares: Shares::new(&shared.mesh.descriptors, &name),
        name,
        netns: Some(Arc::new(NetNs::current().expect("this namespace"))),
        outside: None,
        identity: Identity::new("cluster.local", "shop", "cart"),
    });
    shared.pods.rcu(|pods| {
        let mut pods = (**pods).clone();
        pods.insert(pod.clone());
        pods
    });
    let share = pod.shares.of(Direction::Outbound);
    let taken: Vec<_> = std::iter::from_fn(|| share.take(None, 1).ok()).collect();
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    let expected = "ready\nshare used up: pod shop/cart, outbound: ";
    assert!(status == 200 && text.starts_with(expected), "{text}");
    let (_, text) = world.ask(Method::GET, "/shares").await;
    let told: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(told["items"][0]["used"], taken.len());
    assert_eq!(told["fitsAnotherPod"], true);
    assert!(told["usedUp"][0].as_str().is_some_and(|it| it.ends_with("; 1 refused")), "{told}");
}

#[tokio::test]
async fn a_proxy_without_descriptors_for_one_more_pod_is_not_ready() {
    let full = Descriptors::new(Process { limit: 100, threads: 1 });
    let world = World::with("full", |shared| {
        Arc::get_mut(&mut shared.mesh).expect("not shared yet").descriptors = full;
    });
    world.admin.enrolled.store(true, Ordering::Relaxed);
    world.admin.shared.mesh.view_complete.send_replace(true);
    let (status, text) = world.ask(Method::GET, "/healthz/ready").await;
    assert!(status == 503 && text.contains("too few descriptors"), "{text}");
}

#[tokio::test]
async fn levels_are_set_and_reset() {
    let world = World::new("levels");
    let level = |text: String| text.trim_end().rsplit(' ').next().map(str::to_owned);
    let (_, text) = world.ask(Method::GET, "/logging").await;
    assert_eq!(level(text).as_deref(), Some("info"));
    let (status, text) = world.ask(Method::POST, "/logging?level=access%3Ddebug").await;
    assert_eq!((status, level(text).as_deref()), (200, Some("access=debug")));
    let (status, text) = world.ask(Method::POST, "/logging?level=%3D%2C%3D").await;
    assert!(status == 400 && text.contains("info,access=off"), "{text}");
    for level in ["nonsense", "info,nonsense", "", "access=nonsense"] {
        let (status, text) = world.ask(Method::POST, &format!("/logging?level={level}")).await;
        assert!(status == 400 && text.contains("debug"), "{level}: {text}");
    }
    let (status, text) = world.ask(Method::GET, "/logging?level=nonsense").await;
    assert!(status == 400 && text.contains("POST"), "{text}");
    let (_, text) = world.ask(Method::GET, "/logging").await;
    assert_eq!(level(text).as_deref(), Some("access=debug"), "still what was set last");
    let (_, text) = world.ask(Method::POST, "/logging?reset").await;
    assert_eq!(level(text).as_deref(), Some("info"));
}

#[tokio::test]
async fn only_a_post_changes_anything() {
    let mut world = World::new("post");
    for target in ["/worker/restart", "/quitquitquit"] {
        assert_eq!(world.ask(Method::GET, target).await.0, 405, "{target}");
        assert!(world.said.try_recv().is_err());
    }
    assert_eq!(world.ask(Method::POST, "/worker/restart").await.0, 202);
    assert_eq!(world.said.recv().await.expect("said").header, FromWorker::Replace);
    assert_eq!(world.ask(Method::POST, "/quitquitquit").await.0, 200);
    assert_eq!(world.said.recv().await.expect("said").header, FromWorker::Quit);
}

#[tokio::test]
async fn connections_of_workers_that_finish_theirs_are_told_of() {
    let mut world = World::new("others");
    let pair = || StdUnixStream::pair().expect("a pair of sockets");
    let ((dead, first), (mut alive, second), (mut cut, third)) = (pair(), pair(), pair());
    drop(dead);
    let aged = |age_ms| Connection { age_ms, ..Connection::default() };
    let list = |ages: &[u64]| {
        let list: Vec<Connection> = ages.iter().map(|age| aged(*age)).collect();
        serde_json::to_vec(&list).expect("JSON")
    };
    cut.write_all(list(&[3]).split_last().expect("some").1).expect("written");
    drop(cut);
    alive.write_all(&list(&[1, 2])).expect("written");
    drop(alive);
    let answering = async {
        let header = world.said.recv().await.expect("said").header;
        let FromWorker::AskOthers { question } = header else { panic!("{header:?}") };
        let passed_on = PassedOn { answers: vec![first, second, third], left_out: 1 };
        world.admin.connections.passed_on(question, passed_on);
    };
    let patience = Duration::from_secs(5);
    let asked =
        local_http::request(&world.path, Method::GET, "/connections", Bytes::new(), patience);
    let (answer, ()) = tokio::join!(asked, answering);
    let told: Connections = serde_json::from_slice(&answer.expect("answered").1).expect("JSON");
    let items = vec![aged(2), aged(1)];
    let expected = Connections { items, left_out: Some(2), ..Connections::default() };
    assert_eq!(told, expected, "the youngest last; one was not asked, one broke off");
}

#[tokio::test]
async fn a_worker_tells_another_of_its_connections() {
    let world = World::new("tell");
    let (asker, teller) = StdUnixStream::pair().expect("a pair of sockets");
    world.admin.connections.tell(teller).await;
    let told = std::io::read_to_string(asker).expect("told");
    assert_eq!(told, "[]");
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let world = World::new("wrong");
    assert_eq!(world.ask(Method::GET, "/nothing").await.0, 404);
    assert_eq!(world.ask(Method::DELETE, "/config_dump").await.0, 405);
    let body = Bytes::from_static(b"{}");
    assert_eq!(world.ask_with(Method::POST, "/logging", body).await.0, 413);
    assert_eq!(world.ask(Method::GET, "/debug/pprof/profile?seconds=0").await.0, 400);
    assert_eq!(world.ask(Method::GET, "/debug/pprof/profile?frequency=x").await.0, 400);
}

#[tokio::test]
async fn each_socket_serves_its_own() {
    let world = World::new("services");
    let get = |service, path: &str| {
        let paths = [("/metrics", 200), ("/healthz/ready", 503), ("/config_dump", 200)];
        let known = paths.iter().find(|(known, _)| *known == path).expect("a known path");
        let served = match service {
            Service::Admin => true,
            Service::Metrics => path == "/metrics",
            Service::Readiness => path == "/healthz/ready",
        };
        if served { known.1 } else { 404 }
    };
    for (number, service) in [Service::Metrics, Service::Readiness].into_iter().enumerate() {
        let path = world.path.with_extension(number.to_string());
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listening");
        let accepting = world.accepting.subscribe();
        tokio::spawn(serve(world.admin.clone(), Socket::Unix(listener), service, accepting));
        for target in ["/metrics", "/healthz/ready", "/config_dump"] {
            let patience = Duration::from_secs(5);
            let asked =
                local_http::request(&path, Method::GET, target, Bytes::new(), patience).await;
            let status = asked.expect("answered").0.as_u16();
            assert_eq!(status, get(service, target), "{service:?} {target}");
        }
        std::fs::remove_file(path).expect("removed");
    }
}

/// What pods reach, and the operator's own port beside it.
#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_keeps_no_probe_and_no_scraper_out() {
    let world = World::new("flood");
    let mut ports = Vec::new();
    for service in [Service::Metrics, Service::Readiness, Service::Admin] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        ports.push(listener.local_addr().expect("an address"));
        let (admin, accepting) = (world.admin.clone(), world.accepting.subscribe());
        tokio::spawn(serve(admin, Socket::Tcp(listener), service, accepting));
    }
    let mut silent = Vec::new();
    for pod in 1..=3 {
        for _ in 0..150 {
            for port in &ports[..2] {
                let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
                socket.bind(([127, 0, 9, pod], 0).into()).expect("bound");
                silent.push(socket.connect(*port).await.expect("connected"));
            }
        }
    }
    let paths = ["/metrics", "/healthz/ready", "/healthz/ready"];
    for (port, (path, expected)) in ports.into_iter().zip(paths.into_iter().zip([200, 503, 503])) {
        let started = std::time::Instant::now();
        let asked = local_http::get(port, path, Duration::from_secs(5)).await;
        assert_eq!(asked.expect("answered").0.as_u16(), expected, "{path}");
        println!("{path}: {:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(1), "{path}: {:?}", started.elapsed());
    }
}

#[test]
fn parameters_are_decoded() {
    let check = |query: &str, expected: Option<&str>| {
        assert_eq!(parameter(query, "level").as_deref(), expected, "{query}");
    };
    check("level=info", Some("info"));
    check("a=b&level=a%3Ab+c", Some("a:b c"));
    check("level", None);
    check("level=%zz", None);
    check("level=%f", None);
    check("level=%ff", None);
}
