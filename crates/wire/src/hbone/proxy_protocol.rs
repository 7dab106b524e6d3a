//! PROXY protocol: written in version 2 for applications that terminate the tunnel themselves, and
//! read in versions 1 and 2 from load balancers before a gateway.
//!
//! The header precedes the first byte of a connection and says who is really at the other end. It
//! must be sent only to applications that asked for it, and be believed only where an operator says
//! that nobody else connects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ambit_model::identity::Identity;

/// Type of the field that carries the client's SPIFFE identity.
pub(crate) const TLV_SPIFFE_ID: u8 = 0xD0;

/// What SPIFFE allows for an identity.
const MAX_IDENTITY_BYTES: usize = 2048;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, on behalf of another.
const VERSION_AND_COMMAND: u8 = 0x21;
/// Version 2, for the sender itself, such as a health check.
const VERSION_AND_LOCAL: u8 = 0x20;
const TCP_OVER_V4: u8 = 0x11;
const TCP_OVER_V6: u8 = 0x21;
/// How version 1 begins.
const TEXT_START: &[u8] = b"PROXY ";
/// Longest line of version 1, with its end.
const TEXT_BYTES_MAX: usize = 107;
/// Longest header that is read; one with every known field is shorter.
pub const HEADER_BYTES_MAX: usize = 4096;
/// Signature, command, family and length of version 2.
const FIXED_BYTES: usize = SIGNATURE.len() + 4;

/// An identity that does not fit the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("identity of {0} bytes does not fit a PROXY protocol header; {MAX_IDENTITY_BYTES} do")]
pub struct IdentityTooLong(usize);

/// What the first bytes of a connection say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded {
    /// Too little to say.
    More,
    /// They are no header.
    Other,
    /// A header of so many bytes.
    Header {
        /// Its length.
        bytes: usize,
        /// Who is at the other end; `None` if the sender speaks for itself, or does not know.
        source: Option<SocketAddr>,
    },
}

/// Reads the header at the beginning of a connection.
pub fn decode(bytes: &[u8]) -> Decoded {
    let begins = |start: &[u8]| {
        let common = start.len().min(bytes.len());
        bytes[..common] == start[..common]
    };
    match bytes {
        _ if begins(&SIGNATURE) && bytes.len() < FIXED_BYTES => Decoded::More,
        _ if begins(&SIGNATURE) => decode_binary(bytes),
        _ if begins(TEXT_START) => decode_text(bytes),
        _ => Decoded::Other,
    }
}

fn decode_binary(bytes: &[u8]) -> Decoded {
    let [command, family] = [bytes[SIGNATURE.len()], bytes[SIGNATURE.len() + 1]];
    let length = u16::from_be_bytes([bytes[SIGNATURE.len() + 2], bytes[SIGNATURE.len() + 3]]);
    if ![VERSION_AND_COMMAND, VERSION_AND_LOCAL].contains(&command) {
        return Decoded::Other;
    }
    let whole = FIXED_BYTES + usize::from(length);
    if whole > HEADER_BYTES_MAX {
        return Decoded::Other;
    }
    let Some(body) = bytes.get(FIXED_BYTES..whole) else { return Decoded::More };
    if command == VERSION_AND_LOCAL {
        return Decoded::Header { bytes: whole, source: None };
    }
    let port = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
    let source = match family {
        TCP_OVER_V4 => body
            .first_chunk::<4>()
            .zip(port(8))
            .map(|(ip, port)| SocketAddr::from((Ipv4Addr::from(*ip), port))),
        TCP_OVER_V6 => body.first_chunk::<16>().zip(port(32)).map(|(ip, port)| {
            SocketAddr::new(IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical(), port)
        }),
        // Neither addresses nor ports are known.
        0 => return Decoded::Header { bytes: whole, source: None },
        _ => return Decoded::Other,
    };
    match source {
        Some(_) => Decoded::Header { bytes: whole, source },
        None => Decoded::Other,
    }
}

fn decode_text(bytes: &[u8]) -> Decoded {
    let line = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|it| it == b"\r\n") else {
        return if bytes.len() < TEXT_BYTES_MAX { Decoded::More } else { Decoded::Other };
    };
    let Ok(text) = std::str::from_utf8(&line[..end]) else { return Decoded::Other };
    let (bytes, mut words) = (end + 2, text.split(' ').skip(1));
    let is_v4 = match words.next() {
        Some("TCP4") => true,
        Some("TCP6") => false,
        Some("UNKNOWN") => return Decoded::Header { bytes, source: None },
        _ => return Decoded::Other,
    };
    let [Some(ip), Some(to), Some(port), Some(_), None] = [(); 5].map(|()| words.next()) else {
        return Decoded::Other;
    };
    let read = |text: &str| text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == is_v4);
    match (read(ip), read(to), port.parse::<u16>()) {
        (Some(source), Some(_), Ok(port)) => {
            Decoded::Header { bytes, source: Some(SocketAddr::new(source.to_canonical(), port)) }
        }
        _ => Decoded::Other,
    }
}

