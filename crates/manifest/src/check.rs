//! Checks how objects refer to one another and to existing objects, before anything is applied.
//!
//! A reference that a cluster would refuse, or would wait for without end (a namespace, a service
//! account), is an error. What works differently from what its author may expect is a warning: a
//! policy that only layer 7 could enforce, with the clients that it cuts off; a Service that
//! selects nothing; a slice that no Service uses; a route whose backends are not there. Nothing
//! here may look at a single object's own syntax.

mod backend_tls;
mod canary;
mod gateways;
mod meetings;
mod policies;
mod routes;
mod telemetry;
mod traffic;
mod traffic_policies;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_words::labels::{
    HOSTNAME, NONE, POD_INDEX, POD_NAME, SERVICE_NAME, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE,
};
use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use k8s_openapi::api::core::v1::{PodSpec, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use self::meetings::Meetings;
use super::gateway::{Bound, Unbound, binding};
use super::istio::{Resolution, ServiceEntry, ServiceEntrySpec};
use super::routing;
use super::validate::names;
use super::{Errors, Finding, Kind, Manifests, Object, ObjectKey, Typed};
use crate::slice::BY_NAME;

/// Namespaces that every cluster has.
pub const BUILT_IN_NAMESPACES: [&str; 4] =
    ["default", DEFAULT_MESH_NAMESPACE, "kube-public", "kube-system"];
/// Names that a warning lists; the rest is counted.
const NAMES_MAX: usize = 5;

impl Manifests {
    /// Checks the objects against one another and against `existing` ones; existing objects with
    /// the same key count as replaced. Returns warnings, in addition to those from loading.
    ///
    /// # Errors
    /// References to namespaces and service accounts that neither the input nor `existing` holds.
    pub fn check(&self, existing: &[Typed]) -> Result<Vec<Finding>, Errors> {
        let all = All::new(&self.objects, existing);
        let mut errors = Vec::new();
        let mut surprises = Vec::new();
        let meetings = Meetings::of(&all, &self.objects);
        for object in &self.objects {
            all.references(object, &mut errors);
            all.surprises(object, &mut surprises);
            meetings.check(object, &mut surprises);
        }
        if errors.is_empty() { Ok(surprises) } else { Err(Errors(errors)) }
    }
}

/// What is there once the input is applied.
struct All<'a> {
    objects: BTreeMap<ObjectKey, &'a Typed>,
    /// The labels of each node: a Node of the input adds to those that the node has.
    nodes: BTreeMap<&'a str, BTreeMap<String, String>>,
}

/// A pod, or the template of many.
struct Pods<'a> {
    name: String,
    namespace: &'a str,
    labels: Option<&'a BTreeMap<String, String>>,
    spec: &'a PodSpec,
    /// It came of a template, which is named in its place.
    is_owned: bool,
    /// They are of a StatefulSet, which gives each a name and an ordinal as labels.
    is_numbered: bool,
}

impl Pods<'_> {
    /// Whether a selector means one of them.
    fn are_meant(&self, selector: &BTreeMap<String, String>) -> bool {
        let is_given = |key: &str, value: &str| match key {
            POD_INDEX => value.parse::<u32>().is_ok(),
            POD_NAME => value
                .strip_prefix(&self.name)
                .and_then(|rest| rest.strip_prefix('-'))
                .is_some_and(|ordinal| ordinal.parse::<u32>().is_ok()),
            _ => false,
        };
        let has = |key: &String, value: &String| {
            self.labels.and_then(|labels| labels.get(key)) == Some(value)
                || self.is_numbered && is_given(key, value)
        };
        selector.iter().all(|(key, value)| has(key, value))
    }
}

