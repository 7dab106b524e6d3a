//! DestinationRules, and what they say of a service.
//!
//! Asked is the namespace of the service's waypoint, then the service's own, then the root
//! namespace; the first that has a rule for the host decides, by its most specific host. Rules for
//! the same host add up from old to young: the first traffic policy counts, and the first subset of
//! each name (Istio's order). One that cannot be read refuses the host's requests, whatever the
//! others say.

use std::collections::BTreeMap;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::destination_rule::DestinationRule;
use ambit_manifest::remarks::Remark;
use ambit_manifest::routing::ParentKind;
use ambit_manifest::traffic::{self, DestinationTraffic};
use ambit_model::Text;
use ambit_model::http::service::{Subset, Traffic};
use ambit_model::names::ServiceName;

use super::Mesh;
use super::entries::endpoint_uid;
use super::hosts::{ByHost, full, is_exported};
use super::http_services::Present;
use super::routes::ParentName;
use super::selectors::{Labels, selects};
use super::store::age;

/// All DestinationRules.
#[derive(Debug, Default)]
pub(crate) struct DestinationRules {
    rules: BTreeMap<ObjectName, (Arc<DestinationRule>, DestinationTraffic)>,
    by_host: ByHost,
}

/// What DestinationRules say of a service.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) traffic: Traffic,
    pub(super) subsets: BTreeMap<Text, Subset>,
}

impl DestinationRules {
    /// Puts or removes a rule; answers with the hosts, in full, of which it says something.
    pub(super) fn put(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        rule: Option<Arc<DestinationRule>>,
    ) -> Vec<Text> {
        let host = |rule: &DestinationRule| full(&mesh.domain, &rule.spec.host, &name.namespace);
        let mut hosts = Vec::new();
        if let Some((old, _)) = self.rules.remove(name) {
            self.by_host.remove(&host(&old), name);
            hosts.push(host(&old));
        }
        if let Some(rule) = rule {
            self.by_host.insert(host(&rule), name);
            hosts.push(host(&rule));
            let read = traffic::read(&rule);
            self.rules.insert(name.clone(), (rule, read));
        }
        hosts
    }

    /// All rules, with what of each is wrong or is not honoured.
    pub(crate) fn iter(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<DestinationRule>, &[Remark])> {
        self.rules.iter().map(|(name, (rule, read))| (name, rule, &read.remarks[..]))
    }

    /// What holds for a service that clients reach from this namespace.
    pub(super) fn of_service(
        &self,
        present: &Present<'_>,
        service: &ServiceName,
        owner: &ParentName,
        client: &str,
    ) -> Said {
        let mut said = Said::default();
        let found = self.deciding(present.mesh, service, client);
        let found: Vec<&DestinationTraffic> = found.into_iter().map(|(_, read)| read).collect();
        if let Some(refused) = found.iter().find(|it| it.is_refused) {
            said.traffic = refused.traffic.clone().unwrap_or_default();
            return said;
        }
        let traffic = found.iter().find_map(|it| it.traffic.clone());
        for subset in found.iter().flat_map(|it| &it.subsets) {
            said.subsets.entry(subset.name.clone()).or_insert_with(|| {
                let members = members(present, owner, &subset.labels);
                Subset::new(members, subset.traffic.clone())
            });
        }
        said.traffic = traffic.unwrap_or_default();
        said
    }

    /// Whether a subset of a service is defined for clients of this namespace.
    pub(super) fn has_subset(
        &self,
        mesh: &Mesh,
        service: &ServiceName,
        client: &str,
        subset: &str,
    ) -> bool {
        let rules = self.deciding(mesh, service, client);
        // Of one that cannot be read it is not known.
        rules.iter().any(|(_, it)| it.is_refused || it.subset(subset).is_some())
    }

    /// The rule that says how requests to a service, or to a subset of it, are spread and bounded.
    pub(super) fn deciding_traffic(
        &self,
        mesh: &Mesh,
        service: &ServiceName,
        client: &str,
        subset: Option<&str>,
    ) -> Option<&ObjectName> {
        let found = self.deciding(mesh, service, client);
        let first = |says: &dyn Fn(&DestinationTraffic) -> bool| {
            found.iter().find(|(_, it)| says(it)).map(|(name, _)| *name)
        };
        let of_subset = |name: &str| {
            let (name, it) = found.iter().find_map(|(rule, it)| Some((rule, it.subset(name)?)))?;
            it.traffic.is_some().then_some(*name)
        };
        let refused = first(&|it| it.is_refused);
        let of_subset = || subset.and_then(of_subset);
        refused.or_else(of_subset).or_else(|| first(&|it| it.traffic.is_some()))
    }

    /// The rules that decide, from old to young.
    fn deciding(
        &self,
        mesh: &Mesh,
        service: &ServiceName,
        client: &str,
    ) -> Vec<(&ObjectName, &DestinationTraffic)> {
        let naming = self.by_host.naming(&service.hostname);
        if naming.is_empty() {
            return Vec::new();
        }
        for namespace in [client, &service.namespace, &mesh.root_namespace] {
            let here = naming.iter().filter_map(|(host, name)| {
                let (name, (rule, read)) = self.rules.get_key_value(*name)?;
                let is_visible = namespace == client
                    || is_exported(&rule.spec.export_to, &name.namespace, client);
                let counts = *name.namespace == *namespace
                    && is_visible
                    && rule.spec.workload_selector.is_none();
                counts.then_some((*host, name, rule, read))
            });
            let mut here: Vec<_> = here.collect();
            let Some((most_specific, ..)) = here.first().copied() else { continue };
            here.retain(|(host, ..)| *host == most_specific);
            here.sort_by(|one, other| {
                age(&one.2.metadata, one.1).cmp(&age(&other.2.metadata, other.1))
            });
            return here.into_iter().map(|(_, name, _, read)| (name, read)).collect();
        }
        Vec::new()
    }
}

/// Uids of the workloads of a service that carry these labels. Some may be no endpoints of it.
fn members(present: &Present<'_>, owner: &ParentName, labels: &Labels) -> Vec<Text> {
    let Present { mesh, store, .. } = present;
    let (kind, object) = owner;
    let (selector, listed) = match kind {
        ParentKind::Service => (store.service(object).map(|it| (*it.selector).clone()), None),
        ParentKind::ServiceEntry => {
            let entry = store.service_entry(object);
            let selector = entry.and_then(|it| it.spec.workload_selector.as_ref());
            (selector.map(|it| it.labels.clone()), entry.map(|it| &it.spec.endpoints))
        }
        ParentKind::Gateway | ParentKind::ListenerSet => (None, None),
    };
    let selected = selector.and_then(|selector| both(selector, labels));
    let selected = selected.into_iter().flat_map(|it| store.select(&object.namespace, &it));
    let listed = listed.into_iter().flatten().filter(|it| selects(labels, &it.labels));
    let listed = listed.map(|it| endpoint_uid(mesh, object, &it.address).into());
    selected.map(|it| store.uid(mesh, &it)).chain(listed).collect()
}

/// The labels that both ask for; `None` where they contradict each other.
fn both(mut selector: Labels, labels: &Labels) -> Option<Labels> {
    for (key, value) in labels {
        if selector.insert(key.clone(), value.clone()).is_some_and(|other| other != *value) {
            return None;
        }
    }
    Some(selector)
}
