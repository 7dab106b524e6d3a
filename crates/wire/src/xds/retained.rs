//! What a client holds: the accepted resources as they came off the wire.
//!
//! The raw bytes are kept so that a new worker can build the same view without a control plane,
//! and the versions so that a control plane sends only what changed. Never holds what was refused.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::{ResourceType, UnknownType};
use crate::proto::ambit::snapshot::{Delta, Removed, Resource, Snapshot};

/// The accepted resources of all types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retained {
    types: BTreeMap<ResourceType, HashMap<String, Kept>>,
}

/// One accepted resource.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    version: String,
    body: Bytes,
}

impl Retained {
    /// Takes over the resources of a snapshot.
    pub fn from_snapshot(snapshot: Snapshot) -> Result<Self, UnknownType> {
        let mut retained = Self::default();
        retained.apply(Delta { resources: snapshot.resources, removed: Vec::new() })?;
        Ok(retained)
    }

    /// Applies what a client accepted; removals first, as the client does.
    pub fn apply(&mut self, delta: Delta) -> Result<(), UnknownType> {
        for removed in &delta.removed {
            self.remove(removed.type_url.parse()?, &removed.name);
        }
        for resource in delta.resources {
            let resource_type = resource.type_url.parse()?;
            self.put(resource_type, resource.name, resource.version, resource.body);
        }
        Ok(())
    }

    /// Everything held, for keeping elsewhere. The order is that of names.
    pub fn snapshot(&self, crl_pem: String, created_unix: i64) -> Snapshot {
        let mut resources: Vec<_> = self.iter().collect();
        resources.sort_by(|a, b| (&a.type_url, &a.name).cmp(&(&b.type_url, &b.name)));
        Snapshot { resources, crl_pem, created_unix }
    }

    /// How many resources are held.
    pub fn len(&self) -> usize {
        self.types.values().map(HashMap::len).sum()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The resources in the form of a snapshot, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Resource> {
        self.types.iter().flat_map(|(resource_type, resources)| {
            resources.iter().map(|(name, kept)| Resource {
                type_url: resource_type.url().to_owned(),
                name: name.clone(),
                version: kept.version.clone(),
                body: kept.body.clone(),
            })
        })
    }

    pub(crate) fn put(
        &mut self,
        resource_type: ResourceType,
        name: String,
        version: String,
        body: Bytes,
    ) {
        self.types.entry(resource_type).or_default().insert(name, Kept { version, body });
    }

    pub(crate) fn remove(&mut self, resource_type: ResourceType, name: &str) -> bool {
        self.types.get_mut(&resource_type).is_some_and(|them| them.remove(name).is_some())
    }

    pub(crate) fn version(&self, resource_type: ResourceType, name: &str) -> Option<&str> {
        self.types.get(&resource_type)?.get(name).map(|kept| &*kept.version)
    }

    /// Names and versions, as a new stream begins with them.
    pub(crate) fn versions(
        &self,
        resource_type: ResourceType,
    ) -> impl Iterator<Item = (String, String)> {
        let resources = self.types.get(&resource_type).into_iter().flatten();
        resources.map(|(name, kept)| (name.clone(), kept.version.clone()))
    }
}

/// Adds one accepted resource to what is to be kept.
pub(crate) fn keep(delta: &mut Delta, resource_type: ResourceType, resource: (&str, &str, Bytes)) {
    let (name, version, body) = resource;
    delta.resources.push(Resource {
        type_url: resource_type.url().to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
        body,
    });
}

/// Adds one removal to what is to be kept.
pub(crate) fn forget(delta: &mut Delta, resource_type: ResourceType, name: &str) {
    delta.removed.push(Removed { type_url: resource_type.url().to_owned(), name: name.to_owned() });
}
