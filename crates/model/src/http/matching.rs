//! What a match compares.

use std::fmt;

use crate::Text;
use crate::http::head::{Claims, RequestHead};

/// Most bytes that one compiled regular expression may take.
const PATTERN_SIZE_MAX_BYTES: usize = 1 << 20;

/// A regular expression that must match the whole of a value. The syntax is RE2's, as far as Rust's
/// `regex` has it; matching takes time linear in the value.
#[derive(Clone)]
pub struct Pattern {
    source: Text,
    whole: regex::bytes::Regex,
    searching: regex::bytes::Regex,
}

/// A regular expression that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the regular expression {0:?} cannot be used: {1}")]
pub struct PatternError(String, String);

impl Pattern {
    /// Compiles `source`.
    pub fn new(source: &str) -> Result<Self, PatternError> {
        // By itself first: a bracket that closes the group around it would change its meaning.
        let compile = |text: &str| {
            let mut builder = regex::bytes::RegexBuilder::new(text);
            let built = builder.size_limit(PATTERN_SIZE_MAX_BYTES).build();
            built.map_err(|error| PatternError(source.to_owned(), in_a_line(&error)))
        };
        let searching = compile(source)?;
        let whole = compile(&format!(r"\A(?:{source})\z"))?;
        Ok(Self { source: source.into(), whole, searching })
    }

    /// Whether it matches all of `value`.
    pub fn matches(&self, value: &[u8]) -> bool {
        self.whole.is_match(value)
    }

    /// Whether it is found in `value`.
    pub(crate) fn is_in(&self, value: &[u8]) -> bool {
        self.searching.is_match(value)
    }

    /// `text` with what the expression, as it was written, finds in it replaced; `$1` in
    /// `substitution` is the first group.
    pub(crate) fn replace(&self, text: &str, substitution: &str) -> String {
        let replaced = self.searching.replace_all(text.as_bytes(), substitution.as_bytes());
        String::from_utf8_lossy(&replaced).into_owned()
    }

    /// The expression as it was written.
    pub fn source(&self) -> &Text {
        &self.source
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.source)
    }
}

/// How the path is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// It is this.
    Exact(Text),
    /// It is this, or this and further segments (Gateway API's `PathPrefix`). Without a slash at
    /// its end, but for `/` itself, which is every path.
    Segments(Text),
    /// It starts with this, wherever a segment ends (Istio's `prefix`).
    Prefix(Text),
    /// All of it matches.
    Regex(Pattern),
    /// [`PathMatch::Exact`], whatever the case of ASCII letters.
    ExactNoCase(Text),
    /// [`PathMatch::Prefix`], whatever the case of ASCII letters.
    PrefixNoCase(Text),
}

impl PathMatch {
    /// Whether `path` satisfies this.
    pub fn matches(&self, path: &str) -> bool {
        let starts_with = |prefix: &str| path.as_bytes().get(..prefix.len());
        match self {
            Self::Exact(text) => path == &**text,
            Self::Segments(text) if &**text == "/" => path.starts_with('/'),
            Self::Segments(text) => path
                .strip_prefix(&**text)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Prefix(text) => path.starts_with(&**text),
            Self::Regex(pattern) => pattern.matches(path.as_bytes()),
            Self::ExactNoCase(text) => path.eq_ignore_ascii_case(text),
            Self::PrefixNoCase(text) => {
                starts_with(text).is_some_and(|start| start.eq_ignore_ascii_case(text.as_bytes()))
            }
        }
    }

    /// How much of a path this has matched, for a rewrite of the prefix; `None` where it is no
    /// prefix.
    pub fn prefix_len(&self) -> Option<usize> {
        match self {
            Self::Segments(text) | Self::Prefix(text) | Self::PrefixNoCase(text) => {
                Some(text.len())
            }
            Self::Exact(text) | Self::ExactNoCase(text) => Some(text.len()),
            Self::Regex(_) => None,
        }
    }
}

/// How a value is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueMatch {
    /// It is this.
    Exact(Text),
    /// It is this, whatever the case of ASCII letters.
    ExactNoCase(Text),
    /// It starts with this.
    Prefix(Text),
    /// All of it matches.
    Regex(Pattern),
    /// There is one.
    Present,
}

impl ValueMatch {
    /// Whether `value` satisfies this.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => value == text.as_bytes(),
            Self::ExactNoCase(text) => value.eq_ignore_ascii_case(text.as_bytes()),
            Self::Prefix(text) => value.starts_with(text.as_bytes()),
            Self::Regex(pattern) => pattern.matches(value),
            Self::Present => true,
        }
    }
}

/// A value that is found by a name: a field's, or a parameter's of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMatch {
    /// The name; of a field in lower case.
    pub name: Text,
    /// What the value must be.
    pub value: ValueMatch,
    /// The match holds where `value` does not, and where there is none (Istio's
    /// `withoutHeaders`).
    pub is_inverted: bool,
}

impl NamedMatch {
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| self.value.matches(value)) != self.is_inverted
    }
}

/// A claim of the verified token (Istio's `@request.auth.claims`): a text, or one of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMatch {
    /// The claim's keys, one within the other.
    pub keys: Vec<Text>,
    /// What the value must be.
    pub value: ValueMatch,
    /// The match holds where none has the value, and where there is no token.
    pub is_inverted: bool,
}

impl ClaimMatch {
    fn holds(&self, claims: Option<&dyn Claims>) -> bool {
        let is = |text: &str| self.value.matches(text.as_bytes());
        claims.is_some_and(|claims| claims.any_claim(&self.keys, &mut { is })) != self.is_inverted
    }
}

