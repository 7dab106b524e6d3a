//! What outlives a client: the accepted resources as they came off the wire, with their versions.
//!
//! From the raw bytes a new worker builds the same view without a control plane, and thanks to the
//! versions a control plane sends it only what changed. Never holds what was refused.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::{ResourceType, UnknownType, content_version};
use crate::proto::ambit::snapshot::{Delta, Removed, Resource, Snapshot};

/// The accepted resources of all types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Retained {
    types: BTreeMap<ResourceType, HashMap<Box<str>, Kept>>,
}

/// One accepted resource.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    /// Nothing when it is the hash of the body, as our own control plane's versions are.
    version: Option<Box<str>>,
    body: Box<[u8]>,
}

impl Kept {
    /// A copy: the received body pins the message that it came in.
    fn new(version: String, body: &[u8]) -> Self {
        let version = (version != content_version(body)).then(|| version.into());
        Self { version, body: body.into() }
    }

    fn version(&self) -> String {
        match &self.version {
            Some(version) => version.to_string(),
            None => content_version(&self.body),
        }
    }
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
            if let Some(resources) = self.types.get_mut(&removed.type_url.parse()?) {
                resources.remove(&*removed.name);
            }
        }
        for resource in delta.resources {
            let resource_type = resource.type_url.parse()?;
            let kept = Kept::new(resource.version, &resource.body);
            self.types.entry(resource_type).or_default().insert(resource.name.into(), kept);
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
    fn iter(&self) -> impl Iterator<Item = Resource> {
        self.types.iter().flat_map(|(resource_type, resources)| {
            resources.iter().map(|(name, kept)| Resource {
                type_url: resource_type.url().to_owned(),
                name: name.to_string(),
                version: kept.version(),
                body: Bytes::copy_from_slice(&kept.body),
            })
        })
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
