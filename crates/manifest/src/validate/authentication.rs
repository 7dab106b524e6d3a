//! Rules for RequestAuthentication.

use ambit_words::durations::parse_duration;
use base64::Engine as _;
use serde_json::Value;

use super::names;
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
    if rule.jwks.is_empty() {
        source(rule, at, issues);
    } else {
        keys(&rule.jwks, &at.field("jwks"), issues);
    }
    for (index, header) in rule.from_headers.iter().enumerate() {
        field(&header.name, &at.field("fromHeaders").index(index).field("name"), issues);
    }
    for (index, output) in rule.output_claim_to_headers.iter().enumerate() {
        let at = at.field("outputClaimToHeaders").index(index).field("header");
        field(&output.header, &at, issues);
    }
    if !rule.output_payload_to_header.is_empty() {
        field(&rule.output_payload_to_header, &at.field("outputPayloadToHeader"), issues);
    }
    let claims = rule.output_claim_to_headers.iter().map(|it| &it.claim);
    for empty in rule.from_params.iter().chain(&rule.from_cookies).chain(claims) {
        if empty.is_empty() {
            issues.error(at, "a name is empty", "write the name, or remove the entry");
        }
    }
}

/// Checks the name of a field that tokens are read from or written to.
fn field(name: &str, at: &Path, issues: &mut Issues) {
    if let Some(what) = names::field_name(name) {
        issues.error(at, what, "correct the name");
    } else if names::is_fixed_field(&name.to_ascii_lowercase()) {
        let what =
            format!("`{name}` says how a message is sent, and has nothing to do with tokens");
        issues.error(at, what, "use another field");
    }
}

/// Checks keys that are written out.
fn keys(text: &str, at: &Path, issues: &mut Issues) {
    let set: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(keys) = set["keys"].as_array() else {
        let remedy = "write `{\"keys\": [...]}` as the issuer publishes it";
        return issues.error(at, "it is no JSON Web Key Set", remedy);
    };
    if !keys.iter().any(can_verify) {
        let what = "none of its keys can verify a token: all tokens of the issuer get 401";
        issues.warn(at, what, "write the issuer's public keys: RSA, EC or Ed25519");
    }
}

/// Whether a key is one that tokens can be verified with, as far as its form says (RFC 7518
/// section 6, RFC 8037 section 2).
fn can_verify(key: &Value) -> bool {
    let bytes = |name: &str| {
        let text = key[name].as_str()?;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok().map(|it| it.len())
    };
    let coordinate = |name: &str| match key["crv"].as_str() {
        Some("P-256" | "Ed25519") => bytes(name) == Some(32),
        Some("P-384") => bytes(name) == Some(48),
        _ => bytes(name) > Some(0),
    };
    match key["kty"].as_str() {
        Some("RSA") => bytes("n") > Some(0) && bytes("e") > Some(0),
        Some("EC") => coordinate("x") && coordinate("y"),
        Some("OKP") => coordinate("x"),
        _ => false,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_told_from_what_only_looks_like_one() {
        let (of_32, of_31) = ("A".repeat(43), "A".repeat(42));
        for (key, expected) in [
            (json!({"kty": "OKP", "crv": "Ed25519", "x": of_32}), true),
            (json!({"kty": "OKP", "crv": "Ed25519", "x": of_31}), false),
            (json!({"kty": "OKP", "crv": "Ed25519", "x": "..."}), false),
            (json!({"kty": "EC", "crv": "P-256", "x": of_32, "y": of_32}), true),
            (json!({"kty": "EC", "crv": "P-256", "x": of_32}), false),
            (json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"}), true),
            (json!({"kty": "RSA", "n": "", "e": "AQAB"}), false),
            (json!({"kty": "oct", "k": "AQAB"}), false),
        ] {
            assert_eq!(can_verify(&key), expected, "{key}");
        }
    }
}
