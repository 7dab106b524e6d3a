//! Keeps the certificates that Gateways at the edge have by ACME in their Secrets.
//!
//! Only the leader asks directories, one order at a time. What gateways answer meanwhile is an
//! annotation of the Gateway's Service: every replica reads those anyway, it goes with the Gateway,
//! and control may write them. A Secret without our label is somebody else's and is never written;
//! neither is one of a namespace whose owner has not allowed it. After a failure nothing is tried
//! until the pause is over, whatever changes but the Gateway's own words.

mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::acme::{Acme, challenges, secret, written};
use ambit_manifest::gateway::{Gateway, Position};
use ambit_manifest::waypoint::{self, Made};
use ambit_model::http::gateway::Challenge;
use ambit_net::drain::Guard;
use ambit_tls::service::ServerCertificate;
use ambit_words::annotations::ACME_CHALLENGES;
use ambit_words::error_chain;
use ambit_words::labels::GATEWAY_NAME;
use ambit_words::secrets::ROOTS_KEY;
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use self::secrets::{Found, Secrets};
use super::{ApiError, answer};
use crate::acme::renewal::{PAUSE_MIN, due, pause};
use crate::acme::{Account, AcmeError, Order, Way, told};
use crate::metrics::Metrics;
use crate::view_builder::edge::Edge;
use crate::world::World;

/// The field manager of challenges.
const MANAGER: &str = "ambit-acme";
/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// When a Secret is looked at again with which nothing is to be done.
const AGAIN: Duration = Duration::from_secs(10 * 60);
/// The same where something is missing that its author may do any moment.
const SOON: Duration = Duration::from_secs(10);
/// How long this replica may take to see a challenge that it has written.
const SEEN_MAX: Duration = Duration::from_secs(10);
/// How long until other replicas and their gateways have it too.
const SETTLING: Duration = Duration::from_secs(3);
/// How long a whole order may take.
const ORDER_MAX: Duration = Duration::from_secs(240);
/// How long after a certificate the next is ordered at the soonest.
const ORDERS_APART: Duration = Duration::from_secs(30);

/// What becomes of the Secrets that Gateways want certificates in, each as a sentence.
pub(crate) type Told = BTreeMap<Key, String>;

/// A Gateway, and a Secret of its namespace.
pub(crate) type Key = (ObjectName, String);

/// Keeps certificates.
pub(crate) struct Certificates {
    pub(crate) client: Client,
    pub(crate) world: Arc<World>,
    pub(crate) leads: watch::Receiver<bool>,
    pub(crate) told: watch::Sender<Told>,
    pub(crate) metrics: Arc<Metrics>,
    /// The roots that the system believes, as PEM.
    pub(crate) system_roots: Option<Vec<u8>>,
}

/// A certificate that is asked for.
struct Asked {
    key: Key,
    gateway: Arc<Gateway>,
    wants: Wants,
    /// The Service of the gateway's pods.
    service: ObjectName,
    /// Whether a pod of it takes requests.
    is_served: bool,
    /// The chain that its Secret has, as the view knows it.
    chain: Option<String>,
}

/// From where, and for which hosts.
#[derive(Clone, PartialEq)]
struct Wants {
    acme: Acme,
    hosts: Vec<String>,
}

/// What is known of one.
struct Progress {
    wants: Wants,
    failures: u32,
    /// When it was looked at.
    tried: Instant,
    /// When it is looked at again.
    next: Instant,
    /// The chain that was looked at.
    seen: Option<String>,
}

/// What came of a look.
enum Looked {
    /// Its Secret has a certificate that is good until then.
    Good { chain: String, renewed_at: SystemTime },
    /// There is nothing to do, or not yet; what is told of it.
    Nothing { next: Duration, what: Option<String> },
}

