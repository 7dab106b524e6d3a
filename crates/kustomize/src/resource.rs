//! Resources on their way through a build, and the list that holds them.
//!
//! A resource remembers what it was called before each change of its name: later steps find it by
//! any of those names. Two resources of a list never have the same identity.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::Fault;
use crate::fields::{FieldSpec, Missing, change_field, entry_of};
use crate::identity::{Gvk, Identity, scalar_text};
use crate::limits::RESOURCES_MAX;

/// What a generated resource does with one of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// There must be none.
    #[default]
    Create,
    /// It takes its place.
    Replace,
    /// Their data is put together.
    Merge,
}

/// An entry that one step made in several maps of a resource. kustomize keeps one value for all of
/// them: who changes one later changes all, until a JSON patch separates them.
#[derive(Debug, Clone)]
pub(crate) struct SharedEntry {
    /// The key.
    pub(crate) key: String,
    /// The maps.
    pub(crate) fields: Vec<FieldSpec>,
}

/// One resource of a build.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    /// The resource as it is now.
    pub(crate) value: Value,
    /// The file that it came from.
    pub(crate) origin: PathBuf,
    /// What it was called before, first name first.
    pub(crate) previous: Vec<Identity>,
    /// Prefixes that its name was given.
    pub(crate) prefixes: Vec<String>,
    /// Suffixes that its name was given.
    pub(crate) suffixes: Vec<String>,
    /// What it does with one of the same name.
    pub(crate) behavior: Behavior,
    /// Whether a hash of its data is to be part of its name.
    pub(crate) needs_hash: bool,
    /// Variables that take their value from it.
    pub(crate) variables: Vec<String>,
    /// Entries of its maps that are one value.
    pub(crate) shared: Vec<SharedEntry>,
}

