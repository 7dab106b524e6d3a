//! `envoyExtAuthzGrpc` and `envoyExtAuthzHttp`: the authorization services of CUSTOM policies.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::authorizer::{BodyCheck, Call, Check, HttpCall};
use ambit_model::policy::TextMatch;
use serde::Deserialize;
use serde_json::Value;

use super::service::{Number, ProviderService, Wrong};
use crate::matching::{is_token, text};
use crate::remarks::Remarks;
use crate::{FieldPath, decode, finding};

/// Most bytes of one request's body that are kept for a check.
const MAX_CHECKED_BODY_BYTES: u32 = 8 << 20;

/// An authorization service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtAuthz {
    /// Where it is.
    pub service: ProviderService,
    /// How it is asked.
    pub check: Check,
}

/// What both kinds have, and what HTTP alone has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Http {
    service: String,
    port: Number,
    timeout: Option<String>,
    fail_open: bool,
    status_on_error: Option<Value>,
    include_request_body_in_check: Option<Body>,
    path_prefix: String,
    include_headers_in_check: Vec<String>,
    include_request_headers_in_check: Vec<String>,
    include_additional_headers_in_check: BTreeMap<String, String>,
    headers_to_upstream_on_allow: Vec<String>,
    headers_to_downstream_on_deny: Vec<String>,
    headers_to_downstream_on_allow: Vec<String>,
    clear_route_cache: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Grpc {
    service: String,
    port: Number,
    timeout: Option<String>,
    fail_open: bool,
    status_on_error: Option<Value>,
    include_request_body_in_check: Option<Body>,
    clear_route_cache: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    max_request_bytes: Number,
    allow_partial_message: bool,
    pack_as_bytes: bool,
}

/// Reads a service of gRPC.
pub(super) fn grpc(value: Value, at: &FieldPath, remarks: &mut Remarks) -> Result<ExtAuthz, Wrong> {
    let it: Grpc = strict(value, at)?;
    let service = ProviderService::read(&it.service, it.port, at)?;
    clear_route_cache(it.clear_route_cache, at, remarks);
    let check = Check {
        call: Call::Grpc,
        timeout: timeout(it.timeout.as_deref(), at)?,
        fail_open: it.fail_open,
        status_on_error: status(it.status_on_error.as_ref(), at)?,
        body: body(it.include_request_body_in_check.as_ref(), at)?,
    };
    Ok(ExtAuthz { service, check })
}

/// Reads a service of HTTP.
pub(super) fn http(value: Value, at: &FieldPath, remarks: &mut Remarks) -> Result<ExtAuthz, Wrong> {
    let it: Http = strict(value, at)?;
    let service = ProviderService::read(&it.service, it.port, at)?;
    clear_route_cache(it.clear_route_cache, at, remarks);
    if !it.path_prefix.is_empty() && !is_path(&it.path_prefix) {
        let what = format!("`{}` is not the beginning of a path", it.path_prefix);
        return Err((at.field("pathPrefix"), what, "write it as /check"));
    }
    let (older, newer) = (&it.include_headers_in_check, &it.include_request_headers_in_check);
    let (field, include) = match newer.is_empty() {
        true => ("includeHeadersInCheck", older),
        false => ("includeRequestHeadersInCheck", newer),
    };
    let on_deny = &it.headers_to_downstream_on_deny;
    let at_deny = at.field("headersToDownstreamOnDeny");
    let at_allow = at.field("headersToDownstreamOnAllow");
    let call = HttpCall {
        path_prefix: it.path_prefix.as_str().into(),
        include: names(include, &at.field(field))?,
        additional: additional(&it.include_additional_headers_in_check, at)?,
        to_upstream_on_allow: names(
            &it.headers_to_upstream_on_allow,
            &at.field("headersToUpstreamOnAllow"),
        )?,
        to_downstream_on_deny: match on_deny.is_empty() {
            true => None,
            false => Some(names(on_deny, &at_deny)?),
        },
        to_downstream_on_allow: names(&it.headers_to_downstream_on_allow, &at_allow)?,
    };
    let check = Check {
        call: Call::Http(call),
        timeout: timeout(it.timeout.as_deref(), at)?,
        fail_open: it.fail_open,
        status_on_error: status(it.status_on_error.as_ref(), at)?,
        body: body(it.include_request_body_in_check.as_ref(), at)?,
    };
    Ok(ExtAuthz { service, check })
}

