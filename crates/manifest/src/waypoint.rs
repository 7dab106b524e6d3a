//! From a Gateway to the objects of its pods, and to the status that says how it is.
//!
//! A waypoint and a gateway at the edge are the same objects with other ports and names. Both
//! places use these functions: a machine's controllers and the control plane in a cluster. Names,
//! labels and ports are Istio's, so that tools and selectors written for it work. The number
//! of replicas is not written unless a patch says it, so that whoever scales the Deployment is not
//! overruled. Nothing here reads or writes an object.

mod conditions;
mod edge;
mod made;
mod merge;
pub mod parameters;
mod sets;
mod status;

use std::borrow::Cow;
use std::collections::BTreeMap;

use ambit_words::annotations::{
    ACME_CHALLENGES, GATEWAY_NAME_OVERRIDE, GATEWAY_SERVICE_ACCOUNT, LAST_APPLIED,
};
use ambit_words::exposition::METRICS_PATH;
use ambit_words::labels;
use ambit_words::names::{ISTIO_PROXY, POD_TOKEN, ROOT_CONFIG_MAP, ROOTS, TOKEN_AUDIENCE, TOKENS};
use ambit_words::ports::{HBONE, PROXY_METRICS, PROXY_READINESS};
use ambit_words::variables::{POSITION, POSITION_GATEWAY};
use serde_json::{Value, json};

use super::Kind;
use super::gateway::sets::ListenerSet;
use super::gateway::{Gateway, Infrastructure, Position};
use edge::Port;
pub use made::{ListenerMade, Made};
pub use sets::{SetOf, attached_sets, set_status, set_without_gateway};
pub use status::status;

/// The port of the Service and the container at which readiness is answered.
const STATUS_PORT: &str = "status-port";
/// The user that it runs as in a cluster.
const USER: u32 = 1337;
/// Seconds for which a token of a pod is good in a cluster; the kubelet replaces it in time.
const TOKEN_SECONDS: u32 = 43_200;
/// Below it a pod finds its token and its root certificate.
pub const SECRETS: &str = "/var/run/secrets";

/// Where the pods run.
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

/// What the objects of a Gateway depend on besides what it says itself.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// Where they are in the path of traffic.
    pub position: Position,
    /// The ListenerSets that a gateway at the edge takes, in their order.
    pub sets: &'a [&'a ListenerSet],
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

/// The ServiceAccount, Service and Deployment of a Gateway, in the order in which they are applied.
fn objects(gateway: &Gateway, common: &Common<'_>) -> [(Kind, Value); 3] {
    let account = object(gateway, common, Kind::ServiceAccount);
    let mut service = object(gateway, common, Kind::Service);
    let mut all = vec![port(STATUS_PORT, PROXY_READINESS)];
    for Port { name, number, protocol, app_protocol } in ports(gateway, common) {
        let mut port = port(&name, number);
        port["protocol"] = json!(protocol);
        if protocol == "TCP" {
            port["appProtocol"] = json!(app_protocol);
        }
        all.push(port);
    }
    service["spec"] = json!({
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": selector(gateway),
        "ports": all,
    });
    match (common.position, common.place) {
        (Position::Waypoint, _) => {
            service["metadata"]["annotations"]["networking.istio.io/traffic-distribution"] =
                json!("PreferClose");
        }
        (Position::Edge, Place::Machine) => {}
        (Position::Edge, Place::Cluster { .. }) => {
            service["spec"]["type"] = json!("LoadBalancer");
            if let Some(address) = edge::asked_address(&gateway.spec) {
                service["spec"]["loadBalancerIP"] = json!(address);
            }
        }
    }
    let mut deployment = object(gateway, common, Kind::Deployment);
    deployment["spec"] = json!({
        "selector": {"matchLabels": selector(gateway)},
        // A new pod is ready before an old one goes: no request is lost.
        "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": template(gateway, common),
    });
    [(Kind::ServiceAccount, account), (Kind::Service, service), (Kind::Deployment, deployment)]
}

/// The ports at which the pods listen for traffic.
fn ports(gateway: &Gateway, common: &Common<'_>) -> Vec<Port> {
    match common.position {
        Position::Waypoint => {
            let listener = gateway.spec.waypoint_listener().map_or("mesh", |it| it.name.as_str());
            vec![Port {
                name: listener.to_owned(),
                number: HBONE,
                protocol: "TCP",
                app_protocol: "hbone".into(),
            }]
        }
        Position::Edge => edge::ports(&gateway.spec, common.sets),
    }
}

/// The PodDisruptionBudget of a Gateway in a cluster: of several pods, one may go at a time, and a
/// single one does not keep its node from being drained.
fn disruption_budget(gateway: &Gateway, position: Position) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(gateway, position, &names(gateway, position).objects),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(gateway)}},
    })
}

fn name(gateway: &Gateway) -> &str {
    gateway.metadata.name.as_deref().unwrap_or_default()
}

/// How the objects of a Gateway are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names<'a> {
    /// The Deployment, the Service and what else is made.
    pub objects: Cow<'a, str>,
    /// The account that its pods run as.
    pub account: Cow<'a, str>,
    /// Whether the Gateway names the account itself. One that is there is then used as it is.
    pub is_account_given: bool,
}

