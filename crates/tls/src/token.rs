//! Tokens of nodes and of pods: JWT ES256, shaped like a Kubernetes service account token.
//!
//! Control signs a token for each node and each waypoint's pod, and verifies what nodes present.
//! There is one algorithm and one issuer: the header is compared with them, never obeyed. Claims
//! are read only after the signature is verified. A token without an expiry, for another audience
//! or from another issuer is refused. A token is a secret: it is never part of an error.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::PrivateKeyDer;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::key::{KeyError, private_key_of, private_key_pem};

/// The issuer of node tokens.
pub const ISSUER: &str = "ambit";
/// The longest token that is read; Kubernetes' own are about 1 KiB long.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// How far the clock that issued a token may be ahead of ours.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// The header of every token that is signed here.
const HEADER: &str = r#"{"alg":"ES256","typ":"JWT"}"#;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Who issued it: [`ISSUER`].
    pub issuer: String,
    /// Its audience, such as `istio-ca`.
    pub audience: Vec<String>,
    /// When it was issued.
    pub issued_at: SystemTime,
    /// When it ends.
    pub expires_at: SystemTime,
    /// Namespace of its service account.
    pub namespace: String,
    /// Name of its service account.
    pub service_account: String,
    /// The node that it is bound to.
    pub node: String,
    /// The pod that it is bound to; none for a node's own.
    pub pod: Option<PodClaim>,
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodClaim {
    /// Its name.
    pub name: String,
    /// Its uid: a later pod of the same name is another.
    pub uid: String,
}

impl Claims {
    /// `system:serviceaccount:<namespace>:<name>`, the name of the bearer.
    pub fn subject(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.service_account)
    }
}

