//! What the connections of the API share: the machine, its kinds, and their history.
//!
//! The machine's objects are held while they are copied, and pods and endpoints while they are put
//! together; never on the thread that serves.

use std::sync::{Arc, Mutex};

use ambit_kubeapi::{Api, History, Key, Resource, Status};
use ambit_net::sys::process::open_files_limit;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::access::Access;
use super::{content, definitions, refusals};
use crate::objects::Kind;
use crate::state::Machine;

/// Requests that are worked on at once; others are told to come again.
const REQUESTS_MAX: usize = 32;
/// Watches and followed logs that are open at once; others are told to come again.
const STREAMS_MAX: usize = 128;
/// Commands, and clients that connect to ports, at once; others are told to come again.
const SESSIONS_MAX: usize = 64;
/// Connections to ports of pods at once, of all clients together.
const FORWARDS_MAX: usize = 1024;
/// A connection has two descriptors, and four while it is passed on; as many are left to all else
/// of this process.
const DESCRIPTORS_EACH: usize = 8;

/// Kinds that are made of others here, beside those that a machine keeps.
const ENDPOINTS: Resource = Resource {
    kind: "Endpoints",
    plural: "endpoints",
    namespaced: true,
    api_versions: &["v1"],
    only_read: Some("the machine makes endpoints of Services and pods; write an EndpointSlice"),
};
const EVENTS: Resource = Resource {
    kind: "Event",
    plural: "events",
    namespaced: true,
    api_versions: &["v1"],
    only_read: Some("events are what the machine has seen itself"),
};

/// What clients of a cluster look for, beside kinds that they know.
const DEFINITIONS: Resource = Resource {
    kind: definitions::KIND,
    plural: definitions::PLURAL,
    namespaced: false,
    api_versions: &[definitions::API_VERSION],
    only_read: Some("a machine has the kinds that it knows, and takes no others"),
};
const NO_WEBHOOKS: Option<&str> = Some("a machine asks nobody before it takes an object");
/// There are never any.
const WEBHOOKS: [Resource; 2] = [
    Resource {
        kind: "MutatingWebhookConfiguration",
        plural: "mutatingwebhookconfigurations",
        namespaced: false,
        api_versions: &["admissionregistration.k8s.io/v1"],
        only_read: NO_WEBHOOKS,
    },
    Resource {
        kind: "ValidatingWebhookConfiguration",
        plural: "validatingwebhookconfigurations",
        namespaced: false,
        api_versions: &["admissionregistration.k8s.io/v1"],
        only_read: NO_WEBHOOKS,
    },
];

/// What the connections share.
pub(super) struct Server {
    pub(super) machine: Arc<Machine>,
    pub(super) api: Api,
    pub(super) access: Access,
    history: Mutex<History>,
    /// Counts how often the controllers have come to rest.
    pub(super) settled: watch::Receiver<u64>,
    pub(super) requests: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) sessions: Arc<Semaphore>,
    pub(super) forwards: Arc<Semaphore>,
}

impl Server {
    pub(super) fn new(machine: Arc<Machine>, access: Access) -> Self {
        let kept = Kind::all().map(refusals::resource);
        let resources = kept.chain([ENDPOINTS, EVENTS, DEFINITIONS]).chain(WEBHOOKS).collect();
        let settled = machine.objects().settled.subscribe();
        let forwards = FORWARDS_MAX.min(open_files_limit() / DESCRIPTORS_EACH);
        Self {
            machine,
            settled,
            api: Api { resources, server: content::VERSION.to_owned() },
            access,
            history: Mutex::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            sessions: Arc::new(Semaphore::new(SESSIONS_MAX)),
            forwards: Arc::new(Semaphore::new(forwards)),
        }
    }

    /// Looks at the objects of a kind as they are now, and answers from what is known then.
    pub(super) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        plural: &'static str,
        answer: impl FnOnce(&History) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let look = move |machine: &Arc<Machine>, history: &mut History| {
            let now: Vec<(Key, Value)> = content::objects(machine, plural);
            history.look(plural, now);
            answer(history)
        };
        self.with_history(look).await
    }

    /// Works with the history alone. Who needs the objects as well takes them after it.
    pub(super) async fn with_history<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Machine>, &mut History) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let server = Arc::clone(self);
        // Whoever holds the objects may hold them for long.
        let working = tokio::task::spawn_blocking(move || {
            let mut history =
                server.history.lock().expect("nothing panics while it holds the lock");
            work(&server.machine, &mut history)
        });
        working.await.map_err(|_| Status::internal("the request could not be carried out"))
    }
}
