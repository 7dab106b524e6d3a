//! How deep objects may be nested.

use serde_json::{Map, Value};

/// Deepest nesting of an object, as in files: what is stored must be readable again.
pub(crate) const OBJECT_DEPTH_MAX: usize = 50;

/// Whether the fields of an object are nested deeper than so many levels, themselves included.
///
/// Whose the fields are does not count: it follows from them, and what clients say is dropped.
pub(crate) fn is_deeper(fields: &Map<String, Value>, levels: usize) -> bool {
    fn is_deep(value: &Value, levels: usize) -> bool {
        let below = |it: &Value| is_deep(it, levels.saturating_sub(1));
        match value {
            Value::Object(map) => levels == 0 || map.values().any(below),
            Value::Array(items) => levels == 0 || items.iter().any(below),
            _ => false,
        }
    }
    let below = levels.saturating_sub(2);
    fields.iter().any(|(name, value)| match value {
        Value::Object(metadata) if name == "metadata" => {
            let mut said = metadata.iter().filter(|(name, _)| *name != "managedFields");
            said.any(|(_, it)| is_deep(it, below))
        }
        value => is_deep(value, levels.saturating_sub(1)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whose_the_fields_are_does_not_count() {
        let check = |object: Value, levels: usize| {
            let fields = object.as_object().expect("an object");
            assert!(is_deeper(fields, levels - 1) && !is_deeper(fields, levels), "{object}");
        };
        check(json!({"a": [{"b": 1}]}), 3);
        check(json!({"metadata": {"labels": {"a": "b"}}}), 3);
        let owners = json!([{"fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        check(json!({"metadata": {"labels": {"a": "b"}, "managedFields": owners}}), 3);
    }
}
