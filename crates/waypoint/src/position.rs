//! Where the engine is: in a pod, in front of services or workloads of the mesh, or at its edge.
//!
//! Everything is asked of the view that is in force when it is asked. Endpoints are reached through
//! a waypoint only where their service has another one than this, and whoever is reached proves its
//! own identity, not merely one of the trust domain.

mod entering;
mod here;
mod holds;
mod reach;
mod said;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ambit_dataplane::choice::Around;
use ambit_dataplane::judgement::{wait_for_policies, wait_for_view};
use ambit_dataplane::lately::WITHDRAWN_MAX;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::hash_of;
use ambit_http::engine::position::{Arrival, Endpoint, EndpointAsk, Position, Trial, Unreachable};
use ambit_http::engine::rate_limit::buckets::Buckets;
use ambit_http::engine::record::{CheckedAs, Record};
use ambit_model::choice::RequestFlow;
use ambit_model::http::warmup::WARM;
use ambit_model::view::View;
use ambit_words::error_chain;

use self::here::At;
use self::holds::AtGateway;
use self::reach::{host_of, refused};
use self::said::is_whole;
use crate::access_log::Entry;
use crate::alternatives::alternatives;
use crate::possible::refuse;

pub(crate) use self::here::{Here, Meant};
pub(crate) use self::holds::Holds;
pub(crate) use self::reach::Way;
pub(crate) use self::said::traffic;

impl Here {
    /// The gateway that this is, as a connection from outside may ask it.
    fn at_gateway(&self, view: &View, arrival: &Arrival) -> Option<AtGateway> {
        let outside = arrival.outside.as_ref()?;
        let gateway = self.gateway(view)?.clone();
        Some(AtGateway { gateway, asked_for: outside.server_name.clone() })
    }
}

impl Position for Here {
    type Way = Way;
    type Rules = Holds;

    async fn rules(&self, arrival: &Arrival) -> Option<Holds> {
        let (at, destination) = (At::of(arrival), arrival.destination);
        let known = |view: &View| self.http_of(view, at).cloned();
        let hold = |view: Arc<View>, http, version| {
            let namespace = arrival.source.identity().map(|it| it.namespace.clone());
            let shared = self.shared.clone();
            let (gateway, makers) = (self.at_gateway(&view, arrival), self.makers(&view, arrival));
            let port = destination.port();
            Holds { view, http, port, namespace, gateway, makers, shared, version }
        };
        let view = self.view();
        if let Some(http) = known(&view).filter(|http| is_whole(&view, http)) {
            let version = view.authorization_version();
            return Some(hold(view, http, version));
        }
        let version = view.authorization_version();
        if let Some(before) = self.left(at) {
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
        while !self.is_withdrawn(arrival) {
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
            return self.at_address(&view, own, ask.arrival, &around);
        };
        let subset = ask.goal.subset();
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
            host: ask.host,
            subset,
            by,
            is_avoided: &is_avoided,
            nearness: &traffic.nearness,
            warmth: &warmth,
        };
        let choose = |flow: &RequestFlow<'_>, around: &mut Around<'_>| {
            let delivery = view.choose_for_request(flow, around).map_err(refused)?;
            let to = (&**service, port, host_of(service, &delivery));
            let spoken = self.spoken(&view, traffic, to, ask.arrival);
            let endpoint = self.endpoint(delivery, spoken, alternatives);
            self.refuse_around(&view, ask.arrival, &endpoint).map(|()| endpoint)
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
        let Some(delivery) = &endpoint.way.delivery else { return self.enter(endpoint) };
        let stream = self.deliver(endpoint, delivery).await?;
        let Some(spoken) = &endpoint.way.spoken else { return Ok(stream) };
        let shown = self.shown(&spoken.proof).await;
        self.originators.connect(spoken, shown, stream).await.map_err(|error| {
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
