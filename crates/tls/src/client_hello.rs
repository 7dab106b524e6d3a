//! The name in a TLS handshake, for who passes TLS on and does not end it.
//!
//! Only the first message of a client is read, which is not encrypted. Nothing here says that a
//! client may use the name: whoever holds the certificate does. A message that is not whole yet is
//! no error, one that is cut or contradicts itself has no name.

/// Most bytes that are looked at. Larger messages exist, but no client sends one.
pub const CLIENT_HELLO_BYTES_MAX: usize = 16 << 10;

/// The version of a record and its length.
const RECORD_HEADER_BYTES: usize = 5;
/// The version and the random number of the message.
const BEFORE_SESSION_BYTES: usize = 2 + 32;
/// Most characters of a host's name (RFC 1035, 2.3.4).
const NAME_LENGTH_MAX: usize = 253;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// So far they begin a handshake; more are needed.
    More,
    /// They are no TLS.
    Other,
    /// A handshake that names this host, in lower case, or none.
    Whole(Option<String>),
    /// They are TLS and cannot be read: too long, or damaged.
    Unreadable,
}

/// Reads the first bytes of a connection.
pub fn client_hello(bytes: &[u8]) -> ClientHello {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let is_first = message.is_empty();
        match record(rest) {
            Record::Other if is_first => return ClientHello::Other,
            Record::Other | Record::Unreadable => return ClientHello::Unreadable,
            Record::Part { content, next, is_whole } => {
                message.extend_from_slice(content);
                match handshake(&message) {
                    Handshake::Whole(hello) => {
                        return names(hello).map_or(ClientHello::Unreadable, ClientHello::Whole);
                    }
                    Handshake::Other => return ClientHello::Unreadable,
                    Handshake::Part if bytes.len() >= CLIENT_HELLO_BYTES_MAX => {
                        return ClientHello::Unreadable;
                    }
                    Handshake::Part if !is_whole => return ClientHello::More,
                    Handshake::Part => rest = next,
                }
            }
        }
    }
}

/// What comes next in a stream of records.
enum Record<'a> {
    /// No record of a handshake.
    Other,
    /// A record of a length that no handshake has.
    Unreadable,
    /// What is there of one, and what is behind it.
    Part { content: &'a [u8], next: &'a [u8], is_whole: bool },
}

/// Reads one record (RFC 8446, 5.1).
fn record(bytes: &[u8]) -> Record<'_> {
    let is_handshake = bytes.first().is_none_or(|kind| *kind == 22)
        && bytes.get(1).is_none_or(|major| *major == 3)
        && bytes.get(2).is_none_or(|minor| *minor <= 4);
    if !is_handshake {
        return Record::Other;
    }
    let [_, _, _, high, low, content @ ..] = bytes else {
        return Record::Part { content: &[], next: &[], is_whole: false };
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    // An empty record carries nothing of a handshake, and is not allowed in one.
    if length == 0 || length > CLIENT_HELLO_BYTES_MAX - RECORD_HEADER_BYTES {
        return Record::Unreadable;
    }
    let (content, next) = content.split_at(length.min(content.len()));
    Record::Part { content, next, is_whole: content.len() == length }
}

/// What the records carry.
enum Handshake<'a> {
    /// Another message.
    Other,
    /// Not all of it.
    Part,
    /// A client's hello.
    Whole(&'a [u8]),
}

fn handshake(message: &[u8]) -> Handshake<'_> {
    let [kind, rest @ ..] = message else { return Handshake::Part };
    if *kind != 1 {
        return Handshake::Other;
    }
    let mut reader = Reader(rest);
    reader.sized(3).map_or(Handshake::Part, Handshake::Whole)
}

/// The name in a client's hello (RFC 8446, 4.1.2; RFC 6066, 3); an error where it contradicts
/// itself.
fn names(hello: &[u8]) -> Option<Option<String>> {
    let mut hello = Reader(hello);
    hello.take(BEFORE_SESSION_BYTES)?;
    hello.sized(1)?; // session
    hello.sized(2)?; // cipher suites
    hello.sized(1)?; // compression
    if hello.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Reader(hello.sized(2)?);
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let content = extensions.sized(2)?;
        // Twice is not allowed, and readers would differ.
        if kind == 0 && name.replace(server_name(content)?).is_some() {
            return None;
        }
    }
    Some(name)
}

