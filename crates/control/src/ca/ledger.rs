//! What the authority signed and what it revoked.
//!
//! A revocation names a pod, an identity or a serial; the ledger finds the serials for the first
//! two. It also knows whether every holder has fetched a certificate since a given time: then a
//! rotation of the root may continue. Entries expire with their certificates. Nothing here signs
//! anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ambit_model::identity::Identity;
use ambit_tls::certificate::Serial;
use serde::{Deserialize, Serialize};

use super::shared::{ORDERS_MAX, Order, REVOKED_MAX, Shared};
use crate::durable::{self, FileError, PRIVATE};

/// Most live certificates in all. What is forgotten can no longer be revoked by its identity, so
/// nothing is: beyond this no more are signed.
const ISSUED_MAX: usize = 500_000;
/// Most live certificates of one node, so that no node takes the room of others. A pod's identity
/// has two or three at a time, and a few more whenever its proxy restarts.
const ISSUED_PER_NODE_MAX: usize = 10_000;
/// Most live certificates of one identity on one node: what is taken back with it is on every
/// proxy's list. An honest proxy holds one, two while it renews, and two more while it is upgraded.
const HELD_MAX: usize = 64;
/// A holder of so many lives with short certificates. That is what a proxy is whose container dies
/// again and again: the kubelet starts it every five minutes then, which within
/// [`CROWDED_TTL`] makes a dozen, and so it never comes to [`HELD_MAX`].
pub(super) const HELD_CROWDED: usize = 32;
/// How long further certificates of such a holder live.
pub(super) const CROWDED_TTL: Duration = Duration::from_secs(3600);
/// How the holder of certificates of WorkloadEntries begins; a namespace and an account follow. No
/// node and no pod has a name that begins so: neither holds a colon.
pub(crate) const OF_ENTRIES: &str = "entry:";
/// Most live certificates of all WorkloadEntries together. Whoever may make WorkloadEntries and
/// tokens in some namespace must not take the room of nodes.
const ISSUED_OF_ENTRIES_MAX: usize = ISSUED_MAX / 4;
/// Most live certificates of one account's WorkloadEntries. They have one identity, and their
/// number is no matter: two for each of some hundred computers, and room for restarts. It is a
/// twentieth of what can be taken back at a time.
const HELD_BY_ENTRIES_MAX: usize = 1024;
/// How long a serial is known that has ended while it was on the list: until no list that was
/// published has it any more.
const ENDED_KEPT_SECONDS: u64 = 3600;
/// How long a serial stays on the list after its certificate has expired, as long as there is room.
/// By a clock that is ahead it would expire early, and the thief of the certificate could use it
/// again.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(2 * 86_400);
/// How much later by its own clock a replica may have signed what was signed before an order of
/// another replica. What was signed just after the order is revoked too: its proxy asks again.
const CLOCKS_DIFFER_SECONDS: u64 = 120;
/// The ledger is rewritten when it has this many more lines than entries.
const STALE_LINES_MAX: usize = 10_000;

/// One certificate that was signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Issued {
    /// Serial number, hexadecimal.
    pub(crate) serial: String,
    /// Whose it is.
    pub(crate) identity: String,
    /// The node that asked for it; for WorkloadEntries [`OF_ENTRIES`] and their account.
    pub(crate) node: String,
    /// When it was signed, seconds since 1970.
    pub(crate) issued_at: u64,
    /// When it ends, seconds since 1970.
    pub(crate) not_after: u64,
}

/// One certificate that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Revoked {
    /// Serial number, hexadecimal.
    pub(crate) serial: String,
    /// Whose it was, if the ledger knew.
    pub(crate) identity: Option<String>,
    /// The node that had asked for it, if the ledger knew.
    pub(crate) node: Option<String>,
    /// When it was taken back, seconds since 1970.
    pub(crate) revoked_at: u64,
    /// When it would have ended; unknown ones stay on the list.
    pub(crate) not_after: Option<u64>,
}

