//! Each fault of a cluster is found, named and distinguished: a healthy cluster, one fault, and the
//! findings.

mod cluster;

use ambit_wire::admin::{CertificateState, FailingPod, Finding, NotAccepted, Status};
use serde_json::{Value, json};

use self::cluster::{Cluster, NOW, object, pod};
use super::Severity::{self, Error, Info, Warning};
use super::findings;
use crate::Facts;
use crate::facts::Stage;
use crate::json::namespace;

fn policy(name: &str, ingress: Value) -> Value {
    object(
        "NetworkPolicy",
        "app",
        name,
        json!({"podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress"], "ingress": ingress}),
    )
}

fn egress(name: &str, rules: Value) -> Value {
    let spec = json!({"podSelector": {"matchLabels": {"app": "client"}},
        "policyTypes": ["Egress"], "egress": rules});
    object("NetworkPolicy", "app", name, spec)
}

/// Has the proxies say how they connect pods of one node.
fn same_node(cluster: &mut Cluster, values: &[&str]) {
    let variables: Vec<Value> =
        values.iter().map(|it| json!({"name": "AMBIT_SAME_NODE", "value": it})).collect();
    let template = &mut cluster.the("DaemonSet", "ztunnel")["spec"]["template"];
    template["spec"]["containers"][0]["env"] = json!(variables);
}

fn encrypt(cluster: &mut Cluster) {
    same_node(cluster, &["encrypt"]);
}

/// What is found: severity, rule, and a part of the line that is printed.
type Expected<'a> = &'a [(Severity, &'a str, &'a str)];

/// Breaks a healthy cluster and compares what is found, in any order. What is only worth knowing
/// is compared where something of the kind is expected.
fn check(stage: Stage, break_it: impl FnOnce(&mut Cluster), expected: Expected) {
    let mut cluster = Cluster::healthy();
    break_it(&mut cluster);
    let mut found = findings(&cluster.facts(stage));
    if !expected.iter().any(|(severity, _, _)| *severity == Info) {
        found.retain(|finding| finding.severity != Info);
    }
    for (severity, rule, part) in expected {
        let at = found.iter().position(|it| {
            (it.severity, it.rule) == (*severity, *rule) && it.to_string().contains(part)
        });
        match at {
            Some(at) => drop(found.remove(at)),
            None => panic!("{rule} with {part:?} is not among {found:#?}"),
        }
    }
    assert!(found.is_empty(), "found beside {expected:?}: {found:#?}");
}

fn before(break_it: impl FnOnce(&mut Cluster), expected: Expected) {
    // The parts of a running mesh are no conflict with themselves.
    check(Stage::Before, break_it, expected);
}

fn running(break_it: impl FnOnce(&mut Cluster), expected: Expected) {
    check(Stage::Running, break_it, expected);
}

#[test]
fn a_healthy_cluster_is_healthy() {
    before(|_| {}, &[]);
    running(|_| {}, &[]);
    before(|_| {}, &[(Info, "cni-plugin", "kindnet")]);
}

#[test]
fn what_the_cluster_stands_on() {
    let old = |it: &mut Cluster| {
        it.version = json!({"major": "1", "minor": "29", "gitVersion": "v1.29.4"});
    };
    before(old, &[(Error, "kubernetes-version", "upgrade to 1.30")]);
    let info = |field: &'static str, value: &'static str| {
        move |it: &mut Cluster| it.the("Node", "n2")["status"]["nodeInfo"][field] = json!(value)
    };
    before(info("kernelVersion", "4.18.0-553.el8"), &[(Error, "kernel-too-old", "n2 (4.18")]);
    before(info("kernelVersion", "5.10.0-28"), &[(Warning, "kernel-cuts-upgrades", "n2 (5.10")]);
    before(info("architecture", "s390x"), &[(Error, "architecture", "n2 (s390x)")]);
    before(
        info("containerRuntimeVersion", "docker://27.1"),
        &[(Warning, "container-runtime", "n2 (docker://27.1)")],
    );
    let denied = |it: &mut Cluster| it.denied = vec!["clusterroles", "daemonsets"];
    before(denied, &[(Error, "permissions", "create clusterroles, daemonsets")]);
    let restricted = |it: &mut Cluster| {
        let level = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        it.the("Namespace", "istio-system")["metadata"]["labels"] = level;
    };
    before(restricted, &[(Error, "pod-security", "enforce=privileged")]);
}

