//! The user's commands against a cluster: what they show, and what they find when it is broken.

use std::time::Instant;

use serde_json::Value;

use crate::cluster::{Cluster, MESH, until};

#[test]
fn a_healthy_cluster_is_found_healthy_and_shown() {
    let cluster = Cluster::alone();
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

/// One fault: how to cause it, its finding, and how to repair it.
struct Breakage<'a> {
    what: &'static str,
    /// The rule that finds it, the object that it must name, and a part of the remedy.
    rule: &'static str,
    names: &'static str,
    remedy: &'static str,
    break_it: Box<dyn Fn() + 'a>,
    mend: Box<dyn Fn() + 'a>,
}

impl Breakage<'_> {
    /// Whether it is found, as it should be.
    fn is_found(&self, cluster: &Cluster) -> bool {
        let found = findings(cluster, &["check"]);
        found.iter().any(|it| {
            let says = |field: &str, part: &str| it[field].as_str().unwrap_or("").contains(part);
            it["rule"] == self.rule && says("object", self.names) && says("remedy", self.remedy)
        })
    }

    /// Breaks the cluster, and mends it.
    fn play(&self, cluster: &Cluster) {
        let what = self.what;
        assert!(!self.is_found(cluster), "{what}: it is not broken yet");
        let start = Instant::now();
        (self.break_it)();
        until(&format!("ambit check finds {what}"), || self.is_found(cluster));
        (self.mend)();
        until(&format!("{what}: it is mended"), || !self.is_found(cluster));
        eprintln!("check | {what} | {} | {} s", self.rule, start.elapsed().as_secs());
    }
}

fn findings(cluster: &Cluster, words: &[&str]) -> Vec<Value> {
    let said = cluster.ambit(&[words, &["-o", "json"]].concat());
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}", said.err));
    report["findings"].as_array().unwrap().clone()
}

/// A breakage that is an object: made, and deleted again.
fn made<'a>(
    cluster: &'a Cluster,
    what: &'static str,
    (rule, names, remedy): (&'static str, &'static str, &'static str),
    manifest: &'static str,
) -> Breakage<'a> {
    let break_it = Box::new(|| cluster.must_apply(manifest));
    let mend = Box::new(|| cluster.remove(manifest));
    Breakage { what, rule, names, remedy, break_it, mend }
}

/// A breakage by kubectl, and its way back.
fn done<'a>(
    cluster: &'a Cluster,
    what: &'static str,
    (rule, names, remedy): (&'static str, &'static str, &'static str),
    words: &'static str,
    back: &'static str,
) -> Breakage<'a> {
    let run = |words: &str| drop(cluster.ask(&words.split_whitespace().collect::<Vec<_>>()));
    let (break_it, mend) = (Box::new(move || run(words)), Box::new(move || run(back)));
    Breakage { what, rule, names, remedy, break_it, mend }
}

/// A breakage that is an object that is gone: deleted, and made again.
fn gone<'a>(
    cluster: &'a Cluster,
    what: &'static str,
    (rule, names, remedy): (&'static str, &'static str, &'static str),
    object: &'static [&'static str],
) -> Breakage<'a> {
    let saved = cluster.ask(&[&["get", "-o", "json"], object].concat());
    let mut saved: Value = serde_json::from_str(&saved).unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
        saved["metadata"].as_object_mut().unwrap().remove(field);
    }
    saved.as_object_mut().unwrap().remove("status");
    let break_it = Box::new(move || drop(cluster.ask(&[&["delete"], object].concat())));
    let mend = Box::new(move || cluster.must_apply(&saved.to_string()));
    Breakage { what, rule, names, remedy, break_it, mend }
}

