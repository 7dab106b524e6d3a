//! Key, chain and roots of one workload: its proof of identity, and whom it trusts.
//!
//! A [`WorkloadCertificate`] is complete or does not exist: its leaf names the requested workload,
//! matches its key and chains to the roots that came with it. Whether it has expired is a separate
//! check, which needs a clock. The key leaves only through [`WorkloadCertificate::to_bytes`], which
//! is for sealed memory and never for a file.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::identity::Identity;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{CertificateDer, UnixTime};

use zeroize::Zeroizing;

use crate::certificate::{
    CertificateError, CertificateSummary, MAX_CERTIFICATES, Serial, certificates_of, identity_of,
    parse,
};
use crate::key::{KeyError, WorkloadKey};
use crate::known::Usage;
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::verify::{Accepted, Verifier};

/// First bytes of a hand-over; the last one is its version.
const HAND_OVER_MAGIC: &[u8; 5] = b"AMBC\x01";
/// The longest single part (key, certificate, identity) of a hand-over.
const MAX_PART_BYTES: usize = 64 << 10;
/// The refresh moves earlier by at most this part of the time until half life.
const REFRESH_JITTER: f64 = 0.2;

/// Key, chain and roots of one identity.
pub struct WorkloadCertificate {
    identity: Identity,
    key: WorkloadKey,
    obtained_at: SystemTime,
    chain_der: Vec<CertificateDer<'static>>,
    roots_der: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateSummary>,
    roots: Vec<CertificateSummary>,
    trust: Arc<TrustRoots>,
    resolver: Arc<SingleCertAndKey>,
}

impl WorkloadCertificate {
    /// Joins a key with the authority's answer: leaf first, the bundle of roots last.
    ///
    /// `obtained_at` is when the answer came; half life counts from there, because authorities
    /// backdate certificates to tolerate slow clocks.
    pub fn new(
        key: WorkloadKey,
        chain_pem: &[String],
        expected: &Identity,
        obtained_at: SystemTime,
    ) -> Result<Arc<Self>, CertificateError> {
        let (roots_pem, chain_pem) = match chain_pem {
            [chain @ .., roots] if !chain.is_empty() => (roots, chain),
            short => return Err(CertificateError::NoRoots(short.len())),
        };
        if chain_pem.len() > MAX_CERTIFICATES {
            return Err(CertificateError::TooLarge { what: "the authority's answer" });
        }
        let mut chain = Vec::new();
        for part in chain_pem {
            chain.extend(certificates_of(part, "the authority's answer")?);
        }
        let roots = certificates_of(roots_pem, "the bundle of roots")?;
        Self::assemble(key, chain, roots, expected.clone(), obtained_at)
    }

    fn assemble(
        key: WorkloadKey,
        chain_der: Vec<CertificateDer<'static>>,
        roots_der: Vec<CertificateDer<'static>>,
        identity: Identity,
        obtained_at: SystemTime,
    ) -> Result<Arc<Self>, CertificateError> {
        let leaf = chain_der.first().ok_or(CertificateError::Empty("the chain"))?;
        let parsed = parse(leaf)?;
        let got = identity_of(&parsed)?;
        if got != identity {
            return Err(CertificateError::OtherIdentity { expected: identity, got });
        }
        if parsed.public_key().subject_public_key.as_ref() != key.public_point() {
            return Err(CertificateError::OtherKey);
        }
        let chain = chain_der.iter().map(CertificateSummary::of).collect::<Result<Vec<_>, _>>()?;
        let roots = roots_der.iter().map(CertificateSummary::of).collect::<Result<Vec<_>, _>>()?;
        let trust = Arc::new(TrustRoots::new(&roots_der)?);
        check_chain(&chain_der, &trust, chain[0].not_after)?;
        let signer = any_ecdsa_type(&key.as_private_key_der())
            .map_err(|_| KeyError::Unsupported("an ECDSA key"))?;
        let resolver = Arc::new(CertifiedKey::new(chain_der.clone(), signer).into());
        Ok(Arc::new(Self {
            identity,
            key,
            obtained_at,
            chain_der,
            roots_der,
            chain,
            roots,
            trust,
            resolver,
        }))
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Serial number of the leaf.
    pub fn serial(&self) -> &Serial {
        &self.chain[0].serial
    }

    /// Start of the leaf's validity.
    pub fn not_before(&self) -> SystemTime {
        self.chain[0].not_before
    }

    /// End of the leaf's validity.
    pub fn not_after(&self) -> SystemTime {
        self.chain[0].not_after
    }

    /// The certificates that it presents: the leaf, then intermediates.
    pub fn chain(&self) -> &[CertificateSummary] {
        &self.chain
    }

    /// The roots that it believes; several during a root rotation.
    pub fn roots(&self) -> &[CertificateSummary] {
        &self.roots
    }

    /// The roots as one PEM text.
    pub fn roots_pem(&self) -> String {
        self.roots.iter().map(|root| root.pem.as_str()).collect()
    }

    /// The certificates that may sign a revocation list for it: its intermediates and its roots.
    pub fn revocation_signers_pem(&self) -> String {
        self.chain[1..].iter().chain(&self.roots).map(|signer| signer.pem.as_str()).collect()
    }

    /// SHA-256 that changes exactly when the set of roots does.
    pub fn roots_fingerprint(&self) -> [u8; 32] {
        self.trust.fingerprint()
    }

    /// When to ask for the next one: half life, counted from when it was obtained.
    ///
    /// `jitter` in [0, 1) moves it earlier by up to a fifth of that time, so that certificates that
    /// were obtained together are not all renewed together.
    pub fn refresh_at(&self, jitter: f64) -> SystemTime {
        let start = self.obtained_at.max(self.not_before());
        let half = self.not_after().duration_since(start).unwrap_or(Duration::ZERO) / 2;
        start + half.mul_f64(1.0 - REFRESH_JITTER * jitter.clamp(0.0, 1.0))
    }

    /// Whether its validity has ended by `now`.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.not_after()
    }

