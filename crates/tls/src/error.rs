//! Why a handshake failed, in terms for operators.
//!
//! Each variant is one thing that can be wrong at one end, because each has its own remedy. The
//! peer gets a TLS alert, which names the kind of failure and never what was expected.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use ambit_model::Text;
use ambit_model::identity::Identity;
use rustls::{AlertDescription, CertificateError as TlsCertificateError, PeerIncompatible};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::certificate::{Issuer, NotOneIdentity, Serial};

/// Why there is no authenticated connection to a peer.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer sent no certificate.
    #[error("the peer presented no certificate; only workloads of the mesh are accepted here")]
    NoCertificate,
    /// A client of the edge sent no certificate.
    #[error("the client presented no certificate; the listener requires one of its roots")]
    NoClientCertificate,
    /// A listener requires certificates of its clients, and its roots cannot be used.
    #[error("no client can prove itself to this listener, for its roots cannot be used: {0}")]
    NoClientRoots(Text),
    /// The peer's certificate, or one in its chain, has expired.
    #[error(
        "the peer's certificate expired at {}, it is {} here; its rotation has stopped, or one \
         clock is wrong", moment(.not_after), moment(.now)
    )]
    Expired {
        /// End of its validity.
        not_after: SystemTime,
        /// The time it was judged at.
        now: SystemTime,
    },
    /// The peer's certificate, or one in its chain, is not valid yet.
    #[error(
        "the peer's certificate is valid from {}, it is {} here; one clock is wrong",
        moment(.not_before), moment(.now)
    )]
    NotYetValid {
        /// Start of its validity.
        not_before: SystemTime,
        /// The time it was judged at.
        now: SystemTime,
    },
    /// No trusted root vouches for the peer's certificate.
    #[error(
        "the peer's certificate was issued by {issuer:?}, for which none of the {roots} root(s) \
         trusted here vouches; the two ends have different authorities, or a root was retired early"
    )]
    UnknownIssuer {
        /// Who issued the leaf, by its own word.
        issuer: Issuer,
        /// Number of roots trusted here.
        roots: usize,
    },
    /// The peer's certificate cannot be read, or is not made for this use.
    #[error("the peer's certificate cannot be used: {0}")]
    Unusable(String),
    /// The peer's certificate names no workload, or several.
    #[error("the peer's certificate does not name one workload")]
    NotAWorkload(#[source] NotOneIdentity),
    /// The peer is another workload than the one that was meant.
    #[error("the peer is {got}, expected was {}; the address now belongs to another workload",
        joined(.expected))]
    WrongIdentity {
        /// Who would have been right.
        expected: Vec<Identity>,
        /// Who answered.
        got: Identity,
    },
    /// The server's certificate does not hold the name it was called by.
    #[error(
        "the server's certificate is not valid for {expected:?}, it holds {presented:?}; \
             call it by one of these or configure the alternative hostname"
    )]
    WrongName {
        /// The name that was asked for.
        expected: String,
        /// The names in its certificate.
        presented: Vec<String>,
    },
    /// The peer belongs to another trust domain.
    #[error("the peer is {got}, trust domains accepted here are {}", joined(.trusted))]
    ForeignTrustDomain {
        /// Who came.
        got: Identity,
        /// The trust domains that are accepted.
        trusted: Vec<Text>,
    },
    /// The peer's certificate, or one in its chain, was revoked.
    #[error("certificate {serial} of {issuer:?} in the peer's chain was revoked")]
    Revoked {
        /// Serial number of the revoked certificate.
        serial: Serial,
        /// Its issuer.
        issuer: Issuer,
    },
    /// The revocation list of an issuer in the peer's chain is out of date.
    #[error(
        "the revocation list of {issuer:?} was to be replaced by {}; until it is, its certificates \
         are refused", moment(.next_update)
    )]
    RevocationUnknown {
        /// Whose list it is.
        issuer: Issuer,
        /// When a new one was due.
        next_update: SystemTime,
    },
    /// The two ends share no TLS version, suite, group, signature scheme or ALPN protocol.
    #[error("the peer and this end have nothing in common: {0}")]
    Incompatible(String),
    /// The peer refused us.
    #[error("the peer refused the handshake with alert {alert}: {meaning}")]
    PeerAlert {
        /// Name of the alert as in RFC 8446 section 6.2.
        alert: String,
        /// What it says about this end.
        meaning: &'static str,
    },
    /// The peer does not follow TLS.
    #[error("the peer does not speak TLS as RFC 8446 defines it")]
    Protocol(#[source] ProtocolError),
    /// The peer closed the connection before the handshake was done.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The handshake did not end in time.
    #[error("no TLS handshake within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The transport failed.
    #[error("the connection broke during the handshake")]
    Io(#[source] io::Error),
}

/// What this end offers in a handshake; it is what an error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// What the mesh speaks.
    Mesh,
    /// What a gateway speaks with its clients.
    Edge,
}

