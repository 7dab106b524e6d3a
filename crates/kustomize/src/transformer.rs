//! The built-in transformers that a kustomization can list by hand under `transformers`.
//!
//! Each is one of the steps that fields of a kustomization ask for, with fields of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Fault;
use crate::fields::FieldSpec;
use crate::identity::text_at;
use crate::images::{Image, set_images};
use crate::kustomization::ReplacementEntry;
use crate::labels::add_entries;
use crate::names::{Affix, affix};
use crate::namespace::{NamespaceOptions, Subjects, set_namespace};
use crate::patch::PatchEntry;
use crate::replicas::{Replica, set_replicas};
use crate::resource::Resources;

/// The fields of all transformers together; each has some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    metadata: Metadata,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    prefix: String,
    suffix: String,
    image_tag: Image,
    replica: Replica,
    replacements: Vec<ReplacementEntry>,
    path: String,
    patch: String,
    target: Option<crate::selector::Selector>,
    options: Option<crate::patch::PatchOptions>,
    unset_only: bool,
    set_role_binding_subjects: Subjects,
    field_specs: Vec<FieldSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
}

/// A step that is done with the resources, or that needs files first.
pub(crate) enum Step {
    /// It is done.
    Done,
    /// A patch is to be read and applied.
    Patch(Box<PatchEntry>),
    /// Replacements are to be read and followed.
    Replacements(Vec<ReplacementEntry>),
}

/// Runs a transformer.
pub(crate) fn run(resources: &mut Resources, config: &Value) -> Result<Step, Fault> {
    let kind = text_at(config, &["kind"]).unwrap_or_default();
    if text_at(config, &["apiVersion"]).as_deref() != Some("builtin") {
        return Err(Fault::unsupported(format!("the transformer {kind:?} is a program")));
    }
    let written: Written = serde_json::from_value(config.clone())
        .map_err(|error| Fault::new(format!("{kind}: {error}"), "correct the transformer"))?;
    let fields = &written.field_specs;
    match kind.as_str() {
        "LabelTransformer" => add_entries(resources, &written.labels, fields)?,
        "AnnotationsTransformer" => add_entries(resources, &written.annotations, fields)?,
        "PrefixTransformer" => affix(resources, Affix::Prefix, &written.prefix, fields)?,
        "SuffixTransformer" => affix(resources, Affix::Suffix, &written.suffix, fields)?,
        "PrefixSuffixTransformer" => {
            affix(resources, Affix::Prefix, &written.prefix, fields)?;
            affix(resources, Affix::Suffix, &written.suffix, fields)?;
        }
        "NamespaceTransformer" => {
            let options = NamespaceOptions {
                unset_only: written.unset_only,
                subjects: written.set_role_binding_subjects,
            };
            set_namespace(resources, &written.metadata.namespace, fields, options)?;
        }
        "ImageTagTransformer" => set_images(resources, &written.image_tag, fields)?,
        "ReplicaCountTransformer" => set_replicas(resources, &written.replica, fields)?,
        "ReplacementTransformer" => return Ok(Step::Replacements(written.replacements)),
        "PatchTransformer" => {
            let Written { path, patch, target, options, .. } = written;
            return Ok(Step::Patch(Box::new(PatchEntry { path, patch, target, options })));
        }
        _ => return Err(Fault::unsupported(format!("the transformer {kind:?} is not known"))),
    }
    Ok(Step::Done)
}
