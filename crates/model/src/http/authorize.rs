//! Whether a request may pass, and why.
//!
//! The order is Istio's: a provider decides what a CUSTOM policy matches, before all others; a DENY
//! that matches denies; without any ALLOW everything else passes; with one, only what an ALLOW
//! matches. What cannot be compared (a token that was not sent, an identity that was not proven)
//! satisfies no value, and so every exclusion.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::Text;
use crate::authorize::{Allows, Decision, Denial, RuleName, Source, field};
use crate::http::head::RequestHead;
use crate::http::policy::{
    Action, ClientMatch, Condition, IpAttribute, OperationMatch, RequestPolicy, RequestRule,
    TextAttribute, Values,
};
use crate::policy::{ServiceAccountMatch, TextMatch};

/// A token whose signature, issuer, audience and time were verified.
pub trait Token {
    /// `ISSUER/SUBJECT`.
    fn principal(&self) -> &str;
    /// Whether `holds` for one of the audiences.
    fn any_audience(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool;
    /// Who it was issued to (`azp`).
    fn presenter(&self) -> Option<&str>;
    /// Whether `holds` for the claim found by `keys`, one within the other, or for one of its
    /// members if it is a list.
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool;
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
    /// The name in the client's TLS handshake.
    pub server_name: Option<&'a str>,
    /// The verified token.
    pub token: Option<&'a dyn Token>,
}

/// What was decided about a request, beside what a provider still has to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestJudgement {
    /// What holds.
    pub decision: Decision,
    /// What AUDIT policies match.
    pub audits: Vec<RuleName>,
    /// What policies on trial would have denied.
    pub dry_run_denials: Vec<Denial>,
}

/// A provider that a CUSTOM policy asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Custom {
    /// The provider's name.
    pub provider: Text,
    /// The rule that matches.
    pub rule: RuleName,
    /// Its answer is logged and counted, never enforced.
    pub is_dry_run: bool,
}

/// The providers that must agree before [`authorize`] is asked, in the order of their policies.
pub fn providers(policies: &[Arc<RequestPolicy>], asked: &Asked<'_>) -> Vec<Custom> {
    let mut found = Vec::new();
    for policy in policies {
        let Action::Custom(provider) = &policy.action else { continue };
        if let Some(rule) = matching_rule(policy, asked) {
            let (provider, is_dry_run) = (provider.clone(), policy.is_dry_run);
            found.push(Custom { provider, rule, is_dry_run });
        }
    }
    found
}

/// Decides whether the request may pass, as far as policies decide by themselves.
pub fn authorize(policies: &[Arc<RequestPolicy>], asked: &Asked<'_>) -> RequestJudgement {
    let (mut audits, mut dry_run_denials) = (Vec::new(), Vec::new());
    let (mut allows, mut trial) = (Allows::default(), Allows::default());
    let mut denied = None;
    for policy in policies {
        let hit = matching_rule(policy, asked);
        match (&policy.action, policy.is_dry_run) {
            (Action::Custom(_), _) => {}
            (Action::Audit, _) => audits.extend(hit),
            (Action::Deny, true) => dry_run_denials.extend(hit.map(Denial::Denied)),
            (Action::Deny, false) => denied = denied.or(hit),
            (Action::Allow, is_dry_run) => {
                let side = if is_dry_run { &mut trial } else { &mut allows };
                side.count(&policy.key, hit);
            }
        }
    }
    dry_run_denials.extend(trial.denial());
    let decision = match (denied, allows.denial()) {
        (Some(rule), _) => Decision::Deny(Denial::Denied(rule)),
        (None, Some(denial)) => Decision::Deny(denial),
        (None, None) => Decision::Allow(allows.hit),
    };
    RequestJudgement { decision, audits, dry_run_denials }
}

fn matching_rule(policy: &RequestPolicy, asked: &Asked<'_>) -> Option<RuleName> {
    let rule = policy.rules.iter().position(|rule| asked.satisfies(rule))?;
    Some(RuleName { policy: policy.key.clone(), rule })
}

impl<T> Values<T> {
    fn hold(&self, matches: impl Fn(&T) -> bool) -> bool {
        field(&self.any_of, &self.none_of, matches)
    }
}

impl Asked<'_> {
    fn satisfies(&self, rule: &RequestRule) -> bool {
        (rule.from.is_empty() || rule.from.iter().any(|from| self.is_from(from)))
            && (rule.to.is_empty() || rule.to.iter().any(|to| self.asks(to)))
            && rule.when.iter().all(|condition| self.holds(condition))
    }

    fn is_from(&self, from: &ClientMatch) -> bool {
        use TextAttribute::{Namespace, Principal, RequestPrincipal, TrustDomain};
        from.principals.hold(|it| self.text(Principal, it))
            && from.namespaces.hold(|it| self.text(Namespace, it))
            && from.trust_domains.hold(|it| self.text(TrustDomain, it))
            && from.service_accounts.hold(|it| self.account(it))
            && from.request_principals.hold(|it| self.text(RequestPrincipal, it))
            && from.ip_blocks.hold(|it| self.ip(IpAttribute::Source, it))
            && from.remote_ip_blocks.hold(|it| self.ip(IpAttribute::Remote, it))
    }

    fn asks(&self, to: &OperationMatch) -> bool {
        let head = self.head;
        to.hosts.hold(|it| it.matches(head.host, head.port))
            && to.ports.hold(|it| *it == self.destination.port())
            && to.methods.hold(|it| it.matches(head.method))
            && to.paths.hold(|it| it.matches(head.path))
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Header { name, values } => {
                let value = self.head.fields.value(name);
                let text = value.as_deref().map(String::from_utf8_lossy);
                values.hold(|it| text.as_deref().is_some_and(|text| it.matches(text)))
            }
            Condition::Claim { keys, values } => values.hold(|it| {
                self.token.is_some_and(|token| token.any_claim(keys, &mut |text| it.matches(text)))
            }),
            Condition::Text(attribute, values) => values.hold(|it| self.text(*attribute, it)),
            Condition::ServiceAccount(values) => values.hold(|it| self.account(it)),
            Condition::Ip(attribute, values) => values.hold(|it| self.ip(*attribute, it)),
            Condition::DestinationPort(values) => values.hold(|it| *it == self.destination.port()),
        }
    }

    fn text(&self, attribute: TextAttribute, wanted: &TextMatch) -> bool {
        let is = |value: Option<&str>| value.is_some_and(|value| wanted.matches(value));
        let identity = self.source.identity();
        match attribute {
            TextAttribute::Principal => is(identity.map(|_| self.source.principal())),
            TextAttribute::Namespace => is(identity.map(|it| &*it.namespace)),
            TextAttribute::TrustDomain => is(identity.map(|it| &*it.trust_domain)),
            TextAttribute::RequestPrincipal => is(self.token.map(|it| it.principal())),
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
