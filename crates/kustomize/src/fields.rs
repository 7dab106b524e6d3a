//! Paths to the fields that a step changes, and the walk along them.
//!
//! A path has no marks for lists: a list on the way means each of its elements. `[]` behind a part
//! says that the field is a list, so it is never made.

mod defaults;

use serde::Deserialize;
use serde_json::{Map, Value};

pub(crate) use self::defaults::defaults;
use crate::error::Fault;
use crate::identity::Gvk;
use crate::kinds::is_before;
use crate::limits::PATH_PARTS_MAX;

/// A field of certain kinds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FieldSpec {
    /// The API group; empty for all.
    pub(crate) group: String,
    /// The version; empty for all.
    pub(crate) version: String,
    /// The kind; empty for all.
    pub(crate) kind: String,
    /// The fields on the way, with `/` between them.
    pub(crate) path: String,
    /// Whether it is made where it is missing.
    pub(crate) create: bool,
}

impl FieldSpec {
    /// A field of all kinds.
    pub(crate) fn any(path: &str, create: bool) -> Self {
        Self { path: path.to_owned(), create, ..Self::default() }
    }

    /// The kinds that have it.
    pub(crate) fn gvk(&self) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }
}

/// Fields that hold the name of a resource of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NameReference {
    /// The group of what is named.
    pub(crate) group: String,
    /// The version of what is named.
    pub(crate) version: String,
    /// The kind of what is named.
    pub(crate) kind: String,
    /// Where its name stands.
    #[serde(rename = "fieldSpecs")]
    pub(crate) fields: Vec<FieldSpec>,
}

impl NameReference {
    /// What is named.
    pub(crate) fn gvk(&self) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }
}

/// Which fields each step changes: kustomize's own, and those that `configurations` adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct FieldTable {
    /// Fields that take `namePrefix`.
    pub(crate) name_prefix: Vec<FieldSpec>,
    /// Fields that take `nameSuffix`.
    pub(crate) name_suffix: Vec<FieldSpec>,
    /// Fields that take `namespace`.
    pub(crate) namespace: Vec<FieldSpec>,
    /// Fields that take `commonLabels`.
    pub(crate) common_labels: Vec<FieldSpec>,
    /// Fields that take all `labels`.
    pub(crate) labels: Vec<FieldSpec>,
    /// Fields that take `labels` with `includeTemplates`.
    pub(crate) template_labels: Vec<FieldSpec>,
    /// Fields that take `labels` with `includeVolumeClaimTemplates`.
    pub(crate) volume_claim_template_labels: Vec<FieldSpec>,
    /// Fields that take `commonAnnotations`.
    pub(crate) common_annotations: Vec<FieldSpec>,
    /// Fields that hold names.
    pub(crate) name_reference: Vec<NameReference>,
    /// Fields in which variables are replaced.
    pub(crate) var_reference: Vec<FieldSpec>,
    /// Fields that hold images.
    pub(crate) images: Vec<FieldSpec>,
    /// Fields that hold a number of replicas.
    pub(crate) replicas: Vec<FieldSpec>,
}

impl FieldTable {
    /// Adds another table's fields.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), Fault> {
        // Most kustomizations have no fields of their own: all tables are the same.
        if self == other {
            return Ok(());
        }
        for (into, from) in [
            (&mut self.name_prefix, &other.name_prefix),
            (&mut self.name_suffix, &other.name_suffix),
            (&mut self.namespace, &other.namespace),
            (&mut self.common_labels, &other.common_labels),
            (&mut self.labels, &other.labels),
            (&mut self.template_labels, &other.template_labels),
            (&mut self.volume_claim_template_labels, &other.volume_claim_template_labels),
            (&mut self.common_annotations, &other.common_annotations),
            (&mut self.var_reference, &other.var_reference),
            (&mut self.images, &other.images),
            (&mut self.replicas, &other.replicas),
        ] {
            merge_fields(into, from)?;
            into.sort_by(|one, other| is_before(&one.gvk(), &other.gvk()));
        }
        for reference in &other.name_reference {
            match self.name_reference.iter_mut().find(|it| it.gvk() == reference.gvk()) {
                Some(known) => merge_fields(&mut known.fields, &reference.fields)?,
                None => self.name_reference.push(reference.clone()),
            }
        }
        self.name_reference.sort_by(|one, other| is_before(&one.gvk(), &other.gvk()));
        Ok(())
    }
}

