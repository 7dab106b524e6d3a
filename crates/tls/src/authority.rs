//! The certificate authority of a mesh.
//!
//! An [`Authority`] is one signing certificate with its key: a self-made root, or an intermediate
//! that an enterprise plugs in as Istio's `cacerts`. An [`AuthorityBundle`] is what a mesh signs
//! with: the active authority, all trusted roots, and earlier authorities, which no longer issue
//! but still revoke. It reads no file and assigns no identity: the caller says which identity a
//! request may have, and a request for any other is refused.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::identity::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;
use x509_parser::prelude::{ParsedExtension, X509Certificate};
use zeroize::Zeroizing;

use crate::certificate::{
    CertificateError, Claims, MAX_CERTIFICATES, Serial, certificates_of, parse,
};
use crate::key::{AuthorityKey, KeyError, WorkloadKey, private_key_pem};
use crate::known::Usage;
use crate::pem_block::encode_pem;
use crate::request::{RequestError, authorised_key};
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::service::ServerCertificate;
use crate::verify::{Accepted, Verifier};

/// How long a self-made root is valid.
const ROOT_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How far certificates are dated back, so that a machine whose clock is slow accepts them.
const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// X.509 counts seconds: a shorter life would end where it starts.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// Names that one server certificate may hold.
const MAX_SERVER_NAMES: usize = 64;
/// 128 random bits, as the CA/Browser Forum doubles its minimum of 64.
const SERIAL_BYTES: usize = 16;

