//! Which tokens are accepted, and which forgeries are refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_tls::token::{Claims, ISSUER, PodClaim, TokenError, TokenSigner};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;

const AUDIENCE: &str = "istio-ca";

fn start() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_900_000_000)
}

fn claims() -> Claims {
    Claims {
        issuer: ISSUER.into(),
        audience: vec![AUDIENCE.into()],
        issued_at: start(),
        expires_at: start() + Duration::from_secs(3600),
        namespace: "istio-system".into(),
        service_account: "ztunnel".into(),
        node: "node-1".into(),
        pod: None,
    }
}

fn at(seconds: u64) -> SystemTime {
    start() + Duration::from_secs(seconds)
}

#[test]
fn a_token_gives_back_its_claims_while_it_is_in_date() {
    let signer = TokenSigner::generate().expect("a key");
    let signer = TokenSigner::from_pem(&signer.to_pem()).expect("the same key");
    let token = signer.sign(&claims()).expect("signed");
    let verify = |now| signer.verifier().verify(&token, AUDIENCE, now);
    assert_eq!(verify(at(0)).expect("in date"), claims());
    assert_eq!(verify(at(3599)).expect("in date"), claims());
    assert!(matches!(verify(at(3600)), Err(TokenError::Expired(_))));
    assert!(verify(start() - Duration::from_secs(60)).is_ok());
    assert!(matches!(verify(start() - Duration::from_secs(61)), Err(TokenError::NotYetValid(_))));
    assert_eq!(claims().subject(), "system:serviceaccount:istio-system:ztunnel");
}

#[test]
fn a_pods_token_is_bound_to_the_pod() {
    let signer = TokenSigner::generate().expect("a key");
    let pod = Some(PodClaim { name: "way-1".into(), uid: "u1".into() });
    let bound = Claims { pod, ..claims() };
    let token = signer.sign(&bound).expect("signed");
    assert_eq!(signer.verifier().verify(&token, AUDIENCE, at(0)).expect("in date"), bound);
    let body = token.split('.').nth(1).expect("three parts");
    let body = URL_SAFE_NO_PAD.decode(body).expect("base64url");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["kubernetes.io"]["pod"], serde_json::json!({"name": "way-1", "uid": "u1"}));
}

#[test]
fn a_token_is_a_kubernetes_service_account_token_in_shape() {
    let token = TokenSigner::generate().expect("a key").sign(&claims()).expect("signed");
    let body = token.split('.').nth(1).expect("three parts");
    let body = URL_SAFE_NO_PAD.decode(body).expect("base64url");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let expected = serde_json::json!({
        "iss": "ambit",
        "sub": "system:serviceaccount:istio-system:ztunnel",
        "aud": ["istio-ca"],
        "iat": 1_900_000_000,
        "exp": 1_900_003_600,
        "kubernetes.io": {
            "namespace": "istio-system",
            "serviceaccount": {"name": "ztunnel"},
            "node": {"name": "node-1"},
        },
    });
    assert_eq!(body, expected);
}

#[test]
fn claims_that_do_not_fit_are_refused() {
    let signer = TokenSigner::generate().expect("a key");
    let verify = |claims: &Claims, audience| {
        let token = signer.sign(claims).expect("signed");
        signer.verifier().verify(&token, audience, at(10)).expect_err("refused")
    };
    assert!(matches!(verify(&claims(), "other"), TokenError::Audience { .. }));
    let nobody = Claims { audience: vec![], ..claims() };
    assert!(matches!(verify(&nobody, AUDIENCE), TokenError::Audience { .. }));
    let foreign = Claims { issuer: "kubernetes".into(), ..claims() };
    assert!(
        matches!(verify(&foreign, AUDIENCE), TokenError::Issuer(issuer) if issuer == "kubernetes")
    );
    let long = Claims { node: "n".repeat(8192), ..claims() };
    assert!(matches!(signer.sign(&long), Err(TokenError::Unsignable(_))));
}

/// A forger with header and body of his choice and somebody's signature.
fn forge(header: &str, body: &str, signature: &str) -> String {
    format!("{}.{}.{signature}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(body))
}

/// A token of any shape under a good signature: what a careless signer could have made.
fn signed(signer: &TokenSigner, header: &str, body: &str) -> String {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
    use base64::engine::general_purpose::STANDARD;
    let pem = signer.to_pem();
    let der: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(der).expect("base64");
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).expect("a key");
    let unsigned = forge(header, body, "");
    let message = unsigned.trim_end_matches('.');
    let signature = pair.sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

const BODY: &str = r#"{"iss":"ambit","sub":"system:serviceaccount:a:b","aud":["istio-ca"],
    "iat":1900000000,"exp":1900003600,"kubernetes.io":{"namespace":"a",
    "serviceaccount":{"name":"b"},"node":{"name":"n"}}}"#;

