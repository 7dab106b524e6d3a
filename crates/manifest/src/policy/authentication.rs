//! A RequestAuthentication as a waypoint enforces it.

use std::fmt;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::authentication::{Authentication, JwtRule};

use ambit_words::durations::parse_duration;

use super::requests::{Target, Unenforceable, targets, wrong};
use crate::istio::{self, RequestAuthentication};
use crate::validate::authentication::request_authentication;
use crate::validate::security;
use crate::{FieldPath, ObjectIssues};

/// How long a fetch of keys may take where the rule does not say; Istio's.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that a rule may ask for.
const FETCH_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// Where an issuer publishes its keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeySource {
    /// `jwksUri`.
    Uri(Text),
    /// The issuer, which says at `/.well-known/openid-configuration` where (OpenID Connect
    /// Discovery 1.0, section 4).
    Issuer(Text),
}

impl KeySource {
    /// Where the keys of a rule are; `None` where the rule holds them itself.
    pub fn of(rule: &istio::JwtRule) -> Option<Self> {
        match (&*rule.jwks, &*rule.jwks_uri) {
            ("", "") => Some(Self::Issuer(Text::from(&*rule.issuer))),
            ("", uri) => Some(Self::Uri(Text::from(uri))),
            _ => None,
        }
    }

    /// The URL that is asked first.
    pub fn url(&self) -> String {
        match self {
            Self::Uri(uri) => uri.to_string(),
            Self::Issuer(issuer) => {
                format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))
            }
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

/// How long a fetch of the rule's keys may take.
pub fn fetch_timeout(rule: &istio::JwtRule) -> Duration {
    let given = rule.timeout.as_deref().and_then(|it| parse_duration(it).ok());
    given.filter(|it| !it.is_zero()).unwrap_or(FETCH_TIMEOUT).min(FETCH_TIMEOUT_MAX)
}

/// What it is attached to; nothing for one that selects workloads, a namespace or the mesh.
pub fn authentication_targets(
    object: &RequestAuthentication,
    root_namespace: &str,
) -> Result<Vec<Target>, Unenforceable> {
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let spec = &object.spec;
    targets(spec.target_ref.as_ref(), spec.target_refs.as_deref(), namespace, root_namespace)
}

/// What holds for requests. What of it cannot be honoured refuses them all.
pub fn authentication(object: &RequestAuthentication, root_namespace: &str) -> Authentication {
    match read(object, root_namespace) {
        Ok(rules) => Authentication { rules, problem: None },
        Err(error) => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
            let name = object.metadata.name.as_deref().unwrap_or_default();
            let problem = format!("RequestAuthentication {namespace}/{name}: {error}");
            Authentication { rules: Vec::new(), problem: Some(problem.into()) }
        }
    }
}

/// What of it cannot be honoured.
pub fn authentication_problem(
    object: &RequestAuthentication,
    root_namespace: &str,
) -> Option<Unenforceable> {
    read(object, root_namespace).err()
}

fn read(
    object: &RequestAuthentication,
    root_namespace: &str,
) -> Result<Vec<JwtRule>, Unenforceable> {
    let at = FieldPath::at("spec");
    if let Some(problem) = &object.unreadable {
        return Err(wrong(&at, format!("it cannot be read ({problem})")));
    }
    authentication_targets(object, root_namespace)?;
    let mut issues = ObjectIssues::default();
    if let Some(selector) = &object.spec.selector {
        security::selector(selector, &at.field("selector"), &mut issues);
    }
    request_authentication(&object.spec, &at, &mut issues);
    if let Some(issue) = issues.errors.first() {
        return Err(wrong(&issue.path, format!("{}; {}", issue.what, issue.remedy)));
    }
    Ok(object.spec.jwt_rules.iter().map(rule).collect())
}

fn rule(rule: &istio::JwtRule) -> JwtRule {
    let texts = |all: &[String]| all.iter().map(|it| Text::from(&**it)).collect::<Vec<_>>();
    let lower = |name: &str| Text::from(name.to_ascii_lowercase());
    let is_default =
        rule.from_headers.is_empty() && rule.from_params.is_empty() && rule.from_cookies.is_empty();
    let headers = rule.from_headers.iter().map(|it| (lower(&it.name), Text::from(&*it.prefix)));
    let bearer = is_default.then(|| (Text::from("authorization"), Text::from("Bearer ")));
    let parameter = is_default.then(|| Text::from("access_token"));
    let claims = rule.output_claim_to_headers.iter().map(|it| {
        let keys = it.claim.split('.').map(Text::from).collect();
        (lower(&it.header), keys)
    });
    JwtRule {
        issuer: Text::from(&*rule.issuer),
        audiences: texts(&rule.audiences),
        keys: (!rule.jwks.is_empty()).then(|| Text::from(&*rule.jwks)),
        from_headers: headers.chain(bearer).collect(),
        from_parameters: texts(&rule.from_params).into_iter().chain(parameter).collect(),
        from_cookies: texts(&rule.from_cookies),
        payload_header: (!rule.output_payload_to_header.is_empty())
            .then(|| lower(&rule.output_payload_to_header)),
        claim_headers: claims.collect(),
        forwards_token: rule.forward_original_token,
        space_delimited: texts(&rule.space_delimited_claims),
    }
}
