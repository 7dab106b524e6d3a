//! What one Telemetry says.
//!
//! A waypoint reports as the server, so what is for clients alone has no effect.

use std::collections::BTreeMap;

use ambit_model::Text;
use ambit_model::expression::Expression;
use ambit_model::http::rule::Fraction;
use ambit_model::http::telemetry::{NAMES, Tag};

use super::entries::{is_for_servers, mode, names};
use super::metrics::{self, Metrics};
use super::written::{NamedValue, Telemetry, WrittenLogging, WrittenTag, WrittenTracing};
use crate::remarks::{Remark, Remarks, report};
use crate::{FieldPath, ObjectIssues};

/// Tags of one object.
const MAX_TAGS: usize = 64;

/// What one Telemetry says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// Of traces, in its order.
    pub(crate) tracing: Vec<Tracing>,
    /// Of access logs, in its order.
    pub(crate) logging: Vec<Logging>,
    /// Of metrics, in its order.
    pub(crate) metrics: Vec<Metrics>,
    /// What of it is wrong, or is not honoured.
    pub remarks: Vec<Remark>,
}

/// What is said of traces; what is missing is taken over from a wider scope.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tracing {
    pub(crate) at: FieldPath,
    pub(crate) providers: Vec<String>,
    pub(crate) sampling: Option<Fraction>,
    pub(crate) is_off: Option<bool>,
    pub(crate) is_passed_on: Option<bool>,
    pub(crate) tags: Option<Vec<(Text, Tag)>>,
}

/// What is said of access logs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Logging {
    pub(crate) at: FieldPath,
    pub(crate) providers: Vec<String>,
    pub(crate) is_off: bool,
    /// Which requests are logged; all of them without it.
    pub(crate) filter: Option<Expression>,
}

/// What a Telemetry says.
pub fn read(object: &Telemetry) -> Said {
    let at = FieldPath::at("spec");
    let mut remarks = Remarks::default();
    if let Some(why) = &object.unreadable {
        remarks.wrong(&at, format!("it cannot be read: {why}"), "use what this version knows");
    }
    let spec = &object.spec;
    let labels = spec.selector.as_ref().is_some_and(|it| !it.match_labels.is_empty());
    remarks.unhonoured(
        labels,
        &at.field("selector"),
        "it selects pods, and waypoints report for services: nothing of this object is in force",
        "use `targetRefs` with a Service or a Gateway",
    );
    let mut said = Said::default();
    for (index, written) in spec.metrics.iter().enumerate() {
        let at = at.field("metrics").index(index);
        said.metrics.push(metrics::read(written, &at, &mut remarks));
    }
    for (index, written) in spec.tracing.iter().enumerate() {
        let at = at.field("tracing").index(index);
        if is_for_servers(mode(written.matches.as_ref()), &at, &mut remarks) {
            said.tracing.push(tracing(written, &at, &mut remarks));
        }
    }
    for (index, written) in spec.access_logging.iter().enumerate() {
        let at = at.field("accessLogging").index(index);
        if is_for_servers(mode(written.matches.as_ref()), &at, &mut remarks) {
            said.logging.push(logging(written, &at, &mut remarks));
        }
    }
    said.remarks = remarks.0;
    said
}

/// Reports what of a Telemetry is wrong or has no effect.
pub(crate) fn check(object: &Telemetry, issues: &mut ObjectIssues) {
    report(&read(object).remarks, issues);
}

fn tracing(written: &WrittenTracing, at: &FieldPath, remarks: &mut Remarks) -> Tracing {
    let providers = names(&written.providers, at, remarks);
    remarks.unhonoured(
        providers.len() > 1,
        &at.field("providers"),
        "spans go to the first provider alone",
        "leave one, and let its collector send spans on",
    );
    remarks.unhonoured(
        written.use_request_id_for_trace_sampling == Some(true),
        &at.field("useRequestIdForTraceSampling"),
        "x-request-id decides nothing: it stays as it came",
        "remove it",
    );
    remarks.unhonoured(
        written.enable_istio_tags == Some(false),
        &at.field("enableIstioTags"),
        "spans always have Istio's tags",
        "remove the tags in the collector",
    );
    Tracing {
        at: at.clone(),
        providers,
        sampling: sampling(written.random_sampling_percentage, at, remarks),
        is_off: written.disable_span_reporting,
        is_passed_on: written.disable_context_propagation.map(|is_disabled| !is_disabled),
        tags: tags(&written.custom_tags, at, remarks),
    }
}

fn sampling(percent: Option<f64>, at: &FieldPath, remarks: &mut Remarks) -> Option<Fraction> {
    let percent = percent?;
    let sampling = Fraction::percent(percent);
    if sampling.is_none() {
        let what = format!("{percent} is no percentage");
        remarks.wrong(&at.field("randomSamplingPercentage"), what, "use 0 to 100");
    }
    sampling
}

fn tags(
    written: &BTreeMap<String, WrittenTag>,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Option<Vec<(Text, Tag)>> {
    let at = at.field("customTags");
    if written.len() > MAX_TAGS {
        let what = format!("there are more than {MAX_TAGS} tags; the rest is left out");
        remarks.wrong(&at, what, "remove some");
    }
    let mut read = Vec::new();
    for (name, tag) in written.iter().take(MAX_TAGS) {
        let at = at.field(name);
        let named = |it: &NamedValue| {
            let default = it.default_value.as_deref().map(Text::from);
            (Text::from(&*it.name), default.filter(|it| !it.is_empty()))
        };
        let value = match tag {
            WrittenTag { literal: Some(it), environment: None, header: None, formatter: None } => {
                Tag::Literal(Text::from(&*it.value))
            }
            WrittenTag { literal: None, environment: Some(it), header: None, formatter: None } => {
                let (name, default) = named(it);
                Tag::Environment(name, default)
            }
            WrittenTag { literal: None, environment: None, header: Some(it), formatter: None } => {
                let (name, default) = named(it);
                Tag::Header(name.to_ascii_lowercase().into(), default)
            }
            WrittenTag { literal: None, environment: None, header: None, formatter: Some(_) } => {
                let what = "a formatter makes no tag: this one is left out";
                remarks.unhonoured(true, &at, what, "use literal, header or environment");
                continue;
            }
            _ => {
                let what = "a tag has exactly one of literal, environment and header";
                remarks.wrong(&at, what, "write one of them");
                continue;
            }
        };
        read.push((Text::from(&**name), value));
    }
    (!written.is_empty()).then_some(read)
}

fn logging(written: &WrittenLogging, at: &FieldPath, remarks: &mut Remarks) -> Logging {
    let expression = written.filter.as_ref().map(|it| &*it.expression).filter(|it| !it.is_empty());
    let filter = expression.and_then(|source| match Expression::condition(source, &NAMES) {
        Ok(filter) => Some(filter),
        Err(error) => {
            let at = at.field("filter").field("expression");
            let what = format!("{error}: every request is logged");
            remarks.wrong(&at, what, "correct it; docs/guide/telemetry.md lists what it may name");
            None
        }
    });
    let providers = names(&written.providers, at, remarks);
    Logging { at: at.clone(), providers, is_off: written.disabled == Some(true), filter }
}
