//! Where the engine is: in a pod, in front of services or workloads of the mesh.
//!
//! Everything is asked of the view that is in force when it is asked. Endpoints are reached through
//! a waypoint only where their service has another one than this, and whoever is reached proves its
//! own identity, not merely one of the trust domain.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ambit_dataplane::choice::Around;
use ambit_dataplane::dial::{DialError, dial};
use ambit_dataplane::judgement::{wait_for_policies, wait_for_view};
use ambit_dataplane::lately::WITHDRAWN_MAX;
use ambit_dataplane::metrics::Reporter;
use ambit_dataplane::own::Served;
use ambit_dataplane::plane::Plane;
use ambit_dataplane::record::{Counted, Record as TcpRecord};
use ambit_dataplane::tunnel::{self, Ask};
use ambit_http::Scheme;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::hash_of;
use ambit_http::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Routed, Rules, Trial, Unreachable, Version,
};
use ambit_http::engine::rate_limit::buckets::Buckets;
use ambit_http::engine::record::{CheckedAs, Record};
use ambit_model::Text;
use ambit_model::authorize::Source;
use ambit_model::choice::{By, RequestFlow};
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorize::{Asked, RequestJudgement, authorize};
use ambit_model::http::authorizer::Authorizer;
use ambit_model::http::bytes::{BytesRule, Connection, NoBytesRoute};
use ambit_model::http::elsewhere;
use ambit_model::http::head as model;
use ambit_model::http::limits::Limits;
use ambit_model::http::passing::Passing;
use ambit_model::http::rate_limit::RateLimits;
use ambit_model::http::rule::{Destination, Origin};
use ambit_model::http::service::{Protocol, ServiceHttp};
use ambit_model::http::telemetry::{Spans, Telemetry};
use ambit_model::http::traffic::{Balancing, TrafficPolicy};
use ambit_model::http::warmup::WARM;
use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_model::plan::{Delivery, Flow, Refusal};
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use ambit_words::error_chain;
use rustc_hash::FxBuildHasher;

use crate::access_log::{Entry, Passage};
use crate::alternatives::alternatives;
use crate::hello::{HELLO_TIMEOUT, ServerName};
use crate::newcomers::Newcomers;
use crate::originate::{Originators, Spoken};
use crate::possible::refuse;
use crate::refused::Refused;
use crate::reports::Reports;
use crate::shared::Shared;
use crate::telemetry::Remembered;
use crate::watched::watch;
use crate::wellness::Wellness;

/// What holds for a destination of which nothing is said.
static NO_TRAFFIC: LazyLock<TrafficPolicy> = LazyLock::new(TrafficPolicy::default);

/// The position of one thread.
pub(crate) struct Here {
    shared: Arc<Shared>,
    plane: Rc<Plane>,
    served: Rc<Served>,
    own_service: ServiceName,
    own_name: String,
    random: Cell<u64>,
    turns: Cell<u64>,
    arrivals: Newcomers,
    originators: Originators,
    remembered: RefCell<Remembered>,
}

/// How an endpoint is reached, and whether TLS is spoken with it.
#[derive(Clone)]
pub(crate) struct Way {
    delivery: Delivery,
    spoken: Option<Spoken>,
}

/// What a CONNECT asks for.
pub(crate) struct Meant {
    /// Whether this waypoint stands before it.
    pub(crate) is_ours: bool,
    /// What is spoken there.
    pub(crate) protocol: Protocol,
}

/// What holds for the requests of one connection.
pub(crate) struct Holds {
    view: Arc<View>,
    http: Arc<ServiceHttp>,
    port: u16,
    namespace: Option<Text>,
    shared: Arc<Shared>,
    /// Of the policies that are in force, which a view of before does not know.
    version: u64,
}

impl Here {
    pub(crate) fn new(shared: Arc<Shared>, plane: Rc<Plane>, served: Rc<Served>) -> Self {
        let own_service = shared.config.own_service();
        let own_name = shared.own.identity.to_string();
        let random = Cell::new(rand::random::<u64>() | 1);
        let turns = Cell::new(0);
        let (arrivals, originators) = (Newcomers::default(), Originators::default());
        let remembered = RefCell::default();
        Self {
            shared,
            plane,
            served,
            own_service,
            own_name,
            random,
            turns,
            arrivals,
            originators,
            remembered,
        }
    }

