//! Whether a typed object makes sense, as Kubernetes' and Istio's API servers judge it.
//!
//! Each object is checked alone here; `manifest::check` checks references between objects. Nothing
//! here may change an object.

mod acme;
pub(crate) mod authentication;
pub(crate) mod autoscaling;
pub(crate) mod budgets;
pub(crate) mod claims;
pub(crate) mod core;
mod downward;
pub(crate) mod edge;
pub(crate) mod gateways;
pub mod names;
pub(crate) mod networking;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod pods;
pub(crate) mod routes;
pub(crate) mod security;
pub(crate) mod targets;
pub(crate) mod volumes;
pub(crate) mod workloads;

use ambit_words::annotations::DRY_RUN;
use ambit_words::labels::{AMBIENT, DATAPLANE_MODE, INGRESS_USE_WAYPOINT, NONE};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use self::names::{Rule, require};
use super::backend_tls;
use super::finding::{Issues, Path};
use super::istio::{RequestAuthentication, TargetRef};
use super::mesh_config;
use super::object::{Kind, Typed};
use super::policy::condition;
use super::routing;
use super::spelling::{meant_annotation, meant_label};
use super::telemetry;
use super::traffic;
use super::traffic_policy;

/// Most bytes that all annotations of an object may have together.
const ANNOTATIONS_SIZE_MAX_BYTES: usize = 256 << 10;

/// Checks `typed` and its metadata.
pub(crate) fn validate(typed: &Typed, issues: &mut Issues) {
    metadata(typed.kind(), typed.metadata(), issues);
    let spec = Path::at("spec");
    match typed {
        Typed::Namespace(_) | Typed::ServiceAccount(_) => {}
        Typed::Node(object) => nodes::node(object, issues),
        Typed::ConfigMap(object) => config_map(object, issues),
        Typed::Secret(object) => core::secret(object, issues),
        Typed::PersistentVolumeClaim(object) => claims::claim(object, issues),
        Typed::Service(object) => core::service(object, issues),
        Typed::Pod(object) => pods::pod(object, issues),
        Typed::Deployment(object) => workloads::deployment(object, issues),
        Typed::StatefulSet(object) => workloads::stateful_set(object, issues),
        Typed::DaemonSet(object) => workloads::daemon_set(object, issues),
        Typed::Job(object) => workloads::job(object, issues),
        Typed::CronJob(object) => workloads::cron_job(object, issues),
        Typed::PodDisruptionBudget(object) => budgets::budget(object, issues),
        Typed::HorizontalPodAutoscaler(object) => autoscaling::autoscaler(object, issues),
        Typed::EndpointSlice(object) => core::endpoint_slice(object, issues),
        Typed::ReferenceGrant(object) => routes::reference_grant(&object.spec, &spec, issues),
        Typed::HttpRoute(object) => {
            routes::parents(&object.spec, &spec, issues);
            routing::check_http(object, issues);
        }
        Typed::GrpcRoute(object) => {
            routes::parents(&object.spec, &spec, issues);
            routing::check_grpc(object, issues);
        }
        Typed::TlsRoute(object) => {
            routes::parents(&object.spec, &spec, issues);
            routing::check_tls(object, issues);
        }
        Typed::TcpRoute(object) => {
            routes::parents(&object.spec, &spec, issues);
            routing::check_tcp(object, issues);
        }
        Typed::UdpRoute(object) => {
            routes::parents(&object.spec, &spec, issues);
            routing::check_udp(object, issues);
        }
        Typed::DestinationRule(object) => traffic::check(object, issues),
        Typed::VirtualService(object) => routing::check_virtual_service(object, issues),
        Typed::BackendTlsPolicy(object) => backend_tls::check(object, issues),
        Typed::TrafficPolicy(object) => traffic_policy::check(object, issues),
        Typed::Telemetry(object) => {
            let spec_of = &object.spec;
            attached(&object.metadata, &spec_of.target_ref, &spec_of.target_refs, issues);
            telemetry::check(object, issues);
        }
        Typed::AuthorizationPolicy(object) => {
            let spec_of = &object.spec;
            attached(&object.metadata, &spec_of.target_ref, &spec_of.target_refs, issues);
            security::authorization_policy(spec_of, &spec, issues);
            condition::check(&object.metadata, issues);
        }
        Typed::PeerAuthentication(it) => security::peer_authentication(&it.spec, &spec, issues),
        Typed::RequestAuthentication(object) => request_authentication(object, &spec, issues),
        Typed::ServiceEntry(object) => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            networking::service_entry(&object.spec, namespace, &spec, issues);
        }
        Typed::WorkloadEntry(object) => networking::workload_entry(&object.spec, &spec, issues),
        Typed::GatewayClass(object) => gateways::class(&object.spec, &spec, issues),
        Typed::Gateway(object) => gateways::gateway(object, issues),
        Typed::ListenerSet(object) => gateways::listener_set(object, issues),
    }
}

fn config_map(object: &ConfigMap, issues: &mut Issues) {
    core::config_map(object, issues);
    mesh_config::check(object, issues);
}

