//! No input makes a parser panic, neither noise nor a damaged original.

use std::sync::OnceLock;
use std::time::SystemTime;

use ambit_tls::service::{ServerCertificate, ServiceAcceptor, ServiceConnector};
use ambit_tls::{Authority, AuthorityBundle, RevocationList, WorkloadCertificate, WorkloadKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use crate::mesh::{HOUR, bundle, certificate, id};

const WORKLOAD: &str = "cluster.local/prod/backend";

struct Originals {
    ca: AuthorityBundle,
    csr: Vec<u8>,
    crl: Vec<u8>,
    leaf: Vec<u8>,
    hand_over: Vec<u8>,
}

fn originals() -> &'static Originals {
    static MADE: OnceLock<Originals> = OnceLock::new();
    MADE.get_or_init(|| {
        let ca = bundle("cluster.local");
        let certificate = certificate(&ca, WORKLOAD);
        let csr =
            WorkloadKey::generate().expect("a key").csr_pem(&id(WORKLOAD)).expect("a request");
        let serials = [certificate.serial().clone()];
        let crl = ca.revoke(&serials, SystemTime::now(), HOUR).expect("a list");
        Originals {
            csr: decode(&csr),
            crl: decode(&crl),
            leaf: decode(&certificate.chain()[0].pem),
            hand_over: certificate.to_bytes().to_vec(),
            ca,
        }
    })
}

fn decode(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(body).expect("base64")
}

fn encode(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Damage: bytes overwritten, and the end cut off.
fn damaged(original: &[u8], wounds: &[(usize, u8)], cut: usize) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for (place, value) in wounds {
        let place = place % bytes.len();
        bytes[place] = *value;
    }
    bytes.truncate(bytes.len() - cut.min(bytes.len()));
    bytes
}

/// Feeds every parser of PEM texts.
fn feed(label: &str, der: &[u8]) {
    let text = encode(label, der);
    let made = originals();
    let _ = made.ca.sign(&text, &id(WORKLOAD), HOUR, SystemTime::now());
    let _ = RevocationList::from_pem(&text, &made.ca.roots_pem());
    let _ = RevocationList::from_pem(&encode("X509 CRL", &made.crl), &text);
    let _ = Authority::from_root_pem(&text, &text, SystemTime::now());
    let _ = ServiceConnector::new(&text, "localhost", None);
    let served = ServerCertificate { chain_pem: text.clone(), key_pem: text.clone().into() };
    let _ = ServiceAcceptor::new(&served, None);
    let key = WorkloadKey::generate().expect("a key");
    let chain = [text.clone(), made.ca.roots_pem()];
    assert!(WorkloadCertificate::new(key, &chain, &id(WORKLOAD), SystemTime::now()).is_err());
}

const LABELS: [&str; 4] = ["CERTIFICATE", "CERTIFICATE REQUEST", "X509 CRL", "PRIVATE KEY"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn noise(bytes in proptest::collection::vec(any::<u8>(), 0..400), label in 0..LABELS.len()) {
        feed(LABELS[label], &bytes);
        let _ = WorkloadKey::from_pkcs8_der(&bytes);
        prop_assert!(WorkloadCertificate::from_bytes(&bytes).is_err());
    }

    #[test]
    fn damaged_originals(
        wounds in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cut in prop_oneof![Just(0usize), 0..40usize],
    ) {
        let made = originals();
        feed("CERTIFICATE", &damaged(&made.leaf, &wounds, cut));
        feed("CERTIFICATE REQUEST", &damaged(&made.csr, &wounds, cut));
        feed("X509 CRL", &damaged(&made.crl, &wounds, cut));
        let _ = WorkloadCertificate::from_bytes(&damaged(&made.hand_over, &wounds, cut));
    }

    /// The signature covers everything but the envelope that names its algorithm.
    #[test]
    fn a_change_to_signed_bytes_is_never_believed(place in any::<usize>(), value in any::<u8>()) {
        let made = originals();
        for (label, original) in [("CERTIFICATE REQUEST", &made.csr), ("X509 CRL", &made.crl)] {
            let (start, end) = signed_part(original);
            let mut forged = original.clone();
            forged[start + place % (end - start)] = value;
            prop_assume!(&forged != original);
            let text = encode(label, &forged);
            prop_assert!(made.ca.sign(&text, &id(WORKLOAD), HOUR, SystemTime::now()).is_err());
            prop_assert!(RevocationList::from_pem(&text, &made.ca.roots_pem()).is_err());
        }
    }
}

/// Where the first element of the outer sequence lies.
fn signed_part(der: &[u8]) -> (usize, usize) {
    let (start, _) = content(der, 0);
    (start, content(der, start).1)
}

/// Start and end of the content of the DER element at `at`.
fn content(der: &[u8], at: usize) -> (usize, usize) {
    let short = usize::from(der[at + 1]);
    let octets = short.saturating_sub(0x80);
    let start = at + 2 + octets;
    let long = der[at + 2..start].iter().fold(0, |length, octet| length << 8 | usize::from(*octet));
    (start, start + if octets == 0 { short } else { long })
}
