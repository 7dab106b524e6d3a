//! An issuer's published keys: which tokens they have signed, and which not.

use ambit_tls::key_set::{Forgery, KeySet, KeySetError, canonical};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

fn encode(octets: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(octets)
}

/// A token with this header, signed by `sign`.
fn token(header: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", encode(header.to_string().as_bytes()), encode(b"{}"));
    let signature = encode(&sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn elliptic(
    algorithm: &'static EcdsaSigningAlgorithm,
    curve: &str,
    kid: &str,
) -> (EcdsaKeyPair, Value) {
    let pair = EcdsaKeyPair::generate(algorithm).expect("a key");
    let point = &pair.public_key().as_ref()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    let key = json!({"kty": "EC", "crv": curve, "kid": kid, "x": encode(x), "y": encode(y)});
    (pair, key)
}

#[test]
fn a_token_is_good_only_by_the_key_that_it_names_and_the_algorithm_of_that_key() {
    let random = SystemRandom::new();
    let (p256, p256_key) = elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", "a");
    let (p384, p384_key) = elliptic(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384", "b");
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
    // RFC 8017 appendix A.1.1: a sequence of modulus, with a zero before it, and exponent.
    let public = rsa.public_key().as_ref();
    let (modulus, exponent) = (encode(&public[9..265]), encode(&public[267..]));
    let rsa_key = json!({"kty": "RSA", "kid": "c", "n": modulus, "e": exponent});
    let other = json!({"kty": "OKP", "crv": "Ed25519", "kid": "d", "x": "AAAA"});
    let keys = json!({ "keys": [p256_key, other, p384_key, rsa_key] }).to_string();
    let keys = KeySet::from_json(&keys).expect("a set");
    let by = |pair: &EcdsaKeyPair, header: Value| {
        token(&header, |text| pair.sign(&random, text).expect("signed").as_ref().to_vec())
    };
    let by_rsa = |padding, header: Value| {
        token(&header, |text| {
            let mut signature = vec![0; rsa.public_modulus_len()];
            rsa.sign(padding, &random, text, &mut signature).expect("signed");
            signature
        })
    };
    let check = |what: &str, token: &str, expected: Result<(), Forgery>| {
        assert_eq!(keys.verify(token), expected, "{what}");
    };
    let good = by(&p256, json!({"alg": "ES256", "kid": "a"}));
    check("ES256", &good, Ok(()));
    check("without a name", &by(&p256, json!({"alg": "ES256"})), Ok(()));
    check("ES384", &by(&p384, json!({"alg": "ES384", "kid": "b"})), Ok(()));
    check("RS256", &by_rsa(&RSA_PKCS1_SHA256, json!({"alg": "RS256", "kid": "c"})), Ok(()));
    check("RS512", &by_rsa(&RSA_PKCS1_SHA512, json!({"alg": "RS512", "kid": "c"})), Ok(()));
    let forged = Err(Forgery::Signature);
    check("another key", &by(&p256, json!({"alg": "ES384", "kid": "b"})), forged);
    check("another algorithm", &by_rsa(&RSA_PKCS1_SHA256, json!({"alg": "RS512"})), forged);
    check("none", &by(&p256, json!({"alg": "none", "kid": "a"})), forged);
    check("HS256", &by(&p256, json!({"alg": "HS256", "kid": "a"})), forged);
    // 84 letters are 63 octets of the 64.
    check("cut", &good[..good.len() - 2], forged);
    let unknown = Err(Forgery::UnknownKey);
    check("an unknown key", &by(&p256, json!({"alg": "ES256", "kid": "z"})), unknown);
    check("an unreadable key", &by(&p256, json!({"alg": "EdDSA", "kid": "d"})), unknown);
    let malformed = Err(Forgery::Malformed);
    check("crit", &by(&p256, json!({"alg": "ES256", "kid": "a", "crit": ["b64"]})), malformed);
    for text in ["", "a", "a.b", "..", "e30.e30.!"] {
        check(text, text, malformed);
    }
}

#[test]
fn a_key_without_a_name_may_have_signed_any_token() {
    let random = SystemRandom::new();
    let (pair, mut key) = elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", "");
    let (other, other_key) = elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", "b");
    let by = |pair: &EcdsaKeyPair, header: &Value| {
        token(header, |text| pair.sign(&random, text).expect("signed").as_ref().to_vec())
    };
    for _ in 0..2 {
        let keys = json!({ "keys": [other_key, key] }).to_string();
        let keys = KeySet::from_json(&keys).expect("a set");
        for kid in ["a", "b", ""] {
            let header = json!({"alg": "ES256", "kid": kid});
            assert_eq!(keys.verify(&by(&pair, &header)), Ok(()), "{kid}");
        }
        let forged = by(&other, &json!({"alg": "ES256", "kid": "a"}));
        assert_eq!(keys.verify(&forged), Err(Forgery::Signature), "it is not that one's name");
        key.as_object_mut().expect("an object").remove("kid");
    }
}

#[test]
fn equal_sets_have_one_canonical_text() {
    let (_, a) = elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", "a");
    let (_, b) = elliptic(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384", "b");
    let mut more = b.clone();
    more["x5c"] = json!(["a certificate"]);
    let one = canonical(&json!({"keys": [a, more], "more": 1}).to_string()).expect("a set");
    let other = canonical(&json!({ "keys": [b, a] }).to_string()).expect("a set");
    assert_eq!(one, other);
    assert!(!one.contains("x5c"));
    assert!(KeySet::from_json(&one).is_ok());
    assert_eq!(canonical(&one).expect("a set"), one);
    assert!(canonical("{}").is_err());
}

#[test]
fn a_set_without_a_usable_key_is_none() {
    let read = |text: &str| KeySet::from_json(text).expect_err("no set");
    assert!(matches!(read("nonsense"), KeySetError::Unreadable(_)));
    assert!(matches!(read(r#"{"keys": []}"#), KeySetError::Empty));
    assert!(matches!(read(r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#), KeySetError::Empty));
    assert!(matches!(read(&" ".repeat(1 << 20)), KeySetError::TooLarge(_)));
}
