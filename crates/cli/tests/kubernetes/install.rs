//! What the chart installs: every part is ready, and what must be refused is refused.

use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::{Cluster, MESH, must, until};

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
    check(&format!("{{action: DENY, {target}, {methods}}}"), Ok(""));
    check(&format!("{{action: CUSTOM, provider: {{name: x}}, {ports}}}"), Err("authoriser"));
    check(&format!("{{action: CUSTOM, provider: {{name: x}}, {target}, {ports}}}"), Ok(""));
    check(&format!("{{action: DENY, provider: {{name: x}}, {ports}}}"), Err("CUSTOM alone"));
    check(&format!("{{{target}, selector: {{matchLabels: {{a: b}}}}}}"), Err("only one of"));
    check(&to("ports: [http]").replace("rules", "{rules").replace("}]}]", "}]}]}"), Err("ports"));
    check(&format!("{{action: DENY, {ports}}}"), Ok(""));
    let never = Ok("never matches at a node proxy");
    check(&format!("{{action: ALLOW, {hosts}}}"), never);
    check("{rules: [{from: [{source: {requestPrincipals: ['*']}}]}]}", never);
    check("{rules: [{when: [{key: 'request.headers[x]', values: [z]}]}]}", never);
    check("{}", Ok(""));
}

/// A policy on trial may say what it likes; it is looked at when the trial ends, however that is.
#[test]
fn a_trial_does_not_end_with_a_policy_that_would_have_been_refused() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("trial");
    let apply = |annotations: &str, spec: &str| {
        cluster.apply(&format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: tried, namespace: {}, annotations: {annotations}}}\nspec: {spec}\n",
            namespace.name
        ))
    };
    let trial = "{istio.io/dry-run: 'true'}";
    let get = "{action: DENY, rules: [{to: [{operation: {methods: [GET]}}]}]}";
    must(&apply(trial, get));
    must(&apply("{istio.io/dry-run: 'true', note: a}", get));
    let policy = ["-n", namespace.name, "annotate", "authorizationpolicy", "tried"];
    for end in [&["istio.io/dry-run-"][..], &["--overwrite", "istio.io/dry-run=false"]] {
        let said = cluster.kubectl(&[&policy[..], end].concat());
        assert!(!said.is_success, "{}", said.out);
        assert!(said.err.contains("a DENY with conditions on layer 7"), "{}", said.err);
    }
    let said = apply("{}", get);
    assert!(said.err.contains("a DENY with conditions on layer 7"), "{}{}", said.out, said.err);
    must(&apply("{}", "{action: DENY, rules: [{to: [{operation: {ports: ['80']}}]}]}"));
}

/// The companions of NetworkPolicies: made as they are asked for, and enough for `ambit check`. The
/// test cluster's network enforces none of them.
#[test]
fn a_companion_opens_the_meshs_port_to_the_same_clients() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("companion");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.enrol();
    cluster.must_apply(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: narrow, \
         namespace: companion}\nspec: {podSelector: {matchLabels: {app: server}}, ingress: \
         [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 8080}]}]}\n",
    );
    let is_named = || cluster.ambit(&["check"]).out.contains("[network-policy-hbone]");
    until("the policy in the way is named", is_named);
    let upgrade = |companions: &str| {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart");
        let chart = chart.display().to_string();
        let set = format!("networkPolicies={companions}");
        let words = ["upgrade", "ambit", &chart, "-n", MESH, "--reuse-values", "--set-json", &set];
        cluster.helm(&words)
    };
    let said = upgrade(
        r#"[{"namespace": "companion", "podSelector": {"matchLabels": {"app": "server"}},
            "from": [{"podSelector": {"matchLabels": {"app": "client"}}}]},
            {"namespace": "companion", "podSelector": {"matchLabels": {"app": "client"}},
            "to": []}]"#,
    );
    assert!(said.is_success, "{}{}", said.out, said.err);
    let spec = |name: &str| {
        let made = cluster.ask(&["-n", "companion", "get", "netpol", name, "-o", "json"]);
        serde_json::from_str::<Value>(&made).unwrap()["spec"].clone()
    };
    let expected = json!({
        "podSelector": {"matchLabels": {"app": "server"}},
        "policyTypes": ["Ingress"],
        "ingress": [{
            "from": [{"podSelector": {"matchLabels": {"app": "client"}}}],
            "ports": [{"protocol": "TCP", "port": 15008}],
        }],
    });
    assert_eq!(spec("ambit-hbone-0"), expected);
    let expected = json!({
        "podSelector": {"matchLabels": {"app": "client"}},
        "policyTypes": ["Egress"],
        "egress": [{"ports": [{"protocol": "TCP", "port": 15008}]}],
    });
    assert_eq!(spec("ambit-hbone-1"), expected);
    until("nothing is in the way", || !is_named());
    // What is no such companion is an error, and nothing changes.
    let said = upgrade(r#"[{"namespace": "companion", "podSelector": {}}]"#);
    assert!(!said.is_success && said.err.contains("from"), "{}", said.err);
    let said = upgrade("[]");
    assert!(said.is_success, "{}{}", said.out, said.err);
    until("the companion is gone", || {
        !cluster.kubectl(&["-n", "companion", "get", "netpol", "ambit-hbone-0"]).is_success
    });
}
