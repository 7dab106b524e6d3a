//! Outbound: connections that a pod of this proxy opened, from accept to record.
//!
//! The listening socket shows which pod it is, never anything the client says. A connection follows
//! the plan or is refused: nothing here decides, and nothing falls back to plain text.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use ambit_dataplane::choice::Around;
use ambit_dataplane::connections::CutReason;
use ambit_dataplane::descriptors::{Crowded, Direction, Permit};
use ambit_dataplane::dial::{DialError, dial, dial_first, in_turn};
use ambit_dataplane::failure::{Failure, ResponseFlags};
use ambit_dataplane::judgement::{VIEW_PATIENCE, wait_for_view};
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::names::LookupError;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::reset;
use ambit_dataplane::record::{Record, Way};
use ambit_dataplane::tunnel::{self, Ask};
use ambit_model::fence::{Fenced, Undeclared};
use ambit_model::names::WorkloadName;
use ambit_model::plan::{Direct, Flow, Lookup, Plan, Refusal, Target};
use ambit_model::workload::Workload;
use ambit_net::copy::SocketEnd;
use ambit_net::hbone::{Early, HboneError, Tunnel};
use ambit_net::socket::{address_exists, normalise, original_destination};
use ambit_words::ports;
use tokio::net::TcpStream;

use crate::config::SameNode;
use crate::fence::{self, FenceError};
use crate::local::{self, LocalError};
use crate::phases::{self, Carrying, in_phases};
use crate::thread::Thread;

/// Why a captured connection went nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboundError {
    /// The kernel does not know where it was going.
    #[error("the kernel does not say where this connection was going")]
    OriginalDestination(#[source] io::Error),
    /// It was made to the proxy itself.
    #[error("{0} is the proxy's own port; connect to the destination, not to the proxy")]
    SelfCall(SocketAddr),
    /// It comes from an address that is not the pod's.
    #[error("source address {source_address} does not belong to pod {pod}")]
    ForeignSource {
        /// The address.
        source_address: SocketAddr,
        /// The pod.
        pod: WorkloadName,
    },
    /// The view does not know the pod.
    #[error(
        "the control plane has not described this pod ({0}) within {patience_s} s; is the proxy \
         connected?",
        patience_s = VIEW_PATIENCE.as_secs()
    )]
    Unknown(WorkloadName),
    /// The plan refuses it.
    #[error("{0}")]
    Refused(Refusal),
    /// It cannot be joined to a pod of this node.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// What the client says first cannot be read.
    #[error("cannot read the client's first bytes")]
    FirstBytes(#[source] io::Error),
    /// The destination's name cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The destination cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// There is no descriptor for its other half.
    #[error(transparent)]
    Share(#[from] Box<Crowded>),
    /// Nobody waits for it any more.
    #[error("{0}")]
    Cut(CutReason),
}

impl From<FenceError> for OutboundError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::FirstBytes(error) => Self::FirstBytes(error),
            FenceError::Lookup(error) => Self::Lookup(error),
            FenceError::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

impl OutboundError {
    /// Whether another endpoint may do better.
    fn is_of_the_endpoint(&self) -> bool {
        match self {
            Self::Dial(error) | Self::Local(LocalError::Dial(error)) => error.is_of_the_endpoint(),
            Self::Local(LocalError::Server(_)) => true,
            _ => false,
        }
    }
}

impl Failure for OutboundError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Local(error) => error.flags(),
            Self::Lookup(error) => error.flags(),
            Self::Dial(error) => error.flags(),
            Self::Share(crowded) => crowded.flags(),
            Self::Cut(reason) => reason.flags(),
            Self::ForeignSource { .. } | Self::Refused(Refusal::Undeclared(_)) => {
                ResponseFlags::Deny
            }
            _ => ResponseFlags::Connect,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::OriginalDestination(_) => "no_original_destination",
            Self::SelfCall(_) => "self_call",
            Self::ForeignSource { .. } => "foreign_source",
            Self::Unknown(_) => "unknown_workload",
            Self::Refused(Refusal::NoPort(..)) => "no_port",
            Self::Refused(Refusal::NoEndpoint(_)) => "no_endpoint",
            Self::Refused(Refusal::NoSubset(..)) => "no_subset",
            Self::Refused(Refusal::WaypointMissing { .. }) => "waypoint_missing",
            Self::Refused(Refusal::WaypointRefused { .. }) => "waypoint_refused",
            Self::Refused(Refusal::NoWorkloadAddress(_)) => "no_workload_address",
            Self::Refused(Refusal::OtherNetwork(_)) => "other_network",
            Self::Refused(Refusal::NoAddress(_)) => "no_address",
            Self::Refused(Refusal::ProxyPort(_)) => "self_call",
            Self::Refused(Refusal::NameLeadsInside { .. }) => "name_leads_inside",
            Self::Refused(Refusal::Undeclared(undeclared)) => undeclared.reason(),
            Self::Refused(Refusal::NoHost(..)) => "no_host",
            Self::FirstBytes(_) => "first_bytes",
            Self::Lookup(error) => error.reason(),
            Self::Local(error) => error.reason(),
            Self::Dial(error) => error.reason(),
            Self::Share(crowded) => crowded.reason(),
            Self::Cut(_) => "cut",
        }
    }
}