/// A violation of the TLS protocol, as the TLS library words it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProtocolError(rustls::Error);

impl HandshakeError {
    /// The TLS failure inside an I/O error of an established stream, if it is one.
    ///
    /// In TLS 1.3 a client is done before the server has judged its certificate: a server's refusal
    /// arrives as an alert with the client's *first read*, not in `connect`.
    pub fn from_io(error: &io::Error) -> Option<Self> {
        Some(Self::from_tls(tls_error(error)?, Offer::Mesh))
    }

    /// What ended a handshake, when it was not this end's verdict on a certificate.
    pub(crate) fn from_handshake(error: io::Error, offer: Offer) -> Self {
        match tls_error(&error) {
            Some(known) => Self::from_tls(known, offer),
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::Closed,
            None => Self::Io(error),
        }
    }

    fn from_tls(error: &rustls::Error, offer: Offer) -> Self {
        match error {
            rustls::Error::NoCertificatesPresented => match offer {
                Offer::Mesh => Self::NoCertificate,
                Offer::Edge => Self::NoClientCertificate,
            },
            rustls::Error::AlertReceived(alert) => Self::from_alert(*alert),
            rustls::Error::NoApplicationProtocol => Self::Incompatible(match offer {
                Offer::Mesh => "the peer's ALPN protocols do not include h2".into(),
                Offer::Edge => "the client's ALPN protocols include none of the listener's".into(),
            }),
            rustls::Error::PeerIncompatible(reason) => {
                Self::Incompatible(incompatibility(reason, offer))
            }
            other => Self::Protocol(ProtocolError(other.clone())),
        }
    }

    fn from_alert(alert: AlertDescription) -> Self {
        let (name, meaning) = describe(alert);
        let alert = name.map_or_else(|| format!("{alert:?}"), str::to_owned);
        Self::PeerAlert { alert, meaning }
    }

    /// The alert that rustls sends to the peer: the kind of failure, nothing about what was
    /// expected.
    pub(crate) fn to_alert(&self) -> rustls::Error {
        let kind = match self {
            Self::Expired { .. } => TlsCertificateError::Expired,
            Self::NotYetValid { .. } => TlsCertificateError::NotValidYet,
            Self::UnknownIssuer { .. } => TlsCertificateError::UnknownIssuer,
            Self::WrongIdentity { .. }
            | Self::ForeignTrustDomain { .. }
            | Self::NoClientRoots(_) => TlsCertificateError::ApplicationVerificationFailure,
            Self::WrongName { .. } => TlsCertificateError::NotValidForName,
            Self::Revoked { .. } => TlsCertificateError::Revoked,
            Self::RevocationUnknown { .. } => TlsCertificateError::UnknownRevocationStatus,
            _ => TlsCertificateError::BadEncoding,
        };
        rustls::Error::InvalidCertificate(kind)
    }
}