    /// What holds now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.plane.mesh.view.load_full()
    }

    /// Which endpoints get no requests.
    pub(crate) fn wellness(&self) -> &Wellness {
        &self.shared.wellness
    }

    /// The address of this pod.
    pub(crate) fn instance(&self) -> IpAddr {
        self.shared.config.instance
    }

    /// This waypoint as a view describes it.
    pub(crate) fn own<'v>(&self, view: &'v View) -> Option<&'v Arc<Workload>> {
        self.shared.own.described_in(view)
    }

    /// What is behind an address: what holds for it is said of its service, and for a workload of
    /// this waypoint's own service.
    fn name_of(&self, view: &View, destination: SocketAddr) -> Option<ServiceName> {
        let (network, namespace) = (&self.shared.config.network, &self.shared.config.namespace);
        let own = || self.own_service.clone();
        if let Some(service) = view.service_meant(network, destination.ip(), namespace) {
            return view.is_fronted_by(service, &self.own_service).then(|| service.key.clone());
        }
        let workload = view.workload_at(network, destination.ip())?;
        view.is_workload_fronted_by(workload, &self.own_service).then(own)
    }

    /// Whether this waypoint does not stand before an address, or does so no more.
    pub(crate) fn is_withdrawn(&self, destination: SocketAddr) -> bool {
        self.name_of(&self.view(), destination).is_none()
    }

    /// The view in which this waypoint stood before an address until a moment ago, if the present
    /// one does not say so: clients whose proxies have not heard of it still come.
    fn left(&self, destination: SocketAddr) -> Option<Arc<View>> {
        let stood = |view: &Arc<View>| self.http_of(view, destination).map(|_| view.clone());
        if stood(&self.view()).is_some() { None } else { self.plane.mesh.lately.find(stood) }
    }

    fn http_of<'v>(&self, view: &'v View, destination: SocketAddr) -> Option<&'v Arc<ServiceHttp>> {
        view.http_service(&self.name_of(view, destination)?)
    }

    /// Waits until the view says whose an address is.
    pub(crate) async fn meant(&self, destination: SocketAddr, client: &Identity) -> Meant {
        let look = |view: &View| {
            let name = self.name_of(view, destination)?;
            let http = view.http_service(&name);
            Some(http.map(|http| http.served_as(destination.port(), Some(&client.namespace))))
        };
        let found = match self.left(destination) {
            Some(before) => look(&before),
            None => wait_for_view(&self.plane.mesh, look).await,
        };
        match found {
            None => Meant { is_ours: false, protocol: Protocol::Detect },
            Some(protocol) => Meant { is_ours: true, protocol: protocol.unwrap_or_default() },
        }
    }

    /// The workload of a client, if what it has proven is what the view says of its address.
    pub(crate) fn client(&self, identity: &Identity, ip: IpAddr) -> Option<Arc<Workload>> {
        let view = self.view();
        let workload = view.workload_at(&self.shared.config.network, ip)?;
        (workload.identity() == *identity).then(|| workload.clone())
    }

    /// Counts up when a judgement may come out otherwise.
    pub(crate) fn policies_version(&self) -> u64 {
        self.view().authorization_version()
    }

    /// Why a connection that is no HTTP may not pass, if it may not.
    pub(crate) fn judge_bytes(
        &self,
        holds: &Holds,
        arrival: &Arrival,
        name: &ServerName,
    ) -> Option<String> {
        let judged = holds.passing(arrival, name).judge(&holds.view, &holds.http);
        judged.err().map(|why| why.to_string())
    }

    /// The same of where a route sends it on to, in another namespace.
    pub(crate) fn judge_bytes_elsewhere(
        &self,
        holds: &Holds,
        arrival: &Arrival,
        name: &ServerName,
        (to, by): (&Goal<'_>, Option<&Origin>),
    ) -> Option<String> {
        let Goal::Backend(Destination::Service { name: service, port, .. }) = to else {
            return None;
        };
        let passing = holds.passing(arrival, name);
        let is_own = by.is_none_or(|by| holds.is_own(by));
        let from = (&*holds.http, is_own);
        let judged = passing.judge_elsewhere(&holds.view, from, (service, *port));
        judged.err().map(|why| why.to_string())
    }

    /// A connection that is no HTTP has ended; `error` says why, if not by itself.
    pub(crate) fn record_bytes(&self, passage: &Passage<'_>, error: Option<&str>) {
        let view = self.view();
        let (service, reports) = (self.asked(&view, passage.arrival), &self.shared.reports);
        let service = service.map(|it| &**it);
        let entry = Entry::of_connection(&reports.names, passage, service, error);
        reports.log(self.telemetry(&view, passage.arrival), &entry);
    }

    /// A connection that is no HTTP came to nothing: counts it and logs it.
    pub(crate) fn refuse_bytes(&self, passage: &Passage<'_>, refused: &Refused) {
        let record = self.tcp_record(passage);
        record.count_refused(&self.plane.tally, refused.flags, refused.reason);
        self.record_bytes(passage, Some(&refused.text));
    }

    /// Counts a connection that is no HTTP, for as long as what is returned lives.
    pub(crate) fn count_bytes(&self, passage: &Passage<'_>) -> Counted {
        self.tcp_record(passage).count_opened(&self.plane.tally)
    }

    /// A connection that is no HTTP, as metrics of connections have it.
    fn tcp_record(&self, passage: &Passage<'_>) -> TcpRecord {
        let (view, arrival) = (self.view(), passage.arrival);
        let named = passage.service.and_then(|name| view.service(name));
        let service = named.or_else(|| self.asked(&view, arrival)).cloned();
        let to = passage.endpoint.unwrap_or(arrival.destination);
        let mut record = TcpRecord::new(Reporter::Waypoint, arrival.client, to);
        record.source.workload = arrival.workload.clone();
        record.source.identity = arrival.source.identity().cloned();
        record.destination.identity = passage.workload.as_ref().map(|it| it.identity());
        record.destination.workload = passage.workload.clone();
        record.service = service;
        record
    }

    /// The service that a client has asked for.
    fn asked<'v>(&self, view: &'v View, arrival: &Arrival) -> Option<&'v Arc<Service>> {
        let (network, own) = (&self.shared.config.network, &self.shared.config.namespace);
        view.service_meant(network, arrival.destination.ip(), own)
    }

    /// What the control plane says of reports about requests to a destination.
    fn telemetry<'v>(&self, view: &'v View, arrival: &Arrival) -> Option<&'v Telemetry> {
        let name = self.name_of(view, arrival.destination)?;
        view.http_service(&name).map(|http| &http.telemetry)
    }

    /// Who is told of requests.
    pub(crate) fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    /// A connection of this waypoint's own to a port of the mesh.
    pub(crate) fn own_arrival(&self, port: u16) -> Arrival {
        let (own, ip) = (&self.shared.own, self.shared.config.instance);
        Arrival {
            source: Source::new(Some(own.identity.clone()), ip),
            workload: None,
            client: SocketAddr::new(ip, 0),
            destination: SocketAddr::new(ip, port),
            scheme: Scheme::Http,
            outside: None,
        }
    }

    /// Where the waypoint's own page of metrics or readiness is served, if a client that connects
    /// to this address means it.
    pub(crate) fn own_page(&self, destination: SocketAddr) -> Option<SocketAddr> {
        let config = &self.shared.config;
        let pages = [config.metrics, config.readiness];
        let page = pages.into_iter().find(|page| page.port() == destination.port())?;
        let own = if page.ip().is_unspecified() { config.instance } else { page.ip() };
        (destination.ip() == config.instance).then_some(SocketAddr::new(own, page.port()))
    }

    /// The service that a goal means, and its port.
    fn service<'v>(
        &self,
        view: &'v View,
        ask: &EndpointAsk<'_>,
    ) -> Result<Option<(&'v Arc<Service>, u16)>, Unreachable> {
        let destination = ask.arrival.destination;
        match ask.goal {
            Goal::Backend(Destination::Service { name, port, .. }) => {
                let service = view.service(name).ok_or_else(|| Unreachable {
                    reason: "no_service",
                    text: format!("service {name} is not known"),
                })?;
                Ok(Some((service, *port)))
            }
            Goal::Backend(Destination::Invalid(reason)) => {
                Err(Unreachable { reason: "no_backend", text: reason.to_string() })
            }
            Goal::Original => {
                let (network, own) = (&self.shared.config.network, &self.shared.config.namespace);
                let service = view.service_meant(network, destination.ip(), own);
                Ok(service.map(|service| (service, destination.port())))
            }
        }
    }

    /// The way through another waypoint, if the service names one.
    fn through(
        &self,
        view: &View,
        own: &Workload,
        ask: &EndpointAsk<'_>,
        (service, port): (&Arc<Service>, u16),
        around: &mut Around<'_>,
    ) -> Option<Result<Endpoint<Way>, Unreachable>> {
        let (source_ip, destination) = (self.shared.config.instance, ask.arrival.destination);
        let flow = Flow { source: own, source_ip, destination };
        let way = view.deliver_through(&flow, (service, port), &self.own_service, around)?;
        if let Goal::Backend(Destination::Service { subset: Some(subset), .. }) = ask.goal {
            let key = &service.key;
            let text = format!("{key} has another waypoint, which knows no subset {subset}");
            return Some(Err(Unreachable { reason: "no_subset", text }));
        }
        Some(way.map(|it| Self::endpoint(it, None, 1)).map_err(refused))
    }

    /// What decides among endpoints.
    fn by(&self, ask: &EndpointAsk<'_>, service: &Service, balancing: &Balancing) -> By {
        let has_affinity = service.load_balancing.client_affinity_seconds.is_some();
        match (ask.hash, balancing) {
            (Some(hash), _) => By::Hash(hash),
            // `sessionAffinity: ClientIP` of a Service, where no DestinationRule says otherwise.
            (None, Balancing::LeastRequest) if has_affinity => {
                By::Hash(hash_of(&ask.arrival.client.ip().to_string()))
            }
            (None, Balancing::Random) => By::Chance,
            (None, Balancing::RoundRobin) => {
                self.turns.set(self.turns.get().wrapping_add(1));
                By::Turn(self.turns.get())
            }
            (None, Balancing::LeastRequest | Balancing::Hash(_)) => By::Load,
        }
    }

    /// An endpoint, and how it is reached.
    pub(crate) fn endpoint(
        delivery: Delivery,
        spoken: Option<Spoken>,
        alternatives: usize,
    ) -> Endpoint<Way> {
        let (uid, address, workload, kind) = match &delivery {
            Delivery::Local(target) | Delivery::Tunnel(target) => {
                let workload = &target.workload;
                (workload.uid.clone(), target.address, Some(workload.clone()), 1)
            }
            Delivery::Direct(direct) => {
                let named = direct.workload.as_ref().map(|it| it.uid.clone());
                let uid = named.unwrap_or_else(|| direct.address.to_string().into());
                (uid, direct.address, direct.workload.clone(), 0)
            }
        };
        // What is spoken in different ways shares no connection.
        let kind = spoken.as_ref().map_or(kind, |it| FxBuildHasher.hash_one((kind, it)));
        let way = Way { delivery, spoken };
        Endpoint { uid, address, workload, kind, alternatives, way }
    }

    /// The policies that select an endpoint know no other client than this waypoint.
    fn denied(&self, endpoint: SocketAddr) -> Unreachable {
        let text = format!(
            "the policies that select {endpoint} do not admit this waypoint, {}: attach them to \
             the Service with targetRefs, or let them allow it too",
            self.own_name
        );
        Unreachable { reason: Unreachable::DENIED, text }
    }

    /// Opens the mesh's own connection to an endpoint.
    async fn deliver(&self, endpoint: &Endpoint<Way>) -> Result<BoxStream, Unreachable> {
        let unreachable = |reason, error: &dyn std::error::Error| {
            self.plane.balance.failed(&endpoint.uid);
            Unreachable { reason, text: error_chain(error) }
        };
        match &endpoint.way.delivery {
            Delivery::Local(target) | Delivery::Tunnel(target) => {
                let view = self.view();
                let Some(source) = self.shared.own.described_in(&view) else {
                    let text = "the control plane has not described this waypoint".to_owned();
                    return Err(Unreachable { reason: "unknown_workload", text });
                };
                let ask = Ask {
                    source,
                    client: SocketAddr::new(self.shared.config.instance, 0),
                    authority: target.address,
                    service: target.service.as_deref(),
                };
                let opened = tunnel::open(&self.plane, &self.served, target, &ask).await;
                let opened = opened.map_err(|error| match error {
                    DialError::Denied => self.denied(target.address),
                    error => unreachable("connect", &error),
                })?;
                let watched = watch(&self.plane, opened);
                let watched = watched.map_err(|revoked| unreachable("connect", &revoked))?;
                self.plane.balance.succeeded(&endpoint.uid);
                Ok(Box::new(watched))
            }
            Delivery::Direct(direct) => {
                let options = self.plane.dial_options(None);
                let dialled = dial(&self.served.own, direct.address, &options).await;
                Ok(Box::new(dialled.map_err(|error| unreachable("connect", &error))?))
            }
        }
    }
}