fn request_authentication(object: &RequestAuthentication, at: &Path, issues: &mut Issues) {
    let spec = &object.spec;
    attached(&object.metadata, &spec.target_ref, &spec.target_refs, issues);
    if let Some(selector) = &spec.selector {
        security::selector(selector, &at.field("selector"), issues);
    }
    authentication::request_authentication(spec, at, issues);
}

/// Checks what an object is attached to.
fn attached(
    metadata: &ObjectMeta,
    single: &Option<TargetRef>,
    listed: &Option<Vec<TargetRef>>,
    issues: &mut Issues,
) {
    targets::check(single.as_ref(), listed.as_deref(), metadata.namespace.as_deref(), issues);
}

fn name_rule(kind: Kind) -> Rule {
    match kind {
        Kind::Namespace | Kind::Service => names::dns_label,
        _ => names::dns_subdomain,
    }
}

/// Checks the metadata of an object of this kind.
pub(crate) fn metadata(kind: Kind, metadata: &ObjectMeta, issues: &mut Issues) {
    let at = Path::at("metadata");
    match metadata.name.as_deref() {
        Some(name) => require(issues, &at.field("name"), name_rule(kind), name),
        None if metadata.generate_name.is_some() => issues.error(
            &at.field("generateName"),
            "generated names cannot be found again by the next apply",
            "give the object a metadata.name",
        ),
        None => issues.error(&at.field("name"), "the object has no name", "add metadata.name"),
    }
    match metadata.namespace.as_deref() {
        Some(namespace) if kind.is_namespaced() => {
            require(issues, &at.field("namespace"), names::dns_label, namespace);
        }
        Some(_) => issues.error(
            &at.field("namespace"),
            format!("a {kind} does not live in a namespace"),
            "remove metadata.namespace",
        ),
        None => {}
    }
    let own_labels = metadata.labels.iter().flatten();
    labels(own_labels.clone(), &at.field("labels"), issues);
    slips(own_labels, &at.field("labels"), issues);
    annotations(metadata, &at.field("annotations"), issues);
    dataplane_mode(kind, metadata, &at.field("labels"), issues);
}

/// Checks the keys and values of labels at `at`.
pub(crate) fn labels<'a>(
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    at: &Path,
    issues: &mut Issues,
) {
    for (key, value) in labels {
        require(issues, &at.field(key), names::qualified_name, key);
        require(issues, &at.field(key), names::label_value, value);
    }
}

/// Warns about misspelt keys: they have no effect, and nothing else reports them.
pub(crate) fn slips<'a>(
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    at: &Path,
    issues: &mut Issues,
) {
    for (key, value) in labels {
        if let Some(meant) = meant_label(key) {
            slip("label", &at.field(key), meant, issues);
        }
        if key == INGRESS_USE_WAYPOINT && !["true", "false"].contains(&value.as_str()) {
            issues.warn(
                &at.field(key),
                format!("`{value}` is neither true nor false, and means true"),
                "write false, if gateways are to do what the waypoint does",
            );
        }
    }
}

fn slip(what: &str, at: &Path, meant: &str, issues: &mut Issues) {
    issues.warn(
        at,
        format!("no {what} of this name is known, so it has no effect"),
        format!("write {meant}, if that is meant"),
    );
}

fn annotations(metadata: &ObjectMeta, at: &Path, issues: &mut Issues) {
    let mut size = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        require(issues, &at.field(key), names::qualified_name, &key.to_lowercase());
        size += key.len() + value.len();
        if let Some(meant) = meant_annotation(key) {
            slip("annotation", &at.field(key), meant, issues);
        }
        if key == DRY_RUN && !matches!(value.as_str(), "true" | "false") {
            let what = format!("`{value}` is neither `true` nor `false`: it is not on trial");
            issues.warn(&at.field(key), what, "write \"true\", if that is meant");
        }
    }
    if size > ANNOTATIONS_SIZE_MAX_BYTES {
        issues.error(
            at,
            format!(
                "annotations have {size} bytes, at most {ANNOTATIONS_SIZE_MAX_BYTES} are allowed"
            ),
            "move the data to a ConfigMap",
        );
    }
}

/// A misspelt mode would silently leave workloads outside the mesh.
fn dataplane_mode(kind: Kind, metadata: &ObjectMeta, at: &Path, issues: &mut Issues) {
    let Some(mode) = metadata.labels.as_ref().and_then(|labels| labels.get(DATAPLANE_MODE)) else {
        return;
    };
    let at = at.field(DATAPLANE_MODE);
    if !matches!(mode.as_str(), AMBIENT | NONE) {
        issues.error(&at, format!("the mode `{mode}` does not exist"), "use `ambient` or `none`");
    } else if !matches!(kind, Kind::Namespace | Kind::Pod) {
        issues.warn(
            &at,
            format!("on a {kind} the label has no effect"),
            "put it on the Namespace, the Pod or the template of its pods",
        );
    }
}
