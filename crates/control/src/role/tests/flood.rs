//! What a pod without any rights can do to the control plane: open connections.
//!
//! It opens all of them at once, while proxies reconnect. The pod has its own addresses, as pods
//! do.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use ambit_net::sys::process::{open_files_limit, raise_open_files_limit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::*;

/// Longest that anything honest may take on a machine that is busy with other tests: less
/// than a connection has to prove itself, for which it must not have to wait.
const SOON: Duration = Duration::from_secs(8);
/// Proxies that reconnect.
const PROXIES: usize = 100;
/// How often they do.
const ROUNDS: usize = 3;
/// Connections that send frames without a call, and read no answer.
const CHATTERING: usize = 160;
/// Their send buffers.
const SEND_BUFFER_BYTES: u32 = 16 << 10;
/// What they have sent and control never reads: it is in the kernel, mostly on control's side,
/// whose buffer grows with what is read.
const IN_KERNEL_MAX: usize = 3 << 20;
/// Connections of a node that reads nothing, and its calls on each.
const UNREAD_CONNECTIONS: usize = 24;
const UNREAD_CALLS: usize = 8;
/// Silent sockets of each attacking address: more than one may have.
const SILENT: usize = 1500;
/// Silent sockets on the monitoring port.
const SILENT_MONITORING: usize = 400;
/// How often an attacker opens some connections more.
const TICK: Duration = Duration::from_millis(10);

/// Attackers, for as long as it is held.
struct Flood {
    attackers: JoinSet<()>,
    opened: Arc<AtomicU64>,
}

impl Flood {
    fn new() -> Self {
        Self { attackers: JoinSet::new(), opened: Arc::default() }
    }

    /// Keeps `count` silent sockets open, and opens more as the oldest are closed.
    fn silent(&mut self, from: Ipv4Addr, to: SocketAddr, count: usize, each_tick: usize) {
        let opened = self.opened.clone();
        self.attackers.spawn(async move {
            let mut held = VecDeque::new();
            loop {
                for _ in 0..each_tick {
                    if let Ok(stream) = connect_from(from, to).await {
                        opened.fetch_add(1, Ordering::Relaxed);
                        held.push_back(stream);
                    }
                }
                while held.len() > count {
                    held.pop_front();
                }
                tokio::time::sleep(TICK).await;
            }
        });
    }

    /// Shakes hands so many times each tick, and says nothing then until it is closed.
    fn anonymous(&mut self, from: Ipv4Addr, to: SocketAddr, tls: ServiceConnector, each: usize) {
        let opened = self.opened.clone();
        self.attackers.spawn(async move {
            let mut held = JoinSet::new();
            loop {
                for _ in 0..each {
                    let (tls, opened) = (tls.clone(), opened.clone());
                    held.spawn(async move {
                        let Ok(stream) = connect_from(from, to).await else { return };
                        let Ok(mut stream) = tls.connect(stream).await else { return };
                        opened.fetch_add(1, Ordering::Relaxed);
                        let _closed = stream.read(&mut [0; 64]).await;
                    });
                }
                while held.try_join_next().is_some() {}
                tokio::time::sleep(TICK).await;
            }
        });
    }
}

async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Ports of one address are few: the kernel chooses when it knows where to.
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Runs `work`, which may not take long.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let done = tokio::time::timeout(SOON, work).await;
    let took = started.elapsed();
    println!("{what}: {took:?}");
    done.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}"))
}

fn connector(fixture: &Fixture) -> ServiceConnector {
    let roots = fixture.read("nodes/node-1/root-cert.pem").unwrap();
    ServiceConnector::new(&roots, "istiod.istio-system.svc", None).unwrap()
}

