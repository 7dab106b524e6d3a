//! Numbers of replicas.

use serde::Deserialize;
use serde_json::Value;

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field};
use crate::resource::Resources;

/// One entry of `replicas`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Replica {
    name: String,
    count: i64,
}

/// Sets the number of replicas of the resource that an entry names.
pub(crate) fn set_replicas(
    resources: &mut Resources,
    replica: &Replica,
    fields: &[FieldSpec],
) -> Result<(), Fault> {
    let mut is_found = false;
    for field in fields {
        let gvk = field.gvk();
        for resource in &mut resources.0 {
            let is_named =
                resource.any_identity(|it| it.name == replica.name && it.gvk.is_selected(&gvk));
            if !is_named {
                continue;
            }
            is_found = true;
            change_field(&mut resource.value, field, Missing::Text, &mut |value| {
                *value = Value::from(replica.count);
                Ok(())
            })?;
        }
    }
    if is_found {
        return Ok(());
    }
    let what = format!("no resource with replicas is called {:?}", replica.name);
    Err(Fault::new(what, "correct the name, or remove the entry"))
}