/// Why an authority cannot be set up, or does not sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A key cannot be made or read.
    #[error("the authority's key cannot be used")]
    Key(#[from] KeyError),
    /// A certificate, chain or root cannot be read.
    #[error("the authority's certificates cannot be used")]
    Certificate(#[from] CertificateError),
    /// A certificate may not sign others.
    #[error(
        "the authority's certificate may not sign certificates; it needs CA:TRUE and, if it \
             limits key usage, keyCertSign"
    )]
    NotAnAuthority,
    /// Key, certificate, chain and root do not belong together.
    #[error(
        "what the authority signs would be refused by its own root: {0}; check that key, \
             certificate, chain and root belong together"
    )]
    Broken(String),
    /// The authority's certificate is not valid now.
    #[error("the authority's certificate is not valid now; replace it, or correct the clock")]
    NotValidNow,
    /// The request is refused.
    #[error("the signing request is refused")]
    Request(#[from] RequestError),
    /// The asked lifetime cannot be given.
    #[error("a certificate must live for at least one second")]
    Lifetime,
    /// A text cannot be a name in a certificate.
    #[error("{0:?} cannot be a name in a certificate")]
    Name(String),
    /// A server certificate without, or with too many, names.
    #[error("a server certificate holds 1 to {MAX_SERVER_NAMES} names, asked were {0}")]
    NameCount(usize),
    /// Encoding or signing failed.
    #[error("signing failed")]
    Sign(#[source] rcgen::Error),
    /// The system gave no randomness.
    #[error("cannot make a serial number: the system's random source failed")]
    Random,
}

/// One signing certificate with its key.
pub struct Authority {
    issuer: Issuer<'static, AuthorityKey>,
    key_pem: Zeroizing<String>,
    certificate: CertificateDer<'static>,
    /// What a leaf needs to reach a root: empty for a root, the certificate itself first otherwise.
    intermediates: Vec<CertificateDer<'static>>,
    roots: Vec<CertificateDer<'static>>,
    not_after: SystemTime,
    key_identifier: Option<Vec<u8>>,
}

impl Authority {
    /// Makes a self-signed root for `trust_domain`, valid for ten years.
    pub fn generate(trust_domain: &str, now: SystemTime) -> Result<Self, AuthorityError> {
        let key_pem = private_key_pem(&WorkloadKey::generate()?.to_pkcs8_der());
        let key = AuthorityKey::from_pem(&key_pem)?;
        let serial = random_serial()?;
        let mut params = CertificateParams::default();
        // A name of its own for each root, so that chains and lists of two never get mixed up.
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, trust_domain);
        name.push(DnType::CommonName, format!("Ambit root {}", &serial.to_string()[..8]));
        params.distinguished_name = name;
        params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + ROOT_LIFETIME).into();
        let root = params.self_signed(&key).map_err(AuthorityError::Sign)?;
        Self::from_root_pem(&encode_pem("CERTIFICATE", root.der()), &key_pem, now)
    }

    /// Reads a self-signed root and its key.
    pub fn from_root_pem(
        root_pem: &str,
        key_pem: &str,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        Self::assemble(root_pem, key_pem, Vec::new(), root_pem, now)
    }

    /// Reads a plugged-in intermediate: the files `ca-cert.pem`, `ca-key.pem`, `cert-chain.pem` and
    /// `root-cert.pem` of Istio's Secret `cacerts`.
    pub fn from_intermediate_pem(
        ca_cert_pem: &str,
        ca_key_pem: &str,
        cert_chain_pem: &str,
        root_cert_pem: &str,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let mut intermediates = certificates_of(ca_cert_pem, "ca-cert.pem")?;
        intermediates.truncate(1);
        let roots = certificates_of(root_cert_pem, "root-cert.pem")?;
        for link in certificates_of(cert_chain_pem, "cert-chain.pem")? {
            if !intermediates.contains(&link) && !roots.contains(&link) {
                intermediates.push(link);
            }
        }
        Self::assemble(ca_cert_pem, ca_key_pem, intermediates, root_cert_pem, now)
    }

    fn assemble(
        certificate_pem: &str,
        key_pem: &str,
        intermediates: Vec<CertificateDer<'static>>,
        roots_pem: &str,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let certificate =
            certificates_of(certificate_pem, "the authority's certificate")?.swap_remove(0);
        let roots = certificates_of(roots_pem, "the authority's root")?;
        let key = AuthorityKey::from_pem(key_pem)?;
        let parsed = parse(&certificate)?;
        if !may_sign(&parsed) {
            return Err(AuthorityError::NotAnAuthority);
        }
        let claims = Claims::of(&parsed);
        if now < claims.not_before || now >= claims.not_after {
            return Err(AuthorityError::NotValidNow);
        }
        let key_identifier = key_identifier_of(&parsed);
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(AuthorityError::Sign)?;
        let authority = Self {
            issuer,
            key_pem: Zeroizing::new(key_pem.to_owned()),
            certificate,
            intermediates,
            roots,
            not_after: claims.not_after,
            key_identifier,
        };
        authority.try_out(now)?;
        Ok(authority)
    }

    /// The signing certificate.
    pub fn certificate_pem(&self) -> String {
        encode_pem("CERTIFICATE", &self.certificate)
    }

    /// The roots that it chains to.
    pub fn roots_pem(&self) -> String {
        all_pem(&self.roots)
    }

    /// The signing key as PEM, for the caller's private file and nothing else.
    pub fn key_pem(&self) -> Zeroizing<String> {
        self.key_pem.clone()
    }

    /// End of the signing certificate's validity; nothing that it signs outlives it.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Signs a certificate for nobody and verifies it, so that an operator who mixed up files hears
    /// of it now and not from every workload.
    fn try_out(&self, now: SystemTime) -> Result<(), AuthorityError> {
        let identity = Identity::new("ambit.invalid", "none", "none");
        let key = WorkloadKey::generate()?;
        let leaf = self.issue(&key, vec![uri_name(&identity)?], MIN_LIFETIME * 60, now)?;
        let verifier = Verifier {
            roots: TrustRoots::new(&self.roots)?.into(),
            revocations: RevocationList::none().into(),
            accepted: Accepted::AnyWorkload,
            anonymous_clients: false,
        };
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        verifier
            .judge(&leaf, &self.intermediates, Usage::Server, at)
            .map(|_| ())
            .map_err(|error| AuthorityError::Broken(error.to_string()))
    }

    /// Signs a leaf that holds `names` and nothing else of the requester's choice.
    fn issue(
        &self,
        public_key: &impl PublicKeyData,
        names: Vec<SanType>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        if ttl < MIN_LIFETIME {
            return Err(AuthorityError::Lifetime);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.serial_number = Some(SerialNumber::from_slice(random_serial()?.as_bytes()));
        // Half of a short life at most: for a client that refreshes at half the certificate's
        // stated life (as ztunnel does), that moment must not be in the past.
        params.not_before = (now - CLOCK_SKEW.min(ttl / 2)).into();
        params.not_after =
            now.checked_add(ttl).unwrap_or(self.not_after).min(self.not_after).into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(public_key, &self.issuer).map_err(AuthorityError::Sign)?;
        Ok(signed.der().clone())
    }

    /// A complete list of `serials` under this authority's name and key.
    fn revocation_list(
        &self,
        serials: &[Serial],
        number: u64,
        now: SystemTime,
        valid_for: Duration,
    ) -> Result<String, AuthorityError> {
        let revoked_certs = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial.as_bytes()),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: (now - CLOCK_SKEW).into(),
            next_update: expiry(now, valid_for),
            crl_number: SerialNumber::from_slice(&number.to_be_bytes()),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: match &self.key_identifier {
                Some(identifier) => KeyIdMethod::PreSpecified(identifier.clone()),
                None => KeyIdMethod::Sha256,
            },
        };
        let list = params.signed_by(&self.issuer).map_err(AuthorityError::Sign)?;
        Ok(encode_pem("X509 CRL", list.der()))
    }
}

