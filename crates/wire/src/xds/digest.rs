//! What a client holds, in a few kilobytes, so that a stream resumes without naming everything.
//!
//! In the standard protocol a client that reconnects names each resource that it holds, with its
//! version: a megabyte for ten thousand, and after a restart of the control plane every proxy sends
//! the same. Between our own two ends the names are put into groups, and the client sends one
//! digest for each group. The server answers with the groups that differ from its own; the client
//! then names what it holds in those. A server announces this with [`RESUME_HEADER`]; to any other
//! server the client names everything.
//!
//! A digest is cryptographic: users choose the names of resources, and must not be able to hide a
//! difference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use sha2::{Digest as _, Sha256};

use super::ResourceType;

/// Header of a response to discovery: the server can compare digests.
pub const RESUME_HEADER: &str = "x-ambit-resume";
/// Value of [`RESUME_HEADER`]: what is digested, and how.
pub const RESUME_DIGESTS: &str = "sha256-groups";
/// Bytes of a digest; the rest of the hash is cut off.
const DIGEST_BYTES: usize = 16;
/// How many resources are in a group, about: so many are named when one of them differs.
const GROUP_SIZE: usize = 16;
/// The binary logarithm of the most groups there may be: 64 KiB of digests.
const MAX_GROUPS_LOG2: u32 = 12;

/// Whether a server with these headers compares digests.
pub fn is_announced(headers: &HeaderMap) -> bool {
    headers.get(RESUME_HEADER).is_some_and(|value| value == RESUME_DIGESTS)
}

/// Into how many groups names are put, as a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grouping(u32);

impl Grouping {
    /// For so many resources.
    pub fn of(resources: usize) -> Self {
        Self(resources.div_ceil(GROUP_SIZE).max(1).next_power_of_two().ilog2().min(MAX_GROUPS_LOG2))
    }

    /// The grouping of a client's digests; none if they are malformed.
    pub(crate) fn told(digests: &[u8]) -> Option<Self> {
        let groups = digests.len() / DIGEST_BYTES;
        let grouping = Self(groups.checked_ilog2()?);
        let is_whole = grouping.groups() * DIGEST_BYTES == digests.len();
        (is_whole && grouping.0 <= MAX_GROUPS_LOG2).then_some(grouping)
    }

    fn groups(self) -> usize {
        1 << self.0
    }

    /// Its groups.
    pub(crate) fn all(self) -> impl Iterator<Item = u32> {
        0..1 << self.0
    }

    /// Whether so many groups are as many as the other's, or half or twice as many.
    pub(crate) fn is_near(self, other: Self) -> bool {
        self.0.abs_diff(other.0) <= 1
    }

    /// The group of a name: the high bits of its FNV-1a, which is the same everywhere and for ever.
    pub fn group_of(self, name: &str) -> u32 {
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
        let hash = name.as_bytes().iter().fold(2_166_136_261, step);
        ((u64::from(hash) << self.0) >> u32::BITS) as u32
    }

    /// The digests of resources, given by name and version in any order, group after group.
    pub fn digests<'a>(self, resources: impl Iterator<Item = (&'a str, &'a str)>) -> Bytes {
        let mut groups = vec![Vec::new(); self.groups()];
        for resource in resources {
            groups[self.group_of(resource.0) as usize].push(resource);
        }
        let mut digests = BytesMut::with_capacity(self.groups() * DIGEST_BYTES);
        for group in &mut groups {
            group.sort_unstable();
            let mut hash = Sha256::new();
            for text in group.iter().flat_map(|(name, version)| [name, version]) {
                // Lengths, so that no two lists of texts read the same.
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text);
            }
            digests.extend_from_slice(&hash.finalize()[..DIGEST_BYTES]);
        }
        digests.freeze()
    }
}

/// The groups whose digests differ.
pub(crate) fn differing(told: &[u8], own: &[u8]) -> Vec<u32> {
    let pairs = (0..).zip(told.chunks(DIGEST_BYTES).zip(own.chunks(DIGEST_BYTES)));
    pairs.filter(|(_, (told, own))| told != own).map(|(group, _)| group).collect()
}

