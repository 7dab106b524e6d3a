//! Which of several replicas does what only one may: a Lease, as client-go's leader election.
//!
//! Clocks of machines are never compared. A candidate takes a Lease only after it has seen it
//! unchanged for the Lease's whole duration by its own clock; a leader stops leading when its last
//! renewal *began* [`RENEW_DEADLINE`] ago, which is before anybody may take over. The write is
//! conditional on the version that was read, so of two candidates one loses. A leader that stops
//! gives the Lease back.

use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_words::names::CONTROL_LEASE;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{ApiError, FIELD_MANAGER, answer};

/// How long it is held without renewal.
const DURATION: Duration = Duration::from_secs(15);
/// How often it is renewed, and looked at by those who do not have it.
const INTERVAL: Duration = Duration::from_secs(5);
/// When a leader that could not renew stops leading: with one answer's time to spare for what it
/// has under way.
const RENEW_DEADLINE: Duration = Duration::from_secs(9);

/// One candidate.
pub(crate) struct Election {
    leases: Api<Lease>,
    /// Its name, different from all others'.
    identity: String,
    leads: watch::Sender<bool>,
    /// The Lease's version that was seen last, and when it was seen first.
    observed: Option<(String, Instant)>,
    /// When the last successful renewal began.
    renewed: Option<Instant>,
}

impl Election {
    /// A candidate called `identity`, and how to learn whether it leads.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        identity: String,
    ) -> (Self, watch::Receiver<bool>) {
        let (leads, leading) = watch::channel(false);
        let leases = Api::namespaced(client, namespace);
        (Self { leases, identity, leads, observed: None, renewed: None }, leading)
    }

    /// Stands until asked to drain, then gives the Lease back.
    pub(crate) async fn run(mut self, mut guard: Guard) {
        loop {
            self.step().await;
            // A leader that cannot renew must stop in time, not at the next look.
            let deadline = self.renewed.map(|renewed| renewed + RENEW_DEADLINE);
            let next = Instant::now() + INTERVAL;
            tokio::select! {
                _ = guard.draining() => break,
                () = tokio::time::sleep_until(deadline.map_or(next, |it| it.min(next))) => {}
            }
        }
        let led = *self.leads.borrow();
        self.lead(false);
        if led && let Err(error) = self.give_back().await {
            tracing::warn!(%error, "the Lease is not given back; it ends in {DURATION:?}");
        }
    }

    /// One look at the Lease: takes or renews it if that may be done.
    async fn step(&mut self) {
        let began = Instant::now();
        let deadline = self.renewed.unwrap_or(began) + RENEW_DEADLINE;
        let late = |_| ApiError::Away(format!("no answer in {RENEW_DEADLINE:?}"));
        let held = timeout_at(deadline, self.hold(began)).await.map_err(late);
        match held.and_then(|held| held) {
            Ok(true) => {
                self.renewed = Some(began);
                self.lead(true);
            }
            Ok(false) => {
                self.renewed = None;
                self.lead(false);
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the Lease");
                if self.renewed.is_some_and(|renewed| renewed.elapsed() >= RENEW_DEADLINE) {
                    self.renewed = None;
                    self.lead(false);
                }
            }
        }
    }

    /// Whether the Lease is ours, taken or renewed a moment ago.
    async fn hold(&mut self, began: Instant) -> Result<bool, ApiError> {
        let Some(lease) = answer(self.leases.get_opt(CONTROL_LEASE)).await? else {
            return won(answer(self.leases.create(&written(), &self.lease(None))).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        if self.observed.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.observed = Some((version, began));
        }
        let since = self.observed.as_ref().map_or(began, |(_, since)| *since);
        let seconds = spec.lease_duration_seconds.unwrap_or_default().max(0).unsigned_abs();
        let is_over = since.elapsed() >= Duration::from_secs(seconds.into()).max(DURATION);
        if holder == self.identity || holder.is_empty() || is_over {
            let ours = self.lease(Some(lease));
            return won(answer(self.leases.replace(CONTROL_LEASE, &written(), &ours)).await);
        }
        Ok(false)
    }

    /// The Lease as we write it over `before`.
    fn lease(&self, before: Option<Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let metadata = match &before {
            Some(before) => before.metadata.clone(),
            None => ObjectMeta { name: Some(CONTROL_LEASE.to_owned()), ..ObjectMeta::default() },
        };
        let spec = before.and_then(|before| before.spec).unwrap_or_default();
        let is_ours = spec.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = spec.lease_transitions.unwrap_or_default();
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(DURATION.as_secs().try_into().expect("is small")),
                acquire_time: spec.acquire_time.filter(|_| is_ours).or(Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(transitions + i32::from(!is_ours)),
                ..LeaseSpec::default()
            }),
        }
    }

    async fn give_back(&self) -> Result<(), ApiError> {
        let Some(mut lease) = answer(self.leases.get_opt(CONTROL_LEASE)).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = None;
            won(answer(self.leases.replace(CONTROL_LEASE, &written(), &lease)).await)?;
        }
        Ok(())
    }

    fn lead(&self, leads: bool) {
        let changed = self.leads.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        if changed {
            let what = if leads { "this replica leads" } else { "this replica no longer leads" };
            tracing::info!(identity = self.identity, "{what}");
        }
    }
}

fn written() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Whether a write was the one that counted.
fn won<T>(written: Result<T, ApiError>) -> Result<bool, ApiError> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use ambit_net::drain::Drain;

    use super::*;
    use crate::kubernetes::fake::FakeApi;

    fn candidate(api: &FakeApi, name: &str) -> (Election, watch::Receiver<bool>) {
        Election::new(api.client(), "istio-system", name.to_owned())
    }

    fn holder(api: &FakeApi) -> String {
        let lease =
            api.get("/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/ambit-control");
        let lease = lease.unwrap_or_default();
        lease.pointer("/spec/holderIdentity").and_then(|it| it.as_str()).unwrap_or("").to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn one_leads_and_the_next_waits_for_the_whole_duration() {
        let api = FakeApi::default();
        let ((mut one, led_one), (mut two, led_two)) =
            (candidate(&api, "one"), candidate(&api, "two"));
        let mut look = async |steps_one: bool| {
            if steps_one {
                one.step().await;
            }
            two.step().await;
            let led = (*led_one.borrow(), *led_two.borrow());
            tokio::time::advance(INTERVAL).await;
            led
        };
        for _ in 0..5 {
            assert_eq!(look(true).await, (true, false));
        }
        // The leader hangs: its Lease is taken after it was seen unchanged for 15 s.
        let mut led = Vec::new();
        for _ in 0..4 {
            led.push(look(false).await.1);
        }
        assert_eq!(led, [false, false, true, true]);
        assert_eq!(holder(&api), "two");
        assert_eq!(look(true).await, (false, true), "the first learns that it lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_before_anybody_may_take_over() {
        let api = FakeApi::default();
        let (one, mut led) = candidate(&api, "one");
        let drain = Drain::new();
        let task = drain.guard().spawn(one.run(drain.guard()));
        led.wait_for(|leads| *leads).await.unwrap();
        let start = Instant::now();
        api.be_away(true);
        led.wait_for(|leads| !*leads).await.unwrap();
        assert!(start.elapsed() < DURATION, "{:?}", start.elapsed());
        api.be_away(false);
        led.wait_for(|leads| *leads).await.unwrap();
        drain.start(None);
        task.await.unwrap();
        assert_eq!(holder(&api), "", "given back");
        let (mut two, led) = candidate(&api, "two");
        two.step().await;
        assert!(*led.borrow(), "at once");
    }
}
