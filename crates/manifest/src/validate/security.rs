//! Rules for AuthorizationPolicy and PeerAuthentication.
//!
//! A policy that can never match is refused where Istio accepts it: a DENY that never matches
//! protects nothing, and an ALLOW that never matches refuses every client. The view builder applies
//! the same rules to all its objects, and gives those that break them their strictest reading.

use super::core::number;
use super::{names, operations};
use crate::finding::{Issues, Path};
use crate::istio::{
    Action, AuthorizationPolicySpec, Condition, MutualTlsMode, Operation, PeerAuthenticationSpec,
    Rule, Source, Values, WorkloadSelector,
};

/// Attributes that a condition may ask for, without those that take a key in brackets.
const ATTRIBUTES: &[&str] = &[
    "source.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "source.trustDomain",
    "remote.ip",
    "destination.ip",
    "destination.port",
    "connection.sni",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
];
/// Attributes that take a key in brackets, as in `request.headers[x-token]`.
const KEYED_ATTRIBUTES: &[&str] =
    &["request.headers", "request.auth.claims", "experimental.envoy.filters."];

/// Checks an AuthorizationPolicy.
pub(crate) fn authorization_policy(spec: &AuthorizationPolicySpec, at: &Path, issues: &mut Issues) {
    if let Some(selector) = &spec.selector {
        self::selector(selector, &at.field("selector"), issues);
    }
    ways(spec, at, issues);
    let rules = spec.rules.as_deref().unwrap_or_default();
    let at_rules = at.field("rules");
    match spec.action {
        Action::Deny if rules.is_empty() => issues.warn(
            &at_rules,
            "a DENY policy without rules never matches",
            "add a rule; `- {}` matches everything",
        ),
        Action::Custom if rules.is_empty() => issues.error(
            &at_rules,
            "a CUSTOM policy without rules never asks its provider",
            "add a rule; `- {}` matches everything",
        ),
        _ => {}
    }
    let has_provider = spec.provider.as_ref().is_some_and(|provider| !provider.name.is_empty());
    if (spec.action == Action::Custom) != has_provider {
        issues.error(
            &at.field("provider"),
            "exactly the CUSTOM policies have a provider",
            "set `action: CUSTOM` and `provider.name` together, or remove both",
        );
    }
    for (index, rule) in rules.iter().enumerate() {
        self::rule(rule, &at_rules.index(index), issues);
    }
}

fn ways(spec: &AuthorizationPolicySpec, at: &Path, issues: &mut Issues) {
    let ways = [spec.selector.is_some(), spec.target_ref.is_some(), spec.target_refs.is_some()];
    if ways.iter().filter(|is_set| **is_set).count() > 1 {
        issues.error(
            at,
            "only one of selector, targetRef and targetRefs may say what the policy holds for",
            "keep one of them",
        );
    }
}

/// Checks the labels that a policy selects.
pub(crate) fn selector(selector: &WorkloadSelector, at: &Path, issues: &mut Issues) {
    let at = at.field("matchLabels");
    for (key, value) in &selector.match_labels {
        if key.contains('*') || value.contains('*') {
            issues.error(
                &at.field(key),
                "selectors compare labels literally, `*` has no meaning",
                "write the label out, or leave the selector away to select the namespace",
            );
        } else {
            super::labels([(key, value)], &at, issues);
        }
    }
}

fn rule(rule: &Rule, at: &Path, issues: &mut Issues) {
    let sources = listed(&rule.from, &at.field("from"), issues);
    for (index, from) in sources.iter().enumerate() {
        let at = at.field("from").index(index).field("source");
        match &from.source {
            Some(source) => self::source(source, &at, issues),
            None => issues.error(&at, "`source` is missing", "say who, or leave `from` away"),
        }
    }
    let operations = listed(&rule.to, &at.field("to"), issues);
    for (index, to) in operations.iter().enumerate() {
        let at = at.field("to").index(index).field("operation");
        match &to.operation {
            Some(operation) => self::operation(operation, &at, issues),
            None => issues.error(&at, "`operation` is missing", "say what, or leave `to` away"),
        }
    }
    let conditions = listed(&rule.when, &at.field("when"), issues);
    for (index, condition) in conditions.iter().enumerate() {
        self::condition(condition, &at.field("when").index(index), issues);
    }
}

