//! `istio.security.Authorization`, read so that it never fails open.
//!
//! Refusing a policy for one odd condition would leave the workloads it protects without it. So a
//! condition that cannot be read (a match type that is unset or unknown, an address of a wrong
//! length, a port out of range, a field or extension of a newer version) gets its strictest
//! reading instead, and is reported in [`Reading::unreadable`]:
//!
//! | unreadable | in ALLOW | in DENY |
//! |---|---|---|
//! | value of a list that must match | the value matches nothing | the list matches everything |
//! | value of a list that must not match | the match holds for nothing | it excludes nothing |
//! | extension of a match | the match holds for nothing | the match always holds |
//! | unknown field | the rule holds for nothing | the rule holds for everything |
//! | action | | the policy denies everything |
//!
//! Only a policy that cannot be attached is refused: one without a name, or of unknown scope.

use ipnet::IpNet;

use ambit_model::address::canonical_block;
use ambit_model::names::PolicyName;
use ambit_model::policy::{
    Action, Clause, List, Match, Policy, PolicyScope, Rule, ServiceAccountMatch, TextMatch,
};

use super::{
    ConvertError, Problem, decode, ip_bytes, known, prefix_len, text, unknown, written_ip,
};
use crate::proto::istio::security as proto;
use crate::proto::istio::workload::Extension;
use proto::string_match::MatchType;

/// Extension of a policy that waypoints judge: `Policy::is_of_waypoints`. It has no value. Only
/// Ambit's control plane sends it, because Istio's waypoints ignore such policies.
const OF_WAYPOINTS_EXTENSION: &str = "ambit.judged-by-waypoints";

/// A policy, and what of it had to be given its strictest reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The policy to enforce.
    pub policy: Policy,
    /// Paths of the fields that could not be read; empty for a policy that was understood.
    pub unreadable: Vec<String>,
}

/// Reads an encoded Authorization, conditions of newer versions included.
pub fn read(bytes: &[u8]) -> Result<Reading, ConvertError> {
    let mut reading = read_message(decode(bytes)?)?;
    let beyond = unknown::rules(bytes).unwrap_or_else(|| vec![true; reading.policy.rules.len()]);
    let rules = reading.policy.rules.iter_mut().enumerate();
    for ((index, rule), _) in rules.zip(beyond).filter(|(_, beyond)| *beyond) {
        *rule = match reading.policy.action {
            Action::Allow => rule_for_nothing(),
            Action::Deny => Rule::default(),
        };
        reading.unreadable.push(format!("rules[{index}]: field of a newer version"));
    }
    Ok(reading)
}

impl TryFrom<proto::Authorization> for Policy {
    type Error = ConvertError;

    /// Prefer [`read`], which also sees fields that decoding has dropped.
    fn try_from(message: proto::Authorization) -> Result<Self, ConvertError> {
        read_message(message).map(|reading| reading.policy)
    }
}

impl From<&Policy> for proto::Authorization {
    fn from(policy: &Policy) -> Self {
        let scope = match policy.scope {
            PolicyScope::Global => proto::Scope::Global,
            PolicyScope::Namespace => proto::Scope::Namespace,
            PolicyScope::WorkloadSelector => proto::Scope::WorkloadSelector,
        };
        let action = match policy.action {
            Action::Allow => proto::Action::Allow,
            Action::Deny => proto::Action::Deny,
        };
        Self {
            name: policy.key.name.to_string(),
            namespace: policy.key.namespace.to_string(),
            scope: scope.into(),
            action: action.into(),
            rules: policy.rules.iter().map(rule_message).collect(),
            dry_run: policy.dry_run,
            extensions: extensions(policy.is_of_waypoints),
        }
    }
}

fn extensions(is_of_waypoints: bool) -> Vec<Extension> {
    let extension = Extension { name: OF_WAYPOINTS_EXTENSION.to_owned(), config: None };
    is_of_waypoints.then_some(extension).into_iter().collect()
}

/// Everything but the fields that decoding has dropped.
fn read_message(message: proto::Authorization) -> Result<Reading, ConvertError> {
    if message.name.is_empty() {
        return Err(ConvertError::new("name", Problem::Missing));
    }
    let scope = match known("scope", message.scope)? {
        proto::Scope::Global => PolicyScope::Global,
        proto::Scope::Namespace => PolicyScope::Namespace,
        proto::Scope::WorkloadSelector => PolicyScope::WorkloadSelector,
    };
    let mut unreadable = Vec::new();
    let (action, rules) = match proto::Action::try_from(message.action) {
        Ok(proto::Action::Allow) => {
            let rules = Reader { action: Action::Allow, unreadable: &mut unreadable };
            (Action::Allow, rules.rules(&message.rules))
        }
        Ok(proto::Action::Deny) => {
            let rules = Reader { action: Action::Deny, unreadable: &mut unreadable };
            (Action::Deny, rules.rules(&message.rules))
        }
        Err(_) => {
            unreadable.push(format!("action: enum value {} is unknown", message.action));
            (Action::Deny, vec![Rule::default()])
        }
    };
    let key = PolicyName::new(message.namespace, message.name);
    let mut extensions = message.extensions.iter();
    let is_of_waypoints = extensions.any(|it| it.name == OF_WAYPOINTS_EXTENSION);
    let policy = Policy { key, scope, action, rules, dry_run: message.dry_run, is_of_waypoints };
    Ok(Reading { policy, unreadable })
}