/// Why a look came to nothing.
#[derive(Debug, thiserror::Error)]
enum LookError {
    /// The API server.
    #[error("the certificate cannot be kept")]
    Api(#[from] ApiError),
    /// The directory.
    #[error("{directory} gives no certificate")]
    Acme {
        /// Its URL.
        directory: String,
        /// Why.
        source: Box<AcmeError>,
    },
    /// The roots of the directory.
    #[error("the directory cannot be verified: {0}")]
    Roots(String),
    /// What was issued.
    #[error("what {0} has issued is not for the hosts of the listeners, or ends too soon")]
    Other(String),
    /// What the library cannot cope with.
    #[error("{0} gives an answer that is not ACME's")]
    Answer(String),
    /// The Secret of the account is somebody else's.
    #[error("Secret {0} is for the account, and somebody else's; rename or delete it")]
    ForeignAccount(String),
    /// It takes too long.
    #[error("the order was not finished within {ORDER_MAX:?}")]
    Timeout,
}

impl Certificates {
    /// Keeps certificates while this replica leads, until asked to drain.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        let mut objects = self.world.objects();
        let mut memory = BTreeMap::new();
        loop {
            objects.mark_unchanged();
            if *self.leads.borrow_and_update() {
                tokio::select! {
                    _ = guard.draining() => return,
                    () = self.step(&mut memory) => {}
                }
            } else {
                memory.clear();
                self.told.send_if_modified(|told| !std::mem::take(told).is_empty());
            }
            let latest = Instant::now() + AGAIN;
            let due = memory.values().map(|it: &Progress| it.next).fold(latest, Instant::min);
            tokio::select! {
                _ = guard.draining() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            tokio::select! {
                _ = guard.draining() => return,
                changed = objects.changed() => if changed.is_err() { return },
                changed = self.leads.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(due) => {}
            }
        }
    }

    /// One look at all that is asked for.
    async fn step(&self, memory: &mut BTreeMap<Key, Progress>) {
        self.clear().await;
        let asked = self.asked();
        let is_asked = |key: &Key| asked.iter().any(|it| it.key == *key);
        memory.retain(|key, _| is_asked(key));
        self.told.send_if_modified(|told| {
            let before = told.len();
            told.retain(|key, _| is_asked(key));
            told.len() != before
        });
        let mut served = BTreeSet::new();
        for asked in asked {
            if !*self.leads.borrow() {
                return;
            }
            let before = memory.remove(&asked.key);
            let progress = match before {
                Some(before) if before.rests(&asked.wants, asked.chain.as_ref()) => before,
                // A slow directory holds up the Gateways of its own namespace alone.
                Some(before) if served.contains(&asked.key.0.namespace) => before,
                None if served.contains(&asked.key.0.namespace) => continue,
                before => {
                    served.insert(asked.key.0.namespace.clone());
                    self.go_on(&asked, before.map_or(0, |it| it.failures)).await
                }
            };
            memory.insert(asked.key, progress);
        }
    }

    /// Looks at one; `failures` is how often that came to nothing before.
    async fn go_on(&self, asked: &Asked, failures: u32) -> Progress {
        let looking = tokio::time::timeout(ORDER_MAX, self.look(asked));
        // The library panics on some answers: that is the failure of this order alone.
        let looked = match AssertUnwindSafe(looking).catch_unwind().await {
            Ok(looked) => looked.unwrap_or(Err(LookError::Timeout)),
            Err(_) => Err(LookError::Answer(asked.wants.acme.directory.clone())),
        };
        let progress = |failures: u32, next: Duration, seen: Option<String>| Progress {
            wants: asked.wants.clone(),
            failures,
            tried: Instant::now(),
            next: Instant::now() + next,
            seen,
        };
        let ((gateway, secret), directory) = (&asked.key, &asked.wants.acme.directory);
        match looked {
            Ok(Looked::Good { chain, renewed_at }) => {
                self.tell(asked, None);
                let left = renewed_at.duration_since(SystemTime::now()).unwrap_or_default();
                progress(0, left.max(ORDERS_APART), Some(chain))
            }
            Ok(Looked::Nothing { next, what }) => {
                self.tell(asked, what);
                progress(failures, next, asked.chain.clone())
            }
            Err(error) => {
                self.metrics.ordered(false);
                let is_limited =
                    matches!(&error, LookError::Acme { source, .. } if source.is_rate_limit());
                let failures = failures.saturating_add(1);
                let next = pause(failures, is_limited, RandomState::new().build_hasher().finish());
                let (error, minutes) = (told(&error), next.as_secs().div_ceil(60));
                tracing::warn!(
                    namespace = &*gateway.namespace,
                    gateway = &*gateway.name,
                    secret,
                    directory,
                    error,
                    minutes,
                    "a gateway has no new certificate; trying again in so many minutes"
                );
                self.tell(asked, Some(format!("{error}; trying again in {minutes} minutes")));
                progress(failures, next, asked.chain.clone())
            }
        }
    }