#[test]
fn networks_that_get_in_the_way() {
    let cilium = |data: Value| move |it: &mut Cluster| it.cilium = Some(json!({"data": data}));
    let well = json!({"cni-exclusive": "false", "kube-proxy-replacement": "true",
        "bpf-lb-sock-hostns-only": "true"});
    before(cilium(well), &[]);
    before(
        cilium(json!({"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"})),
        &[
            (Error, "cilium-exclusive", "cni.exclusive=false"),
            (Error, "cilium-socket-lb", "socketLB.hostNamespaceOnly=true"),
            (Warning, "cilium-masquerade", "bpf.masquerade=false"),
        ],
    );
    let eni = |it: &mut Cluster| {
        it.objects.push(object(
            "DaemonSet",
            "kube-system",
            "aws-node",
            json!({"template": {"spec":
            {"containers": [{"env": [{"name": "ENABLE_POD_ENI", "value": "true"}]}]}}}),
        ));
    };
    before(eni, &[(Warning, "aws-pod-eni", "POD_SECURITY_GROUP_ENFORCING_MODE=standard")]);
}

#[test]
fn policies_that_close_the_port_of_the_mesh() {
    let add = |policies: Vec<Value>| {
        move |it: &mut Cluster| {
            encrypt(it);
            it.objects.extend(policies);
        }
    };
    let client = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
    let http = json!([{"port": 8080}]);
    let closed = (Error, "network-policy-hbone", "NetworkPolicy app/web: lets");
    let unprobed = (Warning, "network-policy-probes", "169.254.7.127");
    let of_client = policy("web", json!([{"from": client, "ports": http}]));
    let probes = policy(
        "probes",
        json!([{"from": [{"ipBlock": {"cidr": "169.254.7.127/32"}}],
        "ports": [{"port": "http"}]}]),
    );
    let hbone = |from: Value| policy("mesh", json!([{"from": from, "ports": [{"port": 15008}]}]));

    before(add(vec![of_client.clone()]), &[closed, unprobed]);
    // The kubelet's probes do not come through the mesh, but its rule is one of the pod's too.
    let probes_closed = (Error, "network-policy-hbone", "NetworkPolicy app/probes");
    before(add(vec![of_client.clone(), probes.clone()]), &[closed, probes_closed]);
    // Any policy of the pod may let the port in, for those whom the other lets in.
    before(add(vec![of_client.clone(), hbone(client.clone())]), &[unprobed, unprobed]);
    before(add(vec![of_client.clone(), probes, hbone(json!([]))]), &[]);
    let other = json!([{"podSelector": {"matchLabels": {"app": "other"}}}]);
    before(add(vec![of_client, hbone(other)]), &[closed, unprobed, unprobed]);

    let check_ports = |ports: Value, expected: Expected| {
        before(add(vec![policy("web", json!([{"ports": ports}]))]), expected);
    };
    check_ports(json!([]), &[]);
    check_ports(json!([{"port": 8080, "endPort": 16000}]), &[]);
    check_ports(json!([{"protocol": "UDP", "port": 53}]), &[unprobed]);
    check_ports(json!([{"port": "http"}]), &[(Error, "network-policy-hbone", "anybody")]);
    // To let nobody in is no mistake of the mesh's, but probes fail that passed before.
    before(add(vec![policy("none", json!([]))]), &[unprobed]);
    let outside = |it: &mut Cluster| {
        it.the("Namespace", "app")["metadata"]["labels"] = json!({});
        it.objects.push(policy("web", json!([{"ports": [{"port": 8080}]}])));
    };
    before(outside, &[]);
}

