//! What the matches of a rule compare.

use ambit_model::http::matching::{ClaimMatch, Match, NamedMatch, PathMatch, ValueMatch};

use super::super::{ConvertError, each, text};
use super::{
    EMPTY, inner, optional, optional_string, optional_text, pattern, required, strings, texts,
};
use crate::proto::ambit::http as proto;

pub(super) fn one(message: proto::Match) -> Result<Match, ConvertError> {
    Ok(Match {
        path: optional("path", message.path, path)?,
        method: optional("method", message.method, value)?,
        scheme: optional("scheme", message.scheme, value)?,
        authority: optional("authority", message.authority, value)?,
        headers: each("headers", message.headers, named)?,
        parameters: each("parameters", message.parameters, named)?,
        client_namespace: optional_text(message.client_namespace),
        claims: each("claims", message.claims, claim)?,
    })
}

pub(super) fn one_message(it: &Match) -> proto::Match {
    let value = |it: &Option<ValueMatch>| it.as_ref().map(value_message);
    proto::Match {
        path: it.path.as_ref().map(path_message),
        method: value(&it.method),
        scheme: value(&it.scheme),
        authority: value(&it.authority),
        headers: it.headers.iter().map(named_message).collect(),
        parameters: it.parameters.iter().map(named_message).collect(),
        client_namespace: optional_string(&it.client_namespace),
        claims: it.claims.iter().map(claim_message).collect(),
    }
}

fn claim(message: proto::ClaimMatch) -> Result<ClaimMatch, ConvertError> {
    Ok(ClaimMatch {
        keys: texts(&message.keys),
        value: inner("value", message.value, value)?,
        is_inverted: message.is_inverted,
    })
}

fn claim_message(it: &ClaimMatch) -> proto::ClaimMatch {
    proto::ClaimMatch {
        keys: strings(&it.keys),
        value: Some(value_message(&it.value)),
        is_inverted: it.is_inverted,
    }
}

pub(super) fn path(message: proto::PathMatch) -> Result<PathMatch, ConvertError> {
    use proto::path_match::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Exact(it) => PathMatch::Exact(text(&it)),
        Kind::Segments(it) => PathMatch::Segments(text(&it)),
        Kind::Prefix(it) => PathMatch::Prefix(text(&it)),
        Kind::Regex(it) => PathMatch::Regex(pattern("regex", &it)?),
        Kind::ExactNoCase(it) => PathMatch::ExactNoCase(text(&it)),
        Kind::PrefixNoCase(it) => PathMatch::PrefixNoCase(text(&it)),
    })
}

pub(super) fn path_message(path: &PathMatch) -> proto::PathMatch {
    use proto::path_match::Kind;
    let kind = match path {
        PathMatch::Exact(it) => Kind::Exact(it.to_string()),
        PathMatch::Segments(it) => Kind::Segments(it.to_string()),
        PathMatch::Prefix(it) => Kind::Prefix(it.to_string()),
        PathMatch::Regex(it) => Kind::Regex(it.source().to_string()),
        PathMatch::ExactNoCase(it) => Kind::ExactNoCase(it.to_string()),
        PathMatch::PrefixNoCase(it) => Kind::PrefixNoCase(it.to_string()),
    };
    proto::PathMatch { kind: Some(kind) }
}

pub(super) fn value(message: proto::ValueMatch) -> Result<ValueMatch, ConvertError> {
    use proto::value_match::Kind;
    Ok(match required("kind", message.kind)? {
        Kind::Exact(it) => ValueMatch::Exact(text(&it)),
        Kind::ExactNoCase(it) => ValueMatch::ExactNoCase(text(&it)),
        Kind::Prefix(it) => ValueMatch::Prefix(text(&it)),
        Kind::Regex(it) => ValueMatch::Regex(pattern("regex", &it)?),
        Kind::Present(_) => ValueMatch::Present,
    })
}

pub(super) fn value_message(value: &ValueMatch) -> proto::ValueMatch {
    use proto::value_match::Kind;
    let kind = match value {
        ValueMatch::Exact(it) => Kind::Exact(it.to_string()),
        ValueMatch::ExactNoCase(it) => Kind::ExactNoCase(it.to_string()),
        ValueMatch::Prefix(it) => Kind::Prefix(it.to_string()),
        ValueMatch::Regex(it) => Kind::Regex(it.source().to_string()),
        ValueMatch::Present => Kind::Present(EMPTY),
    };
    proto::ValueMatch { kind: Some(kind) }
}

pub(super) fn named(message: proto::NamedMatch) -> Result<NamedMatch, ConvertError> {
    Ok(NamedMatch {
        name: text(&message.name),
        value: inner("value", message.value, value)?,
        is_inverted: message.is_inverted,
    })
}

pub(super) fn named_message(it: &NamedMatch) -> proto::NamedMatch {
    proto::NamedMatch {
        name: it.name.to_string(),
        value: Some(value_message(&it.value)),
        is_inverted: it.is_inverted,
    }
}
