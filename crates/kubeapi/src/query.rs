//! The parameters of a request.
//!
//! They are read as Kubernetes reads them: the first of several counts, a flag is true unless it is
//! `0` or `false`, and a number that is none is refused. What is not known is passed over.

use std::borrow::Cow;

use crate::status::Status;

/// The parameters, decoded.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Reads what follows the `?` of a request.
    pub(crate) fn parse(text: &'a str) -> Self {
        Self { pairs: form_urlencoded::parse(text.as_bytes()).collect() }
    }

    /// A parameter that is there and not empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// All values of a parameter, in their order.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| &**value)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        let found = self.pairs.iter().find(|(key, _)| key == name);
        found.is_some_and(|(_, value)| *value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        let wrong = |text: &str| Status::bad_request(format!("{name}: {text:?} is not a number"));
        self.text(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }
}

/// Whether the values of `dryRun` ask for one.
pub(crate) fn is_dry_run<'a>(asked: impl IntoIterator<Item = &'a str>) -> Result<bool, Status> {
    let mut is_asked = false;
    for word in asked {
        if word != "All" {
            return Err(Status::bad_request(format!("dryRun: {word:?} must be \"All\"")));
        }
        is_asked = true;
    }
    Ok(is_asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_kubernetes_reads_them() {
        let query = Query::parse("watch=&follow=false&a=1&a=2&n=x&labelSelector=a%3Db%2Cc+in+(d)");
        assert!(query.flag("watch") && !query.flag("follow") && !query.flag("none"));
        assert_eq!(query.text("a"), Some("1"));
        assert_eq!(query.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.text("labelSelector"), Some("a=b,c in (d)"));
        assert_eq!(query.number("a"), Ok(Some(1)));
        assert_eq!(query.number("none"), Ok(None));
        assert_eq!(query.number("n"), Err(Status::bad_request("n: \"x\" is not a number")));
    }
}
