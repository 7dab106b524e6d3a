//! The authorization services that CUSTOM policies ask, of the mesh configuration.
//!
//! A provider that is not there, is wrong, or names a service that does not exist, stays a
//! provider: one that denies, and says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::mesh_config::{ExtAuthz, Provider, ProviderService};
use ambit_manifest::routing::Backends as _;
use ambit_model::Text;
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::policy::{Action, RequestPolicy};
use ambit_model::http::rule::Destination;
use ambit_model::names::ServiceName;

use super::Mesh;
use super::hosts::full;
use super::http_services::Present;
use super::store::Store;

/// The provider that a policy asks, if it asks one.
pub(super) fn provider(policy: &RequestPolicy) -> Option<&Text> {
    match &policy.action {
        Action::Custom(provider) => Some(provider),
        Action::Allow | Action::Deny | Action::Audit => None,
    }
}

/// What the policies that hold for a service ask.
pub(super) fn of_policies<'a>(
    present: &Present<'_>,
    policies: impl Iterator<Item = &'a RequestPolicy>,
) -> BTreeMap<Text, Arc<Authorizer>> {
    let names: BTreeSet<&Text> = policies.filter_map(provider).collect();
    let named = names.into_iter().map(|name| {
        let found = find(present, name).unwrap_or_else(Authorizer::missing);
        (name.clone(), Arc::new(found))
    });
    named.collect()
}

/// The provider of this name, or why nobody can ask it.
pub(super) fn find(present: &Present<'_>, name: &str) -> Result<Authorizer, String> {
    let config = present.store.mesh_config();
    let provider = match config.providers.get(name) {
        Some(Provider::ExtAuthz(provider)) => provider,
        Some(Provider::Telemetry(_)) => {
            return Err(format!("the provider {name} is none that authorizes"));
        }
        Some(Provider::Unusable(why)) => return Err(format!("the provider {name}: {why}")),
        None => {
            let why = match &config.unreadable {
                Some(problem) => format!("the mesh configuration cannot be read: {problem}"),
                None => {
                    "it is not among the extensionProviders of the mesh configuration".to_owned()
                }
            };
            return Err(format!("the provider {name} does not exist: {why}"));
        }
    };
    let ExtAuthz { service, check } = provider;
    let hostname = hostname(present.mesh, service);
    let root = &*present.mesh.root_namespace;
    let namespace = service.namespace.as_deref().unwrap_or(root);
    let known = present.host(namespace, &hostname);
    let known = known.filter(|known| {
        service.namespace.as_deref().is_none_or(|namespace| *known.name.namespace == *namespace)
    });
    let Some(known) = known else {
        let given = service.namespace.as_deref().map(|it| format!("{it}/")).unwrap_or_default();
        return Err(format!("the service {given}{hostname} of the provider {name} does not exist"));
    };
    let port = service.port;
    if !known.ports.iter().any(|it| it.number == port) {
        return Err(format!(
            "the service {} of the provider {name} has no port {port}",
            known.name
        ));
    }
    let destination = Destination::Service { name: known.name, port, subset: None };
    Ok(Authorizer { destination, check: check.clone() })
}

fn hostname(mesh: &Mesh, service: &ProviderService) -> Text {
    let namespace = service.namespace.as_deref().unwrap_or(&mesh.root_namespace);
    full(&mesh.domain, &service.host, namespace)
}

/// Whether a provider is one of these services.
pub(super) fn is_among(mesh: &Mesh, store: &Store, services: &BTreeSet<ServiceName>) -> bool {
    let providers = store.mesh_config().providers.values();
    let hosts: BTreeSet<Text> = providers
        .filter_map(|it| match it {
            Provider::ExtAuthz(it) => Some(hostname(mesh, &it.service)),
            Provider::Telemetry(it) => Some(hostname(mesh, &it.export()?.service)),
            Provider::Unusable(_) => None,
        })
        .collect();
    !hosts.is_empty() && services.iter().any(|it| hosts.contains(&it.hostname))
}
