//! What the view needs to know of each object, and no more.
//!
//! A pod takes kilobytes in Kubernetes' form; of a hundred thousand pods only these fields stay in
//! memory. Nothing here may decide anything: records copy what objects say.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::names;
use ambit_model::Text;
use ambit_model::workload::{Locality, WorkloadKind};
use ambit_wire::capture::Obstacle;
use ambit_words::annotations::{
    CAPTURE_LACKS, ENABLED, NOT_CAPTURED, OLDER_CONNECTIONS, REDIRECTION,
    USE_WAYPOINT_CANARY_WEIGHT,
};
use ambit_words::labels;
use ambit_words::names::UNSCHEDULABLE;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::selectors::Labels;
use crate::registry::{CaptureNotes, PodStatus};

/// What may be an endpoint of a service: a pod or a WorkloadEntry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Member {
    /// A pod.
    Pod(ObjectName),
    /// A WorkloadEntry.
    Entry(ObjectName),
}

impl Member {
    /// Its namespace.
    pub(crate) fn namespace(&self) -> &Text {
        match self {
            Self::Pod(name) | Self::Entry(name) => &name.namespace,
        }
    }
}

/// Ports by name.
pub(crate) type NamedPorts = BTreeMap<String, u16>;

/// A pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodRecord {
    /// Its uid; a new pod of the same name has another.
    pub(crate) uid: Text,
    /// Its labels.
    pub(crate) labels: Arc<Labels>,
    /// The service account it runs as.
    pub(crate) service_account: Text,
    /// The node it was given, empty before.
    pub(crate) node: Text,
    /// Whether it shares its node's network.
    pub(crate) host_network: bool,
    /// Its named TCP ports.
    pub(crate) named_ports: Arc<NamedPorts>,
    /// Whether its deletion was asked for: it may serve, and takes no new connections.
    pub(crate) is_ending: bool,
    /// What owns it.
    pub(crate) kind: WorkloadKind,
    /// The name of its owner.
    pub(crate) owner: Text,
    /// Whether the pod object itself says that it is captured, as a cluster's node agent writes it,
    /// Ambit's or istio-cni.
    pub(crate) is_annotated_captured: bool,
    /// What else the agent writes there.
    pub(crate) notes: CaptureNotes,
    /// Why the agent could not capture it, as it writes there.
    pub(crate) obstacle: Option<Box<Obstacle>>,
    /// The state in the pod object itself, as a kubelet writes it.
    pub(crate) own_status: Option<PodStatus>,
}

impl PodRecord {
    /// What `pod` says.
    pub(crate) fn new(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let ports = spec.iter().flat_map(|spec| &spec.containers);
        let ports = ports.flat_map(|container| container.ports.iter().flatten());
        let ports = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
        let named = ports.filter_map(|port| {
            Some((port.name.clone()?, u16::try_from(port.container_port).ok()?))
        });
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let (kind, owner) = owner(&pod.metadata, &labels);
        let annotations = pod.metadata.annotations.as_ref();
        let says = |key| annotations.and_then(|all| all.get(key)).map(String::as_str);
        Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            labels: Arc::new(labels),
            service_account: account.filter(|name| !name.is_empty()).unwrap_or("default").into(),
            node: spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default().into(),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or_default(),
            named_ports: Arc::new(named.collect()),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            kind,
            owner,
            is_annotated_captured: says(REDIRECTION) == Some(ENABLED),
            notes: CaptureNotes::read(says(OLDER_CONNECTIONS), says(CAPTURE_LACKS)),
            obstacle: says(NOT_CAPTURED).and_then(|line| line.parse().ok()).map(Box::new),
            own_status: own_status(pod),
        }
    }
}

