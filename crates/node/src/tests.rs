//! Runs the agent as a process in a node's namespace, with a registry, a pod and a scripted proxy.
//!
//! The process is this test binary again, started at [`child_agent`], so that it can be killed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambit_net::namespace::{self, NetNs};
use ambit_net::netlink::RouteSocket;
use ambit_net::nftables::{Family, Nftables};
use ambit_net::socket::DialOptions;
use ambit_net::sys::process::{Signal, kill};
use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::sync::{oneshot, watch};

use crate::args::Settings;
use crate::capture;
use crate::course::Course;
use crate::enrolment::{DRAIN_GRACE, Footprint};
use crate::monitor::Health;
use crate::testbed::{
    APP, Client, Directory, FakeProxy, PATIENCE, Testbed, both, who_answers, write_atomically,
};
use crate::{Args, run, serve};

const CHILD_DIRECTORY: &str = "AMBIT_TEST_CHILD_DIRECTORY";
const UID: &str = "11111111-2222-3333-4444-555555555555";

#[derive(clap::Parser)]
struct ChildCommand {
    #[command(flatten)]
    args: Args,
}

#[tokio::test]
#[ignore = "started by the tests of this file as a process of its own"]
async fn child_agent() {
    let Ok(directory) = std::env::var(CHILD_DIRECTORY) else { return };
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    subscriber.init();
    let command = ChildCommand::parse_from([
        "node".to_owned(),
        "--node-name=node-1".to_owned(),
        format!("--registry=files:{directory}/registry"),
        format!("--zds-socket={directory}/ztunnel.sock"),
        format!("--cni-socket={directory}/pluginevent.sock"),
        "--repair-interval=5s".to_owned(),
    ]);
    run(command.args).await.expect("runs");
}

/// A pod on a node, a registry that speaks of it, and perhaps an agent.
struct World {
    bed: Testbed,
    directory: Directory,
    agent: Option<Child>,
}

impl World {
    fn new(name: &str) -> Self {
        let mut bed = Testbed::new();
        bed.proxy_listens();
        Self::with(bed, name)
    }

    /// With a proxy, or a place for one, on the pod's ports already.
    fn with(mut bed: Testbed, name: &str) -> Self {
        bed.pod_listens("app", APP, None);
        let node = bed.node.clone();
        for addresses in both() {
            bed.listen(&node, "remote", SocketAddr::new(addresses.remote, APP), None);
        }
        let world = Self { bed, directory: Directory::new(name), agent: None };
        std::fs::create_dir_all(world.directory.path("registry/objects")).expect("directory");
        world.bed.pod.pin(&world.directory.path("netns")).expect("pin the namespace");
        world.write_pod();
        world
    }

