//! Translates an AuthorizationPolicy to what a layer-4 proxy can enforce, never less than it says.
//!
//! A node proxy cannot judge a condition on layer 7. The condition gets its strictest reading: in
//! an ALLOW it never matches, in a DENY it always does; a CUSTOM policy, whose authoriser cannot be
//! asked, refuses what it matches. The policy is then `Accepted=False` with the reason, so its
//! author sees why connections are refused. Rules keep their index, so a verdict names the rule
//! that the user wrote. A policy that is attached to a Service needs a waypoint, and there is none.
//! At the Service's endpoints that are captured pods of its namespace, a DENY then holds for every
//! connection, to any address and port, because the addresses and ports that it names are the
//! Service's; an ALLOW holds for none. A policy that is attached to anything else has no effect
//! here: connections to whatever names a waypoint are refused. Nothing here may ever make a policy
//! match less of what it denies or more of what it allows.

mod authentication;
pub(crate) mod condition;
mod requests;
mod sources;

use ambit_model::names::PolicyName;
use ambit_model::policy::{
    Action, Clause, List, Match, Policy, PolicyScope, Rule, ServiceAccountMatch, TextMatch,
};
use ambit_words::annotations::DRY_RUN;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::ObjectName;
use crate::istio::{
    self, AuthorizationPolicy, AuthorizationPolicySpec, Condition, Operation, PeerAuthentication,
    Source, TargetRef, Values,
};
use crate::matching::text;
use crate::validate::{names, security};
use crate::{FieldPath, ObjectIssues};

pub use self::authentication::{
    KeySource, authentication, authentication_problem, authentication_targets, fetch_timeout,
};
pub(crate) use self::requests::targets as attached_to;
pub use self::requests::{Target, Unenforceable, attachments, request_policy};
pub use self::sources::{NamedNamespace, named_namespaces};

/// The type of the condition that says whether waypoints enforce a policy; istiod's for the same.
pub const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";

/// A condition of an object's status, as Kubernetes writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StatusCondition {
    /// The type of the condition, such as `Accepted`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// One word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// What became of an AuthorizationPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted {
    /// What the proxies are sent, if anything.
    pub policy: Option<Policy>,
    /// The condition for the user.
    pub condition: StatusCondition,
}

/// Which rules the policy's conditions get where they cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// ALLOW: never.
    NeverMatches,
    /// DENY: always.
    AlwaysMatches,
}

/// Converts `policy`.
pub fn convert(policy: &AuthorizationPolicy, root_namespace: &str) -> Converted {
    let spec = &policy.spec;
    let detached = detached(policy, root_namespace);
    if let Some(condition) = unsent(policy, detached.as_deref()) {
        return Converted { policy: None, condition };
    }
    let reading = match spec.action {
        istio::Action::Allow | istio::Action::Audit => Reading::NeverMatches,
        istio::Action::Deny | istio::Action::Custom => Reading::AlwaysMatches,
    };
    let mut problems = problems(spec);
    if services(policy).next().is_some() {
        problems.insert(0, without_waypoint(reading).to_owned());
    }
    if targets(spec).count() > services(policy).count() {
        let unenforced = || format!("nothing enforces it for {}", others(policy));
        problems.push(detached.unwrap_or_else(unenforced));
    }
    if let Some(unreadable) = &policy.unreadable {
        problems.insert(0, format!("it cannot be read ({unreadable})"));
    }
    if spec.action == istio::Action::Custom {
        problems.push("a layer-4 proxy cannot ask an external authoriser".to_owned());
    }
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let mut rules: Vec<Rule> =
        spec.rules.iter().flatten().map(|rule| convert_rule(rule, namespace, reading)).collect();
    if let Some(problem) = condition_problem(policy) {
        problems.push(problem);
        if reading == Reading::NeverMatches {
            rules.clear();
        }
    }
    if rules.is_empty() && spec.action == istio::Action::Custom {
        rules.push(Rule::default());
    }
    // Whether somebody comes through a Service is not for layer 4 to see.
    if targets(spec).next().is_some() {
        match reading {
            Reading::NeverMatches => rules.clear(),
            Reading::AlwaysMatches => rules.iter_mut().for_each(hold_at_every_destination),
        }
    }
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    Converted {
        policy: Some(Policy {
            key: PolicyName::new(namespace, name),
            scope: scope(policy, root_namespace),
            action: match reading {
                Reading::NeverMatches => Action::Allow,
                Reading::AlwaysMatches => Action::Deny,
            },
            rules,
            dry_run: is_dry_run(policy),
            is_of_waypoints: targets(spec).next().is_none() && !selects(spec),
        }),
        condition: verdict(problems, reading),
    }
}

