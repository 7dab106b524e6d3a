//! TLS of a gateway's listeners, with clients as other programs are: rustls' own, which verify
//! names and roots.

use std::io;
use std::sync::Arc;

use ambit_model::http::gateway::ClientValidation;
use ambit_tls::certificate::CertificateError;
use ambit_tls::edge::{ALPN_HTTPS, EdgeAcceptor, EdgeCertificate, EdgePeer};
use ambit_tls::service::ServerCertificate;
use ambit_tls::{Acceptor, HandshakeError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_RSA_SHA256, SanType, SignatureAlgorithm,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::mesh::{bundle, certificate, none};

/// An authority that nothing in the mesh knows.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a root").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn server(&self, names: &[&str], algorithm: &'static SignatureAlgorithm) -> ServerCertificate {
        let names = names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate");
        pair(leaf.pem(), &key)
    }

    fn client(&self, name: &str) -> ServerCertificate {
        let mut params = CertificateParams::new(vec![format!("{name}.example")]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = format!("spiffe://other/{name}").try_into().expect("ASCII");
        params.subject_alt_names.push(SanType::URI(uri));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate");
        pair(leaf.pem(), &key)
    }
}

fn pair(chain_pem: String, key: &KeyPair) -> ServerCertificate {
    ServerCertificate { chain_pem, key_pem: Zeroizing::new(key.serialize_pem()) }
}

const ECDSA: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;

fn usable(name: &str, pair: &ServerCertificate) -> Arc<EdgeCertificate> {
    Arc::new(EdgeCertificate::new(name.into(), pair).expect("it is whole"))
}

fn acceptor(pairs: &[&ServerCertificate], clients: &ClientValidation) -> EdgeAcceptor {
    let certificates: Vec<_> = pairs.iter().map(|it| usable("default/it", it)).collect();
    EdgeAcceptor::new(&certificates, clients, ALPN_HTTPS).expect("it is whole")
}

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// A client of another make.
struct Foreign<'a> {
    ca: &'a Ca,
    versions: &'a [&'static SupportedProtocolVersion],
    provider: CryptoProvider,
    certificate: Option<&'a ServerCertificate>,
    alpn: &'a [&'a str],
}

impl<'a> Foreign<'a> {
    fn new(ca: &'a Ca) -> Self {
        let provider = default_provider();
        Self { ca, versions: BOTH, provider, certificate: None, alpn: ALPN_HTTPS }
    }

    fn config(self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.ca.pem.as_bytes()).expect("PEM");
        roots.add(root).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider))
            .with_protocol_versions(self.versions)
            .expect("suites for them")
            .with_root_certificates(roots);
        let mut config = match self.certificate {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// What a client sees of an accepted connection.
#[derive(Debug)]
struct Seen {
    leaf: Vec<u8>,
    kind: HandshakeKind,
}

/// One connection on which the server sends a byte once it has accepted.
async fn meet(
    acceptor: &EdgeAcceptor,
    client: &Arc<ClientConfig>,
    name: &str,
) -> (Result<EdgePeer, HandshakeError>, io::Result<Seen>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let server = async {
        let (mut stream, peer) = acceptor.accept(far).await?;
        stream.write_all(b"!").await.map_err(HandshakeError::Io)?;
        stream.flush().await.map_err(HandshakeError::Io)?;
        Ok(peer)
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(client));
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).expect("a name");
    let client = async {
        let mut stream = connector.connect(name, near).await?;
        stream.read_u8().await?;
        let session = stream.get_ref().1;
        let leaf = session.peer_certificates().expect("a certificate")[0].to_vec();
        Ok(Seen { leaf, kind: session.handshake_kind().expect("done") })
    };
    tokio::join!(server, client)
}

fn leaf(pair: &ServerCertificate) -> Vec<u8> {
    pair.leaf_der().expect("PEM")
}

