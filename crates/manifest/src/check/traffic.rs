//! VirtualServices and DestinationRules: hosts and delegates that are not there.

use std::sync::Arc;

use super::All;
use crate::destination_rule::DestinationRule;
use crate::routing::{self, Around};
use crate::virtual_service::VirtualService;
use crate::{Finding, Kind, Object, ObjectKey, Typed};

impl All<'_> {
    /// Warns about what a VirtualService names and is not there.
    pub(super) fn virtual_service(
        &self,
        object: &Object,
        service: &VirtualService,
        warnings: &mut Vec<Finding>,
    ) {
        let delegates = |namespace: &str, name: &str| {
            let key = ObjectKey::new(Kind::VirtualService, namespace, name);
            let Typed::VirtualService(it) = self.objects.get(&key)? else { return None };
            it.spec.hosts.is_empty().then(|| Arc::clone(it))
        };
        let around = Around { backends: self, delegates: &delegates };
        for remark in routing::remarks_at_ports(service, &around).1 {
            warnings.push(object.finding(remark.at.as_str(), remark.what, remark.remedy));
        }
        for (index, host) in service.spec.hosts.iter().enumerate() {
            self.host_exists(object, host, &format!("spec.hosts[{index}]"), warnings);
        }
    }

    /// Warns about a DestinationRule for a host that is not there.
    pub(super) fn destination_rule(
        &self,
        object: &Object,
        rule: &DestinationRule,
        warnings: &mut Vec<Finding>,
    ) {
        self.host_exists(object, &rule.spec.host, "spec.host", warnings);
        let Some(known) = self.known(&object.key.namespace, &rule.spec.host) else { return };
        let of_host = rule.spec.traffic_policy.iter().map(|it| ("spec".to_owned(), it));
        let subsets = rule.spec.subsets.iter().enumerate();
        let of_subsets = subsets.filter_map(|(index, subset)| {
            Some((format!("spec.subsets[{index}]"), subset.traffic_policy.as_ref()?))
        });
        for (at, policy) in of_host.chain(of_subsets) {
            for (index, port) in policy.port_level_settings.iter().enumerate() {
                let number = port.port.number;
                if known.ports.is_empty()
                    || known.ports.iter().any(|it| i64::from(it.number) == number)
                {
                    continue;
                }
                let ports: Vec<String> =
                    known.ports.iter().map(|it| it.number.to_string()).collect();
                warnings.push(object.finding(
                    format!("{at}.trafficPolicy.portLevelSettings[{index}].port.number"),
                    format!(
                        "`{}` has no port {number}: nothing of this is in force",
                        rule.spec.host
                    ),
                    format!("use {}", ports.join(" or ")),
                ));
            }
        }
    }

    fn host_exists(&self, object: &Object, host: &str, at: &str, warnings: &mut Vec<Finding>) {
        let namespace = &object.key.namespace;
        let is_known = host.starts_with('*') || self.known(namespace, host).is_some();
        if !is_known {
            let what = format!("no Service and no ServiceEntry has the host `{host}`");
            let remedy = "correct the name, or add what it names";
            warnings.push(object.finding(at, what, remedy));
        }
    }
}
