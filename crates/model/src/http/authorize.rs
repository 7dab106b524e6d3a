//! Whether a request may pass, and why.
//!
//! The order is Istio's: first a provider decides what a CUSTOM policy matches; a DENY that matches
//! denies; without any ALLOW everything else passes; with one, only what an ALLOW matches. It fails
//! closed: a policy that was not received denies. A missing value (a token that was not sent, an
//! identity that was not proven) matches no value, and so it satisfies every exclusion.
//!
//! A client may send a field in several lines, and the application may read any of them. Each line
//! is compared by itself, and a doubt never lets a request pass: ALLOW wants every line to match
//! and none to be excluded; for all other actions one line that matches is enough, and a field is
//! excluded only if every line is.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::Text;
use crate::authorize::{Allows, Decision, Denial, RuleName, Source, field};
use crate::expression::{Expression, Lookup};
use crate::http::head::{Claims, RequestHead};
use crate::http::policy::{
    Action, ClientMatch, Condition, IpAttribute, OperationMatch, RequestPolicy, RequestRule,
    TextAttribute, Values,
};
use crate::names::{PolicyName, ServiceName};
use crate::policy::{ServiceAccountMatch, TextMatch};

/// A token whose signature, issuer, audience and time were verified.
pub trait Token: Claims {
    /// `ISSUER/SUBJECT`, if it has a subject and the text means no other issuer's.
    fn principal(&self) -> Option<&str>;
    /// Whether `holds` for one of the audiences.
    fn any_audience(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool;
    /// Who it was issued to (`azp`).
    fn presenter(&self) -> Option<&str>;
    /// All claims, as expressions read them.
    fn claims(&self) -> &dyn Lookup;
}

/// A request and what is known of where it comes from.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The request.
    pub head: &'a RequestHead<'a>,
    /// Who asks, as far as it is proven.
    pub source: &'a Source,
    /// The first client's address, as far as the proxies in between are trusted.
    pub remote_ip: IpAddr,
    /// Where the request came in: the service's address and port, or the workload's.
    pub destination: SocketAddr,
    /// The service that it asks for, as `namespace/hostname`.
    pub service: Option<&'a ServiceName>,
    /// The name in the client's TLS handshake.
    pub server_name: Option<&'a str>,
    /// The verified token.
    pub token: Option<&'a dyn Token>,
}

/// The decision about a request, and what else policies say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestJudgement {
    /// What holds.
    pub decision: RequestDecision,
    /// What AUDIT policies match.
    pub audits: Vec<RuleName>,
    /// What policies on trial would have denied.
    pub dry_run_denials: Vec<Denial>,
    /// The providers that policies on trial would ask. The request does not wait for them: what
    /// they answer is logged and counted, never enforced.
    pub dry_run_providers: Vec<Custom>,
}

/// What holds for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestDecision {
    /// It may not pass.
    Denied(Denial),
    /// Providers decide first.
    Ask {
        /// All of these must agree, in the order of their policies; at least one.
        providers: Vec<Custom>,
        /// What holds if they do.
        then: Decision,
    },
    /// It may pass; the rule that allows it, or none when no ALLOW policy exists.
    Allowed(Option<RuleName>),
}

/// A provider that a CUSTOM policy asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Custom {
    /// The provider's name.
    pub provider: Text,
    /// The rule that matches.
    pub rule: RuleName,
}

/// Decides whether the request may pass. A policy that was not received is an error with its name,
/// as [`View::policies_of`](crate::view::View::policies_of) yields them.
pub fn authorize<'a>(
    policies: impl IntoIterator<Item = Result<&'a Arc<RequestPolicy>, &'a PolicyName>>,
    asked: &Asked<'_>,
) -> RequestJudgement {
    let (mut audits, mut dry_run_denials) = (Vec::new(), Vec::new());
    let (mut providers, mut dry_run_providers) = (Vec::new(), Vec::new());
    let (mut allows, mut trial) = (Allows::default(), Allows::default());
    let (mut denied, mut missing) = (None, None);
    for policy in policies {
        let policy = match policy {
            Ok(policy) => policy,
            Err(name) => {
                missing.get_or_insert(name);
                continue;
            }
        };
        let hit = matching_rule(policy, asked);
        match (&policy.action, policy.is_dry_run) {
            (Action::Custom(provider), is_dry_run) => {
                let side = if is_dry_run { &mut dry_run_providers } else { &mut providers };
                side.extend(hit.map(|rule| Custom { provider: provider.clone(), rule }));
            }
            (Action::Audit, _) => audits.extend(hit),
            (Action::Deny, true) => dry_run_denials.extend(hit.map(Denial::Denied)),
            (Action::Deny, false) => denied = denied.or(hit),
            (Action::Allow, is_dry_run) => {
                let side = if is_dry_run { &mut trial } else { &mut allows };
                side.count(Some((&policy.key, 1)));
                hit.into_iter().for_each(|rule| side.found(rule));
            }
        }
    }
    dry_run_denials.extend(trial.denial());
    let is_missing = missing.map(|name| Denial::PolicyMissing(name.clone()));
    // What is missing may name a provider too: without it nobody is asked.
    let asks = is_missing.is_none() && !providers.is_empty();
    let denial = denied.map(Denial::Denied).or(is_missing).or_else(|| allows.denial());
    let decision = match denial {
        _ if asks => {
            let then = denial.map_or(Decision::Allow(allows.hit), Decision::Deny);
            RequestDecision::Ask { providers, then }
        }
        Some(denial) => RequestDecision::Denied(denial),
        None => RequestDecision::Allowed(allows.hit),
    };
    RequestJudgement { decision, audits, dry_run_denials, dry_run_providers }
}