/// The other half of an established connection.
enum Route {
    Local(local::Joined),
    Tunnel(Box<Tunnel>),
    Direct(TcpStream),
}

/// Serves one captured connection from accept to record.
pub(crate) fn serve(
    thread: Rc<Thread>,
    served: Rc<Served>,
    client: TcpStream,
    peer: SocketAddr,
    held: Permit,
) -> impl Future<Output = ()> {
    in_phases(set_up(thread, served, client, peer, held))
}

/// Finds the other half of a captured connection. What is left is to carry it.
async fn set_up(
    thread: Rc<Thread>,
    served: Rc<Served>,
    client: TcpStream,
    peer: SocketAddr,
    mut held: Permit,
) -> Option<Carrying> {
    // The client's descriptor is held to the end; that of the other half only where there is one.
    let mut other = Some(held.split(1));
    let unknown = SocketAddr::new(peer.ip(), 0);
    let destination = original_destination(&client).map(normalise);
    let to = *destination.as_ref().unwrap_or(&unknown);
    let mut record = Record::new(Reporter::Source, peer, to);
    let captured = destination.map_err(OutboundError::OriginalDestination);
    let mut drain = served.drain.guard();
    let connecting = async {
        let source = identify(&thread, &served, &client, peer, captured?).await?;
        connect(&thread, &served, &source, &client, &mut other, &mut record).await
    };
    let connected = tokio::select! {
        connected = connecting => connected,
        // Nothing knows of it yet that could cut it.
        () = drain.overdue() => Err(OutboundError::Cut(CutReason::PodGone)),
    };
    drop(drain);
    match connected {
        Ok(route) => Some(carry(thread, served, (held, other), client, route, record)),
        Err(error) => {
            // In this order, a client that sees the reset finds the reason in the log.
            record.failed(&thread.plane.tally, &error);
            reset(client);
            None
        }
    }
}

/// The workload behind an accepted connection, and whether its address can be vouched for.
struct Source {
    workload: Arc<Workload>,
    /// The client's address is one that the control plane gave the pod.
    is_known_address: bool,
}

/// Finds out who opened the connection, and refuses what cannot be.
async fn identify(
    thread: &Thread,
    served: &Served,
    client: &TcpStream,
    peer: SocketAddr,
    destination: SocketAddr,
) -> Result<Source, OutboundError> {
    if ports::OF_PROXY.contains(&destination.port()) {
        let own = client.local_addr().map_err(OutboundError::OriginalDestination)?;
        if normalise(own) == destination {
            return Err(OutboundError::SelfCall(destination));
        }
    }
    let pod = &served.own;
    let workload = wait_for_view(&thread.plane.mesh, |view| pod.described_in(view).cloned()).await;
    let workload = workload.ok_or_else(|| OutboundError::Unknown(pod.name.clone()))?;
    demand(thread, &workload, destination.ip()).await;
    let is_known_address = workload.addresses.contains(&peer.ip());
    // A second network interface has an address that the control plane does not know; a forged
    // source address exists nowhere in the pod.
    let exists = || pod.run(|| address_exists(peer.ip())).is_ok_and(|it| it.is_ok_and(|it| it));
    if !is_known_address && !exists() {
        return Err(OutboundError::ForeignSource { source_address: peer, pod: pod.name.clone() });
    }
    Ok(Source { workload, is_known_address })
}

/// If the view is fetched on demand: waits until it has the answer.
async fn demand(thread: &Thread, source: &Workload, ip: IpAddr) {
    let shared = &thread.shared;
    let (network, namespace) = (&source.network, &source.namespace);
    let is_known = || {
        let view = shared.mesh.view.load();
        view.workload_at(network, ip).is_some() || view.service_at(network, ip, namespace).is_some()
    };
    if shared.mesh.demand.is_needed() && !is_known() {
        shared.mesh.demand.address(format!("{network}/{ip}")).await;
    }
}

