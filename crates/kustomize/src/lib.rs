//! Builds a kustomization directory as kustomize (version 5) does: the resources of its files,
//! changed as its fields say.
//!
//! It is a library of data: it reads files in and below the directory, and opens no connection and
//! starts no program. What it does not do (remote bases, charts, plugins) is one clear error that
//! says how to do it with kustomize itself.
//!
//! Who has an object and a patch of it, as an API server has, finds here how they are put together.

mod accumulate;
mod disk;
mod error;
mod fields;
mod generate;
mod identity;
mod images;
mod kinds;
mod kustomization;
mod labels;
mod limits;
mod measure;
mod names;
mod namespace;
mod order;
mod patch;
mod references;
mod replacements;
mod replicas;
mod resource;
mod selector;
mod transformer;
mod variables;
mod yaml;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use self::error::{KustomizeError, PatchError};
pub use self::patch::{
    Mergeable, json_patch, outline, strategic_merge, takes_strategic_merge, three_way_merge,
};

use self::accumulate::Builder;
use self::disk::Spent;
use self::resource::Resource;

/// Resources with this annotation are for tools alone and no part of a build.
const LOCAL_CONFIG: &str = "config.kubernetes.io/local-config";

/// Larger numbers have no exact place in a float.
const WHOLE_MAX: f64 = 9e15;

/// What a kustomization makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Build {
    /// The resources, in kustomize's order.
    pub resources: Vec<BuiltResource>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// One resource of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct BuiltResource {
    /// The resource.
    pub value: Value,
    /// The file that it came from; for a generated one, the kustomization file.
    pub origin: PathBuf,
}

/// Whether the directory has a kustomization file.
pub fn is_kustomization(directory: &Path) -> bool {
    !disk::kustomizations(directory).is_empty()
}

/// Whether a file is called as kustomizations are.
pub fn is_kustomization_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| disk::NAMES.iter().any(|it| name == *it))
}

/// Builds a directory as `kubectl kustomize DIRECTORY` does.
pub fn build(directory: &Path) -> Result<Build, KustomizeError> {
    let spent = Spent::default();
    let builder = Builder {
        asked: directory,
        warnings: Vec::new().into(),
        sort_options: None.into(),
        spent: &spent,
    };
    let mut collected = builder.collect()?;
    let resources = &mut collected.resources;
    let file = || {
        let name = disk::kustomizations(directory).first().copied().unwrap_or_default();
        directory.join(name)
    };
    names::add_hashes(resources);
    references::follow(resources, &collected.table.name_reference)
        .map_err(|it| it.at(&file(), "name reference", directory))?;
    variables::resolve(resources, &collected.variables, &collected.table.var_reference)
        .map_err(|it| it.at(&file(), "vars", directory))?;
    resources.0.retain(|it| !is_local(it));
    let sort_options = builder.sort_options.take();
    order::sort(resources, sort_options.as_ref())
        .map_err(|it| it.at(&file(), "sortOptions", directory))?;
    let resources = collected.resources.0.into_iter().map(built).collect();
    Ok(Build { resources, warnings: builder.warnings.take() })
}

fn is_local(resource: &Resource) -> bool {
    let annotations = resource.metadata_texts("annotations");
    annotations.iter().any(|(key, text)| key == LOCAL_CONFIG && text != "false")
}

/// kustomize writes all annotations as texts, and no empty map of them.
fn built(resource: Resource) -> BuiltResource {
    let texts = resource.metadata_texts("annotations");
    let Resource { mut value, origin, .. } = resource;
    write_whole_numbers(&mut value);
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        let texts = texts.into_iter().map(|(key, text)| (key, Value::String(text)));
        let annotations: Map<String, Value> = texts.collect();
        if annotations.is_empty() {
            metadata.remove("annotations");
        } else {
            metadata.insert("annotations".to_owned(), Value::Object(annotations));
        }
    }
    BuiltResource { value, origin }
}

/// kustomize writes 1.0 as 1.
fn write_whole_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Value::Object(map) => map.values_mut().for_each(write_whole_numbers),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < WHOLE_MAX);
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        _ => {}
    }
}
