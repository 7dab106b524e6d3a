//! Certificates, requests, revocation lists and tokens, as noise and as damaged originals: nothing
//! may panic, and nothing whose signed part was changed may be believed.
#![no_main]

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::token::TokenSigner;
use ambit_tls::{Authority, AuthorityBundle, RevocationList, WorkloadCertificate, WorkloadKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use libfuzzer_sys::fuzz_target;

const LIFETIME: Duration = Duration::from_secs(3600);

/// What a mesh has made for real.
struct Originals {
    ca: AuthorityBundle,
    signer: TokenSigner,
    identity: Identity,
    /// A request, a revocation list and a certificate, in DER.
    der: [Vec<u8>; 3],
    hand_over: Vec<u8>,
}

fn originals() -> &'static Originals {
    static MADE: OnceLock<Originals> = OnceLock::new();
    MADE.get_or_init(|| {
        let now = SystemTime::now();
        let ca = AuthorityBundle::new(Authority::generate("cluster.local", now).expect("a root"));
        let identity = Identity::new("cluster.local", "prod", "backend");
        let key = WorkloadKey::generate().expect("a key");
        let request = key.csr_pem(&identity).expect("a request");
        let chain = ca.sign(&request, &identity, LIFETIME, now).expect("a chain");
        let leaf = WorkloadCertificate::new(key, &chain, &identity, now).expect("a certificate");
        let list = ca.revoke(&[leaf.serial().clone()], now, LIFETIME).expect("a list");
        let der = [&request, &list, &leaf.chain()[0].pem].map(|pem| decode(pem));
        let hand_over = leaf.to_bytes().to_vec();
        Originals { ca, signer: TokenSigner::generate().expect("a key"), identity, der, hand_over }
    })
}

fn decode(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(body).expect("base64")
}

fn encode(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Three bytes are a place and what stands there now.
fn damage(original: &[u8], wounds: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for wound in wounds.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([wound[0], wound[1]])) % bytes.len();
        bytes[place] = wound[2];
    }
    bytes
}

/// Where the first element of the outer DER sequence lies, if both headers are whole.
fn signed_part(der: &[u8]) -> Option<&[u8]> {
    let content = |at: usize| {
        let short = usize::from(*der.get(at + 1)?);
        let octets = short.saturating_sub(0x80);
        let start = at + 2 + octets;
        let long = der.get(at + 2..start)?.iter();
        let long = long.fold(0_usize, |sum, octet| sum << 8 | usize::from(*octet));
        Some((start, start + if octets == 0 { short } else { long }))
    };
    let (start, _) = content(0)?;
    der.get(start..content(start)?.1)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let (made, now) = (originals(), SystemTime::now());
    let damaged = |original: &[u8]| {
        if kind & 0x80 == 0 { damage(original, rest) } else { rest.to_vec() }
    };
    match kind & 0x7f {
        0 => {
            let der = damaged(&made.der[0]);
            let text = encode("CERTIFICATE REQUEST", &der);
            let signed = made.ca.sign(&text, &made.identity, LIFETIME, now);
            assert!(signed.is_err() || signed_part(&der) == signed_part(&made.der[0]));
        }
        1 => {
            let der = damaged(&made.der[1]);
            let list = RevocationList::from_pem(&encode("X509 CRL", &der), &made.ca.roots_pem());
            assert!(list.is_err() || signed_part(&der) == signed_part(&made.der[1]));
        }
        2 => {
            let text = encode("CERTIFICATE", &damaged(&made.der[2]));
            let _ = RevocationList::from_pem(&encode("X509 CRL", &made.der[1]), &text);
            let _ = Authority::from_root_pem(&text, &text, now);
        }
        3 => drop(WorkloadCertificate::from_bytes(&damaged(&made.hand_over))),
        4 => drop(WorkloadKey::from_pkcs8_der(rest)),
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            assert!(made.signer.verifier().verify(text, "istio-ca", now).is_err());
            let _ = TokenSigner::from_pem(text);
        }
    }
});
