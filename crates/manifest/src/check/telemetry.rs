//! Telemetry objects: providers that the mesh configuration does not have, or whose service is not
//! there.

use ambit_model::names::ServiceName;
use ambit_words::names::{DEFAULT_MESH_NAMESPACE, MESH_CONFIG_MAP};

use super::All;
use crate::mesh_config::{self, MeshConfig, ProviderService};
use crate::telemetry::effective::remarks;
use crate::telemetry::{self, Telemetry};
use crate::{Finding, Kind, Object, ObjectKey, Typed};

impl All<'_> {
    /// The mesh configuration, once the input is applied.
    pub(super) fn mesh_config(&self) -> MeshConfig {
        let key = ObjectKey::new(Kind::ConfigMap, DEFAULT_MESH_NAMESPACE, MESH_CONFIG_MAP);
        match self.objects.get(&key) {
            Some(Typed::ConfigMap(map)) => mesh_config::read(map).0,
            _ => MeshConfig::default(),
        }
    }

    /// The service of a provider, if it is there.
    pub(super) fn provider_service(&self, provider: &ProviderService) -> Option<ServiceName> {
        let namespace = provider.namespace.as_deref().unwrap_or(DEFAULT_MESH_NAMESPACE);
        self.known(namespace, &provider.host).map(|known| known.name)
    }

    /// Warns about what a Telemetry names and is not there.
    pub(super) fn told(&self, object: &Object, telemetry: &Telemetry, warnings: &mut Vec<Finding>) {
        let said = telemetry::read(telemetry);
        let find = |provider: &ProviderService| self.provider_service(provider);
        let (root, mesh) = (DEFAULT_MESH_NAMESPACE, self.mesh_config());
        for remark in remarks(telemetry, &said, root, &mesh, &find) {
            warnings.push(object.finding(remark.at.as_str(), remark.what, remark.remedy));
        }
    }
}
