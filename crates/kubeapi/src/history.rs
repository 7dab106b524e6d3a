//! Objects with their versions, and the latest changes of them.
//!
//! Where objects come from, not everything that is shown has a version: what a node reports of a
//! pod has none, and endpoints are computed. So versions are given here, whenever a kind is looked
//! at and an object differs from the last look. What comes and goes between two looks is never
//! seen, as by a client of Kubernetes whose watch breaks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::status::Status;

/// Changes of one kind that are kept, for watches that begin late.
const CHANGES_MAX: usize = 1000;

/// Names an object among those of its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace; empty for one without.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// All kinds that were looked at.
#[derive(Debug)]
pub struct History {
    version: u64,
    kinds: BTreeMap<&'static str, Objects>,
}

/// The objects of one kind.
#[derive(Debug, Default)]
struct Objects {
    objects: BTreeMap<Key, Arc<Value>>,
    changes: VecDeque<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// The object's namespace.
    pub namespace: String,
    /// What happened.
    pub kind: ChangeKind,
    /// The object after it; one that is gone as it was last.
    pub object: Arc<Value>,
}

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It was this before.
    Modified(Arc<Value>),
    /// It is gone.
    Deleted,
}

impl Default for History {
    fn default() -> Self {
        Self { version: 1, kinds: BTreeMap::new() }
    }
}

impl History {
    /// Takes over what the objects of a kind are now.
    pub fn look(&mut self, plural: &'static str, now: impl IntoIterator<Item = (Key, Value)>) {
        let is_first = !self.kinds.contains_key(plural);
        let kind = self.kinds.entry(plural).or_default();
        let mut gone = std::mem::take(&mut kind.objects);
        for (key, mut object) in now {
            let mut before = gone.remove(&key);
            // Another object may have taken the name since the last look.
            if let Some(earlier) = before.take_if(|it| uid(it) != uid(&object)) {
                self.version += 1;
                kind.note_gone(&key, self.version, &earlier);
            }
            if let Some(before) = &before {
                // Equal but for the version, if at all.
                copy_version(before, &mut object);
                if **before == object {
                    kind.objects.insert(key, Arc::clone(before));
                    continue;
                }
            }
            self.version += 1;
            set_version(&mut object, self.version);
            let object = Arc::new(object);
            let what = before.map_or(ChangeKind::Added, ChangeKind::Modified);
            kind.note(&key, self.version, what, &object);
            kind.objects.insert(key, object);
        }
        for (key, object) in gone {
            self.version += 1;
            kind.note_gone(&key, self.version, &object);
        }
        if is_first {
            // What was before the first look is not known.
            kind.changes.clear();
            kind.forgotten = self.version;
        }
    }

    /// The version of all that is known.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The objects of a kind, in the order of their names.
    pub fn objects(&self, plural: &str) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.kinds.get(plural).into_iter().flat_map(|kind| &kind.objects)
    }

    /// One object.
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        self.kinds.get(plural)?.objects.get(&key)
    }

    /// What has changed since a version, the oldest change first.
    ///
    /// # Errors
    /// The changes since then are forgotten, or the version is none that was given: the client has
    /// to list again.
    pub fn since(
        &self,
        plural: &str,
        version: u64,
    ) -> Result<impl Iterator<Item = &Change>, Status> {
        let kind = self.kinds.get(plural);
        let oldest = kind.map_or(0, |kind| kind.forgotten);
        if version < oldest || version > self.version {
            let what = if version < oldest { "old" } else { "large" };
            return Err(Status::expired(format!(
                "too {what} resource version: {version} ({oldest} to {})",
                self.version
            )));
        }
        let changes = kind.into_iter().flat_map(|kind| &kind.changes);
        Ok(changes.filter(move |change| change.version > version))
    }
}

