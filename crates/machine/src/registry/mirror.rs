//! The content of the registry, in memory.
//!
//! A file that cannot be parsed counts as absent, with a log line: objects are written atomically,
//! so another program wrote there, and a node must continue with the rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::PodStatus;
use crate::layout::Layout;
use crate::objects::ObjectRef;

/// Namespace and name of a pod.
pub(crate) type PodKey = (String, String);

/// The registry's content as last read.
#[derive(Debug)]
pub(crate) struct Mirror {
    objects_root: PathBuf,
    statuses_root: PathBuf,
    objects: BTreeMap<ObjectRef, Value>,
    statuses: BTreeMap<PodKey, PodStatus>,
}

impl Mirror {
    /// An empty mirror of this machine's registry.
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            objects_root: layout.objects(),
            statuses_root: layout.pod_statuses(),
            objects: BTreeMap::new(),
            statuses: BTreeMap::new(),
        }
    }

    /// Every object.
    pub(crate) fn objects(&self) -> &BTreeMap<ObjectRef, Value> {
        &self.objects
    }

    /// The objects of one kind.
    pub(crate) fn of_plural<'a>(
        &'a self,
        plural: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectRef, &'a Value)> {
        self.objects.iter().filter(move |(object, _)| object.plural == plural)
    }

    /// One object.
    pub(crate) fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<&Value> {
        let (plural, name) = (plural.to_owned(), name.to_owned());
        self.objects.get(&ObjectRef { plural, namespace: Some(namespace.to_owned()), name })
    }

    /// The status of the pod with this name and uid.
    pub(crate) fn status(&self, namespace: &str, name: &str, uid: &str) -> Option<&PodStatus> {
        let status = self.statuses.get(&(namespace.to_owned(), name.to_owned()))?;
        (status.uid == uid).then_some(status)
    }

    /// Every status.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (&PodKey, &PodStatus)> {
        self.statuses.iter()
    }

    /// Reads the files that a watch named; a path that is gone is forgotten.
    pub(crate) fn read(&mut self, paths: &[PathBuf]) {
        for path in paths {
            if let Some(object) = self.object_at(path) {
                match parse(path) {
                    Some(value) => self.objects.insert(object, value),
                    None => self.objects.remove(&object),
                };
            } else if let Some(key) = self.status_at(path) {
                match parse(path) {
                    Some(status) => self.statuses.insert(key, status),
                    None => self.statuses.remove(&key),
                };
            }
        }
    }

    fn object_at(&self, path: &Path) -> Option<ObjectRef> {
        let [plural, namespace, name] = names::<3>(path.strip_prefix(&self.objects_root).ok()?)?;
        let namespace = Some(namespace).filter(|namespace| namespace != "_");
        Some(ObjectRef { plural, namespace, name })
    }

    fn status_at(&self, path: &Path) -> Option<PodKey> {
        let [namespace, name] = names::<2>(path.strip_prefix(&self.statuses_root).ok()?)?;
        Some((namespace, name))
    }
}

/// The components of a path of exactly `N`, without the `.json` of the last.
fn names<const N: usize>(path: &Path) -> Option<[String; N]> {
    let parts: Vec<String> =
        path.iter().map(|part| part.to_str().map(str::to_owned)).collect::<Option<_>>()?;
    let mut parts: [String; N] = parts.try_into().ok()?;
    let name = parts[N - 1].strip_suffix(".json")?.to_owned();
    parts[N - 1] = name;
    Some(parts)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read a file of the registry");
            return None;
        }
    };
    serde_json::from_slice(&text)
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "a file of the registry is not as written");
        })
        .ok()
}
