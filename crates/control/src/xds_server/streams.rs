//! Bounds the discovery streams of a node, and those of all WorkloadEntries.
//!
//! Each stream may hold copies of the view that its client does not read, and a turn for its first
//! response. One node must not take all the memory or all the turns. A stream counts until its
//! response body is dropped, however its call ended: unread bytes are in the body. At the bound the
//! oldest stream's connection is closed, because nothing else frees those bytes.
//!
//! Whoever may make WorkloadEntries may make many, so those of a namespace count together as well.
//! Nodes have no such bound, and no entry's stream closes a node's connection.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::listener::Remote;

/// Most first answers under way: each is a copy of the whole view, and a thousand proxies may ask
/// for theirs at once.
pub(super) const FIRST_ANSWERS: usize = 16;
/// Those of WorkloadEntries' computers. Whoever may make WorkloadEntries may make many.
pub(super) const FIRST_ANSWERS_OF_ENTRIES: usize = FIRST_ANSWERS / 4;
/// Streams of one node. Its proxy has one. While it is upgraded there are two proxies of two
/// workers each, and as many again may have died without our knowing it yet. They have half of the
/// turns at most.
pub(super) const STREAMS_OF_NODE_MAX: usize = FIRST_ANSWERS / 2;
/// Streams of all WorkloadEntries: a quarter of those of 8,000 nodes, with room for upgrades.
const STREAMS_OF_ENTRIES_MAX: usize = 4096;

/// How long each stream at the bound waits for its place, one after another. A first answer takes
/// some 10 ms of a processor in a large mesh: so one node can cost a tenth of a processor.
const PACE: Duration = Duration::from_millis(100);

/// The streams of all nodes and of all WorkloadEntries.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    /// By node, or who else streams count for.
    holders: HashMap<String, Held>,
    /// Those of WorkloadEntries, by namespace.
    namespaces: HashMap<String, Held>,
    /// How many those are.
    of_entries: usize,
}

/// The streams of one holder.
#[derive(Default)]
struct Held {
    /// By number, which grows with time.
    open: BTreeMap<u64, Remote>,
    /// Held by the one that waits for its place.
    pace: Arc<tokio::sync::Mutex<()>>,
}

/// The place of one stream; given back when dropped.
pub(crate) struct Place {
    streams: Streams,
    holder: String,
    /// The namespace of a WorkloadEntry.
    namespace: Option<String>,
    number: u64,
}

impl Streams {
    /// Gives a stream of `node` its place; the oldest stream's connection may have to go for it.
    pub(super) async fn enter(&self, node: &str, number: u64, remote: &Remote) -> Place {
        let pace = self.open().pace(node);
        wait(pace).await;
        self.open().add(node, number, remote);
        Place { streams: self.clone(), holder: node.to_owned(), namespace: None, number }
    }

    /// The same for a stream of a WorkloadEntry. If there are too many of all of them, the oldest
    /// of the namespace that has most goes.
    pub(super) async fn enter_entry(
        &self,
        namespace: &str,
        entry: &str,
        number: u64,
        remote: &Remote,
    ) -> Place {
        let pace = self.open().pace_of_entries(namespace);
        wait(pace).await;
        let mut place = self.enter(entry, number, remote).await;
        place.namespace = Some(namespace.to_owned());
        self.open().add_of_entry(namespace, number, remote);
        place
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

/// One that waits holds up those that wait for the same.
async fn wait(pace: Option<Arc<tokio::sync::Mutex<()>>>) {
    if let Some(pace) = pace {
        let _one_after_another = pace.lock().await;
        tokio::time::sleep(PACE).await;
    }
}

impl Open {
    /// What a further stream of `node` has to wait for, if it has to.
    fn pace(&self, node: &str) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let held = self.holders.get(node)?;
        (held.open.len() >= STREAMS_OF_NODE_MAX).then(|| held.pace.clone())
    }

    /// The same for a WorkloadEntry of `namespace`. Namespaces do not wait for each other.
    fn pace_of_entries(&self, namespace: &str) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let held = self.namespaces.get(namespace)?;
        (self.of_entries >= STREAMS_OF_ENTRIES_MAX).then(|| held.pace.clone())
    }

