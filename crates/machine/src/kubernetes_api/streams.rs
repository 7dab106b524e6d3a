//! Streams: commands in pods, and connections to their ports, as kubectl's `exec`, `cp` and
//! `port-forward` want them.
//!
//! A request is answered in full before its connection becomes a stream: whether there is the pod,
//! its container, and a protocol that both know. From then on the stream says what goes wrong. Its
//! bytes go through this thread of the machine, so streams have bounds and hold up nobody else.

mod command;
mod port_forward;
mod spdy;
mod spdy_command;
mod upgrade;
mod web_socket;

use std::sync::Arc;

use ambit_kubeapi::Status;
use ambit_kubeapi::streams::{
    CHANNELS_V4, CHANNELS_V5, Exec, PORT_FORWARD, PORT_FORWARD_TUNNEL, PortForward,
};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;

use self::upgrade::Upgrade;
use super::body::Body;
use super::content;
use super::server::Server;
use crate::client::PodInfo;
use crate::exec::{ended, find};
use crate::state::Machine;

/// How many bytes of a tunnel wait each way.
const TUNNEL_SIZE_BYTES: usize = 64 << 10;

/// Runs a command for the connection of a request.
pub(super) async fn exec(
    server: &Arc<Server>,
    exec: Exec,
    request: &mut Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let held = room(server)?;
    let web_socket = [CHANNELS_V5, CHANNELS_V4];
    let upgrade = Upgrade::of(request.method(), request.headers(), &web_socket, &[CHANNELS_V4])?;
    let machine = Arc::clone(&server.machine);
    let (pod, exec) = look(move || command_of(&machine, exec)).await?;
    let (machine, is_web_socket) = (Arc::clone(&server.machine), upgrade.is_web_socket());
    carry(held, request, move |connection| async move {
        let run = |incoming, outgoing| command::run(&machine, &pod, &exec, incoming, outgoing);
        match is_web_socket {
            true => web_socket::command(connection, run).await,
            false => spdy_command::command(connection, &exec, run).await,
        }
    });
    Ok(upgrade.response())
}

/// Connects to ports of a pod for the connection of a request.
pub(super) async fn port_forward(
    server: &Arc<Server>,
    of: PortForward,
    request: &mut Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let held = room(server)?;
    let (web_socket, spdy) = ([PORT_FORWARD_TUNNEL], [PORT_FORWARD]);
    let upgrade = Upgrade::of(request.method(), request.headers(), &web_socket, &spdy)?;
    let machine = Arc::clone(&server.machine);
    let pod = look(move || {
        content::stored_pod(&machine, &of.namespace, &of.pod)?;
        running(&machine, &of.namespace, &of.pod)
    });
    let pod = pod.await?;
    let (machine, room) = (Arc::clone(&server.machine), Arc::clone(&server.forwards));
    let connect = port_forward::connect_within(Arc::clone(&machine), pod.clone());
    let is_web_socket = upgrade.is_web_socket();
    carry(held, request, move |connection| async move {
        let serving = async {
            if is_web_socket {
                let (near, far) = tokio::io::duplex(TUNNEL_SIZE_BYTES);
                let serving = async {
                    port_forward::serve(near, &pod.name, connect, room).await;
                    std::future::pending().await
                };
                // A tunnel also ends when nothing is served in it any more.
                tokio::select! {
                    () = web_socket::tunnel(connection, far) => {}
                    () = serving => {}
                }
            } else {
                port_forward::serve(connection, &pod.name, connect, room).await;
            }
        };
        // kubectl learns by the end of the connection that the pod has ended, also without any
        // connection of its own.
        tokio::select! {
            () = serving => {}
            () = ended(&machine, &pod) => {}
        }
    });
    Ok(upgrade.response())
}

/// Carries the connection of a request when it is no longer one.
fn carry<F: Future<Output = ()> + Send>(
    held: OwnedSemaphorePermit,
    request: &mut Request<Incoming>,
    carry: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) {
    let upgraded = hyper::upgrade::on(request);
    drop(tokio::spawn(async move {
        let _held = held;
        match upgraded.await {
            Ok(connection) => carry(TokioIo::new(connection)).await,
            Err(error) => tracing::debug!(%error, "a client left before its stream began"),
        }
    }));
}

fn room(server: &Server) -> Result<OwnedSemaphorePermit, Status> {
    let busy = |_| Status::too_many("too many commands and port-forwards at once; try again");
    Arc::clone(&server.sessions).try_acquire_owned().map_err(busy)
}

/// Looks at the machine's objects, which may be held for long.
async fn look<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let looking = tokio::task::spawn_blocking(look);
    looking.await.map_err(|_| Status::internal("the objects could not be read"))?
}

/// The pod of a command, and the command with its container.
fn command_of(machine: &Machine, mut exec: Exec) -> Result<(PodInfo, Exec), Status> {
    let stored = content::stored_pod(machine, &exec.namespace, &exec.pod)?;
    let container = content::container(&stored, &exec.pod, exec.container.as_deref())?;
    let pod = running(machine, &exec.namespace, &exec.pod)?;
    exec.container = Some(container);
    Ok((pod, exec))
}

/// A pod that runs.
fn running(machine: &Machine, namespace: &str, name: &str) -> Result<PodInfo, Status> {
    let pods = machine.objects().pods(&machine.layout);
    find(&pods, namespace, name, None).cloned().map_err(Status::bad_request)
}
