//! YAML and JSON text to values that remember their lines.
//!
//! Every later step (typed decoding, validation, references) names a field by its path; the line
//! comes from here, once, so no step has to carry positions. The same parser reads JSON: it is a
//! subset of YAML, and duplicate keys are errors in both. This file must never interpret a value:
//! `decode` and `validate` do.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;
use serde_saphyr::budget::BudgetBreach;

/// Most YAML documents one input may hold.
const DOCUMENTS_MAX: usize = 200_000;
/// Most nodes (scalars, lists and maps together) one input may hold.
const NODES_MAX: usize = 20_000_000;
/// Most of them in a text that is one value.
const NODES_OF_ONE_MAX: usize = 20_000;
/// Deepest nesting; Kubernetes objects stay below 20, schemas in annotations are strings.
const DEPTH_MAX: usize = 50;
/// Longest input that is read at all.
pub(crate) const INPUT_SIZE_MAX_BYTES: u64 = 256 << 20;

/// One document of an input: its value and the line of each of its fields.
#[derive(Debug)]
pub(crate) struct Document {
    /// The document as JSON, nothing interpreted.
    pub(crate) value: Value,
    /// The lines of its fields.
    pub(crate) lines: FieldLines,
}

/// The line of each field of a document, by its path.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldLines(HashMap<String, u64>);

/// Text that is not YAML: where, and what the parser expected.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// Line of the offending character, counted from 1; 0 when the parser gives none.
    pub(crate) line: u64,
    /// The parser's words.
    pub(crate) what: String,
}

impl FieldLines {
    /// The line of the field at `path`, or of the nearest parent that is in the input.
    pub(crate) fn line(&self, path: &str) -> u64 {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.0.get("").copied().unwrap_or(1),
            }
        }
    }
}

impl Document {
    /// A document that was made and not read.
    pub(crate) fn without_lines(value: Value) -> Self {
        Self { value, lines: FieldLines(HashMap::from([(String::new(), 0)])) }
    }

    /// The documents in a `kind: List`'s items (lists may nest), or the document itself.
    pub(crate) fn flatten(self) -> Vec<Self> {
        let is_list = self.value.get("kind").and_then(Value::as_str) == Some("List");
        let Some(items) = self.value.get("items").and_then(Value::as_array).filter(|_| is_list)
        else {
            return vec![self];
        };
        let mut item_lines = vec![HashMap::new(); items.len()];
        for (path, line) in &self.lines.0 {
            if let Some((index, rest)) = item_path(path)
                && let Some(lines) = item_lines.get_mut(index)
            {
                lines.insert(rest.to_owned(), *line);
            }
        }
        let item = |(value, lines): (&Value, _)| {
            Self { value: value.clone(), lines: FieldLines(lines) }.flatten()
        };
        items.iter().zip(item_lines).flat_map(item).collect()
    }
}

/// `items[3].metadata.name` is field `metadata.name` of item 3.
fn item_path(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix("items[")?.split_once(']')?;
    Some((index.parse().ok()?, rest.trim_start_matches('.')))
}

/// Splits `text` into documents; empty ones are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Document>, SyntaxError> {
    Ok(trees(text, NODES_MAX)?.into_iter().map(document).collect())
}

/// The value of a short text, if there is one. No lines are kept: with the path of every field they
/// could be far longer than the text.
pub(crate) fn parse_one(text: &str) -> Result<Option<Value>, SyntaxError> {
    let mut trees = trees(text, NODES_OF_ONE_MAX)?;
    if let Some(second) = trees.get(1) {
        let what = "more than one document; write one document".to_owned();
        return Err(SyntaxError { line: second.referenced.line(), what });
    }
    Ok(trees.pop().map(|it| it.value.without_lines()))
}

fn trees(text: &str, nodes_max: usize) -> Result<Vec<Spanned<Tree>>, SyntaxError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // As kubectl reads them: the mode 0400 of a file is 256.
        legacy_octal_numbers: true,
        budget: serde_saphyr::budget! {
            max_documents: DOCUMENTS_MAX,
            max_nodes: nodes_max,
            max_events: nodes_max * 2,
            max_depth: DEPTH_MAX,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| SyntaxError {
        line: error.location().map_or(0, |at| at.line()),
        what: in_our_words(&error, nodes_max),
    })
}

