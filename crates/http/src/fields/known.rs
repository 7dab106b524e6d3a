//! Names of fields that the codec treats in a way of their own.
//!
//! A name is looked up here once, when its field is put in; from then on it is one byte. The table
//! is ordered by length, so that a look-up compares a name with the few of its own length.

/// Declares the names, in order of their length.
macro_rules! known {
    ($($variant:ident = $text:literal,)*) => {
        /// A name of a field that the codec knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Known {
            $(#[doc = concat!("`", $text, "`")] $variant,)*
        }

        const ALL: &[(Known, &str)] = &[$((Known::$variant, $text),)*];

        impl Known {
            /// The name in lower case.
            pub(crate) fn text(self) -> &'static str {
                ALL[self as usize].1
            }
        }
    };
}

known! {
    Te = "te",
    Age = "age",
    Via = "via",
    Date = "date",
    Host = "host",
    Vary = "vary",
    Range = "range",
    Cookie = "cookie",
    Expect = "expect",
    Pragma = "pragma",
    Expires = "expires",
    Trailer = "trailer",
    Upgrade = "upgrade",
    Warning = "warning",
    IfMatch = "if-match",
    IfRange = "if-range",
    Location = "location",
    Forwarded = "forwarded",
    Connection = "connection",
    KeepAlive = "keep-alive",
    SetCookie = "set-cookie",
    RetryAfter = "retry-after",
    ContentType = "content-type",
    MaxForwards = "max-forwards",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentRange = "content-range",
    IfNoneMatch = "if-none-match",
    ContentLength = "content-length",
    Http2Settings = "http2-settings",
    ContentEncoding = "content-encoding",
    ProxyConnection = "proxy-connection",
    WwwAuthenticate = "www-authenticate",
    IfModifiedSince = "if-modified-since",
    TransferEncoding = "transfer-encoding",
    ProxyAuthenticate = "proxy-authenticate",
    IfUnmodifiedSince = "if-unmodified-since",
    ProxyAuthorization = "proxy-authorization",
}

const LONGEST: usize = ALL[ALL.len() - 1].1.len();

/// Where the names of each length begin in the table.
const STARTS: [usize; LONGEST + 2] = starts();

const fn starts() -> [usize; LONGEST + 2] {
    let mut starts = [0; LONGEST + 2];
    let (mut at, mut length) = (0, 0);
    while length < starts.len() {
        while at < ALL.len() && ALL[at].1.len() < length {
            at += 1;
        }
        starts[length] = at;
        length += 1;
    }
    starts
}

impl Known {
    /// The name that this is, in any case.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let length = name.len();
        if length > LONGEST {
            return None;
        }
        let candidates = ALL[STARTS[length]..STARTS[length + 1]].iter();
        let mut same = candidates.filter(|(_, text)| text.as_bytes().eq_ignore_ascii_case(name));
        same.next().map(|(known, _)| *known)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL, Known};

    #[test]
    fn the_table_is_ordered_by_length_and_finds_its_own() {
        assert!(ALL.is_sorted_by_key(|(_, text)| text.len()));
        for (known, text) in ALL {
            assert_eq!(Known::of(text.to_ascii_uppercase().as_bytes()), Some(*known));
            assert_eq!(known.text(), *text);
        }
        assert_eq!(Known::of(b""), None);
        assert_eq!(Known::of(b"hos"), None);
        assert_eq!(Known::of(&[b'x'; 100]), None);
    }
}
