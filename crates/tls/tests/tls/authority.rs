//! What the authority signs, what it refuses, and how it reads plugged-in files.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::authority::AuthorityError;
use ambit_tls::certificate::{CertificateError, NotOneIdentity};
use ambit_tls::request::RequestError;
use ambit_tls::revocation::RevocationError;
use ambit_tls::{
    Acceptor, Authority, AuthorityBundle, Connector, HandshakeError, RevocationList,
    WorkloadCertificate, WorkloadKey,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::mesh::{HOUR, bundle, certificate, certificate_at, id, meet, meet_certificates, none};

const WORKLOAD: &str = "cluster.local/prod/backend";

/// A request with these names and this key, as some other implementation would make it.
fn foreign_request(names: &[&str], key: &KeyPair) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names
        .iter()
        .map(|name| match name.split_once("://") {
            Some(_) => SanType::URI((*name).try_into().expect("ASCII")),
            None => SanType::DnsName((*name).try_into().expect("ASCII")),
        })
        .collect();
    params.serialize_request(key).expect("a request").pem().expect("PEM")
}

fn sign(ca: &AuthorityBundle, csr: &str) -> Result<Vec<String>, RequestError> {
    match ca.sign(csr, &id(WORKLOAD), HOUR, SystemTime::now()) {
        Ok(chain) => Ok(chain),
        Err(AuthorityError::Request(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_request_is_signed_for_the_authorised_identity_and_nothing_else() {
    let ca = bundle("cluster.local");
    let own = id(WORKLOAD).to_string();
    let key = KeyPair::generate().expect("a key");
    assert!(sign(&ca, &foreign_request(&[&own], &key)).is_ok());
    let refused = |names: &[&str]| sign(&ca, &foreign_request(names, &key)).expect_err("refused");
    assert!(matches!(
        refused(&["spiffe://cluster.local/ns/prod/sa/admin"]),
        RequestError::OtherIdentity { got, .. } if got == id("cluster.local/prod/admin")
    ));
    assert!(matches!(
        refused(&[&own, "spiffe://cluster.local/ns/prod/sa/admin"]),
        RequestError::NotOneIdentity(NotOneIdentity::UriCount(2))
    ));
    assert!(matches!(refused(&[&own, &own]), RequestError::NotOneIdentity(_)));
    assert!(matches!(refused(&[&own, "istiod.istio-system.svc"]), RequestError::OtherNames));
    assert!(matches!(refused(&[]), RequestError::NotOneIdentity(NotOneIdentity::UriCount(0))));
    assert!(matches!(refused(&["localhost"]), RequestError::NotOneIdentity(_)));
    assert!(matches!(refused(&["https://x/ns/a/sa/b"]), RequestError::NotOneIdentity(_)));
}

#[test]
fn a_request_that_was_tampered_with_is_refused() {
    let ca = bundle("cluster.local");
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&id("cluster.local/prod/frontend")).expect("a request");
    let der = pem::decode(&csr);
    let at = der.windows(8).position(|window| window == b"frontend").expect("the URI");
    // The same length, another account, the signature of the first.
    let mut forged = der.clone();
    forged[at..at + 8].copy_from_slice(b"backends");
    let wanted = id("cluster.local/prod/backends");
    let refused = ca.sign(&pem::encode(&forged), &wanted, HOUR, SystemTime::now());
    assert!(matches!(refused, Err(AuthorityError::Request(RequestError::Signature))));
    // Another key under the first one's signature.
    let other = WorkloadKey::generate().expect("a key");
    let other = pem::decode(&other.csr_pem(&id("cluster.local/prod/frontend")).expect("a request"));
    let point =
        |der: &[u8]| der.windows(2).position(|window| window == [0x00, 0x04]).expect("a point");
    let mut forged = der.clone();
    let (from, to) = (point(&other), point(&der));
    forged[to..to + 66].copy_from_slice(&other[from..from + 66]);
    let refused = sign(&ca, &pem::encode(&forged));
    assert!(matches!(refused, Err(RequestError::Signature)));
    let mut longer = der;
    longer.push(0);
    assert!(matches!(sign(&ca, &pem::encode(&longer)), Err(RequestError::Unreadable(_))));
    assert!(matches!(sign(&ca, ""), Err(RequestError::Pem(_))));
    assert!(matches!(sign(&ca, &" ".repeat(40_000)), Err(RequestError::TooLarge(40_000))));
}

#[test]
fn keys_of_every_sound_kind_are_signed_and_others_refused() {
    let ca = bundle("cluster.local");
    let own = id(WORKLOAD).to_string();
    for (algorithm, good) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, true),
        (&rcgen::PKCS_ECDSA_P384_SHA384, true),
        (&rcgen::PKCS_ED25519, true),
        (&rcgen::PKCS_RSA_SHA256, true),
        (&rcgen::PKCS_ECDSA_P521_SHA512, false),
    ] {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let signed = sign(&ca, &foreign_request(&[&own], &key));
        assert_eq!(signed.is_ok(), good, "{algorithm:?}: {signed:?}");
    }
}

#[test]
fn an_answer_counts_only_for_its_key_and_identity() {
    let ca = bundle("cluster.local");
    let now = SystemTime::now();
    let key = || WorkloadKey::generate().expect("a key");
    let asked = key();
    let csr = asked.csr_pem(&id(WORKLOAD)).expect("a request");
    let answer = ca.sign(&csr, &id(WORKLOAD), HOUR, now).expect("signed");
    let refused = |key, chain: &[String], identity: &Identity| {
        WorkloadCertificate::new(key, chain, identity, now).expect_err("refused")
    };
    assert!(matches!(refused(key(), &answer, &id(WORKLOAD)), CertificateError::OtherKey));
    let other = id("cluster.local/prod/other");
    let copy = || WorkloadKey::from_pkcs8_der(&asked.to_pkcs8_der()).expect("a key");
    assert!(matches!(refused(copy(), &answer, &other), CertificateError::OtherIdentity { .. }));
    assert!(matches!(refused(copy(), &answer[..1], &id(WORKLOAD)), CertificateError::NoRoots(1)));
    let stranger = vec![answer[0].clone(), bundle("cluster.local").roots_pem()];
    assert!(matches!(refused(copy(), &stranger, &id(WORKLOAD)), CertificateError::Unchained(_)));
    let empty = vec![answer[0].clone(), "nothing".to_owned()];
    assert!(matches!(refused(copy(), &empty, &id(WORKLOAD)), CertificateError::Empty(_)));
    assert!(WorkloadCertificate::new(copy(), &answer, &id(WORKLOAD), now).is_ok());
}

#[test]
fn lifetimes_hold_and_never_outlive_the_signer() {
    let root = Authority::generate("cluster.local", SystemTime::now()).expect("a root");
    let end = root.not_after();
    let ca = AuthorityBundle::new(root);
    let now = SystemTime::now();
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&id(WORKLOAD)).expect("a request");
    let short = ca.sign(&csr, &id(WORKLOAD), Duration::from_millis(999), now);
    assert!(matches!(short, Err(AuthorityError::Lifetime)));
    let certificate = certificate_at(&ca, &id(WORKLOAD), 24 * HOUR, now);
    let backdated = now.duration_since(certificate.not_before()).expect("earlier").as_secs();
    assert!((120..=121).contains(&backdated), "{backdated}");
    assert_eq!(certificate_at(&ca, &id(WORKLOAD), Duration::MAX, now).not_after(), end);
    assert!(certificate.serial().to_string().len() >= 31, "{}", certificate.serial());
    assert_ne!(certificate_at(&ca, &id(WORKLOAD), HOUR, now).serial(), certificate.serial());
}

