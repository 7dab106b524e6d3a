//! Private keys of workloads and of certificate signers.
//!
//! A key is zeroized when it is dropped, and never displayed. It leaves this crate only when a
//! caller asks for it explicitly: as PKCS#8, for the sealed memory that hands it to another
//! process.

use std::fmt;

use ambit_model::identity::Identity;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rcgen::{
    CertificateParams, DistinguishedName, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, SanType, SignatureAlgorithm, SigningKey,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use crate::pem_block::encode_pem;

/// The longest text that is looked through for a private key.
const MAX_KEY_PEM_BYTES: usize = 64 << 10;
/// Shorter RSA keys are refused, as browsers and istiod refuse them.
pub(crate) const MIN_RSA_MODULUS_BYTES: usize = 2048 / 8;

/// Why a key cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system gave no randomness.
    #[error("cannot generate a key: the system's random source failed")]
    Generate,
    /// The text is not PEM, or holds no private key.
    #[error("no private key can be read from the PEM text")]
    Pem(#[source] pem::Error),
    /// The text is beyond the limit.
    #[error("the text of the private key is {0} bytes long; at most 64 KiB are read")]
    TooLarge(usize),
    /// The key is of a kind that is not supported here.
    #[error("the private key is not {0}")]
    Unsupported(&'static str),
    /// A signing request could not be written.
    #[error("cannot write the signing request")]
    Request(#[source] rcgen::Error),
}

/// The ECDSA P-256 key of one workload.
pub struct WorkloadKey {
    pair: EcdsaKeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

impl WorkloadKey {
    /// Makes a fresh key.
    pub fn generate() -> Result<Self, KeyError> {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
                .map_err(|_| KeyError::Generate)?;
        Self::from_pkcs8_der(document.as_ref())
    }

    /// Reads a key from PKCS#8 DER.
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map_err(|_| KeyError::Unsupported("an ECDSA P-256 key in PKCS#8"))?;
        Ok(Self { pair, pkcs8: Zeroizing::new(der.to_vec()) })
    }

    /// The key as PKCS#8 DER, for the sealed memory of the hand-over and nothing else.
    pub fn to_pkcs8_der(&self) -> Zeroizing<Vec<u8>> {
        self.pkcs8.clone()
    }

    /// The key as PKCS#8 PEM, for the Secret of a gateway, and for other meshes' programs: those
    /// that a benchmark compares with read nothing else.
    pub fn to_pkcs8_pem(&self) -> Zeroizing<String> {
        private_key_pem(&self.pkcs8)
    }

    /// A signing request for `identity`: empty subject and, because of that, a critical SAN URI.
    pub fn csr_pem(&self, identity: &Identity) -> Result<String, KeyError> {
        let uri = identity.to_string().try_into().map_err(KeyError::Request)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(uri)];
        let request = params.serialize_request(self).map_err(KeyError::Request)?;
        Ok(encode_pem("CERTIFICATE REQUEST", request.der()))
    }

    /// The same for a server of these DNS names, as DER: for an authority that proves them itself.
    pub fn server_csr_der(&self, hosts: &[String]) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::new(hosts).map_err(KeyError::Request)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(self).map_err(KeyError::Request)?;
        Ok(request.der().to_vec())
    }

    /// The key for rustls, which keeps a copy of its own (freed zeroized by AWS-LC).
    pub(crate) fn as_private_key_der(&self) -> PrivateKeyDer<'_> {
        PrivatePkcs8KeyDer::from(self.pkcs8.as_slice()).into()
    }

    /// The public point, uncompressed.
    pub(crate) fn public_point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }
}

impl fmt::Debug for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkloadKey(redacted)")
    }
}

impl PublicKeyData for WorkloadKey {
    fn der_bytes(&self) -> &[u8] {
        self.public_point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for WorkloadKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        sign_ecdsa(&self.pair, message)
    }
}

/// The key of an authority: its own P-256, or whatever a plugged-in intermediate brings.
pub(crate) enum AuthorityKey {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl AuthorityKey {
    /// Reads PKCS#8, SEC1 (`EC PRIVATE KEY`) or PKCS#1 (`RSA PRIVATE KEY`).
    pub(crate) fn from_pem(text: &str) -> Result<Self, KeyError> {
        let kinds = "ECDSA P-256 or P-384, RSA of 2048 to 8192 bits, or Ed25519";
        let pairs = match &*private_key_of(text)? {
            PrivateKeyDer::Pkcs8(der) => Self::from_pkcs8(der.secret_pkcs8_der()),
            PrivateKeyDer::Sec1(der) => {
                let der = der.secret_sec1_der();
                let p256 = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, der);
                let p384 = EcdsaKeyPair::from_private_key_der(&ECDSA_P384_SHA384_ASN1_SIGNING, der);
                p256.map(Self::P256).or(p384.map(Self::P384)).ok()
            }
            PrivateKeyDer::Pkcs1(der) => {
                RsaKeyPair::from_der(der.secret_pkcs1_der()).map(Self::Rsa).ok()
            }
            _ => None,
        };
        pairs.filter(Self::is_long_enough).ok_or(KeyError::Unsupported(kinds))
    }

    fn from_pkcs8(der: &[u8]) -> Option<Self> {
        let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der);
        let p384 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_ASN1_SIGNING, der);
        let rsa = || RsaKeyPair::from_pkcs8(der);
        let ed25519 = || Ed25519KeyPair::from_pkcs8(der);
        (p256.map(Self::P256))
            .or_else(|_| p384().map(Self::P384))
            .or_else(|_| rsa().map(Self::Rsa))
            .or_else(|_| ed25519().map(Self::Ed25519))
            .ok()
    }

    fn is_long_enough(&self) -> bool {
        match self {
            Self::Rsa(pair) => pair.public_modulus_len() >= MIN_RSA_MODULUS_BYTES,
            Self::P256(_) | Self::P384(_) | Self::Ed25519(_) => true,
        }
    }
}

impl PublicKeyData for AuthorityKey {
    fn der_bytes(&self) -> &[u8] {
        match self {
            Self::P256(pair) | Self::P384(pair) => pair.public_key().as_ref(),
            Self::Rsa(pair) => pair.public_key().as_ref(),
            Self::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match self {
            Self::P256(_) => &PKCS_ECDSA_P256_SHA256,
            Self::P384(_) => &PKCS_ECDSA_P384_SHA384,
            Self::Rsa(_) => &PKCS_RSA_SHA256,
            Self::Ed25519(_) => &PKCS_ED25519,
        }
    }
}

impl SigningKey for AuthorityKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        match self {
            Self::P256(pair) | Self::P384(pair) => sign_ecdsa(pair, message),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
                    .map_err(|_| rcgen::Error::RingUnspecified)?;
                Ok(signature)
            }
            Self::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

fn sign_ecdsa(pair: &EcdsaKeyPair, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
    pair.sign(&SystemRandom::new(), message)
        .map(|signature| signature.as_ref().to_vec())
        .map_err(|_| rcgen::Error::RingUnspecified)
}

/// The first private key of a PEM text.
pub(crate) fn private_key_of(text: &str) -> Result<Zeroizing<PrivateKeyDer<'static>>, KeyError> {
    if text.len() > MAX_KEY_PEM_BYTES {
        return Err(KeyError::TooLarge(text.len()));
    }
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map(Zeroizing::new).map_err(KeyError::Pem)
}

/// PKCS#8 DER as PEM, zeroized when dropped.
pub(crate) fn private_key_pem(pkcs8: &[u8]) -> Zeroizing<String> {
    Zeroizing::new(encode_pem("PRIVATE KEY", pkcs8))
}
