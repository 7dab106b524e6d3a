//! The certificate authority's state: keys, ledger, revocations, rotation.
//!
//! Everything it needs after a restart is in one private directory: `root-cert.pem root-key.pem`
//! (its own root), `next-*` and `earlier-*` (while a root is rotated), `rotation.json`,
//! `issued.jsonl revoked.json crl.pem`. With a plugged-in authority the keys stay where the
//! operator put them. A certificate is recorded in the ledger before it is returned. Keys never
//! leave this directory and this process.

mod bodies;
pub(crate) mod cluster;
mod ledger;
pub(crate) mod service;
mod shared;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use ambit_model::identity::Identity;
use ambit_tls::authority::AuthorityError;
use ambit_tls::certificate::{CertificateError, CertificateSummary};
use ambit_tls::service::ServerCertificate;
use ambit_tls::{Authority, AuthorityBundle, RevocationList, revocation};
use ambit_wire::admin::{self, RotationPhase};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::ledger::{Absorbed, CROWDED_TTL, Full, Ledger, RevokeError, crowded_from, unix};
pub(crate) use self::ledger::{Issued, OF_ENTRIES, Revoked, Which};
use self::shared::Shared;
use crate::durable::{self, FileError, PRIVATE, PUBLIC};

/// How long a revocation list is valid. It bounds how long a mesh with revocations lives without
/// its control plane.
const CRL_VALIDITY: Duration = Duration::from_secs(7 * 86_400);
/// How long a server certificate is valid; it is renewed long before.
pub(crate) const SERVER_CERT_TTL: Duration = Duration::from_secs(86_400);

/// How far a list's time lies before it was signed; generous.
const LIST_DATED_BACK: Duration = Duration::from_secs(600);

/// How each certificate of a PEM text ends.
const END: &str = "-----END CERTIFICATE-----\n";

/// What comes of a root that is retired before everybody has renewed.
const FORCED: &str = "every holder trusts the retired root until it renews, at half of its \
                      certificate's life, and then refuses those that have not renewed; open \
                      connections are not cut: revoke what must not go on before a root is retired";

