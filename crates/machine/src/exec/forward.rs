//! Connections of the host to ports of pods: `ambit port-forward`.
//!
//! The caller accepts, and passes the socket through the machine to the init of the pod, which
//! connects it within the pod's own network, as a kubelet does. So no policy is asked: who may run
//! commands in a pod may also connect from within it.

use std::os::fd::{AsFd, BorrowedFd};

use ambit_net::nftables::Protocol;

use super::call::{Call, ExecError, ForwardRequest, answer_of, call, connect, find};
use crate::client::PodInfo;
use crate::layout::Layout;
use crate::node::services::views;
use crate::objects::{Kind, ObjectRef};
use crate::state::{Machine, Objects};

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
