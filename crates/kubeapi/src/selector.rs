//! Label selectors and field selectors: which objects are meant.
//!
//! Both grammars are Kubernetes' (`apimachinery/pkg/labels`, `apimachinery/pkg/fields`). A selector
//! comes from a stranger: reading one takes time in proportion to its length, and never panics.

use serde_json::Value;

use crate::resource::Resource;
use crate::status::Status;

/// Which objects of a kind are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selectors {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

/// What is asked of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    is: Is,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Is {
    Present,
    Absent,
    OneOf(Vec<String>),
    /// Absent, or another.
    NoneOf(Vec<String>),
    Above(i64),
    Below(i64),
}

/// What is asked of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    field: String,
    value: String,
    is_equal: bool,
}

/// Fields that every kind has.
const METADATA: [&str; 2] = ["metadata.name", "metadata.namespace"];
/// Fields that some kinds have besides, as in Kubernetes.
const FIELDS: [(&str, &[&str]); 6] = [
    (
        "pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
        ],
    ),
    (
        "events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ],
    ),
    ("namespaces", &["status.phase"]),
    ("nodes", &["spec.unschedulable"]),
    ("secrets", &["type"]),
    ("services", &["spec.clusterIP", "spec.type"]),
];

impl Selectors {
    /// Reads the two selectors of a request for objects of one kind.
    pub(crate) fn parse(
        resource: &Resource,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, Status> {
        let unreadable = |why| Status::bad_request(format!("unable to parse requirement: {why}"));
        let labels = labels.map(parse_labels).transpose().map_err(unreadable)?;
        let fields = fields.map(parse_fields).transpose().map_err(Status::bad_request)?;
        let selectors =
            Self { labels: labels.unwrap_or_default(), fields: fields.unwrap_or_default() };
        let own = FIELDS.iter().find(|(plural, _)| *plural == resource.plural);
        let own = own.map_or(&[][..], |(_, fields)| fields);
        for FieldTerm { field, .. } in &selectors.fields {
            let field = field.as_str();
            if !METADATA.contains(&field) && !own.contains(&field) {
                return Err(Status::bad_request(format!(
                    "field label not supported: {field}; {} have {}",
                    resource.qualified(),
                    [&METADATA[..], own].concat().join(", ")
                )));
            }
        }
        Ok(selectors)
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let label = |key: &str| labels.and_then(|it| it.get(key)).and_then(Value::as_str);
        self.labels.iter().all(|it| it.holds(label(&it.key)))
            && self.fields.iter().all(|it| (field(object, &it.field) == it.value) == it.is_equal)
    }
}

/// A field as a selector compares it; empty where there is none.
fn field(object: &Value, path: &str) -> String {
    match path.split('.').try_fold(object, |at, name| at.get(name)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(is_so)) => is_so.to_string(),
        // Kubernetes writes these two out where the object leaves them out.
        _ if path == "spec.hostNetwork" || path == "spec.unschedulable" => "false".to_owned(),
        _ => String::new(),
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.is {
            Is::Present => value.is_some(),
            Is::Absent => value.is_none(),
            Is::OneOf(values) => value.is_some_and(|it| values.iter().any(|one| one == it)),
            Is::NoneOf(values) => value.is_none_or(|it| values.iter().all(|one| one != it)),
            Is::Above(bound) => number().is_some_and(|it| it > *bound),
            Is::Below(bound) => number().is_some_and(|it| it < *bound),
        }
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut rest = text.trim();
    let mut requirements = Vec::new();
    while !rest.is_empty() {
        let (requirement, after) = requirement(rest)?;
        requirements.push(requirement);
        rest = match after.trim_start().strip_prefix(',') {
            Some(more) if more.trim().is_empty() => return Err("it ends with ','".to_owned()),
            Some(more) => more.trim_start(),
            None if after.trim().is_empty() => "",
            None => return Err(format!("found {:?}, expected ','", after.trim())),
        };
    }
    Ok(requirements)
}

/// Reads one requirement, and says what follows it.
fn requirement(text: &str) -> Result<(Requirement, &str), String> {
    let (is_absent, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text),
    };
    let (key, rest) = word(text);
    check_key(key)?;
    let rest = rest.trim_start();
    let done = |is, rest| Ok((Requirement { key: key.to_owned(), is }, rest));
    if is_absent {
        return done(Is::Absent, rest);
    }
    if rest.is_empty() || rest.starts_with(',') {
        return done(Is::Present, rest);
    }
    for (operator, is_equal) in [("==", true), ("=", true), ("!=", false)] {
        if let Some(rest) = rest.strip_prefix(operator) {
            let (value, rest) = word(rest.trim_start());
            let values = vec![check_value(value)?];
            return done(if is_equal { Is::OneOf(values) } else { Is::NoneOf(values) }, rest);
        }
    }
    for operator in ['>', '<'] {
        if let Some(rest) = rest.strip_prefix(operator) {
            let (value, rest) = word(rest.trim_start());
            let bound = value.parse().map_err(|_| format!("{value:?} is not an integer"))?;
            return done(if operator == '>' { Is::Above(bound) } else { Is::Below(bound) }, rest);
        }
    }
    let (operator, rest) = word(rest);
    let is = match operator {
        "in" => Is::OneOf,
        "notin" => Is::NoneOf,
        _ => return Err(format!("found {operator:?}, expected in, notin, =, ==, !=, > or <")),
    };
    let list = rest.trim_start().strip_prefix('(');
    let (list, rest) = list
        .and_then(|it| it.split_once(')'))
        .ok_or_else(|| format!("{operator} needs a list in parentheses"))?;
    let values = list.split(',').map(|value| check_value(value.trim()));
    done(is(values.collect::<Result<_, _>>()?), rest)
}

