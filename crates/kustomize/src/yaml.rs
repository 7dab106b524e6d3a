//! YAML text to JSON values, as kustomize reads it.
//!
//! Two habits of kustomize are kept: `0644` is an octal number, and `yes` is a text. Anchors are
//! written out, within bounds. Nothing here interprets a value.

use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;

use crate::limits::{DOCUMENTS_MAX, FILE_NODES_MAX, YAML_DEPTH_MAX};

/// Why a text is not YAML.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// The line, counted from 1; 0 if the parser gives none.
    pub(crate) line: u64,
    /// The parser's words.
    pub(crate) what: String,
}

/// What is said of anchors that grow.
const TOO_LARGE: &str = "too large once its anchors are written out";
/// Stands behind a text to see whether its last line belongs to a block of lines.
const END_MARK: &str = "kustomizeEndOfText";

/// The documents of a text; empty ones are left out.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    let may_end_in_block = !text.ends_with('\n') && text.contains(['|', '>']);
    if may_end_in_block
        && let Ok(mut values) = parsed(&format!("{text}{END_MARK}"))
        && values.iter_mut().any(unmark)
    {
        return Ok(values);
    }
    parsed(text)
}

/// A block of lines at the very end of a text that has no last line break has none either. The
/// parser adds one; behind the mark it can be seen and removed.
fn unmark(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            let end = text.strip_suffix('\n').and_then(|it| it.strip_suffix(END_MARK));
            let Some(length) = end.map(str::len) else { return false };
            text.truncate(length);
            true
        }
        Value::Array(items) => items.iter_mut().any(unmark),
        Value::Object(map) => map.values_mut().any(unmark),
        _ => false,
    }
}

fn parsed(text: &str) -> Result<Vec<Value>, SyntaxError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        legacy_octal_numbers: true,
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_documents: DOCUMENTS_MAX,
            max_nodes: FILE_NODES_MAX,
            max_events: FILE_NODES_MAX * 2,
            max_depth: YAML_DEPTH_MAX,
        },
    };
    let values: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| syntax_error(&error))?;
    Ok(values.into_iter().filter(|value| !value.is_null()).collect())
}

/// The one value of a text; nothing if the text is empty.
pub(crate) fn one(text: &str) -> Result<Option<Value>, SyntaxError> {
    let mut documents = documents(text)?;
    if documents.len() > 1 {
        return Err(SyntaxError { line: 0, what: "more than one document".to_owned() });
    }
    Ok(documents.pop())
}

/// What a plain (unquoted) scalar of this text means.
pub(crate) fn plain_scalar(text: &str) -> Value {
    let is_plain = !text.is_empty() && !text.contains(['\n', '#', ':', '"', '\'', '&', '*']);
    match is_plain.then(|| one(text)) {
        Some(Ok(Some(value))) if !value.is_object() && !value.is_array() => value,
        _ => Value::String(text.to_owned()),
    }
}

fn syntax_error(error: &serde_saphyr::Error) -> SyntaxError {
    use serde_saphyr::Error;
    let what = match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the field `{key}` appears twice")
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("nested more than {YAML_DEPTH_MAX} levels deep")
        }
        Error::Budget { .. } => TOO_LARGE.to_owned(),
        other => match other.to_string().lines().next().unwrap_or_default() {
            alias if alias.starts_with("alias") => TOO_LARGE.to_owned(),
            line => line.to_owned(),
        },
    };
    SyntaxError { line: error.location().map_or(0, |at| at.line()), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(text: &str, expected: &[Value]) {
        assert_eq!(documents(text).expect(text), expected);
    }

    #[test]
    fn scalars_mean_what_kustomize_takes_them_for() {
        check(
            "a: 0644\nb: yes\nc: 'true'\nd: 010",
            &[json!({"a": 420, "b": "yes", "c": "true", "d": 8})],
        );
        check("---\n# nothing\n---\na: ~\n---\n", &[json!({"a": null})]);
        check("a: |\n  b\n  c", &[json!({"a": "b\nc"})]);
        check("a: |\n  b\n", &[json!({"a": "b\n"})]);
        check("a: |-\n  b", &[json!({"a": "b"})]);
        check("a: |\n  b\nc: 1", &[json!({"a": "b\n", "c": 1})]);
        check("a: &x {b: 1}\nc: *x", &[json!({"a": {"b": 1}, "c": {"b": 1}})]);
    }

    #[test]
    fn a_plain_scalar_has_its_own_type() {
        for (text, expected) in [
            ("8080", json!(8080)),
            ("true", json!(true)),
            ("a: b", json!("a: b")),
            ("", json!("")),
            ("x", json!("x")),
        ] {
            assert_eq!(plain_scalar(text), expected, "{text}");
        }
    }

    #[test]
    fn errors_name_line_and_fault() {
        let error = documents("a: 1\na: 2\n").expect_err("a field twice");
        assert_eq!((error.line, error.what.as_str()), (2, "the field `a` appears twice"));
        let deep = "[".repeat(YAML_DEPTH_MAX + 1) + &"]".repeat(YAML_DEPTH_MAX + 1);
        assert_eq!(documents(&deep).expect_err("deep").what, "nested more than 50 levels deep");
    }
}
