//! DestinationRules, VirtualServices and TrafficPolicies, and the services that they mean.

use std::collections::BTreeSet;
use std::sync::Arc;

use ambit_manifest::destination_rule::DestinationRule;
use ambit_manifest::traffic_policy::{TargetKind, TrafficPolicy};
use ambit_manifest::virtual_service::VirtualService;
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::names::ServiceName;

use super::Store;
use crate::view_builder::destination_rules::DestinationRules;
use crate::view_builder::hosts::means;
use crate::view_builder::records::Member;
use crate::view_builder::routes::parent_name;
use crate::view_builder::selectors::Labels;
use crate::view_builder::traffic_policies::TrafficPolicies;
use crate::view_builder::virtual_services::VirtualServices;
use crate::view_builder::{Dirty, Mesh, services};

impl Store {
    pub(super) fn put_destination_rule(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        rule: Option<Arc<DestinationRule>>,
        dirty: &mut Dirty,
    ) {
        for host in self.destination_rules.put(mesh, name, rule) {
            dirty.services.extend(self.services_of_host(mesh, &host));
        }
    }

    pub(super) fn put_virtual_service(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        service: Option<Arc<VirtualService>>,
        dirty: &mut Dirty,
    ) {
        for host in self.virtual_services.put(mesh, name, service) {
            dirty.services.extend(self.services_of_host(mesh, &host));
        }
    }

    pub(super) fn put_traffic_policy(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        policy: Option<Arc<TrafficPolicy>>,
        dirty: &mut Dirty,
    ) {
        for target in self.traffic_policies.put(mesh, name, policy) {
            let kind = match target.kind {
                TargetKind::Service => {
                    dirty.services.insert(services::service_name(mesh, &target.name));
                    continue;
                }
                TargetKind::Gateway => {
                    // Any service may name it.
                    let all = self.services.keys();
                    dirty.services.extend(all.map(|it| services::service_name(mesh, it)));
                    dirty.services.extend(self.hosts.keys().cloned());
                    continue;
                }
                TargetKind::HttpRoute => Kind::HttpRoute,
                TargetKind::GrpcRoute => Kind::GrpcRoute,
            };
            if let Some(route) = self.routes.get(&(kind, target.name)) {
                dirty.parents.extend(route.parents().iter().map(parent_name));
            }
        }
    }

    /// The services that a host, in full, means.
    pub(in crate::view_builder) fn services_of_host(
        &self,
        mesh: &Mesh,
        host: &Text,
    ) -> BTreeSet<ServiceName> {
        let entries = self.hosts.keys().filter(|it| means(host, &it.hostname)).cloned();
        let mut found: BTreeSet<ServiceName> = entries.collect();
        if host.starts_with('*') {
            let names = self.services.keys().map(|name| services::service_name(mesh, name));
            found.extend(names.filter(|it| means(host, &it.hostname)));
            return found;
        }
        let suffix = format!(".svc.{}", mesh.domain);
        let short = host.strip_suffix(suffix.as_str()).and_then(|it| it.split_once('.'));
        let service = short.map(|(name, namespace)| ObjectName::new(namespace, name));
        let service = service.filter(|name| self.services.contains_key(name));
        found.extend(service.map(|name| services::service_name(mesh, &name)));
        found
    }

    /// The DestinationRules.
    pub(crate) fn destination_rules(&self) -> &DestinationRules {
        &self.destination_rules
    }

    /// The VirtualServices.
    pub(crate) fn virtual_services(&self) -> &VirtualServices {
        &self.virtual_services
    }

    /// The TrafficPolicies.
    pub(crate) fn traffic_policies(&self) -> &TrafficPolicies {
        &self.traffic_policies
    }

    /// The members of a namespace that carry these labels.
    pub(in crate::view_builder) fn select(&self, namespace: &str, labels: &Labels) -> Vec<Member> {
        self.members.select(namespace, labels)
    }
}
