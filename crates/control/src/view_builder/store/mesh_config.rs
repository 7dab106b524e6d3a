//! The mesh configuration.

use ambit_manifest::ObjectName;
use ambit_manifest::mesh_config::{self, MeshConfig, is_mesh_config};
use ambit_manifest::remarks::Remark;
use k8s_openapi::api::core::v1::ConfigMap;

use super::Store;
use crate::view_builder::records::Member;
use crate::view_builder::{Dirty, Mesh, services};

impl Store {
    /// Takes a ConfigMap: the mesh configuration, or one that may hold roots.
    /// What holds for requests may depend on the former for every service, and what pods may reach.
    pub(super) fn put_config_map(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        map: Option<&ConfigMap>,
        dirty: &mut Dirty,
    ) {
        if !is_mesh_config(name, &mesh.root_namespace) {
            return self.put_root_map(mesh, name, map, dirty);
        }
        let read = map.map(mesh_config::read).unwrap_or_default();
        if self.mesh_config == read {
            return;
        }
        for Remark { is_wrong, at, what, remedy } in &read.1 {
            let (field, object) = (at.as_str(), &*name.name);
            match is_wrong {
                true => tracing::error!(object, field, what, remedy, "the mesh configuration"),
                false => tracing::debug!(object, field, what, remedy, "the mesh configuration"),
            }
        }
        if self.mesh_config.0.registry_only != read.0.registry_only {
            dirty.members.extend(self.pods.keys().cloned().map(Member::Pod));
            dirty.members.extend(self.workload_entries.keys().cloned().map(Member::Entry));
        }
        self.mesh_config = read;
        let names = self.services.keys().map(|name| services::service_name(mesh, name));
        dirty.services.extend(names);
        dirty.services.extend(self.hosts.keys().cloned());
    }

    /// The mesh configuration.
    pub(crate) fn mesh_config(&self) -> &MeshConfig {
        &self.mesh_config.0
    }

    /// What of the mesh configuration is wrong or has no effect.
    pub(crate) fn mesh_config_remarks(&self) -> &[Remark] {
        &self.mesh_config.1
    }
}
