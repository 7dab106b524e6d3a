//! Which tokens a service reads of requests (Istio's RequestAuthentication).
//!
//! Where they are looked for, whose they must be, and what of them is sent on. A request without a
//! token passes here; a policy may ask for one.

use crate::Text;

/// What holds for the tokens of requests to one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authentication {
    /// One for each issuer that is trusted; none reads no token.
    pub rules: Vec<JwtRule>,
    /// Why something of it cannot be honoured: every request is refused then.
    pub problem: Option<Text>,
}

/// The tokens of one issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtRule {
    /// The claim `iss`.
    pub issuer: Text,
    /// One of these must be among the claim `aud`; none accepts every audience.
    pub audiences: Vec<Text>,
    /// The issuer's keys as a JSON Web Key Set (RFC 7517); `None`: they are not known, and all its
    /// tokens are refused.
    pub keys: Option<Text>,
    /// Fields, in lower case, and what stands before the token there.
    pub from_headers: Vec<(Text, Text)>,
    /// Parameters of the query.
    pub from_parameters: Vec<Text>,
    /// Cookies.
    pub from_cookies: Vec<Text>,
    /// The field that takes the token's payload as it came, in base64url.
    pub payload_header: Option<Text>,
    /// Fields that take claims: the field, and the claim's keys, one within the other.
    pub claim_headers: Vec<(Text, Vec<Text>)>,
    /// Whether the token itself is sent on, where it was found.
    pub forwards_token: bool,
    /// Claims whose text is a list, separated by spaces.
    pub space_delimited: Vec<Text>,
}

impl JwtRule {
    /// The fields that this proxy alone may write.
    pub fn written_headers(&self) -> impl Iterator<Item = &Text> {
        self.payload_header.iter().chain(self.claim_headers.iter().map(|(name, _)| name))
    }

    /// Those, and the fields in which tokens come: what is sent on in them was verified.
    pub fn reserved_headers(&self) -> impl Iterator<Item = &Text> {
        self.written_headers().chain(self.from_headers.iter().map(|(name, _)| name))
    }
}
