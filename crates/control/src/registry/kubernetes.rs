//! The registry of a cluster: the API server, watched.
//!
//! Each kind has a task that lists it in pages and then watches it; the list of all pods comes at
//! once and in protobuf ([`pods`]). An object is reduced to what the view needs before any of it is
//! kept ([`reduce`]). Only its key and a fingerprint stay here, so a new list shows what vanished
//! meanwhile, and a heartbeat is no change. A policy that cannot be read gets its strictest reading
//! ([`strictest`]); an object of another kind keeps its last readable version. Changes are
//! collected for a short time that churn cannot extend. While the API server is away, what is known
//! stays. An Istio kind that the cluster lacks counts as empty, and is looked for again. If the
//! cluster has it only in versions that Ambit does not read, that is an error: its objects must not
//! count as none.
//!
//! Marks are not answered: the API server's watches do not report their progress. To wait until a
//! policy is in force, look at its status.

mod pods;
mod reduce;
mod strictest;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ambit_apiserver::WATCH_TIMEOUT_SECONDS;
use ambit_manifest::{Kind, ObjectKey};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::reduce::Reading;
use super::{Batch, Event, GATHER_MAX, KINDS, RegistryError};
use crate::kubernetes::{ApiError, answer};

/// Most events in one batch.
const BATCH_MAX: usize = 10_000;
/// Changes that wait to be gathered.
const QUEUE: usize = 1024;
/// Objects in one page of a list.
const PAGE: u32 = 500;
/// First and longest pause after a watch failed.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A watch that has not failed again for so long is taken to work.
const SETTLED: Duration = Duration::from_secs(8);
/// How often a kind that the cluster does not have is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// After so many looks its objects are gone too. A kind that is removed takes its objects with it
/// one by one, so this is for one that went while the API server was away; and an API server that
/// is starting must not make policies vanish.
const LOOKS_MAX: usize = 6;

/// The API server, watched.
pub(crate) struct KubernetesRegistry {
    told: mpsc::Receiver<Told>,
    /// Kinds that were not listed yet.
    unlisted: BTreeSet<Kind>,
    /// The watches end with the registry.
    watches: JoinSet<()>,
}

/// What a watch reports.
enum Told {
    /// Something changed.
    Events(Vec<Event>),
    /// All objects of a kind have been reported.
    Listed(Kind),
}

impl KubernetesRegistry {
    /// Begins to watch.
    pub(crate) fn open(client: &Client, root_namespace: &str) -> Self {
        let (sender, told) = mpsc::channel(QUEUE);
        let (listed, others_listed) = watch::channel(0);
        let failing = Arc::new(AtomicUsize::new(0));
        let follower = |kind| Follower {
            kind,
            client: client.clone(),
            sender: sender.clone(),
            listed: listed.clone(),
            failing: failing.clone(),
            hashing: RandomState::new(),
            known: HashMap::new(),
            seen: None,
            is_listed: false,
            problem: None,
            looks: 0,
            others: None,
            version: Arc::default(),
        };
        let mut watches = JoinSet::new();
        for kind in KINDS {
            let mut follower = follower(kind);
            match kind {
                Kind::Namespace => {
                    watches.spawn(follower.run(every::<Namespace>(client), reduce::NAMESPACE));
                }
                Kind::Node => {
                    watches.spawn(follower.run(every::<Node>(client), reduce::NODE));
                }
                Kind::Service => {
                    watches.spawn(follower.run(every::<Service>(client), reduce::SERVICE));
                }
                Kind::EndpointSlice => {
                    let slices = every::<EndpointSlice>(client);
                    watches.spawn(follower.run(slices, reduce::ENDPOINT_SLICE));
                }
                Kind::ConfigMap => {
                    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), root_namespace);
                    watches.spawn(follower.run(watched(maps), reduce::MESH_CONFIG));
                }
                Kind::Secret => {
                    watches.spawn(follower.run(every::<Secret>(client), reduce::SECRET));
                }
                Kind::Pod => {
                    follower.others = Some(others_listed.clone());
                    let client = client.clone();
                    let pods = move |config| pods::watcher(&client, config);
                    watches.spawn(follower.run(pods, reduce::POD));
                }
                _ => {
                    let (client, version) = (client.clone(), follower.version.clone());
                    let objects = move |config| {
                        let version = kind.api_versions()[version.load(Ordering::Relaxed)];
                        let resource = istio_at(kind, version);
                        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
                        watcher::watcher(api, config).boxed()
                    };
                    watches.spawn(follower.run(objects, reduce::istio(kind)));
                }
            }
        }
        Self { told, unlisted: KINDS.into_iter().collect(), watches }
    }

    /// Passes all objects to `take`, until every kind was listed once.
    pub(crate) async fn load(
        &mut self,
        mut take: impl FnMut(Vec<Event>),
    ) -> Result<(), RegistryError> {
        while !self.unlisted.is_empty() {
            let events = self.gather().await?;
            if !events.is_empty() {
                take(events);
            }
        }
        Ok(())
    }

    /// Sends what changes, until the receiver is gone or a watch broke.
    pub(crate) async fn run(mut self, batches: mpsc::Sender<Batch>) -> Result<(), RegistryError> {
        loop {
            let batch = Batch { events: self.gather().await?, mark: None };
            if !batch.events.is_empty() && batches.send(batch).await.is_err() {
                return Ok(());
            }
        }
    }

    /// What changed within [`GATHER_MAX`] after the first change.
    async fn gather(&mut self) -> Result<Vec<Event>, RegistryError> {
        let mut events = Vec::new();
        let mut deadline = None;
        while events.len() < BATCH_MAX {
            let next = tokio::select! {
                biased;
                // First, or changes that keep coming would hold back those that came.
                () = until(deadline) => break,
                told = self.told.recv() => told,
                // A watch never ends by itself.
                Some(_) = self.watches.join_next() => None,
            };
            match next.ok_or(RegistryError::Broken)? {
                Told::Events(more) => events.extend(more),
                Told::Listed(kind) => {
                    self.unlisted.remove(&kind);
                }
            }
            deadline = deadline.or_else(|| Some(Instant::now() + GATHER_MAX));
        }
        Ok(events)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Watches all objects of a kind.
fn every<K>(client: &Client) -> impl Fn(watcher::Config) -> Watched<K> + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watched(Api::all(client.clone()))
}

