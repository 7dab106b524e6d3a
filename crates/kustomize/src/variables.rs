//! Variables: `$(NAME)` in certain fields stands for the value of another resource's field.
//!
//! kustomize keeps them for old kustomizations; new ones use replacements.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field};
use crate::identity::{Gvk, Identity, scalar_text};
use crate::limits::{PATH_PARTS_MAX, TEXT_SIZE_MAX_BYTES};
use crate::resource::Resources;

/// One entry of `vars`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Variable {
    pub(crate) name: String,
    objref: ObjectReference,
    fieldref: FieldReference,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct ObjectReference {
    api_version: String,
    group: String,
    version: String,
    kind: String,
    name: String,
    namespace: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FieldReference {
    #[serde(rename = "fieldPath", alias = "fieldpath")]
    path: String,
}

/// Marks the resources that give the variables their values.
pub(crate) fn mark(resources: &mut Resources, variables: &[Variable]) -> Result<(), Fault> {
    for variable in variables {
        let wanted = variable.wanted();
        let is_exact = !wanted.namespace.is_empty() || wanted.is_cluster_scoped;
        let is_it = |identity: &Identity| {
            let is_named = identity.gvk == wanted.gvk && identity.name == wanted.name;
            if is_exact { identity.is_same(&wanted) } else { is_named }
        };
        let mut found = resources.0.iter_mut().filter(|it| it.any_identity(is_it));
        let first = found.next();
        if found.next().is_some() {
            let what = format!("more than one resource fits the variable {:?}", variable.name);
            return Err(Fault::new(what, "add `namespace` to its `objref`"));
        }
        if let Some(resource) = first {
            resource.variables.push(variable.name.clone());
        }
    }
    Ok(())
}

impl Variable {
    fn wanted(&self) -> Identity {
        let reference = &self.objref;
        let gvk = match reference.api_version.as_str() {
            "" => Gvk {
                group: reference.group.clone(),
                version: reference.version.clone(),
                kind: reference.kind.clone(),
            },
            api_version => Gvk::new(api_version, &reference.kind),
        };
        Identity {
            is_cluster_scoped: gvk.is_cluster_scoped(),
            gvk,
            name: reference.name.clone(),
            namespace: reference.namespace.clone(),
        }
    }

    fn value(&self, resources: &Resources) -> Result<Value, Fault> {
        let resource = resources.0.iter().find(|it| it.variables.contains(&self.name));
        let path =
            if self.fieldref.path.is_empty() { "metadata.name" } else { &self.fieldref.path };
        let parts = parts(path);
        let found = resource.and_then(|resource| {
            parts.iter().try_fold(&resource.value, |value, part| match value {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?),
                value => value.get(part),
            })
        });
        found.filter(|_| parts.len() <= PATH_PARTS_MAX).cloned().ok_or_else(|| {
            let what =
                format!("the variable {:?} has no resource with the field {path}", self.name);
            Fault::new(what, "correct `objref` or `fieldref`")
        })
    }
}

/// `a.b[0].c` has four parts.
fn parts(path: &str) -> Vec<String> {
    let dotted = path.replace("[", ".").replace(']', "");
    crate::fields::split_at(&dotted, '.')
}

/// Puts the variables' values where their names stand.
pub(crate) fn resolve(
    resources: &mut Resources,
    variables: &[Variable],
    fields: &[FieldSpec],
) -> Result<(), Fault> {
    let mut values = BTreeMap::new();
    for variable in variables {
        values.insert(variable.name.clone(), variable.value(resources)?);
    }
    if values.is_empty() {
        return Ok(());
    }
    for resource in &mut resources.0 {
        let identity = resource.identity();
        for field in fields {
            let any =
                change_field(&mut resource.value, field, Missing::Skip, &mut |value| match value {
                    Value::Array(items) => items.iter_mut().try_for_each(|it| set(it, &values)),
                    Value::Object(map) => map.values_mut().try_for_each(|it| set(it, &values)),
                    value => set(value, &values),
                });
            any.map_err(|fault| Fault { what: format!("{identity}: {}", fault.what), ..fault })?;
        }
    }
    Ok(())
}

fn set(value: &mut Value, values: &BTreeMap<String, Value>) -> Result<(), Fault> {
    if let Value::String(text) = value {
        *value = expand(text, values)?;
    }
    Ok(())
}

/// `$(NAME)` becomes the value, `$$` becomes `$`, and unknown names stay.
fn expand(text: &str, values: &BTreeMap<String, Value>) -> Result<Value, Fault> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let inner = rest.strip_prefix('(').and_then(|it| it.split_once(')'));
        let Some((name, after)) = inner else {
            expanded.push('$');
            continue;
        };
        let value = values.get(name).filter(|it| scalar_text(it).is_some());
        if let Some(value) = value.filter(|_| text == format!("$({name})")) {
            return Ok(value.clone());
        }
        match value.and_then(scalar_text) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&format!("$({name})")),
        }
        rest = after;
        if expanded.len() > TEXT_SIZE_MAX_BYTES {
            let what = format!("a text becomes longer than {TEXT_SIZE_MAX_BYTES} bytes");
            return Err(Fault::new(what, "use fewer variables"));
        }
    }
    expanded.push_str(rest);
    Ok(Value::String(expanded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_in_a_text_become_values() {
        let values = BTreeMap::from([("A".to_owned(), json!("x")), ("N".to_owned(), json!(80))]);
        for (text, expected) in [
            ("$(A)", json!("x")),
            ("$(N)", json!(80)),
            ("$(A):$(N)", json!("x:80")),
            ("$$(A) $(B) $C $", json!("$(A) $(B) $C $")),
            ("plain", json!("plain")),
        ] {
            assert_eq!(expand(text, &values).expect(text), expected, "{text}");
        }
    }
}