/// What is wrong with the targets of a policy, and what waypoints make of it.
fn detached(policy: &AuthorizationPolicy, root_namespace: &str) -> Option<String> {
    let problem = attachments(policy, root_namespace).err()?;
    if policy.spec.action == istio::Action::Audit {
        return Some(format!("{problem}: waypoints audit nothing of it"));
    }
    let whose = unreadable_reach(&policy.metadata, root_namespace);
    Some(format!("{problem}: waypoints refuse every request to {whose}, not only to its targets"))
}

/// The condition of a policy that no layer-4 proxy is sent.
fn unsent(policy: &AuthorizationPolicy, detached: Option<&str>) -> Option<StatusCondition> {
    if is_sent(policy) {
        return None;
    }
    if holds_for_somebody(policy) {
        let message = "AUDIT needs a layer-7 proxy; nothing is logged and nothing is refused";
        return Some(rejected("UnsupportedValue", message));
    }
    if let Some(problem) = detached {
        let message = format!("{problem}; layer 4 enforces nothing of it");
        return Some(rejected("UnsupportedValue", &message));
    }
    let message = format!(
        "it is attached to {}: a waypoint enforces it, and layer 4 does not; where the waypoint \
         does not run, connections to what names it are refused",
        others(policy)
    );
    Some(rejected("TargetNotFound", &message))
}

/// What waypoints hold an object for that is attached to something, and nobody can read to what: it
/// must not hold for less than its author meant.
pub fn unreadable_reach(metadata: &ObjectMeta, root_namespace: &str) -> String {
    match metadata.namespace.as_deref().unwrap_or_default() {
        namespace if namespace == root_namespace => "every service of the mesh".to_owned(),
        namespace => format!("every service of the namespace `{namespace}`"),
    }
}

/// Why layer 4 cannot judge the policy's condition, if it has one.
fn condition_problem(policy: &AuthorizationPolicy) -> Option<String> {
    match condition::condition(&policy.metadata) {
        Ok(None) => None,
        Ok(Some(_)) => Some("its condition can only be judged by a layer-7 proxy".to_owned()),
        Err(issue) => Some(format!("{} is wrong ({})", issue.path.as_str(), issue.what)),
    }
}

/// What becomes of a policy for the endpoints of the Service that it is attached to.
fn without_waypoint(reading: Reading) -> &'static str {
    match reading {
        Reading::NeverMatches => {
            "only a waypoint can judge who comes through the Service: without one it allows \
             nothing at those of the Service's endpoints that are captured pods of its \
             namespace, and holds for no others"
        }
        Reading::AlwaysMatches => {
            "only a waypoint can judge who comes through the Service: without one it holds for \
             every connection to those of the Service's endpoints that are captured pods of its \
             namespace, whatever addresses and ports it names, and for no others"
        }
    }
}

/// The condition of a PeerAuthentication.
pub fn peer_authentication(policy: &PeerAuthentication) -> StatusCondition {
    match &policy.unreadable {
        None => verdict(Vec::new(), Reading::AlwaysMatches),
        Some(problem) => {
            let message = format!("it cannot be read ({problem}): plain text is refused");
            rejected("UnsupportedValue", &message)
        }
    }
}

