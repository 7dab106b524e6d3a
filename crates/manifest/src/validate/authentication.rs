//! Rules for RequestAuthentication.

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
        issues.warn(
            &at.field("jwks"),
            "keys are not fetched yet: all tokens of this issuer are refused",
            "write the issuer's JSON Web Key Set here",
        );
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

/// RFC 9110, section 5.6.2.
fn is_token(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_letter)
}
