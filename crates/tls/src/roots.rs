//! The roots that a chain may end at, and the chains that are known to end there.

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, TrustAnchor};

use crate::certificate::CertificateError;
use crate::known::KnownChains;

/// The roots that a chain may end at.
#[derive(Debug)]
pub(crate) struct TrustRoots {
    anchors: Vec<TrustAnchor<'static>>,
    fingerprint: [u8; 32],
    known: KnownChains,
}

impl TrustRoots {
    /// Trusts every one of `roots`; of their contents only name, key and name constraints count
    /// (RFC 5280 section 6.1.1).
    pub(crate) fn new(roots: &[CertificateDer<'_>]) -> Result<Self, CertificateError> {
        let anchor_of = |der| {
            webpki::anchor_from_trusted_cert(der)
                .map(|anchor| anchor.to_owned())
                .map_err(|error| CertificateError::Unreadable(error.to_string()))
        };
        let anchors = roots.iter().map(anchor_of).collect::<Result<_, _>>()?;
        Ok(Self { anchors, fingerprint: fingerprint_of(roots), known: KnownChains::default() })
    }

    /// Trusts the roots of the public web, as Mozilla lists them.
    pub(crate) fn public() -> Self {
        let anchors = webpki_roots::TLS_SERVER_ROOTS.to_vec();
        let names: Vec<u8> = anchors.iter().flat_map(|it| it.subject.to_vec()).collect();
        let fingerprint = digest::digest(&digest::SHA256, &names);
        let fingerprint = fingerprint.as_ref().try_into().expect("SHA-256 yields 32 bytes");
        Self { anchors, fingerprint, known: KnownChains::default() }
    }

    pub(crate) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Chains that end at these roots and were verified before.
    pub(crate) fn known(&self) -> &KnownChains {
        &self.known
    }

    /// Changes exactly when the set of roots does.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// SHA-256 over the roots' own SHA-256, in sorted order: the order of a bundle carries no meaning.
fn fingerprint_of(roots: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut each: Vec<_> =
        roots.iter().map(|der| digest::digest(&digest::SHA256, der).as_ref().to_vec()).collect();
    each.sort();
    each.dedup();
    let whole = digest::digest(&digest::SHA256, &each.concat());
    whole.as_ref().try_into().expect("SHA-256 yields 32 bytes")
}
