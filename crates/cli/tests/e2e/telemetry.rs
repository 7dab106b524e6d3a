//! Telemetry on one machine: who is told of requests changes with an object, and back without it.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, sum};
use crate::requests;

/// The sample server takes any message as a collector would: it answers with 200 and no bytes.
const PROVIDERS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: collector
      opentelemetry:
        service: otel.app.svc.cluster.local
        port: 4318
        http: {path: '/v1/traces?size=0'}
    - name: short
      envoyFileAccessLog:
        path: /dev/stdout
        logFormat: {text: \"told %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %TRACE_ID%\\n\"}
---
apiVersion: v1
kind: Service
metadata: {name: otel, namespace: app, labels: {istio.io/use-waypoint: none}}
spec:
  selector: {app: server}
  ports: [{name: http, port: 4318, targetPort: 8080}]
";

const TELEMETRY: &str = "\
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: sight, namespace: app}
spec:
  tracing:
  - providers: [{name: collector}]
    randomSamplingPercentage: 100
  accessLogging:
  - providers: [{name: short}]
    filter: {expression: \"request.url_path != '/quiet'\"}
  metrics:
  - overrides: [{tagOverrides: {path: {value: request.url_path}}}]
";

const SPANS: &str = "ambit_telemetry_exported_total";

#[test]
fn a_telemetry_says_who_is_told_until_it_is_gone() {
    let machine = Machine::up("telemetry", Mesh::On, &[]);
    machine.put_behind_waypoint(|| get(&machine, "/").starts_with("HTTP/1.1 200"));
    assert!(!get(&machine, "/before").contains("traceparent"), "nothing is traced by itself");

    // Without its providers it is told nothing, and `apply` says so.
    let said = machine.apply(TELEMETRY);
    assert!(said.contains("the mesh configuration has no provider `collector`"), "{said}");
    let listed = || machine.list("telemetries").remove(0);
    let shown = listed();
    assert_eq!((&shown["name"], &shown["scope"]), (&"sight".into(), &"namespace".into()));
    assert_eq!(shown["conditions"][0]["status"], "False", "{shown}");
    machine.apply(PROVIDERS);
    let shown = listed();
    assert_eq!(shown["conditions"][0]["status"], "True", "{shown}");
    assert_eq!(shown["providers"], serde_json::json!(["collector", "short"]), "{shown}");
    machine.wait("requests are traced", SETTLE_TIMEOUT, || {
        get(&machine, "/during").contains("traceparent")
    });
    get(&machine, "/quiet");
    let answer = get(&machine, "/told");
    let trace = trace_id(&answer);
    let line = format!("told GET /told 200 {trace}");
    machine.wait("the log has its format", SETTLE_TIMEOUT, || log(&machine).contains(&line));
    assert!(!log(&machine).contains("told GET /quiet"), "the filter keeps it out");
    machine.wait("the collector has spans", SETTLE_TIMEOUT, || {
        sum(&metrics(&machine), SPANS, &["signal=\"spans\""]) > 0
    });
    assert_eq!(sum(&metrics(&machine), "istio_requests_total", &["path=\"/told\""]), 1);

    machine.delete(TELEMETRY);
    machine.wait("nothing is traced", SETTLE_TIMEOUT, || {
        !get(&machine, "/after").contains("traceparent")
    });
    get(&machine, "/last");
    machine.wait("the log is as before", SETTLE_TIMEOUT, || log(&machine).contains("/last"));
    assert!(!log(&machine).contains("told GET /last"));
    machine.down();
}

/// What the server was sent, which it answers with.
fn get(machine: &Machine, target: &str) -> String {
    requests::get(machine, "GET", target)
}

/// The trace of the `traceparent` that the server was sent.
fn trace_id(answer: &str) -> &str {
    let (_, value) = answer.split_once("\"00-").expect("a context of W3C's form");
    value.get(..32).expect("a trace's id")
}

fn log(machine: &Machine) -> String {
    machine.run(&["logs", "app/waypoint"])
}

/// What a scraper in the mesh gets of the waypoint.
fn metrics(machine: &Machine) -> String {
    let pods = machine.waypoint_pods();
    let pod = pods.first().expect("the waypoint's pod");
    let ip = machine.pod_ip("app", pod, false);
    machine.page("client/load", &format!("{ip}/15020"), "/metrics")
}