    fn tell(&self, asked: &Asked, what: Option<String>) {
        self.told.send_if_modified(|told| match what {
            Some(what) => told.insert(asked.key.clone(), what.clone()) != Some(what),
            None => told.remove(&asked.key).is_some(),
        });
    }

    /// What is asked for.
    fn asked(&self) -> Vec<Asked> {
        let builder = self.world.read();
        let (store, mut all) = (builder.store(), Vec::new());
        for (name, gateway) in store.gateways().iter() {
            let Some(Ok(acme)) = Acme::of(gateway) else { continue };
            let Some(edge) = Edge::find(store, name) else { continue };
            let service = service_of(name, gateway);
            let labels = store.service(&service).and_then(|it| it.object.metadata.labels.as_ref());
            let is_its =
                labels.and_then(|it| it.get(GATEWAY_NAME)) == gateway.metadata.name.as_ref();
            let endpoints =
                builder.view().endpoints(&store.gateways().service_of(builder.mesh(), name));
            let is_ready = endpoints.is_some_and(|all| all.iter().any(|it| it.healthy));
            for (secret, hosts) in edge.wanted() {
                let Ok(hosts) = hosts else { continue };
                let at = ObjectName::new(&name.namespace, &secret);
                all.push(Asked {
                    key: (name.clone(), secret),
                    gateway: gateway.clone(),
                    wants: Wants { acme: acme.clone(), hosts },
                    service: service.clone(),
                    is_served: is_its && is_ready,
                    chain: store.certificates().chain(&at).map(str::to_owned),
                });
            }
        }
        all
    }

    /// Looks at the Secret, and orders a certificate if that is due.
    async fn look(&self, asked: &Asked) -> Result<Looked, LookError> {
        let ((gateway, secret), wants) = (&asked.key, &asked.wants);
        let secrets = Secrets { client: &self.client, gateway: &asked.gateway, name: gateway };
        let there = match secrets.certificate(secret, &wants.hosts).await? {
            Found::Foreign => return Ok(Looked::Nothing { next: AGAIN, what: None }),
            Found::Unusable => {
                let what = format!("Secret {secret} is there, and it is not control's to change");
                return Ok(Looked::Nothing { next: SOON, what: Some(what) });
            }
            Found::Own { chain, until: Some((from, to)), .. }
                if due(from, to) > SystemTime::now() =>
            {
                return Ok(Looked::Good { chain, renewed_at: due(from, to) });
            }
            Found::Own { version, .. } => Some(version),
            Found::Absent => None,
        };
        if !asked.is_served {
            let what = "a certificate is ordered when a pod of the gateway is ready".to_owned();
            return Ok(Looked::Nothing { next: SOON, what: Some(what) });
        }
        if !secrets.may_write().await? {
            let what = forbidden(&gateway.namespace, &self.world);
            return Ok(Looked::Nothing { next: SOON, what: Some(what) });
        }
        let directory = &wants.acme.directory;
        self.tell(asked, Some(format!("a certificate is being ordered from {directory}")));
        let refused = |source| LookError::refused(directory, source);
        let account = self.account(&secrets, &wants.acme).await?;
        let order = match account.order(&wants.hosts).await {
            Err(error) if error.is_no_account() => {
                self.new_account(&secrets, &wants.acme).await?.order(&wants.hosts).await
            }
            ordered => ordered,
        };
        let order = order.map_err(refused)?;
        let pair = self.proven(asked, order).await?.map_err(refused)?;
        secrets.put_certificate(secret, there, &pair).await?;
        self.metrics.ordered(true);
        tracing::info!(
            namespace = &*gateway.namespace,
            gateway = &*gateway.name,
            secret,
            directory,
            hosts = ?wants.hosts,
            "a gateway has a new certificate"
        );
        // It is read again, so that what was issued is looked at as any other.
        match secrets.certificate(secret, &wants.hosts).await? {
            Found::Own { chain, until: Some((from, to)), .. }
                if due(from, to) > SystemTime::now() =>
            {
                Ok(Looked::Good { chain, renewed_at: due(from, to) })
            }
            _ => Err(LookError::Other(directory.clone())),
        }
    }

