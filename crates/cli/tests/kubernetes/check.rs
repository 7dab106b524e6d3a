//! The user's commands against a cluster: what they show, and what they find when it is broken.

use crate::cluster::{Cluster, MESH, until};

#[test]
fn a_healthy_cluster_is_found_healthy_and_shown() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("shown");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    namespace.enrol();
    assert_eq!(namespace.load("client", "http://server:8080/", 10).failed, 0);
    for (words, expected) in [
        (&["get", "pods", "-n", "shown"][..], "yes"),
        (&["get", "workloads", "-n", "shown"], "HBONE"),
        (&["get", "certificates"], "spiffe://cluster.local/ns/shown/sa/client"),
        (&["get", "nodes"], "n2"),
        (&["status"], "all is well"),
    ] {
        until(&format!("ambit {words:?} says {expected}"), || {
            cluster.ambit(words).out.contains(expected)
        });
    }
    let pod = cluster.pods("shown", "app=client");
    let pod = format!("shown/{}", pod[0]["metadata"]["name"].as_str().unwrap());
    let said = cluster.ambit(&["why", &pod, "shown/server:8080"]);
    assert!(said.out.contains("HBONE with mutual TLS"), "{}{}", said.out, said.err);
    let said = cluster.ambit(&["check"]);
    assert!(said.is_success, "{}{}", said.out, said.err);
}

#[test]
fn what_is_broken_is_named() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("broken");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.enrol();
    let check = |what: &str, manifest: &str, expected: &[&str]| {
        cluster.must_apply(manifest);
        until(&format!("ambit check finds {what}"), || {
            let said = cluster.ambit(&["check"]);
            expected.iter().all(|part| said.out.contains(part) || said.err.contains(part))
        });
        cluster.remove(manifest);
    };
    check(
        "a NetworkPolicy in the way",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {name: narrow, namespace: broken}\nspec: {podSelector: {matchLabels: {app: \
         server}}, ingress: [{ports: [{port: 8080}]}]}\n",
        &["broken/narrow", "15008"],
    );
    check(
        "a Service that names a waypoint",
        "apiVersion: v1\nkind: Service\nmetadata: {name: waypointed, namespace: broken, labels: \
         {istio.io/use-waypoint: w}}\nspec: {ports: [{port: 1}]}\n",
        &["broken/waypointed", "waypoint"],
    );
    check(
        "a policy that cannot be enforced as written",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: l7, \
         namespace: broken}\nspec: {rules: [{to: [{operation: {methods: [GET]}}]}]}\n",
        &["broken/l7"],
    );
    cluster.scale(MESH, "istiod", 0);
    until("ambit check misses the control plane", || {
        let said = cluster.ambit(&["check"]);
        !said.is_success && said.out.contains("istiod")
    });
    cluster.scale(MESH, "istiod", 2);
    until("all is well again", || cluster.ambit(&["check"]).is_success);
}
