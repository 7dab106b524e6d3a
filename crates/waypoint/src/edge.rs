//! A gateway's listeners on one thread: sockets that open and close as its Gateway changes, and
//! what becomes of the connections from outside.
//!
//! A socket that is closed takes no further connection; those that it has taken go on, and are
//! asked to leave. Nothing that a client says of itself is believed here: it is nobody, unless its
//! certificate was verified.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_dataplane::accept::accept_loop;
use ambit_dataplane::descriptors::{Crowded, Direction, Permit};
use ambit_dataplane::judgement::wait_for_view;
use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, Outside};
use ambit_http::engine::{self, Prefixed, Speaks};
use ambit_model::Text;
use ambit_model::authorize::Source;
use ambit_model::http::gateway::{Listener, ListenerSpeaks};
use ambit_model::view::View;
use ambit_net::drain::{Drain, Guard};
use ambit_net::socket::{DEFAULT_BACKLOG, ListenOptions, normalise, tcp_listener, udp_bind};
use ambit_tls::edge::EdgeAcceptor;
use ambit_wire::hbone::proxy_protocol::{Decoded, decode};
use ambit_words::ports;
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::datagrams;
use crate::hello::{self, HELLO_TIMEOUT, ServerName};
use crate::passage;
use crate::secured::{self, has_certificate};
use crate::thread::Thread;

/// How sockets are opened that all threads listen at.
pub(crate) const OF_THREADS: ListenOptions = ListenOptions {
    backlog: DEFAULT_BACKLOG,
    v6only: false,
    reuse_port: true,
    transparent: false,
    freebind: false,
    mark: None,
};
/// How long until a port is tried again that could not be opened.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The sockets that are open; each closes with its entry.
#[derive(Default)]
struct Sockets {
    connections: BTreeMap<u16, Drain>,
    datagrams: BTreeMap<u16, Drain>,
}

/// Opens and closes sockets as the Gateway says, for as long as the thread runs.
pub(crate) async fn listen(thread: Rc<Thread>, mut guard: Guard) {
    let mut sockets = Sockets::default();
    let mut changed = thread.shared.mesh.needs_changed.subscribe();
    loop {
        changed.mark_unchanged();
        let all_are_open = settle(&thread, &mut sockets);
        tokio::select! {
            _ = guard.draining() => return,
            // An error is the end of the mesh.
            changed = changed.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY_INTERVAL), if !all_are_open => {}
        }
    }
}

/// Opens what is missing and closes what is not asked for; answers whether all are open.
fn settle(thread: &Rc<Thread>, sockets: &mut Sockets) -> bool {
    let here = thread.engine.position();
    let view = here.view();
    let gateway = here.gateway(&view);
    for route in view.unreadable_routes(&thread.shared.config.own_service()) {
        tracing::error!(%route, "nothing is served: a route cannot be read; upgrade the gateway");
    }
    let connections = gateway.iter().flat_map(|it| it.ports()).collect();
    let connections = keep(&mut sockets.connections, &connections, |port, address, guard| {
        let socket = tcp_listener(address, &OF_THREADS)?;
        tokio::task::spawn_local(accept(thread.clone(), socket, port, guard));
        Ok(())
    });
    let datagrams = gateway.iter().flat_map(|it| it.datagrams().keys().copied()).collect();
    let datagrams = keep(&mut sockets.datagrams, &datagrams, |port, address, guard| {
        let socket = UdpSocket::from_std(udp_bind(address, &OF_THREADS)?)?;
        tokio::task::spawn_local(datagrams::serve(thread.clone(), socket, port, guard));
        Ok(())
    });
    connections && datagrams
}

/// Opens and closes sockets so that these ports are open; answers whether they are.
fn keep(
    sockets: &mut BTreeMap<u16, Drain>,
    asked: &BTreeSet<u16>,
    open: impl Fn(u16, SocketAddr, Guard) -> io::Result<()>,
) -> bool {
    sockets.retain(|port, socket| {
        let is_asked = asked.contains(port);
        if !is_asked {
            tracing::info!(port, "a listener is gone");
            socket.start(None);
        }
        is_asked
    });
    let mut all_are_open = true;
    for port in asked {
        if sockets.contains_key(port) {
            continue;
        }
        let drain = Drain::new();
        match open(*port, ports::everywhere(*port), drain.guard()) {
            Ok(()) => {
                sockets.insert(*port, drain);
            }
            Err(error) => {
                tracing::warn!(port, %error, "cannot listen; trying again");
                all_are_open = false;
            }
        }
    }
    all_are_open
}

