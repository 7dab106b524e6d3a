//! Telemetry objects in, what is told of requests out.

use std::collections::BTreeMap;

use ambit_model::http::access_log::Written;
use ambit_model::http::rule::Fraction;
use ambit_model::http::telemetry::{
    self as model, AccessLog, Collector, FilteredLog, LabelChange, Metric, MetricChange, Place,
    Spans, Tag, Tracing as Traced, Way,
};
use ambit_model::names::ServiceName;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::effective::effective;
use super::*;
use crate::mesh_config::{self, MeshConfig, ProviderService};

const ROOT: &str = "istio-system";
const PROVIDERS: &str = "
extensionProviders:
- name: otel
  opentelemetry: {service: otel.sight.svc.t, port: 4317}
- name: http
  opentelemetry:
    service: otel.sight.svc.t
    port: 4318
    maxTagLength: 9
    http: {path: /in/v1/traces, timeout: 2s, headers: [{name: X-Key, value: k}]}
- name: zipkin
  zipkin: {service: z.sight.svc.t, port: 9411}
- name: gone
  opentelemetry: {service: none.sight.svc.t, port: 4317}
- name: file
  envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {code: '%RESPONSE_CODE%'}}}
- name: elsewhere
  envoyFileAccessLog: {path: /var/log/a}
- name: broken
  envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: '%NO%'}}
- name: als
  envoyOtelAls: {service: otel.sight.svc.t, port: 4317, logFormat: {text: '%PROTOCOL%'}}
";

fn mesh(more: &str) -> MeshConfig {
    let data = BTreeMap::from([("mesh".to_owned(), format!("{PROVIDERS}{more}"))]);
    mesh_config::read(&ConfigMap { data: Some(data), ..ConfigMap::default() }).0
}

fn object(spec: &Value) -> Telemetry {
    let object = json!({"apiVersion": "telemetry.istio.io/v1", "kind": "Telemetry",
        "metadata": {"namespace": "shop", "name": "t"}, "spec": spec});
    serde_json::from_value(object).expect("a Telemetry")
}

fn said(spec: &Value) -> Said {
    read(&object(spec))
}

fn find(service: &ProviderService) -> Option<ServiceName> {
    (service.host == "otel.sight.svc.t").then(|| ServiceName::new("sight", &*service.host))
}

fn remarks(spec: &Value, mesh: &MeshConfig) -> Vec<String> {
    let said = &said(spec);
    let missing = effective::remarks(&object(spec), said, ROOT, mesh, &find);
    let told = said.remarks.iter().chain(&missing).map(|it| {
        let kind = if it.is_wrong { "wrong" } else { "unhonoured" };
        format!("{kind} {}: {}", it.at.as_str(), it.what)
    });
    told.collect()
}

/// What holds for a service of which these objects speak, in a mesh with this configuration.
fn of(specs: &[Value], more: &str) -> model::Telemetry {
    let said: Vec<Said> = specs.iter().map(said).collect();
    effective(&said.iter().collect::<Vec<_>>(), &mesh(more), &find)
}

fn told_logs(telemetry: &model::Telemetry) -> Option<Vec<String>> {
    let format = |written: &Written| match written {
        Written::Text(text) => text.split(' ').next().unwrap_or_default().to_owned(),
        Written::Json(fields) => fields.first().map(|it| it.0.to_string()).unwrap_or_default(),
    };
    let tell = |log: &AccessLog| match log {
        AccessLog::Lines(it) => format!("lines {}", format(it.written())),
        AccessLog::Collector { body, .. } => format!("collector {}", format(body.written())),
    };
    let tell = |it: &FilteredLog| match &it.filter {
        None => tell(&it.log),
        Some(filter) => format!("{} if {}", tell(&it.log), filter.source()),
    };
    telemetry.access_logs.as_ref().map(|logs| logs.iter().map(tell).collect())
}

fn spans(telemetry: &model::Telemetry) -> Option<&Spans> {
    match telemetry.tracing.as_ref()? {
        Traced::On(spans) => Some(spans),
        Traced::Off => None,
    }
}