#[test]
fn a_root_is_read_back_from_its_files() {
    let now = SystemTime::now();
    let made = Authority::generate("cluster.local", now).expect("a root");
    let read = Authority::from_root_pem(&made.certificate_pem(), &made.key_pem(), now);
    assert_eq!(read.expect("whole").roots_pem(), made.roots_pem());
    let other = Authority::generate("cluster.local", now).expect("a root");
    let mixed = Authority::from_root_pem(&made.certificate_pem(), &other.key_pem(), now);
    assert!(matches!(mixed, Err(AuthorityError::Broken(_))));
    let late =
        Authority::from_root_pem(&made.certificate_pem(), &made.key_pem(), now + 100_000 * HOUR);
    assert!(matches!(late, Err(AuthorityError::NotValidNow)));
    let none = Authority::from_root_pem("", &made.key_pem(), now);
    assert!(matches!(none, Err(AuthorityError::Certificate(CertificateError::Empty(_)))));
    let leaf = certificate(&AuthorityBundle::new(other), WORKLOAD);
    let leaf = Authority::from_root_pem(&leaf.chain()[0].pem, &made.key_pem(), now);
    assert!(matches!(leaf, Err(AuthorityError::NotAnAuthority)));
}

/// `cacerts` of an enterprise: root, then two intermediates, the last one to be plugged in.
struct Plugged {
    ca_cert: String,
    ca_key: String,
    cert_chain: String,
    root_cert: String,
    middle: Issuer<'static, KeyPair>,
}

