//! The private key of a workload.
use ambit_model::identity::Identity;
use zeroize::Zeroizing;

/// An ECDSA P-256 key.
pub struct WorkloadKey {}

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No randomness.
    #[error("cannot generate a key: the system gave no randomness")]
    Generate,
}

impl WorkloadKey {
    /// A fresh key.
    pub fn generate() -> Result<Self, KeyError> {
        unimplemented!()
    }
    /// From PKCS#8 DER.
    pub fn from_pkcs8_der(_der: &[u8]) -> Result<Self, KeyError> {
        unimplemented!()
    }
    /// To PKCS#8 DER.
    pub fn to_pkcs8_der(&self) -> Zeroizing<Vec<u8>> {
        unimplemented!()
    }
    /// A signing request for `identity`: empty subject, critical SAN URI.
    pub fn csr_pem(&self, _identity: &Identity) -> Result<String, KeyError> {
        unimplemented!()
    }
}