#[test]
fn policies_that_keep_clients_from_the_port_of_the_mesh() {
    // A client beside the server.
    let add = |policies: Vec<Value>| {
        move |it: &mut Cluster| {
            encrypt(it);
            let mut client = pod("app", "client-1", "n2", json!({"containers": []}));
            client["metadata"]["labels"] = json!({"app": "client"});
            it.the("Pod", "web-1")["status"]["podIPs"] = json!([{"ip": "10.1.0.7"}]);
            it.objects.push(client);
            it.objects.extend(policies);
        }
    };
    let web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let to = |peers: &Value, ports: Value| json!([{"to": peers, "ports": ports}]);
    let http = json!([{"port": 8080}]);
    let narrow = || egress("web", to(&web, http.clone()));
    let none = || egress("none", json!([]));
    let closed = (Error, "network-policy-egress", "those of client-1 do not get there");

    before(add(vec![none()]), &[]);
    before(add(vec![none(), narrow()]), &[closed]);
    before(add(vec![egress("web", to(&web, json!([])))]), &[]);
    before(add(vec![egress("web", to(&web, json!([{"protocol": "UDP", "port": 53}])))]), &[]);
    // Any policy of the client may let it out, whatever words it has for the server.
    let check_companion = |peers: Value, expected: Expected| {
        let companion = egress("mesh", to(&peers, json!([{"port": 15008}])));
        before(add(vec![narrow(), companion]), expected);
    };
    check_companion(web.clone(), &[]);
    check_companion(json!([]), &[]);
    check_companion(json!([{"podSelector": {}}]), &[]);
    check_companion(json!([{"podSelector": {"matchLabels": {"app": "other"}}}]), &[closed]);
    let of_namespace = |mode: &str| {
        let labels = json!({"istio.io/dataplane-mode": mode});
        json!([{"namespaceSelector": {"matchLabels": labels}}])
    };
    check_companion(of_namespace("ambient"), &[]);
    check_companion(of_namespace("none"), &[closed]);
    let block = |cidr: &str, except: &str| json!([{"ipBlock": {"cidr": cidr, "except": [except]}}]);
    check_companion(block("10.0.0.0/8", "10.2.0.0/16"), &[]);
    check_companion(block("0.0.0.0/0", "169.254.169.254/32"), &[]);
    check_companion(block("0.0.0.0/0", "10.0.0.0/8"), &[closed]);
    check_companion(block("10.2.0.0/16", "10.2.3.0/24"), &[closed]);

    // Who names no pods may mean others at that port.
    let check_anybody = |port: u64, expected: Expected| {
        for peers in [json!([]), json!([{"namespaceSelector": {}}]), json!([{"podSelector": {}}])] {
            before(add(vec![egress("dns", to(&peers, json!([{"port": port}])))]), expected);
        }
    };
    check_anybody(53, &[]);
    check_anybody(8080, &[closed]);
    before(add(vec![egress("out", to(&block("10.0.0.0/8", "10.2.0.0/16"), http.clone()))]), &[]);
    // Another namespace's pods of the same labels.
    let elsewhere = json!([{"namespaceSelector": {"matchLabels": {"a": "b"}},
        "podSelector": {"matchLabels": {"app": "web"}}}]);
    before(add(vec![egress("web", to(&elsewhere, http.clone()))]), &[]);
}