/// What is wrong, for somebody who writes manifests. The parser's own advice is for somebody who
/// writes programs.
fn in_our_words(error: &serde_saphyr::Error, nodes_max: usize) -> String {
    use serde_saphyr::Error;
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the field `{key}` appears twice; keep one of them")
        }
        Error::DuplicateMappingKey { key: None, .. } => {
            "a field appears twice; keep one of them".to_owned()
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("nested more than {DEPTH_MAX} levels deep")
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            format!("more than {DOCUMENTS_MAX} documents in one input; split it")
        }
        Error::Budget {
            breach: BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. }, ..
        } => format!("more than {nodes_max} values in one input; split it"),
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "too large once its anchors and aliases are written out; write the values themselves"
                .to_owned()
        }
        Error::AliasError { error, .. } => in_our_words(error, nodes_max),
        Error::NonFiniteFloat { value, .. } => {
            format!("{value} is no finite number; write another, or put it in quotes")
        }
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag `{tag}` means nothing here; remove it")
        }
        other => in_fixed_words(other)
            .map_or_else(|| first_line(&other.to_string()).to_owned(), str::to_owned),
    }
}

/// The same for mistakes of which there is nothing to quote.
fn in_fixed_words(error: &serde_saphyr::Error) -> Option<&'static str> {
    use serde_saphyr::Error;
    Some(match error {
        Error::NullIntoString { .. } => {
            "a field has no name; write one before the colon, or remove the colon"
        }
        // All of a document is read as it comes, but for the names of fields.
        Error::Unexpected { .. } => {
            "a list or a map is where the name of a field must be; put a value with braces in \
             quotes, and render a template such as {{ .Values.port }} before"
        }
        Error::InvalidScalar { .. } => "the value is not what its tag says; remove the tag",
        Error::TaggedScalarCannotDeserializeIntoString { .. } => {
            "a tag is where only text can be; remove the tag"
        }
        Error::InvalidBinaryBase64 { .. } | Error::BinaryNotUtf8 { .. } => {
            "the value of !!binary is not the base64 of a text; write the text without the tag"
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias is within what its own anchor names; write the values themselves"
        }
        Error::UnknownAnchor { .. } => {
            "no anchor of this name comes before the alias; correct its spelling, or put a value \
             that begins with * in quotes"
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            "the value of `<<` must be a map of fields, or a list of such; correct it"
        }
        _ => return None,
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn document(tree: Spanned<Tree>) -> Document {
    let mut lines = HashMap::new();
    lines.insert(String::new(), tree.referenced.line());
    let value = tree.value.into_value(&mut String::new(), &mut lines);
    Document { value, lines: FieldLines(lines) }
}

/// A YAML node with the line of every child; a map's line is its key's, which is what a reader
/// looks for.
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Tree)>),
}