/// NetworkPolicies that do not go together with the mesh, in a namespace of a server and a client.
fn network_policies(cluster: &Cluster) -> Vec<Breakage<'_>> {
    vec![
        made(
            cluster,
            "a NetworkPolicy that closes the mesh's port",
            ("network-policy-hbone", "broken/narrow", "15008"),
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: narrow, \
             namespace: broken}\nspec: {podSelector: {matchLabels: {app: server}}, ingress: \
             [{ports: [{port: 8080}]}]}\n",
        ),
        made(
            cluster,
            "a NetworkPolicy that keeps clients from the mesh's port",
            ("network-policy-egress", "broken/out", "15008"),
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: out, \
             namespace: broken}\nspec: {podSelector: {matchLabels: {app: client}}, policyTypes: \
             [Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}], ports: [{port: \
             8080}]}]}\n",
        ),
        made(
            cluster,
            "a NetworkPolicy that joined connections pass by",
            ("network-policy-same-node", "broken/wide", "proxy.sameNode=encrypt"),
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: wide, \
             namespace: broken}\nspec: {podSelector: {}, ingress: [{}]}\n",
        ),
    ]
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn what_users_break_is_named() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("broken");
    namespace.run("server", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    namespace.run("client", "n1", &["sample", "sleep"]);
    namespace.enrol();
    until("all is well", || cluster.ambit(&["check"]).is_success);
    for breakage in network_policies(&cluster) {
        breakage.play(&cluster);
    }
    for breakage in [
        made(
            &cluster,
            "a Service that names a waypoint",
            ("waypoint", "broken/waypointed", "istio.io/use-waypoint"),
            "apiVersion: v1\nkind: Service\nmetadata: {name: waypointed, namespace: broken, \
             labels: {istio.io/use-waypoint: w}}\nspec: {ports: [{port: 1}]}\n",
        ),
        made(
            &cluster,
            "a policy that cannot be enforced as written",
            ("policy-not-accepted", "broken/l7", "ambit get policies"),
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: l7, \
             namespace: broken}\nspec: {rules: [{to: [{operation: {methods: [GET]}}]}]}\n",
        ),
        made(
            &cluster,
            "a control plane of Istio's beside ours",
            ("istio-running", "broken/istiod-old", ""),
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: istiod-old, namespace: \
             broken, labels: {app: istiod}}\nspec: {replicas: 0, selector: {matchLabels: {app: \
             old}}, template: {metadata: {labels: {app: old}}, spec: {containers: [{name: \
             discovery, image: istio/pilot:1.28.0}]}}}\n",
        ),
        done(
            &cluster,
            "a namespace that asks for sidecars too",
            ("injection-label", "Namespace broken", "istio-injection-"),
            "label namespace broken istio-injection=enabled",
            "label namespace broken istio-injection-",
        ),
        done(
            &cluster,
            "pod security that forbids the node's parts",
            ("pod-security", "istio-system", "enforce=privileged"),
            "label namespace istio-system pod-security.kubernetes.io/enforce=baseline",
            "label namespace istio-system pod-security.kubernetes.io/enforce-",
        ),
        done(
            &cluster,
            "a taint that stays",
            ("taint-left", "Node n2", "kubectl taint node n2"),
            "taint node n2 cni.istio.io/not-ready=:NoSchedule",
            "taint node n2 cni.istio.io/not-ready-",
        ),
    ] {
        breakage.play(&cluster);
    }
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn what_is_broken_of_ambit_is_named() {
    let cluster = Cluster::alone();
    until("all is well", || cluster.ambit(&["check"]).is_success);
    for breakage in [
        gone(
            &cluster,
            "an admission policy without its binding",
            ("admission-unbound", "ambit-refuse-istio-system", "chart"),
            &["validatingadmissionpolicybinding", "ambit-refuse-istio-system"],
        ),
        gone(
            &cluster,
            "a definition that is gone",
            ("no-definition", "workloadentries.networking.istio.io", "crds/"),
            &["crd", "workloadentries.networking.istio.io"],
        ),
        gone(
            &cluster,
            "agents without permissions",
            ("part-permissions", "istio-system/istio-cni", "helm upgrade"),
            &["clusterrolebinding", "istio-cni-istio-system"],
        ),
        gone(
            &cluster,
            "a control plane without permissions",
            ("part-permissions", "istio-system/istiod", "helm upgrade"),
            &["clusterrolebinding", "istiod-istio-system"],
        ),
        done(
            &cluster,
            "proxies whose image does not exist",
            ("container-waits", "istio-system/ztunnel-", "image.repository"),
            "-n istio-system set image daemonset/ztunnel istio-proxy=registry.local/ambit:none",
            "-n istio-system rollout undo daemonset/ztunnel",
        ),
        Breakage {
            what: "a node without a CNI configuration",
            rule: "node-not-ready",
            names: "Node n2",
            remedy: "cniConfDir",
            break_it: Box::new(|| move_conflist(&cluster, "10-bridge.conflist", "away")),
            mend: Box::new(|| move_conflist(&cluster, "away", "10-bridge.conflist")),
        },
    ] {
        breakage.play(&cluster);
    }
    for part in ["daemonset/ztunnel", "daemonset/istio-cni-node"] {
        cluster.await_rollout(MESH, part);
    }
    until("all is well again", || cluster.ambit(&["check"]).is_success);
}

