//! TLS towards servers of the web: their names are verified against public roots.
//!
//! Nothing of the mesh is spoken here: no workload certificate is shown, and no root of the mesh is
//! believed. The version is TLS 1.3, as everywhere; the suites are all of it. Unlike
//! [`crate::origination`] it takes a store of roots as systems have it, of which some cannot be
//! read, and one connector is for all names.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::certificate::{CertificateError, certificates_of};
use crate::provider::VERSIONS;
use crate::stream::{ClientStream, ReadAhead, Stream};

/// Where systems keep the roots that they believe; the first that is there.
pub const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];

/// Connects to servers of the web, which are spoken to in HTTP/1.1.
#[derive(Clone)]
pub struct WebConnector {
    config: Arc<ClientConfig>,
}

impl WebConnector {
    /// Believes the roots of `system_pem`, as far as they can be read, Mozilla's where there are
    /// none, and those of `further_pem`.
    ///
    /// # Errors
    /// `further_pem` that holds no certificate, or one that cannot be a root.
    pub fn new(
        system_pem: Option<&[u8]>,
        further_pem: Option<&str>,
    ) -> Result<Self, CertificateError> {
        let mut roots = RootCertStore::empty();
        let system = CertificateDer::pem_slice_iter(system_pem.unwrap_or_default());
        roots.add_parsable_certificates(system.filter_map(Result::ok));
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if let Some(pem) = further_pem {
            for certificate in certificates_of(pem, "the further root certificate")? {
                let added = roots.add(certificate);
                added.map_err(|error| CertificateError::Unreadable(error.to_string()))?;
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder
            .with_protocol_versions(VERSIONS)
            .expect("the default provider has suites for TLS 1.3");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// Connects to the server of this name, a DNS name or an IP address. How long it takes is the
    /// caller's to bound.
    ///
    /// # Errors
    /// A name that is none, a certificate that is not good for it, and the transport's failure.
    pub async fn connect<IO>(&self, name: &str, io: IO) -> io::Result<ClientStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        Ok(Stream(connector.connect(name, ReadAhead::new(io)).await?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rustls::ServerConfig;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::authority::{Authority, AuthorityBundle};
    use crate::provider::provider;

    /// Whether a server that proves `a.example` by this authority is believed to be `name`.
    async fn met(ca: &AuthorityBundle, web: &WebConnector, name: &str) -> io::Result<()> {
        let hour = Duration::from_secs(3600);
        let served = ca.issue_server(&["a.example"], hour, SystemTime::now()).expect("it issues");
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .expect("the provider has suites for TLS 1.3")
            .with_no_client_auth()
            .with_cert_resolver(served.resolver("the certificate").expect("it is whole"));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (near, far) = tokio::io::duplex(64 << 10);
        let (_, connected) = tokio::join!(acceptor.accept(far), web.connect(name, near));
        connected.map(drop)
    }

    #[tokio::test]
    async fn a_server_proves_its_name_to_a_root_of_the_system_or_a_further_one() {
        let root = Authority::generate("cluster.local", SystemTime::now()).expect("a root");
        let ca = AuthorityBundle::new(root);
        let roots = ca.roots_pem();
        let of = |system: Option<&[u8]>, further: Option<&str>| {
            WebConnector::new(system, further).expect("roots")
        };
        for (web, name, is_believed) in [
            (of(None, Some(&roots)), "a.example", true),
            (of(Some(roots.as_bytes()), None), "a.example", true),
            (of(None, Some(&roots)), "b.example", false),
            (of(None, None), "a.example", false),
            (of(Some(b"no PEM"), None), "a.example", false),
            (of(None, Some(&roots)), "a b", false),
        ] {
            assert_eq!(met(&ca, &web, name).await.is_ok(), is_believed, "{name}");
        }
        assert!(WebConnector::new(None, Some("no PEM")).is_err());
    }
}
