//! Whether a connection to a pod of this proxy may come in.
//!
//! Asks the view, and waits where that can help: a workload or a policy that the view does not hold
//! yet may be on its way. When the wait is over the connection is refused, never let through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::authorize::{Decision, Denial, JudgedBefore, Judgement, RuleName, Source};
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use ambit_model::workload::Workload;
use tokio::time::{Instant, timeout_at};

use crate::connections::{Entered, Judged, Waypoint};
use crate::failure::{Failure, ResponseFlags};
use crate::mesh::Mesh;
use crate::own::OwnWorkload;

/// How long a connection waits for a part of the view that it needs.
pub const VIEW_PATIENCE: Duration = Duration::from_secs(2);

/// Why a connection may not come in.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The view does not know the pod, after waiting for it.
    #[error(
        "the control plane has not described workload {0} within {patience_s} s; is the proxy \
         connected?",
        patience_s = VIEW_PATIENCE.as_secs()
    )]
    Unknown(WorkloadName),
    /// A policy denies it.
    #[error("{0}")]
    Denied(Denial),
}

impl Failure for Refused {
    fn flags(&self) -> ResponseFlags {
        match self {
            Self::Unknown(_) => ResponseFlags::Connect,
            Self::Denied(_) => ResponseFlags::Deny,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_workload",
            Self::Denied(Denial::Denied(_)) => "denied",
            Self::Denied(Denial::NotAllowed { .. }) => "not_allowed",
            Self::Denied(Denial::PolicyMissing(_)) => "policy_missing",
            Self::Denied(Denial::NotThroughWaypoint { .. }) => "not_through_waypoint",
        }
    }
}

/// A connection that may come in, entered among those that are judged again.
pub struct Allowed {
    /// The workload that is connected to, as the view describes it.
    pub workload: Arc<Workload>,
    /// The rule that allows it, if it takes one.
    pub by: Option<RuleName>,
    /// Its entry.
    pub entered: Entered,
}

/// Asks `look` of the view until it finds something, or patience ends.
pub async fn wait_for_view<T>(mesh: &Mesh, mut look: impl FnMut(&View) -> Option<T>) -> Option<T> {
    if let Some(found) = look(&mesh.view.load()) {
        return Some(found);
    }
    let deadline = Instant::now() + VIEW_PATIENCE;
    let mut changed = mesh.view_changed.subscribe();
    loop {
        if let Some(found) = look(&mesh.view.load()) {
            return Some(found);
        }
        if !matches!(timeout_at(deadline, changed.changed()).await, Ok(Ok(()))) {
            return None;
        }
    }
}

/// Waits until a judgement may come out otherwise than by this version of the view's policies
/// ([`View::authorization_version`]); returns the version by which it may.
pub async fn wait_for_policies(mesh: &Mesh, version: u64) -> u64 {
    let mut changed = mesh.view_changed.subscribe();
    loop {
        let now = mesh.view.load().authorization_version();
        // An error is the end of the mesh, and of whoever waits.
        if now != version || changed.changed().await.is_err() {
            return now;
        }
    }
}

/// Judges a connection from `source` to a pod and enters it in the table in the same breath, so
/// that no change of the view falls in between.
pub async fn admit(
    mesh: &Mesh,
    own: &OwnWorkload,
    source: Source,
    destination: SocketAddr,
    enter: impl Fn(Judged) -> Entered,
) -> Result<Allowed, Refused> {
    let waypoint = Waypoint { judged: JudgedBefore::Nothing, is_former: false };
    let judged = Judged { workload: own.name.clone(), source, destination, waypoint };
    let mut refused = Refused::Unknown(own.name.clone());
    let verdict = wait_for_view(mesh, |view| {
        let workload = own.described_in(view)?.clone();
        let (judgement, waypoint) = judge(mesh, view, own, &judged)?;
        match judgement.decision {
            Decision::Deny(denial) if may_change(&denial) => {
                refused = Refused::Denied(denial);
                None
            }
            decision => {
                let judged = Judged { waypoint, ..judged.clone() };
                let entered = matches!(decision, Decision::Allow(_)).then(|| enter(judged));
                Some((workload, decision, judgement.dry_run_denials, entered))
            }
        }
    })
    .await;
    let (workload, decision, dry_run_denials, entered) = verdict.ok_or(refused)?;
    report_dry_run(mesh, &judged, &dry_run_denials);
    match (decision, entered) {
        (Decision::Allow(by), Some(entered)) => {
            if mesh.settings.policy_info_logging {
                tracing::info!(destination = %judged.workload, by = ?by, "connection allowed");
            }
            Ok(Allowed { workload, by, entered })
        }
        (Decision::Allow(_), None) => unreachable!("what is allowed was entered"),
        (Decision::Deny(denial), _) => Err(Refused::Denied(denial)),
    }
}

/// Whether a new connection that is denied so waits for a newer view: a part of this one may be
/// missing, or the client's proxy may have heard before us that the waypoint is gone.
fn may_change(denial: &Denial) -> bool {
    denial.is_pending() || matches!(denial, Denial::NotThroughWaypoint { .. })
}

/// Judges a new connection, and says what its waypoint has judged before. For a moment after the
/// waypoint of a destination has changed, proxies that have not heard of it send connections as
/// before: these come in if they would have, and if the policies of now allow them.
fn judge(
    mesh: &Mesh,
    view: &View,
    own: &OwnWorkload,
    of: &Judged,
) -> Option<(Judgement, Waypoint)> {
    let Judged { source, destination, .. } = of;
    let workload = own.described_in(view)?;
    let judgement = view.authorize(workload, source, *destination);
    let now = view.judged_before(workload, source).ok();
    let is_allowed = |judgement: &Judgement| matches!(judgement.decision, Decision::Allow(_));
    if is_allowed(&judgement) {
        let judged = now.unwrap_or(JudgedBefore::Nothing);
        return Some((judgement, Waypoint { judged, is_former: false }));
    }
    let way_in = |before: &Arc<View>| {
        let workload = own.described_in(before)?;
        let judged = before.judged_before(workload, source).ok()?;
        let came_in = || before.authorize_after(judged, workload, source, *destination);
        (Some(judged) != now && is_allowed(&came_in())).then_some(judged)
    };
    let Some(judged) = mesh.lately.find(way_in) else {
        return Some((judgement, Waypoint { judged: JudgedBefore::Nothing, is_former: false }));
    };
    let judgement = view.authorize_after(judged, workload, source, *destination);
    Some((judgement, Waypoint { judged, is_former: true }))
}

/// Says what policies on trial would have denied.
fn report_dry_run(mesh: &Mesh, judged: &Judged, denials: &[Denial]) {
    for denial in denials {
        let Some(policy) = denial.policy() else { continue };
        mesh.metrics.dry_run_denial(policy);
        tracing::event!(
            target: "access",
            tracing::Level::INFO,
            policy = %policy,
            src.addr = %judged.source.ip(),
            src.identity = judged.source.identity().map(tracing::field::display),
            dst.addr = %judged.destination,
            dst.workload = %judged.workload,
            "dry run: this connection would be {denial}"
        );
    }
}
