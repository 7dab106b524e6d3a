//! What the mesh reads from a certificate, and the PEM that carries it.
//!
//! Parsing is bounded and trusts nothing: it shows what a certificate claims, and only `verify`
//! decides whether that is true. Serial numbers and issuers are compared as bytes, so no formatting
//! rule can make two different certificates look alike.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::Text;
use ambit_model::identity::{Identity, IdentityError};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate, X509Name};

use crate::key::KeyError;
use crate::pem_block::encode_pem;

/// The longest text that is looked through for certificates.
const MAX_CERTIFICATES_PEM_BYTES: usize = 1 << 20;
/// The most certificates that one chain or one bundle of roots may hold.
pub(crate) const MAX_CERTIFICATES: usize = 64;
/// RFC 5280 section 4.1.2.2 allows 20 octets; some authorities use a few more.
const MAX_SERIAL_BYTES: usize = 32;

/// A certificate's serial number. Displays as lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Arc<[u8]>);

impl Serial {
    /// From the content octets of the DER INTEGER; leading zeros carry no meaning.
    pub(crate) fn from_der_integer(octets: &[u8]) -> Self {
        let start = octets.iter().position(|&octet| octet != 0).unwrap_or(octets.len());
        Self(octets[start..].into())
    }

    /// The magnitude, big-endian, without leading zeros.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Decimal, the form of ztunnel's `config_dump`.
    pub fn to_decimal(&self) -> String {
        let mut digits = vec![0u8];
        for &octet in self.0.iter() {
            let mut carry = u32::from(octet);
            for digit in &mut digits {
                let value = u32::from(*digit) * 256 + carry;
                *digit = u8::try_from(value % 10).expect("a remainder of ten is one digit");
                carry = value / 10;
            }
            while carry > 0 {
                digits.push(u8::try_from(carry % 10).expect("a remainder of ten is one digit"));
                carry /= 10;
            }
        }
        digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect()
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("00");
        }
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl FromStr for Serial {
    type Err = CertificateError;

    /// Reads hexadecimal, as [`Serial`] displays it and as openssl prints it (with colons).
    fn from_str(text: &str) -> Result<Self, CertificateError> {
        let refused = || CertificateError::Serial(text.chars().take(80).collect());
        let digits: Vec<u8> = text
            .chars()
            .filter(|&c| c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()
            .ok_or_else(refused)?;
        if digits.is_empty() || digits.len() > MAX_SERIAL_BYTES * 2 {
            return Err(refused());
        }
        let octets: Vec<u8> = digits
            .rchunks(2)
            .rev()
            .map(|pair| pair.iter().fold(0, |octet, digit| octet << 4 | digit))
            .collect();
        Ok(Self::from_der_integer(&octets))
    }
}

/// The distinguished name of an issuer, compared by its DER. Displays as text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Issuer(Arc<[u8]>);

impl Issuer {
    /// Keeps the name's DER unchanged: RFC 5280's rules of comparison are never applied.
    pub(crate) fn from_name(name: &X509Name<'_>) -> Self {
        Self(name.as_raw().into())
    }
}

impl fmt::Display for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match X509Name::from_der(&self.0) {
            Ok((_, name)) => write!(f, "{name}"),
            Err(_) => f.write_str("(unreadable name)"),
        }
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Issuer({self})")
    }
}

/// One certificate of a chain, for `get certificates` and `config_dump`.
#[derive(Clone, Debug)]
pub struct CertificateSummary {
    /// The certificate itself.
    pub pem: String,
    /// Its serial number.
    pub serial: Serial,
    /// Whom it belongs to.
    pub subject: Issuer,
    /// Who issued it.
    pub issuer: Issuer,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
}

impl CertificateSummary {
    /// What the first certificate of a PEM text says, unverified.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        let certificates = certificates_of(pem, "the certificate")?;
        Self::of(&certificates[0])
    }

    /// Reads what a certificate says, without judging it.
    pub(crate) fn of(der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let certificate = parse(der)?;
        let claims = Claims::of(&certificate);
        Ok(Self {
            pem: encode_pem("CERTIFICATE", der),
            serial: claims.serial,
            subject: Issuer::from_name(certificate.subject()),
            issuer: claims.issuer,
            not_before: claims.not_before,
            not_after: claims.not_after,
        })
    }
}

