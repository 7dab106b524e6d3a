//! How long a body is, whether the connection is used again, and what both ends agreed on.
//!
//! RFC 9112, 6.3, without its exceptions: whatever two readers could frame in two ways is refused.
//! The fields that frame a message are read here and written by `write.rs` from what is decided
//! here; nothing copies them.

use super::options::{self, Options, Protocol};
use crate::fields::{Fields, known::Known};
use crate::grammar;
use crate::head::{RequestHead, ResponseHead, Version};
use crate::refused::Refused;

/// The longest body with a length. More is no body but an attempt to overflow somebody's number.
const LONGEST_BODY: u64 = i64::MAX as u64;

/// A request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// There is none, and nothing says so.
    Absent,
    /// So many bytes, which may be 0.
    Sized(u64),
    /// In chunks.
    Chunked,
}

/// A response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// There is none whatever the fields say: the response to HEAD, 1xx, 204, 304. A length is
    /// what the body to a GET would have.
    Absent {
        /// Content-Length, where it may be sent.
        length: Option<u64>,
    },
    /// So many bytes, which may be 0.
    Sized(u64),
    /// In chunks.
    Chunked,
    /// All that comes until the connection is closed.
    UntilClose,
    /// No body: from here on the connection is a tunnel (CONNECT, 101).
    Tunnel,
}

/// What a request's head says besides what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFraming {
    /// How long the body is.
    pub body: RequestBody,
    /// Whether the client sends another request on this connection.
    pub is_persistent: bool,
    /// Whether the client waits for 100 before it sends the body.
    pub expects_continue: bool,
    /// The protocol that the client wants to switch to, where it may. Then Upgrade is in the
    /// head's fields, for routers and policies; otherwise it is not.
    pub upgrade: Option<Protocol>,
}

/// What the response answers, as far as it frames the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// CONNECT.
    Connect,
    /// HEAD.
    Head,
    /// Another method, and to switch to this protocol.
    Upgrade(Protocol),
    /// Another method.
    Other,
}

impl Asked {
    /// What this request asks for. The framing is that with which it is sent to the server.
    pub fn of(head: &RequestHead, framing: &RequestFraming) -> Self {
        match head.method() {
            method if method.is_connect() => Self::Connect,
            method if method.is_head() => Self::Head,
            _ => framing.upgrade.map_or(Self::Other, Self::Upgrade),
        }
    }
}

/// What a response's head says besides what it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFraming {
    /// How long the body is.
    pub body: ResponseBody,
    /// Whether the server takes another request on this connection.
    pub is_persistent: bool,
    /// With 101: the protocol that both switch to.
    pub upgrade: Option<Protocol>,
}

/// Decides how a request is framed and removes the fields that concern one connection alone.
pub fn request(head: &mut RequestHead) -> Result<RequestFraming, Refused> {
    let version = head.version();
    let is_connect = head.method().is_connect();
    let body = match length(&head.fields, version)? {
        None => RequestBody::Absent,
        // RFC 9110, 9.3.6: a request for a tunnel has no body, so a length is a second reading.
        Some(Length::Chunked) if is_connect => return Err(Refused::TransferCoding),
        Some(Length::Sized(size)) if is_connect && size > 0 => return Err(Refused::ContentLength),
        Some(Length::Chunked) => RequestBody::Chunked,
        Some(Length::Sized(size)) => RequestBody::Sized(size),
    };
    let has_body = !matches!(body, RequestBody::Absent | RequestBody::Sized(0));
    let is_new = version == Version::Http11;
    // A body would have to be read before the protocol is switched.
    let may_upgrade = is_new && !has_body && !is_connect;
    let options = options::take(&mut head.fields, may_upgrade)?;
    let mut expectations = head.fields.all(Known::Expect).flat_map(grammar::members);
    let expects = expectations.any(|it| it.eq_ignore_ascii_case(b"100-continue"));
    Ok(RequestFraming {
        body,
        is_persistent: is_persistent(&options, version),
        // RFC 9110, 10.1.1: HTTP/1.0 does not know it, and without a body nothing is waited for.
        expects_continue: expects && is_new && has_body,
        upgrade: options.upgrade,
    })
}

