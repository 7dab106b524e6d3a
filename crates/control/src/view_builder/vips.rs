//! Addresses for hosts of ServiceEntries that have none.
//!
//! An address is derived from the host, so it is nearly always the same whatever else exists. It is
//! also stored, so it never changes while the host exists, even across restarts. Nothing here may
//! change a host's address.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ambit_model::address::{ALLOCATED_V4, ALLOCATED_V6};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Slots in the block; 0 and the last are left out, they look like network and broadcast addresses.
const SLOTS: u32 = 1 << 16;

/// The allocated addresses, as they are kept on disk.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vips {
    /// Slot of each `namespace/host`.
    slots: BTreeMap<String, u16>,
    #[serde(skip)]
    used: HashSet<u16>,
    #[serde(skip)]
    is_changed: bool,
}

/// There are more hosts than addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all 65534 addresses of 240.240.0.0/16 are taken; give ServiceEntries their own `addresses`"
)]
pub(crate) struct VipsExhausted;

impl Vips {
    /// What an earlier run kept.
    pub(crate) fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let mut vips: Self = serde_json::from_slice(json)?;
        vips.used = vips.slots.values().copied().collect();
        Ok(vips)
    }

    /// What the next run must know.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a map of strings and numbers is JSON")
    }

    /// Whether anything changed since this was last asked.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The addresses of `host` in `namespace`, allocated if there are none yet.
    pub(crate) fn allocate(
        &mut self,
        namespace: &str,
        host: &str,
    ) -> Result<[IpAddr; 2], VipsExhausted> {
        let key = format!("{namespace}/{host}");
        if let Some(slot) = self.slots.get(&key) {
            return Ok(addresses(*slot));
        }
        let first = preferred(&key);
        for step in 0..SLOTS {
            let slot = u16::try_from((u32::from(first) + step) % SLOTS).expect("below 65536");
            if slot == 0 || slot == u16::MAX || self.used.contains(&slot) {
                continue;
            }
            self.used.insert(slot);
            self.slots.insert(key, slot);
            self.is_changed = true;
            return Ok(addresses(slot));
        }
        Err(VipsExhausted)
    }

    /// Gives the addresses of `host` back.
    pub(crate) fn release(&mut self, namespace: &str, host: &str) {
        if let Some(slot) = self.slots.remove(&format!("{namespace}/{host}")) {
            self.is_changed = true;
            self.used.remove(&slot);
        }
    }
}

/// The slot that a host gets when nobody has it.
fn preferred(key: &str) -> u16 {
    let digest = Sha256::digest(key.as_bytes());
    u16::from_be_bytes([digest[0], digest[1]])
}

fn addresses(slot: u16) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from(u32::from(ALLOCATED_V4.addr()) | u32::from(slot));
    let v6 = Ipv6Addr::from(u128::from(ALLOCATED_V6.addr()) | u128::from(slot));
    [IpAddr::V4(v4), IpAddr::V6(v6)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_stable_and_distinct() {
        let mut vips = Vips::default();
        let hosts: Vec<String> = (0..5000).map(|index| format!("host-{index}.example")).collect();
        let first: Vec<_> = hosts.iter().map(|host| vips.allocate("shop", host)).collect();
        let distinct: std::collections::HashSet<_> = first.iter().flatten().flatten().collect();
        assert_eq!(distinct.len(), 10_000);
        let mut kept = Vips::from_json(&vips.to_json()).expect("what was written");
        let again: Vec<_> = hosts.iter().rev().map(|host| kept.allocate("shop", host)).collect();
        assert_eq!(again.into_iter().rev().collect::<Vec<_>>(), first);
        assert!(!kept.take_changed() && vips.take_changed());
    }

    #[test]
    fn addresses_are_in_their_blocks_and_given_back() {
        let mut vips = Vips::default();
        let [v4, v6] = vips.allocate("shop", "a.example").expect("there is room");
        assert!(v4.to_string().starts_with("240.240."), "{v4}");
        assert!(v6.to_string().starts_with("2001:2::"), "{v6}");
        vips.release("shop", "a.example");
        assert_eq!(vips, Vips { is_changed: true, ..Vips::default() });
    }

    #[test]
    fn a_full_block_is_an_error() {
        let mut vips = Vips::default();
        for index in 0..65_534 {
            vips.allocate("shop", &index.to_string()).expect("there is room");
        }
        assert_eq!(vips.allocate("shop", "one more"), Err(VipsExhausted));
    }
}
