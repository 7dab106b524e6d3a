//! A certificate authority for one run of a benchmark.
//!
//! It is created in memory when the sidecars start and ends with them. It is separate from the
//! mesh's own authority, and only these sidecars trust it. Keys are ECDSA P-256: Istio's default is
//! RSA with 2048 bits, whose handshakes cost more, so this errs in the sidecars' favour.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::authority::{self, AuthorityBundle};
use ambit_tls::certificate::CertificateError;
use ambit_tls::key::{KeyError, WorkloadKey};
use ambit_words::names::DEFAULT_TRUST_DOMAIN;
use zeroize::Zeroizing;

/// As long as Istio's and Linkerd's.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// No key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// What was signed cannot be read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The machine's own cannot be read.
    #[error("cannot read the machine's authority")]
    Read(#[from] io::Error),
    /// No signature.
    #[error(transparent)]
    Sign(#[from] authority::AuthorityError),
}

/// The authority.
pub(super) struct Authority(AuthorityBundle);

/// What a workload proves itself with.
pub(super) struct Credentials {
    /// Its certificate.
    pub(super) certificate_pem: String,
    /// Its key.
    pub(super) key_pem: String,
}

/// What a workload with a DNS name for its identity proves itself with.
pub(super) struct NamedCredentials {
    /// Its certificate.
    pub(super) certificate_der: Vec<u8>,
    /// Its key, PKCS#8.
    pub(super) key_der: Vec<u8>,
}

impl Authority {
    /// A new one.
    pub(super) fn generate() -> Result<Self, AuthorityError> {
        let root = ambit_tls::Authority::generate(DEFAULT_TRUST_DOMAIN, SystemTime::now())?;
        Ok(Self(AuthorityBundle::new(root)))
    }

    /// The authority of a machine that carries the mesh, for proxies that belong to the mesh.
    /// `directory` is where its control plane keeps it.
    pub(super) fn of_machine(directory: &Path) -> Result<Self, AuthorityError> {
        let read = |name: &str| std::fs::read(directory.join(name)).map(Zeroizing::new);
        let (root, key) = (read("root-cert.pem")?, read("root-key.pem")?);
        let [root, key] = [&root, &key].map(|pem| String::from_utf8_lossy(pem));
        let root = ambit_tls::Authority::from_root_pem(&root, &key, SystemTime::now())?;
        Ok(Self(AuthorityBundle::new(root)))
    }

    /// Its root certificate.
    pub(super) fn root_pem(&self) -> String {
        self.0.roots_pem()
    }

    /// A certificate with a SPIFFE identity, and its key.
    pub(super) fn workload(&self, identity: &Identity) -> Result<Credentials, AuthorityError> {
        let key = WorkloadKey::generate()?;
        let request = key.csr_pem(identity)?;
        let chain = self.0.sign(&request, identity, LIFETIME, SystemTime::now())?;
        let certificate_pem = chain.into_iter().next().expect("an answer begins with the leaf");
        Ok(Credentials { certificate_pem, key_pem: key.to_pkcs8_pem().to_string() })
    }

    /// A certificate with a DNS name, and its key.
    pub(super) fn named(&self, name: &str) -> Result<NamedCredentials, AuthorityError> {
        let issued = self.0.issue_server(&[name], LIFETIME, SystemTime::now())?;
        let (certificate_der, key_der) = (issued.leaf_der()?, issued.key_der()?.to_vec());
        Ok(NamedCredentials { certificate_der, key_der })
    }
}
