//! One object that a client of an API writes: read as an object of a file, but for unknown fields.
//!
//! Files are read strictly. A client of an API says itself what becomes of fields that a kind does
//! not have, and a list of objects is no object.

use serde_json::Value;

use super::document::{self, Document};
use super::finding::{Finding, Issues, Location, Path};
use super::{Errors, Kind, Loader, Manifests, decode, stored, subject};

/// What becomes of fields that a kind does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFields {
    /// They are errors.
    Refused,
    /// They are left out, and each is a warning.
    Warned,
    /// They are left out.
    Ignored,
}

/// Reads an object that a client writes, called `name` in messages.
///
/// # Errors
/// All that is wrong with it.
pub fn written(name: &str, value: Value, unknown: UnknownFields) -> Result<Manifests, Errors> {
    let (value, warnings) = match unknown {
        UnknownFields::Refused => (value, Vec::new()),
        UnknownFields::Warned => without_unknown(name, value),
        UnknownFields::Ignored => (without_unknown(name, value).0, Vec::new()),
    };
    let mut loader = Loader { warnings, ..Loader::default() };
    loader.document(name, Document::without_lines(value));
    loader.finish(|loader| Manifests { objects: loader.objects, warnings: loader.warnings })
}

/// Reads a text that is one value, as YAML or JSON.
///
/// # Errors
/// The syntax is wrong, or there is more or less than one value.
pub fn one_value(text: &str) -> Result<Value, String> {
    let value = document::parse_one(text).map_err(|error| match error.line {
        0 => error.what,
        line => format!("line {line}: {}", error.what),
    })?;
    value.ok_or_else(|| "it is empty".to_owned())
}

/// The object without fields that its kind does not have, and a warning for each of them. One that
/// has another fault too stays as it is.
fn without_unknown(name: &str, mut value: Value) -> (Value, Vec<Finding>) {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind_name) = (text("apiVersion").to_owned(), text("kind").to_owned());
    let Some(kind) = Kind::from_api(&api_version, &kind_name) else {
        return (value, Vec::new());
    };
    if let Some(fields) = value.as_object_mut() {
        // Its form is the machine's matter, and no client's.
        fields.remove("status");
    }
    let mut issues = Issues::default();
    if decode::decode(kind, &value, &mut issues).is_some() {
        return (value, Vec::new());
    }
    let Ok(typed) = stored(kind, value.to_string().as_bytes()) else {
        return (value, Vec::new());
    };
    let object = subject(&value);
    let warning = |path: &Path| Finding {
        location: Location { file: name.to_owned(), line: 0 },
        object: object.clone(),
        field: path.as_str().to_owned(),
        what: "the field does not exist here and was left out".to_owned(),
        remedy: "remove it, or correct its spelling, case and indentation".to_owned(),
    };
    let warnings = issues.errors.iter().map(|issue| warning(&issue.path)).collect();
    let mut known = decode::canonical(&typed);
    known["apiVersion"] = Value::String(api_version);
    known["kind"] = Value::String(kind_name);
    (known, warnings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(more: Value) -> Value {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "a"},
            "spec": {"ports": [{"port": 80}]}, "status": {"loadBalancer": {}},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            object["spec"][name] = value.clone();
        }
        object
    }

    fn check(more: Value, unknown: UnknownFields, expected: Result<&[&str], &str>) {
        match (written("request", service(more), unknown), expected) {
            (Ok(found), Ok(expected)) => {
                let fields: Vec<&str> = found.warnings.iter().map(|it| &*it.field).collect();
                assert_eq!(fields, expected);
                let spec = &found.objects[0].json["spec"];
                assert!(spec.get("selektor").is_none() && spec["ports"][0]["port"] == 80, "{spec}");
            }
            (Err(errors), Err(part)) => assert!(errors.to_string().contains(part), "{errors}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn the_client_says_what_becomes_of_unknown_fields() {
        let misspelt = || json!({"selektor": {"a": "b"}});
        check(misspelt(), UnknownFields::Refused, Err("the field `selektor` does not exist"));
        check(misspelt(), UnknownFields::Warned, Ok(&["spec.selektor"]));
        check(misspelt(), UnknownFields::Ignored, Ok(&[]));
        for unknown in [UnknownFields::Refused, UnknownFields::Warned, UnknownFields::Ignored] {
            check(json!({}), unknown, Ok(&[]));
            let wrong = json!({"selektor": 1, "ports": [{"port": "x"}]});
            check(wrong, unknown, Err("spec.ports[0].port"));
        }
    }

    #[test]
    fn another_version_stays_the_one_that_was_written() {
        let route = json!({"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "HTTPRoute",
            "metadata": {"name": "web"}, "spec": {"more": 1}});
        let found = written("request", route, UnknownFields::Warned).expect("it is read");
        assert_eq!(found.warnings[0].field, "spec.more");
        assert_eq!(found.objects[0].key.to_string(), "HTTPRoute default/web");
    }

    #[test]
    fn a_text_is_one_value() {
        assert_eq!(one_value("a: 1"), Ok(json!({"a": 1})));
        assert_eq!(one_value(r#"{"a": [1]}"#), Ok(json!({"a": [1]})));
        assert_eq!(one_value(""), Err("it is empty".to_owned()));
        assert!(one_value("a: 1\n---\nb: 1").is_err_and(|it| it.contains("more than one")));
        assert!(one_value("a: [").is_err());
    }
}
