//! Whether a listener's clients prove themselves, and what their certificates say.

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::gateway::ClientValidation;
use aws_lc_rs::digest;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::EndEntityCert;
use x509_parser::prelude::GeneralName;

use crate::certificate::{CertificateError, certificates_of, parse};
use crate::edge::distinguished_name;
use crate::error::HandshakeError;
use crate::known::Usage;
use crate::pem_block::encode_pem;
use crate::provider::signature_algorithms;
use crate::revocation::RevocationList;
use crate::roots::TrustRoots;
use crate::verify::{Accepted, Verifier, leave_verdict};

/// What a verified client certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// SHA-256 of its DER, in hexadecimal.
    pub sha256: String,
    /// Its subject as RFC 2253 writes it, in ASCII.
    pub subject: String,
    /// The URIs among its alternative names.
    pub uris: Vec<String>,
    /// The DNS names among its alternative names.
    pub dns_names: Vec<String>,
    /// The certificate itself.
    pub pem: String,
}

impl ClientCertificate {
    /// Reads a certificate that was verified. Names with anything but visible ASCII characters are
    /// left out: they are written into header fields.
    pub(super) fn of(leaf: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let certificate = parse(leaf)?;
        let names = certificate.subject_alternative_name().ok().flatten();
        let (mut uris, mut dns_names) = (Vec::new(), Vec::new());
        for name in names.map_or(&[][..], |it| &it.value.general_names) {
            match name {
                GeneralName::URI(uri) if is_visible(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) if is_visible(name) => {
                    dns_names.push((*name).to_owned())
                }
                _ => {}
            }
        }
        let sha256 = digest::digest(&digest::SHA256, leaf);
        Ok(Self {
            sha256: sha256.as_ref().iter().map(|octet| format!("{octet:02x}")).collect(),
            subject: distinguished_name::text(certificate.subject()),
            uris,
            dns_names,
            pem: encode_pem("CERTIFICATE", leaf),
        })
    }
}

fn is_visible(name: &str) -> bool {
    name.bytes().all(|it| it.is_ascii_graphic())
}

/// Asks clients for a certificate, and judges it.
#[derive(Debug)]
pub(super) struct Clients {
    rule: Rule,
    /// The names of the roots, by which a browser chooses among its certificates.
    hints: Vec<DistinguishedName>,
}

#[derive(Debug)]
enum Rule {
    /// One that a root vouches for is required.
    Required(Verifier),
    /// Any is taken, and none too.
    Optional(Verifier),
    /// None is good enough, and this is why.
    Impossible(Text),
}

impl Clients {
    /// Judges by a listener's rule; `None` if clients are not asked for certificates.
    pub(super) fn new(validation: &ClientValidation) -> Result<Option<Self>, CertificateError> {
        let (rule, hints) = match validation {
            ClientValidation::None => return Ok(None),
            ClientValidation::Required { roots_pem } => {
                let (verifier, hints) = verifier(roots_pem)?;
                (Rule::Required(verifier), hints)
            }
            ClientValidation::Optional { roots_pem } => {
                let (verifier, hints) = verifier(roots_pem)?;
                (Rule::Optional(verifier), hints)
            }
            ClientValidation::Impossible { problem } => {
                (Rule::Impossible(problem.clone()), Vec::new())
            }
        };
        Ok(Some(Self { rule, hints }))
    }

    /// Why no client can prove itself, if so.
    pub(super) fn impossible(&self) -> Option<Text> {
        match &self.rule {
            Rule::Impossible(problem) => Some(problem.clone()),
            Rule::Required(_) | Rule::Optional(_) => None,
        }
    }

    /// Whether a signature proves nothing and is not judged. webpki does not read certificates of
    /// X.509 version 1, so such a one was not verified either: its client counts as one without.
    fn is_ignored(&self, certificate: &CertificateDer<'_>) -> bool {
        matches!(self.rule, Rule::Optional(_)) && EndEntityCert::try_from(certificate).is_err()
    }
}

/// Whether clients can be judged by these roots, as PEM.
///
/// # Errors
/// They hold no certificate, or one that cannot be read.
pub fn check_roots(roots_pem: &str) -> Result<(), CertificateError> {
    verifier(roots_pem).map(drop)
}

/// Verifies against the roots of a listener, and names them.
fn verifier(roots_pem: &str) -> Result<(Verifier, Vec<DistinguishedName>), CertificateError> {
    let roots = certificates_of(roots_pem, "the roots for clients")?;
    let roots = Arc::new(TrustRoots::new(&roots)?);
    let anchors = roots.anchors().iter();
    let hints = anchors.map(|it| DistinguishedName::in_sequence(&it.subject)).collect();
    let verifier = Verifier {
        roots,
        revocations: Arc::new(RevocationList::none()),
        accepted: Accepted::Anyone,
        anonymous_clients: false,
    };
    Ok((verifier, hints))
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        !matches!(self.rule, Rule::Optional(_))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match &self.rule {
            Rule::Required(verifier) => verifier.verify_client_cert(end_entity, intermediates, now),
            Rule::Optional(verifier) => {
                let usage = Usage::Client;
                // No verdict is left of one that is not verified: it is as if there was none.
                if let Ok(verified) = verifier.judge(end_entity, intermediates, usage, now) {
                    leave_verdict(Ok(verified));
                }
                Ok(ClientCertVerified::assertion())
            }
            Rule::Impossible(problem) => {
                let refused = HandshakeError::NoClientRoots(problem.clone());
                let alert = refused.to_alert();
                leave_verdict(Err(refused));
                Err(alert)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.is_ignored(cert) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        rustls::crypto::verify_tls12_signature(message, cert, dss, signature_algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.is_ignored(cert) {
            return Ok(HandshakeSignatureValid::assertion());
        }
        rustls::crypto::verify_tls13_signature(message, cert, dss, signature_algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature_algorithms().supported_schemes()
    }
}
