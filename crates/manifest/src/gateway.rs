//! Gateway and GatewayClass of the Gateway API.
//!
//! A Gateway of a waypoint's class asks for pods that judge and route requests inside the mesh;
//! this file reads what it says and judges its listeners. One of an edge class asks for pods that
//! take what comes from outside; [`listeners`] judges those, and [`attach`] says which routes they
//! take; [`sets`] is what adds listeners to one. [`crate::waypoint`] writes the objects that come
//! of either. Gateways of other classes are read and belong to other controllers. Nothing here may
//! accept a listener that is not served.

pub mod acme;
pub mod attach;
pub mod listeners;
pub mod sets;
mod tls;

use std::collections::BTreeMap;

use ambit_words::labels::WAYPOINT_FOR;
use ambit_words::ports::HBONE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::istio::IstioObject;
use super::selector;
pub use tls::{
    BackendTls, CaCertificateRef, ClientValidation, FrontendTls, GatewayTls, ListenerTls, PortTls,
    SecretRef, TRUST_BUNDLE, TRUST_BUNDLE_GROUP, TlsSettings,
};

/// The class of Ambit's waypoints.
pub const AMBIT_WAYPOINT: &str = "ambit-waypoint";
/// The class of Istio's waypoints, which are Ambit's here.
const ISTIO_WAYPOINT: &str = "istio-waypoint";
/// The controller of Ambit's waypoints, as a GatewayClass names it.
pub(crate) const AMBIT_CONTROLLER: &str = "ambit.io/mesh-controller";
/// Istio's controller of waypoints, in whose place Ambit's works.
const ISTIO_CONTROLLER: &str = "istio.io/mesh-controller";
/// The classes of waypoints that need no GatewayClass object, each with its controller.
pub const CLASSES: [(&str, &str); 2] =
    [(AMBIT_WAYPOINT, AMBIT_CONTROLLER), (ISTIO_WAYPOINT, ISTIO_CONTROLLER)];
/// The class of Ambit's gateways at the edge.
pub const AMBIT_EDGE: &str = "ambit";
/// The controller of Ambit's gateways at the edge, as a GatewayClass names it.
pub const EDGE_CONTROLLER: &str = "ambit.io/gateway-controller";
/// Istio's controller of gateways at the edge, in whose place Ambit's works where it is asked to.
pub const ISTIO_EDGE_CONTROLLER: &str = "istio.io/gateway-controller";
/// The classes of gateways at the edge that need no GatewayClass object, each with its controller.
pub const EDGE_CLASSES: [(&str, &str); 2] =
    [(AMBIT_EDGE, EDGE_CONTROLLER), ("istio", ISTIO_EDGE_CONTROLLER)];
/// The protocol of a waypoint's listener.
pub(crate) const HBONE_PROTOCOL: &str = "HBONE";
/// What is wrong with any other listener of a waypoint: its reason.
pub(crate) const UNSUPPORTED_PROTOCOL: &str = "UnsupportedProtocol";

/// What to do about it.
pub(crate) const UNSUPPORTED_REMEDY: &str = "change it, or use a Gateway of another class";

/// gateway.networking.k8s.io Gateway.
pub type Gateway = IstioObject<GatewaySpec>;
/// gateway.networking.k8s.io GatewayClass.
pub type GatewayClass = IstioObject<GatewayClassSpec>;

/// Which controller the Gateways of a class belong to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// The controller.
    pub controller_name: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The controller's settings; not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<Value>,
}

/// What a Gateway asks for. Fields that have no use here are kept as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    /// The class, which says whose it is.
    pub gateway_class_name: String,
    /// Where it listens.
    pub listeners: Vec<Listener>,
    /// Addresses that are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<Address>>,
    /// What the objects that are made of it carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure: Option<Infrastructure>,
    /// Whose ListenerSets it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS of a gateway at the edge, towards clients and towards backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// Which routes without a parent it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_scope: Option<Value>,
}

/// Whose ListenerSets a Gateway takes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedListeners {
    /// Of which namespaces; of none when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<RouteNamespaces>,
}

/// An address that a Gateway asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Address {
    /// `IPAddress`, `Hostname` or a type of another's; `IPAddress` when not said.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub address_type: Option<String>,
    /// The address; any of the type when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Where a Gateway listens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// The hosts that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its port.
    pub port: i32,
    /// Its protocol.
    pub protocol: String,
    /// TLS of a gateway at the edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// Which routes, and for a waypoint whose objects, may name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_routes: Option<AllowedRoutes>,
}