/// A rule that never holds. It keeps its place, because rules are named by their index.
fn rule_for_nothing() -> Rule {
    Rule { clauses: vec![Clause { matches: vec![Match::default()] }] }
}

/// What came of one list of values.
enum Values<T> {
    /// Values to compare with.
    Read(List<T>),
    /// The condition cannot hold.
    Never,
    /// The condition always holds.
    Always,
}

/// Reads the rules of one policy; what is strict depends on its action.
struct Reader<'a> {
    action: Action,
    unreadable: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn rules(mut self, rules: &[proto::Rule]) -> Vec<Rule> {
        let rules = rules.iter().enumerate();
        rules.map(|(index, rule)| self.rule(&format!("rules[{index}]"), rule)).collect()
    }

    /// A rule without clauses holds for everything, as written.
    fn rule(&mut self, path: &str, rule: &proto::Rule) -> Rule {
        let clauses = rule.clauses.iter().enumerate();
        let clauses = clauses.map(|(i, it)| self.clause(&format!("{path}.clauses[{i}]"), it));
        Rule { clauses: clauses.collect() }
    }

    /// A clause one of whose matches always holds is one without matches.
    fn clause(&mut self, path: &str, clause: &proto::Clause) -> Clause {
        let matches = clause.matches.iter().enumerate();
        let matches: Vec<_> =
            matches.map(|(i, it)| self.one(&format!("{path}.matches[{i}]"), it)).collect();
        Clause { matches: matches.into_iter().collect::<Option<_>>().unwrap_or_default() }
    }

    /// One match, or none when it always holds.
    fn one(&mut self, path: &str, it: &proto::Match) -> Option<Match> {
        let at = |field: &str| format!("{path}.{field}");
        let mut fate = Fate::default();
        let one = Match {
            namespaces: fate.of(self.any(&at("namespaces"), &it.namespaces, words)),
            not_namespaces: fate.of(self.none(&at("not_namespaces"), &it.not_namespaces, words)),
            principals: fate.of(self.any(&at("principals"), &it.principals, words)),
            not_principals: fate.of(self.none(&at("not_principals"), &it.not_principals, words)),
            service_accounts: it.service_accounts.iter().map(account).collect(),
            not_service_accounts: it.not_service_accounts.iter().map(account).collect(),
            source_ips: fate.of(self.any(&at("source_ips"), &it.source_ips, net)),
            not_source_ips: fate.of(self.none(&at("not_source_ips"), &it.not_source_ips, net)),
            destination_ips: fate.of(self.any(&at("destination_ips"), &it.destination_ips, net)),
            not_destination_ips: fate.of(self.none(
                &at("not_destination_ips"),
                &it.not_destination_ips,
                net,
            )),
            destination_ports: fate.of(self.any(
                &at("destination_ports"),
                &it.destination_ports,
                port,
            )),
            not_destination_ports: fate.of(self.none(
                &at("not_destination_ports"),
                &it.not_destination_ports,
                port,
            )),
        };
        let extended = !it.extensions.is_empty();
        if extended {
            self.unreadable.push(at("extensions"));
        }
        match self.action {
            Action::Allow if fate.never || extended => Some(Match::default()),
            Action::Deny if extended || (fate.always && one == Match::default()) => None,
            Action::Allow | Action::Deny => Some(one),
        }
    }

    /// Reads values, one of which must match.
    ///
    /// Dropping an unreadable one narrows the list: right for ALLOW, as long as one is left.
    fn any<W, T>(&mut self, path: &str, wire: &[W], read: fn(&W) -> Option<T>) -> Values<T> {
        let values = self.readable(path, wire, read);
        match self.action {
            _ if values.len() == wire.len() => Values::Read(values),
            Action::Allow if values.is_empty() => Values::Never,
            Action::Allow => Values::Read(values),
            Action::Deny => Values::Always,
        }
    }

    /// Reads values, none of which may match.
    ///
    /// Dropping an unreadable one widens the match: right for DENY.
    fn none<W, T>(&mut self, path: &str, wire: &[W], read: fn(&W) -> Option<T>) -> Values<T> {
        let values = self.readable(path, wire, read);
        match self.action {
            _ if values.len() == wire.len() => Values::Read(values),
            Action::Allow => Values::Never,
            Action::Deny if values.is_empty() => Values::Always,
            Action::Deny => Values::Read(values),
        }
    }

    /// The values that can be read; the others are reported by their path.
    fn readable<W, T>(&mut self, path: &str, wire: &[W], read: fn(&W) -> Option<T>) -> List<T> {
        let mut values = List::with_capacity(wire.len());
        for (index, value) in wire.iter().enumerate() {
            match read(value) {
                Some(value) => values.push(value),
                None => self.unreadable.push(format!("{path}[{index}]")),
            }
        }
        values
    }
}