    fn add(&mut self, node: &str, number: u64, remote: &Remote) {
        let streams = &mut self.holders.entry(node.to_owned()).or_default().open;
        streams.insert(number, remote.clone());
        if streams.len() > STREAMS_OF_NODE_MAX
            && let Some((_, oldest)) = streams.pop_first()
        {
            oldest.end();
        }
    }

    fn add_of_entry(&mut self, namespace: &str, number: u64, remote: &Remote) {
        let held = self.namespaces.entry(namespace.to_owned()).or_default();
        held.open.insert(number, remote.clone());
        self.of_entries += 1;
        if self.of_entries <= STREAMS_OF_ENTRIES_MAX {
            return;
        }
        // At the bound alone, which each namespace reaches at its pace.
        let rank =
            |held: &&mut Held| (held.open.len(), held.open.keys().next().map(|it| Reverse(*it)));
        let largest = self.namespaces.values_mut().max_by_key(rank);
        if let Some((_, oldest)) = largest.and_then(|held| held.open.pop_first()) {
            self.of_entries -= 1;
            oldest.end();
        }
    }

    fn remove(&mut self, holder: &str, namespace: Option<&str>, number: u64) {
        take(&mut self.holders, holder, number);
        if let Some(namespace) = namespace {
            let was_there = take(&mut self.namespaces, namespace, number);
            self.of_entries -= usize::from(was_there);
        }
    }
}

/// Takes a stream out, and its holder with the last. Answers whether it was there.
fn take(holders: &mut HashMap<String, Held>, holder: &str, number: u64) -> bool {
    let Some(held) = holders.get_mut(holder) else { return false };
    let was_there = held.open.remove(&number).is_some();
    if held.open.is_empty() {
        holders.remove(holder);
    }
    was_there
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.remove(&self.holder, self.namespace.as_deref(), self.number);
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;
    use tokio::io::AsyncReadExt as _;
    use tokio::time::Instant;
    use tonic::transport::server::Connected as _;

    use super::*;
    use crate::listener::Connection;
    use crate::xds_server::entry_tests::connection;

    /// Whether it is closed by now.
    async fn is_closed(connection: &mut Connection) -> bool {
        tokio::time::timeout(Duration::from_millis(1), connection.read(&mut [0])).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn many_entries_end_the_streams_of_their_namespace_alone() {
        let (drain, streams) = (Drain::new(), Streams::default());
        let (mut node, _node) = connection(&drain).await;
        let (mut small, _small) = connection(&drain).await;
        let (mut large, _large) = connection(&drain).await;
        let mut places = vec![streams.enter("node-1", 0, &node.connect_info()).await];
        places.push(streams.enter_entry("shop", "entry:shop/vm", 1, &small.connect_info()).await);
        let flood = large.connect_info();
        let most = STREAMS_OF_ENTRIES_MAX as u64;
        let began = Instant::now();
        for number in 2..=most {
            let entry = format!("entry:bank/{number}");
            places.push(streams.enter_entry("bank", &entry, number, &flood).await);
        }
        assert!(!is_closed(&mut large).await, "so many there may be");
        for number in most + 1..most + 10 {
            let entry = format!("entry:bank/{number}");
            places.push(streams.enter_entry("bank", &entry, number, &flood).await);
        }
        assert!(is_closed(&mut large).await);
        assert!(!is_closed(&mut node).await && !is_closed(&mut small).await);
        assert!(began.elapsed() > Duration::from_millis(500), "and they wait for each other");
        let began = Instant::now();
        let (more, _more) = connection(&drain).await;
        places.push(
            streams.enter_entry("home", "entry:home/vm", most + 10, &more.connect_info()).await,
        );
        assert!(began.elapsed() < Duration::from_millis(50), "other namespaces do not");
        drop(places);
        let open = streams.open();
        assert!(open.holders.is_empty() && open.namespaces.is_empty() && open.of_entries == 0);
    }
}
