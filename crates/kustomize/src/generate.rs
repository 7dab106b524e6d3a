//! ConfigMaps and Secrets that are made of literals, files and files of variables.
//!
//! Their names get a hash of their data, so that pods start again when it changes. The hash is
//! kustomize's to the letter; see `digest`.

mod digest;

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) use self::digest::digest;
use crate::error::{Fault, KustomizeError};
use crate::resource::{Behavior, Resource, child_map};

/// Columns of a line of Base64 in a generated Secret.
const BASE64_COLUMNS: usize = 70;
/// Longest key of a ConfigMap or Secret.
const KEY_LENGTH_MAX: usize = 253;

/// The fields `generatorOptions` and `options`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct GeneratorOptions {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    disable_name_suffix_hash: bool,
    immutable: bool,
}

impl GeneratorOptions {
    /// An entry's own options, with those of the kustomization where it has none.
    fn with(mut self, global: &Self) -> Self {
        for (into, from) in
            [(&mut self.labels, &global.labels), (&mut self.annotations, &global.annotations)]
        {
            for (key, value) in from {
                into.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        self.disable_name_suffix_hash |= global.disable_name_suffix_hash;
        self.immutable |= global.immutable;
        self
    }
}

/// One entry of `configMapGenerator` or `secretGenerator`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MapSource {
    name: String,
    namespace: String,
    behavior: String,
    #[serde(rename = "type")]
    secret_type: Option<String>,
    literals: Vec<String>,
    files: Vec<String>,
    envs: Vec<String>,
    env: String,
    options: Option<GeneratorOptions>,
}

/// What is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// Why nothing was generated: the entry is wrong, or a file of it cannot be read.
#[derive(Debug)]
pub(crate) enum GenerateError {
    /// The entry is wrong.
    Entry(Fault),
    /// A file cannot be read.
    File(KustomizeError),
}

impl From<Fault> for GenerateError {
    fn from(fault: Fault) -> Self {
        Self::Entry(fault)
    }
}

/// Makes a ConfigMap or Secret. `read` gives the content of a file.
pub(crate) fn generate(
    kind: MapKind,
    source: &MapSource,
    global: Option<&GeneratorOptions>,
    file: &Path,
    read: impl Fn(&str) -> Result<Vec<u8>, KustomizeError>,
) -> Result<Resource, GenerateError> {
    if source.name.is_empty() {
        return Err(Fault::new("an entry has no name", "add `name`").into());
    }
    if kind == MapKind::ConfigMap && source.secret_type.is_some() {
        return Err(Fault::new("a ConfigMap has no `type`", "remove `type`").into());
    }
    let own = source.options.clone().unwrap_or_default();
    let options = global.map_or_else(|| own.clone(), |global| own.clone().with(global));
    let mut value = json!({
        "apiVersion": "v1",
        "kind": if kind == MapKind::Secret { "Secret" } else { "ConfigMap" },
        "metadata": {"name": source.name},
    });
    if !source.namespace.is_empty() {
        child_map(&mut value, "metadata").insert("namespace".to_owned(), json!(source.namespace));
    }
    if kind == MapKind::Secret {
        let secret_type = source.secret_type.as_deref().filter(|it| !it.is_empty());
        value["type"] = json!(secret_type.unwrap_or("Opaque"));
        value["data"] = Value::Object(Map::new());
    }
    for (key, bytes) in pairs(source, read)? {
        let (field, text) = match (kind, String::from_utf8(bytes)) {
            (MapKind::ConfigMap, Ok(text)) => ("data", text),
            (MapKind::ConfigMap, Err(error)) => ("binaryData", wrapped(error.as_bytes())),
            (MapKind::Secret, Ok(text)) => ("data", wrapped(text.as_bytes())),
            (MapKind::Secret, Err(error)) => ("data", wrapped(error.as_bytes())),
        };
        child_map(&mut value, field).insert(key, Value::String(text));
    }
    for (field, entries) in [("labels", &options.labels), ("annotations", &options.annotations)] {
        if !entries.is_empty() {
            child_map(&mut value, "metadata").insert(field.to_owned(), json!(entries));
        }
    }
    if options.immutable {
        value["immutable"] = Value::Bool(true);
    }
    let mut made = Resource::new(value, file);
    made.needs_hash = !options.disable_name_suffix_hash;
    made.behavior = behavior(&source.behavior);
    Ok(made)
}

/// As in kustomize, a word that is unknown means the same as none.
fn behavior(text: &str) -> Behavior {
    match text {
        "replace" => Behavior::Replace,
        "merge" => Behavior::Merge,
        _ => Behavior::Create,
    }
}

/// The keys and contents of an entry; none may stand there twice.
fn pairs(
    source: &MapSource,
    read: impl Fn(&str) -> Result<Vec<u8>, KustomizeError>,
) -> Result<BTreeMap<String, Vec<u8>>, GenerateError> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    let single = Some(&source.env).filter(|it| !it.is_empty());
    for path in source.envs.iter().chain(single) {
        all.extend(variables(path, &read(path).map_err(GenerateError::File)?)?);
    }
    for literal in &source.literals {
        all.push(self::literal(literal)?);
    }
    for entry in &source.files {
        let (key, path) = file_source(entry)?;
        all.push((key.to_owned(), read(path).map_err(GenerateError::File)?));
    }
    let mut pairs = BTreeMap::new();
    for (key, content) in all {
        let is_key = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        if key.is_empty() || key.len() > KEY_LENGTH_MAX || !key.chars().all(is_key) {
            let what = format!("{key:?} cannot be a key");
            return Err(Fault::new(what, "use letters, digits, -, _ and . only").into());
        }
        if pairs.contains_key(&key) {
            let what = format!("{} has the key {key:?} twice", source.name);
            return Err(Fault::new(what, "remove one of the two").into());
        }
        pairs.insert(key, content);
    }
    Ok(pairs)
}