    fn start_agent(&mut self) {
        let directory = self.directory.path("");
        let start = || {
            Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "tests::child_agent", "--ignored", "--nocapture"])
                .env(CHILD_DIRECTORY, directory)
                .stdout(Stdio::null())
                .spawn()
        };
        let child = self.bed.node.run(start).expect("enter").expect("start the agent");
        self.agent = Some(child);
    }

    fn signal_agent(&mut self, signal: Signal) -> std::process::ExitStatus {
        let mut agent = self.agent.take().expect("an agent runs");
        kill(agent.id().try_into().expect("a process id"), signal).expect("signal the agent");
        agent.wait().expect("the agent ends")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path("registry").join(name)
    }

    fn write(&self, name: &str, content: &serde_json::Value) {
        write_atomically(&self.path(name), &content.to_string());
    }

    fn write_pod(&self) {
        self.write(
            "objects/pods/shop/web.json",
            &json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": UID},
                "spec": {"nodeName": "node-1", "serviceAccountName": "web"},
            }),
        );
    }

    fn write_status(&self) {
        let ips = both().map(|addresses| addresses.pod);
        self.write(
            "status/pods/shop/web.json",
            &json!({
                "uid": UID, "node": "node-1", "phase": "Running", "podIPs": ips, "ready": true,
                "netns": self.directory.path("netns"), "pid": 1, "restarts": 0,
            }),
        );
    }

    fn label_namespace(&self, mode: &str) {
        self.write(
            "objects/namespaces/_/shop.json",
            &json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": mode}}}),
        );
    }

    fn is_reported(&self) -> bool {
        let report = std::fs::read_to_string(self.path("captured/shop/web"));
        report.is_ok_and(|report| report.lines().next() == Some(UID))
    }

    /// How many older connections the report speaks of.
    fn reported_older(&self) -> usize {
        let report = std::fs::read_to_string(self.path("captured/shop/web")).unwrap_or_default();
        report.lines().nth(1).map_or(0, |number| number.parse().expect("a number"))
    }

    async fn reported(&self, wanted: bool) {
        eventually("the report", || self.is_reported() == wanted).await;
    }

    async fn proxy(&self) -> FakeProxy {
        let path = self.directory.path("ztunnel.sock");
        tokio::time::timeout(PATIENCE, FakeProxy::connect(&path)).await.expect("the agent listens")
    }

    /// Who answers new connections from the pod and to it.
    async fn check_new(&self, outward: &str, inward: &str) {
        for addresses in both() {
            let remote = SocketAddr::new(addresses.remote, APP);
            assert_eq!(who_answers(&self.bed.pod, remote, 0).await, outward);
            let pod = SocketAddr::new(addresses.pod_second, APP);
            assert_eq!(who_answers(&self.bed.node, pod, 0).await, inward);
        }
    }

    /// A connection from the pod.
    async fn open(&self) -> Client {
        let remote = SocketAddr::new(both()[0].remote, APP);
        Client::connect(&self.bed.pod, remote, &DialOptions::default()).await.expect("connects")
    }

    fn footprint(&self) -> Footprint {
        capture::footprint(&self.bed.pod).expect("look")
    }

    /// Asks the readiness address, inside the node's namespace.
    fn monitor(&self, path: &str) -> Option<String> {
        let ask = || {
            let mut stream = TcpStream::connect("127.0.0.1:8000").ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            Some(answer)
        };
        self.bed.node.run(ask).expect("enter")
    }

    async fn ready(&self) {
        let ready = || self.monitor("/readyz").is_some_and(|a| a.starts_with("HTTP/1.1 200"));
        eventually("readiness", ready).await;
    }

    /// Announces the pod as the CNI plugin does; answers with the status and the text.
    fn announce(&self, name: &str) -> tokio::task::JoinHandle<String> {
        let socket = self.directory.path("pluginevent.sock");
        let ips = both().map(|addresses| json!({"Address": {"IP": addresses.pod}}));
        let body = json!({
            "Netns": self.directory.path("netns"), "PodName": name, "PodNamespace": "shop",
            "IPs": ips,
        });
        let body = body.to_string();
        tokio::task::spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).expect("connect");
            let length = body.len();
            let head = format!("POST /cmdadd HTTP/1.1\r\nhost: x\r\ncontent-length: {length}");
            write!(stream, "{head}\r\n\r\n{body}").expect("send");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("answer");
            answer
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().expect("kill the agent");
            agent.wait().expect("the agent ends");
        }
        namespace::unpin(&self.directory.path("netns")).expect("unpin");
    }
}

