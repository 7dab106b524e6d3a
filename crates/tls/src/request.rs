//! Certificate signing requests, judged before anything is signed.
//!
//! A request may come from an attacker with a valid node token. It is signed only if it proves
//! possession of a sound key and asks for exactly the identity that the caller has authorised.
//! Anything else it asks for is refused or ignored, never copied.

use ambit_model::identity::Identity;
use rcgen::SubjectPublicKeyInfo;
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::{self, PemObject};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::der_parser::Oid;
use x509_parser::oid_registry::{
    OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSASSAPSS, OID_PKCS1_SHA256WITHRSA,
    OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519,
};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension};
use x509_parser::public_key::PublicKey;

use crate::certificate::{NotOneIdentity, one_identity};
use crate::key::MIN_RSA_MODULUS_BYTES;

/// The longest request that is read; one with an RSA-8192 key takes 4 KiB.
const MAX_REQUEST_PEM_BYTES: usize = 32 << 10;
/// The longest RSA modulus that is accepted: verification grows with its square.
const MAX_RSA_MODULUS_BYTES: usize = 8192 / 8;
/// Signatures of a request that count as proof of possession; none with SHA-1.
const SOUND_SIGNATURES: [Oid<'static>; 7] = [
    OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384,
    OID_SIG_ED25519,
    OID_PKCS1_SHA256WITHRSA,
    OID_PKCS1_SHA384WITHRSA,
    OID_PKCS1_SHA512WITHRSA,
    OID_PKCS1_RSASSAPSS,
];

/// Why a signing request is refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request is beyond the limit.
    #[error("the signing request is {0} bytes long; at most 32 KiB are read")]
    TooLarge(usize),
    /// The text is not a PEM request.
    #[error("the signing request is not a PEM block of type CERTIFICATE REQUEST")]
    Pem(#[source] pem::Error),
    /// The request is not PKCS#10 in DER.
    #[error("the signing request cannot be read: {0}")]
    Unreadable(String),
    /// The signature is not by the key that the request holds.
    #[error("the signing request is not signed by the key in it; it was changed after signing")]
    Signature,
    /// The signature uses an algorithm that proves nothing.
    #[error("the signing request is signed with algorithm {0}; use SHA-256 or better")]
    WeakSignature(String),
    /// The public key is of no supported kind.
    #[error(
        "the public key in the signing request is {0}; use ECDSA P-256 or P-384, RSA of 2048 \
             to 8192 bits, or Ed25519"
    )]
    Key(String),
    /// The request does not name exactly one workload.
    #[error("the signing request does not name one workload")]
    NotOneIdentity(#[from] NotOneIdentity),
    /// The request asks for other kinds of names, too.
    #[error("the signing request asks for names beside the SPIFFE URI; only that one is signed")]
    OtherNames,
    /// The request asks for an identity that was not authorised.
    #[error("the signing request is for {got}, authorised was {authorised}")]
    OtherIdentity {
        /// What the caller may have.
        authorised: Identity,
        /// What the request asks for.
        got: Identity,
    },
}

/// The public key of a request that asks for `authorised` and nothing else.
pub(crate) fn authorised_key(
    csr_pem: &str,
    authorised: &Identity,
) -> Result<SubjectPublicKeyInfo, RequestError> {
    if csr_pem.len() > MAX_REQUEST_PEM_BYTES {
        return Err(RequestError::TooLarge(csr_pem.len()));
    }
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(RequestError::Pem)?;
    let request = match X509CertificationRequest::from_der(&der) {
        Ok(([], request)) => request,
        Ok(_) => return Err(RequestError::Unreadable("bytes follow its end".into())),
        Err(error) => return Err(RequestError::Unreadable(error.to_string())),
    };
    check_key(&request)?;
    let algorithm = &request.signature_algorithm.algorithm;
    if !SOUND_SIGNATURES.contains(algorithm) {
        return Err(RequestError::WeakSignature(algorithm.to_id_string()));
    }
    request.verify_signature().map_err(|_| RequestError::Signature)?;
    let got = requested_identity(&request)?;
    if got != *authorised {
        return Err(RequestError::OtherIdentity { authorised: authorised.clone(), got });
    }
    SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw)
        .map_err(|error| RequestError::Key(error.to_string()))
}

/// Refuses keys that are too weak to trust or too large to verify with.
fn check_key(request: &X509CertificationRequest<'_>) -> Result<(), RequestError> {
    let key = &request.certification_request_info.subject_pki;
    let refused = |kind: String| Err(RequestError::Key(kind));
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => {
            let modulus = rsa.modulus.iter().skip_while(|&&octet| octet == 0).count();
            match modulus {
                MIN_RSA_MODULUS_BYTES..=MAX_RSA_MODULUS_BYTES => Ok(()),
                _ => refused(format!("RSA of {} bits", modulus * 8)),
            }
        }
        // The curve is checked with the signature and when the key is encoded again.
        Ok(PublicKey::EC(_)) if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY => Ok(()),
        _ if key.algorithm.algorithm == OID_SIG_ED25519 => Ok(()),
        _ => refused(format!("of type {}", key.algorithm.algorithm.to_id_string())),
    }
}

/// The only name in all extension requests of a request, which must be a SPIFFE URI.
fn requested_identity(request: &X509CertificationRequest<'_>) -> Result<Identity, RequestError> {
    let mut names: Vec<&GeneralName<'_>> = Vec::new();
    for attribute in request.certification_request_info.iter_attributes() {
        if let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() {
            for extension in &requested.extensions {
                if let ParsedExtension::SubjectAlternativeName(list) = extension.parsed_extension()
                {
                    names.extend(&list.general_names);
                }
            }
        }
    }
    let names: Vec<GeneralName<'_>> = names.into_iter().cloned().collect();
    let identity = one_identity(&names)?;
    if names.len() > 1 {
        return Err(RequestError::OtherNames);
    }
    Ok(identity)
}