fn plugged(ca_key: KeyPair) -> Plugged {
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example Corp");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        params
    };
    let root_key = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("a key");
    let root = params("root").self_signed(&root_key).expect("a root");
    let root_issuer = Issuer::new(params("root"), root_key);
    let middle_key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
    let middle = params("middle").signed_by(&middle_key, &root_issuer).expect("signed");
    let middle_issuer = Issuer::new(params("middle"), middle_key);
    let ca = params("mesh").signed_by(&ca_key, &middle_issuer).expect("signed");
    Plugged {
        ca_cert: ca.pem(),
        ca_key: ca_key.serialize_pem(),
        cert_chain: ca.pem() + &middle.pem() + &root.pem(),
        root_cert: root.pem(),
        middle: middle_issuer,
    }
}

impl Plugged {
    fn authority(&self) -> Result<Authority, AuthorityError> {
        Authority::from_intermediate_pem(
            &self.ca_cert,
            &self.ca_key,
            &self.cert_chain,
            &self.root_cert,
            SystemTime::now(),
        )
    }
}

#[tokio::test]
async fn a_plugged_in_intermediate_signs_for_a_mesh_and_revokes() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ED25519]
    {
        let files = plugged(KeyPair::generate_for(algorithm).expect("a key"));
        let ca = AuthorityBundle::new(files.authority().expect("whole"));
        let (server, client) = (certificate(&ca, WORKLOAD), certificate(&ca, "cluster.local/a/b"));
        assert_eq!((server.chain().len(), server.roots().len()), (3, 1));
        let outcome = meet_certificates(&server, &client).await;
        let peer = outcome.accepted.expect("good");
        assert_eq!(peer.intermediates.len(), 2);
        assert!(outcome.connected.is_ok());
        let crl = ca.revoke(&[client.serial().clone()], SystemTime::now(), HOUR).expect("a list");
        let list =
            RevocationList::from_pem(&crl, &server.revocation_signers_pem()).expect("signed");
        assert!(list.revokes(&peer));
        assert!(RevocationList::from_pem(&crl, &ca.revocation_signers_pem()).is_ok());
    }
}