/// Plans the connection and follows the plan; an endpoint that cannot be reached is set aside and
/// another one is tried, once.
async fn connect(
    thread: &Rc<Thread>,
    served: &Rc<Served>,
    source: &Source,
    stream: &TcpStream,
    other: &mut Option<Permit>,
    record: &mut Record,
) -> Result<Route, OutboundError> {
    let client = record.source.address;
    let destination = record.destination.address;
    record.source.workload = Some(source.workload.clone());
    record.source.identity = Some(served.own.identity.clone());
    let mut first = plan(thread, source, client, destination);
    if let Plan::Fenced(fenced) = &first {
        let network = &source.workload.network;
        // Apart, because few connections need it and all would have room for it.
        let passing = Box::pin(fence::pass(&thread.plane.mesh, network, stream, fenced));
        first = Plan::Direct(passing.await?);
    }
    describe(record, &first);
    let failed = endpoint(&first).cloned();
    let early = Early::of(stream);
    let result = follow(thread, served, source, first, (&early, other), record).await;
    let (Err(error), Some(failed)) = (&result, failed) else { return result };
    if !error.is_of_the_endpoint() {
        return result;
    }
    thread.plane.balance.failed(&failed.uid);
    if early.is_spent() {
        return result;
    }
    let second = plan(thread, source, client, destination);
    if endpoint(&second).is_none_or(|other| other.uid == failed.uid) {
        return result;
    }
    tracing::debug!(%destination, endpoint = %failed.uid, "endpoint set aside; trying another");
    describe(record, &second);
    follow(thread, served, source, second, (&early, other), record).await
}

fn plan(thread: &Thread, source: &Source, client: SocketAddr, destination: SocketAddr) -> Plan {
    let view = thread.plane.mesh.view.load();
    let pods = thread.shared.pods.load();
    let enrolled = |name: &_| pods.by_name(name).map(|pod| &pod.identity);
    let config = &thread.shared.config;
    let mut around = Around {
        balance: &thread.plane.balance,
        view: &view,
        enrolled: &enrolled,
        network: &config.node.network,
        may_join: source.is_known_address && config.same_node == SameNode::Join,
    };
    let flow = Flow { source: &source.workload, source_ip: client.ip(), destination };
    view.plan(&flow, &mut around)
}

/// The endpoint that a plan has chosen.
fn endpoint(plan: &Plan) -> Option<&Arc<Workload>> {
    match plan {
        Plan::Local(target) | Plan::Tunnel(target) => Some(&target.workload),
        Plan::Waypoint { waypoint, .. } => Some(&waypoint.workload),
        Plan::Direct(direct) => direct.workload.as_ref(),
        Plan::Lookup(lookup) => Some(&lookup.workload),
        Plan::Fenced(_) | Plan::Refuse(_) => None,
    }
}

/// Writes down where the plan leads.
fn describe(record: &mut Record, plan: &Plan) {
    let (way, workload, service) = match plan {
        Plan::Local(target) => (Way::Local, Some(&target.workload), target.service.as_ref()),
        Plan::Tunnel(target) => (Way::Tunnel, Some(&target.workload), target.service.as_ref()),
        Plan::Waypoint { waypoint, .. } => {
            (Way::Waypoint, Some(&waypoint.workload), waypoint.service.as_ref())
        }
        Plan::Direct(direct) => (Way::Direct, direct.workload.as_ref(), direct.service.as_ref()),
        Plan::Lookup(lookup) => (Way::Direct, Some(&lookup.workload), Some(&lookup.service)),
        Plan::Fenced(_) | Plan::Refuse(_) => return,
    };
    record.way = way;
    record.destination.workload = workload.cloned();
    record.service = service.cloned();
}

