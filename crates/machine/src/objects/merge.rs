//! Manifests over objects that are there: what `kubectl apply` leaves to others stays.
//!
//! The object that comes out is admitted as any other. What is sent as an object, as through the
//! Kubernetes API, is not merged: the client has done that.

use ambit_kubeapi::{Memory, Merged, merge_manifest};
use ambit_manifest::{Errors, Finding, UnknownFields, written};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admit::{Admission, ApplyError, check_shape, name_all};
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
        let (mut merged, mut begun) = (Vec::with_capacity(objects.len()), Vec::new());
        for (kind, object, manifest) in name_all(objects)? {
            // What follows relies on its shape.
            check_shape(kind, &object, &manifest)?;
            let live = self.object(&object);
            let Merged { object: whole, memory } = merge_manifest(live, manifest)
                .map_err(|source| ApplyError::Merge { object: Box::new(object.clone()), source })?;
            merged.push(match live {
                Some(live) if *live == whole => whole,
                Some(live) => {
                    let mut whole = judged(&object, whole)?;
                    if let Some(status) = live.get("status") {
                        whole["status"] = status.clone();
                    }
                    whole
                }
                None => ambit_manifest::whole(kind, whole)
                    .map_err(|source| ApplyError::Shape { object: object.clone(), source })?,
            });
            if memory == Memory::Begun && !BEFORE.contains(&kind) {
                begun.push(object);
            }
        }
        let (settled, mut changes) = self.draft_apply(merged, admission, now)?;
        changes.warnings.extend(some(&begun).map(|which| {
            format!(
                "{which} was not made by apply: fields that the manifest does not name stay; from \
                 now on, those that it names are known"
            )
        }));
        Ok((settled, changes))
    }
}

/// Judges what a manifest and others have made together, as if somebody had written all of it; the
/// manifest alone was judged by who sent it. Gives what is stored of it.
fn judged(object: &ObjectRef, merged: Value) -> Result<Value, ApplyError> {
    let head = |field: &str| merged[field].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (head("apiVersion"), head("kind"));
    match written("object", merged, UnknownFields::Ignored) {
        Ok(mut manifests) => manifests.objects.pop().map(|it| it.json),
        Err(Errors(found)) => {
            if let Some(Finding { field, what, remedy, .. }) = found.into_iter().next() {
                let object = Box::new(object.clone());
                return Err(ApplyError::Mixed { object, field, what, remedy });
            }
            None
        }
    }
    .ok_or(ApplyError::Kind { api_version, kind })
}
