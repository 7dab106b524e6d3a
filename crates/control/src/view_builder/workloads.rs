//! Pods to workloads.
//!
//! A pod gets HBONE only when the node agent reports that it captured this very pod, by its uid; a
//! report about an earlier pod with the same name means nothing. Nothing here may invent an address
//! or a readiness.

use std::net::IpAddr;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::Position;
use ambit_model::workload::{Tunnel, Workload};
use ambit_wire::capture::Obstacle;

use super::Mesh;
use super::entries::canonical;
use super::gateways::{Gateways, Naming};
use super::records::{NamespaceRecord, NodeRecord, PodRecord};
use crate::registry::{CaptureNotes, PodStatus};

/// The name of a pod's workload in the view.
pub(crate) fn pod_uid(mesh: &Mesh, name: &ObjectName) -> String {
    format!("{}//Pod/{}/{}", mesh.cluster_id, name.namespace, name.name)
}

/// What is known about a pod besides its object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodState {
    /// Its node's report about it.
    pub(crate) status: Option<PodStatus>,
    /// The uid of the incarnation that the node agent captured.
    pub(crate) captured: Option<ambit_model::Text>,
    /// That agent's notes about it.
    pub(crate) notes: CaptureNotes,
    /// Why the agent could not capture the incarnation with that uid.
    pub(crate) obstacle: Option<Box<(ambit_model::Text, Obstacle)>>,
}

impl PodState {
    /// The status of this incarnation of the pod.
    pub(crate) fn status_of<'a>(&'a self, pod: &'a PodRecord) -> Option<&'a PodStatus> {
        let told = self.status.as_ref().filter(|status| *status.uid == *pod.uid);
        told.or(pod.own_status.as_ref())
    }

    /// Whether this incarnation of the pod runs, or may still come to run.
    pub(crate) fn may_run(&self, pod: &PodRecord) -> bool {
        self.status_of(pod).is_none_or(|status| !is_terminal(&status.phase))
    }

    /// The addresses that belong to this pod alone while this incarnation runs.
    pub(crate) fn own_addresses<'a>(&'a self, pod: &'a PodRecord) -> &'a [IpAddr] {
        let runs = |status: &&PodStatus| !pod.host_network && !is_terminal(&status.phase);
        self.status_of(pod).filter(runs).map_or(&[], |status| &status.pod_ips)
    }

    /// Whether this incarnation of the pod is captured.
    pub(crate) fn is_captured(&self, pod: &PodRecord) -> bool {
        let told = self.captured.as_ref().is_some_and(|uid| *uid == pod.uid && !uid.is_empty());
        told || pod.is_annotated_captured
    }

    /// What the node agent reports about this incarnation of the pod, besides its capture.
    pub(crate) fn notes<'a>(&'a self, pod: &'a PodRecord) -> &'a CaptureNotes {
        let told = self.captured.as_ref().is_some_and(|uid| *uid == pod.uid);
        if told { &self.notes } else { &pod.notes }
    }

    /// Why the node agent could not capture this incarnation of the pod, if it says so.
    pub(crate) fn obstacle<'a>(&'a self, pod: &'a PodRecord) -> Option<&'a Obstacle> {
        let told = self.obstacle.as_deref().filter(|(uid, _)| *uid == pod.uid);
        told.map(|(_, obstacle)| obstacle).or(pod.obstacle.as_deref())
    }
}

/// Whether a pod in this phase will never run again.
fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// The workload of a pod, without services and policies; `None` while it has no address or when it
/// has ended.
pub(crate) fn build(
    mesh: &Mesh,
    name: &ObjectName,
    pod: &PodRecord,
    state: &PodState,
    node: Option<&NodeRecord>,
    namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> Option<Workload> {
    let status = state.status_of(pod)?;
    if status.pod_ips.is_empty() || is_terminal(&status.phase) {
        return None;
    }
    let mut workload =
        Workload::named(pod_uid(mesh, name), name.namespace.clone(), name.name.clone());
    workload.addresses = addresses(&status.pod_ips).into();
    let is_captured = state.is_captured(pod) && !pod.host_network;
    // A waypoint serves HBONE itself; a gateway at the edge does not.
    let of_gateway = gateways.of_pod(&name.namespace, pod).map(|(_, position)| position);
    let serves = is_captured || of_gateway == Some(Position::Waypoint);
    workload.tunnel = if serves { Tunnel::Hbone } else { Tunnel::None };
    workload.trust_domain = mesh.trust_domain.clone();
    workload.service_account = pod.service_account.clone();
    let naming = Naming {
        namespace: &name.namespace,
        labels: &pod.labels,
        of_namespace: &namespace.labels,
        is_workload: true,
    };
    workload.waypoint = gateways.waypoint(mesh, &naming).map(Arc::new);
    workload.node = pod.node.clone();
    workload.kind = pod.kind;
    workload.workload_name = pod.owner.clone();
    (workload.canonical_name, workload.canonical_revision) = canonical(&pod.labels, &pod.owner);
    workload.healthy = status.ready && !pod.is_ending;
    workload.cluster_id = mesh.cluster_id.clone();
    workload.locality = node.map(|node| Arc::new(node.locality.clone())).unwrap_or_default();
    workload.host_network = pod.host_network;
    Some(workload)
}

fn addresses(ips: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses = ips.to_vec();
    addresses.sort();
    addresses.dedup();
    addresses
}
