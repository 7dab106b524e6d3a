//! The one task that obtains certificates and puts revocations into force.
//!
//! Each identity of an enrolled pod has one certificate, requested once at a time, refreshed at
//! half its life, and retried with growing waits when the authority fails. A revoked certificate is
//! replaced at once: a revocation applies to a certificate, not to an identity. A new certificate
//! goes to the cache, where the data path finds it, and to the successor ([`crate::learned`]). The
//! clocks of node and authority can differ, and each may be set at any time. A certificate that has
//! expired by the clock of this node never replaces a valid one, and a wait ends when that clock is
//! set back. Nothing is requested before its time, and nothing is kept after its last pod has gone.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use ambit_tls::certificate::CertificateError as ChainError;
use ambit_tls::key::KeyError;
use ambit_tls::{WorkloadCertificate, WorkloadKey};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tracing::{debug, error, info, warn};

use super::authority::{Authority, SignError};
use super::revocations::{POLL_INTERVAL, RevocationFile, Seen};
use super::skew::Skew;
use super::{Ask, Asks, Certificates, Credentials};
use crate::learned::{Learned, Successor};
use crate::metrics::Metrics;

/// Requests to the authority at the same time.
const MAX_REQUESTS: usize = 8;
/// Wait after the first failure; doubles.
const RETRY_START: Duration = Duration::from_millis(250);
/// Longest wait between two attempts.
const RETRY_LIMIT: Duration = Duration::from_secs(150);
/// While a certificate is in date, at most this part of its remaining life is waited.
const RETRY_SHARE: u32 = 8;
/// Where clocks differ, so many certificates are asked for while one of them lives. With those of
/// the first, growing waits they are fewer than the authority signs for one holder (64): it would
/// refuse all others for as long as they live, also when its clock is right again.
const SKEWED_PER_LIFE: u32 = 24;
/// Shortest wait between two requests for one identity, however short its certificates live.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// The clock is read this often, because it may be set.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// Waits differ by up to this part, so that proxies that failed together do not return together.
const RETRY_JITTER: f64 = 0.2;
/// A clock that is set back by more ends every wait: what was planned by it is worth nothing.
const SET_BACK_MAX: Duration = Duration::from_secs(60);

/// Why an identity has no certificate to use, though it has one.
const REVOKED: &str = "its certificate is revoked, and no other has come yet";