/// The header for one connection. Addresses of different families are both written as IPv6.
pub fn encode(
    source: SocketAddr,
    destination: SocketAddr,
    client: Option<&Identity>,
) -> Result<Vec<u8>, IdentityTooLong> {
    let mut body = Vec::with_capacity(128);
    let family = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            body.extend(from.octets());
            body.extend(to.octets());
            TCP_OVER_V4
        }
        (from, to) => {
            body.extend(mapped(from).octets());
            body.extend(mapped(to).octets());
            TCP_OVER_V6
        }
    };
    body.extend(source.port().to_be_bytes());
    body.extend(destination.port().to_be_bytes());
    if let Some(client) = client {
        let value = client.to_string();
        if value.len() > MAX_IDENTITY_BYTES {
            return Err(IdentityTooLong(value.len()));
        }
        body.push(TLV_SPIFFE_ID);
        body.extend(length(value.len()));
        body.extend(value.as_bytes());
    }
    let mut header = Vec::with_capacity(SIGNATURE.len() + 4 + body.len());
    header.extend(SIGNATURE);
    header.extend([VERSION_AND_COMMAND, family]);
    header.extend(length(body.len()));
    header.extend(body);
    Ok(header)
}

fn length(bytes: usize) -> [u8; 2] {
    let bytes = u16::try_from(bytes).expect("the identity is bounded");
    bytes.to_be_bytes()
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE_HEX: &str = "0d0a0d0a000d0a515549540a";

    fn check(source: &str, destination: &str, client: Option<&Identity>, expected: &str) {
        let header = encode(source.parse().unwrap(), destination.parse().unwrap(), client);
        let hex: String = header.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, format!("{SIGNATURE_HEX}{expected}"), "{source} -> {destination}");
    }

    #[test]
    fn addresses_and_identity_are_written() {
        let v6 = "20010000000000000000000000000000";
        let one = |last: &str| format!("{}{last}", &v6[..30]);
        check("10.0.0.1:1", "10.0.0.2:80", None, "2111000c0a0000010a00000200010050");
        let expected = format!("21210024{}{}00010050", one("01"), one("02"));
        check("[2001::1]:1", "[2001::2]:80", None, &expected);
        let mapped = "00000000000000000000ffff0a000001";
        let expected = format!("21210024{mapped}{}00010050", one("02"));
        check("10.0.0.1:1", "[2001::2]:80", None, &expected);
        let client = Identity::new("t", "a", "b");
        let value: String = client.to_string().bytes().map(|b| format!("{b:02x}")).collect();
        let expected = format!("211100230a0000010a00000200010050d00014{value}");
        check("10.0.0.1:1", "10.0.0.2:80", Some(&client), &expected);
    }

    #[test]
    fn an_identity_that_does_not_fit_is_refused() {
        let client = Identity::new("t", "n".repeat(70_000), "b");
        let end = "10.0.0.1:1".parse().unwrap();
        assert!(encode(end, end, Some(&client)).is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        for (source, destination) in [
            ("10.0.0.1:1", "10.0.0.2:80"),
            ("[2001::1]:1", "[2001::2]:80"),
            ("10.0.0.1:1", "[2001::2]:80"),
        ] {
            let source = source.parse().unwrap();
            let client = Identity::new("t", "a", "b");
            let header = encode(source, destination.parse().unwrap(), Some(&client)).unwrap();
            let whole = Decoded::Header { bytes: header.len(), source: Some(source) };
            assert_eq!(decode(&[&header[..], b"GET"].concat()), whole);
            for length in 0..header.len() {
                assert_eq!(decode(&header[..length]), Decoded::More, "{length}");
            }
        }
    }

    #[test]
    fn a_line_of_version_1_is_read() {
        let read = |text: &str| decode(text.as_bytes());
        let header = |text: &str, source: Option<&str>| {
            let source = source.map(|it| it.parse().unwrap());
            assert_eq!(read(text), Decoded::Header { bytes: text.trim_end().len() + 2, source });
        };
        header("PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\n", Some("192.0.2.1:56324"));
        header("PROXY TCP6 2001:db8::1 ::1 1 2\r\n", Some("[2001:db8::1]:1"));
        header("PROXY UNKNOWN\r\n", None);
        header("PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None);
        for (text, expected) in [
            ("", Decoded::More),
            ("PRO", Decoded::More),
            ("PROXY TCP4 192.0.2.1", Decoded::More),
            ("GET / HTTP/1.1\r\n", Decoded::Other),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 56324\r\n", Decoded::Other),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 1 2 3\r\n", Decoded::Other),
            ("PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n", Decoded::Other),
            ("PROXY TCP4 192.0.2.1 10.0.0.1 65536 2\r\n", Decoded::Other),
            ("PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n", Decoded::Other),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
        assert_eq!(read(&format!("PROXY TCP4 {}", "1".repeat(200))), Decoded::Other);
    }

    #[test]
    fn a_header_that_is_none_is_refused() {
        let header = |rest: &[u8]| decode(&[&SIGNATURE[..], rest].concat());
        assert_eq!(header(&[0x20, 0, 0, 0]), Decoded::Header { bytes: 16, source: None });
        assert_eq!(header(&[0x21, 0, 0, 0]), Decoded::Header { bytes: 16, source: None });
        for rest in [
            &[0x31, 0x11, 0, 0][..],
            &[0x21, 0x11, 0, 2, 1, 2],
            &[0x21, 0x12, 0, 0],
            &[0x21, 0x11, 0xff, 0],
        ] {
            assert_eq!(header(rest), Decoded::Other, "{rest:?}");
        }
        assert_eq!(header(&[0x21, 0x11, 0, 12, 1]), Decoded::More);
    }
}
