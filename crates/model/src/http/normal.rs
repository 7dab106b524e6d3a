//! Istio's normalisation of a path, as text.
//!
//! Whoever reads requests and whoever reads policies must agree on it: a policy that names a path
//! as no request can have it once it is normalised never matches. Nothing here reads a request.

/// How a path is normalised: Istio's `pathNormalization`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalisation {
    /// Not at all. Only `%00` is refused.
    None,
    /// RFC 3986: escapes of letters, digits, `-`, `.`, `_` and `~` are decoded, other escapes are
    /// written in upper case, what should have been an escape becomes one, `.` and `..` are
    /// followed; and `\` becomes `/`.
    #[default]
    Base,
    /// Then several slashes in a row become one.
    MergeSlashes,
    /// And `%2F` and `%5C` become slashes before all this. What is decoded is not decoded again.
    DecodeAndMergeSlashes,
}

/// Why a path has no normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abnormal {
    /// A percent sign is not followed by two hexadecimal digits.
    Escape,
    /// `%00` is in it.
    Nul,
}

/// Whether a byte can be in the target of a request: a path, with its query.
///
/// More than RFC 3986 allows, because clients send `[`, `|` or `\` as they are. Less than all that
/// is visible: `#` begins a fragment, and hyper refuses `"`, `<`, `>` and the backtick too, in a
/// path or in a query.
#[inline]
pub fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"#<>`".contains(&byte)
}

/// The normal form of a path that begins with a slash and has no query; `None` if it is seen at
/// once that this is the path itself.
///
/// # Errors
/// It has none.
pub fn normalised(path: &str, how: Normalisation) -> Result<Option<String>, Abnormal> {
    if path.contains("%00") {
        return Err(Abnormal::Nul);
    }
    if is_normal(path, how) {
        return Ok(None);
    }
    let path = without_dots(&decoded(path, how)?);
    Ok(Some(if how == Normalisation::Base { path } else { with_single_slashes(&path) }))
}

/// Whether there is nothing to do, which is so for most paths: no second buffer is made.
fn is_normal(path: &str, how: Normalisation) -> bool {
    let is_plain = || !path.contains(['%', '\\', '^', '{', '|', '}']) && !path.contains("/.");
    match how {
        Normalisation::None => true,
        Normalisation::Base => is_plain(),
        Normalisation::MergeSlashes | Normalisation::DecodeAndMergeSlashes => {
            is_plain() && !path.contains("//")
        }
    }
}

/// With escapes decoded or in upper case, and slashes for backslashes. A path thus has one
/// spelling: what clients should send as escapes is encoded where Envoy encodes it.
///
/// An escape that is none is refused: if it stayed, what is decoded behind it could complete it,
/// and the next reader would see another path.
fn decoded(path: &str, how: Normalisation) -> Result<String, Abnormal> {
    let mut decoded = String::with_capacity(path.len());
    let mut pieces = path.split('%');
    push_plain(pieces.next().unwrap_or_default(), &mut decoded);
    for piece in pieces {
        let (escape, rest) = piece.split_at_checked(2).ok_or(Abnormal::Escape)?;
        if !escape.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(Abnormal::Escape);
        }
        let byte = u8::from_str_radix(escape, 16).map_err(|_| Abnormal::Escape)?;
        let decodes_slashes = how == Normalisation::DecodeAndMergeSlashes;
        match byte {
            b'-' | b'.' | b'_' | b'~' => decoded.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => decoded.push(char::from(byte)),
            b'/' | b'\\' if decodes_slashes => decoded.push('/'),
            _ => {
                decoded.push('%');
                decoded.push_str(&escape.to_ascii_uppercase());
            }
        }
        push_plain(rest, &mut decoded);
    }
    Ok(decoded)
}

fn push_plain(text: &str, decoded: &mut String) {
    for letter in text.chars() {
        match letter {
            '\\' => decoded.push('/'),
            '^' => decoded.push_str("%5E"),
            '{' => decoded.push_str("%7B"),
            '|' => decoded.push_str("%7C"),
            '}' => decoded.push_str("%7D"),
            _ => decoded.push(letter),
        }
    }
}

/// Follows `.` and `..` (RFC 3986, 5.2.4). Above the root is the root.
fn without_dots(path: &str) -> String {
    let mut kept = String::with_capacity(path.len());
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => kept.truncate(kept.rfind('/').unwrap_or(0)),
            _ => {
                kept.push('/');
                kept.push_str(segment);
                continue;
            }
        }
        if is_last {
            kept.push('/');
        }
    }
    kept
}

fn with_single_slashes(path: &str) -> String {
    let mut kept = String::with_capacity(path.len());
    for letter in path.chars() {
        if letter != '/' || !kept.ends_with('/') {
            kept.push(letter);
        }
    }
    kept
}
