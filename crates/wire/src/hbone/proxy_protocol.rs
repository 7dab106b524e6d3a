//! PROXY protocol version 2, for applications that terminate the tunnel themselves.
//!
//! The header precedes the first byte of the application's connection and says who is really at
//! the other end. It must be sent only to applications that asked for it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ambit_model::identity::Identity;

/// Type of the field that carries the client's SPIFFE identity.
pub(crate) const TLV_SPIFFE_ID: u8 = 0xD0;

/// What SPIFFE allows for an identity.
const MAX_IDENTITY_BYTES: usize = 2048;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, on behalf of another.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_V4: u8 = 0x11;
const TCP_OVER_V6: u8 = 0x21;

/// An identity that does not fit the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("identity of {0} bytes does not fit a PROXY protocol header; {MAX_IDENTITY_BYTES} do")]
pub struct IdentityTooLong(usize);

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
}
