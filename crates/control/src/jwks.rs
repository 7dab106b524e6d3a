//! The keys of token issuers that RequestAuthentications name by URL.
//!
//! Control fetches them, so that a waypoint needs no way to an issuer, and puts them into the
//! rules that waypoints get. Keys are fetched again in the background, and never because of a
//! token: who makes up a `kid` must not decide when an issuer is asked. While an issuer is away its
//! last keys go on being used: a token that was good stays good. They are kept on disk too, for
//! the next start. What was fetched, and why not, is part of the objects' state.
//!
//! | file | holds |
//! |---|---|
//! | `schedule` | when which issuer is asked |
//! | `fetch` | one issuer's keys over HTTP |
//! | `allowed` | what may be asked at all |
//! | `places` | where a host is |
//! | `tunnel` | the way to a pod of the mesh |
//! | `kept` | the keys on disk |
//! | `state` | how they are, in words |

mod allowed;
mod error;
mod fetch;
mod kept;
mod places;
mod schedule;
pub(crate) mod state;
mod tunnel;

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_manifest::policy::{KeySource, fetch_timeout};
use ambit_model::Text;
use ambit_net::drain::Guard;
use ambit_tls::certificate::CertificateError;
use ambit_tls::web::{SYSTEM_ROOTS, WebConnector};
use ambit_words::error_chain;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use self::allowed::Allowed;
use self::error::FetchError;
use self::fetch::Fetcher;
use self::kept::AGE_MAX;
use self::places::Places;
use self::schedule::Schedule;
use self::tunnel::MeshClient;
use crate::ca::CertificateAuthority;
use crate::registry::{Event, IssuerKeys, KeysProblem};
use crate::world::World;

/// Most issuers whose keys are fetched.
const SOURCES_MAX: usize = 512;
/// Most of them that objects of one namespace name.
const NAMESPACE_SOURCES_MAX: usize = 16;
/// How long the first start waits for keys that were never fetched.
const FIRST_ROUND_MAX: Duration = Duration::from_secs(3);
/// How often keys are written to disk that have not changed: when they were fetched last counts
/// against a week.
const KEPT_AGAIN: Duration = Duration::from_secs(60 * 60);

/// Why issuers cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The operator's roots cannot be read.
    #[error("--jwks-ca {path}: cannot be read; check the path")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The operator's roots are none.
    #[error("--jwks-ca: roots of token issuers")]
    Roots(#[from] CertificateError),
}

/// How issuers are asked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How old keys are when they are fetched again.
    pub(crate) refresh: Duration,
    /// What may be asked.
    pub(crate) allowed: Allowed,
    /// The file of the roots that the system believes, if it is not at a usual place.
    pub(crate) system_roots: Option<PathBuf>,
    /// Further roots that issuers' servers may have.
    pub(crate) roots: Option<PathBuf>,
    /// Whether Services are asked at their endpoints, because their names mean nothing here.
    pub(crate) asks_endpoints: bool,
    /// The file of the keys that were fetched.
    pub(crate) kept: PathBuf,
}

/// Which issuers are asked.
#[derive(Default)]
struct Wanted {
    /// Those, and how long each may take to answer.
    sources: BTreeMap<KeySource, Duration>,
    /// The others, and why they are not.
    left_out: BTreeMap<KeySource, String>,
}

type Fetched = (KeySource, Result<String, FetchError>);

/// Fetches keys.
pub(crate) struct Jwks {
    world: Arc<World>,
    fetcher: Arc<Fetcher>,
    schedule: Schedule,
    known: BTreeMap<KeySource, IssuerKeys>,
    /// Of an earlier run, until somebody asks for them.
    earlier: BTreeMap<KeySource, IssuerKeys>,
    kept: PathBuf,
    kept_at: Option<Instant>,
    under_way: FuturesUnordered<BoxFuture<'static, Fetched>>,
}

