//! Reduces an object of the API server to what is kept and sent on.
//!
//! A pod takes ten kilobytes in the API server's form; the view needs a few hundred bytes of it.
//! Everything else is dropped before an object is compared, queued or kept. Nothing here may judge
//! an object.

use std::sync::Arc;

use ambit_manifest::istio::IstioObject;
use ambit_manifest::routes::{read_grant, read_route};
use ambit_manifest::{
    Kind, Typed, backend_tls, destination_rule, telemetry, traffic_policy, virtual_service,
};
use ambit_words::annotations::{
    ACME_CHALLENGES, CAPTURE_LACKS, LAST_APPLIED, NOT_CAPTURED, OLDER_CONNECTIONS, REDIRECTION,
    USE_WAYPOINT_CANARY_WEIGHT,
};
use ambit_words::labels::SERVICE_NAME;
use ambit_words::names::MESH_CONFIG_MAP;
use ambit_words::secrets::{SECRET_CHAIN, SECRET_KEY, SECRET_TYPE};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, ContainerState, ContainerStateWaiting, ContainerStatus, Namespace, Node,
    ObjectReference, Pod, PodCondition, PodSpec, PodStatus, Secret, Service, ServiceSpec,
    ServiceStatus,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::strictest;
use crate::registry::Event;
use crate::view_builder::records::TRAFFIC_DISTRIBUTION;

/// Slices that the controller for selectors did not write: its own slices, at least one for each
/// Service, only repeat what pods say. Those that it leaves behind when a Service loses its
/// selector have no effect here.
const NOT_OF_SELECTORS: &str =
    "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// What a container waits for on its ordinary way.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// What Services, and namespaces for theirs, say in annotations.
const OF_SERVICES: [&str; 3] = [ACME_CHALLENGES, TRAFFIC_DISTRIBUTION, USE_WAYPOINT_CANARY_WEIGHT];

/// How one kind is read.
pub(super) struct Reading<K> {
    /// The label selector of the objects that are requested.
    pub(super) selector: Option<&'static str>,
    /// A field, and the value that it has in the objects that are requested.
    pub(super) field: Option<(&'static str, &'static str)>,
    /// Drops the fields that the view does not need.
    pub(super) reduce: fn(&mut K),
    /// The events of a reduced object; or what is wrong with it.
    pub(super) events: fn(K) -> Result<Vec<Event>, String>,
}

pub(super) const NAMESPACE: Reading<Namespace> = Reading {
    selector: None,
    field: None,
    reduce: |namespace| {
        *namespace = Namespace {
            metadata: kept(&mut namespace.metadata, &OF_SERVICES),
            ..Namespace::default()
        };
    },
    events: |namespace| Ok(vec![Event::Put(Typed::Namespace(Arc::new(namespace)))]),
};

pub(super) const NODE: Reading<Node> = Reading {
    selector: None,
    field: None,
    reduce: |node| {
        let mut metadata = kept(&mut node.metadata, &[]);
        if let Some(labels) = &mut metadata.labels {
            labels.retain(|key, _| key.starts_with("topology."));
        }
        *node = Node { metadata, ..Node::default() };
    },
    events: |node| Ok(vec![Event::Put(Typed::Node(Arc::new(node)))]),
};

pub(super) const SERVICE: Reading<Service> = Reading {
    selector: None,
    field: None,
    reduce: |service| {
        service.metadata = kept(&mut service.metadata, &OF_SERVICES);
        // The addresses of load balancers are Gateways'.
        let is_balanced = |spec: &ServiceSpec| spec.type_.as_deref() == Some("LoadBalancer");
        let balancer = service.status.take().and_then(|it| it.load_balancer);
        let balancer = balancer.filter(|_| service.spec.as_ref().is_some_and(is_balanced));
        service.status = balancer
            .map(|it| ServiceStatus { load_balancer: Some(it), ..ServiceStatus::default() });
    },
    events: |service| Ok(vec![Event::Put(Typed::Service(Arc::new(service)))]),
};

