//! Istio's DestinationRule as written.
//!
//! The structs follow the definition field by field, also where Ambit cannot honour a field.
//! [`crate::traffic`] says what a rule means. Nothing here may change a value while reading it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::istio::{IstioObject, WorkloadSelector};
use crate::routes;

/// networking.istio.io DestinationRule.
pub type DestinationRule = IstioObject<DestinationRuleSpec>;

/// Reads the specification of a DestinationRule of a cluster, whose definition may be newer than
/// this program; also returns why it cannot be read. Its host is known then too, if it can be
/// read, so that its requests are refused.
pub fn read(spec: Value) -> (DestinationRuleSpec, Option<String>) {
    let host = spec.get("host").and_then(Value::as_str).unwrap_or_default().to_owned();
    match routes::read_known(spec) {
        Ok((read, unknown)) => (DestinationRuleSpec { unknown, ..read }, None),
        Err(problem) => {
            (DestinationRuleSpec { host, ..Default::default() }, Some(format!("spec: {problem}")))
        }
    }
}

/// How requests to a host are spread over its endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationRuleSpec {
    /// The services: a host, a name without dots in the rule's own namespace, `*` or `*.SUFFIX`.
    pub host: String,
    /// What holds for all subsets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traffic_policy: Option<TrafficPolicy>,
    /// Parts of the endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) subsets: Vec<Subset>,
    /// Namespaces whose clients it holds for; all when there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub export_to: Vec<String>,
    /// Clients that it holds for; not honoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_selector: Option<WorkloadSelector>,
    /// Fields that a cluster has and this version does not know, as in `subsets.0.newer`.
    #[serde(skip)]
    pub(crate) unknown: Vec<String>,
}

/// A part of a host's endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Subset {
    /// Its name.
    pub(crate) name: String,
    /// Labels that an endpoint must carry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    /// What holds for it instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traffic_policy: Option<TrafficPolicy>,
}

/// What holds for a host, or for a subset of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TrafficPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_balancer: Option<LoadBalancer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection_pool: Option<ConnectionPool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outlier_detection: Option<OutlierDetection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<ClientTls>,
    /// What holds for single ports instead; nothing of what is above is inherited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) port_level_settings: Vec<PortPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tunnel: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_protocol: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_budget: Option<WrittenBudget>,
}

/// What holds for one port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PortPolicy {
    pub(crate) port: PortSelector,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_balancer: Option<LoadBalancer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection_pool: Option<ConnectionPool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outlier_detection: Option<OutlierDetection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<ClientTls>,
}

/// A port of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PortSelector {
    pub(crate) number: i64,
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LoadBalancer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simple: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consistent_hash: Option<ConsistentHash>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) locality_lb_setting: Option<LocalitySetting>,
    /// The older form of what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warmup_duration_secs: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warmup: Option<WrittenWarmup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone_aware_lb_setting: Option<Value>,
}

/// Which endpoints are near.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LocalitySetting {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) distribute: Vec<Distribute>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failover: Vec<RegionFailover>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failover_priority: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
}

/// Shares for clients of one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Distribute {
    pub(crate) from: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) to: BTreeMap<String, i64>,
}

/// The region that takes over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RegionFailover {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// How a new endpoint comes to its share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenWarmup {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) minimum_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) aggression: Option<f64>,
}

/// What is hashed, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConsistentHash {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_header_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_cookie: Option<HttpCookie>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_source_ip: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_query_parameter_name: Option<String>,
    /// The algorithm is Ambit's own, so its size is not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ring_hash: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) maglev: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) minimum_ring_size: Option<i64>,
}

/// A cookie that is hashed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpCookie {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attributes: Option<Value>,
}

/// How much may be under way at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConnectionPool {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tcp: Option<TcpSettings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<HttpSettings>,
}

/// Limits of connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TcpSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_connections: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_keepalive: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_connection_duration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout: Option<String>,
}

/// Limits of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpSettings {
    #[serde(rename = "http1MaxPendingRequests", skip_serializing_if = "Option::is_none")]
    pub(crate) max_pending_requests: Option<i64>,
    #[serde(rename = "http2MaxRequests", skip_serializing_if = "Option::is_none")]
    pub(crate) max_requests: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_requests_per_connection: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_retries: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) h2_upgrade_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_client_protocol: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_concurrent_streams: Option<i64>,
    #[serde(rename = "http2KeepAlive", skip_serializing_if = "Option::is_none")]
    pub(crate) http2_keep_alive: Option<Value>,
}

/// When an endpoint that fails is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OutlierDetection {
    /// The older form of the two that follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consecutive_errors: Option<i64>,
    #[serde(rename = "consecutive5xxErrors", skip_serializing_if = "Option::is_none")]
    pub(crate) consecutive_5xx_errors: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consecutive_gateway_errors: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) split_external_local_origin_errors: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consecutive_local_origin_failures: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_ejection_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_ejection_percent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_health_percent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outlier_detection_http_error_codes: Option<Value>,
}

/// TLS that is spoken with endpoints, inside of the mesh's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientTls {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) private_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_certificates: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) subject_alt_names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sni: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insecure_skip_verify: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_crl: Option<String>,
}

/// How many retries may be under way at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenBudget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_retry_concurrency: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget_interval: Option<String>,
}
