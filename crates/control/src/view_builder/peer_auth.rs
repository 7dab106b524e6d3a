//! PeerAuthentication to policies that refuse plain text.
//!
//! STRICT becomes a DENY of connections without an identity: one static policy for "all ports", one
//! converted policy for each PeerAuthentication whose ports differ from the rest. The oldest object
//! of a scope wins, and UNSET inherits from the next wider scope. Nothing here may let plain text
//! in where the effective mode is STRICT.

use ambit_manifest::ObjectName;
use ambit_manifest::istio::{MutualTls, MutualTlsMode, PeerAuthentication, PeerAuthenticationSpec};
use ambit_model::Text;
use ambit_model::names::PolicyName;
use ambit_model::policy::{Action, Clause, List, Match, Policy, PolicyScope, Rule, TextMatch};

/// Name of the policy that refuses plain text on all ports, in the root namespace.
const STATIC_STRICT: &str = "istio_converted_static_strict";
/// Prefix of the policy made of one PeerAuthentication with ports.
const CONVERTED_PREFIX: &str = "converted_peer_authentication_";

/// What the PeerAuthentications of the mesh, the namespace and the workload say of one workload.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effective<'a> {
    /// The oldest of the root namespace without a selector.
    pub(crate) mesh: Option<&'a PeerAuthentication>,
    /// The oldest of the workload's namespace without a selector.
    pub(crate) namespace: Option<&'a PeerAuthentication>,
    /// The oldest of the workload's namespace that selects it.
    pub(crate) workload: Option<&'a PeerAuthentication>,
}

impl<'a> Effective<'a> {
    /// Whether plain text is refused on ports without their own mode.
    fn is_strict(&self) -> bool {
        self.of_all_ports().is_some_and(|it| mode(it.spec.mtls) == MutualTlsMode::Strict)
    }

    /// The object that decides for ports without their own mode.
    fn of_all_ports(&self) -> Option<&'a PeerAuthentication> {
        let mut objects = [self.workload, self.namespace, self.mesh].into_iter().flatten();
        objects.find(|object| mode(object.spec.mtls) != MutualTlsMode::Unset)
    }

    /// The object that `policy` enforces; none if that is no policy of this workload's mode.
    pub(crate) fn enforced_by(&self, policy: &PolicyName) -> Option<&'a PeerAuthentication> {
        match origin(policy) {
            Some(_) => self.workload,
            None if *policy.name == *STATIC_STRICT => self.of_all_ports(),
            None => None,
        }
    }

    /// The policy that a workload must name so that its mode is enforced.
    pub(crate) fn policy_name(&self, root_namespace: &str) -> Option<PolicyName> {
        let strict = self.is_strict();
        if let Some(object) = self.workload
            && has_exceptions(&object.spec, strict)
        {
            return Some(converted_name(&ObjectName::of(&object.metadata)));
        }
        strict.then(|| static_strict_name(root_namespace))
    }

    /// The policy made of the workload's own PeerAuthentication, if its ports need one.
    pub(crate) fn converted(&self) -> Option<Policy> {
        let object = self.workload?;
        let strict = self.is_strict();
        if !has_exceptions(&object.spec, strict) {
            return None;
        }
        let ports = exceptions(&object.spec, strict);
        let mut ported = Match::default();
        if strict {
            ported.not_destination_ports = ports;
        } else {
            ported.destination_ports = ports;
        }
        let clauses =
            vec![Clause { matches: vec![no_identity()] }, Clause { matches: vec![ported] }];
        let name = converted_name(&ObjectName::of(&object.metadata));
        Some(deny(name, Rule { clauses }))
    }
}

/// The policy that refuses plain text on all ports.
pub(crate) fn static_strict(root_namespace: &str) -> Policy {
    let rule = Rule { clauses: vec![Clause { matches: vec![no_identity()] }] };
    deny(static_strict_name(root_namespace), rule)
}

/// The name of the policy made of `object`.
pub(crate) fn converted_name(object: &ObjectName) -> PolicyName {
    PolicyName::new(object.namespace.clone(), format!("{CONVERTED_PREFIX}{}", object.name))
}

/// The object that a converted policy was made of.
pub(crate) fn origin(name: &PolicyName) -> Option<ObjectName> {
    let object = name.name.strip_prefix(CONVERTED_PREFIX)?;
    Some(ObjectName { namespace: name.namespace.clone(), name: Text::from(object) })
}

fn static_strict_name(root_namespace: &str) -> PolicyName {
    PolicyName::new(root_namespace, STATIC_STRICT)
}

fn no_identity() -> Match {
    Match { not_principals: [TextMatch::Presence].into(), ..Match::default() }
}

fn deny(key: PolicyName, rule: Rule) -> Policy {
    Policy {
        key,
        scope: PolicyScope::WorkloadSelector,
        action: Action::Deny,
        rules: vec![rule],
        dry_run: false,
        is_of_waypoints: false,
    }
}

fn mode(mtls: Option<MutualTls>) -> MutualTlsMode {
    mtls.unwrap_or_default().mode
}

fn has_exceptions(spec: &PeerAuthenticationSpec, strict: bool) -> bool {
    !exceptions(spec, strict).is_empty()
}