/// The failure of TLS inside an I/O error, if it is one.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn incompatibility(reason: &PeerIncompatible, offer: Offer) -> String {
    let (versions, suites, groups) = match offer {
        Offer::Mesh => (
            "the peer does not offer TLS 1.3",
            "the peer offers neither AES_128_GCM_SHA256 nor AES_256_GCM_SHA384",
            "the peer offers none of the groups X25519MLKEM768, x25519, secp256r1",
        ),
        Offer::Edge => (
            "the client offers neither TLS 1.3 nor TLS 1.2",
            "the client offers no suite with ECDHE and AES-GCM or ChaCha20-Poly1305 that the \
             certificate can be used with",
            "the client offers none of the groups X25519MLKEM768, x25519, secp256r1, secp384r1",
        ),
    };
    match reason {
        PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::ServerDoesNotSupportTls12Or13 => versions.into(),
        PeerIncompatible::NoCipherSuitesInCommon => suites.into(),
        PeerIncompatible::NoKxGroupsInCommon => groups.into(),
        PeerIncompatible::NoSignatureSchemesInCommon => {
            "the peer offers no signature scheme that our certificate can use".into()
        }
        other => format!("{other:?}"),
    }
}

/// Name and meaning of an alert; without a name, the library's own is used.
fn describe(alert: AlertDescription) -> (Option<&'static str>, &'static str) {
    use AlertDescription as Alert;
    let (name, meaning) = match alert {
        Alert::HandshakeFailure => ("handshake_failure", "no suite, group or scheme in common"),
        Alert::ProtocolVersion => ("protocol_version", "it does not speak TLS 1.3"),
        Alert::NoApplicationProtocol => ("no_application_protocol", "it does not speak h2"),
        Alert::BadCertificate => ("bad_certificate", "it cannot use our certificate"),
        Alert::UnsupportedCertificate => {
            ("unsupported_certificate", "our certificate is not made for this use")
        }
        Alert::CertificateRevoked => ("certificate_revoked", "our certificate was revoked"),
        Alert::CertificateExpired => {
            ("certificate_expired", "by its clock our certificate is not valid now")
        }
        Alert::CertificateUnknown => ("certificate_unknown", "it does not accept our certificate"),
        Alert::UnknownCA => ("unknown_ca", "it does not trust the root of our certificate"),
        Alert::AccessDenied => ("access_denied", "our identity is not one it accepts here"),
        Alert::CertificateRequired => ("certificate_required", "it requires a client certificate"),
        Alert::DecryptError => ("decrypt_error", "a signature of ours did not verify"),
        _ => return (None, "see RFC 8446 section 6.2"),
    };
    (Some(name), meaning)
}

/// A time as RFC 3339 writes it, in whole seconds.
pub fn moment(time: &SystemTime) -> String {
    let time = OffsetDateTime::from(*time);
    let time = time.replace_nanosecond(0).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_else(|_| time.to_string())
}

fn joined(items: &[impl fmt::Display]) -> String {
    match items {
        [] => "nobody".into(),
        items => items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn errors_name_what_was_expected_and_found() {
        let error = HandshakeError::WrongIdentity {
            expected: vec![Identity::new("td", "a", "b"), Identity::new("td", "a", "c")],
            got: Identity::new("td", "x", "y"),
        };
        let text = error.to_string();
        assert!(text.contains("spiffe://td/ns/x/sa/y"), "{text}");
        assert!(text.contains("spiffe://td/ns/a/sa/b or spiffe://td/ns/a/sa/c"), "{text}");
        let now = UNIX_EPOCH + Duration::from_secs(86_400);
        let text = HandshakeError::Expired { not_after: UNIX_EPOCH, now }.to_string();
        assert!(text.contains("1970-01-01T00:00:00Z"), "{text}");
        assert!(text.contains("1970-01-02T00:00:00Z"), "{text}");
    }

    #[test]
    fn alerts_are_named_as_in_the_rfc() {
        let read =
            |alert| HandshakeError::from_io(&io::Error::other(rustls::Error::AlertReceived(alert)));
        for (alert, expected) in [
            (AlertDescription::UnknownCA, "unknown_ca"),
            (AlertDescription::AccessDenied, "access_denied"),
            (AlertDescription::InternalError, "InternalError"),
        ] {
            let Some(HandshakeError::PeerAlert { alert, .. }) = read(alert) else { panic!() };
            assert_eq!(alert, expected);
        }
        assert!(HandshakeError::from_io(&io::Error::other("anything else")).is_none());
    }
}
