//! Heads from a buffer.
//!
//! `httparse` reads the lines, and is lenient where a proxy must not be: it takes a bare LF for a
//! line end, skips any number of empty lines, and leaves out a reason that is not ASCII. `lines.rs`
//! comes before it, and what it finds is checked again by the constructors of a head.

use std::mem::MaybeUninit;

use super::lines::Kind;
use crate::authority::Authority;
use crate::fields::{FieldError, FieldLimits, Fields, known::Known};
use crate::grammar;
use crate::head::{Method, Reason, RequestHead, ResponseHead, Scheme, Status, Target, Version};
use crate::path::Path;
use crate::refused::Refused;

pub use super::lines::{Limits, Progress};

/// More fields than these are not read, whatever the limit is: the parser's index of a head is on
/// the stack.
const MOST_FIELDS: usize = 256;

/// What a buffer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// A head, and how many bytes it took; the body follows.
    Complete {
        /// The head.
        head: T,
        /// Its bytes, which the caller removes from the buffer.
        used: usize,
    },
    /// The beginning of one.
    Partial,
}

type Index<'b> = [MaybeUninit<httparse::Header<'b>>; MOST_FIELDS];

/// Reads a request's head from the front of a buffer.
///
/// `progress` is the caller's memory of this head: new for each head, the same until it is whole.
/// The scheme is the connection's. A client cannot choose it: an absolute target of https in plain
/// text is refused, and one of http in TLS is no different from a path.
pub fn request(
    bytes: &[u8],
    scheme: Scheme,
    limits: &Limits,
    progress: &mut Progress,
) -> Result<Parsed<RequestHead>, Refused> {
    let Some(place) = progress.advance(bytes, Kind::Request, limits)? else {
        return Ok(Parsed::Partial);
    };
    let (text, used) = (&bytes[place.clone()], place.end);
    let mut index: Index<'_> = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut read = httparse::Request::new(&mut []);
    let done = read.parse_with_uninit_headers(text, &mut index);
    let (Ok(httparse::Status::Complete(length)), Some(method), Some(target)) =
        (done, read.method, read.path)
    else {
        return Err(why(text, Kind::Request));
    };
    if length != text.len() {
        return Err(why(text, Kind::Request));
    }
    let version = version(read.version);
    let host = host(read.headers, version)?;
    let fields = fields(read.headers, limits.fields, |header| !is_host(header))?;
    let target = self::target(method, target.as_bytes(), scheme, host)?;
    let head = RequestHead::new(Method::parse(method)?, target, version, fields)?;
    Ok(Parsed::Complete { head, used })
}

/// Reads a response's head from the front of a buffer, as [`request`] reads a request's.
pub fn response(
    bytes: &[u8],
    limits: &Limits,
    progress: &mut Progress,
) -> Result<Parsed<ResponseHead>, Refused> {
    let Some(place) = progress.advance(bytes, Kind::Response, limits)? else {
        return Ok(Parsed::Partial);
    };
    let (text, used) = (&bytes[place.clone()], place.end);
    let mut index: Index<'_> = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut read = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let done = config.parse_response_with_uninit_headers(&mut read, text, &mut index);
    let (Ok(httparse::Status::Complete(length)), Some(code)) = (done, read.code) else {
        return Err(why(text, Kind::Response));
    };
    if length != text.len() {
        return Err(why(text, Kind::Response));
    }
    let fields = fields(read.headers, limits.fields, |_| true)?;
    // The reason as it came, of which httparse drops what is not ASCII.
    let line = text.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let reason = Reason::new(line.get("HTTP/1.1 200 ".len()..).unwrap_or_default())?;
    let head =
        ResponseHead { status: Status::new(code)?, reason, version: version(read.version), fields };
    Ok(Parsed::Complete { head, used })
}

/// Reads a whole section of fields, with the empty line that ends it.
pub(super) fn section(text: &[u8], limits: FieldLimits) -> Result<Fields, Refused> {
    let mut index = [httparse::EMPTY_HEADER; MOST_FIELDS];
    match httparse::parse_headers(text, &mut index) {
        Ok(httparse::Status::Complete((length, headers))) if length == text.len() => {
            fields(headers, limits, |_| true)
        }
        _ => Err(why(text, Kind::Trailers)),
    }
}

/// `lines.rs` has let no other version pass.
fn version(minor: Option<u8>) -> Version {
    if minor == Some(0) { Version::Http10 } else { Version::Http11 }
}

