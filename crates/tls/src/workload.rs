//! Key, chain and roots of one identity.
use std::sync::Arc;
use std::time::SystemTime;
use ambit_model::identity::Identity;
use zeroize::Zeroizing;
use crate::certificate::{CertificateError, CertificateSummary, Serial};
use crate::key::WorkloadKey;

/// Key, chain and roots of one identity.
pub struct WorkloadCertificate {}

impl WorkloadCertificate {
    /// From a CA's answer: leaf first, last element the bundle of roots.
    pub fn new(
        _key: WorkloadKey,
        _chain_pem: &[String],
        _expected: &Identity,
        _obtained_at: SystemTime,
    ) -> Result<Arc<Self>, CertificateError> {
        unimplemented!()
    }
    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        unimplemented!()
    }
    /// Serial of the leaf.
    pub fn serial(&self) -> &Serial {
        unimplemented!()
    }
    /// Start of validity of the leaf.
    pub fn not_before(&self) -> SystemTime {
        unimplemented!()
    }
    /// End of validity of the leaf.
    pub fn not_after(&self) -> SystemTime {
        unimplemented!()
    }
    /// Leaf first, then intermediates.
    pub fn chain(&self) -> &[CertificateSummary] {
        unimplemented!()
    }
    /// The trusted roots.
    pub fn roots(&self) -> &[CertificateSummary] {
        unimplemented!()
    }
    /// The roots as one PEM text.
    pub fn roots_pem(&self) -> String {
        unimplemented!()
    }
    /// SHA-256 over the roots.
    pub fn roots_fingerprint(&self) -> [u8; 32] {
        unimplemented!()
    }
    /// Half life between `obtained_at` and `not_after`; `jitter` in [0, 1) moves it earlier, by up to a tenth of that time.
    pub fn refresh_at(&self, _jitter: f64) -> SystemTime {
        unimplemented!()
    }
    /// Whether it has expired.
    pub fn is_expired(&self, _now: SystemTime) -> bool {
        unimplemented!()
    }
    /// For the hand-over to another process (sealed memfd); holds the key.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        unimplemented!()
    }
    /// From [`Self::to_bytes`].
    pub fn from_bytes(_bytes: &[u8]) -> Result<Arc<Self>, CertificateError> {
        unimplemented!()
    }
}