/// The host in an extension `server_name`.
fn server_name(extension: &[u8]) -> Option<String> {
    let mut extension = Reader(extension);
    let mut list = Reader(extension.sized(2)?);
    // Of every kind one; no other kind than a host's name exists.
    let kind = list.number(1)?;
    let name = list.sized(2)?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_whole = kind == 0 && list.0.is_empty() && extension.0.is_empty();
    let fits = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.iter().all(is_name);
    let name = std::str::from_utf8(name).ok().filter(|_| is_whole && fits)?;
    // Some clients write the root's dot.
    Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}

/// Takes big-endian numbers and fields that begin with their length off the front, as TLS writes
/// them (RFC 8446, 3.4); `None` where there is less.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of so many bytes.
    pub fn number(&mut self, width: usize) -> Option<usize> {
        let bytes = self.take(width)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// A field behind its length, which has so many bytes.
    pub fn sized(&mut self, width: usize) -> Option<&'a [u8]> {
        let length = self.number(width)?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(width: usize, content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        [&length[length.len() - width..], content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &sized(2, content)].concat()
    }

    fn named(name: &str) -> Vec<u8> {
        extension(0, &sized(2, &[&[0][..], &sized(2, name.as_bytes())].concat()))
    }

    fn message(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.extend(sized(1, &[9; 32]));
        hello.extend(sized(2, &[0x13, 0x01]));
        hello.extend(sized(1, &[0]));
        hello.extend(extensions.map(|it| sized(2, it)).unwrap_or_default());
        [&[1][..], &sized(3, &hello)].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &sized(2, part)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        records(&message(Some(extensions)), 1 << 13)
    }

    #[test]
    fn the_name_is_read_of_one_record_and_of_many() {
        let other = extension(16, &[0, 3, 2, b'h', b'2']);
        let extensions = [&other[..], &named("Web.Example."), &other].concat();
        let message = message(Some(&extensions));
        for size in [1, 3, 40, 1 << 13] {
            let bytes = records(&message, size);
            for cut in 0..bytes.len() {
                assert_eq!(client_hello(&bytes[..cut]), ClientHello::More, "{size} {cut}");
            }
            let whole = ClientHello::Whole(Some("web.example".to_owned()));
            assert_eq!(client_hello(&bytes), whole, "{size}");
            assert_eq!(client_hello(&[&bytes[..], b"more"].concat()), whole, "{size}");
        }
    }

    #[test]
    fn what_names_nobody_has_no_name() {
        assert_eq!(client_hello(&records(&message(None), 99)), ClientHello::Whole(None));
        assert_eq!(client_hello(&hello(&[])), ClientHello::Whole(None));
        assert_eq!(client_hello(&hello(&extension(16, &[]))), ClientHello::Whole(None));
    }

    #[test]
    fn what_is_no_tls_is_told_at_once() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"\x16\x02", b"\x16\x03\x05", b"\x17"] {
            assert_eq!(client_hello(bytes), ClientHello::Other, "{bytes:?}");
        }
        assert_eq!(client_hello(b""), ClientHello::More);
        assert_eq!(client_hello(b"\x16\x03"), ClientHello::More);
    }

    #[test]
    fn what_contradicts_itself_is_unreadable() {
        let twice = [named("a"), named("b")].concat();
        let list_of_two = [0, 0, 1, b'a', 0, 0, 1, b'b'];
        for (told, bytes) in [
            ("twice", hello(&twice)),
            ("two names in one", hello(&extension(0, &sized(2, &list_of_two)))),
            ("no name", hello(&extension(0, &sized(2, &[0, 0, 0])))),
            ("a name with a space", hello(&named("a b"))),
            ("a name with a NUL", hello(&named("a\0b"))),
            ("an extension cut short", hello(&[0, 0, 0, 9, 1])),
            ("an empty record", b"\x16\x03\x01\0\0".to_vec()),
            ("a record that is too long", b"\x16\x03\x01\x40\x01".to_vec()),
            ("a server's hello", records(&[2, 0, 0, 1, 0], 99)),
            (
                "other records in between",
                [&records(&message(None), 30)[..35], b"\x17\x03\x03"].concat(),
            ),
        ] {
            assert_eq!(client_hello(&bytes), ClientHello::Unreadable, "{told}");
        }
        let endless = [&[1, 0xff, 0xff, 0xff][..], &[0; CLIENT_HELLO_BYTES_MAX]].concat();
        let endless = records(&endless, 1 << 12);
        assert_eq!(client_hello(&endless), ClientHello::Unreadable);
        assert_eq!(client_hello(&endless[..100]), ClientHello::More);
    }
}
