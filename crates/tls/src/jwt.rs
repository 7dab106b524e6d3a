//! Users' tokens (RFC 7519), as a RequestAuthentication accepts them.
//!
//! A token is one issuer's if a key of that issuer's set has signed it; the algorithm in its header
//! is compared with the key, never obeyed, so neither `none` nor a shared secret is ever accepted.
//! No claim is believed before. What two readers could understand in two ways (a name twice in an
//! object) is refused. A token is a secret: it is never part of an error. The texts of errors are
//! Envoy's, which clients may compare.
//!
//! | step | what it refuses |
//! |---|---|
//! | size and form | more than 16 KiB, other than three parts |
//! | payload | what is no JSON object, or names something twice |
//! | issuer | another than the rule's: it only chooses whose keys are used |
//! | signature | what none of that issuer's keys has signed |
//! | time, audience | what is over, not yet valid, or for others |

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::Text;
use ambit_model::expression::{Lookup, Value as Known};
use ambit_model::http::authentication::JwtRule;
use ambit_model::http::authorize::Token;
use ambit_model::http::head::Claims;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::key_set::{Forgery, KeySet};

/// The longest token that is read. Common ones have 1 to 4 KiB, and a whole head at most 60 KiB.
const TOKEN_SIZE_MAX_BYTES: usize = 16 << 10;
/// How far two clocks may differ; Envoy's.
const CLOCK_LEEWAY: Duration = Duration::from_secs(60);
/// Claims that are lists separated by spaces, in every token.
const SPACE_DELIMITED: [&str; 2] = ["scope", "permission"];

/// A token that was verified. Its claims are what the issuer has signed; that they are true is the
/// issuer's affair.
#[derive(Clone)]
pub struct Verified {
    principal: Option<String>,
    claims: Map<String, Value>,
    payload: String,
    space_delimited: Vec<Text>,
}

/// Why a token is refused. The text is what the client reads; it says nothing of the token itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is longer than any issuer's.
    #[error("Jwt is too long")]
    TooLong,
    /// It has not three parts.
    #[error("Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections")]
    Form,
    /// Its payload is no JSON object, or names something twice.
    #[error("Jwt payload is an invalid JSON")]
    Payload,
    /// A time in it is no number.
    #[error("Jwt payload [exp], [nbf] or [iat] field is not a number")]
    Time,
    /// Another issuer has made it.
    #[error("Jwt issuer is not configured")]
    Issuer,
    /// It is not valid yet.
    #[error("Jwt not yet valid")]
    NotYet,
    /// It is no longer valid.
    #[error("Jwt is expired")]
    Expired,
    /// It is for others.
    #[error("Audiences in Jwt are not allowed")]
    Audience,
    /// The issuer's keys are not known.
    #[error("Jwks of the issuer is not available")]
    NoKeys,
    /// It names a key that is not in the issuer's set.
    #[error("Jwks doesn't have key to match kid or alg from Jwt")]
    UnknownKey,
    /// No key of the issuer has signed it.
    #[error("Jwt verification fails")]
    Signature,
}

/// Verifies a token against one issuer's rule and keys. `token` is the compact form of RFC 7515,
/// section 7.1. `keys` is `None` where the issuer's keys are not known: then all its tokens are
/// refused. A token without `exp` never expires, as in Envoy.
///
/// `all` are the rules of the service: a text `ISSUER/SUBJECT` means the longest issuer among them,
/// so that an issuer cannot make subjects of another one whose name only goes on behind its own.
pub fn verify(
    token: &str,
    rule: &JwtRule,
    all: &[JwtRule],
    keys: Option<&KeySet>,
    now: SystemTime,
) -> Result<Verified, Refusal> {
    if token.len() > TOKEN_SIZE_MAX_BYTES {
        return Err(Refusal::TooLong);
    }
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Refusal::Form);
    };
    let claims = URL_SAFE_NO_PAD.decode(payload).map_err(|_| Refusal::Payload)?;
    let claims = serde_json::from_slice(&claims).map_err(|_| Refusal::Payload)?;
    let Unique(Value::Object(claims)) = claims else { return Err(Refusal::Payload) };
    // Whose it says it is only chooses the rule; the signature comes before all other claims.
    if claims.get("iss").and_then(Value::as_str) != Some(&*rule.issuer) {
        return Err(Refusal::Issuer);
    }
    keys.ok_or(Refusal::NoKeys)?.verify(token).map_err(|forgery| match forgery {
        Forgery::Malformed => Refusal::Form,
        Forgery::UnknownKey => Refusal::UnknownKey,
        Forgery::Signature => Refusal::Signature,
    })?;
    accepted(claims, payload, (rule, all), now)
}

/// What a token with these claims, an object in JSON, says if one of `rules` verifies it; without
/// `iss` it is of the only issuer. For questions about requests: nothing proves these claims.
pub fn suppose(
    claims: &str,
    rules: &[JwtRule],
    now: SystemTime,
) -> Result<Box<dyn Token>, Refusal> {
    let claims = serde_json::from_str(claims).map_err(|_| Refusal::Payload)?;
    let Unique(Value::Object(mut claims)) = claims else { return Err(Refusal::Payload) };
    if let ([only], None) = (rules, claims.get("iss")) {
        claims.insert("iss".to_owned(), Value::String(only.issuer.to_string()));
    }
    let issuer = claims.get("iss").and_then(Value::as_str);
    let rule = rules.iter().find(|rule| issuer == Some(&*rule.issuer)).ok_or(Refusal::Issuer)?;
    if rule.keys.is_none() {
        return Err(Refusal::NoKeys);
    }
    Ok(Box::new(accepted(claims, "", (rule, rules), now)?))
}

