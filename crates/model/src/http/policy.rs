//! Policies that read requests (Istio's AuthorizationPolicy, all of it).
//!
//! A policy is an OR of rules. A rule is an AND of `from`, `to` and `when`; `from` and `to` are ORs
//! of matches, a match is an AND of its fields. Text is compared as [`TextMatch`] does.

use ipnet::IpNet;

use crate::Text;
use crate::expression::Expression;
use crate::names::PolicyName;
use crate::policy::{ServiceAccountMatch, TextMatch};

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPolicy {
    /// Namespace and name.
    pub key: PolicyName,
    /// What a match means.
    pub action: Action,
    /// Evaluated, logged and counted, never enforced.
    pub is_dry_run: bool,
    /// Alternatives. A policy without rules never matches.
    pub rules: Vec<RequestRule>,
    /// What must be true beside a rule. One without a value fails closed: an ALLOW does not match,
    /// anything else does.
    pub condition: Option<Expression>,
}

/// What a match means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A match allows; with any ALLOW policy, what none of them matches is refused.
    Allow,
    /// A match denies, whatever is allowed.
    Deny,
    /// A match is logged.
    Audit,
    /// A match is decided by this provider, before all other policies.
    Custom(Text),
}

/// Everything must hold. A rule with nothing set matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRule {
    /// Who asks; alternatives.
    pub from: Vec<ClientMatch>,
    /// What is asked; alternatives.
    pub to: Vec<OperationMatch>,
    /// What else must hold, all of it.
    pub when: Vec<Condition>,
}

/// Any of some values, and none of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values<T> {
    /// One of these, if there are any.
    pub any_of: Vec<T>,
    /// None of these.
    pub none_of: Vec<T>,
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self { any_of: Vec::new(), none_of: Vec::new() }
    }
}

/// Who asks (Istio's `source`). All that is set must hold; one with nothing set holds for nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientMatch {
    /// The proven identity, as policies write it.
    pub principals: Values<TextMatch>,
    /// The namespace of the proven identity.
    pub namespaces: Values<TextMatch>,
    /// The service account of the proven identity.
    pub service_accounts: Values<ServiceAccountMatch>,
    /// The trust domain of the proven identity.
    pub trust_domains: Values<TextMatch>,
    /// `ISSUER/SUBJECT` of the verified token.
    pub request_principals: Values<TextMatch>,
    /// The address that the connection came from.
    pub ip_blocks: Values<IpNet>,
    /// The address of the first client, as far as proxies in between are trusted.
    pub remote_ip_blocks: Values<IpNet>,
}

/// What is asked (Istio's `operation`). All that is set must hold; one with nothing set holds for
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationMatch {
    /// Hosts. One without a port holds for every port.
    pub hosts: Values<HostMatch>,
    /// Ports at which the request came in.
    pub ports: Values<u16>,
    /// Methods.
    pub methods: Values<TextMatch>,
    /// Paths, normalised, without the query.
    pub paths: Values<PathPattern>,
}

/// How a host is compared: in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMatch {
    /// The host, in lower case.
    pub host: TextMatch,
    /// The port that the request must name.
    pub port: Option<u16>,
}

/// How a path is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// As text.
    Text(TextMatch),
    /// By segments: Istio's path templates.
    Template(Vec<Segment>),
}

/// One segment of a path template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text.
    Literal(Text),
    /// `{*}`: one segment that is not empty.
    One,
    /// `{**}`: one or more segments, also empty ones; only literals may follow.
    Rest,
}

/// What else must hold (Istio's `when`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A field of the request; `name` in lower case. Of several lines ALLOW wants all to match,
    /// the other actions one; of excluded values the other way round.
    Header {
        /// The field.
        name: Text,
        /// Its value.
        values: Values<TextMatch>,
    },
    /// A claim of the verified token, found by these keys, one within the other. Of a list, one
    /// member.
    Claim {
        /// The keys.
        keys: Vec<Text>,
        /// Its value.
        values: Values<TextMatch>,
    },
    /// A text.
    Text(TextAttribute, Values<TextMatch>),
    /// A service account of the proven identity.
    ServiceAccount(Values<ServiceAccountMatch>),
    /// An address.
    Ip(IpAttribute, Values<IpNet>),
    /// The port at which the request came in.
    DestinationPort(Values<u16>),
}

/// Texts that a condition can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextAttribute {
    /// `source.principal`.
    Principal,
    /// `source.namespace`.
    Namespace,
    /// `source.trustDomain`.
    TrustDomain,
    /// `request.auth.principal`.
    RequestPrincipal,
    /// `request.auth.audiences`: one of them.
    Audience,
    /// `request.auth.presenter`.
    Presenter,
    /// `connection.sni`.
    ServerName,
}

/// Addresses that a condition can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAttribute {
    /// `source.ip`.
    Source,
    /// `remote.ip`.
    Remote,
    /// `destination.ip`.
    Destination,
}

