//! Certificates of the enrolled pods: obtained, cached, refreshed, and checked against revocation.
//!
//! Reading is lock-free, so the data path may look a certificate up at every connection. Only one
//! task writes, the [`Keeper`] on the control thread. It never logs a key, never returns an expired
//! certificate, and requests none that no pod of this node needs.

mod authority;
mod keeper;
mod revocations;
mod skew;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_tls::certificate::{Issuer, Serial};
use ambit_tls::{Acceptor, Connector, RevocationList, WorkloadCertificate};
use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

pub use authority::{Authority, CertificateAuthority, SignError};
pub use keeper::Keeper;

/// How long a connection waits for a certificate that is being obtained.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// Requests of the worker that may wait for the keeper.
const ASKS: usize = 1 << 14;

/// Serial number and issuer of a certificate and of each authority between it and the root.
pub type Chain = Arc<[(Serial, Issuer)]>;

/// One certificate, with the objects that are built from it once.
pub struct Credentials {
    /// Key, chain and roots.
    pub certificate: Arc<WorkloadCertificate>,
    /// Accepts HBONE in its name.
    pub acceptor: Acceptor,
    /// Opens HBONE in its name.
    pub connector: Connector,
    /// What a revocation list would name to take it back.
    pub chain: Chain,
    /// The list in force names it, or an authority of its chain: no peer accepts it any more.
    pub is_revoked: bool,
    /// No other credentials of this process have it.
    number: u64,
}

/// Counts credentials. An address would not do for their number: it is used again.
static MADE: AtomicU64 = AtomicU64::new(0);

impl Credentials {
    fn new(certificate: Arc<WorkloadCertificate>, revocations: &Arc<RevocationList>) -> Arc<Self> {
        let acceptor = Acceptor::new(certificate.clone(), revocations.clone(), &[]);
        let connector = Connector::new(certificate.clone(), revocations.clone());
        let chain = certificate.chain().iter();
        let chain: Chain = chain.map(|it| (it.serial.clone(), it.issuer.clone())).collect();
        let is_revoked = revocations.revokes_any(&chain);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { certificate, acceptor, connector, chain, is_revoked, number })
    }
}

/// Why there is no certificate.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CertificateError {
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
        reason: Text,
    },
}