#[test]
fn where_nothing_is_said_the_proxy_is_as_it_is_set() {
    assert_eq!(of(&[], ""), model::Telemetry::default());
    assert_eq!(of(&[json!({})], ""), model::Telemetry::default());
}

#[test]
fn logs_are_those_of_the_narrowest_that_speaks() {
    let check = |specs: &[Value], more: &str, expected: Option<&[&str]>| {
        let told = told_logs(&of(specs, more));
        let told = told.as_ref().map(|it| it.iter().map(|it| &**it).collect::<Vec<_>>());
        assert_eq!(told.as_deref(), expected, "{specs:?} {more}");
    };
    let logging = |entry: Value| json!({"accessLogging": [entry]});
    let file = || logging(json!({"providers": [{"name": "file"}]}));
    let off = || logging(json!({"disabled": true}));
    check(&[], "accessLogFile: /dev/stdout", Some(&["lines [%START_TIME%]"]));
    let json_log = "accessLogFile: /dev/stdout\naccessLogEncoding: JSON";
    check(&[], json_log, Some(&["lines start_time"]));
    let custom = "accessLogFile: /dev/stdout\naccessLogFormat: '%PROTOCOL% a'";
    check(&[], custom, Some(&["lines %PROTOCOL%"]));
    let object = "accessLogFile: /dev/stdout\naccessLogEncoding: JSON\n\
                  accessLogFormat: '{\"p\": \"%PROTOCOL%\"}'";
    check(&[], object, Some(&["lines p"]));
    check(&[], "defaultProviders: {accessLogging: [als]}", Some(&["collector %PROTOCOL%"]));
    check(&[file()], "", Some(&["lines code"]));
    check(&[file(), off()], "", Some(&[]));
    check(&[off(), file()], "", Some(&["lines code"]));
    check(&[off(), logging(json!({}))], json_log, Some(&["lines start_time"]));
    let only = |providers: Value| {
        let filter = json!({"expression": "response.code >= 500"});
        logging(json!({"providers": providers, "filter": filter}))
    };
    let errors = "lines code if response.code >= 500";
    check(&[only(json!([{"name": "file"}]))], "", Some(&[errors]));
    check(&[file(), only(json!([]))], "", Some(&[errors]));
    check(&[only(json!([{"name": "file"}])), file()], "", Some(&["lines code"]));
    let both = json!({"accessLogging": [{"providers": [{"name": "file"}, {"name": "als"}]}]});
    check(std::slice::from_ref(&both), "", Some(&["lines code", "collector %PROTOCOL%"]));
    let less = logging(json!({"providers": [{"name": "file"}], "disabled": true}));
    check(&[both, less], "", Some(&["collector %PROTOCOL%"]));
    check(
        &[logging(json!({"providers": [{"name": "envoy"}]}))],
        "",
        Some(&["lines [%START_TIME%]"]),
    );
    check(&[logging(json!({"providers": [{"name": "broken"}]}))], "", Some(&[]));
    let client = json!({"match": {"mode": "CLIENT"}, "providers": [{"name": "file"}]});
    check(&[logging(client)], "", None);
}

#[test]
fn traces_take_over_what_a_narrower_object_does_not_say() {
    let tracing = |entry: Value| json!({"tracing": [entry]});
    let wide = tracing(json!({"providers": [{"name": "otel"}], "randomSamplingPercentage": 10,
        "customTags": {"zone": {"literal": {"value": "a"}}}}));
    let narrow = tracing(json!({"randomSamplingPercentage": 50}));
    let telemetry = of(&[wide.clone(), narrow], "");
    let both = spans(&telemetry).expect("spans");
    assert_eq!(both.sampling, Fraction { numerator: 500_000, denominator: 1_000_000 });
    assert_eq!(both.tags, [("zone".into(), Tag::Literal("a".into()))]);
    assert!(both.is_passed_on);
    let place = Place::Service(ServiceName::new("sight", "otel.sight.svc.t"), 4317);
    let timeout = model::DEFAULT_EXPORT_TIMEOUT;
    assert_eq!(*both.collector, Collector { place, way: Way::Grpc(Vec::new()), timeout });
    let off = tracing(json!({"disableSpanReporting": true}));
    assert_eq!(of(&[wide.clone(), off], "").tracing, Some(Traced::Off));
    let silent = tracing(json!({"disableContextPropagation": true}));
    assert!(!spans(&of(&[wide, silent], "")).expect("spans").is_passed_on);
    let by_default = of(&[], "defaultProviders: {tracing: [http]}");
    let by_default = spans(&by_default).expect("spans");
    assert_eq!(by_default.sampling, model::DEFAULT_SAMPLING);
    assert_eq!(by_default.max_tag_bytes, 9);
    let headers = vec![("x-key".into(), "k".into())];
    let way = Way::Http { path: "/in/v1/traces".into(), headers };
    assert_eq!((&by_default.collector.way, by_default.collector.timeout.as_secs()), (&way, 2));
}

