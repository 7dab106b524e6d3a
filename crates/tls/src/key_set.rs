//! The public keys of a token issuer (RFC 7517), and whether one of them signed a token.
//!
//! It does not check the claims of a token: whether it has expired, whose it is, or whether it was
//! revoked. It drops forgeries cheaply, before the API server is asked. The algorithm in a token's
//! header is compared with the key, never obeyed.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Keys that are read of a set; an issuer has one, and another while it changes them.
const MAX_KEYS: usize = 32;
/// The longest text of a set that is read.
pub const MAX_SET_BYTES: usize = 256 << 10;

/// How long an Ed25519 public key is.
const ED25519_SIZE_BYTES: usize = 32;

/// The public keys of an issuer. A key whose `use` is another than `sig` is left out; one with an
/// `alg` is good for that algorithm alone.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if the issuer says so.
    algorithm: Option<String>,
    material: Material,
}

/// The key itself. Each kind has its own algorithms, so a token cannot choose how it is verified: a
/// public RSA key is never taken for the secret of an HMAC.
#[derive(Debug)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Why a token is not one of the issuer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forgery {
    /// It is no signed token.
    #[error("it is not a signed JWT")]
    Malformed,
    /// Its key is none of the set. The set may be old.
    #[error("it names a key that its issuer does not publish")]
    UnknownKey,
    /// The key that it names has not signed it.
    #[error("its signature is not its issuer's")]
    Signature,
}

/// Why a set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The text is no set.
    #[error("the issuer's keys are no JSON Web Key Set")]
    Unreadable(#[source] serde_json::Error),
    /// It is longer than any issuer's.
    #[error("the issuer's keys are {0} bytes long; at most {MAX_SET_BYTES} are read")]
    TooLarge(usize),
    /// No key of it is for signatures that are known here.
    #[error("none of the issuer's keys is for RS, PS, ES or EdDSA signatures")]
    Empty,
}

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<WireKey>,
}

#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct WireHeader {
    alg: String,
    kid: Option<String>,
    /// RFC 7515 section 4.1.11: what is listed here must be understood; nothing is.
    crit: Option<serde_json::Value>,
}

/// What is read of a key.
const MEMBERS: [&str; 9] = ["kty", "kid", "alg", "use", "crv", "n", "e", "x", "y"];

/// A JSON Web Key Set with nothing but what is read of it, in one order: equal sets are equal
/// texts, whoever fetched them.
pub fn canonical(text: &str) -> Result<String, KeySetError> {
    KeySet::from_json(text)?;
    let set: Value = serde_json::from_str(text).map_err(KeySetError::Unreadable)?;
    let keys = set["keys"].as_array().into_iter().flatten().take(MAX_KEYS);
    let read = |key: &Value| {
        let members = MEMBERS.iter().filter_map(|name| Some((*name, key.get(name)?)));
        members.map(|(name, value)| (name.to_owned(), value.clone())).collect::<Map<_, _>>()
    };
    let mut keys: Vec<String> = keys.map(|key| Value::Object(read(key)).to_string()).collect();
    keys.sort();
    Ok(format!("{{\"keys\":[{}]}}", keys.join(",")))
}

impl KeySet {
    /// Reads a JSON Web Key Set; keys of other kinds are left out.
    pub fn from_json(text: &str) -> Result<Self, KeySetError> {
        if text.len() > MAX_SET_BYTES {
            return Err(KeySetError::TooLarge(text.len()));
        }
        let set: WireSet = serde_json::from_str(text).map_err(KeySetError::Unreadable)?;
        let keys: Vec<Key> = set.keys.into_iter().take(MAX_KEYS).filter_map(Key::new).collect();
        if keys.is_empty() { Err(KeySetError::Empty) } else { Ok(Self { keys }) }
    }

    /// Whether a key of the set has signed the token.
    pub fn verify(&self, token: &str) -> Result<(), Forgery> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Forgery::Malformed)?;
        let (header, _) = signed.split_once('.').ok_or(Forgery::Malformed)?;
        let decode = |part| URL_SAFE_NO_PAD.decode(part).map_err(|_| Forgery::Malformed);
        let header: WireHeader =
            serde_json::from_slice(&decode(header)?).map_err(|_| Forgery::Malformed)?;
        if header.crit.is_some() {
            return Err(Forgery::Malformed);
        }
        let signature = decode(signature)?;
        // A key without a name may be any, and so may that of a token without one; as in Envoy.
        let wanted = header.kid.filter(|it| !it.is_empty());
        let is_named = |key: &&Key| key.id.is_none() || wanted.is_none() || key.id == wanted;
        let mut named = self.keys.iter().filter(is_named).peekable();
        if named.peek().is_none() {
            return Err(Forgery::UnknownKey);
        }
        let has_signed = |key: &Key| {
            key.algorithm.as_ref().is_none_or(|it| *it == header.alg)
                && key.material.has_signed(&header.alg, signed.as_bytes(), &signature)
        };
        if named.any(has_signed) { Ok(()) } else { Err(Forgery::Signature) }
    }
}

impl Key {
    fn new(wire: WireKey) -> Option<Self> {
        if wire.purpose.as_deref().is_some_and(|it| it != "sig") {
            return None;
        }
        let octets = |text: Option<&str>| URL_SAFE_NO_PAD.decode(text?).ok();
        let material = match (wire.kty.as_str(), wire.crv.as_deref()) {
            ("RSA", _) => Material::Rsa {
                modulus: octets(wire.n.as_deref())?,
                exponent: octets(wire.e.as_deref())?,
            },
            ("EC", Some(curve @ ("P-256" | "P-384" | "P-521"))) => {
                // SEC 1 section 2.3.3: an uncompressed point.
                let mut point = vec![4];
                point.extend(octets(wire.x.as_deref())?);
                point.extend(octets(wire.y.as_deref())?);
                match curve {
                    "P-256" => Material::P256(point),
                    "P-384" => Material::P384(point),
                    _ => Material::P521(point),
                }
            }
            // RFC 8032, section 5.1.5.
            ("OKP", Some("Ed25519")) => {
                let point =
                    octets(wire.x.as_deref()).filter(|it| it.len() == ED25519_SIZE_BYTES)?;
                Material::Ed25519(point)
            }
            _ => return None,
        };
        Some(Self { id: wire.kid.filter(|it| !it.is_empty()), algorithm: wire.alg, material })
    }
}

impl Material {
    fn has_signed(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let by = |scheme: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(scheme, key).verify(message, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { modulus, exponent }, _) => {
                let parameters: &RsaParameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &RSA_PSS_2048_8192_SHA256,
                    "PS384" => &RSA_PSS_2048_8192_SHA384,
                    "PS512" => &RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(parameters, message, signature).is_ok()
            }
            (Self::P256(point), "ES256") => by(&ECDSA_P256_SHA256_FIXED, point),
            (Self::P384(point), "ES384") => by(&ECDSA_P384_SHA384_FIXED, point),
            (Self::P521(point), "ES512") => by(&ECDSA_P521_SHA512_FIXED, point),
            (Self::Ed25519(point), "EdDSA") => by(&ED25519, point),
            _ => false,
        }
    }
}
