//! BackendTLSPolicies, and the services that they are for.

use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::backend_tls::BackendTlsPolicy;

use super::Store;
use crate::view_builder::backend_tls::BackendTlsPolicies;
use crate::view_builder::{Dirty, Mesh, services};

impl Store {
    pub(super) fn put_backend_tls(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        policy: Option<Arc<BackendTlsPolicy>>,
        dirty: &mut Dirty,
    ) {
        for service in self.backend_tls.put(name, policy) {
            dirty.services.insert(services::service_name(mesh, &service));
        }
    }

    /// The BackendTLSPolicies.
    pub(crate) fn backend_tls(&self) -> &BackendTlsPolicies {
        &self.backend_tls
    }
}
