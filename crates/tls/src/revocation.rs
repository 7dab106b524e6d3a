//! Certificate revocation lists.
//!
//! A list is accepted only if a certificate that the caller trusts has signed it. One bad block
//! makes the whole text an error, so the caller keeps its old list instead of part of a new one.
//! Once there is a list for an issuer, its certificates are accepted only until the list expires:
//! an unknown status counts as revoked. If an issuer has no list, its certificates are not checked.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::{self, PemObject};
use x509_parser::der_parser::oid;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::certificate::{
    CertificateError, Issuer, MAX_CERTIFICATES, Serial, certificates_of, parse, system_time,
};
use crate::error::HandshakeError;
use crate::handshake::Peer;

/// The longest text that is read; a revoked certificate takes some 40 bytes of it.
const MAX_CRL_PEM_BYTES: usize = 64 << 20;

/// The revocation lists in force.
#[derive(Debug, Default)]
pub struct RevocationList {
    /// Several signers may share one name during a root rotation: one list for each of them.
    lists: HashMap<Issuer, Vec<SignedList>>,
}

/// A CRL number of up to 20 octets: compared by length, then by its octets without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Number(usize, Vec<u8>);

#[derive(Debug)]
struct SignedList {
    /// The public key that signed it. A name may have several while a root is rotated, and each
    /// counts its own lists.
    signer: Box<[u8]>,
    /// Its CRL number, RFC 5280 section 5.2.3.
    number: Option<Number>,
    this_update: SystemTime,
    revoked: HashSet<Serial>,
    next_update: Option<SystemTime>,
}

/// Why revocation lists cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The text is beyond the limit.
    #[error("the revocation lists are {0} bytes long; at most 64 MiB are read")]
    TooLarge(usize),
    /// More lists than any chain has issuers.
    #[error("there are more than {MAX_CERTIFICATES} revocation lists in the text")]
    TooMany,
    /// The text is not PEM.
    #[error("the text of the revocation lists is not valid PEM")]
    Pem(#[source] pem::Error),
    /// The text holds no list.
    #[error("the text holds no PEM block of type X509 CRL; remove the file if there is no list")]
    Empty,
    /// A list is not a CRL in DER.
    #[error("revocation list {number} cannot be read: {problem}")]
    Unreadable {
        /// Which block of the text, from one.
        number: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A list covers only a part of its issuer's certificates.
    #[error(
        "revocation list {number} of {issuer} is partial (delta, indirect or by scope); \
             only complete lists are supported"
    )]
    Partial {
        /// Which block of the text, from one.
        number: usize,
        /// Whose list it claims to be.
        issuer: Issuer,
    },
    /// No trusted certificate has signed a list.
    #[error(
        "revocation list {number} claims to be of {issuer}, and no trusted certificate of that \
             name has signed it"
    )]
    Unsigned {
        /// Which block of the text, from one.
        number: usize,
        /// Whose list it claims to be.
        issuer: Issuer,
    },
    /// The certificates that may sign lists cannot be read.
    #[error("the certificates that may sign revocation lists cannot be used")]
    Signers(#[from] CertificateError),
}

/// The single lists of a text, each with what stands before it. One that cannot be read, such as
/// one of an authority that is no longer trusted, then says nothing about the others.
pub fn blocks(crls_pem: &str) -> impl Iterator<Item = &str> {
    crls_pem.split_inclusive("-----END X509 CRL-----")
}

impl RevocationList {
    /// No list at all: nothing is revoked, and no status is asked for.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads one or more `X509 CRL` blocks, each signed by a certificate of `signers_pem`.
    ///
    /// The signers are the trusted roots and the intermediates of a chain that was verified (such
    /// as the workload's own): every signer that is named here can revoke.
    pub fn from_pem(crls_pem: &str, signers_pem: &str) -> Result<Self, RevocationError> {
        if crls_pem.len() > MAX_CRL_PEM_BYTES {
            return Err(RevocationError::TooLarge(crls_pem.len()));
        }
        let ders = CertificateRevocationListDer::pem_slice_iter(crls_pem.as_bytes())
            .take(MAX_CERTIFICATES + 1)
            .collect::<Result<Vec<_>, _>>()
            .map_err(RevocationError::Pem)?;
        if ders.is_empty() {
            return Err(RevocationError::Empty);
        }
        if ders.len() > MAX_CERTIFICATES {
            return Err(RevocationError::TooMany);
        }
        let signers = certificates_of(signers_pem, "the list of signers")?;
        let signers = signers.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let mut lists = HashMap::<Issuer, Vec<SignedList>>::new();
        for (index, der) in ders.iter().enumerate() {
            let (issuer, list) = read_list(index + 1, der, &signers)?;
            lists.entry(issuer).or_default().push(list);
        }
        Ok(Self { lists })
    }

    /// Whether a list in force names this certificate.
    pub fn is_revoked(&self, serial: &Serial, issuer: &Issuer) -> bool {
        let lists = self.lists.get(issuer);
        lists.is_some_and(|lists| lists.iter().any(|list| list.revoked.contains(serial)))
    }

    /// Whether the peer of a live connection, or an intermediate of its chain, is revoked by now.
    pub fn revokes(&self, peer: &Peer) -> bool {
        self.is_revoked(&peer.serial, &peer.issuer) || self.revokes_any(&peer.intermediates)
    }

