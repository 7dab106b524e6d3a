//! What a client speaks, by its first bytes.

/// How HTTP/2 begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest method that is taken for one.
const METHOD_BYTES_MAX: usize = 24;

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A request of HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
    /// Something else.
    Other,
    /// More are needed to say.
    More,
}

/// Looks at the first bytes of a connection: a method in capital letters and a space are HTTP/1.
pub(crate) fn detect(bytes: &[u8]) -> Verdict {
    let length = bytes.len().min(PREFACE.len());
    if bytes[..length] == PREFACE[..length] {
        return if length == PREFACE.len() { Verdict::Http2 } else { Verdict::More };
    }
    // An empty line may come before a request (RFC 9112, 2.2).
    let line = match bytes {
        [b'\r'] => return Verdict::More,
        [b'\r', b'\n', rest @ ..] => rest,
        all => all,
    };
    let is_letter = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    match line.iter().position(|byte| !is_letter(byte)) {
        Some(0) => Verdict::Other,
        Some(at) if line[at] == b' ' && at <= METHOD_BYTES_MAX => Verdict::Http1,
        Some(_) => Verdict::Other,
        None if line.len() > METHOD_BYTES_MAX => Verdict::Other,
        None => Verdict::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_from_everything_else() {
        for (bytes, expected) in [
            (&b""[..], Verdict::More),
            (b"P", Verdict::More),
            (b"PRI * HTTP/2.0\r\n", Verdict::More),
            (PREFACE, Verdict::Http2),
            (b"PRI * HTTP/2.1\r\n", Verdict::Http1),
            (b"POST", Verdict::More),
            (b"GET /", Verdict::Http1),
            (b"M-SEARCH *", Verdict::Http1),
            (b"\r\nGET ", Verdict::Http1),
            (b"\r", Verdict::More),
            (b"\x16\x03\x01", Verdict::Other),
            (b"get /", Verdict::Other),
            (b" GET", Verdict::Other),
            (b"EHLO\r\n", Verdict::Other),
            (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", Verdict::Other),
        ] {
            assert_eq!(detect(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