/// Who may attach to a listener.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedRoutes {
    /// Of which namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<RouteNamespaces>,
    /// Which kinds of routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<RouteGroupKind>>,
}

/// A kind of routes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteGroupKind {
    /// Its API group; the Gateway API's when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its name.
    pub kind: String,
}

/// The namespaces from which a listener may be named.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteNamespaces {
    /// `Same`, `All`, `Selector` or `None`; `Same` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The namespaces of `Selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// What the objects that are made of a Gateway carry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Labels, in place of the Gateway's own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, in place of the Gateway's own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The ConfigMap of patches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ParametersRef>,
}

/// Names an object with settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParametersRef {
    /// Its API group; empty for core.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Which traffic a waypoint is for, as its label says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Traffic {
    /// What goes to services.
    #[default]
    Service,
    /// What goes to the addresses of pods and WorkloadEntries.
    Workload,
    /// Both.
    All,
    /// Neither: it runs, and nothing is sent to it.
    None,
}

impl Traffic {
    /// What `labels` say; `Err` holds a value that means nothing.
    pub fn of(labels: Option<&BTreeMap<String, String>>) -> Result<Self, String> {
        match labels.and_then(|labels| labels.get(WAYPOINT_FOR)).map(String::as_str) {
            None => Ok(Self::default()),
            Some(text) => text.parse(),
        }
    }

    /// Whether services may use it.
    pub fn is_for_services(self) -> bool {
        matches!(self, Self::Service | Self::All)
    }

    /// Whether workloads may use it.
    pub fn is_for_workloads(self) -> bool {
        matches!(self, Self::Workload | Self::All)
    }
}

impl std::str::FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "service" => Ok(Self::Service),
            "workload" => Ok(Self::Workload),
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            other => Err(other.to_owned()),
        }
    }
}

/// Whether Gateways of this class are waypoints: by the controller of its GatewayClass, or by its
/// name where there is none.
pub fn is_waypoint_class(name: &str, class: Option<&GatewayClassSpec>) -> bool {
    match class {
        Some(class) => CLASSES.iter().any(|(_, it)| *it == class.controller_name),
        None => CLASSES.iter().any(|(class, _)| *class == name),
    }
}

/// The controller of Gateways of this class, if they are gateways at the edge: the one that its
/// GatewayClass names, or by its name where there is none.
pub fn edge_controller(name: &str, class: Option<&GatewayClassSpec>) -> Option<&'static str> {
    let is_it = |(of_name, controller): &&(&str, &str)| match class {
        Some(class) => class.controller_name == *controller,
        None => name == *of_name,
    };
    EDGE_CLASSES.iter().find(is_it).map(|it| it.1)
}

/// Where the pods of a Gateway are in the path of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    /// Inside the mesh, before services and workloads.
    Waypoint,
    /// At the edge of the mesh.
    Edge,
}

impl Position {
    /// The position of Gateways of this class, if they are Ambit's, or Istio's in whose place Ambit
    /// works.
    pub fn of_class(name: &str, class: Option<&GatewayClassSpec>) -> Option<Self> {
        if is_waypoint_class(name, class) {
            return Some(Self::Waypoint);
        }
        edge_controller(name, class).map(|_| Self::Edge)
    }

    /// The position of the Gateway whose objects and pods carry this value of
    /// [`GATEWAY_MANAGED`](ambit_words::labels::GATEWAY_MANAGED).
    pub fn of_label(value: &str) -> Option<Self> {
        [Self::Waypoint, Self::Edge].into_iter().find(|it| it.label() == value)
    }

    /// That value, which is Istio's.
    pub fn label(self) -> &'static str {
        match self {
            Self::Waypoint => "istio.io-mesh-controller",
            Self::Edge => "istio.io-gateway-controller",
        }
    }
}

impl Listener {
    /// Whether a waypoint serves it; otherwise what is wrong.
    pub fn judge(&self) -> Result<(), String> {
        if self.protocol == HBONE_PROTOCOL && self.port == i32::from(HBONE) {
            return Ok(());
        }
        Err(format!(
            "a waypoint serves protocol {HBONE_PROTOCOL} on port {HBONE} and nothing else, and \
             listener `{}` is {} on port {}",
            self.name, self.protocol, self.port
        ))
    }