/// Why a certificate, a chain, a bundle of roots or a hand-over of them cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text holds no certificate.
    #[error("{0} holds no PEM block of type CERTIFICATE")]
    Empty(&'static str),
    /// The text or the number of its certificates is beyond the limit.
    #[error("{what} is too large: at most {MAX_CERTIFICATES} certificates in 1 MiB are read")]
    TooLarge {
        /// Which text.
        what: &'static str,
    },
    /// The text is not PEM.
    #[error("{what} is not valid PEM")]
    Pem {
        /// Which text.
        what: &'static str,
        /// What the decoder says.
        source: pem::Error,
    },
    /// A certificate is not X.509 version 3 in DER.
    #[error("a certificate cannot be read: {0}")]
    Unreadable(String),
    /// A text is not a serial number.
    #[error("{0:?} is not a serial number; write it in hexadecimal, as `get certificates` does")]
    Serial(String),
    /// A certificate does not name exactly one workload.
    #[error("the certificate does not name one workload")]
    NotOneIdentity(#[from] NotOneIdentity),
    /// The certificate was issued to another workload than it was asked for.
    #[error("the authority answered with a certificate for {got}, asked was one for {expected}")]
    OtherIdentity {
        /// For whom it was asked.
        expected: Identity,
        /// For whom it is.
        got: Identity,
    },
    /// The certificate belongs to another key.
    #[error("the certificate was not issued for the key that signed the request")]
    OtherKey,
    /// A private key was given together with the certificate of another one.
    #[error("the private key does not belong to the certificate; write the two of one pair")]
    NotItsKey,
    /// One of several certificates cannot be used.
    #[error("certificate {name} cannot be used")]
    Named {
        /// Which one.
        name: Text,
        /// Why.
        source: Box<CertificateError>,
    },
    /// A listener that terminates TLS was given no certificate.
    #[error("the listener has no certificate; name at least one")]
    NoneGiven,
    /// The answer of the authority ends without roots.
    #[error("the authority's answer has {0} part(s); the leaf first and the roots last are needed")]
    NoRoots(usize),
    /// The chain does not lead to the roots that came with it, so that every peer would refuse it.
    #[error("the certificate does not chain to the roots that came with it: {0}")]
    Unchained(String),
    /// The private key cannot be used.
    #[error("the key of the certificate cannot be used")]
    Key(#[from] KeyError),
    /// A hand-over is not what [`crate::WorkloadCertificate::to_bytes`] wrote.
    #[error("the handed-over certificate is damaged at byte {offset}: {problem}")]
    HandOver {
        /// Where reading stopped.
        offset: usize,
        /// What is wrong there.
        problem: &'static str,
    },
    /// A name is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
}

/// Why a certificate does not name exactly one workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOneIdentity {
    /// SPIFFE requires exactly one URI among the subject's alternative names.
    #[error("it has {0} URI names; SPIFFE requires exactly one")]
    UriCount(usize),
    /// An alternative name, or the list of them, cannot be read.
    #[error("its alternative names cannot be read")]
    Unreadable,
    /// The URI is not a workload identity.
    #[error("its URI is not a workload identity")]
    Uri(#[from] IdentityError),
}

/// What a certificate says about itself; true only once it was verified.
pub(crate) struct Claims {
    pub(crate) serial: Serial,
    pub(crate) issuer: Issuer,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl Claims {
    /// Takes over what verification, revocation and `get certificates` need.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            serial: Serial::from_der_integer(certificate.raw_serial()),
            issuer: Issuer::from_name(certificate.issuer()),
            not_before: system_time(validity.not_before),
            not_after: system_time(validity.not_after),
        }
    }
}

/// Parses one DER certificate with nothing behind it.
pub(crate) fn parse<'a>(
    der: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, CertificateError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(CertificateError::Unreadable("bytes follow its end".into())),
        Err(error) => Err(CertificateError::Unreadable(error.to_string())),
    }
}

