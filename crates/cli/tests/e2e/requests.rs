//! Requests through a waypoint on one machine: routed, judged, counted, and never around it.

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, other_program};

const ROUTE: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: app}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /a}}]
    filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {add: [{name: x-route, value: a}]}
    backendRefs: [{name: web, port: 80}]
  - matches: [{path: {type: Exact, value: /gone}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {hostname: elsewhere, statusCode: 301}
";

const READ_ONLY: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: read-only, namespace: app}
spec:
  targetRefs: [{kind: Service, group: '', name: web}]
  action: ALLOW
  rules: [{to: [{operation: {methods: [GET], paths: ['/a*']}}]}]
";

#[test]
fn requests_are_routed_and_judged() {
    let machine = Machine::up("requests", Mesh::On, &[]);
    enrolled(&machine);
    bytes_pass(&machine);
    routed(&machine);
    judged(&machine);
    explained(&machine);
    counted(&machine);
    nothing_goes_around(&machine);
    machine.down();
}

/// The node proxies on both sides of the waypoint are real ztunnels.
#[test]
#[ignore = "needs a program that AMBIT_ZTUNNEL names"]
fn requests_are_routed_and_judged_between_ztunnels() {
    let ztunnel = other_program("AMBIT_ZTUNNEL");
    let flags = [1, 2].map(|node| format!("--proxy=node-{node}={}", ztunnel.to_string_lossy()));
    let machine = Machine::up("requests-ztunnel", Mesh::On, &[&flags[0], &flags[1]]);
    enrolled(&machine);
    bytes_pass(&machine);
    routed(&machine);
    judged(&machine);
    counted(&machine);
    machine.down();
}

/// The namespace of the servers uses a waypoint from now on.
fn enrolled(machine: &Machine) {
    machine.put_behind_waypoint(|| get(machine, "GET", "/").starts_with("HTTP/1.1 200"));
}

/// What a client in the mesh is answered.
pub(crate) fn get(machine: &Machine, method: &str, path: &str) -> String {
    let request =
        format!("{method} {path} HTTP/1.1\\r\\nHost: web.app\\r\\nConnection: close\\r\\n\\r\\n");
    let script =
        format!("exec 3<>/dev/tcp/web.app/80 && printf '{request}' >&3 && timeout 5 cat <&3");
    machine.bash("client/load", &script)
}

/// What speaks first is no HTTP, and passes.
fn bytes_pass(machine: &Machine) {
    let script = "exec 3<>/dev/tcp/banner.app/9001 && timeout 5 head -1 <&3";
    let said = machine.bash("client/load", script);
    assert!(said.contains("220 speaks first"), "{said}");
}

fn routed(machine: &Machine) {
    machine.apply(ROUTE);
    machine.wait("the route holds", SETTLE_TIMEOUT, || {
        get(machine, "GET", "/a/b").contains("x-route: a")
    });
    let answer = get(machine, "GET", "/other");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert!(answer.contains("x-ambit-reason: no_route"), "{answer}");
    let answer = get(machine, "GET", "/gone");
    assert!(answer.starts_with("HTTP/1.1 301"), "{answer}");
    assert!(answer.contains("location: http://elsewhere/gone"), "{answer}");
}

fn judged(machine: &Machine) {
    machine.apply(READ_ONLY);
    machine.wait("the policy holds", SETTLE_TIMEOUT, || {
        get(machine, "POST", "/a").starts_with("HTTP/1.1 403")
    });
    assert!(machine.ambit(&["status"]).status.success(), "the waypoint enforces it as written");
    let denied = get(machine, "DELETE", "/a");
    assert!(denied.ends_with("RBAC: access denied"), "{denied}");
    assert!(denied.contains("x-ambit-reason: denied"), "{denied}");
    let allowed = get(machine, "GET", "/a");
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
    for way in ["/./a/../b", "/b/%2e%2e/c", "/A"] {
        let answer = get(machine, "GET", way);
        assert!(answer.starts_with("HTTP/1.1 40"), "{way}: {answer}");
    }
    // What is no HTTP cannot be a GET.
    let script = "exec 3<>/dev/tcp/web.app/80 && printf '\\x16\\x03\\x01' >&3; timeout 5 cat <&3";
    let said = machine.bash("client/load", script);
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
}

/// What the commands say is what happened above.
fn explained(machine: &Machine) {
    let why = |words: &str| {
        let all = format!("why client/load app/web:80 {words} -o json");
        let text = machine.run(&all.split(' ').collect::<Vec<_>>());
        serde_json::from_str::<serde_json::Value>(&text).expect("it prints JSON")
    };
    let allowed = why("--method GET --path /a/b");
    assert_eq!(allowed["decision"], "allow", "{allowed}");
    assert_eq!(allowed["policy"]["name"], "app/read-only", "{allowed}");
    let denied = why("--method DELETE --path /a");
    assert_eq!(denied["decision"], "deny", "{denied}");
    let nowhere = why("--method GET --path /other");
    assert_eq!(nowhere["request"]["status"], 404, "{nowhere}");
    let list = machine.run(&["get", "routes", "-n", "app"]);
    assert!(list.contains("web"), "{list}");
    let table = machine.run(&["routes", "app/web"]);
    assert!(table.contains("/gone") && table.contains("app/web"), "{table}");
}

fn counted(machine: &Machine) {
    let metrics = machine.page("app/waypoint", "127.0.0.1/15020", "/metrics");
    for labels in [
        ["reporter=\"waypoint\"", "response_code=\"403\"", "response_flags=\"UAEX\""],
        [
            "source_principal=\"spiffe://cluster.local/ns/client/sa/load\"",
            "response_code=\"200\"",
            "destination_service=\"web.app.svc.cluster.local\"",
        ],
    ] {
        let is_counted = metrics.lines().any(|line| {
            line.starts_with("istio_requests_total{") && labels.iter().all(|it| line.contains(it))
        });
        assert!(is_counted, "{labels:?} in {metrics}");
    }
}

/// Only the waypoint may connect to the pods, from when all proxies must have heard of it.
pub(crate) fn nothing_goes_around(machine: &Machine) {
    let server = machine.pod_ip("app", "server", false);
    let script = format!(
        "exec 3<>/dev/tcp/{server}/8080 && \
         printf 'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' >&3 && timeout 5 cat <&3"
    );
    for pod in ["client/load", "outside/stranger"] {
        let is_refused = || !machine.bash(pod, &script).contains("HTTP/1.1 200");
        machine.wait("nothing comes past the waypoint", SETTLE_TIMEOUT, is_refused);
        assert!(is_refused(), "{pod}");
    }
}
