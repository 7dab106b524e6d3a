//! Patches: which resources they are for, and what they change.
//!
//! A patch is a list of operations (JSON 6902) if its text is a list, and else a strategic merge.

mod json6902;
mod server;
mod shapes;
mod strategic;
mod three_way;

use serde::Deserialize;
use serde_json::Value;

pub use self::shapes::Mergeable;

use self::json6902::Operation;
use crate::error::{Fault, PatchError};
use crate::identity::{Identity, scalar_text, text_at};
use crate::limits::RESOURCES_MAX;
use crate::resource::{Resource, Resources};
use crate::selector::{Matcher, Selector};

/// One entry of `patches` or `patchesJson6902`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PatchEntry {
    pub(crate) path: String,
    pub(crate) patch: String,
    pub(crate) target: Option<Selector>,
    pub(crate) options: Option<PatchOptions>,
}

/// What a strategic merge may change besides.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PatchOptions {
    allow_name_change: bool,
    allow_kind_change: bool,
}

/// A patch that was read.
#[derive(Debug)]
pub(crate) enum Patch {
    /// Parts of objects.
    Strategic(Vec<Value>),
    /// Operations.
    Operations(Vec<Operation>),
}

/// Reads a patch from the documents of its text.
pub(crate) fn read(documents: Vec<Value>) -> Result<Patch, Fault> {
    match documents.as_slice() {
        [list @ Value::Array(_)] => json6902::read(list).map(Patch::Operations),
        _ => objects(documents).map(Patch::Strategic),
    }
}

/// The objects of documents; `List`s are written out behind the others.
pub(crate) fn objects(documents: Vec<Value>) -> Result<Vec<Value>, Fault> {
    let mut documents = documents;
    if let [only] = documents.as_mut_slice()
        && matches!(only["kind"].as_str(), Some("List" | "ResourceList"))
        && let Some(Value::Array(items)) = only.get_mut("items").map(Value::take)
    {
        documents = items;
    }
    let mut objects = Vec::new();
    let mut ahead: std::collections::VecDeque<Value> = documents.into();
    while let Some(mut value) = ahead.pop_front() {
        let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty);
        if value.is_null() || is_empty {
            continue;
        }
        let Some(kind) = text_at(&value, &["kind"]).filter(|it| !it.is_empty()) else {
            return Err(Fault::new("an object has no `kind`", "add apiVersion, kind and metadata"));
        };
        let is_list = kind.ends_with("List");
        match value.get_mut("items").filter(|_| is_list).map(Value::take) {
            Some(Value::Array(items)) => ahead.extend(items),
            Some(Value::Null) => {}
            Some(_) => {
                return Err(Fault::new(
                    format!("the items of a {kind} are no list"),
                    "write a list",
                ));
            }
            None if is_list
                || text_at(&value, &["metadata", "name"]).is_some_and(|it| !it.is_empty()) =>
            {
                objects.push(value);
            }
            None => {
                return Err(Fault::new(format!("a {kind} has no `metadata.name`"), "add the name"));
            }
        }
        if objects.len() > RESOURCES_MAX {
            return Err(Fault::new(format!("more than {RESOURCES_MAX} objects"), "split the file"));
        }
    }
    Ok(objects)
}

/// Applies a JSON patch (RFC 6902) to an object.
///
/// # Errors
/// What is wrong with the patch, or what of it does not fit the object.
pub fn json_patch(mut object: Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = json6902::read(patch)?;
    json6902::apply(&mut object, &operations)?;
    Ok(object)
}

/// Merges a strategic merge patch into an object, as an API server does.
///
/// # Errors
/// What is wrong with the patch, or what of it does not fit the object.
pub fn strategic_merge(object: Value, patch: Value) -> Result<Value, PatchError> {
    Ok(server::merge(object, patch)?)
}

