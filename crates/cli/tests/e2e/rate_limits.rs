//! Limits of how many requests come, on one machine: counted, refused, explained.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, sum};

const LIMITS: &str = "\
apiVersion: ambit.io/v1alpha1
kind: TrafficPolicy
metadata: {name: limits, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  rateLimits:
  - name: per-user
    clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 3, unit: Hour}
  - name: trial
    clientSelectors: [{path: {value: /trial}}]
    limit: {requests: 1, unit: Hour}
    shadowMode: true
";

/// What a verified identity or token says tells senders apart, and each identity has two requests
/// to one path.
const BY_WHOM: &str = "\
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: login, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  jwtRules:
  - issuer: https://login.example.com
    jwks: >-
      {\"keys\": [{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"alg\": \"EdDSA\",
      \"kid\": \"1\", \"x\": \"KEY\"}]}
---
apiVersion: ambit.io/v1alpha1
kind: TrafficPolicy
metadata: {name: limits, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  rateLimits:
  - name: per-group
    clientSelectors: [{claims: [{name: group, type: Distinct}]}]
    limit: {requests: 2, unit: Hour}
  - name: per-caller
    clientSelectors: [{path: {value: /who}, principal: {type: Distinct}}]
    limit: {requests: 2, unit: Hour}
";
const LOGIN: &str = include_str!("../../../../examples/bookinfo-steps/admin.yaml");
const ALICE: &str = include_str!("../../../../examples/bookinfo-steps/alice.jwt");
const BOB: &str = include_str!("../../../../examples/bookinfo-steps/bob.jwt");

#[test]
fn requests_beyond_a_limit_are_refused() {
    let machine = Machine::up("rate-limits", Mesh::On, &[]);
    machine.put_behind_waypoint(|| ask(&machine, "/", "").starts_with("HTTP/1.1 200"));
    machine.apply(LIMITS);
    machine.wait("the limits hold", SETTLE_TIMEOUT, || {
        ask(&machine, "/", "x-user: first").contains("x-ratelimit-limit: 3, 3;w=3600")
    });
    let statuses = |path: &str, fields: &str| -> Vec<String> {
        (0..5).map(|_| ask(&machine, path, fields)[9..12].to_owned()).collect()
    };
    let limited = ["200", "200", "200", "429", "429"];
    assert_eq!(statuses("/", "x-user: ann"), limited);
    assert_eq!(statuses("/", "x-user: bob"), limited);
    assert_eq!(statuses("/", ""), ["200"; 5]);
    assert_eq!(statuses("/trial", ""), ["200"; 5]);
    let refused = ask(&machine, "/", "x-user: ann");
    for field in ["retry-after: ", "x-ratelimit-remaining: 0", "x-ambit-reason: rate_limited"] {
        assert!(refused.contains(field), "{field} in {refused}");
    }
    explained(&machine);
    counted(&machine);
    let wrong = machine.ambit_with(&["apply", "-"], &LIMITS.replace("Hour", "Fortnight"));
    assert!(wrong.err.contains("`Fortnight` is no unit of time"), "{}", wrong.err);
    machine.delete(LIMITS);
    machine.wait("the limits are gone", SETTLE_TIMEOUT, || {
        ask(&machine, "/", "x-user: ann").starts_with("HTTP/1.1 200")
    });
    by_whom(&machine);
    machine.down();
}

/// Limits by what is proven: a token's claim, and the client's identity.
fn by_whom(machine: &Machine) {
    let key = LOGIN.split_once("\"x\": \"").and_then(|(_, rest)| rest.split_once('"'));
    machine.apply(&BY_WHOM.replace("KEY", key.expect("a key").0));
    let bearer = |token: &str| format!("authorization: Bearer {}", token.trim());
    machine.wait("claims are counted", SETTLE_TIMEOUT, || {
        ask(machine, "/", &bearer(BOB)).contains("name=\"per-group\"")
    });
    let (alice, bob) = (bearer(ALICE), bearer(BOB));
    let status =
        |pod: &str, path: &str, field: &str| ask_from(machine, pod, path, field)[9..12].to_owned();
    let statuses = [0; 3].map(|_| status("client/load", "/", &alice));
    assert_eq!(statuses, ["200", "200", "429"], "alice's group");
    // The first of this group was counted above.
    assert_eq!([0; 2].map(|_| status("client/load", "/", &bob)), ["200", "429"], "bob's group");
    let forged = format!("{}.AAAA", alice.rsplit_once('.').expect("a token").0);
    assert_eq!(status("client/load", "/", &forged), "401", "nobody counts what is not verified");
    for pod in ["client/load", "client/other"] {
        let statuses = [0; 3].map(|_| status(pod, "/who", ""));
        assert_eq!(statuses, ["200", "200", "429"], "{pod}");
    }
    assert_eq!(status("client/load", "/", ""), "200", "another path");
}

/// What a client in the mesh is answered.
pub(crate) fn ask(machine: &Machine, path: &str, field: &str) -> String {
    ask_from(machine, "client/load", path, field)
}

pub(crate) fn ask_from(machine: &Machine, pod: &str, path: &str, field: &str) -> String {
    let field = if field.is_empty() { String::new() } else { format!("{field}\\r\\n") };
    let request =
        format!("GET {path} HTTP/1.1\\r\\nHost: web.app\\r\\n{field}Connection: close\\r\\n");
    let script =
        format!("exec 3<>/dev/tcp/web.app/80 && printf '{request}\\r\\n' >&3 && timeout 5 cat <&3");
    machine.bash(pod, &script)
}

fn explained(machine: &Machine) {
    let request = ["--path", "/trial", "--header", "x-user: ann", "-o", "json"];
    let text = machine.run(&[&["why", "client/load", "app/web:80"], &request[..]].concat());
    let answer: serde_json::Value = serde_json::from_str(&text).expect("it prints JSON");
    let limits = answer["request"]["limits"].as_array().expect("limits");
    let named: Vec<&str> = limits.iter().filter_map(|it| it["limit"].as_str()).collect();
    assert_eq!(named, ["per-user", "trial"], "{answer}");
}

fn counted(machine: &Machine) {
    let metrics = machine.page("app/waypoint", "127.0.0.1/15020", "/metrics");
    for (rule, outcome, expected) in [("per-user", "refused", 5), ("trial", "shadow", 4)] {
        let labels = format!("rule=\"{rule}\",outcome=\"{outcome}\"");
        let labels = ["policy=\"app/limits\"", &labels];
        let counted = sum(&metrics, "ambit_rate_limited_total", &labels);
        assert_eq!(counted, expected, "{rule} in {metrics}");
    }
}