pub(super) const ENDPOINT_SLICE: Reading<EndpointSlice> = Reading {
    selector: Some(NOT_OF_SELECTORS),
    field: None,
    reduce: reduce_slice,
    events: |slice| Ok(vec![Event::Put(Typed::EndpointSlice(Arc::new(slice)))]),
};

pub(super) const POD: Reading<Pod> =
    Reading { selector: None, field: None, reduce: reduce_pod, events: pod_events };

pub(super) const MESH_CONFIG: Reading<ConfigMap> = Reading {
    selector: None,
    field: Some(("metadata.name", MESH_CONFIG_MAP)),
    reduce: |map| {
        map.metadata = kept(&mut map.metadata, &[]);
        map.binary_data = None;
    },
    events: |map| Ok(vec![Event::Put(Typed::ConfigMap(Arc::new(map)))]),
};

pub(super) const SECRET: Reading<Secret> = Reading {
    selector: None,
    field: Some(("type", SECRET_TYPE)),
    reduce: |secret| {
        let mut data = secret.data.take().unwrap_or_default();
        data.retain(|key, _| [SECRET_CHAIN, SECRET_KEY].contains(&key.as_str()));
        *secret = Secret {
            metadata: kept(&mut secret.metadata, &[]),
            data: Some(data),
            type_: secret.type_.take(),
            ..Secret::default()
        };
    },
    events: |secret| Ok(vec![Event::Put(Typed::Secret(Arc::new(secret)))]),
};

/// The last-applied configuration and the like are longer than the object itself.
fn kept(metadata: &mut ObjectMeta, annotations: &[&str]) -> ObjectMeta {
    let mut kept_annotations = metadata.annotations.take().unwrap_or_default();
    kept_annotations.retain(|key, _| annotations.contains(&key.as_str()));
    ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        uid: metadata.uid.take(),
        labels: metadata.labels.take(),
        annotations: (!kept_annotations.is_empty()).then_some(kept_annotations),
        deletion_timestamp: metadata.deletion_timestamp.take(),
        ..ObjectMeta::default()
    }
}

fn reduce_slice(slice: &mut EndpointSlice) {
    let mut metadata = kept(&mut slice.metadata, &[]);
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == SERVICE_NAME);
    }
    let ports = slice.ports.take().into_iter().flatten();
    let ports = ports.map(|port| EndpointPort { app_protocol: None, ..port });
    *slice = EndpointSlice {
        metadata,
        address_type: std::mem::take(&mut slice.address_type),
        endpoints: slice
            .endpoints
            .take()
            .map(|all| all.into_iter().map(reduced_endpoint).collect()),
        ports: Some(ports.collect()),
    };
}

fn reduced_endpoint(endpoint: Endpoint) -> Endpoint {
    let ready = endpoint.conditions.and_then(|conditions| conditions.ready);
    let target = endpoint.target_ref.map(|target| ObjectReference {
        kind: target.kind,
        namespace: target.namespace,
        name: target.name,
        ..ObjectReference::default()
    });
    Endpoint {
        addresses: endpoint.addresses,
        conditions: Some(EndpointConditions { ready, ..EndpointConditions::default() }),
        target_ref: target,
        ..Endpoint::default()
    }
}

fn reduce_pod(pod: &mut Pod) {
    let owners = pod.metadata.owner_references.take();
    let controller = owners.into_iter().flatten().find(|owner| owner.controller == Some(true));
    let ours = [REDIRECTION, OLDER_CONNECTIONS, CAPTURE_LACKS, NOT_CAPTURED];
    let mut metadata = kept(&mut pod.metadata, &ours);
    metadata.owner_references = controller.map(|owner| vec![owner]);
    let spec = pod.spec.take().unwrap_or_default();
    let containers = spec.containers.into_iter().filter_map(|container| {
        let ports: Vec<_> =
            container.ports.into_iter().flatten().filter(|port| port.name.is_some()).collect();
        (!ports.is_empty()).then(|| Container { ports: Some(ports), ..Container::default() })
    });
    let status = pod.status.take().unwrap_or_default();
    *pod = Pod {
        metadata,
        spec: Some(PodSpec {
            containers: containers.collect(),
            service_account_name: spec.service_account_name,
            node_name: spec.node_name,
            host_network: spec.host_network,
            ..PodSpec::default()
        }),
        status: Some(reduced_status(status)),
    };
}

