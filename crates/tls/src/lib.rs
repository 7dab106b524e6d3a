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
//! | [`revocation`] | [`RevocationList`]: which certificates are revoked |
//! | [`handshake`] | [`Acceptor`], [`Connector`], [`Peer`]: mutual TLS between workloads |
//! | [`probe`] | a client without a certificate, to check that it is refused |
//! | [`container_probe`] | TLS of a container's probes: as with the kubelet, nothing is checked |
//! | [`origination`] | TLS towards servers outside of the mesh, verified by name |
//! | [`edge`] | TLS of a gateway's listeners: certificates by name, clients of any kind |
//! | [`service`] | TLS of the control plane's own endpoint, verified by name |
//! | [`web`] | TLS towards servers of the web, such as issuers of tokens |
//! | [`authority`] | [`Authority`], [`AuthorityBundle`]: the certificate authority |
//! | [`token`] | node tokens: JWT ES256 as Kubernetes writes service account tokens |
//! | [`mod@client_hello`] | the name in a handshake that is passed on |
//! | [`key_set`] | [`key_set::KeySet`]: whether an issuer's keys have signed a token |
//! | [`jwt`] | users' tokens: signature, issuer, audience, time, and what they claim |
//! | [`error`] | [`HandshakeError`]: why a peer was refused, or refused us |
//!
//! A workload's certificate, from key to connection:
//!
//! ```text
//! let key = WorkloadKey::generate()?;
//! let chain = ca.create_certificate(key.csr_pem(&identity)?).await?;        // the network's part
//! let certificate = WorkloadCertificate::new(key, &chain, &identity, SystemTime::now())?;
//! let acceptor = Acceptor::new(certificate.clone(), revocations.clone(), &[]);   // cache these
//! let connector = Connector::new(certificate, revocations);                      // two
//! let (stream, peer) = acceptor.accept(io).await?;
//! let (stream, peer) = connector.connect(io, &expected).await?;
//! ```
//!
//! Every connection of the mesh has: TLS 1.3, AES-GCM, ALPN `h2`, a full handshake (no tickets, no
//! resumption), both certificates chained to a root that the verifying end trusts, exactly one
//! SPIFFE URI in each. A server accepts its own trust domain; a client accepts the identities that
//! it expects. Revocation is checked at the handshake, and later by [`RevocationList::revokes`] for
//! connections that stay open.

pub mod authority;
pub mod certificate;
pub mod client_hello;
pub mod container_probe;
pub mod edge;
pub mod error;
pub mod handshake;
pub mod jwt;
pub mod key;
pub mod key_set;
mod known;
pub mod origination;
mod pem_block;
pub mod probe;
pub mod provider;
pub mod request;
pub mod revocation;
mod roots;
pub mod service;
pub mod stream;
pub mod token;
mod verify;
pub mod web;
pub mod workload;

pub use authority::{Authority, AuthorityBundle};
pub use error::HandshakeError;
pub use handshake::{Acceptor, Connector, HANDSHAKE_TIMEOUT, Peer};
pub use key::WorkloadKey;
pub use revocation::RevocationList;
pub use stream::{ClientStream, ServerStream};
pub use workload::WorkloadCertificate;