/// Polls for something that sends this test no event.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_running_pod_enters_and_leaves_without_a_connection_noticing() {
    let mut world = World::new("live");
    world.write_status();
    world.label_namespace("none");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(1).await, ["snapshot"]);
    world.ready().await;
    assert_eq!(world.footprint(), Footprint::None);
    let mut before = world.open().await;

    world.label_namespace("ambient");
    assert_eq!(proxy.receive().await, format!("+{UID}"));
    assert_eq!(proxy.namespaces[UID].inode(), world.bed.pod.inode());
    assert!(!world.is_reported(), "the proxy comes first");
    assert_eq!(world.footprint(), Footprint::None, "the proxy comes first");
    world.check_new("remote", "app").await;
    proxy.answer(Ok(())).await;
    world.reported(true).await;
    world.check_new("outbound", "inbound").await;
    before.echo().await.expect("opened before enrolment");
    assert!(world.reported_older() >= 1, "it is reported as older than the capture");
    let mut during = world.open().await;
    assert!(during.greeting.starts_with("outbound"));
    let metrics = world.monitor("/metrics").expect("metrics");
    assert!(metrics.contains("ambit_node_enrolled_pods 1\n"), "{metrics}");
    assert!(metrics.contains("ztunnel_connected 1\n"), "{metrics}");

    world.label_namespace("none");
    world.reported(false).await;
    let released = Instant::now();
    world.check_new("remote", "app").await;
    before.echo().await.expect("opened before enrolment");
    during.echo().await.expect("captured");
    let withdrawal = tokio::spawn(async move { proxy.accept(1).await });
    tokio::time::sleep(DRAIN_GRACE + Duration::from_millis(1500)).await;
    assert!(!withdrawal.is_finished(), "a captured connection is open");
    during.echo().await.expect("captured");
    drop(during);
    let withdrawn = tokio::time::timeout(PATIENCE, withdrawal).await.expect("withdrawn in time");
    assert_eq!(withdrawn.expect("no panic"), [format!("-{UID}")]);
    assert!(released.elapsed() > DRAIN_GRACE);
    eventually("nothing is left", || world.footprint() == Footprint::None).await;
    before.echo().await.expect("opened before enrolment");
}

/// An agent in this process, on a thread in the node's namespace, with orders from the test.
struct Ordered {
    course: watch::Sender<Course>,
    told: watch::Receiver<String>,
    /// Ends it when dropped.
    _stop: oneshot::Sender<()>,
}

impl Ordered {
    fn start(world: &World) -> Self {
        let directory = world.directory.path("");
        let command = ChildCommand::parse_from([
            "node".to_owned(),
            "--node-name=node-1".to_owned(),
            format!("--registry=files:{}/registry", directory.display()),
            format!("--zds-socket={}/ztunnel.sock", directory.display()),
            format!("--cni-socket={}/pluginevent.sock", directory.display()),
        ]);
        let settings = Settings::try_from(command.args).expect("valid");
        let (course, followed) = watch::channel(Course::Stay);
        let (tell, told) = watch::channel(String::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let node = world.bed.node.clone();
        let agent = async move {
            let health = Arc::new(Health::default());
            tokio::select! {
                result = serve(settings, None, &health, followed, tell) => panic!("{result:?}"),
                _ = stopped => {}
            }
        };
        let run = move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().expect("a runtime").block_on(agent);
        };
        std::thread::spawn(move || node.run(run).expect("enter"));
        Self { course, told, _stop: stop }
    }

    fn order(&self, text: &str) {
        crate::course::take(Some(text), &self.course);
    }

    async fn says(&mut self, expected: &str) {
        let told = self.told.wait_for(|told| told == expected);
        // Open connections are counted when the time for handshakes is over.
        let told = tokio::time::timeout(DRAIN_GRACE + PATIENCE, told).await;
        told.unwrap_or_else(|_| panic!("{expected}: not in time")).expect("the agent runs");
    }
}

#[tokio::test]
async fn ordered_to_leave_it_lets_plain_connections_in_first_and_says_how_far_it_is() {
    let world = World::new("orders");
    world.write_status();
    world.label_namespace("ambient");
    let mut agent = Ordered::start(&world);
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()]);
    world.reported(true).await;
    let mut during = world.open().await;
    agent.order("open/2999-01-01T00:00:00Z");
    agent.says("open/2999-01-01T00:00:00Z open").await;
    assert!(world.is_reported(), "it is still in the mesh");
    world.check_new("outbound", "app").await;
    // The process that ordered it never comes back.
    let end = Timestamp::now() + Duration::from_secs(1);
    agent.order(&format!("open/{end}"));
    let (pod, began) = (SocketAddr::new(both()[0].pod_second, APP), Instant::now());
    while who_answers(&world.bed.node, pod, 0).await != "inbound" {
        assert!(began.elapsed() < PATIENCE, "its time is over, and it is open");
    }
    world.check_new("outbound", "inbound").await;
    agent.order("leave/2999-01-01T00:00:00Z");
    world.reported(false).await;
    world.check_new("remote", "app").await;
    agent.says("leave/2999-01-01T00:00:00Z leaving 1").await;
    during.echo().await.expect("captured");
    // Another order, whose time is over: what is still open is counted as it is cut.
    agent.order("leave/2000-01-01T00:00:00Z");
    assert_eq!(proxy.accept(1).await, [format!("-{UID}")]);
    agent.says("leave/2000-01-01T00:00:00Z left 1").await;
    assert_eq!(world.footprint(), Footprint::None);
}

