//! The ConfigMaps with patches of waypoints: of a class, and of a single Gateway.
//!
//! They are few and change seldom, so nobody watches them: they are read again every
//! [`AGAIN`], and at once when a Gateway names another one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::Gateway;
use ambit_manifest::waypoint::parameters::{self, Patches};
use ambit_words::labels::DEFAULTS_FOR_CLASS;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::Instant;

use super::{ApiError, answer};

/// How often they are read again.
const AGAIN: Duration = Duration::from_secs(10);
/// Most ConfigMaps of classes that are looked at.
const OF_CLASSES_MAX: u32 = 100;

/// Patches of one ConfigMap, or what is wrong with it.
type Read = Result<Patches, String>;

/// What is known of them.
#[derive(Default)]
pub(super) struct Parameters {
    /// When they are read again; never while no Gateway asks for a waypoint.
    due: Option<Instant>,
    /// Those that Gateways name.
    wanted: BTreeSet<ObjectName>,
    named: BTreeMap<ObjectName, Read>,
    /// By class.
    of_classes: BTreeMap<String, Read>,
}

impl Parameters {
    /// When they are to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Reads them, if it is time or these Gateways name others than before.
    pub(super) async fn look<'a>(
        &mut self,
        client: &Client,
        root_namespace: &str,
        gateways: impl Iterator<Item = (&'a ObjectName, &'a Gateway)>,
    ) -> Result<(), ApiError> {
        let mut has_any = false;
        let named = |(name, gateway): (&ObjectName, &Gateway)| {
            has_any = true;
            let config_map = parameters::config_map(gateway)?.ok()?;
            Some(ObjectName::new(&name.namespace, config_map))
        };
        let wanted: BTreeSet<ObjectName> = gateways.filter_map(named).collect();
        if !has_any {
            *self = Self::default();
            return Ok(());
        }
        let is_due = self.due.is_none_or(|due| due <= Instant::now());
        if !is_due && wanted == self.wanted {
            return Ok(());
        }
        self.of_classes = of_classes(client, root_namespace).await?;
        self.named.clear();
        for name in &wanted {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &name.namespace);
            let full = format!("ConfigMap {}/{}", name.namespace, name.name);
            let found = match answer(api.get_opt(&name.name)).await? {
                Some(found) => Patches::read(full, &found.data.unwrap_or_default()),
                None => Err(format!("{full} does not exist")),
            };
            self.named.insert(name.clone(), found);
        }
        self.wanted = wanted;
        self.due = Some(Instant::now() + AGAIN);
        Ok(())
    }

    /// The patches for a Gateway: those of its class, then those that it names.
    pub(super) fn of(&self, name: &ObjectName, gateway: &Gateway) -> Result<Vec<Patches>, String> {
        let mut patches = Vec::new();
        if let Some(of_class) = self.of_classes.get(&gateway.spec.gateway_class_name) {
            patches.push(of_class.clone()?);
        }
        if let Some(config_map) = parameters::config_map(gateway) {
            let named = ObjectName::new(&name.namespace, config_map?);
            let read = self.named.get(&named).cloned();
            patches.push(read.unwrap_or_else(|| Err("its patches were not read yet".to_owned()))?);
        }
        Ok(patches)
    }
}

/// Of each class the oldest ConfigMap that is labelled for it.
async fn of_classes(
    client: &Client,
    root_namespace: &str,
) -> Result<BTreeMap<String, Read>, ApiError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), root_namespace);
    let labelled = ListParams::default().labels(DEFAULTS_FOR_CLASS).limit(OF_CLASSES_MAX);
    let mut found = answer(api.list(&labelled)).await?.items;
    found.sort_by_key(|it| {
        let created = it.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, it.metadata.name.clone())
    });
    let mut of_classes = BTreeMap::new();
    for config_map in found {
        let labels = config_map.metadata.labels.unwrap_or_default();
        let Some(class) = labels.get(DEFAULTS_FOR_CLASS) else { continue };
        let name = config_map.metadata.name.unwrap_or_default();
        let full = format!("ConfigMap {root_namespace}/{name}");
        let read = || Patches::read(full, &config_map.data.unwrap_or_default());
        of_classes.entry(class.clone()).or_insert_with(read);
    }
    Ok(of_classes)
}