/// The list, reported if it is present and empty: it could mean "all" or "none".
fn listed<'a, T>(list: &'a Option<Vec<T>>, at: &Path, issues: &mut Issues) -> &'a [T] {
    if list.as_ref().is_some_and(Vec::is_empty) {
        issues.error(at, "the list is empty, which could mean all or none", "fill it or remove it");
    }
    list.as_deref().unwrap_or_default()
}

fn source(source: &Source, at: &Path, issues: &mut Issues) {
    if *source == Source::default() {
        issues.error(at, "a source must ask for something", "add a field, or leave `from` away");
    }
    let texts = [
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
        ("namespaces", &source.namespaces),
        ("notNamespaces", &source.not_namespaces),
        ("trustDomains", &source.trust_domains),
        ("notTrustDomains", &source.not_trust_domains),
    ];
    for (field, values) in texts {
        each(values, &at.field(field), issues, wildcard);
    }
    for (field, values) in
        [("principals", &source.principals), ("notPrincipals", &source.not_principals)]
    {
        each(values, &at.field(field), issues, principal);
    }
    let blocks = [
        ("ipBlocks", &source.ip_blocks),
        ("notIpBlocks", &source.not_ip_blocks),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
    ];
    for (field, values) in blocks {
        each(values, &at.field(field), issues, block);
    }
    let accounts = [
        ("serviceAccounts", &source.service_accounts),
        ("notServiceAccounts", &source.not_service_accounts),
    ];
    for (field, values) in accounts {
        each(values, &at.field(field), issues, service_account);
        let others = [
            &source.principals,
            &source.not_principals,
            &source.namespaces,
            &source.not_namespaces,
        ];
        if values.is_some() && others.iter().any(|other| other.is_some()) {
            issues.error(
                &at.field(field),
                "service accounts cannot be combined with principals or namespaces",
                "write the service account as `namespace/name`",
            );
        }
    }
}

fn operation(operation: &Operation, at: &Path, issues: &mut Issues) {
    if *operation == Operation::default() {
        issues.error(at, "an operation must ask for something", "add a field, or leave `to` away");
    }
    for (field, values) in [("hosts", &operation.hosts), ("notHosts", &operation.not_hosts)] {
        each(values, &at.field(field), issues, operations::host);
    }
    for (field, values) in [("methods", &operation.methods), ("notMethods", &operation.not_methods)]
    {
        let at = at.field(field);
        each(values, &at, issues, operations::method);
        doubts(values, &at, issues, operations::doubtful_method);
    }
    for (field, values) in [("paths", &operation.paths), ("notPaths", &operation.not_paths)] {
        let at = at.field(field);
        each(values, &at, issues, operations::path);
        doubts(values, &at, issues, operations::doubtful_path);
    }
    for (field, values) in [("ports", &operation.ports), ("notPorts", &operation.not_ports)] {
        each(values, &at.field(field), issues, port);
    }
}

fn condition(condition: &Condition, at: &Path, issues: &mut Issues) {
    let key = condition.key.as_str();
    let keyed = |prefix: &&str| {
        prefix.ends_with('.') && key.starts_with(*prefix)
            || key
                .strip_prefix(*prefix)
                .is_some_and(|rest| rest.starts_with('[') && rest.ends_with(']'))
    };
    if !ATTRIBUTES.contains(&key) && !KEYED_ATTRIBUTES.iter().any(keyed) {
        issues.error(
            &at.field("key"),
            format!("the attribute `{key}` does not exist"),
            format!(
                "use one of {}, request.headers[..], request.auth.claims[..]",
                ATTRIBUTES.join(", ")
            ),
        );
    }
    if condition.values.is_none() && condition.not_values.is_none() {
        issues.error(at, "a condition needs values", "add `values` or `notValues`");
    }
    let rule: ValueRule = match key {
        "source.ip" | "remote.ip" | "destination.ip" => block,
        "destination.port" => port,
        "source.principal" => principal,
        "source.namespace" | "source.trustDomain" => wildcard,
        "source.serviceAccount" => service_account,
        _ => |_| None,
    };
    for (field, values) in [("values", &condition.values), ("notValues", &condition.not_values)] {
        each(values, &at.field(field), issues, rule);
    }
}