fn fields(
    headers: &[httparse::Header<'_>],
    limits: FieldLimits,
    is_kept: impl Fn(&httparse::Header<'_>) -> bool,
) -> Result<Fields, Refused> {
    let bytes = headers.iter().map(|header| header.name.len() + header.value.len()).sum();
    let mut fields = Fields::with_capacity(limits, headers.len(), bytes);
    for header in headers.iter().filter(|header| is_kept(header)) {
        let put = fields.append_parsed(header.name.as_bytes(), header.value);
        put.map_err(|error| match error {
            FieldError::Name => Refused::FieldName,
            FieldError::Value => Refused::FieldValue,
            FieldError::TooMany(_) => Refused::TooManyFields,
            FieldError::TooLarge(_) => Refused::HeadTooLarge,
        })?;
    }
    Ok(fields)
}

fn is_host(header: &httparse::Header<'_>) -> bool {
    header.name.eq_ignore_ascii_case(Known::Host.text())
}

/// What the one Host field says (RFC 9112, 3.2). In HTTP/1.0 the target may say it instead.
fn host(headers: &[httparse::Header<'_>], version: Version) -> Result<Option<Authority>, Refused> {
    let mut hosts = headers.iter().filter(|header| is_host(header));
    let host = match hosts.next() {
        None if version == Version::Http11 => return Err(Refused::HostMissing),
        None => None,
        Some(host) => Some(Authority::parse(host.value)?),
    };
    if hosts.next().is_some() { Err(Refused::HostRepeated) } else { Ok(host) }
}

/// Reads a target in any of its forms. An absolute one, and CONNECT's, have the host in them, and
/// what the Host field says is forgotten (RFC 9112, 3.2.2). Without a host nothing is read, since
/// every policy needs one.
fn target(
    method: &str,
    text: &[u8],
    scheme: Scheme,
    host: Option<Authority>,
) -> Result<Target, Refused> {
    if method == "CONNECT" {
        let to = Authority::parse(text).map_err(|refused| match refused {
            Refused::UserInfo => refused,
            _ => Refused::TargetForm,
        })?;
        return Ok(Target::Authority(to));
    }
    let named = || host.ok_or(Refused::HostMissing);
    match text {
        b"*" => return Ok(Target::Asterisk { host: named()? }),
        [b'/', ..] => return Ok(Target::Origin { path: Path::parse(text)?, host: named()? }),
        _ => {}
    }
    let (of, rest) = absolute(text)?;
    if of == Scheme::Https && scheme == Scheme::Http {
        return Err(Refused::HttpsInPlainText);
    }
    let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = Authority::parse(authority)?;
    let path = match path {
        // RFC 9112, 3.2.4: so a client asks a proxy about a server as a whole.
        [] if method == "OPTIONS" => {
            return Ok(Target::Asterisk { host: authority });
        }
        [b'/', ..] => Path::parse(path)?,
        _ => Path::parse(&[b"/", path].concat())?,
    };
    Ok(Target::Origin { path, host: authority })
}

/// The scheme of an absolute target, and what follows `://`.
fn absolute(text: &[u8]) -> Result<(Scheme, &[u8]), Refused> {
    let schemes = [(Scheme::Http, "http://"), (Scheme::Https, "https://")];
    let known = schemes.into_iter().find_map(|(scheme, prefix)| {
        let (start, rest) = text.split_at_checked(prefix.len())?;
        start.eq_ignore_ascii_case(prefix.as_bytes()).then_some((scheme, rest))
    });
    let has_scheme = text.windows(3).any(|three| three == b"://");
    known.ok_or(if has_scheme { Refused::TargetScheme } else { Refused::Target })
}

/// Why httparse did not take the lines: it tells the kind of byte, but not what that is a sign of.
#[cold]
fn why(text: &[u8], kind: Kind) -> Refused {
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.contains(&b'\r') {
            return Refused::BareCr;
        }
        if number == 0 && kind != Kind::Trailers {
            let refused =
                if kind == Kind::Request { request_line(line) } else { status_line(line) };
            match refused {
                Some(refused) => return refused,
                None => continue,
            }
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            if line.is_empty() { continue } else { return Refused::FieldName }
        };
        let (name, value) = line.split_at(colon);
        if matches!(name, [.., b' ' | b'\t']) {
            return Refused::SpaceBeforeColon;
        }
        if !grammar::is_token(name) {
            return Refused::FieldName;
        }
        if !value.iter().all(|byte| grammar::is_value_byte(*byte)) {
            return Refused::FieldValue;
        }
    }
    Refused::TooManyFields
}

fn request_line(line: &[u8]) -> Option<Refused> {
    let mut parts = line.split(|byte| *byte == b' ');
    if !parts.next().is_some_and(grammar::is_token) {
        return Some(Refused::Method);
    }
    let target = parts.next().unwrap_or_default();
    if target.is_empty() || !target.iter().all(|byte| grammar::is_target_byte(*byte)) {
        return Some(Refused::Target);
    }
    (parts.count() != 1).then_some(Refused::RequestLine)
}

fn status_line(line: &[u8]) -> Option<Refused> {
    let is_status = match line.get("HTTP/1.1".len()..) {
        Some([b' ', a, b, c]) => [a, b, c].iter().all(|digit| digit.is_ascii_digit()),
        Some([b' ', a, b, c, b' ', reason @ ..]) => {
            [a, b, c].iter().all(|digit| digit.is_ascii_digit())
                && reason.iter().all(|byte| grammar::is_value_byte(*byte))
        }
        _ => false,
    };
    (!is_status).then_some(Refused::StatusLine)
}

#[cfg(test)]
mod tests;
