//! Replacements: the value of one resource's field, written into fields of others.
//!
//! A path has dots between its parts. `[key=text]` finds elements of a list, a number one of them,
//! and `*` all. As in kustomize, the text of a target's `[key=text]` is a regular expression that
//! fits anywhere, and a field that is there keeps its type.

use ambit_words::names::NAME_FIELD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::Fault;
use crate::fields::split_at;
use crate::identity::{Identity, scalar_text};
use crate::limits::{COPIED_NODES_MAX, PATH_PARTS_MAX, TEXT_SIZE_MAX_BYTES, VALUE_DEPTH_MAX};
use crate::measure::measure;
use crate::resource::Resources;
use crate::selector::{Matcher, Selector, regex};
use crate::yaml::plain_scalar;

/// One replacement.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Replacement {
    pub(crate) source: Option<Source>,
    pub(crate) source_value: Option<String>,
    pub(crate) targets: Option<Vec<Target>>,
}

/// Where the value comes from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Source {
    group: String,
    version: String,
    kind: String,
    name: String,
    namespace: String,
    field_path: String,
    options: Options,
}

/// Where the value goes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Target {
    select: Option<Selector>,
    reject: Vec<Selector>,
    field_paths: Vec<String>,
    options: Options,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    delimiter: String,
    index: isize,
    encoding: String,
    create: bool,
}

/// Follows one replacement.
pub(crate) fn replace(resources: &mut Resources, replacement: &Replacement) -> Result<(), Fault> {
    let Some(targets) = &replacement.targets else {
        return Err(Fault::new("a replacement has no targets", "add `targets`"));
    };
    let value = match (&replacement.source, &replacement.source_value) {
        (Some(source), None) => source_value(resources, source)?,
        (None, Some(text)) => Value::String(text.clone()),
        _ => {
            return Err(Fault::new(
                "a replacement needs one source",
                "add `source` or `sourceValue`",
            ));
        }
    };
    targets.iter().try_for_each(|target| write(resources, target, &value))
}