    /// The Gateway's account at the directory, which is made once.
    async fn account(&self, secrets: &Secrets<'_>, acme: &Acme) -> Result<Account, LookError> {
        let (kept, _) = secrets.account().await?;
        let Some(kept) = kept.filter(|kept| Account::is_at(kept, &acme.directory)) else {
            return self.new_account(secrets, acme).await;
        };
        let account = Account::known(self.way(secrets, acme).await?, &kept).await;
        account.map_err(|source| LookError::refused(&acme.directory, source))
    }

    /// Makes an account, and keeps it in place of any other.
    async fn new_account(&self, secrets: &Secrets<'_>, acme: &Acme) -> Result<Account, LookError> {
        if !secrets.may_keep_account().await? {
            return Err(LookError::ForeignAccount(secrets.account_name()));
        }
        let way = self.way(secrets, acme).await?;
        let made = Account::new(way, &acme.directory, acme.email.as_deref()).await;
        let (account, kept) = made.map_err(|source| LookError::refused(&acme.directory, source))?;
        let (_, version) = secrets.account().await?;
        secrets.put_account(version, &kept).await?;
        Ok(account)
    }

    /// How the directory is reached.
    async fn way(&self, secrets: &Secrets<'_>, acme: &Acme) -> Result<Way, LookError> {
        let mut further = None;
        if let Some(map) = &acme.directory_ca {
            let namespace = &secrets.name.namespace;
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            let found = answer(maps.get_opt(map)).await?;
            let roots = found.and_then(|it| it.data).and_then(|mut data| data.remove(ROOTS_KEY));
            let missing = || format!("there is no ConfigMap {namespace}/{map} with {ROOTS_KEY}");
            further = Some(roots.ok_or_else(|| LookError::Roots(missing()))?);
        }
        let made = Way::of_control(self.system_roots.as_deref(), further.as_deref());
        made.map_err(|error| LookError::Roots(error_chain(&error)))
    }

    /// Has the gateway answer the directory, and finishes the order.
    async fn proven(
        &self,
        asked: &Asked,
        order: Order,
    ) -> Result<Result<ServerCertificate, AcmeError>, LookError> {
        if !order.challenges().is_empty() {
            self.answer_with(&asked.service, order.challenges()).await?;
            let is_seen = || self.answered(&asked.key.0).as_deref() == Some(order.challenges());
            let mut objects = self.world.objects();
            let seen = async { while !is_seen() && objects.changed().await.is_ok() {} };
            // If it does not come, the directory says what is wrong.
            let _late = tokio::time::timeout(SEEN_MAX, seen).await;
            tokio::time::sleep(SETTLING).await;
        }
        let finished = order.finish().await;
        // What cannot be taken away now is at the next look.
        if let Err(error) = self.answer_with(&asked.service, &[]).await {
            tracing::debug!(error = error_chain(&error), "answers to a directory stay for now");
        }
        Ok(finished)
    }

