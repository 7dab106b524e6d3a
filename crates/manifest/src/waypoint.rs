//! From a Gateway to the objects of its waypoint, and to the status that says how it is.
//!
//! Both places use these functions: a machine's controllers and the control plane in a cluster.
//! Names, labels and ports are Istio's, so that tools and selectors written for it work. The number
//! of replicas is not written unless a patch says it, so that whoever scales the Deployment is not
//! overruled. Nothing here reads or writes an object.

mod merge;
pub mod parameters;

use std::collections::BTreeMap;

use ambit_words::annotations::{GATEWAY_NAME_OVERRIDE, GATEWAY_SERVICE_ACCOUNT, LAST_APPLIED};
use ambit_words::labels;
use ambit_words::names::{ISTIO_PROXY, POD_TOKEN, ROOT_CONFIG_MAP, ROOTS, TOKEN_AUDIENCE, TOKENS};
use ambit_words::ports::{HBONE, PROXY_METRICS, PROXY_READINESS};
use serde_json::{Value, json};

use super::Kind;
use super::gateway::{Gateway, Infrastructure, UNSUPPORTED_PROTOCOL, UNSUPPORTED_REMEDY};

/// What [`labels::GATEWAY_MANAGED`] says of what is made for a waypoint.
pub const MANAGED: &str = "istio.io-mesh-controller";
/// The user that it runs as in a cluster.
const USER: u32 = 1337;
/// Seconds for which a token of a pod is good in a cluster; the kubelet replaces it in time.
const TOKEN_SECONDS: u32 = 43_200;
/// Below it a pod finds its token and its root certificate.
pub const SECRETS: &str = "/var/run/secrets";

/// Where waypoints run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// On one machine, which hands a pod its files itself.
    Machine,
    /// In a cluster.
    Cluster {
        /// When the image is pulled.
        pull_policy: Option<&'a str>,
    },
}

/// What all waypoints of a mesh have in common.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// The image.
    pub image: &'a str,
    /// Where it runs.
    pub place: Place<'a>,
    /// Where the control plane is: `https://HOST:PORT`.
    pub control: &'a str,
    /// The name in its certificate, where it is not the host.
    pub control_host: Option<&'a str>,
    /// The trust domain of all identities.
    pub trust_domain: &'a str,
    /// The cluster's name.
    pub cluster_id: &'a str,
}

/// The ServiceAccount, Service and Deployment of a Gateway's waypoint, in the order in which they
/// are applied.
fn objects(gateway: &Gateway, common: &Common<'_>) -> [(Kind, Value); 3] {
    let account = object(gateway, Kind::ServiceAccount);
    let mut service = object(gateway, Kind::Service);
    service["metadata"]["annotations"]["networking.istio.io/traffic-distribution"] =
        json!("PreferClose");
    let port = |name: &str, number: u16, protocol: Option<&str>| {
        let mut port = json!({"name": name, "port": number, "targetPort": number,
            "protocol": "TCP"});
        if let Some(protocol) = protocol {
            port["appProtocol"] = json!(protocol);
        }
        port
    };
    let listener = gateway.spec.waypoint_listener().map_or("mesh", |it| it.name.as_str());
    service["spec"] = json!({
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": selector(gateway),
        "ports": [
            port("status-port", PROXY_READINESS, None),
            port(listener, HBONE, Some("hbone")),
        ],
    });
    let mut deployment = object(gateway, Kind::Deployment);
    deployment["spec"] = json!({
        "selector": {"matchLabels": selector(gateway)},
        // A new pod is ready before an old one goes: no request is lost.
        "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template(gateway, common),
    });
    [(Kind::ServiceAccount, account), (Kind::Service, service), (Kind::Deployment, deployment)]
}

/// The PodDisruptionBudget of a waypoint in a cluster: of several pods, one may go at a time, and a
/// single one does not keep its node from being drained.
fn disruption_budget(gateway: &Gateway) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(gateway, names(gateway).objects),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(gateway)}},
    })
}

