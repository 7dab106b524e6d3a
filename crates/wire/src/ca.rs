//! Requests to the certificate authority.
//!
//! A node proxy proves itself with its node's token and names the pod that the certificate is for.
//! Reading a request decides nothing: whether the caller may have that identity is the CA's matter.

use ambit_words::names::IMPERSONATED_IDENTITY;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use ambit_model::identity::{Identity, IdentityError};

use crate::proto::istio::v1::auth::IstioCertificateRequest;

/// Asks for a certificate on behalf of a pod.
pub fn request_for(
    identity: &Identity,
    csr_pem: String,
    validity_seconds: i64,
) -> IstioCertificateRequest {
    let value = Value { kind: Some(Kind::StringValue(identity.to_string())) };
    IstioCertificateRequest {
        csr: csr_pem,
        validity_duration: validity_seconds,
        metadata: Some(Struct { fields: [(IMPERSONATED_IDENTITY.to_owned(), value)].into() }),
    }
}

/// The identity that a request names; none when the caller asks for its own.
pub fn requested_identity(
    request: &IstioCertificateRequest,
) -> Result<Option<Identity>, IdentityError> {
    let fields = request.metadata.as_ref().map(|metadata| &metadata.fields);
    let Some(value) = fields.and_then(|fields| fields.get(IMPERSONATED_IDENTITY)) else {
        return Ok(None);
    };
    match &value.kind {
        Some(Kind::StringValue(text)) => text.parse().map(Some),
        // Not a text: no identity at all.
        _ => Err(IdentityError::Scheme(String::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive() {
        let identity = Identity::new("cluster.local", "books", "details");
        let mut request = request_for(&identity, "CSR".into(), 60);
        assert_eq!(requested_identity(&request), Ok(Some(identity)));
        let metadata = request.metadata.as_mut().unwrap();
        for wrong in [Kind::NumberValue(1.0), Kind::StringValue("books/details".into())] {
            let value = Value { kind: Some(wrong) };
            metadata.fields.insert(IMPERSONATED_IDENTITY.into(), value);
            let metadata = Some(metadata.clone());
            let request = IstioCertificateRequest { metadata, ..Default::default() };
            assert!(requested_identity(&request).is_err());
        }
        request.metadata = None;
        assert_eq!(requested_identity(&request), Ok(None));
    }
}
