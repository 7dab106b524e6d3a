//! TLS towards named servers outside of the mesh.

use std::time::SystemTime;

use ambit_tls::origination::{Asked, Inside, Originator, Trust};
use ambit_tls::service::{ServerCertificate, ServiceAcceptor};
use ambit_tls::{AuthorityBundle, HandshakeError, WorkloadKey};

use crate::mesh::{HOUR, bundle, id};

/// What a client is told by a server that proves `held`, and whom the server has seen.
async fn met(
    ca: &AuthorityBundle,
    held: &str,
    asked: Asked<'_>,
) -> (Result<(), HandshakeError>, Option<String>) {
    let served = ca.issue_server(&[held], HOUR, SystemTime::now()).expect("a certificate");
    let acceptor = ServiceAcceptor::new(&served, Some(&ca.roots_pem())).expect("whole");
    let originator = Originator::new(&asked).expect("it can be used");
    let (near, far) = tokio::io::duplex(64 << 10);
    let (accepted, connected) = tokio::join!(acceptor.accept(far), originator.connect(near));
    let seen = accepted.ok().and_then(|(_, peer)| peer).map(|peer| peer.identity.to_string());
    (connected.map(drop), seen)
}

fn asked<'a>(server_name: &'a str, trust: Trust<'a>) -> Asked<'a> {
    let inside = Inside::Http2;
    Asked { server_name, alternatives: &[], uris: &[], trust, client: None, inside }
}

#[tokio::test]
async fn a_server_proves_its_name_or_one_of_the_alternatives_to_the_roots_that_are_given() {
    let (ca, other) = (bundle("cluster.local"), bundle("cluster.local"));
    let (roots, others) = (ca.roots_pem(), other.roots_pem());
    let given = Trust::Roots(&roots);
    let unknown = |it: &HandshakeError| matches!(it, HandshakeError::UnknownIssuer { .. });
    let wrong = |it: &HandshakeError| matches!(it, HandshakeError::WrongName { .. });
    for (told, asked, refused) in [
        ("its name", asked("a.example", given), None::<&dyn Fn(&HandshakeError) -> bool>),
        ("another name", asked("b.example", given), Some(&wrong)),
        ("another root", asked("a.example", Trust::Roots(&others)), Some(&unknown)),
        ("the public web", asked("a.example", Trust::Public), Some(&unknown)),
        ("nobody", asked("b.example", Trust::Nobody), None),
        (
            "an alternative",
            Asked { alternatives: &["c.example", "a.example"], ..asked("b.example", given) },
            None,
        ),
        // They take the place of the name.
        (
            "no alternative",
            Asked { alternatives: &["c.example"], ..asked("a.example", given) },
            Some(&wrong),
        ),
    ] {
        let (connected, _) = met(&ca, "a.example", asked).await;
        match (connected, refused) {
            (Ok(()), None) => {}
            (Err(error), Some(is_it)) => assert!(is_it(&error), "{told}: {error}"),
            (connected, _) => panic!("{told}: {connected:?}"),
        }
    }
}

#[tokio::test]
async fn a_client_proves_itself_by_what_it_is_given() {
    let ca = bundle("cluster.local");
    let roots = ca.roots_pem();
    let (_, seen) = met(&ca, "a.example", asked("a.example", Trust::Roots(&roots))).await;
    assert_eq!(seen, None);
    let identity = id("cluster.local/app/web");
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&identity).expect("a request");
    let chain = ca.sign(&csr, &identity, HOUR, SystemTime::now()).expect("a certificate");
    let client = ServerCertificate { chain_pem: chain.concat(), key_pem: key.to_pkcs8_pem() };
    let asked = Asked { client: Some(&client), ..asked("a.example", Trust::Roots(&roots)) };
    let (connected, seen) = met(&ca, "a.example", asked).await;
    assert!(connected.is_ok());
    assert_eq!(seen, Some(identity.to_string()));
}

#[tokio::test]
async fn a_server_proves_a_uri_where_that_is_asked_for() {
    let ca = bundle("cluster.local");
    let roots = ca.roots_pem();
    let identity = id("cluster.local/app/web");
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&identity).expect("a request");
    let chain = ca.sign(&csr, &identity, HOUR, SystemTime::now()).expect("a certificate");
    let served = ServerCertificate { chain_pem: chain.concat(), key_pem: key.to_pkcs8_pem() };
    let (own, other) = (identity.to_string(), "spiffe://cluster.local/ns/app/sa/db".to_owned());
    for (alternatives, uris, is_it) in [
        (&[][..], &[&*own][..], true),
        (&[], &[&*other, &*own], true),
        (&["b.example"], &[&*own], true),
        (&[], &[&*other], false),
        (&["b.example"], &[&*other], false),
        // The name alone does not count, nor does a part of a URI.
        (&[], &[&own[..own.len() - 1]], false),
        (&[], &[], false),
    ] {
        let asked = Asked { alternatives, uris, ..asked("a.example", Trust::Roots(&roots)) };
        let acceptor = ServiceAcceptor::new(&served, None).expect("whole");
        let originator = Originator::new(&asked).expect("it can be used");
        let (near, far) = tokio::io::duplex(64 << 10);
        let (_, connected) = tokio::join!(acceptor.accept(far), originator.connect(near));
        match connected {
            Ok(_) => assert!(is_it, "{alternatives:?} {uris:?}"),
            Err(HandshakeError::WrongName { .. }) => assert!(!is_it, "{alternatives:?} {uris:?}"),
            Err(error) => panic!("{alternatives:?} {uris:?}: {error}"),
        }
    }
}

#[tokio::test]
async fn who_wants_http2_refuses_a_server_that_does_not_agree() {
    let ca = bundle("cluster.local");
    let roots = ca.roots_pem();
    let asked = Asked { inside: Inside::Http1, ..asked("a.example", Trust::Roots(&roots)) };
    // The server of the control plane speaks HTTP/2 alone.
    let (connected, _) = met(&ca, "a.example", asked).await;
    assert!(connected.is_err());
}

#[test]
fn what_is_of_no_use_is_told() {
    let refused = |asked: Asked<'_>| Originator::new(&asked).err().map(|it| it.to_string());
    assert!(refused(asked("*.example", Trust::Public)).is_some());
    assert!(refused(asked("a.example", Trust::Roots("no PEM"))).is_some());
    let alternatives = Asked { alternatives: &["a b"], ..asked("a.example", Trust::Public) };
    assert!(refused(alternatives).is_some());
    let key_pem = zeroize::Zeroizing::new("no PEM".to_owned());
    let client = ServerCertificate { chain_pem: String::new(), key_pem };
    let unproven = Asked { client: Some(&client), ..asked("a.example", Trust::Public) };
    assert!(refused(unproven).is_some());
}
