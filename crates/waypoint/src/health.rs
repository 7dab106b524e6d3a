//! Active health checks of endpoints: once for the whole pod, on one of its threads, the way of
//! requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ambit_http::Scheme;
use ambit_http::engine::position::{Arrival, Position as _, Version};
use ambit_http::engine::probe::probe;
use ambit_http::h1::parse::Limits;
use ambit_model::authorize::Source;
use ambit_model::choice::{By, RequestFlow, Surroundings};
use ambit_model::http::health::{Endpoint, Health, HealthCheck};
use ambit_model::http::nearness::Nearness;
use ambit_model::http::service::Protocol;
use ambit_model::http::warmup::WARM;
use ambit_model::identity::Identity;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::view::View;
use ambit_words::error_chain;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{sleep_until, timeout};

use crate::position::{Here, traffic};

/// Checks at once.
const MAX_RUNNING: usize = 64;
/// How often it is looked whether services or their checks have changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// All connections are as good as the others for a check.
struct Even;

impl Surroundings for Even {
    fn enrolled_identity(&self, _: std::net::IpAddr) -> Option<&Identity> {
        None
    }

    fn may_join(&self) -> bool {
        false
    }

    fn open_connections(&self, _: &str) -> u32 {
        0
    }

    fn is_set_aside(&self, _: &str) -> bool {
        false
    }

    fn random_below(&mut self, _: u64) -> u64 {
        0
    }
}

/// Checks endpoints, for as long as this thread runs.
pub(crate) async fn run(here: &Here, limits: Limits) {
    let mut health = Health::default();
    let mut seen: Option<Arc<View>> = None;
    let mut running = FuturesUnordered::new();
    let mut look_at = Instant::now();
    loop {
        let (view, now) = (here.view(), Instant::now());
        let is_seen = seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &view));
        if now >= look_at && !is_seen {
            health.keep(checked(&view), now, |bound| here.random_below(bound));
            here.wellness().publish(&health, |name| rules(&view, name).cloned());
            seen = Some(view.clone());
        }
        if now >= look_at {
            look_at = now + LOOK_INTERVAL;
        }
        for endpoint in health.begin(now, MAX_RUNNING - running.len()) {
            let view = view.clone();
            running.push(async move {
                let found = match rules(&view, &endpoint.service) {
                    Some(rules) => one(here, &view, &endpoint, rules, limits).await,
                    None => Ok(()),
                };
                (endpoint, found)
            });
        }
        let until = health.next_due().map_or(look_at, |due| due.min(look_at)).max(now);
        let may_begin = running.len() < MAX_RUNNING;
        let until = if may_begin { until } else { look_at };
        tokio::select! {
            Some((endpoint, found)) = running.next(), if !running.is_empty() => {
                // As they were when it was last looked: what is checked follows from the same view.
                let rules = seen.as_deref().and_then(|seen| rules(seen, &endpoint.service));
                let Some(rules) = rules else { continue };
                let (now, passed) = (Instant::now(), found.is_ok());
                let random = |bound| here.random_below(bound);
                if health.report(rules, &endpoint, passed, now, random).is_some() {
                    told(&endpoint, found);
                    here.wellness().publish(&health, |name| self::rules(&view, name).cloned());
                }
            }
            () = sleep_until(until.into()) => {}
        }
    }
}

/// Says that it has changed whether an endpoint gets requests.
fn told(endpoint: &Endpoint, found: Result<(), String>) {
    let Endpoint { service, uid } = endpoint;
    match found {
        Ok(()) => tracing::info!(%service, endpoint = %uid, "passes its health checks again"),
        Err(reason) => {
            tracing::warn!(%service, endpoint = %uid, reason, "left out: its health checks fail");
        }
    }
}

fn rules<'v>(view: &'v View, name: &ServiceName) -> Option<&'v HealthCheck> {
    let rules = view.http_service(name)?.health_check.as_ref();
    rules.filter(|it| it.problem.is_none())
}

/// The endpoints that are to be checked.
fn checked(view: &View) -> impl Iterator<Item = (Endpoint, &HealthCheck)> {
    let services = view.http_services().filter_map(|http| {
        let rules = rules(view, &http.service)?;
        Some((&http.service, view.endpoints(&http.service)?, rules))
    });
    services.flat_map(|(service, endpoints, rules)| {
        let ready = endpoints.iter().filter(|workload| workload.healthy);
        ready.map(move |workload| {
            let (service, uid) = (service.clone(), workload.uid.clone());
            (Endpoint { service, uid }, rules)
        })
    })
}

/// Checks one endpoint; an error says why it does not pass.
async fn one(
    here: &Here,
    view: &View,
    endpoint: &Endpoint,
    rules: &HealthCheck,
    limits: Limits,
) -> Result<(), String> {
    let checking = ask(here, view, endpoint, rules, limits);
    let late = |_| format!("no answer within {} ms", rules.timeout.as_millis());
    timeout(rules.timeout, checking).await.map_err(late)?
}

async fn ask(
    here: &Here,
    view: &View,
    endpoint: &Endpoint,
    rules: &HealthCheck,
    limits: Limits,
) -> Result<(), String> {
    let service = view.service(&endpoint.service).ok_or("its service is gone")?;
    let first = service.ports.first().map(|port| port.service_port);
    let port = rules.port.or(first).ok_or("its service has no port")?;
    let own = here.own(view).ok_or("the control plane has not described this waypoint")?;
    let is_another = |uid: &str| *uid != *endpoint.uid;
    let flow = RequestFlow {
        source: own,
        destination: destination(here, service, port),
        service,
        port,
        host: None,
        subset: None,
        by: By::Turn(0),
        is_avoided: &is_another,
        nearness: &Nearness::Ignored,
        warmth: &|_| WARM,
    };
    let delivery = view.choose_for_request(&flow, &mut Even).map_err(|it| it.to_string())?;
    // TLS is spoken with it as with requests.
    let traffic = traffic(view, &service.key, port, None);
    if let Some(why) = &traffic.refusal {
        return Err(why.to_string());
    }
    let client = SocketAddr::new(here.instance(), 0);
    let arrival = Arrival {
        source: Source::new(None, client.ip()),
        workload: None,
        client,
        destination: flow.destination,
        scheme: Scheme::Http,
        outside: None,
    };
    let spoken = here.spoken(view, traffic, (service, port, &service.key.hostname), &arrival);
    let reached = here.endpoint(delivery, spoken, 1);
    if reached.uid != endpoint.uid {
        return Err(format!("it does not serve port {port}"));
    }
    here.refuse_around(view, &arrival, &reached).map_err(|it| it.text)?;
    let stream = here.connect(&arrival, &reached).await.map_err(|it| it.text)?;
    let protocol = view.http_service(&endpoint.service).map(|http| http.protocol(port));
    let version = match protocol {
        Some(Protocol::Http2) => Version::Http2,
        _ => Version::Http1,
    };
    let host = format!("{}:{port}", endpoint.service.hostname);
    let asked = probe(stream, &rules.probe, &host, version, limits);
    asked.await.map_err(|error| error_chain(&error))
}

/// Where a request to the service would have come in.
fn destination(here: &Here, service: &Service, port: u16) -> SocketAddr {
    let virtual_ip = service.addresses.first().map(|it| it.address.ip);
    SocketAddr::new(virtual_ip.unwrap_or(here.instance()), port)
}