/// What a mesh signs with, and all that it trusts.
///
/// A root is rotated in three steps, each spread to every workload before the next: [`Self::trust`]
/// the new root, [`Self::activate`] its authority, [`Self::retire_earlier`] the old one.
pub struct AuthorityBundle {
    active: Authority,
    earlier: Vec<Authority>,
    trusted: Vec<CertificateDer<'static>>,
}

impl AuthorityBundle {
    /// A bundle of one authority, trusting its roots.
    pub fn new(active: Authority) -> Self {
        let trusted = active.roots.clone();
        Self { active, earlier: Vec::new(), trusted }
    }

    /// The authority that signs.
    pub fn active(&self) -> &Authority {
        &self.active
    }

    /// Trusts further roots.
    pub fn trust(&mut self, roots_pem: &str) -> Result<(), AuthorityError> {
        let more = certificates_of(roots_pem, "the root to trust")?;
        TrustRoots::new(&more)?;
        let new = more.iter().filter(|root| !self.trusted.contains(root)).count();
        if self.trusted.len() + new > MAX_CERTIFICATES {
            return Err(CertificateError::TooLarge { what: "the bundle of roots" }.into());
        }
        self.add_roots(more);
        Ok(())
    }

    /// Signs with `next` from now on. The earlier authority is still trusted, and still revokes.
    pub fn activate(&mut self, next: Authority) {
        self.add_roots(next.roots.clone());
        self.earlier.push(std::mem::replace(&mut self.active, next));
    }

    /// Trusts the active authority's roots only.
    pub fn retire_earlier(&mut self) {
        self.earlier.clear();
        self.trusted.clone_from(&self.active.roots);
    }

    /// All trusted roots.
    pub fn roots_pem(&self) -> String {
        all_pem(&self.trusted)
    }

    /// The certificates that sign this bundle's revocation lists, and its roots.
    pub fn revocation_signers_pem(&self) -> String {
        let authorities = self.earlier.iter().chain([&self.active]);
        let mut signers: Vec<_> =
            authorities.flat_map(|authority| authority.intermediates.clone()).collect();
        signers.extend(self.trusted.iter().cloned());
        all_pem(&signers)
    }

