//! The supervisor with scripted agents and workers. Needs root's rights over network namespaces.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use ambit_net::memfd::Sealed;
use ambit_net::namespace::NetNs;
use ambit_net::netlink::RouteSocket;
use ambit_net::seqpacket::{Connection, Listener};
use ambit_net::socket::{ListenOptions, tcp_listener};
use ambit_wire::proto::Any;
use ambit_wire::proto::ambit::snapshot::{Delta, Snapshot};
use ambit_wire::proto::envoy::service::discovery::v3 as discovery;
use ambit_wire::proto::istio::workload::zds;
use ambit_wire::xds::ResourceType;
use ambit_wire::zds::{Request, encode_request};
use prost::Message as _;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::workers::Running;
use super::*;
use crate::config;
use crate::handover::{self, ListenerKind};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker that does what the test says.
struct FakeWorker {
    socket: Connection,
    exit: Arc<Mutex<Option<oneshot::Sender<String>>>>,
}

struct FakeLauncher(mpsc::UnboundedSender<FakeWorker>);

impl Launcher for FakeLauncher {
    fn launch(&mut self, socket: OwnedFd) -> std::io::Result<Running> {
        let (exit, exited) = oneshot::channel();
        let exit = Arc::new(Mutex::new(Some(exit)));
        let worker = FakeWorker { socket: Connection::from_fd(socket)?, exit: exit.clone() };
        self.0.send(worker).map_err(std::io::Error::other)?;
        let exited = Box::pin(async move { exited.await.unwrap_or_else(|_| "gone".into()) });
        let kill = Box::new(move || end(&exit, "killed"));
        Ok(Running { pid: 0, exited, kill })
    }
}

fn end(exit: &Mutex<Option<oneshot::Sender<String>>>, how: &str) {
    if let Some(exit) = exit.lock().expect("unbroken").take() {
        // The supervisor may have ended first.
        let _gone = exit.send(how.to_owned());
    }
}

impl FakeWorker {
    async fn hear(&self) -> (ToWorker, Descriptors) {
        let mut buffer = vec![0; handover::MAX_HEADER_BYTES];
        let heard = handover::receive(&self.socket, &mut buffer);
        let heard = tokio::time::timeout(PATIENCE, heard).await.expect("something is said");
        heard.expect("understood")
    }

    /// Everything up to and including [`ToWorker::Start`], without the operator's sockets.
    async fn handed(&self) -> Vec<(ToWorker, Descriptors)> {
        let mut all = Vec::new();
        loop {
            match self.hear().await {
                (ToWorker::Operator { .. }, _) => {}
                (ToWorker::Start, _) => return all,
                other => all.push(other),
            }
        }
    }

    async fn say(&self, header: FromWorker) {
        handover::send(&self.socket, &Message::bare(header)).await.expect("heard");
    }

    async fn say_with(&self, header: FromWorker, content: &[u8]) {
        let file = Sealed::create("test", content).expect("a file");
        handover::send(&self.socket, &Message::with_file(header, file)).await.expect("heard");
    }

    fn die(self) {
        end(&self.exit, "died");
    }
}

/// A supervisor with a scripted agent.
struct World {
    /// Shared by worlds that come one after another; removed with the last, whatever its test
    /// says.
    directory: Arc<TempDir>,
    agent: Listener,
    workers: mpsc::UnboundedReceiver<FakeWorker>,
    wishes: mpsc::Sender<Wish>,
    running: JoinHandle<()>,
}

impl World {
    fn new(name: &str) -> Self {
        let directory = TempDir::with_prefix(format!("ambit-supervisor-{name}-"));
        Self::in_directory(Arc::new(directory.expect("a directory")))
    }