#[test]
fn policies_that_joined_connections_pass_by() {
    let wide = || policy("wide", json!([{}]));
    let passed_by = (Warning, "network-policy-same-node", "NetworkPolicy app/wide: selects");
    let check_running = |values: &'static [&'static str], expected: Expected| {
        let with_policy = move |it: &mut Cluster| {
            same_node(it, values);
            it.objects.push(wide());
        };
        running(with_policy, expected);
    };
    check_running(&["join"], &[passed_by]);
    check_running(&[], &[passed_by]);
    check_running(&["encrypt"], &[]);
    check_running(&["join", "encrypt"], &[]);
    check_running(&["encrypt", "join"], &[passed_by]);
    let out = |it: &mut Cluster| {
        let mut policy = egress("wide", json!([{}]));
        policy["spec"]["podSelector"] = json!({});
        it.objects.push(policy);
    };
    running(out, &[(Warning, "network-policy-same-node", "proxy.sameNode=encrypt")]);
    let of_nobody = |it: &mut Cluster| it.objects.push(egress("web", json!([{}])));
    running(of_nobody, &[]);
    // Before there is a proxy, the chart's default counts.
    let nothing = |it: &mut Cluster| {
        it.objects.retain(|it| namespace(it) != "istio-system");
        it.objects.push(wide());
    };
    before(nothing, &[passed_by]);
    let outside = |it: &mut Cluster| {
        it.the("Namespace", "app")["metadata"]["labels"] = json!({});
        it.objects.push(wide());
    };
    before(outside, &[]);
}

#[test]
fn istio_that_is_there_already() {
    let istio = |kind: &'static str, name: &'static str, of: &'static str| {
        move |it: &mut Cluster| {
            it.objects.retain(|it| it["kind"] != kind || crate::json::name(it) != name);
            it.objects.push(object(
                kind,
                of,
                name,
                json!({"template": {"spec": {"containers":
                [{"image": "docker.io/istio/pilot:1.28.0", "args": ["discovery"]}]}}}),
            ));
        }
    };
    before(
        istio("Deployment", "istiod", "istio-system"),
        &[(Error, "istio-running", "Deployment istio-system/istiod")],
    );
    before(
        istio("Deployment", "istiod-old", "elsewhere"),
        &[(Warning, "istio-running", "elsewhere/istiod-old")],
    );
    before(
        istio("DaemonSet", "ztunnel", "istio-system"),
        &[(Error, "istio-running", "DaemonSet istio-system/ztunnel")],
    );
    running(
        istio("DaemonSet", "ztunnel", "istio-system"),
        &[(Warning, "istio-running", "DaemonSet istio-system/ztunnel")],
    );
    let mirrored = |it: &mut Cluster| {
        let containers = &mut it.the("Deployment", "istiod")["spec"]["template"]["spec"];
        containers["containers"][0]["image"] = json!("mirror/mesh@sha256:0");
    };
    before(mirrored, &[]);
    let injected = |it: &mut Cluster| {
        it.the("Namespace", "app")["metadata"]["labels"]["istio-injection"] = json!("enabled");
    };
    before(injected, &[(Warning, "injection-label", "label namespace app istio-injection-")]);
    let owned = |it: &mut Cluster| {
        let mut crd = object(
            "CustomResourceDefinition",
            "",
            "authorizationpolicies.security.istio.io",
            json!({}),
        );
        crd["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "istio-base",
            "meta.helm.sh/release-namespace": "istio-system"});
        it.objects.push(crd);
    };
    before(owned, &[(Warning, "crds-of-another", "istio-system/istio-base")]);
}