    /// Whether a list in force names one of these certificates.
    pub fn revokes_any(&self, chain: &[(Serial, Issuer)]) -> bool {
        chain.iter().any(|(serial, issuer)| self.is_revoked(serial, issuer))
    }

    /// The earliest time at which a list falls out of date; its issuer's peers are refused then.
    pub fn next_update(&self) -> Option<SystemTime> {
        self.lists.values().filter_map(|lists| in_date_until(lists)).min()
    }

    /// The issuer whose list here is older, by its number, than the one `before` has of the same
    /// key. A list without a number is never older.
    pub fn goes_back(&self, before: &Self) -> Option<&Issuer> {
        self.lists.iter().find_map(|(issuer, lists)| {
            let earlier = before.lists.get(issuer)?;
            let is_older = |list: &&SignedList| {
                let known = newest(earlier, &list.signer);
                known.is_some() && list.number.is_some() && newest(lists, &list.signer) < known
            };
            lists.iter().any(|list| is_older(&list)).then_some(issuer)
        })
    }

    /// The largest CRL number, if it is one that an [`crate::AuthorityBundle`] can have given.
    pub fn number(&self) -> Option<u64> {
        let numbers = self.lists.values().flatten().filter_map(|list| list.number.as_ref());
        numbers.max()?.value()
    }

    /// When the newest of the lists was signed.
    pub fn this_update(&self) -> Option<SystemTime> {
        self.lists.values().flatten().map(|list| list.this_update).max()
    }

    /// The serials of revoked certificates; one may be there for each of several signers.
    pub fn serials(&self) -> impl Iterator<Item = &Serial> {
        self.lists.values().flatten().flat_map(|list| &list.revoked)
    }

    /// Number of revoked certificates.
    pub fn len(&self) -> usize {
        self.lists.values().flatten().map(|list| list.revoked.len()).sum()
    }

    /// Whether no certificate is revoked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses a certificate that is revoked, or whose status cannot be known at `now`.
    pub(crate) fn check(
        &self,
        serial: &Serial,
        issuer: &Issuer,
        now: SystemTime,
    ) -> Result<(), HandshakeError> {
        let Some(lists) = self.lists.get(issuer) else { return Ok(()) };
        if self.is_revoked(serial, issuer) {
            return Err(HandshakeError::Revoked { serial: serial.clone(), issuer: issuer.clone() });
        }
        match in_date_until(lists) {
            Some(next_update) if next_update <= now => {
                Err(HandshakeError::RevocationUnknown { issuer: issuer.clone(), next_update })
            }
            _ => Ok(()),
        }
    }
}

impl Number {
    fn new(octets: &[u8]) -> Self {
        let start = octets.iter().position(|octet| *octet != 0).unwrap_or(octets.len());
        Self(octets.len() - start, octets[start..].to_vec())
    }

    fn value(&self) -> Option<u64> {
        let fits = self.0 <= size_of::<u64>();
        fits.then(|| self.1.iter().fold(0, |value, octet| value << 8 | u64::from(*octet)))
    }
}

/// The largest number among the lists of one key.
fn newest<'a>(lists: &'a [SignedList], signer: &[u8]) -> Option<&'a Number> {
    let own = lists.iter().filter(|list| *list.signer == *signer);
    own.filter_map(|list| list.number.as_ref()).max()
}

/// When the last of one issuer's lists falls out of date; never, if one has no end.
///
/// Lists of one name are joined: an older one that a retired key signed only adds serials.
fn in_date_until(lists: &[SignedList]) -> Option<SystemTime> {
    lists.iter().map(|list| list.next_update).collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn read_list(
    number: usize,
    der: &CertificateRevocationListDer<'_>,
    signers: &[X509Certificate<'_>],
) -> Result<(Issuer, SignedList), RevocationError> {
    let unreadable = |problem| RevocationError::Unreadable { number, problem };
    let (rest, crl) =
        CertificateRevocationList::from_der(der).map_err(|error| unreadable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(unreadable("bytes follow its end".into()));
    }
    let issuer = Issuer::from_name(crl.issuer());
    // Critical extensions of a list limit its scope; of an entry, they name another issuer.
    let delta = oid!(2.5.29.27);
    let mut entries = crl.iter_revoked_certificates();
    if crl.extensions().iter().any(|extension| extension.critical || extension.oid == delta)
        || entries.any(|entry| entry.extensions().iter().any(|extension| extension.critical))
    {
        return Err(RevocationError::Partial { number, issuer });
    }
    let Some(signer) = signers.iter().find(|signer| has_signed(signer, &crl)) else {
        return Err(RevocationError::Unsigned { number, issuer });
    };
    let revoked = crl
        .iter_revoked_certificates()
        .map(|entry| Serial::from_der_integer(entry.raw_serial()))
        .collect();
    let list = SignedList {
        signer: signer.public_key().raw.into(),
        number: crl.crl_number().map(|number| Number::new(&number.to_bytes_be())),
        this_update: system_time(crl.last_update()),
        revoked,
        next_update: crl.next_update().map(system_time),
    };
    Ok((issuer, list))
}

fn has_signed(signer: &X509Certificate<'_>, crl: &CertificateRevocationList<'_>) -> bool {
    let may_sign = match signer.key_usage() {
        Ok(Some(usage)) => usage.value.crl_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    may_sign
        && signer.subject().as_raw() == crl.issuer().as_raw()
        && crl.verify_signature(signer.public_key()).is_ok()
}
