//! Whether the endpoints take what a waypoint sends them: there must be one, and the policies that
//! select it must admit the waypoint, which is the client there.
//!
//! Endpoints are chosen and judged by the functions that the waypoint and their proxies call.

use std::collections::HashMap;

use ambit_manifest::Kind;
use ambit_model::Text;
use ambit_model::authorize::{Decision, Denial, Source};
use ambit_model::choice::{By, RequestFlow};
use ambit_model::http::warmup::WARM;
use ambit_model::plan::{Delivery, Flow, Refusal, Target};
use ambit_model::workload::Workload;
use ambit_wire::admin;

use super::bounds::Backend;
use super::fronted::Fronted;
use super::{Quiet, refusal_remedy, source_address};

/// So many endpoints of a backend are asked.
const ENDPOINTS_MAX: usize = 64;
/// What the waypoint answers if no endpoint takes a request.
const STATUS: u16 = 503;

/// Why nothing of a backend takes what is sent there.
struct Lost {
    reason: String,
    remedy: String,
    decided_by: Option<String>,
    policy: Option<admin::DecidingPolicy>,
}

impl Lost {
    fn at_waypoint(reason: String, remedy: &str) -> Self {
        Self { reason, remedy: remedy.to_owned(), decided_by: None, policy: None }
    }
}