#[test]
fn parts_that_are_missing_or_not_ready() {
    let nothing = |it: &mut Cluster| {
        it.objects.retain(|it| namespace(it) != "istio-system");
    };
    running(nothing, &[(Error, "not-installed", "ambit check --pre")]);
    let no_control = |it: &mut Cluster| it.remove("Deployment", "istio-system", "istiod");
    running(no_control, &[(Error, "no-control", "--mesh-namespace")]);
    let ready = |count: u64| {
        move |it: &mut Cluster| {
            it.the("Deployment", "istiod")["status"]["readyReplicas"] = json!(count)
        }
    };
    running(ready(1), &[(Warning, "control-not-ready", "1 of 2")]);
    running(ready(0), &[(Error, "control-not-ready", "0 of 2")]);
    let no_lease = |it: &mut Cluster| it.remove("Lease", "istio-system", "ambit-control");
    running(no_lease, &[(Error, "no-leader", "no replica leads")]);
    let stale = |it: &mut Cluster| {
        it.the("Lease", "ambit-control")["spec"]["renewTime"] = json!("2026-06-01T11:58:00Z");
    };
    running(stale, &[(Error, "no-leader", "`istiod-1`, has not renewed")]);
    let no_proxy = |it: &mut Cluster| it.remove("Pod", "istio-system", "ztunnel-n2");
    running(no_proxy, &[(Error, "no-proxy", "Node n2: has no pod of ztunnel")]);
    let no_agent = |it: &mut Cluster| it.remove("Pod", "istio-system", "istio-cni-node-n1");
    running(no_agent, &[(Error, "no-agent", "Node n1: has no pod of istio-cni-node")]);
    let unready = |it: &mut Cluster| {
        it.the("Pod", "istio-cni-node-n1")["status"]["conditions"] = json!([{"type": "Ready",
            "status": "False", "reason": "ContainersNotReady", "message": "not chained"}]);
    };
    running(unready, &[(Error, "no-agent", "(ContainersNotReady: not chained)")]);
    let container = |status: Value| {
        move |it: &mut Cluster| {
            it.the("Pod", "ztunnel-n1")["status"]["containerStatuses"] = json!([status])
        }
    };
    let ended = json!({"name": "ambit", "restartCount": 4, "lastState": {"terminated":
        {"reason": "OOMKilled", "exitCode": 137}}});
    running(container(ended), &[(Warning, "restarts", "4 times, last for OOMKilled (code 137)")]);
    let waits = json!({"name": "ambit", "state": {"waiting": {"reason": "ImagePullBackOff"}}});
    running(container(waits), &[(Error, "container-waits", "ImagePullBackOff")]);
    let never = json!({"name": "ambit", "state": {"waiting": {"reason": "ErrImageNeverPull"}}});
    running(container(never), &[(Error, "container-waits", "ErrImageNeverPull")]);
    let no_definition = |it: &mut Cluster| {
        it.remove("CustomResourceDefinition", "", "peerauthentications.security.istio.io");
    };
    running(no_definition, &[(Error, "no-definition", "peerauthentications.security.istio.io")]);
    let order = |it: &mut Cluster| {
        let annotations = json!({"ambit.io/departure": "open/2026-06-01T12:00:00Z"});
        it.the("DaemonSet", "istio-cni-node")["metadata"]["annotations"] = annotations;
    };
    running(
        order,
        &[(Error, "departing", "annotate daemonset/istio-cni-node ambit.io/departure-")],
    );
    let denied = |it: &mut Cluster| it.denied = vec!["pods", "nodes"];
    running(denied, &[(Error, "part-permissions", "may not create pods, create nodes")]);
    let mixed = |it: &mut Cluster| {
        it.the("Pod", "ztunnel-n1")["spec"]["containers"][0]["image"] = json!("ambit:2");
    };
    running(mixed, &[(Warning, "versions-differ", "ambit:2 in 1")]);
    let no_network = |it: &mut Cluster| {
        it.the("Node", "n2")["status"]["conditions"] = json!([{"type": "Ready", "status": "False",
            "reason": "KubeletNotReady", "message": "cni plugin not initialized"}]);
    };
    running(no_network, &[(Error, "node-not-ready", "cni plugin not initialized")]);
    let tainted = |it: &mut Cluster| {
        it.the("Node", "n2")["spec"] = json!({"taints": [{"key": "ambit.io/not-ready"}]});
    };
    running(tainted, &[(Warning, "taint-left", "kubectl taint node n2 ambit.io/not-ready-")]);
}

