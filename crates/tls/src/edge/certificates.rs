//! The certificates of a listener, and which of them a client gets.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ambit_model::Text;
use rustls::SignatureAlgorithm;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::GeneralName;

use crate::certificate::{CertificateError, parse};
use crate::service::ServerCertificate;

/// One certificate of listeners, with its key, checked and ready for use.
///
/// To read a key costs more than a handshake, so this is made once per certificate and shared by
/// all acceptors that serve it.
pub struct EdgeCertificate {
    name: Text,
    certified: Arc<CertifiedKey>,
    /// The DNS names of the leaf in lower case; a wildcard begins with `*.`.
    dns_names: Vec<Box<str>>,
}

impl EdgeCertificate {
    /// Checks a pair. `name` says in an error which one it is.
    ///
    /// # Errors
    /// [`CertificateError::Named`]: the PEM cannot be read, a key is of an unknown kind, or it is
    /// not that of the certificate.
    pub fn new(name: Text, pair: &ServerCertificate) -> Result<Self, CertificateError> {
        match checked(pair) {
            Ok((certified, dns_names)) => {
                Ok(Self { name, certified: Arc::new(certified), dns_names })
            }
            Err(problem) => Err(CertificateError::Named { name, source: Box::new(problem) }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &Text {
        &self.name
    }

    /// The DNS names that it is for, in lower case.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.dns_names.iter().map(|it| &**it)
    }

    /// How readily it is taken among several for one name; less is more.
    fn rank(&self) -> u8 {
        match self.certified.key.algorithm() {
            SignatureAlgorithm::ECDSA => 0,
            SignatureAlgorithm::RSA => 2,
            _ => 1,
        }
    }
}

impl fmt::Debug for EdgeCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EdgeCertificate({} for {:?})", self.name, self.dns_names)
    }
}

fn checked(pair: &ServerCertificate) -> Result<(CertifiedKey, Vec<Box<str>>), CertificateError> {
    let certified = pair.certified("its text")?;
    let leaf = parse(&certified.cert[0])?;
    let names = leaf
        .subject_alternative_name()
        .map_err(|error| CertificateError::Unreadable(error.to_string()))?;
    let names = names.map_or(&[][..], |it| &it.value.general_names);
    let dns_names = names.iter().filter_map(|it| match it {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    });
    let dns_names = dns_names.collect();
    Ok((certified, dns_names))
}

/// Chooses by the name that a client asks for, and by the kind of key that it can verify.
pub(super) struct ByName {
    /// As they were given.
    all: Vec<Arc<CertifiedKey>>,
    /// By a name that is held as such; ECDSA before RSA.
    exact: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
    /// By what follows the first label of a wildcard; ECDSA before RSA.
    wildcard: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
}

impl ByName {
    /// `None` without any certificate.
    pub(super) fn new(certificates: &[Arc<EdgeCertificate>]) -> Option<Self> {
        if certificates.is_empty() {
            return None;
        }
        let all = certificates.iter().map(|it| Arc::clone(&it.certified)).collect();
        let (mut exact, mut wildcard) = (HashMap::new(), HashMap::new());
        let mut ranked: Vec<_> = certificates.iter().collect();
        ranked.sort_by_key(|it| it.rank());
        for certificate in ranked {
            for name in &certificate.dns_names {
                let (names, key) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut wildcard, Box::from(parent)),
                    None => (&mut exact, name.clone()),
                };
                names.entry(key).or_insert_with(Vec::new).push(Arc::clone(&certificate.certified));
            }
        }
        Some(Self { all, exact, wildcard })
    }

    /// Those for a name, the best first; in the end all of them.
    fn candidates<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<CertifiedKey>> + Clone {
        let exact = name.and_then(|name| self.exact.get(name));
        // A wildcard stands for one label (RFC 9525, 6.3).
        let parent = name.and_then(|name| name.split_once('.')).map(|(_, parent)| parent);
        let wildcard = parent.and_then(|parent| self.wildcard.get(parent));
        exact.into_iter().flatten().chain(wildcard.into_iter().flatten()).chain(&self.all)
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByName({} certificates)", self.all.len())
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let mut candidates = self.candidates(name.as_deref());
        // rustls has removed the schemes that no offered suite of TLS 1.2 can be used with.
        let offered = hello.signature_schemes();
        let best = candidates.clone().find(|it| it.key.choose_scheme(offered).is_some());
        best.or_else(|| candidates.next()).cloned()
    }
}
