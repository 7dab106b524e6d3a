//! A waypoint in the cluster: it is made for its Gateway, routes and judges requests between nodes,
//! and the objects say in their status what became of them.

use serde_json::Value;

use crate::cluster::{Cluster, Namespace, until};

const GATEWAY: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: routed}
spec:
  gatewayClassName: ambit-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";
/// Nobody listens in `web`'s own pods: what answers is the backend.
const ROUTE: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: routed}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 8080}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: example.com, statusCode: 302}}]
  - matches: [{path: {type: PathPrefix, value: /web}}]
    backendRefs: [{name: backend, port: 8080}]
";
const POLICY: &str = "\
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: routed}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: ['/web/admin*']}}]}]
";
const REQUESTS: u32 = 10;

/// The status of the condition of an object, or nothing.
fn condition(cluster: &Cluster, object: &str, list: &str, kind: &str) -> String {
    let text = cluster.ask(&["-n", "routed", "get", object, "-o", "json"]);
    let object: Value = serde_json::from_str(&text).unwrap();
    let conditions = object.pointer(list).and_then(Value::as_array).cloned().unwrap_or_default();
    let named = conditions.iter().find(|it| it["type"] == kind);
    named.and_then(|it| it["status"].as_str()).unwrap_or_default().to_owned()
}

fn await_condition(cluster: &Cluster, object: &str, list: &str, kind: &str) {
    until(&format!("{object} has {kind}"), || condition(cluster, object, list, kind) == "True");
}

/// Waits until all requests for a path are answered with this status.
fn await_status(namespace: &Namespace<'_>, path: &str, status: u16) {
    let url = format!("http://web:8080{path}");
    until(&format!("{path} is answered with {status}"), || {
        let report = namespace.load("client", &url, REQUESTS);
        report.status_codes.get(&status) == Some(&u64::from(REQUESTS))
    });
}

#[test]
fn a_waypoint_routes_and_judges_requests_between_nodes() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("routed");
    namespace.run("web", "n2", &["sample", "sleep"]);
    namespace.run("backend", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    namespace.enrol();
    cluster.must_apply(GATEWAY);
    await_condition(&cluster, "gateway/waypoint", "/status/conditions", "Programmed");
    cluster.ask(&["label", "namespace", "routed", "istio.io/use-waypoint=waypoint"]);
    cluster.must_apply(ROUTE);
    cluster.must_apply(POLICY);
    for (path, status) in [("/web", 200), ("/moved", 302), ("/other", 404), ("/web/admin", 403)] {
        await_status(&namespace, path, status);
    }
    let of_route = "/status/parents/0/conditions";
    await_condition(&cluster, "service/web", "/status/conditions", "istio.io/WaypointBound");
    await_condition(&cluster, "httproute/web", of_route, "Accepted");
    await_condition(&cluster, "httproute/web", of_route, "ResolvedRefs");
    await_condition(&cluster, "httproute/web", of_route, "ResolvedWaypoints");
    let policy = "authorizationpolicy/no-admin";
    await_condition(&cluster, policy, "/status/conditions", "WaypointAccepted");
    patched(&cluster);
    // With other pods of the waypoint requests pass as before.
    await_status(&namespace, "/web", 200);
    // The Gateway goes, and what was made for it; nothing is sent around it.
    cluster.remove(GATEWAY);
    until("the waypoint's pods are gone", || {
        cluster.pods("routed", "gateway.networking.k8s.io/gateway-name=waypoint").is_empty()
    });
    let report = namespace.load("client", "http://backend:8080/", REQUESTS);
    assert_eq!(report.failed, u64::from(REQUESTS), "{report:?}");
    let list = "/status/conditions";
    until("the Service says so", || {
        condition(&cluster, "service/web", list, "istio.io/WaypointBound") == "False"
    });
}

/// What a ConfigMap says of the waypoint's pods holds; what it must not say is told.
fn patched(cluster: &Cluster) {
    let config_map = |patch: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: parameters, namespace: routed}}\n\
             data:\n  deployment: '{patch}'\n"
        )
    };
    let named =
        "  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: parameters}}\n";
    cluster.must_apply(&config_map("spec: {replicas: 2}"));
    cluster.must_apply(&format!("{GATEWAY}{named}"));
    let replicas = || cluster.ask(&["-n", "routed", "get", "deployment/waypoint", "-o", "json"]);
    until("the waypoint has two replicas", || {
        let deployment: Value = serde_json::from_str(&replicas()).unwrap();
        deployment["spec"]["replicas"] == 2
    });
    cluster.must_apply(&config_map("metadata: {name: other}"));
    let list = "/status/conditions";
    until("the Gateway says what is wrong", || {
        condition(cluster, "gateway/waypoint", list, "Accepted") == "False"
    });
    cluster.must_apply(&config_map("spec: {replicas: 1}"));
    await_condition(cluster, "gateway/waypoint", list, "Accepted");
}
