//! The Istio resources that Ambit reads: AuthorizationPolicy, PeerAuthentication,
//! RequestAuthentication, ServiceEntry, WorkloadEntry.
//!
//! The structs follow the CRDs field by field, L7 fields included, because a policy that cannot be
//! enforced must still be understood well enough to say so. Lists are `Option<Vec<_>>` where Istio
//! distinguishes an absent list from an empty one: an absent `from` matches every source, and an
//! empty one must never be mistaken for that. Nothing here may change a value while reading it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// An object of Istio's or of the Gateway API: type, metadata, specification. `status` is the
/// control plane's and only kept as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IstioObject<S> {
    /// The API group and version.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    /// What the user wants.
    #[serde(default)]
    pub spec: S,
    /// What the control plane answered; never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<serde_json::Value>,
    /// What of the specification could not be read; it holds the strictest reading of that.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

/// security.istio.io AuthorizationPolicy.
pub type AuthorizationPolicy = IstioObject<AuthorizationPolicySpec>;
/// security.istio.io RequestAuthentication.
pub type RequestAuthentication = IstioObject<RequestAuthenticationSpec>;
/// security.istio.io PeerAuthentication.
pub type PeerAuthentication = IstioObject<PeerAuthenticationSpec>;
/// networking.istio.io ServiceEntry.
pub type ServiceEntry = IstioObject<ServiceEntrySpec>;
/// networking.istio.io WorkloadEntry.
pub type WorkloadEntry = IstioObject<WorkloadEntrySpec>;

/// Which workloads of the namespace are meant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSelector {
    /// Labels that a workload must carry; none selects all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Who may, or may not, do what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorizationPolicySpec {
    /// The workloads it holds for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// The waypoint or service it is attached to (older form).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The waypoints or services it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_refs: Option<Vec<TargetRef>>,
    /// Any of them must match; none never matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
    /// What a match means.
    pub action: Action,
    /// The external authoriser of a CUSTOM policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
}

/// What a match means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// Allowed; everything else is refused once there is one ALLOW policy.
    #[default]
    Allow,
    /// Refused.
    Deny,
    /// Written to an audit log, decides nothing.
    Audit,
    /// Asked of an external authoriser.
    Custom,
}

/// The object a policy is attached to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// API group, empty for core.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Gateway, Service, ServiceEntry or GatewayClass.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The external authoriser of a CUSTOM policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provider {
    /// Its name in the mesh configuration.
    pub name: String,
}

/// Who, what, and under which conditions: all three must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Any of the sources; absent matches every source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Vec<From>>,
    /// Any of the operations; absent matches every operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Vec<To>>,
    /// All of the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Vec<Condition>>,
}

/// One source of a rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct From {
    /// The source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// One operation of a rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct To {
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
}

/// Values of one field of a match; absent means "not asked".
pub type Values = Option<Vec<String>>;

/// Who opened the connection; all fields that are given must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are Istio's, and its reference documents them")]
pub struct Source {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principals: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_principals: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_principals: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_request_principals: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_namespaces: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_accounts: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_service_accounts: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_domains: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_trust_domains: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_blocks: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ip_blocks: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_ip_blocks: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_remote_ip_blocks: Values,
}

/// What is asked for; all fields that are given must match. Only ports exist at layer 4.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are Istio's, and its reference documents them")]
pub struct Operation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_hosts: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ports: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_methods: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_paths: Values,
}

/// A condition on one attribute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// The attribute, as in `source.ip`.
    pub key: String,
    /// Any of them must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Values,
    /// None of them may match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_values: Values,
}

/// Which tokens of requests are accepted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestAuthenticationSpec {
    /// The workloads it holds for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// The waypoint or service it is attached to (older form).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// The waypoints or services it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_refs: Option<Vec<TargetRef>>,
    /// One for each issuer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jwt_rules: Vec<JwtRule>,
}

/// The tokens of one issuer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs, reason = "the names are Istio's, and its reference documents them")]
pub struct JwtRule {
    pub issuer: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jwks_uri: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jwks: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from_headers: Vec<JwtHeader>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from_params: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub from_cookies: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output_payload_to_header: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_claim_to_headers: Vec<ClaimToHeader>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forward_original_token: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub space_delimited_claims: Vec<String>,
}

/// A field that holds a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JwtHeader {
    /// The field.
    pub name: String,
    /// What stands before the token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

/// A field that takes a claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimToHeader {
    /// The field.
    pub header: String,
    /// The claim; dots lead into objects.
    pub claim: String,
}

/// Which workloads accept plain text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerAuthenticationSpec {
    /// The workloads it holds for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// The mode of all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtls: Option<MutualTls>,
    /// The mode of single ports, by the port the workload listens on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub port_level_mtls: BTreeMap<String, MutualTls>,
}

/// The mode of a port or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MutualTls {
    /// The mode.
    pub mode: MutualTlsMode,
}

/// Whether plain text is accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MutualTlsMode {
    /// As the next wider scope says.
    #[default]
    Unset,
    /// Plain text and mutual TLS; the mesh's own encryption stays.
    Disable,
    /// Plain text and mutual TLS.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// Hosts outside of the service registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceEntrySpec {
    /// The DNS names.
    pub hosts: Vec<String>,
    /// Addresses clients use; allocated when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The ports clients use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// Inside or outside of the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<ServiceEntryLocation>,
    /// How endpoints are found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
    /// The endpoints, for STATIC and DNS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<WorkloadEntrySpec>,
    /// Pods and WorkloadEntries that are endpoints, instead of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_selector: Option<EntrySelector>,
    /// Namespaces that see it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub export_to: Vec<String>,
    /// Identities that are accepted of the endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subject_alt_names: Vec<String>,
}

/// Selects the endpoints of a ServiceEntry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EntrySelector {
    /// Labels that an endpoint must carry.
    pub labels: BTreeMap<String, String>,
}

/// A port of a ServiceEntry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// The port clients use.
    pub number: u32,
    /// The protocol, as in Istio's list.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Its name.
    pub name: String,
    /// The port at the endpoints; 0 is the same.
    #[serde(skip_serializing_if = "is_zero")]
    pub target_port: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Inside or outside of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ServiceEntryLocation {
    /// Reached as it is.
    MeshExternal,
    /// Part of the mesh.
    MeshInternal,
}

/// How the endpoints of a ServiceEntry are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Resolution {
    /// The address that the client used.
    None,
    /// The listed endpoints.
    Static,
    /// A DNS query for each connection.
    Dns,
    /// A DNS query, first answer wins.
    DnsRoundRobin,
    /// The host that the client named.
    DynamicDns,
}

impl IstioObject<WorkloadEntrySpec> {
    /// Its labels: those of its specification, and those of the object itself.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.metadata.labels.clone().unwrap_or_default();
        labels.extend(self.spec.labels.clone());
        labels
    }
}

/// A workload that is not a pod, as an object or as an endpoint of a ServiceEntry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadEntrySpec {
    /// IP address or DNS name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Ports by the service port's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u32>,
    /// Labels, for selectors and telemetry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The network it is on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `region/zone/subzone`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub locality: String,
    /// Share of the traffic, compared to the other endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The service account it runs as.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
}
