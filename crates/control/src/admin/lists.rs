//! Objects and the view as lists, for `ambit get` and `ambit status`.
//!
//! Nothing here decides anything; it shows decisions.

use ambit_manifest::ObjectName;
use ambit_manifest::policy;
use ambit_manifest::traffic_policy::{Section, Target, TargetKind};
use ambit_manifest::{Kind, istio};
use ambit_model::Text;
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::{Mode, Service, VirtualAddress};
use ambit_model::workload::{GatewayAddress, GatewayDestination, PortMapping, Tunnel, Workload};
use ambit_wire::admin;
use ambit_wire::capture::Obstacle;
use ambit_words::labels::{AMBIENT, DATAPLANE_MODE, NONE};
use ambit_words::names::UNSCHEDULABLE;
use serde_json::json;

use crate::attached;
use crate::view_builder::Builder;
use crate::view_builder::backend_tls;
use crate::view_builder::records::{NamespaceRecord, NodeRecord, PodRecord};
use crate::view_builder::traffic_policies;
use crate::view_builder::workloads::PodState;

fn in_namespace<'a>(wanted: Option<&'a str>) -> impl Fn(&str) -> bool + 'a {
    move |namespace| wanted.is_none_or(|wanted| wanted == namespace)
}

/// [`admin::control::PODS`].
pub(super) fn pods(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Pod> {
    let is_wanted = in_namespace(namespace);
    let store = builder.store();
    let pods = store.pods().filter(|(name, _)| is_wanted(&name.namespace));
    let pod = |(name, pod): (&ObjectName, &PodRecord)| {
        let (_, state) = store.pod(name)?;
        let status = state.status_of(pod);
        let phase = status.map(|status| status.phase.to_string().into());
        Some(admin::Pod {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            uid: pod.uid.to_string(),
            node: pod.node.to_string(),
            owner: pod.owner.to_string(),
            service_account: pod.service_account.to_string(),
            phase: phase.unwrap_or("Pending".into()),
            ready: status.is_some_and(|status| status.ready),
            restarts: status.map_or(0, |status| status.restarts),
            reason: status.and_then(|status| status.reason.as_deref()).map(str::to_owned),
            ips: status.map(|status| status.pod_ips.clone()).unwrap_or_default(),
            host_network: pod.host_network,
            mode: mode(builder, name, pod).into(),
            captured: state.is_captured(pod),
            older_connections: state.notes(pod).older,
        })
    };
    pods.filter_map(pod).collect()
}

/// What a pod's labels, or its namespace's, say about the mesh.
fn mode(builder: &Builder, name: &ObjectName, pod: &PodRecord) -> &'static str {
    let namespace = builder.store().namespace(&name.namespace);
    let wanted = pod.labels.get(DATAPLANE_MODE).or_else(|| namespace.labels.get(DATAPLANE_MODE));
    match wanted.map(String::as_str) {
        Some(AMBIENT) if pod.host_network => "host-network",
        Some(AMBIENT) => AMBIENT,
        _ => NONE,
    }
}

/// Pods that are not, or not yet, what their labels say.
pub(super) fn aside(builder: &Builder) -> admin::Pods {
    let store = builder.store();
    let mut pods = admin::Pods::default();
    for (name, pod) in store.pods() {
        let Some((_, state)) = store.pod(name) else { continue };
        let text = format!("{}/{}", name.namespace, name.name);
        let notes = state.notes(pod);
        if state.is_captured(pod) && notes.older > 0 {
            let older = admin::OlderConnections { pod: text.clone(), connections: notes.older };
            pods.older_than_capture.push(older);
        }
        if state.is_captured(pod) && !notes.lacks.is_empty() {
            let parameter = notes.lacks.to_string();
            pods.capture_lacks.push(admin::CaptureLack { pod: text.clone(), parameter });
        }
        let mode = mode(builder, name, pod);
        if mode != NONE {
            pods.failing.extend(failing_pod(&text, pod, state));
        }
        match (mode, state.is_captured(pod)) {
            ("host-network", _) => pods.host_network_left_alone.push(text),
            (NONE, true) => {
                pods.captured += 1;
                pods.waiting_for_release.push(text);
            }
            (_, true) => pods.captured += 1,
            (AMBIENT, false) if state.may_run(pod) && !is_unschedulable(pod, state) => {
                pods.not_captured.extend(state.obstacle(pod).map(|it| not_captured(&text, it)));
                pods.waiting_for_capture.push(text);
            }
            _ => {}
        }
    }
    pods
}

