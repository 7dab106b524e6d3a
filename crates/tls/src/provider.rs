//! The choice of TLS versions, cipher suites and key exchange groups: one for the mesh, one for the
//! edge.
//!
//! Every handshake of the mesh uses `provider` with `VERSIONS`: TLS 1.3 and AES-GCM, and nothing
//! else. The mesh must never offer TLS 1.2, and its sessions are never resumed.
//!
//! The clients of a gateway are not ours. For them `edge_provider` and `EDGE_VERSIONS` add TLS 1.2,
//! ChaCha20-Poly1305 and P-384. There too every suite has AEAD and forward secrecy: no CBC, no RSA
//! key exchange.
//!
//! AES-128-GCM comes first and the server follows its own order: neither suite can be broken in
//! practice, and the shorter key costs ten rounds a block instead of fourteen. AES-256-GCM is for
//! peers that offer nothing else. Groups: the hybrid first, plain X25519 for peers without it
//! (rustls sends the X25519 share of the hybrid as a share of its own, so the fallback costs no
//! round trip), P-256 for peers held to FIPS 140-2.

use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{CipherSuite, NamedGroup, SupportedProtocolVersion};

/// The only protocol that is spoken inside TLS between our peers.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// The mesh: TLS 1.3 and nothing else.
pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
/// The edge: TLS 1.3, and TLS 1.2 for clients without it.
pub(crate) const EDGE_VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// The key exchange group of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Hybrid post-quantum: X25519 and ML-KEM-768.
    X25519MlKem768,
    /// X25519 alone, for peers without the hybrid.
    X25519,
    /// NIST P-256, for peers held to FIPS 140-2.
    P256,
}

impl Group {
    /// The IANA name, as metrics and `get connections` print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X25519MlKem768 => "X25519MLKEM768",
            Self::X25519 => "x25519",
            Self::P256 => "secp256r1",
        }
    }

    /// The group with this code point, if the provider offers it.
    pub(crate) fn from_named(named: NamedGroup) -> Option<Self> {
        match named {
            NamedGroup::X25519MLKEM768 => Some(Self::X25519MlKem768),
            NamedGroup::X25519 => Some(Self::X25519),
            NamedGroup::secp256r1 => Some(Self::P256),
            _ => None,
        }
    }
}

/// The cipher suite of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// TLS_AES_128_GCM_SHA256.
    Aes128Gcm,
    /// TLS_AES_256_GCM_SHA384.
    Aes256Gcm,
}

impl Cipher {
    /// The IANA name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Self::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
        }
    }

    /// The suite with this code point, if the provider offers it.
    pub(crate) fn from_suite(suite: CipherSuite) -> Option<Self> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Self::Aes256Gcm),
            _ => None,
        }
    }
}

/// The provider of every handshake of the mesh; built once.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let built = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_AES_256_GCM_SHA384,
            ],
            kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1],
            ..aws_lc_rs::default_provider()
        })
    });
    Arc::clone(built)
}

/// The provider of handshakes with clients of a gateway; built once.
pub(crate) fn edge_provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let built = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_AES_256_GCM_SHA384,
                cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ],
            kx_groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            ..aws_lc_rs::default_provider()
        })
    });
    Arc::clone(built)
}

/// The IANA name of a suite that one of the providers offers.
pub(crate) fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Cipher::Aes128Gcm.as_str(),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Cipher::Aes256Gcm.as_str(),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        // Of the suites of TLS 1.2 rustls knows the names as they are registered.
        other => other.as_str().unwrap_or("unknown"),
    }
}

/// The signature algorithms accepted in certificates and handshakes.
pub(crate) fn signature_algorithms() -> &'static WebPkiSupportedAlgorithms {
    static ALGORITHMS: OnceLock<WebPkiSupportedAlgorithms> = OnceLock::new();
    ALGORITHMS.get_or_init(|| provider().signature_verification_algorithms)
}
