//! A certificate that a gateway serves or shows to backends, with its private key.
//!
//! The key is zeroized when it is dropped, and never displayed. Each gateway has its own copy,
//! under a name that begins with the gateway's: so it is plain who may ask for it, and a gateway
//! that names it no longer loses it.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::Text;
use crate::names::{NameError, ServiceName};

/// Names a certificate of one gateway, `namespace/hostname/namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateName {
    /// The service in front of the gateway's pods.
    pub gateway: ServiceName,
    /// `namespace/name` of the Secret, as the gateway names it.
    pub secret: Text,
}

/// A certificate and its key, as a Secret of Kubernetes holds them.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its name.
    pub key: CertificateName,
    /// The leaf, then intermediates, as PEM.
    pub chain_pem: String,
    /// The private key as PEM.
    pub key_pem: Zeroizing<String>,
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.gateway, self.secret)
    }
}

impl FromStr for CertificateName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::new(text);
        let (at, _) = text.match_indices('/').nth(1).ok_or_else(wrong)?;
        let secret: ServiceName = text[at + 1..].parse().map_err(|_| wrong())?;
        let gateway = text[..at].parse().map_err(|_| wrong())?;
        Ok(Self { gateway, secret: secret.to_string().into() })
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({}, redacted)", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_with_that_of_its_gateway() {
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let name = text.parse::<CertificateName>().ok();
            let parts = name.as_ref().map(|it| (it.gateway.to_string(), it.secret.to_string()));
            let parts = parts.as_ref().map(|(gateway, secret)| (&**gateway, &**secret));
            assert_eq!(parts, expected, "{text}");
            assert!(name.is_none_or(|it| it.to_string() == text));
        };
        check("edge/ingress.svc/shop/tls", Some(("edge/ingress.svc", "shop/tls")));
        for wrong in ["", "a/b", "a/b/c", "a/b/c/", "a//c/d", "a/b/c/d/e"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_key_is_never_displayed() {
        let key_pem = Zeroizing::new("secret".to_owned());
        let key = "edge/ingress/shop/tls".parse().expect("a name");
        let it = Certificate { key, chain_pem: "chain".into(), key_pem };
        assert_eq!(format!("{it:?}"), "Certificate(edge/ingress/shop/tls, redacted)");
    }
}