#[tokio::test]
async fn a_certificate_is_chosen_by_name_and_by_what_the_client_can_verify() {
    let ca = Ca::new("web");
    let first = ca.server(&["first.example"], ECDSA);
    let wild = ca.server(&["*.shop.example"], ECDSA);
    let rsa = ca.server(&["WWW.shop.example", "first.example"], &PKCS_RSA_SHA256);
    let acceptor = acceptor(&[&first, &wild, &rsa], &ClientValidation::None);
    let only_rsa = || {
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
        Foreign { provider, versions: &[&TLS12], ..Foreign::new(&ca) }.config()
    };
    let any = || Foreign::new(&ca).config();
    for (asked, client, expected) in [
        // The exact name wins over the wildcard, whatever the kind of its key.
        ("www.shop.example", any(), &rsa),
        ("Other.shop.example", any(), &wild),
        // ECDSA before RSA, unless the client cannot verify it.
        ("first.example", any(), &first),
        ("first.example", only_rsa(), &rsa),
    ] {
        let (accepted, seen) = meet(&acceptor, &client, asked).await;
        let asked = asked.to_ascii_lowercase();
        assert_eq!(accepted.expect(&asked).server_name.as_deref(), Some(asked.as_str()));
        assert!(seen.expect(&asked).leaf == leaf(expected), "{asked}");
    }
    // Of no use for the name: the first, which the client refuses. A wildcard is one label.
    for asked in ["else.example", "a.b.shop.example", "shop.example"] {
        let (accepted, seen) = meet(&acceptor, &any(), asked).await;
        assert!(matches!(accepted, Err(HandshakeError::PeerAlert { .. })), "{asked}");
        let error = seen.expect_err(asked).to_string();
        assert!(error.contains("first.example") || error.contains("NotValidForName"), "{error}");
    }
}

#[tokio::test]
async fn the_edge_speaks_tls_1_2_and_the_mesh_does_not() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let acceptor = acceptor(&[&served], &ClientValidation::None);
    for (versions, version, suite) in [
        (&[&TLS13], "TLSv1.3", "TLS_AES_128_GCM_SHA256"),
        (&[&TLS12], "TLSv1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ] {
        let client = Foreign { versions, ..Foreign::new(&ca) }.config();
        let (accepted, seen) = meet(&acceptor, &client, "a.example").await;
        let peer = accepted.expect(version);
        assert_eq!((peer.version, peer.suite), (version, suite));
        assert_eq!((peer.alpn.as_deref(), peer.client.is_none()), (Some("h2"), true));
        seen.expect(version);
    }
    let mesh = bundle("cluster.local");
    let mesh = Acceptor::new(certificate(&mesh, "cluster.local/prod/backend"), none(), &[]);
    let client = Foreign { versions: &[&TLS12], ..Foreign::new(&ca) }.config();
    let (near, far) = tokio::io::duplex(64 << 10);
    let connector = tokio_rustls::TlsConnector::from(client);
    let name = "a.example".try_into().expect("a name");
    let (accepted, connected) = tokio::join!(mesh.accept(far), connector.connect(name, near));
    let error = accepted.map(drop).expect_err("the mesh speaks TLS 1.3 alone");
    assert!(error.to_string().contains("TLS 1.3"), "{error}");
    connected.expect_err("the mesh speaks TLS 1.3 alone");
}

/// A first message without the extension of TLS 1.3: a version of TLS, and suites.
fn old_client_hello(version: [u8; 2], suites: &[u8]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, u8::try_from(suites.len()).expect("short")]);
    body.extend(suites);
    body.extend([1, 0]);
    // supported_groups: x25519; signature_algorithms: ecdsa_secp256r1_sha256; point formats.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3, 0, 11, 0, 2, 1, 0];
    body.extend([0, u8::try_from(extensions.len()).expect("short")]);
    body.extend(extensions);
    let length = u8::try_from(body.len()).expect("short");
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[tokio::test]
async fn old_versions_and_suites_without_aead_or_forward_secrecy_are_refused() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let acceptor = acceptor(&[&served], &ClientValidation::None);
    for (what, version, suites, answer, told) in [
        ("TLS 1.1", [3, 2], &[0xc0, 0x09][..], 70, "neither TLS 1.3 nor TLS 1.2"),
        ("CBC", [3, 3], &[0xc0, 0x09, 0xc0, 0x0a, 0xc0, 0x23], 40, "no suite"),
        ("RSA key exchange", [3, 3], &[0x00, 0x9c, 0x00, 0x9d], 40, "no suite"),
    ] {
        let (mut near, far) = tokio::io::duplex(64 << 10);
        let client = async {
            near.write_all(&old_client_hello(version, suites)).await.expect(what);
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.expect(what);
            answer
        };
        let server = async { acceptor.accept(far).await.map(drop).expect_err(what) };
        let (answered, error) = tokio::join!(client, server);
        // A fatal alert: protocol_version or handshake_failure.
        assert_eq!(answered[..1], [21], "{what}");
        assert_eq!(answered[5..], [2, answer], "{what}");
        assert!(error.to_string().contains(told), "{what}: {error}");
    }
}

