//! Which tokens of requests are accepted.

use ambit_model::Text;
use ambit_model::http::authentication::JwtRule;

use super::super::{ConvertError, Problem, text};
use super::{optional_string, optional_text, strings, texts};
use crate::proto::ambit::http as proto;

pub(super) fn rule(message: proto::JwtRule) -> Result<JwtRule, ConvertError> {
    if message.issuer.is_empty() {
        return Err(ConvertError::new("issuer", Problem::Missing));
    }
    let headers = message.from_headers.iter().map(|it| (text(&it.name), text(&it.prefix)));
    let claims = message.claim_headers.iter().map(|it| (text(&it.name), texts(&it.keys)));
    Ok(JwtRule {
        issuer: text(&message.issuer),
        audiences: texts(&message.audiences),
        keys: optional_text(message.keys),
        from_headers: headers.collect(),
        from_parameters: texts(&message.from_parameters),
        from_cookies: texts(&message.from_cookies),
        payload_header: optional_text(message.payload_header),
        claim_headers: claims.collect(),
        forwards_token: message.forwards_token,
        space_delimited: texts(&message.space_delimited),
    })
}

pub(super) fn message(rule: &JwtRule) -> proto::JwtRule {
    let header = |(name, prefix): &(Text, Text)| proto::JwtHeader {
        name: name.to_string(),
        prefix: prefix.to_string(),
    };
    let claim = |(name, keys): &(Text, Vec<Text>)| proto::JwtClaimHeader {
        name: name.to_string(),
        keys: strings(keys),
    };
    proto::JwtRule {
        issuer: rule.issuer.to_string(),
        audiences: strings(&rule.audiences),
        keys: optional_string(&rule.keys),
        from_headers: rule.from_headers.iter().map(header).collect(),
        from_parameters: strings(&rule.from_parameters),
        from_cookies: strings(&rule.from_cookies),
        payload_header: optional_string(&rule.payload_header),
        claim_headers: rule.claim_headers.iter().map(claim).collect(),
        forwards_token: rule.forwards_token,
        space_delimited: strings(&rule.space_delimited),
    }
}
