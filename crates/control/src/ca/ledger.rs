//! What the authority signed and what it took back.
//!
//! A revocation names a pod, an identity or a serial; the ledger knows the serials of the first
//! two. It also tells whether every holder has fetched a certificate since a moment, which is when
//! a root may be rotated further. Entries end with their certificates. Nothing here signs anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_model::identity::Identity;
use ambit_tls::certificate::Serial;
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError, PRIVATE};

/// Most live certificates in all. What is forgotten can no longer be revoked by its identity, so
/// nothing is: beyond this no more are signed.
const ISSUED_MAX: usize = 500_000;
/// Most live certificates of one node, so that no node takes the room of others. A pod's identity
/// has two or three at a time, and a few more whenever its proxy is started anew.
const ISSUED_PER_NODE_MAX: usize = 10_000;
/// The ledger is written anew when it has this many more lines than entries.
const STALE_LINES_MAX: usize = 10_000;

/// One certificate that was signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Issued {
    /// Serial number, hexadecimal.
    pub(crate) serial: String,
    /// Whose it is.
    pub(crate) identity: String,
    /// The node that asked for it.
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

/// That certificates were taken back by name. Each replica carries it out on what it signed itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Order {
    /// Whose certificates.
    identity: String,
    /// Those of one node only.
    node: Option<String>,
    /// When, seconds since 1970; what was signed later is good.
    ordered_at: u64,
    /// When the last certificate that it names has ended, seconds since 1970.
    until: u64,
}

/// What all replicas of a cluster must know of revocations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shared {
    /// What was taken back, by serial.
    revoked: BTreeMap<String, Revoked>,
    /// How, where it was not by serial.
    orders: BTreeSet<Order>,
}

/// What is to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    /// One certificate.
    Serial(Serial),
    /// All that one node holds for one identity.
    Holder {
        /// The identity.
        identity: Identity,
        /// The node.
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
         node may; wait until some end, or revoke what it should not hold"
    )]
    Node {
        /// Which.
        node: String,
    },
    /// All nodes together do.
    #[error(
        "the ledger holds {ISSUED_MAX} certificates that have not ended; shorten \
         --workload-cert-ttl, or wait until some end"
    )]
    All,
}

