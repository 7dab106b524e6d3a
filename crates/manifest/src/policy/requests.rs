//! An AuthorizationPolicy as a waypoint enforces it: all of its fields.
//!
//! Nothing gets a strictest reading here. A policy of which one value cannot be honoured is an
//! error that names the field, and whoever attaches the policy must then deny everything it is for.
//! Where Istio lets a policy do less than it says, in silence (an unknown `when` key, a value that
//! is empty), it is such an error.

use std::fmt;

use ambit_model::Text;
use ambit_model::http::policy::{
    Action, ClientMatch, Condition, HostMatch, IpAttribute, OperationMatch, PathPattern,
    RequestPolicy, RequestRule, TextAttribute, Values,
};
use ambit_model::names::PolicyName;
use ambit_model::policy::{ServiceAccountMatch, TextMatch};

use crate::istio::{self, AuthorizationPolicy, TargetRef};
use crate::matching::{is_token, text};
use crate::validate::targets::{self, TARGETS_MAX, TargetKind};
use crate::validate::{names, operations, security};
use crate::{FieldPath, ObjectIssues, ObjectName};

/// Where a condition names a field of the request.
const HEADERS: &str = "request.headers";
/// Where a condition names a claim of the token.
const CLAIMS: &str = "request.auth.claims";
/// The field that is served though it is none of HTTP/1.1.
const AUTHORITY: &str = ":authority";

/// Why a policy cannot be honoured as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforceable {
    /// The field, as in `spec.rules[0].when[0].key`.
    pub field: String,
    /// What is wrong with it, and what to write instead.
    pub problem: String,
}

impl fmt::Display for Unenforceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for Unenforceable {}

/// What a policy is attached to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A waypoint or gateway: all that comes through it.
    Gateway(ObjectName),
    /// All waypoints or gateways of a class.
    GatewayClass(Text),
    /// A Service.
    Service(ObjectName),
    /// A ServiceEntry.
    ServiceEntry(ObjectName),
}

/// What the policy is attached to; nothing for one that selects workloads, a namespace or the mesh.
pub fn attachments(
    policy: &AuthorizationPolicy,
    root_namespace: &str,
) -> Result<Vec<Target>, Unenforceable> {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &policy.spec;
    targets(spec.target_ref.as_ref(), spec.target_refs.as_deref(), namespace, root_namespace)
}

/// What a policy of this namespace is attached to.
pub(crate) fn targets(
    single: Option<&TargetRef>,
    listed: Option<&[TargetRef]>,
    namespace: &str,
    root_namespace: &str,
) -> Result<Vec<Target>, Unenforceable> {
    let at = FieldPath::at("spec");
    let listed = listed.unwrap_or_default().iter();
    if listed.clone().count() > TARGETS_MAX {
        let problem = format!("it is attached to more than {TARGETS_MAX} objects; make it several");
        return Err(wrong(&at.field("targetRefs"), problem));
    }
    let listed = listed.enumerate().map(|(index, it)| (at.field("targetRefs").index(index), it));
    let single = single.into_iter().map(|it| (at.field("targetRef"), it));
    single.chain(listed).map(|(at, it)| target(it, namespace, root_namespace, &at)).collect()
}

fn target(
    target: &TargetRef,
    namespace: &str,
    root_namespace: &str,
    at: &FieldPath,
) -> Result<Target, Unenforceable> {
    if target.namespace.as_deref().is_some_and(|of_target| of_target != namespace) {
        let problem = "a policy holds for objects of its own namespace; leave it away";
        return Err(wrong(&at.field("namespace"), problem));
    }
    if target.name.is_empty() {
        return Err(wrong(&at.field("name"), "it is empty; write the name of the object"));
    }
    let name = ObjectName::new(namespace, &target.name);
    match targets::kind(target).map_err(|(what, how)| wrong(at, format!("{what}; {how}")))? {
        TargetKind::Gateway => Ok(Target::Gateway(name)),
        TargetKind::GatewayClass if namespace == root_namespace => {
            Ok(Target::GatewayClass(name.name))
        }
        TargetKind::GatewayClass => {
            let problem = format!("only policies in {root_namespace} hold for a GatewayClass");
            Err(wrong(&at.field("kind"), problem))
        }
        TargetKind::Service => Ok(Target::Service(name)),
        TargetKind::ServiceEntry => Ok(Target::ServiceEntry(name)),
    }
}

