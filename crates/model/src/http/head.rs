//! A request's head, as decisions read it.

use std::borrow::Cow;

use crate::Text;

/// The fields of a head, by their names in lower case.
///
/// All fields are served, also those that have a place of their own elsewhere or that end at the
/// proxy: `host` and `:authority` (each for the other, whatever the version), `upgrade`.
pub trait Fields {
    /// The value of the field `name`, as routes compare it: several lines are joined by commas
    /// (RFC 9110, section 5.3).
    fn value(&self, name: &str) -> Option<Cow<'_, [u8]>>;

    /// Whether `holds` for one of the lines of the field `name`, as policies compare it. A client
    /// that sends a field twice must not hide one line behind the other.
    fn any(&self, name: &str, holds: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// The head of one request. What is compared here is what is sent on: the path is normalised and
/// the host in lower case before anything is decided.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    /// The method, case-sensitive (RFC 9110, section 9.1).
    pub method: &'a str,
    /// `http` or `https`, in lower case.
    pub scheme: &'a str,
    /// The host of `Host` or `:authority`, in lower case, without its port.
    pub host: &'a str,
    /// The port that `Host` or `:authority` names.
    pub port: Option<u16>,
    /// The path, normalised, without its query.
    pub path: &'a str,
    /// What follows `?`, as it came; empty if there is none.
    pub query: &'a str,
    /// The fields.
    pub fields: &'a dyn Fields,
    /// Who sends it, as far as routes may ask.
    pub client: Client<'a>,
}

/// The client of a request, as far as routes may ask for it.
#[derive(Clone, Copy, Default)]
pub struct Client<'a> {
    /// The namespace of its proven identity; `None` for a client without one.
    pub namespace: Option<&'a Text>,
    /// What its verified token says; `None` without one.
    pub claims: Option<&'a dyn Claims>,
}

/// What a verified token says.
pub trait Claims {
    /// Whether `holds` for the claim found by `keys`, one within the other, or for one of its
    /// members if it is a list.
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool;
}

impl RequestHead<'_> {
    /// The first value of the query's parameter `name`, as it came: nothing is decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name && !pair.is_empty()).then_some(value)
        })
    }
}

impl Fields for () {
    fn value(&self, _: &str) -> Option<Cow<'_, [u8]>> {
        None
    }

    fn any(&self, _: &str, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

/// Names in lower case with their values, one for each line, as `ambit why` is asked with them.
#[derive(Clone, Copy, Debug)]
pub struct NamedValues<'a>(pub &'a [(String, String)]);

impl Fields for NamedValues<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut values =
            self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_bytes());
        let first = values.next()?;
        let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
        let mut joined = [first, second].join(&b',');
        for value in values {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(Cow::Owned(joined))
    }

    fn any(&self, name: &str, holds: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.iter().any(|(key, value)| key == name && holds(value.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, name: &str, expected: Option<&str>) {
        let head = RequestHead {
            method: "GET",
            scheme: "http",
            host: "web",
            port: None,
            path: "/",
            query,
            fields: &(),
            client: Client::default(),
        };
        assert_eq!(head.parameter(name), expected, "{query} {name}");
    }

    #[test]
    fn parameters_are_found_as_they_came() {
        check("", "a", None);
        check("", "", None);
        check("a=1&b=2", "b", Some("2"));
        check("a=1&a=2", "a", Some("1"));
        check("a", "a", Some(""));
        check("a=b=c", "a", Some("b=c"));
        check("ab=1", "a", None);
        check("a=%20", "a", Some("%20"));
    }

    #[test]
    fn several_values_are_one() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let fields = [pair("a", "1"), pair("b", "2"), pair("a", "3"), pair("a", "4")];
        assert_eq!(NamedValues(&fields).value("a").as_deref(), Some(&b"1,3,4"[..]));
        assert_eq!(NamedValues(&fields).value("b").as_deref(), Some(&b"2"[..]));
        assert_eq!(NamedValues(&fields).value("c"), None);
    }

    #[test]
    fn every_line_is_found() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let fields = [pair("a", "1"), pair("b", "2"), pair("a", "3")];
        let any = |name, wanted: &[u8]| NamedValues(&fields).any(name, &mut |it| it == wanted);
        assert!(any("a", b"1") && any("a", b"3") && any("b", b"2"));
        assert!(!any("a", b"2") && !any("a", b"1,3") && !any("c", b"1"));
    }
}
