//! Rules for RequestAuthentication.

use ambit_words::durations::parse_duration;

use crate::finding::{Issues, Path};
use crate::istio::{JwtRule, RequestAuthenticationSpec};

/// Checks a RequestAuthentication, without the labels that it selects.
pub(crate) fn request_authentication(
    spec: &RequestAuthenticationSpec,
    at: &Path,
    issues: &mut Issues,
) {
    let has_targets = spec.target_ref.is_some() || spec.target_refs.is_some();
    if spec.selector.is_some() && has_targets {
        issues.error(
            at,
            "it selects workloads and is attached to objects",
            "remove the selector or the targetRefs",
        );
    }
    for (index, rule) in spec.jwt_rules.iter().enumerate() {
        jwt_rule(rule, &at.field("jwtRules").index(index), issues);
    }
}

fn jwt_rule(rule: &JwtRule, at: &Path, issues: &mut Issues) {
    if rule.issuer.is_empty() {
        issues.error(&at.field("issuer"), "it is empty", "write what tokens have in `iss`");
    }
    if !rule.jwks.is_empty() && !rule.jwks_uri.is_empty() {
        issues.error(at, "the issuer's keys are there twice", "remove jwks or jwksUri");
    }
    let is_set = |text: &str| {
        let set = serde_json::from_str::<serde_json::Value>(text);
        set.is_ok_and(|set| set["keys"].is_array())
    };
    if rule.jwks.is_empty() {
        source(rule, at, issues);
    } else if !is_set(&rule.jwks) {
        issues.error(
            &at.field("jwks"),
            "it is no JSON Web Key Set",
            "write `{\"keys\": [...]}` as the issuer publishes it",
        );
    }
    let headers = rule.from_headers.iter().map(|it| &it.name);
    let outputs = rule.output_claim_to_headers.iter().map(|it| &it.header);
    let payload = Some(&rule.output_payload_to_header).filter(|it| !it.is_empty());
    for name in headers.chain(outputs).chain(payload) {
        if !is_token(name) {
            issues.error(at, format!("{name:?} is no name of a field"), "correct the name");
        }
    }
    let claims = rule.output_claim_to_headers.iter().map(|it| &it.claim);
    for empty in rule.from_params.iter().chain(&rule.from_cookies).chain(claims) {
        if empty.is_empty() {
            issues.error(at, "a name is empty", "write the name, or remove the entry");
        }
    }
}

/// Checks where keys are fetched.
fn source(rule: &JwtRule, at: &Path, issues: &mut Issues) {
    let (url, field) = match &*rule.jwks_uri {
        "" => (&rule.issuer, "issuer"),
        _ => (&rule.jwks_uri, "jwksUri"),
    };
    let secure = url.strip_prefix("https://");
    let place = secure.or_else(|| url.strip_prefix("http://"));
    let host = place.map(|it| it.split(['/', '?', '#']).next().unwrap_or_default());
    let is_url = host.is_some_and(|it| !it.is_empty() && !it.contains(['@', ' ']));
    match (is_url, field) {
        (true, _) if secure.is_none() => issues.warn(
            &at.field(field),
            "without TLS, keys are fetched only from a Service of the mesh, or from networks that \
             the operator allows (--jwks-networks of control)",
            "write https://, if the issuer is elsewhere",
        ),
        (true, _) => {}
        (false, "issuer") => issues.warn(
            at,
            "its keys are nowhere to be found: the issuer is no URL, and there is no jwksUri",
            "write jwksUri, or the issuer's JSON Web Key Set as jwks",
        ),
        (false, _) => issues.error(
            &at.field(field),
            "it is no URL of a key set",
            "write it as https://HOST/PATH, without a user",
        ),
    }
    if let Some(text) = &rule.timeout
        && parse_duration(text).is_err()
    {
        let what = format!("`{text}` is not a duration");
        issues.error(&at.field("timeout"), what, "write for example 5s");
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_letter)
}
