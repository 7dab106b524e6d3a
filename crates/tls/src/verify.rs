//! The verdict on a peer's certificate, for both directions and for named servers.
//!
//! The chain is verified up to a trusted root, at the time that rustls passes in and for the right
//! key usage; then revocation; then the name. Between workloads only the SPIFFE URI counts: SNI and
//! DNS names are ignored. Nothing here decides what a proven identity may do.
//!
//! rustls calls a verifier while a handshake is polled, and keeps only the part of its verdict that
//! becomes an alert. So the whole verdict travels to the handshake's future in a thread-local slot,
//! which is emptied after every poll ([`take_verdict`]). The alternative, a separate configuration
//! for every accepted connection, costs a session cache each.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::Text;
use ambit_model::identity::Identity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{GeneralName, X509Certificate};

use crate::certificate::{Claims, Issuer, MAX_CERTIFICATES, Serial, identity_of, parse};
use crate::error::HandshakeError;
use crate::known::{ChainKey, KnownChain, Usage};
use crate::provider::signature_algorithms;
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;

/// Whom this end accepts.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A workload that is one of these.
    OneOf(Box<[Identity]>),
    /// Any workload of these trust domains.
    TrustDomains(Arc<[Text]>),
    /// Any workload that a trusted root vouches for.
    AnyWorkload,
    /// A server whose certificate holds one of these names.
    Named(Names),
    /// Anyone that a trusted root vouches for. The names are not read.
    Anyone,
}

/// What a server may prove that is no workload.
#[derive(Debug)]
pub(crate) struct Names {
    /// Hosts.
    pub(crate) hosts: Box<[ServerName<'static>]>,
    /// URIs, compared as they are written.
    pub(crate) uris: Box<[Box<str>]>,
}

/// A peer's certificate after it was verified.
#[derive(Debug)]
pub(crate) struct VerifiedCertificate {
    /// Absent for a server that was verified by name, and where names are not read.
    pub(crate) identity: Option<Identity>,
    /// Serial number of the leaf.
    pub(crate) serial: Serial,
    /// Issuer of the leaf.
    pub(crate) issuer: Issuer,
    /// End of the leaf's validity.
    pub(crate) not_after: SystemTime,
    /// Serial and issuer of every authority between the leaf and the root.
    pub(crate) intermediates: Arc<[(Serial, Issuer)]>,
}

/// The verdict on one peer.
pub(crate) type Verdict = Result<VerifiedCertificate, HandshakeError>;

thread_local! {
    static VERDICT: RefCell<Option<Verdict>> = const { RefCell::new(None) };
}

/// The verdict reached on this thread since the last call, if any.
pub(crate) fn take_verdict() -> Option<Verdict> {
    VERDICT.with_borrow_mut(Option::take)
}

/// Leaves a verdict for the future whose poll has asked for it.
pub(crate) fn leave_verdict(verdict: Verdict) {
    VERDICT.set(Some(verdict));
}

/// Verifies peers, as rustls asks for it.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// Where every chain has to end.
    pub(crate) roots: Arc<TrustRoots>,
    /// What no longer counts, at any place of the chain.
    pub(crate) revocations: Arc<RevocationList>,
    /// Who may be at the other end.
    pub(crate) accepted: Accepted,
    /// Whether a client may come without a certificate.
    pub(crate) anonymous_clients: bool,
}

impl Verifier {
    /// Judges a chain, leaf first, at `now`.
    ///
    /// The order is from general to particular: a certificate that no root vouches for is refused
    /// as such, whatever name it claims.
    pub(crate) fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Verdict {
        if intermediates.len() > MAX_CERTIFICATES {
            return Err(HandshakeError::Unusable("its chain is too long".into()));
        }
        let unusable = |error: webpki::Error| HandshakeError::Unusable(error.to_string());
        let end_entity = EndEntityCert::try_from(leaf).map_err(unusable)?;
        let certificate =
            parse(leaf).map_err(|error| HandshakeError::Unusable(error.to_string()))?;
        let claims = Claims::of(&certificate);
        let key = ChainKey::of(usage, leaf, intermediates);
        let chain = match self.roots.known().get(&key, since_epoch(now)) {
            Some(chain) => chain,
            None => {
                let chain = self.verify(&end_entity, &claims, intermediates, usage, now)?;
                // Certificates that the path does not need are anybody's bytes.
                if chain.intermediates.len() == intermediates.len() {
                    self.roots.known().insert(key, chain.clone());
                }
                chain
            }
        };
        let now = since_epoch(now);
        self.revocations.check(&claims.serial, &claims.issuer, now)?;
        for (serial, issuer) in &*chain.intermediates {
            self.revocations.check(serial, issuer, now)?;
        }
        let identity = match &self.accepted {
            Accepted::Named(names) => {
                check_names(&end_entity, &certificate, names)?;
                None
            }
            Accepted::Anyone => None,
            workload => {
                let identity = identity_of(&certificate).map_err(HandshakeError::NotAWorkload)?;
                check_identity(workload, &identity)?;
                Some(identity)
            }
        };
        Ok(VerifiedCertificate {
            identity,
            serial: claims.serial,
            issuer: claims.issuer,
            not_after: claims.not_after,
            intermediates: chain.intermediates,
        })
    }

