//! Users' tokens and issuers' keys as noise: nothing may panic, and what nobody has signed is never
//! believed.
#![no_main]

use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use ambit_model::http::authentication::JwtRule;
use ambit_tls::jwt::verify;
use ambit_tls::key_set::{KeySet, canonical};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;

const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
    "x":"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo"}]}"#;

fn rule() -> &'static JwtRule {
    static RULE: OnceLock<JwtRule> = OnceLock::new();
    RULE.get_or_init(|| JwtRule {
        issuer: "a".into(),
        audiences: Vec::new(),
        keys: None,
        from_headers: Vec::new(),
        from_parameters: Vec::new(),
        from_cookies: Vec::new(),
        payload_header: None,
        claim_headers: Vec::new(),
        forwards_token: false,
        space_delimited: Vec::new(),
    })
}

fuzz_target!(|data: (&str, &[u8], &[u8], &[u8])| {
    static SET: OnceLock<KeySet> = OnceLock::new();
    let keys = SET.get_or_init(|| KeySet::from_json(KEYS).expect("a key set"));
    let (text, header, payload, signature) = data;
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let token = format!("{}.{}.{}", encode(header), encode(payload), encode(signature));
    for token in [text, &token] {
        let verified = verify(token, rule(), &[], Some(keys), UNIX_EPOCH);
        assert!(verified.is_err(), "nobody has signed it");
    }
    // A set that somebody else has made.
    if let Ok(keys) = KeySet::from_json(text) {
        let _ = verify(&token, rule(), &[], Some(&keys), UNIX_EPOCH);
        let one = canonical(text).expect("what can be read has a canonical text");
        assert_eq!(canonical(&one).as_deref().ok(), Some(&*one));
    }
});