/// The ports whose mode differs from that of the rest; an UNSET port has the mode of the rest.
fn exceptions(spec: &PeerAuthenticationSpec, strict: bool) -> List<u16> {
    let differs = |mode: MutualTlsMode| match mode {
        MutualTlsMode::Unset => false,
        MutualTlsMode::Strict => !strict,
        MutualTlsMode::Permissive | MutualTlsMode::Disable => strict,
    };
    let differing = spec.port_level_mtls.iter().filter(|(_, mtls)| differs(mtls.mode));
    let mut ports: List<u16> = differing.filter_map(|(port, _)| port.parse().ok()).collect();
    ports.sort_unstable();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(
        name: &str,
        namespace: &str,
        mtls: &str,
        ports: &[(&str, &str)],
    ) -> PeerAuthentication {
        let ports: serde_json::Map<String, serde_json::Value> = ports
            .iter()
            .map(|(port, mode)| ((*port).to_owned(), serde_json::json!({"mode": mode})))
            .collect();
        serde_json::from_value(serde_json::json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "PeerAuthentication",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"mtls": {"mode": mtls}, "portLevelMtls": ports},
        }))
        .expect("a valid object")
    }

    fn check(
        mesh: Option<&str>,
        namespace: Option<&str>,
        workload: Option<(&str, &[(&str, &str)])>,
        expected: Option<&str>,
        ports: Option<(&[u16], &[u16])>,
    ) {
        let mesh = mesh.map(|mode| object("default", "istio-system", mode, &[]));
        let namespace = namespace.map(|mode| object("default", "shop", mode, &[]));
        let workload = workload.map(|(mode, ports)| object("web", "shop", mode, ports));
        let effective = Effective {
            mesh: mesh.as_ref(),
            namespace: namespace.as_ref(),
            workload: workload.as_ref(),
        };
        let name = effective.policy_name("istio-system").map(|name| name.to_string());
        assert_eq!(name.as_deref(), expected);
        let got = effective.converted().map(|policy| {
            let one = policy.rules[0].clauses[1].matches[0].clone();
            (one.destination_ports, one.not_destination_ports)
        });
        let ports = ports.map(|(only, except)| (only.into(), except.into()));
        assert_eq!(got, ports);
    }

    #[test]
    fn the_narrowest_mode_that_is_set_wins() {
        let strict = Some("istio-system/istio_converted_static_strict");
        check(None, None, None, None, None);
        check(Some("STRICT"), None, None, strict, None);
        check(Some("PERMISSIVE"), Some("STRICT"), None, strict, None);
        check(Some("STRICT"), Some("PERMISSIVE"), None, None, None);
        check(Some("STRICT"), Some("UNSET"), None, strict, None);
        check(Some("STRICT"), None, Some(("DISABLE", &[])), None, None);
        check(None, Some("PERMISSIVE"), Some(("STRICT", &[])), strict, None);
        check(Some("STRICT"), Some("STRICT"), Some(("UNSET", &[])), strict, None);
    }

    #[test]
    fn a_policy_that_nobody_wrote_has_an_object_behind_it() {
        let check = |modes: [Option<&str>; 3], ports: &[(&str, &str)], expected: Option<&str>| {
            let [mesh, namespace, workload] = modes;
            let mesh = mesh.map(|mode| object("default", "istio-system", mode, &[]));
            let namespace = namespace.map(|mode| object("default", "shop", mode, &[]));
            let workload = workload.map(|mode| object("web", "shop", mode, ports));
            let effective = Effective {
                mesh: mesh.as_ref(),
                namespace: namespace.as_ref(),
                workload: workload.as_ref(),
            };
            let policy = effective.policy_name("istio-system").expect("it is strict somewhere");
            let behind = effective.enforced_by(&policy).map(|it| ObjectName::of(&it.metadata));
            let behind = behind.map(|name| format!("{}/{}", name.namespace, name.name));
            assert_eq!(behind.as_deref(), expected);
            let other = PolicyName::new("shop", "web");
            assert!(effective.enforced_by(&other).is_none(), "an AuthorizationPolicy");
        };
        let mesh = Some("istio-system/default");
        check([Some("STRICT"), None, None], &[], mesh);
        check([Some("STRICT"), Some("UNSET"), Some("UNSET")], &[], mesh);
        check([Some("PERMISSIVE"), Some("STRICT"), None], &[], Some("shop/default"));
        check([None, Some("PERMISSIVE"), Some("STRICT")], &[], Some("shop/web"));
        check([None, None, Some("PERMISSIVE")], &[("80", "STRICT")], Some("shop/web"));
    }

    #[test]
    fn ports_that_differ_get_a_policy_of_their_own() {
        let own = Some("shop/converted_peer_authentication_web");
        let strict = Some("istio-system/istio_converted_static_strict");
        check(None, None, Some(("PERMISSIVE", &[("80", "STRICT")])), own, Some((&[80], &[])));
        check(None, None, Some(("STRICT", &[("80", "PERMISSIVE")])), own, Some((&[], &[80])));
        check(None, None, Some(("STRICT", &[("80", "STRICT")])), strict, None);
        check(Some("STRICT"), None, Some(("UNSET", &[("80", "DISABLE")])), own, Some((&[], &[80])));
        check(
            None,
            None,
            Some(("UNSET", &[("80", "STRICT"), ("8", "STRICT")])),
            own,
            Some((&[8, 80], &[])),
        );
        check(None, None, Some(("PERMISSIVE", &[("80", "UNSET")])), None, None);
    }
}
