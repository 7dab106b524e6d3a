//! The labels of a request's series, and how many of them are told apart.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use ambit_http::engine::position::Arrival;
use ambit_http::engine::record::Record;
use ambit_model::Text;
use ambit_model::expression::Expression;
use ambit_model::http::telemetry::{LabelChange, MetricChanges};
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_words::names::UNKNOWN_LABEL;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::family::{Family, MetricConstructor};

use crate::access_log::Entry;

/// Label sets of one metric that are told apart.
const MAX_LABEL_SETS: usize = 20_000;
/// Characters of a label that an expression makes.
const MAX_VALUE_CHARS: usize = 256;
/// How labels begin that say who the client is.
const OF_CLIENT: &str = "source_";

/// The status of a response.
const RESPONSE_CODE: &str = "response_code";
/// The last code of gRPC, UNAUTHENTICATED.
const GRPC_LAST: u32 = 16;
/// Its code UNKNOWN.
const GRPC_UNKNOWN: u32 = 2;

type Part = Cow<'static, str>;

/// Names and values, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Labels {
    own: Vec<(Part, Part)>,
    /// Those that a Telemetry asks for.
    added: Vec<(Part, Part)>,
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        (&*self.own, &*self.added).encode(encoder)
    }
}

impl Labels {
    /// Those of a request.
    pub(super) fn of(arrival: &Arrival, record: &Record, service: Option<&Service>) -> Self {
        let unknown = || Part::Borrowed(UNKNOWN_LABEL);
        let of = |workload: Option<&Workload>, part: fn(&Workload) -> &str| -> Part {
            let text = workload.map(part).filter(|text| !text.is_empty());
            text.map_or_else(unknown, |text| text.to_owned().into())
        };
        // A gateway speaks for clients from outside, as Istio's do.
        let outside = arrival.outside.as_ref();
        let gateway = outside.and_then(|it| it.gateway.as_deref());
        let source = gateway.or(arrival.workload.as_deref());
        let endpoint = record.endpoint.as_ref();
        let destination = endpoint.and_then(|it| it.workload.as_deref());
        let identity = |it: &dyn ToString| Part::from(it.to_string());
        let principal = match gateway {
            Some(gateway) => identity(&gateway.identity()),
            None => arrival.source.identity().map_or_else(unknown, |it| identity(it)),
        };
        let of_service = |part: fn(&Service) -> &str| -> Part {
            service.map(part).map_or_else(unknown, |text| text.to_owned().into())
        };
        let grpc = grpc_code(record).filter(|_| record.is_grpc);
        let all = [
            ("reporter", if outside.is_some() { "source" } else { "waypoint" }.into()),
            ("source_workload", of(source, |it| &it.workload_name)),
            ("source_canonical_service", of(source, |it| &it.canonical_name)),
            ("source_canonical_revision", of(source, |it| &it.canonical_revision)),
            ("source_workload_namespace", of(source, |it| &it.namespace)),
            ("source_principal", principal),
            ("source_app", of(source, |it| &it.canonical_name)),
            ("source_version", of(source, |it| &it.canonical_revision)),
            ("source_cluster", of(source, |it| &it.cluster_id)),
            ("destination_workload", of(destination, |it| &it.workload_name)),
            ("destination_workload_namespace", of(destination, |it| &it.namespace)),
            (
                "destination_principal",
                destination.map_or_else(unknown, |it| identity(&it.identity())),
            ),
            ("destination_app", of(destination, |it| &it.canonical_name)),
            ("destination_version", of(destination, |it| &it.canonical_revision)),
            ("destination_service", of_service(|it| &it.key.hostname)),
            ("destination_canonical_service", of(destination, |it| &it.canonical_name)),
            ("destination_canonical_revision", of(destination, |it| &it.canonical_revision)),
            ("destination_service_name", of_service(|it| &it.name)),
            ("destination_service_namespace", of_service(|it| &it.key.namespace)),
            ("destination_cluster", of(destination, |it| &it.cluster_id)),
            ("request_protocol", (if record.is_grpc { "grpc" } else { "http" }).into()),
            (RESPONSE_CODE, record.status.to_string().into()),
            ("grpc_response_status", grpc.map(|it| it.to_string()).unwrap_or_default().into()),
            ("response_flags", record.flags.letters().into()),
            (
                "connection_security_policy",
                if outside.is_some() { UNKNOWN_LABEL } else { "mutual_tls" }.into(),
            ),
        ];
        let own = all.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Self { own, added: Vec::new() }
    }