/// The names of a Gateway's objects, unless annotations say otherwise: of a waypoint its own, so
/// that it can be named by its Service's name; at the edge with the class, as GEP-1762 wants it.
pub fn names(gateway: &Gateway, position: Position) -> Names<'_> {
    let annotations = gateway.metadata.annotations.as_ref();
    let says = |key| annotations.and_then(|all| all.get(key)).filter(|it| !it.is_empty());
    let objects = match (says(GATEWAY_NAME_OVERRIDE), position) {
        (Some(name), _) => Cow::Borrowed(name.as_str()),
        (None, Position::Waypoint) => Cow::Borrowed(name(gateway)),
        (None, Position::Edge) => {
            Cow::Owned(format!("{}-{}", name(gateway), gateway.spec.gateway_class_name))
        }
    };
    let account = says(GATEWAY_SERVICE_ACCOUNT);
    Names {
        account: account.map_or_else(|| objects.clone(), |it| Cow::Borrowed(it.as_str())),
        objects,
        is_account_given: account.is_some(),
    }
}

/// The only label by which the pods are found: others may be patched.
fn selector(gateway: &Gateway) -> Value {
    json!({labels::GATEWAY_NAME: name(gateway)})
}

fn object(gateway: &Gateway, common: &Common<'_>, kind: Kind) -> Value {
    let names = names(gateway, common.position);
    let name = if kind == Kind::ServiceAccount { names.account } else { names.objects };
    json!({
        "apiVersion": kind.api_versions()[0],
        "kind": kind.name(),
        "metadata": metadata(gateway, common.position, &name),
    })
}

/// The metadata of every object: it goes when its Gateway goes.
fn metadata(gateway: &Gateway, position: Position, object: &str) -> Value {
    let mut labels = copied(gateway, |it| &it.labels, gateway.metadata.labels.as_ref());
    labels.extend(own_labels(gateway, position));
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
    // What the Service answers to directories is control's to say.
    copied.remove(ACME_CHALLENGES);
    copied
}

fn own_labels(gateway: &Gateway, position: Position) -> BTreeMap<String, String> {
    [
        (labels::GATEWAY_NAME, name(gateway)),
        (labels::GATEWAY_CLASS_NAME, &gateway.spec.gateway_class_name),
        (labels::GATEWAY_MANAGED, position.label()),
        // It is no member of the mesh that it serves: nobody captures it.
        (labels::DATAPLANE_MODE, labels::NONE),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "targetPort": number, "protocol": "TCP"})
}

/// The labels of a Gateway's pods, but for those that a patch adds.
pub fn pod_labels(gateway: &Gateway, position: Position) -> BTreeMap<String, String> {
    let mut labels = copied(gateway, |it| &it.labels, gateway.metadata.labels.as_ref());
    labels.extend(own_labels(gateway, position));
    let given = [
        (labels::SIDECAR_INJECT, "false"),
        (labels::CANONICAL_NAME, &*names(gateway, position).objects),
        (labels::CANONICAL_REVISION, "latest"),
    ];
    labels.extend(given.map(|(key, value)| (key.to_owned(), value.to_owned())));
    labels
}