/// Digests that are computed when somebody asks, once for all clones of what they are of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lazy(Arc<Mutex<BTreeMap<(ResourceType, Grouping), Bytes>>>);

impl Lazy {
    /// What they are of changes now, in this clone alone.
    pub(crate) fn forget(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(only) => only.get_mut().expect("no holder panics").clear(),
            None => self.0 = Arc::default(),
        }
    }

    /// The digests of these resources.
    pub(crate) fn get<'a, I: Iterator<Item = (&'a str, &'a str)>>(
        &self,
        (resource_type, grouping): (ResourceType, Grouping),
        resources: impl FnOnce() -> I,
    ) -> Bytes {
        let mut known = self.0.lock().expect("no holder panics");
        let computed = known.entry((resource_type, grouping));
        computed.or_insert_with(|| grouping.digests(resources())).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_differs_in_its_group_alone() {
        for grouping in [Grouping(0), Grouping(4), Grouping(MAX_GROUPS_LOG2)] {
            let digests = |it: &[(&str, &str)]| grouping.digests(it.iter().copied());
            let all = [("a", "1"), ("b", "1"), ("c", "1")];
            let check = |others: &[(&str, &str)], expected: &[&str]| {
                let groups: Vec<u32> = expected.iter().map(|it| grouping.group_of(it)).collect();
                assert_eq!(differing(&digests(&all), &digests(others)), groups, "{others:?}");
            };
            check(&all, &[]);
            check(&[all[2], all[0], all[1]], &[]);
            check(&[("a", "1"), ("b", "2"), ("c", "1")], &["b"]);
            check(&[("a", "1"), ("c", "1")], &["b"]);
            check(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "")], &["d"]);
            assert_eq!(Grouping::told(&digests(&all)), Some(grouping));
        }
        let one = |name, version| Grouping(0).digests([(name, version)].into_iter());
        assert_ne!(one("ab", "c"), one("a", "bc"));
    }

    #[test]
    fn both_ends_of_whatever_release_agree() {
        let name = "Kubernetes//Pod/shop/web-1";
        assert_eq!([0, 4, 12].map(|groups| Grouping(groups).group_of(name)), [0, 13, 3477]);
        let digest = Grouping(0).digests([("b", "2"), ("a", "1")].into_iter());
        let expected = 0x6366_2dce_ceaa_c3ca_ee9e_43ac_15aa_0c4c_u128;
        assert_eq!(*digest, expected.to_be_bytes());
    }

    #[test]
    fn what_is_not_digests_is_refused() {
        for bytes in [0, 1, 15, 17, 3 * 16, 2 << (MAX_GROUPS_LOG2 + 4)] {
            assert_eq!(Grouping::told(&vec![0; bytes]), None, "{bytes}");
        }
    }

    #[test]
    fn names_spread_over_all_groups() {
        let resources = 11_000;
        let grouping = Grouping::of(resources);
        assert_eq!(grouping.groups(), 1024);
        let mut counts = vec![0; grouping.groups()];
        for index in 0..resources {
            let name = format!("Kubernetes//Pod/space-7/web-7d9f8b6c5-{index:05x}");
            counts[grouping.group_of(&name) as usize] += 1;
        }
        let most = counts.iter().max().expect("there are some");
        assert!((11..=40).contains(most), "{most}");
        assert_eq!([0, 16, 17, usize::MAX / 2].map(|it| Grouping::of(it).0), [0, 0, 1, 12]);
    }

    #[test]
    fn a_clone_that_changes_has_digests_of_its_own() {
        let of = |lazy: &Lazy, version: &'static str| {
            lazy.get((ResourceType::Address, Grouping(0)), || [("a", version)].into_iter())
        };
        let mut working = Lazy::default();
        let published = working.clone();
        working.forget();
        let first = of(&published, "1");
        let second = of(&working, "2");
        assert_ne!(first, second);
        assert_eq!(of(&published, "3"), first, "computed once");
        working.forget();
        assert_ne!(of(&working, "4"), second);
    }
}
