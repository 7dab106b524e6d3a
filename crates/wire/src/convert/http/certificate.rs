//! A certificate of a gateway, with its private key.

use ambit_model::http::certificate::{Certificate, CertificateName};
use zeroize::Zeroizing;

use super::super::{ConvertError, Problem};
use crate::proto::ambit::http as proto;

impl TryFrom<proto::Certificate> for Certificate {
    type Error = ConvertError;

    fn try_from(message: proto::Certificate) -> Result<Self, ConvertError> {
        let proto::Certificate { gateway, secret, chain_pem, key_pem } = message;
        // The text is moved: no copy of it stays behind.
        let key_pem = Zeroizing::new(key_pem);
        let fields = [
            ("gateway", &gateway),
            ("secret", &secret),
            ("chain_pem", &chain_pem),
            ("key_pem", &*key_pem),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, value)| value.is_empty()) {
            return Err(ConvertError::new(field, Problem::Missing));
        }
        let key: CertificateName = format!("{gateway}/{secret}")
            .parse()
            .map_err(|error| ConvertError::new("secret", Problem::Name(error)))?;
        Ok(Self { key, chain_pem, key_pem })
    }
}

impl From<&Certificate> for proto::Certificate {
    fn from(it: &Certificate) -> Self {
        Self {
            gateway: it.key.gateway.to_string(),
            secret: it.key.secret.to_string(),
            chain_pem: it.chain_pem.clone(),
            key_pem: it.key_pem.to_string(),
        }
    }
}