/// Accepts connections at one port, until it is closed.
async fn accept(thread: Rc<Thread>, socket: std::net::TcpListener, port: u16, guard: Guard) {
    let entrance = thread.plane.entrance(&thread.served.own, Direction::Plaintext);
    let each = |stream: TcpStream, from: SocketAddr, permit: Result<Permit, Box<Crowded>>| {
        let permit = match permit {
            Ok(permit) => permit,
            Err(crowded) => {
                return thread.plane.turn_away(Direction::Plaintext, stream, from, &crowded);
            }
        };
        let serving = serve(thread.clone(), stream, from, port);
        drop(thread.served.drain.guard().spawn_local(async move {
            serving.await;
            drop(permit);
        }));
    };
    if let Err(error) = accept_loop(socket, guard, &entrance, each).await {
        tracing::error!(%error, port, "cannot accept connections");
    }
}

/// Reads where the client is, as a load balancer says it before the first byte; an error says why
/// nobody believes it.
async fn proxied(
    stream: &mut BoxStream,
    first: &mut BytesMut,
) -> Result<Option<SocketAddr>, &'static str> {
    loop {
        match decode(first) {
            Decoded::Header { bytes, source } => {
                first.advance(bytes);
                return Ok(source);
            }
            Decoded::Other => return Err("it does not begin with a PROXY protocol header"),
            Decoded::More => {}
        }
        if !matches!(stream.read_buf(first).await, Ok(1..)) {
            return Err("it ends within its PROXY protocol header");
        }
    }
}

/// Serves one connection from outside to its end.
async fn serve(thread: Rc<Thread>, stream: TcpStream, from: SocketAddr, port: u16) {
    if thread.engine.is_closed() {
        thread.shared.requests.refused("overload");
        return tracing::debug!(%from, "a connection is refused: there is too much to do");
    }
    let here = thread.engine.position();
    let own = SocketAddr::new(here.instance(), port);
    let destination = stream.local_addr().map_or(own, normalise);
    let (mut stream, mut from): (BoxStream, _) = (Box::new(stream), from);
    if thread.shared.config.proxy_protocol {
        let mut first = BytesMut::new();
        let reading = proxied(&mut stream, &mut first);
        let limit = thread.engine.settings().head_timeout;
        let said = timeout(limit, reading).await;
        match said.unwrap_or(Err("its PROXY protocol header does not come in time")) {
            Ok(source) => from = source.unwrap_or(from),
            Err(reason) => {
                thread.shared.requests.refused("proxy_protocol");
                return tracing::debug!(%from, port, reason, "a connection is refused");
            }
        }
        stream = Box::new(Prefixed::new(first.freeze(), stream));
    }
    let view = here.view();
    let gateway = here.own(&view).cloned();
    let trusted_hops = thread.shared.config.trusted_proxies;
    let outside = Outside { trusted_hops, gateway, ..Outside::default() };
    let arrival = Arrival {
        source: Source::new(None, from.ip()),
        workload: None,
        client: from,
        destination,
        scheme: Scheme::Http,
        outside: Some(Box::new(outside)),
    };
    let Some(gateway) = here.gateway(&view).cloned() else { return };
    drop(view);
    if gateway.begins_with_tls(port) {
        return secured(&thread, stream, arrival).await;
    }
    match gateway.at(port).first().map(|it| &it.speaks) {
        Some(ListenerSpeaks::Http) => {
            requests(&thread, arrival, stream, Speaks::Http).await;
        }
        Some(_) => bytes(&thread, arrival, stream, Bytes::new(), ServerName::Unknown).await,
        None => {}
    }
}

