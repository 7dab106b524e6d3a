//! Which resources a patch or replacement is for.
//!
//! Group, version, kind, name and namespace are regular expressions that must fit as a whole.
//! Labels and annotations are selected with Kubernetes' selector language.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::error::Fault;
use crate::identity::{Gvk, Identity};
use crate::limits::REGEX_SIZE_MAX_BYTES;
use crate::resource::Resource;

/// A selector as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Selector {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) annotation_selector: String,
    pub(crate) label_selector: String,
}

/// A selector, ready to use. An absent part fits everything.
#[derive(Debug)]
pub(crate) struct Matcher {
    group: Option<Regex>,
    version: Option<Regex>,
    kind: Option<Regex>,
    name: Option<Regex>,
    namespace: Option<Regex>,
    annotations: Vec<Requirement>,
    labels: Vec<Requirement>,
}

impl Matcher {
    /// Reads a selector.
    pub(crate) fn new(selector: &Selector) -> Result<Self, Fault> {
        Ok(Self {
            group: anchored(&selector.group)?,
            version: anchored(&selector.version)?,
            kind: anchored(&selector.kind)?,
            name: anchored(&selector.name)?,
            namespace: anchored(&selector.namespace)?,
            annotations: requirements(&selector.annotation_selector)?,
            labels: requirements(&selector.label_selector)?,
        })
    }

    /// Whether a patch with this target changes the resource.
    pub(crate) fn fits(&self, resource: &Resource) -> bool {
        let (now, original) = (resource.identity(), resource.original());
        let either = |pattern: &Option<Regex>, part: fn(&Identity) -> &str| {
            fits(pattern, part(&original)) || fits(pattern, part(&now))
        };
        either(&self.namespace, Identity::effective_namespace)
            && either(&self.name, |identity| &identity.name)
            && self.fits_gvk(&now.gvk)
            && self.fits_metadata(resource)
    }

    /// Whether a name that a resource has or had fits.
    pub(crate) fn fits_identity(&self, identity: &Identity) -> bool {
        self.fits_gvk(&identity.gvk)
            && fits(&self.name, &identity.name)
            && fits(&self.namespace, &identity.namespace)
    }

    /// Whether its labels and annotations fit.
    pub(crate) fn fits_metadata(&self, resource: &Resource) -> bool {
        let all = |requirements: &[Requirement], field: &str| {
            let texts = resource.metadata_texts(field);
            requirements.iter().all(|it| it.fits(&texts))
        };
        all(&self.labels, "labels") && all(&self.annotations, "annotations")
    }

    fn fits_gvk(&self, gvk: &Gvk) -> bool {
        fits(&self.group, &gvk.group)
            && fits(&self.version, &gvk.version)
            && fits(&self.kind, &gvk.kind)
    }
}

fn fits(pattern: &Option<Regex>, text: &str) -> bool {
    pattern.as_ref().is_none_or(|it| it.is_match(text))
}

/// A regular expression, within bounds.
pub(crate) fn regex(pattern: &str) -> Result<Regex, Fault> {
    let built = RegexBuilder::new(pattern).size_limit(REGEX_SIZE_MAX_BYTES).build();
    built.map_err(|error| {
        let what = error.to_string();
        let what = what.lines().last().unwrap_or_default().trim();
        Fault::new(format!("{pattern:?} is no regular expression: {what}"), "correct it")
    })
}

fn anchored(pattern: &str) -> Result<Option<Regex>, Fault> {
    if pattern.is_empty() { Ok(None) } else { regex(&format!("^(?:{pattern})$")).map(Some) }
}

/// One condition on labels.
#[derive(Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirement {
    fn fits(&self, texts: &[(String, String)]) -> bool {
        let text = |key: &str| texts.iter().find(|(it, _)| it == key).map(|(_, text)| text);
        match self {
            Self::In(key, values) => text(key).is_some_and(|it| values.contains(it)),
            Self::NotIn(key, values) => text(key).is_none_or(|it| !values.contains(it)),
            Self::Exists(key) => text(key).is_some(),
            Self::Absent(key) => text(key).is_none(),
        }
    }
}

