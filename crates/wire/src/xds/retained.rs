//! What outlives a client: the accepted resources as received, with their versions.
//!
//! From the raw bytes a new worker builds the same view without a control plane; from the versions
//! a control plane knows to send only what changed. Never holds a refused resource.
//!
//! It is rarely read, but every node has it, so memory counts: resources are kept in compressed
//! blocks, and a block is opened only when something in it changes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use prost::Message;

use super::{ResourceType, UnknownType, content_version};
use crate::proto::ambit::snapshot::{Delta, Resource, Snapshot};
use crate::proto::envoy::service::discovery::v3 as discovery;

/// How many resources lie in a block at most, on average: more are smaller together, fewer are
/// sooner changed.
const BLOCK: usize = 32;
/// Precedes a version that is not the hash of the body, as our own control plane's versions are;
/// those are not kept.
const OWN_VERSION: char = '=';

/// Why a change cannot be kept.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeltaError {
    /// Its type is not known.
    #[error(transparent)]
    UnknownType(#[from] UnknownType),
    /// It holds what is no resource.
    #[error("no discovery resource")]
    Resource(#[from] prost::DecodeError),
}

/// The accepted resources of all types.
#[derive(Clone, Debug, Default)]
pub struct Retained {
    types: BTreeMap<ResourceType, Shelf>,
}

impl Retained {
    /// Takes over the resources of a snapshot.
    pub fn from_snapshot(snapshot: Snapshot) -> Result<Self, UnknownType> {
        let mut changes = BTreeMap::<ResourceType, Vec<_>>::new();
        for mut resource in snapshot.resources {
            let name = std::mem::take(&mut resource.name);
            let changes = changes.entry(resource.type_url.parse()?).or_default();
            changes.push((name, Some(resource)));
        }
        let mut retained = Self::default();
        for (resource_type, changes) in changes {
            retained.types.entry(resource_type).or_default().change(changes);
        }
        Ok(retained)
    }

    /// Applies what a client accepted; removals first, as the client does. An unknown type, or
    /// bytes that are not a resource, is an error and changes nothing. A delta that changes nothing
    /// needs no type.
    pub fn apply(&mut self, delta: Delta) -> Result<(), DeltaError> {
        let Delta { type_url, resources, removed } = delta;
        if resources.is_empty() && removed.is_empty() {
            return Ok(());
        }
        let resource_type = type_url.parse()?;
        let mut changes: Vec<_> = removed.into_iter().map(|name| (name, None)).collect();
        for resource in resources {
            let discovery::Resource { name, version, resource, .. } = Message::decode(resource)?;
            let body = resource.map(|any| any.value).unwrap_or_default();
            let kept = Resource { type_url: type_url.clone(), name: String::new(), version, body };
            changes.push((name, Some(kept)));
        }
        self.types.entry(resource_type).or_default().change(changes);
        Ok(())
    }

    /// Writes everything held as one encoded [`Snapshot`], in no particular order.
    ///
    /// A block at a time: all of it opened at once would be many times what is held. Encoded
    /// messages that follow one another are one message, with the resources of all.
    pub fn write(&self, crl_pem: String, created_unix: i64, to: &mut impl Write) -> io::Result<()> {
        let mut encoded = Vec::new();
        for (resource_type, shelf) in &self.types {
            for block in &shelf.blocks {
                let typed = |it| Resource { type_url: resource_type.url().to_owned(), ..it };
                let resources = block.open().map(restored).map(typed).collect();
                encoded.clear();
                Snapshot { resources, ..Snapshot::default() }
                    .encode(&mut encoded)
                    .map_err(io::Error::other)?;
                to.write_all(&encoded)?;
            }
        }
        let end = Snapshot { resources: Vec::new(), crl_pem, created_unix };
        to.write_all(&end.encode_to_vec())
    }

    /// How many resources are held.
    pub fn len(&self) -> usize {
        self.types.values().map(|shelf| shelf.len).sum()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The resources of one type, each in the block that the hash of its name says.
#[derive(Clone, Debug, Default)]
struct Shelf {
    hasher: RandomState,
    /// None, or a power of two.
    blocks: Vec<Block>,
    len: usize,
}

impl Shelf {
    /// Puts, replaces and removes by name, in this order.
    fn change(&mut self, changes: Vec<(String, Option<Resource>)>) {
        if self.blocks.is_empty() {
            self.make_room(changes.len());
        }
        let mut of_block = BTreeMap::<usize, Vec<_>>::new();
        for change in changes {
            of_block.entry(self.block_of(&change.0)).or_default().push(change);
        }
        for (at, changes) in of_block {
            let mut held: BTreeMap<_, _> = self.blocks[at].open().collect();
            self.len -= held.len();
            for (name, resource) in changes {
                match resource {
                    Some(resource) => drop(held.insert(name, resource)),
                    None => drop(held.remove(&name)),
                }
            }
            self.len += held.len();
            self.blocks[at] = Block::new(held);
        }
        self.make_room(self.len);
    }

    fn block_of(&self, name: &str) -> usize {
        // Truncated on purpose: only the lowest bits count.
        self.hasher.hash_one(name) as usize & (self.blocks.len() - 1)
    }

    /// Makes so many blocks that so many resources do not fill them above the average.
    fn make_room(&mut self, len: usize) {
        let wanted = len.div_ceil(BLOCK).max(1).next_power_of_two();
        if wanted <= self.blocks.len() {
            return;
        }
        let old = std::mem::replace(&mut self.blocks, vec![Block::default(); wanted]);
        let mut of_block = vec![Vec::new(); wanted];
        for entry in old.iter().flat_map(Block::open) {
            of_block[self.block_of(&entry.0)].push(entry);
        }
        self.blocks = of_block.into_iter().map(Block::new).collect();
    }
}

/// Resources, compressed; nothing when there are none.
#[derive(Clone, Debug, Default)]
struct Block(Box<[u8]>);

impl Block {
    fn new(resources: impl IntoIterator<Item = (String, Resource)>) -> Self {
        let resources: Vec<_> =
            resources.into_iter().map(|(name, it)| shortened(name, it)).collect();
        if resources.is_empty() {
            return Self::default();
        }
        let plain = Snapshot { resources, ..Snapshot::default() }.encode_to_vec();
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&plain).expect("memory takes it");
        Self(encoder.finish().expect("memory takes it").into())
    }

    /// What is in it, by name, in the form in which it is kept.
    fn open(&self) -> impl Iterator<Item = (String, Resource)> + use<> {
        let mut plain = Vec::new();
        if !self.0.is_empty() {
            DeflateDecoder::new(&*self.0).read_to_end(&mut plain).expect("compressed here");
        }
        let kept = Snapshot::decode(Bytes::from(plain)).expect("encoded here");
        kept.resources.into_iter().map(|mut it| (std::mem::take(&mut it.name), it))
    }
}

/// As it was, but for its type.
fn restored((name, kept): (String, Resource)) -> Resource {
    let version = match kept.version.strip_prefix(OWN_VERSION) {
        Some(version) => version.to_owned(),
        None => content_version(&kept.body),
    };
    Resource { name, version, ..kept }
}

/// Without what can be found out again: the type, and a version that is the hash of the body.
fn shortened(name: String, resource: Resource) -> Resource {
    let Resource { type_url, mut version, body, .. } = resource;
    // What has no type was shortened before.
    if !type_url.is_empty() {
        let own = version != content_version(&body);
        version = if own { format!("{OWN_VERSION}{version}") } else { String::new() };
    }
    Resource { type_url: String::new(), name, version, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(index: usize, body: &str) -> Resource {
        let body = Bytes::from(format!("{body} {index}"));
        let version = match index % 3 {
            0 => content_version(&body),
            1 => String::new(),
            _ => format!("version {index}"),
        };
        let type_url = ResourceType::Address.url().to_owned();
        Resource { type_url, name: format!("resource {index}"), version, body }
    }

    fn delta(type_url: &str, put: Vec<Resource>, removed: Vec<String>) -> Delta {
        let encode = |Resource { type_url, name, version, body }| {
            let resource = Some(crate::proto::Any { type_url, value: body });
            let resource = discovery::Resource { name, version, resource, ..Default::default() };
            resource.encode_to_vec().into()
        };
        let resources = put.into_iter().map(encode).collect();
        Delta { type_url: type_url.to_owned(), resources, removed }
    }

    /// What is written, in the order of names.
    fn snapshot(retained: &Retained) -> Snapshot {
        let mut written = Vec::new();
        retained.write("CRL".to_owned(), 7, &mut written).expect("memory takes it");
        let mut snapshot = Snapshot::decode(&*written).expect("one message");
        snapshot.resources.sort_by(|a, b| (&a.type_url, &a.name).cmp(&(&b.type_url, &b.name)));
        snapshot
    }

    fn check(retained: &Retained, expected: &BTreeMap<String, Resource>) {
        let held = snapshot(retained).resources;
        assert_eq!(held, expected.values().cloned().collect::<Vec<_>>());
        assert_eq!(retained.len(), expected.len());
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was() {
        let (mut retained, mut expected) = (Retained::default(), BTreeMap::new());
        check(&retained, &expected);
        let mut seed = 7_usize;
        for round in 0..40 {
            let (mut put, mut removed) = (Vec::new(), Vec::new());
            // Later rounds change single ones.
            for _ in 0..if round < 4 { 300 } else { 1 } {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (index, is_removed) = ((seed >> 33) % 700, (seed >> 40).is_multiple_of(4));
                let changed = resource(index, &format!("body of round {round}"));
                if is_removed {
                    removed.push(changed.name);
                } else {
                    put.push(changed);
                }
            }
            removed.iter().for_each(|name| drop(expected.remove(name)));
            expected.extend(put.iter().cloned().map(|it| (it.name.clone(), it)));
            retained.apply(delta(ResourceType::Address.url(), put, removed)).expect("a known type");
            check(&retained, &expected);
        }
        let average = expected.len() / retained.types[&ResourceType::Address].blocks.len();
        assert!((BLOCK / 4..=BLOCK).contains(&average), "{average} in a block");
    }

    #[test]
    fn types_are_apart_and_an_unknown_one_changes_nothing() {
        let mut retained = Retained::default();
        let address = resource(0, "address");
        let policy = ResourceType::Authorization.url().to_owned();
        let policy = Resource { type_url: policy, ..resource(0, "policy") };
        let both = [address, policy];
        for it in &both {
            retained.apply(delta(&it.type_url, vec![it.clone()], vec![])).expect("known");
        }
        retained.apply(Delta::default()).expect("nothing needs no type");
        let unknown = delta("x", vec![resource(1, "unknown")], vec![]);
        assert!(matches!(retained.apply(unknown), Err(DeltaError::UnknownType(_))));
        let mut broken = delta(ResourceType::Address.url(), vec![resource(2, "two")], vec![]);
        broken.resources.push(Bytes::from_static(&[0xff]));
        assert!(matches!(retained.apply(broken), Err(DeltaError::Resource(_))));
        assert_eq!(retained.len(), 2);
        let held = snapshot(&retained);
        assert_eq!((&*held.crl_pem, held.created_unix), ("CRL", 7));
        assert!(both.iter().all(|it| held.resources.contains(it)), "{held:?}");
        let again = Retained::from_snapshot(held.clone()).expect("known types");
        assert_eq!(snapshot(&again), held);
    }
}
