//! Local: a connection between two pods of the same proxy, joined without a tunnel.
//!
//! The client's identity comes from its namespace, which it cannot forge. The server is checked in
//! three ways before a byte moves: the plan found the enrolled identity equal to the view's, the
//! policies of the server allow the client, and the address exists in the server's namespace at the
//! moment of dialling. If the last check fails, the connection is not joined. It ends when a
//! certificate of either pod is revoked, although neither is shown.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_dataplane::certificates::{CertificateError, Chain};
use ambit_dataplane::connections::CutReason;
use ambit_dataplane::dial::{CONNECT_TIMEOUT, DialError};
use ambit_dataplane::failure::{Failure, ResponseFlags};
use ambit_dataplane::judgement::{Allowed, Refused, admit};
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::own::Served;
use ambit_dataplane::record::Record;
use ambit_model::authorize::Source;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_model::plan::Target;
use ambit_net::copy::SocketEnd;
use ambit_net::kernel_path::Sender;
use ambit_net::socket::{Dialing, address_exists, original_destination, tcp_dial};
use futures::FutureExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::phases::{self, Carrying};
use crate::pods::Pod;
use crate::thread::Thread;

/// How long a server whose certificate is revoked is waited for: another endpoint may be there.
const SERVER_PATIENCE: Duration = Duration::from_secs(1);

/// Why a connection was not joined to a pod of this proxy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    /// The policies of that pod deny it.
    #[error(transparent)]
    Denied(#[from] Refused),
    /// The server's certificate is revoked, and no other has come.
    #[error("the server on this node has no certificate any more")]
    Server(#[source] CertificateError),
    /// The application cannot be reached.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It was cut while it was set up.
    #[error(transparent)]
    Cut(CutReason),
}

impl Failure for LocalError {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Denied(refused) => refused.flags(),
            Self::Server(_) => ResponseFlags::CertificateRevoked,
            Self::Dial(error) => error.flags(),
            Self::Cut(reason) => reason.flags(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Denied(refused) => refused.reason(),
            Self::Server(_) => "revoked",
            Self::Dial(error) => error.reason(),
            Self::Cut(_) => "cut",
        }
    }
}

/// An established connection to a pod of this proxy.
pub(crate) struct Joined {
    server: TcpStream,
    pod: Arc<Pod>,
    allowed: Allowed,
}

/// Connects to a pod of this proxy, if the policies there allow it; `None` when the pod is not, or
/// no longer, what the view takes it for. `record` is the client's; the server's is made of it.
pub(crate) async fn join(
    thread: &Thread,
    served: &Served,
    target: &Target,
    record: &Record,
) -> Result<Option<Joined>, LocalError> {
    let name = WorkloadName::new(target.workload.namespace.clone(), target.workload.name.clone());
    let pod = thread.shared.pods.load().by_name(&name).cloned();
    let Some(pod) = pod.filter(|pod| pod.identity == target.workload.identity()) else {
        return Ok(None);
    };
    let joined = connect(thread, served, &pod, target.address, record.source.address).await;
    if let Err(error) = &joined {
        let mut of_server = record.clone();
        of_server.reporter = Reporter::Destination;
        of_server.destination.address = target.address;
        of_server.destination.identity = Some(pod.identity.clone());
        of_server.failed(&thread.plane.tally, error);
    }
    joined
}

async fn connect(
    thread: &Thread,
    served: &Served,
    pod: &Arc<Pod>,
    address: SocketAddr,
    client: SocketAddr,
) -> Result<Option<Joined>, LocalError> {
    let source = Source::new(Some(served.own.identity.clone()), client.ip());
    let enter = |judged| {
        let both = vec![served.own.clone(), pod.clone()];
        thread.plane.connections.enter(both, Some(judged), None)
    };
    // Before the judgement, so that nothing is waited for between that and the dial.
    let chains = chains(thread, served, pod).await?;
    let allowed = admit(&thread.plane.mesh, pod, source, address, enter).await?;
    allowed.entered.depend_on(chains);
    // Whoever takes the pod out of the mesh cuts what has entered. What enters later looks itself.
    let now = thread.shared.pods.load();
    if !now.by_name(&pod.name).is_some_and(|now| Arc::ptr_eq(now, pod)) {
        return Ok(None);
    }
    drop(now);
    let Some(dialing) = dial_at(thread, pod, address, client)? else { return Ok(None) };
    let connecting = timeout(CONNECT_TIMEOUT, dialing.connected());
    let connected = tokio::select! {
        connected = connecting => connected,
        reason = allowed.entered.cut_off() => return Err(LocalError::Cut(reason)),
    };
    let server = match connected {
        Ok(Ok(server)) => server,
        Ok(Err(cause)) => return Err(DialError::Connect { address, cause }.into()),
        Err(_) => return Err(DialError::Timeout(address).into()),
    };
    Ok(Some(Joined { server, pod: pod.clone(), allowed }))
}

