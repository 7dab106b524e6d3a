//! How many discovery streams a node has.
//!
//! Each stream may hold copies of the view that its client does not read, and a turn for its first
//! answer. One node must have neither the memory nor all the turns. A stream counts until its
//! answer is gone, however its call ended: what waits for the client is in the answer. At the bound
//! the oldest stream's connection is closed, because nothing else takes back what waits there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::FIRST_ANSWERS;
use crate::listener::Remote;

/// Streams of one node. Its proxy has one. While it is upgraded there are two proxies of two
/// workers each, and as many again may have died without our knowing it yet. They have half of the
/// turns at most.
pub(super) const STREAMS_OF_NODE_MAX: usize = FIRST_ANSWERS / 2;

/// The streams of all nodes: by node, then by number, which grows with time.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<HashMap<String, BTreeMap<u64, Remote>>>>);

/// The place of one stream; given back when dropped.
pub(crate) struct Place {
    streams: Streams,
    node: String,
    number: u64,
}

impl Streams {
    /// Gives a stream of `node` its place; the oldest stream's connection may have to go for it.
    pub(super) fn enter(&self, node: &str, number: u64, remote: &Remote) -> Place {
        let mut nodes = self.0.lock().expect("no holder of the lock panics");
        let streams = nodes.entry(node.to_owned()).or_default();
        streams.insert(number, remote.clone());
        let gone = if streams.len() > STREAMS_OF_NODE_MAX { streams.pop_first() } else { None };
        drop(nodes);
        if let Some((_, oldest)) = gone {
            oldest.end();
        }
        Place { streams: self.clone(), node: node.to_owned(), number }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut nodes = self.streams.0.lock().expect("no holder of the lock panics");
        let Some(streams) = nodes.get_mut(&self.node) else { return };
        streams.remove(&self.number);
        if streams.is_empty() {
            nodes.remove(&self.node);
        }
    }
}
