//! The objects Ambit reads: kinds, keys and typed contents.
//!
//! One table (`KINDS`) holds the names of each kind in its API, in paths and in URLs; all code that
//! distinguishes kinds uses it. Nothing here may know how an object is used.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, PodTemplateSpec, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use super::backend_tls::BackendTlsPolicy;
use super::destination_rule::DestinationRule;
use super::document::FieldLines;
use super::finding::{Finding, Location};
use super::gateway::sets::ListenerSet;
use super::gateway::{Gateway, GatewayClass};
use super::istio::{
    AuthorizationPolicy, PeerAuthentication, RequestAuthentication, ServiceEntry, WorkloadEntry,
};
use super::routes::{GrpcRoute, HttpRoute, ReferenceGrant, TcpRoute, TlsRoute, UdpRoute};
use super::routing::ParentKind;
use super::telemetry::Telemetry;
use super::traffic_policy::TrafficPolicy;
use super::virtual_service::VirtualService;

/// A kind of object that Ambit reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[allow(missing_docs, reason = "the names are those of the APIs")]
pub enum Kind {
    Namespace,
    Node,
    ServiceAccount,
    ConfigMap,
    Secret,
    PersistentVolumeClaim,
    Service,
    Pod,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    PodDisruptionBudget,
    HorizontalPodAutoscaler,
    EndpointSlice,
    ReferenceGrant,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
    DestinationRule,
    VirtualService,
    BackendTlsPolicy,
    TrafficPolicy,
    Telemetry,
    AuthorizationPolicy,
    PeerAuthentication,
    RequestAuthentication,
    ServiceEntry,
    WorkloadEntry,
    GatewayClass,
    Gateway,
    ListenerSet,
}

/// How one kind is written.
struct KindNames {
    kind: Kind,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
    /// All versions that are read; the first is the one written.
    api_versions: &'static [&'static str],
}

const SECURITY: &[&str] = &["security.istio.io/v1", "security.istio.io/v1beta1"];
const NETWORKING: &[&str] =
    &["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"];

const TELEMETRY: &[&str] = &["telemetry.istio.io/v1", "telemetry.istio.io/v1alpha1"];

const GATEWAYS: &[&str] = &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"];
/// It is there since version 1.5 of the API.
const LISTENER_SETS: &[&str] = &["gateway.networking.k8s.io/v1"];
const GRPC_ROUTES: &[&str] = &["gateway.networking.k8s.io/v1"];
/// The older versions are those of clusters before version 1.5 of the API.
const TLS_ROUTES: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha3",
    "gateway.networking.k8s.io/v1alpha2",
];
/// The older version is that of clusters before version 1.6 of the API.
const TCP_ROUTES: &[&str] = &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"];
/// The older version is there in every release of the API.
const REFERENCE_GRANTS: &[&str] =
    &["gateway.networking.k8s.io/v1beta1", "gateway.networking.k8s.io/v1"];

/// The older version is that of clusters before version 1.4 of the API.
const BACKEND_TLS_POLICIES: &[&str] =
    &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha3"];

/// The older version has another form, which is translated.
const AUTOSCALING: &[&str] = &["autoscaling/v2", "autoscaling/v1"];

/// Ambit's own.
const AMBIT: &[&str] = &["ambit.io/v1alpha1"];

const fn names(
    kind: Kind,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
    api_versions: &'static [&'static str],
) -> KindNames {
    KindNames { kind, name, plural, namespaced, api_versions }
}

