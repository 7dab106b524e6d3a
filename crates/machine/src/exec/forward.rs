//! Connections of the host to ports of pods: `ambit port-forward`.
//!
//! The caller accepts, and passes the socket through the machine to the init of the pod, which
//! connects it within the pod's own network, as a kubelet does. So no policy is asked: who may run
//! commands in a pod may also connect from within it.

use std::os::fd::{AsFd, BorrowedFd};

use ambit_net::nftables::Protocol;
use ambit_net::seqpacket::Connection;

use super::call::{Call, ExecError, ForwardRequest, answer_of, call, connect, find};
use crate::client::PodInfo;
use crate::layout::Layout;
use crate::node::ask_pod;
use crate::node::services::views;
use crate::objects::{Kind, ObjectRef};
use crate::pod::{ExecAnswer, PACKET_SIZE_MAX_BYTES, PodRequest, PodState, answer};
use crate::registry::Phase;
use crate::state::{Machine, Objects};

/// What the machine answers who waits for an end: the pod has ended, or it is not one pod.
const ENDED: i32 = 0;
const MANY: i32 = 1;

/// Whether there is a pod to connect to.
pub async fn find_port(layout: &Layout, request: &ForwardRequest) -> Result<(), ExecError> {
    ask(layout, request, &[]).await
}

/// Connects a socket, and waits for the end of both ways. The connection is cut when this is
/// dropped.
pub async fn forward(
    layout: &Layout,
    request: &ForwardRequest,
    socket: impl AsFd,
) -> Result<(), ExecError> {
    ask(layout, request, &[socket.as_fd()]).await
}

/// Waits for the end of the pod that a request names. Answers at once, with `false`, if it names
/// something that makes pods, which are replaced.
pub async fn pod_end(layout: &Layout, request: &ForwardRequest) -> Result<bool, ExecError> {
    let connection = connect(layout).await?;
    call(&connection, &Call::End(request.clone()), &[]).await?;
    Ok(answer_of(&connection).await? == ENDED)
}

/// The machine's part of it; the caller is told at the end, if it waits so long.
pub(super) async fn tell_end(
    machine: &Machine,
    request: &ForwardRequest,
    caller: &Connection,
) -> Result<(), String> {
    let (pod, _) = resolve(machine, request)?;
    let is_it = request.kind.is_none() && pod.name == request.name;
    let mut nothing = [0; 1];
    tokio::select! {
        () = ended(machine, &pod), if is_it => answer(caller, &ExecAnswer::Exit(ENDED)).await,
        () = answer(caller, &ExecAnswer::Exit(MANY)), if !is_it => {}
        // It sends nothing: this is its end.
        _gone = caller.receive(&mut nothing), if is_it => {}
    }
    Ok(())
}

/// Waits until nothing of a pod's containers will run any more, or its init is gone.
pub(crate) async fn ended(machine: &Machine, pod: &PodInfo) {
    let socket = machine.layout.pod_socket(&pod.node, &pod.uid);
    let Ok(following) = ask_pod(&socket, &PodRequest::Follow, &[]).await else { return };
    let mut buffer = vec![0; PACKET_SIZE_MAX_BYTES];
    while let Ok(packet) = following.receive(&mut buffer).await {
        let state = serde_json::from_slice::<PodState>(&buffer[..packet.length]);
        if state.is_ok_and(|it| matches!(it.phase, Phase::Succeeded | Phase::Failed)) {
            return;
        }
    }
}

async fn ask(
    layout: &Layout,
    request: &ForwardRequest,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ExecError> {
    let connection = connect(layout).await?;
    call(&connection, &Call::Forward(request.clone()), fds).await?;
    answer_of(&connection).await.map(drop)
}

/// The pod that a request means, and its port.
pub(super) fn resolve(
    machine: &Machine,
    request: &ForwardRequest,
) -> Result<(PodInfo, u16), String> {
    let objects = machine.objects();
    let pods = objects.pods(&machine.layout);
    let ForwardRequest { namespace, name, kind, port } = request;
    if kind.as_deref() == Some(Kind::Service.name()) {
        return behind(&objects, pods, namespace, name, *port);
    }
    find(&pods, namespace, name, kind.as_deref()).map(|pod| (pod.clone(), *port))
}

/// A pod behind a port of a service, ready ones first.
fn behind(
    objects: &Objects,
    pods: Vec<PodInfo>,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<(PodInfo, u16), String> {
    let Objects { store, reported, .. } = objects;
    let is_near = |it: &ObjectRef| it.namespace.as_deref() == Some(namespace);
    let services = store.of_plural("services");
    let services = services.filter(|(it, _)| is_near(it) && it.name == name);
    let near = store.of_plural("pods").filter(|(it, _)| is_near(it));
    let service = views(services, near, reported).into_iter().next();
    let service = service.ok_or_else(|| format!("there is no service {namespace}/{name}"))?;
    let at = service.port(Protocol::Tcp, port)?;
    let leads: Vec<_> = service.endpoints.iter().filter_map(|it| it.at(at)).collect();
    let found = pods.into_iter().filter_map(|pod| {
        let lead = leads.iter().find(|lead| pod.pod_ips.contains(&lead.ip()));
        lead.map(|lead| (pod, lead.port()))
    });
    let found = found.min_by_key(|(pod, _)| pod.rank());
    found.ok_or_else(|| format!("service {namespace}/{name} has no pod"))
}
