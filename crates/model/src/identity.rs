//! Workload identity as SPIFFE writes it.
//!
//! An identity is a trust domain, a namespace and a service account. It never comes from the words
//! of a client: it is known from the namespace a socket lives in, or proven by a certificate.

use std::fmt;
use std::str::FromStr;

use crate::Text;

/// The service account of a workload that names none.
pub const DEFAULT_SERVICE_ACCOUNT: &str = "default";
/// SPIFFE-ID section 2.3 allows 2048 bytes for a whole identifier.
const MAX_SPIFFE_ID_BYTES: usize = 2048;

/// A workload identity, `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The trust domain that vouches for it.
    pub trust_domain: Text,
    /// Its Kubernetes namespace.
    pub namespace: Text,
    /// Its Kubernetes service account.
    pub service_account: Text,
}

/// Why a text is not a workload identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The scheme is missing.
    #[error("identity {0:?} does not start with spiffe://")]
    Scheme(String),
    /// The path is not `/ns/<namespace>/sa/<service account>`.
    #[error("identity {0:?} is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<name>")]
    Path(String),
    /// The text is longer than SPIFFE allows.
    #[error("identity is {0} bytes long; SPIFFE allows {MAX_SPIFFE_ID_BYTES}")]
    Length(usize),
}

impl Identity {
    /// Names an identity by its three parts.
    pub fn new(
        trust_domain: impl Into<Text>,
        namespace: impl Into<Text>,
        service_account: impl Into<Text>,
    ) -> Self {
        Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        }
    }

    /// The form policies name principals by: the SPIFFE ID without its scheme.
    pub fn principal(&self) -> String {
        format!("{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, service_account } = self;
        write!(f, "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}")
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        if text.len() > MAX_SPIFFE_ID_BYTES {
            return Err(IdentityError::Length(text.len()));
        }
        let rest =
            text.strip_prefix("spiffe://").ok_or_else(|| IdentityError::Scheme(text.into()))?;
        let mut parts = rest.split('/');
        let fields = [parts.next(), parts.next(), parts.next(), parts.next(), parts.next()];
        match (fields, parts.next()) {
            ([Some(td), Some("ns"), Some(ns), Some("sa"), Some(sa)], None)
                if !td.is_empty() && !ns.is_empty() && !sa.is_empty() =>
            {
                Ok(Self::new(td, ns, sa))
            }
            _ => Err(IdentityError::Path(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &str, &str)>) {
        let got = text.parse::<Identity>().ok();
        let expected = expected.map(|(td, ns, sa)| Identity::new(td, ns, sa));
        assert_eq!(got, expected, "{text}");
        if let Some(identity) = got {
            assert_eq!(identity.to_string(), text);
        }
    }

    #[test]
    fn spiffe_ids_parse_and_print() {
        check("spiffe://cluster.local/ns/a/sa/b", Some(("cluster.local", "a", "b")));
        check("spiffe://cluster.local/ns/a/sa/b/c", None);
        check("spiffe://cluster.local/ns//sa/b", None);
        check("spiffe:///ns/a/sa/b", None);
        check("https://cluster.local/ns/a/sa/b", None);
        check("", None);
        check(&format!("spiffe://x/ns/{}/sa/b", "n".repeat(3000)), None);
    }
}
