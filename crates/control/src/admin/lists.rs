//! Objects and the view as JSON lists, for `ambit get` and `ambit status`.
//!
//! Names of fields are Kubernetes' where it has one. Nothing here decides anything; it shows what
//! was decided.

use ambit_manifest::DATAPLANE_MODE;
use ambit_manifest::ObjectName;
use ambit_manifest::policy;
use ambit_manifest::{Kind, istio};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::{Mode, Service, VirtualAddress};
use ambit_model::workload::{GatewayAddress, GatewayDestination, PortMapping, Tunnel, Workload};
use ambit_wire::capture::Obstacle;
use serde_json::{Value, json};

use crate::view_builder::Builder;
use crate::view_builder::records::{PodRecord, UNSCHEDULABLE};
use crate::view_builder::workloads::PodState;

fn in_namespace<'a>(wanted: Option<&'a str>) -> impl Fn(&str) -> bool + 'a {
    move |namespace| wanted.is_none_or(|wanted| wanted == namespace)
}

/// `GET /get/pods`.
pub(super) fn pods(builder: &Builder, namespace: Option<&str>) -> Vec<Value> {
    let is_wanted = in_namespace(namespace);
    let store = builder.store();
    let pods = store.pods().filter(|(name, _)| is_wanted(&name.namespace));
    let pod = |(name, pod): (&ObjectName, &PodRecord)| {
        let (_, state) = store.pod(name)?;
        let status = state.status_of(pod);
        Some(json!({
            "namespace": &*name.namespace,
            "name": &*name.name,
            "uid": &*pod.uid,
            "node": &*pod.node,
            "owner": &*pod.owner,
            "serviceAccount": &*pod.service_account,
            "phase": status.map_or("Pending", |status| &*status.phase),
            "ready": status.is_some_and(|status| status.ready),
            "restarts": status.map_or(0, |status| status.restarts),
            "reason": status.and_then(|status| status.reason.clone()),
            "ips": status.map(|status| status.pod_ips.clone()).unwrap_or_default(),
            "hostNetwork": pod.host_network,
            "mode": mode(builder, name, pod),
            "captured": state.is_captured(pod),
            "olderConnections": state.notes(pod).older,
        }))
    };
    pods.filter_map(pod).collect()
}

/// What a pod's labels, or its namespace's, say about the mesh.
fn mode(builder: &Builder, name: &ObjectName, pod: &PodRecord) -> &'static str {
    let namespace = builder.store().namespace(&name.namespace);
    let wanted = pod.labels.get(DATAPLANE_MODE).or_else(|| namespace.labels.get(DATAPLANE_MODE));
    match wanted.map(String::as_str) {
        Some("ambient") if pod.host_network => "host-network",
        Some("ambient") => "ambient",
        _ => "none",
    }
}