#[tokio::test]
async fn a_new_pod_starts_only_when_it_is_captured() {
    let mut world = World::new("cni");
    world.label_namespace("ambient");
    world.start_agent();
    world.ready().await;
    let unknown = world.announce("other").await.expect("no panic");
    assert!(unknown.starts_with("HTTP/1.1 500"), "{unknown}");
    assert!(unknown.contains("pod shop/other: there is no such Pod object"), "{unknown}");

    let answer = world.announce("web");
    let pending = || {
        let metrics = world.monitor("/metrics").unwrap_or_default();
        metrics.contains("ambit_node_pending_pods 1\n")
    };
    eventually("the announcement", pending).await;
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.receive().await, format!("+{UID}"));
    assert!(!answer.is_finished());
    proxy.answer(Ok(())).await;
    assert_eq!(proxy.accept(1).await, ["snapshot"]);
    let answer = answer.await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(world.is_reported());
    world.check_new("outbound", "inbound").await;
    // Its status takes over from the announcement, then its end is seen there.
    world.write_status();
    world.ready().await;
    let mut captured = world.open().await;
    std::fs::remove_file(world.path("objects/pods/shop/web.json")).expect("remove");
    world.check_new("outbound", "inbound").await;
    captured.echo().await.expect("the pod is ending, not gone");
    std::fs::remove_file(world.path("status/pods/shop/web.json")).expect("remove");
    assert_eq!(proxy.accept(1).await, [format!("-{UID}")], "at once");
    world.reported(false).await;
}

#[tokio::test]
async fn a_new_pod_outside_of_the_mesh_starts_at_once() {
    let mut world = World::new("cni-out");
    world.start_agent();
    world.ready().await;
    let answer = world.announce("web").await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.footprint(), Footprint::None);
}

#[tokio::test]
async fn killing_the_agent_disturbs_nothing_and_the_next_one_goes_on() {
    let mut world = World::new("killed");
    world.write_status();
    world.label_namespace("ambient");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()]);
    world.reported(true).await;
    let mut captured = world.open().await;

    world.signal_agent(Signal::Kill);
    assert_eq!(proxy.receive().await, "closed");
    world.check_new("outbound", "inbound").await;
    captured.echo().await.expect("captured");
    assert!(world.is_reported());

    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()]);
    world.ready().await;
    assert!(world.is_reported());
    world.check_new("outbound", "inbound").await;
    captured.echo().await.expect("captured");

    world.signal_agent(Signal::Kill);
    world.label_namespace("none");
    world.check_new("outbound", "inbound").await;
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()], "it drains");
    world.reported(false).await;
    world.check_new("remote", "app").await;
    captured.echo().await.expect("captured");
    drop(captured);
    let withdrawn = tokio::time::timeout(2 * DRAIN_GRACE, proxy.accept(1)).await;
    assert_eq!(withdrawn.expect("in time"), [format!("-{UID}")]);
    eventually("nothing is left", || world.footprint() == Footprint::None).await;
}

/// A program in a pod that holds a port there. It ends with its drop.
struct Squatter(Child);

impl Squatter {
    fn start(pod: &NetNs, address: &str) -> Self {
        let address: SocketAddr = address.parse().expect("literal");
        let start = || {
            let socket = OwnedFd::from(TcpListener::bind(address).expect("listen"));
            Command::new("sleep").arg("60").stdin(Stdio::from(socket)).spawn()
        };
        Self(pod.run(start).expect("enter").expect("start"))
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        self.0.kill().expect("kill the program");
        self.0.wait().expect("it ends");
    }
}

