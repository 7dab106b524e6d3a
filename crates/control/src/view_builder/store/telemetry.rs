//! Telemetry objects: which are there, and what they say for the requests to a service.

use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::mesh_config::ProviderService;
use ambit_manifest::remarks::Remark;
use ambit_manifest::routing::Backends as _;
use ambit_manifest::telemetry::effective::{effective, remarks, targets};
use ambit_manifest::telemetry::{self, Said, Telemetry};
use ambit_model::http;
use ambit_model::names::ServiceName;

use crate::view_builder::hosts::full;
use crate::view_builder::http_services::{Present, clients_namespace};
use crate::view_builder::request_policies::{Held, Scope};
use crate::view_builder::store::{Store, age, selector};
use crate::view_builder::{Dirty, Mesh, services};

impl Store {
    /// Puts or removes an object. One of a waypoint's namespace holds for services of others.
    pub(super) fn put_telemetry(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        object: Option<Arc<Telemetry>>,
        dirty: &mut Dirty,
    ) {
        let names = self.services.keys().map(|name| services::service_name(mesh, name));
        dirty.services.extend(names);
        dirty.services.extend(self.hosts.keys().cloned());
        match object {
            Some(object) => {
                let said = telemetry::read(&object);
                self.telemetries.insert(name, (object, said));
            }
            None => drop(self.telemetries.remove(&name)),
        }
    }

    /// All Telemetry objects.
    pub(crate) fn telemetries(&self) -> impl Iterator<Item = (&ObjectName, &Arc<Telemetry>)> {
        self.telemetries.iter().map(|(name, (object, _))| (name, object))
    }

    /// What of an object is wrong, or is not honoured.
    pub(in crate::view_builder) fn telemetry_remarks(
        present: &Present<'_>,
        name: &ObjectName,
    ) -> Vec<Remark> {
        let Some((object, said)) = present.store.telemetries.get(name) else { return Vec::new() };
        let (root, mesh) = (&*present.mesh.root_namespace, present.store.mesh_config());
        let missing = remarks(object, said, root, mesh, &|it| find(present, it));
        said.remarks.iter().cloned().chain(missing).collect()
    }

    /// Whether an object holds for the requests to a service.
    pub(in crate::view_builder) fn is_told(
        present: &Present<'_>,
        name: &ObjectName,
        held: &Held<'_>,
    ) -> bool {
        let object = present.store.telemetries.get(name);
        object.is_some_and(|(object, _)| width(present, (name, object), held).is_some())
    }

    /// What holds for the requests to a service: what the root namespace says, then its waypoint's
    /// namespace, then its own, then what is attached to the service or its waypoint. In one scope
    /// the oldest object counts most.
    pub(in crate::view_builder) fn telemetry(
        present: &Present<'_>,
        held: &Held<'_>,
    ) -> http::telemetry::Telemetry {
        let mut found = Vec::new();
        for (name, (object, said)) in &present.store.telemetries {
            let Some(width) = width(present, (name, object), held) else { continue };
            found.push((width, age(&object.metadata, name), said));
        }
        found.sort_by(|one, other| one.0.cmp(&other.0).then_with(|| other.1.cmp(&one.1)));
        let said: Vec<&Said> = found.into_iter().map(|(.., said)| said).collect();
        effective(&said, present.store.mesh_config(), &|it| find(present, it))
    }
}

/// How narrow the scope is in which an object holds for the requests to a service; `None` if it
/// does not hold for them.
fn width(
    present: &Present<'_>,
    (name, object): (&ObjectName, &Telemetry),
    held: &Held<'_>,
) -> Option<u8> {
    let mesh = present.mesh;
    let client = || clients_namespace(present.view, held.name);
    match targets(object, &mesh.root_namespace) {
        Ok(targets) if !targets.is_empty() => {
            Scope::Targets(targets).holds(mesh, &name.namespace, held).then_some(3)
        }
        Err(_) => None,
        Ok(_) if selector(object.spec.selector.as_ref()).is_some() => None,
        Ok(_) if name.namespace == held.name.namespace => Some(2),
        Ok(_) if name.namespace == client() => Some(1),
        Ok(_) if name.namespace == mesh.root_namespace => Some(0),
        Ok(_) => None,
    }
}

fn find(present: &Present<'_>, provider: &ProviderService) -> Option<ServiceName> {
    let root = &*present.mesh.root_namespace;
    let namespace = provider.namespace.as_deref().unwrap_or(root);
    let hostname = full(&present.mesh.domain, &provider.host, namespace);
    let known = present.host(namespace, &hostname)?.name;
    let is_meant = provider.namespace.as_deref().is_none_or(|it| *known.namespace == *it);
    is_meant.then_some(known)
}