impl RequestPolicy {
    /// The policy as it holds for bytes of which nobody can say what they ask for: the strictest
    /// reading. A rule of an ALLOW policy that looks at a request never matches, nor does one with
    /// a condition. Any other policy loses what looks at requests, and so matches more. The name in
    /// a TLS handshake counts as part of a request where it is not known: neither read, nor found
    /// missing.
    pub fn for_bytes(&self, is_server_name_known: bool) -> Self {
        let rules = self.rules.iter();
        let without = |rule: &RequestRule| rule.without_requests(is_server_name_known);
        let rules = match self.action {
            Action::Allow if self.condition.is_some() => Vec::new(),
            Action::Allow => rules.filter(|rule| **rule == without(rule)).cloned().collect(),
            Action::Deny | Action::Audit | Action::Custom(_) => rules.map(without).collect(),
        };
        Self { rules, condition: None, ..self.clone() }
    }
}

impl RequestRule {
    /// The rule without what looks at requests. An alternative of which nothing is left matches
    /// everything.
    fn without_requests(&self, is_server_name_known: bool) -> Self {
        let from = self
            .from
            .iter()
            .map(|from| ClientMatch { request_principals: Values::default(), ..from.clone() });
        let to = self
            .to
            .iter()
            .map(|to| OperationMatch { ports: to.ports.clone(), ..OperationMatch::default() });
        let when = self.when.iter().filter(|condition| match condition {
            Condition::Header { .. } | Condition::Claim { .. } => false,
            Condition::Text(TextAttribute::ServerName, _) => is_server_name_known,
            Condition::Text(attribute, _) => !matches!(
                attribute,
                TextAttribute::RequestPrincipal
                    | TextAttribute::Audience
                    | TextAttribute::Presenter
            ),
            Condition::ServiceAccount(_) | Condition::Ip(..) | Condition::DestinationPort(_) => {
                true
            }
        });
        Self { from: alternatives(from), to: alternatives(to), when: when.cloned().collect() }
    }
}

/// Alternatives, or none at all if one of them holds for everything now.
fn alternatives<T: Default + PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let all: Vec<T> = all.collect();
    if all.contains(&T::default()) { Vec::new() } else { all }
}

impl HostMatch {
    pub(super) fn matches(&self, host: &str, port: Option<u16>) -> bool {
        self.host.matches(host) && (self.port.is_none() || self.port == port)
    }
}

/// A path template that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It does not begin with a slash.
    #[error("a path template begins with `/`")]
    NoSlash,
    /// An operator follows `{**}`.
    #[error("`{{*}}` or `{{**}}` follows `{{**}}`: only text may follow it")]
    OperatorAfterRest,
    /// A segment has `*`, `{` or `}` in it and is neither `{{*}}` nor `{{**}}`.
    #[error("segment {0:?}: beside `{{*}}` and `{{**}}` a template has no `*`, `{{` or `}}`")]
    Segment(String),
}

impl PathPattern {
    /// Whether `text` is a path template: it names one of the two operators.
    pub fn is_template(text: &str) -> bool {
        text.contains("{*}") || text.contains("{**}")
    }

    /// Reads a path template.
    pub fn template(text: &str) -> Result<Self, TemplateError> {
        let path = text.strip_prefix('/').ok_or(TemplateError::NoSlash)?;
        let segments = path.split('/').map(|segment| match segment {
            "{*}" => Ok(Segment::One),
            "{**}" => Ok(Segment::Rest),
            other if other.contains(['*', '{', '}']) => {
                Err(TemplateError::Segment(other.to_owned()))
            }
            other => Ok(Segment::Literal(other.into())),
        });
        let segments = segments.collect::<Result<Vec<Segment>, _>>()?;
        let mut behind_rest = segments.iter().skip_while(|it| **it != Segment::Rest).skip(1);
        if behind_rest.any(|it| !matches!(it, Segment::Literal(_))) {
            return Err(TemplateError::OperatorAfterRest);
        }
        Ok(Self::Template(segments))
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Text(text) => text.matches(path),
            Self::Template(segments) => {
                path.strip_prefix('/').is_some_and(|path| template_matches(segments, path))
            }
        }
    }
}

/// Matches from both ends: what stands before `{**}` from the start, what follows it from the end.
fn template_matches(segments: &[Segment], path: &str) -> bool {
    let mut left = path.split('/');
    let mut parts = segments.splitn(2, |it| *it == Segment::Rest);
    let before = parts.next().unwrap_or_default();
    let after = parts.next();
    before.iter().all(|wanted| wanted.is(left.next()))
        && after.unwrap_or_default().iter().rev().all(|wanted| wanted.is(left.next_back()))
        && left.next().is_some() == after.is_some()
}

