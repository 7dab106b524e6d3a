//! HBONE's framing, and copying between sockets.
//!
//! Both ends run on the thread that measures, so a figure is what all of them cost together.

use std::future::Future;
use std::time::{Duration, Instant};

use ambit_net::copy::{Flow, SocketEnd, copy};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Connect, Settings, Transport, Tunnel, serve};
use criterion::{Criterion, Throughput};
use http::{HeaderMap, Method, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

const SIZES: [(&str, usize); 2] = [("1 KiB", 1 << 10), ("1 MiB", 1 << 20)];
/// What the pipe below HBONE holds: as much as a socket does.
pub(crate) const PIPE_BYTES: usize = 256 << 10;

pub(crate) fn bench(criterion: &mut Criterion) {
    let thread = Thread::new();
    echoed(criterion, &thread, "hbone", hbone);
    echoed(criterion, &thread, "copy", sockets);
    let client = thread.run(connection());
    criterion.bench_function("hbone/a tunnel", |bencher| {
        bencher.iter_custom(|times| thread.run(timed(times, async || drop(tunnel(&client).await))));
    });
}

/// What runs a data-plane thread runs the benchmark.
pub(crate) struct Thread {
    runtime: tokio::runtime::Runtime,
    tasks: LocalSet,
}

impl Thread {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { runtime: runtime.unwrap(), tasks: LocalSet::new() }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.tasks.block_on(&self.runtime, future)
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The near end of a path whose far end answers with what it reads.
type NearEnd = Box<dyn Stream>;

/// Sends a message and reads it again.
fn echoed(criterion: &mut Criterion, thread: &Thread, name: &str, path: impl AsyncFn() -> NearEnd) {
    let mut group = criterion.benchmark_group(name);
    for (size, bytes) in SIZES {
        let mut end = thread.run(path());
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function(size, |bencher| {
            bencher.iter_custom(|times| thread.run(round_trips(&mut end, bytes, times)));
        });
    }
    group.finish();
}

async fn round_trips(end: &mut NearEnd, bytes: usize, times: u64) -> Duration {
    let (sent, mut got) = (vec![7; bytes], vec![0; bytes]);
    let (mut read, mut write) = tokio::io::split(end);
    timed(times, async || {
        let (written, taken) = tokio::join!(write.write_all(&sent), read.read_exact(&mut got));
        written.unwrap();
        taken.unwrap();
    })
    .await
}

pub(crate) async fn timed(times: u64, mut once: impl AsyncFnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        once().await;
    }
    start.elapsed()
}

/// Answers with what it reads.
async fn echo(stream: impl AsyncRead + AsyncWrite) {
    let (mut read, mut write) = tokio::io::split(stream);
    // Ends when the benchmark drops the other end.
    let _ended = tokio::io::copy(&mut read, &mut write).await;
}

/// An HBONE connection without TLS, whose tunnels answer with what they read.
async fn connection() -> Client {
    let (near, far) = duplex(PIPE_BYTES);
    let drain = Drain::new();
    let (serving, client) = (drain.guard(), drain.guard());
    spawn_local(async move {
        let _drain = drain;
        let transport = Transport::new(far);
        let (activity, settings) = (transport.activity(), Settings::default());
        let accept = |connect: Connect| {
            spawn_local(echo(connect.accept(HeaderMap::new()).unwrap()));
        };
        serve(transport, activity, &settings, &serving, accept).await.ok();
    });
    let transport = Transport::new(near);
    let (activity, settings) = (transport.activity(), Settings::default());
    Client::start(transport, activity, &settings, &client)
}

async fn tunnel(client: &Client) -> Tunnel {
    let request = Request::builder().method(Method::CONNECT).uri("10.0.0.1:80").body(()).unwrap();
    client.connect(request).await.unwrap().1
}

async fn hbone() -> NearEnd {
    // The tunnel keeps its connection.
    Box::new(tunnel(&connection().await).await)
}

/// Two TCP connections, joined as a proxy joins them.
async fn sockets() -> NearEnd {
    let (client, of_client) = tcp_pair().await;
    let (of_server, server) = tcp_pair().await;
    spawn_local(async move {
        let (mut one, mut other) = (SocketEnd::new(of_client), SocketEnd::new(of_server));
        copy(&mut one, &mut other, &Flow::new()).await.ok();
    });
    spawn_local(echo(server));
    Box::new(client)
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap().0);
    for stream in [&connected, &accepted] {
        stream.set_nodelay(true).unwrap();
    }
    (connected, accepted)
}