/// Whether this policy is sent to proxies; workloads may name only policies that are sent.
pub fn is_sent(policy: &AuthorizationPolicy) -> bool {
    holds_for_somebody(policy) && policy.spec.action != istio::Action::Audit
}

/// The Services that the policy is attached to: those of its own namespace, as for Istio.
pub fn services(policy: &AuthorizationPolicy) -> impl Iterator<Item = ObjectName> {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let services = targets(&policy.spec).filter(move |target| is_service(target, namespace));
    services.map(move |target| ObjectName::new(namespace, &target.name))
}

fn targets(spec: &AuthorizationPolicySpec) -> impl Iterator<Item = &TargetRef> {
    spec.target_ref.iter().chain(spec.target_refs.iter().flatten())
}

fn is_service(target: &TargetRef, namespace: &str) -> bool {
    ["", "core"].contains(&&*target.group)
        && target.kind == "Service"
        && target.namespace.as_deref().is_none_or(|of_target| of_target == namespace)
}

/// What the policy is attached to beside Services.
fn others(policy: &AuthorizationPolicy) -> String {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let others = targets(&policy.spec).filter(|target| !is_service(target, namespace));
    let others: Vec<String> = others.map(|it| format!("{} {}", it.kind, it.name)).collect();
    others.join(", ")
}

/// Whether anything of the policy's is known here: not if only waypoints could be bound by it.
fn holds_for_somebody(policy: &AuthorizationPolicy) -> bool {
    let is_attached = targets(&policy.spec).next().is_some();
    !is_attached || selects(&policy.spec) || services(policy).next().is_some()
}

fn selects(spec: &AuthorizationPolicySpec) -> bool {
    spec.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty())
}

/// Whether the policy is on trial.
pub fn is_dry_run(policy: &AuthorizationPolicy) -> bool {
    let annotations = policy.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(DRY_RUN)).is_some_and(|value| value == "true")
}

/// Which workloads a policy holds for.
pub fn scope(policy: &AuthorizationPolicy, root_namespace: &str) -> PolicyScope {
    if selects(&policy.spec) || targets(&policy.spec).next().is_some() {
        PolicyScope::WorkloadSelector
    } else if policy.metadata.namespace.as_deref() == Some(root_namespace) {
        PolicyScope::Global
    } else {
        PolicyScope::Namespace
    }
}

fn rejected(reason: &'static str, message: &str) -> StatusCondition {
    StatusCondition { kind: "Accepted", status: "False", reason, message: message.to_owned() }
}

fn verdict(problems: Vec<String>, reading: Reading) -> StatusCondition {
    if problems.is_empty() {
        return StatusCondition {
            kind: "Accepted",
            status: "True",
            reason: "Accepted",
            message: "enforced at layer 4 as written".to_owned(),
        };
    }
    let consequence = match reading {
        Reading::NeverMatches => "what depends on it is not allowed",
        Reading::AlwaysMatches => "it is taken as matching, so more is denied than written",
    };
    let message = format!("{}: {consequence}", problems.join("; "));
    StatusCondition { kind: "Accepted", status: "False", reason: "UnsupportedValue", message }
}

/// What of the policy a layer-4 proxy cannot judge, by field.
fn problems(spec: &AuthorizationPolicySpec) -> Vec<String> {
    let mut issues = ObjectIssues::default();
    security::authorization_policy(spec, &FieldPath::at("spec"), &mut issues);
    let mut problems: Vec<String> = issues
        .errors
        .iter()
        .map(|issue| format!("{} is wrong ({})", issue.path.as_str(), issue.what))
        .collect();
    let mut fields = Vec::new();
    for rule in spec.rules.iter().flatten() {
        for source in rule.from.iter().flatten().filter_map(|from| from.source.as_ref()) {
            fields.extend(source_l7(source));
        }
        for operation in rule.to.iter().flatten().filter_map(|to| to.operation.as_ref()) {
            fields.extend(operation_l7(operation));
        }
        let conditions = rule.when.iter().flatten().filter(|condition| !is_l4(condition));
        fields.extend(conditions.map(|condition| format!("when {}", condition.key)));
    }
    fields.sort();
    fields.dedup();
    if !fields.is_empty() {
        problems.push(format!("{} can only be judged by a layer-7 proxy", fields.join(", ")));
    }
    problems
}

