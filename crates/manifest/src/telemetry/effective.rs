//! What the Telemetry objects that hold for a service and the mesh configuration say together.
//!
//! Objects come from the widest scope to the narrowest: the root namespace, the waypoint's, the
//! service's, and those that are attached. What a narrower one says of a field holds instead of
//! what a wider one says. A provider that cannot be used is left out, and a remark says why: to
//! tell nobody of a request harms no request.

use std::sync::Arc;

use ambit_model::http::telemetry::{
    AccessLog, DEFAULT_SAMPLING, FilteredLog, Spans, Telemetry, Tracing as Traced,
};

use super::metrics::{self, Metrics};
use super::providers::Providers;
use super::read::{Logging, Said, Tracing};
use super::written::Telemetry as Object;
use crate::FieldPath;
use crate::mesh_config::MeshConfig;
use crate::policy::{self, Target, Unenforceable};
use crate::remarks::{Remark, Remarks};

pub use super::providers::FindService;

/// What holds for a service, of objects from the widest scope to the narrowest.
pub fn effective(objects: &[&Said], mesh: &MeshConfig, find: FindService<'_>) -> Telemetry {
    let providers = Providers { mesh, find };
    let logging: Vec<&[Logging]> = objects.iter().map(|it| &*it.logging).collect();
    let tracing = objects.iter().flat_map(|it| &it.tracing);
    // What is changed for providers that have no metrics is changed for nobody.
    let counts = |it: &&Metrics| {
        it.providers.is_empty() || it.providers.iter().any(|name| providers.metrics(name).is_ok())
    };
    let counted = objects.iter().flat_map(|it| &it.metrics).filter(counts);
    Telemetry {
        access_logs: access_logs(&logging, &providers),
        tracing: traced(tracing, &providers),
        metrics: metrics::merged(counted).map(Arc::new),
    }
}

/// What a Telemetry is attached to; nothing for one that is for a namespace or the mesh.
pub fn targets(object: &Object, root_namespace: &str) -> Result<Vec<Target>, Unenforceable> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &object.spec;
    policy::attached_to(
        spec.target_ref.as_ref(),
        spec.target_refs.as_deref(),
        namespace,
        root_namespace,
    )
}

/// What of an object is attached to what cannot be, or names a provider that cannot be used.
pub fn remarks(
    object: &Object,
    said: &Said,
    root_namespace: &str,
    mesh: &MeshConfig,
    find: FindService<'_>,
) -> Vec<Remark> {
    let providers = Providers { mesh, find };
    let mut remarks = Remarks::default();
    if let Err(Unenforceable { field, problem }) = targets(object, root_namespace) {
        let what = format!("{problem}: nothing of this object is in force");
        remarks.wrong(&FieldPath::at(&field), what, "correct the reference");
    }
    let mut add = |at: &FieldPath, index: usize, why: String| {
        let at = at.field("providers").index(index).field("name");
        let what = format!("{why}; it is told nothing");
        let remedy = "correct the name, or the provider in the mesh configuration";
        remarks.unhonoured(true, &at, what, remedy);
    };
    for logging in &said.logging {
        for (index, name) in logging.providers.iter().enumerate() {
            if let Err(why) = providers.log(name) {
                add(&logging.at, index, why);
            }
        }
    }
    for tracing in &said.tracing {
        for (index, name) in tracing.providers.iter().take(1).enumerate() {
            if let Err(why) = providers.spans(name) {
                add(&tracing.at, index, why);
            }
        }
    }
    for metrics in &said.metrics {
        for (index, name) in metrics.providers.iter().enumerate() {
            if let Err(why) = providers.metrics(name) {
                add(&metrics.at, index, why);
            }
        }
    }
    remarks.0
}

/// The logs; `None` if nobody says anything.
fn access_logs(objects: &[&[Logging]], providers: &Providers<'_>) -> Option<Vec<FilteredLog>> {
    let mesh = providers.mesh;
    let defaults = &mesh.default_providers.access_logging;
    let every = |log| FilteredLog { log, filter: None };
    let mut logs: Option<Vec<FilteredLog>> = None;
    if !defaults.is_empty() {
        let named = defaults.iter().filter_map(|name| providers.log(name).ok());
        logs = Some(named.map(every).collect());
    } else if mesh.access_log.is_on {
        logs = Some(vec![every(providers.built_in_log())]);
    }
    for object in objects {
        let mut own: Option<Vec<FilteredLog>> = None;
        for entry in *object {
            let named = || entry.providers.iter().filter_map(|name| providers.log(name).ok());
            match (entry.is_off, entry.providers.is_empty()) {
                (true, true) => own = Some(Vec::new()),
                (true, false) => {
                    let off: Vec<AccessLog> = named().collect();
                    let left = own.take().or_else(|| logs.clone()).unwrap_or_default();
                    own = Some(left.into_iter().filter(|it| !off.contains(&it.log)).collect());
                }
                // It switches on what a wider scope names, or the mesh's own.
                (false, true) => {
                    let wider = own.take().or_else(|| logs.clone()).filter(|it| !it.is_empty());
                    let logs = wider.unwrap_or_else(|| vec![every(providers.built_in_log())]);
                    let filter = |it: FilteredLog| FilteredLog {
                        filter: entry.filter.clone().or(it.filter),
                        ..it
                    };
                    own = Some(logs.into_iter().map(filter).collect());
                }
                (false, false) => {
                    let filter = |log| FilteredLog { log, filter: entry.filter.clone() };
                    own.get_or_insert_default().extend(named().map(filter));
                }
            }
        }
        logs = own.or(logs);
    }
    logs
}

/// How requests are traced; `None` if nobody says anything.
fn traced<'t>(
    tracing: impl Iterator<Item = &'t Tracing>,
    providers: &Providers<'_>,
) -> Option<Traced> {
    let mesh = providers.mesh;
    let defaults = &mesh.default_providers.tracing;
    let mut is_said = !defaults.is_empty();
    let mut all = Tracing { providers: defaults.clone(), ..Tracing::default() };
    for narrower in tracing {
        is_said = true;
        if !narrower.providers.is_empty() {
            all.providers.clone_from(&narrower.providers);
        }
        all.sampling = narrower.sampling.or(all.sampling);
        all.is_off = narrower.is_off.or(all.is_off);
        all.is_passed_on = narrower.is_passed_on.or(all.is_passed_on);
        all.tags = narrower.tags.clone().or(all.tags);
    }
    if all.providers.is_empty() && all.is_off != Some(true) {
        return None;
    }
    let provider = all.providers.first().and_then(|name| providers.spans(name).ok());
    let traced = match provider {
        Some(provider) if all.is_off != Some(true) => Traced::On(Arc::new(Spans {
            collector: provider.collector,
            sampling: all.sampling.unwrap_or(DEFAULT_SAMPLING),
            is_passed_on: all.is_passed_on.unwrap_or(true),
            tags: all.tags.unwrap_or_default(),
            max_tag_bytes: provider.max_tag_bytes,
        })),
        _ => Traced::Off,
    };
    is_said.then_some(traced)
}
