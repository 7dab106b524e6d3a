//! A position in memory: endpoints are functions of this test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Routed, Rules, Trial, Unreachable, Version,
};
use ambit_http::engine::rate_limit::buckets::Buckets;
use ambit_http::engine::record::Record;
use ambit_http::engine::{Engine, Opened, Served, Settings, Speaks, open, serve};
use ambit_model::Text;
use ambit_model::authorize::{Denial, RuleName, Source};
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::{Asked, RequestDecision, RequestJudgement, authorize};
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::compression::Compressions;
use ambit_model::http::limits::Limits;
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::rate_limit::RateLimits;
use ambit_model::http::rule::{
    Action, Backend, Destination, Faults, HeaderChanges, Origin, Rewrite, RouteKind, Rule, Timeouts,
};
use ambit_model::http::table::RouteTable;
use ambit_model::http::telemetry::Spans;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_net::drain::Drain;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{LocalSet, spawn_local};

/// What an endpoint does with one connection; the number says which of its connections it is.
pub(crate) type Server = Rc<dyn Fn(DuplexStream, usize)>;

/// Whether a request is denied.
pub(crate) type Denies = fn(&Asked<'_>) -> bool;

/// What the tests set.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) rules: RefCell<Vec<Rule>>,
    pub(crate) servers: RefCell<BTreeMap<String, (Server, usize)>>,
    pub(crate) denies: RefCell<Option<Denies>>,
    pub(crate) traffic: RefCell<TrafficPolicy>,
    pub(crate) authentication: RefCell<Authentication>,
    /// Policies, which judge where there are any.
    pub(crate) request_policies: RefCell<Vec<Arc<RequestPolicy>>>,
    pub(crate) authorizers: RefCell<BTreeMap<Text, Arc<Authorizer>>>,
    /// What services on trial have answered.
    pub(crate) trials: RefCell<Vec<String>>,
    pub(crate) rate_limits: RefCell<RateLimits>,
    pub(crate) buckets: Buckets,
    pub(crate) limits: RefCell<Limits>,
    pub(crate) compression: RefCell<Compressions>,
    pub(crate) version: RefCell<Option<Version>>,
    pub(crate) records: RefCell<Vec<Record>>,
    pub(crate) cuts: RefCell<Vec<&'static str>>,
    pub(crate) random: RefCell<u64>,
    pub(crate) spans: RefCell<Option<Arc<Spans>>>,
    /// Whether nothing holds for the destination.
    pub(crate) is_gone: RefCell<bool>,
    /// Whether the position has gone from before its destination.
    pub(crate) withdrawn: tokio::sync::watch::Sender<bool>,
    /// Whether that was so long ago that nothing goes on.
    pub(crate) deserted: tokio::sync::watch::Sender<bool>,
    /// Counts changes of `denies`.
    pub(crate) policies: tokio::sync::watch::Sender<u64>,
}

#[derive(Clone)]
pub(crate) struct Place(pub(crate) Rc<World>);

pub(crate) struct Holds {
    table: RouteTable,
    authentication: Authentication,
    authorizers: BTreeMap<Text, Arc<Authorizer>>,
    service: ServiceName,
    rate_limits: RateLimits,
    world: Rc<World>,
    traffic: TrafficPolicy,
    spans: Option<Arc<Spans>>,
    limits: Limits,
    compression: Compressions,
}