#[tokio::test]
async fn why_a_pod_is_not_captured_is_reported_until_it_is() {
    let mut world = World::with(Testbed::new(), "squatted");
    world.write_status();
    world.label_namespace("ambient");
    let squatter = Squatter::start(&world.bed.pod, "10.244.1.5:15006");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.receive().await, format!("+{UID}"));
    let refusal = "listen on [::]:15006 in the pod: Address already in use (os error 98)";
    proxy.answer(Err(refusal)).await;
    assert_eq!(proxy.accept(1).await, ["snapshot"]);
    let reason = || std::fs::read_to_string(world.path("uncaptured/shop/web")).unwrap_or_default();
    let taken = format!("{UID}\nPortTaken 15006 sleep");
    eventually("the reason", || reason() == taken).await;
    assert!(!world.is_reported());
    // The next refusal may have another reason.
    drop(squatter);
    assert_eq!(proxy.receive().await, format!("+{UID}"));
    proxy.answer(Err("no room")).await;
    let refused = format!("{UID}\nRefused no room");
    eventually("another reason", || reason() == refused).await;
    assert_eq!(proxy.accept(1).await, [format!("+{UID}")]);
    world.reported(true).await;
    eventually("no reason", || reason().is_empty()).await;
}

#[tokio::test]
async fn the_reason_ends_with_the_wish_to_capture_the_pod() {
    let mut world = World::new("reason-ends");
    world.write_status();
    world.label_namespace("ambient");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.receive().await, format!("+{UID}"));
    proxy.answer(Err("no room")).await;
    let reason = world.path("uncaptured/shop/web");
    eventually("the reason", || reason.exists()).await;
    world.label_namespace("none");
    eventually("no reason", || !reason.exists()).await;
}

#[tokio::test]
async fn a_pod_that_ended_while_no_agent_ran_is_forgotten() {
    let mut world = World::new("ended");
    write_atomically(&world.path("captured/shop/web"), "another-uid");
    write_atomically(&world.path("captured/shop/gone"), "gone-uid");
    write_atomically(&world.path("uncaptured/shop/late"), "late-uid\nRefused no room");
    world.start_agent();
    world.ready().await;
    let reports = ["captured/shop/gone", "captured/shop/web", "uncaptured/shop/late"];
    let left = || reports.iter().any(|report| world.path(report).exists());
    eventually("the reports", || !left()).await;
}

#[tokio::test]
async fn a_pod_that_ends_while_the_agent_restarts_is_served_to_its_end() {
    let mut world = World::new("ending");
    world.write_status();
    world.label_namespace("ambient");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()]);
    world.reported(true).await;
    world.signal_agent(Signal::Kill);
    std::fs::remove_file(world.path("objects/pods/shop/web.json")).expect("remove");
    world.start_agent();
    proxy.reconnect(&world.directory.path("ztunnel.sock")).await;
    assert_eq!(proxy.accept(2).await, [format!("={UID}"), "snapshot".to_owned()]);
    assert!(world.is_reported());
    world.check_new("outbound", "inbound").await;
    std::fs::remove_file(world.path("status/pods/shop/web.json")).expect("remove");
    assert_eq!(proxy.accept(1).await, [format!("-{UID}")]);
    world.reported(false).await;
}

#[tokio::test]
async fn a_pod_that_is_started_anew_in_another_namespace_is_captured_there() {
    let mut world = World::new("anew");
    world.write_status();
    world.label_namespace("ambient");
    world.start_agent();
    let mut proxy = world.proxy().await;
    assert_eq!(proxy.accept(2).await, [format!("+{UID}"), "snapshot".to_owned()]);
    world.reported(true).await;
    let anew = NetNs::create().expect("a namespace");
    RouteSocket::open_in(&anew).expect("rtnetlink").set_up("lo").expect("up");
    anew.pin(&world.directory.path("netns")).expect("pin");
    let answer = world.announce("web");
    assert_eq!(proxy.accept(2).await, [format!("-{UID}"), format!("+{UID}")]);
    assert_eq!(proxy.namespaces[UID].inode(), anew.inode());
    let answer = answer.await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(capture::footprint(&anew).expect("look"), Footprint::Some);
    assert!(world.is_reported());
}

