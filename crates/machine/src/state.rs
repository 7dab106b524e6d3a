//! What process 1 of a machine knows: its objects, what the nodes report, its programs.
//!
//! Commands change objects here, and the controllers follow up; both under one lock that is never
//! held across a wait.

use std::collections::BTreeMap;
use std::sync::Mutex;

use ambit_net::capture::Capture;
use ambit_net::namespace::NetNs;
use ambit_words::names::UNSCHEDULABLE;
use tokio::sync::Notify;

use super::client::{NodeInfo, PodInfo};
use super::record::Record;
use super::roles::{Role, Roles};
use crate::addresses::NodeNetwork;
use crate::controller::{self, text};
use crate::layout::Layout;
use crate::objects::{Admission, ObjectRef, Store, StoreError};
use crate::registry::{Mirror, Phase, timestamp};

/// Steps after which the controllers must have come to rest.
const STEPS_MAX: usize = 10_000;

/// Where in a pod object it says whether a node takes it, and why not.
const SCHEDULED: &str = "/status/conditions/0/status";
const WHY_NOT: &str = "/status/conditions/0/message";

/// Everything that the machine's tasks share.
pub(super) struct Machine {
    pub(super) layout: Layout,
    pub(super) record: Record,
    pub(super) roles: Roles,
    pub(super) role_list: Vec<Role>,
    pub(super) members: BTreeMap<String, NetNs>,
    /// The fabric's namespace, where captures are taken.
    pub(super) fabric: NetNs,
    pub(super) capture: Mutex<Option<Capture>>,
    pub(super) objects: Mutex<Objects>,
    /// Wakes the controllers after a command.
    pub(super) changed: Notify,
    /// Ends the machine.
    pub(super) end: Notify,
}

/// Objects and what the nodes report about them.
pub(super) struct Objects {
    pub(super) store: Store,
    pub(super) reported: Mirror,
    pub(super) admission: Admission,
}

impl Objects {
    /// Lets the controllers work until they have nothing to do.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            if !controller::step(&mut self.store, &self.reported, &timestamp())? {
                return Ok(());
            }
        }
        tracing::error!("the controllers do not come to rest after {STEPS_MAX} steps");
        Ok(())
    }

    /// Pods that no node takes, each with the reason.
    pub(super) fn unscheduled(&self) -> BTreeMap<ObjectRef, String> {
        let pods = self.store.of_plural("pods");
        let refused = pods.filter(|(_, value)| {
            text(value, SCHEDULED) == "False"
                && value.pointer("/metadata/deletionTimestamp").is_none()
        });
        refused.map(|(pod, value)| (pod.clone(), text(value, WHY_NOT).to_owned())).collect()
    }

    /// Every pod with what is known of it.
    pub(super) fn pods(&self, layout: &Layout) -> Vec<PodInfo> {
        let info = |(object, value): (&ObjectRef, &serde_json::Value)| {
            let namespace = object.namespace.clone().unwrap_or_default();
            let uid = text(value, "/metadata/uid").to_owned();
            let status = self.reported.status(&namespace, &object.name, &uid);
            let status = status.cloned().unwrap_or_default();
            let captured = std::fs::read_to_string(layout.captured(&namespace, &object.name));
            let unschedulable = status.uid.is_empty() && text(value, SCHEDULED) == "False";
            let reason = match unschedulable {
                true => format!("{UNSCHEDULABLE}: {}", text(value, WHY_NOT)),
                false => status.reason,
            };
            PodInfo {
                node: text(value, "/spec/nodeName").to_owned(),
                service_account: text(value, "/spec/serviceAccountName").to_owned(),
                owner: text(value, "/metadata/ownerReferences/0/name").to_owned(),
                created: text(value, "/metadata/creationTimestamp").to_owned(),
                host_network: value.pointer("/spec/hostNetwork") == Some(&true.into()),
                terminating: value.pointer("/metadata/deletionTimestamp").is_some(),
                // What else the agent notes of the pod is behind its uid.
                captured: captured.is_ok_and(|noted| noted.lines().next() == Some(&uid)),
                ready: status.ready,
                phase: status.phase,
                pod_ips: status.pod_ips,
                restarts: status.restarts,
                reason,
                unschedulable,
                crash_looping: status.containers.iter().any(|it| it.crash_looping),
                containers: status.containers,
                pid: status.pid,
                name: object.name.clone(),
                namespace,
                uid,
            }
        };
        self.store.of_plural("pods").map(info).collect()
    }
}

impl Machine {
    pub(super) fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        self.objects.lock().expect("nothing panics while it holds the lock")
    }

    /// The nodes with their addresses.
    pub(super) fn nodes(&self) -> Vec<NodeInfo> {
        let pods = self.objects().pods(&self.layout);
        let info = |name: &String| {
            let network = NodeNetwork::of_name(name).expect("the machine named its nodes itself");
            let here = || pods.iter().filter(|pod| pod.node == *name);
            NodeInfo {
                name: name.clone(),
                addresses: network.fabric().both().to_vec(),
                pod_cidrs: network.pod_cidrs().to_vec(),
                pods: here().count(),
                running: here().filter(|pod| pod.phase == Phase::Running).count(),
                ready: here().filter(|pod| pod.ready && !pod.crash_looping).count(),
                succeeded: here().filter(|pod| pod.phase == Phase::Succeeded).count(),
            }
        };
        self.record.nodes.iter().map(info).collect()
    }
}