/// Serves a connection that begins with TLS: the name that it asks for says to whom it is.
async fn secured(thread: &Rc<Thread>, mut stream: BoxStream, mut arrival: Arrival) {
    let mut first = BytesMut::new();
    let name = hello::server_name(&mut stream, &mut first, HELLO_TIMEOUT).await;
    let (from, port) = (arrival.client, arrival.destination.port());
    let ServerName::Known(host) = &name else {
        return tracing::debug!(%from, port, "a connection is refused: it does not begin with TLS");
    };
    let here = thread.engine.position();
    let view = here.view();
    let Some(gateway) = here.gateway(&view) else { return };
    let Some(listener) = gateway.named(port, host.as_deref()).cloned() else {
        return tracing::debug!(%from, port, host, "refused: no listener has the connection's host");
    };
    drop(view);
    if let Some(outside) = &mut arrival.outside {
        outside.server_name = Some(host.as_deref().map(Text::from));
    }
    match &listener.speaks {
        ListenerSpeaks::TlsPassthrough => {
            bytes(thread, arrival, stream, first.freeze(), name).await
        }
        ListenerSpeaks::Https(_) | ListenerSpeaks::Tls(_) => {
            let stream = Prefixed::new(first.freeze(), stream);
            terminate(thread, arrival, stream, &listener).await;
        }
        ListenerSpeaks::Http | ListenerSpeaks::Tcp | ListenerSpeaks::Udp => {}
    }
}

/// Ends the TLS of a connection, and serves what is inside.
async fn terminate(
    thread: &Rc<Thread>,
    mut arrival: Arrival,
    stream: Prefixed,
    listener: &Listener,
) {
    let (from, port) = (arrival.client, arrival.destination.port());
    let refused = |why, reason: &str| {
        thread.shared.requests.refused(why);
        tracing::debug!(%from, port, reason, "a connection is refused");
    };
    let mut handshaking = thread.served.handshakes.admit(from.ip().into()).await;
    let accepting = async {
        let acceptor = thread.acceptor(listener).await.map_err(|reason| ("certificate", reason))?;
        let accepted = acceptor.accept(stream).await;
        accepted.map_err(|error| ("tls", ambit_words::error_chain(&error)))
    };
    let accepted = tokio::select! {
        biased;
        _leave = poll_fn(|cx| handshaking.poll_leave(cx)) => {
            return refused("handshakes", "too many TLS handshakes are under way");
        }
        accepted = accepting => accepted,
    };
    let (stream, peer) = match accepted {
        Ok(accepted) => accepted,
        Err((why, reason)) => return refused(why, &reason),
    };
    drop(handshaking);
    arrival.scheme = Scheme::Https;
    if let Some(outside) = &mut arrival.outside {
        outside.certificate = peer.client.as_deref().map(secured::written);
    }
    let stream: BoxStream = Box::new(stream);
    if let ListenerSpeaks::Https(_) = listener.speaks {
        let is_http2 = peer.alpn.as_deref() == Some("h2");
        let speaks = if is_http2 { Speaks::Http2 } else { Speaks::Http };
        return requests(thread, arrival, stream, speaks).await;
    }
    let name = ServerName::Known(peer.server_name.as_deref().map(str::to_owned));
    bytes(thread, arrival, stream, Bytes::new(), name).await;
}

impl Thread {
    /// What accepts TLS for a listener. A certificate that was just named may be under way.
    async fn acceptor(&self, listener: &Listener) -> Result<EdgeAcceptor, String> {
        let own = self.shared.config.own_service();
        let known = |view: &View| has_certificate(view, &own, listener).then_some(());
        wait_for_view(&self.shared.mesh, known).await;
        self.acceptors.of(&self.engine.position().view(), &own, listener)
    }
}

/// Serves the requests of a connection.
async fn requests(thread: &Rc<Thread>, arrival: Arrival, stream: BoxStream, speaks: Speaks) {
    let guard = thread.served.drain.guard();
    // What is no HTTP has its refusal by now.
    drop(engine::serve(&thread.engine, arrival, stream, speaks, &guard).await);
}

/// Passes a connection on that is no HTTP.
async fn bytes(
    thread: &Rc<Thread>,
    arrival: Arrival,
    stream: BoxStream,
    first: Bytes,
    name: ServerName,
) {
    passage::serve(&thread.engine, arrival, (stream, first), Some(name), thread.patience()).await;
}
