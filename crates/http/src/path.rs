//! A request's path and query, and Istio's normalisation of the path.
//!
//! The path is normalised once, right after the head is read. Router, policy and upstream then see
//! the same bytes: [`Path::normalise`] changes the path itself, and nothing keeps the old one. To
//! normalise again changes nothing, so that a second proxy on the way sees what the first one saw.

use crate::grammar;
use crate::refused::Refused;

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

/// A path that begins with a slash, and the query behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    path_len: usize,
}

impl Path {
    /// Reads a path, and a query if there is one. A fragment is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        if let Some(wrong) = bytes.iter().find(|byte| !grammar::is_target_byte(**byte)) {
            return Err(if *wrong == b'#' { Refused::Fragment } else { Refused::Target });
        }
        if bytes.first() != Some(&b'/') {
            return Err(Refused::Target);
        }
        let text = String::from_utf8(bytes.to_vec()).map_err(|_| Refused::Target)?;
        let path_len = text.find('?').unwrap_or(text.len());
        Ok(Self { text, path_len })
    }

    /// Path and query, as they are sent.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The path alone.
    pub fn path(&self) -> &str {
        &self.text[..self.path_len]
    }

    /// What follows the first question mark.
    pub fn query(&self) -> Option<&str> {
        self.text.get(self.path_len + 1..)
    }

    /// Leaves out the parameters of the query, written as `name=value`, that are not to be kept.
    pub(crate) fn retain_parameters(&mut self, is_kept: impl Fn(&str) -> bool) {
        let Some(query) = self.query() else { return };
        let stays = |pair: &&str| pair.split_once('=').is_none_or(|(name, _)| is_kept(name));
        let kept: Vec<&str> = query.split('&').filter(stays).collect();
        if kept.len() < query.split('&').count() {
            let query = kept.join("&");
            self.text.truncate(self.path_len);
            if !query.is_empty() {
                self.text.push('?');
                self.text.push_str(&query);
            }
        }
    }

    /// Normalises the path; the query stays as it is.
    pub fn normalise(&mut self, how: Normalisation) -> Result<(), Refused> {
        if self.path().contains("%00") {
            return Err(Refused::PathNul);
        }
        if is_normal(self.path(), how) {
            return Ok(());
        }
        let mut path = without_dots(&decoded(self.path(), how)?);
        if how != Normalisation::Base {
            path = with_single_slashes(&path);
        }
        self.text.replace_range(..self.path_len, &path);
        self.path_len = path.len();
        Ok(())
    }
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
fn decoded(path: &str, how: Normalisation) -> Result<String, Refused> {
    let mut decoded = String::with_capacity(path.len());
    let mut pieces = path.split('%');
    push_plain(pieces.next().unwrap_or_default(), &mut decoded);
    for piece in pieces {
        let (escape, rest) = piece.split_at_checked(2).ok_or(Refused::Escape)?;
        if !escape.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(Refused::Escape);
        }
        let byte = u8::from_str_radix(escape, 16).map_err(|_| Refused::Escape)?;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Normalisation::{Base, DecodeAndMergeSlashes, MergeSlashes, None as Unchanged};

    const ALL: [Normalisation; 4] = [Unchanged, Base, MergeSlashes, DecodeAndMergeSlashes];

    fn normalised(path: &str, how: Normalisation) -> Result<String, Refused> {
        let mut path = Path::parse(path.as_bytes()).expect("a path");
        path.normalise(how)?;
        assert_eq!(Path::parse(path.as_str().as_bytes()).as_ref(), Ok(&path), "still a path");
        Ok(path.as_str().to_owned())
    }

    /// What the path becomes with `BASE`, `MERGE_SLASHES` and `DECODE_AND_MERGE_SLASHES`.
    fn check(path: &str, expected: [&str; 3]) {
        let results = ALL.map(|how| normalised(path, how).expect("an acceptable path"));
        let [unchanged, others @ ..] = &results;
        assert_eq!(unchanged, path);
        assert_eq!(others, &expected, "{path}");
    }

    #[test]
    fn parameters_are_left_out_by_name() {
        for (path, expected) in [
            ("/a?t=1", "/a"),
            ("/a?t=1&b=2", "/a?b=2"),
            ("/a?b=2&t=1&t=3&&c", "/a?b=2&&c"),
            ("/a?t", "/a?t"),
            ("/a?tt=1&T=2", "/a?tt=1&T=2"),
            ("/a?", "/a?"),
            ("/t=1", "/t=1"),
        ] {
            let mut read = Path::parse(path.as_bytes()).expect("a path");
            read.retain_parameters(|name| name != "t");
            assert_eq!(read.as_str(), expected, "{path}");
            assert_eq!(Path::parse(expected.as_bytes()).as_ref(), Ok(&read));
        }
    }

    #[test]
    fn what_is_normal_stays() {
        for path in ["/", "/a/b", "/a/b/", "/a.b/c..d/...", "/a?x=/../%2f//", "/;a=b/c,d:e@f"] {
            check(path, [path; 3]);
        }
    }

    #[test]
    fn dots_are_followed() {
        check("/a/../b", ["/b"; 3]);
        check("/a/b/..", ["/a/"; 3]);
        check("/a/b/.", ["/a/b/"; 3]);
        check("/../../a", ["/a"; 3]);
        check("/..", ["/"; 3]);
        check("/./", ["/"; 3]);
        check("/a/./b/../c", ["/a/c"; 3]);
        check("/a/%2e%2E/b", ["/b"; 3]);
        check("/a/.%2e/b", ["/b"; 3]);
        check("/public\\..\\admin", ["/admin"; 3]);
        check("/a/..;/b", ["/a/..;/b"; 3]);
        check("/a//../b", ["/a/b"; 3]);
        check("/..//b", ["//b", "/b", "/b"]);
    }

    #[test]
    fn escapes() {
        check("/%61dmin", ["/admin"; 3]);
        check("/%7e%2D%5F%39", ["/~-_9"; 3]);
        check("/%c3%a9%3f%23", ["/%C3%A9%3F%23"; 3]);
        check("/a%2fb", ["/a%2Fb", "/a%2Fb", "/a/b"]);
        check("/a%5Cb", ["/a%5Cb", "/a%5Cb", "/a/b"]);
        check("/a%2f..%5c..%2Fb", ["/a%2F..%5C..%2Fb", "/a%2F..%5C..%2Fb", "/b"]);
        check("/a%2f%2fb", ["/a%2F%2Fb", "/a%2F%2Fb", "/a/b"]);
        check("/a%252fb/%2561", ["/a%252fb/%2561"; 3]);
        check("/{a}|^[b]", ["/%7Ba%7D%7C%5E[b]"; 3]);
        check("/%7ba%7d%7c%5e?{|}", ["/%7Ba%7D%7C%5E?{|}"; 3]);
    }

    #[test]
    fn slashes_are_merged() {
        check("//a///b//", ["//a///b//", "/a/b/", "/a/b/"]);
        check("/a\\\\b", ["/a//b", "/a/b", "/a/b"]);
        check("/a//b?c//d", ["/a//b?c//d", "/a/b?c//d", "/a/b?c//d"]);
    }

    #[test]
    fn bad_escapes() {
        for path in ["/%", "/a%2", "/%zz", "/%%61", "/%+1", "/%2?x"] {
            assert_eq!(normalised(path, Unchanged).as_deref(), Ok(path));
            for how in &ALL[1..] {
                assert_eq!(normalised(path, *how), Err(Refused::Escape), "{path}");
            }
        }
        for how in ALL {
            assert_eq!(normalised("/a%00b", how), Err(Refused::PathNul));
            assert!(normalised("/a?b=%00", how).is_ok());
        }
    }

    #[test]
    fn parts() {
        let check = |text: &str, expected: Result<(&str, Option<&str>), Refused>| {
            let path = Path::parse(text.as_bytes());
            let parts = path.as_ref().map(|it| (it.path(), it.query())).map_err(|it| *it);
            assert_eq!(parts, expected, "{text:?}");
        };
        check("/a", Ok(("/a", None)));
        check("/a?", Ok(("/a", Some(""))));
        check("/a?b?c", Ok(("/a", Some("b?c"))));
        check("/a|[]{}^\\", Ok(("/a|[]{}^\\", None)));
        check("/a#b", Err(Refused::Fragment));
        check("/a?b#c", Err(Refused::Fragment));
        for text in
            ["", "a", "*", "?a", "\\a", "/a b", "/\0", "/\r", "/\u{e9}", "/<", "/\"", "/\x7f"]
        {
            check(text, Err(Refused::Target));
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(
            path in "/([a-c./\\\\%{|]|%2[eEfF5]|%5[cC]|%61|%25|//|/\\.\\./){0,24}",
        ) {
            for how in ALL {
                let Ok(once) = normalised(&path, how) else { continue };
                prop_assert_eq!(normalised(&once, how), Ok(once.clone()));
                let how_it_looks = once.split('?').next().unwrap_or_default();
                if how != Unchanged {
                    prop_assert!(!format!("{how_it_looks}/").contains("/../"), "{}", once);
                    prop_assert!(!how_it_looks.contains('\\'), "{}", once);
                }
            }
        }
    }
}
