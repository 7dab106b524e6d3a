//! Who can connect to whom, and which error each end gets otherwise.
//!
//! Every case runs both ends over memory. The tests check the verdict of each end, because an
//! operator may see only one of the two logs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_tls::error::HandshakeError;
use ambit_tls::provider::{Cipher, Group};
use ambit_tls::service::{ServiceAcceptor, ServiceConnector};
use ambit_tls::{Acceptor, Authority, Connector, RevocationList};
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::mesh::{
    HOUR, Outcome, alert, believing, bundle, certificate, certificate_at, id, meet,
    meet_certificates, none,
};

const SERVER: &str = "cluster.local/prod/backend";
const CLIENT: &str = "cluster.local/prod/frontend";

#[tokio::test]
async fn two_workloads_of_one_mesh_meet() {
    let ca = bundle("cluster.local");
    let (server, client) = (certificate(&ca, SERVER), certificate(&ca, CLIENT));
    let Outcome { accepted, connected } = meet_certificates(&server, &client).await;
    let (seen_client, seen_server) = (accepted.expect("good"), connected.expect("good"));
    assert_eq!(seen_client.identity, id(CLIENT));
    assert_eq!(seen_server.identity, id(SERVER));
    assert_eq!(&seen_client.serial, client.serial());
    assert_eq!(seen_client.issuer, client.chain()[0].issuer);
    assert_eq!(seen_client.not_after, client.not_after());
    assert_eq!(seen_client.roots_fingerprint, server.roots_fingerprint());
    for peer in [seen_client, seen_server] {
        assert_eq!((peer.group, peer.cipher), (Group::X25519MlKem768, Cipher::Aes128Gcm));
        assert_eq!(peer.group.as_str(), "X25519MLKEM768");
    }
}

