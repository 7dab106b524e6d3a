//! Certificates of the enrolled pods: obtained, cached, refreshed, and checked against revocation.
//!
//! Reading is lock-free, so that the data path may ask at every connection. It never logs a key
//! and never hands out a certificate that has expired.

use std::sync::Arc;

use ambit_model::identity::Identity;
use ambit_tls::{Acceptor, Connector, RevocationList, WorkloadCertificate};
use arc_swap::ArcSwap;
use tokio::sync::watch;

/// One certificate with what is made of it once.
pub(crate) struct Credentials {
    /// Key, chain and roots.
    pub(crate) certificate: Arc<WorkloadCertificate>,
    /// Accepts HBONE in its name.
    pub(crate) acceptor: Acceptor,
    /// Opens HBONE in its name.
    pub(crate) connector: Connector,
}

/// Why there is no certificate.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// Nobody enrolled a pod of this identity.
    #[error("identity {0} belongs to no pod of this node")]
    NotEnrolled(Identity),
    /// The certificate authority did not answer in time.
    #[error("no certificate for {0} yet: the certificate authority has not answered")]
    Timeout(Identity),
    /// The certificate authority refused, or cannot be reached.
    #[error("no certificate for {identity}: {reason}")]
    Refused {
        /// Whose certificate.
        identity: Identity,
        /// What the authority said, or why it cannot be reached.
        reason: String,
    },
}

/// Certificates of the enrolled pods. Clones share one cache.
#[derive(Clone)]
pub(crate) struct Certificates {
    cache: Arc<ArcSwap<imbl::HashMap<Identity, Arc<Credentials>>>>,
    revocations: Arc<ArcSwap<RevocationList>>,
    trust_changed: watch::Sender<u64>,
}

impl Certificates {
    /// The certificate of an identity that is enrolled; asks the authority when there is none.
    pub(crate) async fn of(
        &self,
        identity: &Identity,
    ) -> Result<Arc<Credentials>, CertificateError> {
        self.cached(identity).ok_or_else(|| CertificateError::NotEnrolled(identity.clone()))
    }

    /// The certificate of an identity if there is a valid one, without waiting.
    pub(crate) fn cached(&self, identity: &Identity) -> Option<Arc<Credentials>> {
        self.cache.load().get(identity).cloned()
    }

    /// What is revoked. Live connections are judged again whenever [`Self::trust_changed`] fires.
    pub(crate) fn revocations(&self) -> Arc<RevocationList> {
        self.revocations.load_full()
    }

    /// Fires when the roots or the revocations change.
    pub(crate) fn trust_changed(&self) -> watch::Receiver<u64> {
        self.trust_changed.subscribe()
    }
}