/// Pods that are not, or not yet, what their labels say.
pub(super) fn aside(builder: &Builder) -> Value {
    let store = builder.store();
    let (mut host_network, mut pending, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
    let mut captured = 0;
    let (mut older, mut lacking, mut obstacles) = (Vec::new(), Vec::new(), Vec::new());
    let mut failing = Vec::new();
    for (name, pod) in store.pods() {
        let Some((_, state)) = store.pod(name) else { continue };
        let text = format!("{}/{}", name.namespace, name.name);
        let notes = state.notes(pod);
        if state.is_captured(pod) && notes.older > 0 {
            older.push(json!({ "pod": text.clone(), "connections": notes.older }));
        }
        if state.is_captured(pod) && !notes.lacks.is_empty() {
            lacking.push(json!({ "pod": text.clone(), "parameter": &*notes.lacks }));
        }
        let mode = mode(builder, name, pod);
        if mode != "none" {
            failing.extend(failing_pod(&text, pod, state));
        }
        match (mode, state.is_captured(pod)) {
            ("host-network", _) => host_network.push(text),
            ("none", true) => {
                captured += 1;
                leaving.push(text);
            }
            (_, true) => captured += 1,
            ("ambient", false) if state.may_run(pod) && !is_unschedulable(pod, state) => {
                obstacles.extend(state.obstacle(pod).map(|it| obstacle(&text, it)));
                pending.push(text);
            }
            _ => {}
        }
    }
    json!({
        "captured": captured,
        "waitingForCapture": pending,
        "waitingForRelease": leaving,
        "hostNetworkLeftAlone": host_network,
        "olderThanCapture": older,
        "captureLacks": lacking,
        "notCaptured": obstacles,
        "failing": failing,
    })
}

/// Whether no node takes a pod: there is nothing of it to capture.
fn is_unschedulable(pod: &PodRecord, state: &PodState) -> bool {
    let reason = state.status_of(pod).and_then(|status| status.reason.as_deref());
    reason.is_some_and(|reason| reason.starts_with(UNSCHEDULABLE))
}

/// A pod of the mesh that something keeps from its work, and waiting alone will not mend it: no
/// node takes it, or its containers do not start or do not stay. Whoever reports it says so with a
/// word as Kubernetes has them; a sentence says how far a pod is on its way.
fn failing_pod(text: &str, pod: &PodRecord, state: &PodState) -> Option<Value> {
    let status = state.status_of(pod).filter(|_| !pod.is_ending && state.may_run(pod))?;
    let reason = status.reason.as_deref()?;
    let word = reason.split(':').next()?;
    let is_word = word.starts_with(|first: char| first.is_ascii_uppercase()) && !word.contains(' ');
    is_word.then(|| {
        json!({ "pod": text, "phase": &*status.phase, "restarts": status.restarts,
            "reason": reason })
    })
}

/// Why a pod that waits for capture is not captured.
fn obstacle(pod: &str, obstacle: &Obstacle) -> Value {
    let (port, process) = match obstacle {
        Obstacle::PortTaken { port, process } => (Some(port), process.as_deref()),
        Obstacle::Refused(_) | Obstacle::Failed(_) => (None, None),
    };
    json!({
        "pod": pod,
        "reason": obstacle.kind(),
        "port": port,
        "process": process,
        "message": obstacle.to_string(),
        "remedy": obstacle.remedy(),
    })
}

/// `GET /get/services`.
pub(super) fn services(builder: &Builder, namespace: Option<&str>) -> Vec<Value> {
    let is_wanted = in_namespace(namespace);
    let view = builder.view();
    let mut services: Vec<_> =
        view.services().filter(|service| is_wanted(&service.key.namespace)).collect();
    services.sort_by(|a, b| a.key.cmp(&b.key));
    let service = |service: &&std::sync::Arc<Service>| {
        let endpoints = view.endpoints(&service.key);
        let total = endpoints.map_or(0, |endpoints| endpoints.len());
        let ready = endpoints.map_or(0, |it| it.iter().filter(|workload| workload.healthy).count());
        json!({
            "namespace": &*service.key.namespace,
            "name": &*service.name,
            "hostname": &*service.key.hostname,
            "addresses": service.addresses.iter().map(address).collect::<Vec<_>>(),
            "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
            "endpoints": { "ready": ready, "total": total },
            "waypoint": service.waypoint.as_ref().map(gateway),
            "loadBalancing": balancing(service),
        })
    };
    services.iter().map(service).collect()
}

fn balancing(service: &Service) -> Value {
    let it = &service.load_balancing;
    let mode = match it.mode {
        Mode::Unspecified => "any",
        Mode::Strict => "strict",
        Mode::Failover => "failover",
        Mode::Passthrough => "passthrough",
    };
    let preference = it.routing_preference.iter().map(|it| format!("{it:?}").to_lowercase());
    json!({
        "mode": mode,
        "preference": preference.collect::<Vec<_>>(),
        "allowUnready": it.allow_unhealthy,
        "clientAffinitySeconds": it.client_affinity_seconds,
    })
}

fn address(address: &VirtualAddress) -> String {
    match address.prefix_len {
        Some(length) => format!("{}/{length}", address.address.ip),
        None => address.address.ip.to_string(),
    }
}

fn port(port: &PortMapping) -> Value {
    json!({
        "port": port.service_port,
        "targetPort": port.target_port,
        "protocol": format!("{:?}", port.app_protocol).to_lowercase(),
    })
}

/// The waypoint as users name it.
pub(super) fn gateway(gateway: &GatewayAddress) -> String {
    match &gateway.destination {
        GatewayDestination::Hostname(name) => name.to_string(),
        GatewayDestination::Refused(name) => name.to_string(),
        GatewayDestination::Address(address) => address.ip.to_string(),
    }
}

/// `GET /get/workloads`.
pub(super) fn workloads(builder: &Builder, namespace: Option<&str>) -> Vec<Value> {
    let is_wanted = in_namespace(namespace);
    let mut workloads: Vec<_> =
        builder.view().workloads().filter(|workload| is_wanted(&workload.namespace)).collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    workloads.iter().map(|workload| self::workload(workload)).collect()
}

fn workload(workload: &Workload) -> Value {
    json!({
        "uid": &*workload.uid,
        "namespace": &*workload.namespace,
        "name": &*workload.name,
        "addresses": &*workload.addresses,
        "hostname": &*workload.hostname,
        "node": &*workload.node,
        "protocol": protocol(workload),
        "identity": workload.identity().to_string(),
        "services": workload.services.keys().map(ToString::to_string).collect::<Vec<_>>(),
        "policies": workload.policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "waypoint": workload.waypoint.as_deref().map(gateway),
        "healthy": workload.healthy,
        "canonicalName": &*workload.canonical_name,
        "canonicalRevision": &*workload.canonical_revision,
        "locality": {
            "region": &*workload.locality.region,
            "zone": &*workload.locality.zone,
            "subzone": &*workload.locality.subzone,
        },
        "hostNetwork": workload.host_network,
        "capacity": workload.capacity,
    })
}

/// How a workload is reached.
pub(super) fn protocol(workload: &Workload) -> &'static str {
    match workload.tunnel {
        Tunnel::Hbone => "HBONE",
        Tunnel::LegacyIstioMtls => "LEGACY_ISTIO_MTLS",
        Tunnel::None => "TCP",
    }
}