impl Resource {
    /// A resource that was read from a file.
    pub(crate) fn new(value: Value, origin: &Path) -> Self {
        Self {
            value,
            origin: origin.to_owned(),
            previous: Vec::new(),
            prefixes: Vec::new(),
            suffixes: Vec::new(),
            behavior: Behavior::default(),
            needs_hash: false,
            variables: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Sets an entry in all maps that share it with the one that a field means.
    pub(crate) fn set_shared(
        &mut self,
        key: &str,
        field: &FieldSpec,
        text: &Value,
    ) -> Result<(), Fault> {
        let shares = |it: &&SharedEntry| it.key == key && it.fields.contains(field);
        let Some(entry) = self.shared.iter().find(shares).cloned() else { return Ok(()) };
        for field in &entry.fields {
            change_field(&mut self.value, field, Missing::Skip, &mut |map| {
                if let Some(value) = map.get_mut(key) {
                    *value = text.clone();
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Follows the changes of shared entries since the resource was `before`.
    pub(crate) fn follow_shared(&mut self, before: &Value) -> Result<(), Fault> {
        for entry in self.shared.clone() {
            for field in &entry.fields {
                let old = entry_of(before, field, &entry.key);
                let new = entry_of(&self.value, field, &entry.key);
                let changed = new.filter(|new| old.is_some_and(|old| old != *new)).cloned();
                if let Some(new) = changed {
                    self.set_shared(&entry.key, field, &new)?;
                }
            }
        }
        Ok(())
    }

    /// What it is called now.
    pub(crate) fn identity(&self) -> Identity {
        Identity::of(&self.value)
    }

    /// What it was called in its file.
    pub(crate) fn original(&self) -> Identity {
        self.previous.first().cloned().unwrap_or_else(|| self.identity())
    }

    /// Keeps what it is called now, because that is about to change.
    pub(crate) fn remember_identity(&mut self) {
        let now = self.identity();
        let namespace = now.effective_namespace().to_owned();
        self.previous.push(Identity { namespace, is_cluster_scoped: false, ..now });
    }

    /// Whether it is, or ever was, called so. Former names have today's group and version.
    pub(crate) fn was(&self, wanted: &Identity) -> bool {
        self.any_identity(|identity| identity.is_same(wanted))
    }

    /// Whether what it is or was called fulfils a condition.
    pub(crate) fn any_identity(&self, fulfils: impl Fn(&Identity) -> bool) -> bool {
        self.identities().iter().any(fulfils)
    }

    /// What it was called, and last what it is called.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        let mut all = self.previous_identities();
        all.push(self.identity());
        all
    }

    /// What it was called, with the group and version of today.
    pub(crate) fn previous_identities(&self) -> Vec<Identity> {
        let now = Gvk::of(&self.value);
        let with_gvk = |identity: &Identity| {
            let gvk = Gvk { kind: identity.gvk.kind.clone(), ..now.clone() };
            Identity { gvk, ..identity.clone() }
        };
        self.previous.iter().map(with_gvk).collect()
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        crate::identity::text_at(&self.value, &["metadata", "name"]).unwrap_or_default()
    }

    /// Its namespace as it is written; empty if it is not.
    pub(crate) fn namespace(&self) -> String {
        crate::identity::text_at(&self.value, &["metadata", "namespace"]).unwrap_or_default()
    }

    /// Sets or, with an empty text, removes a field of `metadata`.
    pub(crate) fn set_metadata(&mut self, field: &str, text: &str) {
        let metadata = child_map(&mut self.value, "metadata");
        match text {
            "" => drop(metadata.remove(field)),
            text => drop(metadata.insert(field.to_owned(), Value::String(text.to_owned()))),
        }
    }

    /// The scalars of a map of `metadata`, as texts.
    pub(crate) fn metadata_texts(&self, field: &str) -> Vec<(String, String)> {
        let map =
            self.value.get("metadata").and_then(|it| it.get(field)).and_then(Value::as_object);
        let text = |(key, value): (&String, &Value)| Some((key.clone(), scalar_text(value)?));
        map.into_iter().flatten().filter_map(text).collect()
    }
}

/// The map at a field; made if the field is missing or no map.
pub(crate) fn child_map<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(map) = value else { unreachable!("made a map above") };
    let child = map.entry(field).or_insert_with(|| Value::Object(Map::new()));
    if !child.is_object() {
        *child = Value::Object(Map::new());
    }
    let Value::Object(child) = child else { unreachable!("made a map above") };
    child
}

/// The resources of a build, in order.
#[derive(Debug, Default)]
pub(crate) struct Resources(pub(crate) Vec<Resource>);

impl Resources {
    /// Adds resources at the end; none may have the identity of another.
    pub(crate) fn append(&mut self, more: Vec<Resource>) -> Result<(), Fault> {
        let mut known: HashSet<_> = self.0.iter().map(|it| it.identity().key()).collect();
        for resource in more {
            let identity = resource.identity();
            if !known.insert(identity.key()) {
                let what =
                    format!("{identity} ({}) is already in the build", resource.origin.display());
                return Err(Fault::new(what, "keep one of the two, or change it with a patch"));
            }
            if self.0.len() >= RESOURCES_MAX {
                let what = format!("more than {RESOURCES_MAX} resources");
                return Err(Fault::new(what, "split the kustomization"));
            }
            self.0.push(resource);
        }
        Ok(())
    }

    /// The position of the one resource that is or was called so.
    pub(crate) fn position(&self, wanted: &Identity) -> Result<usize, Fault> {
        let mut found = (0..self.0.len()).filter(|index| self.0[*index].was(wanted));
        match (found.next(), found.next()) {
            (Some(index), None) => Ok(index),
            (None, _) => Err(Fault::new(
                format!("no resource is called {wanted}"),
                "correct kind, name or namespace, or add the resource",
            )),
            (Some(_), Some(_)) => Err(Fault::new(
                format!("more than one resource is or was called {wanted}"),
                "name one of them by its target",
            )),
        }
    }

    /// Adds a generated resource, or puts it together with the one of the same name.
    pub(crate) fn absorb(&mut self, mut made: Resource) -> Result<(), Fault> {
        let identity = made.identity();
        let found: Vec<usize> =
            (0..self.0.len()).filter(|index| self.0[*index].was(&identity)).collect();
        match (found.as_slice(), made.behavior) {
            ([], Behavior::Create) => self.append(vec![made]),
            ([], _) => Err(Fault::new(
                format!("{identity} does not exist, so nothing can be merged or replaced"),
                "remove `behavior`, or correct the name",
            )),
            ([_], Behavior::Create) => Err(Fault::new(
                format!("{identity} is already in the build"),
                "set `behavior: merge` or `behavior: replace`",
            )),
            ([index], behavior) => {
                let old = &self.0[*index];
                if behavior == Behavior::Merge {
                    for field in ["data", "binaryData"] {
                        merge_texts(&mut made.value, &old.value, field);
                    }
                }
                inherit(&mut made, old);
                self.0[*index] = made;
                Ok(())
            }
            (_, _) => Err(Fault::new(
                format!("more than one resource is or was called {identity}"),
                "give one of them another name",
            )),
        }
    }
}

/// What a generated resource keeps of the one whose place it takes.
fn inherit(made: &mut Resource, old: &Resource) {
    for field in ["labels", "annotations"] {
        let own = made.metadata_texts(field);
        let all: Map<String, Value> = old
            .metadata_texts(field)
            .into_iter()
            .chain(own)
            .map(|(key, text)| (key, Value::String(text)))
            .collect();
        let metadata = child_map(&mut made.value, "metadata");
        if all.is_empty() {
            metadata.remove(field);
        } else {
            metadata.insert(field.to_owned(), Value::Object(all));
        }
    }
    made.set_metadata("name", &old.name());
    made.set_metadata("namespace", &old.namespace());
    made.previous.clone_from(&old.previous);
    made.prefixes.clone_from(&old.prefixes);
    made.suffixes.clone_from(&old.suffixes);
    made.variables.clone_from(&old.variables);
    made.needs_hash &= old.needs_hash;
    made.behavior = old.behavior;
}

/// Adds the entries of `old` that `new` does not have.
fn merge_texts(new: &mut Value, old: &Value, field: &str) {
    let Some(from) = old.get(field).and_then(Value::as_object) else { return };
    let into = child_map(new, field);
    for (key, value) in from {
        if let Some(text) = scalar_text(value) {
            into.entry(key).or_insert(Value::String(text));
        }
    }
}
