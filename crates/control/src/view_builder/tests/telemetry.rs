//! Telemetry: what a waypoint is told of whom to tell.

use ambit_model::http::access_log::Written;
use ambit_model::http::telemetry::{AccessLog, Place, Tracing};

use super::*;

const WEB: &str = "shop/web.shop.svc.cluster.local";
const PROVIDERS: &str = "
extensionProviders:
- {name: otel, opentelemetry: {service: otel.sight.svc.cluster.local, port: 4317}}
- {name: bytes, envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: '%BYTES_SENT%'}}}
- {name: code, envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: '%RESPONSE_CODE%'}}}
";

fn config() -> Event {
    let metadata = meta("istio-system", "istio", &json!({}));
    put(Kind::ConfigMap, &json!({"metadata": metadata, "data": {"mesh": PROVIDERS}}))
}

fn telemetry(namespace: &str, name: &str, spec: &Value) -> Event {
    let metadata = meta(namespace, name, &json!({}));
    put(Kind::Telemetry, &json!({"metadata": metadata, "spec": spec}))
}

fn log(provider: &str) -> Value {
    json!({"accessLogging": [{"providers": [{"name": provider}]}]})
}

fn web() -> Event {
    service("shop", "web", &json!({"ports": [{"port": 80}]}))
}

/// Whom a waypoint tells of requests to `web`: formats of lines, and the collector of spans.
fn told(builder: &Builder) -> String {
    let known = builder.view().http_service(&WEB.parse().unwrap()).expect("a service");
    let of_log = |log: &AccessLog| match log {
        AccessLog::Lines(format) => match format.written() {
            Written::Text(text) => text.trim_end().to_owned(),
            Written::Json(_) => "json".to_owned(),
        },
        AccessLog::Collector { .. } => "collector".to_owned(),
    };
    let logs = match &known.telemetry.access_logs {
        None => "as it is set".to_owned(),
        Some(logs) => logs.iter().map(|it| of_log(&it.log)).collect::<Vec<_>>().join(" "),
    };
    let spans = match &known.telemetry.tracing {
        None => "as it is set".to_owned(),
        Some(Tracing::Off) => "none".to_owned(),
        Some(Tracing::On(spans)) => match &spans.collector.place {
            Place::Service(name, port) => format!("{name}:{port}"),
            Place::Host(host, port) => format!("{host}:{port}"),
        },
    };
    format!("{logs}; {spans}")
}

fn remarks(builder: &Builder, namespace: &str, name: &str) -> Vec<String> {
    let remarks = builder.telemetry_remarks(&ObjectName::new(namespace, name));
    remarks.iter().map(|it| format!("{}: {}", it.at.as_str(), it.what)).collect()
}

#[test]
fn the_narrowest_telemetry_holds_and_what_is_taken_away_holds_no_longer() {
    let mut builder = builder();
    builder.apply([web(), config()]);
    assert_eq!(told(&builder), "as it is set; as it is set");
    builder.apply([telemetry("istio-system", "mesh", &log("bytes"))]);
    assert_eq!(told(&builder), "%BYTES_SENT%; as it is set");
    builder.apply([telemetry("bank", "elsewhere", &log("code"))]);
    assert_eq!(told(&builder), "%BYTES_SENT%; as it is set", "another namespace's");
    builder.apply([telemetry("shop", "own", &log("code"))]);
    assert_eq!(told(&builder), "%RESPONSE_CODE%; as it is set");
    let mut attached = json!({"accessLogging": [{"disabled": true}]});
    attached["targetRefs"] = json!([{"kind": "Service", "name": "web"}]);
    builder.apply([telemetry("shop", "web", &attached)]);
    assert_eq!(told(&builder), "; as it is set", "off");
    attached["targetRefs"] = json!([{"kind": "Service", "name": "other"}]);
    builder.apply([telemetry("shop", "web", &attached)]);
    assert_eq!(told(&builder), "%RESPONSE_CODE%; as it is set", "for another service");
    builder.apply([delete(Kind::Telemetry, "shop", "own")]);
    assert_eq!(told(&builder), "%BYTES_SENT%; as it is set");
    builder.apply([delete(Kind::Telemetry, "istio-system", "mesh")]);
    assert_eq!(told(&builder), "as it is set; as it is set");
}

#[test]
fn a_collector_is_found_when_its_service_comes() {
    let mut builder = builder();
    let spec = json!({"tracing": [{"providers": [{"name": "otel"}]}]});
    builder.apply([web(), config(), telemetry("shop", "traces", &spec)]);
    assert_eq!(told(&builder), "as it is set; none");
    let missing = "spec.tracing[0].providers[0].name: no service has the host \
                   `otel.sight.svc.cluster.local`; it is told nothing";
    assert_eq!(remarks(&builder, "shop", "traces"), [missing]);
    builder.apply([service("sight", "otel", &json!({"ports": [{"port": 4317}]}))]);
    let there = "as it is set; sight/otel.sight.svc.cluster.local:4317";
    assert_eq!(told(&builder), there);
    assert_eq!(remarks(&builder, "shop", "traces"), Vec::<String>::new());
    builder.apply([delete(Kind::ConfigMap, "istio-system", "istio")]);
    assert_eq!(told(&builder), "as it is set; none");
    assert!(remarks(&builder, "shop", "traces")[0].contains("has no provider `otel`"));
    builder.apply([config()]);
    assert_eq!(told(&builder), there);
}

#[test]
fn a_telemetry_that_selects_pods_holds_for_no_waypoint() {
    let mut builder = builder();
    let mut spec = log("code");
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    builder.apply([web(), config(), telemetry("shop", "pods", &spec)]);
    assert_eq!(told(&builder), "as it is set; as it is set");
    assert!(remarks(&builder, "shop", "pods")[0].starts_with("spec.selector: it selects pods"));
}
