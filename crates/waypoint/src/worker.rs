//! One data-plane thread: its listeners, the tunnels that come in, and what becomes of each.
//!
//! A tunnel stays on the thread that accepted its connection, and so do its requests.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::accept::accept_loop;
use ambit_dataplane::descriptors::{Crowded, Direction, Permit};
use ambit_dataplane::handshakes::handshakes;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_dataplane::session::{self, Session};
use ambit_http::Scheme;
use ambit_http::engine::position::Arrival;
use ambit_http::engine::{self, Engine, Speaks};
use ambit_model::authorize::Source;
use ambit_model::http::service::Protocol;
use ambit_net::drain::{Drain, Guard};
use ambit_net::hbone::Connect;
use ambit_net::socket::{ListenOptions, tcp_listener};
use ambit_wire::hbone::Authority;
use ambit_words::error_chain;
use anyhow::Context as _;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{HeaderMap, Method, StatusCode};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::health;
use crate::passage::{self, Patience};
use crate::position::{Here, Meant};
use crate::shared::Shared;

/// How long a request for a tunnel waits for a part of the view that it needs, in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a tunnel to the waypoint's own metrics may live; scrapers open another one.
const SHOWN_AT_MOST: Duration = Duration::from_secs(600);

/// How long a waypoint that is told to end goes on as before: it is not ready any more, and by then
/// the other proxies have heard of it, so that what they are asked to open again they open
/// elsewhere.
const NOTICE: Duration = Duration::from_secs(2);

/// All threads.
pub(crate) struct Threads(FuturesUnordered<oneshot::Receiver<()>>);

impl Threads {
    /// Waits until all have ended; an error when one panicked.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.0.next().await {
            ended.context("a data-plane thread panicked")?;
        }
        Ok(())
    }
}

/// Starts the threads, each with a listener of its own.
pub(crate) fn start(shared: &Arc<Shared>) -> anyhow::Result<Threads> {
    let threads = FuturesUnordered::new();
    for number in 0..shared.config.threads {
        let options = ListenOptions { reuse_port: true, v6only: false, ..Default::default() };
        let address = shared.config.hbone;
        let listener =
            tcp_listener(address, &options).with_context(|| format!("listen at {address}"))?;
        let (ended, running) = oneshot::channel();
        let (shared, name) = (shared.clone(), format!("data-{number}"));
        std::thread::Builder::new().name(name.clone()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return tracing::error!(%error, name, "cannot start a runtime"),
            };
            shared.mesh.metrics.watch_runtime(name, runtime.handle().clone());
            LocalSet::new().block_on(&runtime, run(shared, listener));
            // Nobody waits only when the process has ended.
            let _gone = ended.send(());
        })?;
        threads.push(running);
    }
    Ok(Threads(threads))
}

/// What a thread's tunnels use.
struct Thread {
    shared: Arc<Shared>,
    plane: Rc<Plane>,
    served: Rc<Served>,
    engine: Rc<Engine<Here>>,
}

/// Runs one thread's part, until it is told to end.
pub(crate) async fn run(shared: Arc<Shared>, listener: std::net::TcpListener) {
    let everything = Drain::new();
    let plane = Rc::new(Plane::new(shared.mesh.clone(), everything.guard()));
    let descriptors = shared.mesh.descriptors.used().1;
    let admission = handshakes(descriptors, shared.config.threads);
    let served = Rc::new(Served::new(shared.own.clone(), admission));
    let here = Here::new(shared.clone(), plane.clone(), served.clone());
    let engine = Engine::new(here, shared.config.engine.clone(), everything.guard());
    let mut stopping = shared.stopping.subscribe();
    let thread = Rc::new(Thread { shared, plane: plane.clone(), served: served.clone(), engine });
    let (tidying, engine) = (thread.engine.clone(), thread.engine.clone());
    tokio::task::spawn_local(async move { tidying.keep_tidy().await });
    let watching = thread.engine.clone();
    tokio::task::spawn_local(async move { watching.keep_watch().await });
    if thread.shared.wellness.begin() {
        let checking = thread.engine.clone();
        let limits = thread.shared.config.engine.limits;
        let checks = async move { health::run(checking.position(), limits).await };
        tokio::task::spawn_local(checks);
    }
    let (accepting, open) = (thread.clone(), everything.guard());
    tokio::task::spawn_local(async move { accept(accepting, listener, open).await });
    let drain = thread.shared.config.drain;
    let leaving = async {
        drop(stopping.wait_for(|stopping| *stopping).await);
        let until = Instant::now() + drain;
        tokio::time::sleep(NOTICE.min(drain / 2)).await;
        served.drain.start(Some(until));
        // Idle connections to endpoints would hold the tunnels below them to the deadline.
        engine.close_pool();
        // Until the last one has left, connections are accepted: a proxy that comes here may know
        // of no other waypoint yet.
        if tokio::time::timeout_at(until, served.drain.finished()).await.is_err() {
            tracing::warn!("what is left at the deadline is cut");
        }
    };
    tokio::select! {
        () = leaving => {}
        () = plane.connections.keep_judged() => {}
    }
}

