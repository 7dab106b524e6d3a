//! One node's proxy, as far as a control plane can tell: it follows everything, acknowledges, and
//! comes back with the versions it holds. When a resource came is written down, the resource is not
//! kept.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ambit_net::grpc::{ConnectError, Target};
use ambit_wire::proto::envoy::config::core::v3::Node;
use ambit_wire::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, HeldVersion,
};
use ambit_wire::xds::Backoff;
use ambit_wire::xds::digest::{self, Grouping};
use ambit_wire::xds::node::ProxyNode;
use ambit_wire::xds::replies::Replies;
use ambit_words::names::DEFAULT_MESH_NAMESPACE;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::HeaderValue;
use prost::Message as _;

use super::call::Call;
use super::held::{Digests, Held, TYPES, Texts};
use super::population;

/// What all proxies of a fleet share.
pub(super) struct Common {
    pub(super) target: Target,
    pub(super) names: Mutex<Texts>,
    pub(super) versions: Mutex<Texts>,
    pub(super) digests: Mutex<Digests>,
    /// Whether each arrival is written down.
    pub(super) records: AtomicBool,
    /// Responses to all.
    pub(super) responses: AtomicU64,
}

/// One proxy.
pub(super) struct Follower {
    common: Arc<Common>,
    node: Node,
    authorization: HeaderValue,
    held: [Held; TYPES.len()],
    /// The last server compares digests, which were of these groups.
    server_compares: bool,
    groupings: [Grouping; TYPES.len()],
    told: Arc<Told>,
}

/// What others may know of a proxy.
#[derive(Default)]
pub(super) struct Told {
    pub(super) stream: Mutex<Stream>,
    pub(super) arrivals: Mutex<Vec<Arrival>>,
}

/// How the newest stream of a proxy fares.
#[derive(Clone, Default)]
pub(super) struct Stream {
    /// When the one before it ended.
    pub(super) ended: Option<Instant>,
    /// When its connection was begun.
    pub(super) began: Option<Instant>,
    /// When its connection stood and it was accepted.
    pub(super) accepted: Option<Instant>,
    /// When the first answer to each type was there.
    pub(super) synced: Option<Instant>,
    /// Resources of these answers.
    pub(super) resources: usize,
    /// Resources held when they were there.
    pub(super) held: usize,
}

/// As much of a resource as a proxy of a fleet looks at.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(bytes = "bytes", tag = "1")]
    version: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    name: Bytes,
}

/// A resource came, with a version that was not held.
pub(super) struct Arrival {
    pub(super) name: u32,
    pub(super) at: Instant,
}

impl Follower {
    /// The proxy of a node of the population.
    pub(super) fn new(
        common: Arc<Common>,
        index: u32,
        token: &str,
        told: Arc<Told>,
    ) -> Result<Self> {
        let node = ProxyNode {
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            pod: population::proxy_name(index),
            namespace: DEFAULT_MESH_NAMESPACE.to_owned(),
            node: population::node_name(index),
            metadata: std::collections::BTreeMap::new(),
        };
        let mut authorization: HeaderValue = format!("Bearer {token}").parse()?;
        authorization.set_sensitive(true);
        Ok(Self {
            common,
            node: node.into(),
            authorization,
            held: Default::default(),
            server_compares: false,
            groupings: Default::default(),
            told,
        })
    }

