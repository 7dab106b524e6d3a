//! Bounds the discovery streams of a node.
//!
//! Each stream may hold copies of the view that its client does not read, and a turn for its first
//! response. One node must not take all the memory or all the turns. A stream counts until its
//! response body is dropped, however its call ended: unread bytes are in the body. At the bound the
//! oldest stream's connection is closed, because nothing else frees those bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
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

/// How long each stream at the bound waits for its place, one after another. A first answer takes
/// some 10 ms of a processor in a large mesh: so one node can cost a tenth of a processor.
const PACE: Duration = Duration::from_millis(100);

/// The streams of all nodes.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<String, OfNode>>>);

/// The streams of one node.
#[derive(Default)]
struct OfNode {
    /// By number, which grows with time.
    open: BTreeMap<u64, Remote>,
    /// Held by the one that waits for its place.
    pace: Arc<tokio::sync::Mutex<()>>,
}

/// The place of one stream; given back when dropped.
pub(crate) struct Place {
    streams: Streams,
    node: String,
    number: u64,
}

impl Streams {
    /// Gives a stream of `node` its place; the oldest stream's connection may have to go for it.
    pub(super) async fn enter(&self, node: &str, number: u64, remote: &Remote) -> Place {
        if let Some(pace) = self.pace(node) {
            let _one_after_another = pace.lock().await;
            tokio::time::sleep(PACE).await;
        }
        let mut nodes = self.0.lock().expect("no holder of the lock panics");
        let streams = &mut nodes.entry(node.to_owned()).or_default().open;
        streams.insert(number, remote.clone());
        let gone = if streams.len() > STREAMS_OF_NODE_MAX { streams.pop_first() } else { None };
        drop(nodes);
        if let Some((_, oldest)) = gone {
            oldest.end();
        }
        Place { streams: self.clone(), node: node.to_owned(), number }
    }

    /// What a further stream of `node` has to wait for, if it has to.
    fn pace(&self, node: &str) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let nodes = self.0.lock().expect("no holder of the lock panics");
        let of_node = nodes.get(node)?;
        (of_node.open.len() >= STREAMS_OF_NODE_MAX).then(|| of_node.pace.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut nodes = self.streams.0.lock().expect("no holder of the lock panics");
        let Some(of_node) = nodes.get_mut(&self.node) else { return };
        of_node.open.remove(&self.number);
        if of_node.open.is_empty() {
            nodes.remove(&self.node);
        }
    }
}