impl Rules for Holds {
    fn route(&self, head: &ambit_model::http::head::RequestHead<'_>) -> Routed<'_> {
        Routed::by(Some(&self.table).filter(|it| !it.is_empty()), head)
    }

    fn authentication(&self) -> &Authentication {
        &self.authentication
    }

    fn authorizers(&self) -> &BTreeMap<Text, Arc<Authorizer>> {
        &self.authorizers
    }

    fn rate_limits(&self) -> (&ServiceName, &RateLimits) {
        (&self.service, &self.rate_limits)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn compression(&self) -> &Compressions {
        &self.compression
    }

    fn judge(&self, asked: &Asked<'_>) -> RequestJudgement {
        let policies = self.world.request_policies.borrow();
        if !policies.is_empty() {
            return authorize(policies.iter().map(Ok), asked);
        }
        let is_denied = self.world.denies.borrow().is_some_and(|denies| denies(asked));
        let policy = PolicyName::new("app", "no");
        let decision = if is_denied {
            RequestDecision::Denied(Denial::Denied(RuleName { policy, rule: 0 }))
        } else {
            RequestDecision::Allowed(None)
        };
        let (audits, dry_run_denials, dry_run_providers) = (vec![], vec![], vec![]);
        RequestJudgement { decision, audits, dry_run_denials, dry_run_providers }
    }

    fn is_own(&self, route: &Origin) -> bool {
        route.namespace == self.service.namespace
    }

    fn judge_destination(
        &self,
        to: &Goal<'_>,
        by: &Origin,
        asked: &Asked<'_>,
    ) -> Option<RequestJudgement> {
        let Goal::Backend(Destination::Service { name, .. }) = to else { return None };
        let is_asked = *name.namespace == *"elsewhere" || !self.is_own(by);
        is_asked.then(|| self.judge(asked))
    }

    fn policies_version(&self) -> u64 {
        *self.world.policies.borrow()
    }

    fn traffic(&self, _: &Goal<'_>) -> &TrafficPolicy {
        &self.traffic
    }

    fn version(&self, _: &Goal<'_>) -> Option<Version> {
        *self.world.version.borrow()
    }

    fn spans(&self) -> Option<&Arc<Spans>> {
        self.spans.as_ref()
    }

    fn keeps_response(&self) -> bool {
        self.spans.is_some()
    }
}

impl Position for Place {
    type Way = String;
    type Rules = Holds;

    async fn rules(&self, _: &Arrival) -> Option<Holds> {
        if *self.0.is_gone.borrow() {
            return None;
        }
        let rules = self.0.rules.borrow().iter().cloned().map(Arc::new).collect::<Vec<_>>();
        let traffic = self.0.traffic.borrow().clone();
        let authentication = self.0.authentication.borrow().clone();
        let table = RouteTable::new(rules);
        let authorizers = self.0.authorizers.borrow().clone();
        let spans = self.0.spans.borrow().clone();
        let (service, rate_limits) =
            (ServiceName::new("app", "web"), self.0.rate_limits.borrow().clone());
        let limits = self.0.limits.borrow().clone();
        let compression = self.0.compression.borrow().clone();
        let world = self.0.clone();
        let held = Holds {
            table,
            authentication,
            authorizers,
            service,
            limits,
            compression,
            rate_limits,
            world,
            traffic,
            spans,
        };
        Some(held)
    }

    async fn policies_changed(&self, version: u64) -> u64 {
        let mut changed = self.0.policies.subscribe();
        let now = changed.wait_for(|now| *now != version).await;
        now.map_or(version, |now| *now)
    }

    async fn withdrawn(&self, _: &Arrival) {
        drop(self.0.withdrawn.subscribe().wait_for(|it| *it).await);
    }

    async fn deserted(&self, _: &Arrival) {
        drop(self.0.deserted.subscribe().wait_for(|it| *it).await);
    }

    fn choose(&self, ask: &EndpointAsk<'_>) -> Result<Endpoint<String>, Unreachable> {
        let service = match ask.goal {
            Goal::Backend(Destination::Service { name, .. }) => name.hostname.to_string(),
            _ => "web".to_owned(),
        };
        let servers = self.0.servers.borrow();
        // Endpoints of a service are named SERVICE-NUMBER.
        let all: Vec<_> = servers.keys().filter(|it| it.starts_with(&*service)).collect();
        let is_fresh = |it: &&&String| {
            !ask.tried.iter().any(|tried| **tried == ***it) && !(ask.is_ejected)(it)
        };
        let chosen = all.iter().find(is_fresh).or(all.first());
        let Some(chosen) = chosen else {
            let text = format!("service {service} has no endpoint");
            return Err(Unreachable { reason: "no_endpoint", text });
        };
        Ok(Endpoint {
            uid: chosen.as_str().into(),
            address: SocketAddr::from(([10, 0, 0, 1], 80)),
            workload: None,
            kind: 0,
            alternatives: all.len(),
            way: (*chosen).clone(),
        })
    }

    fn is_there(&self, uid: &str) -> bool {
        self.0.servers.borrow().contains_key(uid)
    }

    async fn connect(
        &self,
        _: &Arrival,
        endpoint: &Endpoint<String>,
    ) -> Result<BoxStream, Unreachable> {
        if endpoint.way.starts_with("lost") {
            return std::future::pending().await;
        }
        let (near, far) = duplex(64 << 10);
        let server = {
            let mut servers = self.0.servers.borrow_mut();
            let server = servers.get_mut(&endpoint.way).expect("it was chosen");
            server.1 += 1;
            (server.0.clone(), server.1)
        };
        if server.1 > 2_000 {
            let text = "its policies do not admit the waypoint".to_owned();
            return Err(Unreachable { reason: Unreachable::DENIED, text });
        }
        if server.1 > 1_000 {
            let text = "nobody listens".to_owned();
            return Err(Unreachable { reason: "connect", text });
        }
        (server.0)(far, server.1);
        Ok(Box::new(near))
    }

    fn buckets(&self) -> &Buckets {
        &self.0.buckets
    }

    fn random_below(&self, bound: u64) -> u64 {
        let mut random = self.0.random.borrow_mut();
        // A linear congruential generator; its high bits are the better ones.
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 33) % bound
    }

    fn own_name(&self) -> &str {
        "spiffe://t/ns/app/sa/waypoint"
    }

    fn trial(&self, _: &Arrival, trial: &Trial<'_>) {
        let Trial { custom, outcome, details, .. } = trial;
        let text = format!("{} {}: {details}", custom.rule, outcome.as_str());
        self.0.trials.borrow_mut().push(text);
    }

    fn record(&self, _: &Rc<Arrival>, record: &Record) {
        self.0.records.borrow_mut().push(record.clone());
    }

    fn cut(&self, _: &Arrival, why: &'static str) {
        self.0.cuts.borrow_mut().push(why);
    }
}

/// What a test works with.
pub(crate) struct Bed {
    pub(crate) world: Rc<World>,
    engine: Rc<Engine<Place>>,
    /// Ends connections in good order.
    pub(crate) drain: Drain,
}

/// Runs a test on one thread.
pub(crate) fn run(test: impl AsyncFnOnce(&Bed)) {
    run_with(Settings::default(), test);
}

pub(crate) fn run_with(settings: Settings, test: impl AsyncFnOnce(&Bed)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let drain = Drain::new();
        let world = Rc::new(World::default());
        // The engine outlives its connections.
        let whole = Drain::new();
        let engine = Engine::new(Place(world.clone()), settings, whole.guard());
        test(&Bed { world, engine, drain }).await;
    });
}

