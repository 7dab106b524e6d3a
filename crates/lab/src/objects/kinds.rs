//! The kinds of object that a machine keeps, one table.

/// One kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// API groups and versions under which it is accepted.
    pub api_versions: &'static [&'static str],
    /// The kind's name in a manifest.
    pub kind: &'static str,
    /// The plural: its directory, and its name on the command line.
    pub plural: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

const fn cluster(
    api_versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind { api_versions, kind, plural, namespaced: false }
}

const fn namespaced(
    api_versions: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind { api_versions, kind, plural, namespaced: true }
}

const CORE: &[&str] = &["v1"];
const SECURITY: &[&str] = &["security.istio.io/v1", "security.istio.io/v1beta1"];
const NETWORKING: &[&str] =
    &["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"];
const DISCOVERY: &[&str] = &["discovery.k8s.io/v1"];
const GATEWAY: &[&str] = &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"];

/// Every kind, in the order in which one list of objects is admitted: what is referred to comes
/// first.
pub const KINDS: &[Kind] = &[
    cluster(CORE, "Namespace", "namespaces"),
    cluster(CORE, "Node", "nodes"),
    namespaced(CORE, "ServiceAccount", "serviceaccounts"),
    namespaced(CORE, "ConfigMap", "configmaps"),
    namespaced(CORE, "Secret", "secrets"),
    namespaced(CORE, "Service", "services"),
    namespaced(DISCOVERY, "EndpointSlice", "endpointslices"),
    namespaced(SECURITY, "PeerAuthentication", "peerauthentications"),
    namespaced(SECURITY, "AuthorizationPolicy", "authorizationpolicies"),
    namespaced(NETWORKING, "ServiceEntry", "serviceentries"),
    namespaced(NETWORKING, "WorkloadEntry", "workloadentries"),
    namespaced(GATEWAY, "Gateway", "gateways"),
    namespaced(CORE, "Pod", "pods"),
    namespaced(&["apps/v1"], "Deployment", "deployments"),
];

impl Kind {
    /// The kind that a manifest means.
    pub fn of_manifest(api_version: &str, kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|row| row.kind == kind && row.api_versions.contains(&api_version))
    }

    /// The kind with this plural.
    pub fn of_plural(plural: &str) -> Option<&'static Self> {
        KINDS.iter().find(|row| row.plural == plural)
    }

    /// The place in [`KINDS`].
    pub(crate) fn rank(&self) -> usize {
        KINDS.iter().position(|row| row.plural == self.plural).expect("every kind is in the table")
    }
}