impl Jwks {
    /// Knows the keys of an earlier run, and has asked nobody yet.
    pub(crate) fn new(
        world: Arc<World>,
        authority: Arc<CertificateAuthority>,
        settings: Settings,
    ) -> Result<Self, JwksError> {
        let roots = settings.roots.map(|path| {
            let read = std::fs::read_to_string(&path);
            read.map_err(|source| JwksError::Read { path, source })
        });
        let system = system_roots(settings.system_roots);
        let tls = WebConnector::new(system.as_deref(), roots.transpose()?.as_deref())?;
        let places = Places { world: world.clone(), asks_endpoints: settings.asks_endpoints };
        let mesh = {
            let builder = world.read();
            let mesh = builder.mesh();
            MeshClient::new(authority, &mesh.trust_domain, &mesh.root_namespace)
        };
        let earlier = kept::read(&settings.kept, unix_now());
        Ok(Self {
            world,
            fetcher: Arc::new(Fetcher { allowed: settings.allowed, tls, places, mesh }),
            schedule: Schedule::new(settings.refresh),
            known: BTreeMap::new(),
            earlier,
            kept: settings.kept,
            kept_at: None,
            under_way: FuturesUnordered::new(),
        })
    }

    /// Asks once for all keys that were never fetched, and waits a little: without them good tokens
    /// would be refused after a start.
    pub(crate) async fn first_round(&mut self) {
        let asked = async {
            self.follow();
            self.start();
            while self.schedule.is_first_round() {
                let Some(fetched) = self.under_way.next().await else { return };
                self.take(fetched);
                self.start();
            }
        };
        if timeout(FIRST_ROUND_MAX, asked).await.is_err() {
            tracing::warn!(
                "an issuer of tokens is slow to answer; its tokens are refused until then"
            );
        }
    }