fn name(gateway: &Gateway) -> &str {
    gateway.metadata.name.as_deref().unwrap_or_default()
}

/// How the objects of a waypoint are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'a> {
    /// The Deployment, the Service and what else is made.
    pub objects: &'a str,
    /// The account that its pods run as.
    pub account: &'a str,
    /// Whether the Gateway names the account itself. One that is there is then used as it is.
    pub is_account_given: bool,
}

/// The names of the objects of a Gateway's waypoint: its own, unless annotations say otherwise.
pub fn names(gateway: &Gateway) -> Names<'_> {
    let annotations = gateway.metadata.annotations.as_ref();
    let says = |key| annotations.and_then(|all| all.get(key)).filter(|it| !it.is_empty());
    let objects = says(GATEWAY_NAME_OVERRIDE).map_or_else(|| name(gateway), String::as_str);
    let account = says(GATEWAY_SERVICE_ACCOUNT);
    Names {
        objects,
        account: account.map_or(objects, String::as_str),
        is_account_given: account.is_some(),
    }
}

/// The only label by which the pods are found: others may be patched.
fn selector(gateway: &Gateway) -> Value {
    json!({labels::GATEWAY_NAME: name(gateway)})
}

fn object(gateway: &Gateway, kind: Kind) -> Value {
    let names = names(gateway);
    let name = if kind == Kind::ServiceAccount { names.account } else { names.objects };
    json!({
        "apiVersion": kind.api_versions()[0],
        "kind": kind.name(),
        "metadata": metadata(gateway, name),
    })
}

/// The metadata of every object: it goes when its Gateway goes.
fn metadata(gateway: &Gateway, object: &str) -> Value {
    let mut labels = copied(gateway, |it| &it.labels, gateway.metadata.labels.as_ref());
    labels.extend(own_labels(gateway));
    let annotations = copied(gateway, |it| &it.annotations, gateway.metadata.annotations.as_ref());
    json!({
        "name": object,
        "namespace": gateway.metadata.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner(gateway)],
    })
}

/// The reference by which an object belongs to its Gateway.
fn owner(gateway: &Gateway) -> Value {
    json!({
        "apiVersion": Kind::Gateway.api_versions()[0],
        "kind": Kind::Gateway.name(),
        "name": name(gateway),
        "uid": gateway.metadata.uid,
        "controller": true,
    })
}

/// What the Gateway's infrastructure says, or the Gateway's own where it says nothing.
fn copied(
    gateway: &Gateway,
    of: fn(&Infrastructure) -> &BTreeMap<String, String>,
    own: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let given = gateway.spec.infrastructure.as_ref().map(of).filter(|it| !it.is_empty());
    let mut copied = given.or(own).cloned().unwrap_or_default();
    // It is the Gateway's text, and would look like a change of these objects.
    copied.remove(LAST_APPLIED);
    copied
}

fn own_labels(gateway: &Gateway) -> BTreeMap<String, String> {
    [
        (labels::GATEWAY_NAME, name(gateway)),
        (labels::GATEWAY_CLASS_NAME, &gateway.spec.gateway_class_name),
        (labels::GATEWAY_MANAGED, MANAGED),
        // It is no member of the mesh that it serves: nobody captures it.
        (labels::DATAPLANE_MODE, labels::NONE),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn template(gateway: &Gateway, common: &Common<'_>) -> Value {
    let mut labels = copied(gateway, |it| &it.labels, gateway.metadata.labels.as_ref());
    labels.extend(own_labels(gateway));
    let given = [
        (labels::SIDECAR_INJECT, "false"),
        (labels::CANONICAL_NAME, names(gateway).objects),
        (labels::CANONICAL_REVISION, "latest"),
    ];
    labels.extend(given.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let mut annotations =
        copied(gateway, |it| &it.annotations, gateway.metadata.annotations.as_ref());
    let scraped = [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", PROXY_METRICS.to_string()),
        ("prometheus.io/path", "/metrics".to_owned()),
    ];
    for (key, value) in scraped {
        annotations.entry(key.to_owned()).or_insert(value);
    }
    let mut spec = json!({
        "serviceAccountName": names(gateway).account,
        "containers": [container(gateway, common)],
    });
    if let Place::Cluster { .. } = common.place {
        spec["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": USER,
            "runAsGroup": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}});
        spec["volumes"] = volumes();
        spec["topologySpreadConstraints"] =
            [labels::ZONE, labels::HOSTNAME].map(|key| spread(gateway, key)).into();
    }
    json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec})
}