async fn accept(thread: Rc<Thread>, listener: std::net::TcpListener, guard: Guard) {
    let entrance = thread.plane.entrance(&thread.served.own, Direction::Handshakes);
    let each =
        |stream: TcpStream, from: SocketAddr, permit: Result<Permit, Box<Crowded>>| match permit {
            Ok(permit) => {
                let (plane, served) = (thread.plane.clone(), thread.served.clone());
                let thread = thread.clone();
                let tunnel = move |session: Rc<Session>, connect| {
                    let guard = session.served.drain.guard();
                    guard.spawn_local(serve_tunnel(thread.clone(), session, connect));
                };
                let serving = session::serve(plane, served.clone(), stream, from, permit, tunnel);
                drop(served.drain.guard().spawn_local(serving));
            }
            Err(crowded) => thread.plane.turn_away(Direction::Handshakes, stream, from, &crowded),
        };
    if let Err(error) = accept_loop(listener, guard, &entrance, each).await {
        tracing::error!(%error, "cannot accept connections");
    }
}

/// Why a tunnel is not opened.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("method {0} is not CONNECT")]
    Method(Method),
    #[error("the client's certificate has expired; its proxy must open a new connection")]
    Expired,
    #[error("the target of the CONNECT cannot be read")]
    Authority(#[from] ambit_wire::hbone::HeaderError),
    #[error("{0} is neither a service nor a workload that has this waypoint")]
    NotOurs(Authority),
    #[error("the control plane has not described {0} yet")]
    Unknown(SocketAddr),
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Self::Method(_) | Self::Authority(_) => StatusCode::BAD_REQUEST,
            Self::Expired => StatusCode::UNAUTHORIZED,
            Self::NotOurs(_) => StatusCode::NOT_FOUND,
            Self::Unknown(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What a tunnel leads to.
enum Admitted {
    /// A service or workload that has this waypoint.
    Requests(Arrival, Protocol),
    /// The waypoint's own page of metrics or readiness.
    Operator(SocketAddr),
}

/// Serves one tunnel from its CONNECT to its end.
async fn serve_tunnel(thread: Rc<Thread>, session: Rc<Session>, mut connect: Connect) {
    match thread.admit(&session, &mut connect).await {
        Ok(Admitted::Requests(arrival, protocol)) => {
            thread.carry(&session, connect, arrival, protocol).await;
        }
        Ok(Admitted::Operator(address)) => thread.show(&session, connect, address).await,
        Err(refused) => {
            let identity = &session.peer.identity;
            let (from, reason) = (session.from, error_chain(&refused));
            tracing::info!(%from, %identity, reason, "tunnel refused");
            if let Err(broken) = connect.refuse(refused.status()) {
                tracing::debug!(error = %broken, "the tunnel was gone before it was refused");
            }
        }
    }
}

impl Thread {
    /// Reads what is asked for, which must be this waypoint's to serve.
    async fn admit(&self, session: &Session, connect: &mut Connect) -> Result<Admitted, Refused> {
        if connect.method() != Method::CONNECT {
            return Err(Refused::Method(connect.method().clone()));
        }
        if session.peer.not_after <= self.plane.mesh.certificates.now() {
            return Err(Refused::Expired);
        }
        let authority = connect.uri().authority().map_or("", |authority| authority.as_str());
        let asked: Authority = authority.parse()?;
        drop(connect.take_headers());
        let Authority::Address(destination) = asked else { return Err(Refused::NotOurs(asked)) };
        let here = self.engine.position();
        if let Some(own) = here.own_page(destination) {
            return Ok(Admitted::Operator(own));
        }
        let meant = here.meant(destination, &session.peer.identity);
        let meant = tokio::time::timeout(PATIENCE, meant).await;
        let Meant { is_ours, protocol } = meant.map_err(|_| Refused::Unknown(destination))?;
        if !is_ours {
            return Err(Refused::NotOurs(asked));
        }
        let source = Source::new(Some(session.peer.identity.clone()), session.from.ip());
        let workload = here.client(&session.peer.identity, session.from.ip());
        let (client, scheme) = (session.from, Scheme::Http);
        let arrival = Arrival { source, workload, client, destination, scheme, outside: None };
        Ok(Admitted::Requests(arrival, protocol))
    }

    /// Carries what a scraper or a probe in the mesh asks of the waypoint itself. Outside of the
    /// mesh the same ports are open in the clear.
    async fn show(&self, session: &Session, connect: Connect, address: SocketAddr) {
        let Ok(_held) = session.carrier.inner_tunnel() else {
            let _gone = connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
            return tracing::debug!(from = %session.from, "this client has used up its share");
        };
        let Ok(mut page) = TcpStream::connect(address).await else {
            let _gone = connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
            return tracing::warn!(%address, "the waypoint's own page cannot be reached");
        };
        let Ok(mut tunnel) = connect.accept(HeaderMap::new()) else { return };
        let copying = tokio::io::copy_bidirectional(&mut tunnel, &mut page);
        if let Ok(Err(error)) = tokio::time::timeout(SHOWN_AT_MOST, copying).await {
            tracing::debug!(%error, from = %session.from, "a scrape broke off");
        }
    }

    /// Answers 200 and serves what comes.
    async fn carry(
        &self,
        session: &Session,
        connect: Connect,
        arrival: Arrival,
        protocol: Protocol,
    ) {
        let refused = |connect: Connect, why: &'static str| {
            let _gone = connect.refuse(StatusCode::SERVICE_UNAVAILABLE);
            self.shared.requests.refused(why);
            tracing::debug!(from = %session.from, why, "a connection is refused");
        };
        if self.engine.is_closed() {
            return refused(connect, "overload");
        }
        let Some(_connected) = self.shared.clients.connect(&session.peer.identity) else {
            return refused(connect, "client_connections");
        };
        let Ok(_held) = session.carrier.inner_tunnel() else { return refused(connect, "crowded") };
        let tunnel = match connect.accept(HeaderMap::new()) {
            Ok(tunnel) => tunnel,
            Err(error) => return tracing::debug!(%error, "gone before it was accepted"),
        };
        let speaks = match protocol {
            Protocol::Http => Some(Speaks::Http),
            Protocol::Http2 => Some(Speaks::Http2),
            Protocol::Detect => Some(Speaks::Unknown),
            Protocol::Tcp | Protocol::Tls => None,
        };
        let guard = session.served.drain.guard();
        let (stream, first) = match speaks {
            None => (Box::new(tunnel) as engine::halves::BoxStream, bytes::Bytes::new()),
            Some(speaks) => {
                let stream = Box::new(tunnel);
                let client = arrival.clone();
                match engine::serve(&self.engine, client, stream, speaks, &guard).await {
                    engine::Served::Http => return,
                    engine::Served::Other(stream, first) => (stream, first),
                }
            }
        };
        let settings = self.engine.settings();
        let patience =
            Patience { detect: settings.detect_timeout, idle: settings.stream_idle_timeout };
        passage::serve(&self.engine, arrival, stream, first, patience).await;
    }
}