/// Adds the fields that are not known yet.
pub(crate) fn merge_fields(into: &mut Vec<FieldSpec>, more: &[FieldSpec]) -> Result<(), Fault> {
    for field in more {
        let is_same =
            |known: &&FieldSpec| known.path == field.path && known.gvk().is_selected(&field.gvk());
        match into.iter().find(is_same) {
            Some(known) if known.create != field.create => {
                let what = format!("the field {} is listed with and without `create`", field.path);
                return Err(Fault::new(what, "use the same `create` in both places"));
            }
            Some(_) => {}
            None => into.push(field.clone()),
        }
    }
    Ok(())
}

/// What is made of a field that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Nothing.
    Skip,
    /// An empty map, if the field says so.
    Map,
    /// An empty text, if the field says so.
    Text,
}

/// Calls `change` for each value that the field means in a resource of one of its kinds.
pub(crate) fn change_field(
    resource: &mut Value,
    field: &FieldSpec,
    missing: Missing,
    change: &mut dyn FnMut(&mut Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if !Gvk::of(resource).is_selected(&field.gvk()) {
        return Ok(());
    }
    let parts = split(&field.path);
    if parts.len() > PATH_PARTS_MAX || parts.iter().any(String::is_empty) {
        let what =
            format!("the path {:?} is empty or has more than {PATH_PARTS_MAX} parts", field.path);
        return Err(Fault::new(what, "write the fields with / between them"));
    }
    let missing = if field.create { missing } else { Missing::Skip };
    walk(resource, &parts, missing, change)
        .map_err(|fault| Fault { what: format!("{}: {}", field.path, fault.what), ..fault })
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    /// Whether a map got the entry that did not have it.
    pub(crate) is_new: bool,
    /// Whether a map had it before.
    pub(crate) is_changed: bool,
}

/// Puts an entry into the map that a field means.
pub(crate) fn set_entry(
    resource: &mut Value,
    field: &FieldSpec,
    key: &str,
    text: &str,
) -> Result<Entered, Fault> {
    let mut entered = Entered::default();
    change_field(resource, field, Missing::Map, &mut |value| match value {
        Value::Object(map) => {
            match map.insert(key.to_owned(), Value::String(text.to_owned())) {
                None => entered.is_new = true,
                Some(_) => entered.is_changed = true,
            }
            Ok(())
        }
        Value::Null => Ok(()),
        _ => Err(Fault::new("the field is no map", "correct the resource")),
    })?;
    Ok(entered)
}

/// The first value that a key has in the maps that a field means.
pub(crate) fn entry_of<'a>(resource: &'a Value, field: &FieldSpec, key: &str) -> Option<&'a Value> {
    let is_of = Gvk::of(resource).is_selected(&field.gvk());
    is_of.then(|| first_entry(resource, &split(&field.path), key)).flatten()
}

fn first_entry<'a>(value: &'a Value, parts: &[String], key: &str) -> Option<&'a Value> {
    match (value, parts.split_first()) {
        (Value::Array(items), _) => items.iter().find_map(|item| first_entry(item, parts, key)),
        (value, None) => value.get(key),
        (value, Some((part, rest))) => {
            first_entry(value.get(part.trim_end_matches("[]"))?, rest, key)
        }
    }
}

