//! A request's path and query, and Istio's normalisation of the path.
//!
//! The path is normalised once, right after the head is read. Router, policy and upstream then see
//! the same bytes: [`Path::normalise`] changes the path itself, and nothing keeps the old one. To
//! normalise again changes nothing, so that a second proxy on the way sees what the first one saw.

use ambit_model::http::normal::{Abnormal, normalised};

pub use ambit_model::http::normal::Normalisation;

use crate::grammar;
use crate::refused::Refused;

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
        let path = match normalised(self.path(), how) {
            Ok(None) => return Ok(()),
            Ok(Some(path)) => path,
            Err(Abnormal::Escape) => return Err(Refused::Escape),
            Err(Abnormal::Nul) => return Err(Refused::PathNul),
        };
        self.text.replace_range(..self.path_len, &path);
        self.path_len = path.len();
        Ok(())
    }
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