#[test]
fn what_control_tells() {
    let says = |status: Status| move |it: &mut Cluster| it.control = Ok(status);
    let mut without_proxy = Status::default();
    without_proxy.discovery.nodes_without_proxy.push("n2".to_owned());
    running(says(without_proxy), &[(Error, "proxy-not-connected", "Node n2")]);
    let mut behind = Status::default();
    let late = "n1: its proxy has not acknowledged the newest";
    behind.discovery.behind.push(late.to_owned());
    running(says(behind), &[(Warning, "proxy-behind", "Node n1: its proxy has not")]);
    let not_accepted = NotAccepted {
        kind: "AuthorizationPolicy".into(),
        policy: "app/get".to_owned(),
        reason: "UnsupportedValue".into(),
        message: "methods".to_owned(),
    };
    let status = Status { policies_not_accepted: vec![not_accepted], ..Status::default() };
    running(says(status), &[(Error, "policy-not-accepted", "AuthorizationPolicy app/get")]);
    let finding = Finding {
        severity: ambit_wire::admin::Severity::Warning,
        rule: "unknown-namespace".into(),
        object: "AuthorizationPolicy app/p".to_owned(),
        what: "the namespace ap does not exist".to_owned(),
        remedy: "correct the name".to_owned(),
    };
    running(
        says(Status { findings: vec![finding], ..Status::default() }),
        &[(Warning, "unknown-namespace", "app/p: the namespace ap does not exist; correct")],
    );
    let mut looping = Status::default();
    looping.pods.failing.push(FailingPod {
        pod: "app/web".to_owned(),
        phase: "Running".into(),
        restarts: 4,
        reason: "CrashLoopBackOff".to_owned(),
    });
    running(
        says(looping),
        &[(Warning, "pod-not-ready", "Pod app/web: does not run: CrashLoopBackOff (4 restarts)")],
    );
    let silent = |it: &mut Cluster| it.control = Err("no port-forward".to_owned());
    running(silent, &[(Warning, "control-silent", "no port-forward")]);
    let none = |it: &mut Cluster| {
        it.remove("ValidatingAdmissionPolicy", "", "ambit-policies");
    };
    running(none, &[(Warning, "no-admission", "none is Ambit's")]);
    let unbound = |it: &mut Cluster| {
        it.remove("ValidatingAdmissionPolicyBinding", "", "ambit-policies");
    };
    running(unbound, &[(Warning, "admission-unbound", "refuses nothing")]);
}

#[test]
fn roots_and_certificates() {
    let no_root = |it: &mut Cluster| it.remove("ConfigMap", "app", "istio-ca-root-cert");
    running(no_root, &[(Error, "no-root", "ConfigMap app/istio-ca-root-cert")]);
    let other = |it: &mut Cluster| {
        let of_app = |it: &&mut Value| it["kind"] == "ConfigMap" && namespace(it) == "app";
        let map = it.objects.iter_mut().find(of_app).expect("the healthy cluster has it");
        map["data"]["root-cert.pem"] = json!("another");
    };
    running(other, &[(Error, "root-differs", "ConfigMap app/")]);
    // Whatever the other parts say of such a time.
    let at = |now: &'static str, rule: &'static str| {
        let mut cluster = Cluster::healthy();
        cluster.now = now.to_owned();
        let found = findings(&cluster.facts(Stage::Running));
        assert!(found.iter().any(|it| it.rule == rule), "{rule} is not among {found:#?}");
    };
    at("2036-11-01T00:00:00Z", "root-expires");
    at("2036-11-20T00:00:00Z", "root-expired");
    let ends = |time: &'static str| {
        move |it: &mut Cluster| it.certificate.cert_chain[0].expiration_time = time.to_owned()
    };
    running(ends("2026-06-01T13:00:00Z"), &[(Warning, "certificate-expires", "on node n1")]);
    running(ends("2026-06-01T11:00:00Z"), &[(Error, "certificate-expired", "on node n1")]);
    let refused = |it: &mut Cluster| {
        it.certificate.state = CertificateState::Unavailable("refused".to_owned());
        it.certificate.cert_chain.clear();
    };
    running(refused, &[(Error, "no-certificate", "has no certificate: refused")]);
}

