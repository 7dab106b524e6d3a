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

#[test]
fn requests_beyond_a_limit_are_refused() {
    let machine = Machine::up("rate-limits", Mesh::On, &[]);
    let words = "waypoint apply -n app --enroll-namespace --wait";
    machine.run(&words.split(' ').collect::<Vec<_>>());
    machine.wait("requests pass the waypoint", SETTLE_TIMEOUT, || {
        ask(&machine, "/", "").starts_with("HTTP/1.1 200")
    });
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
    machine.down();
}

/// What a client in the mesh is answered.
pub(crate) fn ask(machine: &Machine, path: &str, field: &str) -> String {
    let field = if field.is_empty() { String::new() } else { format!("{field}\\r\\n") };
    let request =
        format!("GET {path} HTTP/1.1\\r\\nHost: web.app\\r\\n{field}Connection: close\\r\\n");
    let script =
        format!("exec 3<>/dev/tcp/web.app/80 && printf '{request}\\r\\n' >&3 && timeout 5 cat <&3");
    machine.bash("client/load", &script)
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
    let script = "exec 3<>/dev/tcp/127.0.0.1/15020 && \
                  printf 'GET /metrics HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' >&3 && timeout 5 cat <&3";
    let metrics = machine.bash("app/waypoint", script);
    for (rule, outcome, expected) in [("per-user", "refused", 5), ("trial", "shadow", 4)] {
        let labels = format!("rule=\"{rule}\",outcome=\"{outcome}\"");
        let labels = ["policy=\"app/limits\"", &labels];
        let counted = sum(&metrics, "ambit_rate_limited_total", &labels);
        assert_eq!(counted, expected, "{rule} in {metrics}");
    }
}