/// Why a token is refused, or cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The signing key cannot be made or read.
    #[error("the key that signs tokens cannot be used")]
    Key(#[from] KeyError),
    /// The claims cannot be written.
    #[error("cannot sign a token: {0}")]
    Unsignable(&'static str),
    /// The token is beyond the limit.
    #[error("the token is {0} bytes long; at most {MAX_TOKEN_BYTES} are read")]
    TooLarge(usize),
    /// The token is not three base64url parts of JSON, JSON and signature.
    #[error("the token is not a JWT: {0}")]
    Malformed(&'static str),
    /// The header names another algorithm or a feature that is not supported.
    #[error("the token's header is not {HEADER}; only tokens of this authority are accepted")]
    Header,
    /// The signature is not by this authority's key.
    #[error("the token was not signed by this authority, or was changed after signing")]
    Signature,
    /// The issuer is another one.
    #[error("the token was issued by {0:?}, expected was {ISSUER:?}")]
    Issuer(String),
    /// The token is meant for somebody else.
    #[error("the token is meant for {got:?}, expected was {expected:?}")]
    Audience {
        /// The audience here.
        expected: String,
        /// The audiences in the token.
        got: Vec<String>,
    },
    /// The token has ended.
    #[error("the token expired {} s ago; ask for a new one", .0.as_secs())]
    Expired(Duration),
    /// The token is not valid yet.
    #[error("the token becomes valid in {} s; one clock is wrong", .0.as_secs())]
    NotYetValid(Duration),
    /// The subject is not the service account of the token's other claims.
    #[error("the token's subject {0:?} is not the service account that its other claims name")]
    Subject(String),
}

/// The claims as JSON has them.
#[derive(Serialize, Deserialize)]
struct WireClaims {
    iss: String,
    sub: String,
    aud: Audience,
    iat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<u64>,
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: WireBinding,
}

/// RFC 7519 section 4.1.3: one string, or a list.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

#[derive(Serialize, Deserialize)]
struct WireBinding {
    namespace: String,
    serviceaccount: WireName,
    node: WireName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<PodClaim>,
}

#[derive(Serialize, Deserialize)]
struct WireName {
    name: String,
}

/// The header, as far as it is compared.
#[derive(Deserialize)]
struct WireHeader {
    alg: String,
    typ: Option<String>,
    /// RFC 7515 section 4.1.11: what is listed here must be understood; nothing is.
    crit: Option<serde_json::Value>,
}

/// Signs tokens.
pub struct TokenSigner {
    pair: EcdsaKeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

impl TokenSigner {
    /// Makes a fresh key.
    pub fn generate() -> Result<Self, TokenError> {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
                .map_err(|_| KeyError::Generate)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads the key from PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, TokenError> {
        match &*private_key_of(pem)? {
            PrivateKeyDer::Pkcs8(der) => Self::from_pkcs8(der.secret_pkcs8_der()),
            _ => Err(KeyError::Unsupported("in PKCS#8 (`BEGIN PRIVATE KEY`)").into()),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, TokenError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der)
            .map_err(|_| KeyError::Unsupported("an ECDSA P-256 key in PKCS#8"))?;
        Ok(Self { pair, pkcs8: Zeroizing::new(der.to_vec()) })
    }

    /// The key as PKCS#8 PEM, for the caller's private file and nothing else.
    pub fn to_pem(&self) -> Zeroizing<String> {
        private_key_pem(&self.pkcs8)
    }

    /// The verifier of the tokens that it signs.
    pub fn verifier(&self) -> TokenVerifier {
        TokenVerifier { public_point: self.pair.public_key().as_ref().into() }
    }

    /// Signs; times are cut to seconds.
    pub fn sign(&self, claims: &Claims) -> Result<Zeroizing<String>, TokenError> {
        let wire = WireClaims {
            iss: claims.issuer.clone(),
            sub: claims.subject(),
            aud: Audience::Many(claims.audience.clone()),
            iat: seconds(claims.issued_at)?,
            nbf: None,
            exp: seconds(claims.expires_at)?,
            kubernetes: WireBinding {
                namespace: claims.namespace.clone(),
                serviceaccount: WireName { name: claims.service_account.clone() },
                node: WireName { name: claims.node.clone() },
                pod: claims.pod.clone(),
            },
        };
        let body = serde_json::to_vec(&wire).expect("texts and numbers are always JSON");
        let mut token = URL_SAFE_NO_PAD.encode(HEADER);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(body, &mut token);
        let signature = self
            .pair
            .sign(&SystemRandom::new(), token.as_bytes())
            .map_err(|_| TokenError::Unsignable("the system's random source failed"))?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        match token.len() {
            0..=MAX_TOKEN_BYTES => Ok(Zeroizing::new(token)),
            _ => Err(TokenError::Unsignable("its claims are longer than any verifier reads")),
        }
    }
}

/// Verifies tokens of one signer.
#[derive(Clone)]
pub struct TokenVerifier {
    public_point: Arc<[u8]>,
}

impl TokenVerifier {
    /// The claims of a token that is signed, in date, of [`ISSUER`] and meant for `audience`.
    pub fn verify(
        &self,
        token: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLarge(token.len()));
        }
        let (signed, signature) =
            token.rsplit_once('.').ok_or(TokenError::Malformed("it has fewer than three parts"))?;
        let (header, body) =
            signed.split_once('.').ok_or(TokenError::Malformed("it has fewer than three parts"))?;
        let header: WireHeader = serde_json::from_slice(&decode(header)?)
            .map_err(|_| TokenError::Malformed("its header is not a JSON object with alg"))?;
        let typed = header.typ.is_none_or(|typ| typ.eq_ignore_ascii_case("JWT"));
        if header.alg != "ES256" || header.crit.is_some() || !typed {
            return Err(TokenError::Header);
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.public_point)
            .verify(signed.as_bytes(), &decode(signature)?)
            .map_err(|_| TokenError::Signature)?;
        let claims: WireClaims = serde_json::from_slice(&decode(body)?)
            .map_err(|_| TokenError::Malformed("its claims are not those of a node token"))?;
        accept(claims, audience, now)
    }
}

/// Checks claims whose signature is good.
fn accept(wire: WireClaims, audience: &str, now: SystemTime) -> Result<Claims, TokenError> {
    if wire.iss != ISSUER {
        return Err(TokenError::Issuer(wire.iss));
    }
    let audiences = match wire.aud {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    };
    if !audiences.iter().any(|meant| meant == audience) {
        return Err(TokenError::Audience { expected: audience.into(), got: audiences });
    }
    let expires_at = moment(wire.exp)?;
    if let Ok(ago) = now.duration_since(expires_at) {
        return Err(TokenError::Expired(ago));
    }
    let issued_at = moment(wire.iat)?;
    let valid_from = wire.nbf.map(moment).transpose()?.unwrap_or(issued_at).max(issued_at);
    if let Ok(ahead) = valid_from.duration_since(now)
        && ahead > CLOCK_SKEW
    {
        return Err(TokenError::NotYetValid(ahead));
    }
    let claims = Claims {
        issuer: wire.iss,
        audience: audiences,
        issued_at,
        expires_at,
        namespace: wire.kubernetes.namespace,
        service_account: wire.kubernetes.serviceaccount.name,
        node: wire.kubernetes.node.name,
        pod: wire.kubernetes.pod,
    };
    if wire.sub != claims.subject() {
        return Err(TokenError::Subject(wire.sub));
    }
    Ok(claims)
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed("a part is not base64url"))
}

fn seconds(time: SystemTime) -> Result<u64, TokenError> {
    time.duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs())
        .map_err(|_| TokenError::Unsignable("a time lies before 1970"))
}

fn moment(seconds: u64) -> Result<SystemTime, TokenError> {
    UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .ok_or(TokenError::Malformed("a time is out of range"))
}