/// Whether no node takes a pod: there is nothing of it to capture.
fn is_unschedulable(pod: &PodRecord, state: &PodState) -> bool {
    let reason = state.status_of(pod).and_then(|status| status.reason.as_deref());
    reason.is_some_and(|reason| reason.starts_with(UNSCHEDULABLE))
}

/// A pod of the mesh with a problem that waiting alone will not solve: no node takes it, or its
/// containers do not start or do not stay up. Such a problem is reported as one of Kubernetes'
/// words; a sentence describes the progress of a pod.
fn failing_pod(text: &str, pod: &PodRecord, state: &PodState) -> Option<admin::FailingPod> {
    let status = state.status_of(pod).filter(|_| !pod.is_ending && state.may_run(pod))?;
    let reason = status.reason.as_deref()?;
    let word = reason.split(':').next()?;
    let is_word = word.starts_with(|first: char| first.is_ascii_uppercase()) && !word.contains(' ');
    is_word.then(|| admin::FailingPod {
        pod: text.to_owned(),
        phase: status.phase.to_string().into(),
        restarts: status.restarts,
        reason: reason.to_owned(),
    })
}

/// Why a pod that waits for capture is not captured.
fn not_captured(pod: &str, obstacle: &Obstacle) -> admin::NotCaptured {
    let (port, process) = match obstacle {
        Obstacle::PortTaken { port, process } => (Some(*port), process.clone()),
        Obstacle::Refused(_) | Obstacle::Failed(_) => (None, None),
    };
    admin::NotCaptured {
        pod: pod.to_owned(),
        reason: obstacle.kind().into(),
        port,
        process,
        message: obstacle.to_string(),
        remedy: obstacle.remedy().to_owned(),
    }
}

