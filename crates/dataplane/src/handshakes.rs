//! How many TLS handshakes with one pod may be under way on one thread.
//!
//! A handshake costs a descriptor and, once the client speaks, a signature. The bound is on the
//! pod and, far below it, on each client address: who opens connections and stays silent keeps
//! itself out, not the others. A handshake beyond a bound is refused, never queued.

use std::cell::RefCell;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

/// Handshakes with one pod.
const MAX_HANDSHAKES: u32 = 1024;
/// Handshakes with one pod from one address. A proxy opens one at a time to a destination; more
/// come from one address only when a cluster translates addresses.
const MAX_HANDSHAKES_OF_ONE_ADDRESS: u32 = 64;

/// The handshakes with one pod.
#[derive(Debug, Default)]
pub struct Handshakes(RefCell<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: u32,
    by_address: FxHashMap<IpAddr, u32>,
}

/// One handshake; it ends when this is dropped.
#[derive(Debug)]
pub struct Handshake<'a> {
    of: &'a Handshakes,
    from: IpAddr,
}

impl Handshakes {
    /// Begins a handshake with a client at this address, unless there are too many.
    pub fn begin(&self, from: IpAddr) -> Option<Handshake<'_>> {
        let mut counts = self.0.borrow_mut();
        let of_address = counts.by_address.get(&from).copied().unwrap_or_default();
        if counts.all >= MAX_HANDSHAKES || of_address >= MAX_HANDSHAKES_OF_ONE_ADDRESS {
            return None;
        }
        counts.all += 1;
        counts.by_address.insert(from, of_address + 1);
        Some(Handshake { of: self, from })
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let mut counts = self.of.0.borrow_mut();
        counts.all -= 1;
        let left = counts.by_address.get(&self.from).map_or(0, |count| count - 1);
        if left == 0 {
            counts.by_address.remove(&self.from);
        } else {
            counts.by_address.insert(self.from, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + last).into()
    }

    #[test]
    fn a_silent_client_keeps_itself_out_and_nobody_else() {
        let handshakes = Handshakes::default();
        let begin = |_| handshakes.begin(address(1));
        let mut silent: Vec<_> = (0..MAX_HANDSHAKES_OF_ONE_ADDRESS).filter_map(begin).collect();
        assert!(handshakes.begin(address(1)).is_none());
        assert!(handshakes.begin(address(2)).is_some());
        silent.pop();
        assert!(handshakes.begin(address(1)).is_some());
    }

    #[test]
    fn all_of_them_together_are_bounded_and_leave_no_trace() {
        let handshakes = Handshakes::default();
        let many: Vec<_> = (0..2 * MAX_HANDSHAKES).map(|n| handshakes.begin(address(n))).collect();
        assert_eq!(many.iter().flatten().count(), MAX_HANDSHAKES as usize);
        drop(many);
        assert_eq!(handshakes.0.borrow().all, 0);
        assert!(handshakes.0.borrow().by_address.is_empty());
    }
}