fn given<'a>(fields: impl IntoIterator<Item = (&'a str, &'a Values)>) -> Vec<String> {
    let given = fields.into_iter().filter(|(_, values)| values.is_some());
    given.map(|(name, _)| name.to_owned()).collect()
}

fn source_l7(source: &Source) -> Vec<String> {
    given([
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ("trustDomains", &source.trust_domains),
        ("notTrustDomains", &source.not_trust_domains),
    ])
}

fn operation_l7(operation: &Operation) -> Vec<String> {
    given([
        ("hosts", &operation.hosts),
        ("notHosts", &operation.not_hosts),
        ("methods", &operation.methods),
        ("notMethods", &operation.not_methods),
        ("paths", &operation.paths),
        ("notPaths", &operation.not_paths),
    ])
}

fn is_l4(condition: &Condition) -> bool {
    let keys =
        ["source.ip", "source.namespace", "source.principal", "destination.ip", "destination.port"];
    keys.contains(&condition.key.as_str())
}

/// What a match of the list is, once layer 7 is read strictly.
enum Alternative {
    /// It can be judged.
    Judged(Box<Match>),
    /// It holds whatever comes.
    Always,
    /// It never holds.
    Never,
}

fn convert_rule(rule: &istio::Rule, namespace: &str, reading: Reading) -> Rule {
    let mut clauses = Vec::new();
    if let Some(from) = &rule.from {
        clauses.push(clause(
            from.iter().map(|from| match &from.source {
                Some(source) => convert_source(source, namespace, reading),
                None => unreadable(reading),
            }),
            reading,
        ));
    }
    if let Some(to) = &rule.to {
        clauses.push(clause(
            to.iter().map(|to| match &to.operation {
                Some(operation) => convert_operation(operation, reading),
                None => unreadable(reading),
            }),
            reading,
        ));
    }
    for condition in rule.when.iter().flatten() {
        clauses.push(clause([convert_condition(condition, reading)], reading));
    }
    Rule { clauses: clauses.into_iter().flatten().collect() }
}

/// Removes the destination from a DENY's rule: an empty match always holds.
fn hold_at_every_destination(rule: &mut Rule) {
    for one in rule.clauses.iter_mut().flat_map(|clause| &mut clause.matches) {
        one.destination_ips.clear();
        one.not_destination_ips.clear();
        one.destination_ports.clear();
        one.not_destination_ports.clear();
    }
    rule.clauses.retain(|clause| clause.matches.iter().all(|one| *one != Match::default()));
}

fn unreadable(reading: Reading) -> Alternative {
    match reading {
        Reading::NeverMatches => Alternative::Never,
        Reading::AlwaysMatches => Alternative::Always,
    }
}

/// The clause of a list of alternatives; `None` when it always holds. An empty list is unreadable.
fn clause(alternatives: impl IntoIterator<Item = Alternative>, reading: Reading) -> Option<Clause> {
    let mut matches = Vec::new();
    let mut is_empty = true;
    for alternative in alternatives {
        is_empty = false;
        match alternative {
            Alternative::Judged(one) => matches.push(*one),
            Alternative::Always => return None,
            Alternative::Never => {}
        }
    }
    if is_empty && reading == Reading::AlwaysMatches {
        return None;
    }
    if matches.is_empty() {
        // A match without any field holds for nothing, here and in ztunnel; a clause without
        // matches would hold.
        matches.push(Match::default());
    }
    Some(Clause { matches })
}

