//! Providers of the mesh configuration, as access logs and traces use them.

use std::sync::Arc;

use ambit_model::http::telemetry::{AccessLog, Collector, Place};
use ambit_model::names::ServiceName;

use crate::mesh_config::{Export, MeshConfig, Provider, ProviderService, TelemetryProvider};

/// The provider that Istio has without being told: the log of the mesh configuration.
const BUILT_IN_LOG: &str = "envoy";

/// The provider that Istio has without being told: metrics that are scraped.
const BUILT_IN_METRICS: &str = "prometheus";

/// Finds the service of a host, `None` if there is none.
pub type FindService<'a> = &'a dyn Fn(&ProviderService) -> Option<ServiceName>;

/// A provider of traces.
pub(super) struct SpanProvider {
    pub(super) collector: Arc<Collector>,
    pub(super) max_tag_bytes: usize,
}

/// What providers mean.
pub(super) struct Providers<'a> {
    pub(super) mesh: &'a MeshConfig,
    pub(super) find: FindService<'a>,
}

impl Providers<'_> {
    /// Where a provider of this name logs.
    pub(super) fn log(&self, name: &str) -> Result<AccessLog, String> {
        match self.provider(name) {
            Err(_) if name == BUILT_IN_LOG => Ok(self.built_in_log()),
            Err(why) => Err(why),
            Ok(TelemetryProvider::Lines(format)) => Ok(AccessLog::Lines(format.clone())),
            Ok(TelemetryProvider::Logs { export, body, attributes }) => {
                let (body, attributes) = (body.clone(), attributes.clone());
                Ok(AccessLog::Collector { collector: self.collector(export)?, body, attributes })
            }
            Ok(TelemetryProvider::Spans { .. } | TelemetryProvider::Prometheus) => {
                Err(format!("the provider `{name}` writes no access log"))
            }
        }
    }

    /// The log that the mesh configuration describes.
    pub(super) fn built_in_log(&self) -> AccessLog {
        AccessLog::Lines(self.mesh.access_log.format.clone())
    }

    /// Who gets the spans of a provider of this name.
    pub(super) fn spans(&self, name: &str) -> Result<SpanProvider, String> {
        match self.provider(name)? {
            TelemetryProvider::Spans { export, max_tag_bytes } => Ok(SpanProvider {
                collector: self.collector(export)?,
                max_tag_bytes: *max_tag_bytes,
            }),
            _ => Err(format!("the provider `{name}` takes no spans")),
        }
    }

    /// Whether a provider of this name has metrics.
    pub(super) fn metrics(&self, name: &str) -> Result<(), String> {
        match self.provider(name) {
            Err(_) if name == BUILT_IN_METRICS => Ok(()),
            Err(why) => Err(why),
            Ok(TelemetryProvider::Prometheus) => Ok(()),
            Ok(_) => Err(format!("the provider `{name}` has no metrics")),
        }
    }

    fn provider(&self, name: &str) -> Result<&TelemetryProvider, String> {
        match self.mesh.providers.get(name) {
            Some(Provider::Telemetry(it)) => Ok(it),
            Some(Provider::Unusable(why)) => Err(format!("the provider `{name}`: {why}")),
            Some(Provider::ExtAuthz(_)) => {
                Err(format!("the provider `{name}` is an authorization service"))
            }
            None => Err(match &self.mesh.unreadable {
                Some(problem) => format!("the mesh configuration cannot be read: {problem}"),
                None => format!("the mesh configuration has no provider `{name}`"),
            }),
        }
    }

    fn collector(&self, export: &Export) -> Result<Arc<Collector>, String> {
        let Export { service, way, timeout } = export;
        let name = (self.find)(service)
            .ok_or_else(|| format!("no service has the host `{}`", service.host))?;
        let (place, way) = (Place::Service(name, service.port), way.clone());
        Ok(Arc::new(Collector { place, way, timeout: *timeout }))
    }
}
