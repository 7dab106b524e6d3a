//! What the mesh reads from a certificate.
use std::sync::Arc;
use std::time::SystemTime;

/// A certificate's serial number. Displays as lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub(crate) Arc<[u8]>);

impl Serial {
    /// Decimal, the form of `config_dump`.
    pub fn to_decimal(&self) -> String {
        unimplemented!()
    }
}
impl std::fmt::Display for Serial {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unimplemented!()
    }
}
impl std::str::FromStr for Serial {
    type Err = CertificateError;
    /// From hexadecimal.
    fn from_str(_: &str) -> Result<Self, CertificateError> {
        unimplemented!()
    }
}

/// A distinguished name of an issuer, compared by its DER. Displays as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Issuer(pub(crate) Arc<[u8]>);
impl std::fmt::Display for Issuer {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        unimplemented!()
    }
}

/// One certificate of a chain, for `get certificates` and `config_dump`.
#[derive(Clone, Debug)]
pub struct CertificateSummary {
    /// PEM.
    pub pem: String,
    /// Serial number.
    pub serial: Serial,
    /// Issuer.
    pub issuer: Issuer,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
}

/// Why a certificate, chain or bundle cannot be used. Variants follow.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// No PEM.
    #[error("no certificate in PEM form was found")]
    Empty,
}