    /// Keeps the keys as they should be until asked to drain.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        let mut objects = self.world.objects();
        loop {
            objects.mark_unchanged();
            self.follow();
            self.start();
            let due = self.schedule.next();
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = guard.draining() => return,
                Some(fetched) = self.under_way.next() => self.take(fetched),
                changed = objects.changed() => if changed.is_err() { return },
                () = due => {}
            }
        }
    }

    /// Looks which keys the objects ask for.
    fn follow(&mut self) {
        let Wanted { sources, left_out } = self.wanted();
        let mut events = Vec::new();
        self.known.retain(|source, _| {
            let is_wanted = sources.contains_key(source) || left_out.contains_key(source);
            events.extend((!is_wanted).then(|| Event::IssuerKeys(source.clone(), None)));
            is_wanted
        });
        for (source, why) in left_out {
            let known = self.known.get(&source).and_then(|it| it.problem.as_ref());
            if known.is_none_or(|it| *it.what != *why) {
                let problem = Some(KeysProblem { at: unix_now(), what: why.as_str().into() });
                let state = IssuerKeys { problem, ..IssuerKeys::default() };
                self.known.insert(source.clone(), state.clone());
                events.push(Event::IssuerKeys(source, Some(state)));
            }
        }
        for source in sources.keys() {
            if let Some(state) = self.earlier.remove(source) {
                self.known.insert(source.clone(), state.clone());
                events.push(Event::IssuerKeys(source.clone(), Some(state)));
            }
        }
        let known = &self.known;
        let has_keys =
            |source: &KeySource| known.get(source).is_some_and(|state| state.keys.is_some());
        self.schedule.want(&sources, has_keys, Instant::now());
        self.publish(events);
    }

    /// The issuers that objects name by URL. Within a bound, those that were there first stay.
    fn wanted(&self) -> Wanted {
        let mut by_namespace: BTreeMap<Text, BTreeMap<KeySource, Duration>> = BTreeMap::new();
        let builder = self.world.read();
        for (name, object) in builder.store().request_authentications() {
            for rule in &object.spec.jwt_rules {
                let Some(source) = KeySource::of(rule) else { continue };
                let sources = by_namespace.entry(name.namespace.clone()).or_default();
                let patience = sources.entry(source).or_default();
                *patience = fetch_timeout(rule).max(*patience);
            }
        }
        drop(builder);
        let mut wanted = Wanted::default();
        let first = |all: BTreeMap<KeySource, Duration>| {
            let mut all: Vec<_> = all.into_iter().collect();
            all.sort_by_key(|(source, _)| !self.schedule.has(source));
            all.into_iter().enumerate()
        };
        let mut fair = BTreeMap::new();
        for (namespace, all) in by_namespace {
            for (index, (source, patience)) in first(all) {
                if index < NAMESPACE_SOURCES_MAX {
                    let known = fair.entry(source).or_insert(patience);
                    *known = patience.max(*known);
                } else {
                    let why = format!(
                        "objects of the namespace {namespace} name more than \
                         {NAMESPACE_SOURCES_MAX} by URL"
                    );
                    wanted.left_out.insert(source, why);
                }
            }
        }
        for (index, (source, patience)) in first(fair) {
            wanted.left_out.remove(&source);
            if index < SOURCES_MAX {
                wanted.sources.insert(source, patience);
            } else {
                let why = format!("more than {SOURCES_MAX} are named by URL");
                wanted.left_out.insert(source, why);
            }
        }
        wanted
    }

    /// Asks those that are due.
    fn start(&mut self) {
        for (source, limit) in self.schedule.take_due(Instant::now()) {
            let fetcher = self.fetcher.clone();
            self.under_way.push(Box::pin(async move {
                let fetched = fetcher.keys(&source, limit).await;
                (source, fetched)
            }));
        }
    }

    fn take(&mut self, (source, fetched): Fetched) {
        if !self.schedule.ended(&source, fetched.is_ok(), Instant::now()) {
            return;
        }
        let now = unix_now();
        let state = self.known.entry(source.clone()).or_default();
        let mut is_news = false;
        match fetched {
            Ok(keys) => {
                is_news = state.keys.as_deref() != Some(&*keys);
                if is_news {
                    tracing::info!(%source, "fetched the keys of a token issuer");
                    state.keys = Some(keys.as_str().into());
                }
                (state.fetched, state.problem) = (Some(now), None);
            }
            Err(error) => {
                let error = error.told();
                if state.fetched.is_some_and(|it| now.saturating_sub(it) > AGE_MAX.as_secs()) {
                    state.keys = None;
                }
                let was = state.problem.as_ref().map(|it| &*it.what);
                if was != Some(&error) {
                    let goes_on = state.keys.is_some();
                    tracing::warn!(%source, error, goes_on, "a token issuer's keys not fetched");
                }
                state.problem = Some(KeysProblem { at: now, what: error.as_str().into() });
            }
        }
        let (state, is_good) = (state.clone(), state.problem.is_none());
        self.publish(vec![Event::IssuerKeys(source, Some(state))]);
        let is_due = self.kept_at.is_none_or(|at| at.elapsed() >= KEPT_AGAIN);
        if is_good && (is_news || is_due) {
            self.keep();
        }
    }

    fn keep(&mut self) {
        match kept::write(&self.kept, &self.known) {
            Ok(()) => self.kept_at = Some(Instant::now()),
            Err(error) => {
                // The next good fetch tries again.
                self.kept_at = None;
                let error = error_chain(&error);
                tracing::error!(error, "the keys of token issuers are not kept for the next start");
            }
        }
    }

    fn publish(&self, events: Vec<Event>) {
        if !events.is_empty() {
            self.world.apply(events);
        }
    }
}

/// The roots that the system believes, as PEM.
pub(crate) fn system_roots(named: Option<PathBuf>) -> Option<Vec<u8>> {
    let all = named.into_iter().chain(SYSTEM_ROOTS.iter().map(PathBuf::from));
    all.filter_map(|path| std::fs::read(path).ok()).next()
}

/// Seconds since 1970.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