/// The one SPIFFE identity that a certificate names.
pub(crate) fn identity_of(certificate: &X509Certificate<'_>) -> Result<Identity, NotOneIdentity> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| NotOneIdentity::Unreadable)?
        .ok_or(NotOneIdentity::UriCount(0))?;
    one_identity(&names.value.general_names)
}

/// The one SPIFFE identity among alternative names; other kinds of names are ignored.
pub(crate) fn one_identity(names: &[GeneralName<'_>]) -> Result<Identity, NotOneIdentity> {
    // A name that cannot be read may be a second URI: what is not understood is refused.
    if names.iter().any(|name| matches!(name, GeneralName::Invalid(..))) {
        return Err(NotOneIdentity::Unreadable);
    }
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.count()) {
        (Some(uri), 0) => Ok(uri.parse()?),
        (None, _) => Err(NotOneIdentity::UriCount(0)),
        (Some(_), more) => Err(NotOneIdentity::UriCount(more + 1)),
    }
}

/// Every certificate of a PEM text, at least one.
pub(crate) fn certificates_of(
    text: &str,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    if text.len() > MAX_CERTIFICATES_PEM_BYTES {
        return Err(CertificateError::TooLarge { what });
    }
    let found = CertificateDer::pem_slice_iter(text.as_bytes())
        .take(MAX_CERTIFICATES + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| CertificateError::Pem { what, source })?;
    match found.len() {
        0 => Err(CertificateError::Empty(what)),
        1..=MAX_CERTIFICATES => Ok(found),
        _ => Err(CertificateError::TooLarge { what }),
    }
}

/// A point in time as X.509 writes it.
pub(crate) fn system_time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn check_serial(text: &str, hexadecimal: &str, decimal: &str) {
        let serial: Serial = text.parse().expect("valid");
        assert_eq!((serial.to_string(), serial.to_decimal()), (hexadecimal.into(), decimal.into()));
    }

    #[test]
    fn serials_read_hexadecimal_and_print_both_ways() {
        check_serial("00", "00", "0");
        check_serial("a", "0a", "10");
        check_serial("00:ff", "ff", "255");
        check_serial(
            "7fffffffffffffffffffffffffffffff",
            "7fffffffffffffffffffffffffffffff",
            "170141183460469231731687303715884105727",
        );
        for wrong in ["", "xyz", "0x10", &"f".repeat(65)] {
            assert!(wrong.parse::<Serial>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn identity_needs_exactly_one_readable_uri() {
        let good = GeneralName::URI("spiffe://td/ns/a/sa/b");
        let other = GeneralName::URI("spiffe://td/ns/a/sa/c");
        let dns = GeneralName::DNSName("b.a.svc");
        let broken = GeneralName::Invalid(x509_parser::der_parser::asn1_rs::Tag(6), b"\xff");
        assert_eq!(one_identity(&[dns.clone(), good.clone()]), Ok(Identity::new("td", "a", "b")));
        assert_eq!(one_identity(&[dns]), Err(NotOneIdentity::UriCount(0)));
        assert_eq!(one_identity(&[good.clone(), other]), Err(NotOneIdentity::UriCount(2)));
        assert_eq!(one_identity(&[good, broken]), Err(NotOneIdentity::Unreadable));
        assert!(matches!(
            one_identity(&[GeneralName::URI("https://td/ns/a/sa/b")]),
            Err(NotOneIdentity::Uri(_))
        ));
    }

    proptest! {
        #[test]
        fn certificate_parsers_never_panic(bytes in vec(any::<u8>(), 0..600)) {
            let der = CertificateDer::from(bytes.clone());
            let _ = CertificateSummary::of(&der);
            let _ = crate::roots::TrustRoots::new(std::slice::from_ref(&der));
            let _ = certificates_of(&encode_pem("CERTIFICATE", &bytes), "test");
            let _ = certificates_of(&String::from_utf8_lossy(&bytes), "test");
        }

        #[test]
        fn pem_gives_back_what_it_was_given(bytes in vec(any::<u8>(), 1..300)) {
            let read = certificates_of(&encode_pem("CERTIFICATE", &bytes), "test").expect("valid");
            prop_assert_eq!(read, vec![CertificateDer::from(bytes)]);
        }
    }
}