/// The longest start that may be a key or a value.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| letter.is_whitespace() || "=!<>(),".contains(letter));
    text.split_at(end.unwrap_or(text.len()))
}

/// A name of at most 63 characters, behind a domain of at most 253.
fn check_key(key: &str) -> Result<(), String> {
    let (domain, name) = key.rsplit_once('/').unwrap_or(("", key));
    let is_domain = domain.len() <= 253 && domain.bytes().all(is_name_byte);
    let is_name = !name.is_empty() && is_label_value(name);
    if is_domain && is_name { Ok(()) } else { Err(format!("invalid label key {key:?}")) }
}

fn check_value(value: &str) -> Result<String, String> {
    if is_label_value(value) {
        Ok(value.to_owned())
    } else {
        Err(format!("invalid label value {value:?}"))
    }
}

fn is_label_value(value: &str) -> bool {
    let at_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && bytes.iter().copied().all(is_name_byte)
        && at_end(bytes.first())
        && at_end(bytes.last())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

fn parse_fields(text: &str) -> Result<Vec<FieldTerm>, String> {
    let terms = split_unescaped(text, ',').into_iter().filter(|term| !term.is_empty());
    terms.map(field_term).collect()
}

fn field_term(term: &str) -> Result<FieldTerm, String> {
    let wrong = || format!("invalid selector: {term:?}; can't understand it");
    // The field comes first and has no operator in it.
    let at = term.find(['=', '!']).ok_or_else(wrong)?;
    let (field, rest) = term.split_at(at);
    let operators = [("!=", false), ("==", true), ("=", true)];
    let mut found = operators.iter().filter_map(|(operator, is_equal)| {
        rest.strip_prefix(operator).map(|value| (value, *is_equal))
    });
    let (value, is_equal) = found.next().ok_or_else(wrong)?;
    let value = unescaped(value).ok_or_else(wrong)?;
    Ok(FieldTerm { field: field.to_owned(), value, is_equal })
}

/// The parts between separators that no backslash precedes.
fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        if letter == separator && !is_escaped {
            parts.push(&text[start..at]);
            start = at + letter.len_utf8();
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    parts.push(&text[start..]);
    parts
}

/// A value without its backslashes. `None` where one escapes what need not be, or is missing.
fn unescaped(text: &str) -> Option<String> {
    let mut letters = text.chars();
    let mut value = String::with_capacity(text.len());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => value.push(letters.next().filter(|it| "\\,=".contains(*it))?),
            '=' => return None,
            _ => value.push(letter),
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const PODS: Resource = Resource {
        kind: "Pod",
        plural: "pods",
        namespaced: true,
        api_versions: &["v1"],
        only_read: None,
    };

    fn labels(text: &str) -> Result<Selectors, Status> {
        Selectors::parse(&PODS, Some(text), None)
    }

    #[test]
    fn labels_select() {
        let pod = json!({"metadata": {"labels": {"app": "web", "tier": "", "n": "5"}}});
        let check = |text: &str, expected: bool| {
            assert_eq!(labels(text).expect(text).matches(&pod), expected, "{text}");
        };
        check("", true);
        check("app", true);
        check("none", false);
        check("!none", true);
        check("! app", false);
        check("app=web", true);
        check("app == web , n=5", true);
        check("app=other", false);
        check("app!=web", false);
        check("none!=web", true);
        check("tier=", true);
        check("app=web,tier=,none=x", false);
        check("app in (a, web)", true);
        check("app in (a,b),n", false);
        check("app notin (a)", true);
        check("none notin (a)", true);
        check("n>4", true);
        check("n<5", false);
        check("app>1", false);
        check("example.com/a-b!=x", true);
    }

    #[test]
    fn labels_that_are_no_selector_are_refused() {
        for text in [
            "=",
            "a=b=c",
            "a b",
            "a,",
            ",",
            "!",
            "a in b",
            "a in (b",
            "a in ()x",
            "a>b",
            "-a",
            "a=b c",
            "a=-",
            "a/b/c=d,/",
            "a is (b)",
            "é",
        ] {
            let status = labels(text).expect_err(text);
            assert_eq!(status.code(), http::StatusCode::BAD_REQUEST, "{text}");
        }
    }

    #[test]
    fn fields_select() {
        let pod = json!({
            "metadata": {"name": "a,b=c"},
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running"},
        });
        let check = |text: &str, expected: bool| {
            let selectors = Selectors::parse(&PODS, None, Some(text)).expect(text);
            assert_eq!(selectors.matches(&pod), expected, "{text}");
        };
        check("", true);
        check("spec.nodeName=n", true);
        check("spec.nodeName==n,status.phase!=Failed,status.phase!=Succeeded", true);
        check("status.phase!=Running", false);
        check("status.podIP=", true);
        check("spec.hostNetwork=false", true);
        check(r"metadata.name=a\,b\=c", true);
        check("metadata.namespace=other", false);
    }

    #[test]
    fn fields_that_a_kind_has_not_are_refused() {
        let check = |text: &str, part: &str| {
            let status = Selectors::parse(&PODS, None, Some(text)).expect_err(text).to_json();
            let message = status["message"].as_str().unwrap_or_default();
            assert!(message.contains(part), "{message}");
        };
        check("spec.containers=x", "field label not supported: spec.containers; pods have");
        check("involvedObject.name=x", "field label not supported");
        check("metadata.name", "invalid selector");
        check("metadata.name=a=b", "invalid selector");
        check(r"metadata.name=a\b", "invalid selector");
        check("metadata.name!a", "invalid selector");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z/=!<>(), \\\\.é]{0,40}", other in ".{0,40}") {
            let pod = json!({"metadata": {"labels": {"a": "b"}}});
            for text in [text, other] {
                for selectors in [labels(&text), Selectors::parse(&PODS, None, Some(&text))] {
                    let _either = selectors.map(|it| it.matches(&pod));
                }
            }
        }

        #[test]
        fn what_is_written_is_what_is_meant(key in "[a-z]{1,8}", value in "[a-z0-9]{0,8}") {
            let pod = json!({"metadata": {"labels": {key.clone(): value.clone()}}});
            let equal = labels(&format!("{key}={value}")).expect("a selector");
            let not_equal = labels(&format!("{key} notin ({value})")).expect("a selector");
            prop_assert!(equal.matches(&pod) && !not_equal.matches(&pod));
        }
    }
}
