//! Keys of labels, of selectors and of taints.

/// Enrols a namespace or pod: [`AMBIENT`] or [`NONE`].
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// The value of [`DATAPLANE_MODE`] that enrols.
pub const AMBIENT: &str = "ambient";
/// The value of [`DATAPLANE_MODE`] that takes a pod out, and of [`USE_WAYPOINT`] that names none.
pub const NONE: &str = "none";
/// Names a waypoint, on a namespace, Service, pod or entry.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// The namespace of the waypoint that [`USE_WAYPOINT`] names.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Names a second waypoint, on a namespace, Service or ServiceEntry: a part of the connections goes
/// there.
pub const USE_WAYPOINT_CANARY: &str = "istio.io/use-waypoint-canary";
/// The namespace of the waypoint that [`USE_WAYPOINT_CANARY`] names.
pub const USE_WAYPOINT_CANARY_NAMESPACE: &str = "istio.io/use-waypoint-canary-namespace";
/// On a Service, a ServiceEntry or their namespace: `false` lets gateways at the edge do what the
/// waypoint does, so that what comes through them need not pass it.
pub const INGRESS_USE_WAYPOINT: &str = "istio.io/ingress-use-waypoint";
/// On a Gateway: which traffic the waypoint is for.
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// The revision of a control plane that an object belongs to.
pub const REVISION: &str = "istio.io/rev";
/// On a pod: `false` keeps a sidecar out of it.
pub const SIDECAR_INJECT: &str = "sidecar.istio.io/inject";
/// The Gateway that an object was made for.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The class of the Gateway that an object was made for.
pub const GATEWAY_CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The controller that made an object for a Gateway.
pub const GATEWAY_MANAGED: &str = "gateway.istio.io/managed";
/// On a ConfigMap of the mesh's namespace: the class whose Gateways its patches are for.
pub const DEFAULTS_FOR_CLASS: &str = "gateway.istio.io/defaults-for-class";
/// On a Secret: the Gateway for which control renews the certificate in it.
pub const ACME: &str = "ambit.io/acme";
/// The network of a pod.
pub const NETWORK: &str = "topology.istio.io/network";
/// On a WorkloadEntry: `http` says that its address speaks HBONE.
pub const TUNNEL: &str = "networking.istio.io/tunnel";
/// The value of the label above that means HBONE.
pub const TUNNEL_HTTP: &str = "http";
/// The cluster that a workload is in, as preferences name it.
pub const CLUSTER: &str = "topology.istio.io/cluster";
/// On a pod or namespace: `true` has connections cut that are older than the capture.
pub const CUT_OPEN_CONNECTIONS: &str = "ambit.io/cut-open-connections";
/// The name of an application, in telemetry.
pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
/// The version of an application, in telemetry.
pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
/// The smallest of Istio's three parts of a locality.
pub const SUBZONE: &str = "topology.istio.io/subzone";

/// Kubernetes' name of an application.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// The Service of an EndpointSlice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The name of a node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The operating system of a node.
pub const OS: &str = "kubernetes.io/os";
/// The processor of a node, as in `amd64`.
pub const ARCHITECTURE: &str = "kubernetes.io/arch";
/// [`OS`] by its old name, which kubelets still set.
pub const BETA_OS: &str = "beta.kubernetes.io/os";
/// [`ARCHITECTURE`] by its old name.
pub const BETA_ARCHITECTURE: &str = "beta.kubernetes.io/arch";
/// The region of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The zone of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The kind of machine of a node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// The taint of a node on another computer, which has its own images.
pub const JOINED: &str = "ambit.io/joined";
/// The taint of a node that takes no more pods.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The taint that Istio's CNI plugin, and the node agent by default, take away from a ready node.
pub const ISTIO_NOT_READY: &str = "cni.istio.io/not-ready";
/// On a pod: the uid of the Job that it runs for.
pub const JOB_CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// On a pod of a StatefulSet: its name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// On a pod of a StatefulSet: its ordinal.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
