//! Who is told of a request: the log and collectors, as the control plane says for its service,
//! and where it says nothing, as the waypoint is set.

use std::sync::Arc;

use ambit_http::engine::record::Record as Request;
use ambit_model::http::access_log::Format;
use ambit_model::http::telemetry::{AccessLog, FilteredLog, Spans, Telemetry, Tracing};
use ambit_wire::proto::opentelemetry::Resource;

use crate::access_log::{self, Entry, Names};
use crate::exports::records::{self, text};
use crate::exports::{Queue, Record};

/// What is told where the control plane says nothing.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// The log.
    pub(crate) log: OwnLog,
    /// The log, sent to a collector.
    pub(crate) exported: Option<AccessLog>,
    /// How requests are traced, if they are.
    pub(crate) spans: Option<Arc<Spans>>,
}

/// The log where the control plane says nothing.
#[derive(Clone, Debug)]
pub(crate) enum OwnLog {
    /// There is none.
    Off,
    /// In Ambit's own form.
    Own,
    /// In this one.
    Lines(Arc<Format>),
}

/// Tells of requests.
pub(crate) struct Reports {
    pub(crate) defaults: Defaults,
    pub(crate) names: Names,
    /// The waypoint, as collectors know it.
    pub(crate) resource: Resource,
    pub(crate) exports: Queue,
}

impl Reports {
    /// Reports of a waypoint with these settings.
    pub(crate) fn new(defaults: Defaults, names: Names, exports: Queue) -> Self {
        let attributes = vec![
            text("service.name", &*names.service),
            text("service.namespace", &*names.namespace),
            text("service.instance.id", &*names.pod),
            text("k8s.namespace.name", &*names.namespace),
            text("k8s.pod.name", &*names.pod),
        ];
        Self { defaults, names, resource: Resource { attributes }, exports }
    }

    /// How the requests to a service are traced, if they are.
    pub(crate) fn spans<'a>(&'a self, said: &'a Telemetry) -> Option<&'a Arc<Spans>> {
        match &said.tracing {
            None => self.defaults.spans.as_ref(),
            Some(Tracing::Off) => None,
            Some(Tracing::On(spans)) => Some(spans),
        }
    }

    /// Whether a log shows fields of the response.
    pub(crate) fn reads_response(&self, said: &Telemetry) -> bool {
        match &said.access_logs {
            Some(logs) => logs.iter().any(|it| it.log.reads_response()),
            None => match &self.defaults.log {
                OwnLog::Lines(format) => format.reads_response(),
                OwnLog::Off | OwnLog::Own => false,
            },
        }
    }

    /// Tells of a request that has ended.
    pub(crate) fn tell(&self, said: Option<&Telemetry>, entry: &Entry<'_>, record: &Request) {
        self.log(said, entry);
        if let Some(traced) = record.traced.as_ref().filter(|it| it.own.is_sampled()) {
            let span = records::span(entry, record, traced);
            self.exports.put(&traced.spans.collector, Record::Span(span));
        }
    }

    /// Logs a request, or a connection that is no HTTP.
    pub(crate) fn log(&self, said: Option<&Telemetry>, entry: &Entry<'_>) {
        if let Some(logs) = said.and_then(|said| said.access_logs.as_ref()) {
            let asks = |it: &&FilteredLog| match &it.filter {
                None => true,
                Some(filter) => filter.holds(entry).unwrap_or(false),
            };
            return logs.iter().filter(asks).for_each(|it| self.write(&it.log, entry));
        }
        match &self.defaults.log {
            OwnLog::Off => {}
            OwnLog::Own => access_log::own(entry),
            OwnLog::Lines(format) => access_log::formatted(format, entry),
        }
        if let Some(log) = &self.defaults.exported {
            self.write(log, entry);
        }
    }

    fn write(&self, log: &AccessLog, entry: &Entry<'_>) {
        match log {
            AccessLog::Lines(format) => access_log::formatted(format, entry),
            AccessLog::Collector { collector, body, attributes } => {
                let record = records::log(entry, body, attributes);
                self.exports.put(collector, Record::Log(record));
            }
        }
    }
}
