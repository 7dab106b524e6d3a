//! The one choice of TLS version, cipher suites and key exchange groups.
//!
//! Every handshake of the mesh uses this provider, so one place decides what is negotiated. It must
//! never offer TLS 1.2, a suite without AEAD, or session resumption.
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
/// TLS 1.3 and nothing else.
pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

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

/// The provider of every handshake; built once.
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

/// The signature algorithms accepted in certificates and handshakes.
pub(crate) fn signature_algorithms() -> &'static WebPkiSupportedAlgorithms {
    static ALGORITHMS: OnceLock<WebPkiSupportedAlgorithms> = OnceLock::new();
    ALGORITHMS.get_or_init(|| provider().signature_verification_algorithms)
}
