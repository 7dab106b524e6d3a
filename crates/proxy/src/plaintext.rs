//! Plaintext: connections to a pod of this proxy from outside the mesh, from accept to record.
//!
//! The client proves nothing here, so it has no identity: a policy that demands one (STRICT)
//! refuses it. If the connection is allowed, the application is dialled from the client's own
//! address.
//!
//! The sender of a packet writes its destination, and a neighbour can write anything there. So the
//! only address that is ever dialled is one that the pod has and that others can reach.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use ambit_dataplane::connections::CutReason;
use ambit_dataplane::descriptors::Permit;
use ambit_dataplane::dial::{DialError, dial};
use ambit_dataplane::failure::{Failure, ResponseFlags};
use ambit_dataplane::judgement::{Allowed, Refused, admit};
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::reset;
use ambit_dataplane::record::{Record, Way};
use ambit_model::address::Reach;
use ambit_model::authorize::Source;
use ambit_net::copy::SocketEnd;
use ambit_net::socket::{address_exists, normalise, original_destination};
use tokio::net::TcpStream;

use crate::phases::{self, Carrying, in_phases};
use crate::thread::Thread;

/// Why a plain connection was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaintextError {
    /// The kernel does not know where it was going.
    #[error("the kernel does not say where this connection was going")]
    OriginalDestination(#[source] io::Error),
    /// It was made to the proxy itself.
    #[error("{0} is the proxy's own port; connect to the application's")]
    SelfCall(SocketAddr),
    /// Its packets came to the pod, and name another address.
    #[error("{0} is no address of this pod that others reach; connect to the pod's own")]
    WrongAddress(SocketAddr),
    /// It may not come in.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The application cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It was cut while it was set up.
    #[error(transparent)]
    Cut(CutReason),
}

impl Failure for PlaintextError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::OriginalDestination(_) | Self::SelfCall(_) | Self::WrongAddress(_) => {
                ResponseFlags::Connect
            }
            Self::Refused(refused) => refused.flags(),
            Self::Dial(error) => error.flags(),
            Self::Cut(reason) => reason.flags(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::OriginalDestination(_) => "no_original_destination",
            Self::SelfCall(_) => "self_call",
            Self::WrongAddress(_) => "wrong_address",
            Self::Refused(refused) => refused.reason(),
            Self::Dial(error) => error.reason(),
            Self::Cut(_) => "cut",
        }
    }
}

/// Serves one plain connection from accept to record.
pub(crate) fn serve(
    thread: Rc<Thread>,
    served: Rc<Served>,
    client: TcpStream,
    peer: SocketAddr,
    held: Permit,
) -> impl Future<Output = ()> {
    in_phases(set_up(thread, served, client, peer, held))
}

/// Finds the other half of a plain connection. What is left is to carry it.
async fn set_up(
    thread: Rc<Thread>,
    served: Rc<Served>,
    client: TcpStream,
    peer: SocketAddr,
    held: Permit,
) -> Option<Carrying> {
    let unknown = SocketAddr::new(peer.ip(), 0);
    let destination = original_destination(&client).map(normalise);
    let to = *destination.as_ref().unwrap_or(&unknown);
    let mut record = Record::new(Reporter::Destination, peer, to);
    record.way = Way::Direct;
    let admitted = match destination {
        Ok(to) => connect(&thread, &served, &client, to, &mut record).await,
        Err(error) => Err(PlaintextError::OriginalDestination(error)),
    };
    match admitted {
        Ok((allowed, server)) => {
            let accounts = thread.plane.mesh.memory.inbound(&served.own.uid, None, peer.ip());
            let client = SocketEnd::new(client).on(accounts.clone());
            let server = SocketEnd::new(server).on(accounts);
            let (ends, records) = ((client, server), vec![record]);
            let tally = &thread.plane.tally;
            Some(Box::pin(phases::carry(allowed.entered, ends, records, tally, held)))
        }
        Err(error) => {
            record.failed(&thread.plane.tally, &error);
            reset(client);
            None
        }
    }
}

/// Judges the connection and dials the application.
async fn connect(
    thread: &Thread,
    served: &Served,
    client: &TcpStream,
    destination: SocketAddr,
    record: &mut Record,
) -> Result<(Allowed, TcpStream), PlaintextError> {
    let own = client.local_addr().map_err(PlaintextError::OriginalDestination)?;
    if normalise(own) == destination {
        return Err(PlaintextError::SelfCall(destination));
    }
    let from = record.source.address;
    {
        let view = thread.plane.mesh.view.load();
        let network = &thread.shared.config.node.network;
        record.source.workload = view.workload_at(network, from.ip()).cloned();
        record.destination.workload = served.own.described_in(&view).cloned();
    }
    if Reach::of(destination.ip()) != Reach::Far {
        return Err(PlaintextError::WrongAddress(destination));
    }
    let enter =
        |judged| thread.plane.connections.enter(vec![served.own.clone()], Some(judged), None);
    let source = Source::new(None, from.ip());
    let allowed = admit(&thread.plane.mesh, &served.own, source, destination, enter).await?;
    record.destination.workload = Some(allowed.workload.clone());
    record.allowed_by.clone_from(&allowed.by);
    // After the wait for policies: what is not here any more would be dialled elsewhere.
    let exists = served.own.run(|| address_exists(destination.ip()));
    if !exists.and_then(|exists| exists).map_err(DialError::Socket)? {
        return Err(PlaintextError::WrongAddress(destination));
    }
    let options = thread.plane.dial_options(thread.plane.original_source(from, destination));
    let server = tokio::select! {
        dialled = dial(&served.own, destination, &options) => dialled?,
        reason = allowed.entered.cut_off() => return Err(PlaintextError::Cut(reason)),
    };
    Ok((allowed, server))
}