impl Objects {
    fn note(&mut self, key: &Key, version: u64, kind: ChangeKind, object: &Arc<Value>) {
        if self.changes.len() == CHANGES_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.forgotten = oldest.version;
        }
        let (namespace, object) = (key.namespace.clone(), Arc::clone(object));
        self.changes.push_back(Change { version, namespace, kind, object });
    }

    fn note_gone(&mut self, key: &Key, version: u64, object: &Value) {
        let mut object = object.clone();
        set_version(&mut object, version);
        self.note(key, version, ChangeKind::Deleted, &Arc::new(object));
    }
}

fn uid(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/uid")
}

fn copy_version(from: &Value, to: &mut Value) {
    if let Some(version) = from.pointer("/metadata/resourceVersion") {
        to["metadata"]["resourceVersion"] = version.clone();
    }
}

fn set_version(object: &mut Value, version: u64) {
    object["metadata"]["resourceVersion"] = Value::String(version.to_string());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(name: &str, said: u32) -> (Key, Value) {
        let key = Key { namespace: String::new(), name: name.to_owned() };
        (key, json!({"metadata": {"name": name, "resourceVersion": "x"}, "said": said}))
    }

    /// Changes as `+name`, `~name`, `-name` with what they say.
    fn changes(history: &History, since: u64) -> Result<Vec<String>, u16> {
        let changes = history.since("pods", since).map_err(|it| it.code().as_u16())?;
        let text = |change: &Change| {
            let sign = match change.kind {
                ChangeKind::Added => '+',
                ChangeKind::Modified(_) => '~',
                ChangeKind::Deleted => '-',
            };
            let object = &change.object;
            let version = change.version.to_string();
            assert_eq!(object["metadata"]["resourceVersion"], version, "each has its version");
            format!(
                "{sign}{}{}",
                object["metadata"]["name"].as_str().expect("a name"),
                object["said"]
            )
        };
        Ok(changes.map(text).collect())
    }

    #[test]
    fn a_look_finds_what_has_changed() {
        let mut history = History::default();
        history.look("pods", [named("a", 1), named("b", 1)]);
        let first = history.version();
        assert_eq!(changes(&history, first), Ok(vec![]));
        history.look("pods", [named("a", 1), named("b", 1)]);
        assert_eq!(history.version(), first, "nothing has changed");
        history.look("pods", [named("b", 2), named("c", 1)]);
        let all = ["~b2", "+c1", "-a1"].map(str::to_owned);
        assert_eq!(changes(&history, first), Ok(all.to_vec()));
        assert_eq!(changes(&history, first + 1), Ok(all[1..].to_vec()));
        assert_eq!(changes(&history, history.version()), Ok(vec![]));
        let names: Vec<_> = history.objects("pods").map(|(key, _)| key.name.clone()).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(history.object("pods", "", "b").map(|it| it["said"].clone()), Some(json!(2)));
        assert!(history.object("pods", "", "a").is_none());
        let (key, mut other) = named("b", 2);
        other["metadata"]["uid"] = json!("another");
        let before = history.version();
        history.look("pods", [(key, other), named("c", 1)]);
        let all = ["-b2", "+b2"].map(str::to_owned);
        assert_eq!(changes(&history, before), Ok(all.to_vec()), "another of the same name");
        history.look("nodes", [named("n", 1)]);
        assert_eq!(changes(&history, history.version()), Ok(vec![]), "another kind's");
    }

    #[test]
    fn what_is_forgotten_is_said() {
        let mut history = History::default();
        history.look("pods", [named("a", 0)]);
        let first = history.version();
        assert_eq!(changes(&history, first - 1), Err(410), "before the first look");
        assert_eq!(changes(&history, first + 1), Err(410), "not given yet");
        for said in 1..=CHANGES_MAX as u32 {
            history.look("pods", [named("a", said)]);
        }
        assert_eq!(changes(&history, first).map(|it| it.len()), Ok(CHANGES_MAX));
        history.look("pods", []);
        assert_eq!(changes(&history, first), Err(410));
        assert_eq!(changes(&history, first + 1).map(|it| it.len()), Ok(CHANGES_MAX));
    }
}
