//! A Telemetry as it is written.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::istio::{IstioObject, TargetRef, WorkloadSelector};
use crate::routes;

/// telemetry.istio.io Telemetry.
pub type Telemetry = IstioObject<TelemetrySpec>;

/// What is told of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TelemetrySpec {
    /// Pods that it is for; a waypoint is none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// What it is attached to (older form).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// What it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_refs: Option<Vec<TargetRef>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tracing: Vec<WrittenTracing>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) metrics: Vec<WrittenMetrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) access_logging: Vec<WrittenLogging>,
}

impl TelemetrySpec {
    /// The fields that say something.
    pub fn sections(&self) -> Vec<&'static str> {
        let all = [
            ("accessLogging", self.access_logging.is_empty()),
            ("metrics", self.metrics.is_empty()),
            ("tracing", self.tracing.is_empty()),
        ];
        all.into_iter().filter(|(_, is_empty)| !is_empty).map(|(name, _)| name).collect()
    }

    /// The names of the providers that it tells something, or stops telling.
    pub fn providers(&self) -> BTreeSet<&str> {
        let logging = self.access_logging.iter().flat_map(|it| &it.providers);
        let metrics = self.metrics.iter().flat_map(|it| &it.providers);
        let tracing = self.tracing.iter().flat_map(|it| &it.providers);
        logging.chain(metrics).chain(tracing).map(|it| it.name.as_str()).collect()
    }
}

/// A provider by its name in the mesh configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ProviderName {
    pub(crate) name: String,
}

/// From which side requests are looked at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ModeMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
}

/// How requests are traced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenTracing {
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub(crate) matches: Option<ModeMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) providers: Vec<ProviderName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_sampling_percentage: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disable_span_reporting: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disable_context_propagation: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) custom_tags: BTreeMap<String, WrittenTag>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) use_request_id_for_trace_sampling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enable_istio_tags: Option<bool>,
}

/// Where a tag's value comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenTag {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) literal: Option<Literal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment: Option<NamedValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<NamedValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) formatter: Option<Literal>,
}

/// A value as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Literal {
    pub(crate) value: String,
}

/// A value by its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NamedValue {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default_value: Option<String>,
}

/// Where requests are logged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenLogging {
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub(crate) matches: Option<ModeMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) providers: Vec<ProviderName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<WrittenFilter>,
}

/// Which requests are logged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenFilter {
    pub(crate) expression: String,
}

/// Reads the specification of a Telemetry of a cluster, whose definition may be newer than this
/// program; also returns what of it cannot be read.
pub fn read_spec(spec: Value) -> (TelemetrySpec, Option<String>) {
    match routes::read(spec) {
        Ok(read) => read,
        Err(problem) => (TelemetrySpec::default(), Some(problem)),
    }
}

/// What is changed of the metrics of some providers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenMetrics {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) providers: Vec<ProviderName>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) overrides: Vec<WrittenOverride>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reporting_interval: Option<String>,
}

/// What is changed of some metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenOverride {
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub(crate) matches: Option<WrittenSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disabled: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tag_overrides: BTreeMap<String, WrittenTagOverride>,
}

/// Which metrics are meant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenSelector {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metric: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom_metric: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
}

/// What is changed of a label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenTagOverride {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}
