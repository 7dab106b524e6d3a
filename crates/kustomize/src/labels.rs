//! Labels and annotations that all resources get.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::Fault;
use crate::fields::{FieldSpec, FieldTable, merge_fields, set_entry};
use crate::kustomization::LabelEntry;
use crate::resource::{Resources, SharedEntry};

/// Puts entries into the maps that the fields mean.
pub(crate) fn add_entries(
    resources: &mut Resources,
    entries: &BTreeMap<String, String>,
    fields: &[FieldSpec],
) -> Result<(), Fault> {
    for resource in &mut resources.0 {
        for (key, text) in entries {
            let mut made = Vec::new();
            for field in fields {
                let entered = set_entry(&mut resource.value, field, key, text);
                let entered = entered.map_err(|fault| Fault {
                    what: format!("{}: {}", resource.identity(), fault.what),
                    ..fault
                })?;
                made.extend(entered.is_new.then(|| field.clone()));
                if entered.is_changed {
                    resource.set_shared(key, field, &Value::String(text.clone()))?;
                }
            }
            if made.len() > 1 {
                resource.shared.push(SharedEntry { key: key.clone(), fields: made });
            }
        }
    }
    Ok(())
}

/// The fields that take the labels of an entry.
pub(crate) fn fields_of(entry: &LabelEntry, table: &FieldTable) -> Result<Vec<FieldSpec>, Fault> {
    let mut fields = entry.fields.clone();
    merge_fields(&mut fields, &table.labels)?;
    if entry.include_selectors {
        merge_fields(&mut fields, &table.common_labels)?;
        return Ok(fields);
    }
    if entry.include_templates {
        merge_fields(&mut fields, &table.template_labels)?;
    }
    if entry.include_volume_claim_templates {
        merge_fields(&mut fields, &table.volume_claim_template_labels)?;
    }
    merge_fields(&mut fields, &[FieldSpec::any("metadata/labels", true)])?;
    Ok(fields)
}