/// Makes of an object what `kubectl apply` makes of it: fields that a manifest names are as it
/// says, fields that only the manifest before it names are gone, and all others stay.
///
/// # Errors
/// What of the manifest does not fit the object.
pub fn three_way_merge(
    last: Option<&Value>,
    wanted: &Value,
    live: Value,
) -> Result<Value, PatchError> {
    let patch = three_way::patch(last, wanted, &live);
    Ok(server::merge(live, patch)?)
}

/// A manifest without its values: for [`three_way_merge`] it says as the last manifest the same as
/// the whole one, and it is short.
pub fn outline(manifest: &Value) -> Value {
    three_way::outline(manifest)
}

/// Whether a kind takes such a patch: in Kubernetes, kinds of extensions do not.
pub fn takes_strategic_merge(api_version: &str, kind: &str) -> bool {
    server::is_known(api_version, kind)
}

/// Applies an entry of `patches`.
pub(crate) fn apply(
    resources: &mut Resources,
    patch: Patch,
    target: Option<&Selector>,
    options: PatchOptions,
) -> Result<(), Fault> {
    match (patch, target) {
        (Patch::Operations(operations), Some(target)) => {
            apply_operations(resources, &operations, target, true)
        }
        (Patch::Operations(_), None) => {
            Err(Fault::new("a JSON patch has no target", "add `target` with kind and name"))
        }
        (Patch::Strategic(patches), None) => {
            patches.into_iter().try_for_each(|patch| merge_named(resources, patch, options))
        }
        (Patch::Strategic(mut patches), Some(target)) => {
            if patches.len() > 1 {
                let what = "several patches in one entry with a target";
                return Err(Fault::new(what, "write one entry for each patch"));
            }
            let Some(patch) = patches.pop() else { return Ok(()) };
            merge_selected(resources, &patch, target, options)
        }
    }
}

/// Applies operations to the resources that the target selects. `keeps_names` is whether their
/// former names are kept, so that references follow a name that is changed.
pub(crate) fn apply_operations(
    resources: &mut Resources,
    operations: &[Operation],
    target: &Selector,
    keeps_names: bool,
) -> Result<(), Fault> {
    let matcher = Matcher::new(target)?;
    for resource in resources.0.iter_mut().filter(|it| matcher.fits(it)) {
        let name = resource.identity();
        if keeps_names {
            resource.remember_identity();
        }
        resource.shared.clear();
        json6902::apply(&mut resource.value, operations).map_err(|fault| of(&name, fault))?;
    }
    Ok(())
}

/// Merges a patch of `patchesStrategicMerge` into the one resource that it names.
pub(crate) fn merge_old(resources: &mut Resources, mut patch: Value) -> Result<(), Fault> {
    make_texts(&mut patch)?;
    merge_named(resources, patch, PatchOptions::default())
}

/// Merges a patch into the one resource that it names.
fn merge_named(
    resources: &mut Resources,
    patch: Value,
    options: PatchOptions,
) -> Result<(), Fault> {
    let index = resources.position(&Identity::of(&patch))?;
    let is_kept = merge(&mut resources.0[index], patch, options)?;
    if !is_kept {
        resources.0.remove(index);
    }
    Ok(())
}

fn merge_selected(
    resources: &mut Resources,
    patch: &Value,
    target: &Selector,
    options: PatchOptions,
) -> Result<(), Fault> {
    let matcher = Matcher::new(target)?;
    let mut patch = patch.clone();
    make_texts(&mut patch)?;
    let mut kept = Vec::with_capacity(resources.0.len());
    for mut resource in std::mem::take(&mut resources.0) {
        let is_kept = if matcher.fits(&resource) {
            let mut patch = patch.clone();
            patch["apiVersion"] = resource.value["apiVersion"].clone();
            merge(&mut resource, patch, options)?
        } else {
            true
        };
        kept.extend(is_kept.then_some(resource));
    }
    resources.append(kept)
}

