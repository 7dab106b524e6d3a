//! TLS towards a container's own port, for its probes of Kubernetes.
//!
//! No certificate is checked, and no signature by one: a container proves nothing to its probe. A
//! probe asks its own pod by its address, a certificate is seldom good for that, and the answer
//! decides nothing but whether the container is well. For the same reason no name is sent (the
//! kubelet sends none with an address), and no certificate is shown. Nothing else may connect this
//! way: it says nothing of who answers.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::provider::{ALPN_H2, EDGE_VERSIONS, edge_provider};
use crate::stream::{ClientStream, ReadAhead, Stream};

/// What is spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1, also with a server that does not choose.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Connects to a port of the container that has this address: TLS 1.3 or 1.2, and of HTTP the
/// version that the server prefers. How long it takes is the caller's to bound.
///
/// # Errors
/// A server that does not speak TLS, or none of these versions, and the transport's failure.
pub async fn connect<IO>(address: IpAddr, io: IO) -> io::Result<(ClientStream<IO>, HttpVersion)>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let connector = TlsConnector::from(Arc::clone(CONFIG.get_or_init(config)));
    // The extension holds names alone: to a server with an address none is sent.
    let name = ServerName::IpAddress(address.into());
    let connected = connector.connect(name, ReadAhead::new(io)).await.map_err(plain)?;
    let inside = match connected.get_ref().1.alpn_protocol() {
        Some(ALPN_H2) => HttpVersion::Http2,
        _ => HttpVersion::Http1,
    };
    Ok((Stream(connected), inside))
}

fn config() -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(edge_provider())
        .with_protocol_versions(EDGE_VERSIONS)
        .expect("the provider has suites for both versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unchecked))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec(), b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Says in plain words that a server does not speak TLS, the mistake that is made most.
fn plain(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            io::Error::new(io::ErrorKind::InvalidData, "the server does not speak TLS")
        }
        _ => error,
    }
}

/// Takes any certificate, also one that is no certificate at all.
#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    // Of a certificate that nobody vouches for, a signature proves nothing either. Not to read it
    // takes certificates of version 1 too, which `openssl x509 -req` makes and webpki refuses.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        edge_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rustls::{ServerConfig, SupportedProtocolVersion};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::authority::{Authority, AuthorityBundle};

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 2));

    /// What a server says through TLS of this version, with a certificate for another name that
    /// ended long ago, and what it then speaks if it knows these.
    async fn said(
        version: &'static SupportedProtocolVersion,
        alpn: &[&str],
    ) -> (String, HttpVersion) {
        let hour = Duration::from_secs(3600);
        let long_ago = SystemTime::UNIX_EPOCH + 10_000 * hour;
        let root = Authority::generate("cluster.local", long_ago).expect("a root");
        let served = AuthorityBundle::new(root)
            .issue_server(&["a.example"], hour, long_ago)
            .expect("it issues");
        let mut config = ServerConfig::builder_with_provider(edge_provider())
            .with_protocol_versions(&[version])
            .expect("the provider has suites for it")
            .with_no_client_auth()
            .with_cert_resolver(served.resolver("the certificate").expect("it is whole"));
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (near, far) = tokio::io::duplex(64 << 10);
        let server = async {
            let mut stream = acceptor.accept(far).await.expect("the probe connects");
            let session = stream.get_ref().1;
            assert_eq!(session.server_name(), None, "the kubelet sends none with an address");
            stream.write_all(b"well").await.expect("it is open");
            stream.shutdown().await.expect("it is open");
        };
        let client = async {
            let connected = connect(ADDRESS, near).await;
            let (mut stream, inside) = connected.expect("nothing is checked");
            let mut said = String::new();
            stream.read_to_string(&mut said).await.expect("it ends well");
            (said, inside)
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn any_certificate_is_taken_by_either_version() {
        let well = ("well".to_owned(), HttpVersion::Http1);
        assert_eq!(said(&rustls::version::TLS13, &[]).await, well);
        assert_eq!(said(&rustls::version::TLS12, &[]).await, well);
    }

    #[tokio::test]
    async fn the_server_chooses_the_version_of_http() {
        let inside = async |alpn: &[&str]| said(&rustls::version::TLS13, alpn).await.1;
        assert_eq!(inside(&["http/1.1"]).await, HttpVersion::Http1);
        assert_eq!(inside(&["h2"]).await, HttpVersion::Http2);
        assert_eq!(inside(&["h2", "http/1.1"]).await, HttpVersion::Http2);
    }

    #[tokio::test]
    async fn a_server_without_tls_is_named_as_such() {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("there is room");
        let Err(error) = connect(ADDRESS, near).await else { panic!("it is no TLS") };
        assert_eq!(error.to_string(), "the server does not speak TLS");
    }
}