/// `KEY=value` lines; empty lines and those that begin with `#` are no entries.
fn variables(path: &str, content: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let wrong = || Fault::new(format!("{path} is not UTF-8 text"), "name it under `files` instead");
    let text = std::str::from_utf8(content).map_err(|_| wrong())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        all.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    Ok(all)
}

fn literal(text: &str) -> Result<(String, Vec<u8>), Fault> {
    let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        let what = format!("the literal {text:?} has no key or no value");
        return Err(Fault::new(what, "write it as in key=value"));
    };
    let is_quoted =
        |mark: char| value.len() > 1 && value.starts_with(mark) && value.ends_with(mark);
    let value = if is_quoted('"') || is_quoted('\'') { &value[1..value.len() - 1] } else { value };
    Ok((key.to_owned(), value.as_bytes().to_vec()))
}

/// `key=path`, or a path whose last part is the key.
fn file_source(entry: &str) -> Result<(&str, &str), Fault> {
    match entry.split_once('=') {
        None => {
            let key = entry.trim_end_matches('/').rsplit('/').next().unwrap_or(entry);
            Ok((key, entry))
        }
        Some((key, path)) if !key.is_empty() && !path.is_empty() && !path.contains('=') => {
            Ok((key, path))
        }
        Some(_) => {
            let what = format!("the file {entry:?} has no key, no path, or more than one `=`");
            Err(Fault::new(what, "write it as in key=path"))
        }
    }
}

/// Base64; what is longer than a line is broken into lines.
fn wrapped(bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    if text.len() < BASE64_COLUMNS {
        return text;
    }
    let mut lines = String::new();
    for (index, letter) in text.chars().enumerate() {
        if index > 0 && index % BASE64_COLUMNS == 0 {
            lines.push('\n');
        }
        lines.push(letter);
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> MapSource {
        serde_saphyr::from_str(text).expect("an entry")
    }

    fn made(kind: MapKind, text: &str) -> Result<Value, String> {
        let read = |path: &str| Ok(format!("# of {path}\nA=1\n\nB\n").into_bytes());
        match generate(kind, &source(text), None, Path::new("k.yaml"), read) {
            Ok(made) => Ok(made.value),
            Err(GenerateError::Entry(fault)) => Err(fault.what),
            Err(GenerateError::File(error)) => Err(error.to_string()),
        }
    }

    fn check(kind: MapKind, text: &str, data: Result<Value, &str>) {
        let found = made(kind, text).map(|it| it["data"].clone());
        assert_eq!(found.as_ref().map_err(String::as_str), data.as_ref().map_err(|it| *it));
    }

    #[test]
    fn data_comes_from_literals_files_and_variables() {
        let text = "{name: a, literals: [k=v=w, \"q='x'\"], files: [f=d/g, d/h], env: e}";
        let file = |path: &str| format!("# of {path}\nA=1\n\nB\n");
        let expected = json!({
            "k": "v=w", "q": "x", "f": file("d/g"), "h": file("d/h"), "A": "1", "B": "",
        });
        check(MapKind::ConfigMap, text, Ok(expected));
        check(MapKind::Secret, "{name: a, literals: [k=v]}", Ok(json!({"k": "dg=="})));
        check(MapKind::Secret, "{name: a}", Ok(json!({})));
        check(MapKind::ConfigMap, "{name: a}", Ok(Value::Null));
    }

    #[test]
    fn entries_that_are_wrong_are_errors() {
        for (text, expected) in [
            ("{}", "an entry has no name"),
            ("{name: a, literals: [x]}", "the literal \"x\" has no key or no value"),
            ("{name: a, literals: [x=1, x=2]}", "a has the key \"x\" twice"),
            ("{name: a, literals: ['a b=1']}", "\"a b\" cannot be a key"),
            (
                "{name: a, files: [a=b=c]}",
                "the file \"a=b=c\" has no key, no path, or more than one `=`",
            ),
            ("{name: a, type: x}", "a ConfigMap has no `type`"),
        ] {
            check(MapKind::ConfigMap, text, Err(expected));
        }
    }

    #[test]
    fn long_base64_is_broken_into_lines() {
        let text = wrapped(&[0; 60]);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [70, 10]);
        assert!(text.ends_with('\n'));
    }
}