fn own_status(pod: &Pod) -> Option<PodStatus> {
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    let addresses = status.pod_ips.iter().flatten().filter_map(|ip| names::address(&ip.ip));
    let mut pod_ips: Vec<IpAddr> = addresses.collect();
    if pod_ips.is_empty() {
        pod_ips.extend(status.pod_ip.iter().filter_map(|ip| names::address(ip)));
    }
    let restarts = status.container_statuses.iter().flatten().map(|it| i64::from(it.restart_count));
    let reason = status.reason.clone().or_else(|| waits_for(status)).or_else(|| no_node(status));
    Some(PodStatus {
        uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
        phase: status.phase.as_deref().unwrap_or_default().into(),
        pod_ips,
        ready: ready.any(|condition| condition.status == "True"),
        restarts: u32::try_from(restarts.sum::<i64>()).unwrap_or_default(),
        reason: reason.map(Text::from),
    })
}

/// What a container waits for, as a kubelet says it: `CrashLoopBackOff`, `ImagePullBackOff`.
fn waits_for(status: &k8s_openapi::api::core::v1::PodStatus) -> Option<String> {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = init.chain(status.container_statuses.iter().flatten());
    all.find_map(|it| it.state.as_ref()?.waiting.as_ref()?.reason.clone())
}

/// Why the pod is on no node, as a scheduler says it.
fn no_node(status: &k8s_openapi::api::core::v1::PodStatus) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|it| it.type_ == "PodScheduled" && it.status == "False")?;
    let why = refused.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("{UNSCHEDULABLE}{why}"))
}

/// Kind and name of what owns a pod, through the ReplicaSet or Job in between.
fn owner(metadata: &ObjectMeta, labels: &Labels) -> (WorkloadKind, Text) {
    let mut owners = metadata.owner_references.iter().flatten();
    let pod = (WorkloadKind::Pod, metadata.name.as_deref().unwrap_or_default().into());
    let Some(owner) = owners.find(|owner| owner.controller.unwrap_or_default()) else {
        return pod;
    };
    let name = owner.name.as_str();
    match owner.kind.as_str() {
        "Deployment" => (WorkloadKind::Deployment, name.into()),
        "ReplicaSet" => {
            let hash = labels.get("pod-template-hash").map(|hash| format!("-{hash}"));
            let deployment = hash.and_then(|hash| name.strip_suffix(hash.as_str()));
            (WorkloadKind::Deployment, deployment.unwrap_or(name).into())
        }
        "Job" => match cron_job(name) {
            Some(cron_job) => (WorkloadKind::CronJob, cron_job.into()),
            None => (WorkloadKind::Job, name.into()),
        },
        "CronJob" => (WorkloadKind::CronJob, name.into()),
        _ => (WorkloadKind::Pod, name.into()),
    }
}

/// A CronJob's jobs are called `<name>-<minutes since 1970>`.
fn cron_job(job: &str) -> Option<&str> {
    let (name, time) = job.rsplit_once('-')?;
    ((8..=10).contains(&time.len()) && time.bytes().all(|c| c.is_ascii_digit())).then_some(name)
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NamespaceRecord {
    /// Its labels.
    pub(crate) labels: Arc<Labels>,
    /// How its services spread their traffic, where they do not say so themselves.
    pub(crate) traffic_distribution: Option<String>,
    /// The share of its services' canary waypoint, where they inherit it.
    pub(crate) canary_weight: Option<String>,
    /// Whether it is being deleted: nothing can be made in it any more.
    pub(crate) is_ending: bool,
}

/// The annotation that says how traffic is spread, on a Service or Namespace.
pub(crate) const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

impl NamespaceRecord {
    /// What `namespace` says.
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let annotations = namespace.metadata.annotations.as_ref();
        let says = |key| annotations.and_then(|all| all.get(key)).cloned();
        Self {
            labels: Arc::new(namespace.metadata.labels.clone().unwrap_or_default()),
            traffic_distribution: says(TRAFFIC_DISTRIBUTION),
            canary_weight: says(USE_WAYPOINT_CANARY_WEIGHT),
            is_ending: namespace.metadata.deletion_timestamp.is_some(),
        }
    }
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeRecord {
    /// Its region, zone and subzone.
    pub(crate) locality: Locality,
    /// Where its own calls come from; not kept of a cluster's nodes.
    pub(crate) addresses: Vec<IpAddr>,
}

impl NodeRecord {
    /// What `node` says.
    pub(crate) fn new(node: &Node) -> Self {
        let label = |key: &str| -> Text {
            let labels = node.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(key)).map_or("", String::as_str).into()
        };
        let status = node.status.iter();
        let listed = status.flat_map(|status| status.addresses.iter().flatten());
        let own = listed.filter(|it| ["InternalIP", "ExternalIP"].contains(&&*it.type_));
        Self {
            addresses: own.filter_map(|it| names::address(&it.address)).collect(),
            locality: Locality {
                region: label(labels::REGION),
                zone: label(labels::ZONE),
                subzone: label(labels::SUBZONE),
            },
        }
    }
}