/// Decides how a response is framed and removes the fields that concern one connection alone.
pub fn response(head: &mut ResponseHead, asked: Asked) -> Result<ResponseFraming, Refused> {
    let (body, is_agreed) = response_body(head, asked)?;
    let switches = head.status.code() == 101;
    let options = options::take(&mut head.fields, switches)?;
    if switches && options.upgrade.is_none_or(|to| asked != Asked::Upgrade(to)) {
        return Err(Refused::Upgrade);
    }
    let lasts = !matches!(body, ResponseBody::UntilClose | ResponseBody::Tunnel);
    Ok(ResponseFraming {
        body,
        is_persistent: lasts && is_agreed && is_persistent(&options, head.version),
        upgrade: options.upgrade,
    })
}

/// The body, and whether the server's own fields agree with it.
fn response_body(head: &ResponseHead, asked: Asked) -> Result<(ResponseBody, bool), Refused> {
    let status = head.status;
    // RFC 9110, 9.3.6: a length in it is ignored.
    if status.code() == 101 || (asked == Asked::Connect && status.is_success()) {
        return Ok((ResponseBody::Tunnel, true));
    }
    let length = length(&head.fields, head.version)?;
    // RFC 9110, 8.6 and 9112, 6.1: 1xx and 204 announce no body. A server that does may send it.
    // Behind 1xx it would be read as the final response; behind 204 the connection is given up.
    let is_empty = matches!(length, None | Some(Length::Sized(0)));
    let body = match length {
        Some(Length::Sized(1..)) if status.is_informational() => {
            return Err(Refused::ContentLength);
        }
        Some(Length::Chunked) if status.is_informational() => return Err(Refused::TransferCoding),
        _ if status.is_informational() => ResponseBody::Absent { length: None },
        _ if status.code() == 204 => return Ok((ResponseBody::Absent { length: None }, is_empty)),
        Some(Length::Sized(size)) if status.code() == 304 || asked == Asked::Head => {
            ResponseBody::Absent { length: Some(size) }
        }
        _ if status.code() == 304 || asked == Asked::Head => ResponseBody::Absent { length: None },
        None => ResponseBody::UntilClose,
        Some(Length::Chunked) => ResponseBody::Chunked,
        Some(Length::Sized(size)) => ResponseBody::Sized(size),
    };
    Ok((body, true))
}

/// RFC 9112, 9.3.
fn is_persistent(options: &Options, version: Version) -> bool {
    !options.closes && (version == Version::Http11 || options.keeps)
}

/// What the fields say of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Sized(u64),
    Chunked,
}

fn length(fields: &Fields, version: Version) -> Result<Option<Length>, Refused> {
    let mut lengths = fields.all(Known::ContentLength);
    let mut codings = fields.all(Known::TransferEncoding);
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Refused::LengthAndCoding),
        (Some(value), None) => {
            let is_single = lengths.next().is_none();
            let size = content_length(value).filter(|_| is_single);
            size.map(|size| Some(Length::Sized(size))).ok_or(Refused::ContentLength)
        }
        (None, Some(_)) if version == Version::Http10 => Err(Refused::CodingInHttp10),
        (None, Some(value)) => {
            if codings.next().is_some() {
                return Err(Refused::ChunkedNotLast);
            }
            chunked(value).map(|()| Some(Length::Chunked))
        }
    }
}

/// Digits, and nothing else: no sign, no list, no whitespace inside.
fn content_length(value: &[u8]) -> Option<u64> {
    let mut size: u64 = 0;
    for byte in value {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        size = size.checked_mul(10)?.checked_add(digit)?;
    }
    (!value.is_empty() && size <= LONGEST_BODY).then_some(size)
}

/// Only `chunked` alone is taken (RFC 9112, 6.1).
fn chunked(value: &[u8]) -> Result<(), Refused> {
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if is_chunked(value) {
        return Ok(());
    }
    let mut codings = grammar::members(value);
    let last = codings.next_back();
    let is_early = codings.any(is_chunked);
    Err(if last.is_none() || is_early { Refused::ChunkedNotLast } else { Refused::TransferCoding })
}

#[cfg(test)]
mod tests;