    /// With what a Telemetry changes.
    pub(super) fn changed(
        mut self,
        changes: &BTreeMap<Text, LabelChange>,
        entry: &Entry<'_>,
    ) -> Self {
        self.own.retain(|(name, _)| !changes.contains_key(&**name));
        self.added.extend(changes.iter().filter_map(|(name, change)| match change {
            LabelChange::Removed => None,
            LabelChange::Is(value) => Some((name.to_string().into(), value.to_string().into())),
            LabelChange::Value(of) => Some((name.to_string().into(), value(of, entry).into())),
        }));
        self
    }

    /// Without what tells clients apart, and which of a thousand statuses an endpoint has made up.
    fn of_unknown_client(mut self) -> Self {
        for (_, value) in self.own.iter_mut().filter(|(name, _)| name == RESPONSE_CODE) {
            let class = value.get(..1).unwrap_or_default();
            *value = format!("{class}xx").into();
        }
        let own = self.own.iter_mut().filter(|(name, _)| name.starts_with(OF_CLIENT));
        for (_, value) in own.chain(&mut self.added) {
            *value = UNKNOWN_LABEL.into();
        }
        self
    }
}

/// The value of an expression as a label, which a client may have chosen: it is cut.
fn value(of: &Expression, entry: &Entry<'_>) -> String {
    match of.evaluate(entry) {
        Ok(value) => value.to_string().chars().take(MAX_VALUE_CHARS).collect(),
        Err(_) => UNKNOWN_LABEL.to_owned(),
    }
}

/// What a request has for the expressions of these changes, in order.
pub(super) fn values(changes: Option<&MetricChanges>, entry: &Entry<'_>) -> Vec<String> {
    let labels = changes.into_iter().flat_map(BTreeMap::values).flat_map(|it| it.labels.values());
    let values = labels.filter_map(|change| match change {
        LabelChange::Value(of) => Some(value(of, entry)),
        LabelChange::Removed | LabelChange::Is(_) => None,
    });
    values.collect()
}

/// The code of gRPC that a request counts for. An endpoint may send any number; those that gRPC
/// does not know are UNKNOWN, as its clients read them.
pub(super) fn grpc_code(record: &Record) -> Option<u32> {
    record.grpc_status.map(|code| if code > GRPC_LAST { GRPC_UNKNOWN } else { code })
}

/// A metric by its labels, of which a bounded number is told apart.
#[derive(Debug)]
pub(super) struct Bounded<M, C = fn() -> M> {
    family: Family<Labels, M, C>,
    sets: AtomicUsize,
}

impl<M, C: Clone> Bounded<M, C> {
    pub(super) fn new(constructor: C) -> Self {
        let family = Family::new_with_constructor(constructor);
        Self { family, sets: AtomicUsize::new(0) }
    }

    /// What is shown.
    pub(super) fn family(&self) -> Family<Labels, M, C> {
        self.family.clone()
    }
}

impl<M: Clone, C: MetricConstructor<M>> Bounded<M, C> {
    /// The one with these labels.
    pub(super) fn find(&self, labels: Labels) -> M {
        // Reading alone takes no lock for writing; most label sets are there.
        if let Some(known) = self.family.get(&labels) {
            return known.clone();
        }
        let labels = match self.sets.load(Ordering::Relaxed) < MAX_LABEL_SETS {
            true => labels,
            false => labels.of_unknown_client(),
        };
        self.sets.fetch_add(1, Ordering::Relaxed);
        self.family.get_or_create(&labels).clone()
    }
}

#[cfg(test)]
impl<M, C> Bounded<M, C> {
    /// As if as many sets were told apart as may be.
    pub(super) fn fill(&self) {
        self.sets.store(MAX_LABEL_SETS, Ordering::Relaxed);
    }
}