fn reduced_status(status: PodStatus) -> PodStatus {
    let conditions = status.conditions.into_iter().flatten();
    let conditions = conditions.filter_map(|it| {
        // Why a pod is on no node is in the message; of everything else the word is enough.
        let message = match it.type_.as_str() {
            "Ready" => None,
            "PodScheduled" if it.status == "False" => it.message,
            _ => return None,
        };
        let (type_, status) = (it.type_, it.status);
        Some(PodCondition { type_, status, message, ..PodCondition::default() })
    });
    let containers = |all: Option<Vec<ContainerStatus>>| {
        all.into_iter().flatten().map(reduced_container).collect::<Vec<_>>()
    };
    // Done with when all went well: only one that waits is looked at.
    let mut init_containers = containers(status.init_container_statuses);
    init_containers.retain(|it| it.state.is_some());
    PodStatus {
        phase: status.phase,
        reason: status.reason,
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        conditions: Some(conditions.collect()),
        container_statuses: Some(containers(status.container_statuses)),
        init_container_statuses: (!init_containers.is_empty()).then_some(init_containers),
        ..PodStatus::default()
    }
}

fn reduced_container(container: ContainerStatus) -> ContainerStatus {
    let reason = container.state.and_then(|state| state.waiting).and_then(|it| it.reason);
    let reason = reason.filter(|reason| !STARTING.contains(&reason.as_str()));
    let waiting = |reason| ContainerStateWaiting { reason: Some(reason), message: None };
    ContainerStatus {
        restart_count: container.restart_count,
        state: reason.map(|reason| ContainerState {
            waiting: Some(waiting(reason)),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

/// The pod with its node's report. Without a uid it cannot be distinguished from the next pod of
/// its name.
fn pod_events(pod: Pod) -> Result<Vec<Event>, String> {
    pod.metadata.uid.as_ref().ok_or("it has no uid")?;
    Ok(vec![Event::Put(Typed::Pod(Arc::new(pod)))])
}

/// How a kind of Istio's or of the Gateway API is read.
pub(super) fn istio(kind: Kind) -> Reading<DynamicObject> {
    let events: Events = match kind {
        Kind::AuthorizationPolicy => |object| {
            let spec = |spec| Ok(strictest::authorization_policy(spec));
            read(Kind::AuthorizationPolicy, object, spec, Typed::AuthorizationPolicy)
        },
        Kind::PeerAuthentication => |object| {
            let spec = |spec| Ok(strictest::peer_authentication(spec));
            read(Kind::PeerAuthentication, object, spec, Typed::PeerAuthentication)
        },
        Kind::RequestAuthentication => |object| {
            let spec = |spec| Ok(strictest::request_authentication(spec));
            read(Kind::RequestAuthentication, object, spec, Typed::RequestAuthentication)
        },
        Kind::ServiceEntry => {
            |object| read(Kind::ServiceEntry, object, as_written, Typed::ServiceEntry)
        }
        Kind::WorkloadEntry => {
            |object| read(Kind::WorkloadEntry, object, as_written, Typed::WorkloadEntry)
        }
        Kind::GatewayClass => {
            |object| read(Kind::GatewayClass, object, as_written, Typed::GatewayClass)
        }
        Kind::Gateway => |object| read(Kind::Gateway, object, as_written, Typed::Gateway),
        Kind::ListenerSet => {
            |object| read(Kind::ListenerSet, object, as_written, Typed::ListenerSet)
        }
        Kind::DestinationRule => |object| {
            let spec = |spec| Ok(destination_rule::read(spec));
            read(Kind::DestinationRule, object, spec, Typed::DestinationRule)
        },
        Kind::VirtualService => |object| {
            let spec = |spec| Ok(virtual_service::read(spec));
            read(Kind::VirtualService, object, spec, Typed::VirtualService)
        },
        Kind::BackendTlsPolicy => |object| {
            let spec = |spec| Ok(backend_tls::read_spec(spec));
            read(Kind::BackendTlsPolicy, object, spec, Typed::BackendTlsPolicy)
        },
        Kind::TrafficPolicy => |object| {
            let spec = |spec| Ok(traffic_policy::read_spec(spec));
            read(Kind::TrafficPolicy, object, spec, Typed::TrafficPolicy)
        },
        Kind::Telemetry => |object| {
            let spec = |spec| Ok(telemetry::read_spec(spec));
            read(Kind::Telemetry, object, spec, Typed::Telemetry)
        },
        Kind::ReferenceGrant => |object| {
            let spec = |spec| Ok(read_grant(spec));
            read(Kind::ReferenceGrant, object, spec, Typed::ReferenceGrant)
        },
        _ => of_route(kind),
    };
    // Of a Gateway it is ours to write, and is compared with what it should be.
    let reduce = if kind == Kind::Gateway { reduce_gateway } else { reduce_istio };
    Reading { selector: None, field: None, reduce, events }
}

/// What becomes of an object.
type Events = fn(DynamicObject) -> Result<Vec<Event>, String>;

fn of_route(kind: Kind) -> Events {
    match kind {
        Kind::HttpRoute => {
            |object| read(Kind::HttpRoute, object, |it| Ok(read_route(it)), Typed::HttpRoute)
        }
        Kind::GrpcRoute => {
            |object| read(Kind::GrpcRoute, object, |it| Ok(read_route(it)), Typed::GrpcRoute)
        }
        Kind::TlsRoute => {
            |object| read(Kind::TlsRoute, object, |it| Ok(read_route(it)), Typed::TlsRoute)
        }
        Kind::TcpRoute => {
            |object| read(Kind::TcpRoute, object, |it| Ok(read_route(it)), Typed::TcpRoute)
        }
        Kind::UdpRoute => {
            |object| read(Kind::UdpRoute, object, |it| Ok(read_route(it)), Typed::UdpRoute)
        }
        _ => |_| Err("it is no kind with a definition".to_owned()),
    }
}

fn reduce_gateway(object: &mut DynamicObject) {
    let status = object.data.get("status").cloned();
    reduce_istio(object);
    if let Some((fields, status)) = object.data.as_object_mut().zip(status) {
        fields.insert("status".to_owned(), status);
    }
}

fn reduce_istio(object: &mut DynamicObject) {
    let metadata = &mut object.metadata;
    metadata.managed_fields = None;
    metadata.resource_version = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    if let Some(fields) = object.data.as_object_mut() {
        fields.retain(|name, _| name == "spec");
    }
}

/// A specification, and what of it could not be read.
type Read<S> = Result<(S, Option<String>), String>;

/// A specification that is read whole or not at all.
fn as_written<S: DeserializeOwned>(spec: Value) -> Read<S> {
    let spec = serde_json::from_value(spec).map_err(|error| format!("spec: {error}"))?;
    Ok((spec, None))
}

/// One object that cannot be read must not stop the others, so it is decoded by itself.
fn read<S: Default>(
    kind: Kind,
    mut object: DynamicObject,
    spec_of: fn(Value) -> Read<S>,
    typed: fn(Arc<IstioObject<S>>) -> Typed,
) -> Result<Vec<Event>, String> {
    let (spec, unreadable) = match object.data.get_mut("spec").map(Value::take) {
        Some(spec) => spec_of(spec)?,
        None => (S::default(), None),
    };
    if let Some(problem) = &unreadable {
        // Of several for one scope the oldest counts, and it may have meant more than any other.
        let by_age = [Kind::PeerAuthentication, Kind::TrafficPolicy, Kind::BackendTlsPolicy];
        if by_age.contains(&kind) {
            object.metadata.creation_timestamp = None;
        }
        let (namespace, name) = (&object.metadata.namespace, &object.metadata.name);
        tracing::error!(
            %kind,
            namespace,
            name,
            problem,
            "the object cannot be read, and holds in its strictest reading",
        );
    }
    let object = IstioObject {
        api_version: kind.api_versions()[0].to_owned(),
        kind: kind.name().to_owned(),
        metadata: object.metadata,
        spec,
        status: object.data.get_mut("status").map(Value::take),
        unreadable,
    };
    Ok(vec![Event::Put(typed(Arc::new(object)))])
}
