//! Tunnels: HBONE to another proxy, in an existing connection or a new one.
//!
//! Nothing is sent to a peer before its certificate proves an expected identity, and no connection
//! is shared between identities, namespaces or destinations.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use ambit_model::plan::Target;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_net::hbone::{Client, Early, HboneError, Transport, Tunnel};
use ambit_net::socket::bound_unsent;
use ambit_tls::HandshakeError;
use ambit_wire::hbone::{self, Baggage, Forwarded, TraceParent};
use http::{Method, Request, StatusCode, Uri};
use tokio::time::timeout;

use crate::certificates::Credentials;
use crate::descriptors::Direction;
use crate::dial::{ANSWER_TIMEOUT, DialError, dial};
use crate::metrics::Reporter;
use crate::own::Served;
use crate::plane::{PeerConnection, Plane, PoolKey, TunnelPeer, put};

/// Connections that a tunnel is asked of before the destination is given up.
const MAX_TUNNEL_ATTEMPTS: usize = 3;

/// What the request tells the other proxy about a connection.
pub struct Ask<'a> {
    /// The pod that connects.
    pub source: &'a Workload,
    /// Its socket.
    pub client: SocketAddr,
    /// Where it goes.
    pub authority: SocketAddr,
    /// The service it asked for.
    pub service: Option<&'a Service>,
    /// What it says before the tunnel is there.
    pub early: Option<&'a Early<'a>>,
}

impl Ask<'_> {
    fn is_spent(&self) -> bool {
        self.early.is_some_and(Early::is_spent)
    }
}

/// An established tunnel.
pub struct Opened {
    /// Its stream.
    pub tunnel: Tunnel,
    /// Who answered.
    pub peer: TunnelPeer,
}

/// Opens a tunnel to the destination's proxy, in an HBONE connection that is there or a new one.
pub async fn open(
    plane: &Rc<Plane>,
    served: &Rc<Served>,
    target: &Target,
    ask: &Ask<'_>,
) -> Result<Opened, DialError> {
    let own = &served.own;
    let certificates = &plane.mesh.certificates;
    let credentials = match certificates.cached(&own.identity) {
        Some(credentials) => credentials,
        None => certificates.of(&own.identity).await?,
    };
    let key = PoolKey {
        own: own.uid.clone(),
        source: own.identity.clone(),
        source_ip: ask.client.ip(),
        destinations: target.identities.clone(),
        hbone: target.hbone,
    };
    let generation = certificates.generation(&credentials);
    let mut attempts = 1;
    loop {
        let connect = || connect(plane.clone(), served.clone(), credentials.clone(), key.clone());
        let guard = served.drain.guard();
        let connection = plane.pool.connection(&key, generation, &guard, connect).await;
        let connection = match connection.map_err(DialError::Pool) {
            Err(error) if error.is_cut() && attempts < MAX_TUNNEL_ATTEMPTS => {
                attempts += 1;
                continue;
            }
            connection => connection?,
        };
        if connection.peer.not_after <= SystemTime::now() && attempts < MAX_TUNNEL_ATTEMPTS {
            // The other end's certificate has expired: it must prove itself again.
            plane.pool.forget(|other| *other == key);
            attempts += 1;
            continue;
        }
        let answer = connection.client.connect_early(request(plane, ask), ask.early);
        let silent = || DialError::Silent { address: target.hbone };
        match timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| silent())? {
            Ok((_headers, tunnel)) => {
                return Ok(Opened { tunnel, peer: connection.peer.clone() });
            }
            Err(HboneError::Closing(_)) if attempts < MAX_TUNNEL_ATTEMPTS => attempts += 1,
            Err(HboneError::Refused(StatusCode::UNAUTHORIZED)) => return Err(DialError::Denied),
            Err(HboneError::Refused(StatusCode::SERVICE_UNAVAILABLE)) => {
                return Err(DialError::Unavailable);
            }
            Err(cause) => {
                let error = of_hbone(target.hbone, cause);
                let may_try = error.is_cut() && !ask.is_spent();
                if !may_try || attempts == MAX_TUNNEL_ATTEMPTS {
                    return Err(error);
                }
                attempts += 1;
            }
        }
    }
}

/// Opens a new HBONE connection.
async fn connect(
    plane: Rc<Plane>,
    served: Rc<Served>,
    credentials: Arc<Credentials>,
    key: PoolKey,
) -> Result<PeerConnection, DialError> {
    let address = key.hbone;
    let held = served.own.shares.of(Direction::Outbound).take(None, 1)?;
    let stream = match dial(&served.own, address, &plane.dial_options(None)).await {
        Err(DialError::Timeout(address)) => return Err(DialError::HboneTimeout(address)),
        dialled => dialled?,
    };
    bound_unsent(&stream).map_err(DialError::Socket)?;
    let transport = Transport::new(stream).holding(held);
    let activity = transport.activity();
    let proven = credentials.connector.connect(transport, &key.destinations).await;
    let (stream, peer) = proven.map_err(|cause| DialError::Tls { address, cause })?;
    plane.mesh.metrics.handshake(Reporter::Source, peer.group.as_str());
    let settings = plane.hbone_settings(plane.mesh.memory.outbound(&key.own));
    let client = Client::start(stream, activity, &settings, &served.drain.guard());
    Ok(PeerConnection { client, peer: Arc::new(peer) })
}

/// In TLS 1.3 a client believes to be done before the server has judged its certificate: the
/// verdict arrives with the first read, as an error of what runs inside.
fn of_hbone(address: SocketAddr, cause: HboneError) -> DialError {
    match cause.transport().and_then(HandshakeError::from_io) {
        Some(cause) => DialError::Tls { address, cause },
        None => DialError::Hbone { address, cause },
    }
}

fn request(plane: &Plane, ask: &Ask<'_>) -> Request<()> {
    let host = ask.service.map(|service| service.key.hostname.to_string());
    let forwarded = Forwarded { client: Some(ask.client), host };
    let trace = TraceParent::from_random(plane.balance.random_bytes());
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = authority(ask.authority);
    let headers = request.headers_mut();
    put(headers, hbone::BAGGAGE, &Baggage::of(ask.source).to_string());
    put(headers, hbone::FORWARDED, &forwarded.to_string());
    put(headers, hbone::TRACEPARENT, &trace.to_string());
    request
}

fn authority(address: SocketAddr) -> Uri {
    let authority = address.to_string();
    authority.parse().expect("an address with its port is an authority")
}