async fn get(address: SocketAddr, path: &str) -> StatusCode {
    ambit_net::local_http::get(address, path, PATIENCE).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_keeps_no_proxy_out_and_no_probe() {
    raise_open_files_limit().unwrap();
    let fixture = Fixture::start("flood", "--admin-address 127.0.0.1:0").await;
    let Ports { xds, monitoring, admin, .. } = fixture.control.ports;
    let mut flood = Flood::new();
    for pod in [Ipv4Addr::new(127, 0, 9, 1), Ipv4Addr::new(127, 0, 9, 2)] {
        flood.silent(pod, xds, SILENT, 16);
        flood.silent(pod, monitoring, SILENT_MONITORING, 4);
        flood.anonymous(pod, xds, connector(&fixture), 4);
    }
    let (token, web) = (fixture.token(), identity("web"));
    let signer = fixture.signer();
    let name = |round, number| format!("reconnecting-{round}-{number}");
    for (round, number) in (0..ROUNDS).flat_map(|it| (0..PROXIES).map(move |n| (it, n))) {
        put_node(fixture.root.path(), &name(round, number));
    }
    for round in 0..ROUNDS {
        // By now the flood has taken all that it gets.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let issued = fixture.certificate(Some(&token), &web, &web, 60);
        soon("a certificate", issued).await.unwrap();
        let (status, _) = soon("status", fixture.admin(Method::GET, "/status", &Value::Null)).await;
        assert_eq!(status, StatusCode::OK);
        for (what, address, path) in [
            ("readiness by loopback", admin.unwrap(), "/ready"),
            ("liveness by loopback", admin.unwrap(), "/live"),
            ("readiness", monitoring, "/ready"),
            ("metrics", monitoring, "/metrics"),
        ] {
            assert_eq!(soon(what, get(address, path)).await, StatusCode::OK, "{what}");
        }
        let proxies = (0..PROXIES).map(|number| {
            let node = name(round, number);
            let token = signer.sign(&claims(&node)).unwrap();
            let fixture = &fixture;
            async move {
                let mut proxy = Proxy::join(fixture, &token, &node).await.unwrap();
                proxy.see(&["+Kubernetes//Pod/shop/client"]).await;
                proxy
            }
        });
        soon("all proxies", futures::future::join_all(proxies)).await;
    }
    println!("the flood opened {} connections", flood.opened.load(Ordering::Relaxed));
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(descriptors < open_files_limit() / 2, "{descriptors} of both ends");
    flood.attackers.shutdown().await;
    fixture.end().await;
}

/// A preface, an empty SETTINGS frame, and then frames of PING; how much of it went out until the
/// connection was closed.
async fn chatter(xds: SocketAddr, tls: ServiceConnector, reads: bool) -> usize {
    // What it sent and control never read is in the kernel: little, so that what was read shows.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(SEND_BUFFER_BYTES).unwrap();
    let stream = socket.connect(xds).await.unwrap();
    let Ok(stream) = tls.connect(stream).await else { return 0 };
    let (mut answers, mut stream) = tokio::io::split(stream);
    let mut sent = 0;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let pings = b"\0\0\x08\x06\0\0\0\0\0ambit-ok".repeat(240);
    let writing = async {
        let mut next: &[u8] = preface;
        while stream.write_all(next).await.is_ok() && stream.flush().await.is_ok() {
            sent += next.len();
            next = &pings;
        }
    };
    let reading = async {
        if !reads {
            std::future::pending::<()>().await;
        }
        let mut buffer = [0; 16 << 10];
        while answers.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
    };
    tokio::select! { () = writing => {}, () = reading => {} }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_may_send_what_a_call_takes_and_no_more() {
    let fixture = Fixture::start("chatter", "").await;
    let xds = fixture.control.ports.xds;
    let started = Instant::now();
    let chatter = chatter(xds, connector(&fixture), true);
    let sent = tokio::time::timeout(PATIENCE, chatter).await.expect("it is ended");
    println!("{sent} bytes were sent in {:?}", started.elapsed());
    let limit = crate::listener::UNPROVEN_BYTES_MAX + IN_KERNEL_MAX;
    assert!(sent < limit, "{sent} bytes were sent, {limit} are too many");
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}: by its time", started.elapsed());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_that_send_and_read_nothing_delay_no_certificate() {
    let fixture = Fixture::start("chatters", "").await;
    let xds = fixture.control.ports.xds;
    let mut strangers = JoinSet::new();
    for _ in 0..CHATTERING {
        strangers.spawn(chatter(xds, connector(&fixture), false));
    }
    let (token, web) = (fixture.token(), identity("web"));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let issued = fixture.certificate(Some(&token), &web, &web, 60);
        tokio::time::timeout(PATIENCE, issued).await.expect("a certificate").unwrap();
    }
    // How long that took is the machine's affair. What strangers may take from others is what
    // control reads of them, and that is little, whether it is fast or slow.
    let sent = strangers.join_all().await;
    let most = sent.iter().max().copied().unwrap_or_default();
    println!("strangers sent {} bytes, one of them {most}", sent.iter().sum::<usize>());
    let limit = crate::listener::UNPROVEN_BYTES_MAX + IN_KERNEL_MAX;
    assert!(most < limit, "{most} bytes were sent, {limit} are too many");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_good_call_ends() {
    let fixture = Fixture::start("nocall", "").await;
    let xds = fixture.control.ports.xds;
    // One that is refused ends soon, however often its client asks.
    for token in [Some("x.y.z"), None] {
        let channel = fixture.channel().await;
        let started = Instant::now();
        loop {
            let again = Proxy::over(channel.clone(), token, "node-1").await;
            let status = again.err().expect("a refusal");
            if status.code() != Code::Unauthenticated {
                break;
            }
            assert!(started.elapsed() < SOON, "{token:?}: it is still there");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let stream = TcpStream::connect(xds).await.unwrap();
    let mut silent = connector(&fixture).connect(stream).await.unwrap();
    let started = Instant::now();
    // HTTP/2, as far as it goes without a call.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut sink = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut sink)).await;
    ended.expect("it is ended").expect_err("by a reset");
    assert!(started.elapsed() > Duration::from_secs(9), "{:?}", started.elapsed());
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_so_many_connections_and_the_newest_stay() {
    let fixture = Fixture::start("many", "").await;
    let token = fixture.token();
    let mut proxies = Vec::new();
    for _ in 0..40 {
        let mut proxy = Proxy::join(&fixture, &token, "node-1").await.unwrap();
        proxy.see(&["+Kubernetes//Pod/shop/client"]).await;
        proxies.push(proxy);
    }
    let oldest = proxies.remove(0);
    let mut responses = oldest.responses;
    let ended = async { while responses.message().await.is_ok_and(|it| it.is_some()) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the oldest made room");
    put_pod(fixture.root.path(), "late", "late", "node-2", "10.244.2.9", "Running");
    let newest = proxies.last_mut().unwrap();
    newest.see(&["+Kubernetes//Pod/shop/late"]).await;
    fixture.end().await;
}

/// A view whose copy is no small answer.
fn large(root: &Path) {
    let endpoint = |index: u32| json!({"address": Ipv4Addr::from_bits(0xc612_0000 + index)});
    let entry = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"namespace": "shop", "name": "large"},
        "spec": {"hosts": ["large.example.com"], "resolution": "STATIC",
            "ports": [{"number": 80, "name": "tcp", "protocol": "TCP"}],
            "endpoints": (0..4000).map(endpoint).collect::<Vec<_>>()},
    });
    put(root, "objects/serviceentries/shop/large.json", &entry);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reads_nothing_keeps_no_other_from_its_first_answer() {
    let fixture = Fixture::start("unread", "").await;
    large(fixture.root.path());
    let other = fixture.signer().sign(&claims("node-2")).unwrap();
    let mut unread = Vec::new();
    for _ in 0..UNREAD_CONNECTIONS {
        let channel = fixture.channel().await;
        for _ in 0..UNREAD_CALLS {
            unread.extend(Proxy::over(channel.clone(), Some(&other), "node-2").await);
        }
    }
    // All of them have asked by now, and as many as can have their turn.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut proxy = Proxy::join(&fixture, &fixture.token(), "node-1").await.unwrap();
    soon("a first answer", proxy.see(&["+Kubernetes//Pod/shop/client"])).await;
    let (_, told) = fixture.admin(Method::GET, "/debug/syncz", &Value::Null).await;
    let clients = told["clients"].as_array().unwrap();
    let greedy = clients.iter().filter(|client| client["node"] == "node-2").count();
    println!("{greedy} of {} streams of the other node are there", unread.len());
    assert!(greedy <= 8, "{greedy} streams each hold a copy of the view");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_connected_is_told_to_administrators_alone() {
    let fixture = Fixture::start("syncz", "").await;
    let mut proxy = Proxy::join(&fixture, &fixture.token(), "node-1").await.unwrap();
    proxy.see(&["+Kubernetes//Pod/shop/client"]).await;
    let open = monitoring(fixture.control.ports.monitoring, "/debug/syncz");
    assert!(open.starts_with("HTTP/1.1 404") && !open.contains("node-1"), "{open}");
    let (status, told) = fixture.admin(Method::GET, "/debug/syncz", &Value::Null).await;
    assert_eq!((status, &told["clients"][0]["node"]), (StatusCode::OK, &json!("node-1")));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_is_answered_before_anything_is_served() {
    let root = std::env::temp_dir().join(format!("ambit-control-probe-{}", std::process::id()));
    let monitoring = Arc::new(Monitoring {
        authority: Arc::default(),
        metrics: Arc::new(Metrics::new()),
        serves: watch::Sender::new(false).subscribe(),
    });
    let at = root.display();
    let words = format!("control --registry files:{at} --admin-address 127.0.0.1:0");
    let args = Command::try_parse_from(words.split_whitespace()).unwrap().args;
    let config = Config::try_from(args).unwrap();
    let drain = Drain::new();
    let administration = Administration { monitoring, admin: Arc::default() };
    let address = administration.listen(&config, &drain.guard()).unwrap().unwrap();
    assert_eq!(get(address, "/live").await, StatusCode::OK);
    assert_eq!(get(address, "/ready").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(address, "/status").await, StatusCode::SERVICE_UNAVAILABLE);
    drain.start(None);
    drain.finished().await;
}