#[test]
fn algorithm_confusion_is_refused() {
    let signer = TokenSigner::generate().expect("a key");
    let verify = |token: &str| signer.verifier().verify(token, AUDIENCE, at(10));
    let good = r#"{"alg":"ES256","typ":"JWT"}"#;
    assert!(verify(&signed(&signer, good, BODY)).is_ok());
    assert!(verify(&signed(&signer, r#"{"alg":"ES256","kid":"1"}"#, BODY)).is_ok());
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None","typ":"JWT"}"#,
        r#"{"alg":"HS256","typ":"JWT"}"#,
        r#"{"alg":"es256","typ":"JWT"}"#,
        r#"{"alg":"ES384","typ":"JWT"}"#,
        r#"{"alg":"ES256","typ":"JWE"}"#,
        r#"{"alg":"ES256","crit":["b64"],"b64":false}"#,
    ] {
        for token in [forge(header, BODY, ""), signed(&signer, header, BODY)] {
            assert!(matches!(verify(&token), Err(TokenError::Header)), "{header}");
        }
    }
    // HMAC with the public key as its secret is no signature here, whatever the header says.
    let token = signed(&signer, good, BODY);
    let (unsigned, signature) = token.rsplit_once('.').expect("three parts");
    let short = format!("{unsigned}.{}", &signature[..43]);
    for forged in
        [format!("{unsigned}."), short, forge(good, &BODY.replace("\"n\"", "\"m\""), signature)]
    {
        assert!(
            matches!(verify(&forged), Err(TokenError::Signature | TokenError::Malformed(_))),
            "{forged}"
        );
    }
    let other = TokenSigner::generate().expect("a key");
    assert!(matches!(verify(&signed(&other, good, BODY)), Err(TokenError::Signature)));
}

#[test]
fn signed_nonsense_is_refused() {
    let signer = TokenSigner::generate().expect("a key");
    let good = r#"{"alg":"ES256","typ":"JWT"}"#;
    let verify =
        |body: &str| signer.verifier().verify(&signed(&signer, good, body), AUDIENCE, at(10));
    assert!(verify(&BODY.replace("[\"istio-ca\"]", "\"istio-ca\"")).is_ok());
    for (from, to) in [
        (",\"exp\":1900003600", ""),
        ("\"exp\":1900003600", "\"exp\":\"1900003600\""),
        ("\"exp\":1900003600", "\"exp\":-1"),
        ("\"exp\":1900003600", "\"exp\":18446744073709551615"),
        ("\"exp\":1900003600", "\"exp\":1900003600,\"exp\":2900003600"),
        ("\"node\":{\"name\":\"n\"}", "\"x\":1"),
    ] {
        let body = BODY.replace(from, to).replace(",\n    }", "}");
        assert_ne!(body, BODY);
        assert!(matches!(verify(&body), Err(TokenError::Malformed(_))), "{body}");
    }
    let body = BODY.replace("system:serviceaccount:a:b", "system:serviceaccount:a:admin");
    assert!(matches!(verify(&body), Err(TokenError::Subject(_))));
    let body = BODY.replace("\"iat\"", "\"nbf\":1900000600,\"iat\"");
    assert!(matches!(verify(&body), Err(TokenError::NotYetValid(_))));
    for text in ["", ".", "..", "a.b", "a.b.c.d", "ü.ü.ü"] {
        let refused = signer.verifier().verify(text, AUDIENCE, at(10));
        assert!(matches!(refused, Err(TokenError::Malformed(_))), "{text:?}: {refused:?}");
    }
    let long = "a".repeat(8193);
    let refused = signer.verifier().verify(&long, AUDIENCE, at(10));
    assert!(matches!(refused, Err(TokenError::TooLarge(8193))));
}

#[test]
fn errors_do_not_repeat_the_token() {
    let signer = TokenSigner::generate().expect("a key");
    let token = signer.sign(&claims()).expect("signed");
    let other = TokenSigner::generate().expect("a key").verifier();
    let error = other.verify(&token, AUDIENCE, at(10)).expect_err("another key");
    let secret = token.rsplit_once('.').expect("three parts").1;
    assert!(!format!("{error} {error:?}").contains(secret));
}

proptest! {
    #[test]
    fn no_text_makes_the_verifier_panic(text in ".{0,300}") {
        let verifier = TokenSigner::generate().expect("a key").verifier();
        prop_assert!(verifier.verify(&text, AUDIENCE, at(0)).is_err());
    }

    #[test]
    fn no_flipped_bit_is_believed(place in 0..10_000usize, bit in 0..7u8) {
        let signer = TokenSigner::generate().expect("a key");
        let mut token = signer.sign(&claims()).expect("signed").as_bytes().to_vec();
        let place = place % token.len();
        token[place] ^= 1 << bit;
        let Ok(token) = String::from_utf8(token) else { return Ok(()) };
        prop_assert!(signer.verifier().verify(&token, AUDIENCE, at(0)).is_err());
    }

    #[test]
    fn signed_bodies_of_any_shape_make_no_panic(body in ".{0,200}") {
        let signer = TokenSigner::generate().expect("a key");
        let token = signed(&signer, r#"{"alg":"ES256"}"#, &body);
        prop_assert!(signer.verifier().verify(&token, AUDIENCE, at(0)).is_err());
    }
}
