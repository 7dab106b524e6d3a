//! A request as a span and as a log record.
//!
//! Tags have the names that Envoy and Istio give them. Those that say more than these begin with
//! `ambit.`: who the client and the endpoint have proven to be, which rule of which policy let the
//! request pass, how often it was tried, and why it was answered as it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_http::engine::record::{Record, Traced};
use ambit_model::Text;
use ambit_model::http::access_log::{Format, Shape};
use ambit_model::http::telemetry::Tag;
use ambit_model::workload::Workload;
use ambit_wire::proto::opentelemetry as otlp;

use crate::access_log::{Entry, Shown, fields, line};

/// `SEVERITY_NUMBER_INFO`.
const INFO: i32 = 9;

/// An attribute that is a text.
pub(crate) fn text(key: &str, value: impl Into<String>) -> otlp::KeyValue {
    let value = otlp::any_value::Value::StringValue(value.into());
    otlp::KeyValue { key: key.to_owned(), value: Some(otlp::AnyValue { value: Some(value) }) }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The span of a request.
pub(crate) fn span(entry: &Entry<'_>, record: &Record, traced: &Traced) -> otlp::Span {
    let parent = traced.parent.map(|it| it.to_be_bytes().to_vec()).unwrap_or_default();
    let max = traced.spans.max_tag_bytes;
    let mut attributes = Vec::with_capacity(40);
    for (key, value) in tags(entry, record) {
        attributes.push(text(key, cut(value, max)));
    }
    for (name, tag) in &traced.spans.tags {
        if let Some(value) = custom(tag, entry) {
            attributes.retain(|it| it.key != **name);
            attributes.push(text(name, cut(value, max)));
        }
    }
    let is_error = record.status >= 500 || record.status == 0;
    let status = is_error.then(|| otlp::Status {
        message: cut(record.details.clone(), max),
        code: otlp::StatusCode::Error.into(),
    });
    let state = entry.field("tracestate").map(|it| String::from_utf8_lossy(it).into_owned());
    otlp::Span {
        trace_id: traced.own.trace_id().to_be_bytes().to_vec().into(),
        span_id: traced.own.span_id().to_be_bytes().to_vec().into(),
        trace_state: state.unwrap_or_default(),
        parent_span_id: parent.into(),
        name: name(entry),
        kind: otlp::SpanKind::Server.into(),
        start_time_unix_nano: nanos(entry.started),
        end_time_unix_nano: nanos(entry.started + entry.duration),
        attributes,
        status,
    }
}

/// Istio's name of a span, `HOST:PORT/*`.
fn name(entry: &Entry<'_>) -> String {
    let destination = entry.arrival.destination;
    match entry.service {
        Some(service) => format!("{}:{}/*", service.key.hostname, destination.port()),
        None => format!("{destination}/*"),
    }
}

fn custom(tag: &Tag, entry: &Entry<'_>) -> Option<String> {
    let (value, default) = match tag {
        Tag::Literal(text) => return Some(text.to_string()),
        Tag::Header(name, default) => {
            (entry.field(name).map(|it| String::from_utf8_lossy(it).into_owned()), default)
        }
        Tag::Environment(name, default) => (entry.names.variables.get(&**name).cloned(), default),
    };
    value.or_else(|| default.as_ref().map(ToString::to_string))
}

/// The tags that every span has, where they are known.
fn tags(entry: &Entry<'_>, record: &Record) -> Vec<(&'static str, String)> {
    let mut tags = Vec::with_capacity(40);
    let mut put = |key, value: Option<String>| tags.extend(value.map(|value| (key, value)));
    let field = |name| entry.field(name).map(|it| String::from_utf8_lossy(it).into_owned());
    put("component", Some("proxy".to_owned()));
    put("node_id", Some(entry.names.node_id.clone()));
    if let Some(head) = &record.head {
        let (scheme, path) =
            (entry.arrival.scheme.as_str(), head.path().map_or("", |it| it.as_str()));
        put("http.url", Some(format!("{scheme}://{}{path}", head.authority().as_str())));
        put("http.method", Some(head.method().as_str().to_owned()));
    }
    put("http.protocol", Some(record.protocol.as_str().to_owned()));
    put("http.status_code", Some(record.status.to_string()));
    put("grpc.status_code", record.grpc_status.map(|it| it.to_string()));
    put("guid:x-request-id", field("x-request-id"));
    put("user_agent", field("user-agent"));
    put("request_size", Some(record.received_bytes.to_string()));
    put("response_size", Some(record.sent_bytes.to_string()));
    put("response_flags", Some(record.flags.letters().to_owned()));
    put("upstream_cluster", entry.cluster());
    put("upstream_cluster.name", entry.cluster());
    put("upstream_address", entry.endpoint.map(|it| it.to_string()));
    put("peer.address", Some(entry.arrival.client.ip().to_string()));
    put("error", (record.status >= 500).then(|| "true".to_owned()));
    tags.extend(entry.names.tags.iter().map(|(key, value)| (*key, value.clone())));
    let mut put = |key, value: Option<String>| tags.extend(value.map(|value| (key, value)));
    let identity = entry.arrival.source.identity();
    put("ambit.source.principal", identity.map(ToString::to_string));
    put("ambit.destination.principal", entry.endpoint_identity().map(|it| it.to_string()));
    put("ambit.route", entry.route_name());
    put("ambit.policy", record.allowed_by.as_ref().map(ToString::to_string));
    put("ambit.attempts", Some(record.attempts.to_string()));
    put("ambit.reason", Some(record.reason.to_owned()));
    put("ambit.details", Some(record.details.clone()).filter(|it| !it.is_empty()));
    sides(entry, &mut tags);
    tags
}

/// Istio's tags of the two workloads.
fn sides(entry: &Entry<'_>, tags: &mut Vec<(&'static str, String)>) {
    const SOURCE: [&str; 8] = [
        "istio.source_workload",
        "istio.source_namespace",
        "istio.source_cluster_id",
        "istio.source_canonical_service",
        "istio.source_canonical_revision",
        "istio.source_app",
        "istio.source_app_version",
        "istio.source_instance_name",
    ];
    const DESTINATION: [&str; 8] = [
        "istio.destination_workload",
        "istio.destination_namespace",
        "istio.destination_cluster_id",
        "istio.destination_canonical_service",
        "istio.destination_canonical_revision",
        "istio.destination_app",
        "istio.destination_app_version",
        "istio.destination_instance_name",
    ];
    let of = |it: &Workload| {
        let (service, revision) = (it.canonical_name.clone(), it.canonical_revision.clone());
        let (workload, namespace) = (it.workload_name.clone(), it.namespace.clone());
        let (cluster, name) = (it.cluster_id.clone(), it.name.clone());
        [workload, namespace, cluster, service.clone(), revision.clone(), service, revision, name]
    };
    for (keys, workload) in
        [(SOURCE, entry.arrival.workload.as_deref()), (DESTINATION, entry.workload)]
    {
        let values = workload.into_iter().flat_map(of);
        let known = keys.into_iter().zip(values).filter(|(_, value)| !value.is_empty());
        tags.extend(known.map(|(key, value)| (key, value.to_string())));
    }
}

fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// The log record of a request or a connection.
pub(crate) fn log(entry: &Entry<'_>, body: &Format, attributes: &Format) -> otlp::LogRecord {
    let traced = entry.trace();
    let value = otlp::any_value::Value::StringValue(line(body, entry));
    let shown = match attributes.shape() {
        Shape::Json(written) => fields(written, entry),
        Shape::Text(_) => Vec::new(),
    };
    let attribute = |(key, value): (Text, Shown<'_>)| match value {
        Shown::Text(value) => text(&key, value),
        Shown::Number(number) => {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            let value = Some(otlp::any_value::Value::IntValue(number));
            otlp::KeyValue { key: key.to_string(), value: Some(otlp::AnyValue { value }) }
        }
    };
    let own = traced.map(|it| (it.trace_id().to_be_bytes().to_vec(), it.span_id().to_be_bytes()));
    let (trace_id, span_id) =
        own.map_or_else(Default::default, |(trace, span)| (trace, span.to_vec()));
    otlp::LogRecord {
        time_unix_nano: nanos(entry.started),
        observed_time_unix_nano: nanos(entry.started + entry.duration),
        severity_number: INFO,
        severity_text: "INFO".to_owned(),
        body: Some(otlp::AnyValue { value: Some(value) }),
        attributes: shown.into_iter().map(attribute).collect(),
        trace_id: trace_id.into(),
        span_id: span_id.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambit_http::engine::record::Tried;
    use ambit_model::http::rule::Fraction;
    use ambit_model::http::telemetry::{Collector, Place, Spans, Way};
    use ambit_model::service::Service;

    use super::*;
    use crate::access_log::fixture::{HEAD, arrival, names, record};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn traced(tags: Vec<(Text, Tag)>) -> Traced {
        let collector = Arc::new(Collector {
            place: Place::Host("collector".into(), 4317),
            way: Way::Grpc(Vec::new()),
            timeout: Duration::from_secs(1),
        });
        let (sampling, max_tag_bytes) = (Fraction::ALL, 20);
        let spans = Spans { collector, sampling, is_passed_on: true, tags, max_tag_bytes };
        let own = PARENT.parse::<ambit_model::trace::TraceParent>().expect("a context").child(7);
        Traced { own, parent: Some(1), spans: Arc::new(spans) }
    }

    fn made(record: &Record, tags: Vec<(Text, Tag)>) -> otlp::Span {
        let (mut names, arrival) = (names(), arrival());
        names.variables.insert("ZONE".to_owned(), "a".to_owned());
        let service = Service::named("shop", "web.shop.svc.t");
        let mut entry = Entry::of_request(&names, &arrival, record, Some(&service));
        entry.started = UNIX_EPOCH + Duration::from_secs(9);
        entry.duration = Duration::from_millis(5);
        span(&entry, record, &traced(tags))
    }

    fn tag<'s>(span: &'s otlp::Span, name: &str) -> Option<&'s str> {
        let found = span.attributes.iter().find(|it| it.key == name)?;
        match found.value.as_ref()?.value.as_ref()? {
            otlp::any_value::Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn a_span_says_who_asked_whom_for_what_and_what_came_of_it() {
        let mut record = record(HEAD);
        let mut pod = Workload::named("c//Pod/shop/web-1", "shop", "web-1");
        pod.workload_name = "web".into();
        let address = ([10, 0, 0, 5], 8080).into();
        record.endpoint = Some(Tried { address, workload: Some(Arc::new(pod)) });
        let span = made(&record, Vec::new());
        assert_eq!(span.name, "web.shop.svc.t:80/*");
        assert_eq!(span.trace_id.len(), 16);
        assert_eq!(&*span.span_id, 7_u64.to_be_bytes());
        assert_eq!(&*span.parent_span_id, 1_u64.to_be_bytes());
        assert_eq!(span.start_time_unix_nano, 9_000_000_000);
        assert_eq!(span.end_time_unix_nano, 9_005_000_000);
        assert!(span.status.is_none());
        for (name, value) in [
            ("http.method", "GET"),
            ("http.status_code", "200"),
            ("http.url", "http://web:80/a?b"),
            ("ambit.route", "shop.web.2"),
            ("ambit.attempts", "1"),
            ("ambit.source.principal", "spiffe://t/ns/shop/s"),
            ("istio.destination_workload", "web"),
            ("response_flags", "-"),
        ] {
            assert_eq!(tag(&span, name), Some(value), "{name}");
        }
        assert_eq!(tag(&span, "istio.source_workload"), None);
    }

    #[test]
    fn custom_tags_are_of_the_request_of_the_environment_or_given() {
        let header =
            |name: &str, default: Option<&str>| Tag::Header(name.into(), default.map(Text::from));
        let tags = vec![
            ("literal".into(), Tag::Literal("l".into())),
            ("agent".into(), header("user-agent", None)),
            ("absent".into(), header("x-none", None)),
            ("given".into(), header("x-none", Some("d"))),
            ("zone".into(), Tag::Environment("ZONE".into(), None)),
            ("component".into(), Tag::Literal("mine".into())),
        ];
        let span = made(&record(HEAD), tags);
        let told = ["literal", "agent", "absent", "given", "zone", "component"]
            .map(|name| tag(&span, name).unwrap_or("-"));
        assert_eq!(told, ["l", "curl", "-", "d", "a", "mine"]);
        assert_eq!(span.attributes.iter().filter(|it| it.key == "component").count(), 1);
    }

    #[test]
    fn a_failure_is_an_error_with_its_reason() {
        let mut record = record(HEAD);
        (record.status, record.reason) = (503, "connect");
        record.details = "nobody listens at all there".to_owned();
        let span = made(&record, Vec::new());
        let status = span.status.as_ref().expect("a status");
        assert_eq!(status.code, i32::from(otlp::StatusCode::Error));
        assert_eq!(status.message, "nobody listens at al");
        assert_eq!(tag(&span, "ambit.reason"), Some("connect"));
        assert_eq!(tag(&span, "error"), Some("true"));
    }

    #[test]
    fn a_log_record_has_the_line_its_fields_and_its_trace() {
        let head = HEAD.replace("user-agent", &format!("traceparent: {PARENT}\r\nuser-agent"));
        let record = record(&head);
        let (names, arrival) = (names(), arrival());
        let entry = Entry::of_request(&names, &arrival, &record, None);
        let body = Format::text("%RESPONSE_CODE% %REQ(:METHOD)%").expect("a format");
        let attributes =
            Format::json([("code", "%RESPONSE_CODE%"), ("sni", "%REQUESTED_SERVER_NAME%")]);
        let log = log(&entry, &body, &attributes.expect("a format"));
        let body = log.body.and_then(|it| it.value);
        assert_eq!(body, Some(otlp::any_value::Value::StringValue("200 GET".to_owned())));
        let code = otlp::any_value::Value::IntValue(200);
        assert_eq!(log.attributes.len(), 1);
        assert_eq!(log.attributes[0].value.as_ref().and_then(|it| it.value.clone()), Some(code));
        assert_eq!(&*log.span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    }
}