/// What to revoke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    /// One certificate.
    Serial(Serial),
    /// All that one node holds for one identity.
    Holder {
        /// The identity in the certificates.
        identity: Identity,
        /// The node whose proxy requested them.
        node: String,
    },
    /// All of one identity, on every node.
    Identity(Identity),
}

/// Why no further certificate is signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// This node holds as many as it may.
    #[error(
        "node {node} holds {ISSUED_PER_NODE_MAX} certificates that have not ended, as many as one \
         node may; wait until some end"
    )]
    Node {
        /// Which.
        node: String,
    },
    /// One identity does on a node.
    #[error(
        "node {node} holds {HELD_MAX} certificates of {identity} that have not ended, where a \
         proxy needs two; wait until some end"
    )]
    Holder {
        /// Whose.
        identity: String,
        /// Where.
        node: String,
    },
    /// The WorkloadEntries of one account do.
    #[error(
        "the workload entries of service account {account} hold {HELD_BY_ENTRIES_MAX} certificates \
         that have not ended, where each computer needs two; wait until some end"
    )]
    Account {
        /// Namespace and name.
        account: String,
    },
    /// All WorkloadEntries together do.
    #[error(
        "all workload entries together hold {ISSUED_OF_ENTRIES_MAX} certificates that have not \
         ended, as many as they may; shorten --workload-cert-ttl, or wait until some end"
    )]
    Entries,
    /// All nodes together do.
    #[error(
        "the ledger holds {ISSUED_MAX} certificates that have not ended; shorten \
         --workload-cert-ttl, or wait until some end"
    )]
    All,
}

/// Why a certificate is not taken back.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The list is full.
    #[error(
        "{REVOKED_MAX} certificates and {ORDERS_MAX} orders can be on the list at a time, half of \
         the certificates while a root is rotated, and this is beyond; it becomes shorter as \
         certificates end; to distrust all at once, plug in a new root"
    )]
    Full,
    /// It cannot be written down.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What came of taking over what others know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Absorbed {
    /// What all must know now.
    pub(crate) all: Shared,
    /// Whether the list of revocations became longer.
    pub(crate) is_longer: bool,
    /// Whether there was no room for all of it.
    pub(crate) is_full: bool,
}

/// One who holds certificates: an identity on a node.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    /// When the last one was signed, seconds since 1970.
    latest: u64,
    /// How many have not ended.
    live: usize,
}

/// Certificates signed and taken back, kept on disk.
#[derive(Debug)]
pub(crate) struct Ledger {
    issued_path: PathBuf,
    revoked_path: PathBuf,
    issued: BTreeMap<(u64, String), Issued>,
    holders: HashMap<(String, String), Held>,
    by_node: HashMap<String, usize>,
    /// How many of the issued are of WorkloadEntries.
    of_entries: usize,
    revoked: BTreeMap<String, Revoked>,
    /// Serials that have ended on the list, and when that was noticed, seconds since 1970.
    ended: BTreeMap<String, u64>,
    /// Orders that were carried out here; kept only where replicas share them.
    orders: BTreeSet<Order>,
    /// Those of them for which the list had no room.
    unfinished: BTreeSet<Order>,
    lines: usize,
    /// Most that may be on the list now.
    room: usize,
    pace: Pace,
}

/// The wall clock, but never faster than time passes: what is forgotten by it had its whole life,
/// although the clock was set ahead meanwhile. It lags by at most [`CLOCK_AHEAD_MAX`].
#[derive(Debug)]
struct Pace {
    reached: SystemTime,
    at: Instant,
}

impl Pace {
    /// At the start that much is certain: the time of what was signed `last`.
    fn new(now: SystemTime, last: SystemTime) -> Self {
        let mut pace = Self { reached: last, at: Instant::now() };
        pace.follow(now);
        pace
    }

    fn follow(&mut self, now: SystemTime) -> SystemTime {
        let passed = self.reached + self.at.elapsed();
        let earliest = now.checked_sub(CLOCK_AHEAD_MAX).unwrap_or(UNIX_EPOCH);
        *self = Self { reached: passed.max(earliest).min(now), at: Instant::now() };
        self.reached
    }
}

