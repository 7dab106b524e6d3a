//! Node tokens: JWT ES256 as Kubernetes writes service account tokens.
use std::time::SystemTime;
use zeroize::Zeroizing;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Issuer; control's own tokens say [`ISSUER`].
    pub issuer: String,
    /// `system:serviceaccount:<namespace>:<name>`.
    pub subject: String,
    /// For whom it is meant.
    pub audience: Vec<String>,
    /// When it was issued.
    pub issued_at: SystemTime,
    /// When it expires.
    pub expires_at: SystemTime,
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
    /// The node that it is bound to.
    pub node: String,
}

/// The issuer of node tokens.
pub const ISSUER: &str = "ambit";

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Expired.
    #[error("the token has expired")]
    Expired,
}

/// Signs tokens.
pub struct TokenSigner {}
impl TokenSigner {
    /// A fresh key.
    pub fn generate() -> Result<Self, TokenError> {
        unimplemented!()
    }
    /// From PKCS#8 PEM.
    pub fn from_pem(_pem: &str) -> Result<Self, TokenError> {
        unimplemented!()
    }
    /// To PKCS#8 PEM.
    pub fn to_pem(&self) -> Zeroizing<String> {
        unimplemented!()
    }
    /// The verifier of what it signs.
    pub fn verifier(&self) -> TokenVerifier {
        unimplemented!()
    }
    /// Signs.
    pub fn sign(&self, _claims: &Claims) -> Result<String, TokenError> {
        unimplemented!()
    }
}

/// Verifies tokens.
#[derive(Clone)]
pub struct TokenVerifier {}
impl TokenVerifier {
    /// Verifies signature, issuer, audience, times and shape.
    pub fn verify(
        &self,
        _token: &str,
        _audience: &str,
        _now: SystemTime,
    ) -> Result<Claims, TokenError> {
        unimplemented!()
    }
}