fn watched<K>(api: Api<K>) -> impl Fn(watcher::Config) -> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    move |config| watcher::watcher(api.clone(), config).boxed()
}

/// Where the API server keeps a kind of Istio's.
pub(crate) fn istio(kind: Kind) -> ApiResource {
    istio_at(kind, kind.api_versions()[0])
}

/// As [`istio`], in one of the versions that are read.
pub(crate) fn istio_at(kind: Kind, api_version: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').expect("Istio's kinds are in a group");
    let kind_of = GroupVersionKind::gvk(group, version, kind.name());
    ApiResource::from_gvk_with_plural(&kind_of, kind.plural())
}

/// Whether a kind is there by a definition, and not by the API server itself.
fn is_defined(kind: Kind) -> bool {
    [".istio.io/", "gateway.networking.k8s.io/", "ambit.io/"]
        .iter()
        .any(|group| kind.api_versions()[0].contains(group))
}

/// Group and version in which the API server has a kind of Istio's, whichever that is.
async fn served(client: &Client, kind: Kind) -> kube::Result<Option<String>> {
    let wanted = istio(kind);
    let groups = client.list_api_groups().await?.groups;
    let group = groups.into_iter().find(|group| group.name == wanted.group);
    for version in group.into_iter().flat_map(|group| group.versions) {
        let resources = client.list_api_group_resources(&version.group_version).await?.resources;
        if resources.iter().any(|it| it.name == wanted.plural) {
            return Ok(Some(version.group_version));
        }
    }
    Ok(None)
}

/// The receiver of the registry's events is gone.
struct Unheard;

/// Why a stream of events is left for a new one.
enum Restart {
    /// The place in it is lost, or the kind is not there.
    Anew,
    /// Nobody listens.
    Unheard,
}

impl From<Unheard> for Restart {
    fn from(_: Unheard) -> Self {
        Self::Unheard
    }
}

/// The events of a watcher.
type Watched<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// Follows one kind.
struct Follower {
    kind: Kind,
    client: Client,
    sender: mpsc::Sender<Told>,
    /// How many kinds were listed.
    listed: watch::Sender<usize>,
    /// How many kinds cannot be watched at the moment, for all kinds together.
    failing: Arc<AtomicUsize>,
    hashing: RandomState,
    /// What was reported and is not gone, with a fingerprint of its last contents.
    known: HashMap<ObjectKey, u64>,
    /// What a list that is being read has shown so far.
    seen: Option<HashSet<ObjectKey>>,
    /// Whether the kind was reported as listed.
    is_listed: bool,
    /// What is wrong, once it was said.
    problem: Option<&'static str>,
    /// How often the kind was looked for in vain.
    looks: usize,
    /// How many kinds were listed, for the kind that is reported last.
    others: Option<watch::Receiver<usize>>,
    /// Which of the kind's versions is watched, by its index. Older clusters lack the first one.
    version: Arc<AtomicUsize>,
}

