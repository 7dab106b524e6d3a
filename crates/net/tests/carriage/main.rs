//! Tests of copy, HBONE and pool. They share applications on loopback and proxies in between, all
//! on one thread.

#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod copy;
mod early;
mod floods;
mod frames;
mod gone;
mod hbone;
mod peers;
mod pool;
mod stream;
mod windows;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_net::copy::{CopyError, Flow, SocketEnd, copy};
use ambit_net::drain::Drain;
use ambit_net::hbone::{Client, Settings, Transport, Tunnel, serve};
use http::{HeaderMap, Method, Request};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// Nothing here may take longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test on one thread, as a data-plane thread runs.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(LIMIT, test).await.expect("the test ends in time");
    });
}

/// Runs a test on one thread in simulated time.
pub(crate) fn in_simulated_time(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Two ends of a TCP connection.
pub(crate) async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(connecting, listener.accept());
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap().0);
    for stream in [&connected, &accepted] {
        stream.set_nodelay(true).unwrap();
    }
    (connected, accepted)
}

/// Breaks a connection instead of closing it.
pub(crate) fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Applications with a proxy, or two and a tunnel, in between.
pub(crate) struct Joined {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) flow: Rc<Flow>,
    /// How the client's proxy saw the end.
    pub(crate) ended: JoinHandle<Result<(), CopyError>>,
}

/// client - proxy - server
pub(crate) async fn joined_by_sockets() -> Joined {
    let (client, of_client) = tcp_pair().await;
    let (of_server, server) = tcp_pair().await;
    let flow = Rc::new(Flow::new());
    let seen = flow.clone();
    let ended = spawn_local(async move {
        let (mut one, mut other) = (SocketEnd::new(of_client), SocketEnd::new(of_server));
        copy(&mut one, &mut other, &seen).await
    });
    Joined { client, server, flow, ended }
}

/// An HBONE connection over loopback, without TLS; its server dials the address it is asked for.
pub(crate) struct Hop {
    pub(crate) client: Client,
    pub(crate) server: Drain,
    _client_drain: Drain,
}

impl Hop {
    pub(crate) async fn new() -> Self {
        Self::with(Settings::default(), Settings::default()).await
    }

    /// The settings of both sides.
    pub(crate) async fn with(of_client: Settings, of_server: Settings) -> Self {
        let (near, far) = tcp_pair().await;
        let server = Drain::new();
        let guard = server.guard();
        server.guard().spawn_local(async move {
            let transport = Transport::new(far);
            let activity = transport.activity();
            let spawner = guard.clone();
            serve(transport, activity, &of_server, &guard, |connect| {
                spawner.spawn_local(async move {
                    assert_eq!(connect.method(), Method::CONNECT);
                    let to: SocketAddr =
                        connect.uri().authority().unwrap().as_str().parse().unwrap();
                    let server = TcpStream::connect(to).await.unwrap();
                    server.set_nodelay(true).unwrap();
                    let mut tunnel = connect.accept(HeaderMap::new()).unwrap();
                    // What goes wrong is seen by both applications.
                    let _ended = copy(&mut tunnel, &mut SocketEnd::new(server), &Flow::new()).await;
                });
            })
            .await
            .ok();
        });
        let drain = Drain::new();
        let transport = Transport::new(near);
        let activity = transport.activity();
        let guard = drain.guard();
        let client = Client::start(transport, activity, &of_client, &guard);
        Self { client, server, _client_drain: drain }
    }

    /// A tunnel to an application that listens for this one connection.
    pub(crate) async fn tunnel(&self) -> (Tunnel, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let request = connect_to(listener.local_addr().unwrap());
        let (tunnel, accepted) = tokio::join!(self.client.connect(request), listener.accept());
        let server = accepted.unwrap().0;
        server.set_nodelay(true).unwrap();
        (tunnel.unwrap().1, server)
    }

    /// client - proxy = tunnel = proxy - server
    pub(crate) async fn joined(&self) -> Joined {
        let (client, of_client) = tcp_pair().await;
        let (mut tunnel, server) = self.tunnel().await;
        let flow = Rc::new(Flow::new());
        let seen = flow.clone();
        let ended =
            spawn_local(
                async move { copy(&mut SocketEnd::new(of_client), &mut tunnel, &seen).await },
            );
        Joined { client, server, flow, ended }
    }
}

/// A CONNECT.
pub(crate) fn connect_to(address: SocketAddr) -> Request<()> {
    Request::builder().method(Method::CONNECT).uri(address.to_string()).body(()).unwrap()
}