fn source_value(resources: &Resources, source: &Source) -> Result<Value, Fault> {
    let wanted = |part: &str, is: &str| part.is_empty() || part == is;
    let is_source = |it: &Identity| {
        wanted(&source.name, &it.name)
            && wanted(&source.group, &it.gvk.group)
            && wanted(&source.version, &it.gvk.version)
            && wanted(&source.kind, &it.gvk.kind)
            && wanted(
                &source.namespace,
                if it.namespace.is_empty() { "default" } else { &it.namespace },
            )
    };
    let mut found = resources.0.iter().filter(|it| it.any_identity(is_source));
    let whole = format!("{} {}", source.kind, source.name);
    let resource = match (found.next(), found.next()) {
        (Some(only), None) => only,
        (None, _) => {
            let what = format!("no resource fits the source {whole}");
            return Err(Fault::new(what, "correct the source"));
        }
        (Some(_), Some(_)) => {
            let what = format!("more than one resource fits the source {whole}");
            return Err(Fault::new(what, "name one by kind, name and namespace"));
        }
    };
    let path = or_default(&source.field_path);
    let is_empty = |it: &&Value| match it {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let found = look_up(&resource.value, &parts(path)?).filter(|it| !is_empty(it));
    let Some(value) = found else {
        let what = format!("the source {whole} has no field {path}");
        return Err(Fault::new(what, "correct `fieldPath`"));
    };
    part_of(value, &source.options)
}

fn or_default(path: &str) -> &str {
    if path.is_empty() { NAME_FIELD } else { path }
}

fn part_of(value: &Value, options: &Options) -> Result<Value, Fault> {
    if options.delimiter.is_empty() {
        return Ok(value.clone());
    }
    let text = scalar_text(value).ok_or_else(no_text)?;
    let part = usize::try_from(options.index).ok();
    let Some(part) = part.and_then(|index| text.split(&options.delimiter).nth(index)) else {
        let what = format!("{text:?} has no part {}", options.index);
        return Err(Fault::new(what, "correct `index` or `delimiter`"));
    };
    Ok(if value.is_string() { Value::String(part.to_owned()) } else { plain_scalar(part) })
}

fn no_text() -> Fault {
    Fault::new("a list or a map has no parts", "remove `delimiter`, or name a text")
}

fn write(resources: &mut Resources, target: &Target, value: &Value) -> Result<(), Fault> {
    let Some(select) = &target.select else {
        return Err(Fault::new("a target selects nothing", "add `select`"));
    };
    let selected = Matcher::new(select)?;
    let rejected: Vec<(Matcher, bool, bool)> = target
        .reject
        .iter()
        .map(|it| {
            let by_metadata = !it.label_selector.is_empty() || !it.annotation_selector.is_empty();
            let only_metadata = Selector {
                label_selector: String::new(),
                annotation_selector: String::new(),
                ..it.clone()
            } == Selector::default();
            Ok((Matcher::new(it)?, by_metadata, !only_metadata))
        })
        .collect::<Result<_, Fault>>()?;
    let all = [NAME_FIELD.to_owned()];
    let paths = if target.field_paths.is_empty() { &all[..] } else { &target.field_paths };
    for resource in &mut resources.0 {
        let identities = resource.identities();
        let is_rejected = rejected.iter().any(|(matcher, by_metadata, by_identity)| {
            (*by_metadata && matcher.fits_metadata(resource))
                || (*by_identity && identities.iter().any(|it| matcher.fits_identity(it)))
        });
        let is_selected = selected.fits_metadata(resource)
            && identities.iter().any(|it| selected.fits_identity(it));
        if !is_selected || is_rejected {
            continue;
        }
        let identity = resource.identity();
        for path in paths {
            write_field(&mut resource.value, path, value, &target.options).map_err(|fault| {
                Fault { what: format!("{identity}: {path}: {}", fault.what), ..fault }
            })?;
        }
    }
    Ok(())
}

fn write_field(
    resource: &mut Value,
    path: &str,
    value: &Value,
    options: &Options,
) -> Result<(), Fault> {
    let parts = parts(path)?;
    let mut written = 0;
    let size = measure(value);
    if size.depth + parts.len() > VALUE_DEPTH_MAX {
        let what = format!("the result is nested more than {VALUE_DEPTH_MAX} levels deep");
        return Err(Fault::new(what, "nest less"));
    }
    visit(resource, &parts, options.create.then_some(value), &mut |field| {
        written += size.nodes;
        if written > COPIED_NODES_MAX {
            let what = format!("a replacement copies more than {COPIED_NODES_MAX} values");
            return Err(Fault::new(what, "copy less"));
        }
        set(field, value, options)
    })?;
    if written == 0 {
        return Err(Fault::new(
            "there is no such field",
            "correct the path, or set `create: true`",
        ));
    }
    Ok(())
}

fn set(field: &mut Value, value: &Value, options: &Options) -> Result<(), Fault> {
    let Some(mut text) = scalar_text(value) else {
        if !options.delimiter.is_empty() {
            return Err(no_text());
        }
        *field = value.clone();
        return Ok(());
    };
    if !options.delimiter.is_empty() {
        if field.is_array() || field.is_object() {
            return Err(no_text());
        }
        let old = scalar_text(field).unwrap_or_default();
        let mut all: Vec<&str> = old.split(&options.delimiter).collect();
        match usize::try_from(options.index) {
            Err(_) => all.insert(0, &text),
            Ok(index) if index >= all.len() => all.push(&text),
            Ok(index) => all[index] = &text,
        }
        text = all.join(&options.delimiter);
    }
    if text.len() > TEXT_SIZE_MAX_BYTES {
        let what = format!("the text is longer than {TEXT_SIZE_MAX_BYTES} bytes");
        return Err(Fault::new(what, "write less"));
    }
    *field = match field {
        Value::String(_) => Value::String(text),
        Value::Array(_) | Value::Object(_) => value.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) => plain_scalar(&text),
    };
    Ok(())
}

