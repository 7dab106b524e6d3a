//! The syntax of names, labels, hosts, ports and address blocks, as Kubernetes' and Istio's API
//! servers check it.
//!
//! Each rule returns a description of the problem, or nothing. No rule may look at more than the
//! given text.

use std::net::IpAddr;

use ambit_model::address::canonical_block;
use ipnet::IpNet;

use crate::finding::{Issues, Path};

/// Longest DNS label and label value.
const LABEL_LENGTH_MAX: usize = 63;
/// Longest DNS name.
const SUBDOMAIN_LENGTH_MAX: usize = 253;
/// Longest name of a port.
const PORT_NAME_LENGTH_MAX: usize = 15;

/// A rule for a text: `Some` says what is wrong.
pub type Rule = fn(&str) -> Option<String>;

/// RFC 1123 label: namespaces, services, containers.
pub fn dns_label(text: &str) -> Option<String> {
    if text.is_empty() || text.len() > LABEL_LENGTH_MAX {
        return Some(format!("`{text}` must have 1 to {LABEL_LENGTH_MAX} characters"));
    }
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let bytes = text.as_bytes();
    let edges = bytes[0] != b'-' && bytes[bytes.len() - 1] != b'-';
    (!edges || !bytes.iter().all(|c| inner(*c))).then(|| {
        format!(
            "`{text}` must consist of lower case letters, digits and `-`, \
             and start and end with a letter or digit (RFC 1123 label)"
        )
    })
}

/// RFC 1123 subdomain: most names.
pub fn dns_subdomain(text: &str) -> Option<String> {
    if text.is_empty() || text.len() > SUBDOMAIN_LENGTH_MAX {
        return Some(format!("`{text}` must have 1 to {SUBDOMAIN_LENGTH_MAX} characters"));
    }
    // Kubernetes bounds the length of the whole name only, not of each label.
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let wrong = text.split('.').any(|label| {
        label.is_empty()
            || label.starts_with('-')
            || label.ends_with('-')
            || !label.bytes().all(inner)
    });
    wrong.then(|| {
        format!(
            "`{text}` must consist of lower case letters, digits, `-` and `.`, \
             and start and end with a letter or digit (RFC 1123 subdomain)"
        )
    })
}

/// A label's key, or an annotation's: `name` or `prefix/name`.
pub fn qualified_name(text: &str) -> Option<String> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if let Some(wrong) = prefix.and_then(dns_subdomain) {
        return Some(format!("the prefix of key `{text}` is wrong: {wrong}"));
    }
    (name.is_empty() || label_value(name).is_some()).then(|| {
        format!(
            "the key `{text}` must be `name` or `prefix/name`, where name has 1 to \
             {LABEL_LENGTH_MAX} letters, digits, `-`, `_` or `.` and starts and ends with a \
             letter or digit"
        )
    })
}

/// A label's value; empty is allowed.
pub fn label_value(text: &str) -> Option<String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let edge = |c: Option<&u8>| c.is_none_or(u8::is_ascii_alphanumeric);
    let fine = text.len() <= LABEL_LENGTH_MAX
        && bytes.iter().all(|c| inner(*c))
        && edge(bytes.first())
        && edge(bytes.last());
    (!fine).then(|| {
        format!(
            "the label value `{text}` must have at most {LABEL_LENGTH_MAX} letters, digits, `-`, \
             `_` or `.`, \
             and start and end with a letter or digit"
        )
    })
}

/// A port's name (RFC 6335 service name).
pub(crate) fn port_name(text: &str) -> Option<String> {
    let fine = !text.is_empty()
        && text.len() <= PORT_NAME_LENGTH_MAX
        && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
        && text.bytes().any(|c| c.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--");
    (!fine).then(|| {
        format!(
            "the port name `{text}` must have 1 to {PORT_NAME_LENGTH_MAX} lower case letters, \
             digits \
             or single `-`, with at least one letter"
        )
    })
}

/// The name of a field of HTTP: a token (RFC 9110, section 5.6.2).
pub(crate) fn field_name(text: &str) -> Option<String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    let fine = !text.is_empty() && text.bytes().all(inner);
    (!fine).then(|| format!("`{text}` is no name of a field: it has other characters than a token"))
}

/// Fields that say how a message is framed, or how far it goes: changing them would change more
/// than a field.
const FIXED_FIELDS: [&str; 9] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a field, in lower case, is one of these.
pub(crate) fn is_fixed_field(name: &str) -> bool {
    FIXED_FIELDS.contains(&name)
}

