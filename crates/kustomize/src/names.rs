//! Prefixes and suffixes of names, and the hash at the end of generated ones.

use serde_json::Value;

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field};
use crate::generate::digest;
use crate::identity::{Gvk, scalar_text};
use crate::resource::Resources;

/// Where a text is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affix {
    /// Before the name.
    Prefix,
    /// Behind the name.
    Suffix,
}

/// Kinds whose names stay: others refer to them by fixed names.
fn keeps_name(gvk: &Gvk) -> bool {
    match gvk.kind.as_str() {
        "CustomResourceDefinition" | "Namespace" => true,
        "APIService" => gvk.group == "apiregistration.k8s.io",
        _ => false,
    }
}

/// Puts a text before or behind all names.
pub(crate) fn affix(
    resources: &mut Resources,
    affix: Affix,
    text: &str,
    fields: &[FieldSpec],
) -> Result<(), Fault> {
    for resource in &mut resources.0 {
        let original = resource.original().gvk;
        if text.is_empty() || keeps_name(&original) {
            continue;
        }
        for field in fields.iter().filter(|it| original.is_selected(&it.gvk())) {
            if field.path == "metadata/name" {
                match affix {
                    Affix::Prefix => resource.prefixes.push(text.to_owned()),
                    Affix::Suffix => resource.suffixes.push(text.to_owned()),
                }
                resource.remember_identity();
            }
            change_field(&mut resource.value, field, Missing::Text, &mut |value| {
                let name = scalar_text(value).unwrap_or_default();
                *value = Value::String(match affix {
                    Affix::Prefix => format!("{text}{name}"),
                    Affix::Suffix => format!("{name}{text}"),
                });
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Puts the hash of their data behind the names of generated resources.
pub(crate) fn add_hashes(resources: &mut Resources) {
    for resource in resources.0.iter_mut().filter(|it| it.needs_hash) {
        let name = format!("{}-{}", resource.name(), digest(&resource.value));
        resource.remember_identity();
        resource.set_metadata("name", &name);
    }
}