impl Segment {
    fn is(&self, segment: Option<&str>) -> bool {
        segment.is_some_and(|segment| match self {
            Self::Literal(text) => segment == &**text,
            Self::One => !segment.is_empty(),
            Self::Rest => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        for (template, yes, no) in [
            ("/foo/{*}", &["/foo/a"][..], &["/foo", "/foo/", "/foo/a/b", "/bar/a"][..]),
            ("/foo/{**}", &["/foo/", "/foo/a", "/foo/a/b"], &["/foo", "/fo", "/bar/a"]),
            (
                "/foo/{**}/bar",
                &["/foo/a/bar", "/foo/a/b/bar", "/foo//bar"],
                &["/foo/bar", "/foo/a"],
            ),
            ("/foo/{**}/", &["/foo/a/", "/foo/a/b/", "/foo//"], &["/foo/", "/foo", "/foo/a"]),
            ("/{*}/b", &["/a/b"], &["//b", "/a/c", "/a/b/", "/a"]),
            ("/{**}", &["/", "/a", "/a/b"], &["*"]),
            ("/a/{*}/c/{**}", &["/a/b/c/", "/a/b/c/d/e"], &["/a/b/d", "/a//c/d"]),
        ] {
            let pattern = PathPattern::template(template).unwrap();
            assert!(PathPattern::is_template(template));
            for path in yes {
                assert!(pattern.matches(path), "{template} {path}");
            }
            for path in no {
                assert!(!pattern.matches(path), "{template} {path}");
            }
        }
        for (template, error) in [
            ("a/{*}", TemplateError::NoSlash),
            ("/{**}/{*}", TemplateError::OperatorAfterRest),
            ("/{**}/a/{**}", TemplateError::OperatorAfterRest),
            ("/{*}a", TemplateError::Segment("{*}a".into())),
            ("/a*/{*}", TemplateError::Segment("a*".into())),
            ("/{a}/{*}", TemplateError::Segment("{a}".into())),
        ] {
            assert_eq!(PathPattern::template(template), Err(error), "{template}");
        }
    }

    #[test]
    fn of_bytes_nothing_is_known_but_where_they_go() {
        let text =
            |text: &str| Values { any_of: vec![TextMatch::Exact(text.into())], none_of: vec![] };
        let get = OperationMatch { methods: text("GET"), ..OperationMatch::default() };
        let ports = Values { any_of: vec![80], none_of: vec![] };
        let port = OperationMatch { ports: ports.clone(), ..get.clone() };
        let from = ClientMatch { namespaces: text("app"), ..ClientMatch::default() };
        let header = Condition::Header { name: "a".into(), values: text("b") };
        let rule = |to: Vec<OperationMatch>, when: Vec<Condition>| RequestRule {
            from: vec![from.clone()],
            to,
            when,
        };
        let policy = |action, rules| RequestPolicy {
            key: PolicyName::new("app", "p"),
            action,
            is_dry_run: false,
            rules,
            condition: None,
        };
        let plain = OperationMatch { ports, ..OperationMatch::default() };
        for (written, denies, allows) in [
            (rule(vec![], vec![]), rule(vec![], vec![]), true),
            (rule(vec![plain.clone()], vec![]), rule(vec![plain.clone()], vec![]), true),
            (rule(vec![get.clone()], vec![]), rule(vec![], vec![]), false),
            (rule(vec![port], vec![]), rule(vec![plain.clone()], vec![]), false),
            (rule(vec![plain, get], vec![]), rule(vec![], vec![]), false),
            (rule(vec![], vec![header]), rule(vec![], vec![]), false),
        ] {
            let deny = policy(Action::Deny, vec![written.clone()]).for_bytes(false);
            assert_eq!(deny.rules, [denies], "{written:?}");
            let allow = policy(Action::Allow, vec![written.clone()]).for_bytes(false);
            assert_eq!(allow.rules.len(), usize::from(allows), "{written:?}");
            let condition = Expression::new("false", &[]).unwrap();
            let with = |action| RequestPolicy {
                condition: Some(condition.clone()),
                ..policy(action, vec![written.clone()])
            };
            assert_eq!(with(Action::Deny).for_bytes(false), deny, "{written:?}");
            assert_eq!(with(Action::Allow).for_bytes(false).rules, [], "{written:?}");
        }
    }

    #[test]
    fn the_name_in_a_handshake_counts_where_it_is_known() {
        let values = Values { any_of: vec![TextMatch::Exact("a".into())], none_of: vec![] };
        let rule = RequestRule {
            when: vec![Condition::Text(TextAttribute::ServerName, values)],
            ..RequestRule::default()
        };
        let key = PolicyName::new("app", "p");
        let (is_dry_run, rules) = (false, vec![rule.clone()]);
        let (action, condition) = (Action::Allow, None);
        let allow = RequestPolicy { key, action, is_dry_run, rules, condition };
        let deny = RequestPolicy { action: Action::Deny, ..allow.clone() };
        assert_eq!(allow.for_bytes(true).rules, std::slice::from_ref(&rule));
        assert_eq!(deny.for_bytes(true).rules, [rule]);
        assert_eq!(allow.for_bytes(false).rules, []);
        assert_eq!(deny.for_bytes(false).rules, [RequestRule::default()]);
    }
}