fn walk(
    value: &mut Value,
    parts: &[String],
    missing: Missing,
    change: &mut dyn FnMut(&mut Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some((part, rest)) = parts.split_first() else { return change(value) };
    match value {
        Value::Null => Ok(()),
        Value::Array(items) => {
            items.iter_mut().try_for_each(|item| walk(item, parts, missing, change))
        }
        Value::Object(map) => {
            let (name, is_list) = match part.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (part.as_str(), false),
            };
            let makes = missing != Missing::Skip && !is_list;
            if makes && map.get(name).is_none_or(Value::is_null) {
                let is_text = rest.is_empty() && missing == Missing::Text;
                let made = if is_text { Value::from("") } else { Value::Object(Map::new()) };
                map.insert(name.to_owned(), made);
            }
            match map.get_mut(name) {
                Some(Value::Null) | None => Ok(()),
                Some(child) => walk(child, rest, missing, change),
            }
        }
        _ => Err(Fault::new(
            format!("a list or a map is expected above `{part}`"),
            "correct the resource",
        )),
    }
}

/// The parts of a path; `\/` is no end of a part.
pub(crate) fn split(path: &str) -> Vec<String> {
    split_at(path, '/')
}

/// The parts of a path with any character between them.
pub(crate) fn split_at(path: &str, between: char) -> Vec<String> {
    let path = path.strip_prefix(between).unwrap_or(path);
    let mut parts: Vec<String> = Vec::new();
    let mut goes_on = false;
    for part in path.split(between) {
        let (text, ends_open) = match part.strip_suffix('\\') {
            Some(text) => (text, true),
            None => (part, false),
        };
        match parts.last_mut().filter(|_| goes_on) {
            Some(last) => {
                last.push(between);
                last.push_str(text);
            }
            None => parts.push(text.to_owned()),
        }
        goes_on = ends_open;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(path: &str, create: bool, before: Value, after: Value) {
        let mut value = before;
        set_entry(&mut value, &FieldSpec::any(path, create), "k", "v").expect(path);
        assert_eq!(value, after);
    }

    #[test]
    fn entries_are_put_where_the_path_leads() {
        check("a/b", true, json!({}), json!({"a": {"b": {"k": "v"}}}));
        check("a/b", false, json!({}), json!({}));
        check("a/b", true, json!({"a": {"b": null}}), json!({"a": {"b": {"k": "v"}}}));
        check(
            "a/b",
            false,
            json!({"a": [{"b": {"k": "1"}}, {}, null]}),
            json!({"a": [{"b": {"k": "v"}}, {}, null]}),
        );
        check("a[]/b", true, json!({}), json!({}));
        check("a[]/b", true, json!({"a": [{}]}), json!({"a": [{"b": {"k": "v"}}]}));
    }

    #[test]
    fn a_scalar_on_the_way_is_an_error() {
        let fault = set_entry(&mut json!({"a": 1}), &FieldSpec::any("a/b", true), "k", "v");
        assert_eq!(fault.expect_err("a scalar").what, "a/b: a list or a map is expected above `b`");
    }

    #[test]
    fn an_escaped_slash_is_part_of_a_name() {
        assert_eq!(split("metadata/annotations/a.io\\/b"), ["metadata", "annotations", "a.io/b"]);
        assert_eq!(split("/a/b"), ["a", "b"]);
        assert_eq!(split_at("a.b\\.c", '.'), ["a", "b.c"]);
    }

    #[test]
    fn kustomizes_own_fields_are_complete() {
        let table = defaults();
        assert_eq!(table.name_reference.len(), 16);
        let config_map = table.name_reference.iter().find(|it| it.kind == "ConfigMap");
        assert_eq!(config_map.map(|it| it.fields.len()), Some(52));
    }

    #[test]
    fn a_field_with_and_without_create_is_an_error() {
        let mut table = defaults();
        let mut other = FieldTable::default();
        other.common_labels.push(FieldSpec::any("metadata/labels", false));
        assert!(table.merge(&other).is_err());
    }
}
