//! What Gateways at the edge and BackendTLSPolicies name for TLS: Secrets with certificates,
//! ConfigMaps with roots.

use std::collections::BTreeSet;

use ambit_manifest::ObjectName;
use ambit_manifest::mesh_config::is_mesh_config;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::Store;
use crate::view_builder::certificates::Certificates;
use crate::view_builder::client_roots::ClientRoots;
use crate::view_builder::{Dirty, Mesh, services};

/// All of them, whether they are named or not.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    certificates: Certificates,
    client_roots: ClientRoots,
}

impl Store {
    pub(super) fn put_secret(
        &mut self,
        name: ObjectName,
        secret: Option<&Secret>,
        dirty: &mut Dirty,
    ) {
        dirty.gateways.extend(self.gateways.with_secret(&name).cloned());
        self.credentials.certificates.put(name, secret);
    }

    pub(super) fn put_root_map(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        map: Option<&ConfigMap>,
        dirty: &mut Dirty,
    ) {
        if self.credentials.client_roots.put(name, map) {
            dirty.gateways.extend(self.gateways.with_root_map(name).cloned());
            let services = self.backend_tls.with_root_map(name);
            dirty.services.extend(services.map(|it| services::service_name(mesh, it)));
        }
    }

    /// The Secrets with certificates.
    pub(crate) fn certificates(&self) -> &Certificates {
        &self.credentials.certificates
    }

    /// The ConfigMaps that may hold roots.
    pub(in crate::view_builder) fn client_roots(&self) -> &ClientRoots {
        &self.credentials.client_roots
    }

    /// The ConfigMaps with roots that Gateways at the edge and BackendTLSPolicies name. The mesh
    /// configuration is none: it has a reader of its own, and nobody's reference may take its
    /// place.
    pub(crate) fn named_root_maps(&self, mesh: &Mesh) -> BTreeSet<ObjectName> {
        let mut named = self.gateways.root_maps();
        named.extend(self.backend_tls.root_maps());
        named.retain(|it| !is_mesh_config(it, &mesh.root_namespace));
        named
    }
}