impl<'a> All<'a> {
    fn new(input: &'a [Object], existing: &'a [Typed]) -> Self {
        let existing = existing.iter().map(|typed| (typed.key(), typed));
        let input = input.iter().map(|object| (object.key.clone(), &object.typed));
        let both = existing.chain(input);
        let mut nodes: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
        for (_, typed) in both.clone().filter(|(key, _)| key.kind == Kind::Node) {
            let metadata = typed.metadata();
            let labels = nodes.entry(metadata.name.as_deref().unwrap_or_default()).or_default();
            labels.extend(metadata.labels.clone().unwrap_or_default());
        }
        Self { objects: both.collect(), nodes }
    }

    fn has(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.objects.contains_key(&ObjectKey::new(kind, namespace, name))
    }

    /// Pods and templates of `namespace`, or of all when it is `None`.
    fn pods(&self, namespace: Option<&str>) -> Vec<Pods<'a>> {
        let objects = self.objects.iter();
        let objects = objects.filter(|(key, _)| namespace.is_none_or(|it| it == &*key.namespace));
        objects.filter_map(|(key, typed)| pods(key, typed)).collect()
    }

    fn has_namespace(&self, name: &str) -> bool {
        BUILT_IN_NAMESPACES.contains(&name) || self.has(Kind::Namespace, "", name)
    }

    fn references(&self, object: &Object, errors: &mut Vec<Finding>) {
        let namespace = &object.key.namespace;
        if !namespace.is_empty() && !self.has_namespace(namespace) {
            errors.push(object.finding(
                "metadata.namespace",
                format!("the namespace `{namespace}` does not exist"),
                format!("add a Namespace called `{namespace}` to the input"),
            ));
        }
        let Some(pods) = pods(&object.key, &object.typed) else { return };
        let account = pods.spec.service_account_name.as_deref().unwrap_or("default");
        if account != "default"
            && !account.is_empty()
            && !self.has(Kind::ServiceAccount, namespace, account)
        {
            errors.push(object.finding(
                field(&object.typed, "serviceAccountName"),
                format!(
                    "the service account `{account}` does not exist in namespace `{namespace}`"
                ),
                format!("add a ServiceAccount called `{account}`, or correct the name"),
            ));
        }
    }

    fn surprises(&self, object: &Object, warnings: &mut Vec<Finding>) {
        self.waypoint(object, warnings);
        self.canary(object, warnings);
        match &object.typed {
            Typed::Service(service) => self.service(object, service, warnings),
            Typed::EndpointSlice(slice) => self.slice(object, slice, warnings),
            Typed::AuthorizationPolicy(policy) => self.policy(object, policy, warnings),
            Typed::RequestAuthentication(tokens) => self.tokens(object, tokens, warnings),
            Typed::PeerAuthentication(modes) => self.modes(object, modes, warnings),
            Typed::ServiceEntry(entry) => self.service_entry(object, entry, warnings),
            Typed::HttpRoute(route) => {
                self.route(object, route, routing::http(route, self), warnings);
            }
            Typed::GrpcRoute(route) => {
                self.route(object, route, routing::grpc(route, self), warnings);
            }
            Typed::TlsRoute(route) => {
                self.route(object, route, routing::tls(route, self), warnings);
            }
            Typed::TcpRoute(route) => {
                self.route(object, route, routing::tcp(route, self), warnings);
            }
            Typed::UdpRoute(route) => {
                self.route(object, route, routing::udp(route, self), warnings);
            }
            Typed::VirtualService(service) => self.virtual_service(object, service, warnings),
            Typed::DestinationRule(rule) => self.destination_rule(object, rule, warnings),
            Typed::BackendTlsPolicy(policy) => self.backend_tls(object, policy, warnings),
            Typed::TrafficPolicy(policy) => self.traffic_policy(object, policy, warnings),
            Typed::Telemetry(it) => self.told(object, it, warnings),
            Typed::ListenerSet(set) => self.listener_set(object, set, warnings),
            Typed::Pod(_) => self.placement(object, warnings),
            it if it.pod_template().is_some() => self.placement(object, warnings),
            _ => {}
        }
    }

    /// The placement of pods: what the mesh, or the machine, will not do.
    fn placement(&self, object: &Object, warnings: &mut Vec<Finding>) {
        let Some(pods) = pods(&object.key, &object.typed) else { return };
        if pods.spec.host_network == Some(true) {
            warnings.push(object.finding(
                field(&object.typed, "hostNetwork"),
                "a pod in its node's network cannot be captured and stays outside of the mesh",
                "remove hostNetwork to bring it in",
            ));
        }
        self.node_selector(object, pods.spec, warnings);
        let nodes: Vec<&str> = self.nodes.keys().copied().collect();
        if let Some(node) = pods.spec.node_name.as_deref().filter(|it| !it.is_empty())
            && !nodes.is_empty()
            && !nodes.contains(&node)
        {
            warnings.push(object.finding(
                field(&object.typed, "nodeName"),
                format!("the node `{node}` does not exist: the pod will wait for it"),
                format!("use {}, or leave out nodeName", listed(&nodes)),
            ));
        }
    }

    /// Labels that no node has: the pods wait for a node that does not come.
    fn node_selector(&self, object: &Object, spec: &PodSpec, warnings: &mut Vec<Finding>) {
        let Some(wanted) = spec.node_selector.as_ref() else { return };
        let mut labels = self.nodes.values();
        if self.nodes.is_empty() || labels.any(|labels| selects(wanted, Some(labels))) {
            return;
        }
        let wanted: Vec<String> =
            wanted.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let names: Vec<&str> = self.nodes.keys().copied().collect();
        warnings.push(object.finding(
            field(&object.typed, "nodeSelector"),
            format!("no node has {}: no pod of it will run", wanted.join(" and ")),
            format!("remove nodeSelector, or choose a node by {HOSTNAME} ({})", listed(&names)),
        ));
    }

    fn service_entry(&self, object: &Object, entry: &ServiceEntry, warnings: &mut Vec<Finding>) {
        let resolution = entry.spec.resolution.unwrap_or(Resolution::None);
        let has_waypoint =
            entry.metadata.labels.as_ref().is_some_and(|all| all.contains_key(USE_WAYPOINT));
        if resolution == Resolution::DynamicDns && !has_waypoint {
            warnings.push(object.finding(
                "spec.resolution",
                "DYNAMIC_DNS needs a waypoint, which hears the host that a client asks for; \
                 without one connections go to the address that the client found",
                format!("label the entry, or its namespace, {USE_WAYPOINT}"),
            ));
        }
        self.short_names(object, &entry.spec, warnings);
        let owners = self.pod_addresses();
        let endpoints = entry.spec.endpoints.iter().enumerate();
        let endpoints = endpoints
            .map(|(at, endpoint)| (format!("spec.endpoints[{at}].address"), &endpoint.address));
        let addresses = entry.spec.addresses.iter().enumerate();
        let addresses = addresses.map(|(at, address)| (format!("spec.addresses[{at}]"), address));
        for (field, address) in endpoints.chain(addresses) {
            let Some(ip) = names::address(address) else { continue };
            let Some(owner) = owners.get(&ip) else { continue };
            warnings.push(object.finding(
                field,
                format!(
                    "{ip} is the address of pod {owner}, and stays it: what the entry says of \
                     the address does not hold for the pod"
                ),
                "reach pods by a Service, and list only addresses outside of the mesh",
            ));
        }
    }

    /// Hosts that are short names of other namespaces' Services, as resolvers complete them.
    fn short_names(&self, object: &Object, spec: &ServiceEntrySpec, warnings: &mut Vec<Finding>) {
        for (index, host) in spec.hosts.iter().enumerate() {
            let host = host.strip_suffix('.').unwrap_or(host);
            let Some((name, namespace)) = host.split_once('.') else { continue };
            let mut keys = self.objects.keys().filter(|key| key.kind == Kind::Service);
            let service = keys.find(|key| {
                *key.namespace == *namespace
                    && key.namespace != object.key.namespace
                    && (name == "*" || *key.name == *name)
            });
            let Some(service) = service else { continue };
            warnings.push(object.finding(
                format!("spec.hosts[{index}]"),
                format!(
                    "`{host}` means the Service {namespace}/{}, which comes before \
                     the entry in other namespaces than the entry's",
                    service.name
                ),
                "use a name that no Service has",
            ));
        }
    }

    /// Whose the pods' addresses are.
    fn pod_addresses(&self) -> BTreeMap<IpAddr, String> {
        let mut owners = BTreeMap::new();
        for (key, typed) in &self.objects {
            let Typed::Pod(pod) = typed else { continue };
            let status = pod.status.iter();
            let ips = status.flat_map(|status| status.pod_ips.iter().flatten());
            for ip in ips.filter_map(|it| it.ip.parse().ok()) {
                owners.insert(ip, format!("{}/{}", key.namespace, key.name));
            }
        }
        owners
    }

    fn service(&self, object: &Object, service: &Service, warnings: &mut Vec<Finding>) {
        let Some((spec, selector)) = service.spec.as_ref().zip(selector(service)) else { return };
        let pods = self.pods(Some(&object.key.namespace));
        let pods: Vec<Pods<'_>> =
            pods.into_iter().filter(|pods| pods.are_meant(selector)).collect();
        if pods.is_empty() {
            warnings.push(object.finding(
                "spec.selector",
                "no pod of the namespace has these labels: the Service has no endpoints",
                "make the selector and the pods' labels agree",
            ));
            return;
        }
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let Some(IntOrString::String(name)) = &port.target_port else { continue };
            let without = pods.iter().filter(|pods| !has_port(pods.spec, name));
            let without: Vec<&str> = without.map(|pods| pods.name.as_str()).collect();
            if !without.is_empty() {
                warnings.push(object.finding(
                    format!("spec.ports[{index}].targetPort"),
                    format!("{} has no port called `{name}`", listed(&without)),
                    "name the container's port, or use its number",
                ));
            }
        }
    }

    /// A slice that leads nobody anywhere.
    fn slice(&self, object: &Object, slice: &EndpointSlice, warnings: &mut Vec<Finding>) {
        let label = format!("metadata.labels.{SERVICE_NAME}");
        let labels = slice.metadata.labels.as_ref();
        let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME)) else {
            let what = "without this label the slice is of no Service";
            return warnings.push(object.finding(label, what, "name the Service there"));
        };
        if slice.address_type == BY_NAME {
            warnings.push(object.finding(
                "addressType",
                "names are not looked up: connections there are refused",
                "list IP addresses",
            ));
        }
        let key = ObjectKey::new(Kind::Service, &object.key.namespace, name);
        match self.objects.get(&key) {
            Some(Typed::Service(service)) if selector(service).is_some() => {
                warnings.push(object.finding(
                    label,
                    format!("the Service `{name}` has a selector: it leads to the pods it selects"),
                    "remove the selector, or the slice",
                ));
            }
            Some(_) => {}
            None => warnings.push(object.finding(
                label,
                format!("the Service `{name}` does not exist in this namespace"),
                "add it, or correct the name",
            )),
        }
    }

    /// A label that names a waypoint which is none for this object: what must pass it is refused.
    fn waypoint(&self, object: &Object, warnings: &mut Vec<Finding>) {
        let key = &object.key;
        let (refused, is_workload) = match key.kind {
            Kind::Namespace => (format!("the Services of {}", key.name), false),
            Kind::Service | Kind::ServiceEntry => {
                (format!("{}/{}", key.namespace, key.name), false)
            }
            kind if kind == Kind::Pod || kind.template_at().is_some() => {
                (format!("the pods of {}/{}", key.namespace, key.name), true)
            }
            Kind::WorkloadEntry => (format!("the workload {}/{}", key.namespace, key.name), true),
            _ => return,
        };
        let (at, labels) = match pods(key, &object.typed) {
            Some(pods) if let Some(at) = key.kind.template_at() => {
                (format!("{at}.metadata.labels"), pods.labels)
            }
            _ => ("metadata.labels".to_owned(), object.typed.metadata().labels.as_ref()),
        };
        let Some(labels) = labels else { return };
        let named = labels.get(USE_WAYPOINT).filter(|it| ![NONE, ""].contains(&it.as_str()));
        let Some(waypoint) = named else { return };
        let own = if key.kind == Kind::Namespace { &key.name } else { &key.namespace };
        let namespace = labels.get(USE_WAYPOINT_NAMESPACE).map_or(&**own, String::as_str);
        let unbound = match self.bound((namespace, waypoint), own, is_workload) {
            Err(unbound) => unbound,
            Ok(()) => return,
        };
        if unbound == Unbound::OtherTraffic && key.kind == Kind::Namespace {
            // It means the pods of the namespace, or nothing.
            return;
        }
        warnings.push(object.finding(
            format!("{at}.{USE_WAYPOINT}"),
            format!(
                "the waypoint `{waypoint}` {}: every new connection of captured clients to \
                 {refused} is refused",
                unbound.what()
            ),
            format!("{}, or remove the label {USE_WAYPOINT} from {key}", unbound.remedy()),
        ));
    }

    /// Whether a Gateway is a waypoint for objects of namespace `own`.
    fn bound(
        &self,
        (namespace, name): (&str, &str),
        own: &str,
        is_workload: bool,
    ) -> Result<(), Unbound> {
        let none = BTreeMap::new();
        let of_namespace = self.objects.get(&ObjectKey::new(Kind::Namespace, "", own));
        let of_namespace = of_namespace.and_then(|it| it.metadata().labels.as_ref());
        let gateway = match self.objects.get(&ObjectKey::new(Kind::Gateway, namespace, name)) {
            Some(Typed::Gateway(gateway)) => Some(&**gateway),
            _ => None,
        };
        let class = gateway.map_or("", |it| it.spec.gateway_class_name.as_str());
        let class = match self.objects.get(&ObjectKey::new(Kind::GatewayClass, "", class)) {
            Some(Typed::GatewayClass(class)) => Some(&class.spec),
            _ => None,
        };
        let labels = of_namespace.unwrap_or(&none);
        binding(gateway, class, Bound { namespace: own, labels, is_workload })
    }
}