/// `GET /get/policies`: the objects that users wrote, with what became of them.
pub(super) fn policies(builder: &Builder, namespace: Option<&str>) -> Vec<Value> {
    let is_wanted = in_namespace(namespace);
    let (store, view) = (builder.store(), builder.view());
    let mut items = Vec::new();
    for (name, object) in store.policies().filter(|(name, _)| is_wanted(&name.namespace)) {
        let key = ambit_model::names::PolicyName::new(name.namespace.clone(), name.name.clone());
        let sent = view.policy(&key);
        let action = format!("{:?}", object.spec.action).to_uppercase();
        items.push(json!({
            "kind": "AuthorizationPolicy",
            "namespace": &*name.namespace,
            "name": &*name.name,
            "action": action,
            "scope": sent.map(|policy| scope(policy)),
            "enforcedAs": sent.map(|policy| enforced_as(policy)),
            "rules": object.spec.rules.as_ref().map_or(0, Vec::len),
            "dryRun": sent.is_some_and(|policy| policy.dry_run),
            "workloads": sent.map_or(0, |policy| selected(builder, policy)),
            "conditions": builder.condition(name).into_iter().collect::<Vec<_>>(),
        }));
    }
    for (name, object) in
        store.peer_authentications().filter(|(name, _)| is_wanted(&name.namespace))
    {
        let mode = object.spec.mtls.unwrap_or_default().mode;
        items.push(json!({
            "kind": "PeerAuthentication",
            "namespace": &*name.namespace,
            "name": &*name.name,
            "mode": mode,
            "portLevelMtls": object.spec.port_level_mtls,
            "selector": object.spec.selector,
        }));
    }
    items
}

fn scope(policy: &Policy) -> &'static str {
    match policy.scope {
        PolicyScope::Global => "mesh",
        PolicyScope::Namespace => "namespace",
        PolicyScope::WorkloadSelector => "selector",
    }
}

fn enforced_as(policy: &Policy) -> &'static str {
    match policy.action {
        Action::Allow => "ALLOW",
        Action::Deny => "DENY",
    }
}

/// How many workloads a policy holds for.
fn selected(builder: &Builder, policy: &Policy) -> usize {
    let holds = |workload: &&std::sync::Arc<Workload>| match policy.scope {
        PolicyScope::Global => true,
        PolicyScope::Namespace => workload.namespace == policy.key.namespace,
        PolicyScope::WorkloadSelector => workload.policies.contains(&policy.key),
    };
    builder.view().workloads().filter(holds).count()
}

/// Policies that are not enforced as they were written, for `status`. AUDIT asks for nothing to be
/// allowed or refused: that it is not carried out cuts nobody off and lets nobody in.
pub(super) fn not_accepted(builder: &Builder) -> Vec<Value> {
    let policies = builder.store().policies();
    let policies = policies.filter(|(_, policy)| policy.spec.action != istio::Action::Audit);
    let policies = policies.filter_map(|(name, _)| {
        Some((Kind::AuthorizationPolicy, name, builder.condition(name)?.clone()))
    });
    let modes = builder.store().peer_authentications();
    let modes = modes.map(|(name, object)| {
        (Kind::PeerAuthentication, name, policy::peer_authentication(object))
    });
    let told = policies.chain(modes).filter(|(_, _, condition)| condition.status != "True");
    told.map(|(kind, name, condition)| {
        json!({
            "kind": kind.name(),
            "policy": format!("{}/{}", name.namespace, name.name),
            "reason": condition.reason,
            "message": condition.message,
        })
    })
    .collect()
}