async fn follow(
    thread: &Rc<Thread>,
    served: &Rc<Served>,
    source: &Source,
    plan: Plan,
    (early, other): (&Early<'_>, &mut Option<Permit>),
    record: &mut Record,
) -> Result<Route, OutboundError> {
    match plan {
        Plan::Local(_) | Plan::Direct(_) | Plan::Lookup(_) => keep(other, served)?,
        // A tunnel is no descriptor of its own; the connection that it is in may need this one.
        Plan::Tunnel(_) | Plan::Waypoint { .. } | Plan::Fenced(_) | Plan::Refuse(_) => {
            *other = None;
        }
    }
    match plan {
        Plan::Local(target) => {
            match local::join(thread, served, &target, record).await? {
                Some(joined) => {
                    record.destination.address = target.address;
                    record.destination.identity = Some(joined.identity().clone());
                    Ok(Route::Local(joined))
                }
                // The view is stale; the address's present owner must prove its identity.
                None => {
                    *other = None;
                    through(thread, served, source, &target, (target.address, early), record).await
                }
            }
        }
        Plan::Tunnel(target) => {
            through(thread, served, source, &target, (target.address, early), record).await
        }
        Plan::Waypoint { waypoint, destination } => {
            through(thread, served, source, &waypoint, (destination, early), record).await
        }
        Plan::Direct(Direct { address, .. }) => {
            record.destination.address = address;
            let stream = dial(&served.own, address, &thread.plane.dial_options(None)).await?;
            Ok(Route::Direct(stream))
        }
        Plan::Lookup(lookup) => {
            let looking = Box::pin(look_up(thread, served, source, &lookup, record));
            Ok(Route::Direct(looking.await?))
        }
        // The view has changed meanwhile; the first plan asks the client.
        Plan::Fenced(Fenced { destination, .. }) => {
            Err(OutboundError::Refused(Undeclared::Address(destination).into()))
        }
        Plan::Refuse(refusal) => Err(OutboundError::Refused(refusal)),
    }
}

/// Connects to one of the addresses of a name.
async fn look_up(
    thread: &Thread,
    served: &Served,
    source: &Source,
    lookup: &Lookup,
    record: &mut Record,
) -> Result<TcpStream, OutboundError> {
    let mesh = &thread.plane.mesh;
    let found = mesh.names.addresses(&lookup.host).await?;
    let (network, like) = (&source.workload.network, record.destination.address.ip());
    let admitted = lookup.admitted(&mesh.view.load(), network, &found, like);
    let mut addresses = admitted.map_err(OutboundError::Refused)?;
    in_turn(&mut addresses, mesh.names.turn());
    let options = thread.plane.dial_options(None);
    let tried = |address| record.destination.address = address;
    Ok(dial_first(&served.own, &addresses, &options, tried).await?)
}

/// Takes a descriptor for the other half again, if an endpoint before needed none.
fn keep(other: &mut Option<Permit>, served: &Served) -> Result<(), Box<Crowded>> {
    if other.is_none() {
        *other = Some(served.own.shares.of(Direction::Outbound).take(None, 1)?);
    }
    Ok(())
}

async fn through(
    thread: &Rc<Thread>,
    served: &Rc<Served>,
    source: &Source,
    target: &Target,
    (authority, early): (SocketAddr, &Early<'_>),
    record: &mut Record,
) -> Result<Route, OutboundError> {
    record.destination.address = target.hbone;
    record.authority = Some(authority);
    if record.way == Way::Local {
        record.way = Way::Tunnel;
    }
    let ask = Ask {
        source: &source.workload,
        client: record.source.address,
        authority,
        service: target.service.as_deref(),
        early: Some(early),
    };
    let opened = tunnel::open(&thread.plane, served, target, &ask).await;
    let opened = opened.map_err(|error| match error {
        DialError::Hbone { cause: HboneError::Client(error), .. } => {
            OutboundError::FirstBytes(error)
        }
        error => error.into(),
    })?;
    record.destination.identity = Some(opened.peer.identity.clone());
    record.peer = Some(opened.peer);
    Ok(Route::Tunnel(Box::new(opened.tunnel)))
}

/// Moves the bytes, and ends the records.
fn carry(
    thread: Rc<Thread>,
    served: Rc<Served>,
    held: (Permit, Option<Permit>),
    client: TcpStream,
    route: Route,
    record: Record,
) -> Carrying {
    let endpoint = record.destination.workload.as_ref().map(|workload| workload.uid.clone());
    let counted = endpoint.map(|uid| {
        thread.plane.balance.succeeded(&uid);
        thread.plane.balance.open(&uid)
    });
    let to_the_end = (held, counted);
    let client = SocketEnd::new(client);
    let enter = || thread.plane.connections.enter(vec![served.own.clone()], None, None);
    match route {
        Route::Local(joined) => joined.carry(&thread, &served, client, record, to_the_end),
        Route::Tunnel(tunnel) => {
            let (ends, records) = ((client, *tunnel), vec![record]);
            Box::pin(phases::carry(enter(), ends, records, &thread.plane.tally, to_the_end))
        }
        Route::Direct(server) => {
            let accounts = thread.plane.mesh.memory.outbound(&served.own.uid);
            let ends = (client.on(accounts.clone()), SocketEnd::new(server).on(accounts));
            let records = vec![record];
            Box::pin(phases::carry(enter(), ends, records, &thread.plane.tally, to_the_end))
        }
    }
}