/// The policy as a waypoint enforces it.
pub fn request_policy(policy: &AuthorizationPolicy) -> Result<RequestPolicy, Unenforceable> {
    let spec = &policy.spec;
    let at = FieldPath::at("spec");
    if let Some(problem) = &policy.unreadable {
        return Err(wrong(&at, format!("it cannot be read ({problem})")));
    }
    let mut issues = ObjectIssues::default();
    security::authorization_policy(spec, &at, &mut issues);
    if let Some(issue) = issues.errors.first() {
        return Err(wrong(&issue.path, format!("{}; {}", issue.what, issue.remedy)));
    }
    let provider = spec.provider.as_ref().map(|it| Text::from(&*it.name)).unwrap_or_default();
    let action = match spec.action {
        istio::Action::Allow => Action::Allow,
        istio::Action::Deny => Action::Deny,
        istio::Action::Audit => Action::Audit,
        istio::Action::Custom => Action::Custom(provider),
    };
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let rules = spec.rules.iter().flatten().enumerate();
    let rules = rules.map(|(index, it)| rule(it, namespace, &at.field("rules").index(index)));
    let condition = super::condition::condition(&policy.metadata)
        .map_err(|issue| wrong(&issue.path, format!("{}; {}", issue.what, issue.remedy)))?;
    Ok(RequestPolicy {
        condition,
        key: PolicyName::new(namespace, policy.metadata.name.as_deref().unwrap_or_default()),
        action,
        is_dry_run: super::is_dry_run(policy),
        rules: rules.collect::<Result<_, _>>()?,
    })
}

pub(super) fn wrong(at: &FieldPath, problem: impl Into<String>) -> Unenforceable {
    Unenforceable { field: at.as_str().to_owned(), problem: problem.into() }
}

fn rule(rule: &istio::Rule, namespace: &str, at: &FieldPath) -> Result<RequestRule, Unenforceable> {
    let from = rule.from.iter().flatten().enumerate().map(|(index, from)| {
        let at = at.field("from").index(index).field("source");
        let source = from.source.as_ref().ok_or_else(|| wrong(&at, "it is missing"))?;
        client(source, namespace, &at)
    });
    let to = rule.to.iter().flatten().enumerate().map(|(index, to)| {
        let at = at.field("to").index(index).field("operation");
        let asked = to.operation.as_ref().ok_or_else(|| wrong(&at, "it is missing"))?;
        operation(asked, &at)
    });
    let when = rule.when.iter().flatten().enumerate();
    let when = when.map(|(index, it)| condition(it, namespace, &at.field("when").index(index)));
    Ok(RequestRule {
        from: from.collect::<Result<_, _>>()?,
        to: to.collect::<Result<_, _>>()?,
        when: when.collect::<Result<_, _>>()?,
    })
}

/// The two lists of one thing: their values, and their fields.
struct Lists<'a> {
    any_of: &'a istio::Values,
    none_of: &'a istio::Values,
    at: [FieldPath; 2],
}

impl<'a> Lists<'a> {
    /// `name` and its opposite, as in `hosts` and `notHosts`.
    fn named(
        at: &FieldPath,
        name: &str,
        any_of: &'a istio::Values,
        none_of: &'a istio::Values,
    ) -> Self {
        let (first, rest) = name.split_at(1);
        let opposite = format!("not{}{rest}", first.to_ascii_uppercase());
        Self { any_of, none_of, at: [at.field(name), at.field(&opposite)] }
    }

    fn read<T>(&self, one: impl Fn(&str) -> Result<T, String>) -> Result<Values<T>, Unenforceable> {
        let list = |values: &istio::Values, at: &FieldPath| {
            let values = values.iter().flatten().enumerate();
            let values = values.map(|(index, value)| {
                one(value).map_err(|problem| wrong(&at.index(index), problem))
            });
            values.collect::<Result<Vec<T>, Unenforceable>>()
        };
        let [any_field, none_field] = &self.at;
        Ok(Values {
            any_of: list(self.any_of, any_field)?,
            none_of: list(self.none_of, none_field)?,
        })
    }
}

fn client(
    it: &istio::Source,
    namespace: &str,
    at: &FieldPath,
) -> Result<ClientMatch, Unenforceable> {
    let account = |value: &str| account(value, namespace);
    let lists = |name: &str, any_of, none_of| Lists::named(at, name, any_of, none_of);
    Ok(ClientMatch {
        principals: lists("principals", &it.principals, &it.not_principals).read(words)?,
        namespaces: lists("namespaces", &it.namespaces, &it.not_namespaces).read(words)?,
        service_accounts: lists("serviceAccounts", &it.service_accounts, &it.not_service_accounts)
            .read(account)?,
        trust_domains: lists("trustDomains", &it.trust_domains, &it.not_trust_domains)
            .read(words)?,
        request_principals: lists(
            "requestPrincipals",
            &it.request_principals,
            &it.not_request_principals,
        )
        .read(words)?,
        ip_blocks: lists("ipBlocks", &it.ip_blocks, &it.not_ip_blocks).read(block)?,
        remote_ip_blocks: lists("remoteIpBlocks", &it.remote_ip_blocks, &it.not_remote_ip_blocks)
            .read(block)?,
    })
}

