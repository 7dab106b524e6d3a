//! Tokens that are right, wrong, and meant to deceive.

use std::sync::LazyLock;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use super::*;

static KEY: LazyLock<Ed25519KeyPair> =
    LazyLock::new(|| Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed of 32 bytes"));
const NOW_SECONDS: u64 = 2_000_000_000;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn signed(header: &str, claims: &str) -> String {
    let text = format!("{}.{}", encode(header), encode(claims));
    format!("{text}.{}", encode(KEY.sign(text.as_bytes())))
}

fn key_set() -> KeySet {
    let x = encode(KEY.public_key());
    let key = format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"one","x":"{x}"}}"#);
    KeySet::from_json(&format!(r#"{{"keys":[{key}]}}"#)).unwrap()
}

fn rule() -> JwtRule {
    JwtRule {
        issuer: "https://login".into(),
        audiences: vec!["shop".into()],
        keys: None,
        from_headers: Vec::new(),
        from_parameters: Vec::new(),
        from_cookies: Vec::new(),
        payload_header: None,
        claim_headers: Vec::new(),
        forwards_token: false,
        space_delimited: Vec::new(),
    }
}

const HEADER: &str = r#"{"alg":"EdDSA","kid":"one"}"#;

fn verified(token: &str) -> Result<Verified, Refusal> {
    verify(
        token,
        &rule(),
        &[rule()],
        Some(&key_set()),
        UNIX_EPOCH + Duration::from_secs(NOW_SECONDS),
    )
}

fn check(claims: &str, expected: Result<(), Refusal>) {
    let claims = format!(r#"{{"iss":"https://login","aud":"shop",{claims}"sub":"ann"}}"#);
    assert_eq!(verified(&signed(HEADER, &claims)).map(drop), expected, "{claims}");
}

#[test]
fn times_hold_with_a_minute_of_leeway() {
    check("", Ok(()));
    check(r#""exp":1999999941,"#, Ok(()));
    check(r#""exp":1999999939,"#, Err(Refusal::Expired));
    check(r#""nbf":2000000059,"#, Ok(()));
    check(r#""nbf":2000000061,"#, Err(Refusal::NotYet));
    check(r#""exp":"never","#, Err(Refusal::Time));
    check(r#""exp":null,"#, Err(Refusal::Time));
}

#[test]
fn a_claim_that_is_there_twice_is_refused() {
    check(r#""sub":"root","#, Err(Refusal::Payload));
    check(r#""a":{"b":1,"b":2},"#, Err(Refusal::Payload));
    check(r#""iss":"https://login","#, Err(Refusal::Payload));
}

#[test]
fn one_audience_of_a_list_is_enough() {
    for (audience, expected) in [
        (r#""shop""#, Ok(())),
        (r#"["other","shop"]"#, Ok(())),
        (r#"["other"]"#, Err(Refusal::Audience)),
        (r#""shop other""#, Err(Refusal::Audience)),
        (r#"{"shop":1}"#, Err(Refusal::Audience)),
    ] {
        let claims = format!(r#"{{"iss":"https://login","aud":{audience}}}"#);
        assert_eq!(verified(&signed(HEADER, &claims)).map(drop), expected, "{audience}");
    }
}

#[test]
fn the_algorithm_of_a_header_is_never_obeyed() {
    let claims = r#"{"iss":"https://login","aud":"shop"}"#;
    for (header, expected) in [
        (r#"{"alg":"none","kid":"one"}"#, Refusal::Signature),
        (r#"{"alg":"HS256","kid":"one"}"#, Refusal::Signature),
        (r#"{"alg":"RS256","kid":"one"}"#, Refusal::Signature),
        (r#"{"alg":"eddsa","kid":"one"}"#, Refusal::Signature),
        (r#"{"alg":"EdDSA","kid":"../one"}"#, Refusal::UnknownKey),
        (r#"{"alg":"EdDSA","kid":"one","crit":["b64"],"b64":false}"#, Refusal::Form),
    ] {
        assert_eq!(verified(&signed(header, claims)).map(drop), Err(expected), "{header}");
    }
    let unsigned = format!("{}.{}.", encode(r#"{"alg":"none"}"#), encode(claims));
    assert_eq!(verified(&unsigned).map(drop), Err(Refusal::Signature));
}

#[test]
fn what_is_no_token_is_refused() {
    let long = "a".repeat(TOKEN_SIZE_MAX_BYTES + 1);
    for (token, expected) in [
        ("", Refusal::Form),
        ("a.b", Refusal::Form),
        ("a.b.c.d", Refusal::Form),
        ("a.!.c", Refusal::Payload),
        (&*format!("a.{}.c", encode("[]")), Refusal::Payload),
        (&*format!("a.{}.c", encode(r#"{"iss":"other"}"#)), Refusal::Issuer),
        (&*long, Refusal::TooLong),
    ] {
        assert_eq!(verified(token).map(drop), Err(expected), "{token:.40}");
    }
    let token = signed(HEADER, r#"{"iss":"https://login"}"#);
    let without_keys = verify(&token, &rule(), &[], None, UNIX_EPOCH);
    assert_eq!(without_keys.map(drop), Err(Refusal::NoKeys));
}

#[test]
fn claims_are_read_by_their_keys() {
    let claims = r#"{"iss":"https://login","aud":["shop"],"sub":"ann","azp":"web",
        "scope":"read write","group":{"names":["a b","c"],"size":2}}"#;
    let token = verified(&signed(HEADER, claims)).unwrap();
    let keys = |text: &str| text.split('.').map(Text::from).collect::<Vec<_>>();
    let has = |claim: &str, wanted: &str| token.any_claim(&keys(claim), &mut |it| it == wanted);
    assert_eq!(token.principal(), Some("https://login/ann"));
    assert_eq!(token.presenter(), Some("web"));
    assert!(has("scope", "write") && !has("scope", "read write"));
    assert!(has("group.names", "a b") && has("group.names", "c") && !has("group.names", "a"));
    assert!(!has("group.size", "2"));
    assert_eq!(token.claim_text(&keys("group.size")).as_deref(), Some("2"));
    assert_eq!(token.claim_text(&keys("group.names")), None);
}

#[test]
fn an_issuer_cannot_make_subjects_of_another() {
    let tenant = JwtRule { issuer: "https://login/tenant".into(), ..rule() };
    for (issuer, subject, expected) in [
        ("https://login", r#""sub":"ann""#, Some("https://login/ann")),
        ("https://login", r#""sub":"repo:a/b""#, Some("https://login/repo:a/b")),
        ("https://login", r#""sub":"tenant/ann""#, None),
        ("https://login/tenant", r#""sub":"ann""#, Some("https://login/tenant/ann")),
        ("https://login", r#""sub":"tenants/ann""#, Some("https://login/tenants/ann")),
        ("https://login", r#""sub":"""#, None),
        ("https://login", r#""name":"ann""#, None),
    ] {
        let claims = format!(r#"{{"iss":"{issuer}","aud":"shop",{subject}}}"#);
        let own = JwtRule { issuer: issuer.into(), ..rule() };
        let (all, token) = ([rule(), tenant.clone()], signed(HEADER, &claims));
        let verified = verify(&token, &own, &all, Some(&key_set()), UNIX_EPOCH).unwrap();
        assert_eq!(verified.principal(), expected, "{claims}");
    }
}
