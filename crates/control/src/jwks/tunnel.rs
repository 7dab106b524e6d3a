//! The way to a pod of the mesh: HBONE, as control itself.
//!
//! Control vouches for its own identity, the account `istiod` of the mesh's namespace. So a pod
//! that takes mutual TLS alone is reached, policies may name who asks, and an issuer within the
//! mesh needs no door in plain text.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::{Connector, RevocationList, WorkloadCertificate, WorkloadKey};
use ambit_words::{error_chain, names};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Empty;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::error::FetchError;
use crate::ca::CertificateAuthority;

/// How long control's own certificate is good. A new one is made at half of it.
const CERT_TTL: Duration = Duration::from_secs(60 * 60);
/// What the authority notes as its place.
const PLACE: &str = "control";

/// Control as a client of the mesh.
pub(super) struct MeshClient {
    authority: Arc<CertificateAuthority>,
    identity: Identity,
    own: Mutex<Option<(Arc<WorkloadCertificate>, SystemTime)>>,
}

impl MeshClient {
    /// A client of this trust domain; `root_namespace` is the mesh's.
    pub(super) fn new(
        authority: Arc<CertificateAuthority>,
        trust_domain: &str,
        root_namespace: &str,
    ) -> Self {
        let identity = Identity::new(trust_domain, root_namespace, names::CONTROL);
        Self { authority, identity, own: Mutex::default() }
    }

    /// A tunnel to `target`, a port of the pod that must prove `expected`, over a connection to the
    /// pod's HBONE port.
    pub(super) async fn open(
        &self,
        stream: TcpStream,
        expected: &Identity,
        target: SocketAddr,
    ) -> Result<TokioIo<Upgraded>, FetchError> {
        let failed =
            |what: &dyn std::error::Error| FetchError::Tunnel { target, what: error_chain(what) };
        let own = self
            .certificate(SystemTime::now())
            .map_err(|what| FetchError::Tunnel { target, what })?;
        let crl = self.authority.crl_pem().map(|crl| {
            let signers = self.authority.roots_pem();
            RevocationList::from_pem(&crl, &signers)
        });
        let revoked = crl.transpose().map_err(|error| failed(&error))?;
        let revoked = Arc::new(revoked.unwrap_or_else(RevocationList::none));
        let connector = Connector::new(own, revoked);
        let proven = connector.connect(stream, std::slice::from_ref(expected)).await;
        let (stream, _peer) = proven.map_err(|error| failed(&error))?;
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| failed(&error))?;
        // It ends with the tunnel, which is all that holds it.
        tokio::spawn(connection);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() =
            target.to_string().parse().expect("an address with its port is an authority");
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        if response.status() != StatusCode::OK {
            let what = match response.status() {
                StatusCode::UNAUTHORIZED => format!("a policy denies {}", self.identity),
                status => format!("it answered {status}"),
            };
            return Err(FetchError::Tunnel { target, what });
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| failed(&error))?;
        Ok(TokioIo::new(upgraded))
    }

    /// Control's certificate; a new one where the last is half over.
    fn certificate(&self, now: SystemTime) -> Result<Arc<WorkloadCertificate>, String> {
        let mut own = self.own.lock().expect("no holder of the lock panics");
        if let Some((certificate, until)) = &*own
            && now < *until
        {
            return Ok(certificate.clone());
        }
        let made = || -> Result<_, Box<dyn std::error::Error>> {
            let key = WorkloadKey::generate()?;
            let csr = key.csr_pem(&self.identity)?;
            let (chain, _) = self.authority.sign(&csr, &self.identity, PLACE, CERT_TTL, now)?;
            Ok(WorkloadCertificate::new(key, &chain, &self.identity, now)?)
        };
        let certificate = made().map_err(|error| error_chain(&*error))?;
        *own = Some((certificate.clone(), now + CERT_TTL / 2));
        Ok(certificate)
    }
}