fn template(gateway: &Gateway, common: &Common<'_>) -> Value {
    let labels = pod_labels(gateway, common.position);
    let names = names(gateway, common.position);
    let mut annotations =
        copied(gateway, |it| &it.annotations, gateway.metadata.annotations.as_ref());
    let scraped = [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", PROXY_METRICS.to_string()),
        ("prometheus.io/path", METRICS_PATH.to_owned()),
    ];
    for (key, value) in scraped {
        annotations.entry(key.to_owned()).or_insert(value);
    }
    let mut spec = json!({
        "serviceAccountName": names.account,
        "containers": [container(gateway, common)],
    });
    if let Place::Cluster { .. } = common.place {
        spec["securityContext"] = json!({"runAsNonRoot": true, "runAsUser": USER,
            "runAsGroup": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}});
        if common.position == Position::Edge {
            // Without capabilities it may open the ports of its listeners, such as 80.
            spec["securityContext"]["sysctls"] =
                json!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]);
        }
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
    let mut container = json!({
        "name": ISTIO_PROXY,
        "image": common.image,
        "env": environment(gateway, common),
        "ports": container_ports(common),
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

/// A gateway's listeners are none of them: they come and go while its pods stay.
fn container_ports(common: &Common<'_>) -> Vec<Value> {
    let port = |name: &str, number: u16| json!({"name": name, "containerPort": number});
    let mut all = match common.position {
        Position::Waypoint => vec![port("hbone", HBONE)],
        Position::Edge => Vec::new(),
    };
    all.extend([port("metrics", PROXY_METRICS), port(STATUS_PORT, PROXY_READINESS)]);
    all
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
        text("GATEWAY_NAME", &names(gateway, common.position).objects),
    ];
    if common.position == Position::Edge {
        all.push(text(POSITION, POSITION_GATEWAY));
    }
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
            position: Position::Waypoint,
            sets: &[],
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
        let budget = disruption_budget(&gateway(&json!({})), Position::Waypoint);
        assert_eq!(budget["spec"]["selector"]["matchLabels"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn annotations_name_the_objects_and_their_account() {
        let mut gateway = gateway(&json!({}));
        let named = |gateway: &Gateway| {
            let names = names(gateway, Position::Waypoint);
            (names.objects.into_owned(), names.account.into_owned(), names.is_account_given)
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

    fn at_the_edge(more: &Value) -> Gateway {
        let mut edge = json!({"gatewayClassName": "ambit", "listeners": [
            {"name": "web.a", "protocol": "HTTP", "port": 80, "hostname": "a.com"},
            {"name": "web.b", "protocol": "HTTP", "port": 80, "hostname": "b.com"},
            {"name": "tls", "protocol": "HTTPS", "port": 443},
            {"name": "taken", "protocol": "HTTP", "port": 15021},
        ]});
        for (key, value) in more.as_object().expect("fields") {
            edge[key] = value.clone();
        }
        gateway(&edge)
    }

    #[test]
    fn at_the_edge_it_has_the_ports_of_its_listeners() {
        let common = Common { position: Position::Edge, ..common(Place::Machine) };
        let gateway = at_the_edge(&json!({}));
        let [(_, account), (_, service), (_, deployment)] = objects(&gateway, &common);
        for object in [&account, &service, &deployment] {
            assert_eq!(object["metadata"]["name"], "way-ambit");
            let managed = &object["metadata"]["labels"]["gateway.istio.io/managed"];
            assert_eq!(managed, "istio.io-gateway-controller");
            assert_eq!(object["metadata"]["labels"]["istio.io/dataplane-mode"], "none");
        }
        let ports = service["spec"]["ports"].as_array().unwrap();
        let told = |it: &Value| {
            let target = (it["port"] == it["targetPort"]).then_some("itself");
            (it["port"].clone(), it["name"].clone(), it["appProtocol"].clone(), target)
        };
        let expected = [
            (json!(15021), json!("status-port"), json!(null), Some("itself")),
            (json!(80), json!("http-80"), json!("http"), Some("itself")),
            (json!(443), json!("https-443"), json!("https"), Some("itself")),
        ];
        assert!(ports.iter().map(told).eq(expected), "{ports:?}");
        assert_eq!(service["spec"]["type"], "ClusterIP");
        assert_eq!(service["spec"]["selector"], selector(&gateway));
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let numbers = container["ports"].as_array().unwrap().iter().map(|it| &it["containerPort"]);
        assert!(numbers.eq([&json!(15020), &json!(15021)]));
        let variables = container["env"].as_array().unwrap();
        assert!(variables.contains(&json!({"name": "AMBIT_POSITION", "value": "gateway"})));
        assert!(variables.contains(&json!({"name": "GATEWAY_NAME", "value": "way-ambit"})));
    }

    #[test]
    fn it_has_the_ports_of_the_sets_that_it_takes() {
        let listener = |port: u16, host: &str| {
            let name = format!("l{port}");
            json!({"name": name, "protocol": "HTTP", "port": port, "hostname": host})
        };
        let check = |listener: Value, expected: &[u64]| {
            let set = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                "metadata": {"name": "own", "namespace": "team"},
                "spec": {"parentRef": {"name": "way"}, "listeners": [listener]},
            });
            let set: ListenerSet = serde_json::from_value(set).expect("a ListenerSet");
            let sets = [&set];
            let common = Common { position: Position::Edge, sets: &sets, ..common(Place::Machine) };
            let [_, (_, service), _] = objects(&at_the_edge(&json!({})), &common);
            let ports = service["spec"]["ports"].as_array().unwrap();
            let ports = ports.iter().filter_map(|it| it["port"].as_u64());
            assert!(ports.eq(expected.iter().copied()), "{listener}");
        };
        check(listener(8080, "c.com"), &[15021, 80, 443, 8080]);
        check(listener(80, "c.com"), &[15021, 80, 443]);
        check(listener(80, "a.com"), &[15021, 80, 443]);
        check(listener(15008, "c.com"), &[15021, 80, 443]);
    }

    #[test]
    fn at_the_edge_of_a_cluster_it_has_a_load_balancer_and_low_ports() {
        let place = Place::Cluster { pull_policy: None };
        let common = Common { position: Position::Edge, ..common(place) };
        let asked = json!({"addresses": [{"value": "192.0.2.7"}]});
        let [_, (_, service), (_, deployment)] = objects(&at_the_edge(&asked), &common);
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        assert_eq!(service["spec"]["loadBalancerIP"], "192.0.2.7");
        let pod = &deployment["spec"]["template"]["spec"];
        let sysctl = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"});
        assert_eq!(pod["securityContext"]["sysctls"], json!([sysctl]));
        assert_eq!(pod["containers"][0]["args"], json!(["waypoint"]));
        let budget = disruption_budget(&at_the_edge(&json!({})), Position::Edge);
        assert_eq!(budget["metadata"]["name"], "way-ambit");
    }
}