#[test]
fn members_that_are_not_what_their_labels_say() {
    let plain = |it: &mut Cluster| {
        it.the("Pod", "web-1")["metadata"]["annotations"] = json!({});
        it.objects.push(json!({"kind": "Event", "reason": "NotCaptured", "message": "no nftables",
            "involvedObject": {"uid": "web-1", "name": "web-1"}}));
    };
    running(plain, &[(Error, "not-captured", "NotCaptured: no nftables")]);
    let squatted = |it: &mut Cluster| {
        let line = "PortTaken 15006 nginx";
        it.the("Pod", "web-1")["metadata"]["annotations"] = json!({"ambit.io/not-captured": line});
    };
    running(squatted, &[(Error, "not-captured", "\"nginx\" in the pod has port 15006")]);
    let refused = |it: &mut Cluster| {
        let line = "Refused no room";
        it.the("Pod", "web-1")["metadata"]["annotations"] = json!({"ambit.io/not-captured": line});
    };
    running(refused, &[(Error, "not-captured", "it is not captured: no room")]);
    let fresh = |it: &mut Cluster| {
        let pod = it.the("Pod", "web-1");
        pod["metadata"]["annotations"] = json!({});
        pod["status"]["startTime"] = json!("2026-06-01T11:59:55Z");
    };
    running(fresh, &[]);
    let stuck = |it: &mut Cluster| {
        let pod = it.the("Pod", "web-1");
        pod["metadata"]["annotations"] = json!({});
        pod["status"]["phase"] = json!("Pending");
        it.objects.push(json!({"kind": "Event", "reason": "FailedCreatePodSandBox",
            "message": "plugin type=\"ambit-cni\" failed (add): no agent",
            "involvedObject": {"uid": "web-1", "name": "web-1"}}));
    };
    running(stuck, &[(Error, "not-started", "failed (add): no agent")]);
    let sidecar = |it: &mut Cluster| {
        let pod = it.the("Pod", "web-1");
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["initContainers"] = json!([{"name": "istio-proxy"}]);
    };
    running(sidecar, &[(Warning, "sidecar", "Pod app/web-1")]);
    let unlabelled = |it: &mut Cluster| {
        it.the("Pod", "web-1")["metadata"]["labels"]["istio.io/dataplane-mode"] = json!("none");
    };
    running(unlabelled, &[(Warning, "not-released", "Pod app/web-1")]);
    let host = |it: &mut Cluster| {
        let pod = it.the("Pod", "web-1");
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["hostNetwork"] = json!(true);
    };
    running(host, &[(Info, "host-network", "app/web-1")]);
    let bypassed = |value: &'static str| {
        move |it: &mut Cluster| {
            let pod = it.the("Pod", "web-1");
            pod["metadata"]["annotations"]["ambient.istio.io/bypass-inbound-capture"] =
                json!(value);
        }
    };
    running(bypassed("true"), &[(Warning, "bypass-inbound", "no policy applies to them")]);
    running(bypassed("yes"), &[]);
    let waypoint = |it: &mut Cluster| {
        it.the("Service", "web")["metadata"]["labels"]["istio.io/use-waypoint"] = json!("wp");
    };
    running(waypoint, &[(Error, "waypoint", "Service app/web: asks for the waypoint wp")]);
    // The Service of the waypoint itself stands for it here.
    let made = |it: &mut Cluster| {
        let labels = &mut it.the("Service", "web")["metadata"]["labels"];
        labels["istio.io/use-waypoint"] = json!("wp");
        labels["gateway.networking.k8s.io/gateway-name"] = json!("wp");
        labels["gateway.istio.io/managed"] = json!("istio.io-mesh-controller");
    };
    running(made, &[]);
}

#[test]
fn what_is_unknown_is_told_and_never_judged() {
    let mut facts = Facts::new(Stage::Running, "istio-system", NOW.parse().expect("a time"));
    facts.unknown.push(("pods".to_owned(), "forbidden".to_owned()));
    let found = findings(&facts);
    let rules: Vec<_> = found.iter().map(|it| it.rule).collect();
    assert_eq!(rules, ["not-looked-at"], "{found:#?}");
}

