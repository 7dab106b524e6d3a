//! Texts that repeat, kept once.
//!
//! The pods of a Deployment share namespace, account, labels and services, but each comes off the
//! wire with its own copies. Code that fills a view passes every workload through an [`Interner`]
//! first. It keeps nothing alive for long: each time it has doubled, it drops the texts that
//! nothing else uses.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use crate::names::ServiceName;
use crate::workload::{GatewayAddress, Locality, PortMapping, Template, Workload};

/// How many entries an interner has at least before it looks for unused ones.
const SWEEP_MIN: usize = 1024;

/// Replaces equal texts by one.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Pool<str>,
    gateways: Pool<GatewayAddress>,
    localities: Pool<Locality>,
    services: Pool<BTreeMap<ServiceName, Vec<PortMapping>>>,
    templates: Pool<Template>,
}

impl Interner {
    /// Shares what this workload has in common with others; its uid, name and addresses stay its
    /// own. The workload stays equal to the original.
    pub fn workload(&mut self, workload: &mut Workload) {
        self.localities.share(&mut workload.locality);
        self.texts.share(&mut workload.node);
        if workload.workload_name == workload.name {
            workload.workload_name = workload.name.clone();
        } else {
            self.texts.share(&mut workload.workload_name);
        }
        if !self.templates.holds(&workload.template) {
            self.template(workload);
        }
        self.templates.share(&mut workload.template);
    }

    /// Templates, too, have much in common.
    fn template(&mut self, template: &mut Template) {
        for gateway in [&mut template.waypoint, &mut template.network_gateway] {
            gateway.iter_mut().for_each(|gateway| self.gateways.share(gateway));
        }
        if !self.services.holds(&template.services) {
            let services = Arc::unwrap_or_clone(std::mem::take(&mut template.services));
            let services = services.into_iter().map(|(name, ports)| (self.service(name), ports));
            template.services = Arc::new(services.collect());
        }
        self.services.share(&mut template.services);
        for text in [
            &mut template.namespace,
            &mut template.hostname,
            &mut template.network,
            &mut template.trust_domain,
            &mut template.service_account,
            &mut template.canonical_name,
            &mut template.canonical_revision,
            &mut template.cluster_id,
        ] {
            self.texts.share(text);
        }
        for policy in &mut template.policies {
            self.texts.share(&mut policy.namespace);
            self.texts.share(&mut policy.name);
        }
        template.policies.shrink_to_fit();
    }

    fn service(&mut self, mut name: ServiceName) -> ServiceName {
        self.texts.share(&mut name.namespace);
        self.texts.share(&mut name.hostname);
        name
    }
}

/// Values of one kind, each once.
#[derive(Debug)]
pub struct Pool<T: ?Sized> {
    held: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { held: HashSet::new(), sweep_at: SWEEP_MIN }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    fn holds(&self, value: &Arc<T>) -> bool {
        self.held.contains(value)
    }

    /// Replaces `value` by the one that is held, or holds it.
    pub fn share(&mut self, value: &mut Arc<T>) {
        if let Some(held) = self.held.get(value) {
            *value = held.clone();
            return;
        }
        if self.held.len() >= self.sweep_at {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.sweep_at = (2 * self.held.len()).max(SWEEP_MIN);
        }
        self.held.insert(value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;

    fn pod(index: usize, service: &str) -> Workload {
        let mut pod =
            Workload::named(format!("c//Pod/app/web-{index}"), "app", format!("web-{index}"));
        let ports = vec![PortMapping {
            service_port: 80,
            target_port: 8080,
            app_protocol: Default::default(),
        }];
        pod.serve(ServiceName::new("app", service), ports);
        pod.node = Text::from(format!("node-{}", index % 2));
        pod
    }

    #[test]
    fn what_repeats_is_kept_once_and_nothing_changes() {
        let mut interner = Interner::default();
        let mut pods: Vec<Workload> = (0..4).map(|index| pod(index, "web.app")).collect();
        let before = pods.clone();
        pods.iter_mut().for_each(|pod| interner.workload(pod));
        assert_eq!(pods, before);
        assert!(Arc::ptr_eq(&pods[0].template, &pods[3].template));
        assert!(Arc::ptr_eq(&pods[1].node, &pods[3].node));
        let mut other = pod(4, "other.app");
        interner.workload(&mut other);
        assert!(Arc::ptr_eq(&pods[0].namespace, &other.namespace));
        let mut elsewhere = pods[0].clone();
        elsewhere.canonical_name = "other".into();
        interner.workload(&mut elsewhere);
        assert!(Arc::ptr_eq(&pods[0].services, &elsewhere.services));
    }

    #[test]
    fn what_nobody_uses_is_dropped() {
        let mut interner = Interner::default();
        for index in 0..20 * SWEEP_MIN {
            interner.workload(&mut pod(index, &format!("web-{index}.app")));
        }
        // Templates hold services, and both hold texts: each lets go when its own turn comes.
        let texts = interner.texts.held.len();
        assert!(texts <= 4 * SWEEP_MIN, "{texts} texts held");
        assert!(interner.services.held.len() <= 2 * SWEEP_MIN);
        assert!(interner.templates.held.len() <= 2 * SWEEP_MIN);
    }
}