/// Why the authority cannot carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file of the authority.
    #[error("the certificate authority's state")]
    File(#[from] FileError),
    /// A file that must be there is not.
    #[error(
        "{0} is missing; a plugged-in authority needs ca-cert.pem, ca-key.pem, cert-chain.pem and \
         root-cert.pem"
    )]
    Missing(PathBuf),
    /// A file is no text.
    #[error(
        "{0} is not PEM text; restore it from a backup or remove the state directory's keys to \
         start again"
    )]
    NotText(PathBuf),
    /// Keys and certificates cannot be used.
    #[error("the certificate authority cannot be set up from {path}")]
    Authority {
        /// Where they are.
        path: PathBuf,
        /// Why not.
        source: Box<AuthorityError>,
    },
    /// There is no room to write down another certificate.
    #[error(transparent)]
    Full(#[from] Full),
    /// No further certificate can be taken back.
    #[error("nothing was revoked")]
    Revoke(#[source] RevokeError),
    /// A request cannot be signed.
    #[error("cannot sign")]
    Sign(#[source] Box<AuthorityError>),
    /// What was signed cannot be read back.
    #[error("cannot read what was signed")]
    Signed(#[source] Box<CertificateError>),
    /// The rotation cannot continue.
    #[error("{0}")]
    Rotation(&'static str),
    /// Holders have not fetched the new roots yet.
    #[error("{0} certificate holders have not renewed yet; wait for their half-life or force it")]
    NotSpread(usize),
}

impl From<AuthorityError> for CaError {
    fn from(error: AuthorityError) -> Self {
        Self::Sign(Box::new(error))
    }
}

impl From<CertificateError> for CaError {
    fn from(error: CertificateError) -> Self {
        Self::Signed(Box::new(error))
    }
}

impl From<RevokeError> for CaError {
    fn from(error: RevokeError) -> Self {
        match error {
            RevokeError::File(error) => Self::File(error),
            full @ RevokeError::Full => Self::Revoke(full),
        }
    }
}

/// How far a rotation of the root has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// No rotation.
    Steady,
    /// The new root is trusted; nothing is signed by it yet.
    Trusted,
    /// The new root signs; the old one is still trusted.
    Active,
}

/// A rotation, as it is kept on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Rotation {
    phase: Phase,
    /// When the phase began, seconds since 1970.
    since: u64,
}

/// A holder of certificates: an identity on a node.
pub(crate) type Holder = (Identity, String);

/// Where the authority's keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// In the state directory, made here.
    Own,
    /// In an operator's directory.
    PluggedIn,
    /// In a Secret, shared by all replicas; no certificate lives longer than this.
    Cluster(Duration),
}

/// The certificate authority.
pub(crate) struct CertificateAuthority {
    directory: PathBuf,
    trust_domain: String,
    keys: Keys,
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    /// What is wrong with what replicas share, if anything is.
    problem: Mutex<Option<String>>,
}

struct Inner {
    bundle: AuthorityBundle,
    /// The root that will sign next.
    next: Option<Authority>,
    rotation: Rotation,
    ledger: Ledger,
    crl_pem: Option<String>,
    crl_signed_at: Option<SystemTime>,
    /// The largest number of a list that was signed or seen, by this replica or another.
    crl_number: u64,
}

impl CertificateAuthority {
    /// The authority kept in `directory`, made if there is none; or the plugged-in one in `ca_dir`.
    pub(crate) fn open(
        directory: &Path,
        ca_dir: Option<&Path>,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<Self, CaError> {
        durable::private_directory(directory)?;
        let (bundle, next, rotation, keys) = match ca_dir {
            Some(ca_dir) => {
                (AuthorityBundle::new(plugged_in(ca_dir, now)?), None, steady(), Keys::PluggedIn)
            }
            None => {
                let (bundle, next, rotation) = own(directory, trust_domain, now)?;
                (bundle, next, rotation, Keys::Own)
            }
        };
        Self::assemble(directory, trust_domain, keys, (bundle, next, rotation), now)
    }

    /// The authority that all replicas of a cluster share; what this replica signs is written down
    /// in `directory`. No certificate is signed for longer than `ttl_max`.
    pub(crate) fn of_cluster(
        directory: &Path,
        authority: Authority,
        ttl_max: Duration,
        now: SystemTime,
    ) -> Result<Self, CaError> {
        durable::private_directory(directory)?;
        let state = (AuthorityBundle::new(authority), None, steady());
        Self::assemble(directory, "", Keys::Cluster(ttl_max), state, now)
    }

    fn assemble(
        directory: &Path,
        trust_domain: &str,
        keys: Keys,
        (bundle, next, rotation): (AuthorityBundle, Option<Authority>, Rotation),
        now: SystemTime,
    ) -> Result<Self, CaError> {
        let mut inner = Inner {
            bundle,
            next,
            rotation,
            ledger: Ledger::open(directory, now)?,
            crl_pem: None,
            crl_signed_at: None,
            crl_number: 0,
        };
        if let Some(before) = text(&directory.join("crl.pem"))? {
            inner.crl_number = inner.number_of(&before);
        }
        inner.sign_crl(directory, now)?;
        Ok(Self {
            directory: directory.to_owned(),
            trust_domain: trust_domain.to_owned(),
            keys,
            inner: Mutex::new(inner),
            changed: watch::Sender::new(0),
            problem: Mutex::default(),
        })
    }

    /// Counts up when roots, signer or revocations change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of the lock panics")
    }

    /// The problem with what replicas share, for the status.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.lock().expect("no holder of the lock panics").clone()
    }

    fn set_problem(&self, problem: Option<String>) {
        *self.problem.lock().expect("no holder of the lock panics") = problem;
    }

    /// All trusted roots.
    pub(crate) fn roots_pem(&self) -> String {
        self.inner().bundle.roots_pem()
    }

    /// The revocation list, once anything was revoked.
    pub(crate) fn crl_pem(&self) -> Option<String> {
        self.inner().crl_pem.clone()
    }

    /// When the signing certificate ends.
    pub(crate) fn signer_not_after(&self) -> SystemTime {
        self.inner().bundle.active().not_after()
    }

    /// Signs a request of `node` for exactly `identity`, and writes it down.
    pub(crate) fn sign(
        &self,
        csr_pem: &str,
        identity: &Identity,
        node: &str,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(Vec<String>, Issued), CaError> {
        let mut inner = self.inner();
        let held = inner.ledger.admit(identity, node, now)?;
        let ttl = if held < crowded_from(node) { ttl } else { ttl.min(CROWDED_TTL) };
        let chain = inner.bundle.sign(csr_pem, identity, ttl, now)?;
        let leaf = CertificateSummary::from_pem(chain.first().map_or("", String::as_str))?;
        let entry = Issued {
            serial: leaf.serial.to_string(),
            identity: identity.to_string(),
            node: node.to_owned(),
            issued_at: unix(now),
            not_after: unix(leaf.not_after),
        };
        inner.ledger.record(entry.clone(), now)?;
        Ok((chain, entry))
    }

    /// A server certificate for these names.
    pub(crate) fn issue_server(
        &self,
        names: &[&str],
        now: SystemTime,
    ) -> Result<ServerCertificate, CaError> {
        Ok(self.inner().bundle.issue_server(names, SERVER_CERT_TTL, now)?)
    }

    /// Certificates that have not ended, and those taken back.
    pub(crate) fn certificates(&self) -> (Vec<Issued>, Vec<Revoked>) {
        let inner = self.inner();
        (inner.ledger.issued().cloned().collect(), inner.ledger.revoked().cloned().collect())
    }

    /// Takes certificates back and signs the new list.
    pub(crate) fn revoke(&self, which: &Which, now: SystemTime) -> Result<Vec<Revoked>, CaError> {
        let mut inner = self.inner();
        let revoked = inner.ledger.revoke(which, now)?;
        if let Keys::Cluster(ttl_max) = self.keys {
            inner.ledger.order(which, ttl_max, now);
        }
        if !revoked.is_empty() {
            inner.sign_crl(&self.directory, now)?;
            self.changed.send_modify(|version| *version += 1);
        }
        Ok(revoked)
    }

    /// Takes back what other replicas did; answers with what all must know.
    fn absorb(&self, shared: &Shared, now: SystemTime) -> Result<Absorbed, CaError> {
        let mut inner = self.inner();
        let absorbed = inner.ledger.absorb(shared, now)?;
        if absorbed.is_longer {
            inner.sign_crl(&self.directory, now)?;
            self.changed.send_modify(|version| *version += 1);
        }
        Ok(absorbed)
    }

    /// Makes our list a valid successor of `published`, which some replica wrote: it names all its
    /// unexpired entries, and its number is larger. A list that no trusted authority signed is
    /// ignored.
    pub(crate) fn succeed(&self, published: &str, now: SystemTime) -> Result<(), CaError> {
        let Keys::Cluster(ttl_max) = self.keys else { return Ok(()) };
        let mut inner = self.inner();
        if inner.crl_pem.as_deref() == Some(published) {
            return Ok(());
        }
        let signers = inner.bundle.revocation_signers_pem();
        let (mut is_longer, mut must_grow) = (false, false);
        let own = inner.crl_number;
        for block in revocation::blocks(published) {
            let Ok(list) = RevocationList::from_pem(block, &signers) else { continue };
            let number = list.number().unwrap_or_default();
            must_grow |= number >= own;
            inner.crl_number = inner.crl_number.max(number);
            // Whatever is on it was signed before it, and ends no later than that plus a life.
            let end = unix(list.this_update().unwrap_or(now) + LIST_DATED_BACK + ttl_max);
            let serials = list.serials().map(ToString::to_string);
            is_longer |= inner.ledger.absorb_published(serials, end, now)?;
        }
        if is_longer || must_grow {
            inner.sign_crl(&self.directory, now)?;
        }
        Ok(())
    }

    /// Signs with `next` from now on, if it is another authority than the present one, which stays
    /// trusted until all that it signed has ended.
    fn take_over(&self, next: Authority, now: SystemTime) -> Result<(), CaError> {
        let mut inner = self.inner();
        let active = inner.bundle.active();
        let same = (active.certificate_pem(), active.roots_pem());
        if same == (next.certificate_pem(), next.roots_pem()) {
            return Ok(());
        }
        let trusted = inner.bundle.roots_pem();
        let is_known = next.roots_pem().split_inclusive(END).all(|root| trusted.contains(root));
        inner.bundle.activate(next);
        inner.enter(&self.directory, Phase::Active, now)?;
        inner.sign_crl(&self.directory, now)?;
        self.changed.send_modify(|version| *version += 1);
        if is_known {
            tracing::info!("another authority signs from now on, under roots that are trusted");
        } else {
            tracing::warn!(
                "another root signs from now on; workloads that have not renewed refuse its \
                 certificates until half of their own certificate's life. To change a root \
                 without that, first put both roots into root-cert.pem of the Secret cacerts, \
                 and the other entries a certificate's life later",
            );
        }
        Ok(())
    }

    /// The periodic work: signs the list again, and continues a rotation once all holders know the
    /// new root.
    pub(crate) fn maintain(&self, holders: &[Holder], now: SystemTime) -> Result<(), CaError> {
        let mut inner = self.inner();
        let shorter = inner.ledger.forget_expired(now);
        let age = inner.crl_signed_at.and_then(|at| now.duration_since(at).ok());
        let is_old = age.is_some_and(|age| age > CRL_VALIDITY / 4);
        let mut changed = false;
        if shorter || is_old {
            inner.sign_crl(&self.directory, now)?;
            changed = true;
        }
        if let Keys::Cluster(ttl_max) = self.keys
            && inner.rotation.phase == Phase::Active
            && unix(now) > inner.rotation.since + ttl_max.as_secs()
        {
            inner.bundle.retire_earlier();
            inner.enter(&self.directory, Phase::Steady, now)?;
            inner.sign_crl(&self.directory, now)?;
            changed = true;
        }
        if inner.rotation.phase == Phase::Trusted && inner.waiting_for(holders) == 0 {
            inner.activate(&self.directory, now)?;
            changed = true;
        }
        if changed {
            self.changed.send_modify(|version| *version += 1);
        }
        Ok(())
    }

    /// How far a rotation has come.
    pub(crate) fn rotation(&self, holders: &[Holder]) -> admin::Rotation {
        self.inner().status(holders)
    }

    fn may_rotate(&self) -> Result<(), CaError> {
        match self.keys {
            Keys::Own => Ok(()),
            Keys::PluggedIn => Err(CaError::Rotation(
                "the authority is plugged in: put the old and the new root into root-cert.pem, \
                 restart control, replace the other files a certificate lifetime later, and \
                 restart again",
            )),
            Keys::Cluster(_) => Err(CaError::Rotation(
                "on Kubernetes the root is in a Secret that all replicas share, and is changed \
                 there: put the old and the new root into root-cert.pem of the Secret cacerts, \
                 its other entries a certificate lifetime later, and take the old root out after \
                 another; cert-manager can write that Secret; every replica follows within 30 \
                 seconds, no restart is needed",
            )),
        }
    }

    /// Begins to rotate the root: a new one is made and trusted beside the old.
    pub(crate) fn begin_rotation(
        &self,
        holders: &[Holder],
        now: SystemTime,
    ) -> Result<admin::Rotation, CaError> {
        self.may_rotate()?;
        let mut inner = self.inner();
        if inner.rotation.phase != Phase::Steady {
            return Err(CaError::Rotation("a rotation is under way; finish it first"));
        }
        let next = Authority::generate(&self.trust_domain, now)?;
        write_authority(&self.directory, "next", &next)?;
        inner.bundle.trust(&next.roots_pem())?;
        inner.next = Some(next);
        inner.enter(&self.directory, Phase::Trusted, now)?;
        self.changed.send_modify(|version| *version += 1);
        Ok(inner.status(holders))
    }

    /// Ends the rotation: the old root is no longer handed out as trusted. With `force` this
    /// happens although some holders have not renewed: holders that renew refuse them, and no open
    /// connection is cut.
    pub(crate) fn finish_rotation(
        &self,
        holders: &[Holder],
        force: bool,
        now: SystemTime,
    ) -> Result<admin::Rotation, CaError> {
        self.may_rotate()?;
        let mut inner = self.inner();
        if inner.rotation.phase == Phase::Steady {
            return Err(CaError::Rotation("no rotation is under way; begin one first"));
        }
        let waiting_for = inner.waiting_for(holders);
        if waiting_for > 0 && !force {
            return Err(CaError::NotSpread(waiting_for));
        }
        if inner.rotation.phase == Phase::Trusted {
            inner.activate(&self.directory, now)?;
            if !force && inner.waiting_for(holders) > 0 {
                self.changed.send_modify(|version| *version += 1);
                return Ok(inner.status(holders));
            }
        }
        inner.bundle.retire_earlier();
        inner.enter(&self.directory, Phase::Steady, now)?;
        for file in ["earlier-cert.pem", "earlier-key.pem"] {
            durable::remove(&self.directory.join(file))?;
        }
        inner.sign_crl(&self.directory, now)?;
        self.changed.send_modify(|version| *version += 1);
        let mut status = inner.status(holders);
        if waiting_for > 0 {
            status.waiting_for = waiting_for;
            status.next = FORCED.into();
        }
        Ok(status)
    }
}

impl Inner {
    /// The largest number of the lists in a text that our authorities signed.
    fn number_of(&self, crls_pem: &str) -> u64 {
        let signers = self.bundle.revocation_signers_pem();
        let blocks = revocation::blocks(crls_pem);
        let lists = blocks.filter_map(|block| RevocationList::from_pem(block, &signers).ok());
        lists.filter_map(|list| list.number()).max().unwrap_or_default()
    }

    fn sign_crl(&mut self, directory: &Path, now: SystemTime) -> Result<(), CaError> {
        self.ledger.divide_room(self.bundle.revocation_lists(), now);
        let serials: Result<Vec<_>, CertificateError> =
            self.ledger.revoked().map(|it| it.serial.parse()).collect();
        let serials = serials?;
        // Without any revocation there is no list: proxies then need not depend on its freshness.
        if serials.is_empty() && self.crl_pem.is_none() && !directory.join("crl.pem").exists() {
            return Ok(());
        }
        // The time, as long as no clock goes back and no replica's is ahead.
        let number = unix(now).max(self.crl_number.saturating_add(1));
        let crl_pem = self.bundle.revoke_as(&serials, number, now, CRL_VALIDITY)?;
        self.crl_number = number;
        durable::replace(&directory.join("crl.pem"), crl_pem.as_bytes(), PUBLIC)?;
        self.crl_pem = Some(crl_pem);
        self.crl_signed_at = Some(now);
        Ok(())
    }

    fn waiting_for(&self, holders: &[Holder]) -> usize {
        let since = self.rotation.since;
        let waiting =
            |(identity, node): &&Holder| !self.ledger.has_fetched_since(identity, node, since);
        holders.iter().filter(waiting).count()
    }

    fn status(&self, holders: &[Holder]) -> admin::Rotation {
        let (waiting_for, next) = match self.rotation.phase {
            Phase::Steady => (0, "nothing"),
            Phase::Trusted => {
                (self.waiting_for(holders), "the new root signs once all holders trust it")
            }
            Phase::Active => (self.waiting_for(holders), "finish it once all holders have renewed"),
        };
        let phase = match self.rotation.phase {
            Phase::Steady => RotationPhase::Steady,
            Phase::Trusted => RotationPhase::Trusted,
            Phase::Active => RotationPhase::Active,
        };
        admin::Rotation { phase, waiting_for, next: next.into() }
    }

    fn activate(&mut self, directory: &Path, now: SystemTime) -> Result<(), CaError> {
        let Some(next) = self.next.take() else { return Ok(()) };
        // In this order a crash at any point loses no key: once the phase is written, the next
        // start completes it.
        write_authority(directory, "earlier", self.bundle.active())?;
        self.enter(directory, Phase::Active, now)?;
        promote(directory, &next)?;
        self.bundle.activate(next);
        self.sign_crl(directory, now)
    }

    fn enter(&mut self, directory: &Path, phase: Phase, now: SystemTime) -> Result<(), CaError> {
        self.rotation = Rotation { phase, since: unix(now) };
        let json = serde_json::to_vec(&self.rotation).expect("an enum and a number are JSON");
        durable::replace(&directory.join("rotation.json"), &json, PRIVATE)?;
        Ok(())
    }
}

fn steady() -> Rotation {
    Rotation { phase: Phase::Steady, since: 0 }
}

fn plugged_in(directory: &Path, now: SystemTime) -> Result<Authority, CaError> {
    let text = |name: &str| {
        let path = directory.join(name);
        text(&path)?.ok_or(CaError::Missing(path))
    };
    let (certificate, key) = (text("ca-cert.pem")?, text("ca-key.pem")?);
    let (chain, root) = (text("cert-chain.pem")?, text("root-cert.pem")?);
    Authority::from_intermediate_pem(&certificate, &key, &chain, &root, now)
        .map_err(|error| unusable(directory, error))
}

/// Our own root as it was left: possibly in the middle of a rotation.
fn own(
    directory: &Path,
    trust_domain: &str,
    now: SystemTime,
) -> Result<(AuthorityBundle, Option<Authority>, Rotation), CaError> {
    let rotation = match durable::read(&directory.join("rotation.json"))? {
        None => steady(),
        Some(json) => serde_json::from_slice(&json).map_err(|error| FileError {
            operation: "read",
            path: directory.join("rotation.json"),
            source: error.into(),
        })?,
    };
    let mut next = read_authority(directory, "next", now)?;
    if rotation.phase == Phase::Active
        && let Some(next) = next.take()
    {
        // An activation was cut off: it is decided, so it is completed.
        promote(directory, &next)?;
    }
    let active = match read_authority(directory, "root", now)? {
        Some(active) => active,
        None => {
            let made = Authority::generate(trust_domain, now)?;
            write_authority(directory, "root", &made)?;
            made
        }
    };
    let bundle = match rotation.phase {
        Phase::Steady => AuthorityBundle::new(active),
        Phase::Trusted => {
            let mut bundle = AuthorityBundle::new(active);
            if let Some(next) = &next {
                bundle.trust(&next.roots_pem())?;
            }
            bundle
        }
        Phase::Active => match read_authority(directory, "earlier", now)? {
            Some(earlier) => {
                let mut bundle = AuthorityBundle::new(earlier);
                bundle.activate(active);
                bundle
            }
            None => AuthorityBundle::new(active),
        },
    };
    let next = next.filter(|_| rotation.phase == Phase::Trusted);
    Ok((bundle, next, rotation))
}

/// Puts the next root in the place of the present one.
fn promote(directory: &Path, next: &Authority) -> Result<(), CaError> {
    write_authority(directory, "root", next)?;
    for file in ["next-cert.pem", "next-key.pem"] {
        durable::remove(&directory.join(file))?;
    }
    Ok(())
}

fn read_authority(
    directory: &Path,
    name: &str,
    now: SystemTime,
) -> Result<Option<Authority>, CaError> {
    let path = directory.join(format!("{name}-cert.pem"));
    let Some(certificate) = text(&path)? else { return Ok(None) };
    let key_path = directory.join(format!("{name}-key.pem"));
    let Some(key) = text(&key_path)? else { return Ok(None) };
    let key = zeroize::Zeroizing::new(key);
    let authority = Authority::from_root_pem(&certificate, &key, now)
        .map_err(|error| unusable(&path, error))?;
    Ok(Some(authority))
}

fn unusable(path: &Path, error: AuthorityError) -> CaError {
    CaError::Authority { path: path.to_owned(), source: Box::new(error) }
}

fn write_authority(directory: &Path, name: &str, authority: &Authority) -> Result<(), CaError> {
    // The key first: a certificate without its key would stop the next start.
    let key = authority.key_pem();
    durable::replace(&directory.join(format!("{name}-key.pem")), key.as_bytes(), PRIVATE)?;
    let certificate = authority.certificate_pem();
    durable::replace(&directory.join(format!("{name}-cert.pem")), certificate.as_bytes(), PUBLIC)?;
    Ok(())
}

fn text(path: &Path) -> Result<Option<String>, CaError> {
    let Some(bytes) = durable::read(path)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| CaError::NotText(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use ambit_tls::WorkloadKey;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// An authority in a directory of its own, which goes with it.
    struct Bed {
        authority: CertificateAuthority,
        directory: PathBuf,
    }

    impl Bed {
        fn new(name: &str, now: SystemTime) -> Self {
            let name = format!("ambit-authority-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&directory);
            let opened = CertificateAuthority::open(&directory, None, "cluster.local", now);
            Self { authority: opened.expect("an authority"), directory }
        }

        fn sign(&self, ttl: Duration, now: SystemTime) -> Issued {
            let identity = Identity::new("cluster.local", "shop", "web");
            let key = WorkloadKey::generate().expect("a key");
            let csr = key.csr_pem(&identity).expect("a request");
            self.authority.sign(&csr, &identity, "one", ttl, now).expect("signed").1
        }

        fn list(&self) -> RevocationList {
            let pem = self.authority.crl_pem().expect("a list");
            let signers = self.authority.inner().bundle.revocation_signers_pem();
            RevocationList::from_pem(&pem, &signers).expect("of this authority")
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    #[test]
    fn keys_on_the_disk_are_their_owners_alone() {
        let now = SystemTime::now();
        let bed = Bed::new("modes", now);
        bed.sign(DAY, now);
        bed.authority.begin_rotation(&[], now).expect("begun");
        bed.authority.maintain(&[], now).expect("the new root signs");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&bed.directory), 0o700);
        let files = fs::read_dir(&bed.directory).expect("listed").map(|it| it.expect("one").path());
        let (keys, others): (Vec<_>, Vec<_>) =
            files.partition(|path| path.to_string_lossy().ends_with("-key.pem"));
        assert!(keys.len() >= 2, "old and new: {keys:?}, {others:?}");
        assert!(keys.iter().all(|key| mode(key) == 0o600), "{keys:?}");
        assert!(others.iter().all(|file| mode(file) & 0o022 == 0), "{others:?}");
    }

    #[test]
    fn a_list_is_signed_again_long_before_it_is_out_of_date() {
        let now = SystemTime::now();
        let bed = Bed::new("list", now);
        bed.authority.revoke(&Which::Serial("0102".parse().expect("a serial")), now).expect("done");
        let list = bed.list();
        let end = list.next_update().expect("an end");
        let slack = Duration::from_secs(1);
        assert!(end <= now + 7 * DAY && end >= now + 7 * DAY - slack, "seven days");
        bed.authority.maintain(&[], now + DAY).expect("nothing is due");
        assert_eq!(bed.list().number(), list.number());
        bed.authority.maintain(&[], now + 2 * DAY).expect("signed");
        let renewed = bed.list();
        assert!(renewed.number() > list.number());
        assert!(renewed.next_update() > list.next_update());
        assert_eq!(renewed.serials().count(), 1);
    }

    #[test]
    fn a_list_fits_where_it_is_published_also_while_a_root_is_rotated() {
        let now = SystemTime::now();
        let bed = Bed::new("room", now);
        let absorb = |serials: std::ops::Range<u32>, life: Duration, at| {
            let end = Some(unix(now + life));
            let revoked = serials.map(|number| (format!("f{number:031x}"), end)).collect();
            let shared = Shared { revoked, ..Shared::default() };
            bed.authority.absorb(&shared, at).expect("written").is_full
        };
        assert!(!absorb(0..8000, DAY / 24, now));
        assert!(!absorb(8000..15_000, DAY, now));
        assert_eq!(bed.list().len(), 15_000);
        let later = now + DAY / 12;
        bed.authority.begin_rotation(&[], later).expect("begun");
        bed.authority.maintain(&[], later).expect("the new root signs");
        assert_eq!(bed.list().len(), 2 * 7000, "what has ended has left");
        assert!(!absorb(15_000..18_000, DAY, later));
        assert!(bed.authority.crl_pem().expect("a list").len() < 1 << 20, "a ConfigMap holds it");
        let refused = bed.authority.revoke(&Which::Serial("0e".parse().expect("one")), later);
        assert!(matches!(refused, Err(CaError::Revoke(RevokeError::Full))));
    }

    #[test]
    fn after_the_largest_number_comes_no_small_one() {
        let now = SystemTime::now();
        let bed = Bed::new("numbers", now);
        bed.authority.inner().crl_number = u64::MAX;
        bed.authority.revoke(&Which::Serial("0102".parse().expect("a serial")), now).expect("done");
        assert_eq!(bed.list().number(), Some(u64::MAX));
    }

    #[test]
    fn who_holds_many_certificates_gets_short_ones() {
        let now = SystemTime::now();
        let bed = Bed::new("crowded", now);
        let lives: Vec<u64> = (0..=crowded_from("n1"))
            .map(|_| bed.sign(DAY, now))
            .map(|issued| issued.not_after - issued.issued_at)
            .collect();
        let (last, before) = lives.split_last().expect("some");
        assert_eq!(*last, CROWDED_TTL.as_secs());
        assert!(before.iter().all(|life| *life == DAY.as_secs()), "{before:?}");
    }
}