/// [`admin::control::SERVICES`].
pub(super) fn services(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Service> {
    let is_wanted = in_namespace(namespace);
    let view = builder.view();
    let mut services: Vec<_> =
        view.services().filter(|service| is_wanted(&service.key.namespace)).collect();
    services.sort_by(|a, b| a.key.cmp(&b.key));
    let service = |service: &&std::sync::Arc<Service>| {
        let endpoints = view.endpoints(&service.key);
        let total = endpoints.map_or(0, |endpoints| endpoints.len());
        let ready = endpoints.map_or(0, |it| it.iter().filter(|workload| workload.healthy).count());
        admin::Service {
            namespace: service.key.namespace.to_string(),
            name: service.name.to_string(),
            hostname: service.key.hostname.to_string(),
            addresses: service.addresses.iter().map(address).collect(),
            ports: service.ports.iter().map(port).collect(),
            endpoints: admin::Endpoints { ready, total },
            waypoint: service.waypoint.as_ref().map(gateway),
            canary: canary(service),
            entrances: service.entrances.iter().map(ToString::to_string).collect(),
            load_balancing: balancing(service),
        }
    };
    services.iter().map(service).collect()
}

fn canary(service: &Service) -> Option<admin::Canary> {
    let is_canary =
        |it: &&(GatewayAddress, u32)| service.waypoint.as_ref().is_some_and(|own| *own != it.0);
    let (waypoint, weight) = service.weighted_waypoints.iter().find(is_canary)?;
    Some(admin::Canary { waypoint: gateway(waypoint), weight: *weight })
}

fn balancing(service: &Service) -> admin::LoadBalancing {
    let it = &service.load_balancing;
    let mode = match it.mode {
        Mode::Unspecified => "any",
        Mode::Strict => "strict",
        Mode::Failover => "failover",
        Mode::Passthrough => "passthrough",
    };
    let preference = it.routing_preference.iter().map(|it| lower(it).into());
    admin::LoadBalancing {
        mode: mode.into(),
        preference: preference.collect(),
        allow_unready: it.allow_unhealthy,
        client_affinity_seconds: it.client_affinity_seconds,
    }
}

fn lower(word: &impl std::fmt::Debug) -> String {
    format!("{word:?}").to_lowercase()
}

fn address(address: &VirtualAddress) -> String {
    match address.prefix_len {
        Some(length) => format!("{}/{length}", address.address.ip),
        None => address.address.ip.to_string(),
    }
}

fn port(port: &PortMapping) -> admin::ServicePort {
    admin::ServicePort {
        port: port.service_port,
        target_port: port.target_port,
        protocol: lower(&port.app_protocol).into(),
    }
}

/// The waypoint as users name it.
pub(super) fn gateway(gateway: &GatewayAddress) -> String {
    match &gateway.destination {
        GatewayDestination::Hostname(name) => name.to_string(),
        GatewayDestination::Refused(name) => name.to_string(),
        GatewayDestination::Address(address) => address.ip.to_string(),
    }
}

/// [`admin::control::WORKLOADS`].
pub(super) fn workloads(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Workload> {
    let is_wanted = in_namespace(namespace);
    let mut workloads: Vec<_> =
        builder.view().workloads().filter(|workload| is_wanted(&workload.namespace)).collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    workloads.iter().map(|workload| self::workload(workload)).collect()
}

fn workload(workload: &Workload) -> admin::Workload {
    let locality = &workload.locality;
    admin::Workload {
        uid: workload.uid.to_string(),
        namespace: workload.namespace.to_string(),
        name: workload.name.to_string(),
        addresses: workload.addresses.to_vec(),
        hostname: workload.hostname.to_string(),
        node: workload.node.to_string(),
        protocol: protocol(workload).into(),
        identity: workload.identity().to_string(),
        services: workload.services.keys().map(ToString::to_string).collect(),
        policies: workload.policies.iter().map(ToString::to_string).collect(),
        waypoint: workload.waypoint.as_deref().map(gateway),
        healthy: workload.healthy,
        canonical_name: workload.canonical_name.to_string(),
        canonical_revision: workload.canonical_revision.to_string(),
        locality: admin::Locality {
            region: locality.region.to_string(),
            zone: locality.zone.to_string(),
            subzone: locality.subzone.to_string(),
        },
        host_network: workload.host_network,
        capacity: workload.capacity,
    }
}

/// How a workload is reached.
pub(super) fn protocol(workload: &Workload) -> &'static str {
    match workload.tunnel {
        Tunnel::Hbone => "HBONE",
        Tunnel::LegacyIstioMtls => "LEGACY_ISTIO_MTLS",
        Tunnel::None => "TCP",
    }
}

/// [`admin::control::POLICIES`]: the objects that users wrote, with what became of them.
pub(super) fn policies(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Policy> {
    let is_wanted = in_namespace(namespace);
    let (store, view) = (builder.store(), builder.view());
    let authorizations = store.policies().filter(|(name, _)| is_wanted(&name.namespace));
    let (fronted, root) = (attached::Fronted::of(builder), &builder.mesh().root_namespace);
    let authorizations = authorizations.map(|(name, object)| {
        let key = ambit_model::names::PolicyName::new(name.namespace.clone(), name.name.clone());
        let sent = view.policy(&key);
        let targets = policy::attachments(object, root).unwrap_or_default();
        let at_waypoints = attached::of_policy(builder, &fronted, name, object);
        // At pods it concerns nobody then.
        let at_pods = builder.condition(name);
        let at_pods =
            at_pods.filter(|_| !attached::is_of_waypoints(builder, &fronted, name, object));
        let scope = match (sent, targets.is_empty()) {
            (_, false) => Some("targets"),
            (Some(policy), true) => Some(scope(policy)),
            (None, true) => None,
        };
        admin::Policy::AuthorizationPolicy(admin::AuthorizationPolicy {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            action: format!("{:?}", object.spec.action).to_uppercase().into(),
            scope: scope.map(Into::into),
            targets: targets.iter().map(attachment).collect(),
            enforced_as: sent.map(|policy| enforced_as(policy).into()),
            rules: object.spec.rules.as_ref().map_or(0, Vec::len),
            dry_run: sent.is_some_and(|policy| policy.dry_run),
            workloads: sent.map_or(0, |policy| selected(builder, policy)),
            conditions: at_waypoints.iter().chain(at_pods).map(condition).collect(),
        })
    });
    let peers = store.peer_authentications().filter(|(name, _)| is_wanted(&name.namespace));
    let peers = peers.map(|(name, object)| {
        let mode = object.spec.mtls.unwrap_or_default().mode;
        admin::Policy::PeerAuthentication(admin::PeerAuthentication {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            mode: format!("{mode:?}").to_uppercase().into(),
            port_level_mtls: json!(object.spec.port_level_mtls),
            selector: object.spec.selector.as_ref().map(|selector| json!(selector)),
        })
    });
    authorizations.chain(peers).collect()
}

/// [`admin::control::TRAFFIC_POLICIES`].
pub(super) fn traffic_policies(
    builder: &Builder,
    namespace: Option<&str>,
) -> Vec<admin::TrafficPolicy> {
    let is_wanted = in_namespace(namespace);
    let all = builder.store().traffic_policies().iter();
    let wanted = all.filter(|(name, _)| is_wanted(&name.namespace));
    let listed = wanted.map(|(name, known)| {
        let sections = Section::ALL.into_iter().filter(|section| known.meaning.has(*section));
        let conditions = traffic_policies::conditions(builder, name, known).into_iter();
        let targets = known.meaning.targets.iter().zip(conditions);
        let target = |(target, (_, condition)): (&Target, (_, policy::StatusCondition))| {
            let Target { kind, name, rule, .. } = target;
            let kind = match kind {
                TargetKind::Gateway => Kind::Gateway,
                TargetKind::Service => Kind::Service,
                TargetKind::HttpRoute => Kind::HttpRoute,
                TargetKind::GrpcRoute => Kind::GrpcRoute,
            };
            let rule = rule.as_ref().map(|rule| format!(" rule {rule}")).unwrap_or_default();
            admin::PolicyTarget {
                target: format!("{} {}/{}{rule}", kind.name(), name.namespace, name.name),
                condition: self::condition(&condition),
            }
        };
        admin::TrafficPolicy {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            sections: sections.map(|section| section.name().into()).collect(),
            targets: targets.map(target).collect(),
        }
    });
    listed.collect()
}

pub(super) fn condition(condition: &policy::StatusCondition) -> admin::Condition {
    admin::Condition {
        kind: condition.kind.into(),
        status: condition.status.into(),
        reason: condition.reason.into(),
        message: condition.message.clone(),
    }
}

/// The name of what something is attached to.
pub(super) fn attachment(target: &policy::Target) -> String {
    let (kind, name) = match target {
        policy::Target::Service(name) => ("Service", name),
        policy::Target::ServiceEntry(name) => ("ServiceEntry", name),
        policy::Target::Gateway(name) => ("Gateway", name),
        policy::Target::GatewayClass(name) => return format!("GatewayClass {name}"),
    };
    format!("{kind} {}/{}", name.namespace, name.name)
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

/// Policies that are not enforced as written, for `status`. Without AUDIT policies: they allow and
/// refuse nothing, so not carrying them out affects no connection.
pub(super) fn not_accepted(builder: &Builder) -> Vec<admin::NotAccepted> {
    let policies = builder.store().policies();
    let policies = policies.filter(|(_, policy)| policy.spec.action != istio::Action::Audit);
    let fronted = attached::Fronted::of(builder);
    let policies = policies
        .filter(|(name, policy)| !attached::is_of_waypoints(builder, &fronted, name, policy));
    let policies = policies.filter_map(|(name, _)| {
        Some((Kind::AuthorizationPolicy, name, builder.condition(name)?.clone()))
    });
    let modes = builder.store().peer_authentications();
    let modes = modes.map(|(name, object)| {
        (Kind::PeerAuthentication, name, policy::peer_authentication(object))
    });
    let traffic = builder.store().traffic_policies().iter().flat_map(|(name, known)| {
        let conditions = traffic_policies::conditions(builder, name, known).into_iter();
        conditions.map(move |(_, condition)| (Kind::TrafficPolicy, name, condition))
    });
    let backend_tls = builder.store().backend_tls().iter().flat_map(|(name, known)| {
        let conditions = backend_tls::conditions(builder, name, known).into_iter();
        conditions.map(move |condition| (Kind::BackendTlsPolicy, name, condition))
    });
    let all = policies.chain(modes).chain(traffic).chain(backend_tls);
    let told = all.filter(|(_, _, condition)| condition.status != "True");
    told.map(|(kind, name, condition)| admin::NotAccepted {
        kind: kind.name().into(),
        policy: format!("{}/{}", name.namespace, name.name),
        reason: condition.reason.into(),
        message: condition.message,
    })
    .collect()
}

/// [`admin::control::NODES`].
pub(super) fn nodes(builder: &Builder, connected: &[String]) -> Vec<admin::Node> {
    let store = builder.store();
    let node = |(name, node): (&Text, &NodeRecord)| admin::Node {
        name: name.to_string(),
        region: node.locality.region.to_string(),
        zone: node.locality.zone.to_string(),
        subzone: node.locality.subzone.to_string(),
        pods: store.pods_on(name).count(),
        proxy_connected: connected.iter().any(|it| **it == **name),
    };
    store.nodes().map(node).collect()
}

/// [`admin::control::NAMESPACES`].
pub(super) fn namespaces(builder: &Builder) -> Vec<admin::Namespace> {
    let store = builder.store();
    let namespace = |(name, namespace): (&Text, &NamespaceRecord)| {
        let mode = namespace.labels.get(DATAPLANE_MODE).map_or(NONE, String::as_str);
        admin::Namespace {
            name: name.to_string(),
            mode: mode.to_owned(),
            labels: (*namespace.labels).clone(),
            pods: store.pods().filter(|(pod, _)| pod.namespace == *name).count(),
        }
    };
    store.namespaces().map(namespace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};
    use ambit_manifest::{Kind, stored};
    use serde_json::Value;

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
            "status": "False",
            "message": "0/1 nodes are available: 1 node(s) were unschedulable"}]});
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
        let failing = |pod: &str, phase: &'static str, restarts, reason: &str| admin::FailingPod {
            pod: pod.to_owned(),
            phase: phase.into(),
            restarts,
            reason: reason.to_owned(),
        };
        let why = "Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable";
        let expected = [
            failing("in/looping", "Running", 4, "CrashLoopBackOff"),
            failing("in/nowhere", "Pending", 0, why),
        ];
        let told = aside(&builder);
        assert_eq!(told.failing, expected);
        let waiting = ["in/looping", "in/starting"];
        assert_eq!(told.waiting_for_capture, waiting, "what runs nowhere is not");
        let pods = pods(&builder, Some("in"));
        assert_eq!((&*pods[1].phase, pods[1].reason.as_deref()), ("Pending", Some(why)));
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
        assert_eq!(told.waiting_for_capture, ["a/web"]);
        assert_eq!(told.not_captured, [], "of an earlier incarnation");
        builder.apply([reason("u1")]);
        let told = &aside(&builder).not_captured[0];
        assert_eq!((&*told.pod, &*told.reason), ("a/web", "PortTaken"));
        assert_eq!((told.port, told.process.as_deref()), (Some(15006), Some("nginx")));
        let captured = Event::Captured {
            namespace: "a".into(),
            name: "web".into(),
            uid: Some("u1".into()),
            notes: crate::registry::CaptureNotes::default(),
        };
        builder.apply([captured]);
        assert_eq!(aside(&builder).not_captured, []);
    }
}