fn operation(it: &istio::Operation, at: &FieldPath) -> Result<OperationMatch, Unenforceable> {
    let lists = |name: &str, any_of, none_of| Lists::named(at, name, any_of, none_of);
    Ok(OperationMatch {
        hosts: lists("hosts", &it.hosts, &it.not_hosts).read(host)?,
        ports: lists("ports", &it.ports, &it.not_ports).read(port)?,
        methods: lists("methods", &it.methods, &it.not_methods).read(words)?,
        paths: lists("paths", &it.paths, &it.not_paths).read(path)?,
    })
}

fn condition(
    condition: &istio::Condition,
    namespace: &str,
    at: &FieldPath,
) -> Result<Condition, Unenforceable> {
    let lists = Lists::named(at, "values", &condition.values, &condition.not_values);
    let text = |it| Ok(Condition::Text(it, lists.read(words)?));
    let ip = |it| Ok(Condition::Ip(it, lists.read(block)?));
    match condition.key.as_str() {
        "source.principal" => text(TextAttribute::Principal),
        "source.namespace" => text(TextAttribute::Namespace),
        "source.trustDomain" => text(TextAttribute::TrustDomain),
        "request.auth.principal" => text(TextAttribute::RequestPrincipal),
        "request.auth.audiences" => text(TextAttribute::Audience),
        "request.auth.presenter" => text(TextAttribute::Presenter),
        "connection.sni" => text(TextAttribute::ServerName),
        "source.ip" => ip(IpAttribute::Source),
        "remote.ip" => ip(IpAttribute::Remote),
        "destination.ip" => ip(IpAttribute::Destination),
        "source.serviceAccount" => {
            Ok(Condition::ServiceAccount(lists.read(|value| account(value, namespace))?))
        }
        "destination.port" => Ok(Condition::DestinationPort(lists.read(port)?)),
        key => keyed(key, &lists, &at.field("key")),
    }
}

/// A condition whose key has further keys in brackets.
fn keyed(key: &str, lists: &Lists<'_>, at: &FieldPath) -> Result<Condition, Unenforceable> {
    if let Some([name]) = key.strip_prefix(HEADERS).and_then(brackets).as_deref() {
        let name = name.to_ascii_lowercase();
        if name != AUTHORITY && !is_token(&name) {
            return Err(wrong(at, format!("`{name}` is not the name of a field of a request")));
        }
        return Ok(Condition::Header { name: name.into(), values: lists.read(words)? });
    }
    if let Some(keys) = key.strip_prefix(CLAIMS).and_then(brackets) {
        let keys = keys.into_iter().map(Text::from).collect();
        return Ok(Condition::Claim { keys, values: lists.read(words)? });
    }
    let problem = format!(
        "`{key}` is no attribute that can be asked for here; use request.headers[NAME], \
         request.auth.claims[NAME] or another of Istio's, but none of Envoy's filters"
    );
    Err(wrong(at, problem))
}

/// What is in the brackets of `[a][b]`; `None` if it is not of this form.
fn brackets(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let keys: Vec<&str> = inner.split("][").collect();
    let is_key = |key: &&str| !key.is_empty() && !key.contains(['[', ']']);
    keys.iter().all(is_key).then_some(keys)
}

fn words(value: &str) -> Result<TextMatch, String> {
    text(value).ok_or_else(|| "the value is empty".to_owned())
}

fn account(value: &str, namespace: &str) -> Result<ServiceAccountMatch, String> {
    let (namespace, name) = value.split_once('/').unwrap_or((namespace, value));
    match namespace.is_empty() || name.is_empty() {
        true => Err(format!("`{value}` names no service account; write `namespace/name`")),
        false => {
            let (namespace, service_account) = (namespace.into(), name.into());
            Ok(ServiceAccountMatch { namespace, service_account })
        }
    }
}

fn block(value: &str) -> Result<ipnet::IpNet, String> {
    let problem = || format!("`{value}` is neither an IP address nor a CIDR block");
    names::address_block(value).ok_or_else(problem)
}

fn port(value: &str) -> Result<u16, String> {
    let port = value.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("`{value}` is not a port; write a number from 1 to 65535"))
}

fn host(value: &str) -> Result<HostMatch, String> {
    let (host, port) = operations::host_and_port(value).map_err(|(problem, _)| problem)?;
    let problem = || format!("`{value}` names no host");
    Ok(HostMatch { host: text(&host).ok_or_else(problem)?, port })
}

fn path(value: &str) -> Result<PathPattern, String> {
    match PathPattern::is_template(value) {
        true => PathPattern::template(value).map_err(|error| format!("`{value}`: {error}")),
        false => words(value).map(PathPattern::Text),
    }
}

#[cfg(test)]
mod tests;
