//! A healthy cluster that tests can break.

use ambit_wire::admin::{Certificate, CertificateState, HeldCertificate, Status};
use serde_json::{Value, json};

use crate::Facts;
use crate::facts::{Access, DEFINITIONS, List, Stage};
use crate::json::{name, namespace};

pub(super) const ROOT: &str = include_str!("../root.pem");
pub(super) const NOW: &str = "2026-06-01T12:00:00Z";
const KINDS: [&str; 16] = [
    "Node",
    "Namespace",
    "Pod",
    "Service",
    "DaemonSet",
    "Deployment",
    "NetworkPolicy",
    "CustomResourceDefinition",
    "ConfigMap",
    "Lease",
    "Event",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "PeerAuthentication",
    "AuthorizationPolicy",
];

/// A cluster in which something can be broken.
pub(super) struct Cluster {
    pub(super) objects: Vec<Value>,
    pub(super) version: Value,
    pub(super) now: String,
    pub(super) denied: Vec<&'static str>,
    pub(super) outdated: Vec<(String, String)>,
    pub(super) cilium: Option<Value>,
    pub(super) control: Result<Status, String>,
    pub(super) certificate: HeldCertificate,
}

impl Cluster {
    /// Two nodes, one labelled namespace with one pod and its policy, and all of Ambit.
    pub(super) fn healthy() -> Self {
        let mut objects = vec![
            object("Namespace", "", "istio-system", json!({})),
            labelled(
                object("Namespace", "", "app", json!({})),
                "istio.io/dataplane-mode",
                "ambient",
            ),
            json!({"kind": "Deployment", "metadata": {"namespace": "istio-system",
                "name": "istiod"}, "spec": {"replicas": 2, "template": template("control")},
                "status": {"readyReplicas": 2}}),
            json!({"kind": "Lease", "metadata": {"namespace": "istio-system",
                "name": "ambit-control"}, "spec": {"holderIdentity": "istiod-1",
                "leaseDurationSeconds": 15, "renewTime": "2026-06-01T11:59:58.123456Z"}}),
            object("ValidatingAdmissionPolicy", "", "ambit-policies", json!({})),
            object(
                "ValidatingAdmissionPolicyBinding",
                "",
                "ambit-policies",
                json!({"policyName": "ambit-policies"}),
            ),
            object("Service", "app", "web", json!({})),
            pod(
                "app",
                "web-1",
                "n1",
                json!({"containers": [{"name": "web", "image": "web:1",
                "ports": [{"name": "http", "containerPort": 8080}],
                "readinessProbe": {"httpGet": {"port": "http"}}}]}),
            ),
        ];
        for namespace in ["istio-system", "app"] {
            objects.push(json!({"kind": "ConfigMap", "data": {"root-cert.pem": ROOT},
                "metadata": {"namespace": namespace, "name": "istio-ca-root-cert"}}));
        }
        objects.extend(["n1", "n2"].into_iter().flat_map(node));
        for (set, role) in [("ztunnel", "proxy"), ("istio-cni-node", "node")] {
            objects.push(object(
                "DaemonSet",
                "istio-system",
                set,
                json!({"template": template(role)}),
            ));
        }
        objects.push(object("DaemonSet", "kube-system", "kindnet", json!({})));
        for name in DEFINITIONS {
            objects.push(object("CustomResourceDefinition", "", name, json!({})));
        }
        Self {
            objects,
            version: json!({"major": "1", "minor": "36+", "gitVersion": "v1.36.3"}),
            now: NOW.to_owned(),
            denied: Vec::new(),
            outdated: Vec::new(),
            cilium: None,
            control: Ok(Status::default()),
            certificate: held(),
        }
    }

    /// The object of that kind and name, in whatever namespace.
    pub(super) fn the(&mut self, kind: &str, wanted: &str) -> &mut Value {
        let mut found = self.objects.iter_mut().filter(|it| it["kind"] == kind);
        found.find(|it| name(it) == wanted).expect("the healthy cluster has it")
    }

    pub(super) fn remove(&mut self, kind: &str, of: &str, wanted: &str) {
        let before = self.objects.len();
        self.objects.retain(|it| (it["kind"] != kind) || namespace(it) != of || name(it) != wanted);
        assert_eq!(self.objects.len() + 1, before, "the healthy cluster has {kind} {of}/{wanted}");
    }

    pub(super) fn facts(self, stage: Stage) -> Facts {
        let now = self.now.parse().expect("the time is written as RFC 3339");
        let mut facts = Facts::new(stage, "istio-system", now);
        facts.version = Some(self.version);
        for kind in KINDS {
            let of_kind = self.objects.iter().filter(|it| it["kind"] == kind);
            facts.add(List::of_kind(kind), of_kind.cloned().collect());
        }
        let account = if stage == Stage::Running { "istio-cni" } else { "" };
        let access =
            |resource| Access { account, group: "", resource, verb: "create", allowed: false };
        facts.access = self.denied.into_iter().map(access).collect();
        facts.outdated = self.outdated;
        facts.cilium = self.cilium;
        if stage == Stage::Running {
            facts.control = Some(self.control);
            facts.certificates = vec![("n1".to_owned(), Ok(vec![self.certificate]))];
        }
        facts
    }
}

/// The certificate of the pod, as its node's proxy holds it.
fn held() -> HeldCertificate {
    let leaf = Certificate {
        pem: String::new(),
        serial: Some("01".to_owned()),
        serial_number: "1".to_owned(),
        valid_from: "2026-06-01T00:00:00Z".to_owned(),
        expiration_time: "2026-06-02T00:00:00Z".to_owned(),
    };
    HeldCertificate {
        identity: "spiffe://cluster.local/ns/app/sa/web".to_owned(),
        state: CertificateState::Available,
        cert_chain: vec![leaf],
        root_certs: Vec::new(),
        last_failure: None,
    }
}

/// A node with its proxy and its agent.
pub(super) fn node(node: &str) -> Vec<Value> {
    let info = json!({"kernelVersion": "6.1.0-44-amd64", "operatingSystem": "linux",
        "architecture": "amd64", "containerRuntimeVersion": "containerd://1.7.24"});
    let status = json!({ "nodeInfo": info });
    let mut objects = vec![json!({"kind": "Node", "metadata": {"name": node}, "status": status})];
    for (set, app, role) in [("ztunnel", "ztunnel", "proxy"), ("istio-cni-node", "cni", "node")] {
        let mut pod =
            pod("istio-system", &format!("{set}-{node}"), node, template(role)["spec"].clone());
        pod["metadata"]["labels"] = json!({"app": app});
        pod["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet", "name": set}]);
        objects.push(pod);
    }
    objects
}

pub(super) fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name, "labels": {}},
        "spec": spec})
}

pub(super) fn labelled(mut object: Value, label: &str, value: &str) -> Value {
    object["metadata"]["labels"][label] = json!(value);
    object
}

pub(super) fn template(role: &str) -> Value {
    json!({"spec": {"containers": [{"name": "ambit", "image": "registry.local/ambit:1",
        "args": [role]}]}})
}

/// A pod that runs, is ready and captured.
pub(super) fn pod(namespace: &str, name: &str, node: &str, mut spec: Value) -> Value {
    spec["nodeName"] = json!(node);
    json!({"kind": "Pod", "spec": spec, "metadata": {"namespace": namespace, "name": name,
        "uid": name, "labels": {"app": "web"},
        "annotations": if namespace == "app" {
            json!({"ambient.istio.io/redirection": "enabled"})
        } else {
            json!({})
        }},
        "status": {"phase": "Running", "startTime": "2026-06-01T11:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "restartCount": 0}]}})
}