/// In the order in which a list of objects is applied: what others refer to comes before them, and
/// what forbids before what it forbids.
const KINDS: [KindNames; 35] = [
    names(Kind::Namespace, "Namespace", "namespaces", false, &["v1"]),
    names(Kind::Node, "Node", "nodes", false, &["v1"]),
    names(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts", true, &["v1"]),
    names(Kind::ConfigMap, "ConfigMap", "configmaps", true, &["v1"]),
    names(Kind::Secret, "Secret", "secrets", true, &["v1"]),
    names(
        Kind::PersistentVolumeClaim,
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        true,
        &["v1"],
    ),
    names(Kind::Service, "Service", "services", true, &["v1"]),
    names(Kind::EndpointSlice, "EndpointSlice", "endpointslices", true, &["discovery.k8s.io/v1"]),
    names(Kind::ReferenceGrant, "ReferenceGrant", "referencegrants", true, REFERENCE_GRANTS),
    names(
        Kind::BackendTlsPolicy,
        "BackendTLSPolicy",
        "backendtlspolicies",
        true,
        BACKEND_TLS_POLICIES,
    ),
    names(Kind::HttpRoute, "HTTPRoute", "httproutes", true, GATEWAYS),
    names(Kind::GrpcRoute, "GRPCRoute", "grpcroutes", true, GRPC_ROUTES),
    names(Kind::TlsRoute, "TLSRoute", "tlsroutes", true, TLS_ROUTES),
    names(Kind::TcpRoute, "TCPRoute", "tcproutes", true, TCP_ROUTES),
    names(Kind::UdpRoute, "UDPRoute", "udproutes", true, TCP_ROUTES),
    names(Kind::DestinationRule, "DestinationRule", "destinationrules", true, NETWORKING),
    names(Kind::VirtualService, "VirtualService", "virtualservices", true, NETWORKING),
    names(Kind::TrafficPolicy, "TrafficPolicy", "trafficpolicies", true, AMBIT),
    names(Kind::Telemetry, "Telemetry", "telemetries", true, TELEMETRY),
    names(
        Kind::AuthorizationPolicy,
        "AuthorizationPolicy",
        "authorizationpolicies",
        true,
        SECURITY,
    ),
    names(Kind::PeerAuthentication, "PeerAuthentication", "peerauthentications", true, SECURITY),
    names(
        Kind::RequestAuthentication,
        "RequestAuthentication",
        "requestauthentications",
        true,
        SECURITY,
    ),
    names(Kind::ServiceEntry, "ServiceEntry", "serviceentries", true, NETWORKING),
    names(Kind::WorkloadEntry, "WorkloadEntry", "workloadentries", true, NETWORKING),
    names(Kind::GatewayClass, "GatewayClass", "gatewayclasses", false, GATEWAYS),
    names(Kind::Gateway, "Gateway", "gateways", true, GATEWAYS),
    names(Kind::ListenerSet, "ListenerSet", "listenersets", true, LISTENER_SETS),
    names(
        Kind::PodDisruptionBudget,
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        true,
        &["policy/v1"],
    ),
    names(Kind::Pod, "Pod", "pods", true, &["v1"]),
    names(Kind::Deployment, "Deployment", "deployments", true, &["apps/v1"]),
    names(Kind::StatefulSet, "StatefulSet", "statefulsets", true, &["apps/v1"]),
    names(Kind::DaemonSet, "DaemonSet", "daemonsets", true, &["apps/v1"]),
    names(Kind::Job, "Job", "jobs", true, &["batch/v1"]),
    names(Kind::CronJob, "CronJob", "cronjobs", true, &["batch/v1"]),
    names(
        Kind::HorizontalPodAutoscaler,
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        true,
        AUTOSCALING,
    ),
];

impl From<ParentKind> for Kind {
    fn from(parent: ParentKind) -> Self {
        match parent {
            ParentKind::Service => Self::Service,
            ParentKind::ServiceEntry => Self::ServiceEntry,
            ParentKind::Gateway => Self::Gateway,
            ParentKind::ListenerSet => Self::ListenerSet,
        }
    }
}

impl Kind {
    /// All kinds, in the order in which they are applied: what others refer to comes first.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|names| names.kind)
    }

    /// Whether a controller makes pods from a template at `spec.template` of these objects.
    pub fn has_pod_template(self) -> bool {
        matches!(self, Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::Job)
    }

    /// Where these objects have the template of their pods, if they have one.
    pub fn template_at(self) -> Option<&'static str> {
        match self {
            Self::CronJob => Some("spec.jobTemplate.spec.template"),
            it if it.has_pod_template() => Some("spec.template"),
            _ => None,
        }
    }

    /// The kind's name, as in `kind: Service`.
    pub fn name(self) -> &'static str {
        self.names().name
    }

    /// The kind's name in paths, as in `services`.
    pub fn plural(self) -> &'static str {
        self.names().plural
    }

    /// Whether objects of this kind live in a namespace.
    pub fn is_namespaced(self) -> bool {
        self.names().namespaced
    }

    /// The `apiVersion` values that are read; the first is the one written.
    pub fn api_versions(self) -> &'static [&'static str] {
        self.names().api_versions
    }

    /// The kind named `plural` in a path.
    pub fn from_plural(plural: &str) -> Option<Self> {
        KINDS.iter().find(|names| names.plural == plural).map(|names| names.kind)
    }

    /// The kind that a manifest of exactly this version means.
    pub fn of_manifest(api_version: &str, name: &str) -> Option<Self> {
        let is_meant = |it: &&KindNames| it.name == name && it.api_versions.contains(&api_version);
        KINDS.iter().find(is_meant).map(|names| names.kind)
    }

    /// Where it comes when a list of objects is applied.
    pub fn rank(self) -> usize {
        KINDS.iter().position(|it| it.kind == self).expect("KINDS has an entry for every kind")
    }

    /// The kind called `name` in the API group of `api_version`.
    pub(crate) fn from_api(api_version: &str, name: &str) -> Option<Self> {
        let group = |version: &str| version.rsplit_once('/').map(|(group, _)| group.to_owned());
        KINDS
            .iter()
            .find(|names| names.name == name && group(names.api_versions[0]) == group(api_version))
            .map(|names| names.kind)
    }

    fn names(self) -> &'static KindNames {
        KINDS.iter().find(|names| names.kind == self).expect("KINDS has an entry for every kind")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What identifies an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ObjectKey {
    /// The kind.
    pub kind: Kind,
    /// The namespace; empty for kinds that have none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of `kind` `namespace`/`name`.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// An object's contents.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the APIs")]
pub enum Typed {
    Namespace(Arc<Namespace>),
    Node(Arc<Node>),
    ServiceAccount(Arc<ServiceAccount>),
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
    PersistentVolumeClaim(Arc<PersistentVolumeClaim>),
    Service(Arc<Service>),
    Pod(Arc<Pod>),
    Deployment(Arc<Deployment>),
    StatefulSet(Arc<StatefulSet>),
    DaemonSet(Arc<DaemonSet>),
    Job(Arc<Job>),
    CronJob(Arc<CronJob>),
    PodDisruptionBudget(Arc<PodDisruptionBudget>),
    HorizontalPodAutoscaler(Arc<HorizontalPodAutoscaler>),
    EndpointSlice(Arc<EndpointSlice>),
    ReferenceGrant(Arc<ReferenceGrant>),
    HttpRoute(Arc<HttpRoute>),
    GrpcRoute(Arc<GrpcRoute>),
    TlsRoute(Arc<TlsRoute>),
    TcpRoute(Arc<TcpRoute>),
    /// A UDPRoute.
    UdpRoute(Arc<UdpRoute>),
    DestinationRule(Arc<DestinationRule>),
    VirtualService(Arc<VirtualService>),
    BackendTlsPolicy(Arc<BackendTlsPolicy>),
    TrafficPolicy(Arc<TrafficPolicy>),
    Telemetry(Arc<Telemetry>),
    AuthorizationPolicy(Arc<AuthorizationPolicy>),
    PeerAuthentication(Arc<PeerAuthentication>),
    RequestAuthentication(Arc<RequestAuthentication>),
    ServiceEntry(Arc<ServiceEntry>),
    WorkloadEntry(Arc<WorkloadEntry>),
    GatewayClass(Arc<GatewayClass>),
    Gateway(Arc<Gateway>),
    ListenerSet(Arc<ListenerSet>),
}

impl Typed {
    /// The object's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Namespace(_) => Kind::Namespace,
            Self::Node(_) => Kind::Node,
            Self::ServiceAccount(_) => Kind::ServiceAccount,
            Self::ConfigMap(_) => Kind::ConfigMap,
            Self::Secret(_) => Kind::Secret,
            Self::PersistentVolumeClaim(_) => Kind::PersistentVolumeClaim,
            Self::Service(_) => Kind::Service,
            Self::Pod(_) => Kind::Pod,
            Self::Deployment(_) => Kind::Deployment,
            Self::StatefulSet(_) => Kind::StatefulSet,
            Self::DaemonSet(_) => Kind::DaemonSet,
            Self::Job(_) => Kind::Job,
            Self::CronJob(_) => Kind::CronJob,
            Self::PodDisruptionBudget(_) => Kind::PodDisruptionBudget,
            Self::HorizontalPodAutoscaler(_) => Kind::HorizontalPodAutoscaler,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::ReferenceGrant(_) => Kind::ReferenceGrant,
            Self::HttpRoute(_) => Kind::HttpRoute,
            Self::GrpcRoute(_) => Kind::GrpcRoute,
            Self::TlsRoute(_) => Kind::TlsRoute,
            Self::TcpRoute(_) => Kind::TcpRoute,
            Self::UdpRoute(_) => Kind::UdpRoute,
            Self::DestinationRule(_) => Kind::DestinationRule,
            Self::VirtualService(_) => Kind::VirtualService,
            Self::BackendTlsPolicy(_) => Kind::BackendTlsPolicy,
            Self::TrafficPolicy(_) => Kind::TrafficPolicy,
            Self::Telemetry(_) => Kind::Telemetry,
            Self::AuthorizationPolicy(_) => Kind::AuthorizationPolicy,
            Self::PeerAuthentication(_) => Kind::PeerAuthentication,
            Self::RequestAuthentication(_) => Kind::RequestAuthentication,
            Self::ServiceEntry(_) => Kind::ServiceEntry,
            Self::WorkloadEntry(_) => Kind::WorkloadEntry,
            Self::GatewayClass(_) => Kind::GatewayClass,
            Self::Gateway(_) => Kind::Gateway,
            Self::ListenerSet(_) => Kind::ListenerSet,
        }
    }

    /// The object's name, namespace, labels and annotations.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Namespace(object) => &object.metadata,
            Self::Node(object) => &object.metadata,
            Self::ServiceAccount(object) => &object.metadata,
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
            Self::PersistentVolumeClaim(object) => &object.metadata,
            Self::Service(object) => &object.metadata,
            Self::Pod(object) => &object.metadata,
            Self::Deployment(object) => &object.metadata,
            Self::StatefulSet(object) => &object.metadata,
            Self::DaemonSet(object) => &object.metadata,
            Self::Job(object) => &object.metadata,
            Self::CronJob(object) => &object.metadata,
            Self::PodDisruptionBudget(object) => &object.metadata,
            Self::HorizontalPodAutoscaler(object) => &object.metadata,
            Self::EndpointSlice(object) => &object.metadata,
            Self::ReferenceGrant(object) => &object.metadata,
            Self::HttpRoute(object) => &object.metadata,
            Self::GrpcRoute(object) => &object.metadata,
            Self::TlsRoute(object) => &object.metadata,
            Self::TcpRoute(object) | Self::UdpRoute(object) => &object.metadata,
            Self::DestinationRule(object) => &object.metadata,
            Self::VirtualService(object) => &object.metadata,
            Self::BackendTlsPolicy(object) => &object.metadata,
            Self::TrafficPolicy(object) => &object.metadata,
            Self::Telemetry(object) => &object.metadata,
            Self::AuthorizationPolicy(object) => &object.metadata,
            Self::PeerAuthentication(object) => &object.metadata,
            Self::RequestAuthentication(object) => &object.metadata,
            Self::ServiceEntry(object) => &object.metadata,
            Self::WorkloadEntry(object) => &object.metadata,
            Self::GatewayClass(object) => &object.metadata,
            Self::Gateway(object) => &object.metadata,
            Self::ListenerSet(object) => &object.metadata,
        }
    }

    /// The template of the pods that the object's controller makes, at [`Kind::template_at`].
    pub fn pod_template(&self) -> Option<&PodTemplateSpec> {
        match self {
            Self::Deployment(object) => Some(&object.spec.as_ref()?.template),
            Self::StatefulSet(object) => Some(&object.spec.as_ref()?.template),
            Self::DaemonSet(object) => Some(&object.spec.as_ref()?.template),
            Self::Job(object) => Some(&object.spec.as_ref()?.template),
            Self::CronJob(object) => Some(&object.spec.job_template.spec.as_ref()?.template),
            _ => None,
        }
    }

    /// The object's key; the namespace is `default` where a namespaced object names none.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey::new(
            self.kind(),
            metadata.namespace.as_deref().unwrap_or("default"),
            metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

