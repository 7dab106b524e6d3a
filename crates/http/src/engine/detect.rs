//! What a client speaks, by its first bytes.

/// How HTTP/2 begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest method that is taken for one.
const METHOD_BYTES_MAX: usize = 24;
/// From here on a target is taken for one, whatever comes behind it.
const TARGET_BYTES_MAX: usize = 8 * 1024;
/// How a version begins, behind the target.
const VERSION: &[u8] = b" HTTP/";
/// Ends of lines before a request; from here on it is one, and a bad one.
const EMPTY_LINES_BYTES_MAX: usize = 64;
/// What a request begins with. `PRI` is that of HTTP/2's preface.
const METHODS: [&[u8]; 10] = [
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH", b"PRI",
];

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
    /// More are needed, but so far they look like a request of HTTP/1.
    MoreHttp1,
}

impl Verdict {
    /// What it is if nothing more comes in time.
    pub(crate) fn in_the_end(self) -> Self {
        match self {
            Self::MoreHttp1 => Self::Http1,
            Self::More => Self::Other,
            verdict => verdict,
        }
    }
}

/// Looks at the first bytes of a connection. A method in capital letters, a target and a version
/// are HTTP/1; a word in capital letters and an argument alone are a command of many protocols.
///
/// A client must not choose to be taken for something else and send a request after all: what a
/// server may read as the beginning of a request is one when no more comes in time.
pub(crate) fn detect(bytes: &[u8]) -> Verdict {
    if bytes.starts_with(PREFACE) {
        return Verdict::Http2;
    }
    // Servers skip ends of lines before a request (RFC 9112, 2.2), some more than one.
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let ends = bytes.iter().take_while(|byte| is_end(byte)).count();
    let line = match &bytes[ends..] {
        _ if ends > EMPTY_LINES_BYTES_MAX => return Verdict::Http1,
        [] if bytes.is_empty() => return Verdict::More,
        [] => return Verdict::MoreHttp1,
        line => line,
    };
    // A version that is none follows only when the whole preface is there.
    if bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes) && bytes.contains(&b' ') {
        return Verdict::MoreHttp1;
    }
    let is_letter = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    match line.iter().position(|byte| !is_letter(byte)) {
        Some(0) => Verdict::Other,
        Some(at) if line[at] == b' ' && at <= METHOD_BYTES_MAX => {
            match behind_method(&line[at + 1..]) {
                Verdict::More if METHODS.contains(&&line[..at]) => Verdict::MoreHttp1,
                verdict => verdict,
            }
        }
        Some(_) => Verdict::Other,
        None if line.len() > METHOD_BYTES_MAX => Verdict::Other,
        None => Verdict::More,
    }
}

/// Looks at a target and a version.
fn behind_method(bytes: &[u8]) -> Verdict {
    let Some(first) = bytes.first() else { return Verdict::More };
    // A path, `*`, a URI, or the host of CONNECT.
    if !matches!(first, b'/' | b'*' | b'[') && !first.is_ascii_alphanumeric() {
        return Verdict::Other;
    }
    // Of a target that is a word it is not clear yet that it is one.
    let more = if matches!(first, b'/' | b'*') { Verdict::MoreHttp1 } else { Verdict::More };
    let Some(end) = bytes.iter().position(|byte| *byte <= b' ' || *byte == 0x7f) else {
        return if bytes.len() > TARGET_BYTES_MAX { Verdict::Http1 } else { more };
    };
    let version = &bytes[end..];
    let length = version.len().min(VERSION.len());
    if version[..length] != VERSION[..length] {
        return Verdict::Other;
    }
    match version[length..] {
        [major, b'.', minor, ..] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Verdict::Http1
        }
        [] | [b'0'..=b'9'] | [b'0'..=b'9', b'.'] => more,
        _ => Verdict::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_become_a_request_is_one_when_the_time_is_up() {
        for (bytes, expected) in [
            (&b""[..], Verdict::Other),
            (b"G", Verdict::Other),
            (b"GET ", Verdict::Http1),
            (b"\n", Verdict::Http1),
            (b"\r\n\r\n", Verdict::Http1),
            (b"PRI * HTTP/2.0\r\n\r\n", Verdict::Http1),
            (b"HELO web", Verdict::Other),
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(detect(bytes).in_the_end(), expected, "{text:?}");
        }
    }

    #[test]
    fn requests_are_told_from_everything_else() {
        for (bytes, expected) in [
            (&b""[..], Verdict::More),
            (b"P", Verdict::More),
            (b"PRI", Verdict::More),
            (b"PRI * HTTP/2.0\r\n", Verdict::MoreHttp1),
            (b"PRI * HTTP/2.0\r\n\r\nS", Verdict::MoreHttp1),
            (b"PRI * HTTP/2.0\r\n\r\nX", Verdict::Http1),
            (PREFACE, Verdict::Http2),
            (b"PRI * HTTP/2.1\r\n", Verdict::Http1),
            (b"POST", Verdict::More),
            (b"GET ", Verdict::MoreHttp1),
            (b"GET h", Verdict::MoreHttp1),
            (b"QUERY ", Verdict::More),
            (b"GET /", Verdict::MoreHttp1),
            (b"GET / HTTP/1", Verdict::MoreHttp1),
            (b"GET / HTTP/1.1", Verdict::Http1),
            (b"GET /a?b=%20 HTTP/1.0\r\n", Verdict::Http1),
            (b"GET http://web/ HTTP/1.1", Verdict::Http1),
            (b"CONNECT web:80 HTTP/1.1", Verdict::Http1),
            (b"M-SEARCH * HTTP/1.1", Verdict::Http1),
            (b"\r\nGET / HTTP/1.1", Verdict::Http1),
            (b"\n", Verdict::MoreHttp1),
            (b"\r\n\r\n\nGET / HTTP/1.1", Verdict::Http1),
            (b"\r\n\r\nGET ", Verdict::MoreHttp1),
            (b"\n\nUSER bob\r\n", Verdict::Other),
            (&[b'\n'; 65], Verdict::Http1),
            (&[&[b'\n'; 65][..], b"USER bob\r\n"].concat(), Verdict::Http1),
            (&[&[b'\n'; 64][..], b"USER bob\r\n"].concat(), Verdict::Other),
            (b"GET key", Verdict::MoreHttp1),
            (b"GET key\r\n", Verdict::Other),
            (b"GET /\r\n", Verdict::Other),
            (b"GET / HTTP/x", Verdict::Other),
            (b"GET / FTP/1.1", Verdict::Other),
            (b"USER bob\r\n", Verdict::Other),
            (b"HELO web.example\r\n", Verdict::Other),
            (b"PING :1\r\n", Verdict::Other),
            (b"\r", Verdict::MoreHttp1),
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
