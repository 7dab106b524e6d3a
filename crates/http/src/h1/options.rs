//! What concerns one connection alone (RFC 9110, 7.6.1), and is therefore never passed on.
//!
//! A field that Connection names is removed. A client could use that to remove what others rely on,
//! so fields that are for everybody on the way, and all that proxies set, cannot be named.

use crate::fields::{Field, Fields, known::Known};
use crate::grammar;

/// A protocol that both ends switch to: one token, with a version or without.
///
/// A list of protocols is taken for none: a proxy would have to understand whichever is chosen. The
/// same holds for `h2c`, with which a client would leave HTTP/1.1, and every policy with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(Box<[u8]>);

impl Protocol {
    fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(2, |byte| *byte == b'/');
        let is_h2c = value.eq_ignore_ascii_case(b"h2c");
        (!is_h2c && parts.all(grammar::is_token)).then(|| Self(value.into()))
    }

    /// As it is sent.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What the two ends of one connection tell each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Connection has `close`.
    pub(super) closes: bool,
    /// Connection has `keep-alive`, which matters in HTTP/1.0 alone.
    pub(super) keeps: bool,
    /// Connection has `upgrade`, and Upgrade names one protocol.
    pub(super) upgrade: Option<Protocol>,
}

/// Fields for everybody on the way, besides those that frame a message or say who asks.
const PROTECTED_PREFIXES: [&str; 5] = ["x-forwarded-", "x-envoy-", "x-ambit-", "x-b3-", "grpc-"];

/// Fields that proxies set: a client must not have them removed behind it.
const PROTECTED: [&str; 6] =
    ["b3", "baggage", "traceparent", "tracestate", "x-request-id", "x-real-ip"];

/// Reads the fields that concern one connection, and removes them.
///
/// `TE: trailers` stays: the writer names it in Connection again. Content-Length stays too, since
/// policies and logs look at it; the writer writes its own.
pub(super) fn take(fields: &mut Fields) -> Options {
    let mut options = Options::default();
    let mut upgrades = false;
    let mut named: Vec<Box<[u8]>> = Vec::new();
    let values = fields.all(Known::Connection);
    for option in values.flat_map(grammar::members) {
        match option {
            _ if option.eq_ignore_ascii_case(b"close") => options.closes = true,
            _ if option.eq_ignore_ascii_case(b"keep-alive") => options.keeps = true,
            _ if option.eq_ignore_ascii_case(b"upgrade") => upgrades = true,
            _ if option.eq_ignore_ascii_case(b"te") => {}
            _ => named.push(option.into()),
        }
    }
    if upgrades {
        let mut protocols = fields.all(Known::Upgrade);
        let first = protocols.next().and_then(Protocol::parse);
        options.upgrade = first.filter(|_| protocols.next().is_none());
    }
    fields.retain(|field| {
        let is_named = named.iter().any(|name| field.name.eq_ignore_ascii_case(name));
        !concerns_one_connection(field) && (!is_named || is_protected(field))
    });
    options
}

fn concerns_one_connection(field: &Field<'_>) -> bool {
    match field.known {
        Some(Known::Te) => !field.value.eq_ignore_ascii_case(b"trailers"),
        Some(
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Http2Settings,
        ) => true,
        _ => false,
    }
}

/// Every name that the codec knows is one that has a meaning for all; more are listed.
fn is_protected(field: &Field<'_>) -> bool {
    let has_prefix = |prefix: &&str| {
        let start = field.name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    field.known.is_some()
        || PROTECTED_PREFIXES.iter().any(has_prefix)
        || PROTECTED.iter().any(|name| field.name.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::FieldLimits;

    /// Fields as `name: value` lines; what remains of them, and what was read.
    fn check(lines: &str, remain: &str, closes: bool, keeps: bool, upgrade: Option<&str>) {
        let mut fields = Fields::new(FieldLimits::default());
        for line in lines.split('|') {
            let (name, value) = line.split_once(": ").expect("a field");
            fields.append(name, value.as_bytes()).expect("a field");
        }
        let options = take(&mut fields);
        let text = |field: Field<'_>| String::from_utf8_lossy(field.name).into_owned();
        assert_eq!(fields.iter().map(text).collect::<Vec<_>>().join(" "), remain, "{lines}");
        let upgrade = upgrade.map(|name| Protocol(name.as_bytes().into()));
        assert_eq!(options, Options { closes, keeps, upgrade }, "{lines}");
    }

    #[test]
    fn what_is_named_is_removed() {
        check("a: 1|Connection: close|b: 2", "a b", true, false, None);
        check(
            "Connection: x-A, Keep-Alive|X-a: 1|Keep-Alive: timeout=5|b: 2",
            "b",
            false,
            true,
            None,
        );
        check("Connection: a|Connection: ,b,,|a: 1|b: 1|c: 1", "c", false, false, None);
        check("Proxy-Connection: close|Transfer-Encoding: chunked", "", false, false, None);
        check("a: 1", "a", false, false, None);
    }

    #[test]
    fn what_others_rely_on_cannot_be_named() {
        let lines = "Connection: content-length, Authorization, x-forwarded-for, cookie|\
                     Connection: X-Request-Id, x-envoy-original-path, traceparent|\
                     Content-Length: 5|Authorization: x|X-Forwarded-For: x|Cookie: x|\
                     x-request-id: x|X-Envoy-Original-Path: x|traceparent: x";
        let remain = "Content-Length Authorization X-Forwarded-For Cookie x-request-id \
                      X-Envoy-Original-Path traceparent";
        check(lines, remain, false, false, None);
    }

    #[test]
    fn upgrades() {
        check("Connection: Upgrade|Upgrade: websocket", "", false, false, Some("websocket"));
        check(
            "Connection: keep-alive, upgrade|Upgrade: SPDY/3.1",
            "",
            false,
            true,
            Some("SPDY/3.1"),
        );
        check("Upgrade: websocket", "", false, false, None);
        check("Connection: upgrade", "", false, false, None);
        check("Connection: upgrade|Upgrade: a, b", "", false, false, None);
        check("Connection: upgrade|Upgrade: a|Upgrade: b", "", false, false, None);
        check(
            "Connection: upgrade, http2-settings|Upgrade: h2c|HTTP2-Settings: AA",
            "",
            false,
            false,
            None,
        );
    }

    #[test]
    fn trailers_are_still_wanted() {
        check("TE: trailers|Connection: te", "TE", false, false, None);
        check("TE: gzip|Connection: TE", "", false, false, None);
        check("TE: trailers, deflate", "", false, false, None);
    }
}
