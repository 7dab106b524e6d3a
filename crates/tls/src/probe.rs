//! A client without a certificate, to check that it is refused.
//!
//! `ambit demo` and checks of a mesh connect to a workload's port without a certificate. A probe
//! never carries an application's traffic.

use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::certificate::{CertificateError, certificates_of};
use crate::error::HandshakeError;
use crate::handshake::{client_config, connect_tls};
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::stream::ClientStream;
use crate::verify::{Accepted, Verifier};

/// Opens TLS to any workload of the mesh without presenting a certificate.
///
/// A workload that asks for one refuses after its own part of the handshake: the refusal is seen
/// by the first read, as the module `handshake` says.
pub async fn connect_without_certificate<IO>(
    roots_pem: &str,
    io: IO,
) -> Result<ClientStream<IO>, ProbeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let roots = certificates_of(roots_pem, "the root certificate")?;
    let verifier = Verifier {
        roots: Arc::new(TrustRoots::new(&roots)?),
        revocations: Arc::new(RevocationList::none()),
        accepted: Accepted::AnyWorkload,
        anonymous_clients: false,
    };
    let unnamed = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
    let (stream, _) = connect_tls(Arc::new(client_config(verifier, None)), unnamed, io).await?;
    Ok(stream)
}

/// Why a probe got no stream.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The roots to believe are of no use.
    #[error("cannot use the roots to probe with")]
    Roots(#[from] CertificateError),
    /// The handshake failed.
    #[error("the handshake failed")]
    Handshake(#[from] HandshakeError),
}