impl Tree {
    fn into_value(self, path: &mut String, lines: &mut HashMap<String, u64>) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::List(items) => {
                let mut values = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let end = path.len();
                    path.push_str(&format!("[{index}]"));
                    lines.insert(path.clone(), item.referenced.line());
                    values.push(item.value.into_value(path, lines));
                    path.truncate(end);
                }
                Value::Array(values)
            }
            Self::Map(entries) => {
                let mut map = Map::new();
                for (key, item) in entries {
                    let end = path.len();
                    if end > 0 {
                        path.push('.');
                    }
                    path.push_str(&key.value);
                    lines.insert(path.clone(), key.referenced.line());
                    map.insert(key.value, item.into_value(path, lines));
                    path.truncate(end);
                }
                Value::Object(map)
            }
        }
    }

    fn without_lines(self) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::List(items) => items.into_iter().map(|it| it.value.without_lines()).collect(),
            Self::Map(entries) => {
                entries.into_iter().map(|(key, item)| (key.value, item.without_lines())).collect()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, inner: D) -> Result<Tree, D::Error> {
        Tree::deserialize(inner)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::from(value)))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        Number::from_f64(value)
            .map(|number| Tree::Scalar(Value::Number(number)))
            .ok_or_else(|| E::custom("numbers must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::from(value)))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_keys_and_items() {
        let text = "# first\na: 1\nb:\n  c: [x,\n    z]\n---\n---\nd: {e: true}\n";
        let documents = parse(text).expect("valid YAML");
        assert_eq!(documents.len(), 2);
        let (first, second) = (&documents[0], &documents[1]);
        assert_eq!(first.value, serde_json::json!({"a": 1, "b": {"c": ["x", "z"]}}));
        let lines =
            ["a", "b", "b.c", "b.c[0]", "b.c[1]", "b.absent"].map(|path| first.lines.line(path));
        assert_eq!(lines, [2, 3, 4, 4, 5, 3]);
        assert_eq!(second.lines.line("d.e"), 8);
    }

    #[test]
    fn numbers_are_read_as_kubectl_does() {
        let text = "a: 0400\nb: 0o17\nc: 10\nd: '0400'\ne: 0\nf: 0.5\ng: 0755\n";
        let read = parse_one(text).expect("valid YAML").expect("there is one");
        let expected = serde_json::json!(
            {"a": 256, "b": 15, "c": 10, "d": "0400", "e": 0, "f": 0.5, "g": 493}
        );
        assert_eq!(read, expected);
    }

    #[test]
    fn lists_are_flattened_with_their_lines() {
        let text = "kind: List\napiVersion: v1\nitems:\n- kind: A\n  x: 1\n- kind: List\n  \
                    items:\n  - kind: B\n";
        let flat: Vec<Document> =
            parse(text).expect("valid").into_iter().flat_map(Document::flatten).collect();
        assert_eq!(flat.len(), 2);
        assert_eq!(flat[0].lines.line("x"), 5);
        assert_eq!(flat[1].lines.line("kind"), 8);
    }

    #[test]
    fn syntax_errors_carry_their_line() {
        for (text, line) in [("a: 1\nb: [1\n", 2), ("a: 1\na: 2\n", 2), ("a: 1\n\tb: 2\n", 1)] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.line, line, "{text:?}: {}", error.what);
        }
    }

    #[test]
    fn errors_speak_of_the_input_and_not_of_the_parser() {
        let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
        for (text, expected) in [
            ("a: 1\na: 2\n", "the field `a` appears twice; keep one of them"),
            (deep.as_str(), "nested more than 50 levels deep"),
            ("a: .inf\n", ".inf is no finite number; write another, or put it in quotes"),
            ("!!map a: b\n", "the tag `!!map` means nothing here; remove it"),
        ] {
            assert_eq!(parse(text).expect_err(text).what, expected);
        }
        for (text, expected) in [
            ("? \n: 1\n", "a field has no name"),
            ("port: {{ .Values.port }}\n", "where the name of a field must be"),
            ("[a]: b\n", "where the name of a field must be"),
            ("a: !!int x\n", "not what its tag says"),
            ("a: !!timestamp 5\n", "only text can be"),
            ("a: !!binary x\n", "not the base64 of a text"),
            ("a: !!binary /w==\n", "not the base64 of a text"),
            ("a: &a [*a]\n", "within what its own anchor names"),
            ("a: *.example.com\n", "no anchor of this name"),
            ("<<: 5\n", "the value of `<<` must be a map"),
        ] {
            let SyntaxError { line, what } = parse(text).expect_err(text);
            assert!(what.contains(expected), "{text:?}: {what}");
            let words = ["Option", "scalar", "deserialize", "u64", "policy"];
            assert!(!words.iter().any(|word| what.contains(word)) && line > 0, "{what}");
        }
    }

    #[test]
    fn a_short_text_stays_small_when_it_is_read() {
        let items = |count: usize| "1,".repeat(count);
        // With the path of each item these would be 18 GB.
        let text = format!("? {}\n: [{}]", "k".repeat(1 << 20), items(NODES_OF_ONE_MAX - 1_000));
        let read = parse_one(&text).expect("valid YAML").expect("there is one");
        assert_eq!(read["k".repeat(1 << 20)].as_array().map(Vec::len), Some(19_000));
        let many = parse_one(&format!("a: [{}]", items(NODES_OF_ONE_MAX + 1)));
        let expected = "more than 20000 values in one input; split it";
        assert_eq!(many.expect_err("too many").what, expected);
        let aliases = "*a,".repeat(10_000);
        let text = format!("a: &a {}\nb: [{aliases}]", "x".repeat(100_000));
        assert!(parse_one(&text).is_err(), "1 GB once the aliases are written out");
    }

    #[test]
    fn json_is_read_too() {
        let documents = parse("{\n \"a\": {\n  \"b\": \"\\u00e9\"}}").expect("valid JSON");
        assert_eq!(documents[0].value["a"]["b"], "é");
        assert_eq!(documents[0].lines.line("a.b"), 3);
    }
}
