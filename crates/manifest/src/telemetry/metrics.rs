//! What a Telemetry changes of metrics: those that are off, and labels.

use std::collections::BTreeMap;

use ambit_model::Text;
use ambit_model::expression::{Expression, ExpressionError};
use ambit_model::http::telemetry::{LabelChange, Metric, MetricChange, MetricChanges, NAMES};

use super::entries::{is_for_servers, names};
use super::written::{WrittenMetrics, WrittenSelector, WrittenTagOverride};
use crate::FieldPath;
use crate::remarks::Remarks;

/// Labels of one override.
const MAX_LABELS: usize = 32;
/// The name that means every metric.
const ALL_METRICS: &str = "ALL_METRICS";
/// Metrics of connections that are no HTTP, of which nothing can be changed.
const OF_CONNECTIONS: [&str; 4] =
    ["TCP_OPENED_CONNECTIONS", "TCP_CLOSED_CONNECTIONS", "TCP_SENT_BYTES", "TCP_RECEIVED_BYTES"];

/// What is said of metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Metrics {
    pub(crate) at: FieldPath,
    pub(crate) providers: Vec<String>,
    overrides: Vec<Override>,
}

/// What is said of some metrics; what is missing is taken over from a wider scope.
#[derive(Debug, Clone, PartialEq)]
struct Override {
    metrics: Vec<Metric>,
    is_off: Option<bool>,
    labels: Vec<(Text, LabelChange)>,
}

pub(super) fn read(written: &WrittenMetrics, at: &FieldPath, remarks: &mut Remarks) -> Metrics {
    remarks.unhonoured(
        written.reporting_interval.is_some(),
        &at.field("reportingInterval"),
        "metrics are as they are at the moment when they are scraped",
        "remove it",
    );
    let providers = names(&written.providers, at, remarks);
    let mut overrides = Vec::new();
    for (index, written) in written.overrides.iter().enumerate() {
        let at = at.field("overrides").index(index);
        let mode = written.matches.as_ref().and_then(|it| it.mode.as_deref());
        if !is_for_servers(mode, &at, remarks) {
            continue;
        }
        let Some(metrics) = selected(written.matches.as_ref(), &at, remarks) else { continue };
        let labels = labels(&written.tag_overrides, &at.field("tagOverrides"), remarks);
        overrides.push(Override { metrics, is_off: written.disabled, labels });
    }
    Metrics { at: at.clone(), providers, overrides }
}

/// The metrics that are meant; `None`, with a remark, if there are none.
fn selected(
    written: Option<&WrittenSelector>,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Option<Vec<Metric>> {
    let at = at.field("match");
    if written.is_some_and(|it| it.custom_metric.is_some()) {
        let what = "waypoints have no metrics beside Istio's: this override has no effect";
        remarks.unhonoured(true, &at.field("customMetric"), what, "use `metric`");
        return None;
    }
    let at = at.field("metric");
    match written.and_then(|it| it.metric.as_deref()) {
        None | Some("" | ALL_METRICS) => Some(Metric::ALL.to_vec()),
        Some(name) if OF_CONNECTIONS.contains(&name) => {
            let what = "the metrics of connections stay as they are: this override has no effect";
            remarks.unhonoured(true, &at, what, "use a metric of requests");
            None
        }
        Some(name) => {
            let found = Metric::ALL.into_iter().find(|it| it.name() == name);
            if found.is_none() {
                let all = Metric::ALL.map(Metric::name).join(", ");
                let what = format!("`{name}` is no metric: this override has no effect");
                remarks.wrong(&at, what, format!("use {ALL_METRICS}, {all}"));
            }
            found.map(|it| vec![it])
        }
    }
}

fn labels(
    written: &BTreeMap<String, WrittenTagOverride>,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Vec<(Text, LabelChange)> {
    if written.len() > MAX_LABELS {
        let what = format!("there are more than {MAX_LABELS} labels; the rest stays as it is");
        remarks.wrong(at, what, "remove some");
    }
    let mut read = Vec::new();
    for (name, change) in written.iter().take(MAX_LABELS) {
        let at = at.field(name);
        if !is_label(name) {
            let what = format!("`{name}` is not the name of a label: it is left out");
            remarks.wrong(&at, what, "use letters, digits and `_`");
            continue;
        }
        let value = change.value.as_deref().filter(|it| !it.is_empty());
        let change = match (change.operation.as_deref(), value) {
            (Some("REMOVE"), None) => LabelChange::Removed,
            (Some("REMOVE"), Some(_)) => {
                let what = "a label that is removed has no value: it is removed";
                remarks.wrong(&at.field("value"), what, "remove it");
                LabelChange::Removed
            }
            (None | Some("" | "UPSERT"), Some(value)) => match upsert(value) {
                Ok(change) => change,
                Err(error) => {
                    let what = format!("{error}: this label stays as it is");
                    let remedy = "correct it; docs/guide/telemetry.md lists what it may name";
                    remarks.wrong(&at.field("value"), what, remedy);
                    continue;
                }
            },
            (None | Some("" | "UPSERT"), None) => {
                let what = "it has no value: this label stays as it is";
                remarks.wrong(&at.field("value"), what, "write one, or `operation: REMOVE`");
                continue;
            }
            (Some(other), _) => {
                let what = format!("`{other}` is no operation: this label stays as it is");
                remarks.wrong(&at.field("operation"), what, "use UPSERT or REMOVE");
                continue;
            }
        };
        read.push((Text::from(&**name), change));
    }
    read
}

/// Whether Prometheus takes a name for that of a label, which is not its own or a histogram's.
fn is_label(name: &str) -> bool {
    let is_first = |it: char| it.is_ascii_alphabetic() || it == '_';
    let is_other = |it: char| it.is_ascii_alphanumeric() || it == '_';
    name.starts_with(is_first)
        && name.chars().all(is_other)
        && !name.starts_with("__")
        && name != "le"
}

/// A text, or what else must be looked up for each request.
fn upsert(value: &str) -> Result<LabelChange, ExpressionError> {
    match literal(value) {
        Some(text) => Ok(LabelChange::Is(text.into())),
        None => Expression::new(value, &NAMES).map(LabelChange::Value),
    }
}

/// The text of an expression that is one.
fn literal(expression: &str) -> Option<&str> {
    let inner = |quote: char| expression.strip_prefix(quote)?.strip_suffix(quote);
    let text = inner('\'').or_else(|| inner('"'))?;
    (!text.contains(['\'', '"', '\\'])).then_some(text)
}

/// What objects say together, from the widest scope to the narrowest; `None` if it is nothing.
pub(super) fn merged<'s>(all: impl Iterator<Item = &'s Metrics>) -> Option<MetricChanges> {
    let mut changes = MetricChanges::new();
    for it in all.flat_map(|it| &it.overrides) {
        for metric in &it.metrics {
            let change: &mut MetricChange = changes.entry(*metric).or_default();
            change.is_off = it.is_off.unwrap_or(change.is_off);
            change.labels.extend(it.labels.iter().cloned());
        }
    }
    changes.retain(|_, change| *change != MetricChange::default());
    (!changes.is_empty()).then_some(changes)
}