    /// Verifies a chain up to a root.
    fn verify(
        &self,
        leaf: &EndEntityCert<'_>,
        claims: &Claims,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<KnownChain, HandshakeError> {
        let algorithms = signature_algorithms().all;
        let usage = match usage {
            Usage::Client => KeyUsage::client_auth(),
            Usage::Server => KeyUsage::server_auth(),
        };
        let anchors = self.roots.anchors();
        let path = leaf
            .verify_for_usage(algorithms, anchors, intermediates, now, usage, None, None)
            .map_err(|error| self.refusal(error, &claims.issuer))?;
        let (mut not_before, mut not_after) = (claims.not_before, claims.not_after);
        let mut authorities = Vec::new();
        for authority in path.intermediate_certificates() {
            let der = authority.der();
            let authority =
                parse(&der).map_err(|error| HandshakeError::Unusable(error.to_string()))?;
            let claims = Claims::of(&authority);
            not_before = not_before.max(claims.not_before);
            not_after = not_after.min(claims.not_after);
            authorities.push((claims.serial, claims.issuer));
        }
        Ok(KnownChain { intermediates: authorities.into(), not_before, not_after })
    }

    /// Judges a chain and leaves the whole verdict for the handshake's future.
    fn judge_in_handshake(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: Usage,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verdict = self.judge(leaf, intermediates, usage, now);
        let told = verdict.as_ref().map(|_| ()).map_err(HandshakeError::to_alert);
        leave_verdict(verdict);
        told
    }

    /// What a failure to build a chain means to an operator.
    fn refusal(&self, error: webpki::Error, issuer: &Issuer) -> HandshakeError {
        match error {
            webpki::Error::CertExpired { time, not_after } => HandshakeError::Expired {
                not_after: since_epoch(not_after),
                now: since_epoch(time),
            },
            webpki::Error::CertNotValidYet { time, not_before } => HandshakeError::NotYetValid {
                not_before: since_epoch(not_before),
                now: since_epoch(time),
            },
            // A root of the same name with another key is as unknown as one of another name.
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
                HandshakeError::UnknownIssuer {
                    issuer: issuer.clone(),
                    roots: self.roots.anchors().len(),
                }
            }
            other => HandshakeError::Unusable(other.to_string()),
        }
    }
}

fn check_identity(accepted: &Accepted, got: &Identity) -> Result<(), HandshakeError> {
    match accepted {
        Accepted::OneOf(expected) if !expected.contains(got) => {
            Err(HandshakeError::WrongIdentity { expected: expected.to_vec(), got: got.clone() })
        }
        Accepted::TrustDomains(trusted) if !trusted.contains(&got.trust_domain) => {
            Err(HandshakeError::ForeignTrustDomain { got: got.clone(), trusted: trusted.to_vec() })
        }
        _ => Ok(()),
    }
}

/// Whether a certificate holds one of these names; an error is about the first.
fn check_names(
    leaf: &EndEntityCert<'_>,
    certificate: &X509Certificate<'_>,
    names: &Names,
) -> Result<(), HandshakeError> {
    let hosts = names.hosts.iter().map(|name| check_name(leaf, name));
    let uris = names.uris.iter().map(|uri| check_uri(certificate, uri));
    let mut checks = hosts.chain(uris);
    let first = checks.next().unwrap_or(Err(HandshakeError::NoCertificate));
    if first.is_ok() || checks.any(|check| check.is_ok()) { Ok(()) } else { first }
}

fn check_name(leaf: &EndEntityCert<'_>, name: &ServerName<'_>) -> Result<(), HandshakeError> {
    leaf.verify_is_valid_for_subject_name(name).map_err(|error| match error {
        webpki::Error::CertNotValidForName(context) => HandshakeError::WrongName {
            expected: name.to_str().into_owned(),
            presented: context.presented,
        },
        other => HandshakeError::Unusable(other.to_string()),
    })
}

fn check_uri(certificate: &X509Certificate<'_>, expected: &str) -> Result<(), HandshakeError> {
    let names = certificate.subject_alternative_name();
    let names = names.map_err(|error| HandshakeError::Unusable(error.to_string()))?;
    let names = names.map_or(&[][..], |it| &it.value.general_names);
    let uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    let presented: Vec<String> = uris.collect();
    if presented.iter().any(|uri| uri == expected) {
        return Ok(());
    }
    Err(HandshakeError::WrongName { expected: expected.to_owned(), presented })
}

fn since_epoch(time: UnixTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.judge_in_handshake(end_entity, intermediates, Usage::Server, now)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, signature_algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.anonymous_clients
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A workload has one certificate: a hint would only cost bytes in every handshake.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.judge_in_handshake(end_entity, intermediates, Usage::Client, now)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, signature_algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}
