//! Which pod numbers of a node are in use.
//!
//! Numbers are assigned in turn, so the next pod does not get the address of a pod that just ended:
//! connections and views of the old one have time to end. A pod may request its address, as tests
//! of reuse do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;

use crate::addresses::{NodeNetwork, POD_FIRST, POD_LAST};

/// A pod that asks for its IPv4 or IPv6 address, of its node's network; it gets the other to match.
pub(crate) const ADDRESS_ANNOTATION: &str = "ambit.io/pod-ip";

/// An address that a pod cannot have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AddressError {
    /// All are in use.
    #[error(
        "the node has no address left for a pod; delete pods or start the machine with more nodes"
    )]
    Exhausted,
    /// It is another pod's.
    #[error(
        "the address {address} of annotation {ADDRESS_ANNOTATION} is in use; wait or choose another"
    )]
    InUse {
        /// As asked for.
        address: String,
    },
    /// It is not one of the node's.
    #[error(
        "annotation {ADDRESS_ANNOTATION}: {address} is no pod address of the node; set nodeName too"
    )]
    Elsewhere {
        /// As asked for.
        address: String,
    },
}

/// The numbers in use on one node.
#[derive(Debug, Default)]
pub(crate) struct AddressesInUse {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: BTreeSet<u8>,
    last: u8,
}

impl AddressesInUse {
    /// Takes a number: the one of the address asked for, or the next free one.
    pub(crate) fn take(
        &self,
        network: NodeNetwork,
        asked: Option<&str>,
    ) -> Result<u8, AddressError> {
        let mut state = self.state.lock().expect("nothing panics while it holds the lock");
        let number = match asked {
            Some(address) => {
                let number = address.parse().ok().and_then(|ip: IpAddr| network.pod_number(ip));
                let address = || address.to_owned();
                let number =
                    number.ok_or_else(|| AddressError::Elsewhere { address: address() })?;
                if state.used.contains(&number) {
                    return Err(AddressError::InUse { address: address() });
                }
                number
            }
            None => {
                let start = state.last.saturating_add(1).max(POD_FIRST);
                (start..=POD_LAST)
                    .chain(POD_FIRST..start.min(POD_LAST))
                    .find(|number| !state.used.contains(number))
                    .ok_or(AddressError::Exhausted)?
            }
        };
        state.used.insert(number);
        if asked.is_none() {
            state.last = number;
        }
        Ok(number)
    }

    /// Notes the number of a pod that was there before this process.
    pub(crate) fn adopt(&self, number: u8) {
        let mut state = self.state.lock().expect("nothing panics while it holds the lock");
        state.used.insert(number);
        state.last = state.last.max(number);
    }

    /// Gives a number back.
    pub(crate) fn give_back(&self, number: u8) {
        let mut state = self.state.lock().expect("nothing panics while it holds the lock");
        state.used.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_and_wishes_are_granted() {
        let addresses = AddressesInUse::default();
        let network = NodeNetwork::new(1);
        assert_eq!(addresses.take(network, None), Ok(2));
        assert_eq!(addresses.take(network, None), Ok(3));
        addresses.give_back(2);
        assert_eq!(addresses.take(network, None), Ok(4));
        assert_eq!(addresses.take(network, Some("10.244.1.2")), Ok(2));
        let taken = AddressError::InUse { address: "fd00:10:244:1::4".into() };
        assert_eq!(addresses.take(network, Some("fd00:10:244:1::4")), Err(taken));
        let elsewhere = AddressError::Elsewhere { address: "10.244.2.9".into() };
        assert_eq!(addresses.take(network, Some("10.244.2.9")), Err(elsewhere));
        addresses.adopt(POD_LAST);
        assert_eq!(addresses.take(network, None), Ok(5));
        for number in 6..POD_LAST {
            assert_eq!(addresses.take(network, None), Ok(number));
        }
        assert_eq!(addresses.take(network, None), Err(AddressError::Exhausted));
        addresses.give_back(7);
        assert_eq!(addresses.take(network, None), Ok(7));
    }
}
