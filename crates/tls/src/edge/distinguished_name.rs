//! A distinguished name as text (RFC 2253), as other gateways write it into
//! `x-forwarded-client-cert`.
//!
//! The text is visible ASCII and spaces, whatever is in the certificate: other characters are
//! escaped by their octets. What is no text is written as `#` and its DER.

use std::fmt::Write as _;

use x509_parser::asn1_rs::ToDer as _;
use x509_parser::prelude::X509Name;
use x509_parser::x509::AttributeTypeAndValue;

/// The attributes with names of their own (RFC 2253, 2.3), and two that OpenSSL names too.
const NAMES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// The last part of the name comes first (RFC 2253, 2.1).
pub(super) fn text(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter_rdn().collect();
    let mut text = String::new();
    for (at, part) in parts.into_iter().rev().enumerate() {
        for (and, attribute) in part.iter().enumerate() {
            match (at, and) {
                (0, 0) => {}
                (_, 0) => text.push(','),
                _ => text.push('+'),
            }
            write(&mut text, attribute);
        }
    }
    text
}

fn write(text: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let oid = attribute.attr_type().to_id_string();
    let known = NAMES.iter().find(|(id, _)| *id == oid);
    text.push_str(known.map_or(oid.as_str(), |(_, name)| name));
    text.push('=');
    match attribute.as_str() {
        Ok(value) if known.is_some() => escape(text, value),
        _ => {
            text.push('#');
            for octet in attribute.attr_value().to_der_vec().unwrap_or_default() {
                let _ = write!(text, "{octet:02x}");
            }
        }
    }
}

/// RFC 2253, 2.4.
fn escape(text: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (at, octet) in value.bytes().enumerate() {
        match octet {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                text.push('\\');
                text.push(char::from(octet));
            }
            b'#' if at == 0 => text.push_str("\\#"),
            b' ' if at == 0 || at == last => text.push_str("\\ "),
            b' '..=b'~' => text.push(char::from(octet)),
            _ => {
                let _ = write!(text, "\\{octet:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::*;

    fn check(parts: &[(DnType, &str)], expected: &str) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            let value = DnValue::Utf8String((*value).to_owned());
            params.distinguished_name.push(kind.clone(), value);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let (_, certificate) = X509Certificate::from_der(certificate.der()).expect("readable");
        assert_eq!(text(certificate.subject()), expected);
    }

    #[test]
    fn names_are_written_as_other_gateways_write_them() {
        use DnType::{CommonName, CountryName, CustomDnType, OrganizationName};
        check(&[], "");
        check(
            &[(CountryName, "DE"), (OrganizationName, "Ambit, Inc."), (CommonName, "web")],
            "CN=web,O=Ambit\\, Inc.,C=DE",
        );
        check(&[(CommonName, " a+b;\"c\"#\\ ")], "CN=\\ a\\+b\\;\\\"c\\\"#\\\\\\ ");
        check(&[(CommonName, "#1")], "CN=\\#1");
        check(&[(CommonName, " ")], "CN=\\ ");
        // Neither a line of a header nor a letter outside of ASCII comes through as such.
        check(&[(CommonName, "a\r\nx: \u{e9}")], "CN=a\\0D\\0Ax: \\C3\\A9");
        check(&[(CustomDnType(vec![1, 2, 3, 4]), "ab")], "1.2.3.4=#0c026162");
    }
}
