//! What the chart installs: every part is ready, and what must be refused is refused.

use crate::cluster::{Cluster, MESH};

#[test]
fn every_part_of_the_chart_becomes_ready() {
    let cluster = Cluster::open();
    for part in ["deployment/istiod", "daemonset/istio-cni-node", "daemonset/ztunnel"] {
        cluster.await_rollout(MESH, part);
    }
    let nodes = cluster.ask(&["get", "nodes", "-o", "name"]).lines().count();
    for app in ["istio-cni-node", "ztunnel"] {
        assert_eq!(cluster.pods(MESH, &format!("app={app}")).len(), nodes, "{app} on every node");
    }
}

#[test]
fn policies_that_would_not_do_what_they_say_are_refused() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("refused");
    let check = |spec: &str, expected: Result<&str, &str>| {
        let said = cluster.apply(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: tried, namespace: {}}}\nspec: {spec}\n",
            namespace.name
        ));
        let (is_success, part) = (expected.is_ok(), expected.unwrap_or_else(|part| part));
        assert_eq!(said.is_success, is_success, "{spec}: {}{}", said.out, said.err);
        assert!(said.err.contains(part), "{spec}: {}{}", said.out, said.err);
    };
    let to = |field: &str| format!("rules: [{{to: [{{operation: {{{field}}}}}]}}]");
    let ports = to("ports: ['80']");
    let (methods, hosts) = (to("methods: [GET]"), to("hosts: [x]"));
    let target = "targetRefs: [{kind: Service, name: x}]";
    let method_denied = format!("{{action: DENY, {methods}}}");
    check(&method_denied, Err("a DENY with conditions on layer 7"));
    let key = "{action: DENY, rules: [{when: [{key: 'request.headers[x]', values: [z]}]}]}";
    check(key, Err("a DENY with conditions on layer 7"));
    check(&format!("{{action: DENY, {target}, {ports}}}"), Err("no waypoints"));
    check(&format!("{{action: CUSTOM, provider: {{name: x}}, {ports}}}"), Err("authoriser"));
    check(&format!("{{action: DENY, provider: {{name: x}}, {ports}}}"), Err("CUSTOM alone"));
    check(&format!("{{{target}, selector: {{matchLabels: {{a: b}}}}}}"), Err("only one of"));
    check(&to("ports: [http]").replace("rules", "{rules").replace("}]}]", "}]}]}"), Err("ports"));
    check(&format!("{{action: DENY, {ports}}}"), Ok(""));
    check(&format!("{{action: ALLOW, {hosts}}}"), Ok("never matches at layer 4"));
    check("{}", Ok(""));
}