/// How many certificates a holder has from which on further ones are short.
pub(super) fn crowded_from(node: &str) -> usize {
    if node.starts_with(OF_ENTRIES) { HELD_BY_ENTRIES_MAX / 2 } else { HELD_CROWDED }
}

/// Seconds since 1970.
pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

impl Ledger {
    /// The ledger kept in `directory`. A line that cannot be read was cut off by a crash and is
    /// left out.
    pub(crate) fn open(directory: &Path, now: SystemTime) -> Result<Self, FileError> {
        let mut ledger = Self {
            issued_path: directory.join("issued.jsonl"),
            revoked_path: directory.join("revoked.json"),
            issued: BTreeMap::new(),
            holders: HashMap::new(),
            by_node: HashMap::new(),
            of_entries: 0,
            revoked: BTreeMap::new(),
            ended: BTreeMap::new(),
            orders: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            lines: 0,
            room: REVOKED_MAX,
            pace: Pace::new(now, now),
        };
        let lines = durable::read(&ledger.issued_path)?.unwrap_or_default();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(entry) => ledger.remember(entry),
                Err(error) => tracing::warn!(%error, "a line of the certificate ledger is damaged"),
            }
        }
        if let Some(json) = durable::read(&ledger.revoked_path)? {
            let list: Vec<Revoked> = serde_json::from_slice(&json).map_err(|error| FileError {
                operation: "read",
                path: ledger.revoked_path.clone(),
                source: error.into(),
            })?;
            ledger.revoked = list.into_iter().map(|it| (it.serial.clone(), it)).collect();
        }
        let last = ledger.issued.values().map(|entry| entry.issued_at).max();
        ledger.pace =
            Pace::new(now, last.map_or(now, |last| UNIX_EPOCH + Duration::from_secs(last)));
        ledger.forget_expired(now);
        ledger.rewrite()?;
        Ok(ledger)
    }

    /// How many certificates `identity` holds on `node`, if there is room for one more.
    pub(crate) fn admit(
        &mut self,
        identity: &Identity,
        node: &str,
        now: SystemTime,
    ) -> Result<usize, Full> {
        let holder = (identity.to_string(), node.to_owned());
        if self.has_room(&holder).is_err() {
            self.forget_issued(now);
        }
        self.has_room(&holder)
    }

    fn has_room(&self, holder: &(String, String)) -> Result<usize, Full> {
        let (identity, node) = holder;
        if self.by_node.get(node).is_some_and(|held| *held >= ISSUED_PER_NODE_MAX) {
            return Err(Full::Node { node: node.clone() });
        }
        if self.issued.len() >= ISSUED_MAX {
            return Err(Full::All);
        }
        let held = self.holders.get(holder).map_or(0, |held| held.live);
        match node.strip_prefix(OF_ENTRIES) {
            Some(_) if self.of_entries >= ISSUED_OF_ENTRIES_MAX => Err(Full::Entries),
            Some(account) if held >= HELD_BY_ENTRIES_MAX => {
                Err(Full::Account { account: account.to_owned() })
            }
            None if held >= HELD_MAX => {
                Err(Full::Holder { identity: identity.clone(), node: node.clone() })
            }
            _ => Ok(held),
        }
    }

    /// Writes down a certificate before it is handed out.
    pub(crate) fn record(&mut self, entry: Issued, now: SystemTime) -> Result<(), FileError> {
        let mut line = serde_json::to_vec(&entry).expect("texts and numbers are JSON");
        line.push(b'\n');
        let path = &self.issued_path;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(PRIVATE);
        let appended = options.open(path).and_then(|mut file| file.write_all(&line));
        appended.map_err(|source| FileError {
            operation: "append to",
            path: path.clone(),
            source,
        })?;
        self.remember(entry);
        self.lines += 1;
        if self.lines > self.issued.len() + STALE_LINES_MAX {
            self.forget_expired(now);
            self.rewrite()?;
        }
        Ok(())
    }

    fn remember(&mut self, entry: Issued) {
        let (identity, node) = (entry.identity.clone(), entry.node.clone());
        let issued_at = entry.issued_at;
        if self.issued.insert((entry.not_after, entry.serial.clone()), entry).is_none() {
            self.of_entries += usize::from(node.starts_with(OF_ENTRIES));
            *self.by_node.entry(node.clone()).or_default() += 1;
            let held = self.holders.entry((identity, node)).or_default();
            held.latest = issued_at.max(held.latest);
            held.live += 1;
        }
    }

    /// Revokes certificates, all or none; returns those that were not revoked before.
    pub(crate) fn revoke(
        &mut self,
        which: &Which,
        now: SystemTime,
    ) -> Result<Vec<Revoked>, RevokeError> {
        let mut fresh = Vec::new();
        for entry in self.issued.values().filter(|entry| which.names(entry)) {
            fresh.push(entry.revoked(unix(now)));
        }
        if let Which::Serial(serial) = which
            && fresh.is_empty()
        {
            // Signed by another replica, or before this ledger began.
            fresh.push(Revoked::elsewhere(serial.to_string(), None, unix(now)));
        }
        fresh.retain(|it| !self.revoked.contains_key(&it.serial));
        if self.revoked.len() + fresh.len() > self.room {
            self.forget_revoked(unix(now), unix(now));
            // After a start, issued certificates are kept for longer than they last.
            fresh.retain(|it| !it.has_ended(unix(now)));
        }
        if self.revoked.len() + fresh.len() > self.room || self.orders.len() >= ORDERS_MAX {
            return Err(RevokeError::Full);
        }
        self.revoked.extend(fresh.iter().map(|it| (it.serial.clone(), it.clone())));
        self.write_revoked()?;
        Ok(fresh)
    }

    /// Remembers, for the other replicas, that `which` was taken back; `life` is the longest that
    /// a certificate of it may still have.
    pub(crate) fn order(&mut self, which: &Which, life: Duration, now: SystemTime) {
        let (identity, node) = match which {
            Which::Serial(_) => return,
            Which::Holder { identity, node } => (identity, Some(node.clone())),
            Which::Identity(identity) => (identity, None),
        };
        let identity = identity.to_string();
        let (ordered_at, until) = (unix(now), unix(now + life));
        self.orders.insert(Order { identity, node, ordered_at, until });
    }

    /// Takes over the revocations of other replicas, and carries out their orders, as far as there
    /// is room: entries on the shared list come before new ones.
    pub(crate) fn absorb(
        &mut self,
        shared: &Shared,
        now: SystemTime,
    ) -> Result<Absorbed, FileError> {
        self.forget_expired(now);
        let now = unix(now);
        let told = shared.revoked.iter().filter(|(_, end)| end.is_none_or(|end| kept(end) >= now));
        let mut fresh: Vec<Revoked> =
            told.map(|(serial, end)| Revoked::elsewhere(serial.clone(), *end, now)).collect();
        let mut carried_out = std::mem::take(&mut self.unfinished);
        for order in shared.orders.iter().filter(|order| order.until >= now) {
            if self.orders.len() < ORDERS_MAX && self.orders.insert(order.clone()) {
                carried_out.insert(order.clone());
            }
        }
        for order in &carried_out {
            let named = self.issued.values().filter(|entry| order.names(entry));
            fresh.extend(named.map(|entry| entry.revoked(now)));
        }
        let (is_longer, is_full) = self.add_revoked(fresh, now);
        if is_full {
            self.unfinished = carried_out;
        }
        if is_longer {
            self.write_revoked()?;
        }
        self.orders.retain(|order| order.until >= now);
        let revoked = self.revoked.values().map(|it| (it.serial.clone(), it.not_after)).collect();
        let all = Shared { revoked, orders: self.orders.clone() };
        Ok(Absorbed { all, is_longer, is_full })
    }

    /// Takes over the serials of a list that some replica has published, each until `end`; but not
    /// those that have ended here. Answers whether the list became longer.
    pub(crate) fn absorb_published(
        &mut self,
        serials: impl Iterator<Item = String>,
        end: u64,
        now: SystemTime,
    ) -> Result<bool, FileError> {
        let now = unix(now);
        if kept(end) < now {
            return Ok(false);
        }
        let fresh = serials.filter(|serial| !self.ended.contains_key(serial));
        let fresh: Vec<Revoked> =
            fresh.map(|serial| Revoked::elsewhere(serial, Some(end), now)).collect();
        let (is_longer, _) = self.add_revoked(fresh, now);
        if is_longer {
            self.write_revoked()?;
        }
        Ok(is_longer)
    }

    /// Adds what is not there yet, as long as there is room; answers whether anything was added,
    /// and whether the room was too small. What has ended by `now` makes room for what has not.
    fn add_revoked(&mut self, mut fresh: Vec<Revoked>, now: u64) -> (bool, bool) {
        fresh.retain(|entry| !self.revoked.contains_key(&entry.serial));
        if self.revoked.len() + fresh.len() > self.room {
            self.forget_revoked(now, now);
            fresh.retain(|entry| !entry.has_ended(now));
        }
        let (mut is_longer, mut is_full) = (false, false);
        for entry in fresh {
            if self.revoked.len() >= self.room {
                is_full = true;
            } else {
                is_longer |= self.revoked.insert(entry.serial.clone(), entry).is_none();
            }
        }
        (is_longer, is_full)
    }

    /// From now on so many lists are published together, each with all serials: what has ended
    /// makes room for that. What has not stays, though it may be more than the room.
    pub(crate) fn divide_room(&mut self, lists: usize, now: SystemTime) {
        self.room = REVOKED_MAX / lists;
        if self.revoked.len() > self.room {
            self.forget_revoked(unix(now), unix(now));
        }
    }

    /// The serials on the list.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = &Revoked> {
        self.revoked.values()
    }

    /// Certificates that have not ended.
    pub(crate) fn issued(&self) -> impl Iterator<Item = &Issued> {
        self.issued.values()
    }

    /// Whether this node has fetched a certificate of this identity since `moment`.
    pub(crate) fn has_fetched_since(&self, identity: &Identity, node: &str, moment: u64) -> bool {
        let holder = (identity.to_string(), node.to_owned());
        self.holders.get(&holder).is_some_and(|held| held.latest > moment)
    }

    /// Drops what has ended, also if the clock was ahead for a while; answers whether the list of
    /// revocations became shorter.
    pub(crate) fn forget_expired(&mut self, now: SystemTime) -> bool {
        let before = self.revoked.len();
        let surely = self.pace.follow(now);
        self.forget_issued(surely);
        let now = unix(now);
        self.forget_revoked(now.saturating_sub(CLOCK_AHEAD_MAX.as_secs()), now);
        self.ended.retain(|_, at| *at + ENDED_KEPT_SECONDS >= now);
        self.revoked.len() < before
    }

    /// Drops revocations of certificates that ended before `end`.
    fn forget_revoked(&mut self, end: u64, now: u64) {
        let has_ended = |_: &String, it: &mut Revoked| it.has_ended(end);
        let ended = self.revoked.extract_if(.., has_ended).map(|(serial, _)| (serial, now));
        self.ended.extend(ended);
    }

    fn forget_issued(&mut self, now: SystemTime) {
        let now = unix(now);
        if self.issued.keys().next().is_none_or(|(end, _)| *end >= now) {
            return;
        }
        self.issued = self.issued.split_off(&(now, String::new()));
        self.by_node.clear();
        self.of_entries = 0;
        for held in self.holders.values_mut() {
            held.live = 0;
        }
        for entry in self.issued.values() {
            self.of_entries += usize::from(entry.node.starts_with(OF_ENTRIES));
            *self.by_node.entry(entry.node.clone()).or_default() += 1;
            let holder = (entry.identity.clone(), entry.node.clone());
            self.holders.entry(holder).or_default().live += 1;
        }
        self.holders.retain(|_, held| held.live > 0);
    }

    fn rewrite(&mut self) -> Result<(), FileError> {
        let mut text = Vec::new();
        for entry in self.issued.values() {
            serde_json::to_writer(&mut text, entry).expect("texts and numbers are JSON");
            text.push(b'\n');
        }
        self.lines = self.issued.len();
        durable::replace(&self.issued_path, &text, PRIVATE)?;
        self.write_revoked()
    }

    fn write_revoked(&self) -> Result<(), FileError> {
        let list: Vec<&Revoked> = self.revoked.values().collect();
        let json = serde_json::to_vec_pretty(&list).expect("texts and numbers are JSON");
        durable::replace(&self.revoked_path, &json, PRIVATE)
    }
}