/// Denies where no backend takes anything. What is lost of several is a note.
pub(super) fn judge(
    fronted: &Fronted<'_>,
    backends: &[Backend<'_>],
    into: &mut admin::Explanation,
) {
    let mut all = backends.iter().map(|backend| lost(fronted, backend, &mut into.notes));
    let mut losses: Vec<Lost> = Vec::new();
    let mut is_taken = false;
    for loss in &mut all {
        is_taken |= loss.is_none();
        losses.extend(loss);
    }
    drop(all);
    if is_taken {
        into.notes.extend(losses.into_iter().map(|it| it.reason));
        return;
    }
    let Some(Lost { reason, remedy, decided_by, policy }) = losses.into_iter().next() else {
        return;
    };
    into.decision = admin::Decision::Deny;
    (into.reason, into.remedy, into.policy) = (reason, Some(remedy), policy);
    if decided_by.is_some() {
        into.decided_by = decided_by;
    }
    if let Some(request) = &mut into.request {
        request.status = Some(STATUS);
    }
}

/// A note if nothing of the destination itself takes what the waypoint sends there.
pub(super) fn note(fronted: &Fronted<'_>, into: &mut admin::Explanation) {
    for backend in Backend::of_destination(fronted) {
        let lost = lost(fronted, &backend, &mut into.notes);
        into.notes.extend(lost.map(|it| format!("{}; to change it: {}", it.reason, it.remedy)));
    }
}

/// Why nothing of a backend takes what is sent there, if nothing does.
fn lost(fronted: &Fronted<'_>, backend: &Backend<'_>, notes: &mut Vec<String>) -> Option<Lost> {
    let view = fronted.builder.view();
    let pods = view.endpoints(fronted.waypoint_service.as_ref()?)?;
    let own = pods.iter().find(|pod| pod.healthy).or_else(|| pods.iter().next())?;
    if let Some(problem) = problem(fronted, backend) {
        let remedy = "correct the object; `ambit status` names it";
        return Some(Lost::at_waypoint(problem, remedy));
    }
    if let Some(through) = through_another(fronted, backend, own) {
        notes.push(format!(
            "{} has a waypoint of its own: what is sent there passes that one, which judges it",
            backend.name
        ));
        let refusal = through.err()?;
        return Some(Lost::at_waypoint(refusal.to_string(), refusal_remedy(&refusal)));
    }
    let endpoints = match endpoints(fronted, backend, own) {
        Ok(endpoints) => endpoints,
        Err(refusal) => {
            return Some(Lost::at_waypoint(refusal.to_string(), refusal_remedy(&refusal)));
        }
    };
    let denied = |delivery: &Delivery| match delivery {
        Delivery::Local(target) | Delivery::Tunnel(target) => denied(fronted, own, target, notes),
        Delivery::Direct(_) | Delivery::Lookup(_) => None,
    };
    let mut losses: Vec<Lost> = endpoints.iter().filter_map(denied).collect();
    if losses.is_empty() {
        return None;
    }
    let (first, count) = (losses.swap_remove(0), losses.len() + 1);
    if count == endpoints.len() {
        return Some(first);
    }
    let (all, Lost { reason, remedy, .. }) = (endpoints.len(), first);
    notes.push(format!(
        "{count} of {all} endpoints of {} refuse the waypoint: {reason}; to change it: {remedy}",
        backend.name
    ));
    None
}

/// What of the objects of a backend is such that the waypoint sends nothing there.
fn problem(fronted: &Fronted<'_>, backend: &Backend<'_>) -> Option<String> {
    let Backend { name, port, subset } = backend;
    let http = fronted.builder.view().http_service(name)?;
    if let Some(why) = &http.traffic(*port, *subset).refusal {
        // A BackendTLSPolicy names itself.
        let is_named = why.starts_with(Kind::BackendTlsPolicy.name());
        let of_rule = || format!("the DestinationRule of {name}: {why}");
        return Some(if is_named { why.to_string() } else { of_rule() });
    }
    let problem = http.health_check.as_ref()?.problem.as_ref()?;
    Some(format!("the health checks of {name}: {problem}"))
}

/// Whether a backend that has another waypoint is reached through that one; `None` if it has not.
fn through_another(
    fronted: &Fronted<'_>,
    backend: &Backend<'_>,
    own: &Workload,
) -> Option<Result<(), Refusal>> {
    let (view, destination) = (fronted.builder.view(), fronted.target.address);
    let service = view.service(backend.name).filter(|_| *backend.name != fronted.name)?;
    let flow = Flow { source: own, source_ip: source_address(own, destination.ip()), destination };
    let mut around = Quiet { enrolled: HashMap::new() };
    let (to, here) = ((service, backend.port), fronted.waypoint_service.as_ref()?);
    let through = view.deliver_through(&flow, to, here, &mut around)?;
    Some(match backend.subset {
        // The other waypoint knows no subsets of this route's.
        Some(subset) => Err(Refusal::NoSubset(service.key.clone(), subset.into())),
        None => through.map(drop),
    })
}

/// The endpoints that the waypoint may choose, each once.
fn endpoints(
    fronted: &Fronted<'_>,
    backend: &Backend<'_>,
    own: &Workload,
) -> Result<Vec<Delivery>, Refusal> {
    let (view, destination) = (fronted.builder.view(), fronted.target.address);
    let mut around = Quiet { enrolled: HashMap::new() };
    let is_itself = *backend.name == fronted.name
        && view.service_meant(&own.network, destination.ip(), &own.namespace).is_none();
    if is_itself {
        return view.deliver_at(&own.network, destination, &around).map(|it| vec![it]);
    }
    let no_endpoint = || Refusal::NoEndpoint(backend.name.clone());
    let service = view.service(backend.name).ok_or_else(no_endpoint)?;
    let http = view.http_service(backend.name);
    let nearness = http.map(|it| it.traffic(backend.port, backend.subset).nearness.clone());
    let nearness = nearness.unwrap_or_default();
    let (mut tried, mut all) = (Vec::<Text>::new(), Vec::new());
    while all.len() < ENDPOINTS_MAX {
        let is_avoided = |uid: &str| tried.iter().any(|it| **it == *uid);
        let flow = RequestFlow {
            source: own,
            destination,
            service,
            port: backend.port,
            host: fronted.asked.as_deref(),
            subset: backend.subset,
            by: By::Hash(0),
            is_avoided: &is_avoided,
            nearness: &nearness,
            warmth: &|_| WARM,
        };
        let delivery = match view.choose_for_request(&flow, &mut around) {
            Err(refusal) if all.is_empty() => return Err(refusal),
            Err(_) => break,
            Ok(delivery) => delivery,
        };
        let uid = uid(&delivery);
        if tried.contains(&uid) {
            break;
        }
        tried.push(uid);
        all.push(delivery);
    }
    Ok(all)
}

fn uid(delivery: &Delivery) -> Text {
    match delivery {
        Delivery::Local(target) | Delivery::Tunnel(target) => target.workload.uid.clone(),
        Delivery::Lookup(lookup) => lookup.workload.uid.clone(),
        Delivery::Direct(direct) => match &direct.workload {
            Some(workload) => workload.uid.clone(),
            None => direct.address.to_string().into(),
        },
    }
}

/// Why the proxy of an endpoint does not let the waypoint in, if it does not.
fn denied(
    fronted: &Fronted<'_>,
    own: &Workload,
    target: &Target,
    notes: &mut Vec<String>,
) -> Option<Lost> {
    let (view, workload) = (fronted.builder.view(), &target.workload);
    let source = Source::new(Some(own.identity()), source_address(own, target.address.ip()));
    let judged = view.authorize(workload, &source, target.address);
    let pod = format!("{}/{}", workload.namespace, workload.name);
    for denial in &judged.dry_run_denials {
        let note = format!("a policy on trial (dry-run) at {pod} would refuse the waypoint");
        notes.push(format!("{note}: {denial}"));
    }
    let Decision::Deny(denial) = judged.decision else { return None };
    let remedy = view.remedy(workload, &source, &denial);
    let attach = "attach the policy to the Service with targetRefs, so that the waypoint judges \
                  it for its clients";
    Some(Lost {
        reason: format!(
            "the proxy of {pod} does not admit the waypoint ({}), which is its client: {denial}",
            own.identity()
        ),
        remedy: match denial {
            Denial::PolicyMissing(_) | Denial::NotThroughWaypoint { .. } => remedy,
            Denial::Denied(_) | Denial::NotAllowed { .. } => format!("{attach}; or {remedy}"),
        },
        decided_by: Some(format!("the proxy of {pod}")),
        policy: match &denial {
            Denial::Denied(rule) => Some(fronted.deciding(rule)),
            _ => None,
        },
    })
}
