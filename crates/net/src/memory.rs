//! How much connections may hold in memory together: received bytes that cannot be sent on yet.
//!
//! An [`Account`] is one owner's share: the whole worker's, a pod's, a client's. Held bytes are on
//! the [`Accounts`] of all their owners, and the smallest share limits them. Two bounds work
//! together. The *window* is how much one more connection may hold. For a party that opens
//! connections it follows from how many of them hold bytes already, so ten thousand slow readers
//! fit into the share that ten could fill. For a party that serves many others it follows from what
//! is free, so one of them does not narrow the others' windows. The *reservation* is what a peer
//! may still send; it never exceeds the share, however the peer uses its windows. All threads share
//! the accounts; nothing here waits.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The smallest window: more than a segment, so that a stream always gets on.
pub const MIN_WINDOW_BYTES: u32 = 2 * 1024;
/// A window is this part of what each holder could have. The first ones fill larger windows than
/// the last ones: with eight, all of them together stay below the share (see the tests).
const WINDOW_PART: usize = 8;
/// Where many parties share, a window is this part of what is free: narrow only when three quarters
/// of a share that is 128 times the largest window are used.
const FREE_PART: usize = 32;
/// No window is larger, whatever the settings say: each doubling of the largest window costs a
/// sixteenth of the share.
const MAX_WINDOW_BYTES: u32 = 16 << 20;
/// Below this window memory is short, and what waits is packed.
const AMPLE_WINDOW_BYTES: u32 = 1 << 20;

/// How much one more connection may hold, of a share that `holders` hold already.
///
/// A connection that holds more than a window got it while so few held bytes that the window was
/// larger, and those few still hold theirs. So the `n`-th largest of them is at most the window
/// beside `n - 1` others, however they come and go, and the sum of all is bounded by the sum of
/// these.
pub fn window(share_bytes: usize, holders: usize, most: u32) -> u32 {
    rounded(share_bytes / WINDOW_PART / (holders + 1), most)
}

/// A power of two, so that small changes change nothing.
fn rounded(bytes: usize, most: u32) -> u32 {
    let power = bytes.checked_ilog2().map_or(0, |exponent| 1 << exponent.min(31));
    power.clamp(MIN_WINDOW_BYTES, MAX_WINDOW_BYTES).min(most)
}

/// Whose share it is, and so what the window follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One party that opens connections: the window follows from how many of them hold bytes.
    One,
    /// All that such parties use together: the window follows from what is free.
    Many,
}

/// One owner's share of the memory.
#[derive(Debug)]
pub struct Account {
    owner: Owner,
    share_bytes: usize,
    reserved_bytes: AtomicUsize,
    holders: AtomicUsize,
}

impl Account {
    /// An account on which nothing is held.
    pub fn new(owner: Owner, share_bytes: usize) -> Self {
        let (reserved_bytes, holders) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { owner, share_bytes, reserved_bytes, holders }
    }

    /// The window while `times` as much is held as now is.
    fn window(&self, most: u32, times: usize) -> u32 {
        match self.owner {
            Owner::One => window(self.share_bytes, times * self.holders(), most),
            Owner::Many => {
                let free = self.share_bytes.saturating_sub(self.reserved_bytes());
                rounded(free / times / FREE_PART, most)
            }
        }
    }

    /// Bytes that are held, or that may arrive at any moment.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Relaxed)
    }

    /// What may be held at most.
    pub fn share_bytes(&self) -> usize {
        self.share_bytes
    }

    /// How many hold so much that it counts.
    pub fn holders(&self) -> usize {
        self.holders.load(Relaxed)
    }

    fn try_reserve(&self, bytes: usize) -> bool {
        let fits = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= self.share_bytes);
        self.reserved_bytes.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.reserved_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// The accounts of all owners of a connection. Clones share them; none means no bound.
#[derive(Clone, Debug, Default)]
pub struct Accounts(Rc<[Arc<Account>]>);

impl FromIterator<Arc<Account>> for Accounts {
    fn from_iter<I: IntoIterator<Item = Arc<Account>>>(accounts: I) -> Self {
        Self(accounts.into_iter().collect())
    }
}

impl Accounts {
    /// How much one more may hold now, at most `most`.
    pub fn window(&self, most: u32) -> u32 {
        self.0.iter().map(|account| account.window(most, 1)).min().unwrap_or(most)
    }

    /// A window that may be grown to without shrinking again soon.
    pub(crate) fn lasting_window(&self, most: u32) -> u32 {
        self.0.iter().map(|account| account.window(most, 2)).min().unwrap_or(most)
    }

    /// Whether memory is short: what waits is packed and reads are small.
    pub(crate) fn are_short(&self) -> bool {
        self.window(AMPLE_WINDOW_BYTES) < AMPLE_WINDOW_BYTES
    }

    /// Reserves on all accounts or on none.
    pub(crate) fn try_reserve(&self, bytes: usize) -> bool {
        let refused = self.0.iter().position(|account| !account.try_reserve(bytes));
        if let Some(number) = refused {
            self.0[..number].iter().for_each(|account| account.release(bytes));
        }
        refused.is_none()
    }

