//! Writes PEM (RFC 7468): certificates, lists, requests and keys.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// RFC 7468 section 2: base64 in lines of 64.
const PEM_LINE_CHARS: usize = 64;

/// Writes one PEM block (RFC 7468).
pub(crate) fn encode_pem(label: &str, der: &[u8]) -> String {
    // The block may be a private key: no copy of it stays behind.
    let body = Zeroizing::new(STANDARD.encode(der));
    let mut text = String::with_capacity(body.len() + body.len() / PEM_LINE_CHARS + 64);
    let _ = writeln!(text, "-----BEGIN {label}-----");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(PEM_LINE_CHARS));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    let _ = writeln!(text, "-----END {label}-----");
    text
}
