//! Which namespaces the sources of a policy name.
//!
//! A principal of a namespace that does not exist is no error: it may come. Until then it matches
//! nobody, and a slip in its name looks the same. Nothing here knows which namespaces exist.

use ambit_words::names::DEFAULT_TRUST_DOMAIN;

use crate::istio::{AuthorizationPolicy, Rule, Values};

/// A namespace that a policy names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedNamespace {
    /// The path of the value, as in `spec.rules[0].from[0].source.principals[0]`.
    pub field: String,
    /// The whole value.
    pub value: String,
    /// The namespace in it.
    pub namespace: String,
    /// The trust domain of a principal; `None` where none is written, or several match.
    pub trust_domain: Option<String>,
}

impl NamedNamespace {
    /// The namespace, and where it is part of a longer value, that one.
    pub fn named(&self) -> String {
        match self.namespace == self.value {
            true => format!("the namespace `{}`", self.namespace),
            false => format!("the namespace `{}` of `{}`", self.namespace, self.value),
        }
    }

    /// Whether it is a namespace of the mesh of this trust domain.
    pub fn is_of(&self, trust_domain: &str) -> bool {
        self.trust_domain
            .as_deref()
            .is_none_or(|it| [trust_domain, DEFAULT_TRUST_DOMAIN].contains(&it))
    }
}

/// The namespaces that the sources of `policy` name in full; patterns that match several are left
/// out.
pub fn named_namespaces(policy: &AuthorizationPolicy) -> Vec<NamedNamespace> {
    let mut named = Vec::new();
    for (index, rule) in policy.spec.rules.iter().flatten().enumerate() {
        of_rule(rule, &format!("spec.rules[{index}]"), &mut named);
    }
    named
}

fn of_rule(rule: &Rule, at: &str, named: &mut Vec<NamedNamespace>) {
    for (index, from) in rule.from.iter().flatten().enumerate() {
        let Some(source) = &from.source else { continue };
        let at = |field: &str| format!("{at}.from[{index}].source.{field}");
        add(&source.principals, &at("principals"), of_principal, named);
        add(&source.not_principals, &at("notPrincipals"), of_principal, named);
        add(&source.namespaces, &at("namespaces"), of_namespace, named);
        add(&source.not_namespaces, &at("notNamespaces"), of_namespace, named);
        add(&source.service_accounts, &at("serviceAccounts"), of_account, named);
        add(&source.not_service_accounts, &at("notServiceAccounts"), of_account, named);
    }
    for (index, condition) in rule.when.iter().flatten().enumerate() {
        let read: Read = match condition.key.as_str() {
            "source.principal" => of_principal,
            "source.namespace" => of_namespace,
            _ => continue,
        };
        add(&condition.values, &format!("{at}.when[{index}].values"), read, named);
        add(&condition.not_values, &format!("{at}.when[{index}].notValues"), read, named);
    }
}

/// Namespace and trust domain of a value.
type Read = fn(&str) -> Option<(&str, Option<&str>)>;

fn add(values: &Values, at: &str, read: Read, named: &mut Vec<NamedNamespace>) {
    for (index, value) in values.iter().flatten().enumerate() {
        let Some((namespace, trust_domain)) = read(value) else { continue };
        if namespace.is_empty() || namespace.contains('*') {
            continue;
        }
        named.push(NamedNamespace {
            field: format!("{at}[{index}]"),
            value: value.clone(),
            namespace: namespace.to_owned(),
            trust_domain: trust_domain.map(str::to_owned),
        });
    }
}

/// `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`, perhaps with `*` at one end.
fn of_principal(value: &str) -> Option<(&str, Option<&str>)> {
    let (trust_domain, rest) = value.split_once("/ns/")?;
    let (namespace, _) = rest.split_once('/')?;
    Some((namespace, Some(trust_domain).filter(|it| !it.contains('*'))))
}

fn of_namespace(value: &str) -> Option<(&str, Option<&str>)> {
    Some((value, None))
}

/// `NAMESPACE/ACCOUNT`; an account alone is of the policy's own namespace.
fn of_account(value: &str) -> Option<(&str, Option<&str>)> {
    value.split_once('/').map(|(namespace, _)| (namespace, None))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_are_read_wherever_a_source_names_one() {
        let policy: AuthorizationPolicy = serde_json::from_value(json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [{
                "from": [{"source": {
                    "principals": ["cluster.local/ns/a/sa/x", "*/ns/b/sa/x", "other/ns/c/*",
                        "cluster.local/ns/d*", "*", "cluster.local/ns/*"],
                    "notNamespaces": ["e", "e*"],
                    "serviceAccounts": ["f/x", "x"],
                }}],
                "when": [{"key": "source.namespace", "values": ["g"]},
                    {"key": "destination.port", "values": ["80"]}],
            }]},
        }))
        .unwrap();
        let named = named_namespaces(&policy);
        let found: Vec<(&str, bool)> =
            named.iter().map(|it| (&*it.namespace, it.is_of("mesh"))).collect();
        let expected =
            [("a", true), ("b", true), ("c", false), ("e", true), ("f", true), ("g", true)];
        assert_eq!(found, expected);
        assert_eq!(named[0].field, "spec.rules[0].from[0].source.principals[0]");
        assert_eq!(named[5].field, "spec.rules[0].when[0].values[0]");
    }
}
