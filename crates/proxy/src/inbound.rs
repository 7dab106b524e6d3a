//! Inbound: connections that arrive in tunnels of other proxies, from accept to record.
//!
//! TLS proves the client ([`ambit_dataplane::session`]), the view judges it, and only then is the
//! application dialled: at its own address, from the client's. 200 is sent when the application has
//! accepted, so either end may send first. A claim in a header never decides anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::connections::CutReason;
use ambit_dataplane::descriptors::{Crowded, Permit, TunnelPermit};
use ambit_dataplane::dial::{DialError, dial};
use ambit_dataplane::failure::{Failure, ResponseFlags};
use ambit_dataplane::judgement::{Allowed, Refused, admit, wait_for_view};
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::put;
use ambit_dataplane::record::{Record, Way};
use ambit_dataplane::session::{self, Session};
use ambit_model::address::Reach;
use ambit_model::authorize;
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_model::workload::{ApplicationProtocol, ApplicationTunnel, Workload};
use ambit_net::copy::SocketEnd;
use ambit_net::hbone::Connect;
use ambit_wire::hbone::{self, Authority, Baggage, Forwarded, HeaderError, proxy_protocol};
use ambit_words::ports;
use http::{HeaderMap, Method, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::phases::{self, Carrying, in_phases};
use crate::thread::Thread;

/// Why a tunnel was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboundError {
    /// It is no CONNECT.
    #[error("method {0} is not CONNECT")]
    Method(Method),
    /// Its target cannot be read.
    #[error("the target of the CONNECT cannot be read")]
    Authority(#[from] HeaderError),
    /// Its target is somebody else.
    #[error("target {asked} is not at {own}, where this connection ended")]
    WrongAddress {
        /// What was asked for.
        asked: Authority,
        /// Where the connection ended.
        own: SocketAddr,
    },
    /// It came to an address that means somebody else elsewhere.
    #[error("{0} is no address of a workload: tunnels to it lead nowhere")]
    NoWorkloadAddress(SocketAddr),
    /// Its target is the proxy.
    #[error("{0} is the proxy's own port")]
    ProxyPort(SocketAddr),
    /// What proved the client proves nothing any more.
    #[error("the client's certificate has expired; its proxy must open a new connection")]
    Expired,
    /// It may not come in.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The application cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// There is no descriptor for one more tunnel of this client.
    #[error(transparent)]
    Share(#[from] Box<Crowded>),
    /// It was cut while it was set up.
    #[error(transparent)]
    Cut(CutReason),
    /// The client gave up while the application was dialled.
    #[error("the client gave up before the application answered")]
    Abandoned,
}

impl InboundError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Method(_)
            | Self::Authority(_)
            | Self::WrongAddress { .. }
            | Self::NoWorkloadAddress(_)
            | Self::ProxyPort(_) => StatusCode::BAD_REQUEST,
            Self::Refused(Refused::Denied(_)) | Self::Cut(_) | Self::Expired => {
                StatusCode::UNAUTHORIZED
            }
            Self::Refused(Refused::Unknown(_))
            | Self::Dial(_)
            | Self::Share(_)
            | Self::Abandoned => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl Failure for InboundError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Refused(refused) => refused.flags(),
            Self::Dial(error) => error.flags(),
            Self::Share(crowded) => crowded.flags(),
            Self::Cut(reason) => reason.flags(),
            _ => ResponseFlags::Connect,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Method(_) | Self::Authority(_) => "bad_request",
            Self::WrongAddress { .. } | Self::NoWorkloadAddress(_) => "wrong_address",
            Self::ProxyPort(_) => "self_call",
            Self::Expired => "expired",
            Self::Refused(refused) => refused.reason(),
            Self::Dial(error) => error.reason(),
            Self::Share(crowded) => crowded.reason(),
            Self::Cut(_) => "cut",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Serves one HBONE connection from accept to its end.
pub(crate) async fn serve(
    thread: Rc<Thread>,
    served: Rc<Served>,
    stream: TcpStream,
    from: SocketAddr,
    held: Permit,
) {
    let plane = thread.plane.clone();
    let each = |session: Rc<Session>, connect| {
        let guard = session.served.drain.guard();
        let inbound = Inbound { thread: thread.clone(), session };
        guard.spawn_local(in_phases(set_up(inbound, connect)));
    };
    session::serve(plane, served, stream, from, held, each).await;
}

/// What the tunnels of one HBONE connection use.
struct Inbound {
    thread: Rc<Thread>,
    session: Rc<Session>,
}

/// Finds the other half of a tunnel. What is left is to carry it.
async fn set_up(inbound: Inbound, mut connect: Connect) -> Option<Carrying> {
    let session = &inbound.session;
    let mut record = Record::new(Reporter::Destination, session.from, session.own);
    record.way = Way::Tunnel;
    record.peer = Some(session.peer.clone());
    record.source.identity = Some(session.peer.identity.clone());
    record.destination.identity = Some(session.served.own.identity.clone());
    match inbound.admit(&mut connect, &mut record).await {
        Ok(admitted) => inbound.carry(connect, admitted, record),
        Err(error) => {
            record.failed(&session.plane.tally, &error);
            if let Err(broken) = connect.refuse(error.status()) {
                tracing::debug!(error = %broken, "the tunnel was gone before it was refused");
            }
            None
        }
    }
}

/// A tunnel that may come in, and the application's end of it.
struct Admitted {
    allowed: Allowed,
    server: TcpStream,
    held: TunnelPermit,
}

impl Inbound {
    /// Reads what is asked for, judges it, and dials the application.
    async fn admit(
        &self,
        connect: &mut Connect,
        record: &mut Record,
    ) -> Result<Admitted, InboundError> {
        if connect.method() != Method::CONNECT {
            return Err(InboundError::Method(connect.method().clone()));
        }
        // By the wall clock, which a suspended machine finds further on than its timers.
        if self.session.peer.not_after <= self.thread.plane.mesh.certificates.now() {
            return Err(InboundError::Expired);
        }
        let authority = connect.uri().authority().map_or("", |authority| authority.as_str());
        let asked: Authority = authority.parse()?;
        let (thread, pod) = (&self.thread, &self.session.served.own);
        self.describe(&connect.take_headers(), record);
        let known = wait_for_view(&thread.plane.mesh, |view| {
            let workload = pod.described_in(view)?.clone();
            let found = target(view, &workload, &asked, self.session.own);
            Some((workload, found))
        });
        let (workload, found) = known.await.ok_or_else(|| Refused::Unknown(pod.name.clone()))?;
        record.destination.workload = Some(workload.clone());
        let target =
            found.ok_or_else(|| InboundError::WrongAddress { asked, own: self.session.own })?;
        record.authority = Some(target.asked);
        if Reach::of(target.own.ip()) != Reach::Far {
            return Err(InboundError::NoWorkloadAddress(self.session.own));
        }
        for address in [target.asked, target.own] {
            if ports::OF_PROXY.contains(&address.port()) {
                return Err(InboundError::ProxyPort(address));
            }
        }
        let source = authorize::Source::new(
            Some(self.session.peer.identity.clone()),
            self.session.from.ip(),
        );
        let enter = |judged| {
            let peer = Some(self.session.peer.clone());
            thread.plane.connections.enter(vec![pod.clone()], Some(judged), peer)
        };
        let allowed = admit(&thread.plane.mesh, pod, source, target.own, enter).await?;
        record.allowed_by.clone_from(&allowed.by);
        let held = self.session.carrier.tunnel()?;
        let server = tokio::select! {
            dialled = self.dial(&workload, &target) => dialled?,
            reason = allowed.entered.cut_off() => return Err(InboundError::Cut(reason)),
            () = connect.abandoned() => return Err(InboundError::Abandoned),
        };
        Ok(Admitted { allowed, server, held })
    }

    /// Connects to the application, and sends it the PROXY header if it wants one.
    async fn dial(&self, workload: &Workload, target: &Target) -> Result<TcpStream, DialError> {
        let application = workload.application_tunnel;
        let (address, source) = match application {
            Some(application) if self.is_received_on_loopback(&application) => {
                (SocketAddr::new(loopback(self.session.own), target.own.port()), None)
            }
            _ => (target.own, self.thread.plane.original_source(self.session.from, target.own)),
        };
        let options = self.thread.plane.dial_options(source);
        let mut server = dial(&self.session.served.own, address, &options).await?;
        if application.is_some_and(|it| it.protocol == ApplicationProtocol::Proxy) {
            let identity = Some(&self.session.peer.identity);
            let header = proxy_protocol::encode(self.session.from, target.asked, identity)?;
            let written = server.write_all(&header).await;
            written.map_err(|cause| DialError::Connect { address, cause })?;
        }
        Ok(server)
    }

    /// Whether the application receives its tunnel on loopback: only where the control plane names
    /// the port. One that the client may choose would open every port there.
    fn is_received_on_loopback(&self, application: &ApplicationTunnel) -> bool {
        self.thread.shared.config.localhost_app_tunnel
            && application.protocol == ApplicationProtocol::Proxy
            && application.port.is_some()
    }

    /// Answers 200, moves the bytes, and ends the record.
    fn carry(self, connect: Connect, admitted: Admitted, record: Record) -> Option<Carrying> {
        let Admitted { allowed, server, held } = admitted;
        let mut headers = HeaderMap::new();
        if self.thread.shared.config.response_baggage {
            let baggage = Baggage::of(&allowed.workload).to_string();
            put(&mut headers, hbone::BAGGAGE, &baggage);
        }
        match connect.accept(headers) {
            Ok(tunnel) => {
                let (ends, records) = ((tunnel, SocketEnd::new(server)), vec![record]);
                let (tally, to_the_end) = (&self.thread.plane.tally, (held, self.session));
                let carrying = phases::carry(allowed.entered, ends, records, tally, to_the_end);
                Some(Box::pin(carrying))
            }
            Err(error) => {
                tracing::debug!(%error, "the tunnel was gone before it was accepted");
                record.failed(&self.thread.plane.tally, &InboundError::Abandoned);
                None
            }
        }
    }

    /// Writes down what is known of the client, and the service that it says it meant.
    fn describe(&self, headers: &HeaderMap, record: &mut Record) {
        let view = self.thread.plane.mesh.view.load();
        let network = &self.thread.shared.config.node.network;
        let at_address = view.workload_at(network, self.session.from.ip());
        let is_proven = |it: &&Arc<Workload>| it.identity() == self.session.peer.identity;
        record.source.workload = at_address.filter(is_proven).cloned();
        if record.source.workload.is_none() {
            let said = headers.get_all(hbone::BAGGAGE).iter().map(|value| value.as_bytes());
            record.source.baggage = Baggage::parse(said).ok().map(Box::new);
        }
        let forwarded = headers.get(hbone::FORWARDED).and_then(|value| value.to_str().ok());
        let forwarded = forwarded.and_then(|text| text.parse::<Forwarded>().ok());
        let namespace = &self.session.served.own.name.namespace;
        let host = forwarded.and_then(|forwarded| forwarded.host);
        record.service = host.and_then(|host| view.service_by_hostname(&host, namespace).cloned());
    }
}

/// Where a CONNECT leads.
struct Target {
    /// What the client asked for; the PROXY header passes it to a program that judges layer 7.
    asked: SocketAddr,
    /// What is judged and dialled: the address that the connection came to, never another.
    own: SocketAddr,
}

/// What a CONNECT asks for, if it is this workload's to serve.
fn target(view: &View, workload: &Workload, asked: &Authority, own: SocketAddr) -> Option<Target> {
    let asked = match asked {
        Authority::Address(address) => *address,
        Authority::Hostname { host, port } => {
            let service = view.service_by_hostname(host, &workload.namespace)?;
            SocketAddr::new(own.ip(), service_target(service, workload, *port)?)
        }
    };
    let tunnel = workload.application_tunnel.as_ref();
    // A workload that terminates the tunnel itself, or serves others, judges the target itself.
    let serves_others = || {
        let stands_before_it = || view.is_waypoint_of(workload, asked.ip());
        Reach::of(asked.ip()) == Reach::Far && (tunnel.is_some() || stands_before_it())
    };
    if asked.ip() != own.ip() && !serves_others() {
        return None;
    }
    let port = tunnel.and_then(|tunnel| tunnel.port).unwrap_or(asked.port());
    Some(Target { asked, own: SocketAddr::new(own.ip(), port) })
}

fn loopback(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The workload's port behind a port of a service, if it is one of the service's endpoints.
fn service_target(service: &Service, workload: &Workload, port: u16) -> Option<u16> {
    let ports = workload.services.get(&service.key)?;
    let mapped = ports.iter().find(|mapping| mapping.service_port == port)?.target_port;
    if mapped != 0 {
        return Some(mapped);
    }
    service.port(port).map(|mapping| mapping.target_port).filter(|port| *port != 0)
}
