//! What concerns one connection alone (RFC 9110, 7.6.1), and is therefore never passed on.
//!
//! A field that Connection names is removed. A client could use that to remove what others rely on,
//! so fields that are for everybody on the way, and all that proxies set, cannot be named. Upgrade
//! alone stays, and only where the upgrade is accepted, so that routers and policies see it.

use crate::fields::{Field, Fields, known::Known};
use crate::grammar;
use crate::refused::Refused;

/// How many options all Connection fields have at most. Each is compared with each field.
const MOST_OPTIONS: usize = 64;

/// A protocol that both ends may switch to.
///
/// Behind an upgrade no policy sees a request. So this is a list of what is allowed: with `h2c`,
/// `HTTP/2.0` or `TLS/1.0` a client would send requests past every policy. An upgrade to something
/// else, and a list of protocols, is ignored as RFC 9110, 7.8, allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `websocket` (RFC 6455).
    WebSocket,
}

impl Protocol {
    fn parse(value: &[u8]) -> Option<Self> {
        value.eq_ignore_ascii_case(Self::WebSocket.as_bytes()).then_some(Self::WebSocket)
    }

    /// As it is sent, and as it is in the fields.
    pub(super) fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::WebSocket => b"websocket",
        }
    }
}

/// What the two ends of one connection tell each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Connection has `close`.
    pub(crate) closes: bool,
    /// Connection has `keep-alive`, which matters in HTTP/1.0 alone.
    pub(crate) keeps: bool,
    /// Connection has `upgrade`, and Upgrade names one protocol that is allowed.
    pub(crate) upgrade: Option<Protocol>,
}

/// The one value of TE that is passed on.
const TRAILERS: &[u8] = b"trailers";

/// Prefixes of fields that proxies set.
const PROXY_PREFIXES: [&str; 4] = ["x-forwarded-", "x-envoy-", "x-ambit-", "x-b3-"];

/// Fields that proxies set.
const PROXY_FIELDS: [&str; 6] =
    ["b3", "baggage", "traceparent", "tracestate", "x-request-id", "x-real-ip"];

/// Reads the fields that concern one connection, and removes them.
///
/// `TE: trailers` stays, written so: the writer names it in Connection again. Content-Length stays
/// too, since policies and logs look at it; the writer writes its own. So does Upgrade where the
/// message may upgrade and the protocol is allowed: what policies see there is what the writer
/// writes.
pub(crate) fn take(fields: &mut Fields, may_upgrade: bool) -> Result<Options, Refused> {
    let mut options = Options::default();
    let mut upgrades = false;
    let mut named: Vec<Box<[u8]>> = Vec::new();
    let values = fields.all(Known::Connection);
    for (number, option) in values.flat_map(grammar::members).enumerate() {
        if number >= MOST_OPTIONS {
            return Err(Refused::TooManyOptions);
        }
        match option {
            _ if option.eq_ignore_ascii_case(b"close") => options.closes = true,
            _ if option.eq_ignore_ascii_case(b"keep-alive") => options.keeps = true,
            _ if option.eq_ignore_ascii_case(b"upgrade") => upgrades = true,
            _ if option.eq_ignore_ascii_case(b"te") => {}
            _ => named.push(option.into()),
        }
    }
    if upgrades && may_upgrade {
        let mut protocols = fields.all(Known::Upgrade);
        let first = protocols.next().and_then(Protocol::parse);
        options.upgrade = first.filter(|_| protocols.next().is_none());
    }
    let wants_trailers = fields.all(Known::Te).any(|it| it.eq_ignore_ascii_case(TRAILERS))
        && !fields.all(Known::Te).any(|it| it == TRAILERS);
    fields.retain(|field| {
        let is_named = named.iter().any(|name| field.name.eq_ignore_ascii_case(name));
        !concerns_one_connection(field) && (!is_named || is_protected(field))
    });
    if wants_trailers {
        // HTTP/2 takes it in small letters alone. It is as long as what was removed.
        fields.append(Known::Te, TRAILERS).map_err(|_| Refused::HeadTooLarge)?;
    }
    if let Some(protocol) = options.upgrade {
        // In the case in which it is sent. It is as long as what was removed, so there is room.
        let put = fields.append(Known::Upgrade, protocol.as_bytes());
        put.map_err(|_| Refused::HeadTooLarge)?;
    }
    Ok(options)
}

