//! The names and versions that a thousand proxies hold, each kept once for all.

use std::collections::HashMap;

use ambit_wire::proto::envoy::service::discovery::v3::HeldVersion;
use ambit_wire::xds::ResourceType;
use ambit_wire::xds::digest::Grouping;
use bytes::Bytes;

/// What proxies follow, in the order in which a proxy asks.
pub(super) const TYPES: [ResourceType; 2] = [ResourceType::Authorization, ResourceType::Address];
/// In place of a version: the resource is not there.
const ABSENT: u32 = 0;
/// So many different states of what is held have their digests kept.
const LATELY: usize = 64;

/// Texts by number; numbers begin with 1.
#[derive(Default)]
pub(super) struct Texts {
    numbers: HashMap<Bytes, u32>,
    texts: Vec<Bytes>,
}

impl Texts {
    /// The number of a text, which may be new.
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text.as_bytes()) {
            return *number;
        }
        let text = Bytes::copy_from_slice(text.as_bytes());
        self.texts.push(text.clone());
        let number = u32::try_from(self.texts.len()).expect("fewer texts than fit in memory");
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, number: u32) -> Bytes {
        self.texts[number as usize - 1].clone()
    }
}

/// What one proxy holds of one type: by the name's number, the version's.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Held(Vec<u32>);

/// A cache of digests: the proxies of a fleet hold the same, and real ones would each compute
/// theirs on a separate machine.
#[derive(Default)]
pub(super) struct Digests(HashMap<Held, (Grouping, Bytes)>);

impl Digests {
    /// The digests of what is held.
    pub(super) fn of(&mut self, held: &Held, names: &Texts, versions: &Texts) -> (Grouping, Bytes) {
        if let Some(known) = self.0.get(held) {
            return known.clone();
        }
        if self.0.len() >= LATELY {
            self.0.clear();
        }
        let told = held.versions(names, versions);
        let grouping = Grouping::of(told.len());
        let digests = grouping.digests(told.iter().filter_map(HeldVersion::texts));
        self.0.insert(held.clone(), (grouping, digests.clone()));
        (grouping, digests)
    }
}

impl Held {
    /// Takes a resource; says whether its version is another than before.
    pub(super) fn put(&mut self, name: u32, version: u32) -> bool {
        let at = name as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, ABSENT);
        }
        std::mem::replace(&mut self.0[at], version) != version
    }

    /// Forgets a resource.
    pub(super) fn remove(&mut self, name: u32) {
        if let Some(version) = self.0.get_mut(name as usize) {
            *version = ABSENT;
        }
    }

    /// How many resources it has.
    pub(super) fn len(&self) -> usize {
        self.0.iter().filter(|version| **version != ABSENT).count()
    }

    /// Names and versions, as a proxy sends them when it reconnects.
    pub(super) fn versions(&self, names: &Texts, versions: &Texts) -> Vec<HeldVersion> {
        let held = self.0.iter().enumerate().filter(|(_, version)| **version != ABSENT);
        let told = held.map(|(name, version)| {
            let name = u32::try_from(name).expect("it was a number before");
            HeldVersion { name: names.text(name), version: versions.text(*version) }
        });
        told.collect()
    }
}