/// The parts of a path; what is in brackets is one part, without them unless it finds an element.
fn parts(path: &str) -> Result<Vec<String>, Fault> {
    let mut parts: Vec<String> = Vec::new();
    let mut open: Option<String> = None;
    for part in split_at(path, '.') {
        let whole = match open.take() {
            Some(before) => format!("{before}.{part}"),
            None => part,
        };
        if whole.starts_with('[') && !whole.ends_with(']') {
            open = Some(whole);
            continue;
        }
        parts.push(unbracketed(whole));
    }
    parts.extend(open.map(unbracketed));
    if parts.len() > PATH_PARTS_MAX {
        let what = format!("a path has more than {PATH_PARTS_MAX} parts");
        return Err(Fault::new(what, "write a shorter path"));
    }
    Ok(parts)
}

fn unbracketed(part: String) -> String {
    let is_key = part.starts_with('[') && part.contains('.') && !part.contains('=');
    if is_key { part.trim_matches(['[', ']']).to_owned() } else { part }
}

/// What one part of a path means.
enum Part<'a> {
    Field(&'a str),
    Index(usize),
    Every,
    Element(&'a str, &'a str),
}

impl<'a> Part<'a> {
    fn of(part: &'a str) -> Self {
        if part == "*" {
            return Self::Every;
        }
        if let Ok(index) = part.parse() {
            return Self::Index(index);
        }
        let inner = part.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        match inner.and_then(|it| it.split_once('=')) {
            Some((key, text)) => Self::Element(key, text),
            None => Self::Field(part),
        }
    }
}

/// The value that a source's path leads to.
fn look_up<'a>(value: &'a Value, parts: &[String]) -> Option<&'a Value> {
    parts.iter().try_fold(value, |value, part| match Part::of(part) {
        Part::Field("-") => value.as_array()?.last(),
        Part::Field(name) => value.get(name),
        Part::Index(index) => match value {
            Value::Object(map) => map.get(part),
            value => value.get(index),
        },
        Part::Every => None,
        Part::Element(key, text) => {
            let is_it = |it: &&Value| element_text(it, key).is_some_and(|it| it == text);
            value.as_array()?.iter().find(is_it)
        }
    })
}

/// The text by which an element is found: that of a field, or its own.
fn element_text(element: &Value, key: &str) -> Option<String> {
    if key.is_empty() { scalar_text(element) } else { element.get(key).and_then(scalar_text) }
}

