//! A mesh in miniature for the tests: authorities, workloads, and handshakes over memory.
//!
//! It uses only the public interface, so a test sees what another crate sees. It must never bypass
//! verification.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::error::HandshakeError;
use ambit_tls::{
    Acceptor, Authority, AuthorityBundle, Connector, Peer, RevocationList, WorkloadCertificate,
    WorkloadKey,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn id(text: &str) -> Identity {
    let (trust_domain, rest) = text.split_once('/').expect("trust domain/namespace/account");
    let (namespace, account) = rest.split_once('/').expect("trust domain/namespace/account");
    Identity::new(trust_domain, namespace, account)
}

pub(crate) fn bundle(trust_domain: &str) -> AuthorityBundle {
    AuthorityBundle::new(Authority::generate(trust_domain, SystemTime::now()).expect("a root"))
}

pub(crate) fn certificate_at(
    bundle: &AuthorityBundle,
    identity: &Identity,
    ttl: Duration,
    now: SystemTime,
) -> Arc<WorkloadCertificate> {
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(identity).expect("a request");
    let chain = bundle.sign(&csr, identity, ttl, now).expect("a certificate");
    WorkloadCertificate::new(key, &chain, identity, now).expect("a whole certificate")
}

pub(crate) fn certificate(bundle: &AuthorityBundle, name: &str) -> Arc<WorkloadCertificate> {
    certificate_at(bundle, &id(name), HOUR, SystemTime::now())
}

/// The same leaf and key, believing other roots: how a peer looks that trusts more than we do.
pub(crate) fn believing(
    bundle: &AuthorityBundle,
    name: &str,
    roots_pem: &str,
) -> Arc<WorkloadCertificate> {
    let key = WorkloadKey::generate().expect("a key");
    let csr = key.csr_pem(&id(name)).expect("a request");
    let now = SystemTime::now();
    let mut chain = bundle.sign(&csr, &id(name), HOUR, now).expect("a certificate");
    chain.last_mut().expect("roots").push_str(roots_pem);
    WorkloadCertificate::new(key, &chain, &id(name), now).expect("a whole certificate")
}

pub(crate) fn none() -> Arc<RevocationList> {
    Arc::new(RevocationList::none())
}

/// What each end makes of one connection. `accepted` is the server's view of the client;
/// `connected` is the client's view of the server *after its first read*.
pub(crate) struct Outcome {
    pub(crate) accepted: Result<Peer, HandshakeError>,
    pub(crate) connected: Result<Peer, HandshakeError>,
}

/// One connection on which the server sends a byte once it has accepted.
pub(crate) async fn meet(
    acceptor: &Acceptor,
    connector: &Connector,
    expected: &[Identity],
) -> Outcome {
    let (near, far) = tokio::io::duplex(64 << 10);
    let server = async {
        let (mut stream, peer) = acceptor.accept(far).await?;
        stream.write_all(b"!").await.map_err(HandshakeError::Io)?;
        stream.flush().await.map_err(HandshakeError::Io)?;
        Ok(peer)
    };
    let client = async {
        let (mut stream, peer) = connector.connect(near, expected).await?;
        match stream.read_u8().await {
            Ok(_) => Ok(peer),
            Err(error) => Err(HandshakeError::from_io(&error).unwrap_or(HandshakeError::Io(error))),
        }
    };
    let (accepted, connected) = tokio::join!(server, client);
    Outcome { accepted, connected }
}

pub(crate) async fn meet_certificates(
    server: &Arc<WorkloadCertificate>,
    client: &Arc<WorkloadCertificate>,
) -> Outcome {
    let acceptor = Acceptor::new(Arc::clone(server), none(), &[]);
    let connector = Connector::new(Arc::clone(client), none());
    meet(&acceptor, &connector, &[server.identity().clone()]).await
}

/// The alert that an end was sent, if that is how it failed.
pub(crate) fn alert(result: &Result<Peer, HandshakeError>) -> Option<&str> {
    match result {
        Err(HandshakeError::PeerAlert { alert, .. }) => Some(alert),
        _ => None,
    }
}
