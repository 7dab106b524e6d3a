//! The one choice of TLS version, suites and key exchange groups.

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
            Self::X25519 => "X25519",
            Self::P256 => "secp256r1",
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
}
