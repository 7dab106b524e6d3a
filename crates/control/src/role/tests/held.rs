//! Attacks on the certificate API that have always failed, and must keep failing.

use ambit_tls::certificate::CertificateSummary;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::*;

/// How long a certificate lives where nothing else is set.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Clocks of two ends differ; certificates begin a little before now.
const SLACK: Duration = Duration::from_secs(300);
const CSR_SIZE_BYTES: usize = 40 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn no_certificate_outlives_what_is_allowed() {
    let fixture = Fixture::start("held-ttl", "").await;
    let (token, web) = (fixture.token(), identity("web"));
    for seconds in [i64::MAX, i64::from(u32::MAX), 86_401, 0, -1, i64::MIN] {
        let chain = fixture.certificate(Some(&token), &web, &web, seconds).await;
        let leaf = CertificateSummary::from_pem(&chain.expect("signed")[0]).expect("a certificate");
        let end = SystemTime::now() + DEFAULT_LIFETIME + SLACK;
        assert!(leaf.not_after <= end, "{seconds} s asked: lives until {:?}", leaf.not_after);
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_40_mebibytes_is_refused_and_the_next_is_signed() {
    let fixture = Fixture::start("held-size", "").await;
    let (token, web) = (fixture.token(), identity("web"));
    let bearer: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    for text in ["A", "-----BEGIN CERTIFICATE REQUEST-----\n"] {
        let csr = text.repeat(CSR_SIZE_BYTES / text.len());
        let mut request = Request::new(request_for(&web.parse().unwrap(), csr, 60));
        request.metadata_mut().insert("authorization", bearer.clone());
        let channel = fixture.channel().await;
        let mut client = certificates::IstioCertificateServiceClient::new(channel);
        client.create_certificate(request).await.expect_err("refused");
        fixture.certificate(Some(&token), &web, &web, 60).await.expect("the next is signed");
    }
    fixture.end().await;
}

/// The parts of a token, and one put together of others.
fn parts(token: &str) -> Vec<&str> {
    token.split('.').collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_tampered_with_gets_nothing() {
    let fixture = Fixture::start("held-token", "").await;
    let (token, web, db) = (fixture.token(), identity("web"), identity("db"));
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let [header, body, signature] = parts(&token)[..] else { panic!("three parts") };
    let claims = BASE64_URL_SAFE_NO_PAD.decode(body).expect("base64");
    let claims = String::from_utf8(claims).expect("text");
    let other_node = encode(&claims.replace("node-1", "node-2"));
    assert_ne!(other_node, body, "the node is named in the token");
    let mut flipped = signature.as_bytes().to_vec();
    flipped[0] = if flipped[0] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).expect("ASCII");
    for (attack, forged) in [
        ("another node under the same signature", format!("{header}.{other_node}.{signature}")),
        ("another signature", format!("{header}.{body}.{flipped}")),
        ("no signature", format!("{header}.{body}.")),
        ("no third part", format!("{header}.{body}")),
        ("alg none", format!("{}.{other_node}.", encode(r#"{"alg":"none","typ":"JWT"}"#))),
        ("alg None", format!("{}.{other_node}.{signature}", encode(r#"{"alg":"None"}"#))),
        ("HS256", format!("{}.{other_node}.{signature}", encode(r#"{"alg":"HS256"}"#))),
        ("two tokens", format!("{token},{token}")),
        ("a fourth part", format!("{token}.{signature}")),
    ] {
        for wanted in [&web, &db] {
            let got = fixture.certificate(Some(&forged), wanted, wanted, 60).await;
            let status = got.err().unwrap_or_else(|| panic!("{attack}: signed"));
            assert_eq!(status.code(), Code::Unauthenticated, "{attack}: {status:?}");
            assert!(!status.message().contains(signature), "{attack}: repeats the token");
        }
        let joined = Proxy::over(fixture.channel().await, Some(&forged), "node-2").await;
        let told = match joined {
            Err(status) => status,
            Ok(mut proxy) => proxy.next().await.expect_err(attack),
        };
        assert_eq!(told.code(), Code::Unauthenticated, "{attack}: {told:?}");
    }
    fixture.end().await;
}