    /// Reserves bytes that are held already, even beyond the share.
    pub fn charge(&self, bytes: usize) {
        for account in self.0.iter() {
            account.reserved_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Releases reserved bytes.
    pub fn release(&self, bytes: usize) {
        self.0.iter().for_each(|account| account.release(bytes));
    }

    fn count(&self) {
        for account in self.0.iter() {
            account.holders.fetch_add(1, Relaxed);
        }
    }

    fn uncount(&self) {
        for account in self.0.iter() {
            account.holders.fetch_sub(1, Relaxed);
        }
    }
}

/// One that may become a holder on its accounts, and is none any more when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    accounts: Accounts,
    is_counted: bool,
    charged_bytes: usize,
}

impl Holder {
    pub(crate) fn new(accounts: Accounts) -> Self {
        Self { accounts, is_counted: false, charged_bytes: 0 }
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// It holds bytes that are reserved elsewhere, or no more.
    pub(crate) fn set_counted(&mut self, is_counted: bool) {
        match (std::mem::replace(&mut self.is_counted, is_counted), is_counted) {
            (false, true) => self.accounts.count(),
            (true, false) => self.accounts.uncount(),
            _ => {}
        }
    }

    /// It holds so many bytes, reserved here.
    pub(crate) fn set_charged(&mut self, bytes: usize) {
        self.set_counted(bytes > 0);
        let before = std::mem::replace(&mut self.charged_bytes, bytes);
        if bytes > before {
            self.accounts.charge(bytes - before);
        } else if bytes < before {
            self.accounts.release(before - bytes);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.set_charged(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_window_halves_while_the_holders_double() {
        let check = |share, holders, most, expected| {
            assert_eq!(window(share, holders, most), expected, "{share} {holders} {most}");
        };
        check(64 * MIB, 0, 1 << 20, 1 << 20);
        check(64 * MIB, 7, 1 << 20, 1 << 20);
        check(64 * MIB, 8, 1 << 20, 512 << 10);
        check(64 * MIB, 15, 1 << 20, 512 << 10);
        check(64 * MIB, 4_000, 1 << 20, MIN_WINDOW_BYTES);
        check(64 * MIB, usize::MAX - 1, 1 << 20, MIN_WINDOW_BYTES);
        check(64 * MIB, 0, 65_535, 65_535);
        check(0, 0, 1 << 20, MIN_WINDOW_BYTES);
    }

    /// However they come and go, each filling the window it is given at once: the sum stays below
    /// the share as long as there are no more of them than smallest windows in half of it.
    #[test]
    fn the_sum_of_what_is_held_stays_below_the_share() {
        for (share, most) in [(8 * MIB, 1 << 20), (64 * MIB, 1 << 20), (128 * MIB, u32::MAX)] {
            let capacity = share / MIN_WINDOW_BYTES as usize / 2;
            // Drawn by xorshift, so that every run is the same.
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            let mut held: Vec<usize> = Vec::new();
            let (mut sum, mut largest) = (0, 0);
            for step in 0..200_000 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Tides: mostly coming, then mostly going.
                let is_coming = state % 100 < if (step / 20_000) % 2 == 0 { 90 } else { 20 };
                if is_coming && held.len() < capacity {
                    let bytes = window(share, held.len(), most) as usize;
                    held.push(bytes);
                    sum += bytes;
                } else if !held.is_empty() {
                    let one = usize::try_from(state >> 32).expect("64 bits") % held.len();
                    sum -= held.swap_remove(one);
                }
                largest = largest.max(sum);
                assert!(sum <= share, "{sum} of {share} held by {}", held.len());
            }
            assert!(largest > share / 2, "the share is used: {largest} of {share}");
        }
    }

    #[test]
    fn one_party_does_not_narrow_the_windows_of_the_others() {
        const MOST: u32 = 1 << 20;
        let all = Arc::new(Account::new(Owner::Many, 128 * MIB));
        let of = || [Arc::new(Account::new(Owner::One, 64 * MIB)), all.clone()].into_iter();
        let (flooding, other): (Accounts, Accounts) = (of().collect(), of().collect());
        let mut holders = Vec::new();
        while flooding.window(MOST) > MIN_WINDOW_BYTES {
            let mut holder = Holder::new(flooding.clone());
            holder.set_charged(flooding.window(MOST) as usize);
            holders.push(holder);
        }
        assert_eq!((other.window(MOST), other.lasting_window(MOST)), (MOST, MOST));
        assert!(flooding.are_short() && !other.are_short());
        drop(holders);
        assert_eq!((flooding.window(MOST), all.reserved_bytes()), (MOST, 0));
    }

    #[test]
    fn a_reservation_is_made_everywhere_or_nowhere() {
        let large = Arc::new(Account::new(Owner::Many, 100));
        let small = Arc::new(Account::new(Owner::One, 10));
        let accounts: Accounts = [large.clone(), small.clone()].into_iter().collect();
        assert!(accounts.try_reserve(10));
        assert!(!accounts.try_reserve(1));
        assert_eq!((large.reserved_bytes(), small.reserved_bytes()), (10, 10));
        accounts.release(10);
        let mut holder = Holder::new(accounts.clone());
        holder.set_charged(25);
        assert_eq!((large.reserved_bytes(), small.reserved_bytes()), (25, 25));
        assert_eq!((large.holders(), small.holders()), (1, 1));
        holder.set_charged(5);
        assert_eq!((large.reserved_bytes(), small.holders()), (5, 1));
        drop(holder);
        assert_eq!((large.reserved_bytes(), small.holders()), (0, 0));
    }
}
