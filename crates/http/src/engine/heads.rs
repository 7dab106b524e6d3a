//! Heads of HTTP/2 as the codec's values, and back; and heads as the decisions of the model read
//! them.
//!
//! HTTP/2 heads pass the same constructors as those of HTTP/1.1: whatever the version, router,
//! policy and upstream see values of one kind.

use std::borrow::Cow;

use ambit_model::http::head as model;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{request, response};

use crate::authority::Authority;
use crate::fields::{FieldLimits, Fields, known::Known};
use crate::h1::options;
use crate::head::{Method, Reason, RequestHead, ResponseHead, Status, Target, Version};
use crate::path::Path;
use crate::refused::Refused;

/// Reads the head of a request of HTTP/2. Fields that concern one connection, which HTTP/2 does not
/// have (RFC 9113, 8.2.2), are refused.
pub(crate) fn request(parts: request::Parts, limits: FieldLimits) -> Result<RequestHead, Refused> {
    let mut hosts = parts.headers.get_all(http::header::HOST).iter();
    let host = hosts.next().map(|it| Authority::parse(it.as_bytes())).transpose()?;
    if hosts.next().is_some() {
        return Err(Refused::HostRepeated);
    }
    let named = parts.uri.authority().map(|it| Authority::parse(it.as_str().as_bytes()));
    let authority = match (named.transpose()?, host) {
        (Some(named), Some(host)) if named != host => return Err(Refused::HostRepeated),
        (Some(authority), _) | (None, Some(authority)) => authority,
        (None, None) => return Err(Refused::HostMissing),
    };
    let method = Method::parse(parts.method.as_str())?;
    let path = parts.uri.path_and_query().map_or("", |it| it.as_str());
    let target = match path {
        _ if method.is_connect() => Target::Authority(authority),
        "*" => Target::Asterisk { host: authority },
        path => Target::Origin { path: Path::parse(path.as_bytes())?, host: authority },
    };
    let mut fields = fields(&parts.headers, limits)?;
    fields.remove(Known::Host);
    join_cookies(&mut fields)?;
    RequestHead::new(method, target, Version::Http11, fields)
}

/// Reads the head of a response of HTTP/2.
pub(crate) fn response(
    parts: &response::Parts,
    limits: FieldLimits,
) -> Result<ResponseHead, Refused> {
    Ok(ResponseHead {
        status: Status::new(parts.status.as_u16())?,
        reason: Reason::new(parts.status.canonical_reason().unwrap_or_default().as_bytes())?,
        version: Version::Http11,
        fields: fields(&parts.headers, limits)?,
    })
}

/// Reads fields or trailers.
pub(crate) fn fields(map: &HeaderMap, limits: FieldLimits) -> Result<Fields, Refused> {
    let bytes = map.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let mut fields = Fields::with_capacity(limits, map.len(), bytes);
    for (name, value) in map {
        let put = fields.append(name.as_str(), value.as_bytes());
        put.map_err(|_| Refused::HeadTooLarge)?;
    }
    let before = fields.len();
    options::take(&mut fields, false)?;
    if fields.len() < before { Err(Refused::FieldName) } else { Ok(fields) }
}

/// The trailers that a map holds, by the rules of those behind chunks.
pub(crate) fn trailers(map: &HeaderMap, limits: FieldLimits) -> Result<Fields, Refused> {
    crate::h1::trailers::allowed(fields(map, limits)?)
}

/// HTTP/2 may send a cookie in pieces (RFC 9113, 8.2.3); everywhere else it is one field.
fn join_cookies(fields: &mut Fields) -> Result<(), Refused> {
    if fields.all(Known::Cookie).count() < 2 {
        return Ok(());
    }
    let joined = fields.all(Known::Cookie).collect::<Vec<_>>().join(&b"; "[..]);
    fields.set(Known::Cookie, &joined).map_err(|_| Refused::HeadTooLarge)
}

/// A request's head as HTTP/2 sends it.
pub(crate) fn to_request(head: &RequestHead, scheme: &str) -> Result<http::Request<()>, Refused> {
    let mut request = http::Request::new(());
    *request.version_mut() = http::Version::HTTP_2;
    let method = http::Method::from_bytes(head.method().as_str().as_bytes());
    *request.method_mut() = method.map_err(|_| Refused::Method)?;
    let path = match head.target() {
        Target::Origin { path, .. } => path.as_str(),
        Target::Asterisk { .. } => "*",
        Target::Authority(_) => return Err(Refused::TargetForm),
    };
    let uri = http::Uri::builder().scheme(scheme).authority(head.authority().as_str());
    *request.uri_mut() = uri.path_and_query(path).build().map_err(|_| Refused::Target)?;
    *request.headers_mut() = to_map(&head.fields);
    Ok(request)
}

/// A response's head as HTTP/2 sends it.
pub(crate) fn to_response(head: &ResponseHead) -> http::Response<()> {
    let mut response = http::Response::new(());
    *response.version_mut() = http::Version::HTTP_2;
    let status = http::StatusCode::from_u16(head.status.code());
    *response.status_mut() = status.expect("three digits, the first not 0");
    *response.headers_mut() = to_map(&head.fields);
    // Written from what was decided.
    response.headers_mut().remove(http::header::CONTENT_LENGTH);
    response
}

/// Fields or trailers as HTTP/2 sends them: names in lower case.
pub(crate) fn to_map(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields.iter() {
        let name = HeaderName::from_bytes(field.name);
        // What a token and a value may be, both check alike.
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
            map.append(name, value);
        }
    }
    map
}

/// A request's head as the model reads it. `host` is the authority's, in lower case.
pub(crate) fn for_model<'a>(
    head: &'a RequestHead,
    host: &'a str,
    scheme: &'a str,
    client: model::Client<'a>,
) -> model::RequestHead<'a> {
    let path = head.path();
    model::RequestHead {
        method: head.method().as_str(),
        scheme,
        host,
        port: head.authority().port(),
        path: path.map_or("*", Path::path),
        query: path.and_then(Path::query).unwrap_or_default(),
        fields: head,
        client,
    }
}

/// The host in lower case.
pub(crate) fn lower_case(host: &str) -> Cow<'_, str> {
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

impl model::Fields for RequestHead {
    fn value(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        // A name of the caller's lives no longer than the call, so lines are looked at one by one.
        let mut joined: Option<Cow<'_, [u8]>> = None;
        let mut add = |line| match &mut joined {
            None => joined = Some(Cow::Borrowed(line)),
            Some(before) => {
                let before = before.to_mut();
                before.push(b',');
                before.extend_from_slice(line);
            }
        };
        if crate::fields::Name::from(name).is_host() {
            return Some(Cow::Borrowed(self.authority().as_str().as_bytes()));
        }
        let named = self.fields.iter().filter(|it| it.name.eq_ignore_ascii_case(name.as_bytes()));
        named.for_each(|field| add(field.value));
        joined
    }

    fn any(&self, name: &str, holds: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.values(name).any(holds)
    }
}
