//! Fields as requests and responses (RFC 9113 sections 8.2, 8.3 and 8.5), and back.

use bytes::{Bytes, BytesMut};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use super::hpack::{self, Field, Name, place};

/// A request's head.
#[derive(Debug)]
pub struct Request {
    /// CONNECT opens a tunnel.
    pub method: Method,
    /// The target; of a CONNECT the authority alone.
    pub uri: Uri,
    /// The other fields.
    pub headers: HeaderMap,
}

/// A response's head.
#[derive(Debug)]
pub struct Response {
    /// 2xx to a CONNECT: the tunnel is open.
    pub status: StatusCode,
    /// The other fields.
    pub headers: HeaderMap,
}

/// Fields of connections, which no request of HTTP/2 has (RFC 9113 section 8.2.2).
const FORBIDDEN: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// What fields say, in memory of its own: it must not hold on to what was read from the peer, which
/// may be a thousand times as large. `None` is a malformed message, an error of its stream.
#[derive(Default)]
struct Parsed {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    status: Option<Bytes>,
    headers: HeaderMap,
}

/// Sorts fields into those of a target or status, and the others.
fn parse(fields: Vec<Field>) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    for (name, value) in fields {
        if name.first() != Some(&b':') {
            let is_forbidden = FORBIDDEN.contains(&&name[..])
                || name == "te" && value != "trailers"
                || name.iter().any(u8::is_ascii_uppercase);
            if is_forbidden {
                return None;
            }
            let name = HeaderName::from_bytes(&name).ok()?;
            parsed.headers.try_append(name, HeaderValue::from_bytes(&value).ok()?).ok()?;
            continue;
        }
        let slot = match &name[..] {
            b":method" => &mut parsed.method,
            b":scheme" => &mut parsed.scheme,
            b":authority" => &mut parsed.authority,
            b":path" => &mut parsed.path,
            b":status" => &mut parsed.status,
            _ => return None,
        };
        // Once each, and before all others.
        if slot.replace(value).is_some() || !parsed.headers.is_empty() {
            return None;
        }
    }
    Some(parsed)
}

impl Request {
    /// A request. Of a CONNECT the target is an authority and nothing else (section 8.5); of all
    /// others there are a scheme and a path.
    pub(super) fn of(fields: Vec<Field>) -> Option<Self> {
        let parsed = parse(fields)?;
        let method = Method::from_bytes(&parsed.method?).ok()?;
        let mut uri = http::uri::Parts::default();
        if let Some(authority) = parsed.authority {
            uri.authority = Some(Authority::try_from(&authority[..]).ok()?);
        }
        if method == Method::CONNECT {
            let is_whole =
                uri.authority.is_some() && parsed.scheme.is_none() && parsed.path.is_none();
            if !is_whole || parsed.status.is_some() {
                return None;
            }
        } else {
            let path = parsed.path.filter(|path| path.starts_with(b"/") || path == "*")?;
            uri.path_and_query = Some(PathAndQuery::try_from(&path[..]).ok()?);
            let scheme = Scheme::try_from(&parsed.scheme?[..]).ok()?;
            // The library takes a scheme with an authority alone.
            uri.scheme = uri.authority.is_some().then_some(scheme);
            if parsed.status.is_some() {
                return None;
            }
        }
        Some(Self { method, uri: Uri::from_parts(uri).ok()?, headers: parsed.headers })
    }
}

impl Response {
    /// A response, which has a status and nothing of a target.
    pub(super) fn of(fields: Vec<Field>) -> Option<Self> {
        let parsed = parse(fields)?;
        let others = [&parsed.method, &parsed.scheme, &parsed.authority, &parsed.path];
        if others.iter().any(|field| field.is_some()) {
            return None;
        }
        let status = StatusCode::from_bytes(&parsed.status?).ok()?;
        Some(Self { status, headers: parsed.headers })
    }
}

/// Fields behind a body have no names of a head.
pub(super) fn are_trailers(fields: &[Field]) -> bool {
    fields.iter().all(|(name, _)| name.first() != Some(&b':'))
}

/// Appends the fields of a CONNECT.
pub(super) fn encode_connect(authority: &str, headers: &HeaderMap, block: &mut BytesMut) {
    hpack::encode(Name::Known(place::METHOD), b"CONNECT", block);
    hpack::encode(Name::Known(place::AUTHORITY), authority.as_bytes(), block);
    encode_headers(headers, block);
}

/// Appends the fields of a response.
pub(super) fn encode_response(status: StatusCode, headers: &HeaderMap, block: &mut BytesMut) {
    if status == StatusCode::OK {
        hpack::encode_known(place::STATUS_200, block);
    } else {
        hpack::encode(Name::Known(place::STATUS), status.as_str().as_bytes(), block);
    }
    encode_headers(headers, block);
}

/// The other fields. Each is written out: no table is used.
fn encode_headers(headers: &HeaderMap, block: &mut BytesMut) {
    for (name, value) in headers {
        hpack::encode(Name::Text(name.as_str()), value.as_bytes(), block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> Vec<Field> {
        lines
            .iter()
            .map(|(name, value)| {
                (Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes()))
            })
            .collect()
    }

    #[test]
    fn a_connect_has_an_authority_and_nothing_else_of_a_target() {
        let lines = [(":method", "CONNECT"), (":authority", "10.0.0.1:80"), ("baggage", "a=b")];
        let request = Request::of(fields(&lines)).expect("a CONNECT");
        assert_eq!(
            (request.method, request.uri.to_string()),
            (Method::CONNECT, "10.0.0.1:80".into())
        );
        assert_eq!(request.headers["baggage"], "a=b");
        let others = [
            &[(":method", "CONNECT")][..],
            &[(":method", "CONNECT"), (":authority", "a:1"), (":path", "/")],
            &[(":method", "CONNECT"), (":authority", "a:1"), (":scheme", "http")],
            &[(":method", "CONNECT"), (":authority", "a:1"), (":protocol", "websocket")],
            &[(":method", "CONNECT"), (":authority", "a:1"), (":authority", "b:1")],
            &[(":method", "CONNECT"), (":authority", "a:1"), (":status", "200")],
            &[(":method", "CONNECT"), ("x", "y"), (":authority", "a:1")],
            &[(":method", "CONNECT"), (":authority", "a:1"), ("Upper", "y")],
            &[(":method", "CONNECT"), (":authority", "a:1"), ("connection", "close")],
            &[(":method", "CONNECT"), (":authority", "a:1"), ("te", "gzip")],
            &[(":method", "CONNECT"), (":authority", "a:1"), ("x", "a\nb")],
            &[(":method", "CONNECT"), (":authority", "a b")],
            &[(":method", "GET"), (":authority", "a:1")],
            &[(":method", "GET"), (":scheme", "http"), (":path", "a")],
            &[(":authority", "a:1")],
        ];
        for lines in others {
            assert!(Request::of(fields(lines)).is_none(), "{lines:?}");
        }
        let get = [(":method", "GET"), (":scheme", "http"), (":path", "/x"), (":authority", "a:1")];
        assert_eq!(Request::of(fields(&get)).expect("a GET").uri, "http://a:1/x");
    }

    #[test]
    fn a_response_has_a_status_alone() {
        let response = Response::of(fields(&[(":status", "200"), ("a", "b")])).expect("a response");
        assert_eq!((response.status, response.headers.len()), (StatusCode::OK, 1));
        for lines in [&[][..], &[(":status", "20")], &[(":status", "200"), (":path", "/")]] {
            assert!(Response::of(fields(lines)).is_none(), "{lines:?}");
        }
    }
}