/// An object of an input: contents, canonical JSON, and where it was read.
#[derive(Debug, Clone)]
pub struct Object {
    /// What identifies it.
    pub key: ObjectKey,
    /// Its contents.
    pub typed: Typed,
    /// The JSON to store: with its namespace, without nulls and `status`.
    pub json: Value,
    /// The manifest: only what was written, nulls included, as the JSON names it.
    pub named: Value,
    /// Where it was read.
    pub location: Location,
    pub(super) lines: FieldLines,
}

impl Object {
    /// What is wrong at one of its fields.
    pub fn finding(
        &self,
        field: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let field = field.into();
        Finding {
            location: Location { line: self.line(&field), ..self.location.clone() },
            object: self.key.to_string(),
            field,
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The line of a field, or of the nearest field above it that was written.
    fn line(&self, path: &str) -> u64 {
        self.lines.line(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_group_and_name() {
        let kind = |version, name| Kind::from_api(version, name);
        assert_eq!(kind("v1", "Service"), Some(Kind::Service));
        assert_eq!(kind("serving.knative.dev/v1", "Service"), None);
        assert_eq!(
            kind("security.istio.io/v1beta1", "PeerAuthentication"),
            Some(Kind::PeerAuthentication)
        );
        assert_eq!(kind("apps/v1beta9", "Deployment"), Some(Kind::Deployment));
        assert_eq!(Kind::from_plural("serviceentries"), Some(Kind::ServiceEntry));
    }
}