    /// Signs a request that asks for exactly `authorised`.
    ///
    /// The answer is `cert_chain` of CreateCertificate: the leaf, intermediates, and last all
    /// trusted roots in one text. The leaf lives for `ttl`, but not longer than its signer.
    pub fn sign(
        &self,
        csr_pem: &str,
        authorised: &Identity,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<Vec<String>, AuthorityError> {
        let key = authorised_key(csr_pem, authorised)?;
        let leaf = self.active.issue(&key, vec![uri_name(authorised)?], ttl, now)?;
        let mut answer = vec![encode_pem("CERTIFICATE", &leaf)];
        answer.extend(self.active.intermediates.iter().map(|der| encode_pem("CERTIFICATE", der)));
        answer.push(self.roots_pem());
        Ok(answer)
    }

    /// Makes a server certificate, with a fresh key, for DNS names and IP addresses.
    pub fn issue_server(
        &self,
        names: &[&str],
        ttl: Duration,
        now: SystemTime,
    ) -> Result<ServerCertificate, AuthorityError> {
        if names.is_empty() || names.len() > MAX_SERVER_NAMES {
            return Err(AuthorityError::NameCount(names.len()));
        }
        let names = names.iter().map(|name| server_name(name)).collect::<Result<_, _>>()?;
        let key = WorkloadKey::generate()?;
        let leaf = self.active.issue(&key, names, ttl, now)?;
        let chain_pem = encode_pem("CERTIFICATE", &leaf) + &all_pem(&self.active.intermediates);
        Ok(ServerCertificate { chain_pem, key_pem: private_key_pem(&key.to_pkcs8_der()) })
    }

    /// Writes the full list of revoked certificates, one CRL for each authority of the bundle.
    ///
    /// Workloads refuse an authority's certificates once its list is older than `valid_for`: sign
    /// again well before, even if nothing changed.
    pub fn revoke(
        &self,
        serials: &[Serial],
        now: SystemTime,
        valid_for: Duration,
    ) -> Result<String, AuthorityError> {
        let number = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.revoke_as(serials, number, now, valid_for)
    }

    /// As [`Self::revoke`], with this CRL number. RFC 5280 section 5.2.3 asks that it only grows,
    /// and workloads refuse a list with a smaller one.
    pub fn revoke_as(
        &self,
        serials: &[Serial],
        number: u64,
        now: SystemTime,
        valid_for: Duration,
    ) -> Result<String, AuthorityError> {
        let list =
            |authority: &Authority| authority.revocation_list(serials, number, now, valid_for);
        self.earlier.iter().chain([&self.active]).map(list).collect()
    }

    /// How many lists [`Self::revoke`] writes, each with all serials.
    pub fn revocation_lists(&self) -> usize {
        self.earlier.len() + 1
    }

    fn add_roots(&mut self, roots: Vec<CertificateDer<'static>>) {
        for root in roots {
            if !self.trusted.contains(&root) {
                self.trusted.push(root);
            }
        }
    }
}

/// Whether a certificate is that of an authority (RFC 5280 sections 4.2.1.3 and 4.2.1.9).
fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    let usage = match certificate.key_usage() {
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    usage && certificate.is_ca()
}

fn key_identifier_of(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
        _ => None,
    })
}

fn uri_name(identity: &Identity) -> Result<SanType, AuthorityError> {
    let uri = identity.to_string();
    let name = uri.clone().try_into().map_err(|_| AuthorityError::Name(uri))?;
    Ok(SanType::URI(name))
}

fn server_name(name: &str) -> Result<SanType, AuthorityError> {
    if let Ok(address) = name.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || AuthorityError::Name(name.to_owned());
    rustls_pki_types::DnsName::try_from(name).map_err(|_| refused())?;
    Ok(SanType::DnsName(name.try_into().map_err(|_| refused())?))
}

fn all_pem(certificates: &[CertificateDer<'_>]) -> String {
    certificates.iter().map(|der| encode_pem("CERTIFICATE", der)).collect()
}

/// The end of something that starts now, within what X.509 can write.
fn expiry(now: SystemTime, life: Duration) -> OffsetDateTime {
    let longest = now + ROOT_LIFETIME;
    now.checked_add(life).unwrap_or(longest).min(longest).into()
}

/// 128 random bits, positive and never zero.
fn random_serial() -> Result<Serial, AuthorityError> {
    let mut octets = [0; SERIAL_BYTES];
    aws_lc_rs::rand::fill(&mut octets).map_err(|_| AuthorityError::Random)?;
    octets[0] |= 1;
    Ok(Serial::from_der_integer(&octets))
}