impl Issued {
    fn revoked(&self, revoked_at: u64) -> Revoked {
        Revoked {
            serial: self.serial.clone(),
            identity: Some(self.identity.clone()),
            node: Some(self.node.clone()),
            revoked_at,
            not_after: Some(self.not_after),
        }
    }
}

/// Until when a serial whose certificate ends then is on the list.
fn kept(end: u64) -> u64 {
    end.saturating_add(CLOCK_AHEAD_MAX.as_secs())
}

impl Revoked {
    fn has_ended(&self, now: u64) -> bool {
        self.not_after.is_some_and(|end| end < now)
    }

    /// One that another replica took back.
    fn elsewhere(serial: String, not_after: Option<u64>, revoked_at: u64) -> Self {
        Self { serial, identity: None, node: None, revoked_at, not_after }
    }
}

impl Order {
    fn names(&self, entry: &Issued) -> bool {
        entry.identity == self.identity
            && self.node.as_ref().is_none_or(|node| *node == entry.node)
            && entry.issued_at <= self.ordered_at.saturating_add(CLOCKS_DIFFER_SECONDS)
    }
}

impl Which {
    fn names(&self, entry: &Issued) -> bool {
        match self {
            Self::Serial(serial) => entry.serial == serial.to_string(),
            Self::Identity(identity) => entry.identity == identity.to_string(),
            Self::Holder { identity, node } => {
                entry.identity == identity.to_string() && entry.node == *node
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_node_that_holds_too_many_is_refused_and_takes_nobodys_room() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path(), at(0)).unwrap();
        let identity = |number: usize| format!("spiffe://t/ns/app/sa/web-{}", number / HELD_MAX);
        let entry = |node: &str, serial: usize, not_after| Issued {
            serial: format!("{serial:x}"),
            identity: identity(serial),
            node: node.to_owned(),
            issued_at: 1,
            not_after,
        };
        let of = |number: usize| -> Identity { identity(number).parse().unwrap() };
        ledger.remember(entry("quiet", 1, 50));
        for serial in 0..ISSUED_PER_NODE_MAX {
            assert_eq!(ledger.admit(&of(serial), "greedy", at(2)), Ok(serial % HELD_MAX));
            ledger.remember(entry("greedy", serial, 100 + u64::from(serial > 0)));
        }
        let full = Full::Node { node: "greedy".to_owned() };
        assert_eq!(ledger.admit(&of(0), "greedy", at(2)), Err(full.clone()));
        assert_eq!(ledger.admit(&of(0), "quiet", at(2)), Ok(1));
        assert!(ledger.issued().any(|it| it.node == "quiet"), "never the others'");
        let mut revoked = 0;
        for number in (0..ISSUED_PER_NODE_MAX).step_by(HELD_MAX) {
            let which = Which::Holder { identity: of(number), node: "greedy".to_owned() };
            revoked += ledger.revoke(&which, at(2)).unwrap().len();
        }
        assert_eq!(revoked, ISSUED_PER_NODE_MAX, "each can be taken back");
        let other = of(ISSUED_PER_NODE_MAX * 2);
        assert_eq!(ledger.admit(&other, "greedy", at(100)), Err(full));
        assert_eq!(ledger.admit(&other, "greedy", at(101)), Ok(0), "one has ended");
    }

    #[test]
    fn entries_have_a_bound_for_each_account_and_a_share_of_all() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path(), at(0)).unwrap();
        let identity = |account: usize| -> Identity {
            format!("spiffe://t/ns/shop/sa/a{account}").parse().unwrap()
        };
        let holder = |account: usize| format!("{OF_ENTRIES}shop/a{account}");
        let mut number = 0;
        let mut fill = |ledger: &mut Ledger, account: usize, count: usize, not_after| {
            for _ in 0..count {
                ledger.admit(&identity(account), &holder(account), at(2)).unwrap();
                number += 1;
                ledger.remember(Issued {
                    serial: format!("{number:x}"),
                    identity: identity(account).to_string(),
                    node: holder(account),
                    issued_at: 1,
                    not_after,
                });
            }
        };
        fill(&mut ledger, 0, HELD_BY_ENTRIES_MAX, 50);
        let full = Full::Account { account: "shop/a0".to_owned() };
        assert_eq!(ledger.admit(&identity(0), &holder(0), at(2)), Err(full));
        assert_eq!(ledger.admit(&identity(1), &holder(1), at(2)), Ok(0), "another account may");
        let others = ISSUED_OF_ENTRIES_MAX - HELD_BY_ENTRIES_MAX;
        for account in 1..=others.div_ceil(HELD_BY_ENTRIES_MAX) {
            let left = others - (account - 1) * HELD_BY_ENTRIES_MAX;
            fill(&mut ledger, account, left.min(HELD_BY_ENTRIES_MAX), 100);
        }
        assert_eq!(ledger.issued().count(), ISSUED_OF_ENTRIES_MAX);
        let fresh = (identity(999), holder(999));
        assert_eq!(ledger.admit(&fresh.0, &fresh.1, at(2)), Err(Full::Entries));
        assert_eq!(ledger.admit(&fresh.0, "node-1", at(2)), Ok(0), "nodes have their room");
        assert_eq!(ledger.admit(&fresh.0, &fresh.1, at(51)), Ok(0), "some have ended");
        assert_eq!(ledger.of_entries, others);
    }

    #[test]
    fn an_identity_holds_so_many_on_a_node_and_not_more_on_a_list() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path(), at(0)).unwrap();
        let identity: Identity = "spiffe://t/ns/app/sa/web".parse().unwrap();
        let entry = |serial: usize, not_after| Issued {
            serial: format!("{serial:x}"),
            identity: identity.to_string(),
            node: "one".to_owned(),
            issued_at: 1,
            not_after,
        };
        for serial in 0..HELD_MAX {
            assert_eq!(ledger.admit(&identity, "one", at(2)), Ok(serial));
            ledger.remember(entry(0x100 + serial, 100 + u64::from(serial > 0)));
        }
        let full = Full::Holder { identity: identity.to_string(), node: "one".to_owned() };
        assert_eq!(ledger.admit(&identity, "one", at(100)), Err(full.clone()));
        assert_eq!(ledger.admit(&identity, "two", at(100)), Ok(0), "elsewhere it may");
        assert_eq!(ledger.admit(&identity, "one", at(101)), Ok(HELD_MAX - 1), "one has ended");
        // A list that is full takes nothing more, and nothing leaves it for what is new.
        let revoked = (0..REVOKED_MAX - 1).map(|number| (format!("f{number:x}"), Some(500)));
        let shared = Shared { revoked: revoked.collect(), ..Shared::default() };
        assert!(!ledger.absorb(&shared, at(101)).unwrap().is_full);
        let refused = ledger.revoke(&Which::Identity(identity.clone()), at(101)).unwrap_err();
        assert!(matches!(refused, RevokeError::Full), "{refused}");
        ledger.revoke(&Which::Serial("0102".parse().unwrap()), at(101)).unwrap();
        let more = Shared { revoked: [("e1".into(), Some(500))].into(), ..Shared::default() };
        let absorbed = ledger.absorb(&more, at(101)).unwrap();
        assert!(absorbed.is_full && !absorbed.is_longer, "{}", absorbed.all.revoked.len());
        assert_eq!(absorbed.all.revoked.len(), REVOKED_MAX);
        let ended = at(501) + CLOCK_AHEAD_MAX;
        let absorbed = ledger.absorb(&Shared::default(), ended).unwrap();
        assert_eq!(absorbed.all.revoked.len(), 1, "the rest has ended");
    }

    #[test]
    fn a_clock_that_was_ahead_brings_nothing_back_and_hides_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let now = 1_000_000;
        let mut ledger = Ledger::open(directory.path(), at(now)).unwrap();
        let identity: Identity = "spiffe://t/ns/app/sa/web".parse().unwrap();
        let entry = |serial: &str| Issued {
            serial: serial.to_owned(),
            identity: identity.to_string(),
            node: "one".to_owned(),
            issued_at: now,
            not_after: now + 86_400,
        };
        ledger.record(entry("aa"), at(now)).unwrap();
        ledger.revoke(&Which::Serial("aa".parse().unwrap()), at(now)).unwrap();
        ledger.record(entry("bb"), at(now)).unwrap();
        // A day and an hour ahead, for a moment.
        assert!(!ledger.forget_expired(at(now + 25 * 3600)), "the list is as long as before");
        assert!(ledger.revoked().any(|it| it.serial == "aa"));
        let taken = ledger.revoke(&Which::Identity(identity.clone()), at(now + 60)).unwrap();
        assert_eq!(taken.len(), 1, "what lives can still be taken back by its name");
        ledger.record(entry("cc"), at(now)).unwrap();
        drop(ledger);
        let mut ledger = Ledger::open(directory.path(), at(now + 25 * 3600)).unwrap();
        assert_eq!(ledger.revoked().count(), 2, "nor does a start with such a clock");
        drop(ledger);
        ledger = Ledger::open(directory.path(), at(now + 60)).unwrap();
        let taken = ledger.revoke(&Which::Identity(identity.clone()), at(now + 60)).unwrap();
        assert_eq!(taken.len(), 1, "nor does it forget what lives");
        assert!(ledger.forget_expired(at(now + 86_401) + CLOCK_AHEAD_MAX));
        assert_eq!((ledger.revoked().count(), ledger.issued().count()), (0, 0));
    }

    #[test]
    fn what_has_ended_needs_no_room_when_its_holder_is_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path(), at(0)).unwrap();
        let serials = (1..REVOKED_MAX).map(|number| (format!("f{number:x}"), Some(1000)));
        let others = Shared { revoked: serials.collect(), ..Shared::default() };
        assert!(!ledger.absorb(&others, at(50)).unwrap().is_full);
        let identity = "spiffe://t/ns/app/sa/web";
        for (serial, not_after) in [("a", 10), ("b", 20), ("c", 900)] {
            ledger.remember(Issued {
                serial: serial.to_owned(),
                identity: identity.to_owned(),
                node: "n1".to_owned(),
                issued_at: 1,
                not_after,
            });
        }
        let revoked = ledger.revoke(&Which::Identity(identity.parse().unwrap()), at(60)).unwrap();
        let serials: Vec<&str> = revoked.iter().map(|it| &*it.serial).collect();
        assert_eq!(serials, ["c"], "there is room for one");
    }

    #[test]
    fn what_has_ended_makes_room_for_what_has_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(directory.path(), at(0)).unwrap();
        let list = |first: usize, end| {
            let serials = (first..first + REVOKED_MAX).map(|number| format!("f{number:x}"));
            Shared { revoked: serials.map(|it| (it, Some(end))).collect(), ..Shared::default() }
        };
        let old = list(0, 100);
        assert!(!ledger.absorb(&old, at(50)).unwrap().is_full);
        let mut all = list(REVOKED_MAX, 1000);
        let fresh = ledger.absorb(&all, at(101)).unwrap();
        assert!(!fresh.is_full && fresh.is_longer);
        // The other replicas' list still has the old ones.
        all.revoked.extend(old.revoked);
        let absorbed = ledger.absorb(&all, at(102)).unwrap();
        assert!(!absorbed.is_full && !absorbed.is_longer);
        assert!(ledger.revoked().all(|it| it.not_after == Some(1000)));
        ledger.revoke(&Which::Serial("aa".parse().unwrap()), at(1001)).unwrap();
    }
}