fn move_conflist(cluster: &Cluster, from: &str, to: &str) {
    let script = format!("cd /etc/cni/net.d && mv {from} {to}");
    let said = cluster.on_node("n2", &["sh", "-c", &script]);
    assert!(said.is_success, "{}", said.err);
}

#[test]
#[ignore = "for a release: cargo xtask e2e kubernetes --deep"]
fn a_part_that_is_away_is_named_and_what_that_does_to_pods() {
    let cluster = Cluster::alone();
    let namespace = cluster.namespace("partless");
    namespace.run("early", "n2", &["sample", "echo", "--listen", "[::]:8080"]);
    until("all is well", || cluster.ambit(&["check"]).is_success);
    let nowhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}"#;
    let back = r#"{"spec":{"template":{"spec":{"nodeSelector":{"no":null}}}}}"#;
    let patch = |fields: &'static str| {
        cluster.ask(&["-n", MESH, "patch", "daemonset", "istio-cni-node", "-p", fields]);
    };
    let breakage = Breakage {
        what: "nodes without an agent",
        rule: "no-agent",
        names: "Node n1, n2",
        remedy: "node selector",
        break_it: Box::new(|| patch(nowhere)),
        mend: Box::new(|| {
            // Meanwhile pods that are labelled stay out, and pods that start cannot.
            let label = ["label", "namespace", "partless", "istio.io/dataplane-mode=ambient"];
            cluster.ask(&label);
            cluster.must_apply(LATE);
            for (rule, app) in [("not-captured", "early"), ("not-started", "late")] {
                until(&format!("ambit check finds {app} {rule}"), || {
                    let is_it = |it: &Value| {
                        it["rule"] == rule && it["object"].as_str().unwrap().contains(app)
                    };
                    findings(&cluster, &["check"]).iter().any(is_it)
                });
            }
            patch(back);
        }),
    };
    breakage.play(&cluster);
    cluster.await_rollout(MESH, "daemonset/istio-cni-node");
    until("both pods are captured", || {
        namespace.is_captured("early") && namespace.is_captured("late")
    });

    cluster.scale(MESH, "istiod", 0);
    let said = |words: &[&str]| {
        let found = findings(&cluster, &["check"]);
        let rules: Vec<&str> = found.iter().filter_map(|it| it["rule"].as_str()).collect();
        words.iter().all(|word| rules.contains(word))
    };
    until("ambit check misses the control plane", || said(&["control-not-ready"]));
    // Nobody is there to put these right.
    cluster.ask(&["-n", MESH, "delete", "lease", "ambit-control"]);
    cluster.ask(&["-n", "partless", "delete", "configmap", "istio-ca-root-cert"]);
    until("ambit check misses the leader and the root", || said(&["no-leader", "no-root"]));
    cluster.ask(&[
        "-n",
        "partless",
        "create",
        "configmap",
        "istio-ca-root-cert",
        "--from-literal=root-cert.pem=another",
    ]);
    until("ambit check finds the other root", || said(&["root-differs"]));
    cluster.scale(MESH, "istiod", 2);
    until("all is well again", || cluster.ambit(&["check"]).is_success);
}

/// A pod that is born while no agent is there.
const LATE: &str = "apiVersion: v1
kind: Pod
metadata: {name: late, namespace: partless, labels: {app: late}}
spec:
  nodeName: n2
  containers:
  - {name: app, image: registry.local/ambit:test, imagePullPolicy: Never, args: [sample, sleep]}
";

#[test]
fn who_may_not_install_is_told_so_before() {
    let cluster = Cluster::open();
    let namespace = cluster.namespace("installer");
    cluster.ask(&["-n", namespace.name, "create", "serviceaccount", "nobody"]);
    let token = cluster.ask(&["-n", namespace.name, "create", "token", "nobody"]);
    let kubeconfig = cluster.kubeconfig_of(token.trim());
    let said = cluster.ambit_as(&kubeconfig, &["check", "--pre"]);
    assert!(!said.is_success, "{}", said.out);
    for part in ["may not create", "daemonsets.apps", "cluster-admin", "[permissions]"] {
        assert!(said.out.contains(part), "{part}: {}{}", said.out, said.err);
    }
    // A user without permission learns what was not checked, and nothing counts as healthy.
    assert!(said.out.contains("[not-looked-at]"), "{}", said.out);
    std::fs::remove_file(kubeconfig).unwrap();
}