impl Follower {
    async fn run<K>(mut self, watch: impl Fn(watcher::Config) -> Watched<K>, reading: Reading<K>)
    where
        K: Resource + Serialize,
    {
        let mut config = watcher::Config::default().page_size(PAGE).timeout(WATCH_TIMEOUT_SECONDS);
        config.label_selector = reading.selector.map(str::to_owned);
        config.field_selector = reading.field.map(|(field, value)| format!("{field}={value}"));
        loop {
            match self.follow(watch(config.clone()), &reading).await {
                Restart::Anew => {}
                Restart::Unheard => return,
            }
        }
    }

    async fn follow<K>(&mut self, mut stream: Watched<K>, reading: &Reading<K>) -> Restart
    where
        K: Resource + Serialize,
    {
        let mut pause = PAUSE_MIN;
        loop {
            let next = match self.problem {
                None => stream.next().await,
                Some(_) => match timeout(SETTLED + pause, stream.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.works();
                        continue;
                    }
                },
            };
            let taken = match next {
                Some(Ok(event)) => {
                    // The beginning of a list says nothing about its end.
                    if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
                        self.works();
                        pause = PAUSE_MIN;
                    }
                    self.take(event, reading).await
                }
                Some(Err(error)) => match self.fails(error).await {
                    Ok(Some(restart)) => return restart,
                    Ok(None) => {
                        sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                        Ok(())
                    }
                    Err(unheard) => Err(unheard),
                },
                None => return Restart::Anew,
            };
            if let Err(unheard) = taken {
                return unheard.into();
            }
        }
    }

    async fn take<K>(
        &mut self,
        event: watcher::Event<K>,
        reading: &Reading<K>,
    ) -> Result<(), Unheard>
    where
        K: Resource + Serialize,
    {
        if !matches!(event, watcher::Event::Init) {
            self.await_others().await?;
        }
        match event {
            watcher::Event::Init => {
                self.seen = Some(HashSet::new());
                Ok(())
            }
            watcher::Event::InitApply(object) => {
                if let Some(seen) = &mut self.seen {
                    seen.insert(key(self.kind, &object));
                }
                self.put(object, reading).await
            }
            watcher::Event::InitDone => {
                let seen = self.seen.take().unwrap_or_default();
                let gone = self.known.keys().filter(|key| !seen.contains(key)).cloned().collect();
                self.looks = 0;
                self.forget(gone).await?;
                self.tell_listed().await
            }
            watcher::Event::Apply(object) => self.put(object, reading).await,
            watcher::Event::Delete(object) => self.forget(vec![key(self.kind, &object)]).await,
        }
    }

    /// Waits until all other kinds were listed, if this one is reported after them: so a pod's
    /// workload is built once, and not again for every service and policy that follows. Its list is
    /// read meanwhile.
    async fn await_others(&mut self) -> Result<(), Unheard> {
        let Some(mut listed) = self.others.take() else { return Ok(()) };
        let is_last = |listed: &usize| *listed == KINDS.len() - 1;
        listed.wait_for(is_last).await.map(drop).map_err(|_| Unheard)
    }

    async fn put<K>(&mut self, mut object: K, reading: &Reading<K>) -> Result<(), Unheard>
    where
        K: Resource + Serialize,
    {
        let key = key(self.kind, &object);
        (reading.reduce)(&mut object);
        let fingerprint = fingerprint(&self.hashing, &object);
        if self.known.get(&key) == Some(&fingerprint) {
            return Ok(());
        }
        match (reading.events)(object) {
            Ok(events) => {
                self.known.insert(key, fingerprint);
                self.tell(Told::Events(events)).await
            }
            Err(problem) => {
                tracing::error!(
                    object = %key,
                    problem,
                    "object of the API server cannot be used, its last good version stays",
                );
                Ok(())
            }
        }
    }

    async fn forget(&mut self, keys: Vec<ObjectKey>) -> Result<(), Unheard> {
        for key in keys {
            if self.known.remove(&key).is_some() {
                self.tell(Told::Events(vec![Event::Delete(key)])).await?;
            }
        }
        Ok(())
    }

    async fn tell_listed(&mut self) -> Result<(), Unheard> {
        if !std::mem::replace(&mut self.is_listed, true) {
            self.listed.send_modify(|listed| *listed += 1);
            self.tell(Told::Listed(self.kind)).await?;
        }
        Ok(())
    }

    async fn tell(&self, told: Told) -> Result<(), Unheard> {
        self.sender.send(told).await.map_err(|_| Unheard)
    }

    /// Whether a version can be read, which is watched from now on.
    fn takes(&self, version: &str) -> bool {
        let index = self.kind.api_versions().iter().position(|known| *known == version);
        index.inspect(|index| self.version.store(*index, Ordering::Relaxed)).is_some()
    }

    /// Reports a failure once; returns whether the list must be read again.
    async fn fails(&mut self, error: watcher::Error) -> Result<Option<Restart>, Unheard> {
        let error = api_error(error);
        let (kind, problem) = (self.kind, error.to_string());
        match &error {
            ApiError::Refused(status) if status.code == 410 => {
                sleep(PAUSE_MIN).await;
                return Ok(Some(Restart::Anew));
            }
            // For a cluster's own kinds a 404 is not the API server's answer, but a failure of a
            // proxy before it.
            error if error.is_not_found() && is_defined(kind) => {
                match answer(served(&self.client, kind)).await {
                    Ok(None) => {
                        self.is_missing().await?;
                        return Ok(Some(Restart::Anew));
                    }
                    // Defined just now, or not any more, or in an older version.
                    Ok(Some(version)) if self.takes(&version) => {}
                    Ok(Some(version)) if self.says("version") => tracing::error!(
                        %kind,
                        wanted = kind.api_versions()[0],
                        served = version,
                        "the cluster serves this kind only in versions that Ambit does not \
                         read; apply the definitions of the chart",
                    ),
                    Ok(Some(_)) => {}
                    Err(error) if self.says("discovery") => tracing::warn!(
                        %kind,
                        %error,
                        "cannot find out whether the cluster has this kind; asking again",
                    ),
                    Err(_) => {}
                }
                sleep(PAUSE_MAX).await;
                return Ok(Some(Restart::Anew));
            }
            // Only listeners that name Secrets need them: everything else goes on without.
            ApiError::Refused(status) if status.code == 403 && kind == Kind::Secret => {
                self.are_forbidden(&problem).await?;
                return Ok(Some(Restart::Anew));
            }
            ApiError::Refused(_) if self.says("refused") => {
                tracing::error!(
                    %kind,
                    problem,
                    "this kind cannot be watched; check the permissions of this service account",
                );
            }
            ApiError::Unreadable(_) if self.says("unreadable") => {
                tracing::error!(%kind, problem, "this kind cannot be read");
            }
            ApiError::Away(_) if self.problem.is_none() => {
                self.problem = Some("away");
                if self.failing.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(
                        problem,
                        "the API server does not answer; keeping the last view, trying again",
                    );
                }
            }
            _ => tracing::debug!(%kind, problem, "watching failed again"),
        }
        Ok(None)
    }

    /// Secrets cannot be watched.
    async fn are_forbidden(&mut self, problem: &str) -> Result<(), Unheard> {
        if self.says("forbidden") {
            tracing::warn!(
                problem,
                "Secrets cannot be watched: Gateways cannot serve certificates; allow this service \
                 account to get, list and watch Secrets, as the chart does",
            );
        }
        self.tell_listed().await?;
        sleep(LOOK_AGAIN).await;
        Ok(())
    }

    /// Whether a problem of this kind is news.
    fn says(&mut self, problem: &'static str) -> bool {
        if self.problem == Some(problem) {
            return false;
        }
        self.works();
        self.problem = Some(problem);
        true
    }

    /// The cluster does not have this kind.
    async fn is_missing(&mut self) -> Result<(), Unheard> {
        let kind = self.kind;
        if self.says("missing") {
            tracing::warn!(
                %kind,
                group = kind.api_versions()[0],
                known = self.known.len(),
                "the cluster has no such kind, its custom resource definition is not installed; \
                 looking for it every {LOOK_AGAIN:?}",
            );
        }
        self.looks += 1;
        if self.looks >= LOOKS_MAX {
            let all = self.known.keys().cloned().collect();
            self.forget(all).await?;
        }
        self.tell_listed().await?;
        sleep(LOOK_AGAIN).await;
        Ok(())
    }

    fn works(&mut self) {
        let kind = self.kind;
        let Some(problem) = self.problem.take() else { return };
        if problem != "away" {
            tracing::info!(%kind, problem, "this kind can be watched again");
        } else if self.failing.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!("the API server is back");
        }
    }
}

fn api_error(error: watcher::Error) -> ApiError {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error.into(),
        watcher::Error::WatchError(status) => kube::Error::Api(status).into(),
        watcher::Error::NoResourceVersion => {
            ApiError::Unreadable("objects without metadata.resourceVersion".to_owned())
        }
    }
}

fn key<K: Resource>(kind: Kind, object: &K) -> ObjectKey {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    ObjectKey::new(kind, namespace, &object.name_any())
}

/// A number that differs when the contents do. Keyed at random, so that nobody can write an object
/// whose change goes unseen.
fn fingerprint<K: Serialize>(hashing: &RandomState, object: &K) -> u64 {
    let mut json = Vec::with_capacity(1024);
    serde_json::to_writer(&mut json, object).expect("an API object is JSON");
    let mut hasher = hashing.build_hasher();
    hasher.write(&json);
    hasher.finish()
}
