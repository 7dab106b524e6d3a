//! Chains that were verified already, so that their signatures are verified once.
//!
//! A pod's peers come again and again with the same certificate: with each tunnel that is opened,
//! and with each connection of a client of another mesh. A chain is known for the roots, the bytes
//! and the key usage that it was verified with, and while every certificate of it is valid. What
//! else is asked of a peer (revocation, name) is asked each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;

use crate::certificate::{Issuer, Serial};

/// How many chains are remembered for a set of roots. Only chains that a root vouches for are,
/// without anything beside them, so nobody else can fill this.
const MAX_CHAINS: usize = 1024;

/// What a key is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Proving a client.
    Client,
    /// Proving a server.
    Server,
}

/// A chain up to a root, as it was verified.
#[derive(Clone, Debug)]
pub(crate) struct KnownChain {
    /// Serial and issuer of every authority between the leaf and the root.
    pub(crate) intermediates: Arc<[(Serial, Issuer)]>,
    /// From when all of its certificates are valid.
    pub(crate) not_before: SystemTime,
    /// Until when all of them are.
    pub(crate) not_after: SystemTime,
}

/// By which a chain is known: a hash of all that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChainKey([u8; 32]);

impl ChainKey {
    /// Of these bytes, for this usage.
    pub(crate) fn of(
        usage: Usage,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&[usage as u8]);
        for der in std::iter::once(leaf).chain(intermediates) {
            // With its length, two chains of the same bytes differ.
            hash.update(&(der.len() as u64).to_be_bytes());
            hash.update(der);
        }
        Self(hash.finish().as_ref().try_into().expect("SHA-256 yields 32 bytes"))
    }
}

/// The known chains of one set of roots.
#[derive(Debug, Default)]
pub(crate) struct KnownChains(Mutex<HashMap<ChainKey, KnownChain>>);

impl KnownChains {
    /// The chain, if it was verified before and is valid at `now`.
    pub(crate) fn get(&self, key: &ChainKey, now: SystemTime) -> Option<KnownChain> {
        let chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = chains.get(key).filter(|it| it.not_before <= now && now <= it.not_after);
        known.cloned()
    }

    /// Remembers a chain that was verified.
    pub(crate) fn insert(&self, key: ChainKey, chain: KnownChain) {
        let mut chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if chains.len() >= MAX_CHAINS
            && let Some(any) = chains.keys().next().copied()
        {
            chains.remove(&any);
        }
        chains.insert(key, chain);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn chain(from: u64, until: u64) -> KnownChain {
        KnownChain { intermediates: [].into(), not_before: at(from), not_after: at(until) }
    }

    fn der(bytes: &[u8]) -> CertificateDer<'_> {
        CertificateDer::from(bytes)
    }

    #[test]
    fn a_chain_is_known_while_all_of_it_is_valid() {
        let (known, key) = (KnownChains::default(), ChainKey([7; 32]));
        assert!(known.get(&key, at(15)).is_none());
        known.insert(key, chain(10, 20));
        for (second, expected) in [(9, false), (10, true), (20, true), (21, false)] {
            assert_eq!(known.get(&key, at(second)).is_some(), expected, "{second}");
        }
    }

    #[test]
    fn other_bytes_places_and_usages_are_other_chains() {
        let key = ChainKey::of(Usage::Client, &der(b"ab"), &[der(b"c")]);
        for other in [
            ChainKey::of(Usage::Server, &der(b"ab"), &[der(b"c")]),
            ChainKey::of(Usage::Client, &der(b"a"), &[der(b"bc")]),
            ChainKey::of(Usage::Client, &der(b"ab"), &[der(b"c"), der(b"")]),
            ChainKey::of(Usage::Client, &der(b"abc"), &[]),
        ] {
            assert_ne!(key, other);
        }
        assert_eq!(key, ChainKey::of(Usage::Client, &der(b"ab"), &[der(b"c")]));
    }

    #[test]
    fn they_are_never_more_than_their_bound() {
        let known = KnownChains::default();
        for number in 0..3 * MAX_CHAINS as u64 {
            let key = ChainKey::of(Usage::Client, &der(&number.to_be_bytes()), &[]);
            known.insert(key, chain(0, 1));
            assert!(known.get(&key, at(0)).is_some());
        }
        assert!(known.0.lock().expect("not poisoned").len() <= MAX_CHAINS);
    }
}