    /// Everything, **with the private key**, for the hand-over to another process in sealed memory.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let key = self.key.to_pkcs8_der();
        let identity = self.identity.to_string();
        let ders = || self.chain_der.iter().chain(&self.roots_der);
        let size = 64 + key.len() + identity.len() + ders().map(|der| der.len() + 4).sum::<usize>();
        // With all the room it needs from the start: growing would leave copies of the key behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(size));
        bytes.extend_from_slice(HAND_OVER_MAGIC);
        let obtained = self.obtained_at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        bytes.extend_from_slice(&obtained.as_secs().to_be_bytes());
        put_count(&mut bytes, self.chain_der.len());
        put_count(&mut bytes, self.roots_der.len());
        for part in [identity.as_bytes(), key.as_slice()].into_iter().chain(ders().map(|d| &**d)) {
            put_count(&mut bytes, part.len());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote, and checks it as [`Self::new`] does.
    pub fn from_bytes(bytes: &[u8]) -> Result<Arc<Self>, CertificateError> {
        let mut reader = HandOverReader { bytes, offset: 0 };
        if reader.take(HAND_OVER_MAGIC.len())? != HAND_OVER_MAGIC {
            return Err(reader.damaged("it does not start as a hand-over of this version does"));
        }
        let seconds = reader.take(8)?.try_into().expect("eight bytes were taken");
        let obtained_at = UNIX_EPOCH
            .checked_add(Duration::from_secs(u64::from_be_bytes(seconds)))
            .ok_or_else(|| reader.damaged("the time is out of range"))?;
        let (chain, roots) = (reader.count(MAX_CERTIFICATES)?, reader.count(MAX_CERTIFICATES)?);
        let identity = std::str::from_utf8(reader.part()?)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| reader.damaged("the identity cannot be read"))?;
        let key = WorkloadKey::from_pkcs8_der(reader.part()?)?;
        let mut ders = |count| {
            (0..count)
                .map(|_| reader.part().map(|part| CertificateDer::from(part.to_vec())))
                .collect::<Result<Vec<_>, _>>()
        };
        let (chain, roots) = (ders(chain)?, ders(roots)?);
        if reader.offset != bytes.len() {
            return Err(reader.damaged("bytes follow its end"));
        }
        Self::assemble(key, chain, roots, identity, obtained_at)
    }

    pub(crate) fn trust(&self) -> &Arc<TrustRoots> {
        &self.trust
    }

    pub(crate) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::clone(&self.resolver)
    }
}

impl fmt::Debug for WorkloadCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadCertificate")
            .field("identity", &self.identity)
            .field("serial", &self.serial().to_string())
            .finish_non_exhaustive()
    }
}

/// Whether peers with the same roots would accept the chain just before the leaf expires.
fn check_chain(
    chain: &[CertificateDer<'_>],
    trust: &Arc<TrustRoots>,
    not_after: SystemTime,
) -> Result<(), CertificateError> {
    let verifier = Verifier {
        roots: Arc::clone(trust),
        revocations: Arc::new(RevocationList::none()),
        accepted: Accepted::AnyWorkload,
        anonymous_clients: false,
    };
    let end = not_after.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let at = UnixTime::since_unix_epoch(end);
    for usage in [Usage::Client, Usage::Server] {
        verifier
            .judge(&chain[0], &chain[1..], usage, at)
            .map_err(|error| CertificateError::Unchained(error.to_string()))?;
    }
    Ok(())
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).expect("parts and counts are bounded far below 4 GiB");
    bytes.extend_from_slice(&count.to_be_bytes());
}

/// Reads a hand-over part by part; nothing is taken beyond its end.
struct HandOverReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> HandOverReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], CertificateError> {
        let end = self.offset.saturating_add(count);
        let taken =
            self.bytes.get(self.offset..end).ok_or_else(|| self.damaged("it ends early"))?;
        self.offset = end;
        Ok(taken)
    }

    fn count(&mut self, limit: usize) -> Result<usize, CertificateError> {
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        match usize::try_from(u32::from_be_bytes(bytes)) {
            Ok(count) if count <= limit => Ok(count),
            _ => Err(self.damaged("a length is beyond its limit")),
        }
    }

    fn part(&mut self) -> Result<&'a [u8], CertificateError> {
        let length = self.count(MAX_PART_BYTES)?;
        self.take(length)
    }

    fn damaged(&self, problem: &'static str) -> CertificateError {
        CertificateError::HandOver { offset: self.offset, problem }
    }
}