    fn in_directory(directory: Arc<TempDir>) -> Self {
        let socket = directory.path().join("zds.sock");
        let agent = Listener::bind(&socket).expect("listening");
        let flags = [
            format!("--zds-socket={}", socket.display()),
            format!("--snapshot={}", directory.path().join("snapshot").display()),
            "--admin-address=127.0.0.1:0".into(),
            "--metrics-address=127.0.0.1:0".into(),
            "--readiness-address=127.0.0.1:0".into(),
            "--worker-threads=2".into(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let config = config::tests::config(&flags, &[]).expect("valid");
        let (launched, workers) = mpsc::unbounded_channel();
        let (wishes, wished) = mpsc::channel(WISHES);
        let running = tokio::spawn(async move {
            let operator = OperatorSockets::open(&config.operator).expect("listening");
            let (said, words) = mpsc::channel(SAID);
            let launcher = Box::new(FakeLauncher(launched));
            let mut supervisor = Supervisor::new(&config, launcher, operator, said);
            supervisor.start_worker();
            let (asked, requests) = mpsc::channel(ASKED);
            let agent = tokio::spawn(agent::follow(config.zds_socket.clone(), asked));
            supervisor.serve(requests, words, wished).await;
            agent.abort();
            supervisor.leave_disk().await;
        });
        Self { directory, agent, workers, wishes, running }
    }

    async fn worker(&mut self) -> FakeWorker {
        let started = tokio::time::timeout(PATIENCE, self.workers.recv()).await;
        started.expect("a worker is started").expect("the supervisor lives")
    }

    /// A worker that took everything over and serves.
    async fn ready_worker(&mut self) -> FakeWorker {
        let worker = self.worker().await;
        worker.handed().await;
        worker.say(FromWorker::Ready).await;
        worker
    }

    /// Asks for a replacement until one is started: a worker that has just said that it is ready
    /// may still count as starting.
    async fn replacement(&mut self) -> FakeWorker {
        let asking = async {
            loop {
                self.wish(Wish::Replace).await;
                let patience = Duration::from_millis(50);
                if let Ok(started) = tokio::time::timeout(patience, self.workers.recv()).await {
                    return started.expect("the supervisor lives");
                }
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("a worker is started")
    }

    async fn connected(&self) -> FakeAgent {
        let accepted = tokio::time::timeout(PATIENCE, self.agent.accept()).await;
        let socket = accepted.expect("the supervisor connects").expect("accepted");
        let mut buffer = [0; 1024];
        let hello = socket.receive(&mut buffer).await.expect("a hello");
        assert_eq!(buffer[..hello.length], [8, 1]);
        FakeAgent(socket)
    }

    async fn wish(&self, wish: Wish) {
        self.wishes.send(wish).await.expect("the supervisor lives");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.running.abort();
        // Another test's world may use the same directory.
        drop(std::fs::remove_file(self.agent.path()));
    }
}

struct FakeAgent(Connection);

impl FakeAgent {
    async fn send(&self, request: Request, netns: Option<&NetNs>) {
        let packet = encode_request(&request).expect("short");
        let fds: Vec<_> = netns.iter().map(|netns| netns.as_fd()).collect();
        self.0.send(&packet, &fds).await.expect("sent");
    }

    async fn answer(&self) -> Result<(), String> {
        let mut buffer = [0; 1024];
        let packet = tokio::time::timeout(PATIENCE, self.0.receive(&mut buffer)).await;
        let packet = packet.expect("in time").expect("an answer");
        let response = zds::WorkloadResponse::decode(&buffer[..packet.length]).expect("decoded");
        let Some(zds::workload_response::Payload::Ack(ack)) = response.payload else { panic!() };
        if ack.error.is_empty() { Ok(()) } else { Err(ack.error) }
    }

    async fn ask(&self, request: Request, netns: Option<&NetNs>) -> Result<(), String> {
        self.send(request, netns).await;
        self.answer().await
    }
}

fn pod(uid: &str) -> Request {
    Request::Add(Pod {
        uid: uid.into(),
        name: "cart-1".into(),
        namespace: "shop".into(),
        service_account: "cart".into(),
    })
}

/// How another proxy listens.
fn successors() -> PodSocketOptions {
    PodSocketOptions { threads: 1, mark: Some(1337), ipv6: true, dns: false, outside: None }
}

fn namespace() -> NetNs {
    let netns = NetNs::create().expect("these tests need the rights of root");
    RouteSocket::open_in(&netns).expect("netlink").set_up("lo").expect("up");
    netns
}

/// Whether a connection to a port of the namespace is taken by its queue.
fn is_listening(netns: &NetNs, port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let limit = Duration::from_secs(1);
    netns.run(|| TcpStream::connect_timeout(&address, limit).is_ok()).expect("entered")
}

/// Takes a pod over as a worker does; returns its uid and its listeners, thread by thread.
async fn take_pod(worker: &FakeWorker) -> (String, Vec<Vec<TcpListener>>) {
    let (ToWorker::Pod { pod, dns, threads }, _) = worker.hear().await else { panic!("a pod") };
    assert_eq!((&*pod.name, &*pod.namespace), ("cart-1", "shop"));
    assert_eq!(dns.len(), 4, "UDP and TCP on both loopback addresses");
    let mut all = Vec::new();
    for number in 0..threads {
        let (header, mut fds) = worker.hear().await;
        let ToWorker::Listeners { uid, thread, kinds } = header else { panic!("listeners") };
        assert_eq!((uid, thread), (pod.uid.clone(), number));
        assert_eq!(kinds, ListenerKind::ALL);
        all.push(kinds.iter().map(|_| fds.tcp_listener()).collect());
    }
    (pod.uid, all)
}

#[tokio::test]
async fn a_pod_is_acknowledged_once_the_worker_holds_it() {
    let mut world = World::new("held");
    let worker = world.ready_worker().await;
    let agent = world.connected().await;
    let netns = namespace();
    agent.send(pod("1"), Some(&netns)).await;
    let (uid, listeners) = take_pod(&worker).await;
    assert_eq!(listeners.len(), 2);
    for port in [15001, 15006, 15008, 15053] {
        assert!(is_listening(&netns, port), "{port}");
    }
    let early = tokio::time::timeout(Duration::from_millis(100), agent.answer()).await;
    assert!(early.is_err(), "not before the worker holds it");
    worker.say(FromWorker::PodHeld { uid }).await;
    assert_eq!(agent.answer().await, Ok(()));
    assert_eq!(agent.ask(pod("1"), Some(&netns)).await, Ok(()), "sent again, nothing to do");
    assert_eq!(agent.ask(Request::SnapshotSent, None).await, Ok(()));
    assert_eq!(worker.hear().await.0, ToWorker::Enrolled);
    assert_eq!(agent.ask(Request::Del("1".into()), None).await, Ok(()));
    assert_eq!(worker.hear().await.0, ToWorker::RemovePod { uid: "1".into() });
    drop(listeners);
    assert!(!is_listening(&netns, 15001), "closed with the last holder");
}

#[tokio::test]
async fn a_pod_whose_ports_are_taken_is_refused_with_the_reason() {
    let mut world = World::new("taken");
    let worker = world.ready_worker().await;
    let agent = world.connected().await;
    let netns = namespace();
    let taken = netns.run(|| TcpListener::bind("127.0.0.1:15008")).expect("entered");
    let reason = agent.ask(pod("1"), Some(&netns)).await.expect_err("refused");
    assert!(reason.contains("15008"), "{reason}");
    drop(taken);
    agent.send(pod("1"), Some(&netns)).await;
    let (uid, _listeners) = take_pod(&worker).await;
    worker.say(FromWorker::PodRefused { uid, reason: "no room".into() }).await;
    assert_eq!(agent.answer().await, Err("no room".into()));
}

#[tokio::test]
async fn without_a_worker_a_pod_is_acknowledged_before_the_agent_gives_up() {
    let mut world = World::new("slow");
    let _silent = world.worker().await;
    let agent = world.connected().await;
    let netns = namespace();
    let start = std::time::Instant::now();
    assert_eq!(agent.ask(pod("1"), Some(&netns)).await, Ok(()));
    let took = start.elapsed();
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
    assert!(is_listening(&netns, 15008), "its connections wait");
}

fn view_change() -> Vec<u8> {
    let type_url = ResourceType::Address.url().to_owned();
    let body = Any { type_url: type_url.clone(), value: "body".into() };
    let (name, version) = ("cart".into(), "1".into());
    let resource =
        discovery::Resource { name, version, resource: Some(body), ..Default::default() };
    let resources = vec![resource.encode_to_vec().into()];
    Delta { type_url, resources, removed: Vec::new() }.encode_to_vec()
}

#[tokio::test]
async fn a_dead_workers_successor_gets_everything_at_once() {
    let mut world = World::new("successor");
    let worker = world.ready_worker().await;
    let agent = world.connected().await;
    let netns = namespace();
    agent.send(pod("1"), Some(&netns)).await;
    let (uid, listeners) = take_pod(&worker).await;
    worker.say(FromWorker::PodHeld { uid }).await;
    agent.answer().await.expect("held");
    agent.ask(Request::SnapshotSent, None).await.expect("complete");
    worker.say_with(FromWorker::View { complete: true }, &view_change()).await;
    worker.say_with(FromWorker::Revocations, b"list").await;
    let kept = FromWorker::Certificate { identity: "a".into() };
    worker.say_with(kept, b"key of a").await;
    let gone = FromWorker::Certificate { identity: "b".into() };
    worker.say_with(gone, b"key of b").await;
    worker.say(FromWorker::Forget { identity: "b".into() }).await;
    // An answer that came after all of it shows that it was taken in.
    agent.ask(Request::Del("unknown".into()), None).await.expect("nothing to do");
    let start = std::time::Instant::now();
    drop(listeners);
    worker.die();
    let successor = world.worker().await;
    assert!(start.elapsed() < Duration::from_millis(500), "at once");
    assert!(is_listening(&netns, 15001), "connections wait meanwhile");
    let mut handed = successor.handed().await;
    let names: Vec<String> = handed.iter().map(|(header, _)| format!("{header:?}")).collect();
    let [view, certificate, ..] = &mut handed[..] else { panic!("{names:?}") };
    assert_eq!(view.0, ToWorker::View);
    let content = view.1.sealed("view").expect("sealed").read().expect("readable");
    let snapshot = Snapshot::decode(&*content).expect("a snapshot");
    assert_eq!((&*snapshot.crl_pem, snapshot.resources.len()), ("list", 1));
    assert_eq!(certificate.0, ToWorker::Certificate);
    let content = certificate.1.sealed("certificate").expect("sealed").read();
    assert_eq!(&*content.expect("readable"), b"key of a");
    let rest: Vec<_> = handed[2..].iter().map(|(header, _)| header.clone()).collect();
    assert!(matches!(rest[0], ToWorker::Pod { .. }), "{names:?}");
    assert!(matches!(rest[1..3], [ToWorker::Listeners { .. }, ToWorker::Listeners { .. }]));
    assert_eq!(rest[3..], [ToWorker::Enrolled]);
}

#[tokio::test]
async fn half_a_view_is_not_handed_on() {
    let mut world = World::new("half");
    let worker = world.ready_worker().await;
    worker.say_with(FromWorker::View { complete: false }, &view_change()).await;
    worker.die();
    let successor = world.worker().await;
    let handed = successor.handed().await;
    assert!(handed.is_empty(), "{handed:?}");
}

#[tokio::test]
async fn a_replacement_takes_over_only_when_it_is_ready() {
    let mut world = World::new("replacement");
    let old = world.ready_worker().await;
    let new = world.replacement().await;
    new.handed().await;
    world.wish(Wish::Replace).await;
    let early = tokio::time::timeout(Duration::from_millis(100), old.hear()).await;
    assert!(early.is_err(), "the old one serves until the new one is ready");
    new.say(FromWorker::Ready).await;
    assert_eq!(old.hear().await.0, ToWorker::StopAccepting { deadline_ms: None });
    // Pods that go concern both, pods that come only the new one.
    let agent = world.connected().await;
    agent.ask(Request::SnapshotSent, None).await.expect("complete");
    assert_eq!(new.hear().await.0, ToWorker::Enrolled);
    old.die();
    let third = tokio::time::timeout(Duration::from_millis(100), world.workers.recv()).await;
    assert!(third.is_err(), "a worker that has finished is not replaced");
}

#[tokio::test]
async fn a_worker_that_finishes_its_connections_is_asked_for_them() {
    let mut world = World::new("asked");
    let old = world.ready_worker().await;
    let new = world.replacement().await;
    new.handed().await;
    new.say(FromWorker::Ready).await;
    assert_eq!(old.hear().await.0, ToWorker::StopAccepting { deadline_ms: None });
    new.say(FromWorker::AskOthers { question: 7 }).await;
    let (ToWorker::TellConnections, mut asker) = old.hear().await else { panic!("asked") };
    let (header, mut answers) = new.hear().await;
    assert_eq!(header, ToWorker::OthersAsked { question: 7, workers: 1, left_out: 0 });
    asker.unix_stream().write_all(b"list").expect("written");
    let told = std::io::read_to_string(answers.unix_stream()).expect("ended");
    assert_eq!(told, "list");
    old.die();
    // Once it is buried, nobody is left to be asked.
    let patience = tokio::time::timeout(PATIENCE, async {
        loop {
            new.say(FromWorker::AskOthers { question: 8 }).await;
            let (header, _) = new.hear().await;
            if header == (ToWorker::OthersAsked { question: 8, workers: 0, left_out: 0 }) {
                return;
            }
        }
    });
    patience.await.expect("the dead are not asked");
}

#[tokio::test]
async fn a_worker_that_owes_an_answer_is_not_asked_again() {
    let mut world = World::new("owing");
    let old = world.ready_worker().await;
    let new = world.replacement().await;
    new.handed().await;
    new.say(FromWorker::Ready).await;
    assert_eq!(old.hear().await.0, ToWorker::StopAccepting { deadline_ms: None });
    let ask = async |question| {
        new.say(FromWorker::AskOthers { question }).await;
        match new.hear().await {
            (ToWorker::OthersAsked { workers, left_out, .. }, answers) => {
                (workers, left_out, answers)
            }
            other => panic!("{other:?}"),
        }
    };
    let (workers, left_out, first) = ask(1).await;
    assert_eq!((workers, left_out), (1, 0));
    // Whether somebody still waits for the answer makes no difference to who owes it.
    drop(first);
    for question in 2..5 {
        let (workers, left_out, _) = ask(question).await;
        assert_eq!((workers, left_out), (0, 1), "question {question}");
    }
    let (header, asker) = old.hear().await;
    assert_eq!(header, ToWorker::TellConnections);
    drop(asker);
    let (workers, left_out, mut answers) = ask(5).await;
    assert_eq!((workers, left_out), (1, 0), "it has answered");
    let (header, mut asker) = old.hear().await;
    assert_eq!(header, ToWorker::TellConnections, "the only one since");
    asker.unix_stream().write_all(b"list").expect("written");
    drop(asker);
    let mut told = String::new();
    answers.unix_stream().read_to_string(&mut told).expect("ended");
    assert_eq!(told, "list");
    assert_eq!(ask(6).await.0, 1, "who has read to the end may ask again at once");
}

#[tokio::test]
async fn a_replacement_that_dies_leaves_the_old_one_serving() {
    let mut world = World::new("stillborn");
    let old = world.ready_worker().await;
    world.replacement().await.die();
    let disturbed = tokio::time::timeout(Duration::from_millis(200), old.hear()).await;
    // All that may be said is that the agent's snapshot is complete.
    assert!(disturbed.is_err(), "{disturbed:?}");
    let new = world.replacement().await;
    new.handed().await;
    new.say(FromWorker::Ready).await;
    assert_eq!(old.hear().await.0, ToWorker::StopAccepting { deadline_ms: None });
    drop(new);
}

#[tokio::test]
async fn pods_outlive_the_agent_until_its_next_snapshot() {
    let mut world = World::new("agent");
    let worker = world.ready_worker().await;
    let agent = world.connected().await;
    let (kept, dropped) = (namespace(), namespace());
    for (uid, netns) in [("kept", &kept), ("dropped", &dropped)] {
        agent.send(pod(uid), Some(netns)).await;
        let (uid, _listeners) = take_pod(&worker).await;
        worker.say(FromWorker::PodHeld { uid }).await;
        agent.answer().await.expect("held");
    }
    agent.ask(Request::SnapshotSent, None).await.expect("complete");
    assert_eq!(worker.hear().await.0, ToWorker::Enrolled);
    drop(agent);
    let agent = world.connected().await;
    assert!(is_listening(&dropped, 15001), "served on while the agent was away");
    agent.ask(Request::Keep("kept".into()), None).await.expect("kept");
    let unknown = agent.ask(Request::Keep("unknown".into()), None).await;
    assert!(unknown.expect_err("refused").contains("unknown"));
    agent.ask(Request::SnapshotSent, None).await.expect("complete");
    assert_eq!(worker.hear().await.0, ToWorker::RemovePod { uid: "dropped".into() });
    assert!(is_listening(&kept, 15001));
    assert!(!is_listening(&dropped, 15001));
}

#[tokio::test]
async fn the_end_lets_connections_finish_and_keeps_the_view() {
    let mut world = World::new("end");
    let worker = world.ready_worker().await;
    let agent = world.connected().await;
    let netns = namespace();
    agent.send(pod("1"), Some(&netns)).await;
    let (uid, listeners) = take_pod(&worker).await;
    worker.say(FromWorker::PodHeld { uid }).await;
    agent.answer().await.expect("held");
    worker.say_with(FromWorker::View { complete: true }, &view_change()).await;
    agent.ask(Request::Del("unknown".into()), None).await.expect("nothing to do");
    world.wish(Wish::End).await;
    // Nobody else serves the pod: its connections are accepted as before.
    let disturbed = tokio::time::timeout(2 * TICK, worker.hear()).await;
    assert!(disturbed.is_err(), "{disturbed:?}");
    assert!(is_listening(&netns, 15001) && !world.running.is_finished());
    let successor = PodSockets::open(netns.try_clone().expect("a descriptor"), &successors());
    let ToWorker::StopAccepting { deadline_ms: Some(deadline_ms) } = worker.hear().await.0 else {
        panic!("the successor takes over")
    };
    assert!((29 * 60 * 1000..30 * 60 * 1000).contains(&deadline_ms), "{deadline_ms}");
    drop((listeners, successor));
    assert!(!is_listening(&netns, 15001), "another proxy's listeners get what comes");
    let mut buffer = [0; 8];
    let closed = agent.0.receive(&mut buffer).await;
    assert!(closed.is_err(), "new pods go to another proxy");
    assert!(!world.running.is_finished());
    worker.die();
    let ended = tokio::time::timeout(PATIENCE, &mut world.running).await;
    ended.expect("ends with its last worker").expect("without a panic");
    let directory = world.directory.clone();
    drop(world);
    // The next proxy on this node starts from what was saved.
    let mut next = World::in_directory(directory.clone());
    let handed = next.worker().await.handed().await;
    assert!(matches!(handed[..], [(ToWorker::View, _)]), "{handed:?}");
    drop(next);
    // Where the agent names no pod, the last proxy leaves nothing.
    let mut last = World::in_directory(directory.clone());
    let worker = last.ready_worker().await;
    let agent = last.connected().await;
    assert!(directory.path().join("snapshot").exists(), "an agent may still name pods");
    agent.ask(Request::SnapshotSent, None).await.expect("complete");
    last.wish(Wish::End).await;
    while !matches!(worker.hear().await.0, ToWorker::StopAccepting { .. }) {}
    tokio::time::sleep(2 * TICK).await;
    assert!(!directory.path().join("snapshot").exists(), "its connections may take long");
    let other = directory.path().join("snapshot");
    std::fs::write(&other, "another proxy's").expect("written");
    worker.die();
    let ended = tokio::time::timeout(PATIENCE, &mut last.running).await;
    ended.expect("ends with its last worker").expect("without a panic");
    assert!(other.exists(), "it is left alone");
}

#[test]
fn who_listens_on_some_of_the_ports_is_no_successor_yet() {
    let netns = namespace();
    let own = PodSockets::open(netns.try_clone().expect("a descriptor"), &successors());
    let own = own.expect("the pod's sockets");
    let options = ListenOptions { reuse_port: true, v6only: false, ..ListenOptions::default() };
    let mut others = Vec::new();
    for kind in ListenerKind::ALL {
        assert!(!own.have_successor(), "{kind:?} and what follows is missing");
        let address = SocketAddr::new("::".parse().expect("an address"), kind.port());
        let listener = netns.run(|| tcp_listener(address, &options));
        others.push(listener.expect("entered").expect("listening"));
    }
    assert!(own.have_successor());
}