/// `GET /get/nodes`.
pub(super) fn nodes(builder: &Builder, connected: &[String]) -> Vec<Value> {
    let store = builder.store();
    let node = |(name, node): (&ambit_model::Text, &crate::view_builder::records::NodeRecord)| {
        json!({
            "name": &**name,
            "region": &*node.locality.region,
            "zone": &*node.locality.zone,
            "subzone": &*node.locality.subzone,
            "pods": store.pods_on(name).count(),
            "proxyConnected": connected.iter().any(|it| **it == **name),
        })
    };
    store.nodes().map(node).collect()
}

/// `GET /get/namespaces`.
pub(super) fn namespaces(builder: &Builder) -> Vec<Value> {
    let store = builder.store();
    let namespace = |(name, namespace): (
        &ambit_model::Text,
        &crate::view_builder::records::NamespaceRecord,
    )| {
        json!({
            "name": &**name,
            "mode": namespace.labels.get(DATAPLANE_MODE).map_or("none", String::as_str),
            "labels": &*namespace.labels,
            "pods": store.pods().filter(|(pod, _)| pod.namespace == *name).count(),
        })
    };
    store.namespaces().map(namespace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};
    use ambit_manifest::{Kind, stored};

    fn put(kind: Kind, object: &Value) -> Event {
        Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
    }

    #[test]
    fn pods_that_do_not_run_are_told_with_the_reason() {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let namespace = |name: &str, mode: &str| {
            let labels = json!({"istio.io/dataplane-mode": mode});
            put(Kind::Namespace, &json!({"metadata": {"name": name, "labels": labels}}))
        };
        let pod = |namespace: &str, name: &str, status: Value| {
            let metadata = json!({"namespace": namespace, "name": name, "uid": name});
            put(Kind::Pod, &json!({"metadata": metadata, "status": status}))
        };
        let looping = json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "",
            "imageID": "", "ready": false, "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
        let nowhere = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "False", "message": "no node takes it: node-1 has no label a=b"}]});
        builder.apply([
            namespace("in", "ambient"),
            namespace("out", "none"),
            pod("in", "looping", looping.clone()),
            pod("in", "nowhere", nowhere),
            pod("in", "starting", json!({"phase": "Pending"})),
            pod("out", "looping", looping),
            Event::PodStatus {
                namespace: "in".into(),
                name: "starting".into(),
                status: Some(crate::registry::PodStatus {
                    uid: "starting".into(),
                    reason: Some("waiting to be captured".into()),
                    ..Default::default()
                }),
            },
        ]);
        let told = &aside(&builder)["failing"];
        let expected = json!([
            {"pod": "in/looping", "phase": "Running", "restarts": 4, "reason": "CrashLoopBackOff"},
            {"pod": "in/nowhere", "phase": "Pending", "restarts": 0,
                "reason": "Unschedulable: no node takes it: node-1 has no label a=b"},
        ]);
        assert_eq!(*told, expected);
        let waiting = &aside(&builder)["waitingForCapture"];
        assert_eq!(*waiting, json!(["in/looping", "in/starting"]), "what runs nowhere is not");
        let pods = pods(&builder, Some("in"));
        assert_eq!(pods[1]["phase"], "Pending");
        assert_eq!(pods[1]["reason"], expected[1]["reason"]);
    }

    #[test]
    fn a_pod_that_waits_for_capture_is_told_with_the_reason() {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a",
            "labels": {"istio.io/dataplane-mode": "ambient"}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a",
            "name": "web", "uid": "u1"}, "spec": {"nodeName": "n", "containers": []}});
        let reason = |uid: &str| Event::Uncaptured {
            namespace: "a".into(),
            name: "web".into(),
            obstacle: Some((
                uid.into(),
                Obstacle::PortTaken { port: 15006, process: Some("nginx".to_owned()) },
            )),
        };
        let objects = [put(Kind::Namespace, &namespace), put(Kind::Pod, &pod), reason("before")];
        builder.apply(objects);
        let told = aside(&builder);
        assert_eq!(told["waitingForCapture"], json!(["a/web"]));
        assert_eq!(told["notCaptured"], json!([]), "of an earlier incarnation");
        builder.apply([reason("u1")]);
        let told = &aside(&builder)["notCaptured"];
        assert_eq!((&told[0]["pod"], &told[0]["reason"]), (&json!("a/web"), &json!("PortTaken")));
        assert_eq!((&told[0]["port"], &told[0]["process"]), (&json!(15006), &json!("nginx")));
        let captured = Event::Captured {
            namespace: "a".into(),
            name: "web".into(),
            uid: Some("u1".into()),
            notes: crate::registry::CaptureNotes::default(),
        };
        builder.apply([captured]);
        assert_eq!(aside(&builder)["notCaptured"], json!([]));
    }
}
