//! Host and port: what a target, a Host field or a CONNECT names.
//!
//! Only what is a name or an address in practice: letters, digits, `-`, `.`, `_`, or IPv6 in
//! brackets. RFC 3986 also allows percent-encoding and separators like the comma; two Host fields
//! that some part on the way has joined would pass as one name, and a policy would compare it with
//! another than what the upstream looks at. An empty port is refused for the same reason.

use std::net::Ipv6Addr;

use crate::refused::Refused;

/// A host, and a port if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    text: Box<str>,
    host_len: usize,
    port: Option<u16>,
}

impl Authority {
    /// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        if bytes.contains(&b'@') {
            return Err(Refused::UserInfo);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Refused::Host)?;
        let host_len = match text.find(']') {
            Some(end) => end + 1,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (host, rest) = text.split_at(host_len);
        if !is_host(host) {
            return Err(Refused::Host);
        }
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            None => return Err(Refused::Host),
            Some(digits) => Some(port(digits)?),
        };
        Ok(Self { text: text.into(), host_len, port })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host alone, an address of IPv6 with its brackets, in the case in which it came.
    pub fn host(&self) -> &str {
        &self.text[..self.host_len]
    }

    /// The port, if one is written.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }
}

fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|it| it.parse::<Ipv6Addr>().is_ok());
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.bytes().all(is_letter)
}

fn port(digits: &str) -> Result<u16, Refused> {
    let is_number = (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number = if is_number { digits.parse().ok() } else { None };
    number.ok_or(Refused::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(&str, Option<u16>), Refused>) {
        let read = Authority::parse(text.as_bytes());
        let read = read.as_ref().map(|it| (it.host(), it.port())).map_err(|refused| *refused);
        assert_eq!(read, expected, "{text}");
    }

    #[test]
    fn hosts_and_ports() {
        check("example.com", Ok(("example.com", None)));
        check("Example.com.", Ok(("Example.com.", None)));
        check("a_b.svc:8080", Ok(("a_b.svc", Some(8080))));
        check("10.0.0.1:80", Ok(("10.0.0.1", Some(80))));
        check("[::1]", Ok(("[::1]", None)));
        check("[fd00::1]:15008", Ok(("[fd00::1]", Some(15008))));
    }

    #[test]
    fn what_is_neither() {
        for text in [
            "",
            ":",
            ":80",
            "a:",
            "a:+80",
            "a:80:80",
            "a:65536",
            "a:000080",
            "a b",
            "a,b",
            "a/b",
            "a%2fb",
            "::1",
            "[::1",
            "::1]",
            "[::1]x",
            "[v1.x]",
            "[fe80::1%25eth0]",
            "h\u{e9}",
            "a\\b",
            "a?b",
            "[]",
            "a[::1]",
        ] {
            check(text, Err(Refused::Host));
        }
        check("user@host", Err(Refused::UserInfo));
        check("user:secret@host:80", Err(Refused::UserInfo));
        check("@", Err(Refused::UserInfo));
    }
}