/// What a request must be; everything that is set must hold. One with nothing set matches every
/// request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The path.
    pub path: Option<PathMatch>,
    /// The method.
    pub method: Option<ValueMatch>,
    /// The scheme.
    pub scheme: Option<ValueMatch>,
    /// The host, with its port where one is named.
    pub authority: Option<ValueMatch>,
    /// Fields.
    pub headers: Vec<NamedMatch>,
    /// Parameters of the query.
    pub parameters: Vec<NamedMatch>,
    /// The namespace of the client's identity.
    pub client_namespace: Option<Text>,
    /// Claims of the client's token.
    pub claims: Vec<ClaimMatch>,
}

impl Match {
    /// Whether all but the path holds.
    pub(crate) fn matches_beside_path(&self, head: &RequestHead<'_>) -> bool {
        let is = |wanted: &Option<ValueMatch>, value: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted.matches(value.as_bytes()))
        };
        is(&self.method, head.method)
            && is(&self.scheme, head.scheme)
            && self.authority.as_ref().is_none_or(|wanted| authority_matches(wanted, head))
            && self.client_namespace.as_ref().is_none_or(|own| head.client.namespace == Some(own))
            && self.claims.iter().all(|it| it.holds(head.client.claims))
            && self.headers.iter().all(|it| it.holds(head.fields.value(&it.name).as_deref()))
            && self
                .parameters
                .iter()
                .all(|it| it.holds(head.parameter(&it.name).map(str::as_bytes)))
    }

    /// Whether the request satisfies all of this.
    pub fn matches(&self, head: &RequestHead<'_>) -> bool {
        self.path.as_ref().is_none_or(|path| path.matches(head.path))
            && self.matches_beside_path(head)
    }
}

fn authority_matches(wanted: &ValueMatch, head: &RequestHead<'_>) -> bool {
    match head.port {
        None => wanted.matches(head.host.as_bytes()),
        Some(port) => wanted.matches(format!("{}:{port}", head.host).as_bytes()),
    }
}

/// An error in a line. The library draws the expression with a mark below it, and says what is
/// wrong in the last line.
fn in_a_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: PathMatch, yes: &[&str], no: &[&str]) {
        for text in yes {
            assert!(path.matches(text), "{path:?} {text}");
        }
        for text in no {
            assert!(!path.matches(text), "{path:?} {text}");
        }
    }

    #[test]
    fn paths() {
        check(PathMatch::Exact("/a".into()), &["/a"], &["/a/", "/A", "/ab", "/"]);
        check(PathMatch::Segments("/a".into()), &["/a", "/a/", "/a/b"], &["/ab", "/", "/A"]);
        check(PathMatch::Segments("/".into()), &["/", "/a"], &["*", ""]);
        check(PathMatch::Prefix("/a".into()), &["/a", "/ab", "/a/b"], &["/", "/A"]);
        check(PathMatch::ExactNoCase("/Ab".into()), &["/aB"], &["/abc"]);
        check(PathMatch::PrefixNoCase("/Ab".into()), &["/aBc"], &["/a", "/"]);
        // A prefix that ends inside a character of several bytes is no prefix.
        check(PathMatch::PrefixNoCase("/a".into()), &["/aé"], &["é"]);
        let pattern = |text| PathMatch::Regex(Pattern::new(text).unwrap());
        check(pattern("/a|/b"), &["/a", "/b"], &["/ab", "/a/b", "x/b"]);
        check(pattern("/v[0-9]+/.*"), &["/v12/x"], &["/v/x", "/v1"]);
    }

    #[test]
    fn a_pattern_cannot_leave_its_brackets() {
        for text in ["a)|(b", "(", "\\"] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
        assert!(Pattern::new(&"(a{1000}){1000}".repeat(2)).is_err());
        let error = Pattern::new("/a(b").unwrap_err().to_string();
        assert_eq!(error, r#"the regular expression "/a(b" cannot be used: unclosed group"#);
    }

    #[test]
    fn what_is_not_there_satisfies_only_its_inverse() {
        let named = |is_inverted| NamedMatch {
            name: "x".into(),
            value: ValueMatch::Exact("1".into()),
            is_inverted,
        };
        assert!(!named(false).holds(None));
        assert!(named(true).holds(None));
        assert!(named(false).holds(Some(b"1")));
        assert!(!named(true).holds(Some(b"1")));
        assert!(named(true).holds(Some(b"2")));
    }

    /// `groups: [admin, dev]` and `org: {unit: it}`.
    struct Known;

    impl Claims for Known {
        fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
            match keys.iter().map(|key| &**key).collect::<Vec<&str>>()[..] {
                ["groups"] => ["admin", "dev"].into_iter().any(holds),
                ["org", "unit"] => holds("it"),
                _ => false,
            }
        }
    }

    #[test]
    fn a_claim_is_a_text_or_one_of_a_list() {
        let exact = |text: &str| ValueMatch::Exact(text.into());
        let pattern = ValueMatch::Regex(Pattern::new("d.*").unwrap());
        for (keys, value, expected) in [
            (&["groups"][..], exact("admin"), true),
            (&["groups"], exact("dev"), true),
            (&["groups"], exact("admin,dev"), false),
            (&["groups"], pattern, true),
            (&["groups"], ValueMatch::Present, true),
            (&["org", "unit"], ValueMatch::Prefix("i".into()), true),
            (&["org"], ValueMatch::Present, false),
            (&["none"], ValueMatch::Present, false),
        ] {
            let keys: Vec<Text> = keys.iter().map(|it| Text::from(*it)).collect();
            for is_inverted in [false, true] {
                let claim = ClaimMatch { keys: keys.clone(), value: value.clone(), is_inverted };
                assert_eq!(claim.holds(Some(&Known)), expected != is_inverted, "{claim:?}");
                assert_eq!(claim.holds(None), is_inverted, "{claim:?}");
            }
        }
    }
}