/// The certificates of both pods. Neither is shown, for the proxy serves both: but what is revoked
/// here ends as it does between two nodes. A pod that has got no certificate yet may go on.
async fn chains(thread: &Thread, served: &Served, pod: &Pod) -> Result<Vec<Chain>, LocalError> {
    let certificates = &thread.plane.mesh.certificates;
    let client = async {
        let chain = certificates.chain_of(&served.own.identity).await;
        chain.map_err(|error| LocalError::Dial(error.into()))
    };
    let server = async {
        let chain = timeout(SERVER_PATIENCE, certificates.chain_of(&pod.identity)).await;
        match chain {
            Ok(chain) => chain.map_err(LocalError::Server),
            Err(_) => Err(LocalError::Server(CertificateError::Timeout(pod.identity.clone()))),
        }
    };
    let (client, server) = tokio::try_join!(client, server)?;
    Ok(client.into_iter().chain(server).collect())
}

/// Connects in the server's namespace, unless the address is not there: without this check a
/// stale view could lead out of that namespace, to the address's present owner.
fn dial_at(
    thread: &Thread,
    pod: &Pod,
    address: SocketAddr,
    client: SocketAddr,
) -> Result<Option<Dialing>, DialError> {
    let options = thread.plane.dial_options(thread.plane.original_source(client, address));
    let made = pod.run(|| {
        if address_exists(address.ip())? { tcp_dial(address, &options).map(Some) } else { Ok(None) }
    });
    made.and_then(|made| made).map_err(DialError::Socket)
}

impl Joined {
    /// Who the server is, as the agent enrolled it.
    pub(crate) fn identity(&self) -> &Identity {
        &self.pod.identity
    }

    /// Moves the bytes, or has the kernel move them; both pods' records report it.
    pub(crate) fn carry(
        self,
        thread: &Rc<Thread>,
        served: &Served,
        client: SocketEnd,
        mut record: Record,
        held: impl Sized + 'static,
    ) -> Carrying {
        let accounts = thread.plane.mesh.memory.outbound(&served.own.uid);
        let mut server = SocketEnd::new(self.server).on(accounts.clone());
        let mut client = client.on(accounts);
        let ways = thread.shared.kernel_path.as_ref().and_then(|path| {
            let (of_client, of_server) = senders(served, &self.pod, &client, &server).ok()?;
            Some((Rc::new(path.shortcut(of_client)), Rc::new(path.shortcut(of_server))))
        });
        if let Some((there, back)) = &ways {
            self.allowed.entered.count_past(there.clone(), back.clone());
            (client, server) = (client.past(back.clone()), server.past(there.clone()));
        }
        record.allowed_by = self.allowed.by;
        let mut of_server = record.clone();
        of_server.reporter = Reporter::Destination;
        let (ends, records) = ((client, server), vec![record, of_server]);
        let (entered, tally) = (self.allowed.entered, &thread.plane.tally);
        let carrying = phases::carry(entered, ends, records, tally, held);
        let Some((there, back)) = ways else { return Box::pin(carrying) };
        let shared = thread.shared.clone();
        Box::pin(carrying.map(move |()| shared.metrics.past(there.bytes() + back.bytes())))
    }
}

/// The applications' sockets, as they see their addresses: the client's before its redirect.
fn senders(
    served: &Served,
    pod: &Pod,
    client: &SocketEnd,
    server: &SocketEnd,
) -> io::Result<(Sender, Sender)> {
    let (client, server) = (client.stream(), server.stream());
    let of_client = Sender {
        local: client.peer_addr()?,
        remote: original_destination(client)?,
        netns: served.own.netns.clone(),
    };
    let of_server = Sender {
        local: server.peer_addr()?,
        remote: server.local_addr()?,
        netns: pod.netns.clone(),
    };
    Ok((of_client, of_server))
}