/// kustomize makes texts of the labels and annotations of such a patch. It would make the text
/// `null` of a null, where everybody means that the entry goes: that is an error here.
fn make_texts(patch: &mut Value) -> Result<(), Fault> {
    let Some(metadata) = patch.get_mut("metadata") else { return Ok(()) };
    for field in ["labels", "annotations"] {
        let entries = metadata.get_mut(field).and_then(Value::as_object_mut);
        for (key, value) in entries.into_iter().flatten() {
            if value.is_null() {
                let what = format!("kustomize does not remove {key} from {field} in such a patch");
                return Err(Fault::new(what, "remove it with a JSON patch"));
            }
            if let Some(text) = scalar_text(value) {
                *value = Value::String(text);
            }
        }
    }
    Ok(())
}

/// Merges a patch into a resource; says whether the resource is still there.
fn merge(resource: &mut Resource, patch: Value, options: PatchOptions) -> Result<bool, Fault> {
    let name = resource.identity();
    if options.allow_name_change || options.allow_kind_change {
        resource.remember_identity();
    }
    let before = (!resource.shared.is_empty()).then(|| resource.value.clone());
    let merged = strategic::merge(resource.value.take(), patch).map_err(|it| of(&name, it))?;
    let Some(value) = merged else { return Ok(false) };
    resource.value = value;
    if let Some(before) = before {
        resource.follow_shared(&before)?;
    }
    if !options.allow_kind_change {
        resource.value["kind"] = Value::String(name.gvk.kind.clone());
    }
    if !options.allow_name_change {
        resource.set_metadata("name", &name.name);
    }
    resource.set_metadata("namespace", &name.namespace);
    Ok(true)
}

fn of(name: &Identity, fault: Fault) -> Fault {
    Fault { what: format!("{name}: {}", fault.what), ..fault }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn resources() -> Resources {
        let of = |kind: &str, name: &str| {
            let value = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
            Resource::new(value, Path::new("x.yaml"))
        };
        Resources(vec![of("Pod", "a"), of("Pod", "b"), of("Secret", "a")])
    }

    fn check(text: &str, target: Option<&str>, expected: Result<&[&str], &str>) {
        let mut resources = resources();
        let target = target.map(|name| Selector { name: name.to_owned(), ..Selector::default() });
        let documents = crate::yaml::documents(text).expect("YAML");
        let options = PatchOptions { allow_name_change: true, allow_kind_change: false };
        let done =
            read(documents).and_then(|it| apply(&mut resources, it, target.as_ref(), options));
        let names = |resources: &Resources| -> Vec<String> {
            resources.0.iter().map(|it| it.identity().to_string()).collect()
        };
        match expected {
            Ok(expected) => {
                done.expect(text);
                assert_eq!(names(&resources), expected, "{text}");
            }
            Err(what) => assert_eq!(done.expect_err(text).what, what),
        }
    }

    #[test]
    fn a_patch_is_for_the_resource_it_names_or_for_its_targets() {
        let pod =
            |more: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, {more}}}");
        check(&pod("$patch: delete"), None, Ok(&["v1 Pod b", "v1 Secret a"]));
        check(&pod("$patch: delete"), Some(".*"), Ok(&[]));
        let renamed = "[{op: replace, path: /metadata/name, value: c}]";
        check(renamed, Some("b"), Ok(&["v1 Pod a", "v1 Pod c", "v1 Secret a"]));
        check(renamed, None, Err("a JSON patch has no target"));
        let label = "{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {l: null}}}";
        check(label, None, Ok(&["v1 Pod a", "v1 Pod b", "v1 Secret a"]));
        let fault = "kustomize does not remove l from labels in such a patch";
        check(label, Some("a"), Err(fault));
        check("# nothing", None, Ok(&["v1 Pod a", "v1 Pod b", "v1 Secret a"]));
        let absent = "{apiVersion: v1, kind: Pod, metadata: {name: z}}";
        check(absent, None, Err("no resource is called v1 Pod z"));
        check("{kind: Pod}", None, Err("a Pod has no `metadata.name`"));
    }
}