    /// Writes what a gateway answers.
    async fn answer_with(
        &self,
        service: &ObjectName,
        challenges: &[Challenge],
    ) -> Result<(), ApiError> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &service.namespace);
        let value = (!challenges.is_empty()).then(|| written(challenges));
        let patch = json!({"metadata": {"annotations": {ACME_CHALLENGES: value}}});
        let ours =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        answer(services.patch(&service.name, &ours, &Patch::Merge(patch))).await.map(drop)
    }

    /// What a gateway answers, as the view knows it.
    fn answered(&self, gateway: &ObjectName) -> Option<Vec<Challenge>> {
        let builder = self.world.read();
        let store = builder.store();
        Some(Edge::find(store, gateway)?.challenges(store))
    }

    /// Takes away what an order left that nobody finished: none is under way now.
    async fn clear(&self) {
        let left: Vec<ObjectName> = {
            let builder = self.world.read();
            let store = builder.store();
            let edges = store.gateways().iter();
            let edges = edges.filter(|(name, _)| store.gateways().edge(name).is_some());
            let services = edges.map(|(name, gateway)| service_of(name, gateway));
            let answers = |service: &ObjectName| {
                let annotations = store.service(service)?.object.metadata.annotations.as_ref();
                (!challenges(annotations).is_empty()).then_some(())
            };
            services.filter(|it| answers(it).is_some()).collect()
        };
        for service in left {
            match self.answer_with(&service, &[]).await {
                Err(error) if !error.is_not_found() => {
                    let error = error_chain(&error);
                    let (namespace, service) = (&*service.namespace, &*service.name);
                    tracing::warn!(namespace, service, error, "old answers to a directory stay");
                }
                _ => {}
            }
        }
    }
}

impl LookError {
    fn refused(directory: &str, source: AcmeError) -> Self {
        Self::Acme { directory: directory.to_owned(), source: Box::new(source) }
    }
}

impl Progress {
    /// Whether nothing is to be done yet. A failure is waited out; a certificate that others have
    /// changed or deleted is looked at.
    fn rests(&self, wants: &Wants, chain: Option<&String>) -> bool {
        // Words that change end a pause, but not the shortest: a directory counts orders.
        if self.wants != *wants {
            return self.failures > 0 && self.tried.elapsed() < PAUSE_MIN;
        }
        self.next > Instant::now() && (self.failures > 0 || self.seen.as_ref() == chain)
    }
}

/// The Service of a Gateway at the edge.
fn service_of(name: &ObjectName, gateway: &Gateway) -> ObjectName {
    ObjectName::new(&name.namespace, &waypoint::names(gateway, Position::Edge).objects)
}

/// Why control writes nothing in a namespace, and who allows it how.
fn forbidden(namespace: &str, world: &World) -> String {
    let builder = world.read();
    let own = &builder.mesh().root_namespace;
    format!(
        "control may not write Secrets of namespace {namespace}; allow it: kubectl -n {namespace} \
         create rolebinding ambit-acme --clusterrole=istiod-acme-{own} \
         --serviceaccount={own}:istiod"
    )
}

/// Adds to what is told of a Gateway's listeners what becomes of their certificates.
pub(super) fn explain(
    edge: &Edge<'_>,
    (name, gateway): (&ObjectName, &Gateway),
    told: &Told,
    made: &mut Made,
) {
    let wanted = edge.wanted();
    for judged in edge.listeners() {
        let Some(named) = secret(gateway, judged) else { continue };
        let Some(hosts) = wanted.get(named) else { continue };
        let of_listener = made.listeners.get_mut(&*judged.full_name());
        let Some(fault) = of_listener.and_then(|it| it.unresolved.as_mut()) else { continue };
        let news = match hosts {
            Err(why) => format!("no certificate is ordered: {why}"),
            Ok(_) => match told.get(&(name.clone(), named.to_owned())) {
                Some(what) => what.clone(),
                None => continue,
            },
        };
        fault.what = format!("{}; {news}", fault.what);
    }
}

#[cfg(test)]
mod tests;