#[tokio::test]
async fn the_caller_says_what_is_spoken_inside() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let https = acceptor(&[&served], &ClientValidation::None);
    let bytes = [usable("default/it", &served)];
    let bytes = EdgeAcceptor::new(&bytes, &ClientValidation::None, &[]).expect("it is whole");
    for (acceptor, offered, expected) in [
        (&https, &["http/1.1"][..], Ok(Some("http/1.1"))),
        (&https, &["http/1.1", "h2"], Ok(Some("h2"))),
        (&https, &[], Ok(None)),
        (&https, &["mqtt"], Err(())),
        (&bytes, &["mqtt"], Ok(None)),
        (&bytes, &[], Ok(None)),
    ] {
        let client = Foreign { alpn: offered, ..Foreign::new(&ca) }.config();
        let (accepted, _) = meet(acceptor, &client, "a.example").await;
        match (accepted, expected) {
            (Ok(peer), Ok(expected)) => assert_eq!(peer.alpn.as_deref(), expected, "{offered:?}"),
            (Err(HandshakeError::Incompatible(_)), Err(())) => {}
            (other, _) => panic!("{offered:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn sessions_are_resumed_across_rotated_certificates_and_never_where_clients_are_validated() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let rotated = ca.server(&["a.example"], ECDSA);
    let plain = acceptor(&[&served], &ClientValidation::None);
    let again = acceptor(&[&rotated], &ClientValidation::None);
    let roots_pem = ca.pem.as_str().into();
    let strict = acceptor(&[&served], &ClientValidation::Required { roots_pem });
    let user = ca.client("user");
    for versions in [&[&TLS13], &[&TLS12]] {
        let certificate = Some(&user);
        let client = Foreign { versions, certificate, ..Foreign::new(&ca) }.config();
        for (what, acceptor, is_resumed, is_known) in [
            ("first", &plain, false, false),
            ("again", &plain, true, false),
            ("with a rotated certificate", &again, true, false),
            ("a ticket of a listener that asks for none", &strict, false, true),
            ("never with a client's certificate", &strict, false, true),
            ("nor does it spread", &plain, true, false),
        ] {
            let (accepted, seen) = meet(acceptor, &client, "a.example").await;
            let (peer, seen) = (accepted.expect(what), seen.expect(what));
            assert_eq!(peer.is_resumed, is_resumed, "{what} by {}", peer.version);
            assert_eq!(seen.kind == HandshakeKind::Resumed, is_resumed, "{what}");
            assert_eq!(peer.client.is_some(), is_known, "{what} by {}", peer.version);
        }
        // Another name is another session.
        let other = acceptor_of_two(&ca);
        let (accepted, _) = meet(&other, &client, "b.example").await;
        assert!(!accepted.expect("the name is served").is_resumed);
    }
}

fn acceptor_of_two(ca: &Ca) -> EdgeAcceptor {
    acceptor(&[&ca.server(&["a.example", "b.example"], ECDSA)], &ClientValidation::None)
}

/// What becomes of a client: refused, taken, or taken and known by its name.
fn fate(accepted: &Result<EdgePeer, HandshakeError>) -> &str {
    match accepted {
        Ok(EdgePeer { client: None, .. }) => "taken",
        Ok(EdgePeer { client: Some(client), .. }) => &client.subject,
        Err(HandshakeError::NoClientCertificate) => "none given",
        Err(HandshakeError::UnknownIssuer { .. }) => "unknown issuer",
        Err(HandshakeError::NoClientRoots(_)) => "no roots",
        Err(HandshakeError::Unusable(_)) => "unusable",
        Err(_) => "another error",
    }
}

#[tokio::test]
async fn clients_prove_themselves_as_the_listener_asks() {
    let (ca, other) = (Ca::new("web"), Ca::new("other"));
    let served = ca.server(&["a.example"], ECDSA);
    let (user, stranger) = (ca.client("user"), other.client("stranger"));
    // Issued by the right root, and not for clients.
    let mut params = CertificateParams::new(vec!["c.example".into()]).expect("a name");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().expect("a key");
    let not_for_clients = pair(params.signed_by(&key, &ca.issuer).expect("signed").pem(), &key);
    let roots_pem: ambit_model::Text = ca.pem.as_str().into();
    let required = ClientValidation::Required { roots_pem: roots_pem.clone() };
    let optional = ClientValidation::Optional { roots_pem };
    let impossible = ClientValidation::Impossible { problem: "ConfigMap x is missing".into() };
    for (rule, certificate, expected) in [
        (&ClientValidation::None, None, "taken"),
        (&ClientValidation::None, Some(&user), "taken"),
        (&required, None, "none given"),
        (&required, Some(&user), "CN=user"),
        (&required, Some(&stranger), "unknown issuer"),
        (&required, Some(&not_for_clients), "unusable"),
        (&optional, None, "taken"),
        (&optional, Some(&user), "CN=user"),
        // Taken, and not known: what was not verified is not reported.
        (&optional, Some(&stranger), "taken"),
        (&optional, Some(&not_for_clients), "taken"),
        (&impossible, None, "no roots"),
        (&impossible, Some(&user), "no roots"),
    ] {
        let acceptor = acceptor(&[&served], rule);
        for versions in [&[&TLS13], &[&TLS12]] {
            let client = Foreign { versions, certificate, ..Foreign::new(&ca) }.config();
            let (accepted, seen) = meet(&acceptor, &client, "a.example").await;
            assert_eq!(fate(&accepted), expected, "{rule:?} {accepted:?}");
            assert_eq!(seen.is_ok(), accepted.is_ok(), "{rule:?} {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_clients_certificate_is_described() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let user = ca.client("user");
    let required = ClientValidation::Required { roots_pem: ca.pem.as_str().into() };
    let acceptor = acceptor(&[&served], &required);
    let client = Foreign { certificate: Some(&user), ..Foreign::new(&ca) }.config();
    let (accepted, _) = meet(&acceptor, &client, "a.example").await;
    let known = accepted.expect("good").client.expect("verified");
    assert_eq!(known.subject, "CN=user");
    assert_eq!(known.uris, ["spiffe://other/user"]);
    assert_eq!(known.dns_names, ["user.example"]);
    let read = CertificateDer::from_pem_slice(known.pem.as_bytes()).expect("PEM");
    assert_eq!(read.as_ref(), leaf(&user));
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &leaf(&user));
    let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    assert_eq!(known.sha256, hash);
}

#[tokio::test]
async fn bytes_that_were_read_before_belong_to_the_handshake() {
    let ca = Ca::new("web");
    let served = ca.server(&["a.example"], ECDSA);
    let acceptor = acceptor(&[&served], &ClientValidation::None);
    let (near, mut far) = tokio::io::duplex(64 << 10);
    let connector = tokio_rustls::TlsConnector::from(Foreign::new(&ca).config());
    let server = async {
        let mut looked_at = [0; 100];
        far.read_exact(&mut looked_at).await.expect("a part of the first message");
        let (reads, writes) = tokio::io::split(far);
        let io = tokio::io::join(io::Cursor::new(looked_at).chain(reads), writes);
        acceptor.accept(Box::pin(io)).await.map(|(_, peer)| peer)
    };
    let name = "a.example".try_into().expect("a name");
    let (accepted, connected) = tokio::join!(server, connector.connect(name, near));
    connected.expect("good");
    assert_eq!(accepted.expect("good").server_name.as_deref(), Some("a.example"));
}

#[test]
fn what_cannot_be_served_is_named() {
    let ca = Ca::new("web");
    let (one, two) = (ca.server(&["a.example"], ECDSA), ca.server(&["b.example"], ECDSA));
    let of = |chain: &str, key: &str| ServerCertificate {
        chain_pem: chain.to_owned(),
        key_pem: Zeroizing::new(key.to_owned()),
    };
    let refused = |pair: &ServerCertificate| {
        let error = EdgeCertificate::new("shop/tls".into(), pair).expect_err("of no use");
        assert_eq!(error.to_string(), "certificate shop/tls cannot be used");
        std::error::Error::source(&error).expect("why").to_string()
    };
    for (pair, expected) in [
        (of("", &one.key_pem), "no PEM block of type CERTIFICATE"),
        (of("-----BEGIN CERTIFICATE-----\n?", &one.key_pem), "is not valid PEM"),
        (of(&one.chain_pem, ""), "the key of the certificate"),
        (of(&one.chain_pem, &two.key_pem), "does not belong to the certificate"),
    ] {
        let problem = refused(&pair);
        assert!(problem.contains(expected), "{problem}");
    }
    let none = EdgeAcceptor::new(&[], &ClientValidation::None, ALPN_HTTPS).err();
    assert!(matches!(none, Some(CertificateError::NoneGiven)));
    let roots = ClientValidation::Required { roots_pem: "no PEM".into() };
    let bad = EdgeAcceptor::new(&[usable("it", &one)], &roots, ALPN_HTTPS).err();
    assert!(bad.expect("no roots").to_string().contains("the roots for clients"));
    // Neither a key nor a chain is in what is printed for people.
    let text = format!("{:?}", usable("shop/tls", &one));
    assert_eq!(text, "EdgeCertificate(shop/tls for [\"a.example\"])");
}
