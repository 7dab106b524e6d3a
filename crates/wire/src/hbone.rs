//! The headers of HBONE's CONNECT requests.
//!
//! Everything here converts text to values and back, with a bound on every text. A header is a
//! claim of the peer: use it for telemetry and to find the target, never for authorization.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::HeaderName;

mod baggage;
pub mod proxy_protocol;

pub use ambit_model::trace::TraceParent;
pub use baggage::Baggage;

/// Describes the workload that sends the header.
pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// The client behind the tunnel, and the service that it meant.
pub const FORWARDED: HeaderName = http::header::FORWARDED;
/// Trace context of the connection.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// RFC 1035, section 2.3.4.
const MAX_HOSTNAME_BYTES: usize = 253;
/// A hostname, a colon and a port.
const MAX_AUTHORITY_BYTES: usize = MAX_HOSTNAME_BYTES + 6;
const MAX_FORWARDED_BYTES: usize = 1024;
const MAX_NETWORK_BYTES: usize = 253;

/// A malformed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is too long.
    #[error("header {header} has {length} bytes; at most {limit} are accepted")]
    TooLong {
        /// Which one.
        header: &'static str,
        /// As received.
        length: usize,
        /// What is accepted.
        limit: usize,
    },
    /// It has another form.
    #[error("header {header} is not {expected}")]
    Malformed {
        /// Which one.
        header: &'static str,
        /// The form it should have.
        expected: &'static str,
    },
}

/// Refuses a text over its bound.
fn bounded(header: &'static str, length: usize, limit: usize) -> Result<(), HeaderError> {
    if length > limit {
        return Err(HeaderError::TooLong { header, length, limit });
    }
    Ok(())
}

/// The target of a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Authority {
    /// A workload, by address.
    Address(SocketAddr),
    /// A service, by hostname.
    Hostname {
        /// The hostname, as the peer wrote it.
        host: String,
        /// The service's port.
        port: u16,
    },
}

impl Authority {
    /// The port, in either form.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Hostname { port, .. } => *port,
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Hostname { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for Authority {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let malformed =
            HeaderError::Malformed { header: ":authority", expected: "ip:port or hostname:port" };
        bounded(":authority", text.len(), MAX_AUTHORITY_BYTES)?;
        let (host, port) = text.rsplit_once(':').ok_or(malformed)?;
        let port: u16 = digits(port).ok_or(malformed)?;
        if port == 0 {
            return Err(malformed);
        }
        if let Some(v6) = host.strip_prefix('[') {
            let v6 = v6.strip_suffix(']').ok_or(malformed)?;
            let ip = v6.parse().map_err(|_| malformed)?;
            return Ok(Self::Address(SocketAddr::new(IpAddr::V6(ip), port)));
        }
        match host.parse() {
            Ok(ip) => Ok(Self::Address(SocketAddr::new(IpAddr::V4(ip), port))),
            Err(_) if is_hostname(host) => Ok(Self::Hostname { host: host.to_owned(), port }),
            Err(_) => Err(malformed),
        }
    }
}

/// A port in digits alone: `u16::from_str` would take a sign.
fn digits(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Whether this can be a hostname: labels of letters, digits, `-` and `_`, the last one not a
/// number, since that would be a misspelt address.
fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let labels = text.strip_suffix('.').unwrap_or(text);
    let last = labels.rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_HOSTNAME_BYTES
        && labels.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// The part of RFC 7239 that HBONE uses: `for="<address>"`, and `host` for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// The client behind the tunnel, unless it is hidden or obfuscated.
    pub client: Option<SocketAddr>,
    /// The hostname of the service that was meant.
    pub host: Option<String>,
}

impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Some(client) => write!(f, "for=\"{client}\"")?,
            None => f.write_str("for=unknown")?,
        }
        match &self.host {
            Some(host) => write!(f, ";host={host}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Forwarded {
    type Err = HeaderError;

    /// Takes the first element: it is the one nearest to the client.
    fn from_str(text: &str) -> Result<Self, HeaderError> {
        const HEADER: &str = "forwarded";
        let expected = "a list of key=value pairs as in RFC 7239";
        bounded(HEADER, text.len(), MAX_FORWARDED_BYTES)?;
        let mut forwarded = Self::default();
        for pair in text.split(',').next().unwrap_or_default().split(';') {
            let malformed = HeaderError::Malformed { header: HEADER, expected };
            let (key, value) = pair.trim().split_once('=').ok_or(malformed)?;
            let value = unquote(value).ok_or(malformed)?;
            match key.to_ascii_lowercase().as_str() {
                "for" => forwarded.client = value.parse().ok(),
                "host" if value.is_empty() => {}
                "host" if is_hostname(value) => forwarded.host = Some(value.to_owned()),
                "host" => return Err(malformed),
                // `by` and `proto` say nothing about a tunnel; RFC 7239 allows further ones.
                _ => {}
            }
        }
        Ok(forwarded)
    }
}

/// The text within quotes, or all of it; none if there is only one quote.
fn unquote(text: &str) -> Option<&str> {
    match text.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => Some(text).filter(|text| !text.ends_with('"')),
    }
}