#[tokio::test]
async fn a_server_of_another_identity_is_refused_with_both_named() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let connector = Connector::new(certificate(&ca, CLIENT), none());
    let wanted = [id("cluster.local/prod/other"), id("cluster.local/prod/waypoint")];
    let outcome = meet(&acceptor, &connector, &wanted).await;
    match outcome.connected {
        Err(HandshakeError::WrongIdentity { expected, got }) => {
            assert_eq!((expected.as_slice(), got), (wanted.as_slice(), id(SERVER)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(alert(&outcome.accepted), Some("access_denied"));
    // Nobody is expected: nobody is right.
    let outcome = meet(&acceptor, &connector, &[]).await;
    assert!(matches!(outcome.connected, Err(HandshakeError::WrongIdentity { .. })));
}

#[tokio::test]
async fn expired_certificates_are_refused_in_both_directions() {
    let ca = bundle("cluster.local");
    let long_ago = SystemTime::now() - 2 * HOUR;
    let good = certificate(&ca, SERVER);
    let expired = certificate_at(&ca, &id(CLIENT), HOUR, long_ago);
    assert!(expired.is_expired(SystemTime::now()) && !expired.is_expired(long_ago));
    let outcome = meet_certificates(&good, &expired).await;
    assert!(matches!(
        outcome.accepted,
        Err(HandshakeError::Expired { not_after, .. }) if not_after == expired.not_after()
    ));
    assert_eq!(alert(&outcome.connected), Some("certificate_expired"));
    let outcome = meet_certificates(&expired, &good).await;
    assert!(matches!(outcome.connected, Err(HandshakeError::Expired { .. })));
    assert_eq!(alert(&outcome.accepted), Some("certificate_expired"));
}

#[tokio::test]
async fn a_certificate_from_the_future_is_refused() {
    let ca = bundle("cluster.local");
    let future = certificate_at(&ca, &id(CLIENT), HOUR, SystemTime::now() + 2 * HOUR);
    let outcome = meet_certificates(&certificate(&ca, SERVER), &future).await;
    assert!(matches!(outcome.accepted, Err(HandshakeError::NotYetValid { .. })));
}

#[tokio::test]
async fn a_foreign_trust_domain_is_refused_unless_it_is_trusted() {
    let ca = bundle("cluster.local");
    let server = certificate(&ca, SERVER);
    let foreigner = certificate(&ca, "other.mesh/prod/frontend");
    let outcome = meet_certificates(&server, &foreigner).await;
    match outcome.accepted {
        Err(HandshakeError::ForeignTrustDomain { got, trusted }) => {
            assert_eq!(got, id("other.mesh/prod/frontend"));
            assert_eq!(trusted, ["cluster.local".into()]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(alert(&outcome.connected), Some("access_denied"));
    let acceptor = Acceptor::new(server, none(), &["other.mesh".into()]);
    let outcome = meet(&acceptor, &Connector::new(foreigner, none()), &[id(SERVER)]).await;
    assert!(outcome.accepted.is_ok() && outcome.connected.is_ok());
}

#[tokio::test]
async fn a_peer_of_an_unknown_root_is_refused_even_under_the_same_trust_domain() {
    let (ours, theirs) = (bundle("cluster.local"), bundle("cluster.local"));
    let server = certificate(&ours, SERVER);
    let outcome = meet_certificates(&server, &certificate(&theirs, CLIENT)).await;
    assert!(matches!(outcome.connected, Err(HandshakeError::UnknownIssuer { roots: 1, .. })));
    assert_eq!(alert(&outcome.accepted), Some("unknown_ca"));
    // A client that believes our root gets as far as being judged itself.
    let client = believing(&theirs, CLIENT, &ours.roots_pem());
    let outcome = meet_certificates(&server, &client).await;
    assert!(matches!(
        &outcome.accepted,
        Err(HandshakeError::UnknownIssuer { issuer, .. }) if issuer == &client.chain()[0].issuer
    ));
    assert_eq!(alert(&outcome.connected), Some("unknown_ca"));
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let stranger = anonymous_client();
    let (near, far) = tokio::io::duplex(64 << 10);
    let (accepted, _) = tokio::join!(acceptor.accept(far), stranger.connect(name(), near));
    assert!(matches!(accepted, Err(HandshakeError::NoCertificate)));
}

#[tokio::test]
async fn roots_overlap_while_they_are_rotated() {
    let mut ca = bundle("cluster.local");
    let before = certificate(&ca, SERVER);
    let next = Authority::generate("cluster.local", SystemTime::now()).expect("a root");
    ca.trust(&next.roots_pem()).expect("a root");
    let prepared = certificate(&ca, CLIENT);
    assert_eq!(prepared.roots().len(), 2);
    assert_ne!(prepared.roots_fingerprint(), before.roots_fingerprint());
    ca.activate(next);
    let after = certificate(&ca, SERVER);
    assert_ne!(after.chain()[0].issuer, prepared.chain()[0].issuer);
    for (server, client) in [(&before, &prepared), (&after, &prepared), (&prepared, &after)] {
        let outcome = meet_certificates(server, client).await;
        assert!(outcome.accepted.is_ok() && outcome.connected.is_ok());
    }
    ca.retire_earlier();
    let retired = certificate(&ca, CLIENT);
    assert_eq!(retired.roots().len(), 1);
    let outcome = meet_certificates(&after, &retired).await;
    assert!(outcome.accepted.is_ok() && outcome.connected.is_ok());
    let outcome = meet_certificates(&prepared, &retired).await;
    assert!(matches!(outcome.connected, Err(HandshakeError::UnknownIssuer { .. })));
}

#[tokio::test]
async fn revoked_certificates_are_refused_in_both_directions_and_on_live_connections() {
    let ca = bundle("cluster.local");
    let (good, bad) = (certificate(&ca, SERVER), certificate(&ca, CLIENT));
    let live = meet_certificates(&good, &bad).await.accepted.expect("not revoked yet");
    let crl = ca.revoke(&[bad.serial().clone()], SystemTime::now(), HOUR).expect("a list");
    let list = RevocationList::from_pem(&crl, &good.revocation_signers_pem()).expect("signed");
    assert!(list.revokes(&live) && list.is_revoked(bad.serial(), &bad.chain()[0].issuer));
    assert_eq!(list.len(), 1);
    let list = Arc::new(list);
    let judge = |server: &Arc<_>, client: &Arc<_>| {
        let acceptor = Acceptor::new(Arc::clone(server), Arc::clone(&list), &[]);
        (acceptor, Connector::new(Arc::clone(client), Arc::clone(&list)))
    };
    let (acceptor, connector) = judge(&good, &bad);
    let outcome = meet(&acceptor, &connector, &[id(SERVER)]).await;
    assert!(matches!(
        &outcome.accepted,
        Err(HandshakeError::Revoked { serial, .. }) if serial == bad.serial()
    ));
    assert_eq!(alert(&outcome.connected), Some("certificate_revoked"));
    let (acceptor, connector) = judge(&bad, &good);
    let outcome = meet(&acceptor, &connector, &[id(CLIENT)]).await;
    assert!(matches!(outcome.connected, Err(HandshakeError::Revoked { .. })));
    let other = certificate(&ca, CLIENT);
    let (acceptor, connector) = judge(&good, &other);
    let outcome = meet(&acceptor, &connector, &[id(SERVER)]).await;
    assert!(!list.revokes(&outcome.accepted.expect("another certificate of the same workload")));
}

#[tokio::test]
async fn a_list_that_is_out_of_date_closes_its_issuer_only() {
    let (ours, theirs) = (bundle("cluster.local"), bundle("cluster.local"));
    let past = SystemTime::now() - 2 * HOUR;
    let crl = ours.revoke(&[], past, HOUR).expect("a list");
    let list = Arc::new(RevocationList::from_pem(&crl, &ours.roots_pem()).expect("signed"));
    assert!(list.is_empty());
    assert!(list.next_update().is_some_and(|until| until < SystemTime::now()));
    let server = believing(&ours, SERVER, &theirs.roots_pem());
    let acceptor = Acceptor::new(Arc::clone(&server), list, &[]);
    let client = Connector::new(certificate(&ours, CLIENT), none());
    let outcome = meet(&acceptor, &client, &[id(SERVER)]).await;
    assert!(matches!(outcome.accepted, Err(HandshakeError::RevocationUnknown { .. })));
    let client = Connector::new(believing(&theirs, CLIENT, &ours.roots_pem()), none());
    let outcome = meet(&acceptor, &client, &[id(SERVER)]).await;
    assert!(outcome.accepted.is_ok() && outcome.connected.is_ok());
}

#[tokio::test]
async fn peers_without_the_hybrid_group_get_x25519_and_without_that_p256() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let client = certificate(&ca, CLIENT);
    for (group, expected) in [(kx_group::X25519, Group::X25519), (kx_group::SECP256R1, Group::P256)]
    {
        let stranger = foreign_client(&client, |provider| provider.kx_groups = vec![group]);
        let (near, far) = tokio::io::duplex(64 << 10);
        let (accepted, connected) =
            tokio::join!(acceptor.accept(far), stranger.connect(name(), near));
        connected.expect("a common group");
        assert_eq!(accepted.expect("a common group").1.group, expected);
    }
    let stranger =
        foreign_client(&client, |provider| provider.kx_groups = vec![kx_group::SECP384R1]);
    let (near, far) = tokio::io::duplex(64 << 10);
    let (accepted, _) = tokio::join!(acceptor.accept(far), stranger.connect(name(), near));
    assert!(nothing_in_common(accepted).contains("groups"));
}

#[tokio::test]
async fn no_session_is_resumed_though_the_client_asks_for_it() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    // It keeps tickets, as rustls does unless it is told not to.
    let stranger = foreign_client(&certificate(&ca, CLIENT), |_| {});
    for _ in 0..2 {
        let (near, far) = tokio::io::duplex(64 << 10);
        let server = async {
            let (mut stream, _) = acceptor.accept(far).await.expect("good");
            stream.write_all(b"!").await.expect("open");
            stream.flush().await.expect("open");
        };
        let client = async {
            let mut stream = stranger.connect(name(), near).await.expect("good");
            stream.read_u8().await.expect("accepted");
            stream.get_ref().1.handshake_kind()
        };
        let ((), kind) = tokio::join!(server, client);
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_client_that_offers_tls_1_2_only_is_refused() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let (mut near, far) = tokio::io::duplex(64 << 10);
    near.write_all(&client_hello_1_2()).await.expect("room");
    let (accepted, answer) = tokio::join!(acceptor.accept(far), async {
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.map(|_| answer)
    });
    assert!(nothing_in_common(accepted).contains("TLS 1.3"));
    // A fatal alert (21, 2) of protocol_version (70).
    let answer = answer.expect("an alert");
    assert_eq!((answer[0], &answer[5..]), (21, &[2, 70][..]));
}

#[tokio::test]
async fn a_peer_without_h2_is_refused() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    for protocols in [vec![], vec![b"http/1.1".to_vec()]] {
        let mut config = foreign_config(&certificate(&ca, CLIENT), |_| {});
        config.alpn_protocols = protocols;
        let stranger = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (near, far) = tokio::io::duplex(64 << 10);
        let (accepted, _) = tokio::join!(acceptor.accept(far), stranger.connect(name(), near));
        assert!(nothing_in_common(accepted).contains("h2"));
    }
}

#[tokio::test]
async fn what_is_not_tls_is_named_as_such() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let (mut near, far) = tokio::io::duplex(64 << 10);
    near.write_all(b"GET / HTTP/1.1\r\nhost: backend\r\n\r\n").await.expect("room");
    let refused = acceptor.accept(far).await.map(|_| ());
    assert!(matches!(refused, Err(HandshakeError::Protocol(_))), "{refused:?}");
    let (near, far) = tokio::io::duplex(64 << 10);
    drop(near);
    assert!(matches!(acceptor.accept(far).await.map(|_| ()), Err(HandshakeError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_given_up() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let (_near, far) = tokio::io::duplex(64 << 10);
    let start = tokio::time::Instant::now();
    assert!(matches!(acceptor.accept(far).await.map(|_| ()), Err(HandshakeError::Timeout(_))));
    assert_eq!(start.elapsed(), ambit_tls::handshake::HANDSHAKE_TIMEOUT);
}

#[tokio::test]
async fn bytes_pass_in_both_directions_and_half_close_is_kept() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let connector = Connector::new(certificate(&ca, CLIENT), none());
    let (near, far) = tokio::io::duplex(10_000);
    let payload: Vec<u8> = (0..3_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let expected = [id(SERVER)];
    let server = async {
        let (mut stream, _) = acceptor.accept(far).await.expect("good");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.expect("close_notify");
        stream.write_all(&got).await.expect("the other half is open");
        stream.shutdown().await.expect("close_notify");
    };
    let client = async {
        let (stream, _) = connector.connect(near, &expected).await.expect("good");
        let (mut reader, mut writer) = tokio::io::split(stream);
        let send = async {
            writer.write_all(&payload).await.expect("room");
            writer.shutdown().await.expect("close_notify");
        };
        let mut got = Vec::new();
        let (_, read) = tokio::join!(send, reader.read_to_end(&mut got));
        read.expect("close_notify");
        got
    };
    let ((), got) = tokio::join!(server, client);
    assert!(got == payload, "{} bytes came back", got.len());
}

#[tokio::test]
async fn a_cut_connection_does_not_look_like_an_ended_one() {
    let ca = bundle("cluster.local");
    let acceptor = Acceptor::new(certificate(&ca, SERVER), none(), &[]);
    let connector = Connector::new(certificate(&ca, CLIENT), none());
    let (near, far) = tokio::io::duplex(64 << 10);
    let expected = [id(SERVER)];
    let (accepted, connected) =
        tokio::join!(acceptor.accept(far), connector.connect(near, &expected));
    let (mut server, client) = (accepted.expect("good").0, connected.expect("good").0);
    drop(client);
    let error = server.read_u8().await.expect_err("no close_notify came");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn the_control_plane_is_verified_by_name_and_may_see_who_calls() {
    let ca = bundle("cluster.local");
    let names = ["istiod.istio-system.svc", "localhost", "127.0.0.1", "fd00:172:18::2"];
    let served = ca.issue_server(&names, HOUR, SystemTime::now()).expect("a certificate");
    let acceptor = ServiceAcceptor::new(&served, Some(&ca.roots_pem())).expect("whole");
    let caller = certificate(&ca, "cluster.local/istio-system/ztunnel");
    for (name, client, good) in [
        ("istiod.istio-system.svc", None, true),
        ("localhost", Some(&caller), true),
        ("127.0.0.1", None, true),
        ("fd00:172:18::2", None, true),
        ("istiod.elsewhere.svc", None, false),
        ("127.0.0.2", None, false),
    ] {
        let connector = ServiceConnector::new(&ca.roots_pem(), name, client).expect("whole");
        let (near, far) = tokio::io::duplex(64 << 10);
        let (accepted, connected) = tokio::join!(acceptor.accept(far), connector.connect(near));
        if good {
            connected.expect("the name is in the certificate");
            let peer = accepted.expect("good").1.map(|peer| peer.identity);
            assert_eq!(peer, client.map(|client| client.identity().clone()));
        } else {
            match connected.map(|_| ()) {
                Err(HandshakeError::WrongName { expected, presented }) => {
                    assert_eq!((expected.as_str(), presented.len()), (name, names.len()));
                }
                other => panic!("{name}: {other:?}"),
            }
            assert!(accepted.is_err());
        }
    }
}

#[tokio::test]
async fn the_control_plane_refuses_a_bad_client_certificate_and_a_foreign_root() {
    let (ca, other) = (bundle("cluster.local"), bundle("cluster.local"));
    let served = ca.issue_server(&["localhost"], HOUR, SystemTime::now()).expect("a certificate");
    let acceptor = ServiceAcceptor::new(&served, Some(&ca.roots_pem())).expect("whole");
    let stranger = certificate(&other, CLIENT);
    let connector =
        ServiceConnector::new(&ca.roots_pem(), "localhost", Some(&stranger)).expect("whole");
    let (near, far) = tokio::io::duplex(64 << 10);
    let (accepted, _) = tokio::join!(acceptor.accept(far), connector.connect(near));
    assert!(matches!(accepted.map(|_| ()), Err(HandshakeError::UnknownIssuer { .. })));
    let connector = ServiceConnector::new(&other.roots_pem(), "localhost", None).expect("whole");
    let (near, far) = tokio::io::duplex(64 << 10);
    let (_, connected) = tokio::join!(acceptor.accept(far), connector.connect(near));
    assert!(matches!(connected.map(|_| ()), Err(HandshakeError::UnknownIssuer { .. })));
    assert!(ServiceConnector::new(&ca.roots_pem(), "not a name", None).is_err());
}

#[tokio::test]
async fn certificates_that_live_for_seconds_work_and_are_refreshed_in_time() {
    let ca = bundle("cluster.local");
    let now = SystemTime::now();
    let short = certificate_at(&ca, &id(SERVER), Duration::from_secs(60), now);
    let outcome = meet_certificates(&short, &certificate(&ca, CLIENT)).await;
    assert!(outcome.accepted.is_ok() && outcome.connected.is_ok());
    let wait = |jitter| short.refresh_at(jitter).duration_since(now).expect("ahead").as_secs();
    assert!((29..=30).contains(&wait(0.0)), "{}", wait(0.0));
    assert!((23..=24).contains(&wait(1.0)), "{}", wait(1.0));
    // A client that takes half of the certificate's stated life, as ztunnel does, also finds that
    // moment ahead.
    let life = short.not_after().duration_since(short.not_before()).expect("positive");
    assert!(short.not_before() + life / 2 > now + Duration::from_secs(10));
}

/// A client of rustls' own making, with what is changed in its provider.
fn foreign_config(
    certificate: &Arc<ambit_tls::WorkloadCertificate>,
    change: impl FnOnce(&mut rustls::crypto::CryptoProvider),
) -> rustls::ClientConfig {
    use rustls_pki_types::pem::PemObject;
    let blob = certificate.to_bytes();
    // The hand-over holds the key behind its header and the identity.
    let identity = certificate.identity().to_string();
    let at = 5 + 8 + 4 + 4 + 4 + identity.len();
    let length = u32::from_be_bytes(blob[at..at + 4].try_into().expect("four bytes"));
    let length = usize::try_from(length).expect("small");
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(blob[at + 4..at + 4 + length].to_vec());
    let chain = certificate.chain().iter().map(|link| {
        rustls_pki_types::CertificateDer::from_pem_slice(link.pem.as_bytes()).expect("PEM")
    });
    let chain = chain.collect();
    let mut config = foreign_builder(change)
        .with_client_auth_cert(chain, key.into())
        .expect("they belong together");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn foreign_builder(
    change: impl FnOnce(&mut rustls::crypto::CryptoProvider),
) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    let mut provider = default_provider();
    change(&mut provider);
    rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
}

fn foreign_client(
    certificate: &Arc<ambit_tls::WorkloadCertificate>,
    change: impl FnOnce(&mut rustls::crypto::CryptoProvider),
) -> tokio_rustls::TlsConnector {
    tokio_rustls::TlsConnector::from(Arc::new(foreign_config(certificate, change)))
}

fn anonymous_client() -> tokio_rustls::TlsConnector {
    let mut config = foreign_builder(|_| {}).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// What an end says that found nothing in common with its peer.
fn nothing_in_common<T>(result: Result<T, HandshakeError>) -> String {
    match result {
        Err(HandshakeError::Incompatible(reason)) => reason,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("they had something in common"),
    }
}

fn name() -> rustls_pki_types::ServerName<'static> {
    "peer.invalid".try_into().expect("a name")
}

/// A client that accepts every server: a peer whose own judgement is not tested.
#[derive(Debug)]
struct Trusting;

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        unreachable!("TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls_pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A ClientHello as OpenSSL 1.0 sends it: no supported_versions extension.
fn client_hello_1_2() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    // ECDHE-ECDSA with AES-128-GCM and AES-256-GCM; no compression.
    body.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2c, 1, 0]);
    // supported_groups: x25519, secp256r1; signature_algorithms: ecdsa_secp256r1_sha256.
    let extensions = [0, 10, 0, 6, 0, 4, 0, 29, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3, 0, 11, 0, 2, 1, 0];
    body.extend([0, u8::try_from(extensions.len()).expect("short")]);
    body.extend(extensions);
    let length = u8::try_from(body.len()).expect("short");
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}
