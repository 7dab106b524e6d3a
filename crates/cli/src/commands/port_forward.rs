//! `ambit port-forward`: ports of this computer that lead to a pod, for as long as this runs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ambit_machine::layout::Layout;
use ambit_machine::{ExecError, ForwardRequest};
use ambit_manifest::Kind;
use ambit_net::sys::process::{open_files_limit, raise_open_files_limit};
use anyhow::{Context, Result, bail};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

use super::inside::{Meant, meant};
use crate::args::{PortForwardArgs, Ports};

/// Connections at once; others wait.
const CONNECTIONS_MAX: usize = 1024;
/// A connection has two descriptors; as many are left to all else.
const DESCRIPTORS_EACH: usize = 4;
/// Wait before a socket that cannot accept is tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Opens the ports, and carries what comes until it is stopped or the machine is gone.
pub(super) async fn run(args: PortForwardArgs) -> Result<ExitCode> {
    if args.kube.is_meant() {
        bail!("in a cluster this is kubectl's job: `kubectl port-forward -n NAMESPACE POD PORT`");
    }
    let layout = super::layout(&args.state);
    let Meant { namespace, name, owner } =
        meant(&args.pod, args.namespace.as_deref(), &[Kind::Service])?;
    let request = |port| ForwardRequest {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        kind: owner.map(|kind| kind.name().to_owned()),
        port,
    };
    for ports in &args.ports {
        ambit_machine::find_port(&layout, &request(ports.remote)).await?;
    }
    let mut open = Vec::new();
    for ports in &args.ports {
        for address in &args.address {
            open.push((listen(*address, *ports).await?, ports.remote));
        }
    }
    raise_open_files_limit().context("raise the limit of open files")?;
    let room = CONNECTIONS_MAX.min(open_files_limit() / DESCRIPTORS_EACH);
    let room = Arc::new(Semaphore::new(room));
    let (lost, mut first_lost) = mpsc::channel(1);
    for (listener, port) in open {
        super::print_text(&format!("Forwarding from {} -> {port}\n", listener.local_addr()?))?;
        let way = Way { layout: layout.clone(), request: request(port), lost: lost.clone() };
        tokio::spawn(carry(listener, Arc::new(way), Arc::clone(&room)));
    }
    let first = request(args.ports.first().map_or(0, |ports| ports.remote));
    // The channel is open as long as `lost` is here.
    tokio::select! {
        error = first_lost.recv() => Err(error.context("nothing ends without a reason")?.into()),
        ended = end(&layout, &first) => {
            ended?;
            bail!("pod {namespace}/{name} has ended")
        }
    }
}

/// Waits for the end of a pod that is named. What makes pods has no end: others come.
async fn end(layout: &Layout, request: &ForwardRequest) -> Result<()> {
    if request.kind.is_none() && ambit_machine::pod_end(layout, request).await? {
        return Ok(());
    }
    std::future::pending().await
}

/// Whether nobody listens there any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

async fn listen(address: IpAddr, ports: Ports) -> Result<TcpListener> {
    let at = SocketAddr::new(address, ports.local);
    let remedy = || format!("cannot listen at {at}; choose another port, as in :{}", ports.remote);
    TcpListener::bind(at).await.with_context(remedy)
}

/// Where connections of a port lead.
struct Way {
    layout: Layout,
    request: ForwardRequest,
    /// Where it is told that there is no machine any more.
    lost: mpsc::Sender<ExecError>,
}

async fn carry(listener: TcpListener, way: Arc<Way>, room: Arc<Semaphore>) {
    loop {
        let held = Arc::clone(&room).acquire_owned().await.expect("nobody closes it");
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                eprintln!("warning: cannot accept; waiting: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let way = Arc::clone(&way);
        tokio::spawn(async move {
            match ambit_machine::forward(&way.layout, &way.request, socket).await {
                Ok(()) => {}
                Err(ExecError::Unreachable { socket, source }) if is_gone(&source) => {
                    // One is enough.
                    let _told = way.lost.try_send(ExecError::Unreachable { socket, source });
                }
                Err(error) => {
                    let error = ambit_words::error_chain(&error);
                    eprintln!("error: port {}: {error}", way.request.port);
                }
            }
            drop(held);
        });
    }
}