#[tokio::test]
async fn a_revoked_intermediate_takes_its_leaves_with_it() {
    let files = plugged(KeyPair::generate().expect("a key"));
    let ca = AuthorityBundle::new(files.authority().expect("whole"));
    let (server, client) = (certificate(&ca, WORKLOAD), certificate(&ca, "cluster.local/a/b"));
    let live = meet_certificates(&server, &client).await.accepted.expect("good");
    let revoked = &client.chain()[1];
    let crl = rcgen::CertificateRevocationListParams {
        this_update: SystemTime::now().into(),
        next_update: (SystemTime::now() + HOUR).into(),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: hex(&revoked.serial.to_string()).into(),
            revocation_time: SystemTime::now().into(),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let crl = crl.signed_by(&files.middle).expect("a list").pem().expect("PEM");
    let list = RevocationList::from_pem(&crl, &server.revocation_signers_pem()).expect("signed");
    assert!(list.revokes(&live));
    let acceptor = Acceptor::new(server, Arc::new(list), &[]);
    let outcome = meet(&acceptor, &Connector::new(client, none()), &[id(WORKLOAD)]).await;
    assert!(matches!(outcome.accepted, Err(HandshakeError::Revoked { .. })));
}

#[test]
fn plugged_in_files_that_do_not_belong_together_are_refused_at_once() {
    let (files, other) = (
        plugged(KeyPair::generate().expect("a key")),
        plugged(KeyPair::generate().expect("a key")),
    );
    let mixed =
        Plugged { ca_key: other.ca_key.clone(), ..plugged(KeyPair::generate().expect("a key")) };
    assert!(matches!(mixed.authority(), Err(AuthorityError::Broken(_))));
    let mixed = Plugged { root_cert: other.root_cert.clone(), ..files };
    assert!(matches!(mixed.authority(), Err(AuthorityError::Broken(_))));
    let short = Plugged { cert_chain: other.ca_cert.clone(), ..other };
    assert!(matches!(short.authority(), Err(AuthorityError::Broken(_))));
}

#[test]
fn keys_are_read_in_every_usual_form() {
    use aws_lc_rs::encoding::AsDer;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    let key = KeyPair::generate().expect("a key");
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der());
    let sec1 = pair.expect("a key").private_key().as_der().expect("DER").as_ref().to_vec();
    let mut files = plugged(key);
    files.ca_key = pem::encode_as("EC PRIVATE KEY", &sec1);
    assert!(files.authority().is_ok());
    files.ca_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".into();
    assert!(matches!(files.authority(), Err(AuthorityError::Key(_))));
    files.ca_key = String::new();
    assert!(matches!(files.authority(), Err(AuthorityError::Key(_))));
}

#[test]
fn revocation_lists_are_believed_only_if_a_trusted_certificate_signed_them() {
    let (ours, theirs) = (bundle("cluster.local"), bundle("cluster.local"));
    let revoked = certificate(&ours, WORKLOAD);
    let crl = ours.revoke(&[revoked.serial().clone()], SystemTime::now(), HOUR).expect("a list");
    let read = |crl: &str, signers: &str| RevocationList::from_pem(crl, signers);
    assert!(read(&crl, &ours.roots_pem()).is_ok());
    assert!(matches!(
        read(&crl, &theirs.roots_pem()),
        Err(RevocationError::Unsigned { number: 1, .. })
    ));
    let mut der = pem::decode(&crl);
    let serial = hex(&revoked.serial().to_string());
    let at = der.windows(serial.len()).position(|window| window == serial).expect("the entry");
    der[at] ^= 1;
    let tampered = pem::encode_as("X509 CRL", &der);
    assert!(matches!(read(&tampered, &ours.roots_pem()), Err(RevocationError::Unsigned { .. })));
    // A leaf is not an authority, even one that the root signed.
    assert!(matches!(read(&crl, &revoked.chain()[0].pem), Err(RevocationError::Unsigned { .. })));
    assert!(matches!(read("", &ours.roots_pem()), Err(RevocationError::Empty)));
    assert!(matches!(read(&crl, ""), Err(RevocationError::Signers(_))));
    let both = crl.clone() + &theirs.revoke(&[], SystemTime::now(), HOUR).expect("a list");
    assert!(matches!(
        read(&both, &ours.roots_pem()),
        Err(RevocationError::Unsigned { number: 2, .. })
    ));
    assert!(read(&both, &(ours.roots_pem() + &theirs.roots_pem())).is_ok());
}

#[test]
fn earlier_authorities_go_on_revoking_until_they_are_retired() {
    let mut ca = bundle("cluster.local");
    let old = certificate(&ca, WORKLOAD);
    ca.activate(Authority::generate("cluster.local", SystemTime::now()).expect("a root"));
    let new = certificate(&ca, WORKLOAD);
    let serials = [old.serial().clone(), new.serial().clone()];
    let crl = ca.revoke(&serials, SystemTime::now(), HOUR).expect("lists");
    let list = RevocationList::from_pem(&crl, &new.revocation_signers_pem()).expect("signed");
    for gone in [&old, &new] {
        assert!(list.is_revoked(gone.serial(), &gone.chain()[0].issuer));
    }
    ca.retire_earlier();
    let crl = ca.revoke(&serials, SystemTime::now(), HOUR).expect("a list");
    let list = RevocationList::from_pem(&crl, &ca.roots_pem()).expect("signed");
    assert!(!list.is_revoked(old.serial(), &old.chain()[0].issuer));
}