/// A provider of which every field is known: what is left out might be what restricts the rest.
fn strict<T: serde::de::DeserializeOwned>(value: Value, at: &FieldPath) -> Result<T, Wrong> {
    let mut issues = finding::Issues::default();
    let read = decode::strict::<T>(&value, &mut issues);
    match (read.and_then(std::sync::Arc::into_inner), issues.errors.first()) {
        (Some(read), None) => Ok(read),
        (_, Some(issue)) => {
            Err((at.field(issue.path.as_str()), issue.what.clone(), "correct it, or remove it"))
        }
        (None, None) => unreachable!("what cannot be read is an error"),
    }
}

/// Envoy's filter may choose the route again after the check. Here rules are looked up behind it
/// anyway.
fn clear_route_cache(is_set: bool, at: &FieldPath, remarks: &mut Remarks) {
    let what = "it has no effect: the route is always looked up behind the check";
    remarks.unhonoured(is_set, &at.field("clearRouteCache"), what, "remove it");
}

fn timeout(written: Option<&str>, at: &FieldPath) -> Result<Duration, Wrong> {
    let Some(written) = written else { return Ok(Check::default().timeout) };
    let parsed = ambit_words::durations::parse_duration(written).ok();
    parsed.filter(|it| !it.is_zero()).ok_or_else(|| {
        let what = format!("`{written}` is not a time that a service may take");
        (at.field("timeout"), what, "write for example 500ms or 5s")
    })
}

/// Istio writes the status as text.
fn status(written: Option<&Value>, at: &FieldPath) -> Result<u16, Wrong> {
    let number = match written {
        None => return Ok(Check::default().status_on_error),
        Some(Value::String(text)) if text.is_empty() => {
            return Ok(Check::default().status_on_error);
        }
        Some(Value::String(text)) => text.parse().ok(),
        Some(Value::Number(number)) => number.as_u64().and_then(|it| u16::try_from(it).ok()),
        Some(_) => None,
    };
    // A status below would tell the client that the request has succeeded.
    number.filter(|it| (400..600).contains(it)).ok_or_else(|| {
        let what = "it is not the status of an error".to_owned();
        (at.field("statusOnError"), what, "write for example \"403\" or \"503\"")
    })
}

fn body(written: Option<&Body>, at: &FieldPath) -> Result<Option<BodyCheck>, Wrong> {
    let Some(written) = written else { return Ok(None) };
    let Body { max_request_bytes: Number(max_bytes), allow_partial_message, pack_as_bytes } =
        *written;
    if !(1..=MAX_CHECKED_BODY_BYTES).contains(&max_bytes) {
        let at = at.field("includeRequestBodyInCheck").field("maxRequestBytes");
        let what = format!("{max_bytes} is out of range: at most {MAX_CHECKED_BODY_BYTES}");
        return Err((at, what, "write a number of bytes from 1 to 8388608"));
    }
    let (allow_partial, as_bytes) = (allow_partial_message, pack_as_bytes);
    Ok(Some(BodyCheck { max_bytes, allow_partial, as_bytes }))
}

fn names(written: &[String], at: &FieldPath) -> Result<Vec<TextMatch>, Wrong> {
    let one = |(index, written): (usize, &String)| {
        let lower = written.to_ascii_lowercase();
        let name = lower.trim_matches('*');
        let matched = text(&lower).filter(|it| *it == TextMatch::Presence || is_token(name));
        matched.ok_or_else(|| {
            let what = format!("`{written}` is not the name of a field");
            (at.index(index), what, "write x-user, x-auth-* or *-token")
        })
    };
    written.iter().enumerate().map(one).collect()
}

fn additional(
    written: &BTreeMap<String, String>,
    at: &FieldPath,
) -> Result<Vec<(Text, Text)>, Wrong> {
    let one = |(name, value): (&String, &String)| {
        let at = at.field("includeAdditionalHeadersInCheck").field(name);
        let is_value = value.bytes().all(|it| it == b'\t' || (b' '..=b'~').contains(&it));
        if !is_token(name) || !is_value {
            let what = "name or value is none of a field".to_owned();
            return Err((at, what, "use visible characters of ASCII"));
        }
        Ok((Text::from(name.to_ascii_lowercase()), Text::from(value.as_str())))
    };
    written.iter().map(one).collect()
}

/// Whether a text is the beginning of a path that needs no encoding.
fn is_path(text: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&it);
    let has_dots = text.split('/').any(|it| it == "." || it == "..");
    text.starts_with('/') && text.bytes().all(is_plain) && !has_dots
}