/// What is wrong with a value, and what to write instead.
type ValueRule = fn(&str) -> Option<(String, &'static str)>;

fn each<R: Into<String>>(
    values: &Values,
    at: &Path,
    issues: &mut Issues,
    rule: impl Fn(&str) -> Option<(String, R)>,
) {
    for (index, value) in listed(values, at, issues).iter().enumerate() {
        if value.is_empty() {
            issues.error(&at.index(index), "the value is empty", "write a value or remove it");
        } else if let Some((what, remedy)) = rule(value) {
            issues.error(&at.index(index), what, remedy);
        }
    }
}

/// Warns about values that can match, but not what their author may expect.
fn doubts(
    values: &Values,
    at: &Path,
    issues: &mut Issues,
    rule: impl Fn(&str) -> Option<(String, &'static str)>,
) {
    for (index, value) in values.iter().flatten().enumerate() {
        if let Some((what, remedy)) = rule(value) {
            issues.warn(&at.index(index), what, remedy);
        }
    }
}

/// `*` may be the whole value, its first or its last character; elsewhere it is no wildcard.
pub(crate) fn wildcard(value: &str) -> Option<(String, &'static str)> {
    let inner = value.strip_prefix('*').or_else(|| value.strip_suffix('*')).unwrap_or(value);
    inner.contains('*').then(|| {
        (
            format!("in `{value}` a `*` is compared literally and never matches"),
            "use `*` alone, as the first or as the last character",
        )
    })
}

/// A principal is an identity without its scheme, or a pattern of one.
pub(crate) fn principal(value: &str) -> Option<(String, &'static str)> {
    if value.starts_with("spiffe://") {
        return Some((
            format!("`{value}` never matches: principals are compared without their scheme"),
            "write it without `spiffe://`",
        ));
    }
    if value.contains('*') {
        return wildcard(value);
    }
    let parts: Vec<&str> = value.split('/').collect();
    let fine = matches!(parts[..], [domain, "ns", namespace, "sa", account]
        if !domain.is_empty() && !namespace.is_empty() && !account.is_empty());
    (!fine).then(|| {
        (
            format!("`{value}` is not an identity and never matches"),
            "write `<trust domain>/ns/<namespace>/sa/<service account>`",
        )
    })
}

fn service_account(value: &str) -> Option<(String, &'static str)> {
    let (namespace, name) = value.split_once('/').unwrap_or(("default", value));
    let wrong = names::dns_label(namespace).or_else(|| names::dns_subdomain(name));
    wrong.map(|what| (what, "write `namespace/name`, or `name` for the policy's own namespace"))
}

fn block(value: &str) -> Option<(String, &'static str)> {
    let example = "write it as in `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`";
    names::not_a_block(value).map(|what| (what, example))
}

fn port(value: &str) -> Option<(String, &'static str)> {
    let fine = value.parse::<u16>().is_ok_and(|port| port > 0);
    (!fine).then(|| (format!("`{value}` is not a port number"), "write a number from 1 to 65535"))
}

/// Checks a PeerAuthentication.
pub(crate) fn peer_authentication(spec: &PeerAuthenticationSpec, at: &Path, issues: &mut Issues) {
    let selects = spec.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty());
    if let Some(selector) = &spec.selector {
        self::selector(selector, &at.field("selector"), issues);
    }
    let at_ports = at.field("portLevelMtls");
    if !spec.port_level_mtls.is_empty() && !selects {
        issues.error(
            &at_ports,
            "ports can only be told apart for selected workloads",
            "add a selector with matchLabels",
        );
    }
    for port in spec.port_level_mtls.keys() {
        let at = at_ports.field(port);
        match port.parse::<i64>() {
            Ok(port) => number(port, &at, issues),
            Err(_) => {
                issues.error(&at, format!("`{port}` is not a port number"), "use the number");
            }
        }
    }
    let modes = spec.port_level_mtls.values().chain(&spec.mtls);
    if modes.into_iter().any(|mtls| mtls.mode == MutualTlsMode::Disable) {
        issues.warn(
            at,
            "DISABLE does not switch the mesh's encryption off; plain text is accepted beside it",
            "use PERMISSIVE to say the same",
        );
    }
}