/// Why no certificate was obtained.
#[derive(Debug, thiserror::Error)]
enum ObtainError {
    #[error("make a key")]
    Key(#[source] KeyError),
    #[error("obtain a certificate")]
    Sign(#[source] SignError),
    #[error("the certificate authority's answer cannot be used")]
    Answer(#[source] ChainError),
}

type Obtained = (Identity, Result<Arc<WorkloadCertificate>, ObtainError>);

/// One identity that pods of this node have.
struct Entry {
    pods: usize,
    failures: u32,
    /// The last answer did not fit our clock.
    is_skewed: bool,
    /// When to ask next; nothing while a request is under way.
    due: Option<Due>,
}

/// A moment on the wall clock, which may be set after the moment was planned.
#[derive(Clone, Copy)]
struct Due {
    at: SystemTime,
    planned_at: SystemTime,
}

impl Due {
    fn now(now: SystemTime) -> Self {
        Self { at: now, planned_at: now }
    }

    /// How long it is until then. Nothing if the clock was set back: a proxy that started a day
    /// ahead would otherwise wait for that day to pass again.
    fn left(&self, now: SystemTime) -> Duration {
        match self.planned_at.duration_since(now) {
            Ok(set_back) if set_back > SET_BACK_MAX => Duration::ZERO,
            _ => self.at.duration_since(now).unwrap_or_default(),
        }
    }

    /// The same, due as soon as it has waited for `least`.
    fn shortened(self, least: Duration, now: SystemTime) -> Self {
        match now.duration_since(self.planned_at).unwrap_or_default() {
            waited if waited < least => Self { at: self.at.min(self.planned_at + least), ..self },
            _ => Self::now(now),
        }
    }
}

/// Obtains certificates and puts revocations into force.
pub struct Keeper<A> {
    certificates: Certificates,
    asks: Asks,
    authority: A,
    successor: Successor,
    metrics: Metrics,
    entries: HashMap<Identity, Entry>,
    /// From the supervisor, for identities that no pod was named for yet.
    handed: HashMap<Identity, Arc<WorkloadCertificate>>,
    requests: FuturesUnordered<BoxFuture<'static, Obtained>>,
    file: RevocationFile,
    /// The certificates that may have signed the revocations in force.
    signers: BTreeSet<String>,
}

impl<A: Authority> Keeper<A> {
    /// A keeper of an empty cache.
    pub fn new(
        certificates: Certificates,
        asks: Asks,
        authority: A,
        successor: Successor,
        metrics: Metrics,
        crl_path: PathBuf,
    ) -> Self {
        Self {
            certificates,
            asks,
            authority,
            successor,
            metrics,
            entries: HashMap::new(),
            handed: HashMap::new(),
            requests: FuturesUnordered::new(),
            file: RevocationFile::new(crl_path),
            signers: BTreeSet::new(),
        }
    }

    /// Takes over a certificate from the worker before.
    pub fn hand(&mut self, certificate: Arc<WorkloadCertificate>) {
        self.handed.insert(certificate.identity().clone(), certificate);
    }

    /// Takes over the revocation list from the worker before.
    pub fn hand_revocations(&mut self, pem: String) {
        self.file.restore(pem);
    }

    /// Works for as long as the worker lives.
    pub async fn run(mut self) {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wait = self.start_due();
            tokio::select! {
                // A list is in force before the certificates whose peers it concerns.
                biased;
                _ = poll.tick() => self.look_at_revocations().await,
                Some((identity, obtained)) = self.requests.next() => {
                    self.take(identity, obtained).await;
                }
                ask = self.asks.0.recv() => match ask {
                    Some(Ask::Hold(identity)) => self.hold(identity).await,
                    Some(Ask::Release(identity)) => self.release(&identity).await,
                    Some(Ask::Retry) => self.retry(),
                    None => return,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn now(&self) -> SystemTime {
        self.certificates.inner.clock.now()
    }

    /// Starts what is due as far as there is room; returns how long nothing else is.
    fn start_due(&mut self) -> Duration {
        let now = self.now();
        let mut wait = MAX_SLEEP;
        for (identity, entry) in &mut self.entries {
            let Some(due) = entry.due else { continue };
            match due.left(now) {
                left if !left.is_zero() => wait = wait.min(left),
                // The end of a request is what makes room, and wakes this up again.
                _ if self.requests.len() >= MAX_REQUESTS => {}
                _ => {
                    entry.due = None;
                    let clock = self.certificates.inner.clock.clone();
                    self.requests.push(obtain(&self.authority, identity.clone(), clock));
                }
            }
        }
        wait
    }

    /// Ends the waits after failures. Where the authority answered and clocks differ, each wait
    /// lasts a while all the same: each answer is on the authority's account.
    fn retry(&mut self) {
        let now = self.now();
        for entry in self.entries.values_mut().filter(|it| it.failures > 0) {
            let least = if entry.is_skewed { RETRY_LIMIT } else { Duration::ZERO };
            entry.due = entry.due.map(|due| due.shortened(least, now));
        }
    }

    async fn hold(&mut self, identity: Identity) {
        if let Some(entry) = self.entries.get_mut(&identity) {
            entry.pods += 1;
            return;
        }
        let now = self.now();
        let entry = Entry { pods: 1, failures: 0, is_skewed: false, due: Some(Due::now(now)) };
        self.entries.insert(identity.clone(), entry);
        self.note(&identity, None);
        let handed = self.handed.remove(&identity);
        let Some(certificate) = handed.filter(|handed| !handed.is_expired(now)) else { return };
        if certificate.not_before() > now {
            // Of a clock that was ahead: better than none, and no reason to wait for that day.
            self.put_in_force(&identity, certificate).await;
        } else {
            self.install(&identity, certificate).await;
        }
    }

    async fn release(&mut self, identity: &Identity) {
        let Some(entry) = self.entries.get_mut(identity) else { return };
        entry.pods -= 1;
        if entry.pods > 0 {
            return;
        }
        self.entries.remove(identity);
        let inner = &self.certificates.inner;
        inner.enrolled.rcu(|enrolled| enrolled.without(identity));
        inner.cache.rcu(|cache| cache.without(identity));
        inner.changed.send_modify(|version| *version += 1);
        self.successor.tell(Learned::Forgotten(identity.clone())).await;
    }

    async fn take(
        &mut self,
        identity: Identity,
        obtained: Result<Arc<WorkloadCertificate>, ObtainError>,
    ) {
        if !self.entries.contains_key(&identity) {
            return;
        }
        match obtained {
            Ok(certificate) => match Skew::of(&certificate, self.now()) {
                None => {
                    self.metrics.certificate_obtained();
                    let serial = certificate.serial();
                    info!(%identity, %serial, "obtained a certificate");
                    self.successor.tell(Learned::Certificate(certificate.clone())).await;
                    self.install(&identity, certificate).await;
                }
                Some(skew) => self.take_skewed(&identity, certificate, &skew).await,
            },
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::new(error));
                let limit = self.retry_limit(&identity);
                self.failed(&identity, reason.into(), limit);
            }
        }
    }

    /// A certificate that fits the clock of the authority and not ours. One that is in date here
    /// stays. Without one, it is used until its end: peers judge it by their own clocks, and one of
    /// the two that differ may be right. Each answer counts as a failure, because the authority
    /// keeps account of what it signs.
    async fn take_skewed(
        &mut self,
        identity: &Identity,
        certificate: Arc<WorkloadCertificate>,
        skew: &Skew,
    ) {
        let limit = (skew.life() / SKEWED_PER_LIFE).max(MIN_WAIT);
        if !certificate.is_expired(self.now()) && self.certificates.cached(identity).is_none() {
            self.successor.tell(Learned::Certificate(certificate.clone())).await;
            self.put_in_force(identity, certificate).await;
        }
        self.failed(identity, skew.to_string().into(), limit);
        if let Some(entry) = self.entries.get_mut(identity) {
            entry.is_skewed = true;
        }
    }

    /// Notes why there is no certificate, or no newer one, and plans the next attempt.
    fn failed(&mut self, identity: &Identity, reason: Text, limit: Duration) {
        self.metrics.certificate_failed();
        let wait = self.postpone(identity, limit);
        warn!(%identity, %reason, ?wait, "no certificate; trying again");
        self.note(identity, Some(reason));
    }

    /// Puts a certificate into the cache and plans its refresh.
    async fn install(&mut self, identity: &Identity, certificate: Arc<WorkloadCertificate>) {
        let now = self.now();
        let at = certificate.refresh_at(rand::random()).max(now + MIN_WAIT);
        if self.put_in_force(identity, certificate).await {
            // Handed over by a worker before, or signed by an authority that is revoked itself.
            let limit = self.retry_limit(identity);
            let wait = self.postpone(identity, limit);
            warn!(%identity, ?wait, "the certificate is revoked; asking for another");
            self.note(identity, Some(REVOKED.into()));
        } else if let Some(entry) = self.entries.get_mut(identity) {
            entry.failures = 0;
            entry.is_skewed = false;
            entry.due = Some(Due { at, planned_at: now });
            self.note(identity, None);
        }
    }

    /// Puts a certificate into the cache; answers whether it is revoked.
    async fn put_in_force(
        &mut self,
        identity: &Identity,
        certificate: Arc<WorkloadCertificate>,
    ) -> bool {
        let inner = self.certificates.inner.clone();
        let before = inner.cache.load().get(identity).map(|it| it.certificate.roots_fingerprint());
        let fingerprint = certificate.roots_fingerprint();
        // First what is revoked, in case the certificate came with the roots that sign it.
        self.revoke_with(&certificate).await;
        let credentials = Credentials::new(certificate, &inner.revocations.load_full());
        inner.cache.rcu(|cache| cache.update(identity.clone(), credentials.clone()));
        inner.changed.send_modify(|version| *version += 1);
        if before.is_some_and(|before| before != fingerprint) {
            info!(%identity, "the roots of trust have changed");
            inner.trust_changed.send_modify(|version| *version += 1);
        }
        credentials.is_revoked
    }

    /// The longest wait after a failure: shorter, the less is left of the certificate in use.
    fn retry_limit(&self, identity: &Identity) -> Duration {
        let in_use = self.certificates.cached(identity);
        let left = in_use.and_then(|it| it.certificate.not_after().duration_since(self.now()).ok());
        left.map_or(RETRY_LIMIT, |left| (left / RETRY_SHARE).clamp(MIN_WAIT, RETRY_LIMIT))
    }

    /// Plans the next attempt after a failure, `limit` from now at most; returns the wait.
    fn postpone(&mut self, identity: &Identity, limit: Duration) -> Duration {
        let now = self.now();
        let Some(entry) = self.entries.get_mut(identity) else { return RETRY_START };
        let factor = 2_u32.saturating_pow(entry.failures.min(20));
        entry.failures = entry.failures.saturating_add(1);
        entry.is_skewed = false;
        let wait = RETRY_START.saturating_mul(factor).min(limit);
        let wait = wait.mul_f64(1.0 - RETRY_JITTER * rand::random::<f64>());
        entry.due = Some(Due { at: now + wait, planned_at: now });
        wait
    }

    /// Notes that an identity is enrolled, and why it has no (newer) certificate.
    fn note(&self, identity: &Identity, failure: Option<Text>) {
        let inner = &self.certificates.inner;
        inner.enrolled.rcu(|enrolled| enrolled.update(identity.clone(), failure.clone()));
        inner.changed.send_modify(|version| *version += 1);
    }

    async fn look_at_revocations(&mut self) {
        match self.file.look() {
            Ok(Seen::Same) => {}
            Ok(Seen::Changed) => self.revoke().await,
            Ok(Seen::Vanished) => {
                warn!("the revocation list's file is gone; the list stays in force");
            }
            Err(error) => {
                self.metrics.revocations_failed();
                error!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "the revocation list in force stays"
                );
            }
        }
    }

    /// Reads the list again if this certificate changes who may sign it.
    async fn revoke_with(&mut self, certificate: &Arc<WorkloadCertificate>) {
        let cache = self.certificates.inner.cache.load();
        let others = cache.iter().filter(|(identity, _)| *identity != certificate.identity());
        let all = others.map(|(_, it)| &it.certificate).chain([certificate]);
        let signers = all.flat_map(|it| blocks(&it.revocation_signers_pem())).collect();
        if self.signers != signers {
            self.signers = signers;
            self.revoke().await;
        }
    }

    /// Puts the list of the file into force, for new connections and for live ones.
    async fn revoke(&mut self) {
        if self.signers.is_empty() {
            // Without a certificate there is nobody to be verified, nor anybody to verify a list.
            return;
        }
        let signers_pem: String = self.signers.iter().map(String::as_str).collect();
        let revocations = match self.file.parse(&signers_pem) {
            Ok((revocations, older)) => {
                if let Some(older) = older {
                    self.metrics.revocations_failed();
                    error!(error = %older, "the revocation list in force stays");
                }
                Arc::new(revocations)
            }
            Err(error) => {
                self.metrics.revocations_failed();
                error!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    "the revocation list cannot be used; the one before it stays in force"
                );
                return;
            }
        };
        self.file.accept();
        let inner = &self.certificates.inner;
        let before = inner.revocations.load();
        if revocations.is_empty() && before.is_empty() && revocations.next_update().is_none() {
            return;
        }
        info!(revoked = revocations.len(), "revocation list in force");
        inner.revocations.store(revocations.clone());
        let cached = inner.cache.load_full();
        inner.cache.rcu(|cache| {
            let renew = |(identity, it): (&Identity, &Arc<Credentials>)| {
                (identity.clone(), Credentials::new(it.certificate.clone(), &revocations))
            };
            cache.iter().map(renew).collect::<imbl::HashMap<_, _>>()
        });
        inner.trust_changed.send_modify(|version| *version += 1);
        self.replace_revoked(&cached);
        self.successor.tell(Learned::Revocations(self.file.pem().to_owned())).await;
        debug!("live connections are judged by the revocation list");
    }

    /// Asks at once for new certificates in the place of those of our own that are revoked. What
    /// is under way is judged when it comes; what fails is tried again with growing waits.
    fn replace_revoked(&mut self, before: &imbl::HashMap<Identity, Arc<Credentials>>) {
        let now = self.now();
        let cache = self.certificates.inner.cache.load_full();
        let was_revoked =
            |identity: &Identity| before.get(identity).is_some_and(|it| it.is_revoked);
        let is_news = |(identity, it): &(&Identity, &Arc<Credentials>)| {
            it.is_revoked && !was_revoked(identity)
        };
        for (identity, _) in cache.iter().filter(is_news) {
            warn!(%identity, "the certificate is revoked; asking for another");
            self.note(identity, Some(REVOKED.into()));
            if let Some(entry) = self.entries.get_mut(identity) {
                entry.due = entry.due.map(|_| Due::now(now));
            }
        }
    }
}

/// Makes a key, has it signed and checks the answer.
fn obtain<A: Authority>(
    authority: &A,
    identity: Identity,
    clock: super::Clock,
) -> BoxFuture<'static, Obtained> {
    let request = WorkloadKey::generate().and_then(|key| {
        let csr_pem = key.csr_pem(&identity)?;
        Ok((key, csr_pem))
    });
    let (key, csr_pem) = match request {
        Ok(request) => request,
        Err(error) => return Box::pin(async { (identity, Err(ObtainError::Key(error))) }),
    };
    let signing = authority.sign(&identity, csr_pem);
    Box::pin(async move {
        let obtained = match signing.await {
            Ok(chain) => WorkloadCertificate::new(key, &chain, &identity, clock.now())
                .map_err(ObtainError::Answer),
            Err(error) => Err(ObtainError::Sign(error)),
        };
        (identity, obtained)
    })
}

/// The single certificates of a PEM text.
fn blocks(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split_inclusive(END).map(str::trim).filter(|block| block.ends_with(END));
    blocks.map(|block| format!("{block}\n")).collect()
}