/// Pods are in different zones and on different nodes where that can be.
fn spread(gateway: &Gateway, topology_key: &str) -> Value {
    json!({
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(gateway)},
    })
}

fn container(gateway: &Gateway, common: &Common<'_>) -> Value {
    let port = |name: &str, number: u16| json!({"name": name, "containerPort": number});
    let mut container = json!({
        "name": ISTIO_PROXY,
        "image": common.image,
        "env": environment(gateway, common),
        "ports": [
            port("hbone", HBONE),
            port("metrics", PROXY_METRICS),
            port("status-port", PROXY_READINESS),
        ],
    });
    let ready = json!({"path": "/healthz/ready", "port": PROXY_READINESS});
    match common.place {
        Place::Machine => {
            container["readinessProbe"] =
                json!({"httpGet": ready, "periodSeconds": 1, "failureThreshold": 4});
        }
        Place::Cluster { pull_policy } => {
            if let Some(policy) = pull_policy {
                container["imagePullPolicy"] = json!(policy);
            }
            container["args"] = json!(["waypoint"]);
            container["startupProbe"] =
                json!({"httpGet": ready, "periodSeconds": 1, "failureThreshold": 30});
            container["readinessProbe"] =
                json!({"httpGet": ready, "periodSeconds": 15, "failureThreshold": 4});
            container["resources"] = json!({"requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"memory": "1Gi"}});
            container["securityContext"] = json!({"allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
            container["volumeMounts"] = json!([
                {"name": TOKENS, "mountPath": format!("{SECRETS}/{TOKENS}"), "readOnly": true},
                {"name": ROOTS, "mountPath": format!("{SECRETS}/{ROOTS}"), "readOnly": true},
            ]);
        }
    }
    container
}

fn environment(gateway: &Gateway, common: &Common<'_>) -> Vec<Value> {
    let field = |name: &str, path: &str| {
        let reference = json!({ "fieldPath": path });
        json!({"name": name, "valueFrom": {"fieldRef": reference}})
    };
    let text = |name: &str, value: &str| json!({"name": name, "value": value});
    let network = gateway.metadata.labels.as_ref().and_then(|labels| labels.get(labels::NETWORK));
    let mut all = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        field("NODE_NAME", "spec.nodeName"),
        field("INSTANCE_IP", "status.podIP"),
        text("XDS_ADDRESS", common.control),
        text("CA_ADDRESS", common.control),
        text("TRUST_DOMAIN", common.trust_domain),
        text("CLUSTER_ID", common.cluster_id),
        text("NETWORK", network.map_or("", String::as_str)),
        // By the name of its Service it knows what names it.
        text("GATEWAY_NAME", names(gateway).objects),
    ];
    if let Some(host) = common.control_host {
        all.extend(["ALT_XDS_HOSTNAME", "ALT_CA_HOSTNAME"].map(|name| text(name, host)));
    }
    all
}

fn volumes() -> Value {
    let token = json!({"serviceAccountToken": {"audience": TOKEN_AUDIENCE, "path": POD_TOKEN,
        "expirationSeconds": TOKEN_SECONDS}});
    json!([
        {"name": TOKENS, "projected": {"sources": [token]}},
        {"name": ROOTS, "configMap": {"name": ROOT_CONFIG_MAP}},
    ])
}

/// What became of a Gateway's objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// The addresses of its Service.
    pub addresses: Vec<String>,
    /// How many of its pods take traffic.
    pub ready: usize,
    /// How many it should have.
    pub wanted: usize,
    /// Why they could not be made, as a sentence.
    pub problem: Option<String>,
    /// What is wrong with the patches that the Gateway, or its class, names. The objects then stay
    /// as they are.
    pub wrong_parameters: Option<String>,
}

/// The Gateway's status, of `generation`; what `before` says otherwise is kept.
pub fn status(gateway: &Gateway, made: &Made, now: &str) -> Value {
    let generation = gateway.metadata.generation.unwrap_or_default();
    let before = gateway.status.clone().unwrap_or_default();
    let old = |pointer: &str| before.pointer(pointer).and_then(Value::as_array).cloned();
    let addresses = made.addresses.iter().map(|it| json!({"type": "IPAddress", "value": it}));
    let [accepted, programmed] = conditions(gateway, made);
    let told = Told { generation, now };
    let mut status = before.clone();
    status["conditions"] =
        told.conditions(old("/conditions").unwrap_or_default(), [accepted, programmed]);
    status["addresses"] = addresses.collect();
    let before = old("/listeners").unwrap_or_default();
    let listeners = gateway.spec.listeners.iter().map(|listener| {
        let old = before.iter().find(|it| it["name"] == *listener.name);
        let old = |field: &str| old.and_then(|old| old.get(field)).cloned();
        let (accepted, kinds) = match listener.judge() {
            Ok(()) => (Condition::holds("Accepted"), ["HTTPRoute", "GRPCRoute"].as_slice()),
            Err(what) => (unsupported(what), [].as_slice()),
        };
        let group = Kind::Gateway.api_versions()[0].split('/').next();
        let kinds: Value = kinds.iter().map(|kind| json!({"group": group, "kind": kind})).collect();
        let programmed = match accepted.status {
            true => Condition::holds("Programmed"),
            false => Condition::fails("Programmed", "Invalid", "the listener is not accepted"),
        };
        let all = [accepted, programmed, Condition::holds("ResolvedRefs")];
        let old_conditions = old("conditions").and_then(|it| it.as_array().cloned());
        json!({
            "name": listener.name,
            "attachedRoutes": old("attachedRoutes").unwrap_or(json!(0)),
            "supportedKinds": kinds,
            "conditions": told.conditions(old_conditions.unwrap_or_default(), all),
        })
    });
    status["listeners"] = listeners.collect();
    status
}

fn unsupported(what: String) -> Condition {
    let message = format!("{what}; {UNSUPPORTED_REMEDY}");
    Condition { message, ..Condition::fails("Accepted", UNSUPPORTED_PROTOCOL, "") }
}

/// Accepted and Programmed, of the whole Gateway.
fn conditions(gateway: &Gateway, made: &Made) -> [Condition; 2] {
    let judged = gateway.spec.listeners.iter().map(|listener| listener.judge());
    let wrong: Vec<String> = judged.filter_map(Result::err).collect();
    let is_served = gateway.spec.waypoint_listener().is_some();
    let accepted = match (is_served, wrong.first(), &made.wrong_parameters) {
        (true, _, Some(what)) => Condition::fails("Accepted", "InvalidParameters", what),
        (true, None, None) => Condition::holds("Accepted"),
        (false, None, _) => {
            Condition::fails("Accepted", UNSUPPORTED_PROTOCOL, "the Gateway has no listener")
        }
        // One that is served is enough.
        (true, Some(what), None) => Condition {
            reason: "ListenersNotValid",
            message: format!("{what}; {UNSUPPORTED_REMEDY}"),
            ..Condition::holds("Accepted")
        },
        (false, Some(what), _) => unsupported(what.clone()),
    };
    let fails = |reason, message: &str| Condition::fails("Programmed", reason, message);
    let programmed = match &made.problem {
        _ if !is_served => fails("Invalid", "the Gateway is not accepted: nothing runs for it"),
        Some(problem) => fails("Invalid", problem),
        None if made.addresses.is_empty() => {
            fails("AddressNotAssigned", "its Service has no address yet")
        }
        None if made.ready == 0 => {
            let message = format!("none of its pods is ready (0 of {})", made.wanted);
            fails("AddressNotUsable", &message)
        }
        None => Condition {
            message: format!("{} of {} pods are ready", made.ready, made.wanted),
            ..Condition::holds("Programmed")
        },
    };
    [accepted, programmed]
}

#[derive(Debug, Clone)]
struct Condition {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    /// It is as its type says, which is its reason too.
    fn holds(kind: &'static str) -> Self {
        Self { kind, status: true, reason: kind, message: String::new() }
    }

    fn fails(kind: &'static str, reason: &'static str, message: &str) -> Self {
        Self { kind, status: false, reason, message: message.to_owned() }
    }
}

/// How conditions are written down.
struct Told<'a> {
    generation: i64,
    now: &'a str,
}

impl Told<'_> {
    /// Puts `own` in place of those of the same types; one that stays keeps its time.
    fn conditions<const N: usize>(&self, before: Vec<Value>, own: [Condition; N]) -> Value {
        let mut all = before;
        for condition in own {
            let status = if condition.status { "True" } else { "False" };
            let at = all.iter().position(|it| it["type"] == condition.kind);
            let old = at.map(|at| &all[at]).filter(|it| it["status"] == status);
            let since = old.and_then(|old| old.get("lastTransitionTime")).cloned();
            let written = json!({
                "type": condition.kind,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": since.unwrap_or(json!(self.now)),
                "observedGeneration": self.generation,
            });
            match at {
                Some(at) => all[at] = written,
                None => all.push(written),
            }
        }
        Value::Array(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(more: &Value) -> Gateway {
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "way", "namespace": "shop", "uid": "u1", "generation": 3,
                "labels": {"istio.io/waypoint-for": "all", "team": "a"},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x"}},
            "spec": {"gatewayClassName": "istio-waypoint",
                "listeners": [{"name": "mesh", "protocol": "HBONE", "port": 15008}]},
        });
        for (key, value) in more.as_object().expect("fields") {
            gateway["spec"][key] = value.clone();
        }
        serde_json::from_value(gateway).expect("a Gateway")
    }

    fn common(place: Place<'_>) -> Common<'_> {
        Common {
            image: "i",
            place,
            control: "https://10.0.0.1:15012",
            control_host: Some("istiod.istio-system.svc"),
            trust_domain: "cluster.local",
            cluster_id: "Kubernetes",
        }
    }

    #[test]
    fn a_gateway_becomes_three_objects_of_its_name() {
        let made = objects(&gateway(&json!({})), &common(Place::Machine));
        for (kind, object) in &made {
            assert_eq!(object["kind"], kind.name());
            let metadata = &object["metadata"];
            assert_eq!(
                (&metadata["name"], &metadata["namespace"]),
                (&json!("way"), &json!("shop"))
            );
            assert_eq!(metadata["ownerReferences"][0]["uid"], "u1");
            let labels = json!({
                "gateway.istio.io/managed": "istio.io-mesh-controller",
                "gateway.networking.k8s.io/gateway-class-name": "istio-waypoint",
                "gateway.networking.k8s.io/gateway-name": "way",
                "istio.io/dataplane-mode": "none",
                "istio.io/waypoint-for": "all", "team": "a",
            });
            assert_eq!(metadata["labels"], labels);
            let text = metadata["annotations"].to_string();
            assert!(!text.contains("last-applied"), "{text}");
        }
        let [_, (_, service), (_, deployment)] = made;
        let ports: Vec<_> = service["spec"]["ports"].as_array().unwrap().iter().collect();
        assert_eq!(ports[1]["port"], 15008);
        assert_eq!(ports[1]["appProtocol"], "hbone");
        let by_name = json!({"gateway.networking.k8s.io/gateway-name": "way"});
        assert_eq!(service["spec"]["selector"], by_name);
        assert_eq!(deployment["spec"]["selector"]["matchLabels"], by_name);
        assert_eq!(deployment["spec"].get("replicas"), None, "whoever scales it is not overruled");
        let template = &deployment["spec"]["template"];
        assert_eq!(template["metadata"]["labels"]["service.istio.io/canonical-name"], "way");
        assert_eq!(template["spec"]["serviceAccountName"], "way");
        let container = &template["spec"]["containers"][0];
        let names: Vec<&str> = container["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|variable| variable["name"].as_str())
            .collect();
        assert_eq!(names[..3], ["POD_NAME", "POD_NAMESPACE", "SERVICE_ACCOUNT"]);
        assert!(names.contains(&"GATEWAY_NAME") && names.contains(&"ALT_CA_HOSTNAME"), "{names:?}");
        assert_eq!(template["spec"].get("volumes"), None, "a machine hands the files over itself");
        assert_eq!(container.get("args"), None);
    }

    #[test]
    fn in_a_cluster_it_has_a_token_of_its_own_and_no_privileges() {
        let place = Place::Cluster { pull_policy: Some("Always") };
        let [.., (_, deployment)] = objects(&gateway(&json!({})), &common(place));
        let spec = &deployment["spec"]["template"]["spec"];
        let token = &spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
        assert_eq!(
            (&token["audience"], &token["path"]),
            (&json!("istio-ca"), &json!("istio-token"))
        );
        let container = &spec["containers"][0];
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/var/run/secrets/tokens");
        assert_eq!(container["volumeMounts"][1]["mountPath"], "/var/run/secrets/istio");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["args"], json!(["waypoint"]));
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        let budget = disruption_budget(&gateway(&json!({})));
        assert_eq!(budget["spec"]["selector"]["matchLabels"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn annotations_name_the_objects_and_their_account() {
        let mut gateway = gateway(&json!({}));
        let named = |gateway: &Gateway| {
            let names = names(gateway);
            (names.objects.to_owned(), names.account.to_owned(), names.is_account_given)
        };
        assert_eq!(named(&gateway), ("way".to_owned(), "way".to_owned(), false));
        let annotations = json!({"gateway.istio.io/name-override": "other"});
        gateway.metadata.annotations = serde_json::from_value(annotations).unwrap();
        assert_eq!(named(&gateway), ("other".to_owned(), "other".to_owned(), false));
        let annotations = json!({"gateway.istio.io/name-override": "other",
            "gateway.istio.io/service-account": "cloud"});
        gateway.metadata.annotations = serde_json::from_value(annotations).unwrap();
        assert_eq!(named(&gateway), ("other".to_owned(), "cloud".to_owned(), true));
        let [(_, account), (_, service), (_, deployment)] =
            objects(&gateway, &common(Place::Machine));
        assert_eq!(account["metadata"]["name"], "cloud");
        assert_eq!(
            (&service["metadata"]["name"], &deployment["metadata"]["name"]),
            (&json!("other"), &json!("other"))
        );
        let label = "gateway.networking.k8s.io/gateway-name";
        assert_eq!(service["spec"]["selector"][label], "way", "the pods are the Gateway's");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], "cloud");
        let variable = json!({"name": "GATEWAY_NAME", "value": "other"});
        assert!(pod["containers"][0]["env"].as_array().unwrap().contains(&variable));
    }

    #[test]
    fn infrastructure_replaces_what_would_be_copied() {
        let infrastructure = json!({"infrastructure": {"labels": {"cost": "7",
            "gateway.networking.k8s.io/gateway-name": "other"}, "annotations": {"note": "n"}}});
        let made = objects(&gateway(&infrastructure), &common(Place::Machine));
        for (_, object) in made {
            let labels = &object["metadata"]["labels"];
            assert_eq!((&labels["cost"], labels.get("team")), (&json!("7"), None));
            assert_eq!(
                labels["gateway.networking.k8s.io/gateway-name"], "way",
                "not to be patched"
            );
            assert_eq!(object["metadata"]["annotations"]["note"], "n");
        }
    }

    fn told(status: &Value, kind: &str) -> [String; 3] {
        let all = status["conditions"].as_array().expect("conditions");
        let of = all.iter().find(|it| it["type"] == kind).expect("the condition");
        ["status", "reason", "message"].map(|key| of[key].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn its_status_says_what_became_of_it() {
        let check = |more: Value, made: Made, accepted: [&str; 2], programmed: [&str; 2]| {
            let status = status(&gateway(&more), &made, "now");
            for (kind, expected) in [("Accepted", accepted), ("Programmed", programmed)] {
                let [status, reason, message] = told(&status, kind);
                assert_eq!([&*status, &*reason], expected, "{kind}: {message}");
                assert!(status == "True" || !message.is_empty(), "{kind} says why");
            }
        };
        let yes = |reason| ["True", reason];
        let no = |reason| ["False", reason];
        let ready =
            Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 2, ..Made::default() };
        let waiting = Made { ready: 0, ..ready.clone() };
        let without = Made { addresses: Vec::new(), ..ready.clone() };
        let taken = Made { problem: Some("Service way is another's".into()), ..ready.clone() };
        check(json!({}), ready.clone(), yes("Accepted"), yes("Programmed"));
        check(json!({}), waiting, yes("Accepted"), no("AddressNotUsable"));
        check(json!({}), without, yes("Accepted"), no("AddressNotAssigned"));
        check(json!({}), taken, yes("Accepted"), no("Invalid"));
        let web = json!({"name": "web", "protocol": "HTTP", "port": 80});
        let mesh = json!({"name": "mesh", "protocol": "HBONE", "port": 15008});
        let only = json!({"listeners": [web]});
        check(only, ready.clone(), no("UnsupportedProtocol"), no("Invalid"));
        let wrong_parameters = Some("ConfigMap shop/p does not exist".to_owned());
        let patched = Made { wrong_parameters, ..ready.clone() };
        check(json!({}), patched, no("InvalidParameters"), yes("Programmed"));
        let both = json!({"listeners": [mesh, web]});
        check(both.clone(), ready.clone(), yes("ListenersNotValid"), yes("Programmed"));
        let status = status(&gateway(&both), &ready, "now");
        let [good, bad] = [&status["listeners"][0], &status["listeners"][1]];
        assert_eq!(told(good, "Accepted")[0], "True");
        assert_eq!(good["supportedKinds"].as_array().map(Vec::len), Some(2));
        let [is, reason, message] = told(bad, "Accepted");
        assert_eq!([&*is, &*reason], ["False", "UnsupportedProtocol"]);
        assert!(message.contains("`web` is HTTP on port 80"), "{message}");
        assert_eq!(status["addresses"], json!([{"type": "IPAddress", "value": "10.0.0.1"}]));
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time_and_those_of_others_stay() {
        let ready =
            Made { addresses: vec!["10.0.0.1".into()], ready: 1, wanted: 1, ..Made::default() };
        let mut gateway = gateway(&json!({}));
        gateway.status = Some(json!({"conditions": [{"type": "Other", "status": "True"}]}));
        let first = status(&gateway, &ready, "first");
        gateway.status = Some(first.clone());
        let second = status(&gateway, &ready, "second");
        assert_eq!(first, second);
        gateway.status = Some(second);
        let third = status(&gateway, &Made { ready: 0, ..ready }, "third");
        let at = |kind: &str| {
            let all = third["conditions"].as_array().unwrap().clone();
            all.into_iter().find(|it| it["type"] == kind).unwrap()
        };
        assert_eq!(at("Accepted")["lastTransitionTime"], "first");
        assert_eq!(at("Programmed")["lastTransitionTime"], "third");
        assert_eq!(at("Other")["status"], "True");
    }
}
