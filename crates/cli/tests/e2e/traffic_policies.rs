//! TrafficPolicies beside rate limits, on one machine: how much a request may be, and endpoints
//! that fail their checks.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::rate_limits::ask;

const LIMITS: &str = "\
apiVersion: ambit.io/v1alpha1
kind: TrafficPolicy
metadata: {name: small, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  limits: {maxHeaderBytes: 2000}
";

const CHECK: &str = "\
apiVersion: ambit.io/v1alpha1
kind: TrafficPolicy
metadata: {name: health, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  healthCheck:
    type: HTTP
    http: {path: /, expectedStatuses: [EXPECTED]}
    interval: 200ms
    unhealthyThreshold: 2
";

#[test]
fn requests_are_limited_and_endpoints_checked() {
    let machine = Machine::up("traffic-policies", Mesh::On, &[]);
    let passes = |field: &str| ask(&machine, "/", field).starts_with("HTTP/1.1 200");
    machine.put_behind_waypoint(|| passes(""));
    machine.apply(LIMITS);
    let long = format!("x-long: {}", "a".repeat(3000));
    machine.wait("long heads are refused", SETTLE_TIMEOUT, || {
        ask(&machine, "/", &long).starts_with("HTTP/1.1 431")
    });
    assert!(passes("x-long: a"), "short heads pass");
    machine.delete(LIMITS);
    machine.wait("long heads pass again", SETTLE_TIMEOUT, || passes(&long));

    machine.apply(&CHECK.replace("EXPECTED", "204"));
    let mut refused = String::new();
    machine.wait("the endpoint fails its checks", SETTLE_TIMEOUT, || {
        refused = ask(&machine, "/", "");
        refused.starts_with("HTTP/1.1 503")
    });
    assert!(refused.contains("x-ambit-reason: no_healthy_endpoint"), "{refused}");
    machine.apply(&CHECK.replace("EXPECTED", "200-299"));
    machine.wait("the endpoint passes its checks", SETTLE_TIMEOUT, || passes(""));
    let wrong = machine.ambit_with(&["apply", "-"], &CHECK.replace("EXPECTED", "20"));
    assert!(wrong.err.contains("expectedStatuses"), "{}", wrong.err);
    machine.delete(&CHECK.replace("EXPECTED", "200"));
    machine.down();
}