fn concerns_one_connection(field: &Field<'_>) -> bool {
    match field.known {
        Some(Known::Te) => field.value != TRAILERS,
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

/// A client must not have these removed behind it. `grpc-timeout` and `grpc-status` are for both
/// ends of a call.
fn is_protected(field: &Field<'_>) -> bool {
    belongs_in_head(field) || has_prefix(field.name, "grpc-")
}

/// Whether a field says something of the whole message, or is set by proxies. Such a field cannot
/// come behind the body, when everybody on the way has already acted.
///
/// Every name that the codec knows is one that has a meaning for all; more are listed. A server may
/// read `_` as `-`.
pub(super) fn belongs_in_head(field: &Field<'_>) -> bool {
    if field.known.is_some() || is_of_proxies(field.name) {
        return true;
    }
    if !field.name.contains(&b'_') {
        return false;
    }
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    let name: Vec<u8> = field.name.iter().map(plain).collect();
    Known::of(&name).is_some() || is_of_proxies(&name)
}

fn is_of_proxies(name: &[u8]) -> bool {
    PROXY_PREFIXES.iter().any(|prefix| has_prefix(name, prefix))
        || PROXY_FIELDS.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
}

fn has_prefix(name: &[u8], prefix: &str) -> bool {
    let start = name.get(..prefix.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::FieldLimits;

    /// Fields as `name: value` lines; what remains of them, and what was read.
    fn check(lines: &str, remain: &str, closes: bool, keeps: bool, upgrade: Option<Protocol>) {
        let mut fields = Fields::new(FieldLimits::default());
        for line in lines.split('|') {
            let (name, value) = line.split_once(": ").expect("a field");
            fields.append(name, value.as_bytes()).expect("a field");
        }
        let options = take(&mut fields, true);
        let text = |field: Field<'_>| String::from_utf8_lossy(field.name).into_owned();
        assert_eq!(fields.iter().map(text).collect::<Vec<_>>().join(" "), remain, "{lines}");
        assert_eq!(options, Ok(Options { closes, keeps, upgrade }), "{lines}");
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
    fn an_accepted_upgrade_stays() {
        let web = Some(Protocol::WebSocket);
        check("Connection: Upgrade|a: 1|Upgrade: websocket|b: 2", "a b upgrade", false, false, web);
        check("Connection: keep-alive, upgrade|Upgrade: WebSocket", "upgrade", false, true, web);
        let mut fields = Fields::new(FieldLimits::default());
        for (name, value) in [("Connection", "upgrade"), ("Upgrade", "WebSocket")] {
            fields.append(name, value.as_bytes()).expect("a field");
        }
        take(&mut fields, true).expect("options");
        assert_eq!(
            fields.first("upgrade"),
            Some(&b"websocket"[..]),
            "what is seen is what is sent"
        );
    }

    #[test]
    fn other_upgrades_are_ignored() {
        check("Upgrade: websocket", "", false, false, None);
        check("Connection: upgrade", "", false, false, None);
        check("Connection: upgrade|Upgrade: websocket|Upgrade: b", "", false, false, None);
        for protocol in [
            "h2c",
            "H2C",
            "h2c/1",
            "HTTP/2.0",
            "TLS/1.0",
            "SPDY/3.1",
            "websocket, h2c",
            "h2c, websocket",
            "websocket/13",
            "websockets",
        ] {
            let lines = format!("Connection: upgrade, http2-settings|Upgrade: {protocol}");
            check(&format!("{lines}|HTTP2-Settings: AA"), "", false, false, None);
        }
    }

    #[test]
    fn options_are_bounded() {
        let options = |number: usize| {
            let mut fields = Fields::new(FieldLimits::default());
            for line in ["a,"; 2] {
                fields.append("Connection", line.repeat(number / 2).as_bytes()).expect("a field");
            }
            take(&mut fields, false)
        };
        assert_eq!(options(MOST_OPTIONS), Ok(Options::default()));
        assert_eq!(options(MOST_OPTIONS + 2), Err(Refused::TooManyOptions));
    }

    #[test]
    fn trailers_are_still_wanted() {
        for written in ["trailers", "Trailers", "TRAILERS"] {
            let mut fields = Fields::new(FieldLimits::default());
            fields.append("TE", written.as_bytes()).expect("a field");
            take(&mut fields, false).expect("options");
            assert_eq!(fields.first("te"), Some(&b"trailers"[..]), "as HTTP/2 writes it");
        }
        check("TE: trailers|Connection: te", "TE", false, false, None);
        check("TE: Trailers|Connection: te|a: 1|TE: TRAILERS", "a te", false, false, None);
        check("TE: gzip|Connection: TE", "", false, false, None);
        check("TE: trailers, deflate", "", false, false, None);
    }
}
