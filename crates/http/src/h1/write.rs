//! Heads into a buffer.
//!
//! Every head is written from its values; no byte of one that came is passed on unread. Host,
//! Content-Length, Transfer-Encoding, Connection and Upgrade are made here from what was decided,
//! and left out wherever else they come from, so that no filter can frame a message a second time.
//! The version is always ours, 1.1 (RFC 9110, 2.5).

use super::framing::{RequestBody, ResponseBody};
use super::options::Protocol;
use crate::fields::{Fields, known::Known};
use crate::head::{RequestHead, ResponseHead, Target, Version};

/// The client that a response is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// What it speaks.
    pub version: Version,
    /// Whether its connection is to be used again, as far as it is for us to say.
    pub is_persistent: bool,
}

/// How the body behind a response's head must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// In what form: never in chunks to a client of HTTP/1.0.
    pub body: ResponseBody,
    /// Whether the connection is used again behind it; if not, it is closed.
    pub is_persistent: bool,
}

/// Writes a request's head. The connection to the server is kept unless it `closes`.
///
/// The server is an origin, never a proxy, so no target is absolute (RFC 9112, 3.2.1).
pub fn request(
    head: &RequestHead,
    body: RequestBody,
    upgrade: Option<Protocol>,
    closes: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(head.method().as_str().as_bytes());
    out.push(b' ');
    match head.target() {
        Target::Origin { path, .. } => out.extend_from_slice(path.as_str().as_bytes()),
        Target::Authority(to) => out.extend_from_slice(to.as_str().as_bytes()),
        Target::Asterisk { .. } => out.push(b'*'),
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    field(b"Host", head.authority().as_str().as_bytes(), out);
    fields(&head.fields, out);
    match body {
        RequestBody::Absent => {}
        RequestBody::Sized(size) => length(size, out),
        RequestBody::Chunked => field(b"Transfer-Encoding", b"chunked", out),
    }
    let wants_trailers = head.fields.first(Known::Te).is_some();
    let options = [(wants_trailers, "te"), (upgrade.is_some(), "upgrade"), (closes, "close")];
    connection(options, upgrade, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes a response's head in the form that the client understands, and says what that form is.
pub fn response(
    head: &ResponseHead,
    body: ResponseBody,
    upgrade: Option<Protocol>,
    client: Client,
    out: &mut Vec<u8>,
) -> Written {
    let body = match (body, client.version) {
        (ResponseBody::Chunked | ResponseBody::UntilClose, Version::Http10) => {
            ResponseBody::UntilClose
        }
        (ResponseBody::Chunked | ResponseBody::UntilClose, Version::Http11) => {
            ResponseBody::Chunked
        }
        (ResponseBody::Absent { .. } | ResponseBody::Sized(_) | ResponseBody::Tunnel, _) => body,
    };
    let lasts = !matches!(body, ResponseBody::UntilClose);
    let is_tunnel = body == ResponseBody::Tunnel;
    let is_persistent = client.is_persistent && lasts && !is_tunnel;
    out.extend_from_slice(b"HTTP/1.1 ");
    number(u64::from(head.status.code()), out);
    out.push(b' ');
    out.extend_from_slice(head.reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    fields(&head.fields, out);
    match body {
        ResponseBody::Sized(size) | ResponseBody::Absent { length: Some(size) } => {
            length(size, out)
        }
        ResponseBody::Chunked => field(b"Transfer-Encoding", b"chunked", out),
        ResponseBody::Absent { length: None } | ResponseBody::UntilClose | ResponseBody::Tunnel => {
        }
    }
    // A response that is not the last to its request says nothing of the connection.
    let is_last = !head.status.is_informational() && !is_tunnel;
    let is_old = client.version == Version::Http10;
    let options = [
        (upgrade.is_some(), "upgrade"),
        (is_last && !is_persistent, "close"),
        (is_last && is_persistent && is_old, "keep-alive"),
    ];
    connection(options, upgrade, out);
    out.extend_from_slice(b"\r\n");
    Written { body, is_persistent }
}

/// Writes one line of a head.
pub(super) fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// All fields but those that are made here.
fn fields(fields: &Fields, out: &mut Vec<u8>) {
    for it in fields.iter() {
        let is_made_here = matches!(
            it.known,
            Some(
                Known::Host
                    | Known::ContentLength
                    | Known::TransferEncoding
                    | Known::Connection
                    | Known::KeepAlive
                    | Known::ProxyConnection
                    | Known::Upgrade
            )
        );
        if !is_made_here {
            field(it.name, it.value, out);
        }
    }
}

fn connection(options: [(bool, &str); 3], upgrade: Option<Protocol>, out: &mut Vec<u8>) {
    let mut separator: &[u8] = b"Connection: ";
    for (_, option) in options.iter().filter(|(is_set, _)| *is_set) {
        out.extend_from_slice(separator);
        out.extend_from_slice(option.as_bytes());
        separator = b", ";
    }
    if options.iter().any(|(is_set, _)| *is_set) {
        out.extend_from_slice(b"\r\n");
    }
    if let Some(protocol) = upgrade {
        field(b"Upgrade", protocol.as_bytes(), out);
    }
}

fn length(size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Content-Length: ");
    number(size, out);
    out.extend_from_slice(b"\r\n");
}

fn number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len() - 1;
    loop {
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
        start -= 1;
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests;