fn convert_source(source: &Source, namespace: &str, reading: Reading) -> Alternative {
    let is_l7 = !source_l7(source).is_empty();
    let converted = (|| {
        Some(Match {
            namespaces: texts(&source.namespaces)?,
            not_namespaces: texts(&source.not_namespaces)?,
            principals: principals(&source.principals)?,
            not_principals: principals(&source.not_principals)?,
            service_accounts: accounts(&source.service_accounts, namespace)?,
            not_service_accounts: accounts(&source.not_service_accounts, namespace)?,
            source_ips: blocks(&source.ip_blocks)?,
            not_source_ips: blocks(&source.not_ip_blocks)?,
            ..Match::default()
        })
    })();
    alternative(converted, is_l7, reading)
}

fn convert_operation(operation: &Operation, reading: Reading) -> Alternative {
    let is_l7 = !operation_l7(operation).is_empty();
    let converted = (|| {
        Some(Match {
            destination_ports: ports(&operation.ports)?,
            not_destination_ports: ports(&operation.not_ports)?,
            ..Match::default()
        })
    })();
    alternative(converted, is_l7, reading)
}

fn convert_condition(condition: &Condition, reading: Reading) -> Alternative {
    let (values, not_values) = (&condition.values, &condition.not_values);
    let mut one = Match::default();
    let converted = (|| {
        match condition.key.as_str() {
            "source.ip" => {
                one.source_ips = blocks(values)?;
                one.not_source_ips = blocks(not_values)?;
            }
            "source.namespace" => {
                one.namespaces = texts(values)?;
                one.not_namespaces = texts(not_values)?;
            }
            "source.principal" => {
                one.principals = principals(values)?;
                one.not_principals = principals(not_values)?;
            }
            "destination.ip" => {
                one.destination_ips = blocks(values)?;
                one.not_destination_ips = blocks(not_values)?;
            }
            "destination.port" => {
                one.destination_ports = ports(values)?;
                one.not_destination_ports = ports(not_values)?;
            }
            _ => return None,
        }
        Some(one)
    })();
    alternative(converted, !is_l4(condition), reading)
}

/// `converted` is `None` when a value cannot be read at all.
fn alternative(converted: Option<Match>, is_l7: bool, reading: Reading) -> Alternative {
    match (converted, reading) {
        (None, Reading::NeverMatches) => Alternative::Never,
        (None, Reading::AlwaysMatches) => Alternative::Always,
        (Some(_), Reading::NeverMatches) if is_l7 => Alternative::Never,
        // What is left of a DENY holds for more connections than the whole of it, which is the
        // strict side.
        (Some(one), Reading::AlwaysMatches) if one == Match::default() => Alternative::Always,
        (Some(one), _) => Alternative::Judged(Box::new(one)),
    }
}

/// The values, none when absent; `None` when they are there and empty, or one of them cannot be
/// read.
fn read<T>(values: &Values, one: impl Fn(&str) -> Option<T>) -> Option<List<T>> {
    match values {
        None => Some(List::new()),
        Some(values) if values.is_empty() => None,
        Some(values) => values.iter().map(|value| one(value)).collect(),
    }
}

fn texts(values: &Values) -> Option<List<TextMatch>> {
    read(values, |value| security::wildcard(value).is_none().then(|| text(value)).flatten())
}

/// A principal that could never match is not one that was read.
fn principals(values: &Values) -> Option<List<TextMatch>> {
    read(values, |value| security::principal(value).is_none().then(|| text(value)).flatten())
}

fn accounts(values: &Values, namespace: &str) -> Option<List<ServiceAccountMatch>> {
    read(values, |value| {
        let (namespace, name) = value.split_once('/').unwrap_or((namespace, value));
        (!name.is_empty()).then(|| ServiceAccountMatch {
            namespace: namespace.into(),
            service_account: name.into(),
        })
    })
}

fn blocks(values: &Values) -> Option<List<ipnet::IpNet>> {
    read(values, names::address_block)
}

fn ports(values: &Values) -> Option<List<u16>> {
    read(values, |value| value.parse().ok().filter(|port| *port > 0))
}