fn matching_rule(policy: &RequestPolicy, asked: &Asked<'_>) -> Option<RuleName> {
    let allows = policy.action == Action::Allow;
    let rule = policy.rules.iter().position(|rule| asked.satisfies(rule, allows))?;
    // Without a value it is as if it were whatever lets less pass.
    let holds = |condition: &Expression| condition.holds(asked).unwrap_or(!allows);
    if !policy.condition.as_ref().is_none_or(holds) {
        return None;
    }
    Some(RuleName { policy: policy.key.clone(), rule })
}

impl<T> Values<T> {
    fn hold(&self, matches: impl Fn(&T) -> bool) -> bool {
        field(&self.any_of, &self.none_of, matches)
    }
}

impl Asked<'_> {
    /// Whether the rule, of an ALLOW policy or another, matches.
    fn satisfies(&self, rule: &RequestRule, allows: bool) -> bool {
        (rule.from.is_empty() || rule.from.iter().any(|from| self.is_from(from)))
            && (rule.to.is_empty() || rule.to.iter().any(|to| self.asks(to)))
            && rule.when.iter().all(|condition| self.holds(condition, allows))
    }

    fn is_from(&self, from: &ClientMatch) -> bool {
        use TextAttribute::{Namespace, Principal, RequestPrincipal, TrustDomain};
        *from != ClientMatch::default()
            && from.principals.hold(|it| self.text(Principal, it))
            && from.namespaces.hold(|it| self.text(Namespace, it))
            && from.trust_domains.hold(|it| self.text(TrustDomain, it))
            && from.service_accounts.hold(|it| self.account(it))
            && from.request_principals.hold(|it| self.text(RequestPrincipal, it))
            && from.ip_blocks.hold(|it| self.ip(IpAttribute::Source, it))
            && from.remote_ip_blocks.hold(|it| self.ip(IpAttribute::Remote, it))
    }

    fn asks(&self, to: &OperationMatch) -> bool {
        let head = self.head;
        *to != OperationMatch::default()
            && to.hosts.hold(|it| it.matches(head.host, head.port))
            && to.ports.hold(|it| *it == self.destination.port())
            && to.methods.hold(|it| it.matches(head.method))
            && to.paths.hold(|it| it.matches(head.path))
    }

    fn holds(&self, condition: &Condition, allows: bool) -> bool {
        match condition {
            Condition::Header { name, values } => self.field_holds(name, values, allows),
            Condition::Claim { keys, values } => values.hold(|it| {
                self.token.is_some_and(|token| token.any_claim(keys, &mut |text| it.matches(text)))
            }),
            Condition::Text(attribute, values) => values.hold(|it| self.text(*attribute, it)),
            Condition::ServiceAccount(values) => values.hold(|it| self.account(it)),
            Condition::Ip(attribute, values) => values.hold(|it| self.ip(*attribute, it)),
            Condition::DestinationPort(values) => values.hold(|it| *it == self.destination.port()),
        }
    }

    fn field_holds(&self, name: &str, values: &Values<TextMatch>, allows: bool) -> bool {
        let fields = self.head.fields;
        let is = |wanted: &TextMatch, line: &[u8]| wanted.matches(&String::from_utf8_lossy(line));
        // The lines joined count as one more: a value that is cut in two must not hide either.
        let any = |wanted: &TextMatch| {
            fields.any(name, &mut |line| is(wanted, line))
                || fields.value(name).is_some_and(|joined| is(wanted, &joined))
        };
        let all = |wanted: &TextMatch| {
            fields.any(name, &mut |_| true) && !fields.any(name, &mut |line| !is(wanted, line))
        };
        let holds = |wanted: &TextMatch| if allows { all(wanted) } else { any(wanted) };
        let is_excluded = |wanted: &TextMatch| if allows { any(wanted) } else { all(wanted) };
        (values.any_of.is_empty() || values.any_of.iter().any(holds))
            && !values.none_of.iter().any(is_excluded)
    }

    fn text(&self, attribute: TextAttribute, wanted: &TextMatch) -> bool {
        let is = |value: Option<&str>| value.is_some_and(|value| wanted.matches(value));
        let identity = self.source.identity();
        match attribute {
            TextAttribute::Principal => is(identity.map(|_| self.source.principal())),
            TextAttribute::Namespace => is(identity.map(|it| &*it.namespace)),
            TextAttribute::TrustDomain => is(identity.map(|it| &*it.trust_domain)),
            TextAttribute::RequestPrincipal => is(self.token.and_then(|it| it.principal())),
            TextAttribute::Audience => {
                self.token.is_some_and(|it| it.any_audience(&mut |text| wanted.matches(text)))
            }
            TextAttribute::Presenter => is(self.token.and_then(|it| it.presenter())),
            TextAttribute::ServerName => is(self.server_name),
        }
    }

    fn account(&self, wanted: &ServiceAccountMatch) -> bool {
        self.source.identity().is_some_and(|it| {
            it.namespace == wanted.namespace && it.service_account == wanted.service_account
        })
    }

    fn ip(&self, attribute: IpAttribute, block: &IpNet) -> bool {
        block.contains(&match attribute {
            IpAttribute::Source => self.source.ip(),
            IpAttribute::Remote => self.remote_ip,
            IpAttribute::Destination => self.destination.ip(),
        })
    }
}