/// A Kubernetes Service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceRecord {
    /// The object itself: most of its fields are needed.
    pub(crate) object: Arc<Service>,
    /// Its selector; empty selects nothing.
    pub(crate) selector: Arc<Labels>,
}

impl ServiceRecord {
    /// What `service` says.
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        Self { object: service.clone(), selector: Arc::new(selector.unwrap_or_default()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_of_a_cluster_holds_its_state() {
        let pod = json!({
            "metadata": {"namespace": "a", "name": "web", "uid": "u1",
                "annotations": {"ambient.istio.io/redirection": "enabled",
                    "ambit.io/older-connections": "3",
                    "ambit.io/not-captured": "PortTaken 15006 nginx"}},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "reason": "r",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}],
                "conditions": [{"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                    "restartCount": 2}, {"name": "d", "image": "", "imageID": "", "ready": true,
                    "restartCount": 1}]},
        });
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        let record = PodRecord::new(&pod);
        let expected = PodStatus {
            uid: "u1".into(),
            phase: "Running".into(),
            pod_ips: vec!["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ready: true,
            restarts: 3,
            reason: Some("r".into()),
        };
        assert_eq!(record.own_status, Some(expected));
        assert!(record.is_annotated_captured);
        assert_eq!(record.notes, CaptureNotes { older: 3, lacks: "".into() });
        let nginx = Some("nginx".to_owned());
        let expected = Obstacle::PortTaken { port: 15006, process: nginx };
        assert_eq!(record.obstacle.as_deref(), Some(&expected));
        let reason = |status: serde_json::Value| {
            let pod = json!({ "metadata": {"name": "web"}, "status": status });
            let record = PodRecord::new(&serde_json::from_value(pod).unwrap());
            record.own_status.unwrap().reason.map(|reason| reason.to_string())
        };
        let looping = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}});
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 4, "state": looping});
        let told = reason(json!({"phase": "Running", "containerStatuses": [container.clone()]}));
        assert_eq!(told.as_deref(), Some("CrashLoopBackOff"));
        let told = reason(json!({"initContainerStatuses": [container]}));
        assert_eq!(told.as_deref(), Some("CrashLoopBackOff"));
        let nowhere = json!({"type": "PodScheduled", "status": "False", "message": "no node"});
        let told = reason(json!({"phase": "Pending", "conditions": [nowhere]}));
        assert_eq!(told.as_deref(), Some("Unschedulable: no node"));
        assert_eq!(reason(json!({"phase": "Running"})), None);
        let status = pod.status.as_mut().unwrap();
        status.pod_ips = None;
        status.conditions.as_mut().unwrap()[1].status = "False".into();
        pod.metadata.annotations = None;
        let record = PodRecord::new(&pod);
        let status = record.own_status.unwrap();
        assert_eq!(status.pod_ips, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(!status.ready && !record.is_annotated_captured);
    }
}