/// Checks the name of a network, as `x-forwarded-network` carries it.
pub fn parse_network(text: &str) -> Result<&str, HeaderError> {
    const HEADER: &str = "x-forwarded-network";
    bounded(HEADER, text.len(), MAX_NETWORK_BYTES)?;
    let is_word = text.bytes().all(|byte| byte.is_ascii_graphic() && !b",;/\"".contains(&byte));
    if text.is_empty() || !is_word {
        return Err(HeaderError::Malformed { header: HEADER, expected: "the name of a network" });
    }
    Ok(text)
}

/// What kind of proxy a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// A waypoint.
    Waypoint,
    /// A gateway.
    Gateway,
    /// A sidecar.
    Sidecar,
}

impl SourceKind {
    /// The header's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waypoint => "waypoint",
            Self::Gateway => "gateway",
            Self::Sidecar => "sidecar",
        }
    }
}

impl FromStr for SourceKind {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let all = [Self::Waypoint, Self::Gateway, Self::Sidecar];
        let expected = "waypoint, gateway or sidecar";
        let malformed = HeaderError::Malformed { header: "x-istio-source", expected };
        all.into_iter().find(|kind| kind.as_str() == text).ok_or(malformed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(host: &str, port: u16) -> Option<Authority> {
        Some(Authority::Hostname { host: host.into(), port })
    }

    fn address(text: &str) -> Option<Authority> {
        Some(Authority::Address(text.parse().unwrap()))
    }

    #[test]
    fn authorities_parse_and_print() {
        let check = |text: &str, expected: Option<Authority>| {
            let got = text.parse::<Authority>().ok();
            assert_eq!(got, expected, "{text}");
            if let Some(authority) = got {
                assert_eq!(authority.to_string().parse(), Ok(authority));
            }
        };
        check("10.0.0.1:80", address("10.0.0.1:80"));
        check("[fd00::1]:15008", address("[fd00::1]:15008"));
        check("a.b.svc.cluster.local:80", host("a.b.svc.cluster.local", 80));
        check("a_b.example.:80", host("a_b.example.", 80));
        for wrong in [
            "",
            ":",
            "a",
            "a:",
            ":80",
            "a:0",
            "a:+80",
            "a:65536",
            "10.0.0.256:80",
            "10.0.0.1",
            "fd00::1:80",
            "[fd00::1]",
            "[fd00::1:80",
            "[fe80::1%1]:80",
            "[10.0.0.1]:80",
            "a b:80",
            "a..b:80",
            "a/b:80",
            "é:80",
            "user@a:80",
        ] {
            check(wrong, None);
        }
        check(&format!("{}:80", "a.".repeat(200)), None);
    }

    #[test]
    fn forwarded_parses_and_prints() {
        let check = |text: &str, client: Option<&str>, host: Option<&str>| {
            let expected = Forwarded {
                client: client.map(|it| it.parse().unwrap()),
                host: host.map(str::to_owned),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        };
        check(r#"for="127.0.0.1:80""#, Some("127.0.0.1:80"), None);
        check(r#"for="[::1]:80";host=example.com"#, Some("[::1]:80"), Some("example.com"));
        check(
            r#"by=x; For="10.0.0.1:1" ;Host="a.b"; proto=https"#,
            Some("10.0.0.1:1"),
            Some("a.b"),
        );
        check("for=_hidden;host=", None, None);
        check(r#"for="1.1.1.1:1", for="2.2.2.2:2";host=late"#, Some("1.1.1.1:1"), None);
        for wrong in ["", "for", r#"for="1.1.1.1:1"#, "host=a/b", r#"host=a""#] {
            assert!(wrong.parse::<Forwarded>().is_err(), "{wrong}");
        }
        let long = format!("host={}", "a".repeat(2000));
        assert!(matches!(long.parse::<Forwarded>(), Err(HeaderError::TooLong { .. })));
    }

    #[test]
    fn networks_and_sources_parse() {
        assert_eq!(parse_network("net-1"), Ok("net-1"));
        for wrong in ["", "a b", "a,b", "a/b", &"n".repeat(300)] {
            assert!(parse_network(wrong).is_err(), "{wrong}");
        }
        assert_eq!("gateway".parse(), Ok(SourceKind::Gateway));
        assert!("Gateway".parse::<SourceKind>().is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,300}") {
            let _ = text.parse::<Authority>();
            let _ = text.parse::<Forwarded>();
            let _ = parse_network(&text);
        }

        #[test]
        fn addresses_survive(ip: IpAddr, port in 1_u16.., host in "[a-z][a-z0-9-]{0,20}") {
            let authority = Authority::Address(SocketAddr::new(ip, port));
            prop_assert_eq!(authority.to_string().parse(), Ok(authority));
            let client = Some(SocketAddr::new(ip, port));
            let forwarded = Forwarded { client, host: Some(host) };
            prop_assert_eq!(forwarded.to_string().parse(), Ok(forwarded));
        }
    }
}
