//! A waypoint's listener on one thread: tunnels of other proxies, and what becomes of each.
//!
//! A tunnel stays on the thread that accepted its connection, and so do its requests.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_dataplane::accept::accept_loop;
use ambit_dataplane::descriptors::{Crowded, Direction, Permit};
use ambit_dataplane::session::{self, Session};
use ambit_http::Scheme;
use ambit_http::engine::position::Arrival;
use ambit_model::authorize::Source;
use ambit_model::http::service::Protocol;
use ambit_model::names::ServiceName;
use ambit_net::drain::Guard;
use ambit_net::hbone::Connect;
use ambit_wire::hbone::Authority;
use ambit_words::error_chain;
use http::{HeaderMap, Method, StatusCode};
use tokio::net::TcpStream;

use crate::position::Meant;
use crate::thread::Thread;

/// How long a request for a tunnel waits for a part of the view that it needs, in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a tunnel to the waypoint's own metrics may live; scrapers open another one.
const SHOWN_AT_MOST: Duration = Duration::from_secs(600);

/// Accepts tunnels for as long as the thread runs.
pub(crate) async fn accept(thread: Rc<Thread>, listener: std::net::TcpListener, guard: Guard) {
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
    #[error("{0} is for clients of its own namespace alone (exportTo)")]
    Private(ServiceName),
    #[error("the control plane has not described {0} yet")]
    Unknown(SocketAddr),
}

impl Refused {
    fn status(&self) -> StatusCode {
        match self {
            Self::Method(_) | Self::Authority(_) => StatusCode::BAD_REQUEST,
            Self::Expired => StatusCode::UNAUTHORIZED,
            Self::NotOurs(_) => StatusCode::NOT_FOUND,
            Self::Private(_) => StatusCode::FORBIDDEN,
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
        let meant = meant.map_err(|_| Refused::Unknown(destination))?;
        let Meant { is_ours, private, protocol } = meant;
        if let Some(private) = private {
            return Err(Refused::Private(private));
        }
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
        let guard = session.served.drain.guard();
        self.converse(arrival, protocol, Box::new(tunnel), &guard).await;
    }
}
