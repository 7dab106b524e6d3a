//! The certificate authority.
use crate::certificate::Serial;
use crate::service::ServerCertificate;
use ambit_model::identity::Identity;
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// One signing certificate with its key.
pub struct Authority {}

/// Why the authority cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Csr.
    #[error("the signing request is not valid PEM")]
    Request,
}

impl Authority {
    /// A self-signed root for `trust_domain`, valid for ten years.
    pub fn generate(_trust_domain: &str, _now: SystemTime) -> Result<Self, AuthorityError> {
        unimplemented!()
    }
    /// A self-made root, read back from its two files.
    pub fn from_root_pem(
        _root_pem: &str,
        _key_pem: &str,
        _now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        unimplemented!()
    }
    /// A plugged-in intermediate: ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem of Istio's `cacerts`.
    pub fn from_intermediate_pem(
        _ca_cert_pem: &str,
        _ca_key_pem: &str,
        _cert_chain_pem: &str,
        _root_cert_pem: &str,
        _now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        unimplemented!()
    }
    /// Its certificate.
    pub fn certificate_pem(&self) -> String {
        unimplemented!()
    }
    /// The root(s) that it chains to.
    pub fn roots_pem(&self) -> String {
        unimplemented!()
    }
    /// Its key, PKCS#8 PEM: for the caller's 0600 file, nothing else.
    pub fn key_pem(&self) -> Zeroizing<String> {
        unimplemented!()
    }
}

/// The active signer, the roots that the mesh trusts, and earlier signers that still sign revocations.
pub struct AuthorityBundle {}

impl AuthorityBundle {
    /// A bundle with one signer, trusting its roots.
    pub fn new(_active: Authority) -> Self {
        unimplemented!()
    }
    /// Trusts further roots (rotation, step 1: before anything is signed by the new one).
    pub fn trust(&mut self, _roots_pem: &str) -> Result<(), AuthorityError> {
        unimplemented!()
    }
    /// Signs with `next` from now on (step 2); the earlier one is still trusted and signs revocations.
    pub fn activate(&mut self, _next: Authority) {
        unimplemented!()
    }
    /// Trusts only the active signer's roots (step 3).
    pub fn retire_earlier(&mut self) {
        unimplemented!()
    }
    /// All trusted roots.
    pub fn roots_pem(&self) -> String {
        unimplemented!()
    }
    /// Signs a request that must hold exactly `authorised`. The answer is `cert_chain` of CreateCertificate.
    pub fn sign(
        &self,
        _csr_pem: &str,
        _authorised: &Identity,
        _ttl: Duration,
        _now: SystemTime,
    ) -> Result<Vec<String>, AuthorityError> {
        unimplemented!()
    }
    /// A server certificate for DNS names and IP addresses.
    pub fn issue_server(
        &self,
        _names: &[&str],
        _ttl: Duration,
        _now: SystemTime,
    ) -> Result<ServerCertificate, AuthorityError> {
        unimplemented!()
    }
    /// The full list of revoked serials as CRL PEM, one block per signer.
    pub fn revoke(
        &self,
        _serials: &[Serial],
        _now: SystemTime,
        _valid_for: Duration,
    ) -> Result<String, AuthorityError> {
        unimplemented!()
    }
}
