//! What is told of requests, and to whom.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::expression::{Expression, ExpressionError};
use ambit_model::http::access_log::{Format, FormatError, Written};
use ambit_model::http::telemetry::{
    AccessLog, Collector, FilteredLog, LabelChange, Metric, MetricChange, NAMES, Place, Spans, Tag,
    Telemetry, Tracing, Way,
};
use ambit_model::names::ServiceName;

use super::super::{ConvertError, Problem, each, port, text};
use super::{
    EMPTY, duration, duration_message, inner, optional_string, optional_text, required, rule,
};
use crate::proto::ambit::http as proto;

pub(super) fn telemetry(message: proto::Telemetry) -> Result<Telemetry, ConvertError> {
    use proto::telemetry::Tracing as Message;
    let logs = message.access_logs.map(|it| each("access_logs", it.logs, access_log));
    let tracing = match message.tracing {
        None => None,
        Some(Message::Off(_)) => Some(Tracing::Off),
        Some(Message::Spans(it)) => {
            let spans = spans(it).map_err(|error| error.within("spans"))?;
            Some(Tracing::On(Arc::new(spans)))
        }
    };
    let metrics = each("metrics", message.metrics, metric)?;
    let metrics = (!metrics.is_empty()).then(|| Arc::new(metrics.into_iter().collect()));
    Ok(Telemetry { access_logs: logs.transpose()?, tracing, metrics })
}

/// Nothing said is not sent.
pub(super) fn message(telemetry: &Telemetry) -> Option<proto::Telemetry> {
    use proto::telemetry::Tracing as Message;
    let tracing = telemetry.tracing.as_ref().map(|it| match it {
        Tracing::Off => Message::Off(EMPTY),
        Tracing::On(spans) => Message::Spans(spans_message(spans)),
    });
    let logs = telemetry.access_logs.as_ref();
    let access_logs =
        logs.map(|it| proto::AccessLogs { logs: it.iter().map(access_log_message).collect() });
    let metrics = telemetry.metrics.iter().flat_map(|it| it.iter());
    let metrics = metrics.map(metric_message).collect();
    let message = proto::Telemetry { access_logs, tracing, metrics };
    (*telemetry != Telemetry::default()).then_some(message)
}

fn metric(message: proto::MetricChange) -> Result<(Metric, MetricChange), ConvertError> {
    let metric = Metric::ALL.into_iter().find(|it| it.name() == message.metric);
    let unknown = || ConvertError::new("metric", Problem::Metric(message.metric.clone()));
    let metric = metric.ok_or_else(unknown)?;
    let labels = each("labels", message.labels, label)?.into_iter().collect();
    Ok((metric, MetricChange { is_off: message.is_off, labels }))
}

fn label(message: proto::LabelChange) -> Result<(Text, LabelChange), ConvertError> {
    use proto::label_change::Change;
    let change = match required("change", message.change)? {
        Change::Removed(_) => LabelChange::Removed,
        Change::Is(value) => LabelChange::Is(text(&value)),
        Change::Value(source) => {
            let compiled = Expression::new(&source, &NAMES);
            LabelChange::Value(compiled.map_err(|error| wrong_expression("value", error))?)
        }
    };
    Ok((text(&message.name), change))
}

fn metric_message((metric, change): (&Metric, &MetricChange)) -> proto::MetricChange {
    use proto::label_change::Change;
    let label = |(name, change): (&Text, &LabelChange)| proto::LabelChange {
        name: name.to_string(),
        change: Some(match change {
            LabelChange::Removed => Change::Removed(EMPTY),
            LabelChange::Is(value) => Change::Is(value.to_string()),
            LabelChange::Value(it) => Change::Value(it.source().to_string()),
        }),
    };
    proto::MetricChange {
        metric: metric.name().to_owned(),
        is_off: change.is_off,
        labels: change.labels.iter().map(label).collect(),
    }
}

fn access_log(message: proto::AccessLog) -> Result<FilteredLog, ConvertError> {
    use proto::access_log::To;
    let filter = message.filter.map(|source| Expression::condition(&source, &NAMES));
    let filter = filter.transpose().map_err(|error| wrong_expression("filter", error))?;
    let log = match required("to", message.to)? {
        To::Lines(it) => AccessLog::Lines(format(it).map_err(|error| error.within("lines"))?),
        To::Collector(it) => AccessLog::Collector {
            collector: inner("collector", it.collector, collector)?,
            body: inner("body", it.body, format)?,
            attributes: inner("attributes", it.attributes, format)?,
        },
    };
    Ok(FilteredLog { log, filter })
}

fn wrong_expression(field: &str, error: ExpressionError) -> ConvertError {
    ConvertError::new(field, Problem::Expression(error))
}

fn access_log_message(FilteredLog { log, filter }: &FilteredLog) -> proto::AccessLog {
    use proto::access_log::To;
    let to = match log {
        AccessLog::Lines(format) => To::Lines(format_message(format)),
        AccessLog::Collector { collector, body, attributes } => {
            To::Collector(proto::CollectorLog {
                collector: Some(collector_message(collector)),
                body: Some(format_message(body)),
                attributes: Some(format_message(attributes)),
            })
        }
    };
    let filter = filter.as_ref().map(|it| it.source().to_string());
    proto::AccessLog { to: Some(to), filter }
}