/// The conditions of a selector, with `,` between them.
fn requirements(selector: &str) -> Result<Vec<Requirement>, Fault> {
    let mut parts: Vec<String> = Vec::new();
    let mut is_inside = false;
    for part in selector.split(',') {
        match parts.last_mut().filter(|_| is_inside) {
            Some(last) => {
                last.push(',');
                last.push_str(part);
            }
            None => parts.push(part.to_owned()),
        }
        is_inside = (is_inside || part.contains('(')) && !part.contains(')');
    }
    if selector.trim().is_empty() {
        return Ok(Vec::new());
    }
    parts.iter().map(|part| requirement(part.trim())).collect()
}

fn requirement(text: &str) -> Result<Requirement, Fault> {
    let wrong = || {
        let what = format!("the selector {text:?} cannot be read");
        Fault::new(what, "write it as in `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a` or `!a`")
    };
    let key = |text: &str| {
        let text = text.trim();
        let is_key = |it: char| it.is_ascii_alphanumeric() || "-_./".contains(it);
        let is_right = !text.is_empty() && text.chars().all(is_key);
        if is_right { Ok(text.to_owned()) } else { Err(wrong()) }
    };
    if let Some((left, right)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(key(left)?, vec![right.trim().to_owned()]));
    }
    if let Some((left, right)) = text.split_once('=') {
        let right = right.strip_prefix('=').unwrap_or(right);
        return Ok(Requirement::In(key(left)?, vec![right.trim().to_owned()]));
    }
    if let Some(rest) = text.strip_suffix(')') {
        let (left, values) = rest.split_once('(').ok_or_else(wrong)?;
        let values = values.split(',').map(|it| it.trim().to_owned()).collect();
        return match left.trim().rsplit_once(char::is_whitespace) {
            Some((left, "in")) => Ok(Requirement::In(key(left)?, values)),
            Some((left, "notin")) => Ok(Requirement::NotIn(key(left)?, values)),
            _ => Err(wrong()),
        };
    }
    match text.strip_prefix('!') {
        Some(rest) => key(rest).map(Requirement::Absent),
        None => key(text).map(Requirement::Exists),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn check(selector: Selector, expected: bool) {
        let value = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web-1", "labels": {"app": "web", "tier": "front"}},
        });
        let resource = Resource::new(value, Path::new("x.yaml"));
        let matcher = Matcher::new(&selector).expect("a selector that is right");
        assert_eq!(matcher.fits(&resource), expected, "{selector:?}");
    }

    #[test]
    fn names_are_anchored_regular_expressions() {
        for (name, expected) in [("web", false), ("web-.*", true), ("a|web-1", true), ("", true)] {
            check(Selector { name: name.to_owned(), ..Selector::default() }, expected);
        }
        for (namespace, expected) in [("default", true), ("a", false)] {
            check(Selector { namespace: namespace.to_owned(), ..Selector::default() }, expected);
        }
    }

    #[test]
    fn labels_are_selected_as_in_kubernetes() {
        for (selector, expected) in [
            ("app=web", true),
            ("app==web,tier!=front", false),
            ("app in (api, web),tier", true),
            ("app notin (api, web)", false),
            ("!gone", true),
            ("gone notin (x)", true),
        ] {
            let selector = Selector { label_selector: selector.to_owned(), ..Selector::default() };
            check(selector, expected);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let wrong = |selector: &Selector| Matcher::new(selector).expect_err("it is wrong").what;
        let labels = Selector { label_selector: "a ~ b".to_owned(), ..Selector::default() };
        assert_eq!(wrong(&labels), "the selector \"a ~ b\" cannot be read");
        let name = Selector { name: "(".to_owned(), ..Selector::default() };
        assert!(wrong(&name).contains("no regular expression"));
    }
}
