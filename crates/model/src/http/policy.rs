//! Policies that read requests (Istio's AuthorizationPolicy, all of it).
//!
//! A policy is an OR of rules. A rule is an AND of `from`, `to` and `when`; `from` and `to` are ORs
//! of matches, a match is an AND of its fields. Text is compared as [`TextMatch`] does.

use ipnet::IpNet;

use crate::Text;
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

/// Who asks (Istio's `source`).
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

/// What is asked (Istio's `operation`).
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
    /// `{**}`: any number of segments, also none.
    Rest,
}

/// What else must hold (Istio's `when`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A field of the request; `name` in lower case.
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
    /// `{**}` is not its last segment.
    #[error("`{{**}}` must be the last segment")]
    RestNotLast,
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
        let before_last = segments.split_last().map_or(&[][..], |(_, before)| before);
        if before_last.contains(&Segment::Rest) {
            return Err(TemplateError::RestNotLast);
        }
        Ok(Self::Template(segments))
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Text(text) => text.matches(path),
            Self::Template(segments) => {
                let Some(path) = path.strip_prefix('/') else { return false };
                let mut rest = path.split('/');
                for wanted in segments {
                    let is_here = match wanted {
                        Segment::Rest => return true,
                        Segment::One => rest.next().is_some_and(|segment| !segment.is_empty()),
                        Segment::Literal(text) => rest.next() == Some(&**text),
                    };
                    if !is_here {
                        return false;
                    }
                }
                rest.next().is_none()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        for (template, yes, no) in [
            ("/foo/{*}", &["/foo/a"][..], &["/foo", "/foo/", "/foo/a/b", "/bar/a"][..]),
            ("/foo/{**}", &["/foo/", "/foo/a", "/foo/a/b", "/foo"], &["/fo", "/bar/a"]),
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
            ("/{**}/a", TemplateError::RestNotLast),
            ("/{*}a", TemplateError::Segment("{*}a".into())),
            ("/a*/{*}", TemplateError::Segment("a*".into())),
            ("/{a}/{*}", TemplateError::Segment("{a}".into())),
        ] {
            assert_eq!(PathPattern::template(template), Err(error), "{template}");
        }
    }
}