#[test]
fn many_findings_of_one_rule_are_counted() {
    let mut cluster = Cluster::healthy();
    for number in 0..25 {
        let mut pod = pod("app", &format!("more-{number}"), "n1", json!({"containers": []}));
        pod["metadata"]["annotations"] = json!({});
        cluster.objects.push(pod);
    }
    let found = findings(&cluster.facts(Stage::Running));
    let last = found.iter().rfind(|it| it.rule == "not-captured").map(ToString::to_string);
    assert_eq!(found.iter().filter(|it| it.rule == "not-captured").count(), 21);
    assert!(last.is_some_and(|it| it.contains("5 more findings")), "{found:#?}");
}

#[test]
fn what_changes_when_the_mesh_leaves() {
    let leaving = |break_it: &dyn Fn(&mut Cluster), expected: Expected| {
        check(Stage::Leaving, |it| break_it(it), expected);
    };
    leaving(&|_| {}, &[]);
    leaving(&|_| {}, &[(Info, "members", "1 pods on 1 nodes")]);
    let add = |kind: &'static str, spec: Value| {
        move |it: &mut Cluster| it.objects.push(object(kind, "app", "own", spec.clone()))
    };
    let strict = json!({"mtls": {"mode": "STRICT"}});
    let refuses = (Error, "strict", "PeerAuthentication app/own");
    leaving(&add("PeerAuthentication", strict), &[refuses]);
    let port = json!({"mtls": {"mode": "PERMISSIVE"}, "portLevelMtls": {"80": {"mode": "STRICT"}}});
    leaving(&add("PeerAuthentication", port), &[refuses]);
    // What cannot be read is held to be strict.
    let newer = json!({"mtls": {"mode": "STRICTER"}});
    leaving(&add("PeerAuthentication", newer), &[refuses]);
    for mode in [json!({}), json!({"mtls": {"mode": "UNSET"}}), json!({"mtls": {}})] {
        leaving(&add("PeerAuthentication", mode), &[]);
    }
    let outdated = |it: &mut Cluster| {
        let definition = "peerauthentications.security.istio.io".to_owned();
        it.outdated = vec![(definition, "v1beta1".to_owned())];
    };
    let found = [(Error, "old-definition", "is served as v1beta1 only")];
    leaving(&outdated, &found);
    running(outdated, &found);
    // Where nobody is in the mesh any more, nothing is refused.
    let has_left = |it: &mut Cluster| {
        it.objects.push(object(
            "PeerAuthentication",
            "app",
            "own",
            json!({"mtls": {"mode":
            "STRICT"}}),
        ));
        outdated(it);
        it.the("Pod", "web-1")["metadata"]["annotations"] = json!({});
    };
    leaving(&has_left, &[]);
    let permissive = json!({"mtls": {"mode": "PERMISSIVE"}});
    leaving(&add("PeerAuthentication", permissive), &[]);
    let policy = |rule: Value, part: &str| {
        let spec = json!({"rules": [rule]});
        let expected = (Warning, "policy-ends", part);
        leaving(&add("AuthorizationPolicy", spec), &[expected]);
    };
    policy(json!({"to": [{"operation": {"ports": ["80"]}}]}), "without the mesh;");
    policy(json!({"from": [{"source": {"principals": ["a"]}}]}), "the identities that it names");
    policy(json!({"when": [{"key": "source.namespace"}]}), "the identities that it names");
    let nobody = |it: &mut Cluster| it.remove("Pod", "istio-system", "istio-cni-node-n1");
    leaving(&nobody, &[(Error, "no-agent", "Node n1: has captured pods")]);
    let no_set = |it: &mut Cluster| it.remove("DaemonSet", "istio-system", "istio-cni-node");
    leaving(&no_set, &[(Error, "no-agent", "nobody releases pods")]);
}