fn pods<'a>(key: &ObjectKey, typed: &'a Typed) -> Option<Pods<'a>> {
    let (metadata, spec) = match typed {
        Typed::Pod(pod) => (Some(&pod.metadata), pod.spec.as_ref()?),
        _ => {
            let template = typed.pod_template()?;
            (template.metadata.as_ref(), template.spec.as_ref()?)
        }
    };
    Some(Pods {
        name: key.name.to_string(),
        namespace: typed.metadata().namespace.as_deref().unwrap_or("default"),
        labels: metadata.and_then(|metadata| metadata.labels.as_ref()),
        spec,
        is_owned: typed.metadata().owner_references.as_ref().is_some_and(|all| !all.is_empty()),
        is_numbered: key.kind == Kind::StatefulSet,
    })
}

/// The labels by which a Service selects pods, if it does.
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())
}

fn selects(selector: &BTreeMap<String, String>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn has_port(spec: &PodSpec, name: &str) -> bool {
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| port.name.as_deref()).any(|it| it == name)
}

/// The path of a field of the pod in `typed`.
fn field(typed: &Typed, name: &str) -> String {
    match typed {
        Typed::Pod(_) => format!("spec.{name}"),
        typed => format!("{}.spec.{name}", typed.kind().template_at().unwrap_or("spec.template")),
    }
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
