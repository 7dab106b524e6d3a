//! The series that a thread's requests count for, remembered.
//!
//! What makes a request's labels repeats: the two workloads, the service, what a Telemetry changes,
//! the status and the flags. They are compared by their places in the view, which are held
//! meanwhile, so that no other description can come to lie there.

use std::ptr;
use std::sync::Arc;

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::{Flags, Record};
use ambit_model::http::telemetry::MetricChanges;
use ambit_model::identity::Identity;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use rustc_hash::FxHashMap;

use super::labels::grpc_code;

/// Series that a thread remembers; beyond that it begins anew.
const MAX_REMEMBERED: usize = 4096;

/// What a request counts for; nothing where a metric is off.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(super) total: Option<Counter>,
    pub(super) duration: Option<Histogram>,
    pub(super) received: Option<Histogram>,
    pub(super) sent: Option<Histogram>,
    /// Messages of gRPC, in requests.
    pub(super) requests: Option<Counter>,
    /// The same, in responses.
    pub(super) responses: Option<Counter>,
}

impl Series {
    fn count(&self, record: &Record) {
        let count = |counter: &Option<Counter>, number: u64| {
            if let Some(counter) = counter {
                counter.inc_by(number);
            }
        };
        let observe = |histogram: &Option<Histogram>, value: f64| {
            if let Some(histogram) = histogram {
                histogram.observe(value);
            }
        };
        count(&self.total, 1);
        observe(&self.duration, record.started.elapsed().as_secs_f64() * 1e3);
        observe(&self.received, record.received_bytes as f64);
        observe(&self.sent, record.sent_bytes as f64);
        count(&self.requests, record.messages.0);
        count(&self.responses, record.messages.1);
    }
}

/// What makes the labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: *const Workload,
    /// The client's identity, where the mesh does not know its workload.
    identity: Option<Identity>,
    destination: *const Workload,
    service: *const Service,
    changes: *const MetricChanges,
    /// What their expressions make of the request.
    values: Vec<String>,
    is_grpc: bool,
    status: u16,
    grpc_status: Option<u32>,
    flags: Flags,
}

/// What a key points to.
type Held = (
    Option<Arc<Workload>>,
    Option<Arc<Workload>>,
    Option<Arc<Service>>,
    Option<Arc<MetricChanges>>,
);

/// The series that one thread remembers.
#[derive(Debug, Default)]
pub(crate) struct Remembered(FxHashMap<Key, (Series, Held)>);

impl Remembered {
    /// Counts a request; `find` answers the series of one that is not remembered.
    pub(crate) fn count(
        &mut self,
        arrival: &Arrival,
        record: &Record,
        service: Option<&Arc<Service>>,
        (changes, values): (Option<&Arc<MetricChanges>>, Vec<String>),
        find: impl FnOnce() -> Series,
    ) {
        let source = arrival.workload.as_ref();
        let destination = record.endpoint.as_ref().and_then(|it| it.workload.as_ref());
        let identity = if source.is_some() { None } else { arrival.source.identity().cloned() };
        let key = Key {
            source: source.map_or(ptr::null(), Arc::as_ptr),
            identity,
            destination: destination.map_or(ptr::null(), Arc::as_ptr),
            service: service.map_or(ptr::null(), Arc::as_ptr),
            changes: changes.map_or(ptr::null(), Arc::as_ptr),
            values,
            is_grpc: record.is_grpc,
            status: record.status,
            grpc_status: grpc_code(record),
            flags: record.flags,
        };
        if let Some((series, _)) = self.0.get(&key) {
            return series.count(record);
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        let series = find();
        series.count(record);
        let held = (source.cloned(), destination.cloned(), service.cloned(), changes.cloned());
        self.0.insert(key, (series, held));
    }
}
