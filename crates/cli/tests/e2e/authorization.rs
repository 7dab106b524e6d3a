//! Authorization services on one machine: a CUSTOM policy asks one, which allows and denies.

use serde_json::Value;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT};
use crate::requests;

/// The sample server answers with the status that a request's query asks for: as an authorization
/// service it allows what asks for 200, or for nothing.
const PROVIDER: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: sample
      envoyExtAuthzHttp:
        service: authz.app.svc.cluster.local
        port: 80
        pathPrefix: /check
        includeRequestHeadersInCheck: [x-who]
---
apiVersion: v1
kind: Service
metadata: {name: authz, namespace: app}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const CUSTOM: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: app}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  action: CUSTOM
  provider: {name: sample}
  rules: [{to: [{operation: {paths: ['/asked*']}}]}]
";

#[test]
fn a_custom_policy_asks_a_service_that_allows_and_denies() {
    let machine = Machine::up("authorization", Mesh::On, &[]);
    machine.put_behind_waypoint(|| get(&machine, "/").starts_with("HTTP/1.1 200"));
    // Without its provider the policy denies, which `apply` says.
    let said = machine.apply(CUSTOM);
    assert!(said.contains("the mesh configuration has no provider `sample`"), "{said}");
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        get(&machine, "/asked").starts_with("HTTP/1.1 403")
    });
    assert!(get(&machine, "/asked").contains("x-ambit-reason: ext_authz"));
    let why = explained(&machine, "/asked");
    assert_eq!(why["decision"], "deny", "{why}");
    assert!(why["reason"].as_str().unwrap().contains("provider sample does not exist"), "{why}");

    machine.apply(PROVIDER);
    machine.wait("the service is asked", SETTLE_TIMEOUT, || {
        get(&machine, "/asked").starts_with("HTTP/1.1 200")
    });
    let denied = get(&machine, "/asked?status=401");
    assert!(denied.starts_with("HTTP/1.1 401"), "{denied}");
    assert!(denied.contains("x-ambit-reason: ext_authz"), "{denied}");
    // The answer is the service's: it tells what it was asked.
    assert!(denied.contains("\"uri\": \"/check/asked?status=401\""), "{denied}");
    let broken = get(&machine, "/asked?status=500");
    assert!(broken.starts_with("HTTP/1.1 403"), "a service that fails denies: {broken}");
    let other = get(&machine, "/other?status=401");
    assert!(other.starts_with("HTTP/1.1 401") && !other.contains("x-ambit-reason"), "{other}");
    let why = explained(&machine, "/asked");
    assert_eq!(why["decision"], "allow", "{why}");
    assert!(why["notes"].to_string().contains("asks provider sample first (HTTP at app/"), "{why}");
    counted(&machine);

    machine.delete(PROVIDER);
    machine.wait("without it the policy denies again", SETTLE_TIMEOUT, || {
        get(&machine, "/asked").starts_with("HTTP/1.1 403")
    });
    machine.down();
}

fn get(machine: &Machine, target: &str) -> String {
    requests::get(machine, "GET", target)
}

fn explained(machine: &Machine, path: &str) -> Value {
    let words = format!("why client/load app/web:80 --path {path} -o json");
    let text = machine.run(&words.split(' ').collect::<Vec<_>>());
    serde_json::from_str(&text).expect("it prints JSON")
}

fn counted(machine: &Machine) {
    let metrics = machine.page("app/waypoint", "127.0.0.1/15020", "/metrics");
    for outcome in ["allowed", "denied", "failed"] {
        let counter = format!(
            "ambit_ext_authz_checks_total{{provider=\"sample\",outcome=\"{outcome}\",\
             dry_run=\"false\"}}"
        );
        assert!(metrics.contains(&counter), "{counter}: {metrics}");
    }
}