    /// Whether objects of a namespace with these labels may attach to the listener, whose Gateway
    /// is in `own`.
    pub(crate) fn admits(
        &self,
        own: &str,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let namespaces = self.allowed_routes.as_ref().and_then(|it| it.namespaces.as_ref());
        RouteNamespaces::admit(namespaces, "Same", own, (namespace, labels))
    }
}

impl RouteNamespaces {
    /// Whether a namespace with these labels is among them; `own` is that of who says it, and
    /// `unsaid` is what holds where nothing is said.
    fn admit(
        written: Option<&Self>,
        unsaid: &str,
        own: &str,
        (namespace, labels): (&str, &BTreeMap<String, String>),
    ) -> bool {
        let from = written.and_then(|it| it.from.as_deref()).unwrap_or(unsaid);
        match (from, written.and_then(|it| it.selector.as_ref())) {
            ("Same", _) => namespace == own,
            ("All", _) => true,
            ("Selector", Some(selector)) => selector::matches(selector, labels),
            _ => false,
        }
    }

    /// Whether the labels of a namespace decide.
    pub fn selects(&self) -> bool {
        self.from.as_deref() == Some("Selector")
    }
}

impl GatewaySpec {
    /// The listener that a waypoint serves, if the Gateway has one.
    pub fn waypoint_listener(&self) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.judge().is_ok())
    }

    /// Where the certificate is by which it proves itself to backends.
    pub fn client_certificate(&self) -> Option<&SecretRef> {
        self.tls.as_ref()?.backend.as_ref()?.client_certificate_ref.as_ref()
    }

    /// Whether it takes the ListenerSets of a namespace with these labels; `own` is the Gateway's.
    pub fn takes_sets_of(
        &self,
        own: &str,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let namespaces = self.allowed_listeners.as_ref().and_then(|it| it.namespaces.as_ref());
        RouteNamespaces::admit(namespaces, "None", own, (namespace, labels))
    }

    /// The first type of an address that is asked for and that no gateway at the edge can be given.
    pub fn unknown_address_type(&self) -> Option<&str> {
        let types = self.addresses.iter().flatten().filter_map(|it| it.address_type.as_deref());
        types.into_iter().find(|it| !["IPAddress", "Hostname"].contains(it))
    }

    /// Whether objects of `namespace`, which has these labels, may name the waypoint in `own`.
    pub fn admits(&self, own: &str, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.waypoint_listener().is_some_and(|listener| listener.admits(own, namespace, labels))
    }
}

/// Why what names a waypoint has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unbound {
    /// There is no Gateway of the name.
    Missing,
    /// The Gateway is no waypoint.
    NoWaypoint,
    /// The Gateway does not admit this namespace.
    Forbidden,
    /// The Gateway is for other traffic.
    OtherTraffic,
}

impl Unbound {
    /// The reason in a condition; Istio's for the same.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing | Self::NoWaypoint => "WaypointIsNotReady",
            Self::Forbidden => "AttachmentDenied",
            Self::OtherTraffic => "UnsupportedTrafficType",
        }
    }

    /// What is wrong, after the waypoint's name.
    pub fn what(self) -> &'static str {
        match self {
            Self::Missing => "does not exist",
            Self::NoWaypoint => "is no waypoint: its class or its listeners are others",
            Self::Forbidden => "does not admit this namespace",
            Self::OtherTraffic => "is for other traffic",
        }
    }

    /// What to do about it, besides naming no waypoint.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Missing => "make it with `ambit waypoint apply`",
            Self::NoWaypoint => {
                "give it a listener of protocol HBONE on port 15008 and a waypoint's class"
            }
            Self::Forbidden => "set allowedRoutes of its listener",
            Self::OtherTraffic => "label it for this traffic, or for all",
        }
    }
}

/// An object that names a waypoint.
#[derive(Debug, Clone, Copy)]
pub struct Bound<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The labels of that.
    pub labels: &'a BTreeMap<String, String>,
    /// Whether it is a workload; otherwise it is a service.
    pub is_workload: bool,
}