/// Calls `write` for each field that a target's path means. `made` is given if missing fields are
/// made for it.
fn visit(
    value: &mut Value,
    parts: &[String],
    made: Option<&Value>,
    write: &mut dyn FnMut(&mut Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some((part, rest)) = parts.split_first() else { return write(value) };
    let wrong = |expected: &str| {
        Err(Fault::new(format!("{expected} is expected at `{part}`"), "correct the path"))
    };
    match Part::of(part) {
        Part::Field(name) => {
            let Value::Object(map) = value else { return wrong("a map") };
            if let Some(made) = made {
                map.entry(name).or_insert_with(|| empty_for(rest, made));
            }
            match map.get_mut(name) {
                Some(child) => visit(child, rest, made, write),
                None => Ok(()),
            }
        }
        Part::Every => {
            let Value::Array(items) = value else { return wrong("a list") };
            items.iter_mut().try_for_each(|it| visit(it, rest, made, write))
        }
        Part::Index(index) => {
            let Value::Array(items) = value else { return wrong("a list") };
            if let Some(made) = made.filter(|_| items.len() == index) {
                items.push(empty_for(rest, made));
            }
            let length = items.len();
            match items.get_mut(index) {
                Some(child) => visit(child, rest, made, write),
                None => {
                    Err(Fault::new(format!("the list has {length} elements"), "correct the path"))
                }
            }
        }
        Part::Element(key, text) => {
            let Value::Array(items) = value else { return wrong("a list") };
            visit_elements(items, (key, text), rest, made, write)
        }
    }
}

fn visit_elements(
    items: &mut Vec<Value>,
    (key, text): (&str, &str),
    rest: &[String],
    made: Option<&Value>,
    write: &mut dyn FnMut(&mut Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let pattern = regex(text)?;
    let fits = |it: &Value| element_text(it, key).is_some_and(|it| pattern.is_match(&it));
    if made.is_some() && !items.iter().any(fits) {
        items.push(match key {
            "" => plain_scalar(text),
            key => Value::Object(Map::from_iter([(key.to_owned(), plain_scalar(text))])),
        });
    }
    // A scalar that is found is itself the field.
    let rest = if key.is_empty() { &[] } else { rest };
    items.iter_mut().filter(|it| fits(it)).try_for_each(|it| visit(it, rest, made, write))
}

/// What a missing field is made of, so that the rest of the path fits.
fn empty_for(rest: &[String], made: &Value) -> Value {
    match rest.first().map(|it| Part::of(it)) {
        None => match made {
            Value::Array(_) => Value::Array(Vec::new()),
            Value::Object(_) => Value::Object(Map::new()),
            _ => Value::Null,
        },
        Some(Part::Field(_)) => Value::Object(Map::new()),
        Some(_) => Value::Array(Vec::new()),
    }
}

impl Replacement {
    /// The option that kustomize reads and nobody obeys.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let of_source = self.source.iter().map(|it| &it.options);
        let of_targets = self.targets.iter().flatten().map(|it| &it.options);
        if of_source.chain(of_targets).any(|it| !it.encoding.is_empty()) {
            return Err(Fault::unsupported("the option `encoding` is not followed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(path: &str, options: &str, before: Value, expected: Result<Value, &str>) {
        let options: Options = serde_saphyr::from_str(options).expect("options");
        let mut value = before;
        let done = write_field(&mut value, path, &json!("8080"), &options);
        match expected {
            Ok(expected) => {
                done.expect(path);
                assert_eq!(value, expected, "{path}");
            }
            Err(what) => assert_eq!(done.expect_err(path).what, what),
        }
    }

    #[test]
    fn paths_lead_to_fields_elements_and_parts() {
        check("a.b", "{}", json!({"a": {"b": "x"}}), Ok(json!({"a": {"b": "8080"}})));
        check("a.b", "{}", json!({"a": {"b": 1}}), Ok(json!({"a": {"b": 8080}})));
        check("a.[x.y/z]", "{}", json!({"a": {"x.y/z": ""}}), Ok(json!({"a": {"x.y/z": "8080"}})));
        let list =
            || json!({"l": [{"n": "a", "v": "1"}, {"n": "ab", "v": "2"}, {"n": "c", "v": "3"}]});
        let of = |a: &str, b: &str, c: &str| {
            let element = |n: &str, v: &str| json!({"n": n, "v": v});
            json!({"l": [element("a", a), element("ab", b), element("c", c)]})
        };
        check("l.[n=a].v", "{}", list(), Ok(of("8080", "8080", "3")));
        check("l.*.v", "{}", list(), Ok(of("8080", "8080", "8080")));
        check("l.1.v", "{}", list(), Ok(of("1", "8080", "3")));
        check("l.9.v", "{}", list(), Err("the list has 3 elements"));
        check("l.v", "{}", list(), Err("a map is expected at `v`"));
        check("x", "{}", list(), Err("there is no such field"));
    }

    #[test]
    fn options_create_fields_and_replace_parts() {
        check("a.b", "{create: true}", json!({}), Ok(json!({"a": {"b": 8080}})));
        check("a.[n=x].v", "{create: true}", json!({}), Ok(json!({"a": [{"n": "x", "v": 8080}]})));
        for (index, expected) in [(1, "h:8080"), (-1, "8080:h:1"), (5, "h:1:8080")] {
            let options = format!("{{delimiter: ':', index: {index}}}");
            check("a", &options, json!({"a": "h:1"}), Ok(json!({"a": expected})));
        }
    }
}
