//! BackendTLSPolicies: Services, ports and ConfigMaps that are not there, and policies that exclude
//! one another.

use super::All;
use crate::backend_tls::{self, BackendTlsPolicy, Roots, Target};
use crate::routing::service_ports;
use crate::{Finding, Kind, Object, ObjectKey, Typed};

impl All<'_> {
    /// Warns about what a policy names and is not there, and about others in its place.
    pub(super) fn backend_tls(
        &self,
        object: &Object,
        policy: &BackendTlsPolicy,
        warnings: &mut Vec<Finding>,
    ) {
        let own = backend_tls::read(policy);
        let namespace = &object.key.namespace;
        for target in &own.targets {
            let at = format!("spec.targetRefs[{}]", target.index);
            if let Some(what) = self.no_target(target) {
                warnings.push(object.finding(&at, what, "correct the name, or add the Service"));
            }
            for (key, other) in self.other_backend_tls(object) {
                let same = |it: &Target| (&it.service, &it.port) == (&target.service, &target.port);
                if backend_tls::read(other).targets.iter().any(same) {
                    let what = format!(
                        "BackendTLSPolicy {}/{} is for the same: the older of the two decides",
                        key.namespace, key.name
                    );
                    warnings.push(object.finding(&at, what, "remove one of the two"));
                }
            }
        }
        let Roots::In(named) = &own.roots else { return };
        for (index, it) in named.iter().enumerate().filter(|(_, it)| it.is_config_map()) {
            if !self.has(Kind::ConfigMap, namespace, &it.name) {
                let at = format!("spec.validation.caCertificateRefs[{index}]");
                let what = format!("the ConfigMap `{namespace}/{}` does not exist", it.name);
                warnings.push(object.finding(at, what, "correct the name, or add the ConfigMap"));
            }
        }
    }

    fn other_backend_tls(
        &self,
        object: &Object,
    ) -> impl Iterator<Item = (&ObjectKey, &BackendTlsPolicy)> {
        let own = object.key.clone();
        self.objects.iter().filter_map(move |(key, typed)| match typed {
            Typed::BackendTlsPolicy(policy) if *key != own && key.namespace == own.namespace => {
                Some((key, &**policy))
            }
            _ => None,
        })
    }

    /// Says if a Service, or its port that is meant, is not there.
    fn no_target(&self, target: &Target) -> Option<String> {
        let (namespace, name) = (&target.service.namespace, &target.service.name);
        let key = ObjectKey::new(Kind::Service, namespace, name);
        let Some(Typed::Service(service)) = self.objects.get(&key) else {
            return Some(format!("the Service `{namespace}/{name}` does not exist"));
        };
        let port = target.port.as_ref()?;
        let has_port = service_ports(service).iter().any(|it| *it.name == **port);
        (!has_port).then(|| format!("the Service `{namespace}/{name}` has no port called `{port}`"))
    }
}
