//! Keys, certificates, SPIFFE verification, rotation and revocation.
//!
//! This is the only crate that names rustls or aws-lc-rs. It proves who a peer is, in both
//! directions, and signs what proves it. It never opens a socket, reads or writes a file, or
//! decides whether a proven identity may do something.
//!
//! | module | holds |
//! |---|---|
//! | [`key`] | [`WorkloadKey`]: the private key of one workload, and its signing request |
//! | [`workload`] | [`WorkloadCertificate`]: key, chain and roots of one identity |
//! | [`revocation`] | [`RevocationList`]: which certificates no longer count |
//! | [`handshake`] | [`Acceptor`], [`Connector`], [`Peer`]: mutual TLS between workloads |
//! | [`service`] | TLS of the control plane's own endpoint, verified by name |
//! | [`authority`] | [`Authority`], [`AuthorityBundle`]: the certificate authority |
//! | [`token`] | node tokens: JWT ES256 as Kubernetes writes service account tokens |
//! | [`error`] | [`HandshakeError`]: why a peer was refused, or refused us |
//!
//! ```text
//! WorkloadKey::generate() -> csr_pem(&identity) -> [CreateCertificate] -> chain: Vec<String>
//! WorkloadCertificate::new(key, &chain, &identity, now) -> Arc<WorkloadCertificate>
//! Acceptor::new(certificate, revocations, &[])?.accept(io).await  -> (ServerStream<IO>, Peer)
//! Connector::new(certificate, revocations).connect(io, &expected).await -> (ClientStream<IO>, Peer)
//! ```

pub mod authority;
pub mod certificate;
pub mod error;
pub mod handshake;
pub mod key;
pub mod provider;
pub mod request;
pub mod revocation;
pub mod service;
pub mod stream;
pub mod token;

mod verify;
pub mod workload;

pub use authority::{Authority, AuthorityBundle};
pub use error::HandshakeError;
pub use handshake::{Acceptor, Connector, Peer};
pub use key::WorkloadKey;
pub use revocation::RevocationList;
pub use stream::{ClientStream, ServerStream};
pub use workload::WorkloadCertificate;