impl Position for Here {
    type Way = Way;
    type Rules = Holds;

    async fn rules(&self, arrival: &Arrival) -> Option<Holds> {
        let destination = arrival.destination;
        let known = |view: &View| self.http_of(view, destination).cloned();
        let hold = |view: Arc<View>, http, version| {
            let namespace = arrival.source.identity().map(|it| it.namespace.clone());
            let shared = self.shared.clone();
            Holds { view, http, port: destination.port(), namespace, shared, version }
        };
        let view = self.view();
        if let Some(http) = known(&view).filter(|http| is_whole(&view, http)) {
            let version = view.authorization_version();
            return Some(hold(view, http, version));
        }
        let version = view.authorization_version();
        if let Some(before) = self.left(destination) {
            let http = known(&before)?;
            return Some(hold(before, http, version));
        }
        // The name of a policy may come before the policy, which denies if it does not come.
        let whole = |view: &View| known(view).filter(|http| is_whole(view, http)).map(drop);
        wait_for_view(&self.plane.mesh, whole).await;
        let view = self.view();
        let (http, version) = (known(&view)?, view.authorization_version());
        Some(hold(view, http, version))
    }

    async fn policies_changed(&self, version: u64) -> u64 {
        wait_for_policies(&self.plane.mesh, version).await
    }