#[test]
fn metrics_are_changed_by_all_that_speak() {
    let metrics = |entry: Value| json!({"metrics": [entry]});
    let told = |specs: &[Value]| {
        let changes = of(specs, "").metrics.map(|it| (*it).clone()).unwrap_or_default();
        let one = |(metric, change): (&Metric, &MetricChange)| {
            let labels = change.labels.iter().map(|(name, change)| match change {
                LabelChange::Removed => format!(" -{name}"),
                LabelChange::Is(value) => format!(" {name}={value}"),
                LabelChange::Value(value) => format!(" {name}:{}", value.source()),
            });
            let off = if change.is_off { " off" } else { "" };
            format!("{}{off}{}", metric.name(), labels.collect::<String>())
        };
        changes.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let size = |disabled: bool| {
        let of = json!({"metric": "REQUEST_SIZE"});
        metrics(json!({"overrides": [{"match": of, "disabled": disabled}]}))
    };
    assert_eq!(told(&[]), "");
    assert_eq!(told(&[size(true)]), "REQUEST_SIZE off");
    assert_eq!(told(&[size(true), size(false)]), "", "a narrower scope switches it on again");
    let labels = json!({"match": {"metric": "REQUEST_COUNT", "mode": "SERVER"},
        "tagOverrides": {"source_app": {"operation": "REMOVE"}, "team": {"value": "'a b'"},
            "host": {"value": "request.host"}}});
    let wide = metrics(json!({"providers": [{"name": "prometheus"}], "overrides": [labels]}));
    let narrow = json!({"tagOverrides": {"team": {"operation": "UPSERT", "value": "\"c\""}}});
    let narrow = metrics(json!({"overrides": [narrow]}));
    assert_eq!(
        told(std::slice::from_ref(&wide)),
        "REQUEST_COUNT host:request.host -source_app team=a b"
    );
    let both = told(&[wide, narrow]);
    let expected = "host:request.host -source_app team=c, REQUEST_DURATION team=c";
    assert!(both.contains(expected), "{both}");
    let elsewhere = json!({"providers": [{"name": "otel"}], "overrides": [{"disabled": true}]});
    assert_eq!(told(&[metrics(elsewhere.clone())]), "");
    let remarks = remarks(&metrics(elsewhere), &mesh(""));
    let expected = "unhonoured spec.metrics[0].providers[0].name: the provider `otel` has no \
                    metrics; it is told nothing";
    assert_eq!(remarks, [expected]);
}

#[test]
fn tags_without_a_provider_leave_the_proxy_as_it_is_set() {
    let tags = json!({"tracing": [{"customTags": {"a": {"literal": {"value": "b"}}}}]});
    assert_eq!(of(&[tags], "").tracing, None);
}

#[test]
fn a_provider_that_cannot_be_used_is_a_remark_and_is_told_nothing() {
    let check = |field: &str, name: &str, expected: &str| {
        let spec = json!({field: [{"providers": [{"name": name}]}]});
        let told = remarks(&spec, &mesh(""));
        let expected = format!("unhonoured spec.{field}[0].providers[0].name: {expected}");
        assert_eq!(told, [format!("{expected}; it is told nothing")]);
    };
    let missing = "the mesh configuration has no provider `x`";
    check("tracing", "x", missing);
    check("accessLogging", "x", missing);
    check("tracing", "gone", "no service has the host `none.sight.svc.t`");
    check("tracing", "file", "the provider `file` takes no spans");
    check("accessLogging", "otel", "the provider `otel` writes no access log");
    let elsewhere = "the provider `elsewhere`: data.mesh.extensionProviders[5].envoyFileAccessLog.\
                     path: a waypoint logs to /dev/stdout, not to `/var/log/a`";
    check("accessLogging", "elsewhere", elsewhere);
    let broken = "the provider `broken`: data.mesh.extensionProviders[6].envoyFileAccessLog.\
                  logFormat.text: operator %NO% is not supported; docs/guide/telemetry.md lists \
                  those that are";
    check("accessLogging", "broken", broken);
    let zipkin = "the provider `zipkin`: waypoints send spans in OpenTelemetry's protocol alone";
    check("tracing", "zipkin", zipkin);
    let off = json!({"tracing": [{"providers": [{"name": "gone"}]}]});
    assert_eq!(of(&[off], "").tracing, Some(Traced::Off));
}

#[test]
fn what_is_not_honoured_is_a_remark() {
    let check = |spec: Value, expected: &[&str]| {
        let told = remarks(&spec, &mesh(""));
        let told: Vec<_> = told.iter().map(|it| it.split(':').next().unwrap_or("")).collect();
        assert_eq!(told, expected, "{spec}");
    };
    check(json!({"selector": {"matchLabels": {"a": "b"}}}), &["unhonoured spec.selector"]);
    let metrics = json!({"metrics": [{"reportingInterval": "5s", "overrides": [
        {"match": {"customMetric": "a"}, "disabled": true},
        {"match": {"metric": "TCP_SENT_BYTES"}, "disabled": true},
        {"match": {"metric": "REQUESTS"}}, {"match": {"mode": "CLIENT"}},
        {"tagOverrides": {"a": {"operation": "REMOVE", "value": "'b'"}, "b-": {}, "c": {},
            "d": {"operation": "ADD"}, "e": {"value": "request.hosts"}}}]}]});
    let (at, tag) = ("spec.metrics[0]", "spec.metrics[0].overrides[4].tagOverrides");
    let expected = [
        format!("unhonoured {at}.reportingInterval"),
        format!("unhonoured {at}.overrides[0].match.customMetric"),
        format!("unhonoured {at}.overrides[1].match.metric"),
        format!("wrong {at}.overrides[2].match.metric"),
        format!("unhonoured {at}.overrides[3].match.mode"),
        format!("wrong {tag}.a.value"),
        format!("wrong {tag}.b-"),
        format!("wrong {tag}.c.value"),
        format!("wrong {tag}.d.operation"),
        format!("wrong {tag}.e.value"),
    ];
    check(metrics, &expected.each_ref().map(|it| &**it));
    let filter = |it: &str| json!({"accessLogging": [{"filter": {"expression": it}}]});
    check(filter("response.code >= 400"), &[]);
    check(filter("response.kode >= 400"), &["wrong spec.accessLogging[0].filter.expression"]);
    check(filter("'a'"), &["wrong spec.accessLogging[0].filter.expression"]);
    let tracing = json!({"tracing": [{"useRequestIdForTraceSampling": true,
        "enableIstioTags": false, "providers": [{"name": "otel"}, {"name": "otel"}]}]});
    let at = ["providers", "useRequestIdForTraceSampling", "enableIstioTags"]
        .map(|field| format!("unhonoured spec.tracing[0].{field}"));
    check(tracing, &at.each_ref().map(|it| &**it));
    let wrong = json!({"tracing": [{"match": {"mode": "x"}}, {"randomSamplingPercentage": 101,
        "customTags": {"a": {}, "b": {"formatter": {"value": "%A%"}}}}]});
    check(
        wrong,
        &[
            "wrong spec.tracing[0].match.mode",
            "wrong spec.tracing[1].randomSamplingPercentage",
            "wrong spec.tracing[1].customTags.a",
            "unhonoured spec.tracing[1].customTags.b",
        ],
    );
    let elsewhere = json!({"targetRefs": [{"kind": "Pod", "name": "a"}]});
    check(elsewhere, &["wrong spec.targetRefs[0]"]);
}