/// What a token says whose signature was verified.
fn accepted(
    claims: Map<String, Value>,
    payload: &str,
    (rule, all): (&JwtRule, &[JwtRule]),
    now: SystemTime,
) -> Result<Verified, Refusal> {
    in_time(&claims, now)?;
    let audiences: Vec<&str> = texts(claims.get("aud")).collect();
    let is_for_us = |wanted: &Text| audiences.contains(&&**wanted);
    if !rule.audiences.is_empty() && !rule.audiences.iter().any(is_for_us) {
        return Err(Refusal::Audience);
    }
    let subject = claims.get("sub").and_then(Value::as_str).filter(|it| !it.is_empty());
    Ok(Verified {
        principal: subject.and_then(|subject| principal(&rule.issuer, subject, all)),
        payload: payload.to_owned(),
        space_delimited: rule.space_delimited.clone(),
        claims,
    })
}

/// What policies name the subject of an issuer by; `None` if that means another issuer's.
fn principal(issuer: &str, subject: &str, all: &[JwtRule]) -> Option<String> {
    let principal = format!("{issuer}/{subject}");
    let is_of = |other: &Text| {
        let behind = principal.strip_prefix(&**other);
        other.len() > issuer.len() && behind.is_some_and(|it| it.starts_with('/'))
    };
    let is_anothers = all.iter().any(|rule| is_of(&rule.issuer));
    (!is_anothers).then_some(principal)
}

/// RFC 7519, sections 4.1.4 to 4.1.6: seconds since 1970, maybe with a fraction.
fn in_time(claims: &Map<String, Value>, now: SystemTime) -> Result<(), Refusal> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let leeway = CLOCK_LEEWAY.as_secs_f64();
    let time = |name| match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(Refusal::Time),
    };
    time("iat")?;
    if time("nbf")?.is_some_and(|from| from > now + leeway) {
        return Err(Refusal::NotYet);
    }
    if time("exp")?.is_some_and(|until| until + leeway < now) {
        return Err(Refusal::Expired);
    }
    Ok(())
}

/// A text, or the texts of a list. Other values are no texts: a policy that names `1` does not mean
/// the number.
fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = match value {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    list.iter().filter_map(Value::as_str)
}

impl Verified {
    /// The payload as it came, in base64url without padding. The signature is not part of it, so it
    /// is no token.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// A claim as a field takes it, if it is a text, a whole number or a truth value. Lists and
    /// objects have no form that all readers share.
    pub fn claim_text(&self, keys: &[Text]) -> Option<String> {
        match self.claim(keys)? {
            Value::String(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            _ => None,
        }
    }

    /// The claim found by `keys`, one within the other.
    fn claim(&self, keys: &[Text]) -> Option<&Value> {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(self.claims.get(&**first)?, |value, key| value.get(&**key))
    }

    /// Whether the text of a claim is a list, separated by spaces (RFC 8693, section 4.2).
    fn is_list(&self, keys: &[Text]) -> bool {
        let [name] = keys else { return false };
        SPACE_DELIMITED.contains(&&**name) || self.space_delimited.contains(name)
    }
}

impl Token for Verified {
    fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    fn any_audience(&self, holds: &mut dyn FnMut(&str) -> bool) -> bool {
        texts(self.claims.get("aud")).any(holds)
    }

    fn presenter(&self) -> Option<&str> {
        self.claims.get("azp").and_then(Value::as_str)
    }

    fn claims(&self) -> &dyn Lookup {
        self
    }
}

impl Claims for Verified {
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
        match self.claim(keys) {
            Some(Value::String(text)) if self.is_list(keys) => text.split(' ').any(holds),
            value => texts(value).any(holds),
        }
    }
}

/// A claim that is a list separated by spaces is a list.
impl Lookup for Verified {
    fn get(&self, name: &str) -> Option<Known<'_>> {
        match self.claims.get(name)? {
            Value::String(text) if self.is_list(&[name.into()]) => {
                Some(Known::List(text.split(' ').map(Known::text).collect::<Vec<_>>().into()))
            }
            value => Some(known(value)),
        }
    }
}

/// A claim as expressions read it. How deep it may be is serde_json's own limit.
fn known(value: &Value) -> Known<'_> {
    match value {
        Value::Null => Known::Null,
        Value::Bool(value) => Known::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Known::Int(number),
            (None, Some(number)) => Known::Uint(number),
            (None, None) => Known::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Known::text(text.as_str()),
        Value::Array(all) => Known::List(all.iter().map(known).collect::<Vec<_>>().into()),
        Value::Object(all) => {
            let all = all.iter().map(|(name, value)| (name.as_str().into(), known(value)));
            Known::Map(all.collect::<Vec<_>>().into())
        }
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("principal", &self.principal).finish_non_exhaustive()
    }
}

/// JSON in which no object names anything twice. How deep it may be is serde_json's own limit.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

/// Builds the value as serde_json does, and stops at the second of two equal names.
struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON in which no object names anything twice")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(value)) = all.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Unique(value))) = all.next_entry::<String, Unique>()? {
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is there twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests;
