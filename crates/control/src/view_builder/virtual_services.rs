//! VirtualServices, and which services they are for.
//!
//! One counts if it is in the namespace of the service's waypoint, or in the service's own and
//! exported to the waypoint's. Its routes are read for each port of a service. Nothing here says
//! what a route means; `ambit_manifest::routing` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::remarks::Remark;
use ambit_manifest::routing::{self, Around, Port, VirtualRouting};
use ambit_manifest::virtual_service::VirtualService;
use ambit_model::Text;
use ambit_model::http::bytes::BytesRule;
use ambit_model::http::service::RouteGroup;
use ambit_model::names::ServiceName;

use super::Mesh;
use super::hosts::{ByHost, full, is_exported};
use super::http_services::Present;

/// All VirtualServices.
#[derive(Debug, Default)]
pub(crate) struct VirtualServices {
    all: BTreeMap<ObjectName, Arc<VirtualService>>,
    by_host: ByHost,
    by_destination: ByHost,
    by_delegate: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
}

impl VirtualServices {
    /// Puts or removes one; answers with the hosts, in full, whose requests it or one that
    /// delegates to it routes.
    pub(super) fn put(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        service: Option<Arc<VirtualService>>,
    ) -> BTreeSet<Text> {
        let mut hosts = self.hosts(mesh, name);
        if let Some(old) = self.all.remove(name) {
            for host in hosts_of(mesh, name, &old) {
                self.by_host.remove(&host, name);
            }
            for host in old.spec.destinations() {
                self.by_destination.remove(&full(&mesh.domain, host, &name.namespace), name);
            }
            for delegate in delegates_of(name, &old) {
                if let Some(roots) = self.by_delegate.get_mut(&delegate) {
                    roots.remove(name);
                }
            }
            self.by_delegate.retain(|_, roots| !roots.is_empty());
        }
        if let Some(service) = service {
            for host in hosts_of(mesh, name, &service) {
                self.by_host.insert(host, name);
            }
            for host in service.spec.destinations() {
                self.by_destination.insert(full(&mesh.domain, host, &name.namespace), name);
            }
            for delegate in delegates_of(name, &service) {
                self.by_delegate.entry(delegate).or_default().insert(name.clone());
            }
            self.all.insert(name.clone(), service);
        }
        hosts.extend(self.hosts(mesh, name));
        hosts
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Arc<VirtualService>)> {
        self.all.iter()
    }

    /// The hosts, in full, whose requests one of those that send to the service of this hostname
    /// routes.
    pub(super) fn routing_to(&self, mesh: &Mesh, hostname: &str) -> BTreeSet<Text> {
        let naming = self.by_destination.naming(hostname).into_iter();
        naming.flat_map(|(_, name)| self.hosts(mesh, name)).collect()
    }

    /// The hosts, in full, of one and of those that delegate to it.
    fn hosts(&self, mesh: &Mesh, name: &ObjectName) -> BTreeSet<Text> {
        let roots = self.by_delegate.get(name).into_iter().flatten();
        let all = roots.chain([name]).filter_map(|name| self.all.get_key_value(name));
        all.flat_map(|(name, it)| hosts_of(mesh, name, it)).collect()
    }

    /// The routes of requests and of connections for a service whose waypoint is in `client`.
    pub(super) fn groups(
        &self,
        present: &Present<'_>,
        service: &ServiceName,
        ports: &[Port],
        client: &str,
    ) -> (Vec<RouteGroup>, Vec<RouteGroup<BytesRule>>) {
        let (mut groups, mut bytes) = (Vec::new(), Vec::new());
        for (_, name) in self.by_host.naming(&service.hostname) {
            let Some(it) = self.all.get(name) else { continue };
            let is_here = *name.namespace == *client || name.namespace == service.namespace;
            let is_visible = *name.namespace == *client
                || is_exported(&it.spec.export_to, &name.namespace, client);
            if !is_here || !is_visible || !it.spec.is_of_mesh() {
                continue;
            }
            let at = |port: &Port| (port.number, self.read(present, it, port.number));
            let read: Vec<_> = ports.iter().map(at).collect();
            groups.extend(grouped(&read, |it| &it.rules));
            bytes.extend(grouped(&read, |it| &it.connections));
        }
        (groups, bytes)
    }

    fn read(&self, present: &Present<'_>, it: &VirtualService, port: u16) -> VirtualRouting {
        let delegates = |namespace: &str, name: &str| self.delegate(it, namespace, name);
        let around = Around { backends: present, delegates: &delegates };
        routing::virtual_service(it, &around, Some(port))
    }

    /// What of one is wrong, is not honoured, or is not there.
    pub(super) fn remarks(&self, present: &Present<'_>, it: &VirtualService) -> Vec<Remark> {
        let delegates = |namespace: &str, name: &str| self.delegate(it, namespace, name);
        let around = Around { backends: present, delegates: &delegates };
        let (mut remarks, missing) = routing::remarks_at_ports(it, &around);
        remarks.extend(missing);
        remarks
    }

    fn delegate(
        &self,
        root: &VirtualService,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<VirtualService>> {
        let own = root.metadata.namespace.as_deref().unwrap_or_default();
        let delegate = self.all.get(&ObjectName::new(namespace, name))?;
        let is_visible = is_exported(&delegate.spec.export_to, namespace, own);
        (delegate.spec.hosts.is_empty() && is_visible).then(|| delegate.clone())
    }
}

/// Rules as they are at each port, as groups: one if they are the same everywhere.
fn grouped<R: PartialEq>(
    read: &[(u16, VirtualRouting)],
    rules: impl Fn(&VirtualRouting) -> &Vec<Arc<R>>,
) -> Vec<RouteGroup<R>> {
    let is_same = read.windows(2).all(|pair| rules(&pair[0].1) == rules(&pair[1].1));
    let group = |port, read: &VirtualRouting| {
        let rules = rules(read).clone();
        RouteGroup { client_namespace: None, port, rules }
    };
    let mut groups: Vec<RouteGroup<R>> = match read.first() {
        Some((_, read)) if is_same => vec![group(None, read)],
        _ => read.iter().map(|(port, read)| group(Some(*port), read)).collect(),
    };
    groups.retain(|group| !group.rules.is_empty());
    groups
}

fn hosts_of(mesh: &Mesh, name: &ObjectName, service: &VirtualService) -> Vec<Text> {
    service.spec.hosts.iter().map(|host| full(&mesh.domain, host, &name.namespace)).collect()
}

fn delegates_of(name: &ObjectName, service: &VirtualService) -> Vec<ObjectName> {
    let delegates = service.spec.delegates();
    let delegates = delegates
        .map(|it| ObjectName::new(it.namespace.as_deref().unwrap_or(&name.namespace), &it.name));
    delegates.collect()
}
