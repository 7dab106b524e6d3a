//! AuthorizationPolicies: which are there, and which a workload must name.

use std::collections::BTreeSet;
use std::sync::Arc;

use ambit_manifest::istio::AuthorizationPolicy;
use ambit_manifest::{ObjectName, policy};
use ambit_model::names::{PolicyName, ServiceName};

use super::{Member, Store, replace, selector};
use crate::view_builder::{Dirty, Mesh};

impl Store {
    pub(super) fn put_policy(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        policy: Option<Arc<AuthorizationPolicy>>,
        dirty: &mut Dirty,
    ) {
        let old = self.policies.get(&name).cloned();
        for policy in old.iter().chain(&policy) {
            if let Some(labels) = selector(policy.spec.selector.as_ref()) {
                let is_root = name.namespace == mesh.root_namespace;
                dirty.members.extend(if is_root {
                    self.members.select_everywhere(labels)
                } else {
                    self.members.select(&name.namespace, labels)
                });
            }
            policy::services(policy).for_each(|service| self.mark_endpoints(mesh, &service, dirty));
        }
        for service in old.iter().flat_map(|policy| policy::services(policy)) {
            if let Some(attached) = self.attached_policies.get_mut(&service) {
                attached.remove(&name);
                if attached.is_empty() {
                    self.attached_policies.remove(&service);
                }
            }
        }
        for service in policy.iter().flat_map(|policy| policy::services(policy)) {
            self.attached_policies.entry(service).or_default().insert(name.clone());
        }
        let labels = policy.as_ref().and_then(|policy| selector(policy.spec.selector.as_ref()));
        match labels {
            Some(labels) => {
                let labels = Arc::new(labels.clone());
                self.policy_selectors.insert(&name.namespace, name.clone(), labels);
            }
            None => self.policy_selectors.remove(&name),
        }
        dirty.policies.insert(PolicyName::new(name.namespace.clone(), name.name.clone()));
        replace(&mut self.policies, name, policy);
    }

    /// Marks the endpoints of a Service.
    /// The policies that a workload must name: those that select it, those that are attached to the
    /// services that it serves, and that of its mutual TLS mode.
    pub(in crate::view_builder) fn policies_of<'a>(
        &self,
        mesh: &Mesh,
        member: &Member,
        served: impl Iterator<Item = &'a ServiceName>,
    ) -> Vec<PolicyName> {
        let Some(labels) = self.labels_of(member) else { return Vec::new() };
        let namespaces = [member.namespace(), &mesh.root_namespace];
        let mut found: BTreeSet<ObjectName> = namespaces
            .into_iter()
            .flat_map(|namespace| self.policy_selectors.selecting(namespace, &labels))
            .collect();
        if !self.attached_policies.is_empty() {
            let served = served.filter_map(|name| self.kubernetes_service(mesh, name));
            // A waypoint enforces what is attached to its services, and nobody comes around it.
            let served = served.filter(|(name, _)| !self.is_fronted(name));
            let attached = served.filter_map(|(name, _)| self.attached_policies.get(name));
            found.extend(attached.flatten().cloned());
        }
        let is_sent =
            |name: &ObjectName| self.policies.get(name).is_some_and(|it| policy::is_sent(it));
        let sent = found.into_iter().filter(is_sent);
        let mut names: BTreeSet<PolicyName> =
            sent.map(|name| PolicyName::new(name.namespace, name.name)).collect();
        let effective = self.effective(mesh, member.namespace(), &labels);
        names.extend(effective.policy_name(&mesh.root_namespace));
        names.into_iter().collect()
    }
}