/// The name of an environment variable: printable ASCII without `=`.
pub(crate) fn env_name(text: &str) -> Option<String> {
    let fine = !text.is_empty() && text.bytes().all(|c| (0x20..0x7f).contains(&c) && c != b'=');
    (!fine).then(|| format!("the variable name `{text}` must be printable ASCII without `=`"))
}

/// A key of a ConfigMap or Secret.
pub(crate) fn data_key(text: &str) -> Option<String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let fine = !text.is_empty()
        && text.len() <= SUBDOMAIN_LENGTH_MAX
        && text.bytes().all(inner)
        && text != "."
        && !text.starts_with("..");
    (!fine).then(|| format!("the key `{text}` must consist of letters, digits, `-`, `_` and `.`"))
}

/// A host of a ServiceEntry: a DNS name, whose first label may be `*`.
pub fn host(text: &str) -> Option<String> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text == "*" {
        return Some("`*` alone would match every host".to_owned());
    }
    if name.contains('*') {
        return Some(format!("`{text}` may have `*` only as its whole first label"));
    }
    let label = |label: &str| {
        let bytes = label.as_bytes();
        !label.is_empty()
            && label.len() <= LABEL_LENGTH_MAX
            && bytes.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
            && bytes[0] != b'-'
            && bytes[bytes.len() - 1] != b'-'
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let fine = name.len() <= SUBDOMAIN_LENGTH_MAX && name.split('.').all(label);
    (!fine).then(|| format!("`{text}` is not a DNS name"))
}

/// A workload's port.
pub(crate) fn port_number(number: i64) -> Option<String> {
    (!(1..=65535).contains(&number)).then(|| format!("{number} is not between 1 and 65535"))
}

/// The address in `text`, an IPv4 address never as IPv6.
pub fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// The address or block in `text`, as in `10.0.0.1`, `10.0.0.0/8`, `fd00::/8`.
pub fn address_block(text: &str) -> Option<IpNet> {
    written_block(text).and_then(canonical_block)
}

/// The problem with `text` as an address or block, if there is one.
pub(crate) fn not_a_block(text: &str) -> Option<String> {
    match written_block(text) {
        None => Some(format!("`{text}` is neither an IP address nor a CIDR block")),
        Some(block) => canonical_block(block).is_none().then(|| {
            format!(
                "the block `{text}` holds IPv4 (in `::ffff:0:0/96`) beside IPv6, which cannot be \
                 told apart"
            )
        }),
    }
}

fn written_block(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Reports `text` at `path` when it breaks `rule`.
pub fn require(issues: &mut Issues, path: &Path, rule: Rule, text: &str) {
    if let Some(what) = rule(text) {
        issues.error(path, what, "correct it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: Rule, fine: &[&str], wrong: &[&str]) {
        for text in fine {
            assert_eq!(rule(text), None, "{text:?}");
        }
        for text in wrong {
            assert!(rule(text).is_some(), "{text:?}");
        }
    }

    #[test]
    fn names() {
        let long = "a".repeat(64);
        check(dns_label, &["a", "a-1", "0x"], &["", "A", "a.b", "-a", "a-", "a_b", &long, "é"]);
        check(dns_subdomain, &["a", "a.b-c.d", &long], &["", "a..b", "a.", ".a", "A", "a_b"]);
        check(qualified_name, &["app", "a.b/c_D", "x/y"], &["", "a/b/c", "/a", "a/", "-a", "A_/b"]);
        check(label_value, &["", "a", "A_b.c"], &["-a", "a-", "a b", &long]);
        check(port_name, &["http", "a-1"], &["", "80", "a--b", "-a", "HTTP", "sixteen-letters-"]);
        check(
            host,
            &["a.com", "*.a.com", "a_b.c", "a."],
            &["", "*", "a.*.com", "*a.com", "-a", "a..b", "a b"],
        );
        check(field_name, &["x-a", "X_b", "*"], &["", "a b", "a:", "é", "a\n"]);
        check(env_name, &["A", "a.b", "A B"], &["", "A=B", "é"]);
        check(data_key, &["a.b_c-d"], &["", "a/b", "..", "."]);
    }

    #[test]
    fn blocks() {
        let block = |text| address_block(text).map(|block| block.to_string());
        assert_eq!(block("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(block("::1").as_deref(), Some("::1/128"));
        assert_eq!(block("10.0.0.0/33"), None);
        assert_eq!(block("10.0.0"), None);
        assert_eq!(block("::ffff:10.244.1.2").as_deref(), Some("10.244.1.2/32"));
        assert_eq!(block("::ffff:10.1.2.3/104").as_deref(), Some("10.0.0.0/8"));
        check(not_a_block, &["10.0.0.1", "::/0", "::ffff:0:0/96"], &["::/64", "a", "::1/129"]);
    }
}