#[tokio::test]
async fn altered_rules_are_put_right_and_counted() {
    let mut world = World::new("altered");
    world.write_status();
    world.label_namespace("ambient");
    world.start_agent();
    let proxy = world.proxy().await;
    let proxy = tokio::spawn(proxy.accept_all());
    world.reported(true).await;
    let counted = |count: u64| {
        let metrics = world.monitor("/metrics").unwrap_or_default();
        metrics.contains(&format!("ambit_node_repairs_total {count}\n"))
    };
    let pod: &Arc<NetNs> = &world.bed.pod;
    let mut nftables = Nftables::open_in(pod).expect("nftables");
    for count in 1..=3 {
        // Notifications make it quick: the periodic comparison would take 5 s.
        assert!(nftables.delete(Family::Ip, "ambit").expect("delete"));
        let began = Instant::now();
        eventually("the repair", || counted(count)).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        world.check_new("outbound", "inbound").await;
    }
    let status = world.signal_agent(Signal::Term);
    assert!(status.success(), "{status}");
    proxy.await.expect("no panic");
    assert!(world.is_reported());
    world.check_new("outbound", "inbound").await;
}

/// The path of a real ztunnel; the test below does not run without.
const ZTUNNEL: &str = "AMBIT_TEST_ZTUNNEL";

/// A process that is killed when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("kill the process");
        self.0.wait().expect("the process ends");
    }
}

#[tokio::test]
async fn a_real_ztunnel_is_handed_the_pod() {
    let Ok(program) = std::env::var(ZTUNNEL) else {
        println!("not run: set {ZTUNNEL} to the path of a ztunnel");
        return;
    };
    let mut world = World::with(Testbed::new(), "ztunnel");
    world.label_namespace("ambient");
    world.start_agent();
    world.ready().await;
    let [v4, _] = both();
    let local = json!({
        "workloads": [{
            "uid": "Kubernetes//Pod/shop/web", "name": "web", "namespace": "shop",
            "serviceAccount": "web", "workloadIps": [v4.pod], "protocol": "HBONE",
            "node": "node-1", "network": "", "services": {},
        }],
        "policies": [], "services": [],
    });
    let start = || {
        Command::new(&program)
            .env("INPOD_UDS", world.directory.path("ztunnel.sock"))
            .env("LOCAL_XDS", local.to_string())
            // Nobody listens there: what is not HBONE needs no certificate.
            .envs([("XDS_ADDRESS", ""), ("CA_ADDRESS", "http://127.0.0.1:1")])
            .envs([("NODE_NAME", "node-1"), ("CLUSTER_ID", "Kubernetes"), ("RUST_LOG", "info")])
            .stdout(Stdio::null())
            .spawn()
    };
    let started = world.bed.node.run(start).expect("enter").expect("start ztunnel");
    let _ztunnel = Process(started);
    let answer = world.announce("web").await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut client = world.open().await;
    assert!(client.greeting.starts_with("remote"), "{}", client.greeting);
    assert_eq!(capture::connections(&world.bed.pod).expect("count"), 1, "by way of ztunnel");
    client.echo().await.expect("both ways");
    // Root on the node counts as the kubelet: never captured.
    let inbound = SocketAddr::new(v4.pod, APP);
    let options = DialOptions::default();
    let mut inbound = Client::connect(&world.bed.node, inbound, &options).await.expect("connects");
    assert_eq!(inbound.greeting.split(' ').next(), Some("app"));
    assert_eq!(inbound.greeting.rsplit(' ').next(), Some(v4.probe.to_string().as_str()));
    inbound.echo().await.expect("both ways");

    world.write_status();
    world.label_namespace("none");
    world.reported(false).await;
    client.echo().await.expect("captured");
    tokio::time::sleep(DRAIN_GRACE + Duration::from_millis(1500)).await;
    client.echo().await.expect("captured");
    drop(client);
    eventually("nothing is left", || world.footprint() == Footprint::None).await;
    inbound.echo().await.expect("a probe is never captured");
}
