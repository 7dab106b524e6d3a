//! The store itself: objects in memory, the same on disk, and atomic changes.
//!
//! A [`Draft`] is a set of changes over the store. [`Store::commit`] first writes every file of a
//! draft aside, which would fail on a full disk, then moves them into place; if a move fails, it
//! and those before it are undone. Nothing else may write below `registry/objects`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Kind, ObjectRef};
use crate::layout::Layout;

/// Where it is said whose the fields are, for who applies through the Kubernetes API.
pub(super) const MANAGED_FIELDS: &str = "managedFields";

/// A change that could not be made durable; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be written aside.
    #[error("cannot write {path}; is the disk of the state directory full?")]
    Stage {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be moved into place, or removed.
    #[error("cannot change {path} in the state directory")]
    Move {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// All objects of the machine.
#[derive(Debug)]
pub(crate) struct Store {
    layout: Layout,
    objects: BTreeMap<ObjectRef, Value>,
    version: u64,
}

/// Changes over a store that are not in effect yet.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    store: &'a Store,
    changes: BTreeMap<ObjectRef, Option<Value>>,
    version: u64,
}

/// The changes of a draft, cut loose from the store that they were drafted over.
#[derive(Debug)]
pub(crate) struct Settled {
    changes: BTreeMap<ObjectRef, Option<Value>>,
    version: u64,
}

impl Settled {
    /// An object that is new or different, as it will be.
    pub(crate) fn value(&self, object: &ObjectRef) -> Option<&Value> {
        self.changes.get(object)?.as_ref()
    }
}

impl Store {
    /// An empty store in an empty state directory.
    pub(crate) fn create(layout: Layout) -> Result<Self, StoreError> {
        for directory in [layout.objects(), layout.staging()] {
            fs::create_dir_all(&directory)
                .map_err(|source| StoreError::Stage { path: directory, source })?;
        }
        Ok(Self { layout, objects: BTreeMap::new(), version: 1 })
    }

    /// Where the machine keeps what it has.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// One object.
    pub(crate) fn object(&self, object: &ObjectRef) -> Option<&Value> {
        self.objects.get(object)
    }

    /// The objects of one kind.
    pub(crate) fn of_plural<'a>(
        &'a self,
        plural: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectRef, &'a Value)> {
        self.objects.iter().filter(move |(object, _)| object.plural == plural)
    }

    /// Takes over objects whose files somebody else writes.
    pub(crate) fn follow(&mut self, objects: &BTreeMap<ObjectRef, Value>) {
        self.objects.clone_from(objects);
    }

    /// Starts a change.
    pub(crate) fn draft(&self) -> Draft<'_> {
        Draft { store: self, changes: BTreeMap::new(), version: self.version }
    }

    /// Makes a change effective: all of it, or nothing and an error.
    pub(crate) fn commit(&mut self, settled: Settled) -> Result<(), StoreError> {
        let staged = self.stage(&settled.changes)?;
        let mut done = Vec::new();
        for (object, value) in &settled.changes {
            let path = self.path(object);
            let moved = match (value, staged.get(object)) {
                (Some(_), Some(aside)) => fs::rename(aside, &path),
                _ => remove_if_present(&path),
            };
            if let Err(source) = moved {
                self.undo(&done);
                return Err(StoreError::Move { path, source });
            }
            done.push(object);
        }
        self.version = settled.version;
        for (object, value) in settled.changes {
            match value {
                Some(value) => self.objects.insert(object, value),
                None => self.objects.remove(&object),
            };
        }
        Ok(())
    }

    fn path(&self, object: &ObjectRef) -> PathBuf {
        self.layout.object(&object.plural, object.namespace.as_deref(), &object.name)
    }

    fn stage(
        &self,
        changes: &BTreeMap<ObjectRef, Option<Value>>,
    ) -> Result<BTreeMap<ObjectRef, PathBuf>, StoreError> {
        let mut staged = BTreeMap::new();
        for (object, value) in changes {
            let Some(value) = value else { continue };
            let aside = self.layout.staging().join(staged.len().to_string());
            let directory =
                self.path(object).parent().expect("objects lie in directories").to_owned();
            fs::create_dir_all(&directory)
                .map_err(|source| StoreError::Stage { path: directory, source })?;
            write_object(&aside, value)
                .map_err(|source| StoreError::Stage { path: aside.clone(), source })?;
            staged.insert(object.clone(), aside);
        }
        Ok(staged)
    }

    /// Puts the files of `objects` back to what memory still says.
    fn undo(&self, objects: &[&ObjectRef]) {
        for object in objects {
            let path = self.path(object);
            let result = match self.objects.get(object) {
                Some(value) => {
                    let aside = self.layout.staging().join("undo");
                    write_object(&aside, value).and_then(|()| fs::rename(&aside, &path))
                }
                None => remove_if_present(&path),
            };
            if let Err(error) = result {
                tracing::error!(%object, %error, "cannot undo a change that failed half-way");
            }
        }
    }
}