/// Whether any list of a match settled it.
#[derive(Default)]
struct Fate {
    never: bool,
    always: bool,
}

impl Fate {
    /// The values to compare; none when the list is settled.
    fn of<T>(&mut self, values: Values<T>) -> List<T> {
        match values {
            Values::Read(values) => return values,
            Values::Never => self.never = true,
            Values::Always => self.always = true,
        }
        List::new()
    }
}

/// A match type that is unset or newer is unreadable.
fn words(message: &proto::StringMatch) -> Option<TextMatch> {
    Some(match message.match_type.as_ref()? {
        MatchType::Exact(it) => TextMatch::Exact(text(it)),
        MatchType::Prefix(it) => TextMatch::Prefix(text(it)),
        MatchType::Suffix(it) => TextMatch::Suffix(text(it)),
        MatchType::Presence(()) => TextMatch::Presence,
    })
}

/// A range whose length exceeds its address is unreadable, never cut to fit; so is one that holds
/// IPv4 beside IPv6.
fn net(message: &proto::Address) -> Option<IpNet> {
    let ip = written_ip(&message.address).ok()?;
    let length = prefix_len(ip, message.length).ok()?;
    canonical_block(IpNet::new(ip, length).ok()?)
}

/// A number beyond 65535 is unreadable, never truncated to a port.
fn port(port: &u32) -> Option<u16> {
    u16::try_from(*port).ok()
}

fn account(message: &proto::ServiceAccountMatch) -> ServiceAccountMatch {
    ServiceAccountMatch {
        namespace: text(&message.namespace),
        service_account: text(&message.service_account),
    }
}

fn rule_message(rule: &Rule) -> proto::Rule {
    let clause = |clause: &Clause| proto::Clause {
        matches: clause.matches.iter().map(match_message).collect(),
    };
    proto::Rule { clauses: rule.clauses.iter().map(clause).collect() }
}

/// Written field by field, so that a new condition cannot be forgotten here.
fn match_message(it: &Match) -> proto::Match {
    let words = |list: &[TextMatch]| list.iter().map(words_message).collect();
    let nets = |list: &[IpNet]| list.iter().map(net_message).collect();
    let ports = |list: &[u16]| list.iter().copied().map(u32::from).collect();
    let accounts = |list: &[ServiceAccountMatch]| list.iter().map(account_message).collect();
    proto::Match {
        namespaces: words(&it.namespaces),
        not_namespaces: words(&it.not_namespaces),
        principals: words(&it.principals),
        not_principals: words(&it.not_principals),
        source_ips: nets(&it.source_ips),
        not_source_ips: nets(&it.not_source_ips),
        destination_ips: nets(&it.destination_ips),
        not_destination_ips: nets(&it.not_destination_ips),
        destination_ports: ports(&it.destination_ports),
        not_destination_ports: ports(&it.not_destination_ports),
        service_accounts: accounts(&it.service_accounts),
        not_service_accounts: accounts(&it.not_service_accounts),
        extensions: Vec::new(),
    }
}

fn words_message(words: &TextMatch) -> proto::StringMatch {
    let match_type = match words {
        TextMatch::Exact(it) => MatchType::Exact(it.to_string()),
        TextMatch::Prefix(it) => MatchType::Prefix(it.to_string()),
        TextMatch::Suffix(it) => MatchType::Suffix(it.to_string()),
        TextMatch::Presence => MatchType::Presence(()),
    };
    proto::StringMatch { match_type: Some(match_type) }
}

fn net_message(net: &IpNet) -> proto::Address {
    proto::Address { address: ip_bytes(net.addr()), length: net.prefix_len().into() }
}

fn account_message(account: &ServiceAccountMatch) -> proto::ServiceAccountMatch {
    proto::ServiceAccountMatch {
        namespace: account.namespace.to_string(),
        service_account: account.service_account.to_string(),
    }
}
