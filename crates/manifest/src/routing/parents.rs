//! What a route attaches to: services of the mesh, Gateways, and what adds listeners to those.

use k8s_openapi::api::core::v1::Service;

use crate::istio::ServiceEntry;
use crate::routes::{GROUP, ParentRef, RouteSpec};

/// A service, Gateway or ListenerSet that a route attaches to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent<'a> {
    /// Its index in `parentRefs`.
    pub index: usize,
    /// What it is.
    pub kind: ParentKind,
    /// The parent's namespace.
    pub namespace: &'a str,
    /// The parent's name.
    pub name: &'a str,
    /// The reference as it is written.
    pub written: &'a ParentRef,
}

/// What a route attaches to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParentKind {
    /// A Service.
    Service,
    /// A ServiceEntry, all of its hosts.
    ServiceEntry,
    /// A Gateway. One at the edge takes it at its listeners ([`crate::gateway::attach`]); waypoints
    /// are asked for the routes of services.
    Gateway,
    /// A ListenerSet, which adds listeners to a Gateway. A route attaches to those alone.
    ListenerSet,
}

impl ParentKind {
    /// Whether routes attach to listeners of it.
    pub fn has_listeners(self) -> bool {
        matches!(self, Self::Gateway | Self::ListenerSet)
    }
}

/// A port of a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Its name; empty if it has none.
    pub name: String,
}

/// The services, Gateways and ListenerSets that a route of this namespace attaches to.
pub fn parents<'a, R: Default>(
    spec: &'a RouteSpec<R>,
    namespace: &'a str,
) -> impl Iterator<Item = Parent<'a>> {
    spec.parent_refs.iter().enumerate().filter_map(move |(index, written)| {
        let group = written.group.as_deref().unwrap_or(GROUP);
        let kind = match (group, written.kind.as_deref().unwrap_or("Gateway")) {
            ("", "Service") => ParentKind::Service,
            ("networking.istio.io", "ServiceEntry") => ParentKind::ServiceEntry,
            (GROUP, "Gateway") => ParentKind::Gateway,
            (GROUP, "ListenerSet") => ParentKind::ListenerSet,
            _ => return None,
        };
        let namespace = written.namespace.as_deref().unwrap_or(namespace);
        Some(Parent { index, kind, namespace, name: &written.name, written })
    })
}

impl Parent<'_> {
    /// The port of a service that the route attaches to, or `None` for all. `ports` are the
    /// parent's; it has none where it does not exist. An error says why the route does not attach.
    pub fn port(&self, ports: Option<&[Port]>) -> Result<Option<u16>, String> {
        let ParentRef { port, section_name, .. } = self.written;
        let kind = match self.kind {
            ParentKind::Service => "Service",
            ParentKind::ServiceEntry => "ServiceEntry",
            ParentKind::Gateway => "Gateway",
            ParentKind::ListenerSet => "ListenerSet",
        };
        let parent = format!("{kind} `{}/{}`", self.namespace, self.name);
        let Some(ports) = ports else { return Err(format!("the {parent} does not exist")) };
        if port.is_none() && section_name.is_none() {
            return Ok(None);
        }
        let is_meant = |it: &&Port| {
            port.is_none_or(|port| port == i64::from(it.number))
                && section_name.as_ref().is_none_or(|name| *name == it.name)
        };
        let named = section_name.as_deref().map(|name| format!(" called `{name}`"));
        let numbered = port.map(|port| format!(" {port}"));
        ports.iter().find(is_meant).map(|it| Some(it.number)).ok_or_else(|| {
            let (numbered, named) = (numbered.unwrap_or_default(), named.unwrap_or_default());
            format!("the {parent} has no port{numbered}{named}")
        })
    }
}

/// The ports of a Service that speak TCP.
pub fn service_ports(service: &Service) -> Vec<Port> {
    ports(service, "TCP")
}

/// The ports of a Service that speak UDP.
pub fn service_datagram_ports(service: &Service) -> Vec<Port> {
    ports(service, "UDP")
}

fn ports(service: &Service, protocol: &str) -> Vec<Port> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == protocol);
    let port =
        |number: u16, name: Option<&str>| Port { number, name: name.unwrap_or("").to_owned() };
    ports.filter_map(|it| Some(port(u16::try_from(it.port).ok()?, it.name.as_deref()))).collect()
}

/// The ports of a ServiceEntry.
pub fn entry_ports(entry: &ServiceEntry) -> Vec<Port> {
    let port = |number: u16, name: &str| Port { number, name: name.to_owned() };
    let ports = entry.spec.ports.iter();
    ports.filter_map(|it| Some(port(u16::try_from(it.number).ok()?, &it.name))).collect()
}