/// Whether this Gateway, of this class, is a waypoint for `bound`.
pub fn binding(
    gateway: Option<&Gateway>,
    class: Option<&GatewayClassSpec>,
    bound: Bound<'_>,
) -> Result<(), Unbound> {
    let gateway = gateway.ok_or(Unbound::Missing)?;
    let spec = &gateway.spec;
    if !is_waypoint_class(&spec.gateway_class_name, class) || spec.waypoint_listener().is_none() {
        return Err(Unbound::NoWaypoint);
    }
    let own = gateway.metadata.namespace.as_deref().unwrap_or_default();
    if !spec.admits(own, bound.namespace, bound.labels) {
        return Err(Unbound::Forbidden);
    }
    // What means nothing is not taken for a word that lets traffic around it.
    let traffic = Traffic::of(gateway.metadata.labels.as_ref()).unwrap_or(Traffic::All);
    let is_served =
        if bound.is_workload { traffic.is_for_workloads() } else { traffic.is_for_services() };
    if is_served { Ok(()) } else { Err(Unbound::OtherTraffic) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(listeners: Value) -> GatewaySpec {
        let spec = json!({"gatewayClassName": AMBIT_WAYPOINT, "listeners": listeners});
        serde_json::from_value(spec).expect("a Gateway")
    }

    #[test]
    fn a_waypoint_serves_one_listener() {
        let check = |protocol: &str, port: i32, expected: bool| {
            let spec = spec(json!([{"name": "mesh", "protocol": protocol, "port": port}]));
            assert_eq!(spec.waypoint_listener().is_some(), expected, "{protocol} {port}");
            let judged = spec.listeners[0].judge();
            assert_eq!(judged.is_ok(), expected);
            if let Err(what) = judged {
                assert!(what.contains(&format!("{protocol} on port {port}")), "{what}");
            }
        };
        check("HBONE", 15008, true);
        check("HBONE", 15009, false);
        check("HTTP", 15008, false);
        check("hbone", 15008, false);
        assert_eq!(spec(json!([])).waypoint_listener(), None);
    }

    #[test]
    fn its_listener_says_which_namespaces_may_name_it() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let check = |allowed: Value, expected: [bool; 2]| {
            let spec = spec(json!([{"name": "mesh", "protocol": "HBONE", "port": 15008,
                "allowedRoutes": allowed}]));
            let admits = ["infra", "shop"].map(|of| spec.admits("infra", of, &labels));
            assert_eq!(admits, expected, "{allowed}");
        };
        check(json!(null), [true, false]);
        check(json!({"namespaces": {}}), [true, false]);
        check(json!({"namespaces": {"from": "Same"}}), [true, false]);
        check(json!({"namespaces": {"from": "All"}}), [true, true]);
        check(json!({"namespaces": {"from": "None"}}), [false, false]);
        check(json!({"namespaces": {"from": "all"}}), [false, false]);
        check(json!({"namespaces": {"from": "Selector"}}), [false, false]);
        let selects =
            |team: &str| json!({"from": "Selector", "selector": {"matchLabels": {"team": team}}});
        check(json!({"namespaces": selects("a")}), [true, true]);
        check(json!({"namespaces": selects("b")}), [false, false]);
        let other = spec(json!([{"name": "web", "protocol": "HTTP", "port": 80}]));
        assert!(!other.admits("infra", "infra", &labels), "it is no waypoint");
    }

    #[test]
    fn a_class_is_a_waypoints_by_its_controller_or_its_name() {
        let class = |controller: &str| GatewayClassSpec {
            controller_name: controller.to_owned(),
            ..GatewayClassSpec::default()
        };
        let check = |name: &str, controller: Option<&str>, expected: bool| {
            let class = controller.map(class);
            assert_eq!(is_waypoint_class(name, class.as_ref()), expected, "{name} {controller:?}");
        };
        check("ambit-waypoint", None, true);
        check("istio-waypoint", None, true);
        check("istio", None, false);
        check("mine", None, false);
        check("mine", Some("ambit.io/mesh-controller"), true);
        check("mine", Some("istio.io/mesh-controller"), true);
        check("istio-waypoint", Some("example.com/other"), false);
    }

    #[test]
    fn a_class_is_of_the_edge_by_its_controller_or_its_name() {
        let check = |name: &str, controller: Option<&str>, expected: Option<&str>| {
            let class = controller.map(|it| GatewayClassSpec {
                controller_name: it.to_owned(),
                ..GatewayClassSpec::default()
            });
            assert_eq!(edge_controller(name, class.as_ref()), expected, "{name} {controller:?}");
        };
        let (ours, istios) = ("ambit.io/gateway-controller", "istio.io/gateway-controller");
        check("ambit", None, Some(ours));
        check("istio", None, Some(istios));
        check("ambit-waypoint", None, None);
        check("mine", Some(ours), Some(ours));
        check("istio", Some(ours), Some(ours));
        check("mine", Some(istios), Some(istios));
        check("mine", Some("ambit.io/mesh-controller"), None);
        check("ambit", Some("example.com/other"), None);
    }

    #[test]
    fn a_class_and_a_label_have_a_position() {
        for (class, position, label) in [
            ("ambit-waypoint", Position::Waypoint, "istio.io-mesh-controller"),
            ("ambit", Position::Edge, "istio.io-gateway-controller"),
        ] {
            assert_eq!(Position::of_class(class, None), Some(position));
            assert_eq!(Position::of_label(label), Some(position));
        }
        assert_eq!(Position::of_class("other", None), None);
        assert_eq!(Position::of_label("other"), None);
    }

    #[test]
    fn what_is_written_is_kept() {
        let written = json!({
            "gatewayClassName": "ambit",
            "listeners": [{
                "name": "web", "hostname": "*.example.com", "port": 443, "protocol": "HTTPS",
                "tls": {"mode": "Terminate", "options": {"example.com/a": "b"}, "certificateRefs": [
                    {"group": "", "kind": "Secret", "name": "web", "namespace": "certificates"},
                    {"name": "other"}]},
                "allowedRoutes": {"kinds": [{"kind": "HTTPRoute"}, {"group": "g", "kind": "K"}]},
            }],
            "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}, {"type": "IPAddress"}],
            "tls": {
                "backend": {"clientCertificateRef": {"name": "client"}},
                "frontend": {
                    "default": {"validation": {"mode": "AllowInsecureFallback",
                        "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}},
                    "perPort": [{"port": 8443, "tls": {}}],
                },
            },
        });
        let read: GatewaySpec = serde_json::from_value(written.clone()).expect("a Gateway");
        assert_eq!(serde_json::to_value(read).expect("JSON"), written);
    }

    #[test]
    fn what_names_a_waypoint_has_it_or_learns_why_not() {
        let gateway = |class: &str, traffic: &str, port: u16| -> Gateway {
            let gateway = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "w", "namespace": "infra",
                    "labels": {WAYPOINT_FOR: traffic}},
                "spec": {"gatewayClassName": class,
                    "listeners": [{"name": "mesh", "protocol": "HBONE", "port": port}]},
            });
            serde_json::from_value(gateway).expect("a Gateway")
        };
        let none = BTreeMap::new();
        let check = |it: Option<Gateway>, namespace: &str, is_workload: bool, expected| {
            let bound = Bound { namespace, labels: &none, is_workload };
            assert_eq!(binding(it.as_ref(), None, bound), expected, "{it:?}");
        };
        check(None, "infra", false, Err(Unbound::Missing));
        check(Some(gateway("istio", "all", 15008)), "infra", false, Err(Unbound::NoWaypoint));
        check(Some(gateway(AMBIT_WAYPOINT, "all", 80)), "infra", false, Err(Unbound::NoWaypoint));
        let all = || Some(gateway(AMBIT_WAYPOINT, "all", 15008));
        check(all(), "shop", false, Err(Unbound::Forbidden));
        check(all(), "infra", false, Ok(()));
        check(all(), "infra", true, Ok(()));
        let service = || Some(gateway(ISTIO_WAYPOINT, "service", 15008));
        check(service(), "infra", false, Ok(()));
        check(service(), "infra", true, Err(Unbound::OtherTraffic));
        check(Some(gateway(ISTIO_WAYPOINT, "srvice", 15008)), "infra", true, Ok(()));
    }

    #[test]
    fn the_label_says_which_traffic() {
        let of = |value: Option<&str>| {
            let labels = value.map(|it| BTreeMap::from([(WAYPOINT_FOR.to_owned(), it.to_owned())]));
            let traffic = Traffic::of(labels.as_ref());
            traffic.map(|it| (it.is_for_services(), it.is_for_workloads()))
        };
        assert_eq!(of(None), Ok((true, false)));
        assert_eq!(of(Some("service")), Ok((true, false)));
        assert_eq!(of(Some("workload")), Ok((false, true)));
        assert_eq!(of(Some("all")), Ok((true, true)));
        assert_eq!(of(Some("none")), Ok((false, false)));
        assert_eq!(of(Some("services")), Err("services".to_owned()));
    }
}