/// Certificates signed and taken back, kept on disk.
#[derive(Debug)]
pub(crate) struct Ledger {
    issued_path: PathBuf,
    revoked_path: PathBuf,
    issued: BTreeMap<(u64, String), Issued>,
    latest: HashMap<(String, String), u64>,
    by_node: HashMap<String, usize>,
    revoked: BTreeMap<String, Revoked>,
    /// Orders that were carried out here; kept only where replicas share them.
    orders: BTreeSet<Order>,
    lines: usize,
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
            latest: HashMap::new(),
            by_node: HashMap::new(),
            revoked: BTreeMap::new(),
            orders: BTreeSet::new(),
            lines: 0,
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
        ledger.forget_expired(now);
        ledger.rewrite()?;
        Ok(ledger)
    }

    /// Whether there is room for one more certificate of `node`.
    pub(crate) fn admit(&mut self, node: &str, now: SystemTime) -> Result<(), Full> {
        if self.has_room(node).is_err() {
            self.forget_expired(now);
        }
        self.has_room(node)
    }

    fn has_room(&self, node: &str) -> Result<(), Full> {
        if self.by_node.get(node).is_some_and(|held| *held >= ISSUED_PER_NODE_MAX) {
            return Err(Full::Node { node: node.to_owned() });
        }
        if self.issued.len() >= ISSUED_MAX { Err(Full::All) } else { Ok(()) }
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
        let holder = (entry.identity.clone(), entry.node.clone());
        let latest = self.latest.entry(holder).or_default();
        *latest = entry.issued_at.max(*latest);
        let node = entry.node.clone();
        if self.issued.insert((entry.not_after, entry.serial.clone()), entry).is_none() {
            *self.by_node.entry(node).or_default() += 1;
        }
    }

    /// Takes certificates back; answers with what was not taken back before.
    pub(crate) fn revoke(
        &mut self,
        which: &Which,
        now: SystemTime,
    ) -> Result<Vec<Revoked>, FileError> {
        let mut fresh = Vec::new();
        for entry in self.issued.values().filter(|entry| which.names(entry)) {
            fresh.push(entry.revoked(unix(now)));
        }
        if let Which::Serial(serial) = which
            && fresh.is_empty()
        {
            // Signed by another replica, or before this ledger began.
            let serial = serial.to_string();
            let revoked_at = unix(now);
            fresh.push(Revoked { serial, identity: None, node: None, revoked_at, not_after: None });
        }
        fresh.retain(|it| !self.revoked.contains_key(&it.serial));
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

    /// Takes over what other replicas took back, and carries out their orders; answers with what
    /// all must know now, and whether the list of revocations became longer.
    pub(crate) fn absorb(
        &mut self,
        shared: &Shared,
        now: SystemTime,
    ) -> Result<(Shared, bool), FileError> {
        let before = self.revoked.len();
        let now = unix(now);
        for order in shared.orders.iter().filter(|order| order.until >= now) {
            if self.orders.insert(order.clone()) {
                let named = self.issued.values().filter(|entry| order.names(entry));
                let revoked = named.map(|entry| (entry.serial.clone(), entry.revoked(now)));
                let revoked: Vec<_> = revoked.collect();
                for (serial, entry) in revoked {
                    self.revoked.entry(serial).or_insert(entry);
                }
            }
        }
        for (serial, entry) in &shared.revoked {
            if entry.not_after.is_none_or(|end| end >= now) {
                self.revoked.entry(serial.clone()).or_insert_with(|| entry.clone());
            }
        }
        let is_longer = self.revoked.len() > before;
        if is_longer {
            self.write_revoked()?;
        }
        self.orders.retain(|order| order.until >= now);
        let all = Shared { revoked: self.revoked.clone(), orders: self.orders.clone() };
        Ok((all, is_longer))
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
        self.latest.get(&holder).is_some_and(|latest| *latest > moment)
    }

    /// Drops what has ended; answers whether the list of revocations became shorter.
    pub(crate) fn forget_expired(&mut self, now: SystemTime) -> bool {
        let now = unix(now);
        let has_expired = self.issued.keys().next().is_some_and(|(end, _)| *end < now);
        if has_expired {
            self.forget_issued(now);
        }
        let before = self.revoked.len();
        self.revoked.retain(|_, it| it.not_after.is_none_or(|end| end >= now));
        self.revoked.len() < before
    }

    fn forget_issued(&mut self, now: u64) {
        self.issued = self.issued.split_off(&(now, String::new()));
        let live: std::collections::HashSet<(String, String)> =
            self.issued.values().map(|it| (it.identity.clone(), it.node.clone())).collect();
        self.latest.retain(|holder, _| live.contains(holder));
        self.by_node.clear();
        for entry in self.issued.values() {
            *self.by_node.entry(entry.node.clone()).or_default() += 1;
        }
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

impl Order {
    fn names(&self, entry: &Issued) -> bool {
        entry.identity == self.identity
            && self.node.as_ref().is_none_or(|node| *node == entry.node)
            && entry.issued_at <= self.ordered_at
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
        let name = format!("ambit-ledger-quota-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let mut ledger = Ledger::open(&directory, at(0)).unwrap();
        let entry = |node: &str, serial: usize, not_after| Issued {
            serial: format!("{serial:x}"),
            identity: "spiffe://t/ns/app/sa/web".to_owned(),
            node: node.to_owned(),
            issued_at: 1,
            not_after,
        };
        ledger.remember(entry("quiet", 1, 50));
        for serial in 0..ISSUED_PER_NODE_MAX {
            assert_eq!(ledger.admit("greedy", at(2)), Ok(()));
            ledger.remember(entry("greedy", 1000 + serial, 100 + u64::from(serial > 0)));
        }
        let full = Full::Node { node: "greedy".to_owned() };
        assert_eq!(ledger.admit("greedy", at(2)), Err(full.clone()));
        assert_eq!(ledger.admit("quiet", at(2)), Ok(()));
        assert!(ledger.issued().any(|it| it.node == "quiet"), "never the others'");
        let identity: Identity = "spiffe://t/ns/app/sa/web".parse().unwrap();
        let which = Which::Holder { identity, node: "greedy".to_owned() };
        let revoked = ledger.revoke(&which, at(2)).unwrap();
        assert_eq!(revoked.len(), ISSUED_PER_NODE_MAX, "each can be taken back");
        assert_eq!(ledger.admit("greedy", at(100)), Err(full));
        assert_eq!(ledger.admit("greedy", at(101)), Ok(()), "one has ended");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