impl Bed {
    /// An endpoint. To one whose name begins with `lost` no connection ever comes about.
    pub(crate) fn serve(&self, name: &str, server: impl Fn(DuplexStream, usize) + 'static) {
        self.world.servers.borrow_mut().insert(name.to_owned(), (Rc::new(server), 0));
    }

    /// An endpoint of HTTP/1.1 that answers every request with these bytes.
    pub(crate) fn answers(&self, name: &str, answer: &'static str) {
        self.serve(name, move |stream, _| {
            spawn_local(answering(stream, answer, Rc::default()));
        });
    }

    /// The same, and what it was sent.
    pub(crate) fn hears(&self, name: &str, answer: &'static str) -> Rc<RefCell<String>> {
        let heard = Rc::<RefCell<String>>::default();
        let keeps = heard.clone();
        self.serve(name, move |stream, _| {
            spawn_local(answering(stream, answer, keeps.clone()));
        });
        heard
    }

    /// Looks from here on how much there is to do.
    pub(crate) fn keep_watch(&self) {
        let engine = self.engine.clone();
        spawn_local(async move { engine.keep_watch().await });
    }

    /// No connection to an endpoint is kept any more.
    pub(crate) fn close_pool(&self) {
        self.engine.close_pool();
    }

    /// A client's connection.
    pub(crate) fn connect(&self, speaks: Speaks) -> DuplexStream {
        let (near, far) = duplex(64 << 10);
        let (engine, guard) = (self.engine.clone(), self.drain.guard());
        spawn_local(async move {
            if let Served::Other(mut stream, first) =
                serve(&engine, arrival(), Box::new(far), speaks, &guard).await
            {
                let text = format!("no HTTP: {}", String::from_utf8_lossy(&first));
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        near
    }

    /// What a client that sends these bytes and then nothing is answered.
    pub(crate) async fn ask(&self, request: &str) -> String {
        let mut client = self.connect(Speaks::Http);
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// An endpoint's connection for a client's that is no HTTP.
    pub(crate) async fn open(&self) -> Result<Opened, Unreachable> {
        let traffic = self.world.traffic.borrow().clone();
        open(&self.engine, &arrival(), (Goal::Original, &traffic), None, |_| {}).await
    }

    pub(crate) fn last(&self) -> Record {
        self.world.records.borrow().last().expect("a record").clone()
    }

    pub(crate) fn route(&self, change: impl FnOnce(&mut Rule)) {
        let mut rule = rule();
        change(&mut rule);
        self.world.rules.borrow_mut().push(rule);
    }
}

/// Answers whatever looks like the end of a request's head.
async fn answering(mut stream: DuplexStream, answer: &'static str, heard: Rc<RefCell<String>>) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                heard.borrow_mut().push_str(&String::from_utf8_lossy(&bytes[..read]));
                if heard.borrow().contains("\r\n\r\n")
                    && stream.write_all(answer.as_bytes()).await.is_err()
                {
                    return;
                }
            }
        }
    }
}

pub(crate) fn arrival() -> Arrival {
    let client = SocketAddr::from(([10, 0, 0, 9], 4000));
    Arrival {
        source: Source::new(Some(Identity::new("t", "shop", "cart")), client.ip()),
        workload: None,
        client,
        destination: SocketAddr::from(([10, 96, 0, 1], 80)),
        scheme: Scheme::Http,
        outside: None,
    }
}

/// A rule that sends everything to `web`.
pub(crate) fn rule() -> Rule {
    Rule {
        origin: Origin {
            kind: RouteKind::HttpRoute,
            namespace: "app".into(),
            name: "route".into(),
            created_unix_s: 0,
            index: 0,
            rule_name: None,
        },
        matches: Vec::new(),
        action: Action::Forward { backends: vec![backend("web")], rewrite: Rewrite::default() },
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        mirrors: Vec::new(),
        cors: None,
        faults: Faults::default(),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
    }
}

pub(crate) fn backend(name: &str) -> Backend {
    Backend {
        weight: 1,
        destination: Destination::Service {
            name: ServiceName::new("app", name),
            port: 80,
            subset: None,
        },
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
    }
}
