//! Names that have a meaning of their own.

/// The default trust domain. In a policy it means the trust domain of the mesh, also if that has
/// another name.
pub const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";
/// The default domain of a cluster's Services.
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";
/// The default namespace of Ambit's parts, where policies apply to the whole mesh. It has Istio's
/// name, so that either can replace the other.
pub const DEFAULT_MESH_NAMESPACE: &str = "istio-system";
/// The control plane's Deployment, Service and service account.
pub const CONTROL: &str = "istiod";
/// The control plane's name in certificates.
pub const CONTROL_HOST: &str = "istiod.istio-system.svc";
/// The node proxies' DaemonSet and service account.
pub const PROXY: &str = "ztunnel";
/// The container of Istio's sidecars and gateways; that of waypoints here, for tools that look for
/// it.
pub const ISTIO_PROXY: &str = "istio-proxy";
/// The control plane's Lease: who holds it leads.
pub const CONTROL_LEASE: &str = "ambit-control";
/// The CNI plugin, and its file on a node.
pub const CNI_PLUGIN: &str = "ambit-cni";
/// The ConfigMap of each namespace that has the roots of trust.
pub const ROOT_CONFIG_MAP: &str = "istio-ca-root-cert";
/// The ConfigMap of the root namespace that holds the mesh configuration.
pub const MESH_CONFIG_MAP: &str = "istio";
/// What a token must be meant for, to be taken for a certificate.
pub const TOKEN_AUDIENCE: &str = "istio-ca";
/// The metadata of a certificate request that names for whom it is.
pub const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";
/// The metadata of calls to control that names the WorkloadEntry whose computer calls. The token of
/// such a call is of the WorkloadEntry's namespace and service account, and of no pod.
pub const WORKLOAD_ENTRY_METADATA: &str = "ambit-workload-entry";
/// The reason of a pod's condition for which no node has room.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// The value of a metric's label that nothing is known for.
pub const UNKNOWN_LABEL: &str = "unknown";
/// Below a node's credentials: those of its waypoint pods, each in a directory of the pod's uid.
pub const WAYPOINT_CREDENTIALS: &str = "waypoints";
/// The directory of a pod's token, in its credentials and below `/var/run/secrets`.
pub const TOKENS: &str = "tokens";
/// The file of a pod's token there.
pub const POD_TOKEN: &str = "istio-token";
/// The directory of a pod's root certificate, in its credentials and below `/var/run/secrets`.
pub const ROOTS: &str = "istio";
/// The file of the root certificate, with a node's credentials and a pod's.
pub const ROOT_CERTIFICATE: &str = "root-cert.pem";
/// The file of the list of revoked certificates, beside it.
pub const REVOCATION_LIST: &str = "ca-crl.pem";

/// Where a host, or a container, says who its resolvers are.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The path of an object's name, as selectors of fields and replacements write it.
pub const NAME_FIELD: &str = "metadata.name";
/// What kubectl prints where there is nothing.
pub const NOTHING: &str = "<none>";

/// The path at which gRPC servers say how they are.
pub const GRPC_HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
