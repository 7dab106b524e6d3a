//! Who is told of a request, as a Telemetry or the mesh configuration says. Where neither says
//! anything, the waypoint's own settings hold, which are not known here.

use ambit_model::http::rule::Fraction;
use ambit_model::http::telemetry::{AccessLog, Collector, FilteredLog, Place, Telemetry, Tracing};

/// A note for each thing that is said.
pub(super) fn notes(telemetry: &Telemetry) -> Vec<String> {
    let logs = telemetry.access_logs.as_ref().map(|logs| match &logs[..] {
        [] => "the request is not logged, as a Telemetry or the mesh configuration says".to_owned(),
        logs => {
            format!("the request is logged {}", logs.iter().map(log).collect::<Vec<_>>().join("; "))
        }
    });
    let traces = telemetry.tracing.as_ref().map(|tracing| match tracing {
        Tracing::Off => "the request is not traced".to_owned(),
        Tracing::On(spans) => format!(
            "the request is traced to {}: {} of new traces, and those that are recorded elsewhere",
            place(&spans.collector),
            percent(spans.sampling)
        ),
    });
    let metrics = telemetry.metrics.as_ref().map(|changes| {
        let names: Vec<_> = changes.keys().map(|metric| metric.name()).collect();
        format!("a Telemetry changes what is counted: {}", names.join(", "))
    });
    [logs, traces, metrics].into_iter().flatten().collect()
}

fn log(FilteredLog { log, filter }: &FilteredLog) -> String {
    let to = match log {
        AccessLog::Lines(_) => "on the waypoint's output".to_owned(),
        AccessLog::Collector { collector, .. } => format!("to {}", place(collector)),
    };
    match filter {
        None => to,
        Some(filter) => format!("{to}, if {}", filter.source()),
    }
}

fn place(collector: &Collector) -> String {
    match &collector.place {
        Place::Service(name, port) => format!("{name}:{port}"),
        Place::Host(host, port) => format!("{host}:{port}"),
    }
}

fn percent(Fraction { numerator, denominator }: Fraction) -> String {
    let percent = f64::from(numerator) * 100.0 / f64::from(denominator.max(1));
    format!("{percent} %")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambit_model::expression::Expression;
    use ambit_model::http::access_log::Format;
    use ambit_model::http::telemetry::{
        DEFAULT_EXPORT_TIMEOUT, DEFAULT_SAMPLING, DEFAULT_TAG_BYTES, NAMES, Spans, Way,
    };
    use ambit_model::names::ServiceName;

    use super::*;

    #[test]
    fn who_is_told_is_a_note_for_each() {
        assert_eq!(notes(&Telemetry::default()), Vec::<String>::new());
        let place = Place::Service(ServiceName::new("sight", "otel.sight.svc.t"), 4317);
        let (way, timeout) = (Way::Grpc(Vec::new()), DEFAULT_EXPORT_TIMEOUT);
        let collector = Arc::new(Collector { place, way, timeout });
        let filter = Expression::condition("response.code >= 500", &NAMES).expect("a filter");
        let log = AccessLog::Lines(Arc::new(Format::default_text()));
        let spans = Spans {
            collector,
            sampling: DEFAULT_SAMPLING,
            is_passed_on: true,
            tags: Vec::new(),
            max_tag_bytes: DEFAULT_TAG_BYTES,
        };
        let telemetry = Telemetry {
            access_logs: Some(vec![FilteredLog { log, filter: Some(filter) }]),
            tracing: Some(Tracing::On(Arc::new(spans))),
            metrics: None,
        };
        let told = notes(&telemetry);
        assert_eq!(
            told,
            [
                "the request is logged on the waypoint's output, if response.code >= 500",
                "the request is traced to sight/otel.sight.svc.t:4317: 1 % of new traces, and \
                 those that are recorded elsewhere",
            ]
        );
        let off = Telemetry { access_logs: Some(Vec::new()), ..Telemetry::default() };
        assert!(notes(&off)[0].starts_with("the request is not logged"));
    }
}
