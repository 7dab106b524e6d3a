//! The bodies of certificate requests, read within bounds.
//!
//! Only proxies get this far, but any node may be compromised, and a computer outside be anybody's.
//! So there are bounds on the size and the time of a request, on a node's requests in flight, on
//! those of all computers outside, and on the bytes of all together. Waiting for room counts
//! towards a request's time. Nothing here interprets a request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

use super::ledger::OF_ENTRIES;

/// Largest request: it holds a signing request of a few KiB and a name.
pub(super) const REQUEST_MAX_BYTES: usize = 64 << 10;
/// What gRPC puts before a message.
const FRAME_BYTES: usize = 5;
/// How long a request may take to arrive, waiting for room included.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bodies that are read at the same time: 16 MiB at most.
const UNDER_WAY_MAX: usize = 256;
/// Those of all WorkloadEntries: whoever may make WorkloadEntries may make many.
const UNDER_WAY_OF_ENTRIES_MAX: usize = UNDER_WAY_MAX / 4;
/// Those of one node. Its proxy sends each in one piece, so none is there for long.
const UNDER_WAY_OF_NODE_MAX: usize = 32;

/// The bodies under way.
#[derive(Clone)]
pub(super) struct Bodies {
    all: Arc<Semaphore>,
    entries: Arc<Semaphore>,
    nodes: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Default for Bodies {
    fn default() -> Self {
        let entries = Arc::new(Semaphore::new(UNDER_WAY_OF_ENTRIES_MAX));
        Self { all: Arc::new(Semaphore::new(UNDER_WAY_MAX)), entries, nodes: Arc::default() }
    }
}

impl Bodies {
    /// Reads the whole body of a request of `node`, a node or who else an account is kept for.
    pub(super) async fn read(&self, node: &str, body: Body) -> Result<Body, Status> {
        let reading = async {
            let own = self.of(node);
            let _own = own.acquire().await;
            let _entries = match node.starts_with(OF_ENTRIES) {
                true => Some(self.entries.acquire().await),
                false => None,
            };
            let _all = self.all.acquire().await;
            Limited::new(body, REQUEST_MAX_BYTES + FRAME_BYTES).collect().await
        };
        match timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(read)) => Ok(Body::new(Full::<Bytes>::new(read.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let what = format!("a request has at most {REQUEST_MAX_BYTES} bytes");
                Err(Status::resource_exhausted(what))
            }
            Ok(Err(error)) => Err(Status::aborted(format!("the request has broken off: {error}"))),
            Err(_) => {
                let what = format!("the request was not there within {BODY_TIMEOUT:?}; try again");
                Err(Status::deadline_exceeded(what))
            }
        }
    }

    fn of(&self, node: &str) -> Arc<Semaphore> {
        let mut nodes = self.nodes.lock().expect("no holder of the lock panics");
        if let Some(known) = nodes.get(node).and_then(Weak::upgrade) {
            return known;
        }
        // Those without a request go; the others are as many as there are requests.
        nodes.retain(|_, known| known.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(UNDER_WAY_OF_NODE_MAX));
        nodes.insert(node.to_owned(), Arc::downgrade(&fresh));
        fresh
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio_stream::StreamExt;
    use tonic::Code;

    use super::*;

    /// A body that never comes to its end, after so many bytes.
    fn endless(bytes: usize) -> Body {
        let first = tokio_stream::once(Ok(Frame::data(Bytes::from(vec![0; bytes]))));
        let frames = first.chain(tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>());
        Body::new(StreamBody::new(frames))
    }

    fn whole(bytes: usize) -> Body {
        Body::new(Full::new(Bytes::from(vec![0; bytes])))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_size_and_a_time() {
        let bodies = Bodies::default();
        let code = async |body| bodies.read("one", body).await.map(|_| ()).map_err(|it| it.code());
        assert_eq!(code(whole(REQUEST_MAX_BYTES + FRAME_BYTES)).await, Ok(()));
        let large = whole(REQUEST_MAX_BYTES + FRAME_BYTES + 1);
        assert_eq!(code(large).await, Err(Code::ResourceExhausted));
        assert_eq!(code(endless(100)).await, Err(Code::DeadlineExceeded));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_that_send_slowly_delay_no_node() {
        let bodies = Bodies::default();
        let names: Vec<String> = (0..1000).map(|it| format!("{OF_ENTRIES}shop/vm-{it}")).collect();
        let slow = names.iter().map(|name| bodies.read(name, endless(60_000)));
        let mut slow = Box::pin(futures::future::join_all(slow));
        let honest = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let left = UNDER_WAY_MAX - UNDER_WAY_OF_ENTRIES_MAX;
            assert_eq!(bodies.all.available_permits(), left);
            timeout(Duration::from_millis(10), bodies.read("honest", whole(4000))).await
        };
        tokio::select! {
            _ = &mut slow => panic!("they never end"),
            read = honest => assert!(read.is_ok_and(|read| read.is_ok())),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_sends_slowly_delays_no_other() {
        let bodies = Bodies::default();
        let slow = (0..1000).map(|_| bodies.read("compromised", endless(60_000)));
        let mut slow = Box::pin(futures::future::join_all(slow));
        let honest = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(bodies.all.available_permits(), UNDER_WAY_MAX - UNDER_WAY_OF_NODE_MAX);
            timeout(Duration::from_millis(10), bodies.read("honest", whole(4000))).await
        };
        tokio::select! {
            _ = &mut slow => panic!("they never end"),
            read = honest => assert!(read.is_ok_and(|read| read.is_ok())),
        }
        let refused = slow.await;
        assert!(
            refused
                .iter()
                .all(|it| it.as_ref().is_err_and(|it| it.code() == Code::DeadlineExceeded))
        );
        assert_eq!(bodies.all.available_permits(), UNDER_WAY_MAX);
    }
}