/// The clock; another one in tests.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// The system's.
    pub fn system() -> Self {
        Self(Arc::new(SystemTime::now))
    }

    /// Another, for a test.
    pub fn of(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// What time it is.
    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

/// What the keeper is asked.
#[derive(Debug)]
enum Ask {
    /// A pod of this identity came.
    Hold(Identity),
    /// A pod of this identity went.
    Release(Identity),
    /// The control plane answers.
    Retry,
}

type Map<V> = ArcSwap<imbl::HashMap<Identity, V>>;

struct Inner {
    cache: Map<Arc<Credentials>>,
    /// Identities of enrolled pods, with the reason why there is no certificate, if that is known.
    enrolled: Map<Option<Text>>,
    revocations: ArcSwap<RevocationList>,
    /// Bumped when a certificate came, or failed to.
    changed: watch::Sender<u64>,
    /// Bumped when the roots or the revocations change.
    trust_changed: watch::Sender<u64>,
    clock: Clock,
}

/// Certificates of the enrolled pods. Clones share one cache.
#[derive(Clone)]
pub struct Certificates {
    inner: Arc<Inner>,
    asks: mpsc::Sender<Ask>,
}

/// An identity of this node and what there is for it.
pub struct Holding {
    /// Whose.
    pub identity: Identity,
    /// Its certificate, if there is one.
    pub credentials: Option<Arc<Credentials>>,
    /// Why there is none, or no newer one.
    pub failure: Option<Text>,
}

/// The receiving end of what [`Certificates`] asks; for [`Keeper::new`].
pub struct Asks(mpsc::Receiver<Ask>);

impl Certificates {
    /// An empty cache.
    pub fn new(clock: Clock) -> (Self, Asks) {
        let (asks, receiver) = mpsc::channel(ASKS);
        let inner = Inner {
            cache: Map::default(),
            enrolled: Map::default(),
            revocations: ArcSwap::from_pointee(RevocationList::none()),
            changed: watch::Sender::new(0),
            trust_changed: watch::Sender::new(0),
            clock,
        };
        (Self { inner: Arc::new(inner), asks }, Asks(receiver))
    }

    /// The certificate of an identity that is enrolled; waits a moment when it is on its way.
    pub async fn of(&self, identity: &Identity) -> Result<Arc<Credentials>, CertificateError> {
        let mut changed = self.inner.changed.subscribe();
        let found = async {
            loop {
                changed.mark_unchanged();
                if let Some(credentials) = self.cached(identity) {
                    return Ok(credentials);
                }
                if changed.changed().await.is_err() {
                    return Err(CertificateError::Timeout(identity.clone()));
                }
            }
        };
        match tokio::time::timeout(WAIT_LIMIT, found).await {
            Ok(found) => found,
            Err(_) => Err(self.failure(identity)),
        }
    }

    fn failure(&self, identity: &Identity) -> CertificateError {
        let identity = identity.clone();
        match self.inner.enrolled.load().get(&identity) {
            Some(Some(reason)) => CertificateError::Refused { identity, reason: reason.clone() },
            Some(None) => CertificateError::Timeout(identity),
            None => CertificateError::NotEnrolled(identity),
        }
    }

    /// A number for the proof of an HBONE connection: the certificate, and the trust and
    /// revocations at the time. Connections with another number get no new tunnels.
    pub(crate) fn generation(&self, credentials: &Credentials) -> u128 {
        let trust = *self.inner.trust_changed.borrow();
        u128::from(credentials.number) << u64::BITS | u128::from(trust)
    }

    /// What time it is on the wall, by which certificates are valid.
    pub fn now(&self) -> SystemTime {
        self.inner.clock.now()
    }

    /// The certificate of an identity if there is a valid one, without waiting.
    pub fn cached(&self, identity: &Identity) -> Option<Arc<Credentials>> {
        let cache = self.inner.cache.load();
        let credentials = cache.get(identity)?;
        let in_date = !credentials.certificate.is_expired(self.inner.clock.now());
        (in_date && !credentials.is_revoked).then(|| credentials.clone())
    }

    /// The chain of an identity's last certificate, for a connection that shows none and is to end
    /// when that is revoked nevertheless. If it is revoked already, another one is waited for.
    /// `None`: there was none yet.
    pub async fn chain_of(&self, identity: &Identity) -> Result<Option<Chain>, CertificateError> {
        let last = self.inner.cache.load().get(identity).cloned();
        match last {
            Some(last) if last.is_revoked => Ok(Some(self.of(identity).await?.chain.clone())),
            last => Ok(last.map(|it| it.chain.clone())),
        }
    }

    /// The revocations in force. Live connections are judged again whenever `trust_changed`
    /// fires.
    pub fn revocations(&self) -> Arc<RevocationList> {
        self.inner.revocations.load_full()
    }

    /// Fires when the roots or the revocations change.
    pub(crate) fn trust_changed(&self) -> watch::Receiver<u64> {
        self.inner.trust_changed.subscribe()
    }

    /// A pod of this identity came: its certificate is obtained and kept fresh.
    pub async fn hold(&self, identity: Identity) {
        self.ask(Ask::Hold(identity)).await;
    }

    /// A pod of this identity went.
    pub async fn release(&self, identity: Identity) {
        self.ask(Ask::Release(identity)).await;
    }

    /// The control plane answers again: what failed waits no longer.
    pub(crate) fn retry(&self) {
        // With so many requests before it, or no keeper, it is not needed.
        let _ = self.asks.try_send(Ask::Retry);
    }

    async fn ask(&self, ask: Ask) {
        self.asks.send(ask).await.expect("the keeper lives as long as the worker");
    }

    /// Every identity of this node, in order.
    pub fn list(&self) -> Vec<Holding> {
        let (cache, enrolled) = (self.inner.cache.load(), self.inner.enrolled.load());
        let holding = |(identity, failure): (&Identity, &Option<Text>)| Holding {
            identity: identity.clone(),
            credentials: cache.get(identity).cloned(),
            failure: failure.clone(),
        };
        let mut all: Vec<_> = enrolled.iter().map(holding).collect();
        all.sort_by(|a, b| a.identity.cmp(&b.identity));
        all
    }
}

#[cfg(test)]
mod tests;