    async fn withdrawn(&self, arrival: &Arrival) {
        let mut changed = self.plane.mesh.needs_changed.subscribe();
        while !self.is_withdrawn(arrival.destination) {
            // An error is the end of the mesh.
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    async fn deserted(&self, arrival: &Arrival) {
        self.withdrawn(arrival).await;
        tokio::time::sleep(WITHDRAWN_MAX).await;
    }

    fn choose(&self, ask: &EndpointAsk<'_>) -> Result<Endpoint<Way>, Unreachable> {
        let view = self.view();
        let own = self.shared.own.described_in(&view).ok_or_else(|| Unreachable {
            reason: "unknown_workload",
            text: "the control plane has not described this waypoint itself".to_owned(),
        })?;
        let mut around = Around {
            balance: &self.plane.balance,
            view: &view,
            enrolled: &|_| None,
            network: &self.shared.config.network,
            may_join: false,
        };
        let destination = ask.arrival.destination;
        let Some((service, port)) = self.service(&view, ask)? else {
            let delivery = view.deliver_at(&own.network, destination, &around);
            return delivery.map(|it| Self::endpoint(it, None, 1)).map_err(refused);
        };
        let subset = match ask.goal {
            Goal::Backend(Destination::Service { subset, .. }) => subset.as_deref(),
            _ => None,
        };
        if let Some(through) = self.through(&view, own, ask, (service, port), &mut around) {
            return through;
        }
        let alternatives = alternatives(&view, &service.key, subset);
        let traffic = traffic(&view, &service.key, port, subset);
        refuse(&view, &service.key, subset, traffic)?;
        let by = self.by(ask, service, &traffic.balancing);
        let (wellness, now) = (&self.shared.wellness, Instant::now());
        let is_unwell = |uid: &str| wellness.is_left_out(&service.key, uid);
        let leaves_out = wellness.leaves_out(&service.key);
        let is_avoided = |uid: &str| {
            leaves_out && is_unwell(uid)
                || ask.tried.iter().any(|tried| **tried == *uid)
                || (ask.is_ejected)(uid)
                || ask.pinned.is_some_and(|pinned| hash_of(uid) != pinned)
        };
        let arrivals = traffic.warmup.map(|warmup| (warmup, self.arrivals.of(&view, service)));
        let warmth = |uid: &str| match &arrivals {
            Some((warmup, it)) => it.age(uid, now).map_or(WARM, |age| warmup.warmth(age)),
            None => WARM,
        };
        let flow = RequestFlow {
            source: own,
            destination,
            service,
            port,
            subset,
            by,
            is_avoided: &is_avoided,
            nearness: &traffic.nearness,
            warmth: &warmth,
        };
        let choose = |flow: &RequestFlow<'_>, around: &mut Around<'_>| {
            let delivery = view.choose_for_request(flow, around).map_err(refused)?;
            Ok(Self::endpoint(delivery, spoken(&view, traffic, service, port), alternatives))
        };
        let chosen = choose(&flow, &mut around)?;
        if !leaves_out || !is_unwell(&chosen.uid) {
            return Ok(chosen);
        }
        // All that pass were tried or fail in other ways: still one of these.
        let well = choose(&RequestFlow { is_avoided: &is_unwell, ..flow }, &mut around)?;
        if is_unwell(&well.uid) {
            let text = format!("no endpoint of {} passes its health checks", service.key);
            return Err(Unreachable { reason: "no_healthy_endpoint", text });
        }
        Ok(well)
    }

    fn is_there(&self, uid: &str) -> bool {
        // Without a workload it has its address for a name.
        uid.parse::<SocketAddr>().is_ok() || self.view().workload(uid).is_some()
    }

    async fn connect(
        &self,
        _arrival: &Arrival,
        endpoint: &Endpoint<Way>,
    ) -> Result<BoxStream, Unreachable> {
        let stream = self.deliver(endpoint).await?;
        let Some(spoken) = &endpoint.way.spoken else { return Ok(stream) };
        self.originators.connect(spoken, stream).await.map_err(|error| {
            self.plane.balance.failed(&endpoint.uid);
            Unreachable { reason: "upstream_tls", text: error_chain(&error) }
        })
    }

    fn buckets(&self) -> &Buckets {
        &self.shared.buckets
    }

    fn random_below(&self, bound: u64) -> u64 {
        // xorshift64*, good enough to spread load.
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        let drawn = u128::from(state.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(bound);
        u64::try_from(drawn >> 64).expect("the high half of a product of two u64")
    }

    fn own_name(&self) -> &str {
        &self.own_name
    }

    fn trial(&self, arrival: &Arrival, trial: &Trial<'_>) {
        self.shared.checks.trial(arrival, trial);
        if trial.outcome != CheckedAs::Allowed {
            self.plane.mesh.metrics.dry_run_denial(&trial.custom.rule.policy);
        }
    }

    fn record(&self, arrival: &Rc<Arrival>, record: &Record) {
        let view = self.view();
        let asked = self.asked(&view, arrival);
        let named = record.service.as_ref().and_then(|name| view.service(name));
        let service = named.or(asked);
        let mut remembered = self.remembered.borrow_mut();
        let said = self.telemetry(&view, arrival);
        let changes = said.and_then(|it| it.metrics.as_ref());
        let reports = &self.shared.reports;
        let known = service.map(|it| &**it);
        let entry = Entry::of_request(&reports.names, arrival, record, known);
        let requests = &self.shared.requests;
        requests.count(&mut remembered, arrival, record, service, changes, &entry);
        self.shared.checks.count(&record.checks);
        for policy in record.dry_run.iter().filter_map(|denial| denial.policy()) {
            self.plane.mesh.metrics.dry_run_denial(policy);
        }
        reports.tell(said, &entry, record);
    }

    fn cut(&self, arrival: &Arrival, why: &'static str) {
        self.shared.requests.cut(why);
        let identity = arrival.source.identity().map(tracing::field::display);
        tracing::info!(from = %arrival.client, identity, why, "a client's HTTP/2 is cut");
    }
}

impl Holds {
    /// How long the first message of a client is waited for, if anybody asks for the name in it.
    /// `detect` is for ports of which it is not declared that they speak TLS.
    pub(crate) fn server_name_patience(&self, detect: Duration) -> Option<Duration> {
        let client = self.namespace.as_deref();
        let limit = match self.http.served_as(self.port, client) {
            Protocol::Tls => HELLO_TIMEOUT,
            _ => detect,
        };
        self.http.asks_for_names(self.port, client).then_some(limit)
    }

    /// The rule that takes a connection; `None` where no routes are attached, so that it goes where
    /// it would go anyway. An error says that routes are attached and none takes it.
    pub(crate) fn bytes_rule(
        &self,
        destination: SocketAddr,
        server_name: Option<&str>,
    ) -> Result<Option<&BytesRule>, NoBytesRoute> {
        let client_namespace = self.namespace.as_deref();
        let Some(table) = self.http.bytes_routes(self.port, client_namespace) else {
            return Ok(None);
        };
        let destination = destination.ip();
        let (_, rule) = table.find(&Connection { server_name, destination, client_namespace })?;
        Ok(Some(rule))
    }

    /// A connection that is no HTTP, as policies read it.
    fn passing<'a>(&'a self, arrival: &'a Arrival, name: &'a ServerName) -> Passing<'a> {
        Passing {
            source: &arrival.source,
            client_namespace: self.namespace.as_ref(),
            destination: arrival.destination,
            server_name: name.host(),
            is_name_known: *name != ServerName::Unknown,
        }
    }
}

impl Rules for Holds {
    fn route(&self, head: &model::RequestHead<'_>) -> Routed<'_> {
        Routed::by(self.http.routes(self.port, self.namespace.as_deref()), head)
    }

    fn authorizers(&self) -> &BTreeMap<Text, Arc<Authorizer>> {
        &self.http.authorizers
    }

    fn authentication(&self) -> &Authentication {
        &self.http.authentication
    }

    fn rate_limits(&self) -> (&ServiceName, &RateLimits) {
        (&self.http.service, &self.http.rate_limits)
    }

    fn limits(&self) -> &Limits {
        &self.http.limits
    }

    fn judge(&self, asked: &Asked<'_>) -> RequestJudgement {
        let asked = Asked { service: Some(&self.http.service), ..*asked };
        authorize(self.view.request_policies_of(&self.http), &asked)
    }

    fn is_own(&self, route: &Origin) -> bool {
        // Whoever runs this waypoint speaks for all that it stands before.
        route.is_producers(&self.http.service) || route.namespace == self.shared.config.namespace
    }

    fn judge_destination(
        &self,
        to: &Goal<'_>,
        by: &Origin,
        asked: &Asked<'_>,
    ) -> Option<RequestJudgement> {
        let Goal::Backend(Destination::Service { name, port, .. }) = to else { return None };
        elsewhere::judge(&self.view, (&self.http, self.is_own(by)), (name, *port), asked)
    }

    fn policies_version(&self) -> u64 {
        self.version
    }

    fn traffic(&self, goal: &Goal<'_>) -> &TrafficPolicy {
        match goal {
            Goal::Original => self.http.traffic(self.port, None),
            Goal::Backend(Destination::Service { name, port, subset }) => {
                traffic(&self.view, name, *port, subset.as_deref())
            }
            Goal::Backend(Destination::Invalid(_)) => &NO_TRAFFIC,
        }
    }

    fn version(&self, goal: &Goal<'_>) -> Option<Version> {
        let protocol = match goal {
            Goal::Original => self.http.protocol(self.port),
            Goal::Backend(Destination::Service { name, port, .. }) => {
                self.view.http_service(name).map_or(Protocol::Detect, |it| it.protocol(*port))
            }
            Goal::Backend(Destination::Invalid(_)) => Protocol::Detect,
        };
        match protocol {
            Protocol::Http => Some(Version::Http1),
            Protocol::Http2 => Some(Version::Http2),
            Protocol::Detect | Protocol::Tcp | Protocol::Tls => None,
        }
    }

    fn spans(&self) -> Option<&Arc<Spans>> {
        self.shared.reports.spans(&self.http.telemetry)
    }

    fn keeps_response(&self) -> bool {
        self.shared.reports.reads_response(&self.http.telemetry)
    }
}

/// Whether no policy is missing, of the service or of those to which its routes lead.
fn is_whole(view: &View, http: &ServiceHttp) -> bool {
    let is_whole = |http| view.request_policies_of(http).all(|policy| policy.is_ok());
    // One of which nothing is known refuses its own share, and holds up nothing else.
    let mut routed = http.routed().filter_map(|name| view.http_service(name));
    is_whole(http) && routed.all(|http| is_whole(http))
}

pub(crate) fn traffic<'v>(
    view: &'v View,
    name: &ServiceName,
    port: u16,
    subset: Option<&str>,
) -> &'v TrafficPolicy {
    view.http_service(name).map_or(&*NO_TRAFFIC, |http| http.traffic(port, subset))
}

/// The TLS that is spoken with the endpoints of a port, if a rule asks for it.
pub(crate) fn spoken(
    view: &View,
    traffic: &TrafficPolicy,
    service: &Service,
    port: u16,
) -> Option<Spoken> {
    let origination = traffic.origination.as_ref()?;
    let protocol = view.http_service(&service.key).map(|it| it.protocol(port));
    Some(Spoken::new(origination, &service.key.hostname, protocol.unwrap_or_default()))
}

fn refused(refusal: Refusal) -> Unreachable {
    Unreachable { reason: "no_endpoint", text: refusal.to_string() }
}