/// Secrets are objects too: nobody but the machine's user may read any of them.
fn write_object(path: &Path, value: &Value) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    remove_if_present(path)?;
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    write_whole(file, value)
}

/// A disk that is full says so at the latest when the last of it is written.
fn write_whole(file: fs::File, value: &Value) -> io::Result<()> {
    let mut writer = io::BufWriter::new(file);
    serde_json::to_writer_pretty(&mut writer, value)?;
    writer.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Draft<'_> {
    /// One object as it will be.
    pub(crate) fn object(&self, object: &ObjectRef) -> Option<&Value> {
        match self.changes.get(object) {
            Some(change) => change.as_ref(),
            None => self.store.object(object),
        }
    }

    /// Whether an object of this kind and name will be there.
    pub(crate) fn contains(&self, plural: &str, namespace: Option<&str>, name: &str) -> bool {
        let kind = Kind::from_plural(plural).expect("plurals come from the table");
        self.object(&ObjectRef::new(kind, namespace, name)).is_some()
    }

    /// Every object as it will be.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &Value)> {
        let kept =
            self.store.objects.iter().filter(|(object, _)| !self.changes.contains_key(*object));
        let changed =
            self.changes.iter().filter_map(|(object, value)| Some((object, value.as_ref()?)));
        kept.chain(changed)
    }

    /// Puts an object, giving it the next resource version and keeping what identifies an older
    /// one.
    ///
    /// A generation counts changes of the spec.
    pub(crate) fn put(&mut self, object: ObjectRef, mut value: Value, now: &str) {
        self.version += 1;
        let old = self.object(&object);
        let old_meta = |field: &str| old.and_then(|old| old.pointer(&format!("/metadata/{field}")));
        let uid = old_meta("uid").cloned().unwrap_or_else(|| Value::String(new_uid()));
        let created = old_meta("creationTimestamp").cloned().unwrap_or_else(|| json!(now));
        let generation = old_meta("generation").and_then(Value::as_u64).unwrap_or(0);
        let spec_differs = old.is_none_or(|old| old.get("spec") != value.get("spec"));
        let deletion = old_meta("deletionTimestamp").cloned();
        let owners = old_meta(MANAGED_FIELDS).cloned();
        let metadata = &mut value["metadata"];
        metadata["uid"] = uid;
        metadata["creationTimestamp"] = created;
        metadata["generation"] = json!(generation + u64::from(spec_differs));
        metadata["resourceVersion"] = Value::String(self.version.to_string());
        if let Some(deletion) = deletion {
            metadata["deletionTimestamp"] = deletion;
        }
        if let Some(owners) = owners.filter(|_| metadata.get(MANAGED_FIELDS).is_none()) {
            metadata[MANAGED_FIELDS] = owners;
        }
        self.changes.insert(object, Some(value));
    }

    /// Marks an object as going away; its owner removes it when that has happened.
    pub(crate) fn mark_deleted(&mut self, object: &ObjectRef, now: &str) {
        let Some(mut value) = self.object(object).cloned() else { return };
        if value.pointer("/metadata/deletionTimestamp").is_none() {
            value["metadata"]["deletionTimestamp"] = json!(now);
            self.put(object.clone(), value, now);
        }
    }

    /// Removes an object at once.
    pub(crate) fn remove(&mut self, object: ObjectRef) {
        self.version += 1;
        self.changes.insert(object, None);
    }

    /// Whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Ends drafting.
    pub(crate) fn settle(self) -> Settled {
        Settled { changes: self.changes, version: self.version }
    }
}

/// A random UUID, version 4.
pub(crate) fn new_uid() -> String {
    let mut bytes = random_bytes::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Random bytes from the kernel.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    use io::Read;
    let mut bytes = [0; N];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("/dev/urandom is there and never ends");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_success() {
        let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        for text in ["", "x", &"x".repeat(100_000)] {
            assert!(write_whole(full(), &json!({ "text": text })).is_err(), "{}", text.len());
        }
    }
}