    /// Follows for as long as the fleet lives, as a proxy does.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let mut worked = false;
            // Why it ended is the control plane's to say; when, is what is measured.
            let ended = self.stream(began, &mut worked).await;
            let refused = ended.err().and_then(|error| error.downcast::<ConnectError>().ok());
            if worked {
                backoff.worked();
                let ended = Some(Instant::now());
                *self.told.stream.lock().expect("no holder panics") =
                    Stream { ended, ..Stream::default() };
            }
            let is_refused = refused.is_some_and(|error| error.is_refused());
            tokio::time::sleep(backoff.wait(is_refused, rand::random())).await;
        }
    }

    async fn stream(&mut self, began: Instant, worked: &mut bool) -> Result<()> {
        let opening = self.opening();
        let (headers, mut call) =
            Call::open(&self.common.target, &self.authorization, opening).await?;
        let compares = digest::is_announced(&headers);
        if std::mem::replace(&mut self.server_compares, compares) && !compares {
            bail!("the control plane is of another kind than before");
        }
        {
            let mut stream = self.told.stream.lock().expect("no holder panics");
            stream.began = Some(began);
            stream.accepted = Some(Instant::now());
        }
        let (mut answered, mut replies) = ([false; TYPES.len()], Replies::default());
        loop {
            for reply in replies.take_due(Instant::now()) {
                call.send(&reply)?;
            }
            let due = replies.due_at(Instant::now());
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                response = call.next() => {
                    *worked = true;
                    replies.add(self.take(response?, &mut answered)?);
                }
                () = pause => {}
            }
        }
    }

    fn opening(&mut self) -> Vec<DeltaDiscoveryRequest> {
        let names = self.common.names.lock().expect("no holder panics");
        let versions = self.common.versions.lock().expect("no holder panics");
        let mut requests = Vec::new();
        for (which, (resource_type, held)) in TYPES.into_iter().zip(&self.held).enumerate() {
            let mut request = DeltaDiscoveryRequest {
                node: Some(self.node.clone()),
                type_url: resource_type.url().to_owned(),
                ..DeltaDiscoveryRequest::default()
            };
            if self.server_compares {
                let mut digests = self.common.digests.lock().expect("no holder panics");
                (self.groupings[which], request.held_digests) = digests.of(held, &names, &versions);
            } else {
                request.initial_resource_versions = held.versions(&names, &versions);
            }
            requests.push(request);
        }
        requests
    }

    /// What is held in groups that the control plane asks for.
    fn held_in(&self, which: usize, groups: &[u32]) -> Vec<HeldVersion> {
        if groups.is_empty() {
            return Vec::new();
        }
        // All of them may differ: a list would be walked for each name.
        let groups: HashSet<u32> = groups.iter().copied().collect();
        let names = self.common.names.lock().expect("no holder panics");
        let versions = self.common.versions.lock().expect("no holder panics");
        let mut held = self.held[which].versions(&names, &versions);
        held.retain(|it| {
            let name = it.texts().map(|(name, _)| self.groupings[which].group_of(name));
            name.is_some_and(|group| groups.contains(&group))
        });
        held
    }

    /// Writes down what came, and answers it.
    fn take(
        &mut self,
        response: DeltaDiscoveryResponse,
        answered: &mut [bool; TYPES.len()],
    ) -> Result<DeltaDiscoveryRequest> {
        let at = Instant::now();
        let which = TYPES.iter().position(|it| it.url() == response.type_url);
        let which = which.with_context(|| format!("{} was not asked for", response.type_url))?;
        let (count, is_first) = (response.resources.len(), !answered[which]);
        answered[which] |= !ambit_wire::xds::server::is_partial(&response);
        self.common.responses.fetch_add(1, Ordering::Relaxed);
        let named = self.held_in(which, &response.differing_groups);
        let arrivals = self.hold(&response, which)?;
        if self.common.records.load(Ordering::Relaxed) {
            let arrivals = arrivals.into_iter().map(|name| Arrival { name, at });
            self.told.arrivals.lock().expect("no holder panics").extend(arrivals);
        }
        if is_first {
            let mut stream = self.told.stream.lock().expect("no holder panics");
            stream.resources += count;
            if answered.iter().all(|it| *it) {
                stream.held = self.held.iter().map(Held::len).sum();
                stream.synced = Some(Instant::now());
            }
        }
        Ok(DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            initial_resource_versions: named,
            ..DeltaDiscoveryRequest::default()
        })
    }

    /// Takes the versions of a response; answers which names have another than before.
    fn hold(&mut self, response: &DeltaDiscoveryResponse, which: usize) -> Result<Vec<u32>> {
        let held = &mut self.held[which];
        let mut names = self.common.names.lock().expect("no holder panics");
        let mut versions = self.common.versions.lock().expect("no holder panics");
        for name in &response.removed_resources {
            held.remove(names.number(name));
        }
        let mut taken = Vec::new();
        for resource in &response.resources {
            let Named { name, version } = Named::decode(resource.clone())?;
            let name = names.number(str::from_utf8(&name)?);
            if held.put(name, versions.number(str::from_utf8(&version)?)) {
                taken.push(name);
            }
        }
        Ok(taken)
    }
}