fn format(message: proto::LogFormat) -> Result<Arc<Format>, ConvertError> {
    use proto::log_format::Written as Message;
    let wrong = |field: &str, error: FormatError| ConvertError::new(field, Problem::Format(error));
    let read = match required("written", message.written)? {
        Message::Text(it) => Format::text(&it).map_err(|error| wrong("text", error))?,
        Message::Json(it) => {
            let fields = it.fields.iter().map(|it| (&*it.key, &*it.format));
            Format::json(fields).map_err(|error| wrong("json", error))?
        }
    };
    Ok(Arc::new(read))
}

fn format_message(format: &Format) -> proto::LogFormat {
    use proto::log_format::Written as Message;
    let field = |(key, format): &(Text, Text)| proto::JsonField {
        key: key.to_string(),
        format: format.to_string(),
    };
    let written = match format.written() {
        Written::Text(text) => Message::Text(text.to_string()),
        Written::Json(fields) => {
            Message::Json(proto::JsonFormat { fields: fields.iter().map(field).collect() })
        }
    };
    proto::LogFormat { written: Some(written) }
}

fn spans(message: proto::Spans) -> Result<Spans, ConvertError> {
    Ok(Spans {
        collector: inner("collector", message.collector, collector)?,
        sampling: inner("sampling", message.sampling, rule::fraction)?,
        is_passed_on: message.is_passed_on,
        tags: each("tags", message.tags, tag)?,
        max_tag_bytes: usize::try_from(message.max_tag_bytes).unwrap_or(usize::MAX),
    })
}

fn spans_message(spans: &Spans) -> proto::Spans {
    proto::Spans {
        collector: Some(collector_message(&spans.collector)),
        sampling: Some(rule::fraction_message(spans.sampling)),
        is_passed_on: spans.is_passed_on,
        tags: spans.tags.iter().map(tag_message).collect(),
        max_tag_bytes: u32::try_from(spans.max_tag_bytes).unwrap_or(u32::MAX),
    }
}

fn tag(message: proto::Tag) -> Result<(Text, Tag), ConvertError> {
    use proto::tag::Value;
    let value = match required("value", message.value)? {
        Value::Literal(it) => Tag::Literal(text(&it)),
        Value::Header(it) => Tag::Header(text(&it.name), optional_text(it.default)),
        Value::Environment(it) => Tag::Environment(text(&it.name), optional_text(it.default)),
    };
    Ok((text(&message.name), value))
}

fn tag_message((name, tag): &(Text, Tag)) -> proto::Tag {
    use proto::tag::Value;
    let named = |name: &Text, default: &Option<Text>| proto::NamedTag {
        name: name.to_string(),
        default: optional_string(default),
    };
    let value = match tag {
        Tag::Literal(it) => Value::Literal(it.to_string()),
        Tag::Header(name, default) => Value::Header(named(name, default)),
        Tag::Environment(name, default) => Value::Environment(named(name, default)),
    };
    proto::Tag { name: name.to_string(), value: Some(value) }
}

fn collector(message: proto::Collector) -> Result<Arc<Collector>, ConvertError> {
    use proto::collector::{Place as PlaceMessage, Way as WayMessage};
    let place = match required("place", message.place)? {
        PlaceMessage::Service(it) => {
            Place::Service(ServiceName::new(it.namespace, it.hostname), port("port", it.port)?)
        }
        PlaceMessage::Host(it) => Place::Host(text(&it.host), port("port", it.port)?),
    };
    let headers =
        |all: Vec<proto::Header>| all.iter().map(|it| (text(&it.name), text(&it.value))).collect();
    let way = match required("way", message.way)? {
        WayMessage::Grpc(it) => Way::Grpc(headers(it.metadata)),
        WayMessage::Http(it) => Way::Http { path: text(&it.path), headers: headers(it.headers) },
    };
    let timeout = inner("timeout", message.timeout, duration)?;
    Ok(Arc::new(Collector { place, way, timeout }))
}

fn collector_message(collector: &Collector) -> proto::Collector {
    use proto::collector::{Place as PlaceMessage, Way as WayMessage};
    let place = match &collector.place {
        Place::Service(name, port) => PlaceMessage::Service(proto::ServicePort {
            namespace: name.namespace.to_string(),
            hostname: name.hostname.to_string(),
            port: (*port).into(),
            subset: None,
        }),
        Place::Host(host, port) => {
            PlaceMessage::Host(proto::HostPort { host: host.to_string(), port: (*port).into() })
        }
    };
    let headers = |all: &[(Text, Text)]| {
        let header = |(name, value): &(Text, Text)| proto::Header {
            name: name.to_string(),
            value: value.to_string(),
        };
        all.iter().map(header).collect()
    };
    let way = match &collector.way {
        Way::Grpc(metadata) => {
            WayMessage::Grpc(proto::CollectorGrpc { metadata: headers(metadata) })
        }
        Way::Http { path, headers: all } => {
            WayMessage::Http(proto::CollectorHttp { path: path.to_string(), headers: headers(all) })
        }
    };
    let timeout = Some(duration_message(collector.timeout));
    proto::Collector { place: Some(place), way: Some(way), timeout }
}
