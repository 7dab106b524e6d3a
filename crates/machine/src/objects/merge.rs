//! Manifests over objects that are there: what `kubectl apply` leaves to others stays.
//!
//! The object that comes out is admitted as any other. What is sent as an object, as through the
//! Kubernetes API, is not merged: the client has done that.

use ambit_kubeapi::{Memory, merge_manifest};
use ambit_manifest::{Errors, Finding, UnknownFields, written};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admit::{Admission, ApplyError, name_all};
use super::store::{Settled, Store};
use super::without_effect::some;
use super::{Changes, Kind, ObjectRef};

/// What is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sent {
    /// Objects as they will be.
    #[default]
    Objects,
    /// Manifests, which decide only about the fields that they name, or have named.
    Manifests,
}

/// Kinds that are there before their manifests as a rule: the machine makes them, or a short
/// command.
const BEFORE: [Kind; 3] = [Kind::Node, Kind::Namespace, Kind::ServiceAccount];

impl Store {
    /// What would change if this was sent.
    pub(crate) fn draft_sent(
        &self,
        (sent, objects): (Sent, Vec<Value>),
        admission: &Admission,
        now: &str,
    ) -> Result<(Settled, Changes), ApplyError> {
        if sent == Sent::Objects {
            return self.draft_apply(objects, admission, now);
        }
        let mut merging = Merging::default();
        let merged = name_all(objects)?
            .into_iter()
            .map(|(_, object, manifest)| merging.merge(&object, self.object(&object), manifest))
            .collect::<Result<_, _>>()?;
        let (settled, mut changes) = self.draft_apply(merged, admission, now)?;
        changes.warnings.extend(merging.warnings());
        Ok((settled, changes))
    }
}

/// The manifests of one apply.
#[derive(Debug, Default)]
struct Merging {
    begun: Vec<ObjectRef>,
    too_long: Vec<ObjectRef>,
}

impl Merging {
    /// The object that a manifest makes of the one that is there.
    fn merge(
        &mut self,
        object: &ObjectRef,
        live: Option<&Value>,
        manifest: Value,
    ) -> Result<Value, ApplyError> {
        let merged = merge_manifest(live, manifest)
            .map_err(|source| ApplyError::Merge { object: Box::new(object.clone()), source })?;
        if merged.memory != Memory::TooLong && live.is_some_and(|it| *it != merged.object) {
            check(object, &merged.object)?;
        }
        let is_usual = BEFORE.iter().any(|kind| kind.plural() == object.plural);
        match merged.memory {
            Memory::Begun if !is_usual => self.begun.push(object.clone()),
            Memory::TooLong if live.is_some() => self.too_long.push(object.clone()),
            _ => {}
        }
        Ok(merged.object)
    }

    /// What who applies should know, a line for each thing.
    fn warnings(self) -> Vec<String> {
        let begun = some(&self.begun).map(|which| {
            format!(
                "{which} was not made by apply: fields that the manifest does not name stay; from \
                 now on, those that it names are known"
            )
        });
        let too_long = some(&self.too_long).map(|which| {
            format!(
                "{which} has a manifest too long for the 256 KiB of annotations: it is replaced as \
                 a whole, with the fields that others have set"
            )
        });
        begun.into_iter().chain(too_long).collect()
    }
}

/// Judges what a manifest and others have made together. The manifest alone was judged by who sent
/// it.
fn check(object: &ObjectRef, merged: &Value) -> Result<(), ApplyError> {
    let read = written("object", merged.clone(), UnknownFields::Ignored);
    let Err(Errors(found)) = read else { return Ok(()) };
    let Some(Finding { field, what, remedy, .. }) = found.into_iter().next() else { return Ok(()) };
    Err(ApplyError::Mixed { object: Box::new(object.clone()), field, what, remedy })
}