#[test]
fn a_list_with_a_smaller_number_goes_back_and_only_for_the_key_that_signed_it() {
    let mut ca = bundle("cluster.local");
    let now = SystemTime::now();
    let serial = certificate(&ca, WORKLOAD).serial().clone();
    let list = |ca: &AuthorityBundle, number: u64| {
        let crl = ca.revoke_as(std::slice::from_ref(&serial), number, now, HOUR).expect("a list");
        RevocationList::from_pem(&crl, &ca.revocation_signers_pem()).expect("signed")
    };
    let (old, new, wide) = (list(&ca, 9), list(&ca, 10), list(&ca, 256));
    assert_eq!((old.number(), wide.number()), (Some(9), Some(256)));
    assert_eq!(old.serials().collect::<Vec<_>>(), [&serial]);
    assert!(old.goes_back(&new).is_some() && new.goes_back(&wide).is_some());
    assert!(new.goes_back(&old).is_none() && wide.goes_back(&new).is_none());
    assert!(new.goes_back(&new).is_none(), "the same again");
    assert!(old.goes_back(&RevocationList::none()).is_none());
    ca.activate(Authority::generate("cluster.local", now).expect("a root"));
    assert!(list(&ca, 9).goes_back(&wide).is_some(), "the earlier key's list is older");
    assert!(list(&ca, 257).goes_back(&wide).is_none());
    ca.retire_earlier();
    assert!(list(&ca, 1).goes_back(&wide).is_none(), "a new root counts for itself");
}

#[test]
fn a_hand_over_gives_back_the_whole_certificate() {
    let ca = AuthorityBundle::new(
        plugged(KeyPair::generate().expect("a key")).authority().expect("whole"),
    );
    let now = SystemTime::now();
    let made = certificate_at(&ca, &id(WORKLOAD), HOUR, now);
    let read = WorkloadCertificate::from_bytes(&made.to_bytes()).expect("whole");
    assert_eq!(read.identity(), made.identity());
    assert_eq!(read.serial(), made.serial());
    assert_eq!(read.roots_fingerprint(), made.roots_fingerprint());
    let pems = |certificate: &WorkloadCertificate| {
        certificate.chain().iter().map(|link| link.pem.clone()).collect::<Vec<_>>()
    };
    assert_eq!(pems(&read), pems(&made));
    let apart = made.refresh_at(0.5).duration_since(read.refresh_at(0.5)).expect("cut to seconds");
    assert!(apart <= Duration::from_secs(1), "{apart:?}");
    let blob = made.to_bytes();
    for cut in [0, 4, 5, 20, blob.len() / 2, blob.len() - 1] {
        assert!(WorkloadCertificate::from_bytes(&blob[..cut]).is_err(), "{cut}");
    }
    assert!(WorkloadCertificate::from_bytes(&[&blob[..], b"x"].concat()).is_err());
    assert!(!format!("{made:?}").contains("PRIVATE"));
}

#[test]
fn server_certificates_hold_names_and_addresses_only() {
    let ca = bundle("cluster.local");
    let now = SystemTime::now();
    for wrong in ["", "not a name", "https://x", "*.example.com "] {
        assert!(
            matches!(ca.issue_server(&[wrong], HOUR, now), Err(AuthorityError::Name(_))),
            "{wrong:?}"
        );
    }
    assert!(matches!(ca.issue_server(&[], HOUR, now), Err(AuthorityError::NameCount(0))));
}

fn hex(text: &str) -> Vec<u8> {
    let octet = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(octet).collect()
}

/// PEM for forgeries.
mod pem {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    pub(crate) fn decode(text: &str) -> Vec<u8> {
        let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        STANDARD.decode(body).expect("base64")
    }

    pub(crate) fn encode(der: &[u8]) -> String {
        encode_as("CERTIFICATE REQUEST", der)
    }

    pub(crate) fn encode_as(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }
}
